from __future__ import annotations

from dataclasses import asdict

import pytest

from quarl_nb.edge.boards import MACS_PER_CYCLE, RUNTIME_BYTES
from quarl_nb.edge.build import this_machine
from quarl_nb.errors import QuarlError, UnavailableError
from quarl_nb.runner import plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies import edge
from quarl_nb.studies.edge import EDGE, EMULATED, HERE, navigation_policy


def test_the_smoke_profile_runs_to_records(tmp_path):
    try:
        this_machine()
    except UnavailableError as error:
        pytest.skip(str(error))
    store = ResultStore(tmp_path)
    summary = run_study(EDGE, "smoke", store, progress=False)
    assert (summary.done, summary.failed) == (8, 0)
    frame = store.frame("edge")
    assert (frame["backend"] == frame["runtime"]).all()
    assert (frame["extra.weights"] == "random").all()
    here = frame[frame["machine"] == HERE].set_index(["runtime", "precision"])
    pi = frame[frame["machine"] != HERE].set_index(["runtime", "precision"])
    assert (here["source"] == "measured").all() and (pi["source"] == "modelled").all()
    inputs = pi.loc[("c", "int8")]["extra.board"]  # of the model, each with its source
    assert inputs["clock_hz"] == {"value": 1.2e9, "source": "003 (ActorQ), Table 7"}
    assert inputs["macs_per_cycle_int8"]["value"] == MACS_PER_CYCLE["cortex_a53", "int8"].value
    assert inputs["runtime_bytes_c"] == asdict(RUNTIME_BYTES["c"])
    assert here["modelled_latency_s"].isna().all() and pi["latency_p50_s"].isna().all()
    for _, row in here.iterrows():
        percentiles = [row[f"latency_p{p}_s"] for p in (10, 50, 90, 99)]
        assert 0 < percentiles[0] and percentiles == sorted(percentiles)
        assert row["actions_as_recorded"] >= 0.95 * row["observations"] == 0.95 * 64
        assert row["payload_bytes"] >= row["weight_bytes"] > 0
        assert row["code_bytes"] > 0 and row["resident_bytes"] > 500_000
    assert (here["calls"] > 100).all()  # as many as the seconds hold
    for runtime in ("c", "onnxruntime"):
        fp32, int8 = (here.loc[(runtime, precision)] for precision in ("fp32", "int8"))
        assert fp32["payload_bytes"] > 3 * int8["payload_bytes"]
    assert here.loc[("c", "int8")]["resident_bytes"] < here.loc[("onnxruntime", "int8")][
        "resident_bytes"]  # fmt: skip
    assert pi.loc[("c", "int8")]["modelled_latency_s"] < pi.loc[("c", "fp32")]["modelled_latency_s"]


def test_the_emulated_core_counts_instructions_and_bytes():
    cell = {"network": "40-30", "precision": "int8", "runtime": "c", "machine": EMULATED, "seed": 0}
    try:
        found = EDGE.measure(cell, {"seconds": 0.0})
    except UnavailableError as error:
        pytest.skip(str(error))
    measured, macs = found.measured, 22 * 40 + 40 * 30 + 30 * 25
    assert found.source == "measured" and not any("latency" in name for name in measured)
    assert macs / 16 < measured["instructions"] < 10 * macs
    assert measured["actions_as_recorded"] == measured["observations"] == 64
    # A constant that the compiler puts into an instruction is not in the section of constants.
    assert measured["constant_bytes"] == pytest.approx(measured["payload_bytes"], abs=200)
    assert measured["writable_bytes"] == 0 and measured["printing_counted"] is False


def test_the_full_profile_holds_table_6_on_every_machine():
    cells = [cell for cell, _ in EDGE.cells(EDGE.profiles["full"])]
    assert len(cells) == 3 * 3 * (2 * 5 + 1)
    assert {cell["network"] for cell in cells} == {"64x3", "256x3", "4096-512-1024"}
    assert {cell["machine"] for cell in cells} == {
        HERE, EMULATED, "Raspberry Pi 3B", "Raspberry Pi 4", "Raspberry Pi 5",
        "Raspberry Pi Zero 2 W",
    }  # fmt: skip


def test_networks_have_the_sizes_of_the_navigation_task():
    net = navigation_policy("40-30", seed=1)
    shapes = [tuple(p.shape) for name, p in net.named_parameters() if name.endswith("weight")]
    assert shapes == [(40, 22), (30, 40), (25, 30)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"networks": ["wide"]}, "unknown network 'wide'"),
        ({"networks": ["nature-cnn"]}, "network 'nature-cnn' takes frames"),
        ({"runtimes": ["torch"]}, "unknown runtime of the edge study 'torch'"),
        ({"precisions": ["fp16"]}, "unknown precision of the edge study 'fp16'"),
        ({"machines": ["Raspberry Pi 6"]}, "did you mean 'Raspberry Pi "),
        ({"seconds": -1.0}, "seconds must be at least 0, not -1.0"),
        ({"seed": -1}, "seed must be from 0 to 2147483647, not -1"),
    ],
)
def test_bad_parameters_are_one_clear_line(change, message):
    with pytest.raises(QuarlError) as caught:
        plan(EDGE, "smoke", change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("run", [lambda folder: edge._run_c(folder, 1.0), edge._emulate_c])
def test_a_program_that_computes_something_else_is_not_measured(tmp_path, monkeypatch, run):
    for made in ("build", "board", "this_machine"):
        monkeypatch.setattr(edge, made, lambda *_: None)
    wrong = {"correct": False, "latency_p50_s": 1.0}
    monkeypatch.setattr(edge, "run_test", lambda *_, **__: wrong)
    with pytest.raises(QuarlError, match="outputs differ from the policy's"):
        run(tmp_path)
