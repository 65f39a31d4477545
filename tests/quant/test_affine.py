from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_nb.errors import QuarlError
from quarl_nb.quant import (
    QParams,
    affine_qparams,
    dequantize,
    fake_quantize,
    is_finite,
    quantize,
)

FLOAT32_MAX = float(np.finfo(np.float32).max)
floats = st.one_of(
    st.floats(-10, 10, width=32),
    st.floats(-FLOAT32_MAX, FLOAT32_MAX, width=32),  # huge, and (hypothesis sees to it) denormal
    st.sampled_from([0.0, 1.0, 1e-45, -1e-40, 1e-38, 3e38, -3e38, FLOAT32_MAX, -FLOAT32_MAX]),
)
values = st.lists(floats, min_size=1, max_size=40)
bit_widths = st.integers(2, 16)
# (symmetric, signed)
schemes = st.sampled_from([(False, False), (False, True), (True, True)])


def tensor(items: list[float]) -> torch.Tensor:
    return torch.tensor(items, dtype=torch.float32)


def qparams_of(x: torch.Tensor, bits: int, scheme: tuple[bool, bool]) -> QParams:
    return affine_qparams(x.min(), x.max(), bits, *scheme)


def levels_of(qparams: QParams) -> torch.Tensor:
    return dequantize(torch.arange(qparams.quant_min, qparams.quant_max + 1), qparams)


