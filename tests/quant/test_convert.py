from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant import (
    FakeQuantize,
    PerTensor,
    QConfig,
    legacy_quantize_dequantize,
    parse_precision,
    quantize_module,
    quantize_weight,
    weight_bytes,
    weight_matrices,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 3))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))


def n_levels(weight: Tensor) -> int:
    return len(weight.unique())


def test_the_original_is_left_alone_and_fp32_is_a_copy() -> None:
    net, x = mlp(), normal(10, 5)
    before = copy.deepcopy(net.state_dict())
    quantize_module(net, parse_precision("int8"), lambda m: m(x))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    same = quantize_module(net, parse_precision("fp32"))
    assert torch.equal(same(x), net(x)) and same[0].weight is not net[0].weight


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
@pytest.mark.parametrize("ranges", ["minmax", "percentile", "mse"])
def test_weights_hold_at_most_2_to_the_bits_levels_and_biases_stay(bits: int, ranges: str) -> None:
    net = mlp()
    quantized = quantize_module(net, parse_precision(f"affine{bits}", ranges))
    for i in (0, 2):
        assert n_levels(quantized[i].weight) <= 2**bits
        assert not torch.equal(quantized[i].weight, net[i].weight)
        assert torch.equal(quantized[i].bias, net[i].bias)


def test_convolution_per_channel_and_legacy_by_a_loop_over_channels() -> None:
    net = cnn()
    per_channel = quantize_module(net, parse_precision("affine3", "per_channel"))
    legacy = quantize_module(net, parse_precision("legacy3"))
    for i in range(4):
        single = FakeQuantize(QConfig(3, False, PerTensor()))(net[0].weight[i].detach())
        assert torch.equal(per_channel[0].weight[i], single)
        expected = legacy_quantize_dequantize(net[0].weight[i].detach(), 3)
        assert torch.equal(legacy[0].weight[i], expected)
    expected = legacy_quantize_dequantize(net[3].weight.detach(), 3)
    assert torch.equal(legacy[3].weight, expected)


def test_int4_groups_have_at_most_15_levels() -> None:
    quantized = quantize_module(mlp(), parse_precision("int4"), lambda m: m(normal(9, 5)))
    for row in quantized[2].weight:
        assert n_levels(row[:32]) <= 15 and n_levels(row[32:]) <= 15
    assert n_levels(quantized[2].weight) > 15


def test_int8_activations_by_hand() -> None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        net[0].weight.fill_(2.0)
        net[2].weight.fill_(-1.0)
    # first inputs span [-1, 254]: step 1, zero at 1. second inputs span [0, 508]: step 508 / 255
    data, seen = torch.tensor([[-1.0], [0.4], [254.0]]), []
    quantized = quantize_module(net, parse_precision("int8"), lambda m: seen.append(m(data)))
    assert seen[0][:, 0].tolist() == pytest.approx([0, -0.8, -508])  # not yet rounded
    x = torch.tensor([[0.4], [10.6], [-7.0], [1000.0]])
    step = 508 / 255
    expected = [0.0, -round(22 / step) * step, 0.0, -508.0]
    assert quantized(x)[:, 0].tolist() == pytest.approx(expected, rel=1e-6)


def test_calibration_runs_once_and_ranges_are_frozen() -> None:
    net, calls = mlp(), []

    def calibrate(module: nn.Module) -> None:
        calls.append(module)
        assert not torch.is_grad_enabled()
        assert torch.allclose(module(normal(4, 5)), net(normal(4, 5)), atol=0.1)

    quantized = quantize_module(net, parse_precision("int8"), calibrate)
    assert calls == [quantized]
    scale = quantized[0].input_quantizer.scale.clone()
    quantized(100 * normal(4, 5))
    assert torch.equal(quantized[0].input_quantizer.scale, scale)


def normalized() -> nn.Sequential:
    """In training mode, but for its second normalization."""
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)]
    net = nn.Sequential(*layers).train()
    net[2].eval()
    return net


