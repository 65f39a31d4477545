"""Statistics over training seeds, by hand and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from quarl_nb.report import seeds
from quarl_nb.report.seeds import SeedGains


def test_seeds_are_tested_by_students_t():
    x = [0.1, 0.3, 0.4, 0.2]
    found, reference = seeds.over_seeds(x), ttest_1samp(x, 0.0)
    interval = reference.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert seeds.p_above(x, 0.15) == pytest.approx(
        ttest_1samp(x, 0.15, alternative="greater").pvalue
    )
    assert np.isnan(seeds.over_seeds([1.0, 2.0]).low) and seeds.p_above([5.0, 5.0], 0.0) == 1.0
    assert seeds.p_above([5.0] * 3, 4.9) == 0.125 and seeds.p_above([5.0] * 3, 5.0) == 1.0


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1234.1])
def test_seeds_that_are_all_alike_decide_no_more_than_their_signs(value):
    # As floats three of 0.1 have a mean of 0.10000000000000002 and a deviation of 1e-17.
    x = [value, value * (1 + 1e-15), value]
    assert seeds.p_above(x, value - 0.05) == 0.125
    assert seeds.p_above(x, value) == seeds.p_above(x, value + 0.05) == 1.0
    spread = [value - 1e-6, value, value + 1e-6]  # far above rounding: Student's
    assert seeds.p_above(spread, value - 0.05) < 1e-6


def test_a_gain_and_its_interval_by_hand():
    found = SeedGains.of([8, 10, 9], [9, 10, 11], [9, 10, 11])
    # Gains of -0.1, 0, -0.2 over 0.9, 1, 1.1: variances of 0.01, a covariance of -0.005, each times
    # t(2)^2 / 3 = 6.1709: 0.93829 r^2 + 2 * 0.069146 r - 0.051709 = 0.
    interval = found.interval()
    assert interval.value == pytest.approx(-0.1)
    assert (interval.low, interval.high) == pytest.approx((-0.31974, 0.17236), abs=2e-5)


def test_the_ends_of_a_gain_are_where_students_t_begins_to_exclude():
    generator = np.random.default_rng(0)
    for n in (3, 5, 8):
        base, ours = generator.normal(100, 5, n), generator.normal(80, 10, n)
        found = SeedGains.of(ours, generator.normal(100, 5, n), base)
        interval = found.interval()
        assert interval.low < interval.value < interval.high
        for end in (interval.low, interval.high):
            p = ttest_1samp(found.gain - end * found.base, 0.0).pvalue
            assert p == pytest.approx(0.05, rel=1e-6)


def test_a_share_that_is_always_lost_is_certain_wherever_float32_lands():
    base = [5000.0, 5500.0, 4200.0]
    interval = SeedGains.of([1250, 1375, 1050], base, base).interval()
    assert (interval.low, interval.high) == pytest.approx((-0.75, -0.75), abs=1e-6)


def test_where_returns_are_costs_a_smaller_one_is_a_gain():
    base = [-200.0, -190.0, -210.0]
    found = SeedGains.of([-100, -95, -105], base, base)
    assert found.interval().value == pytest.approx(0.5) and found.base.mean() == pytest.approx(1)
    p = found.p_values()
    assert p["p_gain"] < 0.01 and p["p_no_loss"] < 0.01 and p["p_loss"] > 0.99


def test_what_has_no_interval():
    few = SeedGains.of([1.0, 2.0], [2.0, 2.0], [2.0, 2.0]).interval()
    assert few.value == -0.25 and np.isnan([few.low, few.high]).all()
    failing = [93.0, 94.0, -99.9]  # may have a mean of 0
    wide = SeedGains.of([93.0, 92.0, 94.0], failing, failing).interval()
    assert (wide.low, wide.high) == (-np.inf, np.inf)
    none = SeedGains.of(failing, failing, failing).interval()
    assert (none.value, none.low, none.high) == (0, 0, 0)
    assert SeedGains.of([1, 2, 3], [1, 0, -1], [1, 0, -1]) is None


def test_the_margin_is_that_of_each_seeds_own_float32():
    base = [100.0, 200.0, 300.0]
    p = SeedGains.of([90, 200, 310], base, base).p_values()
    # 5 % of 100, 200, 300 are 5, 10, 15; gains of -10, 0, 10.
    for name, left in (("p_no_loss", [-5, 10, 25]), ("p_loss", [5, -10, -25]),
                       ("p_no_gain", [15, 10, 5]), ("p_gain", [-10, 0, 10])):  # fmt: skip
        assert p[name] == pytest.approx(ttest_1samp(left, 0.0, alternative="greater").pvalue)


@pytest.mark.parametrize("n", [3, 8])
def test_intervals_of_gains_hold_the_truth_in_95_of_100(n):
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        base = generator.normal(100, 10, n)
        interval = SeedGains.of(generator.normal(70, 20, n), base, base).interval()
        held += interval.low <= -0.3 <= interval.high
    assert held / 2000 == pytest.approx(0.95, abs=0.02)  # standard deviation 0.5 %


def test_values_that_are_the_bound_but_for_rounding_are_not_above_it():
    assert seeds.p_above([0.1 + 0.2] * 3, 0.3) == 1.0  # 0.30000000000000004
    assert seeds.p_above([0.3] * 3, 0.2) == 1 / 8


def test_of_seeds_whose_float32_may_earn_nothing_every_ratio_is_possible():
    # The mean of base, 1, has the variance 1/4 / 3; t^2 = 18.5 times that is above 1.
    found = SeedGains(np.array([0.1, 0.2, 0.3]), np.array([0.5, 1.0, 1.5])).interval()
    assert (found.low, found.high) == (-np.inf, np.inf)
