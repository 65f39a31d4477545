"""Verdicts on ActorQ's claims about communication where the truth is planted."""

from __future__ import annotations

import pandas as pd
import pytest

from planted_actorq import TASKS, communications, make_records, scaled
from quarl_nb.report.actorq.communication_rules import (
    communication_helps,
    communication_matters_little,
    gains_by_scenario,
    messages_smaller,
    policy_smaller,
)
from quarl_nb.report.actorq.runtime_rules import (
    actors_faster,
    inference_dominates,
    transfers_faster,
)


def test_bytes_and_parts_need_no_setting() -> None:
    assert messages_smaller(communications(device="cpu"), 3.8).verdict == "reproduced"
    assert messages_smaller(communications(), 4.1).verdict == "not reproduced"
    actors = ("fp32/torch", "fp16/torch", "int8/onnxruntime")
    records = make_records(["Walker Stand", "Acrobot (Gym)"], actors, device="cpu", pull_period=30)
    found = policy_smaller(records, 1.0)
    assert found.verdict == "reproduced" and found.interval.value == 4
    found = transfers_faster(records, 30)
    assert found.verdict == "reproduced" and "Walker Stand" in found.measured
    assert actors_faster(records, 30).verdict == "reproduced"
    assert transfers_faster(records, 1000).verdict == "not measured"
    apart = records.assign(**{"provenance.cpu": records["precision"]})  # never on one processor
    assert inference_dominates(apart, 30).verdict == "not measured"
    # Every 30 steps a fp32 pull takes 0.2 s / 30, less than 8 ms of inference.
    assert inference_dominates(records, 30).verdict == "reproduced"
    slow = records["actor_s"].map(lambda parts: parts | {"load": 2 * parts["inference"]})
    assert inference_dominates(records.assign(actor_s=slow), 30).verdict == "not reproduced"
    # Of a wide spread, or of two runs, nothing is certain.
    apart = [scaled(parts, 10.0 ** seed) for parts, seed in zip(records["actor_s"], records["seed"],
                                                                strict=True)]  # fmt: skip
    for unsure in (records.assign(actor_s=apart), records[records["seed"] < 2]):
        for rule in (actors_faster, inference_dominates, transfers_faster):
            assert rule(unsure, 30).verdict == "inconclusive"
    whole = records[records["precision"] != "fp16"]  # 8 and 16 bits are claimed
    for rule in (actors_faster, inference_dominates, transfers_faster):
        assert rule(whole, 30).verdict == "inconclusive"


def test_communication_claims() -> None:
    heavy = communications(pull_period=30)
    assert communication_matters_little(heavy, 30).verdict == "not reproduced"
    even = heavy.assign(actor_s=[{"inference": 1.0}] * len(heavy))
    assert communication_matters_little(even, 30).verdict == "reproduced"
    assert communication_helps(heavy, 1000, 1.3).verdict == "not measured"
    for rule in (lambda runs: communication_helps(runs, 30, 1.2),
                 lambda runs: communication_matters_little(runs, 30)):
        one = rule(heavy[heavy["seed"] == 0])
        assert one.verdict == "inconclusive"
        assert "as few as 1 runs of a kind, where 3 decide" in one.measured
        few = rule(heavy[(heavy["communication"] == "int8") | (heavy["seed"] == 0)])
        assert few.verdict == "inconclusive"
        assert "as few as 1 runs of a kind, where 3 decide" in few.measured


def test_what_sending_costs_an_actor_needs_no_setting_but_the_papers_policy() -> None:
    """As in `actorq_runtime`, whose learner stands still, as if on another machine."""
    elsewhere = dict(pull_period=30, device="cpu", n_actors=1, samples_per_insert=0.01)
    found = communication_helps(communications(1.4, **elsewhere), 30, 1.3)
    assert found.verdict == "reproduced" and "setting" not in found.measured
    found = communication_matters_little(communications(1.0, noise=0.0, **elsewhere), 30)
    assert found.verdict == "reproduced" and "1 of 11 tasks" in found.measured
    assert communication_matters_little(communications(1.4, **elsewhere), 30).verdict \
        == "not reproduced"
    narrow = communications(1.4, width=64, **elsewhere)
    assert communication_helps(narrow, 30, 1.3).verdict == "not measured"
    assert communication_matters_little(narrow, 30).verdict == "not measured"
    assert messages_smaller(narrow, 3.8).verdict == "reproduced"


