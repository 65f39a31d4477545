"""The figures of the Pi study: memory (Figure 6), success, and success against latency."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from quarl_nb.report.edge.success import METHODS, bits, published_success, stopped, success_rows
from quarl_nb.report.edge.timings import (
    HERE,
    PAPERS_BOARD,
    PRECISIONS,
    RUNTIMES,
    latency_rows,
    policies,
    published_times,
)
from quarl_nb.report.style import (
    BLACK,
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    MARKERS,
    PAGE_IN,
    SKY,
    STYLE,
    VERMILION,
    NothingToDrawError,
    new_figure,
)

KERNEL_COLORS = {"fp32": BLUE, "int8": VERMILION, "int4": GREEN}
PARTS = {"system": GREY, "runtime and code": SKY, "weights": VERMILION}
PROCESSES = {"c": "o", "onnxruntime": "s"}


def memory_bars(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Figure 6: what the largest policy takes of each board's memory (modelled), and what every
    policy's process takes on this machine (measured).

    Args:
        records: as `timings.latency_rows` takes them.
    """
    rows = latency_rows(records)
    boards = _board_memory(records, rows)
    if boards.empty:
        raise NothingToDrawError("no modelled board with its memory: run the edge study first")
    here = rows[(rows["source"] == "measured") & (rows["policy"] != "")].drop(columns="keys")
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 2.6)
        left, right = fig.subplots(1, 2)
        _draw_boards(left, boards)
        _draw_processes(right, here, boards)
    return fig, pd.concat([boards, here], ignore_index=True)


