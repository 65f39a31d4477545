"""Statistics against hand-computed values, rliable's numbers and simulations with known truth."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, permutation_test

from quarl_nb.errors import QuarlError
from quarl_nb.report import compare, pvalues, stats

RLIABLE = json.loads((Path(__file__).parent / "fixtures" / "rliable.json").read_text())


def test_an_interval_as_columns_of_a_row_and_with_the_other_sign() -> None:
    interval = stats.Interval(0.2, 0.1, 0.4)
    row = interval.columns("loss")
    assert list(row.items()) == [("loss", 0.2), ("loss_low", 0.1), ("loss_high", 0.4)]
    assert stats.Interval.of(pd.Series(row), "loss") == interval
    assert -interval == stats.Interval(-0.2, -0.4, -0.1)


def test_a_named_generator_draws_the_same_in_every_process() -> None:
    """Python's own hash of a text differs from process to process."""
    by_hand = np.random.default_rng(0x352441C2)  # CRC-32 of "abc"
    assert stats.named_generator("abc").integers(10**9) == by_hand.integers(10**9)


def tasks(name: str) -> list[np.ndarray]:
    return list(np.array(RLIABLE[name]).T)


def test_iqm_and_improvement_equal_rliable() -> None:
    assert stats.iqm(tasks("x")) == pytest.approx(RLIABLE["iqm_x"], abs=1e-12)
    assert stats.iqm(tasks("y")) == pytest.approx(RLIABLE["iqm_y"], abs=1e-12)
    found = stats.probability_of_improvement(tasks("x"), tasks("y"))
    assert found == pytest.approx(RLIABLE["probability_of_improvement"], abs=1e-12)


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [(stats.iqm, "iqm_interval"), (lambda s: float(np.mean(np.stack(s))), "mean_interval")],
)
def test_stratified_bootstrap_matches_rliable(statistic, expected) -> None:
    found = stats.stratified_bootstrap(tasks("x"), statistic, np.random.default_rng(1))
    assert [found.low, found.high] == pytest.approx(RLIABLE[expected], abs=0.012)


def test_iqm_by_hand() -> None:
    assert stats.iqm([np.array([100.0, 1, 2, 3]), np.array([4.0, 5, 6, -100])]) == 3.5
    assert stats.iqm([np.array([7.0])]) == 7
    # Shares of 1/4 and 1/4, and of four times 1/8: half of all is in 2, 3 and 4.
    one, two = np.array([2.0, 9.0, 2.0, 9.0]), np.array([1.0, 3.0, 4.0, 0.0])
    assert stats.iqm([one, two]) == pytest.approx((2 / 4 + 3 / 8 + 4 / 8) / (4 / 8))
    assert stats.iqm([np.repeat(one, 500), two]) == pytest.approx(stats.iqm([one, two]))


def test_improvement_counts_ties_half() -> None:
    x, y = np.array([1.0, 2]), np.array([1.0, 0])
    assert stats.probability_of_improvement([x], [y]) == (0.5 + 1 + 1 + 1) / 4


def test_bootstrap_weights_are_resamples() -> None:
    weights = stats.bootstrap_weights(8, np.random.default_rng(0), 50)
    assert weights.shape == (50, 8)
    assert np.allclose(weights.sum(axis=1), 1)
    assert np.allclose(weights * 8, np.round(weights * 8))


def test_paired_difference_ignores_what_episodes_share() -> None:
    generator = np.random.default_rng(0)
    shared = 1000 * generator.standard_normal(50)
    weights = stats.bootstrap_weights(50, generator)
    found = compare.paired_difference(shared + 2, shared, weights)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))


def test_the_least_p_is_that_of_the_sign_test() -> None:
    assert [pvalues.least_p(n) for n in (1, 4, 5)] == [0.5, 0.0625, 0.03125]
    reference = np.full(4, 20.0)
    weights = stats.bootstrap_weights(4, np.random.default_rng(0), 2000)
    loss = compare.relative_loss(reference, reference, weights)
    assert loss.p_equivalent == 0.0625 and loss.p_loss == 1
    signs = pvalues.sign_vectors(4, np.random.default_rng(0))
    best = compare.best_of_many(reference, reference + [[0], [1]], signs)
    assert best.best() == 1 and best.p_values[1] == 0.0625
    assert (best.low == -np.inf).all() and (best.high == np.inf).all()  # 95 % of four games: all