@pytest.mark.parametrize(("factor", "tasks", "verdict"), [
    (1.4, ["Walker Stand"], "reproduced"),
    (1.02, ["Walker Stand"], "inconclusive"),  # another task may gain up to 30 %
    (1.02, [*TASKS], "not reproduced"),
    (0.9, [*TASKS], "not reproduced"),
])
def test_a_gain_of_up_to_30_percent_reaches_it(factor, tasks, verdict) -> None:
    found = communication_helps(communications(factor, tasks, pull_period=30), 30, 1.3)
    assert found.verdict == verdict and f"{len(tasks)} of 11 tasks" in found.measured
    assert found.interval.value == pytest.approx(factor)


def test_a_gain_that_may_be_30_percent_or_none_is_undecided() -> None:
    heavy = communications(1.3, TASKS, pull_period=30)
    unsure = [scaled(parts, 2.0 ** seed) for parts, seed in zip(heavy["actor_s"], heavy["seed"],
                                                                strict=True)]  # fmt: skip
    found = communication_helps(heavy.assign(actor_s=unsure), 30, 1.3)
    assert found.verdict == "inconclusive" and found.interval.low < 1 < 1.3 < found.interval.high


@pytest.mark.parametrize(("communication", "compute", "verdict"), [
    ({30: 0.5, 1000: 0.9}, {30: 0.5, 1000: 0.2}, "reproduced"),
    ({30: 0.9, 1000: 0.5}, {30: 0.5, 1000: 0.2}, "not reproduced"),  # communication gains less
    ({30: 0.5, 1000: 0.9}, {30: 0.2, 1000: 0.5}, "not reproduced"),  # compute does
    ({30: 0.5, 1000: 0.5}, {30: 0.5, 1000: 0.2}, "inconclusive"),
])  # fmt: skip
def test_gains_by_scenario(communication, compute, verdict) -> None:
    """Times of actors whose messages, or whose messages and computation are quantized, in parts of
    fp32's."""
    made = []
    for period in (30, 1000):
        for actor, wire, time in (("fp32/torch", "fp32", 1.0),
                                  ("fp32/torch", "int8", communication[period]),
                                  ("int8/onnxruntime", "int8",
                                   communication[period] * compute[period])):  # fmt: skip
            rows = make_records(["Walker Stand"], [actor], communication=wire, pull_period=period)
            made.append(rows.assign(actor_s=[
                {"pull": time * (1 + 0.01 * seed)} for seed in rows["seed"]]))  # fmt: skip
    frame = pd.concat(made, ignore_index=True)
    found = gains_by_scenario(frame, 30, 1000)
    assert found.verdict == verdict and len(found.keys) == 18
    gain = communication[1000] / communication[30]
    assert f"Walker Stand communication {gain:.2f}x" in found.measured
    assert gains_by_scenario(frame[frame["pull_period"] == 30], 30, 1000).verdict == "not measured"
    gpus = frame.assign(**{"provenance.gpu": frame["pull_period"].map("GPU {}".format)})
    assert gains_by_scenario(gpus, 30, 1000).verdict == "not measured"
    elsewhere = frame.assign(**{"budget.device": "cpu"}, n_actors=1, samples_per_insert=0.01)
    assert gains_by_scenario(elsewhere, 30, 1000).verdict == verdict  # of an actor's own step
    few = gains_by_scenario(frame[frame["seed"] < 2], 30, 1000)
    assert few.verdict == "inconclusive"
    assert "as few as 2 runs of a kind, where 3 decide" in few.measured


@pytest.mark.parametrize(("often", "rarely", "verdict"), [
    (0.35, 0.35, "reproduced"),
    (0.5, 0.2, "inconclusive"),  # whichever it is, messages are another share of a step
])  # fmt: skip
def test_a_gain_of_compute_holds_wherever_inference_drifted(often, rarely, verdict) -> None:
    pulls = {("fp32", 30): 1.0, ("fp32", 1000): 0.02, ("int8", 30): 0.5, ("int8", 1000): 0.02}
    int8 = {30: (often, 0.09), 1000: (rarely, 0.003)}  # inference and pulls
    made = []
    for (wire, period), pull in pulls.items():
        kinds = {"fp32/torch": (2.2, pull)} | ({"int8/onnxruntime": int8[period]}
                                               if wire == "int8" else {})  # fmt: skip
        for actor, (inference, sent) in kinds.items():
            rows = make_records(["Walker Stand"], [actor], communication=wire, pull_period=period)
            made.append(rows.assign(actor_s=[
                {"inference": inference, "pull": sent * (1 + 0.01 * seed)}
                for seed in rows["seed"]]))  # fmt: skip
    found = gains_by_scenario(pd.concat(made, ignore_index=True), 30, 1000)
    assert found.verdict == verdict
    assert "communication 1.19x, compute 1.03x" in found.measured


