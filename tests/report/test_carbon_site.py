"""Carbon's files and its notebook, from planted records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from planted_actorq import TASKS, make_records, with_energy, write_runs
from quarl_nb.render import render_notebook
from quarl_nb.report import carbon
from quarl_nb.report.carbon.costs import emissions
from quarl_nb.report.style import NothingToDrawError
from quarl_nb.store import ResultStore

ACTORS = ("fp32/torch", "fp32/onnxruntime", "int8/onnxruntime")
NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "09_carbon.ipynb"


def frames_of(actorq: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {name: pd.DataFrame() for name in carbon.site.STUDIES} | {"actorq": actorq}


def test_tables_and_figures_are_there_or_left_out() -> None:
    frames = frames_of(with_energy(make_records(["Walker Stand"], ACTORS)))
    made = carbon.site.tables_of(frames)
    assert set(made) == {
        "carbon_energy_by_study", "carbon_energy_of_training", "carbon_per_return",
        "carbon_per_million_steps", "carbon_sides_per_return", "carbon_sides_per_million_steps",
        "carbon_sensitivity_per_return", "carbon_sensitivity_per_million_steps",
    }  # fmt: skip
    whole = made["carbon_per_return"].tidy
    assert set(whole["part"]) == {"all"} and set(whole["per"]) == {"return"} and len(whole) == 3
    assert len(made["carbon_energy_by_study"].records) == 9
    plain = frames_of(make_records(["Walker Stand"], ACTORS))  # no energy in them
    assert not carbon.site.tables_of(plain)
    for drawing in carbon.site.drawings_of(plain).values():
        with pytest.raises(NothingToDrawError, match="CPU-seconds"):
            drawing.draw()
    without_int8 = frames_of(with_energy(make_records(["Walker Stand"], ACTORS[:2])))
    with pytest.raises(NothingToDrawError, match="no quantized and fp32 actors"):
        carbon.site.drawings_of(without_int8)["carbon_ratios"].draw()
    assert "carbon_per_return" in carbon.site.tables_of(without_int8)


def test_bars_are_the_ratios_and_stacks_the_grams() -> None:
    rows = emissions(with_energy(make_records(list(TASKS)[:2], ACTORS)))
    fig, points = carbon.figures.carbon_ratios(rows)
    assert len(points) == 2 * 2 * 2  # tasks, baselines, panels
    widths = [bar.get_width() for ax in fig.axes for box in ax.containers for bar in box
              if hasattr(bar, "get_width")]  # fmt: skip
    assert sorted(widths) == pytest.approx(sorted(points["ratio"]))
    fig, parts = carbon.figures.carbon_by_part(rows)
    tops = [float(text.get_text()) for ax in fig.axes for text in ax.texts]
    stacks = parts[["learner", "actors", "quantizer", "memory"]].sum(axis=1)
    assert sorted(tops) == pytest.approx(sorted(stacks), rel=1e-2)


def test_an_interval_that_ends_far_out_leaves_the_bars_their_room() -> None:
    rows = emissions(with_energy(make_records(list(TASKS)[:1], ACTORS)))
    fig, points = carbon.figures.carbon_ratios(rows.assign(ratio_torch_high=500.0))
    for ax in fig.axes:
        assert ax.get_xlim()[1] < 3 * points["ratio"].max()
        assert len(ax.texts) == 1  # the arrow
    unknown = rows.assign(ratio_torch=np.nan, ratio_ort=np.nan, kg=np.nan)  # nothing got there
    fig, _ = carbon.figures.carbon_ratios(unknown)
    assert all(ax.texts and ax.get_xlim()[1] < 10 for ax in fig.axes)


def test_a_return_that_fp32_never_reached_has_a_bar_through_the_panel() -> None:
    def returns(task: str, actor: str, seed: int) -> Sequence[float]:
        """Of torch's runs on the second task: half of what the others reach."""
        never = actor == "fp32/torch" and task == "Hopper Stand"
        return (0, 25, 50, 50) if never else (0, 50, 100, 100)

    tasks = ["Walker Stand", "Hopper Stand"]
    rows = emissions(with_energy(make_records(tasks, ACTORS, returns=returns)))
    fig, points = carbon.figures.carbon_ratios(rows)
    never = points[np.isposinf(points["ratio"])]
    assert {*zip(never["label"], never["baseline"], never["per"], strict=True)} == {
        ("Hopper Stand", "fp32/torch", "return")}  # fmt: skip
    ends = [ax.get_xlim()[1] for ax in fig.axes]
    assert max(ends) < 10  # twice the largest published ratio
    assert [text.get_text() for text in fig.axes[0].texts] == ["fp32 never"]
    assert not fig.axes[1].texts
    fig.canvas.draw()
    low = rows.assign(ratio_torch=np.inf, ratio_torch_low=2.0, ratio_torch_high=np.inf)
    fig, _ = carbon.figures.carbon_ratios(low)
    for ax in fig.axes:
        (most,) = {bar.get_width() for bar in ax.patches if bar.get_width() == ax.get_xlim()[1]}
        reach = [line.vertices for box in ax.collections for line in box.get_paths()]
        assert any(np.allclose(sorted(ends[:, 0])[0], 2.0) for ends in reach)
        assert max(ends[:, 0].max() for ends in reach) <= most


