"""What training in half precision learns, against float32: by steps, and by time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.style import (
    CYCLE,
    GREY,
    LINES,
    PAGE_IN,
    STYLE,
    NothingToDrawError,
    common_legend,
    new_figure,
)

POINTS = 200  # at which the curves of several runs are averaged
AXES = {"step": "thousands of environment steps", "minute": "minutes of training"}
PRECISIONS = ("fp32", "bf16", "fp16")


def learning_frame(
    records: Sequence[Mapping[str, Any]],
    arrays_of: Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]],
) -> pd.DataFrame:
    """One row a point of a training's curve: policy, device, cpu, precision, seed, step
    (thousands), minute (of training at the mean speed of its run, evaluations not counted), return
    (mean of the episodes since the last point, exploration included), key.

    Args:
        records: of the study (`store.chosen`); those that were only timed are left out.
        arrays_of: `store.arrays`: training_steps, training_returns [points].
    """
    found = []
    for record in records:
        measured = record["measured"]
        if "training_s" not in measured:
            continue
        cell, arrays = record["cell"], arrays_of(record)
        steps = arrays["training_steps"]
        found.append(pd.DataFrame({
            "step": steps / 1000,
            "minute": steps / measured["timesteps"] * measured["training_s"] / 60,
            "return": arrays["training_returns"],
            **{name: cell[name] for name in ("policy", "device", "precision", "seed")},
            "cpu": record["provenance"]["cpu"], "key": record["key"],
        }))  # fmt: skip
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def learning_figure(curves: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The return of training against steps and against time, a line of panels for each policy,
    device and processor of trainings in float32 and in half precision.

    Lines are means over runs, as far as all of them went; bands the range of the runs.

    Args:
        curves: of `learning_frame`.
    """
    groups = [(where, group) for where, group in
              (curves.groupby(["policy", "device", "cpu"]) if len(curves) else ())
              if "fp32" in set(group["precision"]) and group["precision"].nunique() > 1]
    if not groups:
        raise NothingToDrawError("no policy was trained in float32 and in half precision")
    points = []
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 0.35 + 1.9 * len(groups))
        axes = fig.subplots(len(groups), len(AXES), squeeze=False, sharey="row")
        for row, ((policy, device, cpu), group) in zip(axes, groups, strict=True):
            for ax, (name, label) in zip(row, AXES.items(), strict=True):
                points += [_draw(ax, group[group["precision"] == precision], name, i)
                           for i, precision in enumerate(PRECISIONS)
                           if precision in set(group["precision"])]  # fmt: skip
                ax.set_xlabel(label)
                ax.set_xlim(0, None)
                ax.xaxis.set_major_locator(MaxNLocator(5))
            row[0].set_ylabel("return of training")
            row[0].set_title(f"policy {policy} on {device} ({cpu})", loc="left")
        axes[0][0].plot([], [], color=GREY, alpha=0.3, lw=5, label="range of the runs")
        common_legend(fig, list(axes.flat))
    return fig, pd.concat(points, ignore_index=True)


def _draw(ax: Axes, rows: pd.DataFrame, name: str, i: int) -> pd.DataFrame:
    runs = [run for _, run in rows.groupby("key", sort=False)]
    grid = np.linspace(max(run[name].min() for run in runs),
                       min(run[name].max() for run in runs), POINTS)  # fmt: skip
    values = np.stack([np.interp(grid, run[name], run["return"]) for run in runs])
    low, high, mean = values.min(axis=0), values.max(axis=0), values.mean(axis=0)
    precision = rows["precision"].iloc[0]
    color = GREY if precision == "fp32" else CYCLE[i - 1]
    ax.fill_between(grid, low, high, color=color, alpha=0.18, lw=0)
    ax.plot(grid, mean, color=color, ls=LINES[i], label=f"{precision} (n = {len(runs)})")
    return pd.DataFrame({
        **rows.iloc[0][["policy", "device", "cpu", "precision"]], "axis": name, "x": grid,
        "mean": mean, "low": low, "high": high, "runs": len(runs),
    })  # fmt: skip
