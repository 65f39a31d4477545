"""QAT: gains over seeds by hand, and their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from planted_qat import (
    LSQ,
    car,
    five_seeds_and_three_of_learned_steps,
    five_seeds_of_fp32_three_of_4_bits,
    knee,
    none,
    of_seed,
    planted,
)
from quarl_nb.errors import QuarlError
from quarl_nb.report import qat, seeds


def test_gains_are_taken_seed_by_seed():
    frame = planted(none, policies=["a2c-CartPole-v1"], noise=0.0)
    for seed, (fp32, four) in enumerate([(100.0, 90.0), (200.0, 200.0), (300.0, 310.0)]):
        for way, value in ((qat.gains.FP32, fp32), (qat.gains.minmax(4), four)):
            at = frame["key"] == f"a2c-CartPole-v1{way}{seed}"
            frame.loc[at, "returns"] = pd.Series([[value] * 30], index=frame.index[at])
    (row,) = qat.gains.gains(qat.gains.trainings(frame), qat.gains.minmax(4)).to_dict("records")
    assert row["gain"] == pytest.approx(0.0) and row["seeds"] == 3
    # The mean of 100, 200, 300 may be 0 (t = 3.46 of 4.30), and a gain any share of it.
    assert (row["gain_low"], row["gain_high"]) == (-np.inf, np.inf)
    assert row["reference"] == 200 and row["mean"] == 200
    assert len(row["keys"]) == 6
    # 5 % of float32's own 100, 200, 300 are 5, 10, 15: what is left of them is as uncertain.
    for name, left in (("p_no_loss", [-5, 10, 25]), ("p_loss", [5, -10, -25]),
                       ("p_no_gain", [15, 10, 5])):  # fmt: skip
        p = ttest_1samp(left, 0.0, alternative="greater").pvalue
        assert row[name] == pytest.approx(p)


@pytest.mark.parametrize(
    ("name", "value"), [("timesteps", 20_000), ("quant_delay", 0), ("evaluations", 3),
                        ("eval_episodes", 6), ("first_seed", 7)],
)
def test_trainings_of_other_budgets_are_not_compared(name, value):
    budget = {"timesteps": 10_000, "quant_delay": 5000, "evaluations": 2, "eval_episodes": 5,
              "first_seed": 1_000_000, "episodes": 30}  # fmt: skip
    frame = planted(none).assign(**{f"budget.{name}": n for name, n in budget.items()})
    expected = qat.gains.way_table(qat.gains.trainings(planted(none)))
    pd.testing.assert_frame_equal(qat.gains.way_table(qat.gains.trainings(frame)), expected)
    other = (frame["policy"] == "a2c-CartPole-v1") & (frame["precision"] == "affine4")
    frame.loc[other, f"budget.{name}"] = value
    message = (f"^a2c-CartPole-v1: trainings that are compared had {name} {value} and "
               f"{budget[name]}; run all with the same$")
    rows = qat.gains.trainings(frame)
    with pytest.raises(QuarlError, match=message):
        qat.gains.gains(rows, qat.gains.minmax(4))
    assert len(qat.gains.gains(rows, qat.gains.minmax(5))) == 3
    # Policies may differ: the recipe of one is shorter.
    frame.loc[frame["policy"] == "a2c-CartPole-v1", f"budget.{name}"] = value
    assert len(qat.gains.gains(qat.gains.trainings(frame), qat.gains.minmax(4))) == 3
    frame.loc[other & (frame["seed"] == 1), f"budget.{name}"] = np.nan
    with pytest.raises(QuarlError, match=f"{name} ({value} and unknown|unknown and {value});"):
        qat.gains.gains(qat.gains.trainings(frame), qat.gains.minmax(4))


def test_copies_of_float32_are_ways_of_their_own():
    rows = qat.gains.trainings(planted(knee))
    eight = rows[(rows["precision"] == "affine8") & (rows["policy"] == "ppo-CartPole-v1")]
    means = eight.groupby("method")["mean"].mean()
    assert means["minmax"] == pytest.approx(400, abs=4)
    assert means["ptq"] == pytest.approx(360, abs=4)
    assert len(rows) == 3 * 3 * (1 + 7 + 7)
    assert qat.gains.trainings(pd.DataFrame()).empty


def test_the_table_tells_losses():
    tidy, shown = qat.tables.qat_tables(planted(knee))
    four = tidy[(tidy["policy"] == "ddpg-Pendulum-v1") & (tidy["precision"] == "affine4")
                & (tidy["method"] == "minmax")].iloc[0]
    assert four["gain"] == pytest.approx(-0.3, abs=0.02)
    assert four["gain_low"] < -0.3 + 0.02 and four["mean_low"] < four["mean"] < four["mean_high"]
    assert list(shown.columns)[:3] == ["fp32", "8 bits", "7 bits"] and "8* (PTQ)" in shown
    assert shown.loc["PPO CartPole", "4 bits"].startswith("280")
    tidy, shown = qat.tables.qat_tables(planted(knee, n_seeds=1))
    assert "[" not in shown.loc["PPO CartPole", "4 bits"]
    assert all(len(table) == 0 for table in qat.tables.qat_tables(pd.DataFrame()))


def test_mean_and_interval_are_over_the_seeds_that_float32_has_too():
    tidy, shown = qat.tables.qat_tables(five_seeds_of_fp32_three_of_4_bits())
    row = tidy[(tidy["precision"] == "affine4") & (tidy["method"] == "minmax")].iloc[0]
    interval = seeds.over_seeds([90.0, 310.0, 500.0])
    assert (row["seeds"], row["mean"], row["reference"]) == (3, 300, 300)
    assert (row["mean_low"], row["mean_high"]) == (interval.low, interval.high)
    assert shown.loc["A2C CartPole", "4 bits"].endswith("] (seeds: 3)")
    assert shown.loc["A2C CartPole", "fp32"].startswith("300.0 [")
    assert "seeds" not in shown.loc["A2C CartPole", "fp32"]


def test_the_fewest_bits_are_compared_over_the_seeds_of_both_methods():
    frame = five_seeds_and_three_of_learned_steps()
    frame = of_seed({0: 1.0, 1: 200, 2: 300, 3: 400, 4: 500}, qat.gains.FP32, frame)
    row = qat.few_bits.few_bits_table(frame).loc["A2C CartPole"]
    # Losses, seed by seed: -89, 0, -10 and -99, 10, 50 of 501, which may be 0 (`SeedGains`).
    assert row["4 bits", "monitored"] == "-19.8% [-inf%, inf%]"
    assert row["4 bits", "learned steps"] == "-7.8% [-inf%, inf%]"
    surer = of_seed({0: 220.0, 1: 200, 2: 300, 3: 400, 4: 500}, qat.gains.FP32, frame)
    table = qat.few_bits.few_bits_table(surer)
    loss = -seeds.SeedGains.of([90, 200, 310], [220, 200, 300], [220, 200, 300]).interval()
    assert table.loc["A2C CartPole", ("4 bits", "monitored")] == loss.text(".1%")
    # A return of 1 is no better than what a policy that looks at nothing earns on CartPole.
    assert (row["seeds", ""], row["learned in fp32", ""]) == (3, 2)
    plain = qat.few_bits.few_bits_table(planted(none, policies=["a2c-CartPole-v1"]))
    assert ("4 bits", "learned steps") not in plain and ("2 bits", "monitored") in plain
    assert ("5 bits", "monitored") not in plain
    assert qat.few_bits.few_bits_table(pd.DataFrame()).empty


def test_eight_bits_beside_ptq_and_float32():
    table = qat.tables.eight_bits_table(qat.gains.trainings(planted(knee, noise=0.0)))
    assert table.loc["DDPG Pendulum"].tolist() == [
        "0.0% [0.0%, 0.0%]", "-10.0% [-10.0%, -10.0%]", "10.0% [10.0%, 10.0%]"
    ]
    one = qat.tables.eight_bits_table(qat.gains.trainings(planted(knee, n_seeds=1, noise=0.0)))
    assert one.loc["PPO CartPole", "QAT over 8*"] == "10.0%"
    assert qat.tables.eight_bits_table(qat.gains.trainings(pd.DataFrame())).empty


def test_trainings_know_who_learned_a_copy_as_its_float32_policy():
    frame = car([93.0, -99.9], [-99.9, 92.0], copies=1)
    frame["ptq_returns"] = frame["ptq_returns"].where(frame["method"] == "none")
    rows = qat.gains.trainings(frame).set_index(["method", "seed"])
    assert rows["learned"].to_dict() == {
        ("none", 0): True, ("ptq", 0): True, ("none", 1): False, ("ptq", 1): False,
        ("minmax", 0): False, ("minmax", 1): True,
    }  # fmt: skip
    assert qat.gains.of_learned_seeds(qat.gains.trainings(frame.head(0))).empty
    # By the returns themselves, where nobody asked before.
    assert len(qat.gains.of_learned_seeds(frame)) == len(frame)
    stuck = frame[(frame["seed"] == 0) | (frame["method"] == "none")]
    assert qat.gains.of_learned_seeds(stuck)["seed"].tolist() == [0, 0]


def test_failures_that_strike_either_way_are_no_loss_of_one():
    """Half of all trainings fail, whatever their precision: 5 % of such tests may find a loss."""
    generator = np.random.default_rng(0)
    p = []
    for _ in range(60):
        fp32, eight = np.where(generator.random((2, 8)) < 0.5, -99.9, generator.normal(93, 1, 8))
        rows = qat.gains.of_learned_seeds(car(fp32, eight, copies=1))
        p += qat.gains.gains(qat.gains.trainings(rows), qat.gains.minmax(8))["p_loss"].tolist()
    assert (np.array(p) <= 0.05).sum() <= 8  # 3 expected; more than 8 have a chance of 1 in 250


def test_of_gains_that_are_noise_one_in_twenty_passes_at_5_percent():
    rows = qat.gains.trainings(planted(none, noise=0.0, policies=["a2c-CartPole-v1"]))
    ways = [qat.gains.FP32, qat.gains.minmax(8)]
    pair = pd.concat(qat.gains.trained_in(rows, way) for way in ways)
    many = pd.concat([pair.assign(policy=f"policy {i:03d}") for i in range(400)])
    many["mean"] += 20 * np.random.default_rng(0).standard_normal(len(many))
    p = qat.gains.gains(many, qat.gains.minmax(8))["p_gain"]
    assert len(p) == 400
    # Of 400 the shares have standard deviations of 1.1 % and 2.5 %.
    assert (p <= 0.05).mean() == pytest.approx(0.05, abs=0.03)
    assert (p <= 0.5).mean() == pytest.approx(0.5, abs=0.07)


def of_returns(ways: dict[qat.gains.Way, dict[int, float]]) -> pd.DataFrame:
    """The trainings of one policy with these returns by seed."""
    frame = planted(none, policies=["a2c-CartPole-v1"], n_seeds=5, noise=0.0, extra=[LSQ])
    for way, value in ways.items():
        frame = of_seed(value, way, frame)
    return qat.gains.trainings(frame)


def test_gains_are_shares_of_what_the_same_seeds_of_float32_earn():
    rows = of_returns({qat.gains.FP32: {0: 100.0, 1: 200, 2: 300, 3: 400, 4: 500},
                       qat.gains.minmax(4): {0: 130, 1: 230, 2: 330}})  # fmt: skip
    (row,) = qat.gains.gains(rows, qat.gains.minmax(4)).to_dict("records")
    assert row["gain"] == pytest.approx(30 / 200) and row["reference"] == 200


def test_the_margin_of_a_seed_that_float32_has_not_is_that_of_its_mean():
    rows = of_returns({qat.gains.FP32: {0: 100.0, 1: 200, 2: 300}, LSQ: dict.fromkeys(range(4), 50),
                       qat.gains.minmax(4): {0: 50, 1: 49, 2: 51, 3: 50}})  # fmt: skip
    (row,) = qat.gains.gains(rows, qat.gains.minmax(4), LSQ).to_dict("records")
    assert row["seeds"] == 4 and row["reference"] == row["mean"] == 50
    p = ttest_1samp([5.0, 9, 16, 10], 0.0, alternative="greater").pvalue  # 5, 10, 15 and 10
    assert row["p_no_loss"] == pytest.approx(p)


def test_no_gain_is_told_over_a_float32_return_of_0():
    rows = of_returns({qat.gains.FP32: dict.fromkeys(range(5), 0.0)})
    assert qat.gains.gains(rows, qat.gains.minmax(4)).empty


def test_a_gain_over_ptq_has_its_mean_and_its_episodes():
    frame = planted(knee, policies=["ppo-CartPole-v1"])
    frame["ptq_returns"] = [
        {name: values[:10] for name, values in copies.items()} if isinstance(copies, dict) else None
        for copies in frame["ptq_returns"]
    ]
    rows = qat.gains.trainings(frame)
    (row,) = qat.gains.gains(rows, qat.gains.minmax(8), qat.gains.ptq()).to_dict("records")
    assert row["episodes"] == 10 and row["gain"] == pytest.approx(0.1, abs=0.01)
    assert [row["reference"], row["mean"]] == pytest.approx([360, 400], abs=4)
    assert qat.gains.gains(rows, qat.gains.minmax(8))["episodes"].item() == 30


def test_a_float32_of_another_budget_is_no_scale_of_other_ways():
    rows = of_returns({})
    rows["budget.timesteps"] = np.where(rows["precision"] == "fp32", 20_000.0, 10_000.0)
    with pytest.raises(QuarlError, match="timesteps (10000 and 20000|20000 and 10000)"):
        qat.gains.gains(rows, qat.gains.minmax(4), LSQ)
