"""Sweet spots that are there and such that are not."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.report import losses
from quarl_nb.report.compare import best_of_many
from quarl_nb.report.ptq import summary, sweet_spot_rules, sweet_spots, tables
from quarl_nb.report.stats import ALPHA

WIDTHS = tuple(f"affine{bits}" for bits in range(2, 17))


def test_a_planted_sweet_spot_is_found_and_noise_is_not(records) -> None:
    def planted(policy: str, precision: str, _: str) -> float:
        return -0.08 if (policy, precision) == ("dqn-PongNoFrameskip-v4", "affine5") else 0.0

    frame = records(planted, WIDTHS)
    found = sweet_spot_rules.sweet_spot_exists(frame)
    assert found.verdict == "reproduced" and "at 5 bits" in found.measured
    table = sweet_spots.sweet_spot_table(frame).set_index("policy")
    assert list(table.index[table["sweet_spot"]]) == ["dqn-PongNoFrameskip-v4"]
    assert found.measured.startswith("1 of 6 policies have a sweet spot; surest (90 % interval")
    more = sweet_spot_rules.fewer_bits_beat_more(frame).measured
    assert more.startswith("1 of 6 policies with a narrower width that keeps fp32's return (by its "
                           "estimate) have one that beats a wider; surest (90 %")
    assert sweet_spot_rules.fewer_bits_beat_more(frame).verdict == "reproduced"
    assert sweet_spot_rules.sweet_spots_differ(frame).verdict == "inconclusive"
    noise = records(lambda *_: 0.0, WIDTHS)
    assert not sweet_spots.sweet_spot_table(noise)["sweet_spot"].any()
    assert sweet_spot_rules.sweet_spot_exists(noise).verdict == "not reproduced"
    assert sweet_spot_rules.sweet_spot_exists(noise, algos=["sac"]).verdict == "not measured"


@pytest.mark.parametrize(
    ("budget", "theirs", "ours"),
    [("version", "a1", "b2"), ("first_seed", 1000, 1001), ("random_actions", 0.0, 0.01)],
)
def test_widths_that_are_no_pair_with_fp32_are_refused(records, budget, theirs, ours) -> None:
    """After a policy of one's own was trained anew its widths are another policy's."""
    frame = records(lambda _, precision, __: -0.5 * (precision == "affine3"), WIDTHS)
    column = {"version": "extra.start_time"}.get(budget, f"budget.{budget}")
    alike = frame.assign(**{column: theirs})
    assert sweet_spot_rules.sweet_spot_exists(alike).verdict == "reproduced"
    fp32 = frame["precision"] == "fp32"
    other = alike.assign(**{column: np.where(fp32, ours, alike[column])})
    message = f"affine.* ran with {budget} {theirs}, fp32 with {ours}"
    for rule in (sweet_spot_rules.sweet_spot_exists, sweet_spot_rules.fewer_bits_beat_more,
                 sweet_spot_rules.sweet_spots_differ, sweet_spots.sweet_spot_table):  # fmt: skip
        with pytest.raises(QuarlError, match=message):
            rule(other)
    with pytest.raises(QuarlError, match=message):
        summary.ptq_summary(other, np.random.default_rng(0))


def test_over_a_return_of_0_no_width_is_a_sweet_spot(records) -> None:
    frame = records(lambda *_: 0.0, WIDTHS, noise=0.0)
    frame["returns"] = [[float(precision == "affine3")] * 30 for precision in frame["precision"]]
    assert not sweet_spots.sweet_spot_table(frame)["sweet_spot"].any()
    for rule in (sweet_spot_rules.sweet_spot_exists, sweet_spot_rules.sweet_spots_differ):
        found = rule(frame)
        assert found.verdict == "inconclusive" and "0 of 3 policies have" in found.measured


def test_a_gain_of_one_policy_of_many_must_be_certain(records) -> None:
    for gain in np.linspace(0.05, 0.12, 36):
        frame = records(lambda policy, precision, _, gain=gain: -gain * (
            (policy, precision) == ("dqn-PongNoFrameskip-v4", "affine5")), WIDTHS, noise=0.15)
        found = sweet_spot_rules.sweet_spot_exists(frame)
        p = float(found.measured.split("corrected p = ")[1].split(";")[0])
        if found.interval is not None and found.interval.low > 0 and p > ALPHA:
            break
    else:
        pytest.fail("no gain in between")
    assert found.verdict == "inconclusive"


def test_a_certain_but_tiny_gain_is_no_sweet_spot(records) -> None:
    frame = records(lambda _, precision, __: -0.002 * (precision == "affine5"), WIDTHS, noise=1e-4)
    assert not sweet_spots.sweet_spot_table(frame)["sweet_spot"].any()
    found = sweet_spot_rules.sweet_spot_exists(frame)
    assert found.verdict == "not reproduced" and "(0.2%) at 5 bits" in found.measured


@pytest.mark.parametrize("mean", [100.0, -100.0])
def test_a_certain_but_tiny_gain_hides_no_sweet_spot_of_another_width(records, mean) -> None:
    frame = records(lambda *_: 0.0, ("affine4", "affine6", "affine8"),
                    {"ppo-X-v0": ("ppo", "X-v0", mean)}, episodes=100)  # fmt: skip
    generator = np.random.default_rng(0)
    base = np.array(frame.loc[frame["precision"] == "fp32", "returns"].item())
    for precision, gain, noise in (("affine8", 4.8, 0.1), ("affine6", 8.0, 20.0)):
        (at,) = frame.index[frame["precision"] == precision]
        frame.at[at, "returns"] = list(base + gain + noise * generator.standard_normal(100))
    (row,) = sweet_spots.sweet_spot_table(frame).to_dict("records")
    assert (row["bits"], row["sweet_spot"]) == (6, True)
    assert row["low"] < 4.7  # the lower bound of 8 bits, which gain less than 5 %
    found = sweet_spot_rules.sweet_spot_exists(frame)
    assert found.verdict == "reproduced" and "at 6 bits" in found.measured


def test_the_surest_width_need_not_be_the_one_that_gains_most(records) -> None:
    frame = records(lambda *_: 0.0, ("affine4", "affine6", "affine8"),
                    {"ppo-X-v0": ("ppo", "X-v0", 100.0)})  # fmt: skip
    base = np.array(frame.loc[frame["precision"] == "fp32", "returns"].item())
    # A copy of fp32, a loss in every episode, and a gain of 3 on average that may be luck.
    changes = {"affine8": 0 * base, "affine4": 0 * base - 1, "affine6": np.tile([-27.0, 33], 20)}
    for precision, change in changes.items():
        (at,) = frame.index[frame["precision"] == precision]
        frame.at[at, "returns"] = list(base + change)
    (row,) = sweet_spots.sweet_spot_table(frame).to_dict("records")
    assert (row["bits"], row["gain"], row["low"]) == (8, 0, 0)
    assert row["most_bits"] == 6 and row["most"] == pytest.approx(3) and row["most_low"] < 0
    (shown,) = tables.sweet_spot_tables(frame)[1].to_dict("records")
    assert shown["surest width (bits)"] == 8 and shown["width that gains most (bits)"] == 6
    assert shown["its gain over fp32 (corrected 95 % bound)"] == "0 (\u2265 0)"
    assert shown["its gain (corrected 95 % bound)"] == f"3 (\u2265 {row['most_low']:.4g})"


def test_what_noisy_widths_leave_open_is_told_beside_a_copy_of_fp32(records) -> None:
    frame = records(lambda *_: 0.0, ("affine4", "affine6", "affine8"),
                    {"ppo-X-v0": ("ppo", "X-v0", 100.0)}, episodes=100)  # fmt: skip
    generator = np.random.default_rng(0)
    base = np.array(frame.loc[frame["precision"] == "fp32", "returns"].item())
    for precision, gain, noise in (("affine8", 0.0, 0.0), ("affine6", -3.0, 60.0)):
        (at,) = frame.index[frame["precision"] == precision]
        frame.at[at, "returns"] = list(base + gain + noise * generator.standard_normal(100))
    found = sweet_spot_rules.sweet_spot_exists(frame)
    assert found.verdict == "inconclusive"
    assert "gains 0 [0, 0] (0.0%) at 8 bits" in found.measured
    # 6 bits: -3 and, of 60 / sqrt(100), 2.3 or so deviations for three widths at once.
    share = float(found.measured.split("; up to ")[1].split("%")[0])
    assert 5 < share < 20


def test_where_fp32_earns_0_no_share_of_it_is_told(records) -> None:
    policies = {"ppo-X-v0": ("ppo", "X-v0", 100.0), "dqn-X-v0": ("dqn", "X-v0", 100.0)}
    frame = records(lambda *_: 0.0, ("affine4", "affine6", "affine8"), policies)
    zero = [1.0, -1.0] * 20
    both = frame.assign(returns=[zero if policy == "dqn-X-v0" else returns for policy, returns
                                 in zip(frame["policy"], frame["returns"], strict=True)])
    told = sweet_spot_rules.sweet_spot_exists(both).measured
    assert "% not excluded; no bound for dqn-X-v0" in told and "inf" not in told
    alone = sweet_spot_rules.sweet_spot_exists(both, algos=["dqn"])
    assert alone.verdict == "inconclusive" and "(fp32 earns 0) at" in alone.measured
    assert "not excluded" not in alone.measured


def test_the_better_of_two_broken_policies_is_no_sweet_spot(records) -> None:
    losses = {"affine2": 0.6, "affine3": 0.9}
    frame = records(lambda _, precision, __: losses.get(precision, 0.0), WIDTHS)
    assert sweet_spot_rules.fewer_bits_beat_more(frame).verdict == "not reproduced"


@pytest.mark.parametrize(
    "rule", [sweet_spot_rules.sweet_spot_exists, sweet_spot_rules.fewer_bits_beat_more]
)
def test_a_width_that_was_not_measured_may_be_the_sweet_spot(records, rule) -> None:
    noise = records(lambda *_: 0.0, WIDTHS)
    assert rule(noise).verdict == "not reproduced" and "every policy" not in rule(noise).measured
    left_out = noise["precision"].isin(["affine5", "affine12"])
    policies = noise["policy"].unique()
    found = rule(noise[~left_out | noise["policy"].isin(policies[:2])])
    assert found.verdict == "inconclusive"
    assert found.measured.endswith("; not measured of every policy: 5, 12 bits")
    # Three that were measured at every width deny that there is one, if no other's width may gain.
    swept = ~left_out | noise["policy"].isin(policies[:3])
    assert rule(noise[swept]).verdict == "not reproduced"
    unsure = [[r * (1 + (i % 2 - 0.5)) for i, r in enumerate(returns)] if cell else returns
              for cell, returns in zip((noise["policy"] == policies[3]) & (noise["precision"] ==
                                       "affine4"), noise["returns"], strict=True)]  # fmt: skip
    assert rule(noise.assign(returns=unsure)[swept]).verdict == "inconclusive"


def test_a_policy_that_no_narrower_width_keeps_denies_nothing(records) -> None:
    policies = {f"ppo-{name}-v0": ("ppo", f"{name}-v0", 100.0) for name in "XYZ"}
    sound = records(lambda *_: 0.0, WIDTHS, policies)
    assert sweet_spot_rules.fewer_bits_beat_more(sound).verdict == "not reproduced"
    broken = records(lambda policy, *_: 0.5 * (policy == "ppo-X-v0"), WIDTHS, policies)
    found = sweet_spot_rules.fewer_bits_beat_more(broken)
    assert found.verdict == "inconclusive" and found.measured.endswith("(only 2 policies)")


def test_noise_seldom_passes_for_a_sweet_spot(records) -> None:
    policies = {"ppo-X-v0": ("ppo", "X-v0", 100.0), "a2c-X-v0": ("a2c", "X-v0", 100.0)}
    hits = sum(
        sweet_spot_rules.sweet_spot_exists(
            records(lambda *_: 0.0, WIDTHS, policies, noise=0.1, seed=seed)
        ).verdict == "reproduced"
        for seed in range(40)
    )
    assert hits <= 6  # 5 % of 40 is 2; more than 6 has a chance below 1 in 100


def test_pairs_are_corrected_for_those_too_that_luck_left_out(records) -> None:
    policies = {"ppo-X-v0": ("ppo", "X-v0", 100.0)}
    frame = records(lambda *_: 0.0, WIDTHS[:8], policies, episodes=30, noise=0.6)
    (widths,) = sweet_spots.widths_of(frame)
    pairs = list(combinations(range(8), 2))
    gains = np.array([widths.returns[low] - widths.returns[high] for low, high in pairs])
    every = best_of_many(np.zeros(30), gains, widths.signs)
    at = pairs.index((5, 7))
    found = sweet_spot_rules.fewer_bits_beat_more(frame).measured
    assert f"at 7 against 9 bits, corrected p = {every.p_values[at]:.3g};" in found


def test_rules_of_sweet_spots_flip_signs_and_redraw_nothing(records, monkeypatch) -> None:
    frame = records(lambda *_: 0.0, WIDTHS)
    losses.episode_weights.cache_clear()
    monkeypatch.setattr(losses, "bootstrap_weights", None)
    assert sweet_spot_rules.sweet_spot_exists(frame).verdict == "not reproduced"
    assert len(sweet_spots.sweet_spot_table(frame)) == 6


def test_sweet_spots_at_two_widths_differ(records) -> None:
    at = {"ppo-BipedalWalker-v3": "affine5", "ppo-CartPole-v1": "affine9"}
    frame = records(lambda p, precision, _: -0.08 * (at.get(p) == precision), WIDTHS)
    found = sweet_spot_rules.sweet_spots_differ(frame)
    assert found.verdict == "reproduced" and "2 of 6" in found.measured
    one_task = frame.assign(env_id=frame["env_id"].replace("BipedalWalker-v3", "CartPole-v1"))
    assert sweet_spot_rules.sweet_spots_differ(one_task).verdict == "inconclusive"
    cartpole = frame["policy"] == "ppo-CartPole-v1"
    two_algos = frame.assign(algo=frame["algo"].mask(cartpole, "dqn"))
    assert sweet_spot_rules.sweet_spots_differ(two_algos).verdict == "inconclusive"


def test_sweet_spots_that_share_a_width_do_not_differ(records) -> None:
    """Each gains most at another width, and as surely at 5 bits."""
    at = {"ppo-BipedalWalker-v3": {"affine5": -0.08, "affine9": -0.09},
          "ppo-CartPole-v1": {"affine5": -0.09, "affine9": -0.08}}  # fmt: skip
    frame = records(lambda p, precision, _: at.get(p, {}).get(precision, 0.0), WIDTHS, noise=0.001)
    found = sweet_spot_rules.sweet_spots_differ(frame)
    assert found.verdict == "not reproduced" and "2 of 6" in found.measured
    assert "at 9 bits" in found.measured and "at 5 bits" in found.measured
    cartpole = frame["policy"] == "ppo-CartPole-v1"
    two_algos = frame.assign(algo=frame["algo"].mask(cartpole, "dqn"))
    assert sweet_spot_rules.sweet_spots_differ(two_algos).verdict == "inconclusive"


def test_a_sweet_spot_that_another_policy_misses_by_a_hair_tells_no_difference(records) -> None:
    """Both gain at 5 and at 9 bits; at one of them either is too uncertain to say."""
    at = {"ppo-BipedalWalker-v3": {"affine5": -0.08, "affine9": -0.045},
          "ppo-CartPole-v1": {"affine5": -0.045, "affine9": -0.08}}  # fmt: skip
    frame = records(lambda p, precision, _: at.get(p, {}).get(precision, 0.0), WIDTHS)
    found = sweet_spot_rules.sweet_spots_differ(frame)
    assert found.verdict == "inconclusive" and "2 of 6" in found.measured
    assert "ppo-BipedalWalker-v3 at 5 bits; ppo-CartPole-v1 at 9 bits" in found.measured


NEGATIVE = {"ppo-X-v0": ("ppo", "X-v0", -100.0), "ppo-Y-v0": ("ppo", "Y-v0", -200.0),
            "ppo-Z-v0": ("ppo", "Z-v0", -300.0)}  # fmt: skip


def test_sweet_spots_of_negative_returns(records) -> None:
    at = {"ppo-X-v0": "affine5", "ppo-Y-v0": "affine9", "ppo-Z-v0": "affine9"}
    frame = records(lambda p, precision, _: -0.08 * (at[p] == precision), WIDTHS, NEGATIVE)
    assert sweet_spots.sweet_spot_table(frame)["sweet_spot"].all()
    assert sweet_spot_rules.sweet_spots_differ(frame).verdict == "reproduced"
    tiny = records(lambda _, precision, __: -0.002 * (precision == "affine5"), WIDTHS, NEGATIVE,
                   noise=1e-4)  # fmt: skip
    assert not sweet_spots.sweet_spot_table(tiny)["sweet_spot"].any()
    assert sweet_spot_rules.sweet_spot_exists(tiny).verdict == "not reproduced"
    two = tiny[tiny["policy"] != "ppo-Z-v0"]
    for rule in (sweet_spot_rules.sweet_spot_exists, sweet_spot_rules.fewer_bits_beat_more):
        found = rule(two)
        assert found.verdict == "inconclusive" and found.measured.endswith("(only 2 policies)")
    named = sweet_spot_rules.sweet_spot_exists(tiny, env_ids=["X-v0"])
    assert named.verdict == "not reproduced"  # of that task's policy alone something is said
    worse = records(lambda _, precision, __: 0.2 * (precision == "affine4"),
                    ("affine3", "affine4", "affine5"), NEGATIVE)  # fmt: skip
    found = sweet_spot_rules.fewer_bits_beat_more(worse)
    assert found.verdict == "reproduced" and "at 3 against 4 bits" in found.measured


def test_widths_may_come_in_any_order_and_from_agents_without_a_seed(records) -> None:
    losses = {"affine6": 0.2, "affine10": 0.3}
    frame = records(lambda _, precision, __: losses.get(precision, 0.0), WIDTHS)
    other = frame[::-1].assign(seed=np.nan)
    found, again = (sweet_spot_rules.fewer_bits_beat_more(each) for each in (frame, other))
    assert found.verdict == again.verdict == "reproduced" and found.measured == again.measured
    assert [widths.bits for widths in sweet_spots.widths_of(other)] == [tuple(range(2, 17))] * 6


def test_few_episodes_make_no_sweet_spot(records) -> None:
    def planted(_: str, precision: str, __: str) -> float:
        return -0.5 * (precision == "affine5")

    for episodes, is_spot in ((29, False), (30, True)):
        table = sweet_spots.sweet_spot_table(records(planted, WIDTHS, episodes=episodes))
        assert (table["sweet_spot"] == is_spot).all()
    frame = records(planted, WIDTHS)
    short = frame["policy"] == "ppo-CartPole-v1"
    frame.loc[short, "returns"] = frame.loc[short, "returns"].map(lambda returns: returns[:20])
    found = sweet_spot_rules.sweet_spot_exists(frame)
    assert found.verdict == "inconclusive" and found.measured.endswith(" (only 20 episodes)")


@pytest.mark.parametrize("first", [0, 1])
def test_a_sweet_spot_that_may_be_the_others_too_tells_no_difference(records, first) -> None:
    """One certainly gains nothing at 5 bits, where the other does; that one may gain at 9 too."""
    names = ("dqn-PongNoFrameskip-v4", "ppo-CartPole-v1")
    at = {names[first]: {"affine5": -0.08, "affine9": -0.045}, names[1 - first]: {"affine9": -0.08}}
    frame = records(lambda p, precision, _: at.get(p, {}).get(precision, 0.0), WIDTHS)
    found = sweet_spot_rules.sweet_spots_differ(frame)
    assert found.verdict == "inconclusive" and "2 of 6" in found.measured


def test_a_sweet_spot_is_told_of_before_a_surer_gain_that_is_none(records) -> None:
    frame = records(lambda *_: 0.0, ("affine4", "affine6", "affine8"),
                    {name: ("ppo", name, 100.0) for name in ("Y-v0", "Z-v0")})  # fmt: skip
    noise = np.random.default_rng(0).standard_normal(40)
    for policy, precision, change in (("Y-v0", "affine8", np.ones(40)),
                                      ("Z-v0", "affine6", 12 + 20 * noise)):  # fmt: skip
        of_it = frame[frame["policy"] == policy].set_index("precision")
        (at,) = frame.index[(frame["policy"] == policy) & (frame["precision"] == precision)]
        frame.at[at, "returns"] = list(np.array(of_it.loc["fp32", "returns"]) + change)
    table = sweet_spots.sweet_spot_table(frame).set_index("policy")
    assert table["p_holm"].idxmin() == "Y-v0" and table["sweet_spot"].to_dict() == {
        "Y-v0": False, "Z-v0": True}  # fmt: skip
    assert "): Z-v0 gains" in sweet_spot_rules.sweet_spot_exists(frame).measured


def test_what_is_not_excluded_is_the_largest_gain_of_all_policies(records) -> None:
    frame = records(lambda *_: 0.0, WIDTHS, noise=0.3)
    highest = [each.gains().high.max() / abs(each.reference.mean())
               for each in sweet_spots.widths_of(frame)]  # fmt: skip
    found = sweet_spot_rules.sweet_spot_exists(frame)
    assert found.verdict == "inconclusive"
    assert f"; up to {max(highest):.1%} not excluded" in found.measured
