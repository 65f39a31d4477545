"""Rank correlation within groups, by permutation tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from quarl_nb.report.pvalues import share
from quarl_nb.report.stats import RESAMPLES, ROUNDING, Floats


@dataclass(frozen=True)
class RankCorrelation:
    """A correlation of ranks and its one-sided p-values: `p_above` is small where it is above 0,
    `p_below` where it is below. NaN and 1 where nothing is left to compare."""

    rho: float
    p_above: float
    p_below: float

    def __str__(self) -> str:
        return "unknown" if np.isnan(self.rho) else f"{self.rho:.2f} (p = {self.p_above:.2g})"


def correlation_within(
    x: Floats, y: Floats, groups: Sequence[str], generator: np.random.Generator,
    resamples: int = RESAMPLES,
) -> RankCorrelation:
    """Correlation of the ranks of `x` and `y` (shape [n] each), less their means in each of the
    `groups` [n]: what groups differ in counts for nothing.

    Fisher's permutation test, stratified: under the null hypothesis the values of `y` could as
    well stand in any other order within each group. A group of one tells nothing.
    """
    ranks, names = np.stack([rankdata(x), rankdata(y)]), np.asarray(groups)
    found, draws, squares = 0.0, np.zeros(resamples), np.zeros(2)
    for name in np.unique(names):
        a, b = (side - side.mean() for side in ranks[:, names == name])
        found += a @ b
        draws += generator.permuted(np.tile(b, (resamples, 1)), axis=1) @ a
        squares += [a @ a, b @ b]
    if not squares.all():
        return RankCorrelation(float("nan"), 1.0, 1.0)
    size = float(np.sqrt(squares.prod()))
    least = ROUNDING * size  # ties, but for rounding
    return RankCorrelation(found / size, share(draws >= found - least),
                           share(draws <= found + least))  # fmt: skip
