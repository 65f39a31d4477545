"""Observers: watch tensors go by and say which range to quantize."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.quant.affine import (
    QParams,
    affine_qparams,
    check_bits,
    is_finite,
    round_to_levels,
)

# onnxruntime's calibrator takes 99.999 of image activations (millions of values). Policies have
# 1e4 to 1e6 weights a layer, where that would clip nothing: 99.99 clips 6 of 65,536 at each end.
# Wu et al. 2020 (arXiv 2004.09602, section 5) evaluate both.
DEFAULT_PERCENTILE = 99.99
MSE_GRID = 100
# Weight of the newest batch; as torch's MovingAverageMinMaxObserver.
AVERAGING_CONSTANT = 0.01


def to_rows(x: Tensor, axis: int | None) -> Tensor:
    """[channels, values] of `x`, or [1, values] if `axis` is None."""
    return x.reshape(1, -1) if axis is None else x.movedim(axis, 0).flatten(1)


def percentile_range(rows: Tensor, percentile: float) -> tuple[Tensor, Tensor]:
    """Range of each row without its floor((1 - percentile/100) * n) largest and smallest values.

    At 99.99 that is 0.01 % of them on each side, and none of a row of fewer than 10,000: there it
    is the min-max range.

    Args:
        rows: [channels, n]. Nearest rank, so that the ends are values that occur.
    Returns:
        minimum and maximum, [channels] each.
    """
    n = rows.shape[1]
    clipped = min(int(n * (100.0 - percentile) / 100.0 + 1e-9), (n - 1) // 2)
    low = rows.kthvalue(1 + clipped, dim=1).values
    return low, rows.kthvalue(n - clipped, dim=1).values


def mse_range(rows: Tensor, bits: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Range of each row, shrunk from min-max, with the smallest mean squared quantization error.

    Tries min-max times 1/MSE_GRID, 2/MSE_GRID, .. 1: on both ends together, then (affine) on each
    end alone. Never worse than min-max on these values.
    Source: Nagel et al. 2021 (arXiv 2106.08295), section 3.1.

    Args:
        rows: [channels, n].
    Returns:
        minimum and maximum, [channels] each.
    """
    best_lo, best_hi = rows.amin(1).clamp(max=0.0), rows.amax(1).clamp(min=0.0)
    best = _squared_error(rows, best_lo, best_hi, bits, symmetric)
    for shrink_lo, shrink_hi in [(1, 1)] if symmetric else [(1, 1), (1, 0), (0, 1)]:
        full_lo, full_hi = best_lo, best_hi
        for ratio in torch.arange(1, MSE_GRID, device=rows.device) / MSE_GRID:
            lo = full_lo * ratio if shrink_lo else full_lo
            hi = full_hi * ratio if shrink_hi else full_hi
            error = _squared_error(rows, lo, hi, bits, symmetric)
            better = error < best
            best = torch.where(better, error, best)
            best_lo, best_hi = torch.where(better, lo, best_lo), torch.where(better, hi, best_hi)
    return best_lo, best_hi


def _squared_error(rows: Tensor, lo: Tensor, hi: Tensor, bits: int, symmetric: bool) -> Tensor:
    qparams = affine_qparams(lo, hi, bits, symmetric)
    scale, zero_point = qparams.scale[:, None], qparams.zero_point[:, None]
    low, high = qparams.quant_min - zero_point, qparams.quant_max - zero_point
    # In float64: a float32 square of a large or tiny error leaves the format.
    return round_to_levels(rows, scale, low, high).sub_(rows).double().square().sum(1)


class ResizingModule(nn.Module):
    """A module whose buffers take the shapes found in the state that is loaded."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, buffer in self._buffers.items():
            if buffer is not None and (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, buffer.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Observer(ResizingModule, ABC):
    """Base: call it on tensors, then ask for `range()` or `qparams()`.

    Args:
        bits, symmetric: the format that `qparams()` is for (see `affine_qparams`).
        axis: dimension of the channels; None observes one range for the whole tensor.
    """

    min_val: Tensor
    max_val: Tensor

    def __init__(self, bits: int, symmetric: bool = False, axis: int | None = None) -> None:
        super().__init__()
        self.bits, self.symmetric, self.axis = check_bits(bits), symmetric, axis
        self.register_buffer("min_val", torch.empty(0))
        self.register_buffer("max_val", torch.empty(0))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Observe `x` and return it unchanged.

        Raises:
            QuarlError: `x` is empty or holds NaN or infinity.
        """
        if x.numel() == 0:
            raise QuarlError("cannot observe the range of an empty tensor")
        if not is_finite(x):
            raise QuarlError("cannot observe a range: the tensor holds NaN or infinite values")
        self._update(to_rows(x, self.axis))
        return x

    @abstractmethod
    def _update(self, rows: Tensor) -> None:
        """Take in `rows`, [channels, values]."""

    @property
    def observed(self) -> bool:
        """Whether any tensor has been seen."""
        return self.min_val.numel() > 0

    def range(self) -> tuple[Tensor, Tensor]:
        """Minimum and maximum to quantize: shape [] or [channels].

        Raises:
            QuarlError: nothing has been observed.
        """
        if not self.observed:
            raise QuarlError("no range: the observer has not seen any tensor; run calibration data")
        lo, hi = self._range()
        return (lo, hi) if self.axis is not None else (lo[0], hi[0])

    def _range(self) -> tuple[Tensor, Tensor]:
        return self.min_val, self.max_val

    def qparams(self) -> QParams:
        """Scale and zero point for `range()`."""
        return affine_qparams(*self.range(), self.bits, self.symmetric, axis=self.axis)


