"""Claims of PTQ where the truth is known: losses, hardness, weights."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from quarl_nb.report.correlation import RankCorrelation
from quarl_nb.report.ptq import rules, sweet_spot_rules
from quarl_nb.report.pvalues import at_least, holm
from quarl_nb.report.stats import ALPHA


@pytest.mark.parametrize(
    ("loss", "verdict"), [(0.01, "reproduced"), (0.2, "not reproduced"), (0.05, "inconclusive")]
)
def test_no_loss_and_similar(records, loss: float, verdict: str) -> None:
    frame = records(lambda *_: loss, ("affine8",))
    assert rules.no_loss(frame, ["affine8"]).verdict == verdict
    found = rules.similar_rewards(frame, ["affine8"], algos=["a2c", "ddpg"])
    assert found.verdict == verdict
    assert len(found.keys) == 6  # two A2C policies and one of DDPG, each with its fp32
    assert found.interval is not None and found.interval.low <= loss + 0.02


@pytest.mark.parametrize("everyone", [True, False])
def test_a_policy_that_earns_nothing_has_no_loss_and_decides_nothing(records, everyone) -> None:
    frame = records(lambda *_: 0.01, ("affine8", "affine4"))
    earns = frame["policy"] != "dqn-PongNoFrameskip-v4"  # 0 is learned there
    zeros = [[0.0] * 40] * len(frame)
    frame["returns"] = frame["returns"].where(earns & (not everyone), pd.Series(zeros))
    for rule in (rules.no_loss, rules.similar_rewards, rules.hardness_differs):
        found = rule(frame, ["affine8"])
        assert found.verdict == "inconclusive"
        assert ("undefined (fp32 earns 0)" in found.measured) == \
            (everyone and rule is not rules.hardness_differs)


def test_a_gain_is_no_loss_but_not_similar(records) -> None:
    frame = records(lambda *_: -0.2, ("affine8",))
    assert rules.no_loss(frame, ["affine8"]).verdict == "reproduced"
    assert rules.similar_rewards(frame, ["affine8"]).verdict == "inconclusive"


def test_one_bad_policy_refutes_and_is_named(records) -> None:
    frame = records(lambda policy, *_: 0.5 if policy.startswith("dqn") else 0.0, ("affine8",))
    found = rules.no_loss(frame, ["affine8"])
    assert found.verdict == "not reproduced"
    assert "5 of 6" in found.measured and "dqn-Pong" in found.measured


def test_a_larger_loss_that_is_not_certain_is_not_shown_as_what_decided(records) -> None:
    frame = records(lambda policy, *_: 0.3 if policy.startswith("dqn") else 0.0, ("affine8",))
    wild = (frame["policy"] == "ppo-CartPole-v1") & (frame["precision"] == "affine8")
    [at] = frame.index[wild]
    frame.at[at, "returns"] = [490 * (0.6 + 3 * (-1) ** i) for i in range(40)]  # 40 % on average
    found = rules.no_loss(frame, ["affine8"])
    assert found.verdict == "not reproduced" and found.interval is not None
    assert re.search(r"1 loses more than 5 %; largest loss of those [23]\d.*dqn-", found.measured)
    assert 0.2 < found.interval.low < 0.3 < found.interval.high < 0.4


def test_the_best_of_the_widths_counts(records) -> None:
    frame = records(lambda policy, precision, _: 0.0 if precision == "affine8" else 0.5,
                    ("affine6", "affine7", "affine8"))
    assert rules.no_loss(frame, ["affine6", "affine7", "affine8"]).verdict == "reproduced"
    assert rules.no_loss(frame, ["affine6", "affine7"]).verdict == "not reproduced"


def test_a_good_width_must_be_good_for_having_been_chosen_of_three(records) -> None:
    widths = ("affine6", "affine7", "affine8")
    policies = {"ppo-CartPole-v1": ("ppo", "CartPole-v1", 100.0)}
    for loss in np.linspace(0.03, 0.05, 81):
        frame = records(lambda *_, loss=loss: loss, widths, policies)
        best = rules.losses_at(frame, widths)["p_no_loss"].min()
        if ALPHA / 3 < best <= ALPHA:
            break
    else:
        pytest.fail("no loss in between")
    assert rules.no_loss(frame, widths).measured.startswith("0 of 1 policies without loss")


def test_an_interval_beside_a_verdict_says_of_which_level_it_is(records) -> None:
    frame = records(lambda *_: 0.2, tuple(f"affine{bits}" for bits in range(2, 9)))
    row = rules.losses_at(frame, ["affine8"]).sort_values("loss").iloc[-1]
    texts = [f"{100 * row[name]:.1f}%" for name in ("loss", "tost_low", "tost_high")]
    found = rules.no_loss(frame, ["affine8"])
    assert "{} [{}, {}], 90 % interval (".format(*texts) in found.measured
    assert found.interval is not None and found.interval.high < row["loss_high"]
    assert sweet_spot_rules.sweet_spot_exists(frame).measured.startswith(
        "0 of 6 policies have a sweet spot; surest (90 % interval for all widths): ")


def test_of_how_many_policies_a_claim_surely_holds_stands_beside_it(records) -> None:
    """Some that pass at 5 % each would pass by luck: all at once fewer are sure."""
    found = rules.no_loss(records(lambda p, *_: 0.5 * ("Pong" in p), ("affine8",)), ["affine8"])
    assert found.measured.startswith("5 of 6 policies without loss (surely 5 of 6), 1 loses more")
    widths = ("affine6", "affine8")
    for noise in np.linspace(0.05, 0.3, 26):
        frame = records(lambda *_: 0.0, widths, noise=noise)
        losses = rules.losses_at(frame, widths)
        p = np.minimum(2 * losses.groupby("policy")["p_no_loss"].min(), 1)
        if 0 < (sure := at_least(p.tolist())) < (good := (p <= ALPHA).sum()):
            break
    else:
        pytest.fail("as many are sure as pass")
    measured = rules.no_loss(frame, widths).measured
    assert measured.startswith(f"{good} of 6 policies without loss (surely {sure} of 6), ")


def test_few_episodes_or_policies_decide_nothing(records) -> None:
    few = rules.no_loss(records(lambda *_: 0.0, ("affine8",), episodes=10), ["affine8"])
    assert few.verdict == "inconclusive" and "only 10 episodes" in few.measured
    one = records(lambda *_: 0.0, ("affine8",), {"ppo-CartPole-v1": ("ppo", "CartPole-v1", 100.0)})
    for rule in (rules.no_loss, rules.hardness_differs):
        found = rule(one, ["affine8"])
        assert found.verdict == "inconclusive" and found.measured.endswith(" (only 1 policy)")
    lost = rules.no_loss(records(lambda *_: 0.9, ("affine8",), episodes=10), ["affine8"])
    assert lost.verdict == "inconclusive"
    frame = records(lambda *_: 0.0, ("affine8",))
    assert rules.similar_rewards(frame, ["affine8"], algos=["dqn"]).verdict == "inconclusive"
    assert rules.similar_rewards(frame, ["affine7"]).verdict == "not measured"


def test_hardness_differs(records) -> None:
    def mixed(policy: str, *_: str) -> float:
        return 0.5 if policy.startswith("dqn") else 0.0

    # DQN loses in Pong, where and with which nobody else plays: is it the task, or the algorithm?
    found = rules.hardness_differs(records(mixed, ("affine4",)), ["affine4"])
    assert found.verdict == "inconclusive"
    one = records(lambda policy, *_: 0.5 * (policy == "ppo-CartPole-v1"), ("affine4",))
    found = rules.hardness_differs(one, ["affine4"])  # not a2c there, nor ppo elsewhere
    assert found.verdict == "reproduced"
    assert "both by 1 algorithm and in 1 environment" in found.measured
    # Two trainings of one algorithm in one environment differ in neither.
    names = ("ppo-CartPole-v1", "public/ppo-CartPole-v1")
    twins = dict.fromkeys(names, ("ppo", "CartPole-v1", 490.0))
    two = records(lambda policy, *_: 0.5 * (policy == "ppo-CartPole-v1"), ("affine4",), twins)
    assert rules.hardness_differs(two, ["affine4"]).verdict == "inconclusive"
    same = records(lambda *_: 0.0, ("affine4",))
    assert rules.hardness_differs(same, ["affine4"]).verdict == "not reproduced"


def test_one_policy_of_many_must_lose_for_certain(records) -> None:
    for loss in np.linspace(0.05, 0.06, 51):
        frame = records(lambda policy, *_, loss=loss: loss * policy.startswith("dqn"), ("affine4",))
        p = rules.losses_at(frame, ["affine4"])["p_loss"].min()
        if ALPHA / 6 < p <= ALPHA:
            break
    else:
        pytest.fail("no loss in between")
    found = rules.hardness_differs(frame, ["affine4"])
    assert found.verdict == "inconclusive"
    assert found.measured.startswith("0 of 6 policies lose more than 5 %, 5 less")


GRID = {f"{algo}-E{i}-v0": (algo, f"E{i}-v0", 100.0)
        for algo in ("a2c", "dqn", "ppo") for i in range(5)}  # fmt: skip


def harder(policy: str, *_: str) -> float:
    """A loss that grows from task to task and from algorithm to algorithm of `GRID`."""
    algo, task, _ = policy.split("-")
    return 0.02 * int(task[1:]) + 0.1 * ("a2c", "dqn", "ppo").index(algo)


def with_weights(frame: pd.DataFrame, widest: Callable[[str], float]) -> pd.DataFrame:
    weights = pd.DataFrame([
        {"key": f"w of {policy}", "policy": policy, "precision": "affine8",
         "range": [0.1, 20 + widest(policy), 0.2]} for policy in GRID
    ])  # fmt: skip
    return pd.concat([frame, weights], ignore_index=True)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "reproduced"), (-1, "not reproduced")])
def test_wider_weights(records, sign: int, verdict: str) -> None:
    frame = records(harder, ("affine4",), GRID)
    found = rules.wider_weights_lose_more(
        with_weights(frame, lambda policy: sign * harder(policy)), ["affine4"])
    assert found.verdict == verdict and "w of ppo-E3-v0" in found.keys
    assert f"rank correlation of range and loss {sign:.2f} over 15 policies" in found.measured
    assert f"within algorithms, {sign:.2f} (p =" in found.measured
    assert f"within environments, {sign:.2f} (p =" in found.measured
    assert found.interval is not None and found.interval.value == pytest.approx(sign)
    assert rules.wider_weights_lose_more(frame, ["affine4"]).verdict == "not measured"


def test_what_algorithms_alone_differ_in_is_no_effect_of_tasks(records) -> None:
    """Of each algorithm -1, 2, 0, -2, 1 beside losses of -2 to 2: products sum to 0."""
    def widest(policy: str) -> float:
        algo, task, _ = policy.split("-")
        return 10 * ("a2c", "dqn", "ppo").index(algo) + (2, 5, 3, 1, 4)[int(task[1:])]

    both = with_weights(records(harder, ("affine4",), GRID), widest)
    found = rules.wider_weights_lose_more(both, ["affine4"])
    assert found.verdict == "inconclusive"
    # Over all, ranks differ by 1, 3, 0, 3 and 1 in each algorithm: 1 - 6 * 3 * 20 / (15 * 224).
    assert found.interval is not None and found.interval.value == pytest.approx(0.892857)
    assert "within algorithms, 0.00 (p = 0.5" in found.measured
    assert "within environments, 1.00 (p = 0.000" in found.measured  # of 6^5 orders one


@pytest.mark.parametrize("name", ["budget.tensors_sha256", "extra.start_time"])
def test_weights_of_a_policy_that_did_not_play_count_for_nothing(records, name: str) -> None:
    policies = {f"{algo}-E{i}-v0": (algo, f"E{i}-v0", 100.0)
                for algo in ("a2c", "dqn", "ppo") for i in range(4)}  # fmt: skip
    frame = records(harder, ("affine4",), policies)
    weights = pd.DataFrame([
        {"key": f"w{i}", "policy": policy, "precision": "affine4", "range": [20.0 + harder(policy)]}
        for i, policy in enumerate(policies)
    ])
    last = weights["policy"].isin([*policies][8:])
    old = weights[last].assign(key=weights["key"] + " of old", range=[[0.0]] * 4, **{name: "old"})
    own = frame["policy"].isin([*policies][8:])
    for digest, key in (("old", "w9 of old"), ("new", "w9")):
        played = frame.assign(**{name: np.where(own, digest, None)})
        both = pd.concat([played, old, weights], ignore_index=True)
        found = rules.wider_weights_lose_more(both, ["affine4"])
        assert (found.verdict == "reproduced") == (digest == "new")
        assert "over 12 policies" in found.measured
        assert key in found.keys and len(found.keys) == 3 * 12
    alone = pd.concat([played, old, weights[~last]], ignore_index=True)
    assert "over 8 policies" in rules.wider_weights_lose_more(alone, ["affine4"]).measured


def test_only_the_most_generous_width_refutes(records) -> None:
    """What loses at 6 bits alone may do without loss at 8, which nobody measured."""
    widths = ("affine6", "affine8")
    frame = records(lambda policy, *_: 0.5 * policy.startswith("dqn"), widths)
    dqn = frame["policy"].str.startswith("dqn")
    for missing, verdict in (("affine8", "inconclusive"), ("affine6", "not reproduced")):
        some = frame[~dqn | (frame["precision"] != missing)]
        assert rules.no_loss(some, widths).verdict == verdict


def test_thirty_episodes_are_enough(records) -> None:
    kept, lost = (records(lambda *_, loss=loss: loss, ("affine8",), episodes=30)
                  for loss in (0.0, 0.5))  # fmt: skip
    assert rules.no_loss(kept, ["affine8"]).verdict == "reproduced"
    assert rules.no_loss(lost, ["affine8"]).verdict == "not reproduced"


def test_other_ranges_than_min_max_decide_nothing(records) -> None:
    def loss(_: str, __: str, ways: str) -> float:
        return 0.5 * (ways == "mse")

    frame = records(loss, ("affine8",), ranges=("minmax", "mse"))
    for rule in (rules.no_loss, rules.similar_rewards):
        found = rule(frame, ["affine8"])
        assert found.verdict == "reproduced" and len(found.keys) == 2 * 6


def test_where_every_policy_is_hard_hardness_does_not_differ(records) -> None:
    frame = records(lambda *_: 0.5, ("affine4",))
    assert rules.hardness_differs(frame, ["affine4"]).verdict == "not reproduced"


@pytest.mark.parametrize("same", ["algo", "env_id"])
def test_what_policies_of_one_algorithm_or_one_environment_share_is_no_lack_of_difference(
    records, same
) -> None:
    frame = records(lambda *_: 0.0, ("affine4",))
    frame[same] = frame[same].iloc[0]
    assert rules.hardness_differs(frame, ["affine4"]).verdict == "inconclusive"


def test_each_seed_of_a_policy_counts_and_so_does_one_without_a_seed(records) -> None:
    one = records(lambda *_: 0.0, ("affine8",), {"ppo-CartPole-v1": ("ppo", "CartPole-v1", 490.0)})
    seeds = [one.assign(seed=seed, key=f"{seed}" + one["key"]) for seed in range(3)]
    public = one.assign(policy="public/ppo-CartPole-v1", seed=np.nan, key="p" + one["key"])
    for parts in (seeds, [*seeds[:2], public]):
        found = rules.no_loss(pd.concat(parts, ignore_index=True), ["affine8"])
        assert found.verdict == "reproduced" and found.measured.startswith("3 of 3 policies")
    few = rules.no_loss(pd.concat(seeds[:2], ignore_index=True), ["affine8"])
    assert few.verdict == "inconclusive" and "(only 2 policies)" in few.measured


@pytest.mark.parametrize(("p", "verdict"), [(0.03, "inconclusive"), (0.02, "not reproduced")])
def test_one_of_two_correlations_refutes_at_half_of_5_percent(
    records, monkeypatch, p, verdict
) -> None:
    found = iter([RankCorrelation(0.5, 0.01, 0.99), RankCorrelation(-0.5, 1 - p, p)])
    monkeypatch.setattr(rules, "correlation_within", lambda *_: next(found))
    frame = with_weights(records(harder, ("affine4",), GRID), harder)
    assert rules.wider_weights_lose_more(frame, ["affine4"]).verdict == verdict


def test_policies_that_lose_less_are_counted_corrected_for_all_of_them(records) -> None:
    for loss in np.linspace(0.02, 0.05, 31):
        frame = records(lambda *_, loss=loss: loss, ("affine4",))
        p = rules.losses_at(frame, ["affine4"])["p_no_loss"].to_numpy()
        alone, corrected = (p <= ALPHA).sum(), (holm(p.tolist()) <= ALPHA).sum()
        if alone > corrected:
            break
    else:
        pytest.fail("no loss in between")
    found = rules.hardness_differs(frame, ["affine4"])
    assert f"{corrected} less, in affine4" in found.measured


def test_a_policy_that_loses_at_one_of_its_widths_alone_does_not_fail(records) -> None:
    frame = records(lambda _, precision, __: 0.5 if precision == "affine6" else 0.05,
                    ("affine6", "affine8"))  # fmt: skip
    found = rules.no_loss(frame, ["affine6", "affine8"])
    assert found.verdict == "inconclusive" and ", 0 lose more than 5 %" in found.measured
