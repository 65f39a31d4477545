"""Weight matrices as the integers of a precision, with the parameters that `quarl_nb.quant` finds.

Matrices go through in pieces that stay in a core's cache, which is ten times faster than at once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from quarl_nb.errors import QuarlError
from quarl_nb.quant import (
    PerTensor,
    QConfig,
    QParams,
    affine_qparams,
    is_finite,
    make_observer,
    quantize,
)
from quarl_nb.quant.fake import to_groups

_PIECE = 2**17  # elements; half a megabyte of float32
_INT32_MAX = 2**31 - 1
_FINEST = 1e-30  # scale: times that of the input it is no denormal number, of which kernels make 0


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The same memory if it is on the CPU; numpy has no bfloat16, whose bits are int16 there."""
    tensor = tensor.detach().cpu()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def from_numpy(array: np.ndarray) -> Tensor:
    """What `to_numpy` gave: its memory, but a copy of a read-only view of a payload's bytes, which
    torch's kernels want aligned."""
    tensor = torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.int16 else tensor


def check_finite(tensor: Tensor, name: str, precision: str) -> None:
    """Raise a QuarlError that names the tensor if it holds NaN or infinite values."""
    if not is_finite(tensor):
        raise QuarlError(f"no {precision} of this policy: {name!r} holds NaN or infinite values")


def quantize_rows(
    weight: Tensor, config: QConfig, least: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Integers int8 and scales float32 of a finite float32 weight, symmetric.

    Args:
        weight: ``[out, ...]``.
        config: PerTensor, or one scale for each index of the first dimension.
        least: the smallest scales allowed, ``[out]``; see `least_scale`.

    Returns:
        int8 ``[out, ...]``; the scale, ``[]`` per tensor or ``[out]``, as it is too where that of
        a tensor is below `least` for some.
    """
    axis = None if isinstance(config.granularity, PerTensor) else 0
    qparams = _qparams(weight.flatten(1), config, axis)
    if least is not None:
        qparams = _at_least(least, qparams, weight.flatten(1))
    integers = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    size = max(1, _PIECE // weight[0].numel())
    for start in range(0, len(weight), size):
        rows = slice(start, start + size)
        integers[rows] = quantize(weight[rows], _of_rows(qparams, rows))
    return integers, qparams.scale


def pack_int4(weight: Tensor, config: QConfig, size: int) -> tuple[Tensor, Tensor]:
    """Integers and scales of a finite Linear weight as ONNX Runtime's `MatMulNBits` reads them.

    Args:
        weight: float32 ``[out, in]``.
        size: inputs that share a scale; the last group of a row is padded with zeros.

    Returns:
        uint8 ``[out, groups, size / 2]``, two integers a byte, the first one low, 8 standing for
        zero; scales, float32 ``[out * groups]``, 0 where all weights of a group are zero.
    """
    integers, scales = quantize_rows(to_groups(weight, size), config)
    # The kernel subtracts 8 in float32: at the scale of an empty range, 1, what that rounds is
    # seen in the output of zero weights.
    scales = scales * integers.any(dim=1)
    nibbles = (integers + 8).to(torch.uint8).reshape(len(weight), -1, size // 2, 2)
    return nibbles[..., 0] | (nibbles[..., 1] << 4), scales


def least_scale(bias: Tensor, input_scale: Tensor) -> Tensor:
    """The smallest scales ``[out]`` of weights that leave room in int32 for their biases.

    A bias ``[out]`` counts in units of input scale times weight scale: 2^30 of them at most, half
    of int32. Weights that are too small for that scale are nothing beside the bias.
    """
    return (bias.abs() / 2**30 / input_scale).clamp(min=_FINEST)


def quantize_bias(bias: Tensor, scale: Tensor, weight: Tensor, name: str) -> Tensor:
    """int32 of a bias ``[out]`` in units of `scale` (input scale times weight scale).

    Args:
        weight: int8 ``[out, ...]``, whose products with activations are added to the bias.
        name: of the layer, for the error.

    Raises:
        QuarlError: such a sum may exceed int32.
    """
    integers = (bias.double() / scale.double()).round()
    check_sums(weight, name, integers)
    return integers.int()


def check_sums(weight: Tensor, name: str, bias: Tensor | None = None) -> None:
    """Raise a QuarlError that names the layer where a sum may exceed int32.

    Args:
        weight: int8 ``[out, ...]``, of which each meets an activation of 8 bits.
        bias: whole numbers ``[out]`` that the sums begin with.
    """
    start = torch.zeros((), dtype=torch.int64) if bias is None else bias.abs()
    # Of few inputs none may, whatever they are: a look at them takes a tenth of quantizing them.
    if start.max() + 255 * 127 * weight.shape[1:].numel() <= _INT32_MAX:
        return
    if (start + 255 * weight.flatten(1).abs().sum(dim=1) > _INT32_MAX).any():
        raise QuarlError(f"no int8 of layer {name!r}: its sums may exceed int32")


def _qparams(rows: Tensor, config: QConfig, axis: int | None) -> QParams:
    if config.observer == "minmax":
        # MinMaxObserver's range without its check for NaN: `check_finite` came before.
        lo, hi = rows.aminmax() if axis is None else rows.aminmax(dim=1)
        return affine_qparams(lo, hi, config.bits, config.symmetric, axis=axis)
    observer = make_observer(config.observer, config.bits, config.symmetric, axis, None)
    observer(rows)
    return observer.qparams()


def _at_least(least: Tensor, qparams: QParams, rows: Tensor) -> QParams:
    """`qparams`, but of each row whose scale is smaller than `least`, with that one.

    Zeros have none: any scale leaves them so, and that of an empty range, 1, may be too coarse for
    the bias.
    """
    used = rows.any() if qparams.axis is None else rows.any(dim=1)
    scale = qparams.scale * used
    if (scale >= least).all():
        return qparams
    scale = torch.maximum(scale, least)
    return replace(qparams, scale=scale, zero_point=torch.zeros_like(scale).int(), axis=0)


def _of_rows(qparams: QParams, rows: slice) -> QParams:
    if qparams.axis is None:
        return qparams
    scale, zero_point = qparams.scale[rows], qparams.zero_point[rows]
    return replace(qparams, scale=scale, zero_point=zero_point)