def test_calibration_is_in_evaluation_mode_whatever_mode_the_module_is_in() -> None:
    net, x = normalized(), 3 * normal(64, 5) + 5
    quantized = quantize_module(net, parse_precision("int8"), lambda m: m(x))
    modes = [layer.training for layer in (quantized, *quantized)]
    assert modes == [True, True, True, False, True, True]
    evaluated = quantize_module(copy.deepcopy(net).eval(), parse_precision("int8"), lambda m: m(x))
    assert quantized.state_dict().keys() == evaluated.state_dict().keys()
    for name, value in quantized.state_dict().items():  # running statistics and ranges
        assert torch.equal(value, evaluated.state_dict()[name]), name


def test_a_calibration_that_fails_leaves_the_modes_as_they_were() -> None:
    given = []

    def calibrate(module: nn.Module) -> None:
        given.append(module)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_module(normalized(), parse_precision("int8"), calibrate)
    assert [layer.training for layer in given[0]] == [True, True, False, True, True]


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_casts_give_what_the_real_format_gives(name: str) -> None:
    net, x = mlp(), normal(10, 5)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
    quantized = quantize_module(net, parse_precision(name))
    for key, value in quantized.state_dict().items():
        assert torch.equal(value, net.state_dict()[key].to(dtype).float())
    y = quantized(x)
    assert torch.equal(y, y.to(dtype).float()) and not torch.equal(y, net(x))
    real = copy.deepcopy(net).to(dtype)(x.to(dtype)).float()
    # Sums are accumulated in another order: a few ulp of the format.
    assert torch.allclose(y, real, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "affine4"])
def test_a_module_of_float64_stays_one(name: str) -> None:
    x = normal(10, 5).double()
    quantized = quantize_module(mlp().double(), parse_precision(name), lambda net: net(x))
    assert quantized(x).dtype == torch.float64


def test_cast_rounds_what_enters_a_layer() -> None:
    net = nn.Linear(2, 1, bias=False)
    nn.init.ones_(net.weight)
    quantized = quantize_module(net, parse_precision("fp16"))
    x = torch.tensor([[2049.0, -2048.0], [1 + 2**-12, -1.0]])  # sums of 1 and 2^-12, rounded of 0
    assert quantized(x).tolist() == quantized(input=x).tolist() == [[0.0], [0.0]]


def test_all_values_of_a_large_weight_have_a_range() -> None:
    weight = quantize_weight(torch.arange(2.0**19)[None], parse_precision("affine8", "percentile"))
    assert weight.max().item() == pytest.approx(2.0**19 - 53, rel=1e-6)  # 0.01 % lie above


