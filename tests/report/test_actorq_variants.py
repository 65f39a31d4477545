from collections import Counter

import numpy as np
import pandas as pd
import pytest

from quarl_nb.report.actorq import variant_rules as rules
from quarl_nb.report.actorq.variants import (
    VARIANTS,
    variant_figure,
    variant_rows,
    variant_table,
)
from quarl_nb.report.pvalues import sign_flip_p
from quarl_nb.report.style import NothingToDrawError

SEEDS = range(8)
ALGOS = ("dqn", "ddpg", "td3", "sac", "d4pg")


def records(finals, algos=ALGOS, seeds=SEEDS, profile="full", spread=1.0):
    """Runs that rise in a line from 0 to `finals[variant]`, seeds apart by `spread`."""
    rows = []
    for algo in algos:
        for variant, final in finals.items():
            for seed in seeds:
                end = final + spread * seed
                rows.append({
                    "algo": algo, "env_id": "Task-v0", "variant": variant, "width": 64,
                    "seed": seed, "budget.steps": 1000, "profile": profile,
                    "curve_steps": [0, 500, 1000],
                    "curve_returns": [[0.0] * 10, [end / 2] * 10, [end] * 10],
                    "key": f"{algo}{variant}{seed}",
                })  # fmt: skip
    return pd.DataFrame(rows)


def test_rows_are_means_and_losses_by_hand():
    rows = variant_rows(records({"fp32": 100, "int8": 90}, algos=["dqn"])).set_index("variant")
    assert rows.loc["fp32", "final"] == pytest.approx(100 + 3.5)
    assert rows.loc["int8", "area"] == pytest.approx((90 + 3.5) / 2)
    assert rows.loc["int8", "final_loss"] == pytest.approx(10 / 103.5)
    assert rows.loc["int8", "area_loss"] == pytest.approx(10 / 103.5)
    assert rows.loc["int8", "final_loss_p_loss"] == 0.5**8  # eight pairs that agree, no less
    assert rows.loc["int8", "p_area_gain"] > 0.99
    assert set(rows.loc["int8", "keys"]) == {f"dqn{v}{s}" for v in ("fp32", "int8") for s in SEEDS}


def test_another_base():
    found = variant_rows(records({"fp32": 100, "int8": 50, "float8": 50}, algos=["dqn"]), "int8")
    assert found.set_index("variant").loc["float8", "final_loss"] == 0


@pytest.mark.parametrize("finals, verdict", [
    ({"float8": 100, "quantile8": 101}, "reproduced"),
    ({"float8": 100, "quantile8": 60}, "not reproduced"),
    ({"float8": 130, "quantile8": 100}, "inconclusive"),  # not equal, but nothing is lost
])  # fmt: skip
def test_other_quantizers(finals, verdict):
    frame = records({"int8": 100} | finals)
    found = rules.variants_equal(frame, ["float8", "quantile8"], "int8", ALGOS)
    assert found.verdict == verdict and set(found.keys) <= set(frame["key"])


@pytest.mark.parametrize("int8, algos, verdict", [
    (99, ALGOS, "reproduced"),
    (99, ALGOS[:4], "inconclusive"),
    (60, ALGOS, "not reproduced"),
    (0, ALGOS, "not reproduced"),
])  # fmt: skip
def test_many_algorithms(int8, algos, verdict):
    frame = records({"fp32": 100, "int8": int8}, algos=algos)
    assert rules.variant_keeps_return(frame, "int8", ALGOS).verdict == verdict


@pytest.mark.parametrize("failed, verdict", [(100, "reproduced"), (85.4, "inconclusive")])
def test_one_training_that_fails_of_eight_that_end_alike_must_not_pass_for_none(failed, verdict):
    assert sign_flip_p(np.array([5.0] * 7 + [85.4 - 95])) == 9 / 2**8  # of 5 % less what was lost
    frame = records({"fp32": 100, "int8": 100}, algos=["dqn"], spread=0.0)
    one = frame.index[(frame["variant"] == "int8") & (frame["seed"] == 7)][0]
    frame.at[one, "curve_returns"] = [[0.0] * 10, [50.0] * 10, [failed] * 10]
    found = rules.variant_keeps_return(frame, "int8", ["dqn"])
    assert found.verdict == verdict


