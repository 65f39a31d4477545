"""The figures of ActorQ: each takes a frame of records, returns the figure and its points."""

from __future__ import annotations

from typing import Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from quarl_nb.report.actorq.curves import WINDOW, on_grid
from quarl_nb.report.actorq.inference import COLORS
from quarl_nb.report.actorq.parts import (
    ACTOR_PARTS,
    bounded_speedup,
    by_actor,
    predicted_speedups,
    step_parts,
)
from quarl_nb.report.actorq.runs import SETTING, actor_label, learning_runs, speedups
from quarl_nb.report.style import (
    BLACK,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PAGE_IN,
    PURPLE,
    SKY,
    STYLE,
    VERMILION,
    YELLOW,
    NothingToDrawError,
    new_figure,
    panel_grid,
)

TIME, STEPS = "curve_wall_s", "curve_steps"
PART_COLORS = {"environment": GREY, "inference": VERMILION, "pull": SKY, "deserialize": GREEN,
               "load": ORANGE, "send": PURPLE, "wait": YELLOW}  # fmt: skip


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
        _common_legend(fig, axes)
    return fig, pd.concat(points, ignore_index=True)


def _draw_curves(ax: Axes, group: pd.DataFrame, column: str, hue: str) -> pd.DataFrame:
    """Mean and range over runs of every value of `hue`; returns what was plotted."""
    unit = 60.0 if column == TIME else 1000.0
    kinds = sorted(group.groupby(hue), key=lambda kind: _order(kind[0]))
    shades = mpl.colormaps["viridis"](np.linspace(0.1, 0.85, len(kinds)))
    points = []
    for i, (kind, rows) in enumerate(kinds):
        curves = on_grid(rows, column)
        color = COLORS.get(str(kind), BLACK) if hue == "actor" else shades[i]
        label = actor_label(str(kind)) if hue == "actor" else f"pull every {kind} steps"
        low, high = curves.values.min(axis=0), curves.values.max(axis=0)
        ax.fill_between(curves.x / unit, low, high, color=color, alpha=0.18, lw=0)
        ax.plot(curves.x / unit, curves.mean, color=color, label=label)
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
        _common_legend(fig, axes)
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
    ax.legend(loc="upper left")


def runtime_breakdown(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """An actor's milliseconds per environment step by activity (Figure 4c, 4d), stacked.

    A panel a task, a bar a kind of actor and pull period; weights travel as computed.

    Args:
        records: of actorq_runtime.
    """
    parts = by_actor(step_parts(records))
    parts = parts[parts["communication"] == parts["precision"]] if len(parts) else parts
    if parts.empty:
        raise NothingToDrawError("no ActorQ run that was timed: run the study first")
    panels = list(parts.groupby([n for n in SETTING if n != "pull_period"], sort=False,
                                dropna=False))  # fmt: skip
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(panels), columns=3, height_in=1.9)
        for ax, (_, rows) in zip(axes, panels, strict=True):
            _stack(ax, rows.sort_values(["pull_period", "actor"], key=lambda x: x.map(_order)))
            ax.set_title(f"{rows['task'].iloc[0]}, width {rows['width'].iloc[0]}", pad=14)
        fig.supylabel("ms of an actor per environment step", fontsize=7)
        _common_legend(fig, axes)
    names = ["task", "width", "pull_period", "actor", "runs", *ACTOR_PARTS, "actor_wait"]
    return fig, parts[names]