class Recurrent(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(6, 2)

    def forward(self, xs: Tensor) -> Tensor:
        state: Tensor | tuple[Tensor, Tensor] = torch.zeros(xs.shape[1], 6)
        if isinstance(self.cell, nn.LSTMCell):
            state = (torch.zeros(xs.shape[1], 6), torch.zeros(xs.shape[1], 6))
        for x in xs:
            state = self.cell(x, hx=state)
        return self.head(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
@pytest.mark.parametrize("name", ["int8", "int4", "affine8", "legacy8", "bf16"])
def test_cells_quantize_both_matrices_inputs_and_hidden_state(kind: type, name: str) -> None:
    torch.manual_seed(0)
    net, xs = Recurrent(kind(4, 6)), normal(7, 20, 4)
    quantized = quantize_module(net, parse_precision(name), lambda m: m(xs))
    for matrix in ("weight_ih", "weight_hh"):
        assert not torch.equal(getattr(quantized.cell, matrix), getattr(net.cell, matrix))
    error = (quantized(xs) - net(xs)).abs().max()
    assert 0 < error < (0.2 if name == "int4" else 0.03)
    if name in ("int8", "int4"):
        state = quantized.cell.state_quantizer
        assert state.scale * 255 <= 2.0 + 1e-6 and not state.observing  # |h| < 1


def test_an_lstm_cell_state_stays_float32() -> None:
    cell = nn.LSTMCell(2, 3)
    state = (normal(4, 3).tanh(), normal(4, 3, seed=1))
    quantized = quantize_module(cell, parse_precision("int8"), lambda m: m(normal(4, 2), state))
    with torch.no_grad():
        quantized.bias_ih[3:6] += 50.0  # forget gate open, input gate shut: c passes unchanged
        quantized.bias_ih[:3] -= 200.0
    assert torch.equal(quantized(normal(4, 2), state)[1], state[1])


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_recurrent_layers_have_all_their_matrices_quantized(kind: type) -> None:
    net = kind(4, 6, num_layers=2)
    names = [name for name, _ in weight_matrices(net)]
    assert len(names) == 4 and all("weight" in name for name in names)
    quantized = quantize_module(net, parse_precision("affine2"))
    assert all(n_levels(weight) <= 4 for _, weight in weight_matrices(quantized))


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.GRUCell])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_state_that_is_never_given_needs_no_range(kind: type, name: str) -> None:
    torch.manual_seed(0)
    net, xs = kind(4, 6), normal(20, 4)
    quantized = quantize_module(net, parse_precision(name), lambda m: m(xs))
    zeros = torch.zeros(20 if kind is nn.GRUCell else 1, 6)
    state = (zeros, zeros) if kind is nn.LSTM else zeros
    given = quantize_module(net, parse_precision(name), lambda m: m(xs, state))
    for got, expected in zip(quantized(xs), given(xs, state), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fp16", "int8"])
def test_a_state_of_none_is_one_that_is_not_given(name: str) -> None:
    torch.manual_seed(0)
    net, xs = nn.GRUCell(4, 6), normal(20, 4)
    quantized = quantize_module(net, parse_precision(name), lambda m: m(xs))
    expected = quantized(xs)
    assert torch.equal(quantized(xs, None), expected)
    assert torch.equal(quantized(xs, hx=None), expected)


def test_nothing_is_watched_after_calibration_even_what_it_never_saw() -> None:
    x, precision = normal(9, 4), parse_precision("int8")
    quantized = quantize_module(nn.GRUCell(4, 6), precision, lambda m: m(x))
    before = copy.deepcopy(quantized.state_dict())
    quantized(x, normal(9, 6))
    assert all(torch.equal(value, before[key]) for key, value in quantized.state_dict().items())


@pytest.mark.parametrize("name", ["fp16", "int8"])
def test_packed_sequences_are_refused(name: str) -> None:
    net = nn.GRU(4, 6)
    packed = nn.utils.rnn.pack_padded_sequence(normal(3, 2, 4), torch.tensor([3, 1]))
    with pytest.raises(QuarlError, match="PackedSequence cannot be quantized"):
        quantize_module(net, parse_precision(name), lambda m: m(packed))(packed)
    with pytest.raises(QuarlError, match="PackedSequence cannot be quantized"):
        quantize_module(net, parse_precision(name), lambda m: m(input=packed))(input=packed)


def test_tied_weights_are_one_matrix_and_stay_tied() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    net[1].weight = net[0].weight
    assert [name for name, _ in weight_matrices(net)] == ["0.weight"]
    quantized = quantize_module(net, parse_precision("affine3"))
    assert quantized[1].weight is quantized[0].weight and n_levels(quantized[0].weight) <= 8
    assert weight_bytes(net, parse_precision("fp32")) == (36 + 6 + 6) * 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "affine4", "legacy4"])
def test_bad_weights_are_refused_by_name(bad: float, name: str) -> None:
    net = mlp()
    with torch.no_grad():
        net[2].weight[0, 0] = bad
    with pytest.raises(QuarlError, match=r"'2\.weight'.*NaN or infinite"):
        quantize_module(net, parse_precision(name), lambda m: None)


def test_bad_biases_are_refused_by_name() -> None:
    net = mlp()
    nn.init.constant_(net[2].bias, math.nan)
    with pytest.raises(QuarlError, match=r"'2\.bias'.*NaN or infinite"):
        quantize_module(net, parse_precision("affine4"))