@pytest.mark.parametrize("losing, verdict", [
    (5, "reproduced"), (3, "reproduced"), (2, "not reproduced"), (0, "not reproduced"),
])  # fmt: skip
def test_a_quantized_learner_likely_degrades(losing, verdict):
    frame = pd.concat([records({"fp32": 100, "learner8": 20}, ALGOS[:losing]),
                       records({"fp32": 100, "learner8": 100}, ALGOS[losing:])])
    found = rules.variant_loses(frame, "learner8", ALGOS)
    assert found.verdict == verdict
    assert found.measured.startswith(
        f"surely {losing} of 5 algorithms lose more than 5 %, {5 - losing} ")
    # Of half of the algorithms most of all five cannot be told.
    two = rules.variant_loses(frame[frame["algo"].isin(ALGOS[:2])], "learner8", ALGOS)
    assert two.verdict == "inconclusive" and "not measured: TD3" in two.measured


def test_an_algorithm_that_is_trained_in_two_ways_counts_once():
    once = records({"fp32": 100, "learner8": 20})
    longer = records({"fp32": 100, "learner8": 20}, ["dqn"]).assign(**{"budget.steps": 2000})
    found = rules.variant_loses(pd.concat([once, longer]), "learner8", ALGOS)
    assert found.measured.startswith("surely 5 of 5 algorithms")


@pytest.mark.parametrize("int8, noise, verdict", [
    (110, 104, "reproduced"), (100, 104, "inconclusive"),  # another task may have been meant
    (60, 104, "inconclusive"),
    (120, 60, "inconclusive"), (120, 100, "inconclusive"),  # int8 gains, though not as noise
    (103, 100, "inconclusive"),  # for certain, though less than 5 %
])  # fmt: skip
def test_noise(int8, noise, verdict):
    frame = records({"fp32": 100, "int8": int8, "noise8": noise})
    found = rules.noise_helps(frame, "int8", "noise8", ALGOS)
    gain = f"{100 * (noise - 100) / 103.5:.1f}%"
    assert found.verdict == verdict and f"to 256 levels: D4PG {gain} [" in found.measured
    assert f"certainly below 5 % with {5 if int8 < 105 else 0} of 5:" in found.measured
    assert {*found.keys} == {*frame["key"]}  # noise decides too, by as many runs
    few = frame[(frame["variant"] != "noise8") | (frame["seed"] < 3)]
    found = rules.noise_helps(few, "int8", "noise8", ALGOS)
    assert found.verdict == "inconclusive"
    assert "as few as 3 runs of a kind, where 5 decide" in found.measured


def test_a_gain_of_one_pair_of_runs_has_no_interval():
    one = records({"fp32": 100, "int8": 110, "noise8": 104}, algos=["dqn"], seeds=[0])
    found = rules.noise_helps(one, "int8", "noise8", ["dqn"])
    assert ": DQN 10.0% (noise as of weights rounded to 256 levels: DQN 4.0%)" in found.measured


def test_the_interval_is_the_gain_of_the_algorithm_that_surely_gains():
    mixed = pd.concat([records({"fp32": 100, "int8": final, "noise8": noise}, algos=[algo])
                       for algo, final, noise in (("dqn", 110, 104), ("td3", 97, 104))])
    found = rules.noise_helps(mixed, "int8", "noise8", ["dqn", "td3"])
    assert found.verdict == "reproduced"
    assert found.interval.value == pytest.approx(10 / 103.5)
    assert 0 < found.interval.low <= found.interval.value <= found.interval.high
    # As certain a gain where noise brings none is not the one that decides.
    alone = records({"fp32": 100, "int8": 120, "noise8": 100}, algos=["td3"])
    both = pd.concat([alone, mixed[mixed["algo"] == "dqn"]])
    found = rules.noise_helps(both, "int8", "noise8", ["dqn", "td3"])
    assert found.verdict == "reproduced"
    assert found.interval.value == pytest.approx(10 / 103.5)


def test_a_gain_by_quantization_with_one_algorithm_and_by_noise_with_another_is_undecided():
    mixed = pd.concat([records({"fp32": 100, "int8": int8, "noise8": noise}, algos=[algo])
                       for algo, int8, noise in (("dqn", 110, 97), ("td3", 97, 110))])
    assert rules.noise_helps(mixed, "int8", "noise8", ["dqn", "td3"]).verdict == "inconclusive"


def test_noisy_runs_and_those_without_noise_beside_decide_nothing():
    generator = np.random.default_rng(0)
    frame = records({"fp32": 100, "int8": 100, "noise8": 100})
    frame["curve_returns"] = [
        [[0.0] * 10, *generator.normal(100, 60, (2, 10)).tolist()] for _ in range(len(frame))
    ]
    found = rules.noise_helps(frame, "int8", "noise8", ALGOS)
    assert found.verdict == "inconclusive" and "to 256 levels" in found.measured
    alone = rules.noise_helps(records({"fp32": 100, "int8": 110}), "int8", "noise8", ALGOS)
    assert alone.verdict == "inconclusive" and "to 256 levels" not in alone.measured


