"""One look for every figure, and writing a figure with its points and its provenance."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import FuncFormatter, NullLocator
from numpy.typing import NDArray

from quarl_nb.errors import QuarlError
from quarl_nb.report.stats import MARGIN, with_ends
from quarl_nb.writing import write_atomically

COLUMN_IN = 3.35  # one column of a two-column page
PAGE_IN = 6.9  # both columns
PAGE_HEIGHT_IN = 9.2  # that a page leaves inside its margins, less a caption

# Okabe & Ito 2008: distinguishable with every common colour blindness.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#000000", "#777777"
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # lines without colours

PERCENT = FuncFormatter(lambda x, _: f"{x:.0%}".replace("-", "\u2212"))  # 0.05 as 5%

# Any: matplotlib's stubs want each key as a literal.
STYLE: Any = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 7,
    "axes.titlesize": 7, "axes.labelsize": 7, "xtick.labelsize": 6, "ytick.labelsize": 6,
    "legend.fontsize": 6.5, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5,
    "ytick.major.size": 2.5, "lines.linewidth": 1.1, "lines.markersize": 3,
    "axes.prop_cycle": cycler(color=CYCLE),
    # Same records, same bytes.
    "svg.hashsalt": "quarl_nb", "svg.fonttype": "path", "savefig.dpi": 200,
    "pdf.fonttype": 42,  # TrueType: many journals refuse matplotlib's own Type 3
}
# What matplotlib would write of the time and of itself.
METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
FORMATS = ("svg", "png")  # those of the repository


class NothingToDrawError(QuarlError):
    """The records hold nothing that a figure shows."""


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure of this printed size in inches; draw inside `with mpl.rc_context(STYLE)`."""
    return Figure(figsize=(width_in, height_in), layout="constrained")


def panel_grid(n: int, columns: int = 4, height_in: float = 1.35) -> tuple[Figure, list[Axes]]:
    """A page-wide figure of n panels, row by row, with nothing in the places left over.

    There are as few rows as so many columns allow, and then no more columns than these rows take:
    four panels, three columns at most, are two by two.

    Panels are `height_in` high, or as high as a page lets them be.
    """
    rows = -(-n // columns)
    columns = max(-(-n // rows), 2)
    fig = new_figure(PAGE_IN, min(rows * height_in + 0.55, PAGE_HEIGHT_IN))
    axes = list(fig.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[n:]:
        spare.remove()
    return fig, axes[:n]


def common_legend(fig: FigureBase, axes: list[Axes], columns: int = 6) -> None:
    """One legend above all panels of a figure or part of one, of at most so many columns."""
    found = labelled(axes)
    fig.legend(list(found.values()), list(found), loc="outside upper center", ncols=columns)


def labelled(axes: list[Axes]) -> dict[str, Artist]:
    """What legends of these panels name; a label that several panels use appears once, where the
    panel with the most labels has it."""
    found: dict[str, Artist] = {}
    legends = [list(zip(*ax.get_legend_handles_labels(), strict=True)) for ax in axes]
    for legend in sorted(legends, key=len, reverse=True):
        for handle, label in legend:
            found.setdefault(label, handle)
    return found


def loss_axis(ax: Axes, which: Literal["x", "y"]) -> None:
    """Relative losses in per cent: linear within the margin that counts as none, else log."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    (ax.set_xscale if which == "x" else ax.set_yscale)("symlog", linthresh=MARGIN)
    ax.margins(0.06)
    ax.autoscale(axis=which)
    low, high = sorted(ax.get_xlim() if which == "x" else ax.get_ylim())
    levels = (0.05, 0.1, 0.2, 0.5, 1) if high < 1.2 else (0.05, 0.2, 1, 5, 25, 125)
    ticks = [*(-level for level in levels[::-1]), 0.0, *levels]
    axis.set_ticks([tick for tick in ticks if min(low, 0) <= tick <= max(high, MARGIN)])
    axis.set_major_formatter(PERCENT)
    axis.set_minor_locator(NullLocator())


def interval_errors(rows: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """Error bars [2, rows] of column `name` from its `_low` and `_high`, NaN without an interval.

    (A percentile interval need not hold the estimate: no bar is negative.)
    """
    value, low, high = (rows[column] for column in with_ends(name))
    return np.maximum([value - low, high - value], 0)


def one_field(numbers: Iterable[float]) -> str:
    """Numbers in one field of a figure's points, as precise as the others that are saved."""
    return " ".join(f"{x:.6g}" for x in numbers)


def save_figure(
    fig: Figure, points: pd.DataFrame, name: str, provenance: Mapping[str, Any], folder: Path,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write <name>.svg .png .csv (the plotted points) and .json (where they came from).

    The bytes depend on the records, the versions of the libraries and `formats` only (each format
    goes on from the layout that was solved for the one before).

    Args:
        formats: of `METADATA`, in place of svg and png.
    """
    contents = {suffix: _picture(fig, suffix) for suffix in formats} | {
        "csv": points.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode(),
        "json": (json.dumps(dict(provenance), indent=1, sort_keys=True) + "\n").encode(),
    }
    for suffix, content in contents.items():
        write_atomically(folder / f"{name}.{suffix}", content)
    return [folder / f"{name}.{suffix}" for suffix in contents]


def _picture(fig: Figure, suffix: str) -> bytes:
    picture = io.BytesIO()
    with mpl.rc_context(STYLE):
        fig.savefig(picture, format=suffix, metadata=METADATA[suffix])
    if suffix == "svg":
        return _number_clip_paths(picture.getvalue().decode()).encode()
    return picture.getvalue()


def _number_clip_paths(svg: str) -> str:
    """Matplotlib names them by coordinates whose last bits the solver of the layout leaves open."""
    for number, name in enumerate(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', svg))):
        svg = svg.replace(name, f"clip{number}")
    return svg
