from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.runner import plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies.inference import (
    CNNS,
    INFERENCE,
    latencies,
    layers,
    random_inputs,
    random_policy,
    read_bandwidth,
)


def test_the_smoke_profile_runs_to_records(tmp_path):
    store = ResultStore(tmp_path)
    summary = run_study(INFERENCE, "smoke", store, progress=False)
    assert (summary.done, summary.failed) == (3, 0)
    frame = store.frame("inference").set_index(["runtime", "precision"])
    assert set(frame.index) == {("onnxruntime", "fp32"), ("onnxruntime", "int8"),
                                ("torch", "fp32")}  # fmt: skip
    assert (frame["backend"] == frame.index.get_level_values(0)).all()
    assert (frame["source"] == "measured").all()
    assert (frame["extra.weights"] == "random").all()
    for _, row in frame.iterrows():
        percentiles = [row[f"latency_p{p}_s"] for p in (10, 50, 90, 99)]
        assert 0 < percentiles[0] and percentiles == sorted(percentiles)
        for name in ("latency_medians_s", "build_s", "open_s"):
            assert len(row[name]) == 3 and min(row[name]) > 0
        assert row["floor_s"] == pytest.approx(row["weight_bytes"] / row["cached_bytes_per_s"])
        assert row["payload_bytes"] > row["weight_bytes"]
    int8, fp32 = frame.loc[("onnxruntime", "int8")], frame.loc[("onnxruntime", "fp32")]
    assert fp32["weight_bytes"] == 4 * (67 * 64 + 2 * 64 * 64 + 64 * 21 + 3 * 64 + 21)
    assert int8["weight_bytes"] < 0.3 * fp32["weight_bytes"]


def test_every_cell_of_the_full_profile_can_be_measured():
    parameters = dict(INFERENCE.profiles["full"], repeats=1, repeat_s=0.0, batches=[2])
    parameters["networks"] = ["64x3", "40-30-20", "nature-cnn", "cnn-128x3"]  # the others: minutes
    cells = INFERENCE.cells(parameters)
    # fp32 twice, fp16, bf16, int8 and int4; no int4 convolutions
    assert len(cells) == 6 + 6 + 5 + 5
    for cell, budget in cells:
        measured = INFERENCE.measure(cell, budget).measured
        assert np.isfinite(measured["latency_medians_s"]).all(), cell


def test_the_full_profile_holds_the_papers_networks_and_the_crossover():
    cells = [cell for cell, _ in INFERENCE.cells(INFERENCE.profiles["full"])]
    networks = {cell["network"] for cell in cells}
    assert networks >= {f"{2**i}x3" for i in range(6, 13)} | {"4096-512-1024", *CNNS}
    assert {cell["batch"] for cell in cells} == {1, 8, 64}
    large = [cell for cell in cells if cell["network"] in ("cnn-512x3", "cnn-1024x3")]
    found = {(cell["runtime"], cell["precision"], cell["batch"]) for cell in large}
    assert found == {(runtime, precision, batch) for runtime in ("onnxruntime", "torch")
                     for precision in ("fp32", "int8") for batch in (1, 8)
                     if (runtime, precision) != ("torch", "int8")}  # fmt: skip


def test_latencies_are_those_of_the_calls():
    class Sleeper:
        precision, runtime, payload_bytes = "fp32", "torch", 0

        def run(self, obs: np.ndarray) -> np.ndarray:
            time.sleep(0.002)
            return obs

    got = latencies(Sleeper(), np.zeros((1, 1)), repeats=4, repeat_s=0.01)
    assert got["latency_medians_s"].shape == (4,)
    assert got["calls"] in (12, 16, 20)
    assert got["latency_p10_s"] >= 0.002
    assert got["latency_p10_s"] <= got["latency_medians_s"].min() * 1.01


def test_percentiles_are_of_all_calls_and_medians_of_each_block(monkeypatch):
    # The fastest of five calls is a fifth of a block: ten calls are timed, in two blocks.
    times = iter([0.03, 0.01, 0.02, 0.04, 0.05, *range(1, 11)])
    monkeypatch.setattr("quarl_nb.studies.inference.timed", lambda call: next(times))
    got = latencies(None, np.zeros((1, 1)), repeats=2, repeat_s=0.05)
    assert got["calls"] == 10 and got["latency_medians_s"].tolist() == [3.0, 8.0]
    percentiles = [got[f"latency_p{p}_s"] for p in (10, 50, 90, 99)]
    assert percentiles == pytest.approx([1.9, 5.5, 9.1, 9.91])


def test_networks_are_repeatable_and_of_the_size_they_are_named_after():
    first, again = random_policy.__wrapped__("32x2", 1), random_policy.__wrapped__("32x2", 1)
    other = random_policy.__wrapped__("32x2", 2)
    weight = "layers.0.weight"
    assert torch.equal(first.state_dict()[weight], again.state_dict()[weight])
    assert not torch.equal(first.state_dict()[weight], other.state_dict()[weight])
    assert [layer.options["out_features"] for layer in layers("4096-512-1024")[::2]] == [
        4096, 512, 1024, 21,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "a", "b", "c", "units"),
    [("nature-cnn", 32, 64, 64, 128), ("cnn-128x3", 128, 128, 128, 128),
     ("cnn-512x3", 512, 512, 512, 512)],
)  # fmt: skip
def test_convolutional_networks_are_of_the_sizes_of_the_papers(name, a, b, c, units):
    cnn = random_policy(name, 0)
    convolutions = a * (4 * 8 * 8 + 1) + b * (a * 4 * 4 + 1) + c * (b * 3 * 3 + 1)
    linear = units * (c * 7 * 7 + 1) + 6 * (units + 1)
    assert sum(p.numel() for p in cnn.parameters()) == convolutions + linear
    frames = random_inputs(cnn, 2, 0)
    assert frames.dtype == np.uint8
    assert cnn(torch.as_tensor(frames)).std() < 10


def test_bandwidth_is_bytes_over_seconds(monkeypatch):
    monkeypatch.setattr("quarl_nb.studies.inference.timed", lambda call: 0.5)
    assert read_bandwidth(1024) == 2048.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"networks": ["wide"]},
         "unknown network 'wide'; allowed: nature-cnn, cnn-128x3, cnn-512x3, cnn-1024x3, or "
         "hidden"),
        ({"networks": ["64x"]}, "unknown network '64x'"),
        ({"networks": ["64-64-64"]}, "network '64-64-64' is written '64x3'"),
        ({"networks": ["64"]}, "network '64' is written '64x1'"),
        ({"networks": ["64--64"]}, "unknown network '64--64'"),
        ({"runtimes": ["tflite"]}, "unknown runtime 'tflite'; allowed: onnxruntime, torch"),
        ({"precisions": ["affine8"]}, "unknown precision of an engine 'affine8'"),
        ({"batch": [1]}, "did you mean 'batches'"),
        ({"batches": [1, 0]}, "batch must be at least 1, not 0"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"repeat_s": -0.5}, "repeat_s must be at least 0, not -0.5"),
        ({"seed": -1}, "seed must be from 0 to 2147483647, not -1"),
    ],
)
def test_bad_parameters_are_one_clear_line(change, message):
    with pytest.raises(QuarlError) as caught:
        plan(INFERENCE, "smoke", change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
