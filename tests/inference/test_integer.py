"""Real int8 and int4 against `quarl_nb.quant`'s simulation, or a second implementation in numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.inference import build_payload, make_payload, open_engine
from quarl_nb.inference.integer import StaticGraph
from quarl_nb.inference.weights import (
    check_sums,
    from_numpy,
    least_scale,
    pack_int4,
    quantize_bias,
    quantize_rows,
)
from quarl_nb.quant import PerTensor, parse_precision, quantize_module, quantize_weight
from quarl_nb.quant.convert import weight_layers
from quarl_nb.rl.observations import collect_observations
from quarl_nb.rl.policies import PolicyNet, load_policy
from quarl_nb.studies.inference import random_inputs, random_policy

POLICIES = Path(__file__).resolve().parents[2] / "data" / "policies"
RANGES = ["minmax", "per_channel", "percentile"]


def reference(net: PolicyNet, obs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return net(torch.as_tensor(obs)).numpy()


def dynamic_int8(net: PolicyNet, obs: np.ndarray, ranges: str) -> np.ndarray:
    """An MLP of linear, tanh and relu; activations u8, their range that of the whole batch."""
    config = parse_precision("int8", ranges).weight
    x = obs.astype(np.float32)
    for layer in net.layers:
        if isinstance(layer, nn.Linear):
            low, high = min(x.min(), 0), max(x.max(), 0)
            step = np.float32((high - low) / 255)
            zero = np.round(-low / step)
            u8 = np.clip(np.round(x / step) + zero, 0, 255).astype(np.int64)
            s8, scale = (t.numpy() for t in quantize_rows(layer.weight, config))
            sums = (u8 - int(zero)) @ s8.T.astype(np.int64)
            x = (sums * (step * scale) + layer.bias.numpy()).astype(np.float32)
        elif isinstance(layer, nn.Tanh):
            x = np.tanh(x)
        elif isinstance(layer, nn.ReLU):
            x = np.maximum(x, 0)
        else:
            assert isinstance(layer, nn.Flatten)
    return x


@pytest.fixture(scope="module")
def cartpole() -> tuple[PolicyNet, np.ndarray]:
    net = load_policy(POLICIES / "ppo-CartPole-v1")
    return net, collect_observations(net, "CartPole-v1", 2000, seed=5)


@pytest.mark.parametrize("ranges", RANGES)
def test_dynamic_int8_is_a_second_implementation_in_numpy(ranges):
    net = random_policy("96x2", seed=3)
    obs = random_inputs(net, 50, seed=4)
    engine = open_engine(build_payload(net, "int8", ranges=ranges))
    exact, differences = reference(net, obs), []
    for i in range(len(obs)):
        expected, got = dynamic_int8(net, obs[i : i + 1], ranges), engine.run(obs[i : i + 1])
        # An activation in the middle of two levels may go either way: one step in one layer.
        np.testing.assert_allclose(got, expected, atol=0.01)
        differences.append(np.abs(got - expected).max())
        assert 0 < np.abs(got - exact[i]).max() < 0.2
    assert np.median(differences) < 1e-5
    np.testing.assert_allclose(engine.run(obs), dynamic_int8(net, obs, ranges), atol=0.01)


@pytest.fixture(params=[False, True])
def payload(request, monkeypatch) -> Callable[..., bytes]:
    """`build_payload` in int8 as where products are exact, and as where they would saturate."""
    monkeypatch.setattr("quarl_nb.inference.export.saturates_int8", lambda: request.param)
    return partial(build_payload, precision="int8")


def with_large_weights(net: PolicyNet) -> PolicyNet:
    """All near the maximum: of pairs of 255 x 127, 16 bits keep half."""
    for parameter in net.parameters():
        parameter.data = parameter.abs() + 1
    return net


def test_sums_of_vectors_do_not_saturate(make_policy, payload):
    linear = [("linear", {"in_features": i, "out_features": o}) for i, o in ((64, 32), (32, 8))]
    net = with_large_weights(make_policy((64,), linear[0], "relu", linear[1]))
    obs = np.random.default_rng(0).uniform(0.9, 1, (3, 64)).astype(np.float32)
    engine = open_engine(payload(net))
    for rows in (obs[:1], obs):  # one and several have kernels of their own
        np.testing.assert_allclose(engine.run(rows), dynamic_int8(net, rows, "minmax"), rtol=1e-5)


def test_sums_of_images_do_not_saturate(make_policy, payload):
    convolution = ("conv2d", {"in_channels": 2, "out_channels": 8, "kernel_size": 8})
    linear = ("linear", {"in_features": 8, "out_features": 3})
    net = with_large_weights(make_policy((2, 8, 8), convolution, "relu", "flatten", linear))
    frames = np.random.default_rng(1).uniform(0.9, 1, (4, 2, 8, 8)).astype(np.float32)
    got = open_engine(payload(net, calibration=frames)).run(frames)
    simulated = quantize_module(net, parse_precision("int8"), lambda m: m(torch.as_tensor(frames)))
    np.testing.assert_allclose(got, reference(simulated, frames), rtol=0.01)


@pytest.mark.parametrize("network", ["8x1", "nature-cnn"])
@pytest.mark.parametrize(("saturates", "dtype"), [(False, "int8"), (True, "uint8")])
def test_weights_are_unsigned_where_sums_would_saturate(monkeypatch, network, saturates, dtype):
    monkeypatch.setattr("quarl_nb.inference.export.saturates_int8", lambda: saturates)
    net = random_policy(network, seed=0)
    made = make_payload(net, "int8", calibration=random_inputs(net, 2, seed=0))
    weights = [array for name, array in made.tensors.items() if name.endswith(".weight")]
    assert weights and {array.dtype.name for array in weights} == {dtype}


def test_real_int8_acts_on_cartpole_as_its_simulations_do(cartpole):
    net, obs = cartpole
    engine = open_engine(build_payload(net, "int8"))
    real = np.concatenate([engine.run(row[None]) for row in obs])
    numpy = np.concatenate([dynamic_int8(net, row[None], "minmax") for row in obs])
    static = quantize_module(net, parse_precision("int8"), lambda m: m(torch.as_tensor(obs)))
    spread = np.ptp(reference(net, obs))
    assert np.abs(real - numpy).max() < 0.01 * spread
    assert (real.argmax(1) != numpy.argmax(1)).sum() <= 2  # of 2000; 0 when written
    # The simulation's fixed ranges are wider than those of one observation, hence coarser.
    simulated, exact = reference(static, obs), reference(net, obs).argmax(1)
    assert np.abs(real - simulated).max() < 0.1 * spread
    assert (real.argmax(1) != simulated.argmax(1)).mean() < 0.08
    assert (real.argmax(1) != exact).mean() < (simulated.argmax(1) != exact).mean()


@pytest.mark.parametrize("name", ["dqn-PongNoFrameskip-v4", "ppo-BipedalWalker-v3"])
def test_real_int8_decides_on_what_trained_policies_see_as_its_simulation_does(name):
    net = load_policy(POLICIES / name)
    seen = collect_observations(net, name.split("-", 1)[1], 1600, seed=5)
    calibration, obs = seen[::2], seen[1::2]
    engine = open_engine(build_payload(net, "int8", calibration=calibration))
    real = np.concatenate([engine.run(row[None]) for row in obs])
    simulated = reference(
        quantize_module(net, parse_precision("int8"), lambda m: m(torch.as_tensor(calibration))),
        obs,
    )
    exact = reference(net, obs)
    # Nearer to each other than to float32 on average; at worst 2.5 and 2.1 % apart when written.
    assert np.abs(real - simulated).mean() < 0.8 * np.abs(simulated - exact).mean()
    assert np.abs(real - simulated).max() < 0.04 * np.ptp(exact)
    if net.spec.head.kind == "argmax":  # 46 of 800 actions, where 100 are others than float32's
        differing = [(real.argmax(1) != other.argmax(1)).sum() for other in (simulated, exact)]
        assert 0 < differing[0] < 0.7 * differing[1]


@pytest.mark.parametrize("ranges", RANGES)
def test_static_int8_is_the_simulation_of_quant(ranges):
    net = random_policy("nature-cnn", seed=0)
    calibration, obs = random_inputs(net, 16, seed=1), random_inputs(net, 40, seed=2)
    assert calibration.max() == 255  # so that the simulation leaves frames as they are
    engine = open_engine(build_payload(net, "int8", ranges=ranges, calibration=calibration))
    simulated = quantize_module(
        net, parse_precision("int8", ranges), lambda m: m(torch.as_tensor(calibration))
    )
    exact, expected, got = reference(net, obs), reference(simulated, obs), engine.run(obs)
    error = np.abs(expected - exact).max()
    assert np.abs(got - expected).max() < 0.5 * error
    assert 0.5 * error < np.abs(got - exact).max() < 2 * error
    assert (got.argmax(1) != expected.argmax(1)).sum() <= 1  # of 40
    singles = np.concatenate([engine.run(obs[i : i + 1]) for i in range(8)])
    np.testing.assert_array_equal(engine.run(obs[:8]), singles)


def test_calibration_may_be_a_view_that_runs_backwards(make_policy, payload):
    convolution = ("conv2d", {"in_channels": 1, "out_channels": 2, "kernel_size": 3})
    last = ("linear", {"in_features": 8, "out_features": 2})
    net = make_policy((1, 4, 4), convolution, "relu", "flatten", last)
    frames = np.random.default_rng(0).standard_normal((5, 1, 4, 4), dtype=np.float32)
    for view in (frames[::-1], frames[:, ::-1]):
        assert payload(net, calibration=view) == payload(net, calibration=view.copy())


def test_static_int8_runs_activations_and_heads_between_linear_layers_in_float(make_policy):
    conv = ("conv2d", {"in_channels": 2, "out_channels": 8, "kernel_size": 3, "padding": 1})
    linear = [("linear", {"in_features": i, "out_features": o}) for i, o in ((128, 16), (16, 12))]
    net = make_policy(
        (2, 4, 4), conv, "relu", "flatten", linear[0], "tanh", linear[1],
        ("dueling", {"in_features": 12, "hidden": 8, "n_actions": 3}),
    )  # fmt: skip
    obs = np.random.default_rng(0).standard_normal((200, 2, 4, 4), dtype=np.float32)
    got = open_engine(build_payload(net, "int8", calibration=obs)).run(obs)
    simulated = quantize_module(net, parse_precision("int8"), lambda m: m(torch.as_tensor(obs)))
    expected, exact = reference(simulated, obs), reference(net, obs)
    assert np.abs(got - expected).max() < 0.75 * np.abs(expected - exact).max()
    assert np.abs(got - expected).mean() < 0.1 * np.abs(expected - exact).mean()


def test_int4_is_a_second_implementation_in_numpy():
    """Weights and activations in the same blocks of 32, activations symmetric int8."""
    net, precision = random_policy("70x1", seed=0), parse_precision("int4")
    obs = random_inputs(net, 5, seed=0)
    x = obs
    for layer in net.layers:
        if isinstance(layer, nn.ReLU):
            x = np.maximum(x, 0)
            continue
        inputs = x.shape[1]
        blocks = np.pad(x, ((0, 0), (0, -inputs % 32))).reshape(len(x), -1, 32)
        step = np.maximum(np.abs(blocks).max(-1, keepdims=True) / 127, 1e-30)
        x = (np.round(blocks / step) * step).reshape(len(x), -1)[:, :inputs]
        x = x @ quantize_weight(layer.weight, precision).numpy().T + layer.bias.numpy()
    got = open_engine(build_payload(net, "int4")).run(obs)
    np.testing.assert_allclose(got, x, atol=2e-3)
    assert np.abs(got - reference(net, obs)).max() > 0.05


@pytest.mark.parametrize("ranges", [*RANGES, "mse"])
@pytest.mark.parametrize("shape", [(5, 3), (700, 300), (2, 140_000), (8, 4, 3, 3)])
def test_integers_stand_for_what_quant_makes_of_the_weight(ranges, shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    precision = parse_precision("int8", ranges)
    integers, scale = quantize_rows(weight, precision.weight)
    per_tensor = isinstance(precision.weight.granularity, PerTensor)
    assert scale.shape == (() if per_tensor else shape[:1])
    values = integers * scale.reshape([-1] + [1] * (len(shape) - 1))
    assert integers.dtype == torch.int8
    assert torch.equal(values.reshape(shape), quantize_weight(weight, precision))


def test_int4_packs_two_integers_a_byte_by_hand():
    # scale 7 / 7 = 1; integers 1, -2, 7, 0 ... become 9, 6, 15, 8 ...; low half first.
    weight = torch.zeros(1, 33)
    weight[0, :3] = torch.tensor([1.0, -2.0, 7.0])
    weight[0, 32] = -14.0
    packed, scales = pack_int4(weight, parse_precision("int4").weight, 32)
    assert packed.shape == (1, 2, 16)
    assert packed[0, 0, :3].tolist() == [0x69, 0x8F, 0x88]
    assert packed[0, 1, :2].tolist() == [0x81, 0x88]
    assert scales.tolist() == [1.0, 2.0]


def test_biases_are_integers_in_units_of_the_sums():
    bias, scale, weight = torch.tensor([1.0, -0.26]), torch.tensor(0.1), torch.ones(2, 1).char()
    assert quantize_bias(bias, scale, weight, "b").tolist() == [10, -3]
    assert quantize_bias(bias, torch.tensor([0.5, 0.01]), weight, "b").tolist() == [2, -26]
    with pytest.raises(QuarlError, match="^no int8 of layer 'b': its sums may exceed int32$"):
        quantize_bias(1e9 * bias, scale, weight, "b")


def test_large_biases_are_rounded_to_the_nearest_integer():
    bias, scale = torch.tensor([1.0]), torch.tensor(3 * 2.0**-30)  # 2^30 / 3 = 357,913,941.33
    assert quantize_bias(bias, scale, torch.ones(1, 1).char(), "b").tolist() == [357_913_941]


def test_one_bias_of_several_may_be_too_large():
    bias, weight = torch.tensor([0.0, 2.0**31]), torch.ones(2, 1).char()
    with pytest.raises(QuarlError, match="layer 'b': its sums may exceed int32"):
        quantize_bias(bias, torch.tensor(1.0), weight, "b")


@pytest.mark.parametrize("sign", [-1, 1])
def test_biases_leave_room_for_the_products_that_are_added(sign):
    most, scale = 2**31 - 1 - 255 * (127 * 64 + 3), torch.tensor(1.0)
    weight = torch.tensor([127, -127] * 32 + [3]).char()
    bias = torch.tensor([sign * most]).double()
    assert quantize_bias(bias, scale, weight[None], "b").tolist() == [sign * most]
    weight[-1] = 4
    with pytest.raises(QuarlError, match="layer 'b': its sums may exceed int32"):
        quantize_bias(bias, scale, weight[None], "b")


def test_sums_are_bound_by_the_weights_that_they_have():
    inputs = (2**31 - 1) // (255 * 127)  # 66,311 of the largest weights
    largest = torch.full((1, inputs + 1), 127).char()
    check_sums(largest[:, 1:], "l")
    largest[0, 0] = (2**31 - 1) // 255 - 127 * inputs
    check_sums(largest, "l")
    for worst in (largest[0, 0] + 1, torch.tensor(-127)):
        largest[0, 0] = worst
        with pytest.raises(QuarlError, match="^no int8 of layer 'l': its sums may exceed int32$"):
            check_sums(torch.cat([torch.zeros_like(largest), largest]), "l")
    bias = torch.tensor([7.0])
    ones = torch.ones(1, 10 * inputs).char()
    assert quantize_bias(bias, torch.tensor(1.0), ones, "l").tolist() == [7]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_layers_of_very_many_inputs_run_or_are_refused(make_policy, payload, kind, bias):
    """With random weights, and with the largest ones, whose sums leave int32."""
    last = ("linear", {"in_features": 67_600, "out_features": 2, "bias": bias})
    before = [("conv2d", {"in_channels": 1, "out_channels": 1, "kernel_size": 1}), "relu"]
    net = make_policy((1, 260, 260), *before * (kind == "images"), "flatten", last)
    obs = np.random.default_rng(0).random((2, 1, 260, 260), dtype=np.float32)
    got = open_engine(payload(net, calibration=obs)).run(obs)
    simulated = quantize_module(net, parse_precision("int8"), lambda m: m(torch.as_tensor(obs)))
    expected = reference(simulated, obs)
    np.testing.assert_allclose(got, expected, atol=0.02 * np.abs(expected).max())
    net.layers[-1].weight.data.fill_(1.0)
    message = f"^no int8 of layer 'layers.{len(net.layers) - 1}': its sums may exceed int32$"
    with pytest.raises(QuarlError, match=message):
        payload(net, calibration=obs)


def test_dead_layers_and_zero_weights_give_the_bias():
    net = random_policy("16x2", seed=0)
    with torch.no_grad():
        net.layers[2].weight.zero_()
        net.layers[2].bias.fill_(-1.0)  # relu lets nothing through
    obs = random_inputs(net, 3, seed=0)
    for precision in ("int8", "int4"):
        got = open_engine(build_payload(net, precision)).run(obs)
        np.testing.assert_allclose(got, np.tile(net.layers[-1].bias.numpy(), (3, 1)), rtol=1e-6)


def test_int4_weights_of_zero_give_the_bias_whatever_enters(make_policy):
    net = make_policy((64,), ("linear", {"in_features": 64, "out_features": 3}))
    layer = net.layers[0]
    with torch.no_grad():
        layer.weight[:2] = 0.0
        layer.bias.copy_(torch.tensor([0.5, -1.0, 0.0]))
    assert pack_int4(layer.weight, parse_precision("int4").weight, 32)[1][:4].tolist() == [0.0] * 4
    obs = np.random.default_rng(0).normal(0, 1e6, (9, 64)).astype(np.float32)
    got = open_engine(build_payload(net, "int4")).run(obs)
    np.testing.assert_array_equal(got[:, :2], np.tile([0.5, -1.0], (9, 1)))


def small_cnn(make_policy) -> tuple[PolicyNet, np.ndarray]:
    convolution = ("conv2d", {"in_channels": 1, "out_channels": 4, "kernel_size": 4})
    linear = ("linear", {"in_features": 4, "out_features": 3})
    net = make_policy((1, 4, 4), convolution, "relu", "flatten", linear)
    return net, np.random.default_rng(0).normal(0, 100, (16, 1, 4, 4)).astype(np.float32)


@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-15, 1e-10])
@pytest.mark.parametrize("ranges", ["minmax", "per_channel"])
def test_weights_of_nearly_nothing_give_the_bias_where_activations_are_calibrated(
    make_policy, payload, ranges, size
):
    net, frames = small_cnn(make_policy)
    last = net.layers[-1]
    with torch.no_grad():
        last.weight[0 if ranges == "minmax" else 1 :] *= size  # of a tensor, or of two channels
        last.bias.copy_(torch.tensor([0.1, 0.3, 0.0]))
    got = open_engine(payload(net, ranges=ranges, calibration=frames)).run(frames)
    tolerance = {"rtol": 1e-6, "atol": 1e3 * size}
    np.testing.assert_allclose(got[:, 1:], np.tile([0.3, 0.0], (16, 1)), **tolerance)
    if ranges == "minmax":
        np.testing.assert_allclose(got[:, 0], 0.1, **tolerance)


@pytest.mark.parametrize("ranges", ["minmax", "per_channel"])
def test_a_bias_too_large_for_its_weights_leaves_the_other_outputs_alone(
    make_policy, payload, ranges
):
    net, frames = small_cnn(make_policy)
    before = open_engine(payload(net, ranges=ranges, calibration=frames)).run(frames)
    net.layers[-1].bias.data[1] = 1e9
    got = open_engine(payload(net, ranges=ranges, calibration=frames)).run(frames)
    np.testing.assert_allclose(got[:, 1], reference(net, frames)[:, 1], rtol=1e-6)
    np.testing.assert_array_equal(got[:, [0, 2]], before[:, [0, 2]])


def test_a_bias_too_large_for_its_weights_runs_on_small_activations_too(make_policy, payload):
    net, frames = small_cnn(make_policy)
    net.layers[-1].bias.data[1] = 1e9
    got = open_engine(payload(net, calibration=frames / 100)).run(frames / 100)
    np.testing.assert_allclose(got[:, 1], reference(net, frames / 100)[:, 1], rtol=1e-6)


def test_the_smallest_scale_makes_the_bias_half_of_int32():
    bias, input_scale = torch.tensor([1.0, -3.0, 0.0]), torch.tensor(2.0**-20)
    assert least_scale(bias, input_scale)[:2].tolist() == [2.0**-10, 3 * 2.0**-10]
    assert least_scale(bias, input_scale)[2].item() == pytest.approx(1e-30, rel=1e-6, abs=0)


def test_only_memory_that_cannot_be_written_is_copied():
    array = np.arange(3.0)
    assert np.shares_memory(from_numpy(array).numpy(), array)
    array.flags.writeable = False
    copied = from_numpy(array)
    assert not np.shares_memory(copied.numpy(), array) and copied.tolist() == [0, 1, 2]


def test_the_smallest_scales_by_hand():
    weight = torch.tensor([[1.27, -0.1], [0.127, 0.1], [0.0, 0.0]])
    config = parse_precision("int8", "per_channel").weight
    integers, scale = quantize_rows(weight, config, torch.tensor([0.005, 0.02, 3e-9]))
    # Of the first row the scale is 0.01; the second's would be 0.001.
    assert integers.tolist() == [[127, -10], [6, 5], [0, 0]]
    assert scale.tolist() == pytest.approx([0.01, 0.02, 3e-9])
    config = parse_precision("int8").weight  # 0.01 for all
    integers, scale = quantize_rows(weight, config, torch.tensor([0.005, 0.02, 3e-9]))
    assert integers.tolist() == [[127, -10], [6, 5], [0, 0]]
    assert scale.tolist() == pytest.approx([0.01, 0.02, 0.01])


@pytest.mark.parametrize("ranges", [*RANGES, "mse"])
@pytest.mark.parametrize("network", ["nature-cnn", "64x2"])
def test_ordinary_weights_and_biases_are_as_if_there_were_no_smallest_scale(network, ranges):
    """Bit for bit, in each layer."""
    net, precision = random_policy(network, seed=0), parse_precision("int8", ranges)
    graph = StaticGraph(net, precision, random_inputs(net, 4, seed=1))
    for name, layer in weight_layers(net):
        integers, scale = quantize_rows(layer.weight, precision.weight)
        units = (torch.tensor(graph.tensors[f"{name}.input.scale"]) * scale).double()
        expected = {"weight": integers, "scale": scale, "bias": (layer.bias / units).round().int()}
        for what, tensor in expected.items():
            np.testing.assert_array_equal(graph.tensors[f"{name}.{what}"], tensor, strict=True)


@pytest.mark.parametrize("first", [("normalize", {"shape": [2, 4, 4], "epsilon": 1e-8,
                                                  "clip": 10.0}), "identity"], ids=str)  # fmt: skip
def test_only_the_first_layer_divides_frames_of_uint8(make_policy, payload, first):
    convolution = ("conv2d", {"in_channels": 2, "out_channels": 4, "kernel_size": 3})
    last = ("linear", {"in_features": 16, "out_features": 3})
    divide = ("divide", {"by": 255.0})
    net = make_policy((2, 4, 4), first, divide, convolution, "relu", "flatten", last)
    frames = np.random.default_rng(0).integers(0, 256, (50, 2, 4, 4), dtype=np.uint8)
    got = open_engine(payload(net, calibration=frames)).run(frames)
    simulated = quantize_module(net, parse_precision("int8"), lambda m: m(torch.as_tensor(frames)))
    expected = reference(simulated, frames)
    # Sums round alike but for values between two levels.
    assert np.median(np.abs(got - expected)) < 1e-3 * np.ptp(expected)
    assert np.abs(got - expected).max() < 0.02 * np.ptp(expected)


def test_frames_are_divided_by_what_the_policy_says(make_policy, payload):
    convolution = ("conv2d", {"in_channels": 2, "out_channels": 4, "kernel_size": 3})
    last = ("linear", {"in_features": 16, "out_features": 3})
    layers = (("divide", {"by": 64.0}), convolution, "relu", "flatten", last)
    net = make_policy((2, 4, 4), *layers)
    frames = np.random.default_rng(0).integers(0, 256, (50, 2, 4, 4), dtype=np.uint8)
    got = open_engine(payload(net, calibration=frames)).run(frames)
    expected = reference(net, frames)
    assert np.abs(got - expected).max() < 0.03 * np.ptp(expected)