def test_sign_flips_by_hand() -> None:
    # Sums of (1, 2, -1): of the eight signs 2 is reached by 4 (+ + -), 2 (+ + +), 2 (- + -).
    assert pvalues.sign_flip_p(np.array([1.0, 2.0, -1.0])) == 3 / 8
    assert pvalues.sign_flip_p(np.array([0.3] * 5)) == pvalues.least_p(5)
    assert pvalues.sign_flip_p(np.zeros(4)) == 1
    assert pvalues.sign_flip_p(np.full(100, 1e6 / 3)) == 1 / 40_000  # never 0


def test_many_differences_flip_at_random_as_scipy_flips_them():
    """Of 40 pairs the 2^40 signs would fill every memory there is."""
    for mean in (0.0, 0.2, 0.4):
        x = np.random.default_rng(3).normal(mean, 1, 40)
        other = permutation_test((x,), np.mean, permutation_type="samples", n_resamples=20_000,
                                 alternative="greater", rng=np.random.default_rng(1)).pvalue
        found = pvalues.sign_flip_p(x)
        assert found == pytest.approx(other, abs=0.025) and found == pvalues.sign_flip_p(x) > 0


def test_few_pairs_keep_their_level() -> None:
    """Of eight pairs a bootstrap's p-value is below 5 % too often, the exact one is not."""
    generator, weights = np.random.default_rng(6), stats.bootstrap_weights(
        8, np.random.default_rng(0), 500)  # fmt: skip
    exact = resampled = 0
    for _ in range(2000):
        reference = 100 + generator.standard_normal(8)
        treatment = 95 + generator.standard_normal(8)  # loses just the 5 %
        loss = compare.relative_loss(reference, treatment, weights)
        draws = weights @ (reference - treatment) / (weights @ reference)
        exact += loss.p_no_loss <= 0.05
        resampled += pvalues.share(draws >= 0.05) <= 0.05
    assert exact / 2000 <= 0.06 < 0.07 <= resampled / 2000


@pytest.mark.parametrize("n", [8, 16, 40])
def test_losses_are_tested_by_flipping_signs_however_many_pairs_there_are(n: int) -> None:
    """Five pairs lose 1 less than the margin of 5, the others just as much: of 32 signs of the five
    one has their sum. A bootstrap misses all five in (1 - 5 / n)^n of its draws: less than 1 %."""
    reference, weights = np.full(n, 100.0), stats.bootstrap_weights(n, np.random.default_rng(0))
    lost = np.full(n, 5.0) - (np.arange(n) < 5)
    loss = compare.relative_loss(reference, reference - lost, weights)
    assert loss.p_no_loss == pytest.approx(1 / 32, abs=0.01) and loss.p_loss == 1
    gain = compare.relative_loss(reference, reference + lost, weights)
    assert gain.p_no_gain == pytest.approx(1 / 32, abs=0.01) and gain.p_no_loss < 0.005
    more = compare.relative_loss(reference, reference - 10 + lost, weights)
    assert more.p_loss == pytest.approx(1 / 32, abs=0.01)


