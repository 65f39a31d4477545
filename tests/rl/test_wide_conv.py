"""Wide convolutions: the values and gradients of torch's own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.nn import functional as F

from quarl_nb.rl import fast_cnn
from quarl_nb.rl.fast_cnn import FastNatureCNN
from quarl_nb.rl.wide_conv import WIDE, _ConvByProduct, is_wide, wide_conv

SPACE = Box(0, 255, (4, 84, 84), dtype=np.uint8)


@pytest.mark.parametrize(("size", "stride"), [(4, (2, 2)), (3, (1, 1)), ((2, 3), (2, 1))])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_those_of_finite_differences(size, stride, memory_format):
    generator = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(3, 5, size, stride).double()
    x = torch.randn(2, 3, 7, 8, generator=generator, dtype=torch.double)
    x = x.to(memory_format=memory_format).requires_grad_()
    given = x, layer.weight, layer.bias, stride
    assert torch.equal(_ConvByProduct.apply(*given), F.conv2d(*given))
    assert torch.autograd.gradcheck(_ConvByProduct.apply, given)


def test_in_bfloat16_it_is_exact_to_one_rounding_or_as_near_as_torch():
    """Processors round differently within torch's own: on one without bf16 its gradient is 0.26 %
    off, where ours is 0.17 %."""
    torch.manual_seed(0)
    layer = nn.Conv2d(WIDE, WIDE + 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(4, WIDE, 9, 9).to(memory_format=torch.channels_last)
    upstream = torch.randn(4, WIDE + 8, 7, 7, generator=torch.Generator().manual_seed(1)).bfloat16()

    def results(forward, layer, x, upstream):
        at = x.clone().requires_grad_()
        layer.zero_grad()
        y = forward(at)
        y.backward(upstream)
        return [y, at.grad, layer.weight.grad.clone(), layer.bias.grad.clone()]

    with torch.autocast("cpu", torch.bfloat16):
        ours = results(lambda x: wide_conv(layer, x), layer, x, upstream)
        torchs = results(layer, layer, x, upstream)
    assert ours[0].dtype == torch.bfloat16 and ours[2].dtype == torch.float32
    exact = copy.deepcopy(layer).bfloat16().double()
    truth = results(exact, exact, x.bfloat16().double(), upstream.double())
    for our, their, true in zip(ours, torchs, truth, strict=True):
        assert our.shape == true.shape
        off, theirs_off = ((found - true).norm() / true.norm() for found in (our, their))
        assert off <= max(2**-9, theirs_off)  # half of a last place of bfloat16


def test_only_plain_convolutions_with_many_channels_on_both_sides_are_wide():
    assert is_wide(nn.Conv2d(WIDE, WIDE, 3))
    narrow = nn.Conv2d(WIDE - 1, WIDE, 3), nn.Conv2d(WIDE, WIDE - 1, 3), nn.Linear(WIDE, WIDE)
    of_another_kind = type("QAT", (nn.Conv2d,), {})(WIDE, WIDE, 3)
    assert not any(map(is_wide, (*narrow, of_another_kind)))


@pytest.mark.parametrize(("precision", "grad", "calls"), [
    ("bf16", True, 1), ("bf16", False, 0), ("fp32", True, 0),
])  # fmt: skip
def test_the_fast_cnn_trains_its_wide_layers_so(monkeypatch, precision, grad, calls):
    seen = []
    monkeypatch.setattr(fast_cnn, "wide_conv",
                        lambda layer, x: seen.append(layer) or wide_conv(layer, x))  # fmt: skip
    net = FastNatureCNN(SPACE, 8, filters=(4, WIDE, WIDE), precision=precision)
    frames = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
    with torch.set_grad_enabled(grad):
        features = net(frames)
    assert features.dtype == torch.float32
    assert len(seen) == calls
    assert all(layer is net.cnn[4] for layer in seen)
