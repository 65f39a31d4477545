from __future__ import annotations

import json
import os
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.record import to_json
from quarl_nb.store import ResultStore
from quarl_nb.study import Cell
from quarl_nb.writing import STALE_S, write_atomically

BUDGET = {"episodes": 2}


def make_record(number=1, profile="smoke", start_time="2026-01-01T00:00:00+00:00", **changes):
    record = {
        "study": "ptq", "profile": profile, "schema_version": 1,
        "cell": {"algo": "ppo", "seed": number}, "budget": BUDGET,
        "measured": {"returns": np.array([1.5, 2.0]), "lengths": [3, np.int64(4)]},
        "backend": "simulated", "source": "measured", "wall_s": 0.5,
        "energy": {"energy_j": None, "cpu_s": 0.25, "method": "cpu_time"},
        "provenance": {"git_commit": "abc", "start_time": start_time},
    } | changes  # fmt: skip
    cell = Cell(record["study"], record["cell"])
    return record | {"key": cell.key(record["budget"], record["schema_version"])}


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "records")


def test_a_record_comes_back_in_plain_types(store):
    record = make_record()
    path = store.write(record)
    assert path == store.root / "ptq" / "smoke" / f"{record['key']}.json"
    assert store.has("ptq", "smoke", record["key"])
    read = store.read(path)
    assert read["measured"] == {"returns": [1.5, 2.0], "lengths": [3, 4]}
    assert {name: read[name] for name in ("cell", "budget", "wall_s")} == {
        "cell": {"algo": "ppo", "seed": 1}, "budget": BUDGET, "wall_s": 0.5,
    }  # fmt: skip


def test_a_record_takes_a_line_a_field_and_may_be_laid_out_anew(store):
    path = store.write(make_record())
    record = store.read(path)
    assert len(path.read_text().splitlines()) == len(record) + 2
    path.write_text(json.dumps(record, indent=1))
    assert store.read(path) == record


def test_non_finite_numbers_become_null_and_other_objects_are_refused():
    assert to_json({"x": [np.float32("nan"), float("-inf"), True, None, (1, "a")]}) == {
        "x": [None, None, True, None, [1, "a"]]
    }
    with pytest.raises(TypeError, match="set is not a JSON value"):
        to_json({"x": {1}})


def test_arrays_come_back_and_pickles_are_refused(store):
    arrays = {"curve": np.arange(6.0).reshape(2, 3), "counts": np.array([1, 2], np.uint8)}
    read = store.read(store.write(make_record(), arrays))
    again = store.arrays(read)
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)
        assert again[name].dtype == array.dtype
    with pytest.raises(ValueError, match="allow_pickle"):
        store.write(make_record(2), {"objects": np.array([{}], dtype=object)})
    assert not store.has("ptq", "smoke", make_record(2)["key"])


def test_a_record_without_arrays_has_none(store):
    assert store.arrays(store.read(store.write(make_record()))) == {}


def test_changed_or_missing_arrays_are_refused(store):
    path = store.write(make_record(), {"curve": np.zeros(3)})
    record = store.read(path)
    (npz,) = path.parent.glob("*.npz")
    npz.write_bytes(npz.read_bytes()[:-1])
    with pytest.raises(QuarlError, match=f"{npz.name}' are truncated"):
        store.arrays(record)
    npz.unlink()
    with pytest.raises(QuarlError, match=f"cannot read arrays '.*{npz.name}': No such file"):
        store.arrays(record)


def before_json(monkeypatch, act):
    """`act` once, between the two files of the next record."""
    def write(path, content):
        if path.suffix == ".json":
            monkeypatch.setattr("quarl_nb.store.write_atomically", write_atomically)
            act()
        write_atomically(path, content)

    monkeypatch.setattr("quarl_nb.store.write_atomically", write)


def test_arrays_stay_when_a_writer_dies_before_its_record(store, monkeypatch):
    def die():
        raise KeyboardInterrupt

    record = make_record()
    path = store.write(record, {"curve": np.zeros(3)})
    before_json(monkeypatch, die)
    with pytest.raises(KeyboardInterrupt):
        store.write(record, {"curve": np.zeros(5)})
    assert len(store.arrays(store.read(path))["curve"]) == 3
    store.write(record, {"curve": np.zeros(4)})  # the dead one locks nobody out
    assert len(store.arrays(store.read(path))["curve"]) == 4


def test_two_writers_of_a_cell_take_turns(store, monkeypatch):
    """One of the same arrays as before keeps them, though the other replaces them meanwhile."""
    record = make_record()
    path = store.write(record, {"curve": np.zeros(3)})
    other = Thread(target=store.write, args=(record, {"curve": np.zeros(4)}))

    def start_other():
        other.start()
        other.join(0.3)
        assert other.is_alive()

    before_json(monkeypatch, start_other)
    store.write(record, {"curve": np.zeros(3)})
    other.join()
    assert len(store.arrays(store.read(path))["curve"]) == 4
    assert len([*path.parent.glob("*.npz")]) == 1