@pytest.mark.parametrize("n", [5, 16])
def test_both_intervals_of_a_loss_are_expanded(n: int) -> None:
    x = np.random.default_rng(1).normal(100, 5, n)
    weights = stats.bootstrap_weights(n, np.random.default_rng(0))
    loss = compare.relative_loss(x, np.full(n, 95.0), weights)
    draws = 1 - 95 / (weights @ x)
    for found, t in ((loss.interval, {5: 2.776, 16: 2.131}), (loss.tost, {5: 2.132, 16: 1.753})):
        outside = norm.sf(t[n] * math.sqrt(n / (n - 1)))  # Student's t at 97.5 and 95 %
        ends = np.quantile(draws, [outside, 1 - outside])
        assert [found.low, found.high] == pytest.approx(ends.tolist(), abs=2e-4)
        assert found.value == pytest.approx(1 - 95 / x.mean())


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_loss_of_a_few_pairs_is_held_by_its_interval(n: int) -> None:
    """No redraw of so few lies beyond them: the ends of three would hold it in 3 cases of 4."""
    generator = np.random.default_rng(5)
    hits = []
    for _ in range(500):
        x, noise = generator.normal([[100.0], [0.0]], [[5.0], [3.0]], (2, n))
        weights = stats.bootstrap_weights(n, generator, 2000)
        found = compare.relative_loss(x, 0.9 * x + noise, weights).interval
        hits.append(found.low <= 0.1 <= found.high)
    assert 0.92 <= np.mean(hits) <= 0.99


def test_a_single_pair_has_no_wider_interval_than_itself() -> None:
    one = compare.paired_difference(np.array([3.0]), np.array([1.0]), np.ones((2000, 1)))
    assert (one.value, one.low, one.high) == (2, 2, 2)


def test_signs_are_drawn_once_for_as_many_differences(monkeypatch) -> None:
    pvalues.fixed_signs.cache_clear()
    drawn: list[int] = []

    def draw(n: int, generator: np.random.Generator) -> np.ndarray:
        drawn.append(n)
        return generator.choice([-1.0, 1.0], (10, n))

    monkeypatch.setattr(pvalues, "sign_vectors", draw)
    for n in (20, 30, 20, 30):
        pvalues.sign_flip_p(np.ones(n))
    pvalues.fixed_signs.cache_clear()
    assert drawn == [20, 30]


def test_mean_ratio_is_welchs_and_holds_the_truth() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([4.0, 4.0, 4.0])
    found = stats.mean_ratio(x, y)
    reach = np.exp(4.302653 * 1 / 3**0.5 / 2)  # t of 2 degrees, standard error over the mean
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5 / reach, 0.5 * reach))
    assert np.isnan(stats.mean_ratio(x[:1], y).low) and np.isnan(stats.mean_ratio(x, 0 * y).value)
    generator = np.random.default_rng(1)
    hits = [abs(np.log(r.value)) <= np.log(r.high / r.value) for r in (
        stats.mean_ratio(*generator.normal(1, 0.1, (2, 3))) for _ in range(2000))]  # fmt: skip
    assert 0.94 <= np.mean(hits) <= 0.98  # a percentile bootstrap: 0.81


def test_a_percentile_interval_of_few_values_is_expanded() -> None:
    # Student's t of 4 degrees reaches 2.776; times sqrt(5 / 4), 3.104 of a normal distribution.
    assert stats.expanded(5) == pytest.approx(1 - 2 * 0.000955, abs=1e-5)
    assert stats.expanded(5, 0.9) == pytest.approx(1 - 2 * 0.00858, abs=1e-4)  # 2.132, 2.383
    assert stats.expanded(10_000) == pytest.approx(0.95, abs=1e-4)
    assert stats.expanded(1) == 0.95  # no spread to expand
    assert stats.expanded(2) > 0.999_999  # 12.7 * sqrt(2), 18 deviations


@pytest.mark.parametrize("n", [3, 5, 10, 60])
def test_paired_interval_covers_the_truth(n: int) -> None:
    generator = np.random.default_rng(3)
    hits = 0
    for _ in range(500):
        x = generator.normal(1.0, 2.0, n)
        weights = stats.bootstrap_weights(n, generator, 1000)
        found = compare.paired_difference(x, np.zeros(n), weights)
        hits += found.low <= 1.0 <= found.high
    assert 0.92 <= hits / 500 <= 0.98  # not expanded, of five: 0.86


def loss_of(fraction: float, noise: float = 0.02, mean: float = 100.0) -> compare.Loss:
    generator = np.random.default_rng(5)
    reference = mean + 10 * generator.standard_normal(100)
    own = noise * generator.standard_normal(100)
    treatment = reference - abs(mean) * (fraction + own - own.mean())
    return compare.relative_loss(reference, treatment, stats.bootstrap_weights(100, generator))


