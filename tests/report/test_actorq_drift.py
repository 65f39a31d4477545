"""A machine that is slower while some runs are made decides nothing of what messages cost."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from planted_actorq import TASKS, communications, make_records
from quarl_nb.report import actorq
from quarl_nb.report.actorq.communication_rules import (
    communication_helps,
    communication_matters_little,
    gains_by_scenario,
)

FP32, INT8 = "fp32/torch", "int8/onnxruntime"
PULL_S = {("fp32", 30): 1.0, ("int8", 30): 0.25, ("fp32", 1000): 0.03, ("int8", 1000): 0.0075}


def planted(slower: Callable[[str, str, int], float]) -> pd.DataFrame:
    """Steps of one second of inference in fp32 and 0.2 in int8, and of `PULL_S`, 1 % apart by seed.

    Args:
        slower: of actor, what is sent and pull period, how many times longer inference was.
    """
    made = []
    for (wire, period), pull_s in PULL_S.items():
        for actor, inference_s in ((FP32, 1.0), (INT8, 0.2)):
            if (actor, wire) == (INT8, "fp32"):
                continue
            rows = make_records(["Walker Stand"], [actor], communication=wire, pull_period=period)
            step = {"inference": inference_s * slower(actor, wire, period), "pull": pull_s}
            made.append(rows.assign(actor_s=[
                {name: 1000 * s * (1 + 0.01 * seed) for name, s in step.items()}
                for seed in rows["seed"]]))  # fmt: skip
    return pd.concat(made, ignore_index=True)


@pytest.mark.parametrize(("slow", "communication", "compute"), [
    (None, 2 / 1.25 / (1.03 / 1.0075), 1.0075 / 0.2075 / (1.25 / 0.45)),
    # Means of 1, 1, 2 and 1 seconds in fp32, or of 0.2 and 0.6 in int8.
    ((FP32, "fp32", 1000), 2.25 / 1.5 / (1.28 / 1.2575), 1.2575 / 0.2075 / (1.5 / 0.45)),
    ((INT8, "int8", 1000), 2 / 1.25 / (1.03 / 1.0075), 1.0075 / 0.4075 / (1.25 / 0.65)),
])  # fmt: skip
def test_a_slow_minute_moves_no_gain_to_the_other_scenario(slow, communication, compute) -> None:
    longer = {FP32: 2.0, INT8: 3.0}
    records = planted(lambda *kind: longer[kind[0]] if kind == slow else 1.0)
    found = gains_by_scenario(records, 30, 1000)
    assert found.verdict == "reproduced"
    assert f"communication {communication:.2f}x, compute {compute:.2f}x; inf" in found.measured


def test_a_slow_minute_is_no_cost_of_what_was_sent() -> None:
    def drifting(tasks: list[str], period: int) -> pd.DataFrame:
        alike = communications(1.0, tasks, pull_period=period)
        slow = alike["communication"] == "fp32"
        return alike.assign(actor_s=[
            parts | {"inference": parts["inference"] * (2 if here else 1)}
            for parts, here in zip(alike["actor_s"], slow, strict=True)])  # fmt: skip

    little = communication_matters_little(drifting(["Walker Stand"], 1000), 1000)
    assert little.verdict == "reproduced" and little.interval.value == pytest.approx(1)
    assert "inference and environment at their means" in little.measured
    most = communication_helps(drifting([*TASKS], 30), 30, 1.3)
    assert most.verdict == "not reproduced" and most.interval.value == pytest.approx(1)


def test_actors_keep_means_of_their_own_task_machine_and_policy() -> None:
    def run(seconds: float, actor: str = FP32, wire: str = "int8", cpu: str = "AMD",
            task: str = "Walker Stand", **cell: int) -> pd.DataFrame:  # fmt: skip
        rows = make_records([task], [actor], (0,), communication=wire, **cell)
        parts = {"environment": seconds, "inference": 2 * seconds, "pull": 5.0}
        actor_s = [{name: 1000 * each for name, each in parts.items()}]
        return rows.assign(actor_s=actor_s, **{"provenance.cpu": cpu})

    pooled = [run(1), run(2, wire="fp32"), run(6, pull_period=30)]
    alone = [run(10, INT8), run(20, cpu="Intel"), run(30, task="Finger Spin"), run(40, width=64)]
    parts = actorq.parts.step_parts(pd.concat([*pooled, *alone], ignore_index=True))
    found = actorq.parts.without_drift(parts)
    own = {10.0, 20.0, 30.0, 40.0}
    assert found["key"].tolist() == parts["key"].tolist() and (found["pull"] == 5).all()
    assert sorted(found["environment"]) == pytest.approx([3, 3, 3, *sorted(own)])
    assert found["inference"].tolist() == pytest.approx((2 * found["environment"]).tolist())
    assert found["actor_step_s"].tolist() == pytest.approx((3 * found["environment"] + 5).tolist())
    assert actorq.parts.without_drift(pd.DataFrame()).empty