@pytest.mark.parametrize("alone, helped, verdict", [
    (20, 100, "reproduced"),
    (20, 20, "inconclusive"),  # another help may do
    (100, 100, "not reproduced"),
    (100, 20, "not reproduced"),
])  # fmt: skip
def test_help_is_needed_where_it_fails_without(alone, helped, verdict):
    frame = records({"fp32": 100, "learner8": alone, "learner8_stochastic": helped})
    found = rules.needs_help(frame, "learner8", "learner8_stochastic", ALGOS)
    assert found.verdict == verdict and set(found.keys) == set(frame["key"])
    without = rules.needs_help(frame[frame["variant"] != "learner8"], "learner8",
                               "learner8_stochastic", ALGOS)  # fmt: skip
    assert without.verdict == "not measured"


def test_what_holds_for_all_needs_every_variant_and_algorithm():
    """That one loses, or gains, needs no more than one."""
    one, both = "learner8_stochastic", ["float8", "quantile8"]
    every = records(dict.fromkeys(("fp32", "int8", one, *both), 100))
    last = every["algo"] == "d4pg"
    for rule, verdict, missing in (
        (lambda frame: rules.variants_equal(frame, both, "int8", ALGOS), "reproduced", both[1]),
        (lambda frame: rules.variant_keeps_return(frame, one, ALGOS), "reproduced", one),
    ):
        assert rule(every).verdict == verdict
        for gone in (every["variant"] == missing) & last, last:
            found = rule(every[~gone])
            assert found.verdict == "inconclusive"
            assert f"D4PG, {VARIANTS[missing]}" in found.measured.split("not measured: ")[1]
    lost = records({"fp32": 100, "int8": 100, "float8": 60}, algos=ALGOS[:1])
    assert rules.variants_equal(lost, both, "int8", ALGOS).verdict == "not reproduced"
    gain = records({"fp32": 100, "int8": 110, "noise8": 104}, algos=ALGOS[:1])
    assert rules.noise_helps(gain, "int8", "noise8", ALGOS).verdict == "reproduced"
    other = records({"fp32": 100, "int8": 60}, algos=["qrdqn"])  # that no claim names
    found = rules.variant_keeps_return(pd.concat([every, other]), "int8", ALGOS)
    assert found.verdict == "reproduced"


def test_few_runs_and_smoke_decide_nothing():
    three = records({"fp32": 100, "int8": 99}, seeds=range(3))
    few = rules.variant_keeps_return(three, "int8", ALGOS)
    assert few.verdict == "inconclusive"
    assert "as few as 3 runs of a kind, where 5 decide" in few.measured
    smoke = records({"fp32": 100, "int8": 99}, profile="smoke")
    assert rules.noise_helps(smoke, "int8", "noise8", ALGOS).verdict == "not measured"
    found = rules.variants_equal(pd.DataFrame(), ["float8"], "int8", ALGOS)
    assert found.verdict == "not measured"


def test_table_and_figure_show_every_row():
    frame = records({"fp32": 100, "int8": 90})
    rows = variant_rows(frame)
    shown = variant_table(rows)
    algorithms = ["D4PG", "DDPG", "DQN", "SAC", "TD3"]  # in whatever order records come
    assert [*shown["algorithm"]] == [name for name in algorithms for _ in range(2)]
    assert shown["loss of final return"][1].startswith("9.7% [")
    figure, points = variant_figure(frame)
    assert len(figure.axes) == 10 and len(points) == 10 and not points["beyond_axis"].any()
    assert points["final_runs"][0].split()[:2] == ["100", "101"]
    # A learner that learns nothing is an arrow with its mean and leaves the axes to the others.
    figure, points = variant_figure(records({"fp32": 100, "int8": 90, "learner8": 10}))
    assert points.groupby("variant")["beyond_axis"].unique().map(list).to_dict() == {
        "fp32": [False], "int8": [False], "learner8": [True]}
    assert figure.axes[0].get_xlim()[0] > 80
    assert [text.get_text() for text in figure.axes[0].texts] == ["\u25c2 14"]
    with pytest.raises(NothingToDrawError):
        variant_figure(pd.DataFrame())


