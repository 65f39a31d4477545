"""ActorQ's learning curves: against time and against steps (Figures 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.actorq.actors import COLORS, DASHES, actor_label, kind_order
from quarl_nb.report.actorq.curves import WINDOW, on_grid
from quarl_nb.report.actorq.knobs import machine_told, setting_told
from quarl_nb.report.actorq.runs import ANYWHERE, MACHINE, SETTING, learning_runs, speedups
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
    Dotted: 95 % of the best fp32 return; a star where a curve first reaches it. Machines have a
    panel each against time, where only those with fp32 actors are shown of a task that has any.
    Titles tell the width and the machine where panels differ in them.
    """
    runs = learning_runs(records)
    if runs.empty:
        raise NothingToDrawError("no ActorQ run with a learning curve: run the study first")
    # What a step teaches is the same on every machine, how long it takes is not.
    shared = SETTING if axis == "time" else ANYWHERE
    table, points = speedups(records, setting=shared), []
    settings = list((_comparable(runs) if axis == "time" else runs).groupby(
        shared, sort=False, dropna=False))  # fmt: skip
    firsts = pd.DataFrame([group.iloc[0] for _, group in settings])[shared]
    looks = _actor_looks(runs["actor"].unique())
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(settings), columns=3, height_in=1.7)
        for ax, (setting, group) in zip(axes, settings, strict=True):
            found = _at(table, dict(zip(shared, setting, strict=True)))
            points.append(draw_curves(ax, group, TIME if axis == "time" else STEPS, "actor", looks))
            _draw_level(ax, found, "time_s" if axis == "time" else "steps")
            ax.set_title(_title(group.iloc[0], firsts))
            ax.yaxis.set_major_locator(MaxNLocator(4))
        axes[0].plot([], [], color=GREY, alpha=0.3, lw=5, label=_band_label(points))
        label = "minutes since the actors started" if axis == "time" else \
            "thousands of environment steps, all actors together"
        fig.supxlabel(label, fontsize=7)
        fig.supylabel(f"return of the learner's policy\n(mean of {WINDOW} episodes)", fontsize=7)
        common_legend(fig, axes)
    return fig, pd.concat(points, ignore_index=True)


def _comparable(runs: pd.DataFrame) -> pd.DataFrame:
    """Without those on a machine of no fp32 run, of tasks whose fp32 ran on another."""
    fp32 = runs["precision"] == "fp32"
    there = runs[SETTING].assign(fp32=fp32).groupby(SETTING, dropna=False)["fp32"].transform("any")
    return runs[there | ~fp32.groupby(runs["task"]).transform("any")]


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
        if len(table):
            table = table[table[name].isna() if pd.isna(value) else table[name] == value]
    return table


def _band_label(points: Sequence[pd.DataFrame]) -> str:
    """What bands are, and of how many runs."""
    counts = pd.concat(points)["runs"]
    fewest, most = counts.min(), counts.max()
    n = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f"range of the runs (n = {n})"


def _title(first: pd.Series, firsts: pd.DataFrame) -> str:
    """The task, what tells this panel from others of it, and where any two panels differ in them
    its width and its machine."""
    always = ["width"] if firsts["width"].nunique() > 1 else []
    told = setting_told(first, firsts, MACHINE, always)
    return "\n".join(filter(None, [first["task"], ", ".join(told), *machine_told(first, firsts)]))
