from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.inference import build_payload, make_payload, open_engine
from quarl_nb.inference.onnx import session_options
from quarl_nb.inference.payload import decode, encode
from quarl_nb.quant import parse_precision, quantize_module, weight_bytes
from quarl_nb.rl.layers import ACTIVATIONS
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.studies.inference import random_inputs, random_policy


def linear(inputs: int, outputs: int, **options: bool) -> tuple[str, dict]:
    return "linear", {"in_features": inputs, "out_features": outputs, **options}


def conv(inputs: int, outputs: int, kernel: int, **options: object) -> tuple[str, dict]:
    sizes = {"in_channels": inputs, "out_channels": outputs, "kernel_size": kernel}
    return "conv2d", sizes | options


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def reference(net: PolicyNet, obs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return net(torch.as_tensor(obs)).numpy()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fp32_computes_every_activation_as_the_policy_does(make_policy, activation):
    net, obs = make_policy((5,), linear(5, 16), activation, linear(16, 3)), normal(9, 5)
    got = open_engine(build_payload(net, "fp32")).run(obs)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, reference(net, obs), rtol=1e-4, atol=1e-5)


LAYERS = {
    "without bias": ((6,), linear(6, 8, bias=False), "relu", linear(8, 2)),
    "normalized": ((6,), ("normalize", {"shape": [6], "epsilon": 1e-8, "clip": 1.5}), "flatten",
                   linear(6, 4)),
    "flattened": ((2, 3), "flatten", linear(6, 4)),
    "clipped": ((6,), linear(6, 4), ("hardtanh", {"min_val": -0.3, "max_val": 0.2})),
    "dueling": ((6,), ("dueling", {"in_features": 6, "hidden": 8, "n_actions": 3})),
    "quantiles": ((6,), linear(6, 12), ("quantile_mean", {"n_quantiles": 4, "n_actions": 3})),
    "convolutions": ((3, 9, 8), conv(3, 4, 3, padding=1, bias=False), ("batch_norm2d",
                     {"num_features": 4}), "elu", conv(4, 6, 3, stride=2, dilation=2, groups=2),
                     "relu", "flatten", linear(6 * 3 * 2, 3)),
    "unequal sides": ((3, 9, 8), conv(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 3)),
                      "flatten", linear(4 * 5 * 5, 3)),
    "a batch norm's own epsilon": ((2, 3, 3), ("batch_norm2d", {"num_features": 2, "eps": 0.5}),
                                   "flatten"),
    "a normalization's own epsilon": ((6,), ("normalize", {"shape": [6], "epsilon": 0.5,
                                                           "clip": 9.0}), "identity"),
    "steep": ((6,), ("elu", {"alpha": 0.3}), linear(6, 6), ("leaky_relu", {"negative_slope": 0.4})),
    "gelu by tanh": ((6,), ("gelu", {"approximate": "tanh"})),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_fp32_computes_every_layer_as_the_policy_does(make_policy, name, runtime):
    net = make_policy(*LAYERS[name])
    obs = normal(7, *net.spec.obs_shape)
    got = open_engine(build_payload(net, "fp32", runtime=runtime)).run(obs)
    np.testing.assert_allclose(got, reference(net, obs), rtol=1e-4, atol=1e-5)


def test_normalization_keeps_what_float32_would_lose(make_policy):
    net = make_policy((1,), ("normalize", {"shape": [1], "epsilon": 0.0, "clip": 9.0}), "identity")
    net.layers[0].mean.fill_(1e9)
    net.layers[0].var.fill_(1.0)
    obs = np.array([[1e9 + 1.25], [1e9 - 99.0]])
    assert open_engine(build_payload(net, "fp32")).run(obs).tolist() == [[1.25], [-9.0]]


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_bytes_are_divided_by_what_the_policy_says(make_policy, runtime):
    net = make_policy((2,), ("divide", {"by": 64.0}), "identity")
    engine = open_engine(build_payload(net, "fp32", runtime=runtime))
    assert engine.run(np.array([[64, 16]], np.uint8)).tolist() == [[1.0, 0.25]]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_normalization_is_in_full_precision_whatever_follows(make_policy, precision):
    net = make_policy((1,), ("normalize", {"shape": [1], "epsilon": 0.0, "clip": 9.0}), "identity")
    net.layers[0].mean.fill_(1000.5)
    net.layers[0].var.fill_(1.0)
    engine = open_engine(build_payload(net, precision, runtime="torch"))
    assert engine.run(np.array([[1001.75]])).tolist() == [[1.25]]


