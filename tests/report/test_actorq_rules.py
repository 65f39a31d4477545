"""Verdicts on ActorQ's claims of speed and convergence where the truth is planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from planted_actorq import TASKS, communications, make_records
from quarl_nb.report import actorq, claims
from quarl_nb.report.actorq.findings import range_verdict
from quarl_nb.report.actorq.rules import (
    as_slow_as_fp32,
    fewer_steps,
    fewer_steps_somewhere,
    returns_gained_somewhere,
    returns_kept,
    speedup_above,
    speedup_range,
)
from quarl_nb.report.actorq.runtime_rules import learner_waits_more
from quarl_nb.report.findings import Finding


def test_speedups_decide_only_in_the_papers_setting() -> None:
    actors = ("fp32/torch", "fp16/torch", "int8/onnxruntime")
    every = make_records(actors=actors, seeds=range(5), noise=0.01)
    found = speedup_above(every, ["int8"], 1.5)
    assert found.verdict == "reproduced" and "11 of 11 tasks" in found.measured
    assert found.interval.low < 4.476 < found.interval.high and len(found.keys) == 110
    assert speedup_above(every, ["fp16"], 1.5).verdict == "not reproduced"
    assert speedup_above(every[every["task"] != "Walker Stand"], ["int8"], 1.5).verdict \
        == "inconclusive"
    few = speedup_above(every[every["seed"] < 3], ["int8"], 1.5)
    assert few.verdict == "inconclusive"
    assert "as few as 3 runs of a kind, where 5 decide" in few.measured
    cpu = speedup_above(every.assign(**{"budget.device": "cpu"}), ["int8"], 1.5)
    assert cpu.verdict == "inconclusive"
    assert "not the paper's setting: 4 actors x 1 env" in cpu.measured
    assert "learner on cpu" in cpu.measured
    small = make_records(actors=actors, seeds=range(5), noise=0.01, batch_size=96)
    assert "batches of 96" in (found := speedup_above(small, ["int8"], 1.5)).measured
    assert found.verdict == "inconclusive"  # 2.7 times the updates of the paper
    narrow = every["task"] == "Walker Stand"
    widths = every["width"].mask(narrow, 256)
    two = every.assign(**{"budget.device": "cpu", "width": widths})
    assert "256 or 2048 wide" in speedup_above(two, ["int8"], 1.5).measured
    assert speedup_above(every.assign(profile="smoke"), ["int8"], 1.5).verdict == "not measured"
    suite = every[every["algo"] == "d4pg"]
    found = speedup_above(suite, ["int8"], 1.0, algos=["d4pg"])
    assert found.verdict == "reproduced" and "8 of 8 tasks" in found.measured
    assert speedup_above(suite, ["int8"], 1.0).verdict == "inconclusive"
    slow = every.assign(curve_wall_s=every["curve_wall_s"].mask(
        (every["algo"] == "dqn") & (every["precision"] == "int8"),
        every["curve_wall_s"].map(lambda s: [20 * x for x in s])))  # fmt: skip
    assert speedup_above(slow, ["int8"], 1.0).verdict == "not reproduced"
    assert speedup_above(slow, ["int8"], 1.0, algos=["d4pg"]).verdict == "reproduced"
    assert speedup_range(every, 1.5, 5.41).verdict == "not reproduced"
    assert speedup_range(every, 4.47, 4.48).verdict == "reproduced"


def test_speedups_of_8_and_16_bits_need_both() -> None:
    one = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5), noise=0.01)
    found = speedup_above(one, ["fp16", "int8"], 1.5)
    assert found.verdict == "inconclusive" and "; without fp16" in found.measured
    half = make_records(tuple({*one["task"]} - {"Walker Stand"}), ["fp16/torch"], seeds=range(5))
    fast = half.assign(curve_wall_s=half["curve_wall_s"].map(lambda at: [x / 9 for x in at]))
    found = speedup_above(pd.concat([one, fast]), ["fp16", "int8"], 1.5)
    assert found.verdict == "inconclusive" and "without" not in found.measured


def test_what_one_task_decides_is_corrected_for_all_of_them() -> None:
    """Of eleven tasks that are all as fast as claimed, one will be below it by its own interval."""
    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(10), noise=0.01)
    # int8's times of one task, by seed: twice the others', and far apart.
    spread = np.linspace(1.6, 2.4, 10)
    one = (every["task"] == "Walker Stand") & (every["precision"] == "int8")
    times = [[x * (spread[seed] if here else 1) for x in at] for at, seed, here
             in zip(every["curve_wall_s"], every["seed"], one, strict=True)]  # fmt: skip
    records = every.assign(curve_wall_s=times)
    least = speedup_above(records, ["int8"], 0.1).interval
    assert least.low < 4.476 / 2 < least.high < 4.476
    outside = 1.01 * least.high  # of its own 95 %
    assert speedup_above(records, ["int8"], outside).verdict == "inconclusive"
    assert speedup_above(records, ["int8"], 4).verdict == "not reproduced"


def test_speedups_need_as_many_runs_of_fp32() -> None:
    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5), noise=0.01)
    one = every[(every["precision"] == "int8") | (every["seed"] == 0)]
    for found in (speedup_range(one, 4.47, 4.48), speedup_above(one, ["int8"], 1.5)):
        assert found.verdict == "inconclusive"
        assert "as few as 1 runs of a kind, where 5 decide" in found.measured


def test_nearly_all_tasks_leave_out_one() -> None:
    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5), noise=0.01)

    def but(*tasks: str) -> pd.DataFrame:
        slow = (every["precision"] == "int8") & every["task"].isin(tasks)
        return every.assign(curve_wall_s=[
            [x * (20 if here else 1) for x in at]
            for at, here in zip(every["curve_wall_s"], slow, strict=True)])  # fmt: skip

    assert speedup_above(but("Walker Stand"), ["int8"], 1, exceptions=1).verdict == "reproduced"
    assert speedup_above(but("Walker Stand"), ["int8"], 1).verdict == "not reproduced"
    two = but("Walker Stand", "Finger Spin")
    assert speedup_above(two, ["int8"], 1, exceptions=1).verdict == "not reproduced"


def test_a_task_with_two_rows_is_one_exception() -> None:
    """As one that was measured beside two GPUs."""
    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5), noise=0.01)
    slow = (every["precision"] == "int8") & (every["task"] == "Walker Stand")
    times = [[x * (20 if here else 1) for x in at]
             for at, here in zip(every["curve_wall_s"], slow, strict=True)]
    every = every.assign(curve_wall_s=times)
    twice = every[every["task"] == "Walker Stand"].assign(**{"provenance.gpu": "another"})
    both = pd.concat([every.assign(**{"provenance.gpu": "one"}), twice], ignore_index=True)
    assert speedup_above(both, ["int8"], 1, exceptions=1).verdict == "reproduced"
    assert speedup_above(both, ["int8"], 1).verdict == "not reproduced"


def test_a_range_that_may_be_none_at_all_is_not_reproduced() -> None:
    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5))
    scale = {0: 0.1, 1: 0.5, 2: 1.0, 3: 2.0, 4: 10.0}  # so that nothing is certain
    times = [[x * (scale[seed] if precision == "int8" else 1) for x in at] for at, seed, precision
             in zip(every["curve_wall_s"], every["seed"], every["precision"], strict=True)]
    found = speedup_range(every.assign(curve_wall_s=times), 1.5, 1.5)
    assert found.interval.low < 1 < 1.5 < found.interval.high
    assert found.verdict == "inconclusive"


def test_the_smallest_ratio_may_be_of_another_task_than_the_smallest_estimate() -> None:
    """One task is told badly: it alone may have the published 1.5, beside well told ones at 1.6."""
    ratio = np.array([1.9, 1.6, *[3.0] * (len(TASKS) - 2)])
    reach, wider = (np.array([x, *[1.02] * (len(TASKS) - 1)]) for x in (1.5, 2.0))
    rows = pd.DataFrame({
        "task": [*TASKS], "r": ratio, "r_low": ratio / reach, "r_high": ratio * reach,
        "r_least": ratio / wider, "r_most": ratio * wider,
    })  # fmt: skip
    assert range_verdict(rows, "r", 1.5, 3.0) == "inconclusive"
    assert range_verdict(rows, "r", 1.7, 3.0) == "not reproduced"  # the second is below
    assert range_verdict(rows, "r", 1.6, 3.5) == "inconclusive"  # the first may be 3.5
    assert range_verdict(rows, "r", 1.6, 4.0) == "not reproduced"


def test_a_level_that_fp32_of_torch_never_reaches_decides_no_range() -> None:
    def returns(_: str, actor: str, seed: int) -> Sequence[float]:
        return (0, 10, 20, 30) if actor == "fp32/torch" else (0, 50, 100, 100)

    every = make_records(seeds=range(5), returns=returns)
    found = speedup_range(every, 1.5, 5.41)
    assert found.verdict == "inconclusive" and "inf" in found.measured


def test_a_learner_in_bfloat16_is_not_the_papers() -> None:
    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5), noise=0.01)
    found = speedup_above(every.assign(**{"budget.autocast": "bf16"}), ["int8"], 1.5)
    assert found.verdict == "inconclusive" and "learner on cuda in bf16" in found.measured


def test_returns_decide_task_by_task() -> None:
    def returns(task: str, actor: str, seed: int) -> Sequence[float]:
        lost = 20 if (task, actor) == ("Walker Stand", "int8/onnxruntime") else 0
        return (0, 50, 100 - lost, 100 - lost)

    actors = ("fp32/torch", "fp16/torch", "int8/onnxruntime")
    ten = range(10)  # Holm over 22 comparisons: nine pairs that agree, at least
    same = make_records(actors=actors, seeds=ten)
    worse = make_records(actors=actors, seeds=ten, returns=returns)
    for measure in ("final_loss", "area_loss"):
        assert returns_kept(same, ["fp16", "int8"], measure).verdict == "reproduced"
        assert returns_kept(worse, ["fp16", "int8"], measure).verdict == "not reproduced"
        broadly = returns_kept(worse, ["fp16", "int8"], measure, broadly=True)
        assert broadly.verdict == "reproduced"
    assert "largest loss 20.0% (Walker Stand, int8)" in \
        returns_kept(worse, ["fp16", "int8"]).measured
    unmeasured = returns_kept(same[same["precision"] != "fp16"], ["fp16", "int8"])
    assert unmeasured.verdict == "inconclusive" and "; without fp16" in unmeasured.measured
    few = same[same["seed"] < 3]  # three pairs show a p-value of 1/8 at least
    assert returns_kept(few, ["fp16", "int8"]).verdict == "inconclusive"


def test_a_task_with_two_rows_is_one_of_most() -> None:
    """Six of eleven tasks lose; the five others, each at two pull periods, are not ten of 16."""
    kept = [*TASKS][:5]

    def returns(task: str, actor: str, seed: int) -> Sequence[float]:
        lost = 20 * (actor == "int8/onnxruntime" and task not in kept)
        return (0, 50, 100 - lost, 100 - lost)

    options: dict[str, Any] = {"actors": ("fp32/torch", "int8/onnxruntime"), "seeds": range(10)}
    every = make_records(returns=returns, **options)
    again = make_records(tasks=kept, pull_period=100, **options)
    both = pd.concat([every, again], ignore_index=True)
    assert returns_kept(every, ["int8"], broadly=True).verdict == "not reproduced"
    assert returns_kept(both, ["int8"], broadly=True).verdict == "not reproduced"


@pytest.mark.parametrize(("gains", "verdict", "told"), [
    ({"Walker Stand": 10, "Acrobot (Gym)": 10}, "reproduced",
     "2 of 11 certainly end with a higher return"),
    ({"Walker Stand": 2, "Acrobot (Gym)": 2}, "reproduced", "11 certainly not by 5 %"),
    ({"Walker Stand": 10}, "not reproduced", "10 certainly not by 5 %"),  # with no DQN
    ({"Walker Stand": 10, "Acrobot (Gym)": None}, "inconclusive", "9 certainly not by 5 %"),
    ({"Walker Stand": -10, "Acrobot (Gym)": 10}, "not reproduced", "1 of 11 certainly end"),
])  # fmt: skip
def test_a_higher_return_on_a_task_of_each_algorithm(gains, verdict, told) -> None:
    def returns(task: str, actor: str, seed: int) -> Sequence[float]:
        gain = gains.get(task, 0) if actor.startswith("int8") else 0
        end = 100 + (12 * (-1) ** seed if gain is None else gain)  # None: sometimes
        return (0, 50, end, end)

    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(10),
                         returns=returns)  # fmt: skip
    found = returns_gained_somewhere(every, "int8", ["d4pg", "dqn"])
    assert found.verdict == verdict and told in found.measured and "11 of 11" in found.measured
    largest = max(gain or 0 for gain in gains.values())
    assert found.interval.value == pytest.approx(largest / 100)
    some = every[every["task"] != "Reacher Hard"]  # which may be the one
    found = returns_gained_somewhere(some, "int8", ["d4pg", "dqn"])
    assert found.verdict == (verdict if verdict == "reproduced" else "inconclusive")


def test_five_runs_are_too_few_for_a_higher_return_to_show() -> None:
    better = make_records(
        actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5),
        returns=lambda _, actor, __: (0, 50, 110 if actor.startswith("int8") else 100))  # fmt: skip
    found = returns_gained_somewhere(better, "int8", ["d4pg", "dqn"])
    assert found.verdict == "inconclusive"
    assert "0 of 11 certainly end with a higher return" in found.measured
    assert "too few runs for a gain to show, corrected for 11 comparisons" in found.measured


def test_one_of_two_algorithms_refutes_a_gain_at_half_of_5_percent() -> None:
    """Five pairs that agree have a p-value of 1/32, six of 1/64."""
    for n, verdict in ((5, "inconclusive"), (6, "not reproduced")):
        alike = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(n),
                             returns=lambda *_: (0, 50, 100))  # fmt: skip
        found = returns_gained_somewhere(alike, "int8", ["d4pg", "dqn"])
        assert found.verdict == verdict and "11 certainly not by 5 %" in found.measured


def test_runs_too_few_for_any_loss_to_show_are_told() -> None:
    def returns(task: str, actor: str, seed: int) -> Sequence[float]:
        return (0, 50, 100) if actor == "fp32/torch" else (0, 1, 2)

    nine = make_records(actors=("fp32/torch", "fp16/torch", "int8/onnxruntime"), seeds=range(9),
                        returns=returns)  # fmt: skip
    told = "(too few runs for a loss to show, corrected for 22 comparisons)"
    for fewer in (5, 8):  # of 1/32 and 1/256 at least, by 22
        found = returns_kept(nine[nine["seed"] < fewer], ["fp16", "int8"])
        assert found.verdict == "inconclusive" and told in found.measured
    found = returns_kept(nine, ["fp16", "int8"])
    assert found.verdict == "not reproduced" and "too few" not in found.measured
    one = nine[(nine["task"] == "Walker Stand") & (nine["seed"] < 6)]
    assert "too few" not in returns_kept(one, ["fp16", "int8"]).measured


def test_returns_and_steps_compare_across_machines() -> None:
    records = make_records(seeds=range(10))
    cpus = records["precision"].map({"fp32": "one"}).fillna("another")
    apart = records.assign(**{"provenance.cpu": cpus})
    assert returns_kept(apart, ["fp16", "int8"]).verdict == "reproduced"
    env_ids = sorted({*records["env_id"]})
    assert fewer_steps(apart, "int8", env_ids) == fewer_steps(records, "int8", env_ids)
    assert speedup_above(apart, ["int8"], 1.5).verdict == "not measured"  # times do not


def test_steps_and_times_of_single_tasks() -> None:
    def returns(_: str, actor: str, seed: int) -> Sequence[float]:
        return (0, 100, 100) if actor.startswith("int8") else (0, 50, 100)

    two = ["dm:reacher-hard", "dm:cheetah-run"]
    records = make_records(["Reacher Hard", "Cheetah Run"], seeds=range(5), returns=returns)
    assert fewer_steps(records, "int8", two).verdict == "reproduced"
    assert fewer_steps(records, "fp16", two).verdict == "inconclusive"
    assert fewer_steps(records[records["env_id"] == two[0]], "int8", two).verdict == "inconclusive"
    slow = make_records(["Humanoid Stand", "Humanoid Walk"], seeds=range(5), pull_period=100)
    humanoids = ["dm:humanoid-stand", "dm:humanoid-walk"]
    assert as_slow_as_fp32(slow, "fp16", humanoids, 100).verdict == "not reproduced"
    alike = slow.assign(curve_wall_s=slow["curve_steps"])
    assert as_slow_as_fp32(alike, "fp16", humanoids, 100).verdict == "reproduced"
    assert as_slow_as_fp32(alike, "fp16", humanoids, 1000).verdict == "not measured"
    slower = [[x * (1.06 if precision == "fp16" else 1) for x in at] for at, precision
              in zip(alike["curve_wall_s"], alike["precision"], strict=True)]  # fmt: skip
    as_published = as_slow_as_fp32(alike.assign(curve_wall_s=slower), "fp16", humanoids, 100)
    assert as_published.verdict == "reproduced"  # 0.94 times as fast, on Humanoid Walk


@pytest.mark.parametrize(("better", "verdict"), [
    (("Reacher Hard", "Acrobot (Gym)"), "reproduced"),
    (("Reacher Hard", "Cheetah Run"), "not reproduced"),  # no DQN
    ((), "not reproduced"),
])  # fmt: skip
def test_fewer_steps_on_a_task_of_each_algorithm(better, verdict) -> None:
    def returns(task: str, actor: str, seed: int) -> Sequence[float]:
        fast = actor.startswith("int8") and task in better
        return (0, 100, 100) if fast else (0, 50, 100)

    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5), returns=returns)
    found = fewer_steps_somewhere(every, "int8", ["d4pg", "dqn"])
    assert found.verdict == verdict and "11 of 11 tasks" in found.measured
    some = every[every["task"] != "Walker Stand"]  # which may be the one
    found = fewer_steps_somewhere(some, "int8", ["d4pg", "dqn"])
    assert found.verdict == (verdict if verdict == "reproduced" else "inconclusive")


def test_one_run_in_the_papers_setting_does_not_hide_what_three_elsewhere_told() -> None:
    elsewhere = make_records(["Walker Stand", "Reacher Hard"], device="cpu", n_actors=1)
    papers = make_records(["Walker Stand"], seeds=[0])
    for rule in (learner_waits_more, partial(speedup_above, precisions=["int8"], factor=1.5)):
        both = rule(pd.concat([elsewhere, papers], ignore_index=True))
        assert both.measured == rule(elsewhere).measured and "2 of 11 tasks" in both.measured
        three = make_records(["Walker Stand"])
        found = rule(pd.concat([elsewhere, three], ignore_index=True)).measured
        assert "1 of 11 tasks" in found and "not the paper's setting" not in found


def test_every_claim_with_a_rule_is_judged_without_an_error() -> None:
    frames = {"actorq": make_records(["Walker Stand", "Reacher Hard"], device="cpu", n_actors=1),
              "actorq_runtime": communications(pull_period=30),
              "actorq_staleness": make_records(["Walker Stand"])}
    found = claims.verdicts(lambda study: frames.get(study, pd.DataFrame()))
    judged = found[found["study"].isin(actorq.site.STUDIES) & (found["rule"] != "")]
    assert len(judged) >= 18 and (judged["verdict"] != "not measured").sum() >= 10
    speed = judged[judged["id"] == "actorq-speedup-1.5-2.5"].iloc[0]
    assert speed["verdict"] == "inconclusive" and "2 of 11 tasks" in speed["measured"]


def test_a_return_is_lost_also_where_torch_alone_is_below_the_level():
    """Then neither torch nor int8 has a time to it, which says nothing of what int8 lost."""
    def returns(_: str, actor: str, seed: int) -> Sequence[float]:
        known = {"fp32/torch": (0, 30, 30, 30), "int8/onnxruntime": (0, 1, 2, 2)}
        return known.get(actor, (0, 50, 100, 100))

    actors = ("fp32/torch", "fp32/onnxruntime", "int8/onnxruntime")
    runs = make_records(["Walker Stand"], actors, range(9), returns)
    found = returns_kept(runs, ["int8"])
    assert found.verdict == "not reproduced" and "93.3%" in found.measured
    unlearned = make_records(["Walker Stand"], actors, range(9), lambda *_: (50, 30, 30))
    assert returns_kept(unlearned, ["int8"]).verdict == "not measured"


def test_a_return_that_is_not_reached_is_no_ratio():
    row = {"ratio": 0.0, "ratio_low": float("nan"), "ratio_high": float("nan")}
    assert actorq.findings.told(pd.Series(row), "ratio") == "not reached"
    assert actorq.findings.told(pd.Series(row | {"ratio": 2.0}), "ratio") == "2.00"


def test_actors_as_fast_as_claimed_are_not_faster() -> None:
    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5))
    alike = every.assign(curve_wall_s=every["curve_steps"])
    found = speedup_above(alike, ["int8"], 1)
    assert found.verdict == "inconclusive" and "1.00 [1.00, 1.00]" in found.measured
    assert speedup_above(alike, ["int8"], 0.99).verdict == "reproduced"


def test_as_slow_on_one_of_two_tasks_decides_nothing() -> None:
    env_ids = ["dm:humanoid-stand", "dm:humanoid-walk"]
    one = make_records(["Humanoid Stand"], seeds=range(5))
    for faster in (1, 1.03):  # by less than 5 %
        times = [[x / (faster if precision == "fp16" else 1) for x in at] for at, precision
                 in zip(one["curve_steps"], one["precision"], strict=True)]  # fmt: skip
        found = as_slow_as_fp32(one.assign(curve_wall_s=times), "fp16", env_ids, 1000)
        assert found.verdict == "inconclusive"


@pytest.mark.parametrize("other", [
    {"n_actors": 8}, {"envs_per_actor": 2}, {"width": 256}, {"samples_per_insert": 8.0},
    {"batch_size": 128}, {"budget.device": "cpu"}, {"budget.device": ""},
    {"budget.autocast": "bf16"},
])  # fmt: skip
def test_the_papers_setting_is_all_of_it(other) -> None:
    runs = actorq.runs.actorq_runs(make_records(["Walker Stand"], ["fp32/torch"]))
    assert actorq.knobs.papers_setting(runs).all()
    assert not actorq.knobs.papers_setting(runs.assign(**other)).any()


def test_fewer_or_more_steps_on_one_task_of_many_must_be_certain() -> None:
    def found(first: Callable[[int], float]) -> Finding:
        records = make_records(
            ["Walker Stand"], ["fp32/torch", "int8/onnxruntime"], seeds=range(5),
            returns=lambda _, actor, seed:
                (0, first(seed) if actor.startswith("int8") else 50, 100))  # fmt: skip
        return fewer_steps(records, "int8", ["dm:walker-stand"])

    more = found(lambda seed: 50 - 8 * seed)
    assert more.interval.high < 1 and more.verdict == "inconclusive"  # of one task, not of eleven
    perhaps = found(lambda seed: 42 + 8 * seed)
    assert perhaps.interval.low < 1 < perhaps.interval.value and perhaps.verdict == "inconclusive"
    assert found(lambda seed: 20).verdict == "not reproduced"


def test_fewer_steps_of_each_algorithm_are_corrected_for_all_tasks() -> None:
    records = make_records(
        ["Walker Stand", "Acrobot (Gym)"], ["fp32/torch", "int8/onnxruntime"], seeds=range(5),
        returns=lambda _, actor, seed:
            (0, 50 + (3 + 8 * seed) * actor.startswith("int8"), 100))  # fmt: skip
    env_ids = ["dm:walker-stand", "Acrobot-v1"]
    assert fewer_steps(records, "int8", env_ids).verdict == "reproduced"  # by own intervals
    assert fewer_steps_somewhere(records, "int8", ["d4pg", "dqn"]).verdict == "inconclusive"


def test_most_tasks_are_most_in_each_precision() -> None:
    def returns(task: str, actor: str, seed: int) -> Sequence[float]:
        lost = 20 * (actor == "int8/onnxruntime" and task != "Acrobot (Gym)")
        return (0, 50, 100 - lost, 100 - lost)

    actors = ("fp32/torch", "fp16/torch", "int8/onnxruntime")
    every = make_records(actors=actors, seeds=range(10), returns=returns)
    assert returns_kept(every, ["fp16"], broadly=True).verdict == "reproduced"
    assert returns_kept(every, ["fp16", "int8"], broadly=True).verdict == "not reproduced"
    half = every[every["task"].isin(["Walker Stand", "Acrobot (Gym)"])]
    assert returns_kept(half, ["int8"], broadly=True).verdict == "not reproduced"


def test_what_may_happen_is_not_refuted_elsewhere() -> None:
    rows = actorq.runs.speedups(make_records(["Walker Stand"], device="cpu"))
    for verdict, wanted in (("reproduced", "reproduced"), ("not reproduced", "inconclusive")):
        assert actorq.findings.finding(verdict, rows, "", possible=True).verdict == wanted
        assert actorq.findings.finding(verdict, rows, "").verdict == "inconclusive"


def test_a_range_of_one_algorithm_needs_its_tasks_alone() -> None:
    tasks = [task for task, (_, algo) in TASKS.items() if algo == "dqn"]
    ratio = np.linspace(1.5, 3.0, len(tasks))
    rows = pd.DataFrame({"task": tasks, "r": ratio, "r_low": 0.99 * ratio, "r_high": 1.01 * ratio,
                         "r_least": 0.98 * ratio, "r_most": 1.02 * ratio})  # fmt: skip
    assert range_verdict(rows, "r", 1.5, 3.0, ["dqn"]) == "reproduced"
    assert range_verdict(rows[1:], "r", 1.5, 3.0, ["dqn"]) == "inconclusive"
    assert range_verdict(rows, "r", 1.5, 3.0) == "inconclusive"


def test_as_slow_on_one_task_of_many_must_be_certain() -> None:
    """0.765 to 0.945 of fp32's time: surely 5 % faster by one interval, not by that of eleven."""
    rows = make_records(["Humanoid Stand"], ("fp32/torch", "fp16/torch"), seeds=range(5))
    times = [[x * (0.765 + 0.045 * seed if precision == "fp16" else 1) for x in at]
             for at, precision, seed in zip(rows["curve_steps"], rows["precision"], rows["seed"],
                                            strict=True)]  # fmt: skip
    found = as_slow_as_fp32(rows.assign(curve_wall_s=times), "fp16", ["dm:humanoid-stand"], 1000)
    assert found.interval.low > 1.05 and found.verdict == "inconclusive"


def test_steps_that_may_be_a_little_fewer_are_not_5_percent_fewer() -> None:
    def returns(_: str, actor: str, seed: int):
        return (0, 50 + 3 * (seed - 2) * actor.startswith("int8"), 100)

    every = make_records(actors=("fp32/torch", "int8/onnxruntime"), seeds=range(5), returns=returns)
    assert fewer_steps_somewhere(every, "int8", ["d4pg", "dqn"]).verdict == "not reproduced"
