"""Modules that watch ranges and round to the levels of a format, in float32."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant.affine import (
    QParams,
    check_bits,
    fake_quantize,
    quant_range,
    round_to_levels,
)
from quarl_nb.quant.observer import ResizingModule, make_observer
from quarl_nb.quant.qconfig import PerGroup, PerTensor, QConfig


def to_groups(weight: Tensor, size: int) -> Tensor:
    """[out * groups, size] of a weight [out, ...]; a short last group is padded with zeros.

    Zeros change neither a range, which always holds zero, nor the squared error.
    """
    rows = weight.flatten(1)
    return F.pad(rows, (0, -rows.shape[1] % size)).reshape(-1, size)


def from_groups(groups: Tensor, shape: torch.Size) -> Tensor:
    """Undo `to_groups`: a tensor of `shape`."""
    return groups.reshape(shape[0], -1)[:, : shape[1:].numel()].reshape(shape)


class FakeQuantize(ResizingModule):
    """Quantize-dequantize with monitored ranges; the gradient is straight through, with clipping.

    While `observing`, every input updates the range; while `enabled`, the output is quantized.
    Calibration: `enabled = False`, run data, `freeze()`. For training see `quarl_nb.quant.qat`.

    Args:
        config: the format, granularity and observer.
        max_samples: see `SamplingObserver`; None for weights.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, config: QConfig, max_samples: int | None = 2**18) -> None:
        super().__init__()
        self.config = config
        self.axis = None if isinstance(config.granularity, PerTensor) else 0
        self.observer = make_observer(
            config.observer, config.bits, config.symmetric, self.axis, max_samples
        )
        self.observing, self.enabled = True, True
        self.register_buffer("scale", torch.empty(0))
        self.register_buffer("zero_point", torch.empty(0, dtype=torch.int32))

    @property
    def qparams(self) -> QParams:
        """The scale and zero point in use.

        Raises:
            QuarlError: no range has been observed.
        """
        if self.scale.numel() == 0:
            raise QuarlError("no range: the quantizer has not seen any tensor; run calibration")
        lo, hi = quant_range(self.config.bits, self.config.symmetric)
        return QParams(self.scale, self.zero_point, lo, hi, self.axis)

    def update(self) -> None:
        """Take scale and zero point from what the observer has seen."""
        qparams = self.observer.qparams()
        self.scale, self.zero_point = qparams.scale, qparams.zero_point

    def freeze(self) -> None:
        """End calibration: fix the range seen so far and quantize from now on."""
        self.update()
        self.observing, self.enabled = False, True

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.observing, self.enabled])

    def set_extra_state(self, state: Any) -> None:
        self.observing, self.enabled = state.tolist()

    def forward(self, x: Tensor) -> Tensor:
        """`x` on the levels of the format, same shape (`x` itself while not `enabled`)."""
        if isinstance(self.config.granularity, PerGroup):
            return from_groups(self._forward(to_groups(x, self.config.granularity.size)), x.shape)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        if self.observing:
            self.observer(x)
        if not self.enabled:
            return x
        if self.observing:
            self.update()
        return fake_quantize(x, self.qparams)


class FixedQuantize(nn.Module):
    """Rounds inputs of any shape to the 2^bits levels of a scale and zero point that it is given.

    Inputs of half precision are rounded in float32 and get their type back.

    Attributes:
        scale, zero_point: float32 and int32, shape [].
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = check_bits(bits)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("zero_point", torch.zeros((), dtype=torch.int32))

    @property
    def qparams(self) -> QParams:
        """The levels."""
        return QParams(self.scale, self.zero_point, *quant_range(self.bits))

    def forward(self, x: Tensor) -> Tensor:
        scale, zero_point = self.scale.item(), int(self.zero_point)
        low, high = quant_range(self.bits)
        return round_to_levels(x, scale, low - zero_point, high - zero_point).to(x.dtype)
