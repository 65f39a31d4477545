from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant import affine_qparams, parse_precision, quantize_weight
from quarl_nb.quant.affine import round_to_levels
from quarl_nb.quant.fake import FixedQuantize
from quarl_nb.quant.minmax import InputQuantizer, WeightQuantizer, scalar_qparams
from quarl_nb.quant.qat import METHODS, QATLayer, qat_layers, quantize_aware
from quarl_nb.quant.training import StraightThrough, straight_through

ENDS = st.floats(-(2.0**100), 2.0**100, width=32)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten())


def start(module: nn.Module) -> None:
    for layer in qat_layers([module]):
        for quantizer in layer.quantizers():
            quantizer.start()


@given(ENDS, ENDS, st.integers(2, 16))
def test_scalar_qparams_are_affine_qparams(a: float, b: float, bits: int) -> None:
    low, high = sorted((a, b))
    expected = affine_qparams(torch.tensor(low), torch.tensor(high), bits)
    assert scalar_qparams(low, high, bits) == (expected.scale.item(), expected.zero_point.item())


@pytest.mark.parametrize("end", [float("nan"), float("inf"), -float("inf")])
def test_a_diverged_range_is_an_error(end: float) -> None:
    with pytest.raises(QuarlError, match="diverged"):
        scalar_qparams(-1.0, end, 8)


@pytest.mark.parametrize("bits", [2, 5, 8, 16])
def test_round_to_levels_is_the_core_operator_bit_for_bit(bits: int) -> None:
    x = normal(40, 50) * 10
    scale, zero_point = scalar_qparams(-7.3, 5.1, bits)
    top = 2**bits - 1
    levels = scale, -zero_point, top - zero_point
    expected = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, top)
    assert torch.equal(round_to_levels(x, *levels), expected)
    with torch.no_grad():
        assert torch.equal(straight_through(x, *levels), expected)
    half = x.bfloat16()
    before = half.clone()
    assert torch.equal(round_to_levels(half, *levels), round_to_levels(half.float(), *levels))
    assert torch.equal(half, before)


@pytest.mark.parametrize("scale", [0.013, 2.3])
def test_round_to_levels_divides_by_the_scale_that_float32_has(scale: float) -> None:
    middles = ((torch.arange(20) + 0.5).double() * scale).float()
    ends = torch.tensor([[0.0], [float("inf")]])
    x = torch.cat([middles, *middles.nextafter(ends)])  # on either side of the middles of steps
    expected = torch.fake_quantize_per_tensor_affine(x, scale, 0, 0, 255)
    assert torch.equal(round_to_levels(x, scale, 0, 255), expected)


def test_gradient_by_finite_differences_inside_and_zero_outside() -> None:
    # A difference over one whole level sees the staircase's slope; clipped parts are flat.
    scale, low, high = 0.25, -4, 3
    x = torch.tensor([-1.8, -0.9, -0.4, 0.0, 0.3, 0.45, 1.4, 2.9])
    upstream = torch.arange(1.0, 9.0)

    def loss(values: torch.Tensor) -> torch.Tensor:
        return (StraightThrough.apply(values, scale, low, high) * upstream).sum()

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    numeric = torch.stack([(loss(x + scale * one) - loss(x)) / scale for one in torch.eye(len(x))])
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, numeric)
    assert leaf.grad.tolist() == [0, 2, 3, 4, 5, 6, 0, 0]


def test_gradient_is_that_of_the_core_operator() -> None:
    x, upstream = normal(1000) * 3, normal(1000, seed=1)
    ours, core = x.clone().requires_grad_(), x.clone().requires_grad_()
    StraightThrough.apply(ours, 0.3, -5, 10).backward(upstream)
    torch.fake_quantize_per_tensor_affine(core, 0.3, 5, 0, 15).backward(upstream)
    assert ours.grad is not None and core.grad is not None
    assert torch.equal(ours.grad, core.grad)
    assert 0 < (ours.grad == 0).sum() < 1000


@pytest.mark.parametrize("ranges", ["minmax", "per_channel"])
@pytest.mark.parametrize("shape", [(6, 20), (6, 2, 3, 3)])
def test_weights_are_those_of_ptq_and_the_gradient_passes(ranges: str, shape: tuple) -> None:
    weight = normal(*shape).requires_grad_()
    quantizer = WeightQuantizer(3, per_channel=ranges == "per_channel")
    quantizer.start()
    quantized = quantizer(weight)
    assert torch.equal(quantized, quantize_weight(weight, parse_precision("affine3", ranges)))
    upstream = normal(*shape, seed=1)
    quantized.backward(upstream)
    assert weight.grad is not None and torch.equal(weight.grad, upstream)


