from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from quarl_nb.edge.build import build, run_test
from quarl_nb.edge.c_text import literal
from quarl_nb.edge.export import TOLERANCE, export_policy
from quarl_nb.edge.result import import_result
from quarl_nb.errors import QuarlError
from quarl_nb.inference.onnx import session_options
from quarl_nb.quant import parse_precision, quantize_module
from quarl_nb.rl.observations import collect_observations
from quarl_nb.rl.policies import Head, PolicyNet, load_policy
from quarl_nb.store import ResultStore

POLICIES = Path(__file__).resolve().parents[2] / "data" / "policies"
PRECISIONS = ["fp32", "int8", "int4"]
STRICT = ("-pedantic", "-Wall", "-Wextra", "-Werror", "-Wno-missing-braces",
          "-Wno-overlength-strings")  # fmt: skip


def linear(inputs: int, outputs: int, **options: bool) -> tuple[str, dict]:
    return "linear", {"in_features": inputs, "out_features": outputs, **options}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def recorded(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "observations.npz") as file:
        return dict(file)


def simulate(net: PolicyNet, precision: str, obs: np.ndarray, ranges: str = "minmax") -> PolicyNet:
    parsed, batches = parse_precision(precision, ranges), torch.as_tensor(obs).split(256)
    return quantize_module(net, parsed, lambda model: [model(batch) for batch in batches])


