"""p-values: of few differences exactly, of many by resampling, and corrected for many tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quarl_nb.report.stats import ALPHA, ROUNDING, Floats

FEW = 12  # differences, up to which `sign_flip_p` is worth its 2^n signs
# Flips of more: of 40,000, 33 are 5 % over 60 tests, known to a fifth; fewer of many differences,
# so that their signs take 32 MB, but not below 4,000.
FLIPS, FEWEST_FLIPS, SIGNS = 40_000, 4_000, 4_000_000


def least_p(n: int) -> float:
    """The smallest one-sided p-value that n independent differences can give.

    That of the sign test when all agree. A bootstrap over four games that agree has no spread,
    and would be certain of what four games cannot show.
    """
    return 0.5**n


def sign_vectors(n: int, generator: np.random.Generator, flips: int | None = None) -> Floats:
    """The signs that n independent differences could as well have, shape [vectors, n] of 1 and -1.

    All 2^n for up to `FEW`, else `flips` random ones. The first are all 1, as observed: so the
    share of vectors that reach what was observed is a p-value, and never 0.
    """
    if n <= FEW:
        return _all_signs(n)
    flips = flips or min(FLIPS, max(FEWEST_FLIPS, SIGNS // n))
    signs = generator.choice([-1.0, 1.0], (flips, n))
    signs[0] = 1.0
    return signs


@lru_cache(maxsize=4)  # few numbers of episodes, each of many tests
def fixed_signs(n: int) -> Floats:
    """The `sign_vectors` of n differences from a generator of its own, the same for every test."""
    return sign_vectors(n, np.random.default_rng(0))


def sign_flip_p(differences: NDArray[np.floating]) -> float:
    """One-sided p-value of "the differences lie symmetrically around 0": small where their mean is
    above.

    Fisher's randomization test over the `fixed_signs` of n independent differences: exact for up
    to `FEW`, where a bootstrap is too certain (of eight, three times as often as it says; of 16,
    in 7 % of cases instead of 5 %). Where differences are skewed the mean is tested less well: at
    5 %, of 16 with a long lower tail (exponential) 12 % pass, of 100 8 %; with a long upper one
    2 to 3 %. Where most are the same and one in eight lies far below, so that their mean is 0, of
    eight 34 % pass, those without such a one.
    """
    x = np.asarray(differences, float)
    rounding = ROUNDING * np.abs(x).sum()
    return float(np.mean(fixed_signs(len(x)) @ x >= x.sum() - rounding))


def _all_signs(n: int) -> Floats:
    return np.where(np.arange(2**n)[:, None] >> np.arange(n) & 1, -1.0, 1.0)


def permutation_p(
    x: Floats, y: Floats, generator: np.random.Generator, resamples: int = 999
) -> float:
    """One-sided p-value of "x and y are draws of the same": small where x has the higher mean.

    Fisher's permutation test: shape [n] and [m], in [m + n over n] orders at the most, so that
    few values are enough where they stand out, and no spread is assumed.
    """
    pooled = np.concatenate([x, y])
    orders = generator.permuted(np.tile(pooled, (resamples, 1)), axis=1)
    largest = max(1.0, float(np.abs(pooled).max()))
    least = np.mean(x) - ROUNDING * largest  # ties, but for rounding
    return share(orders[:, : len(x)].mean(axis=1) >= least)


def share(hits: NDArray[np.bool_]) -> float:
    """Share of random orders that hit, with the observed one counted so that it is never 0."""
    return float((hits.sum() + 1) / (len(hits) + 1))


def holm(p_values: Sequence[float]) -> Floats:
    """Holm's step-down adjusted p-values, in the given order (family-wise error)."""
    p = np.asarray(p_values, float)
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


def at_least(p_values: Sequence[float] | Floats, alpha: float = ALPHA) -> int:
    """How many of these effects are real at the least, with a confidence of 1 - alpha.

    The largest k whose partial conjunction, that fewer than k are real, is rejected by Simes' test
    of the n - k + 1 largest p-values (Benjamini & Heller 2008, "Screening for partial conjunction
    hypotheses", section 3). Such hypotheses are nested, so that going up to the first that stands
    needs no correction.

    Args:
        p_values: one each, of independent tests.
    """
    p = np.sort(np.asarray(p_values, float))
    for k in range(len(p)):
        rest = p[k:]
        if np.min(rest * len(rest) / np.arange(1, len(rest) + 1)) > alpha:
            return k
    return len(p)
