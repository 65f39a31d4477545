"""Pairing of records: values by hand, and what must not be paired."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.report.losses import (
    paired_losses,
    percent,
    policy_label,
    ptq_records,
    trajectories_of,
)


def frame(**returns: list[float]) -> pd.DataFrame:
    return pd.DataFrame([
        {"key": name, "profile": "quick", "algo": "PPO", "env_id": "X-v0", "policy": "ppo-X-v0",
         "seed": 0, "precision": name, "ranges": "minmax", "returns": values,
         "budget.first_seed": 7}
        for name, values in returns.items()
    ])


def test_loss_by_hand() -> None:
    rows = paired_losses(frame(fp32=[10.0, 30], affine8=[10.0, 20], affine4=[12.0, 32]))
    rows = rows.set_index("precision")
    assert rows["loss"].to_dict() == {"fp32": 0, "affine8": 0.25, "affine4": -0.1}
    assert rows.loc["affine8", "reference"] == 20
    assert rows.loc["affine8", "keys"] == ("fp32", "affine8")
    assert rows.loc["affine8", "bits"] == 8 and pd.isna(rows.loc["fp32", "bits"])
    assert set(rows["algo"]) == {"ppo"}


def test_negative_returns_keep_the_sign_of_a_loss() -> None:
    rows = paired_losses(frame(fp32=[-100.0, -100], affine8=[-150.0, -150])).set_index("precision")
    assert rows.loc["affine8", "loss"] == 0.5


def test_intervals_of_a_policy_do_not_depend_on_the_others(records) -> None:
    all_rows = paired_losses(records(lambda *_: 0.1, ("affine8",)))
    one = records(lambda *_: 0.1, ("affine8",))
    one = one[one["policy"] == "ppo-CartPole-v1"]
    alone = paired_losses(one).drop(columns="keys").reset_index(drop=True)
    among = all_rows[all_rows["policy"] == "ppo-CartPole-v1"]
    pd.testing.assert_frame_equal(alone, among.drop(columns="keys").reset_index(drop=True))


def test_intervals_do_not_depend_on_the_type_of_the_seed() -> None:
    rows = frame(fp32=[10.0, 30, 20], affine8=[10.0, 20, 25])
    as_float = paired_losses(rows.assign(seed=rows["seed"].astype(float)))
    pd.testing.assert_frame_equal(paired_losses(rows), as_float, check_dtype=False)


def test_shorter_records_pair_over_the_common_episodes() -> None:
    rows = paired_losses(frame(fp32=[10.0, 30, 1000], affine8=[10.0, 20]))
    assert rows.set_index("precision").loc["affine8", "loss"] == 0.25


def test_no_reference_no_row() -> None:
    assert paired_losses(frame(affine8=[1.0, 2])).empty
    assert paired_losses(pd.DataFrame()).empty


PONG = {"env_id": "PongNoFrameskip-v4", "returns": [20.0, 21, 20, 20, 20, 20],
        "lengths": [1618, 1991, 1611, 1621, 1627, 2007]}  # fmt: skip


def test_games_begun_some_no_ops_later_are_one_trajectory() -> None:
    # 20 points: 1611 and 1618 (7 steps are 28 of 30 no-ops), 1621 and 1627, 2007; then 21 points.
    assert trajectories_of(pd.Series(PONG)).tolist() == [0, 3, 0, 1, 1, 2]
    assert trajectories_of(pd.Series(PONG), 3).tolist() == [0, 1, 0]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "PongNoFrameskip-v0"])
def test_where_chance_sets_the_start_episodes_that_end_alike_stay_distinct(env_id: str) -> None:
    assert trajectories_of(pd.Series(PONG | {"env_id": env_id})).tolist() == list(range(6))
    assert trajectories_of(pd.Series({**PONG, "env_id": env_id, "lengths": [9] * 6})).max() == 5


def test_a_policy_that_draws_its_actions_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for policy, head in (("drawn", "sample"), ("largest", "argmax")):
        file = tmp_path / "data" / "policies" / policy / "policy.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"spec": {"head": {"kind": head}}}))
    monkeypatch.chdir(tmp_path)
    assert trajectories_of(pd.Series(PONG | {"policy": "drawn"})).tolist() == list(range(6))
    for policy in ("largest", "public/without-a-file"):
        record = PONG | {"policy": policy, "budget.random_actions": float("nan")}
        assert trajectories_of(pd.Series(record)).max() == 3
        record["budget.random_actions"] = 0.01
        assert trajectories_of(pd.Series(record)).tolist() == list(range(6))


def test_the_projects_own_policies_tell_which_of_them_draw() -> None:
    def trajectories(policy: str) -> int:
        return int(trajectories_of(pd.Series(PONG | {"policy": policy})).max()) + 1

    assert trajectories("a2c-SeaquestNoFrameskip-v4") == 6
    assert trajectories("ppo-PongNoFrameskip-v4") == trajectories("dqn-PongNoFrameskip-v4") == 4


def test_thirty_episodes_of_two_games_are_as_uncertain_as_two_games() -> None:
    rows = frame(fp32=[20.0] * 15 + [10.0] * 15, affine8=[20.0] * 15 + [-10.0] * 15)
    apart = paired_losses(rows).set_index("precision").loc["affine8"]
    assert apart["trajectories"] == 30 and apart["p_loss"] < 0.001
    rows["lengths"] = [[100] * 15 + [200] * 15] * 2
    rows["env_id"] = "PongNoFrameskip-v4"
    row = paired_losses(rows).set_index("precision").loc["affine8"]
    # Both games, or the first twice, or the second twice: losses of 20/30, 0 and 20/10.
    assert (row["loss"], row["loss_low"], row["loss_high"]) == pytest.approx((2 / 3, 0, 2))
    assert row["trajectories"] == 2 and row["p_loss"] > 0.2
    assert (row["mean_low"], row["mean_high"]) == (-10, 20)


def test_few_games_that_agree_are_not_certain_of_the_rest() -> None:
    rows = frame(fp32=[20.0] * 30, affine8=[20.0] * 30)
    assert paired_losses(rows)["p_no_loss"].max() < 0.001
    rows["lengths"], rows["env_id"] = [[100, 200, 300] * 10] * 2, "PongNoFrameskip-v4"
    assert paired_losses(rows)["p_no_loss"].tolist() == [0.125, 0.125]  # 1 / 2^3


def test_reference_of_zero_is_undecided_not_infinite() -> None:
    row = paired_losses(frame(fp32=[-1.0, 1], affine8=[5.0, 5])).set_index("precision")
    assert np.isnan(row.loc["affine8", "loss"])
    assert row.loc["affine8", "p_loss"] == row.loc["affine8", "p_no_loss"] == 1


def test_other_seeds_are_refused() -> None:
    rows = frame(fp32=[1.0, 2], affine8=[1.0, 2])
    rows.loc[1, "budget.first_seed"] = 8
    with pytest.raises(QuarlError, match="ppo-X-v0: affine8 ran with first_seed 8, fp32 with 7"):
        paired_losses(rows)


def test_a_greedy_and_an_exploring_record_are_no_pair() -> None:
    rows = frame(fp32=[1.0, 2], affine8=[1.0, 2])
    rows["budget.random_actions"] = [float("nan"), 0.01]
    with pytest.raises(QuarlError, match="affine8 ran with random_actions 0.01, fp32 with nan"):
        paired_losses(rows)
    rows["budget.random_actions"] = float("nan")  # as beside another policy's that explores
    assert len(paired_losses(rows)) == 2


def test_missing_returns_are_refused() -> None:
    with pytest.raises(QuarlError, match="no finite returns"):
        paired_losses(frame(fp32=[1.0, float("nan")]))


def test_rows_of_other_studies_and_other_ranges_are_left_out() -> None:
    rows = frame(fp32=[1.0, 2], affine8=[1.0, 2], affine4=[1.0, 2])
    rows.loc[2, "ranges"] = "mse"
    weights = pd.DataFrame([{"key": "w", "policy": "ppo-X-v0", "precision": "affine8"}])
    both = pd.concat([rows, weights], ignore_index=True)
    assert list(ptq_records(both, ranges=["minmax"])["key"]) == ["fp32", "affine8"]
    assert list(ptq_records(both, ["affine4"])["key"]) == ["fp32", "affine4"]
    assert ptq_records(both, algos=["dqn"]).empty


def test_labels() -> None:
    assert policy_label("dqn-PongNoFrameskip-v4") == "DQN Pong"
    assert policy_label("public/sac-HalfCheetah-v3") == "SAC HalfCheetah (public)"
    assert [percent(x) for x in (0.1234, -0.0001)] == ["12.3%", "0.0%"]


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        ("ppo-CartPole-v1", "PPO CartPole"),
        ("a2c-MountainCarContinuous-v0", "A2C MountainCar"),
        ("dqn-PongNoFrameskip-v4", "DQN Pong"),
        ("public/a2c-HalfCheetah-v3", "A2C HalfCheetah (public)"),
        ("public/a3c-gru-breakout-v4.80", "A3C-GRU Breakout (public)"),
        ("public/dueling-ddqn-PongDeterministic-v4", "DUELING-DDQN Pong (public)"),
        ("my_model", "my_model"),
    ],
)
def test_policies_have_short_labels(policy: str, label: str) -> None:
    assert policy_label(policy) == label