def _board_memory(records: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """machine, precision, source, ram_bytes, system_bytes, resident_bytes, weight_bytes of the
    largest policy in ONNX Runtime."""
    if rows.empty or "extra.board" not in records:
        return pd.DataFrame()
    boards = records[records["extra.board"].notna()].drop_duplicates("machine")
    known = boards.set_index("machine")["extra.board"]
    largest = [*policies().values()][-1]
    found = rows[(rows["source"] == "modelled") & (rows["network"] == largest)
                 & (rows["runtime"] == "onnxruntime")]  # fmt: skip
    found = found[["machine", "policy", "network", "precision", "runtime", "source",
                   "resident_bytes", "weight_bytes"]]  # fmt: skip
    for name in ("ram_bytes", "system_bytes"):
        found[name] = [known[machine][name]["value"] for machine in found["machine"]]
    return found.sort_values("ram_bytes", kind="stable")


def _draw_boards(ax: Axes, boards: pd.DataFrame) -> None:
    names, height = list(dict.fromkeys(boards["machine"])), 0.26
    for i, precision in enumerate(PRECISIONS):
        rows = boards[boards["precision"] == precision].set_index("machine").reindex(names)
        parts = [rows["system_bytes"], rows["resident_bytes"] - rows["weight_bytes"],
                 rows["weight_bytes"]]  # fmt: skip
        at, start = np.arange(len(names)) + height * (i - 1), np.zeros(len(names))
        for part, (name, color) in zip(parts, PARTS.items(), strict=True):
            share = (part / rows["ram_bytes"]).to_numpy()
            ax.barh(at, share, 0.85 * height, start, color=color, label=name if i == 0 else "")
            start += share
        for y, end in zip(at, start, strict=True):
            ax.annotate(precision, (end, y), (3, 0), textcoords="offset points", va="center",
                        fontsize=5.5)  # fmt: skip
    ram = boards.drop_duplicates("machine").set_index("machine")["ram_bytes"]
    ax.set_yticks(range(len(names)), [
        f"{name.removeprefix('Raspberry ')}\n{ram[name] / 2**20:.0f} MiB" for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.axvline(1, color=BLACK, lw=0.8)
    ax.annotate("RAM", (1, 1), (-2, -2), xycoords=("data", "axes fraction"), ha="right", va="top",
                textcoords="offset points", fontsize=6)  # fmt: skip
    ax.set_xlim(0, 1.03)
    ax.xaxis.set_major_formatter(PercentFormatter(1, 0))
    ax.set_xlabel("share of the board's memory")
    ax.set_title(f"{boards['policy'].iloc[0]} in ONNX Runtime on boards (modelled)")
    ax.legend(loc="lower right", bbox_to_anchor=(0.95, 0.03))


def _draw_processes(ax: Axes, rows: pd.DataFrame, boards: pd.DataFrame) -> None:
    """The whole process by runtime and the weights alone, in MB, of every policy."""
    names = [name for name in policies() if name in set(rows["policy"])]
    shifts = dict(zip(PRECISIONS, (-0.2, 0.0, 0.2), strict=True))
    for _, row in rows.iterrows():
        y = names.index(row["policy"]) + shifts[row["precision"]]
        color = KERNEL_COLORS[row["precision"]]
        ax.plot(row["weight_bytes"] / 1e6, y, marker="|", ms=6, mew=1.5, color=color, ls="")
        marker = PROCESSES[row["runtime"]]
        ax.plot(row["resident_bytes"] / 1e6, y, marker=marker, color=color, ls="")
    paper = boards[boards["machine"] == PAPERS_BOARD]
    if len(paper):
        ram = paper["ram_bytes"].iloc[0]
        ax.axvline(ram / 1e6, color=BLACK, lw=0.8)
        ax.annotate(f"RAM of {PAPERS_BOARD.removeprefix('Raspberry ')}", (ram / 1e6, 1), (-2, -2),
                    xycoords=("data", "axes fraction"), textcoords="offset points", ha="right",
                    va="top", fontsize=6)  # fmt: skip
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlabel("MB")
    ax.set_title("on this machine (measured)")
    kinds = [Line2D([], [], color=GREY, marker="|", ms=6, mew=1.5, ls="", label="weights"),
             *(Line2D([], [], color=GREY, marker=PROCESSES[name], ls="", label=f"process, {short}")
               for name, short in RUNTIMES.items() if name in set(rows["runtime"]))]
    colors = [Patch(color=color, label=name) for name, color in KERNEL_COLORS.items()]
    assert isinstance(ax.figure, Figure)
    ax.figure.legend(handles=[*kinds, *colors], loc="outside lower right", ncols=6)


def success_figure(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Success against precision, a panel a policy: every method with Wilson intervals, and Table 6.

    Policies that learned no more than the published success stand below those that went on.

    Args:
        records: as `success.success_rows` takes them.
    """
    rows = success_rows(records)
    rows = rows[rows["policy"] != ""] if len(rows) else rows
    if rows.empty:
        raise NothingToDrawError("no success rate of a navigation policy: run its study first")
    flown = set(rows["policy"])
    names = [name for name in policies() if flown & {name, stopped(name)}]
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
        fig.legend(*first.get_legend_handles_labels(), loc="outside upper center",
                   ncols=len(methods) + 2)
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
        at = ours["precision"].map(precisions.index).astype(float) + shift
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

    A width takes the time of the narrowest kernel that holds it; of a width's methods the one that
    succeeds most is shown. Published points stand beside the modelled ones.

    Args:
        records: those of `edge`, `edge_board` and `navigation` in one frame.
    """
    points = _points(records)
    if points.empty:
        raise NothingToDrawError("no policy has both a success rate and a latency")
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 2.7)
        axes = fig.subplots(1, 2, sharey=True)
        panels = {"measured": "this machine, C (measured)",
                  "modelled": f"{PAPERS_BOARD} (modelled; published)"}  # fmt: skip
        for ax, (source, title) in zip(axes, panels.items(), strict=True):
            _draw_points(ax, points[points["source"] == source])
            if source == "modelled":
                _draw_points(ax, points[points["source"] == "published"])
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_xlabel("one decision (ms)")
            ax.set_title(title)
        axes[0].set_ylabel("success rate (measured, simulated precision)")
        axes[0].yaxis.set_major_formatter(PercentFormatter(1, 0))
        fig.legend(handles=_point_legend(points), loc="outside upper center", ncols=10)
    return fig, points


def _points(records: pd.DataFrame) -> pd.DataFrame:
    """policy, precision, kernel, method, source, machine, latency_s, success, low, high."""
    flown, timed = success_rows(records), latency_rows(records)
    if flown.empty or timed.empty:
        return pd.DataFrame()
    best = flown[(flown["kernel"] != "") & (flown["policy"] != "")]
    best = best.assign(bits=best["precision"].map(bits)).sort_values("success", ascending=False) \
               .drop_duplicates(["policy", "bits"])
    shown = timed[(timed["runtime"] == "c") & timed["machine"].isin([HERE, PAPERS_BOARD])]
    times = shown[["policy", "precision", "source", "machine", "latency_s"]]
    found = best[["policy", "precision", "kernel", "method", "success", "low", "high"]].merge(
        times.rename(columns={"precision": "kernel"}), on=["policy", "kernel"])  # fmt: skip
    printed = published_times().merge(
        published_success().drop(columns="fall"), on=["policy", "precision"])  # fmt: skip
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
            ax.annotate(widths, (at.iloc[0], ordered["success"].iloc[-1 if below else 0]),
                        (0, -9 if below else 4), textcoords="offset points", fontsize=5.5,
                        ha="center")  # fmt: skip


def _marker(policy: str) -> str:
    return dict(zip(policies(), MARKERS, strict=False))[policy]


def _point_legend(points: pd.DataFrame) -> list[Line2D | Patch]:
    shapes = [Line2D([], [], color=GREY, marker=_marker(name), ls="", label=name)
              for name in policies() if name in set(points["policy"])]  # fmt: skip
    colors = [Patch(color=color, label=f"{name} kernel") for name, color in KERNEL_COLORS.items()]
    open_ = Line2D([], [], color=GREY, marker="o", mfc="white", ls="", label="published")
    return [*shapes, *colors, open_]