def test_arrays_of_a_replaced_record_go_and_older_names_are_read(store):
    path = store.write(make_record(), {"curve": np.zeros(3)})
    (npz,) = path.parent.glob("*.npz")
    npz.rename(path.with_suffix(".npz"))  # as they were named
    assert len(store.arrays(store.read(path))["curve"]) == 3
    store.write(store.read(path))
    assert len(store.arrays(store.read(path))["curve"]) == 3
    store.write(make_record(), {"curve": np.zeros(4)})
    (npz,) = path.parent.glob("*.npz")
    store.write(make_record(), {"curve": np.zeros(4)})
    assert [*path.parent.glob("*.npz")] == [npz]
    store.write(make_record())
    assert not [*path.parent.glob("*.npz")]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_a_truncated_record_is_refused(store, share):
    path = store.write(make_record())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(QuarlError, match=f"{path.name}' is truncated"):
        store.read(path)


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [("measured", "returns", [9.0, 9.0]), ("cell", "algo", "dqn"), ("budget", "episodes", 100),
     ("provenance", "git_commit", "other")],
)  # fmt: skip
def test_any_changed_field_is_noticed(store, group, name, value):
    path = store.write(make_record())
    record = json.loads(path.read_text())
    record[group][name] = value
    path.write_text(json.dumps(record))
    with pytest.raises(QuarlError, match=f"{path.name}' was changed"):
        store.read(path)


def test_a_renamed_record_is_noticed(store):
    path = store.write(make_record())
    other = path.with_name("0" * 64 + ".json")
    path.rename(other)
    with pytest.raises(QuarlError, match="was changed"):
        store.records("ptq", "smoke")


def test_a_record_of_another_study_or_profile_is_refused(store):
    path = store.write(make_record(profile="quick"))
    for study, profile in (("ptq", "full"), ("qat", "quick")):
        copy = store.path(study, profile, path.stem)
        copy.parent.mkdir(parents=True)
        copy.write_bytes(path.read_bytes())
        with pytest.raises(QuarlError, match=f"'{copy}' is of 'ptq/quick': move it there"):
            store.records(study, profile)
    assert len(store.records("ptq", "quick")) == 1


@pytest.mark.parametrize(
    "text", ["[]", "3", "{}", '{"study": "ptq", "cell": 3}', "\x00", "[" * 100_000]
)
def test_json_that_is_no_record_is_refused(store, text):
    path = store.path("ptq", "smoke", "x")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(QuarlError, match="x.json' is truncated or not a record .*: delete it"):
        store.read(path)


def test_what_a_system_hides_beside_a_record_is_none(store):
    store.write(make_record())
    (path,) = (store.root / "ptq" / "smoke").glob("*.json")
    path.with_name(f"._{path.name}").write_bytes(b"of a macOS")
    assert len(store.records("ptq", "smoke")) == len(store.keys("ptq", "smoke")) == 1


def test_success_removes_the_error(store):
    record = make_record()
    error = store.write_error("ptq", "smoke", record["key"], "ValueError: no")
    assert error.read_text() == "ValueError: no"
    assert not store.has("ptq", "smoke", record["key"])
    store.write(record)
    assert not error.exists()


