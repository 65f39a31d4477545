"""Convolutions of many channels, trained in bfloat16 on a processor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

WIDE = 192  # channels on both sides from which on it takes less time (Intel with AMX)


def is_wide(layer: nn.Module) -> bool:
    """Whether it is a convolution that `wide_conv` trains faster than its own forward pass."""
    return type(layer) is nn.Conv2d and min(layer.in_channels, layer.out_channels) >= WIDE


def wide_conv(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """What `layer` makes of x [n, channels, height, width] in bfloat16; the gradient of its weight
    is one product of matrices.

    oneDNN's own takes 1.5 times as long for 256 channels of Atari's second convolution, 2.9 times
    for 512 and 18 times for 1024 (32 frames). Without padding, dilation and groups.
    """
    bias = None if layer.bias is None else layer.bias.bfloat16()
    return _ConvByProduct.apply(x.bfloat16(), layer.weight.bfloat16(), bias, layer.stride)


class _ConvByProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        return F.conv2d(x, weight, bias, stride)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]  # typed by torch as *Any
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        return (
            conv2d_input(x.shape, weight, grad, ctx.stride) if of_x else None,
            _weight_gradient(x, weight.shape, grad, ctx.stride) if of_weight else None,
            grad.sum((0, 2, 3)) if of_bias else None,
            None,
        )


def _weight_gradient(
    x: Tensor, shape: torch.Size, grad: Tensor, stride: tuple[int, int]
) -> Tensor:
    """Rows of `grad`, one a filter, times patches of x, which hold what all saw at one place."""
    filters, channels, height, width = shape
    seen = x.unfold(2, height, stride[0]).unfold(3, width, stride[1])
    patches = seen.permute(0, 2, 3, 4, 5, 1).reshape(-1, height * width * channels)
    # Of rows that lie one after another the product takes 0.6 of the time.
    rows = grad.permute(1, 0, 2, 3).reshape(filters, -1).contiguous()
    return (rows @ patches).view(filters, height, width, channels).permute(0, 3, 1, 2)
