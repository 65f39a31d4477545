"""Statistics over returns: every random draw comes from a generator that the caller makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl_nb.errors import QuarlError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
RESAMPLES = 4000
# The paper calls a task solved at 95 % of the reward that fp32 attains (Table 2), so a loss
# below 5 % of the fp32 return is one that the paper itself counts as none.
MARGIN = 0.05
ALPHA = 0.05
Z_95 = 1.959964  # of the normal distribution


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval, in the units of the estimate."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def wilson(successes: int, n: int) -> Interval:
    """The 95 % score interval of a proportion (Wilson 1927)."""
    share, room = successes / n, Z_95**2 / n
    middle = (share + room / 2) / (1 + room)
    radius = Z_95 / (1 + room) * np.sqrt(share * (1 - share) / n + room / (4 * n))
    return Interval(share, max(0.0, float(middle - radius)), min(1.0, float(middle + radius)))


def iqm(scores: Sequence[Floats]) -> float:
    """Interquartile mean: the mean without the lowest and the highest quarter.

    Args:
        scores: one array of shape [runs] a task (tasks may differ in runs); all are pooled, as
            in Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice".
    """
    pooled = np.sort(np.concatenate([np.asarray(task, float) for task in scores]))
    cut = len(pooled) // 4
    return float(pooled[cut : len(pooled) - cut].mean())


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
    confidence: float = 0.95,
    clusters: Sequence[Labels] | None = None,
) -> Interval:
    """Percentile interval of `statistic`; runs are redrawn within each task, never across.

    Args:
        scores: one array of shape [runs] a task.
        statistic: maps such a list to a number.
        clusters: runs of each task that depend on one another, as `bootstrap_weights` takes them.
    """
    arrays = [np.asarray(task, float) for task in scores]
    labels = clusters or [np.arange(len(task)) for task in arrays]
    draws = [
        statistic([task[redraw(own, generator)] for task, own in zip(arrays, labels, strict=True)])
        for _ in range(resamples)
    ]
    return percentile_interval(statistic(arrays), np.array(draws), confidence)


def percentile_interval(value: float, draws: Floats, confidence: float = 0.95) -> Interval:
    """The central `confidence` of bootstrap `draws` (shape [resamples]) around `value`."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(value), float(low), float(high))


def median_ratio(
    x: Floats, y: Floats, generator: np.random.Generator, resamples: int = RESAMPLES
) -> Interval:
    """Median of `x` (shape [n]) over the median of `y` ([m]), 95 % bootstrap of both."""
    draws = [np.median(times[generator.integers(len(times), size=(resamples, len(times)))], axis=1)
             for times in (x, y)]  # fmt: skip
    return percentile_interval(float(np.median(x) / np.median(y)), draws[0] / draws[1])


def bootstrap_weights(
    n: int, generator: np.random.Generator, resamples: int = RESAMPLES,
    clusters: Labels | None = None,
) -> Floats:
    """How often each of n episodes is drawn, as a share: shape [resamples, n], rows sum to 1.

    `weights @ values` is every bootstrap mean at once; two columns times the same weights keep
    their episodes paired.

    Args:
        clusters: which episodes depend on one another, labels 0 to k - 1 of shape [n]; by default
            none do. k clusters are then drawn with all that they hold ("pairs cluster bootstrap",
            Cameron, Gelbach & Miller 2008), so that an interval is as wide as k draws allow,
            however often each repeats itself.
    """
    labels = np.arange(n) if clusters is None else clusters
    k = int(labels.max()) + 1
    drawn = generator.integers(k, size=(resamples, k)) + k * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=k * resamples).reshape(resamples, k)[:, labels]
    return counts / counts.sum(axis=1, keepdims=True)


def redraw(clusters: Labels, generator: np.random.Generator) -> Labels:
    """One draw of `bootstrap_weights`, as indices of episodes in ascending order."""
    k = int(clusters.max()) + 1
    counts = np.bincount(generator.integers(k, size=k), minlength=k)
    return np.repeat(np.arange(len(clusters)), counts[clusters])


def least_p(clusters: int) -> float:
    """The smallest one-sided p-value that this many independent differences can give.

    That of the sign test when all agree. A bootstrap over four games that agree has no spread,
    and would be certain of what four games cannot show.
    """
    return 0.5**clusters


def permutation_p(
    x: Floats, y: Floats, generator: np.random.Generator, resamples: int = 999
) -> float:
    """One-sided p-value of "x and y are draws of the same": small where x has the higher mean.

    Fisher's permutation test: shape [n] and [m], in [m + n over n] orders at the most, so that
    few values are enough where they stand out, and no spread is assumed.
    """
    pooled = np.concatenate([x, y])
    orders = generator.permuted(np.tile(pooled, (resamples, 1)), axis=1)
    least = np.mean(x) - 1e-9 * max(1.0, float(np.abs(pooled).max()))  # ties, but for rounding
    return _share(orders[:, : len(x)].mean(axis=1) >= least)


