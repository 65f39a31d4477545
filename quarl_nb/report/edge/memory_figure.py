"""Figure 6: the memory that policies take."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, PercentFormatter

from quarl_nb.report.edge.modelled import modelled_boards
from quarl_nb.report.edge.timings import (
    HERE,
    PAPERS_BOARD,
    PRECISIONS,
    RUNTIMES,
    latency_rows,
    table6_networks,
)
from quarl_nb.report.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
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
    here = rows[(rows["machine"] == HERE) & (rows["policy"] != "")].drop(columns="keys")
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 2.6)
        left, right = fig.subplots(1, 2)
        _draw_boards(left, boards)
        _draw_processes(right, here, boards)
    return fig, pd.concat([boards, here], ignore_index=True)


def _board_memory(records: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """machine, precision, source, ram_bytes, system_bytes, resident_bytes, weight_bytes of the
    largest policy in ONNX Runtime."""
    boards = modelled_boards(records)
    if boards.empty:
        return pd.DataFrame()
    known = boards.drop_duplicates("machine").set_index("machine")["extra.board"]
    largest = [*table6_networks().values()][-1]
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
    names = [name for name in table6_networks() if name in set(rows["policy"])]
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