class MinMaxObserver(Observer):
    """Smallest and largest value ever seen (the paper's PTQ)."""

    def _update(self, rows: Tensor) -> None:
        lo, hi = rows.amin(1), rows.amax(1)
        if self.observed:
            lo, hi = torch.minimum(lo, self.min_val), torch.maximum(hi, self.max_val)
        self.min_val, self.max_val = lo, hi


class MovingAverageObserver(Observer):
    """Exponential moving average of every batch's minimum and maximum (Jacob et al. 2018, 3.1)."""

    def _update(self, rows: Tensor) -> None:
        lo, hi = rows.amin(1), rows.amax(1)
        if self.observed:
            lo = self.min_val + AVERAGING_CONSTANT * (lo - self.min_val)
            hi = self.max_val + AVERAGING_CONSTANT * (hi - self.max_val)
        self.min_val, self.max_val = lo, hi


class SamplingObserver(MinMaxObserver):
    """Base of observers that need the values: keeps a uniform sample of at most `max_samples`.

    Args:
        max_samples: values kept per channel; None keeps all (exact; for weights).
    """

    def __init__(
        self,
        bits: int,
        symmetric: bool = False,
        axis: int | None = None,
        max_samples: int | None = 2**18,
    ) -> None:
        super().__init__(bits, symmetric, axis)
        self.max_samples = max_samples
        self._batches = 0
        self._parts: list[tuple[Tensor, Tensor]] = []  # values [channels, n], random keys [n]
        self._limit = math.inf  # values of this key or more do not stay

    @property
    def observed(self) -> bool:
        """Whether there is a sample: a state that is loaded has none, only its extremes."""
        return bool(self._parts)

    def _update(self, rows: Tensor) -> None:
        super()._update(rows)
        # Keeping the smallest of random keys makes every value ever seen equally likely to stay.
        self._batches += 1
        generator = torch.Generator().manual_seed(self._batches)
        keys = torch.rand(rows.shape[1], generator=generator, dtype=torch.float64).to(rows.device)
        stay = keys < self._limit
        self._parts.append((rows[:, stay], keys[stay]))
        held = sum(keys.numel() for _, keys in self._parts)
        if self.max_samples is not None and held > 2 * self.max_samples:
            self._sample()  # seldom: finding the smallest takes longer than all else

    def _sample(self) -> Tensor:
        """The values that stay, [channels, n], n at most `max_samples`."""
        rows, keys = (torch.cat(parts, -1) for parts in zip(*self._parts, strict=True))
        if self.max_samples is not None and keys.numel() > self.max_samples:
            keys, kept = keys.topk(self.max_samples, largest=False)  # sorted
            rows, self._limit = rows[:, kept], keys[-1].item()
        self._parts = [(rows, keys)]
        return rows


class PercentileObserver(SamplingObserver):
    """Min-max without the outermost values, 0.01 % of them on each side; see `percentile_range`."""

    def __init__(self, *args: Any, percentile: float = DEFAULT_PERCENTILE, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(percentile, Real) or not 50.0 < percentile <= 100.0:
            raise QuarlError(f"percentile {percentile!r} is out of range; allowed: 50 to 100")
        self.percentile: float = percentile

    def _range(self) -> tuple[Tensor, Tensor]:
        return percentile_range(self._sample(), self.percentile)


class MSEObserver(SamplingObserver):
    """The range with the smallest mean squared quantization error; see `mse_range`."""

    def _range(self) -> tuple[Tensor, Tensor]:
        return mse_range(self._sample(), self.bits, self.symmetric)


OBSERVERS: dict[str, type[Observer]] = {
    "minmax": MinMaxObserver,
    "moving_average": MovingAverageObserver,
    "percentile": PercentileObserver,
    "mse": MSEObserver,
}


def make_observer(
    name: str,
    bits: int,
    symmetric: bool = False,
    axis: int | None = None,
    max_samples: int | None = 2**18,
) -> Observer:
    """The observer called `name`: minmax, moving_average, percentile or mse.

    Raises:
        QuarlError: unknown name, or bits out of range.
    """
    kind = OBSERVERS[check_choice("observer", name, OBSERVERS)]
    if issubclass(kind, SamplingObserver):
        return kind(bits, symmetric, axis, max_samples=max_samples)
    return kind(bits, symmetric, axis)