def paired_difference(x: Floats, y: Floats, weights: Floats, confidence: float = 0.95) -> Interval:
    """Mean of x - y over common episode seeds (shape [episodes] each), by paired bootstrap.

    Raises:
        QuarlError: x and y have not the same episodes.
    """
    _check_paired(x, y)
    difference = np.asarray(x, float) - np.asarray(y, float)
    return percentile_interval(float(difference.mean()), weights @ difference, confidence)


@dataclass(frozen=True)
class Loss:
    """Relative loss (reference - treatment) / |reference| of mean returns, from paired episodes.

    `interval` is the 95 % one, `tost` the 90 % one (two one-sided tests at 5 %).
    `p_no_loss` tests "loses the margin or more", `p_loss` tests "loses at most the margin",
    `p_no_gain` tests "gains the margin or more"; each p-value is small when its hypothesis fails.
    """

    interval: Interval
    tost: Interval
    p_no_loss: float
    p_loss: float
    p_no_gain: float

    @property
    def p_equivalent(self) -> float:
        """The two one-sided tests: small when the loss is within the margin on both sides."""
        return max(self.p_no_loss, self.p_no_gain)


def relative_loss(
    reference: Floats, treatment: Floats, weights: Floats, margin: float = MARGIN,
    least: float = 0.0,
) -> Loss:
    """The loss of `treatment` against `reference`, shape [episodes] each, over common seeds.

    The reference's mean is redrawn with the differences, so a reference near zero widens the
    interval instead of inventing precision.

    Args:
        weights: `bootstrap_weights` of the episodes.
        margin: what counts as no loss, a fraction of |mean reference|.
        least: no p-value is smaller (`least_p` of the independent episodes).

    Raises:
        QuarlError: not the same episodes, or the reference's mean return is 0.
    """
    _check_paired(reference, treatment)
    x, y = np.asarray(reference, float), np.asarray(treatment, float)
    if x.mean() == 0:
        raise QuarlError("relative loss is undefined: the mean fp32 return is 0")
    base = weights @ x
    base[base == 0] = np.finfo(float).tiny
    draws = (weights @ (x - y)) / np.abs(base)
    value = float((x - y).mean() / abs(x.mean()))
    return Loss(
        percentile_interval(value, draws, 0.95),
        percentile_interval(value, draws, 1 - 2 * ALPHA),
        p_no_loss=max(least, _share(draws >= margin)),
        p_loss=max(least, _share(draws <= margin)),
        p_no_gain=max(least, _share(draws <= -margin)),
    )


def holm(p_values: Sequence[float]) -> Floats:
    """Holm's step-down adjusted p-values, in the given order (family-wise error)."""
    p = np.asarray(p_values, float)
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


@dataclass(frozen=True)
class BestOfMany:
    """Gains of many treatments over one reference, corrected for looking at all of them.

    Arrays of shape [treatments]; `low` and `high` are one-sided bounds that hold for all
    treatments at once (95 % each), and `p_value` is that of the largest gain among all.
    """

    gain: Floats
    low: Floats
    high: Floats
    p_value: float

    @property
    def best(self) -> int:
        """The treatment with the largest corrected lower bound."""
        return int(np.argmax(self.low))


def best_of_many(
    reference: Floats, treatments: Floats, weights: Floats, alpha: float = ALPHA,
    least: float = 0.0,
) -> BestOfMany:
    """Simultaneous bounds for the gains, from the bootstrap maximum of studentized differences.

    Single-step max-t of Westfall & Young 1993; the paired episodes keep the treatments'
    correlation, so the correction is no larger than it must be. `alpha` is one-sided.

    Args:
        reference: returns, shape [episodes].
        treatments: returns over the same episodes, shape [treatments, episodes].
        weights: `bootstrap_weights` of the episodes.
        least: the p-value is no smaller (`least_p` of the independent episodes).
    """
    gains = np.asarray(treatments, float) - np.asarray(reference, float)
    mean = gains.mean(axis=1)
    error = gains.std(axis=1, ddof=1) / np.sqrt(gains.shape[1])
    # A treatment that differs by a constant has no error: its bound is its mean.
    scale = np.where(error > 0, error, 1.0)
    centred = ((weights @ gains.T) - mean) / scale
    top = centred.max(axis=1)
    radius = np.quantile(top, 1 - alpha) * error
    radius_above = np.quantile((-centred).max(axis=1), 1 - alpha) * error
    observed = np.where(error > 0, mean / scale, np.where(mean > 0, np.inf, 0.0))
    p_value = max(least, _share(top >= observed.max()))
    return BestOfMany(mean, mean - radius, mean + radius_above, p_value)


def _share(hits: NDArray[np.bool_]) -> float:
    """Share of bootstrap draws, with the observed sample counted so that it is never 0."""
    return float((hits.sum() + 1) / (len(hits) + 1))


def _check_paired(x: Floats, y: Floats) -> None:
    if np.shape(x) != np.shape(y) or np.ndim(x) != 1:
        raise QuarlError(f"returns are not of the same episodes: {np.shape(x)} and {np.shape(y)}")
