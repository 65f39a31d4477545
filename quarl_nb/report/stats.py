"""Statistics over returns: every random draw comes from a generator that the caller makes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest, norm
from scipy.stats import t as student

Floats = NDArray[np.float64]
RESAMPLES = 4000
# What counts as no loss of return is ours to say: 5 %, since the paper takes a task for solved at
# 95 % of the reward that fp32 attains (Table 2).
MARGIN = 0.05
ALPHA = 0.05
ROUNDING = 1e-9  # a difference this small, in parts of the larger of value and 1, is none


def with_ends(name: str) -> list[str]:
    """The columns of an estimate with an interval: `name`, `name`_low and `name`_high."""
    return [name, f"{name}_low", f"{name}_high"]


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval (NaN: none), in the units of the estimate."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, row: pd.Series, name: str) -> Interval:
        """The columns `with_ends` of a row."""
        return cls(*(float(row[column]) for column in with_ends(name)))

    def columns(self, name: str) -> dict[str, float]:
        """What `of` reads: the columns `with_ends`, in their order."""
        return dict(zip(with_ends(name), (self.value, self.low, self.high), strict=True))

    def __neg__(self) -> Interval:
        """Of the negative estimate, as a gain is a negative loss."""
        return Interval(-self.value, -self.high, -self.low)

    def text(self, form: str) -> str:
        """Its numbers formatted by `form`, as "1.3 [1.1, 1.4]"; the estimate alone without ends."""
        if math.isnan(self.low) or math.isnan(self.high):
            return f"{self.value:{form}}"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"

    def __str__(self) -> str:
        return self.text(".4g")


def alike(x: Floats) -> NDArray[np.bool_]:
    """Whether the values along the last axis differ by no more than their rounding.

    0.1 three times has a standard deviation of 1e-17: small, not 0.
    """
    x = np.asarray(x, float)
    return np.ptp(x, axis=-1) <= ROUNDING * np.maximum(1.0, np.abs(x).max(axis=-1))


def wilson(successes: int, n: int) -> Interval:
    """The 95 % score interval of a proportion (Wilson 1927)."""
    low, high = binomtest(successes, n).proportion_ci(method="wilson")
    return Interval(successes / n, float(low), float(high))


def iqm(scores: Sequence[Floats]) -> float:
    """Interquartile mean: the mean without the lowest and the highest quarter.

    Args:
        scores: one array of shape [runs] a task; all are pooled, as in Agarwal et al. 2021, "Deep
            RL at the Edge of the Statistical Precipice". Where tasks differ in runs, each task
            still counts as much as the others: a run of one of many runs counts for less.
    """
    arrays = [np.asarray(task, float) for task in scores]
    pooled = np.concatenate(arrays)
    shares = np.repeat([1 / len(task) for task in arrays], [*map(len, arrays)]) / len(arrays)
    order = np.argsort(pooled)
    above, cut = np.cumsum(shares[order]), len(pooled) // 4 / len(pooled)
    kept = np.minimum(above, 1 - cut) - np.maximum(above - shares[order], cut)
    kept = kept.clip(min=0)  # how much of each run lies between the quarters
    return float(kept @ pooled[order] / kept.sum())


def probability_of_improvement(x: Sequence[Floats], y: Sequence[Floats]) -> float:
    """P(x > y) of a run drawn from each, ties counting half, averaged over the tasks.

    Args:
        x, y: one array of shape [runs] a task, the same tasks in the same order.
            Agarwal et al. 2021: the Mann-Whitney U statistic over the number of pairs.
    """
    def one(a: Floats, b: Floats) -> float:
        ranked = np.sort(b)
        below = np.searchsorted(ranked, a, "left") + np.searchsorted(ranked, a, "right")
        return float(below.mean() / (2 * len(b)))

    return float(np.mean([one(a, b) for a, b in zip(x, y, strict=True)]))


def stratified_bootstrap(
    scores: Sequence[Floats],
    statistic: Callable[[Sequence[Floats]], float],
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
) -> Interval:
    """95 % percentile interval of `statistic`; runs are redrawn within each task, never across.

    Args:
        scores: one array of shape [runs] a task.
        statistic: maps such a list to a number.
    """
    arrays = [np.asarray(task, float) for task in scores]
    draws = [
        statistic([generator.choice(task, len(task)) for task in arrays]) for _ in range(resamples)
    ]
    return percentile_interval(statistic(arrays), np.array(draws))


def percentile_interval(value: float, draws: Floats, confidence: float = 0.95) -> Interval:
    """The central `confidence` of bootstrap `draws` (shape [resamples]) around `value`."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(value), float(low), float(high))


