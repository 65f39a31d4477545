from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from quarl_nb.cli import main
from quarl_nb.edge.result import import_result
from quarl_nb.errors import QuarlError
from quarl_nb.rl.policies import load_digest, save_policy
from quarl_nb.store import ResultStore

MEASURED = {
    "observations": 3, "actions_as_recorded": 3, "calls": 1000,
    "latency_p10_s": 1e-5, "latency_p50_s": 2e-5, "latency_p90_s": 3e-5, "latency_p99_s": 9e-5,
    "latency_min_s": 9e-6, "resident_bytes": 40_000_000, "peak_resident_bytes": 41_000_000,
}  # fmt: skip
RESULT = {
    "format_version": 1,
    "start_time": "2026-11-21T08:00:00+00:00",
    "export": {"policy": "p", "precision": "int8", "ranges": "minmax", "network": [4, 8, 2],
               "observations": 3, "onnx_bytes": 900, "c_bytes": 700, "weight_bytes": 600},
    "board": {"model": "Raspberry Pi 3 Model B Rev 1.2", "cpu": ["0xd03"], "cores": 4,
              "memory_bytes": 970_000_000, "machine": "aarch64", "os": "Linux", "python": "3.11"},
    "runtimes": {"onnxruntime": {**MEASURED, "version": "1.31.0", "actions": [0, 1, 0]},
                 "c": {**MEASURED, "correct": True}},
}  # fmt: skip


def write(folder, result):
    path = folder / "result.json"
    path.write_text(json.dumps(result))
    return path


def test_a_result_becomes_one_record_a_runtime(tmp_path):
    store = ResultStore(tmp_path / "records")
    paths = import_result(write(tmp_path, RESULT), store)
    assert len(paths) == 2
    frame = store.frame("edge_board").set_index("runtime")
    assert list(frame["backend"]) == list(frame.index) and (frame["source"] == "measured").all()
    assert (frame["board"] == "Raspberry Pi 3 Model B Rev 1.2").all()
    assert frame.loc["c", "latency_p50_s"] == 2e-5
    assert frame.loc["c", "extra.export"]["c_bytes"] == 700
    assert frame.loc["c", "provenance.start_time"] == RESULT["start_time"]
    assert frame.loc["c", "provenance.cpu"] == "0xd03"
    # Nothing of the machine that imports it.
    assert list(frame["provenance.cpu_features"]) == [[], []]
    assert frame.loc["onnxruntime", "provenance.packages"] == {"onnxruntime": "1.31.0"}
    assert frame.loc["c", "provenance.packages"] == {}
    assert "actions" not in frame and frame.loc["onnxruntime", "actions_as_recorded"] == 3
    # The same result again is the same records; a later one of that board is the newer.
    assert import_result(tmp_path / "result.json", store) == paths
    later = copy.deepcopy(RESULT) | {"start_time": "2026-11-22T08:00:00+00:00"}
    later["runtimes"]["c"]["latency_p50_s"] = 2.5e-5
    import_result(write(tmp_path, later), store)
    frame = store.frame("edge_board").set_index("runtime")
    assert len(frame) == 2 and frame.loc["c", "latency_p50_s"] == 2.5e-5


def test_results_of_policies_of_one_name_are_told_apart_where_the_export_does(tmp_path):
    store = ResultStore(tmp_path / "records")
    import_result(write(tmp_path, RESULT), store)
    for digest in ("a1", "b2", "b2"):
        result = changed("export", "tensors_sha256", value=digest)
        import_result(write(tmp_path, result), store)
    # One for each runtime; what was exported before keeps its cell.
    told = [record["cell"].get("tensors_sha256", "") for record in store.chosen("edge_board")]
    assert sorted(told) == ["", "", "a1", "a1", "b2", "b2"]
    assert {len(record["cell"]) for record in store.chosen("edge_board")} == {5, 6}


def changed(*path, value=None):
    """A result with one field changed, or left out if `value` is None."""
    result = copy.deepcopy(RESULT)
    inner = result
    for name in path[:-1]:
        inner = inner[name]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return result


