"""Quantizers other than rounding to the nearest of evenly spaced levels, simulated in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from quarl_nb.quant.affine import QParams, check_bits, dequantize

FLOAT8 = torch.float8_e4m3fn


def float8_quantize_dequantize(x: Tensor) -> Tensor:
    """The nearest values of 8-bit floating point (E4M3), scaled so that the largest is its largest.

    Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1.

    Args:
        x: float32, any shape; all zeros stay as they are.
    """
    scale = x.abs().max() / torch.finfo(FLOAT8).max
    return (x / scale).to(FLOAT8).float() * scale if scale > 0 else x.clone()


def quantile_quantize_dequantize(x: Tensor, bits: int) -> Tensor:
    """The nearest of 2^bits levels, each the middle of an interval with an equal share of `x`.

    The ends of the intervals are 2^bits + 1 quantiles: quantile quantization, Dettmers et al. 2023,
    "QLoRA", equation 4. Of bell-shaped values fewer are nearest to the outermost levels, whose
    intervals are wide. The outermost values are clipped.

    Args:
        x: float32, any shape, of at most 16 million values (`torch.quantile`).
        bits: of the index of a level, 2 to 16.
    """
    quantiles = torch.quantile(x.flatten(), torch.linspace(0, 1, 2 ** check_bits(bits) + 1))
    levels = (quantiles[:-1] + quantiles[1:]) / 2
    middles = (levels[:-1] + levels[1:]) / 2
    return levels[torch.bucketize(x, middles)]


def noise_like_error(
    x: Tensor, quantized: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Gaussian noise as large (rms) as the error of `quantized`, in the shape of `x`.

    It separates what quantization does from what noise of its size does.
    """
    rms = (quantized - x).square().mean().sqrt()
    return rms * torch.randn(x.shape, generator=generator)


def stochastic_quantize_dequantize(
    x: Tensor, qparams: QParams, generator: torch.Generator
) -> Tensor:
    """One of the two levels next to `x`, drawn so that the expectation is `x` (where not clipped).

    Stochastic rounding, Gupta et al. 2015, "Deep Learning with Limited Numerical Precision",
    section 3.1.

    Args:
        x: float32, any shape.
        qparams: per tensor.
    """
    below = x / qparams.scale + torch.rand(x.shape, generator=generator)
    q = below.floor() + qparams.zero_point
    return dequantize(q.clamp(qparams.quant_min, qparams.quant_max), qparams)