def test_a_quantized_weight_is_a_copy_in_fp32_too() -> None:
    weight = normal(2, 3)
    quantized = quantize_weight(weight, parse_precision("fp32"))
    assert torch.equal(quantized, weight) and quantized.data_ptr() != weight.data_ptr()


@pytest.mark.parametrize(("name", "huge"), [("fp16", 1e5), ("legacy8", 3e38)])
def test_weights_that_overflow_the_precision_are_refused_by_name(name: str, huge: float) -> None:
    net = mlp()
    with torch.no_grad():
        net[0].weight[0, :2] = torch.tensor([huge, -huge])
    with pytest.raises(QuarlError, match=rf"'0\.weight' into {name}"):
        quantize_module(net, parse_precision(name))


def test_missing_or_partial_calibration_is_refused() -> None:
    with pytest.raises(QuarlError, match="needs calibration"):
        quantize_module(mlp(), parse_precision("int8"))
    with pytest.raises(QuarlError, match="input of layer '2'"):
        quantize_module(mlp(), parse_precision("int8"), lambda m: m[0](normal(2, 5)))
    quantized = quantize_module(mlp(), parse_precision("int8"), lambda m: m(normal(2, 5)))
    with pytest.raises(QuarlError, match="already"):
        quantize_module(quantized, parse_precision("int8"), lambda m: m(normal(2, 5)))


def test_a_module_without_matrices_is_refused() -> None:
    with pytest.raises(QuarlError, match="allowed: Linear, Conv2d"):
        quantize_module(nn.ReLU(), parse_precision("affine8"))


@pytest.mark.parametrize("name", ["fp16", "affine8"])
@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        ("Conv1d", lambda: nn.Conv1d(4, 4, 1)),
        ("MultiheadAttention", lambda: nn.MultiheadAttention(4, 2)),
        ("Embedding", lambda: nn.Embedding(3, 4)),
    ],
)
def test_a_layer_that_would_stay_float32_is_refused_by_name(
    kind: str, layer: Callable[[], nn.Module], name: str
) -> None:
    with pytest.raises(QuarlError, match=f"^cannot quantize {kind} '1'; allowed: Linear, Conv2d"):
        quantize_module(nn.Sequential(nn.Linear(4, 4), layer()), parse_precision(name))


def test_normalizations_stay_float32() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm([3, 4]), nn.BatchNorm1d(3))
    with torch.no_grad():
        net[1].weight.copy_(normal(3, 4))
    quantized = quantize_module(net, parse_precision("affine2"))
    assert torch.equal(quantized[1].weight, net[1].weight)


def test_weight_bytes_by_hand() -> None:
    net = mlp()  # weights 200 + 120, biases 40 + 3
    biases = 43 * 4

    def size(name: str, ranges: str = "minmax") -> int:
        return weight_bytes(net, parse_precision(name, ranges))

    assert size("fp32") == 320 * 4 + biases
    assert size("fp16") == size("bf16") == 363 * 2
    assert size("int8") == 320 + 2 * 4 + biases
    assert size("int8", "per_channel") == 320 + 43 * 4 + biases
    assert size("int4") == 160 + (40 * 1 + 3 * 2) * 4 + biases
    assert size("affine3") == 75 + 45 + 2 * (4 + 1) + biases
    assert size("affine16") == 640 + 2 * (4 + 2) + biases
    assert size("legacy8") == 225 + 135 + 2 * 4 + biases
    normalized = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))  # which stays in float32
    assert weight_bytes(normalized, parse_precision("fp16")) == (16 + 4) * 2 + (4 + 4) * 4
    conv = cnn()  # weights 72 and 192, biases 4 + 3
    assert weight_bytes(conv, parse_precision("legacy7")) == 72 + 4 * 4 + 192 + 4 + 7 * 4
    nine = nn.Linear(3, 3, bias=False)  # weights that do not fill their last byte
    assert weight_bytes(nine, parse_precision("affine3")) == 4 + (4 + 1)
    assert weight_bytes(nine, parse_precision("legacy4")) == 6 + 4