def test_torch_fp32_is_the_policy_bit_for_bit():
    net = random_policy("nature-cnn", seed=0)
    obs = random_inputs(net, 3, seed=0)
    got = open_engine(build_payload(net, "fp32", runtime="torch")).run(obs)
    np.testing.assert_array_equal(got, reference(net, obs))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("network", ["64x3", "nature-cnn"])
def test_torch_half_precisions_agree_with_their_simulation(precision, network):
    net = random_policy(network, seed=1)
    obs = random_inputs(net, 8, seed=0)
    payload = build_payload(net, precision, runtime="torch")
    exact = reference(net, obs)
    simulated = reference(quantize_module(net, parse_precision(precision)), obs)
    real = open_engine(payload).run(obs)
    error = np.abs(simulated - exact).max()
    assert 0 < np.abs(real - exact).max() < 2 * error
    assert np.abs(real - simulated).max() < 1.5 * error
    assert len(payload) < 0.6 * len(build_payload(net, "fp32", runtime="torch"))


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "float16"), ("bf16", "int16")])
def test_torch_half_precisions_run_quantized_activations(make_policy, precision, dtype):
    quantize = ("fixed_quantize", {"bits": 4})
    net, obs = make_policy((6,), linear(6, 8), "tanh", quantize, linear(8, 2)), normal(7, 6)
    net.layers[2].scale.fill_(0.13)
    net.layers[2].zero_point.fill_(0)
    payload = build_payload(net, precision, runtime="torch")
    np.testing.assert_allclose(open_engine(payload).run(obs), reference(net, obs), atol=0.15)
    types = {name: array.dtype for name, array in decode(payload).tensors.items()}
    assert (types["2.scale"], types["3.weight"]) == (np.float32, np.dtype(dtype))


@pytest.mark.parametrize(
    ("network", "runtime", "precision"),
    [("256x3", "onnxruntime", p) for p in ("fp32", "int8", "int4")]
    + [("256x3", "torch", p) for p in ("fp32", "fp16", "bf16")]
    + [("nature-cnn", "onnxruntime", p) for p in ("fp32", "int8")],
)
def test_engines_tell_the_size_of_payloads_which_hold_little_but_weights(
    network, runtime, precision
):
    net = random_policy(network, seed=0)
    obs = random_inputs(net, 2, seed=0)
    payload = build_payload(net, precision, runtime=runtime, calibration=obs)
    engine = open_engine(payload)
    assert engine.payload_bytes == len(payload)
    # What does not travel is opened as it is.
    made = make_payload(net, precision, runtime=runtime, calibration=obs)
    unsent = open_engine(made)
    np.testing.assert_array_equal(unsent.run(obs), engine.run(obs))
    assert unsent.payload_bytes == made.nbytes < len(payload)
    weights = weight_bytes(net, parse_precision(precision))
    assert weights <= len(payload) < weights + 5000 + 0.02 * weights
    outputs = len(net.layers[-1].bias)
    assert engine.run(obs[:1]).shape == (1, outputs)
    assert engine.run(obs).shape == (2, outputs)


@pytest.mark.parametrize("options", [{"precision": "fp32"},
                                     {"precision": "int8", "ranges": "per_channel"}])  # fmt: skip
def test_what_does_not_travel_may_have_gaps_in_memory(options):
    net = random_policy("nature-cnn", seed=0).to(memory_format=torch.channels_last)
    obs = random_inputs(net, 2, seed=0)
    made, sent = (make(net, **options, calibration=obs) for make in (make_payload, build_payload))
    np.testing.assert_array_equal(open_engine(made).run(obs), open_engine(sent).run(obs))