def test_ranges_are_averaged_in_training_and_frozen_at_evaluation() -> None:
    quantizer = InputQuantizer(8)
    quantizer(torch.tensor([-1.0, 2.0]))
    quantizer(torch.tensor([-3.0, 1.0]))
    assert (quantizer.running_min.item(), quantizer.running_max.item()) == (-2.0, 1.5)
    quantizer.eval()
    quantizer(torch.tensor([-100.0, 100.0]))
    assert (quantizer.running_min.item(), quantizer.running_max.item()) == (-2.0, 1.5)
    quantizer.start()
    assert quantizer(torch.tensor([-100.0, 0.0, 100.0])).tolist() == pytest.approx(
        [-2.0, 0.0, 1.5], abs=3.5 / 255
    )
    quantizer.train()
    for _ in range(98):
        quantizer(torch.tensor([-2.0, 1.5]))
    quantizer(torch.tensor([-2.0, 101.5]))  # after a hundred batches the newest counts for 1 %
    assert quantizer.running_max.item() == pytest.approx(2.5, rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_before_the_start_it_is_the_float_network(method: str) -> None:
    plain = mlp()
    network = copy.deepcopy(plain)
    quantize_aware([network], 2, method=method)
    x = normal(7, 5)
    assert torch.equal(network(x), plain(x))
    assert torch.equal(network.eval()(x), plain(x))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make, shape", [(mlp, (9, 5)), (cnn, (9, 2, 6, 6))])
def test_after_the_start_weights_and_activations_lie_on_levels(
    make, shape: tuple, method: str
) -> None:
    network = make()
    layers = quantize_aware([network], 3, method=method)
    x = normal(*shape)
    network(x)
    start(network)
    seen: list[int] = []
    for layer in layers:
        layer.input_quantizer.register_forward_hook(
            lambda _, args, output: seen.append(len(output.unique()))
        )
    network(x).sum().backward()
    assert all(len(layer.weight.unique()) <= 8 for layer in layers)
    assert seen[0] == x.numel() and max(seen[1:]) <= 8  # observations pass, activations do not
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_parameters_keep_their_names_order_and_identity() -> None:
    network = mlp()
    before = list(network.named_parameters())
    quantize_aware([network], 4)
    after = list(network.named_parameters())
    assert [name for name, _ in after] == [name for name, _ in before]
    assert all(a is b for (_, a), (_, b) in zip(after, before, strict=True))
    assert network.state_dict()["0.weight"].data_ptr() == before[0][1].data_ptr()


def test_parts_may_come_from_a_generator_and_twice() -> None:
    network = mlp()
    layers = quantize_aware(iter([*network, network[2]]), 4)
    assert layers == [network[0], network[2], network[4]]
    assert all(isinstance(layer, QATLayer) for layer in layers)


@pytest.mark.parametrize("method", METHODS)
def test_a_held_weight_is_quantized_once_until_it_changes(method: str) -> None:
    (layer,) = quantize_aware([nn.Linear(4, 3)], bits=4, method=method)
    parameter = dict(layer.named_parameters())["weight"]
    layer(normal(8, 4))
    start(layer)
    layer.eval()
    with torch.no_grad():
        assert layer.weight is not layer.weight
        layer.holding = True
        held = layer.weight
        assert layer.weight is held
        parameter.mul_(2)
        assert layer.weight is not held
        assert torch.equal(layer.weight, layer.weight_quantizer(parameter))
    assert layer.weight.requires_grad  # training sees the weight as it is, with its gradient
    with torch.no_grad():
        held = layer.weight
        layer.train()
        assert layer.weight is not layer.weight
        layer.eval()
        assert layer.weight is not held  # a fused optimizer changes weights and not their version
        layer.holding = False
        assert layer.weight is not layer.weight


def test_a_held_weight_is_quantized_anew_when_its_changes_are_told_and_in_copies() -> None:
    (layer,) = quantize_aware([nn.Linear(4, 3)], bits=4)
    start(layer)
    layer.eval()
    changes: list[str] = []
    layer.holding = changes.__len__
    with torch.no_grad():
        held = layer.weight
        dict(layer.named_parameters())["weight"].data.mul_(2)  # of which its version does not tell
        copied = copy.deepcopy(layer)
        assert layer.weight is held and not copied.holding
        assert torch.equal(copied.weight, 2 * held)
        changes.append("doubled")
        assert torch.equal(layer.weight, 2 * held) and layer.weight is layer.weight


def test_what_was_held_is_not_held_again() -> None:
    (layer,) = quantize_aware([nn.Linear(4, 3)], bits=4)
    start(layer)
    layer.eval()
    with torch.no_grad():
        layer.holding = True
        held = layer.weight
        layer.holding = False
        dict(layer.named_parameters())["weight"].data.mul_(2)  # of which its version does not tell
        layer.holding = True
        assert torch.equal(layer.weight, 2 * held)


def test_a_weight_held_before_the_start_is_quantized_after_it() -> None:
    (layer,) = quantize_aware([nn.Linear(40, 30)], bits=2)
    layer.eval()
    layer.holding = True
    with torch.no_grad():
        assert len(layer.weight.unique()) > 4
        start(layer)
        assert len(layer.weight.unique()) <= 4


def test_quantizers_begin_in_the_mode_of_their_layer() -> None:
    network = mlp().eval()
    layers = quantize_aware([network], 8)
    network(normal(4, 5))
    assert [layer.input_quantizer.running_count.item() for layer in layers[1:]] == [0, 0]
    network.train()(normal(4, 5))
    assert [layer.input_quantizer.running_count.item() for layer in layers[1:]] == [1, 1]


@pytest.mark.parametrize("method", METHODS)
def test_state_survives_saving(method: str) -> None:
    trained, fresh = mlp(), mlp()
    quantize_aware([trained], 3, method=method)
    trained(normal(9, 5))
    start(trained)
    quantize_aware([fresh], 3, method=method)
    fresh.load_state_dict(trained.state_dict())
    x = normal(4, 5, seed=1)
    assert torch.equal(fresh.eval()(x), trained.eval()(x))
    assert len(next(qat_layers([fresh])).weight.unique()) <= 8


def test_fixed_quantize_rounds_as_the_input_quantizer_does() -> None:
    quantizer, fixed = InputQuantizer(4), FixedQuantize(4)
    x = normal(100)
    quantizer(x)
    quantizer.start()
    qparams = quantizer.qparams()
    fixed.scale, fixed.zero_point = qparams.scale, qparams.zero_point
    assert torch.equal(fixed(3 * x), quantizer.eval()(3 * x))
    assert len(fixed(3 * x).unique()) <= 16
    half = x.bfloat16()
    assert torch.equal(fixed(half), fixed(half.float()).bfloat16())


def test_bfloat16_inputs_stay_bfloat16() -> None:
    x = normal(50).bfloat16().requires_grad_()
    y = StraightThrough.apply(x, 0.25, -4, 3)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y.float(), round_to_levels(x.detach(), 0.25, -4, 3))
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch_gives_nothing_and_no_gradient(method: str) -> None:
    net = mlp()
    quantize_aware([net], 4, method=method)
    net(normal(20, 5))
    start(net)
    y = net.eval()(torch.empty(0, 5))
    assert y.shape == (0, 3)
    y.sum().backward()
    assert all(not p.grad.any() for p in net.parameters() if p.grad is not None)