def test_a_record_in_place_is_not_lost_to_what_it_replaces(store, monkeypatch):
    def denied(path, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    record = make_record()
    store.write(record, {"curve": np.zeros(3)})
    error = store.write_error("ptq", "smoke", record["key"], "ValueError: no")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", denied)
        path = store.write(record, {"curve": np.zeros(4)})
    assert len(store.arrays(store.read(path))["curve"]) == 4
    assert error.exists() and len([*path.parent.glob("*.npz")]) == 2


def test_a_folder_that_cannot_be_locked_is_one_line(store, monkeypatch):
    def denied(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("quarl_nb.store.locked", denied)
    with pytest.raises(QuarlError, match=r"cannot write '.*\.json': Permission denied"):
        store.write(make_record())


def test_prepare_sweeps_only_old_temporaries(store):
    store.prepare("ptq", "smoke")
    folder = store.root / "ptq" / "smoke"
    old, new = folder / ".a.json.1.tmp", folder / ".b.json.2.tmp"
    for path in (old, new):
        path.write_text("half")
    past = time.time() - STALE_S - 60
    os.utime(old, (past, past))
    store.prepare("ptq", "smoke")
    assert list(folder.iterdir()) == [new]


def test_prepare_sweeps_arrays_whose_record_never_followed(store, monkeypatch):
    def die():
        raise KeyboardInterrupt

    first, second = make_record(1), make_record(2)
    path = store.write(first, {"curve": np.zeros(3)})
    for record in (first, second):
        before_json(monkeypatch, die)
        with pytest.raises(KeyboardInterrupt):
            store.write(record, {"curve": np.zeros(5)})
    own = path.with_name("own.npz")
    own.touch()
    assert len([*path.parent.glob("*.npz")]) == 4
    store.prepare("ptq", "smoke")
    assert len([*path.parent.glob("*.npz")]) == 2 and own.is_file()
    assert len(store.arrays(store.read(path))["curve"]) == 3


def test_prepare_minds_no_temporary_that_another_run_finishes(store, monkeypatch):
    path = store.write(make_record())
    monkeypatch.setattr(Path, "glob", lambda *_: iter([path.with_name(".gone.tmp")]))
    store.prepare("ptq", "smoke")


def test_prepare_refuses_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "records").write_text("a file in the way")
    with pytest.raises(QuarlError, match="cannot write to '.*ptq/smoke'"):
        ResultStore(tmp_path / "records").prepare("ptq", "smoke")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_prepare_needs_write_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(QuarlError, match="Permission denied"):
        ResultStore(tmp_path).prepare("ptq", "smoke")


def test_frame_has_one_row_a_cell_with_flat_columns(store):
    keys = [store.read(store.write(make_record(number)))["key"] for number in (1, 2)]
    frame = store.frame("ptq").sort_values("seed")
    assert list(frame["key"]) == keys
    assert list(frame["seed"]) == [1, 2]
    row = frame.iloc[0]
    assert row["returns"] == [1.5, 2.0]
    assert row["budget.episodes"] == 2
    assert row["energy.cpu_s"] == 0.25
    assert row["provenance.git_commit"] == "abc"
    assert (row["profile"], row["backend"], row["wall_s"]) == ("smoke", "simulated", 0.5)


def test_frame_tells_where_a_number_is_from(store):
    store.write(make_record(source="modelled", extra={"licence": "MIT"}))
    row = store.frame("ptq").iloc[0]
    assert (row["source"], row["extra.licence"]) == ("modelled", "MIT")


def test_frame_shows_the_newest_record_of_a_cell(store):
    later = "2026-01-02T00:00:00+00:00"
    store.write(make_record(budget={"episodes": 5}))
    store.write(make_record(start_time=later, budget={"episodes": 3}))
    assert list(store.frame("ptq")["budget.episodes"]) == [3]
    store.write(make_record(schema_version=2, budget={"episodes": 4}))
    assert list(store.frame("ptq")["budget.episodes"]) == [4]


def test_superseded_records_do_not_change_the_order(store):
    later = "2026-01-02T00:00:00+00:00"
    for seed in range(8):
        store.write(make_record(seed, budget={"episodes": 5}))
        store.write(make_record(seed, start_time=later, budget={"episodes": 3}))
    keys = [record["key"] for record in store.chosen("ptq")]
    assert len(keys) == 8 and keys == sorted(keys)


def test_a_cell_measured_on_two_devices_is_shown_on_both(store):
    for device in ("cpu", "cuda", "cuda"):
        budget = {"device": device, "steps": len(store.records("ptq", "smoke"))}
        store.write(make_record(budget=budget))
    assert sorted(store.frame("ptq")["budget.device"]) == ["cpu", "cuda"]


def test_of_a_cells_records_the_planned_one_is_chosen_before_newer_ones(store):
    planned = make_record(budget={"episodes": 5})
    asked = []

    def plan(*of):
        asked.append(of)
        return {planned["key"]}

    shown = ResultStore(store.root, plan)
    store.write(planned)
    assert [record["key"] for record in shown.chosen("ptq")] == [planned["key"]]
    assert not asked  # a plan may take seconds: not where there is no choice
    later = "2026-01-02T00:00:00+00:00"
    store.write(make_record(start_time=later, budget={"episodes": 3}))
    store.write(make_record(2, budget={"episodes": 3}))
    assert sorted(shown.frame("ptq")["budget.episodes"]) == [3, 5]
    assert set(asked) == {("ptq", "smoke")}
    assert sorted(store.frame("ptq")["budget.episodes"]) == [3, 3]  # no plan is known: the newest
    assert ResultStore(store.root, lambda *_: ()).chosen("ptq") == store.chosen("ptq")
    assert len(store.records("ptq", "smoke")) == 3


def test_of_a_policys_records_those_of_the_weights_that_lie_there_are_chosen(store):
    for number, weights in enumerate("AB"):
        budget = {"tensors_sha256": weights}
        store.write(make_record(cell={"policy": "mine", "seed": number}, budget=budget))
    assert len(store.chosen("ptq")) == 2
    shown = ResultStore(store.root, weights_of={"mine": "A"}.get)
    assert list(shown.frame("ptq")["seed"]) == [0]


def test_an_unknown_profile_is_refused(store):
    with pytest.raises(QuarlError, match="unknown profile 'huge'; allowed: full, quick, smoke"):
        store.chosen("ptq", "huge")


def test_frame_takes_the_best_profile_that_has_records(store):
    assert store.best_profile("ptq") is None
    assert store.frame("ptq").empty
    for profile in ("smoke", "quick", "full"):
        store.write(make_record(profile=profile))
        assert set(store.frame("ptq")["profile"]) == {profile}
    assert set(store.frame("ptq", "smoke")["profile"]) == {"smoke"}