def run_onnx(folder: Path, precision: str, obs: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(str(folder / "policy.onnx"), session_options(precision))
    return np.concatenate([session.run(None, {"obs": one[None]})[0] for one in obs])


NORMALIZE = ("normalize", {"shape": [6], "epsilon": 1e-8, "clip": 1.5})
LAYERS = {
    "without bias": ((6,), linear(6, 40, bias=False), "relu", linear(40, 5)),
    "normalized": ((6,), NORMALIZE, "flatten", linear(6, 70), "tanh", linear(70, 3)),
    "flattened": ((2, 3), "flatten", linear(6, 33), "identity", "relu", linear(33, 4)),
    "clipped": ((6,), linear(6, 4), ("hardtanh", {"min_val": -0.3, "max_val": 0.2})),
    "unclipped": ((6,), ("normalize", NORMALIZE[1] | {"clip": np.inf}), linear(6, 4),
                  ("hardtanh", {"min_val": -0.3, "max_val": np.inf})),
    "trained with levels": ((6,), linear(6, 40), "relu", ("fixed_quantize", {"bits": 4}),
                            linear(40, 9), "tanh", ("fixed_quantize", {"bits": 8}), linear(9, 3)),
    "bytes": ((2, 4, 5), ("divide", {"by": 255.0}), "flatten", linear(40, 9), "relu", linear(9, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_c_computes_every_layer_as_the_simulated_policy_does(
    make_policy, set_levels, here, tmp_path, name, precision
):
    net, rng = make_policy(*LAYERS[name]), np.random.default_rng(0)
    shape = (50, *net.spec.obs_shape)
    obs = rng.integers(0, 256, shape, dtype=np.uint8) if name == "bytes" else normal(*shape)
    set_levels(net, expected_input(net, obs))
    folder = export_policy(net, precision, tmp_path, obs, name=name)
    expected = recorded(folder)["outputs"]
    with torch.no_grad():
        simulated = simulate(net, precision, obs)(torch.as_tensor(expected_input(net, obs)))
    np.testing.assert_array_equal(expected, simulated.numpy())
    report = run_test(build(folder, here), here)
    assert report["correct"] and report["observations"] == report["actions_as_recorded"] == 50
    # Far less than the level by which a rounding may differ.
    assert report["largest_difference"] < 2e-5 * np.abs(expected).max()


def expected_input(net: PolicyNet, obs: np.ndarray) -> np.ndarray:
    return obs.astype(np.float64) if net.spec.layers[0].kind == "normalize" else obs


@pytest.mark.parametrize("ranges", ["per_channel", "percentile", "mse"])
def test_c_has_the_ranges_asked_for(small_policy, obs, here, tmp_path, ranges):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p", ranges=ranges)
    report = run_test(build(folder, here), here)
    expected = simulate(small_policy, "int8", obs, ranges)(torch.as_tensor(obs)).numpy()
    np.testing.assert_array_equal(recorded(folder)["outputs"], expected)
    assert report["largest_difference"] < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["dqn-CartPole-v1", "ppo-CartPole-v1"])
def test_trained_policies_act_in_c_and_onnx_as_the_simulated_policy(
    here, tmp_path, name, precision
):
    net = load_policy(POLICIES / name)
    obs = collect_observations(net, "CartPole-v1", 256, seed=0)
    folder = export_policy(net, precision, tmp_path, obs, name=name)
    export = json.loads((folder / "export.json").read_text())
    report = run_test(build(folder, here), here)
    assert report["actions_as_recorded"] == report["observations"] == 256
    assert report["largest_difference"] <= export["tolerance"] / 10
    simulated = simulate(net, precision, obs)
    np.testing.assert_array_equal(recorded(folder)["actions"], simulated.act(obs)[0])
    outputs, expected = run_onnx(folder, precision, obs), recorded(folder)["outputs"]
    differ = outputs.argmax(axis=1) != recorded(folder)["actions"]
    # ONNX Runtime rounds biases (int8) and takes the ranges of blocks (int4): ties may turn.
    margin = np.abs(expected[:, 0] - expected[:, 1])
    assert differ.mean() < (0.06 if precision == "int4" else 0.01)
    largest = np.abs(outputs - expected).max()
    assert largest < {"fp32": 1e-5, "int8": 0.01, "int4": 0.1}[precision] * np.abs(expected).max()
    assert (margin[differ] <= 2 * largest).all()


@pytest.mark.parametrize(
    "head",
    [Head("clip", (-1.0, -np.inf), (0.5, np.inf), (2,)),
     Head("tanh_scale", (-2.0, 0.0), (2.0, 1.0), (2,))],
    ids=lambda head: head.kind,
)  # fmt: skip
def test_c_turns_outputs_into_continuous_actions(make_policy, here, tmp_path, head):
    net = make_policy((6,), linear(6, 8), "relu", linear(8, 2), head=head)
    folder = export_policy(net, "fp32", tmp_path, normal(40, 6), name="p")
    assert recorded(folder)["actions"].shape == (40, 2)
    assert run_test(build(folder, here), here)["actions_as_recorded"] == 40


@pytest.mark.parametrize("kind", ["clip", "tanh_scale"])
def test_a_continuous_action_may_have_no_dimensions(make_policy, here, tmp_path, kind):
    net = make_policy((6,), linear(6, 1), head=Head(kind, (-0.5,), (0.5,), ()))
    folder = export_policy(net, "fp32", tmp_path, normal(40, 6), name="p")
    assert recorded(folder)["actions"].shape == (40,)
    assert run_test(build(folder, here), here)["actions_as_recorded"] == 40
    assert benchmark(folder) == (0, "")
    runtimes = json.loads((folder / "result.json").read_text())["runtimes"]
    assert [told["actions_as_recorded"] for told in runtimes.values()] == [40, 40]


def test_c_and_onnx_hold_the_same_levels(make_policy, tmp_path):
    """Also of more activations than are kept to find the range."""
    net = make_policy((6,), linear(6, 512), "relu", linear(512, 3))
    folder = export_policy(net, "int8", tmp_path, normal(2000, 6), name="p", ranges="percentile")
    tensors = onnx.load(folder / "policy.onnx").graph.initializer
    (scale,) = (onnx.numpy_helper.to_array(t) for t in tensors if t.name == "layers.2.input.scale")
    assert f", {literal(float(1 / scale))}, " in (folder / "policy.c").read_text()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_onnx_file_holds_its_weights(small_policy, obs, tmp_path, precision):
    folder = export_policy(small_policy, precision, tmp_path, obs, name="p")
    model = onnx.load(folder / "policy.onnx", load_external_data=False)
    assert all(not tensor.external_data for tensor in model.graph.initializer)
    expected = recorded(folder)["outputs"]
    tolerance = {"fp32": 1e-5, "int8": 0.02, "int4": 0.05}[precision] * np.abs(expected).max()
    np.testing.assert_allclose(run_onnx(folder, precision, obs), expected, atol=tolerance)


def test_bytes_shrink_as_the_weights_do(make_policy, tmp_path):
    net = make_policy((64,), linear(64, 512), "relu", linear(512, 512), "relu", linear(512, 8))
    sizes = {}
    for precision in PRECISIONS:
        folder = export_policy(net, precision, tmp_path / precision, normal(8, 64), name="p")
        sizes[precision] = json.loads((folder / "export.json").read_text())
    for what in ("c_bytes", "onnx_bytes", "weight_bytes"):
        assert sizes["fp32"][what] > 3.9 * sizes["int8"][what] > 3.9 * 1.5 * sizes["int4"][what]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_c_is_strict_c99_without_memory_of_its_own(
    small_policy, obs, here, tmp_path, precision
):
    from quarl_nb.edge.build import Target, policy_memory

    folder = export_policy(small_policy, precision, tmp_path, obs, name="p")
    program = build(folder, Target((*here.command, *STRICT)))
    memory = policy_memory(program)
    assert memory["writable_bytes"] == 0
    c_bytes = json.loads((folder / "export.json").read_text())["c_bytes"]
    assert c_bytes <= memory["constant_bytes"] < c_bytes + 3000
    assert 0 < memory["stack_bytes"] < 5000 and 0 < memory["code_bytes"] < 30_000


def test_a_wrong_output_fails_the_test_vector(small_policy, obs, here, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    source = (folder / "policy.c").read_text()
    (folder / "policy.c").write_text(source.replace("outputs[i] = a[i]", "outputs[i] = 2 * a[i]"))
    program = build(folder, here)
    assert not run_test(program, here)["correct"]
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.startswith("FAILED: 50 observations")


def test_the_makefile_builds_and_runs_it(small_policy, obs, here, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    done = subprocess.run(["make"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ok: 50 observations" in done.stdout and "50 actions as recorded" in done.stdout


def test_a_second_export_keeps_no_program_and_no_result_of_the_first(
    small_policy, make_policy, obs, here, tmp_path
):
    folder = export_policy(small_policy, "int8", tmp_path / "board", obs, name="first")
    build(folder, here)
    program = (folder / "test_policy").read_bytes()
    (folder / "result.json").write_text("{}")
    other = make_policy((6,), linear(6, 5))
    export_policy(other, "int8", folder, obs, name="second")
    assert not (folder / "test_policy").exists() and not (folder / "result.json").exists()
    # A board that got the new files beside what it had built.
    (folder / "test_policy").write_bytes(program)
    (folder / "test_policy").chmod(0o755)
    command = [sys.executable, "benchmark.py", "--seconds", "0.01"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    line = "error: test_policy was built from another export: build it again with make\n"
    assert (done.returncode, done.stderr) == (1, line)
    assert not (folder / "result.json").exists()


def test_the_benchmark_needs_nothing_of_ours(small_policy, obs, here, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    build(folder, here)
    code = """
import runpy, sys
for name in ("quarl_nb", "torch", "onnx", "pandas"):
    sys.modules[name] = None  # any import of them now raises ImportError
sys.argv = ["benchmark.py", "--seconds", "0.01"]
runpy.run_path("benchmark.py", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert set(result["runtimes"]) == {"onnxruntime", "c"}
    assert result["board"]["cores"] > 0 and result["board"]["memory_bytes"] > 0
    for measured in result["runtimes"].values():
        percentiles = [measured[f"latency_p{p}_s"] for p in (10, 50, 90, 99)]
        assert 0 < measured["latency_min_s"] <= percentiles[0]
        assert percentiles == sorted(percentiles)
        assert measured["calls"] >= 1 and measured["observations"] == 50
    taken = np.array(result["runtimes"]["onnxruntime"]["actions"])
    agree = int((taken == recorded(folder)["actions"]).sum())
    assert result["runtimes"]["onnxruntime"]["actions_as_recorded"] == agree >= 48
    assert result["runtimes"]["c"]["actions_as_recorded"] == 50


def test_resident_bytes_do_not_grow_with_the_seconds_measured(small_policy, obs, tmp_path):
    folder, found = export_policy(small_policy, "fp32", tmp_path, obs, name="p"), []
    for seconds in ("0", "1"):
        assert benchmark(folder, "--seconds", seconds) == (0, "")
        found.append(json.loads((folder / "result.json").read_text())["runtimes"]["onnxruntime"])
    short, long = found
    for name in ("resident_bytes", "peak_resident_bytes"):  # the times of a second take some MB
        assert long[name] - short[name] < 1e6


def test_a_result_tells_when_its_benchmark_began(small_policy, obs, tmp_path):
    folder = export_policy(small_policy, "fp32", tmp_path, obs, name="p")
    assert benchmark(folder, "--seconds", "2") == (0, "")
    result = folder / "result.json"
    began = datetime.fromisoformat(json.loads(result.read_text())["start_time"])
    assert result.stat().st_mtime - began.timestamp() >= 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (normal(3, 5), "error: observations must be [n, 6], n >= 1; got [3, 5]"),
        (normal(0, 6), "error: observations must be [n, 6], n >= 1; got [0, 6]"),
        (normal(3, 6) * np.inf, "error: observations hold NaN or infinite values"),
    ],
)
def test_other_observations_on_a_board_must_fit(small_policy, obs, tmp_path, other, message):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    np.save(folder / "other.npy", other)
    command = [sys.executable, "benchmark.py", "--seconds", "0.01", "--observations", "other.npy"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, message + "\n")
    assert not (folder / "result.json").exists()


def test_a_board_says_that_a_result_of_other_observations_cannot_be_imported(
    small_policy, obs, tmp_path
):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    np.save(folder / "other.npy", normal(3, 6))
    command = [sys.executable, "benchmark.py", "--seconds", "0.01"]
    for more, told in ((["--observations", "other.npy"], True), ([], False)):
        done = subprocess.run([*command, *more], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0 and ("cannot be imported" in done.stdout) == told
        assert ("no actions recorded" in done.stdout) == told


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "error: cannot read 'other.npz': No such file or directory"),
        (b"", "error: 'other.npz' is no .npy, nor an .npz with `obs`"),
        (b"not numbers", "error: 'other.npz' is no .npy, nor an .npz with `obs`"),
        (b"\x93NUMPY\1\0\x0b\0{'descr': (\n",
         "error: 'other.npz' is no .npy, nor an .npz with `obs`"),
        (b"PK\3\4 cut off", "error: 'other.npz' is no .npy, nor an .npz with `obs`"),
        (normal(3, 6), "error: 'other.npz' is no .npy, nor an .npz with `obs`"),  # by another name
    ],
)
def test_a_file_without_observations_on_a_board_is_one_line(
    small_policy, obs, tmp_path, content, message
):
    folder, other = export_policy(small_policy, "int8", tmp_path, obs, name="p"), "other.npz"
    if isinstance(content, bytes):
        (folder / other).write_bytes(content)
    elif content is not None:
        np.savez(folder / other, frames=content)
    command = [sys.executable, "benchmark.py", "--seconds", "0.01", "--observations", other]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, message + "\n")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"obs": np.full((3, 6), "x")}, "error: observations must be float32, not <U1"),
        ({"obs": normal(3, 6), "actions": normal(3, 7)},
         "error: actions [3, 7] are not those of 3 observations"),
    ],
)  # fmt: skip
def test_other_arrays_are_one_line_on_a_board(small_policy, obs, tmp_path, arrays, message):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    np.savez(folder / "other.npz", **arrays)
    assert benchmark(folder, "--observations", "other.npz") == (1, message + "\n")


def test_frames_on_a_board_are_bytes(make_policy, tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (9, 2, 4, 5), dtype=np.uint8)
    folder = export_policy(make_policy(*LAYERS["bytes"]), "int8", tmp_path, frames, name="p")
    np.save(folder / "other.npy", frames / 255)
    message = "error: observations must be uint8, not float64\n"
    assert benchmark(folder, "--observations", "other.npy") == (1, message)


@pytest.mark.parametrize("program", [b"\x7fELF of another machine", b"#!/bin/sh\nexit 7\n"])
def test_a_program_that_does_not_run_on_a_board_is_one_line(small_policy, obs, tmp_path, program):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    (folder / "test_policy").write_bytes(program)
    (folder / "test_policy").chmod(0o755)
    message = "error: test_policy does not run here: build it again with make\n"
    assert benchmark(folder) == (1, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "error: cannot read export.json: No such file or directory; copy the whole folder"),
        ('{"format_version": 1, "pol', "error: export.json is damaged: copy the folder again"),
    ],
)
def test_a_folder_that_came_in_part_is_one_line_on_a_board(
    small_policy, obs, tmp_path, content, message
):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    (folder / "export.json").unlink()
    if content is not None:
        (folder / "export.json").write_text(content)
    assert benchmark(folder) == (1, message + "\n")


# In place of the C program: each of its decisions takes a millisecond.
SLOW_C = """#!{python}
import json, sys
print(json.dumps({{
    "observations": 50, "correct": True, "largest_difference": 0.0, "tolerance": {tolerance:.9g},
    "actions_as_recorded": 50, "latency_ns": [1_000_000] * int(sys.argv[1]),
    "resident_bytes": 1000, "peak_resident_bytes": 1000,
}}))
"""


def test_a_board_without_onnx_runtime_times_the_c_alone(small_policy, obs, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path / "board", obs, name="p")
    (folder / "onnxruntime.py").write_text("raise ImportError('none for this board')\n")
    line = "error: nothing to time: install onnxruntime, or build test_policy with make\n"
    assert benchmark(folder) == (1, line) and not (folder / "result.json").exists()
    tolerance = json.loads((folder / "export.json").read_text())["tolerance"]
    (folder / "test_policy").write_text(SLOW_C.format(python=sys.executable, tolerance=tolerance))
    (folder / "test_policy").chmod(0o755)
    command = [sys.executable, "benchmark.py", "--seconds", "0.5"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    told, timed = done.stdout.splitlines()
    assert (done.returncode, told) == (0, "onnxruntime: left out, none for this board")
    assert timed == "c: median 1000.0 us, 0.0 MB resident, 50 of 50 actions as recorded"
    assert json.loads((folder / "result.json").read_text())["runtimes"]["c"]["calls"] == 500
    assert len(import_result(folder / "result.json", ResultStore(tmp_path / "records"))) == 1


def test_an_onnx_runtime_too_old_for_the_model_leaves_the_c(small_policy, obs, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    model = onnx.load(folder / "policy.onnx")
    model.ir_version = 999
    (folder / "policy.onnx").write_bytes(model.SerializeToString())
    tolerance = json.loads((folder / "export.json").read_text())["tolerance"]
    (folder / "test_policy").write_text(SLOW_C.format(python=sys.executable, tolerance=tolerance))
    (folder / "test_policy").chmod(0o755)
    command = [sys.executable, "benchmark.py", "--seconds", "0.01"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    told, timed = done.stdout.splitlines()
    assert done.returncode == 0 and told.startswith("onnxruntime: left out, ")
    assert "IR version" in told and timed.startswith("c: median 1000.0 us")
    assert [*json.loads((folder / "result.json").read_text())["runtimes"]] == ["c"]


def test_a_result_that_cannot_be_written_is_one_line(small_policy, obs, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    message = "error: cannot write 'nowhere/r.json': No such file or directory\n"
    assert benchmark(folder, "--out", "nowhere/r.json") == (1, message)


def benchmark(folder: Path, *options: str) -> tuple[int, str]:
    """Exit status and standard error of benchmark.py as a board runs it."""
    command = [sys.executable, "benchmark.py", "--seconds", "0.01", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", ["policy.c", "benchmark.py", "observations.npz", "test_policy"])
def test_a_folder_that_cannot_be_written_is_one_clear_line(small_policy, obs, tmp_path, name):
    (tmp_path / "export.json").touch()  # of an earlier export
    (tmp_path / name).mkdir()
    with pytest.raises(QuarlError, match=rf"cannot (write|remove) '.*{name}': Is a directory"):
        export_policy(small_policy, "int8", tmp_path, obs, name="p")


@pytest.mark.parametrize("name", ["Makefile", "result.json", "policy.onnx", "observations.npz"])
def test_files_of_the_users_own_are_not_lost(small_policy, obs, tmp_path, name):
    (tmp_path / name).write_text("their own")
    (tmp_path / "notes.txt").touch()  # which is in nobody's way
    with pytest.raises(QuarlError, match=f"{name}' would be lost.* name another folder") as caught:
        export_policy(small_policy, "int8", tmp_path, obs, name="p")
    assert "\n" not in str(caught.value)
    assert (tmp_path / name).read_text() == "their own"
    assert {path.name for path in tmp_path.iterdir()} == {name, "notes.txt"}
    (tmp_path / name).unlink()
    export_policy(small_policy, "int8", tmp_path, obs, name="p")
    export_policy(small_policy, "fp32", tmp_path, obs, name="p")
    assert json.loads((tmp_path / "export.json").read_text())["precision"] == "fp32"


@pytest.mark.parametrize("again", [False, True])
def test_an_export_goes_on_where_one_was_killed(small_policy, obs, tmp_path, monkeypatch, again):
    written = []

    def killed(path: Path, target: str) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(os.replace(path, target))

    if again:
        export_policy(small_policy, "fp32", tmp_path, obs, name="p")
    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        export_policy(small_policy, "int8", tmp_path, obs, name="p")
    monkeypatch.undo()
    assert len([*tmp_path.iterdir()]) == 3  # none is of the export before
    export_policy(small_policy, "int8", tmp_path, obs, name="p")


CONV = ("conv2d", {"in_channels": 3, "out_channels": 4, "kernel_size": 3})
GRU = ("gru_cell", {"input_size": 6, "hidden_size": 6})


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        (((6,), linear(6, 4), "elu", linear(4, 2)), {}, "layer 'layers.1' (elu) has no form in C"),
        (((3, 9, 9), CONV, "relu", "flatten", linear(196, 2)), {}, "'layers.0' (conv2d) has no"),
        (((6,), "identity", ("divide", {"by": 255.0}), linear(6, 2)), {},
         "'layers.1' (divide) has no form"),
        (((6,), GRU), {}, "gru_cell"),
        (((2, 3), linear(3, 4), "flatten", linear(8, 2)), {}, "(linear) takes vectors of 3, not 6"),
        (((6,), linear(6, 2)), {"precision": "fp16"}, "unknown precision of an export 'fp16'"),
        (((6,), linear(6, 2)), {"ranges": "mean"}, "unknown ranges 'mean'"),
        (((6,), linear(6, 2)), {"head": Head("sample")}, "head 'sample' draws its actions"),
        (((6,), linear(6, 2)), {"observations": normal(3, 5)}, "be [n, 6], n >= 1; got [3, 5]"),
        (((6,), linear(6, 2)), {"observations": normal(0, 6)}, "got [0, 6]"),
        (((6,), linear(6, 2)), {"observations": normal(3, 6) * np.nan}, "NaN or infinite"),
        (((6,), linear(6, 2)), {"observations": np.full((3, 6), 1e300)},
         "NaN or infinite values in float32"),
        (((6,), linear(6, 2)), {"observations": np.full((3, 6), 3e38), "precision": "fp32"},
         "outputs for the recorded observations are NaN or infinite"),
        (((6,), linear(6, 2)), {"observations": np.full((3, 6), "x")}, "be real numbers, got <U1"),
        (LAYERS["bytes"], {"observations": normal(3, 2, 4, 5)}, "must be frames of uint8, got fl"),
    ],
)
def test_what_cannot_be_exported_is_one_clear_line(make_policy, tmp_path, layers, options, message):
    net = make_policy(*layers, head=options.pop("head", None))
    values = {"precision": "int8", "observations": normal(4, *net.spec.obs_shape)} | options
    with pytest.raises(QuarlError) as caught:
        export_policy(net, folder=tmp_path / "out", name="p", **values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("simulated", ["fp16", "int8"])
def test_a_policy_of_simulated_precision_is_no_policy_to_export(
    small_policy, obs, tmp_path, simulated, precision
):
    message = "^layer 'layers.0' rounds its activations in simulation: give the policy as it was"
    with pytest.raises(QuarlError, match=message):
        export_policy(simulate(small_policy, simulated, obs), precision, tmp_path / "p", obs,
                      name="p")  # fmt: skip
    assert not (tmp_path / "p").exists()
    on_levels = simulate(small_policy, "affine4", obs)  # which needs nothing beside its weights
    assert export_policy(on_levels, precision, tmp_path / "p", obs, name="p").is_dir()


def test_int8_layers_of_very_many_inputs_are_exported_unless_sums_may_overflow(
    make_policy, here, tmp_path
):
    frames = np.random.default_rng(0).integers(0, 256, (2, 70_000), dtype=np.uint8)
    net = make_policy((70_000,), ("divide", {"by": 255.0}), linear(70_000, 2))
    folder = export_policy(net, "int8", tmp_path, frames, name="p")
    assert run_test(build(folder, here), here)["correct"]
    net.layers[1].weight.data.fill_(1.0)
    with pytest.raises(QuarlError, match="^no int8 of layer 'layers.1': its sums may exceed int32"):
        export_policy(net, "int8", tmp_path, frames, name="p")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_that_are_not_finite_are_named(small_policy, obs, tmp_path, precision):
    small_policy.layers[2].bias[1] = torch.inf
    with pytest.raises(QuarlError, match=r"'layers\.2\.bias'.* holds NaN or infinite"):
        export_policy(small_policy, precision, tmp_path, obs, name="p")


def test_observations_may_be_a_view_that_runs_backwards(small_policy, obs, tmp_path):
    one = obs[:1][::-1]  # to numpy it is contiguous all the same
    kept = recorded(export_policy(small_policy, "int8", tmp_path, one, name="p"))
    np.testing.assert_array_equal(kept["obs"], obs[:1])


def test_of_many_observations_all_calibrate_and_some_are_recorded(small_policy, tmp_path):
    obs = normal(2000, 6)
    obs[-1] *= 100  # as late in an episode
    kept = recorded(export_policy(small_policy, "int8", tmp_path, obs, name="p"))
    assert len(kept["obs"]) == 256 and (kept["obs"][[0, -1]] == obs[[0, -1]]).all()
    expected = simulate(small_policy, "int8", obs)(torch.as_tensor(kept["obs"])).numpy()
    np.testing.assert_array_equal(kept["outputs"], expected)


def test_a_full_disk_leaves_the_earlier_export(small_policy, obs, tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    export_policy(small_policy, "fp32", tmp_path, obs, name="p")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(QuarlError, match="cannot write .*: No space left on device"):
        export_policy(small_policy, "int8", tmp_path, obs, name="p")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tolerances_are_shares_of_the_largest_output_and_action(make_policy, tmp_path, precision):
    head = Head("tanh_scale", (-2.0, -2.0), (2.0, 2.0), (2,))
    for kind, options in (("continuous", {"head": head}), ("discrete", {})):
        net = make_policy((6,), linear(6, 2), **options)
        net.layers[0].bias.data.fill_(-100.0)  # every output is negative
        folder = export_policy(net, precision, tmp_path / kind, normal(40, 6), name="p")
        told = json.loads((folder / "export.json").read_text())
        share, largest = TOLERANCE[precision], -float(recorded(folder)["outputs"].min())
        assert largest > 90 and told["tolerance"] == pytest.approx(share * largest)
        action = share * 2.0 if kind == "continuous" else 0.0
        assert told["action_tolerance"] == pytest.approx(action)
        assert told["network"] == [6, 2]


def test_an_export_tells_bounds_of_actions_in_finite_numbers(make_policy, tmp_path):
    head = Head("clip", (-1.0, -np.inf), (0.5, np.inf), (2,))
    net = make_policy((6,), linear(6, 2), head=head)
    folder, largest = export_policy(net, "fp32", tmp_path, normal(9, 6), name="p"), 2.0**128
    told = json.loads((folder / "export.json").read_text())["head"]
    assert (told["low"][0], told["high"][0]) == (-1.0, 0.5)
    assert largest > told["high"][1] == -told["low"][1] == pytest.approx(largest)


def test_a_link_to_nowhere_of_the_users_own_is_not_lost(small_policy, obs, tmp_path):
    (tmp_path / "Makefile").symlink_to("another/Makefile")
    with pytest.raises(QuarlError, match="Makefile' would be lost"):
        export_policy(small_policy, "int8", tmp_path, obs, name="p")
    assert (tmp_path / "Makefile").is_symlink()
