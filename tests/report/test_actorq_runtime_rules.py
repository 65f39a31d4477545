"""Verdicts on where an actor's and the learner's time goes where the truth is planted."""

from __future__ import annotations

import pandas as pd
import pytest

from planted_actorq import make_records, scaled
from quarl_nb.report.actorq.runtime_rules import (
    actors_faster,
    computation_and_communication,
    inference_dominates,
    learner_waits_more,
    transfers_faster,
)


def test_the_learner_waits_for_the_actors() -> None:
    every = make_records()
    found = learner_waits_more(every)
    assert found.verdict == "reproduced" and "Walker Stand 50% and 0%" in found.measured
    assert found.interval.value == pytest.approx(0.4975)
    actors = every.assign(learner_s=[{"wait": 0.0}] * 132)
    assert learner_waits_more(actors).verdict == "not reproduced"
    here = every["task"] == "Walker Stand"
    one = pd.concat([every[~here], actors[here]])
    assert learner_waits_more(one).verdict == "not reproduced"
    some = learner_waits_more(every[~here])
    assert some.verdict == "inconclusive" and "10 of 11 tasks" in some.measured
    two = learner_waits_more(every[every["seed"] < 2])
    assert two.verdict == "inconclusive"
    assert "as few as 2 runs of a kind, where 3 decide" in two.measured


def test_waiting_that_differs_from_run_to_run_decides_nothing() -> None:
    """Means of 5.03 and 5 %: of shares that lie anywhere from 1 to 9."""
    every = make_records()
    shares = {0: (0.01, 0.09), 1: (0.051, 0.05), 2: (0.09, 0.01)}  # learner, actors
    waits = [[share * seconds for share in shares[seed]]
             for seed, seconds in zip(every["seed"], every["run_s"], strict=True)]  # fmt: skip
    found = learner_waits_more(every.assign(
        learner_s=[{"wait": learner} for learner, _ in waits],
        actor_s=[{"wait": 4 * actor} for _, actor in waits],  # of four actors
    ))
    assert found.verdict == "inconclusive" and "Walker Stand 5% and 5%" in found.measured
    assert found.interval.low < 0 < found.interval.value < found.interval.high


def test_actors_that_are_slower_on_one_of_two_tasks_decide_nothing() -> None:
    actors = ("fp32/torch", "fp16/torch", "int8/onnxruntime")
    records = make_records(["Walker Stand", "Acrobot (Gym)"], actors, pull_period=30)
    for tasks, verdict in ((["Walker Stand"], "inconclusive"),
                           (["Walker Stand", "Acrobot (Gym)"], "not reproduced")):  # fmt: skip
        slow = records["task"].isin(tasks) & (records["precision"] == "int8")
        actor_s = [scaled(parts, 50 if here else 1)
                   for parts, here in zip(records["actor_s"], slow, strict=True)]  # fmt: skip
        for rule in (actors_faster, inference_dominates, transfers_faster):
            assert rule(records.assign(actor_s=actor_s), 30).verdict == verdict


def test_both_overheads_must_weigh_on_every_task() -> None:
    """Inference takes 8 ms of a step of 9.4 when pulls are rare; these 13.3 of 22.3 when not."""
    actors = ("fp32/torch", "int8/onnxruntime")
    both = pd.concat([make_records(["Walker Stand", "Acrobot (Gym)"], actors, pull_period=period)
                      for period in (30, 1000)], ignore_index=True)  # fmt: skip
    found = computation_and_communication(both, rare=1000, heavy=30, share=0.1)
    assert found.verdict == "reproduced" and len(found.keys) == 12
    assert "inference every 1000 steps: Acrobot (Gym) 85%, Walker Stand 85%" in found.measured
    assert "load every 30 steps: Acrobot (Gym) 60%, Walker Stand 60%" in found.measured
    assert computation_and_communication(both, 1000, 30, 0.7).verdict == "not reproduced"
    quick = both["task"] == "Walker Stand"
    actor_s = [{**parts, "pull": 0.0, "deserialize": 0.0} if here else parts
               for parts, here in zip(both["actor_s"], quick, strict=True)]  # fmt: skip
    one = both.assign(actor_s=actor_s)
    assert computation_and_communication(one, 1000, 30, 0.1).verdict == "inconclusive"
    two = computation_and_communication(both[both["seed"] < 2], 1000, 30, 0.1)
    assert two.verdict == "inconclusive"
    assert "as few as 2 runs of a kind, where 3 decide" in two.measured
    rare = both[both["pull_period"] == 1000]
    assert computation_and_communication(rare, 1000, 30, 0.1).verdict == "not measured"


def test_waiting_is_corrected_for_all_tasks() -> None:
    every = make_records()
    waits = [{"wait": (0.4 + 0.1 * seed) * run_s}
             for seed, run_s in zip(every["seed"], every["run_s"], strict=True)]  # fmt: skip
    found = learner_waits_more(every.assign(learner_s=waits))
    assert found.verdict == "inconclusive" and found.interval.low > 0


@pytest.mark.parametrize("slower", ["fp32", "quantized"])
def test_an_actors_parts_are_corrected_for_all_tasks(slower) -> None:
    """Of three runs 2, 2.4, 2.8 over 1, 1.2, 1.4 is [1.37, 2.92], for eleven tasks [0.91, 4.37]."""
    rows = make_records(["Walker Stand"], ("fp32/torch", "fp16/torch", "int8/onnxruntime"),
                        pull_period=30)  # fmt: skip
    twice = (rows["precision"] == "fp32") == (slower == "fp32")
    times = [(2 if here else 1) * (1 + 0.2 * seed)
             for here, seed in zip(twice, rows["seed"], strict=True)]  # fmt: skip
    found = actors_faster(rows.assign(actor_s=[{"inference": s} for s in times]), 30)
    assert found.verdict == "inconclusive"


def test_shares_of_a_step_are_corrected_for_all_tasks() -> None:
    """20, 22 and 24 % are surely above 10 % by one interval ([17, 27]), not by that of eleven."""
    made = []
    for period in (30, 1000):
        rows = make_records(["Walker Stand"], ("fp32/torch", "int8/onnxruntime"),
                            pull_period=period)  # fmt: skip
        shares = [0.1 if period == 30 else 0.2 + 0.02 * seed for seed in rows["seed"]]
        made.append(rows.assign(actor_s=[{"inference": x, "pull": 1 - x} for x in shares]))
    both = pd.concat(made, ignore_index=True)
    assert computation_and_communication(both, 1000, 30, 0.1).verdict == "inconclusive"
    assert computation_and_communication(both, 1000, 30, 0.04).verdict == "reproduced"
