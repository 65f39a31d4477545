import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.quant import (
    affine_qparams,
    fake_quantize,
    float8_quantize_dequantize,
    noise_like_error,
    quantile_quantize_dequantize,
    stochastic_quantize_dequantize,
)


def test_float8_by_hand():
    # E4M3 between 256 and 448 has steps of 32, between 16 and 32 steps of 2; the largest is 448.
    x = torch.tensor([448.0, -300.0, 17.1, 0.0])
    assert float8_quantize_dequantize(x).tolist() == [448.0, -288.0, 18.0, 0.0]
    scaled = float8_quantize_dequantize(x / 7)
    torch.testing.assert_close(scaled, torch.tensor([448.0, -288, 18, 0]) / 7)


def test_float8_keeps_zeros_and_small_values_relatively():
    assert (float8_quantize_dequantize(torch.zeros(3)) == 0).all()
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).abs() + 0.05
    error = (float8_quantize_dequantize(x) - x).abs() / x
    assert error.max() <= 2**-4 + 1e-6  # three bits of mantissa, rounded


def test_quantile_levels_by_hand():
    # Two bits: quantiles 0, 2, 4, 6, 8, so levels 1, 3, 5, 7.
    x = torch.arange(9.0)
    assert quantile_quantize_dequantize(x, 2).tolist() == [1, 1, 1, 3, 3, 5, 5, 7, 7]


def test_inner_quantile_levels_have_half_to_twice_an_equal_share():
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)) ** 3
    values, counts = quantile_quantize_dequantize(x, 4).unique(return_counts=True)
    share, inner = len(x) / 16, counts[2:-2]
    assert len(values) == 16 and (inner > share / 2).all() and (inner < share * 2).all()
    # The outermost levels are halfway to the extremes, out of reach of most of their share.
    assert counts[0] < share / 2 and counts[-1] < share / 2


def test_quantile_levels_of_17_bits_are_refused():
    x = torch.arange(9.0)
    with pytest.raises(QuarlError, match="17 bits"):
        quantile_quantize_dequantize(x, 17)


def test_noise_is_as_large_as_the_error_and_drawn_by_the_generator():
    x = torch.zeros(10_000)
    first, second = (
        noise_like_error(x, x + 0.5, torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(first, second)
    assert first.std().item() == pytest.approx(0.5, rel=0.03)  # within four standard errors


def test_stochastic_rounding_clips_and_is_drawn_by_the_generator():
    qparams = affine_qparams(torch.tensor(-1.0), torch.tensor(1.0), bits=4)
    x = torch.linspace(-3, 3, 100)
    first, second = (
        stochastic_quantize_dequantize(x, qparams, torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert torch.equal(first, second)
    outside = x.abs() > 1.2
    assert torch.equal(first[outside], fake_quantize(x, qparams)[outside])


def test_stochastic_rounding_is_a_neighbour_and_right_on_average():
    generator = torch.Generator().manual_seed(0)
    qparams = affine_qparams(torch.tensor(-1.0), torch.tensor(1.0), bits=4)
    x = torch.linspace(-0.9, 0.9, 50)
    draws = torch.stack(
        [stochastic_quantize_dequantize(x, qparams, generator) for _ in range(2000)]
    )
    assert ((draws - x).abs() < qparams.scale * 1.0001).all()
    assert torch.equal(draws, fake_quantize(draws, qparams))  # on the levels
    # The largest deviation of 50 means of 2000 draws: under 5 standard errors.
    assert ((draws.mean(0) - x).abs() < 5 * qparams.scale / 2 / 2000**0.5).all()


def test_noise_is_as_large_as_the_root_mean_square_of_errors_that_differ():
    x, quantized = torch.zeros(10_000), torch.zeros(10_000)
    quantized[::4] = 1.0  # rms 1/2, mean magnitude 1/4
    noise = noise_like_error(x, quantized, torch.Generator().manual_seed(3))
    assert noise.std().item() == pytest.approx(0.5, rel=0.03)
