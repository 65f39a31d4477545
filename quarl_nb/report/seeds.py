"""Statistics over training seeds: few, and the only ones that tell how another training fares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from quarl_nb.report.pvalues import least_p
from quarl_nb.report.stats import ALPHA, MARGIN, Floats, Interval, alike

# Below this Student's t says next to nothing (two seeds: 12.7 standard errors).
MIN_SEEDS = 3


@dataclass(frozen=True)
class SeedGains:
    """What each training seed gains over another way to train, beside what float32 earns from it.

    The gain is the ratio of their means. Its interval and its tests take either for an estimate
    from these seeds: were float32's mean taken for known, a way that always loses all would seem to
    lose more or less where float32's seeds differ.

    Args:
        gain, base: shape [seeds], as shares of |mean return of float32| over these seeds; the mean
            of `base` is 1, also where returns are costs and its own was negative.
    """

    gain: Floats
    base: Floats

    @classmethod
    def of(
        cls, ours: Sequence[float], theirs: Sequence[float], base: Sequence[float]
    ) -> SeedGains | None:
        """Of mean returns by seed; None where those of float32, `base`, have a mean of 0."""
        a, b, own = (np.asarray(means, float) for means in (ours, theirs, base))
        scale = own.mean()
        return cls((a - b) / abs(scale), own / scale) if scale else None

    def interval(self, alpha: float = ALPHA) -> Interval:
        """The ratios that Student's t over seeds does not exclude (Fieller 1954), all where `base`
        may be 0; without ends for fewer than `MIN_SEEDS`."""
        n, value = len(self.gain), float(self.gain.mean())
        if n < MIN_SEEDS:
            return Interval(value, float("nan"), float("nan"))
        if not self.gain.any():  # nothing, of whatever base
            return Interval(0.0, 0.0, 0.0)
        # |mean(gain - ratio * base)| <= t * error: a quadratic in the ratio, squared.
        covered = float(student.ppf(1 - alpha / 2, n - 1)) ** 2 * np.cov(self.gain, self.base) / n
        squared, linear = 1 - covered[1, 1], value - covered[0, 1]
        if squared <= 0:
            return Interval(value, float("-inf"), float("inf"))
        reach = np.sqrt(max(linear**2 - squared * (value**2 - covered[0, 0]), 0.0))
        low, high = (linear - reach) / squared, (linear + reach) / squared
        return Interval(value, float(low), float(high))

    def p_values(self) -> dict[str, float]:
        """p_gain, p_no_gain, p_loss, p_no_loss: small where it gains, does not gain the margin,
        loses more than the margin, does not."""
        room = MARGIN * self.base
        left = {"gain": self.gain, "no_gain": room - self.gain,
                "loss": -self.gain - room, "no_loss": self.gain + room}  # fmt: skip
        return {f"p_{name}": p_above(values.tolist(), 0.0) for name, values in left.items()}


def over_seeds(values: Sequence[float], alpha: float = ALPHA) -> Interval:
    """Mean of one number a seed and its Student's t interval; without ends for too few seeds."""
    x = np.asarray(values, float)
    if len(x) < MIN_SEEDS:
        return Interval(float(x.mean()), float("nan"), float("nan"))
    reach = float(student.ppf(1 - alpha / 2, len(x) - 1)) * _error(x)
    return Interval(float(x.mean()), float(x.mean() - reach), float(x.mean() + reach))


def p_above(values: Sequence[float], bound: float) -> float:
    """One-sided p-value of "the mean is at most `bound`": small where it is above.

    1 for fewer than `MIN_SEEDS` values, which decide nothing. Values that are all `alike`, as at
    the most that an environment gives, leave Student's t without a scale: `least_p` of them, or 1.
    """
    x = np.asarray(values, float)
    if len(x) < MIN_SEEDS:
        return 1.0
    if alike(x):
        return least_p(len(x)) if not alike(np.append(x, bound)) and x[0] > bound else 1.0
    return float(student.sf((x.mean() - bound) / _error(x), len(x) - 1))


def _error(x: np.ndarray) -> float:
    return float(x.std(ddof=1) / np.sqrt(len(x)))
