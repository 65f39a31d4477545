"""Claims of QAT where the truth is planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from planted_qat import BITS, car, knee, none, of_seed, planted
from quarl_nb.report import claims, qat


def with_w8a8(frame: pd.DataFrame, share: float) -> pd.DataFrame:
    """PTQ copies of weights and activations that keep a `share` of what float32 earns."""
    copies = [{**row["ptq_returns"], "int8": [share * value for value in row["returns"]]}
              if isinstance(row["ptq_returns"], dict) else row["ptq_returns"]
              for _, row in frame.iterrows()]  # fmt: skip
    return frame.assign(ptq_returns=copies)


def test_ptq_of_activations_too_stands_beside_8_star_and_decides_nothing():
    plain = planted(none, policies=["ppo-CartPole-v1", "a2c-CartPole-v1"], noise=0.0)
    plain["returns"] = [  # no ties
        [x + 1e-4 * seed * (method == "minmax") for x in returns] for seed, method, returns
        in zip(plain["seed"], plain["method"], plain["returns"], strict=True)
    ]
    worse = with_w8a8(plain, 0.5)
    table = qat.tables.eight_bits_table(qat.gains.trainings(worse))
    assert list(table)[3:] == ["W8A8 PTQ over fp32", "QAT over W8A8 PTQ"]
    assert table.loc["PPO CartPole"].tolist()[2:] == [
        "0.0% [0.0%, 0.0%]", "-50.0% [-50.0%, -50.0%]", "50.0% [50.0%, 50.0%]"
    ]
    assert "W8A8 PTQ" in qat.tables.qat_tables(worse)[1]
    alone, found = qat.rules.qat_beats_ptq(plain), qat.rules.qat_beats_ptq(worse)
    assert (found.verdict, found.interval, found.keys) == (
        alone.verdict, alone.interval, alone.keys
    )
    assert ("more than PTQ in 0 of 2 policies, certainly not by 5 % in 2 "
            "(a2c-CartPole-v1, ppo-CartPole-v1) (than W8A8 PTQ") in found.measured  # fmt: skip
    assert "as QAT: in 2 of 2, certainly not by 5 % in 0)" in found.measured
    assert "W8A8" not in alone.measured


def test_a_policy_of_one_seed_does_not_keep_the_others_from_deciding():
    three = planted(none, noise=0.003)
    one = planted(none, policies=["ppo-CartPole-v1"], n_seeds=1, noise=0.003)
    one = one.assign(policy="ppo-PongNoFrameskip-v4", key=one["key"] + " of Pong")
    both = pd.concat([three, one], ignore_index=True)
    for rule in (lambda frame: qat.rules.qat_no_loss(frame, 8),
                 qat.rules.qat_beats_ptq, qat.rules.qat_beats_fp32, qat.rules.qat_kept_until):
        alone, found = rule(three), rule(both)
        assert found.verdict == alone.verdict and found.keys == alone.keys
        assert "fewer than 3 training seeds that learned: ppo-PongNoFrameskip-v4" in found.measured
    assert "only 1 training seed" in qat.rules.qat_beats_ptq(one).measured


def pong(fp32: float, qat: float) -> pd.DataFrame:
    """Records of a policy on Pong that earn so much when trained in float32, and else."""
    frame = planted(none, policies=["ppo-CartPole-v1"], noise=0.0)
    name = "ppo-PongNoFrameskip-v4"
    frame = frame.assign(policy=name, env_id="PongNoFrameskip-v4", key=frame["key"] + " of Pong")
    earned = np.where(frame["precision"] == "fp32", fp32, qat)
    earned = earned + 0.01 * frame["seed"] * (frame["precision"] != "fp32")  # no ties
    frame["returns"] = [[value] * 30 for value in earned]
    frame["ptq_returns"] = [{f"affine{bits}": [fp32] * 30 for bits in BITS}] * len(frame)
    return frame


RULES = {
    "no_loss": lambda frame: qat.rules.qat_no_loss(frame, 8),
    "kept_until": qat.rules.qat_kept_until, "beats_ptq": qat.rules.qat_beats_ptq,
    "beats_fp32": qat.rules.qat_beats_fp32,
    "sometimes_beats_fp32": qat.rules.qat_sometimes_beats_fp32,
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_policy_that_never_learned_is_left_out_and_named(rule):
    others, stuck = planted(knee), pong(-21.0, -21.0)
    alone, found = (RULES[rule](frame) for frame in (others, pd.concat([others, stuck])))
    assert found.verdict == alone.verdict and found.keys == alone.keys
    assert "(never learned: ppo-PongNoFrameskip-v4)" in found.measured
    lone = RULES[rule](stuck)
    assert lone.verdict == "inconclusive" and lone.keys
    assert lone.measured == "no policy learned: ppo-PongNoFrameskip-v4"
    for kept in (pong(20.0, 20.0), stuck.assign(env_id="MyPong-v0")):
        found = RULES[rule](pd.concat([others, kept]))
        assert "never learned" not in found.measured and len(found.keys) > len(alone.keys)


def test_where_only_qat_learned_it_is_better_but_not_without_loss():
    both = pd.concat([planted(none), pong(-21.0, 20.0)])
    assert "in 1 of 4 policies" in qat.rules.qat_beats_fp32(both).measured
    assert "in 1 of 4 policies" in qat.rules.qat_beats_ptq(both).measured
    found = qat.rules.qat_no_loss(both, 8).measured
    assert found.startswith("surely 3 of 3 policies without loss")
    assert "never learned: ppo-Pong" in found


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_reads_every_training_once(monkeypatch, rule):
    read = []

    def trainings(records: pd.DataFrame) -> pd.DataFrame:
        read.append(len(records))
        return qat.gains.trainings(records)

    monkeypatch.setattr(qat.rules, "trainings", trainings)
    RULES[rule](planted(knee))
    assert read == [3 * 3 * 8]


def test_a_seed_that_learned_neither_way_counts_for_nothing():
    lucky = car([93.0, *[-99.9] * 4], [92.0, *[-99.9] * 4])  # four gains of exactly 0
    for name in ("no_loss", "beats_ptq", "beats_fp32"):
        found = RULES[name](lucky)
        assert found.verdict == "inconclusive" and "(only 1 training seed)" in found.measured
    # What the others earn is the scale, too.
    found = qat.rules.qat_no_loss(car([90, 91, 92, -99.9], [81, 82.1, 82.9, -99.9]), 8)
    assert found.verdict == "not reproduced" and found.measured.startswith("surely 0 of 3")
    assert found.interval.value == pytest.approx(9 / 91) and len(found.keys) == 3 * 2 * 3
    others = pd.concat([planted(none), car([93, 94, -99.9], [93, 94, -99.9], copies=1)])
    assert "fewer than 3 training seeds that learned: car 0" in RULES["no_loss"](others).measured


@pytest.mark.parametrize(
    ("loss", "verdict"), [(0.0, "reproduced"), (0.2, "not reproduced"), (0.03, "inconclusive")]
)
def test_no_loss(loss, verdict):
    noise = 0.03 if loss == 0.03 else 0.003
    frame = planted(lambda _, way: loss * (way != qat.gains.FP32), noise=noise)
    found = qat.rules.qat_no_loss(frame, 8)
    assert found.verdict == verdict
    assert found.interval.value == pytest.approx(loss, abs=3 * noise)
    assert len(found.keys) == 3 * 6


def test_kept_until_five_or_six_bits():
    assert qat.rules.qat_kept_until(planted(knee)).verdict == "reproduced"
    flat = qat.rules.qat_kept_until(planted(none))
    assert flat.verdict == "not reproduced" and "0 lose more than 5 %" in flat.measured
    early = qat.rules.qat_kept_until(planted(lambda _, way: 0.3 * (way != qat.gains.FP32)))
    assert early.verdict == "not reproduced"
    unsure = qat.rules.qat_kept_until(planted(knee, noise=0.2))
    assert unsure.verdict == "inconclusive"
    assert early.measured.endswith("(ddpg-Pendulum-v1, affine3)")  # the largest loss has its width


def test_most_policies_must_keep_and_then_lose_it_themselves():
    """Three of five keep their return and three lose it, but only one does the one, then the
    other."""
    names = [f"ppo-CartPole-v{i}" for i in range(5)]

    def loss(policy: str, way: qat.gains.Way) -> float:
        if policy in names[:2] or way[1] == "ptq":
            return 0.0
        return knee(policy, way) if policy == names[2] else 0.5 * (way != qat.gains.FP32)

    frame = pd.concat([
        planted(lambda _, way, name=name: loss(name, way), policies=["ppo-CartPole-v1"])
        .assign(policy=name, key=lambda rows, name=name: name + rows["key"]) for name in names
    ])  # fmt: skip
    found = qat.rules.qat_kept_until(frame)
    assert found.verdict == "inconclusive"
    assert found.measured.startswith("surely 3 of 5 policies without loss at 6 to 8 bits, 3 lose "
                                     "more than 5 % at 2 to 4, 1 do both")  # fmt: skip


def test_against_ptq_and_float32():
    assert qat.rules.qat_beats_ptq(planted(knee)).verdict == "reproduced"
    assert qat.rules.qat_beats_ptq(planted(none)).verdict == "not reproduced"
    assert qat.rules.qat_beats_fp32(planted(none)).verdict == "not reproduced"

    def better(policy: str, way: qat.gains.Way) -> float:
        return -0.2 if way == qat.gains.minmax(8) and policy != "ppo-CartPole-v1" else 0.0

    found = qat.rules.qat_beats_fp32(planted(better))
    assert found.verdict == "reproduced" and "in 2 of 3 policies" in found.measured
    half = planted(better, policies=["ppo-CartPole-v1", "a2c-CartPole-v1"])
    again = half.assign(policy="again-" + half["policy"], key="again-" + half["key"])
    found = qat.rules.qat_beats_fp32(pd.concat([half, again], ignore_index=True))
    assert found.verdict == "not reproduced" and "in 2 of 4 policies" in found.measured
    worse = qat.rules.qat_beats_fp32(planted(lambda _, way: 0.2 * (way == qat.gains.minmax(8))))
    assert worse.interval.value == pytest.approx(-0.2, abs=0.01)
    assert worse.interval.low < worse.interval.value < worse.interval.high < 0
    assert "smallest gain -20" in worse.measured
    # In one policy QAT does not improve: "consistently" does not hold.
    assert qat.rules.qat_beats_ptq(planted(better)).verdict == "not reproduced"


def test_one_policy_at_one_width_is_sometimes():
    rule = qat.rules.qat_sometimes_beats_fp32
    one = {"a2c-CartPole-v1": -0.2}

    def better(policy: str, way: qat.gains.Way) -> float:
        return one.get(policy, 0.1) if way == qat.gains.minmax(6) else 0.0

    found = rule(planted(better))
    assert found.verdict == "reproduced" and len(found.keys) == 3 * 3 * 8
    assert found.measured.startswith(
        "QAT certainly earns more than fp32 at one of 2 to 8 bits in 1 of 3 policies, certainly "
        "not by 5 % at any in 2"
    )
    assert found.measured.endswith("(a2c-CartPole-v1, affine6)")
    assert found.interval.value == pytest.approx(0.2, abs=0.02)
    assert rule(planted(better, policies=[*one])).verdict == "reproduced"  # one is enough
    assert rule(planted(none)).verdict == "not reproduced"
    assert rule(planted(none, policies=[*one])).verdict == "inconclusive"  # but says nothing of all
    assert rule(planted(none, noise=0.1)).verdict == "inconclusive"
    assert rule(pd.DataFrame()).verdict == "not measured"


def test_a_width_that_was_not_trained_at_may_be_the_one_that_gains():
    frame = planted(none)
    gone = (frame["policy"] == "ppo-CartPole-v1") & (frame["precision"] == "affine3")
    found = qat.rules.qat_sometimes_beats_fp32(frame[~gone])
    assert found.verdict == "inconclusive"
    assert "certainly not by 5 % at any in 2" in found.measured


def test_noise_seldom_passes_for_a_gain_of_some_policy_at_some_width():
    """Of nine gains that are none one passes at 5 % in a third of cases or more."""
    frame = planted(none, noise=0.0).assign(env_id="My-v0")
    frame = frame[frame["precision"].isin(["fp32", "affine6", "affine7", "affine8"])]

    def gain(seed: int) -> bool:
        noise = 20 * np.random.default_rng(seed).standard_normal(len(frame))
        returns = [list(np.add(r, x)) for r, x in zip(frame["returns"], noise, strict=True)]
        found = qat.rules.qat_sometimes_beats_fp32(frame.assign(returns=returns), bits=(6, 7, 8))
        return found.verdict == "reproduced"

    assert sum(gain(seed) for seed in range(15)) <= 2


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.06, "reproduced"), (0.03, "reproduced"), (-0.03, "not reproduced")]
)
def test_a_certain_gain_counts_for_better_however_small(gain, verdict):
    frame = planted(lambda _, way: -gain * (way == qat.gains.minmax(8)), n_seeds=5)
    for rule in (qat.rules.qat_beats_ptq, qat.rules.qat_beats_fp32):
        found = rule(frame)
        assert found.verdict == verdict
        assert f"not by 5 % in {3 * (gain < 0.05)}" in found.measured


def test_a_policy_that_cannot_gain_is_left_out_and_named():
    """At the most its task gives every training earns the same: that is nothing against QAT."""
    full = planted(none, policies=["ppo-CartPole-v1"], noise=0.0)
    for rule in (qat.rules.qat_beats_ptq, qat.rules.qat_beats_fp32):
        alone, found = (rule(frame) for frame in (planted(knee), pd.concat([
            planted(knee).assign(policy=lambda rows: rows["policy"] + "0"), full])))  # fmt: skip
        assert found.verdict == alone.verdict
        assert "(the same return either way: ppo-CartPole-v1)" in found.measured
        assert "of 3 policies" in found.measured
        assert rule(full).verdict == "inconclusive"


@pytest.mark.parametrize(("loss", "verdict"), [(0.0, "reproduced"), (0.5, "not reproduced")])
def test_each_look_at_more_seeds_costs_a_part_of_5_percent(loss, verdict):
    records = planted(lambda _, way: loss * (way == qat.gains.minmax(8)))
    name = "p_loss" if loss else "p_no_loss"
    p_values = qat.rules._gains(qat.gains.trainings(records), qat.gains.minmax(8))[name]
    # Most of them at the most, all of them at the least: Simes' test is between the two.
    enough, too_many = (int(0.05 / p) for p in (p_values.max(), p_values.min()))
    assert qat.rules.qat_no_loss(records, 8, enough).verdict == verdict
    assert qat.rules.qat_no_loss(records, 8, 10 * too_many).verdict == "inconclusive"


def test_few_seeds_episodes_or_policies_decide_nothing():
    found = qat.rules.qat_no_loss(planted(none, n_seeds=1), 8)
    assert found.verdict == "inconclusive" and "(only 1 training seed)" in found.measured
    assert qat.rules.qat_beats_ptq(planted(knee, n_seeds=2)).verdict == "inconclusive"
    assert qat.rules.qat_no_loss(planted(none, episodes=10), 8).verdict == "inconclusive"
    lone = planted(none, policies=["ppo-CartPole-v1"])
    assert qat.rules.qat_no_loss(lone, 8).verdict == "inconclusive"
    found = qat.rules.qat_beats_fp32(lone)  # not a verdict against the claim either
    assert found.verdict == "inconclusive" and "(only 1 policy)" in found.measured
    for rule in (qat.rules.qat_kept_until, qat.rules.qat_beats_ptq, qat.rules.qat_beats_fp32):
        assert rule(pd.DataFrame()).verdict == "not measured"


def test_noise_seldom_passes_for_a_gain():
    def gain(seed: int) -> bool:
        frame = planted(none, noise=0.0)
        jitter = np.random.default_rng(seed)
        frame["returns"] = [list(np.add(r, 20 * jitter.standard_normal())) for r in
                            frame["returns"]]
        return qat.rules.qat_beats_fp32(frame).verdict == "reproduced"

    assert sum(gain(seed) for seed in range(25)) <= 2


def test_the_claims_have_their_rules():
    frames = {"qat": planted(knee)}
    found = claims.verdicts(lambda study: frames.get(study, pd.DataFrame())).set_index("id")
    for name in ("qat-5-6-bits", "qat-8-bits", "qat-beats-ptq"):
        assert found.loc[name, "verdict"] == "reproduced", name
    for name in ("qat-beats-fp32", "qat-sometimes-beats-fp32"):
        assert found.loc[name, "verdict"] == "not reproduced", name


def of_losses(losses: Sequence[Callable[[qat.gains.Way], float]], **options: Any) -> pd.DataFrame:
    """`planted` policies that are alike but for what they lose, one a loss."""
    return pd.concat([
        planted(lambda _, way, loss=loss: loss(way), policies=["ppo-CartPole-v1"], **options)
        .assign(policy=f"ppo-CartPole-v{i}", key=lambda rows, i=i: f"{i} " + rows["key"])
        for i, loss in enumerate(losses)
    ], ignore_index=True)  # fmt: skip


def test_half_of_the_policies_are_not_most_of_them():
    def at_8(loss: float) -> Callable[[qat.gains.Way], float]:
        return lambda way: loss * (way == qat.gains.minmax(8))

    def narrow(way: qat.gains.Way) -> float:
        return knee("", way)

    keep, lose = at_8(0.0), at_8(0.5)
    noise = of_seed({0: 300.0, 1: 400, 2: 500}, qat.gains.minmax(8), of_losses([keep] * 4))
    half = noise["policy"].isin(["ppo-CartPole-v0", "ppo-CartPole-v1"])
    frame = of_losses([keep, keep, lose, lose])
    assert qat.rules.qat_no_loss(frame, 8).verdict == "not reproduced"
    unsure = pd.concat([frame[half], noise[~half]])
    assert qat.rules.qat_no_loss(unsure, 8).verdict == "inconclusive"
    found = qat.rules.qat_kept_until(of_losses([narrow, narrow, keep, keep]))
    assert found.verdict == "inconclusive" and "2 do both" in found.measured
    better = of_losses([at_8(-0.2)] * 4)
    found = qat.rules.qat_beats_fp32(pd.concat([noise[half], better[~half]]))
    assert found.verdict == "inconclusive" and "in 2 of 4 policies" in found.measured


def test_a_return_that_is_lost_at_2_bits_alone_was_kept_until_then():
    found = qat.rules.qat_kept_until(planted(lambda _, way: 0.3 * (way == qat.gains.minmax(2))))
    assert found.verdict == "reproduced"


@pytest.mark.parametrize(("bits", "t"), [(2, 5.0), (8, 5.0), (8, 6.5)])
def test_a_loss_at_one_of_three_widths_is_corrected_for_the_other_two(bits, t):
    """Student's t of 2 degrees above 5 has a chance of 1.9 %, above 6.5 of 1.1 %; three times
    that is above 5 %, and above the 2.5 % of a verdict against the claim."""
    step = 0.2 * np.sqrt(3) / t
    frame = of_losses([lambda way: 0.0] * 3, noise=0.0)
    frame = of_seed(dict.fromkeys(range(3), 400.0), qat.gains.FP32, frame)
    frame = of_seed({i: 400 * (0.75 - step * (i - 1)) for i in range(3)}, qat.gains.minmax(bits),
                    frame)  # fmt: skip
    found = qat.rules.qat_kept_until(frame)
    assert found.verdict == "inconclusive" and "0 lose more than 5 %" in found.measured


def test_one_of_three_policies_must_gain_too_little_for_certain():
    """p = 3 % alone, of three policies 9 %."""
    step = 0.05 * np.sqrt(3) / 4  # t of 2 degrees above 4: 2.9 %
    better = of_losses([lambda way: -0.2 * (way == qat.gains.minmax(8))] * 3)
    same = of_losses([lambda way: 0.0], noise=0.0)
    same = of_seed({i: 400 * (1 + step * (i - 1)) for i in range(3)}, qat.gains.minmax(8), same)
    both = pd.concat([same, better[better["policy"] != "ppo-CartPole-v0"]])
    found = qat.rules.qat_beats_ptq(both)
    assert found.verdict == "inconclusive"
    assert "in 2 of 3 policies, certainly not by 5 % in 0;" in found.measured


def test_a_policy_that_gains_nothing_at_one_width_counts_at_another():
    gain = {0: 480.0, 1: 481, 2: 482}
    frame = of_losses([lambda way: 0.0] * 2, noise=0.0)
    frame = of_seed(gain, qat.gains.minmax(6), frame)
    other = of_seed(gain, qat.gains.minmax(7), frame)
    first = frame["policy"] == "ppo-CartPole-v0"
    found = qat.rules.qat_sometimes_beats_fp32(
        pd.concat([frame[first], other[~first]]), bits=(6, 7))
    assert found.verdict == "reproduced" and "in 2 of 2 policies" in found.measured
    assert "the same return" not in found.measured


def test_beside_w8a8_stand_the_policies_that_count():
    stuck = with_w8a8(pong(-21.0, -21.0), 1.0)
    found = qat.rules.qat_beats_ptq(pd.concat([with_w8a8(planted(knee), 0.5), stuck]))
    assert "as QAT: in 2 of 3, certainly not by 5 % in 1)" in found.measured


def test_seeds_and_episodes_are_the_fewest_of_a_width_and_of_a_policy():
    frame = planted(none)
    ours = (frame["policy"] == "ppo-CartPole-v1") & (frame["precision"] == "affine8")
    found = qat.rules.qat_sometimes_beats_fp32(
        frame[~ours | (frame["seed"] == 0)], bits=(7, 8))
    assert "(fewer than 3 training seeds that learned: ppo-CartPole-v1)" in found.measured
    short = frame.assign(returns=[returns[:10] if one else returns for returns, one
                                  in zip(frame["returns"], ours, strict=True)])  # fmt: skip
    found = qat.rules.qat_sometimes_beats_fp32(short, bits=(7, 8))
    assert found.verdict == "inconclusive" and found.measured.endswith("(only 10 episodes)")


@pytest.mark.parametrize(("seeds", "verdict"), [(5, "inconclusive"), (6, "not reproduced")])
def test_either_of_two_ways_to_fail_is_tested_at_half_of_5_percent(seeds, verdict) -> None:
    """Five trainings that all keep their return at 2 to 4 bits have p = 1/32, six 1/64."""
    found = qat.rules.qat_kept_until(planted(none, n_seeds=seeds, noise=0.0))
    assert found.verdict == verdict
