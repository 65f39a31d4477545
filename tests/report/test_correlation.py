"""Rank correlation within groups: by hand, against SciPy, and its level where nothing is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from quarl_nb.report.correlation import correlation_within


def within(x: list[float], y: list[float], groups: str):
    return correlation_within(np.array(x), np.array(y), [*groups], np.random.default_rng(0))


def test_in_one_group_it_is_spearmans() -> None:
    generator = np.random.default_rng(1)
    x = generator.standard_normal(30).round(1)  # with ties
    y = 0.3 * x + generator.standard_normal(30)
    found = correlation_within(x, y, ["a"] * 30, generator)
    assert found.rho == pytest.approx(spearmanr(x, y).statistic)
    assert found.p_above == pytest.approx(spearmanr(x, y, alternative="greater").pvalue, abs=0.02)
    assert found.p_below == pytest.approx(1 - found.p_above, abs=0.02)


def test_what_groups_differ_in_counts_for_nothing() -> None:
    """Over all the larger x has the smaller y; within both groups it has the larger one."""
    found = within([1, 2, 3, 11, 12, 13], [30, 40, 50, 1, 2, 3], "aaabbb")
    assert found.rho == pytest.approx(1)
    assert found.p_above == pytest.approx(1 / 36, abs=0.01)  # of 6 orders one, in both
    # Products of -1, 0, 1 with 0, 1, -1 and with 0, -1, 1: -1 and 1. Two groups have a sum of 0 or
    # more in 23 of 36 pairs of 2, 1, 1, -1, -1, -2.
    even = within([1, 2, 3, 11, 12, 13], [2, 3, 1, 12, 11, 13], "aaabbb")
    assert even.rho == pytest.approx(0) and even.p_above == pytest.approx(23 / 36, abs=0.03)
    assert spearmanr([1, 2, 3, 11, 12, 13], [2, 3, 1, 12, 11, 13]).statistic > 0.7


def test_groups_of_one_or_alike_tell_nothing() -> None:
    alone = within([1, 2, 3], [1, 2, 3], "abc")
    assert np.isnan(alone.rho) and alone.p_above == alone.p_below == 1
    assert str(alone) == "unknown"
    assert np.isnan(within([5, 5, 7], [1, 2, 3], "aab").rho)
    beside = within([1, 2, 3, 99], [1, 2, 3, -99], "aaab")
    assert beside.rho == pytest.approx(1) and str(beside).startswith("1.00 (p = 0.1")  # 1 / 6


def test_groups_that_differ_keep_the_level() -> None:
    """Nothing within groups, much between them: a test at 5 % finds it in 5 % of cases."""
    generator = np.random.default_rng(2)
    names = np.repeat([*"abcdefgh"], 5)
    hits = 0
    for _ in range(400):
        offset = np.repeat(10 * generator.standard_normal(8), 5)
        x, y = (offset + generator.standard_normal(40) for _ in range(2))
        found = correlation_within(x, y, names.tolist(), generator, 200)
        hits += found.p_above <= 0.05
    assert hits / 400 <= 0.08  # of 400 the share has a standard deviation of 1.1 %


def test_ties_count_for_either_side() -> None:
    """Of two pairs half of the orders are as observed, however they are ordered."""
    for y, rho in (([1.0, 2.0], 1), ([2.0, 1.0], -1)):
        found = correlation_within(np.array([1.0, 2.0]), np.array(y), ["a", "a"],
                                   np.random.default_rng(0))  # fmt: skip
        assert found.rho == pytest.approx(rho)
        half, all_ = (found.p_above, found.p_below)[::rho]
        assert half == pytest.approx(0.5, abs=0.05) and all_ == 1