C = ("runtimes", "c")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([], "field 'format_version' is missing"),
        (changed("format_version", value=9), "format version 9; known: 1"),
        (changed("export"), "field 'export' is missing"),
        (changed("export", "precision"), "field 'export.precision' is missing"),
        (changed("start_time", value="yesterday"), "must be in ISO 8601, not 'yesterday'"),
        (changed("export", "policy", value=5), "field 'export.policy' must be str"),
        (changed("export", "tensors_sha256", value=5), "'export.tensors_sha256' must be str"),
        (changed("export", "precision", value="int2"), "unknown precision of the result 'int2'"),
        (changed("export", "ranges", value="mean"), "unknown ranges of the result 'mean'"),
        (changed("export", "weight_bytes", value="a lot"), "'export.weight_bytes' must be int"),
        (changed("export", "c_bytes", value=-1), "export.c_bytes must be at least 1, not -1"),
        (changed("export", "network", value="big"), "field 'export.network' must be list"),
        (changed("export", "network", value=[4]), "must be sizes of layers, inputs first, not [4]"),
        (changed("export", "network", value=[4, 0, 2]), "must be sizes of layers"),
        (changed("export", "network", value=[4, "8", 2]), "must be sizes of layers"),
        (changed("board", value=[]), "field 'board' must be dict"),
        (changed("board", "model", value=7), "names no board"),
        (changed("board", "cpu", value=[1]), "board.cpu must be a list of names, not [1]"),
        (changed("board", value={}), "names no board"),
        (changed("runtimes", value={}), "holds no runtime"),
        (changed("runtimes", value={"tflite": MEASURED}), "unknown runtime of the result 'tflite'"),
        (changed(*C, "latency_p50_s"), "field 'runtimes.c.latency_p50_s' is missing"),
        (changed(*C, "latency_p50_s", value="fast"), "latency_p50_s must be a number, not 'fast'"),
        (changed(*C, "latency_p50_s", value=1.0), "must be positive and rising"),
        (changed(*C, "latency_p10_s", value=-1.0), "must be positive and rising"),
        (changed(*C, "latency_p99_s", value=float("inf")), "latency_p99_s must be a number"),
        (changed(*C, "latency_p99_s", value=float("nan")), "latency_p99_s must be a number"),
        (changed(*C, "latency_min_s", value=0), "must be positive and rising"),
        (changed(*C, "latency_min_s"), "field 'runtimes.c.latency_min_s' is missing"),
        (changed(*C, "latency_min_s", value=2e-5), "must be positive and rising"),
        (changed(*C, "calls", value=0), "calls must be at least 1"),
        (changed(*C, "calls", value=10.5), "calls must be a whole number, not 10.5"),
        (changed(*C, "resident_bytes", value=True), "bytes must be a whole number, not True"),
        (changed(*C, "actions_as_recorded", value=10**400), "must be 0 to 3"),
        (changed(*C, "actions_as_recorded", value=-1), "must be 0 to 3"),
        (changed(*C, "observations", value=2), "observations is 2, but 3 were exported"),
        (changed(*C, "actions_as_recorded", value=4), "must be 0 to 3"),
        (changed("runtimes", "onnxruntime", "actions", value=[1]), "actions has 1 entries for 3"),
        (changed("runtimes", "onnxruntime", "actions", value=3), "actions' must be list"),
        (changed(*C, "resident_bytes", value=99_000_000), "at most the peak"),
        (changed(*C, "resident_bytes", value=0), "resident_bytes must be positive"),
        (changed("runtimes", "onnxruntime", "version"), "onnxruntime.version' is missing"),
        (changed(*C, "correct"), "field 'runtimes.c.correct' is missing"),
        (changed(*C, "correct", value=0), "field 'runtimes.c.correct' must be bool"),
        (changed(*C, "correct", value=False), "outputs differ from the policy's"),
    ],
)  # fmt: skip
def test_a_bad_result_is_one_clear_line_and_no_record(tmp_path, result, message):
    store = ResultStore(tmp_path / "records")
    with pytest.raises(QuarlError) as caught:
        import_result(write(tmp_path, result), store)
    assert message in str(caught.value) and "result.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not store.root.exists()


