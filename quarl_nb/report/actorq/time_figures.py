"""Where ActorQ's time goes (Figure 4c, 4d), and where quantized actors pay."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from quarl_nb.report.actorq.actors import BASELINES, COLORS, actor_label, kind_order
from quarl_nb.report.actorq.knobs import machine_told, setting_told
from quarl_nb.report.actorq.parts import ACTOR_PARTS, by_actor, step_parts
from quarl_nb.report.actorq.predictions import (
    bounded_speedup,
    held_out_speedups,
    predicted_speedups,
)
from quarl_nb.report.actorq.runs import MACHINE, SETTING
from quarl_nb.report.style import (
    BLACK,
    GREEN,
    GREY,
    ORANGE,
    PAGE_IN,
    PURPLE,
    SKY,
    STYLE,
    VERMILION,
    NothingToDrawError,
    common_legend,
    interval_errors,
    new_figure,
    panel_grid,
)

PART_COLORS = {"environment": GREY, "inference": VERMILION, "pull": SKY, "deserialize": GREEN,
               "load": ORANGE, "send": PURPLE}  # fmt: skip


def runtime_breakdown(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """An actor's milliseconds per environment step by activity (Figure 4c, 4d), stacked.

    A panel a task, a bar a kind of actor and pull period; weights travel as computed. Beside others
    a task of a single bar, which compares nothing, is left to the table.

    Args:
        records: of actorq_runtime.
    """
    parts = by_actor(step_parts(records))
    parts = parts[parts["communication"] == parts["precision"]] if len(parts) else parts
    if parts.empty:
        raise NothingToDrawError("no ActorQ run that was timed: run the study first")
    panels = [rows for _, rows in parts.groupby([n for n in SETTING if n != "pull_period"],
                                                sort=False, dropna=False)]  # fmt: skip
    panels = [rows for rows in panels if len(rows) > 1] or panels
    parts = pd.concat(panels)
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(panels), columns=3, height_in=1.9)
        for ax, rows in zip(axes, panels, strict=True):
            _stack(ax, rows.sort_values(["pull_period", "actor"], key=lambda x: x.map(kind_order)))
            first = rows.iloc[0]
            ax.set_title(_title(first, parts), pad=14)
        fig.supylabel("ms of an actor per environment step", fontsize=7)
        common_legend(fig, axes)
    names = ["task", "width", "pull_period", "actor", "runs", *ACTOR_PARTS, "actor_wait"]
    return fig, parts[names]


def _title(first: pd.Series, parts: pd.DataFrame) -> str:
    """The task, its width, and what else tells this panel from the others of the task."""
    told = setting_told(first, parts, but=("width", "pull_period", *MACHINE))
    lines = [f"{first['task']}, width {first['width']}", ", ".join(told)]
    return "\n".join([*filter(None, lines), *machine_told(first, parts)])


def _stack(ax: Axes, rows: pd.DataFrame) -> None:
    bottom = np.zeros(len(rows))
    at = np.arange(len(rows)) + 0.6 * (rows["pull_period"].rank(method="dense").to_numpy() - 1)
    for name in ACTOR_PARTS:
        ax.bar(at, 1e3 * rows[name], bottom=bottom, color=PART_COLORS[name], width=0.8, label=name)
        bottom += 1e3 * rows[name].to_numpy()
    for x, top in zip(at, bottom, strict=True):
        ax.annotate(f"{top:#.2g}", (x, top), ha="center", va="bottom", fontsize=5.5)
    ax.set_xticks(at, [actor_label(actor) for actor in rows["actor"]], rotation=60, ha="right",
                  rotation_mode="anchor")  # fmt: skip
    ax.set_ylim(0, 1.1 * bottom.max())
    for period, group in pd.Series(at).groupby(rows["pull_period"].to_numpy()):
        ax.annotate(f"pull every {period} steps", (group.mean(), 1), (0, 2), ha="center",
                    xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=6,
                    color=GREY)


def speedup_map(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Where quantized actors pay: measured against predicted speed-up, and against the load.

    Speed-up here is environment steps per second over those of fp32 actors. Left: every run beside
    the fp32 one of its seed, against what the parts of the other seeds' runs predict (two sides
    that overlap perfectly). Right: means over runs against the learner's load, its seconds per step
    over those of all fp32 actors together; lines are what actors 2, 5 and 10 times faster would
    gain if the learner kept its time. Points lie above where actors that compute less leave it more
    of the cores that they share.

    Args:
        records: of any ActorQ studies together.
    """
    parts = step_parts(records)
    pairs, runs = _quantized(predicted_speedups(parts)), _quantized(held_out_speedups(parts))
    if pairs.empty:
        raise NothingToDrawError("no quantized and fp32 actors at one setting: run a study first")
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 2.9)
        left, right = fig.subplots(1, 2, sharey=True)
        for (actor, baseline), each in runs.groupby(["actor", "baseline"]):
            look = _map_look(str(actor), str(baseline))
            left.plot(each["predicted"], each["measured"], ls="", alpha=0.5, **look)
        for (actor, baseline), rows in pairs.groupby(["actor", "baseline"]):
            label = f"{actor_label(str(actor))} over {actor_label(str(baseline))}"
            right.errorbar(rows["load"], rows["measured"], ls="", elinewidth=0.7, alpha=0.8,
                           yerr=np.nan_to_num(interval_errors(rows, "measured")), label=label,
                           **_map_look(str(actor), str(baseline)))
        _map_axes(left, right, pairs, runs)
        common_legend(fig, [right])
    both = [runs.assign(panel="predicted"), pairs.drop(columns="keys").assign(panel="load")]
    return fig, pd.concat(both, ignore_index=True)


def _quantized(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[~rows["actor"].str.startswith("fp32")] if len(rows) else rows


def _map_look(actor: str, baseline: str) -> dict[str, Any]:
    """Filled over the paper's fp32 actors, hollow over those of the runtime of int8."""
    paper = baseline == BASELINES["torch"]
    return {"color": COLORS.get(actor, BLACK), "marker": "o" if paper else "s",
            "mfc": None if paper else "none"}  # fmt: skip


def _map_axes(left: Axes, right: Axes, pairs: pd.DataFrame, runs: pd.DataFrame) -> None:
    if len(runs):
        both = runs[["predicted", "measured"]].to_numpy()
        ends = np.array([min(0.9, both.min()), max(2, both.max())])
        left.plot(ends, ends, color=GREY, lw=0.8, zorder=0)
    # The lines begin so far left of the points that their names stand clear of them.
    load = np.geomspace(pairs["load"].min() / 7, max(3, pairs["load"].max()), 200)
    for gain in (2, 5, 10):
        right.plot(load, bounded_speedup(load, gain), color=GREY, lw=0.8, zorder=0)
        right.annotate(f"{gain}× faster actors", (load[0], gain), fontsize=6, color=GREY,
                       va="bottom")
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.axhline(1, color=GREY, lw=0.6, ls=":", zorder=0)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(FixedLocator([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]))
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axis.set_minor_locator(NullLocator())
    alone = "" if runs["held_out"].all() else " (a single run: from its own)"
    left.set_xlabel(f"speed-up of a step predicted from other runs' parts{alone}")
    left.set_ylabel("measured speed-up of a step")
    right.set_xlabel("load: learner's time per step / fp32 actors' time")
