"""ActorQ's learning curves: against time, against steps, and by pull period (Figures 1 to 3)."""

from __future__ import annotations

from typing import Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from quarl_nb.report.actorq.actors import COLORS, DASHES, actor_label, kind_order
from quarl_nb.report.actorq.curves import WINDOW, on_grid
from quarl_nb.report.actorq.knobs import OF_A_TASK, knobs_told, machine_told, varied
from quarl_nb.report.actorq.parts import by_actor, step_parts
from quarl_nb.report.actorq.runs import SETTING, learning_runs, speedups
from quarl_nb.report.style import (
    BLACK,
    GREY,
    LINES,
    MARKERS,
    PAGE_IN,
    STYLE,
    NothingToDrawError,
    common_legend,
    new_figure,
    panel_grid,
)

TIME, STEPS = "curve_wall_s", "curve_steps"


def convergence(
    records: pd.DataFrame, axis: Literal["time", "steps"]
) -> tuple[Figure, pd.DataFrame]:
    """The learner's return against time (Figure 1) or environment steps (Figure 2), by task.

    Lines are the mean over runs of the running means of 10 episodes, bands the range of the runs.
    Dotted: 95 % of the best fp32 return; a star where a curve first reaches it.
    """
    runs = learning_runs(records)
    if runs.empty:
        raise NothingToDrawError("no ActorQ run with a learning curve: run the study first")
    table, points = speedups(records), []
    settings = list(runs.groupby(SETTING, sort=False, dropna=False))
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(settings), columns=3, height_in=1.55)
        for ax, (setting, group) in zip(axes, settings, strict=True):
            found = _at(table, dict(zip(SETTING, setting, strict=True)))
            points.append(_draw_curves(ax, group, TIME if axis == "time" else STEPS, "actor"))
            _draw_level(ax, found, "time_s" if axis == "time" else "steps")
            ax.set_title(_title(group.iloc[0], settings))
            ax.yaxis.set_major_locator(MaxNLocator(4))
        label = "minutes since the actors started" if axis == "time" else \
            "thousands of environment steps, all actors together"
        fig.supxlabel(label, fontsize=7)
        fig.supylabel(f"return of the learner's policy\n(mean of {WINDOW} episodes)", fontsize=7)
        common_legend(fig, axes)
    return fig, pd.concat(points, ignore_index=True)


def _draw_curves(ax: Axes, group: pd.DataFrame, column: str, hue: str) -> pd.DataFrame:
    """Mean and range over runs of every value of `hue`; returns what was plotted."""
    unit = 60.0 if column == TIME else 1000.0
    kinds = sorted(group.groupby(hue), key=lambda kind: kind_order(kind[0]))
    shades = mpl.colormaps["viridis"](np.linspace(0.1, 0.85, len(kinds)))
    points = []
    for i, (kind, rows) in enumerate(kinds):
        curves = on_grid(rows, column)
        if hue == "actor":
            label, color = actor_label(str(kind)), COLORS.get(str(kind), BLACK)
            dashes = DASHES.get(str(kind), "-")
        else:
            label, color, dashes = f"pull every {kind} steps", shades[i], LINES[i % len(LINES)]
        low, high = curves.values.min(axis=0), curves.values.max(axis=0)
        ax.fill_between(curves.x / unit, low, high, color=color, alpha=0.18, lw=0)
        ax.plot(curves.x / unit, curves.mean, color=color, ls=dashes, label=label)
        first = rows.iloc[0]
        points.append(pd.DataFrame({
            "task": first["task"], hue: kind, "x": curves.x, "mean": curves.mean, "low": low,
            "high": high, "runs": len(rows), "axis": column.removeprefix("curve_"),
        }))  # fmt: skip
    return pd.concat(points, ignore_index=True)


def _draw_level(ax: Axes, found: pd.DataFrame, name: str) -> None:
    if found.empty or not np.isfinite(found["level"].iloc[0]):
        return
    unit = 60.0 if name == "time_s" else 1000.0
    level = found["level"].iloc[0]
    ax.axhline(level, color=GREY, lw=0.7, ls=":", label="95 % of the best fp32")
    for _, row in found[found[name].notna()].iterrows():
        ax.plot(row[name] / unit, level, marker="*", ms=7, ls="", mec="white", mew=0.4, zorder=5,
                color=COLORS.get(row["actor"], BLACK))


def _at(table: pd.DataFrame, setting: dict[str, object]) -> pd.DataFrame:
    for name, value in setting.items():
        table = table[table[name] == value] if len(table) else table
    return table


def _title(first: pd.Series, settings: list) -> str:
    """The task, and its setting where the task has several."""
    same = pd.DataFrame([group.iloc[0] for _, group in settings])
    same = same[same["task"] == first["task"]]
    if len(same) == 1:
        return str(first["task"])
    text = (f"{first['task']}: {first['width']} wide, {first['n_actors']}x"
            f"{first['envs_per_actor']}, pull {first['pull_period']}, "
            f"{first['samples_per_insert']:g}/insert")
    others = [name for name in varied(same) if name in (*OF_A_TASK, "budget.device")]
    told = ", ".join(knobs_told(first, others, same))
    return "\n".join(filter(None, [text, told, *machine_told(first, same)]))


def staleness(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Policy age against pull period, and the learning curves at each of them (Figure 3).

    Age: learner updates between the version that acted and its arrival; mean over messages, from
    the median to the 95th percentile.

    Args:
        records: of actorq_staleness.
    """
    runs = learning_runs(records)
    if runs.empty or runs["pull_period"].nunique() < 2:
        raise NothingToDrawError("no ActorQ runs at two pull periods: run the study first")
    ages = by_actor(step_parts(runs))
    tasks = list(dict.fromkeys(runs["task"]))
    points = []
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 2.3)
        first, *axes = fig.subplots(1, 1 + len(tasks))
        _draw_ages(first, ages, tasks)
        for ax, task in zip(axes, tasks, strict=True):
            rows = runs[runs["task"] == task]
            points.append(_draw_curves(ax, rows, STEPS, "pull_period"))
            ax.set_title(task)
            ax.set_xlabel("thousands of environment steps")
        axes[0].set_ylabel(f"return of the learner's policy\n(mean of {WINDOW} episodes)")
        common_legend(fig, axes)
    shown = ages[["task", "pull_period", "age_mean", "age_p50", "age_p95", "runs"]]
    return fig, pd.concat([*points, shown.assign(axis="age")], ignore_index=True)


def _draw_ages(ax: Axes, ages: pd.DataFrame, tasks: list[str]) -> None:
    for i, task in enumerate(tasks):
        rows = ages[ages["task"] == task].sort_values("pull_period")
        errors = np.maximum([rows["age_mean"] - rows["age_p50"],
                             rows["age_p95"] - rows["age_mean"]], 0)
        ax.errorbar(rows["pull_period"] * (1 + 0.06 * i), rows["age_mean"], yerr=errors,
                    marker=MARKERS[i], color=BLACK, elinewidth=0.7, ls="-" if i == 0 else "--",
                    label=task)
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=1)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(FixedLocator(sorted(set(ages["pull_period"]))))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("steps between two pulls")
    ax.set_ylabel("policy age (learner updates)")
    ax.legend(loc="lower right")