def test_a_gain_of_up_to_30_percent_on_one_task_of_many_must_be_certain() -> None:
    """By its own interval it is surely above 1, by one that holds for all tasks not."""
    heavy = communications(1.3, pull_period=30, seeds=range(5))
    pulls = heavy["communication"].map({"fp32": 1.3, "int8": 1.0}) * (0.82 + 0.09 * heavy["seed"])
    found = communication_helps(heavy.assign(actor_s=[{"pull": s} for s in pulls]), 30, 1.3)
    assert found.interval.low > 1 and found.verdict == "inconclusive"


def test_messages_matter_where_those_of_8_bits_take_longer() -> None:
    slower = communications(0.8, pull_period=30)
    other = communications(1.02, ["Finger Spin"], pull_period=30)
    found = communication_matters_little(pd.concat([other, slower], ignore_index=True), 30)
    assert found.verdict == "not reproduced"
    assert found.interval.value == pytest.approx(0.8)  # the farthest from 1


def test_messages_may_matter_where_steps_differ_from_run_to_run() -> None:
    heavy = communications(1.0, pull_period=30)
    found = communication_matters_little(
        heavy.assign(actor_s=[{"pull": 1 + 0.2 * seed} for seed in heavy["seed"]]), 30)
    assert found.interval.low < 0.95 < found.interval.value == 1 < 1.05 < found.interval.high
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize(("spread", "verdict"), [(0.12, "reproduced"), (0.14, "inconclusive")])
def test_gains_by_scenario_are_corrected_for_all_tasks_and_both_gains(spread, verdict) -> None:
    """Gains of 1.8 and 2.5: with a spread of 0.14 the smaller is surely above 1 among eleven."""
    made = []
    for (actor, wire, period), time in {
        ("fp32/torch", "fp32", 30): 1.0, ("fp32/torch", "int8", 30): 0.5,
        ("int8/onnxruntime", "int8", 30): 0.25, ("fp32/torch", "fp32", 1000): 1.0,
        ("fp32/torch", "int8", 1000): 0.9, ("int8/onnxruntime", "int8", 1000): 0.18,
    }.items():  # fmt: skip
        rows = make_records(["Walker Stand"], [actor], communication=wire, pull_period=period)
        made.append(rows.assign(actor_s=[
            {"pull": time * (1 + spread * seed)} for seed in rows["seed"]]))  # fmt: skip
    found = gains_by_scenario(pd.concat(made, ignore_index=True), 30, 1000)
    assert found.verdict == verdict and "communication 1.80x, compute 2.50x" in found.measured


def test_messages_to_torch_decide_where_it_is_measured() -> None:
    torch, other = (communications(factor, pull_period=30) for factor in (1.2, 1.4))
    ort = other.assign(runtime="onnxruntime", key=other["key"] + "/ort")
    both = pd.concat([torch, ort], ignore_index=True)
    assert communication_helps(both, 30, 1.3).interval.value == pytest.approx(1.2)
    assert communication_helps(ort, 30, 1.3).interval.value == pytest.approx(1.4)


def of_messages(factor: float, spread: float, tasks=("Walker Stand",)) -> pd.DataFrame:
    rows = communications(1.0, tasks, pull_period=30)
    times = rows["communication"].map({"fp32": factor, "int8": 1.0}) * (1 + spread * rows["seed"])
    return rows.assign(actor_s=[{"pull": s} for s in times])


@pytest.mark.parametrize("factor", [1.15, 1 / 1.15])
def test_that_messages_matter_is_corrected_for_all_tasks(factor) -> None:
    """1.15 [1.077, 1.228] is beyond 1.05; for eleven tasks [1.003, 1.318] may be within."""
    found = communication_matters_little(of_messages(factor, 0.03), 30)
    assert found.interval.low > 1.05 or found.interval.high < 0.95
    assert found.verdict == "inconclusive"


def test_a_gain_may_be_30_percent_on_one_of_all_tasks() -> None:
    """1.05 [0.85, 1.29] is below 1.3 by its own interval, for eleven ([0.69, 1.61]) it is not;
    1.2 [1.15, 1.26] reaches it, and is above 1, by those of eleven ([1.095, 1.316])."""
    found = communication_helps(of_messages(1.05, 0.1, [*TASKS]), 30, 1.3)
    assert found.interval.high < 1.3 and found.verdict == "inconclusive"
    found = communication_helps(of_messages(1.2, 0.02, [*TASKS]), 30, 1.3)
    assert found.interval.high < 1.3 and found.verdict == "reproduced"