@cache  # SciPy takes its time for a quantile, and few n come again and again
def expanded(n: int, confidence: float = 0.95) -> float:
    """The nominal level at which a percentile bootstrap interval of `n` values covers `confidence`.

    Redrawn means have normal tails, and the spread of n values divided by n, where Student's t has
    longer ones and n - 1: of five normal runs 95 % would hold the truth in 85 % of cases. The
    expanded percentile interval of Hesterberg 2015, "What Teachers Should Know About the
    Bootstrap". A single value has no spread to expand.
    """
    return 1 - 2 * float(norm.sf(expanded_reach(n, confidence))) if n > 1 else confidence


def expanded_reach(n: int, confidence: float) -> float:
    """The same in standard deviations of redrawn means of `n` values, two at least."""
    return float(student.ppf((1 + confidence) / 2, n - 1)) * math.sqrt(n / (n - 1))


def expanded_interval(value: float, draws: Floats, n: int, confidence: float = 0.95) -> Interval:
    """The `expanded` percentile interval of redraws (shape [resamples]) of what n values give.

    Of four values and fewer its ends lie beyond every redraw; they are then so many standard
    deviations of the redraws from `value` at least.
    """
    nominal = expanded(n, confidence)
    found = percentile_interval(value, draws, nominal)
    if n == 1 or (1 - nominal) / 2 * len(draws) >= 1:
        return found
    further = expanded_reach(n, confidence) * float(draws[np.isfinite(draws)].std())
    return Interval(found.value, min(found.low, value - further), max(found.high, value + further))


def mean_interval(values: Floats, weights: Floats) -> Interval:
    """Mean of `values` (shape [n]) with the 95 % `expanded_interval` of its redraws.

    Args:
        weights: `bootstrap_weights` of the n, shape [resamples, n].
    """
    return expanded_interval(float(values.mean()), weights @ values, len(values))


def median_ratio(
    x: Floats, y: Floats, generator: np.random.Generator, resamples: int = RESAMPLES,
    alpha: float = ALPHA,
) -> Interval:
    """Median of `x` (shape [n]) over the median of `y` ([m]), 95 % (1 - `alpha`) bootstrap."""
    draws = [np.median(times[generator.integers(len(times), size=(resamples, len(times)))], axis=1)
             for times in (x, y)]  # fmt: skip
    value = float(np.median(x) / np.median(y))
    return percentile_interval(value, draws[0] / draws[1], 1 - alpha)


def mean_ratio(x: Floats, y: Floats, alpha: float = ALPHA) -> Interval:
    """Mean of `x` (shape [n], positive) over that of `y` ([m]), 95 % (1 - `alpha`); one value has
    no interval, and what costs nothing no ratio."""
    return ratio_of_means([x], [y], alpha)


def ratio_of_means(
    over: Sequence[Floats], under: Sequence[Floats], alpha: float = ALPHA
) -> Interval:
    """Product of the means of `over` (each of shape [n], positive) over that of `under`.

    Welch's t of the logarithms (delta method), since a bootstrap of few values reaches no further
    than they do: of three, its "95 %" holds the ratio in 80 % of cases.
    """
    sides = [np.asarray(side, float) for side in (*over, *under)]
    means = np.array([side.mean() for side in sides])
    nan = float("nan")
    if not means.all():
        return Interval(nan, nan, nan)
    value = float(means[: len(over)].prod() / means[len(over) :].prod())
    if min(map(len, sides)) < 2:
        return Interval(value, nan, nan)
    squares = np.array([side.var(ddof=1) / len(side) / side.mean() ** 2 for side in sides])
    if not squares.any():
        return Interval(value, value, value)
    freedom = squares.sum() ** 2 / sum(squares**2 / [len(side) - 1 for side in sides])
    reach = float(np.exp(student.ppf(1 - alpha / 2, freedom) * np.sqrt(squares.sum())))
    return Interval(value, value / reach, value * reach)


def named_generator(name: str) -> np.random.Generator:
    """Seeded by the name of what it redraws: its draws do not depend on what else is redrawn."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def bootstrap_weights(
    n: int, generator: np.random.Generator, resamples: int = RESAMPLES
) -> Floats:
    """How often each of n episodes is drawn, as a share: shape [resamples, n], rows sum to 1.

    `weights @ values` is every bootstrap mean at once; two columns times the same weights keep
    their episodes paired.
    """
    drawn = generator.integers(n, size=(resamples, n)) + n * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=n * resamples).reshape(resamples, n) / n
