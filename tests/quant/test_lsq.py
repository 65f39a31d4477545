"""Learned step size: its gradients against equation 3 of the paper and finite differences."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant.lsq import LearnedStep, LearnedStepFunction


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(
    x: torch.Tensor, step: float, low: int, high: int, upstream: torch.Tensor, scale: float = 1.0
) -> tuple[torch.Tensor, float]:
    x, leaf = x.clone().requires_grad_(), torch.tensor(step, requires_grad=True)
    LearnedStepFunction.apply(x, leaf, low, high, scale).backward(upstream)
    assert x.grad is not None and leaf.grad is not None
    return x.grad, leaf.grad.item()


def started(quantizer: LearnedStep, x: torch.Tensor) -> LearnedStep:
    quantizer(x)
    quantizer.start()
    return quantizer


@pytest.mark.parametrize(
    "x, expected",
    [
        (0.0, 0.0),  # on a level: no rounding error
        (0.3, 1 - 0.6),  # rounds up to 1 from x/step = 0.6
        (0.7, 1 - 1.4),
        (-0.3, -1 + 0.6),
        (9.0, 3.0),  # clipped: the highest integer
        (-9.0, -4.0),  # clipped: the lowest
    ],
)
def test_step_gradient_is_equation_3(x: float, expected: float) -> None:
    got = gradients(torch.tensor([x]), 0.5, -4, 3, torch.ones(1))[1]
    assert got == pytest.approx(expected, abs=1e-6)


def test_step_gradient_by_finite_differences() -> None:
    # Straight through means: as if the rounding error, in steps, did not depend on the step.
    x, upstream, step, low, high = normal(500), normal(500, seed=1), 0.4, -4, 3
    ratio = x.double() / step
    error = (ratio.round() - ratio) * ((ratio > low) & (ratio < high))

    def loss(s: float) -> float:
        return ((x.double() / s).clamp(low, high) + error).mul(s).mul(upstream).sum().item()

    numeric = (loss(step + 1e-7) - loss(step - 1e-7)) / 2e-7
    assert gradients(x, step, low, high, upstream)[1] == pytest.approx(numeric, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_step_gradient_of_many_values_leaves_none_out(
    dtype: torch.dtype, form: torch.memory_format
) -> None:
    shape, step, low, high = (16, 8, 40, 40), 0.25, -8, 7  # three pieces of bfloat16 and a rest
    x, upstream = (normal(*shape, seed=s).to(dtype).to(memory_format=form) for s in (0, 1))
    ratio = x.double() / step
    levels, inside = ratio.round().clamp(low, high), (ratio > low) & (ratio < high)
    expected = ((levels - ratio * inside) * upstream.double()).sum().item()
    # Of the sizes that are summed in float32, in an order that is the processor's own: 0.06 in
    # these, where one value left out makes 0.56 on average.
    sizes = (levels.abs() + ratio.abs() * inside) * upstream.double().abs()
    rounding = 2**-24 * sizes.sum().item()
    got = gradients(x, step, low, high, upstream)[1]
    assert got == pytest.approx(expected, abs=rounding)
    assert rounding < 0.1


def test_input_gradient_passes_inside_and_is_zero_outside() -> None:
    x = torch.tensor([-3.0, -1.9, 0.1, 1.4, 1.6])
    grad = gradients(x, 0.5, -4, 3, torch.arange(1.0, 6.0))[0]
    assert grad.tolist() == [0, 2, 3, 4, 0]


@pytest.mark.parametrize("batched, n", [(False, 120), (True, 12)])
def test_gradient_scale_is_that_of_section_2_2(batched: bool, n: int) -> None:
    x = normal(10, 12)  # a weight of 120 values, or a batch of 10 with 12 features
    quantizer = started(LearnedStep(3, batched), x)
    quantizer(x).sum().backward()
    unscaled = gradients(x, quantizer.step.item(), -4, 3, torch.ones_like(x))[1]
    assert quantizer.step.grad is not None
    assert quantizer.step.grad.item() == pytest.approx(unscaled / math.sqrt(n * 3), rel=1e-4)


def test_the_step_of_an_activation_starts_from_the_latest_hundred_batches() -> None:
    quantizer = LearnedStep(3, batched=True)
    quantizer(torch.tensor([1.0, -1.0]))
    quantizer(torch.tensor([4.0, 2.0]))
    early = copy.deepcopy(quantizer)
    early.start()
    assert early.step.item() == pytest.approx(2 * 2 / math.sqrt(3))
    assert early.levels == (-4, 3)
    for _ in range(1000):  # of 1002 batches the first two are 0.004 % of the moving average
        quantizer(torch.tensor([8.0, -8.0]))
    quantizer.start()
    assert quantizer.step.item() == pytest.approx(2 * 8 / math.sqrt(3), rel=1e-3)


def test_the_step_of_a_weight_starts_from_the_weight_as_it_is() -> None:
    quantizer = LearnedStep(3, batched=False)
    for size in (1.0, 2.0, 5.0):
        quantizer(torch.tensor([size, -size]))
    quantizer.start()
    assert quantizer.step.item() == pytest.approx(2 * 5 / math.sqrt(3))


def test_levels_are_unsigned_where_nothing_negative_was_seen() -> None:
    quantizer = started(LearnedStep(2, batched=True), normal(64).relu())
    assert quantizer.levels == (0, 3)
    assert set((quantizer(normal(100) * 9) / quantizer.step).round().tolist()) <= {0, 1, 2, 3}


def test_qparams_describe_the_same_levels() -> None:
    x = normal(200)
    quantizer = started(LearnedStep(4, batched=False), x)
    p = quantizer.qparams()
    expected = torch.fake_quantize_per_tensor_affine(
        x, p.scale, p.zero_point, p.quant_min, p.quant_max
    )
    assert torch.equal(quantizer(x), expected) and len(expected.unique()) <= 16


def test_evaluation_changes_nothing() -> None:
    quantizer = started(LearnedStep(4, batched=True), normal(10)).eval()
    before = {name: value.clone() for name, value in quantizer.state_dict().items()}
    quantizer(normal(10) * 100)
    assert all(torch.equal(value, before[name]) for name, value in quantizer.state_dict().items())


def test_the_step_learns_to_reduce_the_error() -> None:
    x = normal(1000)
    quantizer = started(LearnedStep(2, batched=False), x)
    with torch.no_grad():
        quantizer.step.mul_(5)
    first = (quantizer(x) - x).square().mean().item()
    optimizer = torch.optim.Adam(quantizer.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        (quantizer(x) - x).square().mean().backward()
        optimizer.step()
    assert (quantizer(x) - x).square().mean().item() < 0.5 * first


def test_a_step_below_the_smallest_acts_as_the_smallest() -> None:
    quantizer = started(LearnedStep(4, batched=False), normal(10))
    nn.init.constant_(quantizer.step, -0.5)
    x, ends = torch.tensor([1.0, -1.0]), pytest.approx([7e-8, -8e-8])
    assert quantizer(x).tolist() == ends
    with torch.no_grad():
        assert quantizer(x).tolist() == ends
    assert quantizer.qparams().scale.item() == pytest.approx(1e-8)


def test_the_step_of_zeros_starts_at_one() -> None:
    assert started(LearnedStep(4, batched=True), torch.zeros(5)).step.item() == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_diverged_before_the_start_are_an_error(value: float) -> None:
    quantizer = LearnedStep(4, batched=True)
    for last in (1.0, 1.0, value):  # of two batches an average with infinity is NaN
        quantizer(torch.tensor([1.0, last]))
    with pytest.raises(QuarlError, match="diverged: .* before quantization began"):
        quantizer.start()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_that_became_nan_or_infinite_is_an_error(value: float) -> None:
    quantizer = started(LearnedStep(4, batched=False), normal(10))
    nn.init.constant_(quantizer.step, value)
    with pytest.raises(QuarlError, match="diverged"):
        quantizer(normal(10))