def _stack(ax: Axes, rows: pd.DataFrame) -> None:
    bottom = np.zeros(len(rows))
    at = np.arange(len(rows)) + 0.6 * (rows["pull_period"].rank(method="dense").to_numpy() - 1)
    for name in ACTOR_PARTS:
        ax.bar(at, 1e3 * rows[name], bottom=bottom, color=PART_COLORS[name], width=0.8, label=name)
        bottom += 1e3 * rows[name].to_numpy()
    for x, top in zip(at, bottom, strict=True):
        ax.annotate(f"{top:.2g}", (x, top), ha="center", va="bottom", fontsize=5.5)
    ax.set_xticks(at, [actor_label(actor) for actor in rows["actor"]], rotation=60, ha="right",
                  rotation_mode="anchor")  # fmt: skip
    ax.set_ylim(0, 1.1 * bottom.max())
    for period, group in pd.Series(at).groupby(rows["pull_period"].to_numpy()):
        ax.annotate(f"pull every {period}", (group.mean(), 1), xycoords=("data", "axes fraction"),
                    xytext=(0, 2), textcoords="offset points", ha="center", fontsize=6, color=GREY)


def speedup_map(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Where quantized actors pay: measured against predicted speed-up, and against the load.

    Speed-up here is environment steps per second over those of fp32 actors. Left: the prediction
    from the measured parts (two sides that overlap perfectly) beside the measurement. Right: the
    learner's load, its seconds per step over those of all fp32 actors together; lines are the
    bound for actors that are 2, 5 and 10 times faster.

    Args:
        records: of any ActorQ studies together.
    """
    pairs = predicted_speedups(step_parts(records))
    pairs = pairs[~pairs["actor"].str.startswith("fp32")] if len(pairs) else pairs
    if pairs.empty:
        raise NothingToDrawError("no quantized and fp32 actors at one setting: run a study first")
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 2.9)
        left, right = fig.subplots(1, 2, sharey=True)
        for (actor, baseline), rows in pairs.groupby(["actor", "baseline"]):
            paper = baseline == "fp32/torch"
            errors = np.maximum([rows["measured"] - rows["measured_low"],
                                 rows["measured_high"] - rows["measured"]], 0)
            for ax, column in ((left, "predicted"), (right, "load")):
                ax.errorbar(rows[column], rows["measured"], yerr=np.nan_to_num(errors), ls="",
                            marker="o" if paper else "s", elinewidth=0.7, alpha=0.8,
                            color=COLORS.get(str(actor), BLACK), mfc=None if paper else "none",
                            label=f"{actor_label(str(actor))} over {actor_label(str(baseline))}")
        _map_axes(left, right, pairs)
        _common_legend(fig, [left])
    return fig, pairs.drop(columns="keys")


def _map_axes(left: Axes, right: Axes, pairs: pd.DataFrame) -> None:
    both = pairs[["predicted", "measured"]].to_numpy()
    ends = np.array([min(0.9, both.min()), max(2, both.max())])
    left.plot(ends, ends, color=GREY, lw=0.8, zorder=0)
    load = np.geomspace(min(0.03, pairs["load"].min()), max(3, pairs["load"].max()), 200)
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
    left.set_xlabel("predicted speed-up of a step")
    left.set_ylabel("measured speed-up of a step")
    right.set_xlabel("load: learner's time per step / fp32 actors' time")


def _common_legend(fig: Figure, axes: list[Axes]) -> None:
    """One legend above all panels; a label that several panels use appears once."""
    found: dict[str, Artist] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    fig.legend(list(found.values()), list(found), loc="outside upper center",
               ncols=min(len(found), 6))  # fmt: skip


def _order(kind: object) -> int:
    """The place of a kind of actor among the others; a pull period's is itself."""
    return list(COLORS).index(str(kind)) if str(kind) in COLORS else int(str(kind))


def _at(table: pd.DataFrame, setting: dict[str, object]) -> pd.DataFrame:
    for name, value in setting.items():
        table = table[table[name] == value] if len(table) else table
    return table


def _title(first: pd.Series, settings: list) -> str:
    """The task, and its setting where the task has several."""
    tasks = [group["task"].iloc[0] for _, group in settings]
    if tasks.count(first["task"]) == 1:
        return str(first["task"])
    return (f"{first['task']}: {first['width']} wide, {first['n_actors']}x"
            f"{first['envs_per_actor']}, pull {first['pull_period']}, "
            f"{first['samples_per_insert']:g}/insert")
