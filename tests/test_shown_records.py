from __future__ import annotations

import pytest

from quarl_nb.rl.policies import load_digest, save_policy
from quarl_nb.shown_records import of_present_policies, one_of_each_cell
from quarl_nb.studies import weights_of


def record(policy, precision, weights=None, day=1, **budget):
    told = {"tensors_sha256": weights} if weights else {}
    return {
        "key": f"{policy}-{precision}-{weights}", "schema_version": 1,
        "cell": {"policy": policy, "precision": precision}, "budget": budget | told,
        "provenance": {"start_time": f"2026-01-0{day}"},
    }  # fmt: skip


LINEAR = ("linear", {"in_features": 4, "out_features": 2})
OTHERS = [record("ppo-CartPole-v1", "fp32"), record("yours", "fp32", "C")]
BEFORE = [record("mine", "fp32", "A", 1), record("mine", "int8", "A", 1)]
AFTER = [record("mine", "fp32", "B", 2), record("mine", "int4", "B", 2)]


@pytest.mark.parametrize(("today", "shown"), [
    ("A", BEFORE),
    ("B", AFTER),
    ("D", [*BEFORE, *AFTER]),  # of which nothing is measured yet
    (None, [*BEFORE, *AFTER]),
])  # fmt: skip
def test_records_of_the_policy_that_lies_there_are_shown_however_old(today, shown):
    def weights_now(name):
        assert name == "mine"  # which alone has a choice
        return today

    assert of_present_policies([*OTHERS, *BEFORE, *AFTER], weights_now) == [*OTHERS, *shown]


def test_where_no_policies_are_known_nothing_is_left_out():
    records = [*OTHERS, *BEFORE, *AFTER]
    assert of_present_policies(records, None) == records


def test_of_each_cell_the_newest_is_shown_unless_another_is_planned():
    records = [BEFORE[0], AFTER[0], BEFORE[1]]
    assert one_of_each_cell(records, None) == [AFTER[0], BEFORE[1]]
    assert one_of_each_cell(records, lambda: {BEFORE[0]["key"]}) == [BEFORE[0], BEFORE[1]]
    assert one_of_each_cell(OTHERS, lambda: pytest.fail("nothing to choose")) == OTHERS


def test_the_weights_of_ones_own_policies_are_known_and_no_others(
    tmp_path, monkeypatch, make_policy
):
    assert weights_of("ppo-CartPole-v1") is None  # of the suite
    monkeypatch.setattr("quarl_nb.studies.policies.policies_folder", lambda: tmp_path)
    assert weights_of("mine") is None
    folder = save_policy(make_policy((4,), LINEAR), tmp_path / "mine")
    assert weights_of("mine") == load_digest(folder)
