from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quarl_nb.errors import QuarlError
from quarl_nb.quant import legacy_quantize_dequantize

floats = st.floats(-100, 100, width=32, allow_subnormal=False)


def original(w: np.ndarray, n: int) -> np.ndarray:
    """harvard-edge/QuaRL's formula as DESIGN states it, in numpy."""
    delta = (np.abs(np.min(w)) + np.abs(np.max(w))) / np.float32(2**n)
    return np.rint(w / delta) * delta


def test_by_hand() -> None:
    # range = 1 + 3 = 4, delta = 4 / 2^2 = 1: five levels, -1 0 1 2 3, for "2 bits"
    x = torch.tensor([-1.0, -0.6, -0.4, 0.0, 0.5, 1.4, 1.5, 2.6, 3.0])
    assert legacy_quantize_dequantize(x, 2).tolist() == [-1, -1, 0, 0, 0, 1, 2, 3, 3]


def test_one_sign_wastes_levels() -> None:
    # range = 3 + 5 = 8 where max - min is 2; delta = 2: 3 -> 1.5 steps, rounded half to even
    x = torch.tensor([3.0, 3.5, 4.0, 5.0])
    assert legacy_quantize_dequantize(x, 2).tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("bits", range(2, 9))
def test_both_signs_span_one_level_more_than_the_bits_hold(bits: int) -> None:
    x = torch.linspace(-1.0, 1.0, 4001)
    assert len(legacy_quantize_dequantize(x, bits).unique()) == 2**bits + 1


def test_zeros_stay_zeros() -> None:
    assert legacy_quantize_dequantize(torch.zeros(2, 3), 8).tolist() == [[0.0] * 3] * 2
    x = torch.tensor([[0.0, 0.0], [-1.0, 1.0]])
    assert legacy_quantize_dequantize(x, 8, axis=0).tolist() == [[0, 0], [-1, 1]]


@given(st.lists(floats, min_size=1, max_size=30).filter(any), st.integers(2, 16))
def test_bit_exact_against_numpy(items: list[float], bits: int) -> None:
    x = np.array(items, dtype=np.float32)
    result = legacy_quantize_dequantize(torch.from_numpy(x), bits)
    assert np.array_equal(result.numpy(), original(x, bits))


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=5), st.integers(2, 16))
def test_per_channel_equals_per_tensor_on_each_channel(
    rows: list[tuple[float, float]], bits: int
) -> None:
    x = torch.tensor(rows, dtype=torch.float32)
    result = legacy_quantize_dequantize(x, bits, axis=0)
    for row, channel in zip(result, x, strict=True):
        assert torch.equal(row, legacy_quantize_dequantize(channel, bits))


def test_bits_out_of_range_are_refused() -> None:
    with pytest.raises(QuarlError, match="allowed: 2 to 16"):
        legacy_quantize_dequantize(torch.ones(2), 32)
