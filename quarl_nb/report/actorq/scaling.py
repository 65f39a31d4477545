"""Speed-up of quantized actors by width, actors, environments per actor and samples per insert."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from quarl_nb.report.actorq.actors import INT8, actor_label
from quarl_nb.report.actorq.parts import step_parts
from quarl_nb.report.actorq.predictions import predicted_speedups
from quarl_nb.report.actorq.runs import SETTING
from quarl_nb.report.style import (
    CYCLE,
    GREY,
    PAGE_IN,
    STYLE,
    NothingToDrawError,
    common_legend,
    interval_errors,
    new_figure,
)
from quarl_nb.report.texts import counted

DODGE = 1.1  # between lines that share a width, whose error bars else hide each other
# What the figure's columns, lines and axes show; the rest of the setting makes its rows.
_SHOWN = ("width", "n_actors", "envs_per_actor", "samples_per_insert")
_ROW = [*(name for name in SETTING if name not in _SHOWN), "baseline"]


def scaling_rows(records: pd.DataFrame) -> pd.DataFrame:
    """`predicted_speedups` of int8 actors, in the order of `_SHOWN`.

    Args:
        records: of actorq_scaling.
    """
    pairs = predicted_speedups(step_parts(records))
    if pairs.empty:
        return pairs
    pairs = pairs[pairs["actor"] == INT8]
    return pairs.sort_values(["task", *_SHOWN], kind="stable", ignore_index=True)


def scaling_figure(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Environment steps per second of int8 actors over fp32 ones, against the policy's width.

    A row a task and baseline (torch, the paper's; ONNX Runtime, the fair one), a column a number of
    samples per insert, a line a number of actors and of environments each.

    Args:
        records: of actorq_scaling.
    """
    rows = scaling_rows(records)
    if rows.empty or rows["width"].nunique() < 2:
        raise NothingToDrawError("no int8 and fp32 actors at several widths: run the study first")
    panels = list(rows.groupby(_ROW, sort=False, dropna=False))
    samples = sorted(rows["samples_per_insert"].unique())
    colors = dict(zip(sorted(rows["n_actors"].unique()), CYCLE, strict=False))
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 0.7 + 1.55 * len(panels))
        grid = fig.subplots(len(panels), len(samples), squeeze=False, sharex=True, sharey="row")
        for (_, group), axes in zip(panels, grid, strict=True):
            first = group.iloc[0]
            for sample, ax in zip(samples, axes, strict=True):
                _lines(ax, group[group["samples_per_insert"] == sample], colors)
            _scales(axes[0], rows["width"], group["measured"])
            axes[0].set_ylabel(f"{first['task']}: steps per\nsecond over "
                               f"{actor_label(first['baseline'])}")  # fmt: skip
        for sample, ax in zip(samples, grid[0], strict=True):
            ax.set_title(f"{sample:g} sample{'' if sample == 1 else 's'} per insert")
        for ax in grid[-1]:
            ax.set_xlabel("width of the policy's three layers")
        common_legend(fig, list(grid.flat))
    return fig, rows.drop(columns="keys")


def _lines(ax: Axes, rows: pd.DataFrame, colors: Mapping[int, str]) -> None:
    """One panel: a colour a number of actors, dashed where an actor has several environments."""
    lines = [*rows.groupby(["n_actors", "envs_per_actor"])]
    for i, ((n_actors, envs), line) in enumerate(lines):
        errors = interval_errors(line, "measured")
        apart = DODGE ** (i - (len(lines) - 1) / 2)
        ax.errorbar(
            line["width"] * apart, line["measured"], yerr=np.nan_to_num(errors), elinewidth=0.7,
            color=colors.get(n_actors, GREY), ls="-" if envs == 1 else "--",
            marker="o" if envs == 1 else "s", mfc=None if envs == 1 else "none",
            label=f"{counted(n_actors, 'actor')}, {counted(envs, 'environment')} each",
        )  # fmt: skip
    ax.axhline(1, color=GREY, lw=0.6, ls=":", zorder=0)


def _scales(ax: Axes, widths: pd.Series, measured: pd.Series) -> None:
    """Logarithmic axes, which the other panels of the row share."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted(widths.unique()))
    ax.set_yscale("log")
    ax.set_yticks([tick for tick in (0.5, 1, 2, 5, 10, 20) if tick <= 2 * measured.max()])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.set_minor_locator(NullLocator())
