"""ActorQ's report against runs whose times, returns and costs are planted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest

from planted_actorq import (
    ENGINES,
    INT8_S,
    LEARNER_S,
    ORT_S,
    TASKS,
    TORCH_S,
    communications,
    make_records,
    make_run,
    scaled,
    write_runs,
)
from quarl_nb.render import render_notebook
from quarl_nb.report import actorq, site
from quarl_nb.report.actorq import tables
from quarl_nb.report.actorq.curves import ratio, redrawn_weights
from quarl_nb.report.actorq.runs import speedups
from quarl_nb.report.actorq.runtime_rules import learner_waits_more
from quarl_nb.report.actorq.table2 import returns_told, table2, table2_rows
from quarl_nb.report.paper import published
from quarl_nb.report.stats import bootstrap_weights
from quarl_nb.report.style import NothingToDrawError
from quarl_nb.store import ResultStore


def row_of(table: pd.DataFrame, **where: object) -> pd.Series:
    for column, wanted in where.items():
        table = table[table[column] == wanted]
    assert len(table) == 1
    return table.iloc[0]


def table2_of(records: pd.DataFrame) -> pd.DataFrame:
    learned = actorq.runs.speedups(records, setting=actorq.runs.ANYWHERE)
    return table2(table2_rows(actorq.runs.speedups(records), learned))


def test_the_running_mean_counts_episodes_not_evaluations() -> None:
    returns = [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]]
    # Windows of three episodes: 0 2 | 2 4 6 | 6 8 10.
    assert actorq.curves.running_mean(returns, window=3).tolist() == [1.0, 4.0, 8.0]
    assert actorq.curves.running_mean(returns, window=10).tolist() == [1.0, 3.0, 5.0]
    # The paper's ten, of evaluations of five.
    assert actorq.curves.running_mean([[0.0] * 5, [6.0] * 5, [8.0] * 5]).tolist() == [0, 3, 7]


def test_curves_are_averaged_over_runs_on_a_common_grid() -> None:
    runs = pd.DataFrame({"curve_wall_s": [[0, 10], [0, 20]],
                         "curve_returns": [[[0] * 10, [100] * 10], [[0] * 10, [100] * 10]]})
    curves = actorq.curves.on_grid(runs, "curve_wall_s")
    assert curves.x.tolist() == [0, 10, 20]
    assert curves.values.tolist() == [[0, 100, 100], [0, 50, 100]]  # the first ended at 10 s
    assert curves.mean.tolist() == [0, 75, 100]


def test_a_level_is_first_reached_between_two_points_or_never() -> None:
    x = np.array([0.0, 10, 20, 30])
    curves = np.array([[0.0, 50, 100, 40], [0, 50, 60, 70], [90, 0, 100, 100]])
    found = actorq.curves.crossing(x, curves, np.array([75.0, 75, 75]))
    assert found.tolist() == [15.0, np.inf, 0.0]
    assert actorq.curves.crossing(x, curves[:1], np.array([50.0])).tolist() == [10.0]


def test_the_level_is_5_percent_below_the_best_also_where_returns_are_negative() -> None:
    curves = np.array([[0.0, 100, 90], [-500, -100, -120], [9.5, 9.5, 9.5]])
    levels = actorq.curves.reward_level(curves)
    assert levels[:2].tolist() == [95.0, -105.0]
    assert np.isnan(levels[2])  # nothing was learned: there is no time to speak of


def test_speedups_are_the_planted_ones_against_both_baselines() -> None:
    found = actorq.runs.speedups(make_records(["Walker Stand"]))
    assert list(found["actor"]) == list(ENGINES) and set(found["runs"]) == {3}
    int8, torch = (row_of(found, actor=name) for name in ("int8/onnxruntime", "fp32/torch"))
    # Evaluated at 0, 1/3, 2/3 and 1 of 1000 steps: 95 is nine tenths of the way to the third.
    assert int8["level"] == 95
    assert int8["steps"] == pytest.approx(1000 * (1 / 3 + 0.9 / 3))
    assert int8["updates"] == pytest.approx(int8["steps"] / 16)
    assert torch["time_s"] == pytest.approx(TORCH_S / 4 * torch["steps"])
    for name, step_s in (("speedup_torch", TORCH_S), ("speedup_ort", ORT_S)):
        assert int8[name] == pytest.approx(step_s / INT8_S)
        assert int8[f"{name}_low"] == pytest.approx(int8[f"{name}_high"])  # runs are alike
    assert int8["steps_ratio"] == pytest.approx(1) and int8["final_loss"] == 0
    assert int8["final_loss_p_equivalent"] == 0.5**3 and len(int8["keys"]) == 9


def test_intervals_hold_the_estimate_and_grow_with_the_noise() -> None:
    narrow, wide = (
        row_of(actorq.runs.speedups(make_records(["Walker Stand"], noise=noise)),
               actor="int8/onnxruntime") for noise in (0.02, 0.2)
    )  # fmt: skip
    for row in (narrow, wide):
        assert row["speedup_torch_low"] < row["speedup_torch"] < row["speedup_torch_high"]
    assert wide["speedup_torch_high"] - wide["speedup_torch_low"] > \
        5 * (narrow["speedup_torch_high"] - narrow["speedup_torch_low"])


def test_intervals_stay_when_another_kind_of_actor_is_measured() -> None:
    def returns(_: str, actor: str, seed: int) -> Sequence[float]:
        return (0, 50, 100, 100 - seed * (actor == "int8/onnxruntime"))

    runs = make_records(["Walker Stand"], returns=returns, noise=0.2)
    alone, beside = (row_of(actorq.runs.speedups(measured), actor="int8/onnxruntime")
                     for measured in (runs[runs["precision"] != "fp16"], runs))  # fmt: skip
    assert alone["final_loss_low"] < alone["final_loss"]
    pd.testing.assert_series_equal(alone, beside, check_names=False)


def test_one_run_has_no_interval_and_one_that_never_gets_there_no_time() -> None:
    def returns(_: str, actor: str, seed: int) -> Sequence[float]:
        return (0, 10, 20) if actor.startswith("int8") else (0, 50, 100)

    found = actorq.runs.speedups(make_records(["Walker Stand"], seeds=(0,), returns=returns))
    int8, fp16 = (row_of(found, actor=name) for name in ("int8/onnxruntime", "fp16/torch"))
    assert np.isnan(int8["time_s"]) and int8["speedup_torch"] == 0
    assert int8["final_loss"] == pytest.approx(0.8)
    assert fp16["speedup_torch"] > 1 and np.isnan(fp16["speedup_torch_low"])


def test_only_runs_of_one_setting_are_compared() -> None:
    fast = make_records(["Walker Stand"], ["int8/onnxruntime"], n_actors=8)
    assert actorq.runs.speedups(fast).empty  # no fp32 run beside them
    both = pd.concat([fast, make_records(["Walker Stand"])], ignore_index=True)
    assert set(actorq.runs.speedups(both)["n_actors"]) == {4}
    again = pd.concat([both, both], ignore_index=True)
    assert set(actorq.runs.speedups(again)["runs"]) == {3}  # a run counts once


def test_runs_with_other_options_of_the_algorithm_are_other_runs() -> None:
    slow, fast = (
        make_records(["Walker Stand"]).assign(**{"budget.options": [{"learning_rate": rate}] * 12})
        for rate in (1e-4, 1e-2)
    )
    found = actorq.runs.speedups(pd.concat([slow, fast], ignore_index=True))
    assert len(found) == 8 and set(found["runs"]) == {3}


def test_times_of_two_processors_are_not_compared() -> None:
    full, int8 = (make_records(["Walker Stand"], [actor]).assign(**{"provenance.cpu": cpu})
                  for actor, cpu in (("fp32/torch", "one"), ("int8/onnxruntime", "another")))
    found = actorq.runs.speedups(pd.concat([full, int8], ignore_index=True))
    assert list(found["actor"]) == ["fp32/torch"]


def test_times_beside_two_gpus_are_not_compared() -> None:
    both = make_records(["Walker Stand"], ["fp32/torch", "int8/onnxruntime"])
    both["provenance.gpu"] = both["precision"].map({"fp32": "H100", "int8": "H200"})
    assert list(actorq.runs.speedups(both)["actor"]) == ["fp32/torch"]
    runs = actorq.runs.actorq_runs(both)
    assert runs["gpu"].tolist() == both["provenance.gpu"].tolist() == \
        actorq.runs.actorq_runs(runs)["gpu"].tolist()
    # One that idles beside a learner on the processor is no part of the setting.
    idle = actorq.runs.speedups(both.assign(**{"budget.device": "cpu"}))
    assert len(idle) == 2 and set(idle["gpu"]) == {""}
    # A record that tells the learner's: of several GPUs it need not be the first.
    named = both.assign(**{"extra.device_name": both["precision"].map({"fp32": "A100"})})
    assert sorted(actorq.runs.actorq_runs(named)["gpu"]) == 3 * ["A100"] + 3 * ["H200"]


def test_times_beside_two_gpus_stand_in_rows_of_their_own() -> None:
    frame = pd.concat([
        make_records(["Walker Stand"], ["fp32/torch", "int8/onnxruntime"], slower=slower)
        .assign(**{"provenance.gpu": gpu}) for gpu, slower in (("H100", 2.0), ("H200", 1.0))
    ], ignore_index=True)
    shown = table2_of(frame).loc["Walker Stand"]
    assert shown.index.name == "GPU" and shown.index.tolist() == ["H100", "H200"]
    parts = actorq.parts.step_parts(frame)
    assert set(tables.runtime_table(parts)["GPU"]) == {"H100", "H200"}
    pairs = tables.prediction_table(actorq.predictions.predicted_speedups(parts))
    assert pairs["GPU"].tolist() == ["H100", "H200"] and "processor" not in pairs
    for fig in (actorq.curve_figures.convergence(frame, "time")[0],
                actorq.time_figures.runtime_breakdown(frame)[0]):
        assert [ax.get_title().splitlines()[-1] for ax in fig.axes] == ["H100", "H200"]


def test_times_of_two_processors_stand_in_rows_of_their_own() -> None:
    actors = ["fp32/torch", "int8/onnxruntime"]
    frame = pd.concat([
        make_records(["Walker Stand"], actors, slower=slower, device=device)
        .assign(**{"provenance.cpu": cpu})
        for cpu, slower, device in (("AMD", 1.0, "cpu"), ("Intel", 2.0, "cuda"))
    ], ignore_index=True)
    shown = table2_of(frame).reset_index()
    shown = shown[shown["task"] == "Walker Stand"]
    assert shown["processor"].tolist() == ["AMD", "Intel"]
    amd, intel = shown["time (s), measured", "int8 ORT"].astype(float)
    assert intel == pytest.approx(2 * amd)
    pairs = tables.prediction_table(actorq.predictions.predicted_speedups(
        actorq.parts.step_parts(frame)))  # fmt: skip
    assert pairs[["learner on", "processor"]].to_numpy().tolist() == \
        [["cpu", "AMD"], ["cuda", "Intel"]]
    parts = tables.runtime_table(actorq.parts.step_parts(frame))
    assert set(zip(parts["processor"], parts["actor"], strict=True)) == \
        {(cpu, actor) for cpu in ("AMD", "Intel") for actor in ("fp32 torch", "int8 ORT")}
    for fig in (actorq.curve_figures.convergence(frame, "time")[0],
                actorq.time_figures.runtime_breakdown(frame)[0]):
        assert [ax.get_title().splitlines()[-1] for ax in fig.axes] == ["AMD", "Intel"]


def test_losses_of_table_2_compare_across_machines_and_its_times_do_not() -> None:
    def returns(_: str, actor: str, seed: int) -> Sequence[float]:
        return (0, 50, 90) if actor == "fp16/torch" else (0, 50, 100)

    every = make_records(["Walker Stand"], returns=returns)
    cpus = every["precision"].map({"fp16": "Intel"}).fillna("AMD")
    apart = every.assign(**{"provenance.cpu": cpus})
    frames = dict.fromkeys(actorq.site.STUDIES, pd.DataFrame()) | {"actorq": apart}
    table = actorq.site.tables_of(frames)["table2_actorq"]
    assert len(table.shown) == 11
    line = table.shown.loc["Walker Stand"]
    assert line["loss of final return", "fp16"] == "10.0% [10.0%, 10.0%]"
    assert line["loss of final return", "int8"] == "0.0% [0.0%, 0.0%]"
    assert line["time (s), measured", "fp16 torch"] == "not measured"
    assert line["speed-up", "fp16 over torch fp32"] == "not measured"
    assert line["reward", "95 %, measured"] == "95" and line["runs", ""] == "3"
    row = row_of(table.tidy, task="Walker Stand", actor="fp16/torch")
    assert row["final_loss"] == pytest.approx(0.1) and row["final_runs"] == 3
    assert np.isnan(row["time_s"]) and np.isnan(row["runs"])
    # A second machine has a row of its own, beside the same losses.
    here = every[every["precision"] != "fp16"].assign(**{"provenance.cpu": "ARM"}, seed=9)
    shown = table2_of(pd.concat([apart, here], ignore_index=True)).loc["Walker Stand"]
    assert shown.index.tolist() == ["AMD", "ARM"]
    assert set(shown["loss of final return", "fp16"]) == {"10.0% [10.0%, 10.0%]"}


@pytest.mark.filterwarnings("error")
def test_table_2_tells_a_kind_of_actors_that_no_run_had() -> None:
    runs = make_records(["Walker Stand"], ["fp32/torch", "int8/onnxruntime"])
    learned = actorq.runs.speedups(runs, setting=actorq.runs.ANYWHERE)
    shown = table2(table2_rows(actorq.runs.speedups(runs), learned))
    assert {*shown["time (s), measured", "fp16 torch"]} == {"not measured"}


def test_runs_too_few_for_equal_returns_or_lower_ones_to_show_are_told() -> None:
    def told(records: pd.DataFrame) -> str:
        learned = actorq.runs.speedups(records, setting=actorq.runs.ANYWHERE)
        return returns_told(learned)

    five = make_records(["Walker Stand"], seeds=range(5), returns=lambda _, actor, seed: (
        (0, 50, 80) if actor == "fp16/torch" else (0, 50, 100)))
    assert "1 of 2 end at a return equivalent" in told(five) and "1 below it" in told(five)
    assert "too few" not in told(five)
    four = told(five[five["seed"] < 4])
    assert "0 of 2 end at a return equivalent" in four and "0 below it" in four
    assert "For 2 of these the runs are too few" in four
    assert "of 4 pairs no p-value is below 0.0625" in four
    apart = five.assign(**{"provenance.cpu": five.index.map(str)})
    assert told(apart) == told(five)
    assert told(pd.DataFrame()).startswith("No return")


def test_two_recipes_of_a_task_are_told_apart() -> None:
    actors = ["fp32/torch", "int8/onnxruntime"]
    frame = pd.concat([make_records(["Cartpole (Gym)"], actors, batch_size=batch)
                       for batch in (64, 128)], ignore_index=True)  # fmt: skip
    fig, _ = actorq.time_figures.runtime_breakdown(frame)
    assert [ax.get_title().splitlines()[1] for ax in fig.axes] == ["batch 64", "batch 128"]
    shown = tables.runtime_table(actorq.parts.step_parts(frame))
    assert shown["batch"].tolist() == ["64", "64", "128", "128"]


def test_runs_of_several_kinds_are_counted_from_the_fewest_to_the_most() -> None:
    frame = make_records(["Walker Stand"])
    few = frame[(frame["precision"] != "fp16") | (frame["seed"] == 0)]
    for records, told in ((frame, "3"), (few, "1 to 3")):
        shown = table2_of(records)
        assert shown.loc["Walker Stand", ("runs", "")] == told


def test_a_step_is_the_slower_side_of_two_that_overlap() -> None:
    parts = actorq.parts.step_parts(make_records(["Walker Stand"], seeds=(0,)))
    torch = row_of(parts, actor="fp32/torch")
    assert torch["inference"] == pytest.approx(8e-3) and torch["pull"] == pytest.approx(2e-4)
    assert torch["actor_step_s"] == pytest.approx(TORCH_S)
    assert torch["learner_step_s"] == pytest.approx(LEARNER_S / 4)
    for name in ("predicted_step_s", "step_s"):
        assert torch[name] == pytest.approx(TORCH_S / 4)
    run = make_run("Walker Stand", "fp32/torch", 0, (), steps=100)
    run |= {"n_actors": 2, "run_s": 8.0, "actor_s": {"environment": 1.0, "inference": 3.0},
            "learner_s": {"insert": 1.0, "sample": 1.0, "train": 2.0, "publish": 3.0, "wait": 9.0}}
    learner_bound = actorq.parts.step_parts(pd.DataFrame([run])).iloc[0]
    assert learner_bound["actor_step_s"] == pytest.approx(0.04)
    assert learner_bound["predicted_step_s"] == pytest.approx(0.07)  # 7 s of 100 steps > 4 s / 2
    assert learner_bound["step_s"] == pytest.approx(0.08)


def test_ages_stand_beside_the_recipe_that_made_them() -> None:
    few = make_records(["Cartpole (Gym)"], ["int8/onnxruntime"], steps=6400, pull_period=30,
                       samples_per_insert=1.0, batch_size=128)  # fmt: skip
    many = make_records(["Mountain Car (Gym)"], ["int8/onnxruntime"], steps=6400, pull_period=5000,
                        samples_per_insert=64.0, batch_size=128, width=256)  # fmt: skip
    runs = pd.concat([few.assign(updates=50), many.assign(updates=3200)], ignore_index=True)
    parts = actorq.parts.step_parts(runs)
    assert parts.groupby("task")["updates_per_step"].unique().map(list).to_dict() == {
        "Cartpole (Gym)": [50 / 6400], "Mountain Car (Gym)": [0.5]}  # fmt: skip
    cartpole, car = tables.age_table(parts).to_dict("records")
    told = ("pull period", "samples per insert", "batch", "updates a step", "width", "runs")
    assert [cartpole[name] for name in told] == ["30", "1", "128", "0.00781", "2048", 3]
    assert [car[name] for name in told] == ["5000", "64", "128", "0.5", "256", 3]
    # Pulls and deserializing of 1000 bytes: 0.05 s each, every 30 steps.
    assert cartpole["pulling (ms a step)"] == "3.333" and cartpole["payload (MB)"] == "0.001"
    assert (car["age (updates), mean"], car["median"], car["95th percentile"]) == \
        ("312.5", "250.0", "625.0")
    assert tables.age_table(actorq.parts.step_parts(pd.DataFrame())).empty


def test_the_clock_is_the_loops_not_the_cells() -> None:
    records = make_records(["Walker Stand"])
    without = records.drop(columns="run_s")  # then the last evaluated policy's
    found, again = (actorq.parts.step_parts(frame)["step_s"] for frame in (records, without))
    assert found.tolist() == pytest.approx(again.tolist())
    some = records.assign(run_s=records["run_s"].where(records["seed"] > 0))  # one kept none
    assert actorq.parts.step_parts(some)["step_s"].tolist() == pytest.approx(found.tolist())
    blind = without.assign(curve_wall_s=[[]] * len(without), curve_returns=[[]] * len(without))
    parts = actorq.parts.step_parts(blind)
    assert parts["step_s"].isna().all() and parts["inference"].notna().all()
    assert actorq.predictions.predicted_speedups(parts).empty
    assert learner_waits_more(blind).verdict == "not measured"


def test_table_3_is_read_by_the_time_of_a_step() -> None:
    records = make_records(["Cartpole Balance"])
    readings = actorq.table3.step_readings(actorq.runs.speedups(records),
                                          actorq.parts.step_parts(records))
    row = row_of(readings, task="Cartpole Balance")
    # 870.91 s of four actors over 40 000 steps, or over 640 000.
    assert row["as_actor_steps_ms"] == pytest.approx(4 * 870.91 / 40)
    assert row["as_updates_ms"] == pytest.approx(4 * 870.91 / 640)
    assert row["measured_ms"] == pytest.approx(1e3 * TORCH_S)
    assert row["fits"] == "learner updates"  # 9.4 ms is nearer to 5.4 than to 87
    assert row_of(readings, task="Finger Spin")["fits"] == "" and len(readings) == 11
    assert set(readings["task"]) == set(TASKS)
    # The table tells a level that is not reached from a task that did not run, as Table 2 does.
    unreached = readings.assign(steps=float("nan"), updates=float("nan"))
    cell = row_of(tables.table3(readings), task="Cartpole Balance")
    assert cell["actor steps to 95 %"] == f"{row['steps']:,.0f}"
    missed = tables.table3(unreached)
    cell = row_of(missed, task="Cartpole Balance")
    assert cell["actor steps to 95 %"] == cell["updates to 95 %"] == "not reached"
    assert cell["actor steps in all"] == "1,000"
    assert set(row_of(missed, task="Finger Spin").iloc[4:]) == {"not measured"}


def test_table_3_is_read_by_one_setting_of_a_task() -> None:
    def runs(cpu: str, factor: float, **options: Any) -> pd.DataFrame:
        made = make_records(["Cartpole Balance"], ["fp32/torch"], **options)
        actor_s = [scaled(parts, factor) for parts in made["actor_s"]]
        return made.assign(actor_s=actor_s, **{"provenance.cpu": cpu})

    def reading(*made: pd.DataFrame) -> pd.Series:
        records = pd.concat(made, ignore_index=True)
        return row_of(actorq.table3.step_readings(
            actorq.runs.speedups(records), actorq.parts.step_parts(records)
        ), task="Cartpole Balance")

    paper, narrow = runs("AMD", 1), runs("AMD", 2, width=256, steps=500, seeds=range(5))
    others = [runs("Intel", 9, seeds=(8, 9)), runs("AMD", 4, communication="int8")]
    row = reading(paper, narrow, *others)
    assert row["measured_ms"] == pytest.approx(1e3 * TORCH_S)
    assert row["total_steps"] == 1000 and set(row["keys"]) == set(paper["key"])
    row = reading(narrow)  # not of the paper's policy: there is no step to read the table by
    assert np.isnan(row["measured_ms"]) and row["fits"] == "" and row["total_steps"] == 500


def test_communication_is_compared_at_one_compute_precision() -> None:
    found = actorq.parts.communication_speedups(actorq.parts.step_parts(communications()))
    int8 = row_of(found, communication="int8")
    assert int8["speedup"] == pytest.approx(1.2) and int8["smaller"] == 4
    assert np.isnan(row_of(found, communication="fp32")["speedup"])  # it is the baseline
    shown = tables.communication_table(found).set_index("sent as")
    assert shown["speed-up over sent as fp32"].tolist() == ["", "1.20 [1.20, 1.20]"]


def test_the_tables_show_what_is_missing() -> None:
    shown = table2_of(make_records(["Walker Stand"]))
    assert len(shown) == 11
    walker = shown.loc["Walker Stand"]
    assert walker["speed-up", "int8 published"] == "1.63"
    assert walker["speed-up", "int8 over torch fp32"] == "4.48 [4.48, 4.48]"
    assert walker["time (s), published", "fp32"] == "871" and walker["runs", ""] == "3"
    hopper = shown.loc["Hopper Stand"]
    assert hopper["reward", "95 %, measured"] == "not measured"
    assert hopper["speed-up", "int8 published"] == "1.57"
    assert hopper["speed-up", "int8 over torch fp32"] == hopper["runs", ""] == "not measured"
    empty = table2_of(pd.DataFrame())
    assert set(empty["reward", "95 %, measured"]) == {"not measured"} and len(empty) == 11
    two = pd.concat([make_records(["Walker Stand"], n_actors=n) for n in (1, 4)])
    shown = table2_of(two)
    assert list(shown.index.names) == ["task", "actors"] and len(shown) == 12
    assert ("Walker Stand", "1") in shown.index and ("Hopper Stand", "") in shown.index


@pytest.mark.parametrize(("name", "change", "shown_as", "texts"), [
    ("budget.steps", 4000, "steps", {"1000", "4000"}),
    ("budget.autocast", "bf16", "autocast", {"none", "bf16"}),
    ("budget.options", {"batch_size": 64}, "batch", {"64", "256"}),
    ("budget.options", {"batch_size": 256, "gamma": 0.9}, "options", {"none", "gamma 0.9"}),
])  # fmt: skip
def test_what_tasks_have_their_own_of_is_told_where_it_varies_within_one(
    name: str, change: object, shown_as: str, texts: set[str]
) -> None:
    def runs(task: str, **options: float) -> pd.DataFrame:
        return make_records([task], ["fp32/torch", "int8/onnxruntime"], **options)

    plain, slow = runs("Walker Stand"), runs("Walker Stand", slower=2.0)
    both = pd.concat([plain, slow.assign(**{name: [change] * len(slow)})], ignore_index=True)
    shown = table2_of(both).loc["Walker Stand"]
    assert shown.index.name == shown_as and set(shown.index) == texts
    times = shown["time (s), measured", "int8 ORT"].astype(float)
    assert times.max() == pytest.approx(2 * times.min(), rel=1e-3)
    fig, _ = actorq.curve_figures.convergence(both, "time")
    assert {ax.get_title().splitlines()[-1] for ax in fig.axes} == \
        {f"{shown_as} {text}" for text in texts}
    other = runs("Cartpole (Gym)")
    tasks = pd.concat([plain, other.assign(**{name: [change] * len(other)})], ignore_index=True)
    shown = table2_of(tasks)
    assert shown.index.names == ["task"] and len(shown) == 11


def test_a_title_names_the_papers_setting_where_others_differ_from_it_in_much() -> None:
    def runs(**cell: float) -> pd.DataFrame:
        return make_records(["Walker Stand"], ["fp32/torch"], **cell)

    def titles(*settings: pd.DataFrame) -> set[str]:
        fig, _ = actorq.curve_figures.convergence(pd.concat(settings, ignore_index=True), "steps")
        return {" / ".join(ax.get_title().splitlines()) for ax in fig.axes}

    own, two = runs(), {"n_actors": 1, "width": 256}
    assert titles(own, runs(**two)) == {
        "Walker Stand / the paper's setting", "Walker Stand / width 256"}
    assert titles(own, runs(**two), runs(**two, samples_per_insert=1.0)) == {
        "Walker Stand / the paper's setting", "Walker Stand / width 256, samples per insert 16",
        "Walker Stand / width 256, samples per insert 1"}
    assert titles(own, runs(n_actors=1)) == {"Walker Stand / actors 4", "Walker Stand / actors 1"}


def test_machines_share_a_panel_against_steps_and_none_against_time() -> None:
    """A title tells what panels differ in, and nothing else."""
    def titles(runs: pd.DataFrame, axis: Literal["time", "steps"]) -> list[str]:
        return [ax.get_title() for ax in actorq.curve_figures.convergence(runs, axis)[0].axes]

    tasks, kinds = ["Walker Stand", "Acrobot (Gym)"], ["fp32/torch", "fp16/torch"]
    here = make_records(tasks, kinds).assign(**{"provenance.cpu": "one CPU"})
    there = make_records(tasks[:1], kinds).assign(**{"provenance.cpu": "another CPU"})
    both = pd.concat([here, there], ignore_index=True)
    assert sorted(titles(both, "steps")) == sorted(tasks)
    assert sorted(titles(both, "time")) == [
        "Acrobot (Gym)\none CPU", "Walker Stand\nanother CPU", "Walker Stand\none CPU"]
    # Tasks of which each has one width and one machine differ in both.
    narrow = make_records(tasks[:1], kinds, width=1024).assign(**{"provenance.cpu": "another CPU"})
    mixed = pd.concat([here[here["task"] == tasks[1]], narrow], ignore_index=True)
    assert sorted(titles(mixed, "time")) == [
        "Acrobot (Gym)\nwidth 2048\none CPU", "Walker Stand\nwidth 1024\nanother CPU"]
    assert sorted(titles(mixed, "steps")) == [
        "Acrobot (Gym)\nwidth 2048", "Walker Stand\nwidth 1024"]  # fmt: skip
    # What has nothing to compare its time with is left to the steps; alone it is shown.
    fp16 = there[there["precision"] == "fp16"]
    assert sorted(titles(pd.concat([here, fp16], ignore_index=True), "time")) == sorted(tasks)
    assert titles(fp16, "time") == ["Walker Stand"]


@pytest.mark.parametrize(("fewer", "n"), [(3, "3"), (2, "2 to 3"), (1, "1 to 3")])
def test_curves_tell_what_bands_are_and_of_how_many_runs(fewer: int, n: str) -> None:
    runs = make_records(["Walker Stand", "Acrobot (Gym)"])
    some = (runs["task"] == "Walker Stand") & (runs["precision"] == "int8")
    records = runs[~some | (runs["seed"] < fewer)]
    for axis in ("time", "steps"):
        (legend,) = actorq.curve_figures.convergence(records, axis)[0].legends
        assert f"range of the runs (n = {n})" in {text.get_text() for text in legend.get_texts()}


def test_stars_against_steps_stand_on_the_level_of_every_machine() -> None:
    def returns(_: str, actor: str, seed: int) -> Sequence[float]:
        return (0, 50, 100) if actor == "fp32/torch" else (0, 40, 96)

    fp32, fp16, ort = (
        make_records(["Walker Stand"], [kind], returns=returns).assign(**{"provenance.cpu": cpu})
        for kind, cpu in (("fp32/torch", "one"), ("fp16/torch", "another"),
                          ("fp32/onnxruntime", "another")))  # fmt: skip
    for parts in ((fp32, fp16), (fp32, fp16, ort)):
        runs = pd.concat(parts, ignore_index=True)
        (ax,) = actorq.curve_figures.convergence(runs, "steps")[0].axes
        found = actorq.runs.speedups(runs, setting=actorq.runs.ANYWHERE)
        stars = [line for line in ax.lines if line.get_marker() == "*"]
        assert len(stars) == found["steps"].notna().sum() >= 2
        (dotted,) = (line for line in ax.lines if line.get_label() == "95 % of the best fp32")
        assert set(dotted.get_ydata()) == set(found["level"])


def test_stars_stand_where_the_batch_is_the_algorithms_own() -> None:
    runs = make_records(["Walker Stand"], ["fp32/torch", "int8/onnxruntime"], batch_size=None)
    runs["budget.options"] = [{}] * len(runs)
    (ax,) = actorq.curve_figures.convergence(runs, "time")[0].axes
    stars = [line for line in ax.lines if line.get_marker() == "*"]
    assert len(stars) == actorq.runs.speedups(runs)["time_s"].notna().sum() == 2


def test_figures_plot_what_was_recorded_or_say_why_not() -> None:
    records = make_records(["Walker Stand", "Acrobot (Gym)"])
    for axis in ("time", "steps"):
        _, points = actorq.curve_figures.convergence(records, axis)
        assert set(points["actor"]) == set(ENGINES) and points["mean"].max() == 100
    periods = pd.concat([make_records(["Walker Stand"], ["int8/onnxruntime"], pull_period=period)
                         for period in (30, 1000)])
    _, points = actorq.staleness_figure.staleness(periods)
    ages = points[points["axis"] == "age"].set_index("pull_period")
    assert ages.loc[1000, "age_mean"] == 1000 / 16 and ages.loc[30, "age_mean"] == 30 / 16
    _, points = actorq.time_figures.runtime_breakdown(periods)
    assert points["inference"].tolist() == pytest.approx([1e-3, 1e-3])
    lone = make_records(["Acrobot (Gym)"], ["fp32/torch"], pull_period=30)
    both = pd.concat([periods, lone], ignore_index=True)
    for frame, tasks in ((both, ["Walker Stand"] * 2), (lone, ["Acrobot (Gym)"])):
        fig, points = actorq.time_figures.runtime_breakdown(frame)
        assert points["task"].tolist() == tasks and len(fig.axes) == 1
    _, points = actorq.time_figures.speedup_map(records)
    assert set(points["actor"]) == {"fp16/torch", "int8/onnxruntime"}
    # Two tasks, two kinds over two baselines; and each of their three seeds.
    assert points["panel"].value_counts().to_dict() == {"load": 8, "predicted": 24}
    empty = pd.DataFrame()
    for draw in (lambda: actorq.curve_figures.convergence(empty, "time"),
                 lambda: actorq.staleness_figure.staleness(records),
                 lambda: actorq.time_figures.runtime_breakdown(empty),
                 lambda: actorq.time_figures.speedup_map(empty)):
        with pytest.raises(NothingToDrawError):
            draw()


def test_figure_3_averages_no_settings_or_actors_and_a_pull_period_looks_alike_throughout() -> None:
    def runs(task: str, actor: str, period: int, last: float, **options: int) -> pd.DataFrame:
        return make_records([task], [actor], returns=lambda *_: (0, last), pull_period=period,
                            **options)  # fmt: skip

    int8, torch = "int8/onnxruntime", "fp32/torch"
    frame = pd.concat([
        *(runs("Walker Stand", int8, period, 90) for period in (30, 1000)),
        *(runs("Walker Stand", torch, period, 60) for period in (30, 1000)),
        *(runs("Walker Stand", int8, period, 30, width=256) for period in (30, 1000)),
        *(runs("Cartpole (Gym)", int8, period, 10) for period in (100, 1000)),
    ], ignore_index=True)
    fig, points = actorq.staleness_figure.staleness(frame)
    _, *panels = fig.axes
    assert [ax.get_title().split("\n") for ax in panels] == [
        ["Cartpole (Gym)"], ["Walker Stand", "width 256, int8 ORT"],
        ["Walker Stand", "width 2048, fp32 torch"], ["Walker Stand", "width 2048, int8 ORT"],
    ]
    assert points.groupby("panel", sort=False)["mean"].max().tolist() == [10, 30, 60, 90]
    assert set(points[points["axis"] == "age"].groupby("panel").size()) == {2}
    looks = {(line.get_label(), tuple(line.get_color()), line.get_linestyle())
             for ax in panels for line in ax.lines}  # fmt: skip
    assert sorted(label for label, *_ in looks) == [
        "pull every 100 steps", "pull every 1000 steps", "pull every 30 steps"]
    assert len({look[1:] for look in looks}) == 3  # colour and dash
    # A title has room for two of what settings differ in, unless these leave two alike.
    several = [(256, 1, 4), (512, 2, 8), (256, 1, 8)]
    for settings, told in ((several[:2], 2), (several, 3)):
        wide = pd.concat([
            runs("Walker Stand", int8, period, 30, width=width, n_actors=n, samples_per_insert=spi)
            for period in (30, 1000) for width, n, spi in settings])  # fmt: skip
        fig, points = actorq.staleness_figure.staleness(wide)
        titles = [ax.get_title().split("\n")[1] for ax in fig.axes[1:]]
        assert [len(title.split(", ")) for title in titles] == [told] * len(settings)
        assert points["panel"].str.count(", ").eq(2).all()
    # A setting at one period beside another at another period is no comparison.
    lone = frame[frame["pull_period"].isin([30, 100])]
    with pytest.raises(NothingToDrawError):
        actorq.staleness_figure.staleness(lone)


def test_scaling_keeps_every_setting_apart_and_finds_the_planted_speedups() -> None:
    settings = [(64, 1, 1), (64, 2, 8), (2048, 1, 1), (2048, 2, 8)]
    records = pd.concat(
        make_records(["Walker Stand"], seeds=(0, 1), width=width, n_actors=n_actors,
                     envs_per_actor=envs, pull_period=10**9)
        for width, n_actors, envs in settings
    )
    fig, points = actorq.scaling.scaling_figure(records)
    shown = points[["width", "n_actors", "envs_per_actor"]].drop_duplicates()
    assert [tuple(row) for row in shown.to_numpy()] == settings
    # 9 and 5 ms of an actor against 2, beside a learner that is as fast as int8 actors.
    ratios = points.groupby("baseline")["measured"].agg(["min", "max"])
    assert ratios.loc["fp32/torch"].tolist() == pytest.approx([9 / 2] * 2)
    assert ratios.loc["fp32/onnxruntime"].tolist() == pytest.approx([5 / 2] * 2)
    assert len(fig.axes) == 2  # a row a baseline, a column a number of samples per insert
    # A panel that holds less takes nothing from the others.
    part = make_records(["Walker Stand"], list(ENGINES)[1:], width=64, n_actors=2,
                        samples_per_insert=4.0, pull_period=10**9)  # fmt: skip
    fig, _ = actorq.scaling.scaling_figure(pd.concat([records, part]))
    assert len(fig.axes) == 4
    for ax in fig.axes:
        assert list(ax.get_xticks()) == [64, 2048] and 5 in ax.get_yticks()
    colors = {(line.get_label(), line.lines[0].get_color())
              for ax in fig.axes for line in ax.containers}
    assert len(colors) == len({label for label, _ in colors}) == 3
    one_width = make_records(["Walker Stand"])
    with pytest.raises(NothingToDrawError, match="several widths"):
        actorq.scaling.scaling_figure(one_width)


def test_the_site_draws_what_the_store_holds(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "records")
    write_runs(store, "actorq", make_records(["Walker Stand"], seeds=(0, 1)))
    write_runs(store, "actorq_runtime", communications(study="actorq_runtime"))
    for width in (64, 2048):
        write_runs(store, "actorq_scaling", make_records(["Walker Stand"], width=width))
    smoke = make_records(["Walker Stand"], ["int8/onnxruntime"], profile="smoke")
    write_runs(store, "actorq_staleness", smoke)
    paths = site.build(store, tmp_path / "figures", "full")
    names = {path.name for path in paths}
    for figure in ("figure1_actorq", "figure2_actorq", "figure4_actorq", "actorq_speedup_map",
                   "actorq_scaling_figure"):
        assert {f"{figure}.{end}" for end in ("svg", "png", "csv", "json")} <= names
    for table in ("table2_actorq", "table3_actorq", "actorq_communication", "actorq_runtime",
                  "actorq_scaling"):
        assert {f"{table}.{end}" for end in ("html", "tex", "csv", "json")} <= names
    assert not any(name.startswith(("figure3", "inference")) for name in names)
    source = json.loads((tmp_path / "figures/full/figure1_actorq.json").read_text())
    assert source["records"] == sorted(store.frame("actorq")["key"])
    again = site.build(store, tmp_path / "again", "full")
    assert [p.read_bytes() for p in paths] == [p.read_bytes() for p in again]
    assert not site.build(ResultStore(tmp_path / "none"), tmp_path / "none", "full")


def test_the_notebook_shows_published_beside_measured(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "records")
    write_runs(store, "actorq", make_records(["Walker Stand", "Cartpole (Gym)"], seeds=(0, 1)))
    name = "06_actorq_speedup.ipynb"
    notebook = Path(__file__).resolve().parents[2] / "notebooks" / name
    only = {"records": str(store.root), "tasks": ["dm:walker-stand"]}
    out = render_notebook(notebook, tmp_path / name, only)
    text = out.read_text().replace("\\u00a0", " ").replace("&nbsp;", " ")
    assert "4.48 [4.48, 4.48]" in text and "Measured: 8 runs of 1 task." in text
    assert "**learner updates** on 1 of 1 tasks measured" in text
    assert "of 2 pairs no p-value is below 0.25" in text
    assert text.count('"image/png": "') == 3


def test_runs_that_were_evaluated_otherwise_are_not_compared() -> None:
    """The level is the best of all evaluations, and a running mean spans 10 episodes."""
    seldom = make_records(["Walker Stand"], ["int8/onnxruntime"])
    often = make_records(["Walker Stand"], ["fp32/torch"])
    for name in ("budget.evaluations", "budget.episodes"):
        both = pd.concat([often.assign(**{name: 20}), seldom.assign(**{name: 5})])
        assert set(actorq.runs.speedups(both)["actor"]) == {"fp32/torch"}


def test_the_ends_for_all_tasks_at_once_hold_with_five_runs() -> None:
    """Of eleven ratios that are 1, hardly one a hundred times must seem to be below it."""
    generator = np.random.default_rng(0)
    below = 0
    for _ in range(2000):
        x, y = generator.lognormal(0, 0.3, (2, 5))
        weights = np.vstack([np.full(5, 0.2), bootstrap_weights(5, generator, 500)])
        ends = dict(ratio(weights @ x, weights @ y, 5))
        below += ends["_most"] < 1
        assert ends["_least"] <= ends["_low"] <= ends[""] <= ends["_high"] <= ends["_most"]
    assert below / 2000 <= 0.005


def test_ends_hardly_depend_on_what_runs_are_redrawn_with() -> None:
    """To the two digits that are shown: of 2,000 draws two alone lay beyond those of five runs."""
    x, y = np.random.default_rng(0).lognormal(0, 0.3, (2, 5))
    ends = []
    for seed in range(6):
        generator = np.random.default_rng(seed)
        weights = [redrawn_weights(5, generator) for _ in range(2)]
        ends.append(dict(ratio(weights[0] @ x, weights[1] @ y, 5)))
    for name in ("_low", "_high"):
        assert max(e[name] for e in ends) < 1.02 * min(e[name] for e in ends)


def test_a_ratio_of_runs_that_never_get_there_has_open_ends() -> None:
    never, once = np.full(100, np.inf), np.append(np.full(99, 2.0), np.inf)
    reached = np.linspace(0.9, 1.1, 100)
    nowhere = dict.fromkeys(("", "_low", "_high", "_least", "_most"), 0.0)
    assert dict(ratio(reached, never, 9)) == nowhere  # of so many none gets there by chance
    assert dict(ratio(reached, never, 6)) == nowhere | {"_most": np.inf}
    assert dict(ratio(reached, never, 5)) == nowhere | {"_high": np.inf, "_most": np.inf}
    ends = dict(ratio(never, reached, 5))
    assert ends == dict.fromkeys(nowhere, np.inf) | {"_low": 0.0, "_least": 0.0}
    ends = dict(ratio(reached, once, 5))
    assert ends["_low"] == ends["_least"] == 0.0 and 0.55 < ends["_most"] < np.inf
    ends = dict(ratio(once, reached, 5))
    assert ends["_most"] == np.inf and 0 < ends["_least"] < 1.8


def test_a_draw_that_neither_side_gets_there_in_opens_both_ends() -> None:
    ends = dict(ratio(once := np.append(np.full(99, 2.0), np.inf), once, 5))
    assert ends == {"": 1.0, "_low": 0.0, "_high": np.inf, "_least": 0.0, "_most": np.inf}
    never = np.full(100, np.inf)
    assert np.isnan([*dict(ratio(never, never, 5)).values()]).all()


def test_what_is_corrected_for_all_tasks_counts_those_of_table_2() -> None:
    assert published("table2")["task"].nunique() == actorq.curves.TASKS


def test_a_learner_that_was_evaluated_once_has_no_curve() -> None:
    once = make_records(["Walker Stand"], returns=lambda *_: (50,))
    assert actorq.runs.learning_runs(once).empty
    assert len(actorq.runs.actorq_runs(once)) == len(once)


def test_pairs_of_returns_are_as_many_as_the_fewer_runs() -> None:
    five = make_records(["Walker Stand"], seeds=range(5))
    less = five[(five["precision"] != "fp32") | (five["seed"] < 4)]
    told = returns_told(actorq.runs.speedups(less, setting=actorq.runs.ANYWHERE))
    assert "For 2 of these the runs are too few" in told and "of 4 pairs" in told


def test_the_reading_of_table_3_that_fits_is_the_nearer_as_a_ratio() -> None:
    records = make_records(["Cartpole Balance"])
    slow = records.assign(actor_s=[scaled(parts, 3) for parts in records["actor_s"]])
    row = row_of(actorq.table3.step_readings(
        actorq.runs.speedups(slow), actorq.parts.step_parts(slow)), task="Cartpole Balance")
    assert row["measured_ms"] == pytest.approx(3e3 * TORCH_S)
    assert row["fits"] == "actor steps"  # 28 ms: a third of 87, and five times 5.4


def test_table_3_is_read_by_runs_that_were_evaluated_before_the_papers_policy() -> None:
    paper = make_records(["Cartpole Balance"], ["fp32/torch"])
    blind = paper.assign(curve_returns=[[]] * len(paper))
    narrow = make_records(["Cartpole Balance"], ["fp32/torch"], width=256, steps=500)
    records = pd.concat([blind, narrow], ignore_index=True)
    row = row_of(actorq.table3.step_readings(
        actorq.runs.speedups(records), actorq.parts.step_parts(records)), task="Cartpole Balance")
    assert set(row["keys"]) == set(narrow["key"]) and row["total_steps"] == 500


def test_a_mean_return_is_over_the_steps_that_the_curve_spans() -> None:
    returns = [[0.0] * 10, [10.0] * 10, [10.0] * 10]
    assert actorq.runs.mean_return([100, 200, 500], returns) == (100 * 5 + 300 * 10) / 400


@pytest.mark.filterwarnings("error")
def test_of_a_return_of_0_there_is_no_share_to_lose() -> None:
    found = actorq.runs.speedups(make_records(
        ["Walker Stand"], ["fp32/torch", "int8/onnxruntime"], returns=lambda *_: (-90, -60, 0)))
    int8 = row_of(found, actor="int8/onnxruntime")
    assert np.isnan(int8["final_loss"]) and np.isnan(int8["final_loss_p_loss"])
    assert int8["area_loss"] == 0


def test_every_run_of_fp32_counts_alike_for_the_level() -> None:
    """One of torch that reaches 100 and three of ORT that reach 80: a best mean of 85."""
    def returns(_: str, actor: str, seed: int):
        return (0, 50, 100) if actor == "fp32/torch" else (0, 50, 80)

    runs = make_records(["Walker Stand"], returns=returns)
    of_torch = (runs["precision"] == "fp32") & (runs["runtime"] == "torch")
    runs = runs[~of_torch | (runs["seed"] == 0)]
    assert speedups(runs)["level"].to_numpy() == pytest.approx(0.95 * 85)
