"""Latency of one decision against width, and what int8 gains on each network."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from quarl_nb.report.actorq.actors import BASELINES, COLORS, INT8, actor_label
from quarl_nb.report.actorq.inference import crossover, latency_rows
from quarl_nb.report.style import (
    BLACK,
    BLUE,
    GREY,
    PAGE_IN,
    SKY,
    STYLE,
    NothingToDrawError,
    common_legend,
    interval_errors,
    new_figure,
)


def latency_figure(records: pd.DataFrame, batch: int = 1) -> tuple[Figure, pd.DataFrame]:
    """Latency against width by engine with its floor, and how much int8 gains on each network.

    The dashed lines are the time to read the weights once at the best bandwidth measured of what
    holds them; the vertical line is the width from which int8 is the faster in ONNX Runtime.
    """
    every = latency_rows(records)
    rows = every[every["batch"] == batch] if len(every) else every
    if rows.empty:
        batches = sorted({*every["batch"]}) if len(every) else []
        how = f"allowed: {', '.join(map(str, batches))}" if batches else "run the study first"
        raise NothingToDrawError(f"no inference record of batch {batch}; {how}")
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 2.7)
        left, right = fig.subplots(1, 2, width_ratios=[1.25, 1])
        square = rows[rows["width"].notna()].sort_values("width")
        if len(square):
            _draw_widths(left, square)
        else:
            left.set_axis_off()
        _draw_gains(right, rows)
        common_legend(fig, [left], columns=7)
    return fig, rows.drop(columns="keys")


def _draw_widths(ax: Axes, square: pd.DataFrame) -> None:
    for engine, rows in square.groupby("engine", sort=False):
        color = COLORS.get(str(engine), BLACK)
        errors = np.maximum([rows["latency_us"] - rows["latency_low_us"],
                             rows["latency_high_us"] - rows["latency_us"]], 0)
        ax.errorbar(rows["width"], rows["latency_us"], yerr=errors, color=color, marker="o",
                    elinewidth=0.7, label=actor_label(str(engine)))
    for engine in (BASELINES["ort"], INT8):
        rows = square[square["engine"] == engine]
        ax.plot(rows["width"], rows["floor_us"], color=COLORS[engine], ls="--", lw=0.8)
    ax.plot([], [], color=GREY, ls="--", lw=0.8, label="floor")
    int8 = square[square["engine"] == INT8].dropna(subset=["over_ort"])
    width = crossover(int8["width"].to_numpy(), int8["over_ort"].to_numpy()) if len(int8) else 0.0
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    if width > 0:
        ax.axvline(width, color=GREY, lw=0.8, ls=":")
        text = f" in ONNX Runtime int8\n gains from width {width:.0f} on"
        ax.annotate(text, (width, 0.99), xycoords=("data", "axes fraction"), va="top",
                    fontsize=6, color=GREY)
    ax.xaxis.set_major_locator(FixedLocator(sorted(set(square["width"]))))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("width of three hidden layers")
    ax.set_ylabel("latency of one decision (µs)")


def _draw_gains(ax: Axes, rows: pd.DataFrame) -> None:
    int8 = rows[rows["engine"] == INT8]
    networks = int8.drop_duplicates("network").set_index("network")["processor"]
    usual = networks.mode().iloc[0] if len(networks) else ""
    others = sorted({*networks} - {usual})
    for shift, (short, name, color) in enumerate(
        [("torch", "torch fp32", BLUE), ("ort", "ORT fp32", SKY)]
    ):
        at = np.arange(len(networks)) + 0.16 * (shift - 0.5)
        over = f"over_{short}"
        ax.errorbar(int8[over], at, xerr=interval_errors(int8, over), ls="", marker="os"[shift],
                    color=color, elinewidth=0.7, label=f"against {name}")
    ax.axvline(1, color=GREY, lw=0.7)
    ax.set_xscale("log")
    marked = [name + "*" * (processor != usual) for name, processor in networks.items()]
    ax.set_yticks(range(len(networks)), marked)
    ax.set_ylim(len(networks) - 0.5, -0.5)
    ax.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 10, 20, 50]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    told = f"\n* on {', '.join(others)}; else {usual}" if others else ""
    ax.set_xlabel(f"int8 ORT is so many times faster\n(95 % within one process){told}")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)  # inside it hides points
