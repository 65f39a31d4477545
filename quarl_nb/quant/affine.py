"""Uniform affine quantization of tensors: the equations, as pure functions.

    q = clamp(round(x / scale) + zero_point, quant_min, quant_max),   x' = (q - zero_point) * scale

Jacob et al. 2018 (arXiv 1712.05877), equation 1; Krishnamoorthi 2018 (arXiv 1806.08342), section 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quarl_nb.errors import QuarlError, is_whole

MIN_BITS, MAX_BITS = 2, 16
_FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True)
class QParams:
    """What maps floats to integers and back.

    Attributes:
        scale: float32, shape [] (per tensor) or [channels].
        zero_point: int32, same shape; the integer that stands for exactly 0.0.
        quant_min, quant_max: smallest and largest integer, both included.
        axis: the dimension that the channels lie on; None for per tensor.
    """

    scale: Tensor
    zero_point: Tensor
    quant_min: int
    quant_max: int
    axis: int | None = None


def check_bits(bits: int) -> int:
    """`bits` as an int (numpy's are taken, too), where we quantize to such a width.

    Raises:
        QuarlError: no integer, or outside of the widths.
    """
    if not is_whole(bits) or not MIN_BITS <= bits <= MAX_BITS:
        raise QuarlError(f"cannot quantize to {bits!r} bits; allowed: {MIN_BITS} to {MAX_BITS}")
    return int(bits)


def quant_range(bits: int, symmetric: bool = False, signed: bool | None = None) -> tuple[int, int]:
    """Smallest and largest integer of a `bits` wide format.

    Symmetric: [-(2^(b-1)-1), 2^(b-1)-1], the restricted range of Krishnamoorthi 2018, section 2.2.
    Affine: [0, 2^b-1], or [-2^(b-1), 2^(b-1)-1] if `signed`.

    Raises:
        QuarlError: width out of range, or symmetric and unsigned.
    """
    bits = check_bits(bits)
    if symmetric:
        if signed is False:
            raise QuarlError("symmetric quantization is signed; use symmetric=False for unsigned")
        return -(2 ** (bits - 1) - 1), 2 ** (bits - 1) - 1
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def is_finite(x: Tensor) -> bool:
    """Whether nothing in `x` is NaN or infinite, in a tenth of the time of `isfinite().all()`."""
    if not x.is_floating_point() or x.numel() == 0:
        return True
    return all(math.isfinite(end) for end in x.detach().aminmax())  # which passes NaN on


def affine_qparams(
    min_val: Tensor,
    max_val: Tensor,
    bits: int,
    symmetric: bool = False,
    signed: bool | None = None,
    axis: int | None = None,
) -> QParams:
    """Scale and zero point that cover [min_val, max_val] and represent 0.0 exactly.

    The range is first extended to contain zero. An empty range ([0, 0]) gets scale 1. Scales stay
    within the normal float32 numbers, and small enough that no level overflows float32.

    Args:
        min_val, max_val: shape [] (per tensor) or [channels], any float dtype.
        bits: 2 to 16.
        symmetric: zero_point 0 and integers -(2^(b-1)-1)..2^(b-1)-1.
        signed: two's complement integers; by default only if symmetric.
        axis: dimension of the channels, carried into the result.

    Raises:
        QuarlError: bits out of range, a range that is NaN, infinite or upside down.
    """
    quant_min, quant_max = quant_range(bits, symmetric, signed)
    lo, hi = torch.as_tensor(min_val).double(), torch.as_tensor(max_val).double()
    if not (lo.isfinite().all() and hi.isfinite().all()):
        raise QuarlError("cannot quantize a range with NaN or infinite ends")
    if (lo > hi).any():
        raise QuarlError("cannot quantize a range whose minimum exceeds its maximum")
    lo, hi = lo.clamp(max=0.0), hi.clamp(min=0.0)
    # In float64: max - min may overflow float32.
    scale = torch.maximum(-lo, hi) / quant_max if symmetric else (hi - lo) / (quant_max - quant_min)
    scale = torch.where(scale > 0, scale.clamp(min=_FLOAT32.tiny), 1.0).float()
    if symmetric:
        zero_point = torch.zeros_like(lo)
    else:
        zero_point = (quant_min - lo / scale.double()).round().clamp(quant_min, quant_max)
    farthest = torch.maximum(quant_max - zero_point, zero_point - quant_min)
    # One ulp below the bound, so that farthest * scale cannot round up to infinity.
    scale = torch.minimum(scale, (_FLOAT32.max * (1 - _FLOAT32.eps) / farthest).float())
    return QParams(scale, zero_point.int(), quant_min, quant_max, axis)


def _per_channel(values: Tensor, ndim: int, axis: int | None) -> Tensor:
    """Reshape [channels] so that it broadcasts along `axis` of a tensor of `ndim` dimensions."""
    if axis is None:
        return values
    return values.reshape([-1 if d == axis else 1 for d in range(ndim)])


def quantize(x: Tensor, qparams: QParams) -> Tensor:
    """Integers of `x`, int32, same shape.

    Multiplies by the float32 reciprocal of scale as PyTorch's fake-quantize kernels do, so that
    `dequantize(quantize(x))` and `fake_quantize(x)` agree bit for bit; against true division a
    value within float32 rounding of the middle of a step may fall on the other side.
    """
    scale = _per_channel(qparams.scale, x.ndim, qparams.axis)
    zero_point = _per_channel(qparams.zero_point, x.ndim, qparams.axis)
    # In place: on weights that are published thousands of times, twice as fast as with copies.
    q = (x * (1.0 / scale)).round_().add_(zero_point)
    return q.clamp_(qparams.quant_min, qparams.quant_max).int()


def dequantize(q: Tensor, qparams: QParams) -> Tensor:
    """Float32 values that the integers `q` stand for, same shape."""
    scale = _per_channel(qparams.scale, q.ndim, qparams.axis)
    zero_point = _per_channel(qparams.zero_point, q.ndim, qparams.axis)
    return (q - zero_point).float() * scale


def fake_quantize(x: Tensor, qparams: QParams) -> Tensor:
    """`dequantize(quantize(x))` in the type of `x`, by PyTorch's differentiable operator.

    Gradient: straight through where `x` rounds to a level, zero where it is clipped
    (Bengio et al. 2013, arXiv 1308.3432, with the clipping of Jacob et al. 2018, section 3).
    """
    lo, hi = qparams.quant_min, qparams.quant_max
    if qparams.axis is None:
        return torch.fake_quantize_per_tensor_affine(x, qparams.scale, qparams.zero_point, lo, hi)
    # The per-channel CPU kernel (torch 2.13) wraps around where |x / scale| exceeds an int64; one
    # step beyond the last level is clipped all the same and keeps the gradient.
    scale = _per_channel(qparams.scale, x.ndim, qparams.axis)
    zero_point = _per_channel(qparams.zero_point, x.ndim, qparams.axis)
    clamped = x.clamp((lo - 1 - zero_point) * scale, (hi + 1 - zero_point) * scale)
    return torch.fake_quantize_per_channel_affine(
        clamped, qparams.scale, qparams.zero_point, qparams.axis, lo, hi
    ).to(x.dtype)


def round_to_levels(
    x: Tensor, scale: float | Tensor, low: int | Tensor, high: int | Tensor
) -> Tensor:
    """``clamp(round(x / scale), low, high) * scale`` in float32, of float32 or bfloat16.

    Equal to `torch.fake_quantize_per_tensor_affine`, which takes 3.2 ns an element (torch 2.13,
    one Zen 5 core) where this takes 0.23: with it, training a convolutional policy costs double.
    """
    inverse = scale.reciprocal() if isinstance(scale, Tensor) else float(1 / np.float32(scale))
    # What is converted is a copy: scaled in place it takes a quarter less than in new memory.
    levels = x.mul(inverse) if x.dtype == torch.float32 else x.float().mul_(inverse)
    levels.round_().clamp_(low, high)  # type: ignore[arg-type]  # both or neither tensors
    return levels.mul_(scale)


def legacy_quantize_dequantize(x: Tensor, bits: int, axis: int | None = None) -> Tensor:
    """What the authors' released code does instead of affine quantization.

        delta = (|min x| + |max x|) / 2^bits,   x' = round(x / delta) * delta

    Source: `Q` and `conv_Q` (per output channel, here `axis=0`) of harvard-edge/QuaRL,
    baseline/new_ptq.py. There is no clamp and the zero point is computed but never used, so a range
    with both signs spans 2^bits + 1 levels, one more than `bits` bits hold, and a range of one sign
    wastes levels. (This is the formula: that script casts to float16 when asked for 16 bits, and of
    algorithms other than DQN quantizes only variables with "pi" in their names, which leaves the
    convolutions that A2C and PPO share in float32.)

    Args:
        x: float32, any shape. A channel of zeros is returned as it is (the original gives NaN).
    """
    bits = check_bits(bits)
    if axis is None:
        lo, hi = x.min(), x.max()
    else:
        others = [d for d in range(x.ndim) if d != axis]
        lo, hi = x.amin(others, keepdim=True), x.amax(others, keepdim=True)
    delta = (lo.abs() + hi.abs()) / 2**bits
    return torch.where(delta > 0, (x / delta).round() * delta, x)