def test_an_actor_opens_and_runs_without_torch(tmp_path):
    net = random_policy("nature-cnn", seed=0)
    obs = random_inputs(net, 4, seed=0)
    payload = build_payload(net, "int8", calibration=obs)
    (tmp_path / "payload").write_bytes(payload)
    np.save(tmp_path / "obs.npy", obs)
    code = """
import sys
sys.modules["torch"] = sys.modules["onnx"] = None  # any import of them now raises ImportError
import numpy as np
from quarl_nb.inference import open_engine
np.save("outputs.npy", open_engine(open("payload", "rb").read()).run(np.load("obs.npy")))
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "outputs.npy"), open_engine(payload).run(obs))


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_wrong_observations_are_refused(runtime):
    vectors = open_engine(build_payload(random_policy("8x1", 0), "fp32", runtime=runtime))
    with pytest.raises(QuarlError, match=r"shape \[n, 67\] with n >= 1, got \[67\]"):
        vectors.run(normal(67))
    with pytest.raises(QuarlError, match=r"got \[2, 66\]"):
        vectors.run(normal(2, 66))
    with pytest.raises(QuarlError, match=r"got \[0, 67\]"):
        vectors.run(normal(0, 67))
    frames = open_engine(build_payload(random_policy("nature-cnn", 0), "fp32", runtime=runtime))
    for dtype in ("float32", "float64", "int64", "int8"):
        with pytest.raises(QuarlError, match=f"frames of uint8, got {dtype}"):
            frames.run(np.zeros((1, 4, 84, 84), dtype))


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_views_that_run_backwards_are_observations_too(runtime):
    engine = open_engine(build_payload(random_policy("8x1", 0), "fp32", runtime=runtime))
    obs = normal(4, 67)
    np.testing.assert_array_equal(engine.run(obs[:, ::-1]), engine.run(obs[:, ::-1].copy()))
    np.testing.assert_array_equal(engine.run(obs[:1][::-1]), engine.run(obs[:1]))  # an axis of one


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_layers_that_change_nothing_give_the_observation(make_policy, runtime):
    net, obs = make_policy((3,), "flatten", "identity"), normal(2, 3)
    got = open_engine(build_payload(net, "fp32", runtime=runtime)).run(obs)
    np.testing.assert_array_equal(got, obs)


@pytest.mark.parametrize("runtime, precision", [("onnxruntime", "fp32"), ("onnxruntime", "int8"),
                                                ("torch", "fp32")])  # fmt: skip
def test_outputs_stay_as_they_are_whatever_runs_afterwards(runtime, precision):
    payload = build_payload(random_policy("8x1", 0), precision, runtime=runtime)
    engine, sizes = open_engine(payload), (1, 1, 1, 4, 1, 4, 4, 4)
    batches = [normal(n, 67) + i for i, n in enumerate(sizes)]
    outputs = [engine.run(obs) for obs in batches]
    for obs, got in zip(batches, outputs, strict=True):
        np.testing.assert_array_equal(got, open_engine(payload).run(obs))


FRAMES = np.zeros((2, 3, 9, 9), np.float32)
BYTES = FRAMES.astype(np.uint8)
GRU = ("gru_cell", {"input_size": 4, "hidden_size": 4})
FLAT = ("flatten", linear(243, 2))
TANH_CNN = ((3, 9, 9), conv(3, 4, 3), "tanh", "flatten", linear(196, 2))
SMALL_CNN = ((3, 9, 9), conv(3, 4, 3), "relu", "flatten", linear(196, 2))
BYTES_CNN = ((3, 9, 9), ("divide", {"by": 255.0}), *SMALL_CNN[1:])


@pytest.mark.parametrize(
    ("layers", "precision", "options", "message"),
    [
        (((4,), linear(4, 2)), "fp16", {}, "onnxruntime does not compute in fp16 on a CPU; "
         "allowed: fp32, int8, int4; with runtime torch: fp16, bf16"),
        (((4,), linear(4, 2)), "bf16", {}, "onnxruntime does not compute in bf16"),
        (((4,), linear(4, 2)), "int8", {"runtime": "torch"}, "torch does not compute in int8 "
         "on a CPU; allowed: fp32, fp16, bf16; with runtime onnxruntime: int8, int4"),
        (((4,), linear(4, 2)), "affine4", {}, "does not compute in affine4"),
        (((4,), linear(4, 2)), "int9", {}, "unknown precision 'int9'"),
        (((4,), linear(4, 2)), "fp32", {"runtime": "onnxrt"}, "unknown runtime 'onnxrt'; did you"),
        (((4,), linear(4, 2)), "fp32", {"ranges": "mse"}, "fp32 cannot have ranges 'mse'"),
        (((4,), GRU), "fp32", {}, "layer 'layers.0' (gru_cell) cannot run in fp32"),
        (((4,), GRU), "int8", {}, "layer 'layers.0' (gru_cell) cannot run in int8"),
        (((4,), GRU), "fp32", {"runtime": "torch"}, "'gru_cell' cannot run"),
        (((4,), "flatten", ("divide", {"by": 255.0}), linear(4, 2)), "fp16", {"runtime": "torch"},
         "layer 'layers.1' (divide) cannot run in torch: it must be before all that compute"),
        (SMALL_CNN, "int4", {}, "layer 'layers.0' (conv2d) cannot run in int4"),
        (SMALL_CNN, "int8", {}, "need calibration observations of [3, 9, 9], got none"),
        (SMALL_CNN, "int8", {"calibration": normal(4, 3)}, "got [4, 3]"),
        (SMALL_CNN, "int8", {"calibration": FRAMES[:0]}, "got [0, 3, 9, 9]"),
        (SMALL_CNN, "int8", {"calibration": FRAMES * np.nan}, "NaN"),
        (BYTES_CNN, "int8", {"calibration": FRAMES}, "must be frames of uint8, got float32"),
        (TANH_CNN, "int8", {"calibration": FRAMES}, "only relu, and rounding to 8 bits at most"),
        (((3, 9, 9), ("divide", {"by": 255.0}), ("batch_norm2d", {"num_features": 3}),
          *SMALL_CNN[1:]), "int8", {"calibration": BYTES}, "'layers.1' (batch_norm2d) cannot run"),
        (((3, 9, 9), conv(3, 4, 3, padding="same"), "flatten", linear(324, 2)), "fp32", {},
         "padding must be numbers"),
        (((3, 9, 9), ("flatten", {"start_dim": 2}), *FLAT), "fp32", {}, "must flatten all but the"),
        (((3, 9, 9), ("flatten", {"end_dim": 2}), *FLAT), "fp32", {}, "must flatten all but the"),
        (((3, 9, 9), ("batch_norm2d", {"num_features": 3, "affine": False}), *FLAT), "fp32", {},
         "it needs weights and running means"),
        (((3, 9, 9), ("batch_norm2d", {"num_features": 3, "track_running_stats": False}), *FLAT),
         "fp32", {}, "it needs weights and running means"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_one_clear_line(make_policy, layers, precision, options, message):
    with pytest.raises(QuarlError) as caught:
        build_payload(make_policy(*layers), precision, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("runtime", "precision"),
    [("onnxruntime", "fp32"), ("onnxruntime", "int8"), ("onnxruntime", "int4"),
     ("torch", "fp32"), ("torch", "bf16")],
)  # fmt: skip
@pytest.mark.parametrize("tensor", ["weight", "bias"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_named(make_policy, runtime, precision, tensor, value):
    net = make_policy((40,), linear(40, 9), "relu", linear(9, 2))
    getattr(net.layers[2], tensor).view(-1)[1] = value
    with pytest.raises(QuarlError, match=f"'layers.2.{tensor}' holds NaN or infinite"):
        build_payload(net, precision, runtime=runtime)


def test_weights_too_large_for_half_precision_are_named(make_policy):
    net = make_policy((4,), linear(4, 2))
    net.layers[0].weight.data[0, 0] = 1e5
    with pytest.raises(QuarlError, match="no fp16 of this policy: 'layers.0.weight' holds"):
        build_payload(net, "fp16", runtime="torch")
    build_payload(net, "bf16", runtime="torch")


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_onnxruntime_has_one_thread_and_exact_products_where_int8_saturates(monkeypatch, precision):
    monkeypatch.setattr("quarl_nb.inference.onnx.saturates_int8", lambda: True)
    options = session_options(precision)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    if precision == "int8":
        assert options.get_session_config_entry("session.x64quantprecision") == "1"
        level = options.graph_optimization_level
        assert level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED


def test_a_whole_payload_that_onnxruntime_cannot_open_is_one_clear_line():
    content = decode(build_payload(random_policy("8x1", 0), "int8"))
    broken = encode(type(content)(**vars(content) | {"model": content.model[:-9]}))
    with pytest.raises(QuarlError, match="onnxruntime cannot open the payload") as caught:
        open_engine(broken)
    assert "\n" not in str(caught.value)
    foreign = encode(type(content)(**vars(content) | {"runtime": "tflite"}))
    with pytest.raises(QuarlError, match="unknown runtime of the payload 'tflite'"):
        open_engine(foreign)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: {"tensors": {**content.tensors, "0.bias": np.zeros(9, "float32")}},
         "torch cannot open the payload: .*size mismatch for 0.bias"),
        (lambda content: {"tensors": {}}, "torch cannot open the payload: .*Missing key"),
        (lambda content: {"model": content.model[:-9]}, "torch cannot open the payload: Untermin"),
        (lambda content: {"precision": "int8"}, "unknown precision of the payload 'int8'"),
    ],
)  # fmt: skip
def test_a_whole_payload_that_torch_cannot_open_is_one_clear_line(change, message):
    content = decode(build_payload(random_policy("8x1", 0), "fp32", runtime="torch"))
    broken = encode(replace(content, **change(content)))
    with pytest.raises(QuarlError, match=message) as caught:
        open_engine(broken)
    assert "\n" not in str(caught.value)