@pytest.mark.parametrize("mean", [100.0, -150.0])
def test_relative_loss_decides_what_it_should(mean: float) -> None:
    small, large, gain = (loss_of(x, mean=mean) for x in (0.01, 0.2, -0.2))
    assert small.interval.value == pytest.approx(0.01, abs=0.002)
    assert small.p_equivalent < 0.05 < small.p_loss
    assert large.p_loss < 0.05 < large.p_no_loss
    assert gain.p_no_loss < 0.05 < gain.p_equivalent


def test_tost_interval_and_p_value_agree() -> None:
    for fraction in (0.03, 0.045, 0.049, 0.051, 0.055):
        loss = loss_of(fraction, noise=0.05)
        assert (loss.p_no_loss <= 0.05) == (loss.tost.high < 0.05)


def test_noise_alone_is_undecided() -> None:
    loss = loss_of(0.04, noise=0.5)
    assert min(loss.p_no_loss, loss.p_loss) > 0.05


@pytest.mark.parametrize("n, successes", [(30, 1), (30, 3), (100, 3)])
def test_a_reference_that_hardly_ever_earns_has_a_loss_without_interval(n, successes) -> None:
    weights = stats.bootstrap_weights(n, np.random.default_rng(0))
    reference, treatment = np.zeros((2, n))
    reference[:successes], treatment[-successes - 1 :] = 1, 1
    for other in (treatment, reference - 1):
        loss = compare.relative_loss(reference, other, weights)
        assert loss.interval.value == pytest.approx(1 - other.mean() / reference.mean())
        assert str(loss.interval) == f"{loss.interval.value:.4g}"
        assert np.isnan([*vars(loss.interval).values()][1:]).all()
    # Of more successes few redraws have none: they lie beyond the ends.
    reference[: n // 5] = 1
    ends = compare.relative_loss(reference, treatment, weights).interval
    assert -10 < ends.low < ends.value < ends.high < 10


def test_relative_loss_refuses_what_it_cannot_pair() -> None:
    weights = stats.bootstrap_weights(3, np.random.default_rng(0), 10)
    with pytest.raises(QuarlError, match="same episodes"):
        compare.relative_loss(np.ones(3), np.ones(4), weights)
    with pytest.raises(QuarlError, match="is 0"):
        compare.relative_loss(np.array([-1.0, 0, 1]), np.ones(3), weights)


def test_holm_by_hand() -> None:
    # sorted .01 .02 .03 .04 -> *4 *3 *2 *1 = .04 .06 .06 .04 -> running maximum
    assert pvalues.holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert pvalues.holm([0.9, 0.8]) == pytest.approx([1, 1])


def test_effects_that_are_real_at_the_least_by_hand() -> None:
    # All three: 3 * .01, 3/2 * .02, .5: .03. Two: 2 * .02, .5: .04. The last alone: .5.
    assert pvalues.at_least([0.5, 0.01, 0.02]) == 2
    assert pvalues.at_least([0.02, 0.02]) == 2 and pvalues.at_least([0.04, 0.9]) == 0
    # Six ties of five seeds each: none stands out, all together are no accident.
    assert pvalues.at_least([1 / 32] * 6) == 6 and pvalues.at_least([1 / 16] * 6) == 0
    assert pvalues.at_least([0.04], alpha=0.01) == 0 == pvalues.at_least([])
    assert pvalues.at_least([stats.ALPHA]) == 1  # 5 % is certain enough, as everywhere


def test_effects_that_are_not_there_are_seldom_counted() -> None:
    """Three of six are real, as certain as can be: a fourth is counted in 5 % of the draws."""
    draws = np.random.default_rng(0).random((4000, 3))
    counted = [pvalues.at_least([0.0, 0.0, 0.0, *nulls]) > 3 for nulls in draws]
    assert 0.04 < np.mean(counted) < 0.06


def test_sign_vectors_are_all_there_are_or_random_ones() -> None:
    few = pvalues.sign_vectors(3, np.random.default_rng(0))
    assert len({*map(tuple, few)}) == 8 and (few[0] == 1).all()
    assert pvalues.sign_vectors(12, np.random.default_rng(0)).shape == (2**12, 12)
    many = pvalues.sign_vectors(20, np.random.default_rng(0), 5000)
    assert many.shape == (5000, 20) and set(np.unique(many)) == {-1, 1} and (many[0] == 1).all()
    assert np.abs(many.T @ many / 5000 - np.eye(20)).max() < 0.07  # even, and independent
    for n, flips in ((13, 40_000), (200, 20_000), (5_000, 4_000)):  # 32 MB, within bounds
        assert pvalues.sign_vectors(n, np.random.default_rng(0)).shape == (flips, n)


def false_gains(n: int, trials: int = 600) -> tuple[float, float, float]:
    """Of 15 treatments like the reference over n episodes: how often one has p <= 5 %, one a
    lower bound above 0, and one a bound above 0 if each is looked at alone."""
    generator = np.random.default_rng(n)
    by_p = by_bound = single = 0
    for trial in range(trials):
        reference, *treatments = generator.standard_normal((16, n))
        signs = pvalues.sign_vectors(n, generator, 400)
        found = compare.best_of_many(reference, np.array(treatments), signs)
        by_p += found.p_values.min() <= 0.05
        by_bound += found.low.max() > 0
        if trial < 100:
            single += any(compare.best_of_many(reference, row[None], signs).low[0] > 0
                          for row in treatments)
    return by_p / trials, by_bound / trials, single / 100


@pytest.mark.parametrize("n", [6, 10, 30, 40])
def test_best_of_many_keeps_its_level_where_looking_at_each_does_not(n: int) -> None:
    # Three standard errors of 600 trials are 0.027. The bootstrap's level was 0.32 at n = 6.
    by_p, by_bound, single = false_gains(n)
    assert by_p <= 0.077 and by_bound <= 0.077
    assert single > 0.15


def test_bounds_hold_for_all_treatments_at_once_whatever_they_gain() -> None:
    """Also beside treatments that lose much."""
    generator = np.random.default_rng(7)
    truth = np.array([-5.0] * 8 + [0.0, 0.0, 0.0, 3.0])
    misses = np.zeros(2)
    for _ in range(600):
        gains = generator.standard_normal((12, 10)) + truth[:, None]
        signs = pvalues.sign_vectors(10, generator)
        found = compare.best_of_many(np.zeros(10), gains, signs)
        misses += [(found.low > truth).any(), (found.high < truth).any()]
    assert (misses / 600 <= 0.077).all()


def test_best_of_many_by_hand() -> None:
    """One treatment: sums of (1, 2, -1), three flips of eight as high (`sign_flip_p`)."""
    signs = pvalues.sign_vectors(3, np.random.default_rng(0))
    found = compare.best_of_many(np.zeros(3), np.array([[1.0, 2, -1]]), signs)
    assert found.p_values.tolist() == [3 / 8]
    # Beside (0, 1, 0): t = 2 / 6^0.5 and 1. With the second sign + one of both is 1 or more, with
    # - the first is 0 at the most.
    both = compare.best_of_many(np.zeros(3), np.array([[1.0, 2, -1], [0, 1, 0]]), signs)
    assert both.p_values.tolist() == [1 / 2, 1 / 2]
    # The means of 1, 3, ..., 9 leave -4 to 4: of 32 flips two have the largest t, 12 / 40^0.5, and
    # 95 % none above. Off by d, t = 5 d / (40 + 5 d^2)^0.5, the same at d = 2.4 / 0.28^0.5.
    five = compare.best_of_many(np.zeros(5), np.array([[1.0, 3, 5, 7, 9]]),
                                pvalues.sign_vectors(5, np.random.default_rng(0)))  # fmt: skip
    assert five.p_values.tolist() == [1 / 32]
    assert five.low == pytest.approx(5 - 2.4 / 0.28**0.5)
    assert five.high == pytest.approx(5 + 2.4 / 0.28**0.5)


def test_best_of_many_finds_a_planted_gain() -> None:
    generator = np.random.default_rng(2)
    reference = 10 * generator.standard_normal(60)
    treatments = reference + generator.standard_normal((15, 60))
    treatments[4] += 2
    found = compare.best_of_many(reference, treatments, pvalues.sign_vectors(60, generator))
    assert found.best() == 4
    assert (np.delete(found.p_values, 4) > 0.05).all()  # they have p-values of their own
    assert found.low[4] > 0 and found.p_values[4] < 0.01
    assert (np.delete(found.low, 4) < 0).all()


def test_the_best_is_the_most_certain_of_those_that_gain_enough() -> None:
    values = {"gain": [4.8, 8.0, 9.0, 7.0], "low": [4.7, 5.0, -1.0, 3.0],
              "high": [4.9, 9.0, 19.0, 9.0], "p_values": [0.001, 0.02, 0.3, 0.001]}  # fmt: skip
    found = compare.BestOfMany(**{name: np.array(value) for name, value in values.items()})
    assert found.best(5.0) == 3  # before 1, of the larger bound: less certain
    assert found.best(7.5) == 1
    assert found.best(8.5) == 1  # 2 gains more, but that is not certain: the largest bound
    assert found.best() == 0


def test_best_of_many_without_any_difference() -> None:
    signs = pvalues.sign_vectors(5, np.random.default_rng(0))
    found = compare.best_of_many(np.full(5, 500.0), np.full((3, 5), 500.0), signs)
    assert (found.p_values == 1).all() and (found.low == 0).all()


def test_an_interval_in_words() -> None:
    assert str(stats.Interval(1.5, 1.25, 2.0)) == "1.5 [1.25, 2]"
    assert str(stats.Interval(1.5, math.nan, math.nan)) == "1.5"


def test_wilson_interval_by_hand() -> None:
    # 45 of 100: (0.45 + 1.9207 / 100) / 1.038415 -+ 1.96 / 1.038415 * sqrt(0.002475 + 9.604e-5)
    found = stats.wilson(45, 100)
    assert (found.low, found.high) == pytest.approx((0.3562, 0.5476), abs=1e-4)
    assert stats.wilson(0, 50).low == 0 and 0.05 < stats.wilson(0, 50).high < 0.08
    assert stats.wilson(50, 50).high == pytest.approx(1)


@pytest.mark.parametrize("sign", [1, -1])
def test_alike_is_relative_to_the_larger_of_value_and_1(sign: int) -> None:
    assert stats.alike(sign * np.array([1e7, 1e7 + 4e-9]))
    assert not stats.alike(sign * np.array([1.0, 1 + 1e-8]))
    found = stats.alike(sign * np.array([[0.0, 1e-10], [0.0, 1e-8]]))
    assert found.tolist() == [True, False]


def test_a_mean_has_an_expanded_interval() -> None:
    values, weights = np.arange(5.0), stats.bootstrap_weights(5, np.random.default_rng(0))
    found = stats.mean_interval(values, weights)
    ends = np.quantile(weights @ values, [0.000955, 1 - 0.000955])  # 3.104 deviations
    assert (found.value, found.low, found.high) == pytest.approx((2, *ends), abs=0.01)


def test_median_ratio_by_hand() -> None:
    """Of 27 redraws of three 7 have the smallest as their median, 13 the middle one."""
    x, y = np.array([30.0, 1.0, 2.0]), np.array([4.0, 4.0, 4.0])
    found = stats.median_ratio(x, y, np.random.default_rng(0))
    assert found == stats.Interval(0.5, 0.25, 7.5)
    middle = stats.median_ratio(x, y, np.random.default_rng(0), alpha=0.6)
    assert middle == stats.Interval(0.5, 0.5, 0.5)


def test_ratios_of_two_values_and_of_values_without_spread() -> None:
    four = np.full(2, 4.0)
    found = stats.mean_ratio(np.array([1.0, 3.0]), four)
    reach = np.exp(12.706205 / 2)  # t of 1 degree, standard error over the mean
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5 / reach, 0.5 * reach))
    assert stats.mean_ratio(np.full(2, 2.0), four) == stats.Interval(0.5, 0.5, 0.5)


