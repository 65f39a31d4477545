"""Pairing of records: values by hand, and what must not be paired."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.report import losses
from quarl_nb.report.losses import paired_losses
from quarl_nb.report.policy_records import ptq_records
from quarl_nb.report.ptq.tables import loss_table, sweet_spot_tables
from quarl_nb.report.stats import bootstrap_weights


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


def test_intervals_of_shorter_records_do_not_depend_on_the_others() -> None:
    generator = np.random.default_rng(0)
    full, short, other = (generator.normal(10, 3, size).tolist() for size in (50, 30, 40))
    rows = paired_losses(frame(fp32=full, affine2=other, affine4=short, affine8=short))
    alone = paired_losses(frame(fp32=full, affine8=short)).set_index("precision").loc["affine8"]
    by_precision = rows.set_index("precision")
    for precision in ("affine4", "affine8"):
        for bound in ("mean_low", "mean_high", "loss_low", "loss_high"):
            assert by_precision.loc[precision, bound] == alone[bound]


def test_no_reference_no_row_but_all_columns() -> None:
    columns = list(paired_losses(frame(fp32=[1.0, 2], affine8=[1.0, 2])).columns)
    for records in (frame(affine8=[1.0, 2]), pd.DataFrame()):
        rows = paired_losses(records)
        assert rows.empty and list(rows.columns) == columns


def test_few_episodes_that_agree_are_not_certain_of_the_rest() -> None:
    assert paired_losses(frame(fp32=[20.0] * 30, affine8=[20.0] * 30))["p_no_loss"].max() < 0.001
    few = paired_losses(frame(fp32=[20.0] * 3, affine8=[20.0] * 3))
    assert few["p_no_loss"].tolist() == [0.125, 0.125]  # 1 / 2^3


def test_reference_of_zero_is_undecided_not_infinite() -> None:
    row = paired_losses(frame(fp32=[-1.0, 1], affine8=[5.0, 5])).set_index("precision")
    assert np.isnan(row.loc["affine8", "loss"])
    assert row.loc["affine8", "p_loss"] == row.loc["affine8", "p_no_loss"] == 1
    assert row.loc["affine8", "p_equivalent"] == 1


def test_other_seeds_are_refused() -> None:
    rows = frame(fp32=[1.0, 2], affine8=[1.0, 2])
    rows.loc[1, "budget.first_seed"] = 8
    with pytest.raises(QuarlError, match="ppo-X-v0: affine8 ran with first_seed 8, fp32 with 7"):
        paired_losses(rows)


def test_two_policies_of_one_name_are_no_pair() -> None:
    rows = frame(fp32=[1.0, 2], affine8=[1.0, 2])
    for column in ("budget.tensors_sha256", "extra.start_time"):
        with pytest.raises(QuarlError, match="affine8 ran with version b2, fp32 with a1"):
            paired_losses(rows.assign(**{column: ["a1", "b2"]}))
        with pytest.raises(QuarlError, match="affine8 ran with version unknown, fp32 with a1"):
            paired_losses(rows.assign(**{column: ["a1", None]}))
        assert paired_losses(rows.assign(**{column: "a1"}))["version"].tolist() == ["a1"] * 2
        assert paired_losses(rows.assign(**{column: np.nan}))["version"].tolist() == [""] * 2
    saved_twice = {"budget.tensors_sha256": "a1", "extra.start_time": ["2026-01-01", "2026-02-01"]}
    assert len(paired_losses(rows.assign(**saved_twice))) == 2


def test_of_a_name_that_another_policy_was_given_only_the_newest_counts() -> None:
    old = frame(fp32=[1.0, 2], affine8=[1.0, 2]).assign(**{"provenance.start_time": "2026-01-01"})
    new = frame(fp32=[3.0, 4], affine8=[3.0, 4]).assign(**{"provenance.start_time": "2026-02-01"})
    for change in ({"algo": "dqn"}, {"env_id": "Y-v0"}):
        named_again = new.assign(**change, **{"budget.tensors_sha256": "b2"})
        both = pd.concat([named_again, old.assign(**{"budget.tensors_sha256": "a1"})])
        rows = paired_losses(both.reset_index(drop=True))
        assert rows["reference"].tolist() == [3.5, 3.5]
        assert all(set(rows[name]) == {value} for name, value in change.items())


@pytest.mark.parametrize("column", ["budget.tensors_sha256", "extra.start_time"])
def test_of_a_policy_that_was_trained_anew_only_the_newest_counts(column: str) -> None:
    old = frame(fp32=[1.0, 2], affine4=[1.0, 2], affine8=[1.0, 2])
    old = old.assign(**{"provenance.start_time": "2026-01-01", column: "a1"})
    new = frame(fp32=[3.0, 4], affine8=[3.0, 4])
    new = new.assign(**{"provenance.start_time": "2026-02-01", column: "b2"})
    beside = frame(fp32=[5.0, 6]).assign(policy="other", **{"provenance.start_time": "2026-01-02"})
    for measured, left in ((new, ["fp32", "affine8"]), (new[:1], ["fp32"]), (new[1:], [])):
        replaced = old[~old["precision"].isin(measured["precision"])]  # of the suite's own policies
        for before in (old, replaced):
            rows = paired_losses(pd.concat([measured, before, beside], ignore_index=True))
            mine = rows[rows["policy"] != "other"]
            assert mine["precision"].tolist() == left and len(rows) == len(left) + 1
            assert set(mine["reference"]) <= {3.5} and set(mine["version"]) <= {"b2"}
    other_seed = pd.concat([old.assign(seed=1), new], ignore_index=True)
    assert len(paired_losses(other_seed)) == 5  # each seed is a training of its own


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


def test_tables_have_a_row_a_policy_where_short_labels_are_shared() -> None:
    rows = frame(fp32=[1.0, 2], affine8=[1.0, 2], affine4=[0.5, 1], affine2=[0.0, 0])
    one, two = (rows.assign(policy=name, algo="ppo", env_id=name[4:], key=name + rows["key"])
                for name in ("ppo-CartPole-v0", "ppo-CartPole-v1"))  # fmt: skip
    both = pd.concat([one, two], ignore_index=True)
    names = ["PPO CartPole-v0", "PPO CartPole-v1"]
    assert loss_table(paired_losses(both)).index.tolist() == names
    assert sweet_spot_tables(both)[1]["policy"].tolist() == names
    assert loss_table(paired_losses(one)).index.tolist() == ["PPO CartPole"]


def test_a_policys_draws_are_made_once_for_each_number_of_episodes(monkeypatch) -> None:
    """Its records come in any order of their numbers."""
    drawn: list[int] = []

    def draw(n: int, generator: np.random.Generator, resamples: int) -> np.ndarray:
        drawn.append(n)
        return bootstrap_weights(n, generator, 50)

    losses.episode_weights.cache_clear()
    monkeypatch.setattr(losses, "bootstrap_weights", draw)
    full, short = (np.random.default_rng(4).normal(10, 3, n) for n in (21, 13))
    counts = {f"affine{bits}": [*(short if bits % 2 else full) + bits] for bits in range(2, 9)}
    assert len(paired_losses(frame(fp32=[*full], **counts))) == 8
    losses.episode_weights.cache_clear()
    assert sorted(drawn) == [13, 21]


def test_a_row_holds_the_mean_of_its_own_returns() -> None:
    rows = paired_losses(frame(fp32=[10.0, 30], affine8=[10.0, 20])).set_index("precision")
    assert rows["mean"].to_dict() == {"fp32": 20, "affine8": 15}
    reach = 12.706 * 7.071 / 2**0.5  # Student's t of one degree of freedom, of two means 10 apart
    ends = rows.loc["affine8", ["mean_low", "mean_high"]].tolist()
    assert ends == pytest.approx([15 - reach, 15 + reach], rel=0.03)


def test_the_interval_of_90_percent_lies_within_that_of_95() -> None:
    generator = np.random.default_rng(0)
    fp32, affine8 = generator.normal(10, 3, (2, 40)).tolist()
    row = paired_losses(frame(fp32=fp32, affine8=affine8)).set_index("precision").loc["affine8"]
    ends = row[["loss_low", "tost_low", "loss", "tost_high", "loss_high"]]
    assert ends.is_monotonic_increasing and ends.is_unique


def test_public_agents_without_a_seed_have_rows_too() -> None:
    own = frame(fp32=[10.0, 30], affine8=[10.0, 20])
    both = pd.concat([own, own.assign(policy="public/ppo-X-v0", seed=np.nan)], ignore_index=True)
    found = paired_losses(both)
    assert found.groupby("policy")["public"].agg(list).to_dict() == {
        "ppo-X-v0": [False, False], "public/ppo-X-v0": [True, True]}  # fmt: skip
