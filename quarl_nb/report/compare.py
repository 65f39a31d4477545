"""Returns of quantized policies against those of a reference, over the same episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quarl_nb.errors import QuarlError
from quarl_nb.report.pvalues import least_p, sign_flip_p
from quarl_nb.report.stats import (
    ALPHA,
    MARGIN,
    ROUNDING,
    Floats,
    Interval,
    alike,
    expanded,
    expanded_interval,
    mean_interval,
)


def paired_difference(x: Floats, y: Floats, weights: Floats) -> Interval:
    """Mean of x - y over common episode seeds (shape [episodes] each), by paired bootstrap.

    Raises:
        QuarlError: x and y have not the same episodes.
    """
    _check_paired(x, y)
    difference = np.asarray(x, float) - np.asarray(y, float)
    return mean_interval(difference, weights)


@dataclass(frozen=True)
class Loss:
    """Relative loss (reference - treatment) / |reference| of mean returns, from paired episodes.

    `interval` is the 95 % one, `tost` the 90 % one, of which each end is a bound at 5 %; both are
    of the bootstrap, `expanded`, and near the margin need not agree with the p-values to a hair.
    `p_no_loss` tests "loses the margin or more", `p_loss` tests "loses at most the margin",
    `p_gain` tests "gains nothing", `p_no_gain` tests "gains the margin or more"; each p-value is
    small when its hypothesis fails.
    """

    interval: Interval
    tost: Interval
    p_no_loss: float
    p_loss: float
    p_gain: float
    p_no_gain: float

    @property
    def p_equivalent(self) -> float:
        """The two one-sided tests: small when the loss is within the margin on both sides."""
        return max(self.p_no_loss, self.p_no_gain)


def relative_loss(reference: Floats, treatment: Floats, weights: Floats) -> Loss:
    """The loss of `treatment` against `reference`, shape [episodes] each, over common seeds.

    The reference's mean is redrawn with the differences, so a reference near zero widens the
    interval instead of inventing precision; where it is 0 in as many redraws as lie beyond an end,
    there is none (NaN). The p-values are `sign_flip_p` of the differences less the margin.

    Args:
        weights: `bootstrap_weights` of the episodes.

    Raises:
        QuarlError: not the same episodes, or the reference's mean return is 0.
    """
    _check_paired(reference, treatment)
    x, y = np.asarray(reference, float), np.asarray(treatment, float)
    if x.mean() == 0:
        raise QuarlError("relative loss is undefined: the mean fp32 return is 0")
    lost, room = x - y, MARGIN * np.sign(x.mean()) * x
    value, drawn, base = lost.mean() / abs(x.mean()), weights @ lost, np.abs(weights @ x)
    return Loss(
        _redrawn_ratio(value, drawn, base, len(x), 1 - ALPHA),
        _redrawn_ratio(value, drawn, base, len(x), 1 - 2 * ALPHA),
        p_no_loss=sign_flip_p(room - lost), p_loss=sign_flip_p(lost - room),
        p_gain=sign_flip_p(-lost), p_no_gain=sign_flip_p(room + lost),
    )  # fmt: skip


def _redrawn_ratio(
    value: float, over: Floats, under: Floats, n: int, confidence: float
) -> Interval:
    """`expanded_interval` of redraws `over` / `under` (shape [resamples]) of n pairs, or none."""
    nothing = under == 0
    if nothing.sum() > (len(under) - 1) * (1 - expanded(n, confidence)) / 2:
        return Interval(float(value), np.nan, np.nan)
    draws = np.divide(over, under, out=np.copysign(np.inf, over), where=~nothing)
    return expanded_interval(value, draws, n, confidence)


@dataclass(frozen=True)
class BestOfMany:
    """Gains of many treatments over one reference, corrected for looking at all of them.

    Arrays of shape [treatments]; `low` and `high` are one-sided bounds that hold for all
    treatments at once (95 % each; infinite where episodes are too few), and `p_values` are
    adjusted for all of them.
    """

    gain: Floats
    low: Floats
    high: Floats
    p_values: Floats

    def best(self, least: float = 0.0) -> int:
        """The treatment to tell of: of those that certainly gain, and `least` or more, the most
        certain; where there is none, that of the largest lower bound. Of equals the larger gain.
        """
        counts = (self.low > 0) & (self.gain >= least)
        certainty = np.where(counts, self.p_values, 1.0)
        return int(np.lexsort((-self.gain, -self.low, certainty, ~counts))[0])


def best_of_many(reference: Floats, treatments: Floats, signs: Floats) -> BestOfMany:
    """Simultaneous p-values and bounds for the gains, from the largest t under flipped signs.

    Single-step max-t of Westfall & Young 1993, t being the sum of a treatment's gains over the
    root of their sum of squares. A flip takes an episode's sign in all treatments, which keeps
    their correlation, so that the correction is no larger than it must be. The level holds for
    few episodes too, where the largest of bootstrapped means is too certain: of six and 15
    treatments that gain nothing, one in three times.

    Args:
        reference: returns, shape [episodes].
        treatments: returns over the same episodes, shape [treatments, episodes].
        signs: `fixed_signs` or `sign_vectors` of the episodes.
    """
    gains = np.asarray(treatments, float) - np.asarray(reference, float)
    t = _flipped(gains, signs)
    p_values = (t.max(axis=1)[:, None] >= t[0] - ROUNDING).mean(axis=0)
    mean = gains.mean(axis=1)
    radius = _radius(gains, mean, signs)
    return BestOfMany(mean, mean - radius, mean + radius, p_values)


def _radius(gains: Floats, mean: Floats, signs: Floats) -> Floats:
    """How far from its mean each of `gains` [treatments, episodes] can lie, shape [treatments].

    What is flipped is what the means leave: bounds are for whatever gain there is, not for none.
    """
    n = gains.shape[1]
    if least_p(n) > ALPHA:
        return np.full(len(gains), np.inf)
    left = np.where(alike(gains)[:, None], 0.0, gains - mean[:, None])
    error = np.linalg.norm(left, axis=1) / n
    top = float(np.quantile(_flipped(left, signs).max(axis=1), 1 - ALPHA, method="higher"))
    # Of a gain that lies d off, t = d / (error^2 + d^2 / n)^0.5.
    reach = top / np.sqrt(1 - top**2 / n) if top**2 < n else np.inf
    return np.multiply(error, reach, out=np.zeros_like(error), where=error > 0)


def _flipped(x: Floats, signs: Floats) -> Floats:
    """t of every row of `x` [treatments, episodes] under `signs`: [vectors, treatments]."""
    size = np.linalg.norm(x, axis=1)
    return signs @ (x.T / np.where(size > 0, size, 1.0))


def _check_paired(x: Floats, y: Floats) -> None:
    if np.shape(x) != np.shape(y) or np.ndim(x) != 1:
        raise QuarlError(f"returns are not of the same episodes: {np.shape(x)} and {np.shape(y)}")
