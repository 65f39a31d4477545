"""Statistics over training seeds: few, and the only ones that tell how another training fares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student

from quarl_nb.report.pvalues import least_p
from quarl_nb.report.stats import ALPHA, Interval, alike

# Below this Student's t says next to nothing (two seeds: 12.7 standard errors).
MIN_SEEDS = 3


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
