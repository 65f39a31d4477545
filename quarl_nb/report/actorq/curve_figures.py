"""ActorQ's learning curves: against time and against steps (Figures 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.actorq.actors import COLORS, DASHES, actor_label, kind_order
from quarl_nb.report.actorq.curves import WINDOW, on_grid
from quarl_nb.report.actorq.knobs import OF_A_TASK, knobs_told, machine_told, varied
from quarl_nb.report.actorq.runs import SETTING, learning_runs, speedups
from quarl_nb.report.style import (
    BLACK,
    GREY,
    STYLE,
    NothingToDrawError,
    common_legend,
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
    looks = _actor_looks(runs["actor"].unique())
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(settings), columns=3, height_in=1.55)
        for ax, (setting, group) in zip(axes, settings, strict=True):
            found = _at(table, dict(zip(SETTING, setting, strict=True)))
            points.append(draw_curves(ax, group, TIME if axis == "time" else STEPS, "actor",
                                       looks))
            _draw_level(ax, found, "time_s" if axis == "time" else "steps")
            ax.set_title(_title(group.iloc[0], settings))
            ax.yaxis.set_major_locator(MaxNLocator(4))
        label = "minutes since the actors started" if axis == "time" else \
            "thousands of environment steps, all actors together"
        fig.supxlabel(label, fontsize=7)
        fig.supylabel(f"return of the learner's policy\n(mean of {WINDOW} episodes)", fontsize=7)
        common_legend(fig, axes)
    return fig, pd.concat(points, ignore_index=True)


def _actor_looks(actors: Iterable[str]) -> dict[Any, dict[str, Any]]:
    return {actor: {"label": actor_label(actor), "color": COLORS.get(actor, BLACK),
                    "ls": DASHES.get(actor, "-")} for actor in actors}  # fmt: skip


def draw_curves(
    ax: Axes, group: pd.DataFrame, column: str, hue: str, looks: Mapping[Any, dict[str, Any]]
) -> pd.DataFrame:
    """Mean and range over runs of every value of `hue`; returns what was plotted.

    Args:
        group: of `runs.learning_runs`, one task's.
        column: `TIME` or `STEPS`.
        looks: of each value of `hue`, as `Axes.plot` takes them.
    """
    unit = 60.0 if column == TIME else 1000.0
    points = []
    for kind, rows in sorted(group.groupby(hue), key=lambda kind: kind_order(kind[0])):
        curves, look = on_grid(rows, column), looks[kind]
        low, high = curves.values.min(axis=0), curves.values.max(axis=0)
        ax.fill_between(curves.x / unit, low, high, color=look["color"], alpha=0.18, lw=0)
        ax.plot(curves.x / unit, curves.mean, **look)
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
