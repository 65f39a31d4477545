"""What the quantizers of training share: their base, and the gradient of rounding to levels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant.affine import check_bits, round_to_levels
from quarl_nb.quant.observer import AVERAGING_CONSTANT


class TrainingQuantizer(nn.Module, ABC):
    """Base of the quantizers that training runs through: float32 until `start`, then quantized.

    In training mode every input goes to `observe`; in evaluation mode nothing changes. Buffers are
    called ``running_*``: by that name stable-baselines3 copies statistics to target networks
    (it does so for batch normalization), multiplying the old ones by zero, so that they are finite.

    Args:
        bits: 2 to 16.

    Attributes:
        repeatable: while nothing trains, the same input gives the same output.
    """

    repeatable = True

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits, self.enabled = check_bits(bits), False

    def forward(self, x: Tensor) -> Tensor:
        """`x`, of any shape, in float32 or bfloat16: on its levels once started."""
        if self.training:
            self.observe(x.detach())
        return self.quantize(x) if self.enabled else x

    @property
    @abstractmethod
    def observed(self) -> bool:
        """Whether it has seen what it needs to start."""

    @abstractmethod
    def observe(self, x: Tensor) -> None:
        """Take in a batch of training."""

    @abstractmethod
    def quantize(self, x: Tensor) -> Tensor:
        """`x` on its levels, differentiable."""

    def start(self) -> None:
        """Quantize from now on.

        Raises:
            QuarlError: nothing has been observed.
        """
        if not self.observed:
            raise QuarlError("cannot start to quantize: no training batch has been observed")
        self.enabled = True

    def format(self) -> list[int]:
        """What a saved state must agree in, as integers: the bits first.

        A weight's has an integer more by minmax than by lsq, which tells their states apart.
        """
        return [self.bits]

    def get_extra_state(self) -> Tensor:
        return torch.tensor([int(self.enabled), *self.format()])

    def set_extra_state(self, state: Any) -> None:
        """Whether it is started, from a state of the same format.

        Raises:
            QuarlError: the state is of other bits or of another method, or per channel where this
                is not or the other way round.
        """
        enabled, *saved = state.reshape(-1).tolist()
        expected = self.format()
        if saved and saved != expected:  # none in states of the first version
            if len(saved) != len(expected):
                told = "saved by another method (minmax or lsq) than it is prepared for"
            else:
                channels, ours = (" per channel" * any(f[1:]) for f in (saved, expected))
                told = f"saved with {saved[0]} bits{channels}, prepared for {self.bits}{ours}"
            raise QuarlError(
                f"{told}: prepare_qat the model with the arguments that it was trained with"
            )
        self.enabled = bool(enabled)


def is_channels_last(x: Tensor) -> bool:
    """Whether the channels of [n, channels, height, width] lie innermost in memory.

    With them moved to the end, one pass over all values copies nothing.
    """
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def count_batch(count: Tensor) -> float:
    """Count one more batch in place and return its weight in an exponential moving average.

    The first hundred batches count alike, so that where the average starts leaves no trace.
    """
    count.fill_(min(count.item() + 1, 1 / AVERAGING_CONSTANT))
    return 1 / count.item()


def straight_through(x: Tensor, scale: float, low: int, high: int) -> Tensor:
    """`round_to_levels` in the type of `x`, with the gradient of `StraightThrough`."""
    if torch.is_grad_enabled():
        return StraightThrough.apply(x, scale, low, high)
    # The same without an autograd function, which takes as long as rounding one observation.
    return round_to_levels(x, scale, low, high).to(x.dtype)


class StraightThrough(torch.autograd.Function):
    """`round_to_levels` whose gradient passes where `x` is not clipped, and is zero elsewhere.

    Bengio et al. 2013 (arXiv 1308.3432), with the clipping of Jacob et al. 2018, section 3.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, low: int, high: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = (low - 0.5) * scale, (high + 0.5) * scale
        return round_to_levels(x, scale, low, high).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]  # typed by torch as *Any
        (x,) = ctx.saved_tensors
        return clipped_gradient(grad, x, *ctx.bounds), None, None, None


def clipped_gradient(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """`grad` where low < x < high, else 0: one vectorized pass, a mask takes five to fifteen."""
    return torch.ops.aten.hardtanh_backward(grad, x, low, high)