def test_returns_of_both_signs_lose_a_share_of_their_mean() -> None:
    """300 and -100 in turn have a mean of 100: 7 lost of each are 7 %, not 7 of 200."""
    x = np.tile([300.0, -100.0], 50)
    weights = stats.bootstrap_weights(100, np.random.default_rng(0))
    loss = compare.relative_loss(x, x - 7, weights)
    assert loss.p_loss < 0.05 and loss.p_no_loss > 0.95
    assert loss.interval.value == pytest.approx(0.07)
    assert loss.interval.low < 0.065 < 0.075 < loss.interval.high


def test_no_interval_where_more_redraws_of_the_reference_are_0_than_lie_beyond_an_end() -> None:
    """Of 101 redraws 2.5 % are 2."""
    one = np.array([1.0])
    for zeros, is_there in ((2, True), (3, False)):
        weights = (np.arange(101) >= zeros).astype(float)[:, None]
        interval = compare.relative_loss(one, 0 * one, weights).interval
        assert np.isfinite(interval.low) == is_there


def test_of_treatments_as_certain_the_best_gains_more() -> None:
    values = {"gain": [8.0, 9.0, 7.0], "low": [5.0] * 3, "high": [11.0] * 3,
              "p_values": [0.01] * 3}  # fmt: skip
    found = compare.BestOfMany(**{name: np.array(value) for name, value in values.items()})
    assert found.best() == found.best(5.0) == 1