def test_a_mean_of_the_figure_is_over_the_seeds_that_every_variant_has():
    few, many = records({"int8": 90}, ["dqn"], range(2)), records({"fp32": 100}, ["dqn"], range(9))
    figure, points = variant_figure(pd.concat([many, few]))
    assert points.set_index("variant")["final"].to_dict() == {"fp32": 100.5, "int8": 90.5}
    drawn = Counter()
    for line in figure.axes[0].lines:
        drawn[line.get_label()] += len(line.get_xdata())
    assert drawn == {"a run of a seed that some lack": 7, "a run": 4, "mean over common seeds": 2}
    assert [len(runs.split()) for runs in points["final_runs"]] == [9, 2]
    apart = records({"int8": 90}, ["dqn"], range(20, 22))
    _, points = variant_figure(pd.concat([many, apart]))
    assert points.set_index("variant")["final"].to_dict() == {"fp32": 104.0, "int8": 110.5}


@pytest.mark.parametrize("name, one, other", [
    ("options", {"learning_rate": 0.001, "batch_size": 64}, {"learning_rate": 0.01}),
    ("updates_per_step", 1.0, 0.5), ("evaluations", 20, 10), ("episodes", 10, 5),
])  # fmt: skip
def test_runs_of_other_budgets_are_other_trainings(name, one, other):
    first, second = (
        records(finals, ["dqn"]).assign(**{f"budget.{name}": [budget] * 16})
        for finals, budget in (({"fp32": 100, "int8": 90}, one), ({"fp32": 20, "int8": 20}, other))
    )
    second["key"] = "other " + second["key"]
    rows = variant_rows(pd.concat([first, second], ignore_index=True))
    int8 = rows[rows["variant"] == "int8"]
    assert int8["runs"].tolist() == [8, 8]
    assert int8["final_loss"].tolist() == pytest.approx([10 / 103.5, 0])
    figure, points = variant_figure(pd.concat([first, second]))
    assert len(figure.axes) == 4 and points["final"].tolist() == [103.5, 93.5, 23.5, 23.5]
    if name == "options":  # the order of their names tells nothing
        second["budget.options"] = [dict(reversed(one.items()))] * 16
        second["seed"] += 8
        rows = variant_rows(pd.concat([first, second], ignore_index=True))
        assert rows["runs"].tolist() == [16, 16]


def test_half_of_the_algorithms_are_not_most():
    frame = pd.concat([records({"fp32": 100, "learner8": 20}, ALGOS[:2]),
                       records({"fp32": 100, "learner8": 100}, ALGOS[2:4])])
    assert rules.variant_loses(frame, "learner8", ALGOS[:4]).verdict == "not reproduced"


def test_of_two_trainings_of_an_algorithm_the_milder_counts():
    once = records({"fp32": 100, "learner8": 20})
    longer = records({"fp32": 100, "learner8": 100}, ["dqn"]).assign(**{"budget.steps": 2000})
    found = rules.variant_loses(pd.concat([once, longer]), "learner8", ALGOS)
    assert found.measured.startswith("surely 4 of 5 algorithms lose more than 5 %, 0 less")


def test_what_one_algorithm_shows_is_corrected_for_all():
    """Six pairs that agree have a p-value of 1/64: not enough for one of five or ten."""
    six = records({"fp32": 100, "int8": 110, "noise8": 104, "float8": 60, "quantile8": 60,
                   "learner8": 60}, seeds=range(6))  # fmt: skip
    for found in (rules.variants_equal(six, ["float8", "quantile8"], "int8", ALGOS),
                  rules.variant_keeps_return(six, "learner8", ALGOS),
                  rules.noise_helps(six, "int8", "noise8", ALGOS)):  # fmt: skip
        assert found.verdict == "inconclusive"


def test_a_return_that_never_rose_is_not_kept():
    frame = records({"fp32": 100, "int8": 100})
    flat = frame.assign(curve_returns=[3 * [returns[-1]] for returns in frame["curve_returns"]])
    found = rules.variant_keeps_return(flat, "int8", ALGOS)
    assert found.verdict == "inconclusive" and "with none of 5" in found.measured


def test_one_training_that_gains_of_eight_that_end_alike_may_be_a_gain():
    frame = records({"fp32": 100, "int8": 100}, algos=["dqn"], spread=0.0)
    one = frame.index[(frame["variant"] == "int8") & (frame["seed"] == 7)][0]
    frame.at[one, "curve_returns"] = [[0.0] * 10, [50.0] * 10, [129.2] * 10]
    assert sign_flip_p(np.array([2.5] * 7 + [2.5 - 29.2 / 4])) == 9 / 2**8  # of the areas
    row = variant_rows(frame).set_index("variant").loc["int8"]
    assert row["area_loss_p_no_gain"] == 1 and row["area_loss_p_no_loss"] < 0.05
