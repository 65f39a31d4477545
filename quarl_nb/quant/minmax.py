"""Min-max quantizers of training: of the weight as it is, and of a monitored range of inputs.

Jacob et al. 2018 (arXiv 1712.05877), section 3.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from quarl_nb.errors import QuarlError
from quarl_nb.quant.affine import QParams, affine_qparams, quant_range, round_to_levels
from quarl_nb.quant.training import (
    TrainingQuantizer,
    count_batch,
    is_channels_last,
    straight_through,
)

SMALLEST_SCALE = torch.finfo(torch.float32).tiny


def scalar_qparams(low: float, high: float, bits: int) -> tuple[float, int]:
    """Scale and zero point of `affine_qparams`, for a range within 1e38: 1 us where that takes 80.

    Raises:
        QuarlError: an end is NaN or infinite: training has diverged.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise QuarlError("training diverged: a layer's weights or inputs are NaN or infinite")
    low, high = min(low, 0.0), max(high, 0.0)
    top = quant_range(bits)[1]
    scale = (high - low) / top
    scale = float(np.float32(max(scale, SMALLEST_SCALE))) if scale > 0 else 1.0
    return scale, min(round(-low / scale), top)


class WeightQuantizer(TrainingQuantizer):
    """Affine quantization to the range of the weight as it is: that of PTQ with min-max ranges.

    Nothing but the weight decides, so there is nothing to observe, and no value is ever clipped.

    Args:
        per_channel: a range for each output channel (axis 0).
    """

    def __init__(self, bits: int, per_channel: bool) -> None:
        super().__init__(bits)
        self.per_channel = per_channel

    def format(self) -> list[int]:
        return [self.bits, int(self.per_channel)]

    @property
    def observed(self) -> bool:
        return True

    def observe(self, x: Tensor) -> None:
        pass

    def quantize(self, x: Tensor) -> Tensor:
        return _QuantizeWeight.apply(x, self)

    def levels(self, x: Tensor) -> tuple[float | Tensor, int | Tensor, int | Tensor]:
        """Scale, and smallest and largest multiple of it: numbers, or [channels, 1, ...]."""
        top = quant_range(self.bits)[1]
        if not self.per_channel:
            lowest, highest = x.aminmax()
            scale, zero_point = scalar_qparams(lowest.item(), highest.item(), self.bits)
            return scale, -zero_point, top - zero_point
        rest = tuple(range(1, x.ndim))
        qparams = affine_qparams(x.amin(rest), x.amax(rest), self.bits, axis=0)
        shape = [-1] + [1] * len(rest)
        low = -qparams.zero_point.reshape(shape)
        return qparams.scale.reshape(shape), low, low + top


class _QuantizeWeight(torch.autograd.Function):
    """A weight on its levels; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: object, weight: Tensor, quantizer: WeightQuantizer) -> Tensor:
        return round_to_levels(weight, *quantizer.levels(weight))

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]  # typed by torch as *Any
        return grad, None


class InputQuantizer(TrainingQuantizer):
    """Affine quantization, per tensor, to a moving average (`count_batch`) of batches' ranges."""

    running_count: Tensor
    running_min: Tensor
    running_max: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        for name in ("running_count", "running_min", "running_max"):
            self.register_buffer(name, torch.zeros(()))

    @property
    def observed(self) -> bool:
        return self.running_count.item() > 0

    def observe(self, x: Tensor) -> None:
        if is_channels_last(x):
            x = x.movedim(1, -1)  # aminmax makes a copy otherwise
        lowest, highest = x.aminmax()
        share = count_batch(self.running_count)
        self.running_min.lerp_(lowest.float(), share)
        self.running_max.lerp_(highest.float(), share)

    def quantize(self, x: Tensor) -> Tensor:
        scale, zero_point = self._scalars()
        top = quant_range(self.bits)[1]
        return straight_through(x, scale, -zero_point, top - zero_point)

    def qparams(self) -> QParams:
        """Scale and zero point of the range, shape []."""
        scale, zero_point = self._scalars()
        tensors = torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32)
        return QParams(*tensors, *quant_range(self.bits))

    def _scalars(self) -> tuple[float, int]:
        return scalar_qparams(self.running_min.item(), self.running_max.item(), self.bits)