def test_a_gain_that_is_always_the_same_widens_no_other_bounds() -> None:
    """What rounding leaves of it has a t of its own, as large as any."""
    reference = np.array([10.1, 20.2, 30.3, 40.7, 50.9])
    treatments = reference + np.array([[0.3] * 5, [-0.3] * 5, [1, 3, 5, 7, 9]])
    signs = pvalues.sign_vectors(5, np.random.default_rng(0))
    found = compare.best_of_many(reference, treatments, signs)
    assert found.low == pytest.approx([0.3, -0.3, 5 - 2.4 / 0.28**0.5])  # the last as alone
    assert found.high == pytest.approx([0.3, -0.3, 5 + 2.4 / 0.28**0.5])


def test_flips_that_tie_but_for_rounding_count_in_best_of_many() -> None:
    """0.1 + 0.2 - 0.3 is 6e-17: of eight flips five are at least as high, two of them 0."""
    signs = pvalues.sign_vectors(3, np.random.default_rng(0))
    found = compare.best_of_many(np.zeros(3), np.array([[0.1, 0.2, -0.3]]), signs)
    assert found.p_values.tolist() == [5 / 8]


def test_a_gain_of_just_the_least_counts() -> None:
    values = {"gain": [5.0, 8.0], "low": [4.0, 5.0], "high": [6.0, 11.0],
              "p_values": [0.001, 0.02]}  # fmt: skip
    found = compare.BestOfMany(**{name: np.array(value) for name, value in values.items()})
    assert found.best(5.0) == 0


def test_orders_that_tie_but_for_rounding_count_in_a_permutation_test() -> None:
    # Of 20 choices of three, 8 have one of each value (mean 0.2), 6 a higher mean: 14 of 20.
    x = np.array([0.1, 0.2, 0.3])
    p = pvalues.permutation_p(x, x, np.random.default_rng(0), 20_000)
    assert p == pytest.approx(14 / 20, abs=0.02)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # a quantile beside infinity
def test_redraws_that_are_infinite_do_not_take_the_reach_of_few_values() -> None:
    draws = np.array([-1.0, 1.0] * 2000 + [np.inf])
    found = stats.expanded_interval(0.0, draws, 3)
    # t of 2 degrees, 4.302653, times sqrt(3 / 2) deviations of 1.
    assert found.low == pytest.approx(-4.302653 * 1.5**0.5, rel=1e-5)
