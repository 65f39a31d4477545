"""How old the policies are that fill the replay buffer, and what that costs (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from quarl_nb.report.actorq.actors import actor_label
from quarl_nb.report.actorq.curve_figures import STEPS, draw_curves
from quarl_nb.report.actorq.curves import WINDOW
from quarl_nb.report.actorq.knobs import setting_told
from quarl_nb.report.actorq.runs import BUT_PULLS, SETTING, learning_runs
from quarl_nb.report.style import (
    BLACK,
    LINES,
    MARKERS,
    STYLE,
    NothingToDrawError,
    common_legend,
    panel_grid,
)

TOLD = 2  # settings that a title has room for, of those that its runs differ in


class Panel(NamedTuple):
    """Runs that differ in their pull period alone."""

    task: str
    told: list[str]  # what they have set as the task's other panels have not
    runs: pd.DataFrame

    def label(self, told: int | None = None) -> str:
        """The task, and the first so many of what it is told by; by default all."""
        return ": ".join(filter(None, [self.task, ", ".join(self.told[:told])]))


def staleness(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Policy age against pull period, and the learning curves at each of them (Figure 3).

    Age: learner updates between the version that acted and its arrival; mean over messages, from
    the median to the 95th percentile. A line of ages and a panel of curves a task, setting and
    kind of actor.

    Args:
        records: of actorq_staleness.
    """
    runs = learning_runs(records)
    panels = _panels(runs) if len(runs) else []
    if not any(panel.runs["pull_period"].nunique() > 1 for panel in panels):
        raise NothingToDrawError("no ActorQ runs at two pull periods: run the study first")
    periods, points = sorted(runs["pull_period"].unique()), []
    ages = [_mean_ages(panel.runs) for panel in panels]
    titles = _titles(panels)
    with mpl.rc_context(STYLE):
        fig, (first, *axes) = panel_grid(1 + len(panels), columns=3, height_in=1.75)
        _draw_ages(first, dict(zip(titles, ages, strict=True)), periods)
        for ax, title, panel in zip(axes, titles, panels, strict=True):
            curves = draw_curves(ax, panel.runs, STEPS, "pull_period", _period_looks(periods))
            points.append(curves.assign(panel=panel.label()))
            ax.set_title(title)
            ax.set_xlabel("thousands of environment steps")
        axes[0].set_ylabel(f"return of the learner's policy\n(mean of {WINDOW} episodes)")
        common_legend(fig, [first, *axes], columns=max(len(panels), len(periods)))
    points += [rows.assign(axis="age", panel=panel.label())
               for panel, rows in zip(panels, ages, strict=True)]  # fmt: skip
    return fig, pd.concat(points, ignore_index=True)


def _period_looks(periods: Sequence[int]) -> dict[Any, dict[str, Any]]:
    """Given all pull periods of a figure, one means the same in every panel."""
    shades = mpl.colormaps["viridis"](np.linspace(0.1, 0.85, len(periods)))
    return {period: {"label": f"pull every {period} steps", "color": shade,
                     "ls": LINES[i % len(LINES)]}
            for i, (period, shade) in enumerate(zip(periods, shades, strict=True))}  # fmt: skip


def _panels(runs: pd.DataFrame) -> list[Panel]:
    groups = [rows for _, rows in runs.groupby([*BUT_PULLS, "actor"], sort=False, dropna=False)]
    firsts = pd.DataFrame([rows.iloc[0] for rows in groups])
    panels = []
    for rows, (_, first) in zip(groups, firsts.iterrows(), strict=True):
        same = firsts[firsts["task"] == first["task"]]
        told = setting_told(first, firsts, but=[*{*SETTING} - {*BUT_PULLS}])
        told += [actor_label(first["actor"])] if same["actor"].nunique() > 1 else []
        panels.append(Panel(first["task"], told, rows))
    return panels


def _titles(panels: Sequence[Panel]) -> list[str]:
    """The task above the first of what tells each panel; above all of it if two would be alike."""
    cut = [panel.label(TOLD) for panel in panels]
    labels = cut if len({*cut}) == len(cut) else [panel.label() for panel in panels]
    return [label.replace(": ", "\n", 1) for label in labels]


def _mean_ages(runs: pd.DataFrame) -> pd.DataFrame:
    """A row a pull period: means over its runs."""
    groups = runs.groupby(["task", "pull_period"])
    means = groups[["age_mean", "age_p50", "age_p95"]].mean()
    return means.assign(runs=groups.size()).reset_index()


def _draw_ages(
    ax: Axes, ages: Mapping[str, pd.DataFrame], periods: Sequence[int]
) -> None:
    for i, (title, rows) in enumerate(ages.items()):
        errors = np.maximum([rows["age_mean"] - rows["age_p50"],
                             rows["age_p95"] - rows["age_mean"]], 0)
        ax.errorbar(rows["pull_period"] * (1 + 0.06 * i), rows["age_mean"], yerr=errors,
                    marker=MARKERS[i % len(MARKERS)], color=BLACK, elinewidth=0.7,
                    ls="-" if i == 0 else "--", label=title)
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=1)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(FixedLocator(periods))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("steps between two pulls")
    ax.set_ylabel("policy age (learner updates)")