def numpy_quantize(
    x: np.ndarray, lo: float, hi: float, bits: int, symmetric: bool, signed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The equations again, in numpy: integers and float32 values of `x` for the range [lo, hi].

    As in PyTorch's kernels x is multiplied by the float32 reciprocal of scale, not divided.
    """
    largest = 2 ** (bits - 1) - 1
    qmin, qmax = (-largest, largest) if symmetric else (0, 2**bits - 1)
    if signed and not symmetric:
        qmin, qmax = -(2 ** (bits - 1)), largest
    lo, hi = min(float(lo), 0.0), max(float(hi), 0.0)
    wide = max(-lo, hi) / largest if symmetric else (hi - lo) / (2**bits - 1)
    scale = np.float32(max(wide, np.finfo(np.float32).tiny) if wide > 0 else 1.0)
    zero = 0
    if not symmetric:
        zero = int(np.clip(np.rint(np.float64(qmin) - lo / np.float64(scale)), qmin, qmax))
    steps = max(qmax - zero, zero - qmin)
    scale = min(scale, np.float32(FLOAT32_MAX * (1 - 2**-23) / steps))
    with np.errstate(over="ignore"):
        rounded = np.rint(x * (np.float32(1) / scale)) + np.float32(zero)
    q = np.clip(rounded, qmin, qmax).astype(np.int64)
    return q, (q - zero).astype(np.float32) * scale


def test_affine_qparams_by_hand() -> None:
    qparams = affine_qparams(torch.tensor(-1.0), torch.tensor(2.0), bits=2)
    assert (qparams.quant_min, qparams.quant_max) == (0, 3)
    assert qparams.scale.item() == 1.0 and qparams.zero_point.item() == 1
    x = tensor([-5, -1, -0.4, 0, 0.6, 1.5, 2, 9])
    assert quantize(x, qparams).tolist() == [0, 0, 1, 1, 2, 3, 3, 3]  # 1.5 rounds half to even
    assert fake_quantize(x, qparams).tolist() == [-1, -1, 0, 0, 1, 2, 2, 2]


def test_symmetric_qparams_by_hand() -> None:
    qparams = affine_qparams(torch.tensor(-1.0), torch.tensor(14.0), bits=4, symmetric=True)
    assert (qparams.quant_min, qparams.quant_max) == (-7, 7)
    assert qparams.scale.item() == 2.0 and qparams.zero_point.item() == 0
    assert fake_quantize(tensor([-20, -1, 3.2, 14]), qparams).tolist() == [-14, 0, 4, 14]


def test_signed_affine_shifts_the_integers_only() -> None:
    unsigned = affine_qparams(torch.tensor(-1.0), torch.tensor(3.0), 8)
    signed = affine_qparams(torch.tensor(-1.0), torch.tensor(3.0), 8, signed=True)
    assert (signed.quant_min, signed.quant_max) == (-128, 127)
    assert signed.zero_point.item() == unsigned.zero_point.item() - 128 == 64 - 128


def test_a_range_without_zero_is_extended_to_it() -> None:
    qparams = affine_qparams(torch.tensor(3.0), torch.tensor(5.0), bits=2)
    assert qparams.zero_point.item() == 0 and levels_of(qparams)[0] == 0
    assert levels_of(qparams)[-1].item() == pytest.approx(5.0)
    qparams = affine_qparams(torch.tensor(-5.0), torch.tensor(-3.0), bits=2)
    assert qparams.zero_point.item() == 3 and levels_of(qparams)[0].item() == pytest.approx(-5.0)


@pytest.mark.parametrize("constant", [0.0, 1e-45, -1e-40, 0.37, -0.37, 3.4e38, -3.4e38])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 8, 16])
def test_constant_tensors_come_back(constant: float, symmetric: bool, bits: int) -> None:
    x = torch.full((5,), constant)
    y = fake_quantize(x, affine_qparams(x.min(), x.max(), bits, symmetric))
    # One ulp each for scale and product; a denormal may be lost, within half the smallest step.
    assert torch.allclose(y, x, rtol=3e-7, atol=0.6e-38)


@given(values, bit_widths, schemes)
def test_zero_is_exact_and_levels_are_finite_and_few(
    items: list[float], bits: int, scheme: tuple[bool, bool]
) -> None:
    qparams = qparams_of(tensor(items), bits, scheme)
    levels = levels_of(qparams)
    assert len(levels) <= 2**bits and levels.isfinite().all()
    assert (levels == 0).sum() == 1
    assert qparams.quant_min <= qparams.zero_point <= qparams.quant_max
    assert fake_quantize(torch.zeros(1), qparams).item() == 0.0
    assert torch.isin(fake_quantize(tensor(items), qparams), levels).all()


@given(values, bit_widths, schemes)
def test_error_is_at_most_half_a_step_inside_the_range(
    items: list[float], bits: int, scheme: tuple[bool, bool]
) -> None:
    x = tensor(items)
    qparams = qparams_of(x, bits, scheme)
    step = qparams.scale.double()
    error = (fake_quantize(x, qparams).double() - x.double()).abs()
    # float32 rounding of x / scale and of q * scale: a few ulp of at most 2^bits steps.
    slack = 2.0**bits * 2.0**-21
    if x.abs().max() < FLOAT32_MAX / 4:
        assert (error <= (0.5 + slack) * step).all()
    else:  # where the outermost level would overflow float32, levels end up to half a step earlier
        levels = levels_of(qparams).double()
        inside = (x >= levels.min()) & (x <= levels.max())
        assert (error[inside] <= (0.5 + slack) * step).all()


@given(values, bit_widths, schemes)
def test_idempotent(items: list[float], bits: int, scheme: tuple[bool, bool]) -> None:
    x = tensor(items)
    qparams = qparams_of(x, bits, scheme)
    once = fake_quantize(x, qparams)
    assert torch.equal(fake_quantize(once, qparams), once)


@given(values, values, bit_widths, schemes)
def test_monotone_also_outside_the_range(
    observed: list[float], items: list[float], bits: int, scheme: tuple[bool, bool]
) -> None:
    qparams = qparams_of(tensor(observed), bits, scheme)
    y = fake_quantize(tensor(sorted(items)), qparams)
    assert (y.diff() >= 0).all()


@given(values, values, bit_widths, schemes)
def test_bit_exact_against_numpy(
    observed: list[float], items: list[float], bits: int, scheme: tuple[bool, bool]
) -> None:
    x = tensor(observed)
    qparams = qparams_of(x, bits, scheme)
    y = tensor(observed + items)
    q, expected = numpy_quantize(y.numpy(), x.min().item(), x.max().item(), bits, *scheme)
    assert np.array_equal(quantize(y, qparams).numpy(), q)
    assert np.array_equal(fake_quantize(y, qparams).numpy(), expected)
    assert np.array_equal(dequantize(quantize(y, qparams), qparams).numpy(), expected)


@given(st.floats(2.0**-10, 100, width=32), bit_widths)
@settings(max_examples=50)
def test_bit_exact_against_numpy_at_the_middle_of_every_step(hi: float, bits: int) -> None:
    qparams = affine_qparams(torch.tensor(-0.7 * hi), torch.tensor(hi), bits)
    scale, zero = np.float32(qparams.scale), int(qparams.zero_point)
    middle = (np.arange(-1, 2**bits, dtype=np.float32) + np.float32(0.5) - zero) * scale
    x = np.concatenate([middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
    lo, hi32 = torch.tensor(-0.7 * hi).item(), torch.tensor(hi).item()
    q, expected = numpy_quantize(x.astype(np.float32), lo, hi32, bits, False, False)
    y = torch.from_numpy(x.astype(np.float32))
    assert np.array_equal(quantize(y, qparams).numpy(), q)
    assert np.array_equal(fake_quantize(y, qparams).numpy(), expected)


def test_rounds_the_product_with_the_reciprocal_not_the_quotient() -> None:
    scale, x = np.float32(0.4962566), np.float32(2.7294111)
    assert np.rint(x * (np.float32(1) / scale)) == 6 and np.rint(x / scale) == 5
    qparams = QParams(torch.tensor(scale), torch.tensor(0, dtype=torch.int32), 0, 255)
    assert quantize(torch.tensor([x]), qparams).item() == 6
    assert fake_quantize(torch.tensor([x]), qparams).item() == np.float32(6) * scale


@given(values, bit_widths, schemes)
def test_bit_exact_against_the_raw_torch_operator(
    items: list[float], bits: int, scheme: tuple[bool, bool]
) -> None:
    x = tensor(items)
    p = qparams_of(x, bits, scheme)
    expected = torch.fake_quantize_per_tensor_affine(
        x, p.scale.item(), int(p.zero_point), p.quant_min, p.quant_max
    )
    assert torch.equal(dequantize(quantize(x, p), p), expected)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40))
@settings(max_examples=50)
def test_integers_of_torch_integer_tensors_away_from_ties(items: list[float]) -> None:
    """They round x / scale + zero_point, so that an odd zero_point turns ties the other way."""
    x = tensor(items)
    p = affine_qparams(x.min(), x.max(), bits=8)
    with warnings.catch_warnings():  # deprecated, but there in the torch that we pin
        warnings.simplefilter("ignore", UserWarning)
        reference = torch.quantize_per_tensor(x, p.scale.item(), int(p.zero_point), torch.quint8)
    difference = (quantize(x, p) - reference.int_repr().int()).abs()
    tie = ((x.double() / p.scale.double()).frac().abs() - 0.5).abs() < 2.0**-12
    assert (difference[~tie] == 0).all() and (difference <= 1).all()


@given(st.lists(st.tuples(floats, floats, floats), min_size=1, max_size=6), bit_widths, schemes)
def test_per_channel_equals_per_tensor_on_each_channel(
    rows: list[tuple[float, float, float]], bits: int, scheme: tuple[bool, bool]
) -> None:
    x = tensor([list(row) for row in rows])
    for axis, channels in ((0, x), (1, x.T)):
        p = affine_qparams(channels.amin(1), channels.amax(1), bits, *scheme, axis=axis)
        fake, integers = fake_quantize(x, p), quantize(x, p)
        for i, channel in enumerate(channels):
            single = qparams_of(channel, bits, scheme)
            assert torch.equal(fake.select(axis, i), fake_quantize(channel, single))
            assert torch.equal(integers.select(axis, i), quantize(channel, single))
            assert torch.equal(dequantize(integers, p).select(axis, i), fake.select(axis, i))


def test_per_channel_saturates_values_far_outside_the_range() -> None:
    # torch's own per-channel kernel gives the opposite end for these.
    p = affine_qparams(torch.tensor([-1.0]), torch.tensor([1.0]), 8, axis=0)
    y = fake_quantize(tensor([[1e30, -1e30, 1e18, -1e18]]), p)
    levels = levels_of(QParams(p.scale[0], p.zero_point[0], p.quant_min, p.quant_max))
    top, bottom = levels[-1].item(), levels[0].item()
    assert y.tolist() == [[top, bottom, top, bottom]]


@pytest.mark.parametrize("axis", [None, 0])
def test_gradient_is_one_inside_and_zero_outside(axis: int | None) -> None:
    shape = [] if axis is None else [1]
    p = affine_qparams(torch.full(shape, -1.0), torch.full(shape, 2.0), bits=2, axis=axis)
    x = tensor([[-9, -1.6, -1.4, -1, 0, 0.5, 2, 2.4, 2.6, 9]]).requires_grad_()
    fake_quantize(x, p).sum().backward()
    assert x.grad is not None
    # What rounds to a level passes: half a step beyond the ends (-1 and 2) is still inside.
    assert x.grad.tolist() == [[0, 0, 1, 1, 1, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize("bits", [1, 17, 0, -8, 8.0, True, "8"])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(QuarlError, match="allowed: 2 to 16"):
        affine_qparams(torch.tensor(0.0), torch.tensor(1.0), bits)


@pytest.mark.parametrize("ends", [(float("nan"), 1.0), (-1.0, float("inf")), (2.0, 1.0)])
def test_bad_ranges_are_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(QuarlError, match="cannot quantize a range"):
        affine_qparams(torch.tensor(ends[0]), torch.tensor(ends[1]), 8)
    with pytest.raises(QuarlError, match="cannot quantize a range"):  # of one channel of two
        affine_qparams(torch.tensor([-1.0, ends[0]]), torch.tensor([1.0, ends[1]]), 8, axis=0)


def test_symmetric_and_unsigned_is_refused() -> None:
    with pytest.raises(QuarlError, match="signed"):
        affine_qparams(torch.tensor(0.0), torch.tensor(1.0), 8, symmetric=True, signed=False)


@given(
    st.lists(st.one_of(floats, st.sampled_from([np.nan, np.inf, -np.inf])), max_size=20),
    st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
)
def test_is_finite_agrees_with_isfinite(items, dtype):
    x = torch.tensor(items).to(dtype)
    assert is_finite(x) == bool(x.isfinite().all())


def test_integers_are_finite():
    assert is_finite(torch.tensor([True])) and is_finite(torch.arange(3))
