"""Success of the navigation policies, by precision and against the time of a decision."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from quarl_nb.report.edge.memory_figure import KERNEL_COLORS
from quarl_nb.report.edge.success import METHODS, bits, published_success, stopped, success_rows
from quarl_nb.report.edge.timings import (
    HERE,
    PAPERS_BOARD,
    latency_rows,
    published_times,
    table6_networks,
)
from quarl_nb.report.style import (
    BLACK,
    CYCLE,
    GREY,
    MARKERS,
    PAGE_IN,
    STYLE,
    NothingToDrawError,
    common_legend,
    new_figure,
)


def success_figure(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Success against precision, a panel a policy: every method with its intervals, and Table 6.

    Policies that learned no more than the published success stand below those that went on.

    Args:
        records: as `success.success_rows` takes them.
    """
    rows = success_rows(records)
    if rows.empty:
        raise NothingToDrawError("no success rate of a navigation policy: run its study first")
    flown = set(rows["policy"])
    names = [name for name in table6_networks() if flown & {name, stopped(name)}]
    if not names:  # the table shows them
        raise NothingToDrawError("of Table 6's policies none has flown, but others have")
    precisions = sorted(set(rows["precision"]), key=lambda name: (-bits(name), name))
    methods = [name for name in METHODS if name in set(rows["method"])]
    n_rows = 2 if flown & {stopped(name) for name in names} else 1
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 0.4 + 1.9 * n_rows)
        axes = fig.subplots(n_rows, max(len(names), 2), sharex=True, sharey=True, squeeze=False)
        for name, column in zip([*names, ""], axes.T, strict=False):
            for ax, shown in zip(column, (name, stopped(name)), strict=False):
                if shown not in flown:
                    ax.remove()
                    continue
                _draw_success(ax, rows[rows["policy"] == shown], precisions, methods)
                _draw_published(ax, name, precisions)
                ax.set_title(shown)
                ax.set_xticks(range(len(precisions)), precisions, rotation=45)
                below = ax is column[-1] or stopped(name) not in flown
                ax.tick_params(labelbottom=below)
        first = fig.axes[0]
        first.set_ylim(0, 1.02)
        first.yaxis.set_major_formatter(PercentFormatter(1, 0))
        fig.supylabel("success rate (measured, simulated precision)", fontsize=7)
        common_legend(fig, fig.axes, columns=len(methods) + 2)
    return fig, rows.drop(columns="keys")


def _draw_success(
    ax: Axes, rows: pd.DataFrame, precisions: list[str], methods: list[str]
) -> None:
    for _, full in rows[rows["precision"] == "fp32"].iterrows():
        ax.axhspan(full["low"], full["high"], color=GREY, alpha=0.2, lw=0)
        ax.axhline(full["success"], color=GREY, lw=0.9, label="fp32")
    for i, method in enumerate(methods):
        ours = rows[(rows["method"] == method) & (rows["precision"] != "fp32")]
        shift = 0.12 * (i - (len(methods) - 1) / 2)
        alone = ours["precision"].map(rows.groupby("precision")["method"].nunique()) == 1
        at = ours["precision"].map(precisions.index) + np.where(alone, 0, shift)
        ax.errorbar(at, ours["success"], yerr=_reach(ours), color=CYCLE[i], marker=MARKERS[i],
                    elinewidth=0.8, ls="", label=METHODS[method])
        widths = ours["precision"].str.startswith("affine")
        ax.plot(at[widths], ours["success"][widths], color=CYCLE[i], lw=0.6)


def _draw_published(ax: Axes, policy: str, precisions: list[str]) -> None:
    table = published_success()
    rows = table[(table["policy"] == policy) & table["precision"].isin(precisions)]
    at = rows["precision"].map(precisions.index)
    ax.errorbar(at, rows["success"], yerr=_reach(rows), color=BLACK, marker="*", ms=6, mfc="white",
                ls="", elinewidth=0.5, label="published")


def _reach(rows: pd.DataFrame) -> np.ndarray:
    return np.maximum([rows["success"] - rows["low"], rows["high"] - rows["success"]], 0)


