from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant import (
    FakeQuantize,
    PerChannel,
    PerGroup,
    PerTensor,
    QConfig,
    affine_qparams,
)
from quarl_nb.quant.affine import fake_quantize
from quarl_nb.quant.fake import from_groups, to_groups
from quarl_nb.quant.qconfig import Granularity


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_groups_by_hand() -> None:
    weight = torch.arange(1.0, 11.0).reshape(2, 5)
    groups = to_groups(weight, 2)
    assert groups.tolist() == [[1, 2], [3, 4], [5, 0], [6, 7], [8, 9], [10, 0]]
    assert torch.equal(from_groups(groups, weight.shape), weight)


@pytest.mark.parametrize("shape", [(3, 7), (4, 32), (2, 3, 5, 5), (1, 1)])
@pytest.mark.parametrize("size", [1, 4, 32, 100])
def test_groups_round_trip(shape: tuple[int, ...], size: int) -> None:
    weight = normal(*shape)
    assert torch.equal(from_groups(to_groups(weight, size), weight.shape), weight)


@pytest.mark.parametrize("symmetric", [False, True])
def test_per_group_equals_per_tensor_on_each_group(symmetric: bool) -> None:
    weight = normal(3, 70)
    quantized = FakeQuantize(QConfig(4, symmetric, PerGroup(32)))(weight)
    for row in range(3):
        for start in (0, 32, 64):  # the last holds 6
            group = weight[row, start : start + 32]
            p = affine_qparams(group.min(), group.max(), 4, symmetric)
            assert torch.equal(quantized[row, start : start + 32], fake_quantize(group, p))


def test_calibrate_then_freeze() -> None:
    quantizer = FakeQuantize(QConfig(2))
    quantizer.enabled = False
    x = torch.tensor([-1.0, 0.4, 2.0])
    assert quantizer(x) is x
    quantizer.freeze()
    wide = torch.tensor([-9.0, 0.4, 9.0])
    assert quantizer(wide).tolist() == [-1, 0, 2]  # the range [-1, 2] stays, in steps of 1
    assert quantizer(wide).tolist() == [-1, 0, 2]


def test_without_a_range_it_refuses() -> None:
    quantizer = FakeQuantize(QConfig(8))
    with pytest.raises(QuarlError, match="has not seen any tensor"):
        quantizer.freeze()
    quantizer.observing = False
    with pytest.raises(QuarlError, match="has not seen any tensor"):
        quantizer(torch.ones(2))


@pytest.mark.parametrize("granularity", [None, PerChannel(), PerGroup(3)])
def test_gradient_is_straight_through_inside_and_zero_outside(granularity: object) -> None:
    config = QConfig(4) if granularity is None else QConfig(4, granularity=granularity)  # type: ignore[arg-type]  # parametrized
    quantizer = FakeQuantize(config)
    quantizer(torch.tensor([[-1.0, 1.0, 0.5, -1.0, 1.0]]))
    quantizer.observing = False
    x = torch.tensor([[-3.0, 0.3, 0.2, 0.9, 3.0]], requires_grad=True)
    upstream = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    quantizer(x).backward(upstream)
    assert x.grad is not None and x.grad.tolist() == [[0, 2, 3, 4, 0]]


@pytest.mark.parametrize("granularity", [PerTensor(), PerChannel(), PerGroup(3)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_comes_out_has_the_type_of_what_went_in(
    granularity: Granularity, dtype: torch.dtype
) -> None:
    x = torch.tensor([[-1.0, 0.5, 0.25, 1.0]], dtype=dtype)
    quantized = FakeQuantize(QConfig(8, granularity=granularity))(x)
    assert quantized.dtype == dtype and torch.allclose(quantized, x, atol=0.01)


@pytest.mark.parametrize("size", [0, 2.5, "a", True])
def test_a_group_is_of_a_whole_number(size: Any) -> None:
    with pytest.raises(QuarlError, match=f"group size {size!r} is not positive; allowed: 1, 2"):
        PerGroup(size)


def test_training_through_it_learns() -> None:
    # Quantization-aware least squares: 3-bit weights that must fit a target on their own levels.
    target, x = torch.tensor([[0.5], [-1.0], [0.25]]), normal(200, 3)
    weight = torch.zeros(3, 1).requires_grad_()
    quantizer = FakeQuantize(QConfig(3, observer="moving_average"))
    quantizer(torch.tensor([[-1.0], [0.75]]))  # levels in steps of 0.25
    quantizer.observing = False
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (x @ quantizer(weight) - x @ target).square().mean().backward()
        optimizer.step()
    assert torch.equal(quantizer(weight), target)


@pytest.mark.parametrize("granularity", [PerChannel(), PerGroup(4)])
def test_state_survives_a_checkpoint(granularity: PerChannel | PerGroup) -> None:
    config = QConfig(4, granularity=granularity)
    quantizer, fresh = FakeQuantize(config), FakeQuantize(config)
    expected = quantizer(normal(3, 10))
    fresh.load_state_dict(quantizer.state_dict())
    fresh.observing = False
    assert torch.equal(fresh(normal(3, 10)), expected)


def test_what_was_frozen_or_left_off_stays_so_in_a_checkpoint() -> None:
    quantizer, fresh = FakeQuantize(QConfig(8)), FakeQuantize(QConfig(8))
    quantizer.enabled = False
    quantizer(normal(10))
    fresh.load_state_dict(quantizer.state_dict())
    assert fresh.observing and not fresh.enabled
    quantizer.freeze()
    nn.Sequential(fresh).load_state_dict(nn.Sequential(quantizer).state_dict())
    assert fresh.enabled and not fresh.observing
    assert torch.equal(fresh(5 * normal(10)), quantizer(5 * normal(10)))
