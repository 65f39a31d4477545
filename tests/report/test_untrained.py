"""Who never learned: by hand, and that no verdict rests on such a policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.report.ptq import rules, sweet_spot_rules
from quarl_nb.report.pvalues import permutation_p
from quarl_nb.report.untrained import never_learned, untrained_returns
from quarl_nb.rl.untrained import default_env_ids

# Random actions cost something, no action costs nothing.
UNTRAINED = {"X-v0": [np.array([-30.0, -34, -31, -33] * 5), np.zeros(20)]}


def frame(policy: str, env_id: str, *runs: list[float]) -> pd.DataFrame:
    return pd.DataFrame([
        {"key": f"{policy}{i}", "policy": policy, "env_id": env_id, "returns": run, "seed": i}
        for i, run in enumerate(runs)
    ])


def p_of(x: list[float], y: list[float]) -> float:
    return permutation_p(np.array(x), np.array(y), np.random.default_rng(0), 20_000)


def test_permutation_p_counts_the_orders_as_extreme() -> None:
    # Of 6 over 4 = 15 ways to choose two of six, only {5, 6} sums to 11 or more.
    assert p_of([5, 6], [1, 2, 3, 4]) == pytest.approx(1 / 15, abs=0.01)
    assert p_of([1, 2], [3, 4, 5, 6]) == pytest.approx(1.0)
    assert p_of([0.1] * 3, [0.1] * 7) == 1.0
    # As extreme in whatever order they are added: 0.3 + 0.2 + 0.1 is less than 0.1 + 0.2 + 0.3.
    assert p_of([0.1, 0.2, 0.3], [0.0] * 3) == pytest.approx(1 / 20, abs=0.005)
    assert p_of([21.0], [-21.0] * 30) == pytest.approx(1 / 31, abs=0.01)  # one is enough


@pytest.mark.parametrize(
    ("runs", "learned"),
    [
        ([[-31.0, -33, -32, -30] * 5], False),
        ([[0.0] * 20], False),  # it learned to do nothing
        ([[90.0, 91, 92] * 7], True),
        ([[90.0] * 20, [-30.0] * 20, [-30.0] * 20], True),  # one training of three
        ([[1.0] + [-1.0] * 19] * 3, False),
    ],
)
def test_better_than_random_and_than_nothing(runs: list[list[float]], learned: bool) -> None:
    assert never_learned(frame("a", "X-v0", *runs), UNTRAINED) == (set() if learned else {"a"})
    assert never_learned(frame("a", "Unknown-v0", *runs), UNTRAINED) == set()


@pytest.mark.parametrize(
    ("returns", "learned"),
    [
        ([-21.0] * 18 + [-20.0] * 9 + [-19.0] * 3, False),
        ([-20.0] * 20 + [-19.0] * 10, True),
        ([-21.0] * 29 + [20.0], False),  # one game won is luck, half of them is not
        ([-21.0] * 15 + [20.0] * 15, True),
    ],
)
def test_better_than_random_play(returns: list[float], learned: bool) -> None:
    untrained = {"PongNoFrameskip-v4": [np.array([-21.0] * 17 + [-20] * 10 + [-19] * 3)]}
    played = frame("a", "PongNoFrameskip-v4", returns)
    assert never_learned(played, untrained) == (set() if learned else {"a"})


def test_the_file_knows_every_recipe(tmp_path: Path) -> None:
    found = untrained_returns()
    assert set(default_env_ids()) <= set(found)
    assert all(len(returns) == 30 for each in found.values() for returns in each)
    assert found["PongNoFrameskip-v4"][0].mean() < -20
    assert found["MountainCarContinuous-v0"][1].max() == 0
    assert untrained_returns(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    "entry", [3, {"random": 3}, {"random": {}}, *({"random": {"returns": returns}} for returns in
                                                 ([], 1.0, ["x"], [None], [[1.0]]))],
)  # fmt: skip
def test_a_damaged_entry_is_named(tmp_path: Path, entry: object) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"X-v0": entry}))
    with pytest.raises(QuarlError, match=r"untrained policies '.*bad\.json'"):
        untrained_returns(path)


def test_ptq_of_a_policy_that_never_learned_decides_nothing(records) -> None:
    stuck = {"ppo-PongNoFrameskip-v4": ("ppo", "PongNoFrameskip-v4", -21.0)}
    others = records(lambda *_: 0.0, ("affine8", "affine4"))
    frozen = records(lambda *_: 0.0, ("affine8", "affine4"), stuck, noise=0.0)
    both = pd.concat([others, frozen], ignore_index=True)
    for rule in (rules.similar_rewards, rules.no_loss, rules.hardness_differs):
        alone, found = rule(others, ["affine8"]), rule(both, ["affine8"])
        assert (found.verdict, found.interval, found.keys) == \
            (alone.verdict, alone.interval, alone.keys)
        assert "(never learned: ppo-PongNoFrameskip-v4)" in found.measured
        lone = rule(frozen, ["affine8"])
        assert lone.verdict == "inconclusive" and "no policy learned: ppo-Pong" in lone.measured
        elsewhere = rule(both.replace("PongNoFrameskip-v4", "MyPong-v0"), ["affine8"])
        assert "never learned" not in elsewhere.measured
        assert len(elsewhere.keys) == len(alone.keys) + 2


def test_one_that_learned_under_its_name_before_is_no_proof_of_a_policy(records) -> None:
    def trained(mean: float, month: str) -> pd.DataFrame:
        policies = {"ppo-PongNoFrameskip-v4": ("ppo", "PongNoFrameskip-v4", mean)}
        frame = records(lambda *_: 0.0, ("affine2", "affine4", "affine8"), policies, noise=0.0)
        times = {f"{of}.start_time": f"2026-{month}-01" for of in ("provenance", "extra")}
        weights = {"key": "w", "policy": [*policies][0], "range": [1.0]}
        return pd.concat([frame, pd.DataFrame([weights])], ignore_index=True).assign(**times)

    both = pd.concat([trained(20.0, "01"), trained(-21.0, "02")], ignore_index=True)
    for rule, *precisions in (
        (rules.similar_rewards, ["affine8"]), (rules.hardness_differs, ["affine8"]),
        (rules.wider_weights_lose_more, ["affine8"]), (sweet_spot_rules.sweet_spot_exists,),
    ):  # fmt: skip
        assert "learned: ppo-PongNoFrameskip-v4" in rule(both, *precisions).measured, rule


@pytest.mark.parametrize("rule", [
    sweet_spot_rules.sweet_spot_exists, sweet_spot_rules.fewer_bits_beat_more,
    sweet_spot_rules.sweet_spots_differ,
])  # fmt: skip
def test_no_sweet_spot_of_a_policy_that_never_learned(records, rule) -> None:
    widths = ("affine2", "affine3", "affine4", "affine8")
    policy, env_id = "ppo-MountainCarContinuous-v0", "MountainCarContinuous-v0"

    def gain(name: str, precision: str, _: str) -> float:
        """Of 2 bits the stuck policy does nothing, for 0 instead of -20; another gains at 4."""
        spots = {policy: ("affine2", 1.0), "a2c-CartPole-v1": ("affine4", 0.1)}
        width, share = spots.get(name, ("", 0.0))
        return -share * (precision == width)

    others = records(gain, widths)
    stuck = records(gain, widths, {policy: ("ppo", env_id, -20.0)})
    both = pd.concat([others, stuck], ignore_index=True)
    alone, found = rule(others), rule(both)
    assert (found.verdict, found.interval, found.keys) == \
        (alone.verdict, alone.interval, alone.keys)
    assert found.measured == f"{alone.measured} (never learned: {policy})"
    lone = rule(stuck)
    assert (lone.verdict, lone.measured) == ("inconclusive", f"no policy learned: {policy}")
    elsewhere = rule(both.replace(env_id, "MyCar-v0"))
    assert "never learned" not in elsewhere.measured and len(elsewhere.keys) > len(alone.keys)
    if rule is not sweet_spot_rules.sweet_spots_differ:
        assert rule(stuck.replace(env_id, "MyCar-v0")).verdict == "reproduced"
    else:
        assert f"{policy} at 2 bits" in elsewhere.measured