def test_runs_without_fp32_beside_them_are_not_counted() -> None:
    pair = with_energy(make_records(["Walker Stand"], ACTORS))
    alone = with_energy(make_records(["Hopper Stand"], ACTORS[2:]))
    both = pd.concat([pair, alone], ignore_index=True)
    runs = carbon.costs.costed_runs(both)
    shown = carbon.costs.compared_runs(runs, emissions(both))
    assert len(runs) == 12 and {*shown["key"]} == {*pair["key"]}
    made = carbon.site.tables_of(frames_of(both))
    assert {*made["carbon_per_return"].records["key"]} == {*pair["key"]}
    assert {*made["carbon_energy_by_study"].records["key"]} == {*both["key"]}  # which needs none
    drawn = carbon.site.drawings_of(frames_of(both))["carbon_ratios"].records
    assert {*drawn["key"]} == {*pair["key"]}
    assert not len(carbon.costs.compared_runs(carbon.costs.costed_runs(alone), emissions(alone)))


def test_a_baseline_that_a_task_was_not_run_with_has_no_bar() -> None:
    walker, hopper = make_records(["Walker Stand"], ACTORS), make_records(["Hopper Stand"], ACTORS)
    hopper = hopper[hopper["runtime"] + hopper["precision"] != "onnxruntimefp32"]
    rows = emissions(with_energy(pd.concat([walker, hopper])))
    fig, points = carbon.figures.carbon_ratios(rows)
    assert {*points.loc[points["label"] == "Hopper Stand", "baseline"]} == {"fp32/torch"}
    assert len(points) == 2 * 3
    assert "not reached" not in {text.get_text() for ax in fig.axes for text in ax.texts}


def test_labels_name_the_knobs_of_tasks_run_at_several_settings() -> None:
    pulls = [make_records(tasks, ACTORS, pull_period=pull)
             for tasks, pull in ((["Walker Stand"], 1000), (["Acrobot (Gym)"], 30))]  # fmt: skip
    _, points = carbon.figures.carbon_ratios(emissions(with_energy(pd.concat(pulls))))
    assert {*points["label"]} == {"Walker Stand", "Acrobot (Gym)"}
    pulls.append(make_records(["Acrobot (Gym)"], ACTORS, pull_period=1000))
    _, points = carbon.figures.carbon_ratios(emissions(with_energy(pd.concat(pulls))))
    assert {*points["label"]} == {"Walker Stand", "Acrobot (Gym), pull period 30",
                                  "Acrobot (Gym), pull period 1000"}  # fmt: skip


def test_the_notebook_tells_ratios_and_what_was_left_out(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "records")
    write_runs(store, "actorq", with_energy(make_records(["Walker Stand"], ACTORS, seeds=(0, 1))))
    write_runs(store, "actorq", make_records(["Walker Stand"], ACTORS, seeds=(2,)))
    write_runs(store, "actorq", with_energy(make_records(["Hopper Stand"], ACTORS[2:], seeds=(0,))))
    out = render_notebook(NOTEBOOK, tmp_path / "09.ipynb", {"records": str(store.root)})
    text = out.read_text().replace("\\u00a0", " ").replace("\u00a0", " ").replace("&nbsp;", " ")
    assert "Measured: 6 runs of 1 task. 6 runs by `tdp_x_cpu_time`: an estimate" in text
    assert "Left out: 3 runs without costs recorded along the way, or not evaluated." in text
    assert "Left out: 1 run without an fp32 one of the setting." in text
    assert "2.22 [2.22, 2.22]" in text and "1.9 to 3.76; 2.8 overall" in text
    assert "per return, against torch fp32 on 1 of 1 settings, and cost more on 0" in text
    assert text.count('"image/png": "') == 2
    assert "**inconclusive**" in text and "as few as 2 runs of a kind, where 5 decide" in text
