"""Learned step size quantization: Esser et al. 2020 (arXiv 1902.08153)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant.affine import QParams, quant_range, round_to_levels
from quarl_nb.quant.training import (
    TrainingQuantizer,
    clipped_gradient,
    count_batch,
    is_channels_last,
)

# Training cannot carry a step below this: its gradient would lose its sign.
SMALLEST_STEP = 1e-8
# Values of half precision that are converted at a time: copies of so few stay in a processor's
# cache, and take 0.4 to 0.6 of the time (Intel with AMX).
PIECE = 2**16


class LearnedStepFunction(torch.autograd.Function):
    """``clamp(round(x / step), low, high) * step``, equations 1 and 2, with its two gradients.

    To `x` straight through inside (equation 5). To the step (equation 3) round(x / step) - x / step
    inside and low or high outside, which together is (output - x inside) / step.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, step: Tensor, low: int, high: int, gradient_scale: float
    ) -> Tensor:
        s = max(step.item(), SMALLEST_STEP)
        output = round_to_levels(x, s, low, high)
        # In float32 also where x is bfloat16, whose rounding is as coarse as an 8-bit step.
        ctx.save_for_backward(x, output)
        ctx.step, ctx.low, ctx.high, ctx.gradient_scale = s, low, high, gradient_scale
        return output.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]  # typed by torch as *Any
        x, output = ctx.saved_tensors
        grad_x = clipped_gradient(grad, x, ctx.low * ctx.step, ctx.high * ctx.step)
        terms = _dot(output, grad) - _dot(x, grad_x)
        return grad_x, terms * (ctx.gradient_scale / ctx.step), None, None, None


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Sum of the products, in float32: a quarter of the time that multiplying and adding takes."""
    if is_channels_last(a):
        a, b = a.movedim(1, -1), b.movedim(1, -1)
    a, b = a.reshape(-1), b.reshape(-1)
    if a.dtype == b.dtype == torch.float32:
        return torch.dot(a, b)
    size = PIECE if a.is_cpu else len(a)
    pieces = zip(a.split(size), b.split(size), strict=True)
    return torch.stack([torch.dot(p.float(), q.float()) for p, q in pieces]).sum()


class LearnedStep(TrainingQuantizer):
    """A quantizer per tensor whose step is a parameter.

    Until `start` it observes; then the step begins at 2 mean|x| / sqrt(high) (section 2.1), of the
    weight in the last training batch, or of an activation's batches, of which a moving average is
    kept. Levels are signed, -2^(b-1)..2^(b-1)-1, or 0..2^b-1 where nothing negative was observed.
    The step's gradient is scaled by 1 / sqrt(N high), N values in a weight or features in an
    activation (section 2.2).

    Args:
        batched: an activation [batch, ...]; else a weight.
    """

    running_count: Tensor
    running_min: Tensor
    running_magnitude: Tensor

    def __init__(self, bits: int, batched: bool) -> None:
        super().__init__(bits)
        self.batched = batched
        self.step = nn.Parameter(torch.ones(()))
        for name in ("running_count", "running_min", "running_magnitude"):
            self.register_buffer(name, torch.zeros(()))

    @property
    def observed(self) -> bool:
        return self.running_count.item() > 0

    def observe(self, x: Tensor) -> None:
        if self.enabled:
            return
        share = count_batch(self.running_count)
        self.running_min.fill_(min(self.running_min.item(), x.min().item()))
        self.running_magnitude.lerp_(x.abs().mean().float(), share if self.batched else 1)

    @property
    def levels(self) -> tuple[int, int]:
        """Smallest and largest integer."""
        signed = self.running_min.item() < 0
        return quant_range(self.bits, signed=signed)

    def start(self) -> None:
        super().start()
        magnitude = self.running_magnitude.item()
        if not math.isfinite(magnitude):
            raise QuarlError("training diverged: NaN or infinite values before quantization began")
        with torch.no_grad():
            # All zeros so far: any step serves.
            self.step.fill_(2 * magnitude / math.sqrt(self.levels[1]) or 1.0)

    def quantize(self, x: Tensor) -> Tensor:
        step = self.step.item()
        if not math.isfinite(step):
            raise QuarlError("training diverged: a learned step became NaN or infinite")
        low, high = self.levels
        if not torch.is_grad_enabled():
            return round_to_levels(x, max(step, SMALLEST_STEP), low, high).to(x.dtype)
        n = (x.shape[1:] if self.batched else x.shape).numel()
        return LearnedStepFunction.apply(x, self.step, low, high, 1 / math.sqrt(n * high))

    def qparams(self) -> QParams:
        """Scale and zero point, unsigned, of the same levels; shape []."""
        low, high = self.levels
        scale = torch.tensor(max(self.step.item(), SMALLEST_STEP))
        return QParams(scale, torch.tensor(-low, dtype=torch.int32), 0, high - low)
