"""Policies of quantization-aware training in ONNX Runtime: activations on the levels they had."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.inference import build_payload, open_engine
from quarl_nb.quant import parse_precision, quantize_module, quantize_weight
from quarl_nb.quant.convert import weight_layers
from quarl_nb.rl.policies import PolicyNet

FRAMES = np.random.default_rng(0).integers(0, 256, (60, 2, 8, 8), dtype=np.uint8)


def linear(inputs: int, outputs: int) -> tuple[str, dict]:
    return "linear", {"in_features": inputs, "out_features": outputs}


def levels(bits: int) -> tuple[str, dict]:
    return "fixed_quantize", {"bits": bits}


def conv(inputs: int, outputs: int) -> tuple[str, dict]:
    return "conv2d", {"in_channels": inputs, "out_channels": outputs, "kernel_size": 3}


def cnn(*between: object) -> tuple:
    return ((2, 8, 8), ("divide", {"by": 255.0}), conv(2, 8), *between, conv(8, 4), "relu",
            "flatten", levels(8), linear(64, 3))  # fmt: skip


def reference(net: PolicyNet, obs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return net(torch.as_tensor(obs)).numpy()


def test_outputs_on_levels_are_real_numbers(make_policy, set_levels):
    """No weights follow that would take the levels themselves."""
    net = make_policy((2, 8, 8), ("divide", {"by": 255.0}), conv(2, 8), "relu", "flatten",
                      linear(288, 3), levels(8))  # fmt: skip
    set_levels(net, FRAMES)
    got = open_engine(build_payload(net, "int8", calibration=FRAMES)).run(FRAMES)
    assert got.dtype == np.float32
    assert np.abs(got - reference(net, FRAMES)).max() < 0.02 * np.ptp(reference(net, FRAMES))


@pytest.mark.parametrize("bits", [2, 8, 12])
def test_fp32_rounds_to_the_levels_as_the_policy_does(make_policy, set_levels, bits):
    net = make_policy((5,), linear(5, 16), "tanh", levels(bits), linear(16, 3))
    obs = np.random.default_rng(0).standard_normal((50, 5), dtype=np.float32)
    set_levels(net, obs / 2)  # so that some values lie outside
    got = open_engine(build_payload(net, "fp32")).run(obs)
    np.testing.assert_allclose(got, reference(net, obs), rtol=1e-5, atol=1e-5)


def test_fp32_rounds_halves_to_even_before_the_zero_point(make_policy):
    net = make_policy((4,), levels(4))
    net.layers[0].zero_point.fill_(1)
    net.layers[0].scale.fill_(1.0)
    obs = np.array([[0.5, 1.5, 2.5, -0.5]], np.float32)
    assert reference(net, obs).tolist() == [[0, 2, 2, 0]]
    assert open_engine(build_payload(net, "fp32")).run(obs).tolist() == [[0, 2, 2, 0]]


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_vectors_on_levels_run_in_integers(make_policy, set_levels, precision):
    net = make_policy((5,), linear(5, 64), "relu", levels(3), linear(64, 3))
    obs = np.random.default_rng(0).standard_normal((200, 5), dtype=np.float32)
    set_levels(net, obs)
    engine = open_engine(build_payload(net, precision))
    got = np.concatenate([engine.run(row[None]) for row in obs])
    simulated = quantize_module(net, parse_precision(precision), lambda m: m(torch.as_tensor(obs)))
    spread = np.ptp(reference(net, obs))
    # Of seven levels a hidden unit may take the next one.
    assert np.abs(got - reference(simulated, obs)).mean() < 0.03 * spread


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("between", [("relu", levels(8)), ("relu", levels(4)), (levels(4), "relu"),
                                     (levels(8),)], ids=str)  # fmt: skip
def test_images_stay_integers_on_the_levels_of_training(
    make_policy, set_levels, monkeypatch, between, unsigned
):
    """With weights on levels too nothing is left to round: the outputs are those of training."""
    monkeypatch.setattr("quarl_nb.inference.export.saturates_int8", lambda: unsigned)
    net, precision = make_policy(*cnn(*between)), parse_precision("int8")
    with torch.no_grad():
        for _, layer in weight_layers(net):
            layer.weight.copy_(quantize_weight(layer.weight, precision))
    set_levels(net, FRAMES // 2)  # so that some values lie outside
    engine = open_engine(build_payload(net, "int8", calibration=FRAMES))
    expected, got = reference(net, FRAMES), engine.run(FRAMES)
    spread = np.ptp(expected)
    assert np.median(np.abs(got - expected)) < 1e-3 * spread
    assert np.abs(got - expected).max() < 0.02 * spread  # a value between two levels


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (cnn("relu", levels(9)), "rounding to 8 bits at most, may lie before the next weights"),
        (((2, 8, 8), ("divide", {"by": 255.0}), levels(8), conv(2, 8), "relu", "flatten",
          linear(288, 3)), "layer 'layers.1' (fixed_quantize) cannot run in int8 with onnxruntime: "
         "its input has other levels"),
    ],
)  # fmt: skip
def test_levels_that_integers_do_not_have_are_one_clear_line(
    make_policy, set_levels, layers, message
):
    net = set_levels(make_policy(*layers), FRAMES // 2)
    with pytest.raises(QuarlError) as caught:
        build_payload(net, "int8", calibration=FRAMES)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_levels_of_frames_have_their_zero_too(make_policy):
    net = make_policy((2, 8, 8), ("divide", {"by": 255.0}), levels(8), conv(2, 8), "relu",
                      "flatten", linear(288, 3))  # fmt: skip
    net.layers[1].scale.fill_(1 / 255)
    net.layers[1].zero_point.fill_(0)
    assert open_engine(build_payload(net, "int8", calibration=FRAMES)).run(FRAMES).shape == (60, 3)
    net.layers[1].zero_point.fill_(5)
    with pytest.raises(QuarlError, match="its input has other levels"):
        build_payload(net, "int8", calibration=FRAMES)
