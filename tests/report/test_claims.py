"""Claims: the data file against the seeds, and verdicts where the truth is known."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.report import claims, losses
from quarl_nb.report.compare import best_of_many
from quarl_nb.report.correlation import RankCorrelation
from quarl_nb.report.ptq import rules, summary, sweet_spots, tables
from quarl_nb.report.pvalues import at_least
from quarl_nb.report.stats import ALPHA

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
WIDTHS = tuple(f"affine{bits}" for bits in range(2, 17))


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the seed documents are not beside the repository")
def test_every_sentence_is_in_the_document_it_is_quoted_from() -> None:
    def flat(text: str) -> str:
        return re.sub(r"\s+", " ", text)

    documents = {path.name[:3]: flat(path.read_text()) for path in SEEDS.glob("*.txt")}
    missing = [c.id for c in claims.load_claims()
               if flat(c.sentence) not in documents[c.source[:3]]]
    assert not missing


def test_all_five_documents_have_claims() -> None:
    found = claims.load_claims()
    places = {c.source[:3] for c in found} | {a[:3] for c in found for a in c.also}
    assert places == {"000", "001", "002", "003", "004"}
    assert all(c.metric and c.decision and c.study for c in found)


def test_the_studies_of_claims_are_those_that_decide_them() -> None:
    by_id = {claim.id: claim for claim in claims.load_claims()}
    asked = [by_id[name] for name in ("qat-8-bits", "ptq-fp16", "ptq-int8-ppo")]
    assert claims.studies(asked) == ["qat", "ptq", "ptq_public", "weights", "weights_public"]
    assert {"actorq", "edge", "loading", "mixed_precision"} < {*claims.studies()}


def test_without_records_nothing_is_measured() -> None:
    found = claims.verdicts(lambda study: pd.DataFrame())
    assert set(found["verdict"]) == {"not measured"}
    assert len(found) == len(claims.load_claims())


def test_bad_claims_are_named(tmp_path: Path) -> None:
    entry = '[[claim]]\nid="a"\nsentence=""\nsource=""\nmetric=""\ndecision=""\nstudy="ptq"\n'
    file = tmp_path / "claims.toml"
    file.write_text(entry + 'rule="no_los"\n')
    with pytest.raises(QuarlError, match="rule of claim 'a' 'no_los'; did you mean 'no_loss'"):
        claims.load_claims(file)
    entry += 'rule="no_loss"\n'
    file.write_text(entry + entry)
    with pytest.raises(QuarlError, match="name twice: a"):
        claims.load_claims(file)
    file.write_text(entry + "colour=1\n")
    with pytest.raises(QuarlError, match="colour"):
        claims.load_claims(file)


@pytest.mark.parametrize(
    ("loss", "verdict"), [(0.01, "reproduced"), (0.2, "not reproduced"), (0.05, "inconclusive")]
)
def test_no_loss_and_similar(records, loss: float, verdict: str) -> None:
    frame = records(lambda *_: loss, ("affine8",))
    assert rules.no_loss(frame, ["affine8"]).verdict == verdict
    found = rules.similar_rewards(frame, ["affine8"], algos=["a2c"])
    assert found.verdict == verdict
    assert len(found.keys) == 4  # two A2C policies, each with its fp32
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
    assert re.search(r"1 lose more than 5 %; largest loss of those [23]\d.*dqn-", found.measured)
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


# Table 4 has eight environments of DQN.
DQN_GAMES = ("Breakout", "SpaceInvaders", "BeamRider", "MsPacman", "Qbert", "Seaquest", "Pong")
DQN_TABLE4 = {
    **{f"dqn-{game}": ("dqn", f"{game}NoFrameskip-v4", 2000.0) for game in DQN_GAMES},
    "dqn-CartPole-v1": ("dqn", "CartPole-v1", 500.0),
}


def test_claims_of_table_4_are_decided_by_its_environments(records) -> None:
    policies = DQN_TABLE4 | {
        "public/dqn-CartPole-v1": ("dqn", "CartPole-v1", 500.0),
        "dqn-BipedalWalker-v3": ("dqn", "BipedalWalker-v3", 200.0),  # in the table, not of DQN
        "public/dqn-Acrobot-v1": ("dqn", "Acrobot-v1", -100.0),
    }
    frame = records(lambda _, __, ways: 0.0, ("affine8",), policies)
    elsewhere = ("dqn-BipedalWalker-v3", "public/dqn-Acrobot-v1")
    lost = records(lambda policy, *_: 0.5 * (policy in elsewhere), ("affine8",), policies)
    for rule in (rules.similar_rewards, rules.no_loss):
        assert rule(frame, ["affine8"]).verdict == "reproduced"
        found = rule(lost, ["affine8"])
        assert found.verdict == "not reproduced" and "2 lose more than 5 %;" in found.measured
        found = rule(lost, ["affine8"], algos=["dqn"], in_table4=True)
        assert found.verdict == "reproduced" and found.measured.startswith("9 of 9 policies")
    theirs = lost[lost["policy"] != "dqn-BipedalWalker-v3"]
    assert "1 lose more than 5 %, public agents all;" in rules.no_loss(theirs, ["affine8"]).measured


def test_some_of_table_4_is_not_every_policy_in_it(records) -> None:
    seven = {policy: DQN_TABLE4[policy] for policy in DQN_TABLE4 if "Pong" not in policy}
    frame = records(lambda *_: 0.0, ("affine8",), seven)
    lost = records(lambda policy, *_: 0.5 * ("Qbert" in policy), ("affine8",), seven)
    for rule in (rules.similar_rewards, rules.no_loss):
        found = rule(frame, ["affine8"], algos=["dqn"], in_table4=True)
        assert found.verdict == "inconclusive" and found.measured.startswith("7 of 7 policies")
        assert found.measured.endswith(" (a selection: 7 of 8 in Table 4)")
        # 36 of A2C, DQN, PPO and DDPG together; and one that loses refutes "every".
        assert "7 of 36 in Table 4" in rule(frame, ["affine8"], in_table4=True).measured
        assert rule(lost, ["affine8"], ["dqn"], in_table4=True).verdict == "not reproduced"
        assert rule(frame, ["affine8"], algos=["dqn"]).verdict == "reproduced"  # whatever is here
        # Nor is one of them that never learned (with no better return than random actions).
        with_idle = seven | {"dqn-Pong": ("dqn", "PongNoFrameskip-v4", -21.0)}
        idle = records(lambda *_: 0.0, ("affine8",), with_idle)
        found = rule(idle, ["affine8"], algos=["dqn"], in_table4=True)
        assert found.verdict == "inconclusive" and "(a selection: 7 of 8" in found.measured


def test_an_interval_beside_a_verdict_says_of_which_level_it_is(records) -> None:
    frame = records(lambda *_: 0.2, WIDTHS[:7])
    row = rules.losses_at(frame, ["affine8"]).sort_values("loss").iloc[-1]
    texts = [f"{100 * row[name]:.1f}%" for name in ("loss", "tost_low", "tost_high")]
    found = rules.no_loss(frame, ["affine8"])
    assert "{} [{}, {}], 90 % interval (".format(*texts) in found.measured
    assert found.interval is not None and found.interval.high < row["loss_high"]
    assert sweet_spots.sweet_spot_exists(frame).measured.startswith(
        "0 of 6 policies have a sweet spot; surest (90 % interval for all widths): ")


def test_of_how_many_policies_a_claim_surely_holds_stands_beside_it(records) -> None:
    """Some that pass at 5 % each would pass by luck: all at once fewer are sure."""
    found = rules.no_loss(records(lambda p, *_: 0.5 * ("Pong" in p), ("affine8",)), ["affine8"])
    assert found.measured.startswith("5 of 6 policies without loss (surely 5 of 6), 1 lose more")
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


def test_the_numbers_of_a_rule_stand_in_its_claim() -> None:
    for claim in claims.load_claims():
        told = f"{claim.sentence} {claim.metric} {claim.decision}"
        for name, value in claim.arguments.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                number = rf"(?<![\d.])({value:g}|{100 * value:g})(?![\d.]*\d)"  # or as percent
                assert re.search(number, told), (claim.id, name)


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


def test_a_planted_sweet_spot_is_found_and_noise_is_not(records) -> None:
    def planted(policy: str, precision: str, _: str) -> float:
        return -0.08 if (policy, precision) == ("dqn-PongNoFrameskip-v4", "affine5") else 0.0

    frame = records(planted, WIDTHS)
    found = sweet_spots.sweet_spot_exists(frame)
    assert found.verdict == "reproduced" and "at 5 bits" in found.measured
    table = sweet_spots.sweet_spot_table(frame).set_index("policy")
    assert list(table.index[table["sweet_spot"]]) == ["dqn-PongNoFrameskip-v4"]
    assert found.measured.startswith("1 of 6 policies have a sweet spot; surest (90 % interval")
    more = sweet_spots.fewer_bits_beat_more(frame).measured
    assert more.startswith("1 of 6 policies with a narrower width that keeps fp32's return (by its "
                           "estimate) have one that beats a wider; surest (90 %")
    assert sweet_spots.fewer_bits_beat_more(frame).verdict == "reproduced"
    assert sweet_spots.sweet_spots_differ(frame).verdict == "inconclusive"
    noise = records(lambda *_: 0.0, WIDTHS)
    assert not sweet_spots.sweet_spot_table(noise)["sweet_spot"].any()
    assert sweet_spots.sweet_spot_exists(noise).verdict == "not reproduced"
    assert sweet_spots.sweet_spot_exists(noise, algos=["sac"]).verdict == "not measured"


@pytest.mark.parametrize(
    ("budget", "theirs", "ours"),
    [("version", "a1", "b2"), ("first_seed", 1000, 1001), ("random_actions", 0.0, 0.01)],
)
def test_widths_that_are_no_pair_with_fp32_are_refused(records, budget, theirs, ours) -> None:
    """After a policy of one's own was trained anew its widths are another policy's."""
    frame = records(lambda _, precision, __: -0.5 * (precision == "affine3"), WIDTHS)
    column = {"version": "extra.start_time"}.get(budget, f"budget.{budget}")
    alike = frame.assign(**{column: theirs})
    assert sweet_spots.sweet_spot_exists(alike).verdict == "reproduced"
    fp32 = frame["precision"] == "fp32"
    other = alike.assign(**{column: np.where(fp32, ours, alike[column])})
    message = f"affine.* ran with {budget} {theirs}, fp32 with {ours}"
    for rule in (sweet_spots.sweet_spot_exists, sweet_spots.fewer_bits_beat_more,
                 sweet_spots.sweet_spots_differ, sweet_spots.sweet_spot_table):  # fmt: skip
        with pytest.raises(QuarlError, match=message):
            rule(other)
    with pytest.raises(QuarlError, match=message):
        summary.ptq_summary(other, np.random.default_rng(0))


def test_over_a_return_of_0_no_width_is_a_sweet_spot(records) -> None:
    frame = records(lambda *_: 0.0, WIDTHS, noise=0.0)
    frame["returns"] = [[float(precision == "affine3")] * 30 for precision in frame["precision"]]
    assert not sweet_spots.sweet_spot_table(frame)["sweet_spot"].any()
    for rule in (sweet_spots.sweet_spot_exists, sweet_spots.sweet_spots_differ):
        found = rule(frame)
        assert found.verdict == "inconclusive" and "0 of 3 policies have" in found.measured


def test_a_gain_of_one_policy_of_many_must_be_certain(records) -> None:
    for gain in np.linspace(0.05, 0.12, 36):
        frame = records(lambda policy, precision, _, gain=gain: -gain * (
            (policy, precision) == ("dqn-PongNoFrameskip-v4", "affine5")), WIDTHS, noise=0.15)
        found = sweet_spots.sweet_spot_exists(frame)
        p = float(found.measured.split("corrected p = ")[1].split(";")[0])
        if found.interval is not None and found.interval.low > 0 and p > ALPHA:
            break
    else:
        pytest.fail("no gain in between")
    assert found.verdict == "inconclusive"


def test_a_certain_but_tiny_gain_is_no_sweet_spot(records) -> None:
    frame = records(lambda _, precision, __: -0.002 * (precision == "affine5"), WIDTHS, noise=1e-4)
    assert not sweet_spots.sweet_spot_table(frame)["sweet_spot"].any()
    found = sweet_spots.sweet_spot_exists(frame)
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
    found = sweet_spots.sweet_spot_exists(frame)
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
    found = sweet_spots.sweet_spot_exists(frame)
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
    told = sweet_spots.sweet_spot_exists(both).measured
    assert "% not excluded; no bound for dqn-X-v0" in told and "inf" not in told
    alone = sweet_spots.sweet_spot_exists(both, algos=["dqn"])
    assert alone.verdict == "inconclusive" and "(fp32 earns 0) at" in alone.measured
    assert "not excluded" not in alone.measured


def test_the_better_of_two_broken_policies_is_no_sweet_spot(records) -> None:
    losses = {"affine2": 0.6, "affine3": 0.9}
    frame = records(lambda _, precision, __: losses.get(precision, 0.0), WIDTHS)
    assert sweet_spots.fewer_bits_beat_more(frame).verdict == "not reproduced"


@pytest.mark.parametrize(
    "rule", [sweet_spots.sweet_spot_exists, sweet_spots.fewer_bits_beat_more]
)
def test_a_width_that_was_not_measured_may_be_the_sweet_spot(records, rule) -> None:
    noise = records(lambda *_: 0.0, WIDTHS)
    assert rule(noise).verdict == "not reproduced" and "every policy" not in rule(noise).measured
    unmeasured = (noise["policy"] == "ppo-CartPole-v1") & noise["precision"].isin(
        ["affine5", "affine12"])
    found = rule(noise[~unmeasured])
    assert found.verdict == "inconclusive"
    assert found.measured.endswith("; not measured of every policy: 5, 12 bits")


def test_noise_seldom_passes_for_a_sweet_spot(records) -> None:
    policies = {"ppo-X-v0": ("ppo", "X-v0", 100.0), "a2c-X-v0": ("a2c", "X-v0", 100.0)}
    hits = sum(
        sweet_spots.sweet_spot_exists(
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
    found = sweet_spots.fewer_bits_beat_more(frame).measured
    assert f"at 7 against 9 bits, corrected p = {every.p_values[at]:.3g};" in found


def test_rules_of_sweet_spots_flip_signs_and_redraw_nothing(records, monkeypatch) -> None:
    frame = records(lambda *_: 0.0, WIDTHS)
    losses.episode_weights.cache_clear()
    monkeypatch.setattr(losses, "bootstrap_weights", None)
    assert sweet_spots.sweet_spot_exists(frame).verdict == "not reproduced"
    assert len(sweet_spots.sweet_spot_table(frame)) == 6


def test_sweet_spots_at_two_widths_differ(records) -> None:
    at = {"dqn-PongNoFrameskip-v4": "affine5", "ppo-CartPole-v1": "affine9"}
    frame = records(lambda p, precision, _: -0.08 * (at.get(p) == precision), WIDTHS)
    found = sweet_spots.sweet_spots_differ(frame)
    assert found.verdict == "reproduced" and "2 of 6" in found.measured
    one_task = frame.assign(env_id=frame["env_id"].replace("PongNoFrameskip-v4", "CartPole-v1"))
    assert sweet_spots.sweet_spots_differ(one_task).verdict == "inconclusive"


def test_sweet_spots_that_share_a_width_need_not_differ(records) -> None:
    """Each gains most at another width, and as surely at 5 bits."""
    at = {"dqn-PongNoFrameskip-v4": {"affine5": -0.08, "affine9": -0.09},
          "ppo-CartPole-v1": {"affine5": -0.09, "affine9": -0.08}}  # fmt: skip
    frame = records(lambda p, precision, _: at.get(p, {}).get(precision, 0.0), WIDTHS, noise=0.001)
    found = sweet_spots.sweet_spots_differ(frame)
    assert found.verdict == "inconclusive" and "2 of 6" in found.measured
    assert "at 9 bits" in found.measured and "at 5 bits" in found.measured


def test_a_sweet_spot_that_another_policy_misses_by_a_hair_tells_no_difference(records) -> None:
    """Both gain at 5 and at 9 bits; at one of them either is too uncertain to say."""
    at = {"dqn-PongNoFrameskip-v4": {"affine5": -0.08, "affine9": -0.045},
          "ppo-CartPole-v1": {"affine5": -0.045, "affine9": -0.08}}  # fmt: skip
    frame = records(lambda p, precision, _: at.get(p, {}).get(precision, 0.0), WIDTHS)
    found = sweet_spots.sweet_spots_differ(frame)
    assert found.verdict == "inconclusive" and "2 of 6" in found.measured
    assert "dqn-PongNoFrameskip-v4 at 5 bits; ppo-CartPole-v1 at 9 bits" in found.measured


def test_verdicts_read_the_public_agents_too(records) -> None:
    frame = records(lambda *_: 0.0, ("affine8",), DQN_TABLE4)
    theirs = frame["policy"] == "dqn-CartPole-v1"
    public = frame[theirs].assign(policy="public/dqn-CartPole-v1")
    frames = {"ptq": frame[~theirs], "ptq_public": public}
    found = claims.verdicts(lambda study: frames.get(study, pd.DataFrame())).set_index("id")
    assert found.loc["ptq-int8-dqn", "verdict"] == "reproduced"
    assert found.loc["ptq-int8-dqn", "measured"].startswith("8 of 8 policies")
    assert found.loc["ptq-int8-dqn", "profile"] == "quick"
    assert found.loc["edge-18x", "verdict"] == "not measured"


def test_a_verdict_has_the_interval_and_the_profiles_of_its_own_records(records) -> None:
    frame = records(lambda *_: 0.2, ("affine8",))
    frame["profile"] = frame["algo"].map({"dqn": "full", "a2c": "smoke"}).fillna("quick")
    claim = {claim.id: claim for claim in claims.load_claims()}["ptq-int8-dqn"]
    (row,) = claims.verdicts(
        lambda study: frame if study == "ptq" else pd.DataFrame(), [claim]).to_dict("records")
    found = claims.judge(claim, frame)
    assert found.interval is not None and found.interval.low < found.interval.high
    assert (row["value"], row["low"], row["high"]) == tuple(vars(found.interval).values())
    assert row["profile"] == "full"
    both = claims.verdicts(lambda study: frame if study == "ptq" else pd.DataFrame())
    assert both.set_index("id").loc["ptq-8-bits-limited-impact", "profile"] == "full+quick+smoke"
    assert claims.verdicts(lambda study: frame, []).empty and claims.studies([]) == []


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


def test_each_seed_of_a_policy_counts_and_so_does_one_without_a_seed(records) -> None:
    one = records(lambda *_: 0.0, ("affine8",), {"ppo-CartPole-v1": ("ppo", "CartPole-v1", 490.0)})
    seeds = pd.concat([one, one.assign(seed=1, key="1" + one["key"])], ignore_index=True)
    public = one.assign(policy="public/ppo-CartPole-v1", seed=np.nan, key="p" + one["key"])
    for frame in (seeds, pd.concat([one, public], ignore_index=True)):
        found = rules.no_loss(frame, ["affine8"])
        assert found.verdict == "reproduced" and found.measured.startswith("2 of 2 policies")


@pytest.mark.parametrize(("p", "verdict"), [(0.03, "inconclusive"), (0.02, "not reproduced")])
def test_one_of_two_correlations_refutes_at_half_of_5_percent(
    records, monkeypatch, p, verdict
) -> None:
    found = iter([RankCorrelation(0.5, 0.01, 0.99), RankCorrelation(-0.5, 1 - p, p)])
    monkeypatch.setattr(rules, "correlation_within", lambda *_: next(found))
    frame = with_weights(records(harder, ("affine4",), GRID), harder)
    assert rules.wider_weights_lose_more(frame, ["affine4"]).verdict == verdict


NEGATIVE = {"ppo-X-v0": ("ppo", "X-v0", -100.0), "ppo-Y-v0": ("ppo", "Y-v0", -200.0)}


def test_sweet_spots_of_negative_returns(records) -> None:
    at = {"ppo-X-v0": "affine5", "ppo-Y-v0": "affine9"}
    frame = records(lambda p, precision, _: -0.08 * (at[p] == precision), WIDTHS, NEGATIVE)
    assert sweet_spots.sweet_spot_table(frame)["sweet_spot"].all()
    assert sweet_spots.sweet_spots_differ(frame).verdict == "reproduced"
    tiny = records(lambda _, precision, __: -0.002 * (precision == "affine5"), WIDTHS, NEGATIVE,
                   noise=1e-4)  # fmt: skip
    assert not sweet_spots.sweet_spot_table(tiny)["sweet_spot"].any()
    assert sweet_spots.sweet_spot_exists(tiny).verdict == "not reproduced"
    worse = records(lambda _, precision, __: 0.2 * (precision == "affine4"),
                    ("affine3", "affine4", "affine5"), NEGATIVE)  # fmt: skip
    found = sweet_spots.fewer_bits_beat_more(worse)
    assert found.verdict == "reproduced" and "at 3 against 4 bits" in found.measured


def test_widths_may_come_in_any_order_and_from_agents_without_a_seed(records) -> None:
    losses = {"affine6": 0.2, "affine10": 0.3}
    frame = records(lambda _, precision, __: losses.get(precision, 0.0), WIDTHS)
    other = frame[::-1].assign(seed=np.nan)
    found, again = (sweet_spots.fewer_bits_beat_more(each) for each in (frame, other))
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
    found = sweet_spots.sweet_spot_exists(frame)
    assert found.verdict == "inconclusive" and found.measured.endswith(" (only 20 episodes)")


@pytest.mark.parametrize("first", [0, 1])
def test_a_sweet_spot_that_may_be_the_others_too_tells_no_difference(records, first) -> None:
    """One certainly gains nothing at 5 bits, where the other does; that one may gain at 9 too."""
    names = ("dqn-PongNoFrameskip-v4", "ppo-CartPole-v1")
    at = {names[first]: {"affine5": -0.08, "affine9": -0.045}, names[1 - first]: {"affine9": -0.08}}
    frame = records(lambda p, precision, _: at.get(p, {}).get(precision, 0.0), WIDTHS)
    found = sweet_spots.sweet_spots_differ(frame)
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
    assert "): Z-v0 gains" in sweet_spots.sweet_spot_exists(frame).measured


def test_what_is_not_excluded_is_the_largest_gain_of_all_policies(records) -> None:
    frame = records(lambda *_: 0.0, WIDTHS, noise=0.3)
    highest = [each.gains().high.max() / abs(each.reference.mean())
               for each in sweet_spots.widths_of(frame)]  # fmt: skip
    found = sweet_spots.sweet_spot_exists(frame)
    assert found.verdict == "inconclusive"
    assert f"; up to {max(highest):.1%} not excluded" in found.measured