def test_what_is_no_file_or_no_json_is_one_clear_line(tmp_path):
    with pytest.raises(QuarlError, match="cannot read .*No such file"):
        import_result(tmp_path / "nowhere.json", ResultStore(tmp_path))
    (tmp_path / "text").write_text("hello")
    (tmp_path / "nested").write_text(100_000 * "[")
    for name in ("text", "nested"):
        with pytest.raises(QuarlError, match=f"{name}' is not JSON"):
            import_result(tmp_path / name, ResultStore(tmp_path))


def test_a_policy_is_named_after_its_folder_from_inside_it_too(make_policy, tmp_path, monkeypatch):
    net = make_policy((6,), ("linear", {"in_features": 6, "out_features": 2}))
    save_policy(net, tmp_path / "mine")
    np.save(tmp_path / "obs.npy", np.ones((3, 6), np.float32))
    monkeypatch.chdir(tmp_path / "mine")
    for source in (".", "../mine/", str(tmp_path / "mine")):
        assert main(["export", source, "--to", "../out", "--observations", "../obs.npy"]) == 0
        export = json.loads((tmp_path / "out" / "export.json").read_text())
        assert export["policy"] == "mine"
        assert export["tensors_sha256"] == load_digest(tmp_path / "mine")


def test_export_and_import_from_the_command_line(tmp_path, capsys):
    import subprocess
    import sys

    folder = tmp_path / "out"
    assert main(["export", "ppo-CartPole-v1", "--precision", "int8", "--to", str(folder)]) == 0
    assert "python3 benchmark.py" in capsys.readouterr().out
    subprocess.run([sys.executable, "benchmark.py", "--seconds", "0.01"], cwd=folder, check=True)
    records = ["--records", str(tmp_path / "records")]
    assert main(["edge", "import", str(folder / "result.json"), *records]) == 0
    assert f"--set records={records[1]}" in capsys.readouterr().out
    frame = ResultStore(tmp_path / "records").frame("edge_board")
    assert list(frame["policy"]) == ["ppo-CartPole-v1"] and frame["observations"][0] == 256
    assert len(frame["tensors_sha256"][0]) == 64


@pytest.mark.parametrize("source", ["recorded", "own"])
def test_an_export_says_where_the_policy_was_told_to_act(tmp_path, source):
    folder, own = tmp_path / "out", tmp_path / "own.npy"
    np.save(own, np.ones((3, 4), np.float32))
    export = ["export", "ppo-CartPole-v1", "--env", "CartPole-v0", "--to", str(folder)]
    assert main(export + ["--observations", str(own)] * (source == "own")) == 0
    assert json.loads((folder / "export.json").read_text())["env_id"] == "CartPole-v0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "ppo-CartPole-v1", "--precision", "fp16", "--to", "x"], "fp16"),
        (["export", "nowhere", "--to", "x"], "nowhere"),
        (["export", "ppo-MountainCarContinuous-v0", "--env", "MountainCar-v0", "--to", "x"],
         "actions of shape [1], 'MountainCar-v0' takes 3 discrete actions"),
        (["export", "ppo-CartPole-v1", "--to", "x", "--observations", "no.npy"], "'no.npy'"),
        (["export", "ppo-CartPole-v1", "--to", "x", "--observations", "no.npy", "--env", "Cart-v1"],
         "unknown environment 'Cart-v1'"),
        (["export", "ppo-CartPole-v1", "--to", "x", "--observations", "no.npy", "--env",
          "Pendulum-v1"], "observations of shape [4], 'Pendulum-v1' gives [3]"),
        (["edge", "import", "nowhere.json"], "cannot read 'nowhere.json'"),
    ],
)
def test_bad_input_of_the_commands(arguments, message, tmp_path, capsys):
    if "x" in arguments:
        arguments = [str(tmp_path / "x") if a == "x" else a for a in arguments]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()