def test_it_cannot_start_unobserved() -> None:
    network = mlp()
    quantize_aware([network], 8)
    network.eval()(normal(4, 5))
    with pytest.raises(QuarlError, match="no training batch"):
        start(network)


def test_nan_weights_are_an_error() -> None:
    network = mlp()
    quantize_aware([network], 8)
    network(normal(4, 5))
    start(network)
    with torch.no_grad():
        dict(network.named_parameters())["2.weight"][0, 0] = float("nan")
    with pytest.raises(QuarlError, match="diverged"):
        network(normal(4, 5))


@pytest.mark.parametrize(
    "module, options, message",
    [
        (nn.Linear(2, 2), {"bits": 1}, "1 bits; allowed: 2 to 16"),
        (nn.Linear(2, 2), {"bits": 17}, "17 bits; allowed: 2 to 16"),
        (nn.Linear(2, 2), {"bits": 8, "method": "lsp"}, "did you mean 'lsq'"),
        (nn.Linear(2, 2), {"bits": 8, "method": "lsq", "per_channel": True}, "per tensor"),
        (nn.Sequential(nn.Linear(2, 2), nn.GRUCell(2, 2)), {"bits": 8}, "GRUCell"),
        (nn.Sequential(nn.Tanh()), {"bits": 8}, "nothing to quantize"),
    ],
)
def test_what_it_cannot_do_is_an_error_and_changes_nothing(
    module: nn.Module, options: dict, message: str
) -> None:
    with pytest.raises(QuarlError, match=message):
        quantize_aware([module], **options)
    assert not any(isinstance(layer, QATLayer) for layer in module.modules())


def test_twice_is_an_error() -> None:
    network = mlp()
    quantize_aware([network], 8)
    with pytest.raises(QuarlError, match="already"):
        quantize_aware([network], 8)