def success_against_latency(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Success against the time of a decision: measured on this machine, modelled on the Pi 3B.

    A width takes the time of the narrowest kernel that holds it; of the methods of a width and
    kernel the one that succeeds most is shown. Published points stand beside the modelled ones.

    Args:
        records: those of `edge`, `edge_board` and `navigation` in one frame.
    """
    points = _points(records)
    if points.empty:
        raise NothingToDrawError("no policy has both a success rate and a latency")
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 2.7)
        axes = fig.subplots(1, 2)
        panels = {"measured": "this machine, C (measured)",
                  "modelled": f"{PAPERS_BOARD} (modelled; published)"}  # fmt: skip
        for ax, (source, title) in zip(axes, panels.items(), strict=True):
            _draw_points(ax, points[points["source"] == source])
            if source == "modelled":
                _draw_points(ax, points[points["source"] == "published"])
            ax.set_xscale("log")
            ax.margins(0.1)  # room for the bits
            ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_xlabel("one decision (ms)")
            ax.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.3g}%"))
            ax.set_title(title)
        axes[0].set_ylabel("success rate (measured, simulated precision)")
        fig.legend(handles=_point_legend(points), loc="outside upper center", ncols=10)
    return fig, points


def _points(records: pd.DataFrame) -> pd.DataFrame:
    """policy, precision, kernel, method, source, machine, latency_s, success, low, high."""
    flown, timed = success_rows(records), latency_rows(records)
    if flown.empty or timed.empty:
        return pd.DataFrame()
    best = flown[flown["kernel"] != ""]
    best = best.assign(bits=best["precision"].map(bits)).sort_values("success", ascending=False) \
               .drop_duplicates(["policy", "kernel", "bits"])
    shown = timed[(timed["runtime"] == "c") & timed["machine"].isin([HERE, PAPERS_BOARD])]
    times = shown[["policy", "precision", "source", "machine", "latency_s"]]
    found = best[["policy", "precision", "kernel", "method", "success", "low", "high"]].merge(
        times.rename(columns={"precision": "kernel"}), on=["policy", "kernel"])  # fmt: skip
    printed = published_times().merge(published_success(), on=["policy", "precision"])
    printed = printed.assign(kernel=printed["precision"]).reindex(columns=found.columns)
    return pd.concat([found, printed], ignore_index=True)


def _draw_points(ax: Axes, rows: pd.DataFrame) -> None:
    """Colour: kernel; marker: policy; open: published. Bits are written beside, best ones first."""
    for (policy, kernel, source), group in rows.groupby(["policy", "kernel", "source"]):
        open_, color = source == "published", KERNEL_COLORS[kernel]
        at = 1e3 * group["latency_s"]
        ax.errorbar(at, group["success"], yerr=_reach(group), marker=_marker(policy), ms=4.5,
                    color=color, mfc="white" if open_ else color, ls="", elinewidth=0.7,
                    alpha=0.6 if open_ else 1)  # fmt: skip
        if not open_ and kernel != "fp32":
            ordered = group.sort_values("success", ascending=False)
            widths = ", ".join(str(bits(name)) for name in ordered["precision"])
            below = kernel == "int4"  # it stands where int8 stands, or nearly
            end = group["low"].min() if below else group["high"].max()
            ax.annotate(widths, (at.iloc[0], end), (0, -8 if below else 4), fontsize=5.5,
                        textcoords="offset points", ha="center")


def _marker(policy: str) -> str:
    return dict(zip(table6_networks(), MARKERS, strict=False))[policy]


def _point_legend(points: pd.DataFrame) -> list[Line2D | Patch]:
    shapes = [Line2D([], [], color=GREY, marker=_marker(name), ls="", label=name)
              for name in table6_networks() if name in set(points["policy"])]  # fmt: skip
    colors = [Patch(color=color, label=f"{name} kernel") for name, color in KERNEL_COLORS.items()
              if name in set(points["kernel"])]  # fmt: skip
    open_ = Line2D([], [], color=GREY, marker="o", mfc="white", ls="", label="published")
    width = Line2D([], [], color=BLACK, marker="$8$", ms=3.5, mew=0, ls="",
                   label="bits, best first")
    return [*shapes, *colors, open_, width]
