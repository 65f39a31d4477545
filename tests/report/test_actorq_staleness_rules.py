"""Verdicts on how often actors pull where the truth is planted."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pytest

from planted_actorq import make_records
from quarl_nb.report.actorq.staleness_rules import rare_pulls_harm, rare_pulls_slower


def test_rare_pulls() -> None:
    def at(period: int, task: str, returns: Sequence[float]) -> pd.DataFrame:
        return make_records([task], ["int8/onnxruntime"], seeds=range(6),
                            returns=lambda *_: returns, pull_period=period)

    good, late = (0, 80, 100, 100), (0, 20, 50, 100)
    both = pd.concat([at(30, "Walker Stand", good), at(1000, "Walker Stand", late)])
    found = rare_pulls_harm(both)
    assert found.verdict == "reproduced"
    assert "47.8% from 30 to 1000 steps (100 at the end with policies 2 updates old, then 100 at "\
           "the end with policies 62 updates old)" in found.measured
    # Areas of the curves: 230 / 300 and 120 / 300.
    assert found.interval.value == pytest.approx(110 / 230)
    gpus = both.assign(**{"provenance.gpu": both["pull_period"].map("GPU {}".format)})
    assert rare_pulls_harm(gpus) == found  # steps and updates tell the same on any
    assert rare_pulls_harm(both[both["seed"] < 4]).verdict == "inconclusive"
    even = pd.concat([at(30, "Walker Stand", good), at(1000, "Walker Stand", good)])
    assert rare_pulls_harm(even).verdict == "inconclusive"  # they may harm elsewhere
    crowded = both.assign(n_actors=8, key=both["key"] + " of 8")  # loses, but not as in the paper
    mixed = pd.concat([even, crowded])
    assert rare_pulls_slower(mixed, [30, 1000], ["dm:walker-stand"]) == rare_pulls_slower(
        even, [30, 1000], ["dm:walker-stand"])
    # Whatever is measured besides, pulls that harm show that they may.
    assert rare_pulls_harm(crowded).verdict == rare_pulls_harm(mixed).verdict == "reproduced"
    assert "1 of 2 lose more" in rare_pulls_harm(mixed).measured
    few = crowded[crowded["seed"] < 2].assign(n_actors=16)  # of too few runs to be told
    assert rare_pulls_harm(pd.concat([mixed, few])) == rare_pulls_harm(mixed)
    assert rare_pulls_harm(at(30, "Walker Stand", good)).verdict == "not measured"
    stand = pd.concat([at(100, "Humanoid Stand", good), at(1000, "Humanoid Stand", late)])
    walk = pd.concat([at(100, "Humanoid Walk", good), at(1000, "Humanoid Walk", late)])
    humanoids = ["dm:humanoid-stand", "dm:humanoid-walk"]
    assert rare_pulls_slower(stand, [100, 1000], humanoids).verdict == "inconclusive"
    never = at(1000, "Humanoid Walk", (0, 20, 50, 80))  # of a return of 100
    found = rare_pulls_slower(pd.concat([stand, walk[walk["pull_period"] == 100], never]),
                              [100, 1000], humanoids)
    assert found.verdict == "reproduced" and "inf" in found.measured
    five = never[never["seed"] < 5]  # that none of them gets there may be chance
    found = rare_pulls_slower(pd.concat([stand, walk[walk["pull_period"] == 100], five]),
                              [100, 1000], humanoids)
    assert found.verdict == "inconclusive"
    found = rare_pulls_slower(pd.concat([stand, walk]), [100, 1000], humanoids)
    assert found.verdict == "reproduced"
    assert found.interval.value == pytest.approx((2 + 45 / 50) / (1 + 15 / 20))


def test_pulls_of_two_kinds_of_actor_are_not_paired() -> None:
    """Three training seeds of each kind are three pairs, not twelve."""
    def at(period: int, actor: str, returns: Sequence[float]) -> pd.DataFrame:
        return make_records(["Walker Stand"], [actor], returns=lambda *_: returns,
                            pull_period=period)

    runs = pd.concat([at(period, actor, returns)
                      for actor in ("fp32/torch", "int8/onnxruntime")
                      for period, returns in ((30, (0, 80, 100)), (1000, (0, 20, 100)))])
    found = rare_pulls_harm(runs)
    assert found.verdict == "inconclusive" and found.measured.count("Walker Stand") == 2


def test_pull_periods_that_cannot_be_compared_decide_nothing() -> None:
    """Of other training seeds, as half way through the study; and where nothing is learned."""
    often, rare = (make_records(["Humanoid Stand"], ["int8/onnxruntime"], seeds,
                                lambda *_: (50, 50, 50), pull_period=period)
                   for period, seeds in ((100, (0, 1)), (1000, (2, 3))))
    records = pd.concat([often, rare])
    assert rare_pulls_harm(records).verdict == "not measured"
    assert rare_pulls_slower(records, [100, 1000], ["dm:humanoid-stand"]).verdict == "not measured"


def test_fewer_steps_with_rare_pulls_on_one_task_of_many_must_be_certain() -> None:
    often, rare = (
        make_records(["Walker Stand"], ["int8/onnxruntime"], seeds=range(5), pull_period=period,
                     returns=lambda *args, by=by: (0, 50 - by * args[-1], 100))
        for period, by in ((100, 8), (1000, 0)))  # fmt: skip
    found = rare_pulls_slower(pd.concat([often, rare]), [100, 1000], ["dm:walker-stand"])
    assert found.interval.high < 1 and found.verdict == "inconclusive"


def test_harm_on_one_of_two_tasks_is_corrected_for_the_other() -> None:
    """Five pairs that agree have p = 1/32: enough for one task, not for one of two (Holm)."""
    def at(period: int, task: str, returns) -> pd.DataFrame:
        return make_records([task], ["int8/onnxruntime"], seeds=range(5),
                            returns=lambda *_: returns, pull_period=period)  # fmt: skip

    good, late = (0, 80, 100, 100), (0, 20, 50, 100)
    one = pd.concat([at(30, "Walker Stand", good), at(1000, "Walker Stand", late)])
    even = pd.concat([at(period, "Cheetah Run", good) for period in (30, 1000)])
    assert rare_pulls_harm(one).verdict == "reproduced"
    assert rare_pulls_harm(pd.concat([one, even])).verdict == "inconclusive"
