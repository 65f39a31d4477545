"""How policies' weights are distributed, and the loss that comes with it: frame and figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from quarl_nb.record import flatten
from quarl_nb.report.policy_records import of_who_played
from quarl_nb.report.stats import Floats, Interval
from quarl_nb.report.style import (
    CYCLE,
    MARKERS,
    PAGE_IN,
    STYLE,
    NothingToDrawError,
    interval_errors,
    loss_axis,
    new_figure,
    one_field,
)

WIDTHS = {
    "weight_range": "range of the weights (max − min)",
    "range_over_std": "range / standard deviation",
    "sqnr_db": "signal to quantization noise (dB)",
}


def weights_frame(
    records: Sequence[Mapping[str, Any]],
    arrays_of: Callable[[Mapping[str, Any]], Mapping[str, Floats]],
    losses: pd.DataFrame,
    precision: str,
) -> pd.DataFrame:
    """One row a policy for `weight_distributions`, at one precision with min-max ranges.

    Weights of another policy than the one that played count for nothing.

    Args:
        records: of the weights studies (`store.chosen`).
        arrays_of: `store.arrays`: counts [layers, bins] and edges [layers, bins + 1].
        losses: `paired_losses` of the PTQ studies.
    """
    if losses.empty or not records:
        return pd.DataFrame()
    lost = losses[(losses["precision"] == precision) & (losses["ranges"] == "minmax")]
    played = {*of_who_played(pd.DataFrame(map(flatten, records)), lost)["key"]}
    lost = lost.drop_duplicates("policy").set_index("policy")
    rows = []
    for record in records:
        cell, measured = record["cell"], record["measured"]
        if (cell["precision"], cell["ranges"]) != (precision, "minmax"):
            continue
        if cell["policy"] not in lost.index or record["key"] not in played:
            continue
        arrays = arrays_of(record)
        counts, edges = pool_histograms(arrays["counts"], arrays["edges"])
        loss = lost.loc[cell["policy"]]
        rows.append({
            "policy": cell["policy"], "algo": str(cell["algo"]).lower(),
            "precision": precision, "weight_counts": counts, "weight_edges": edges,
            **_summary(measured), **Interval.of(loss, "loss").columns("loss"),
            "keys": (record["key"], *loss["keys"]),
        })
    return pd.DataFrame(rows)


def _summary(measured: Mapping[str, Any]) -> dict[str, float]:
    """The worst layer of each statistic, as `rules.wider_weights_lose_more` takes it."""
    decibels = [x for x in measured["sqnr_db"] if x is not None]
    return {
        "weight_range": max(measured["range"]),
        "weight_std": max(measured["std"]),
        "range_over_std": max(measured["range_over_std"]),
        "sqnr_db": min(decibels) if decibels else float("nan"),
    }


def pool_histograms(counts: Floats, edges: Floats, bins: int = 201) -> tuple[Floats, Floats]:
    """One histogram of all layers; a layer's bin goes whole to the common one of its middle, or
    the lone weight at a far end would be spread over bins that hold less than one.

    Args:
        counts: shape [layers, bins of the layers].
        edges: shape [layers, bins of the layers + 1], increasing.

    Returns:
        counts [bins] (their sum is kept) and common edges [bins + 1].
    """
    common = np.linspace(edges.min(), edges.max(), bins + 1)
    middles = (edges[:, 1:] + edges[:, :-1]) / 2
    return np.histogram(middles, common, weights=counts)[0], common


def weight_distributions(weights: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Histograms of the weights by algorithm, and the loss against how wide they are.

    Args:
        weights: one row a policy: policy, algo, precision, weight_counts [bins], weight_edges
            [bins + 1], weight_range (widest layer's max - min), range_over_std (largest of a
            layer), sqnr_db (lowest of a layer, dB), loss, loss_low, loss_high (fractions).

    Returns:
        The figure, and `weights` with the histograms as texts.
    """
    if weights.empty:
        raise NothingToDrawError("no policy has weight statistics and losses at this precision")
    algos = sorted(set(weights["algo"]))
    colors = {algo: CYCLE[i % len(CYCLE)] for i, algo in enumerate(algos)}
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 3.5)
        top, bottom = fig.subfigures(2, 1, squeeze=False, height_ratios=[1, 1.25])[:, 0]
        panels = top.subplots(1, len(algos), sharex=True, sharey=True, squeeze=False).flat
        for ax, algo in zip(panels, algos, strict=True):
            _histograms(ax, weights[weights["algo"] == algo], colors[algo])
            ax.set_title(algo.upper())
        top.supxlabel("weight (linear from −1 to 1, logarithmic beyond)", fontsize=7)
        top.supylabel("density", fontsize=7)
        axes = bottom.subplots(1, len(WIDTHS), sharey=True)
        for ax, (column, label) in zip(axes, WIDTHS.items(), strict=True):
            for i, algo in enumerate(algos):
                rows = weights[weights["algo"] == algo]
                ax.errorbar(rows[column], rows["loss"], yerr=interval_errors(rows, "loss"), ls="",
                            marker=MARKERS[i % len(MARKERS)], color=colors[algo],
                            elinewidth=0.7, label=algo.upper())
            ax.set_xlabel(label)
            if column != "sqnr_db" and weights[column].nunique() > 1:
                _log_axis(ax)
            loss_axis(ax, "y")
        axes[0].set_ylabel(f"relative loss of mean return, {weights['precision'].iloc[0]}")
        axes[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    texts = {name: weights[name].map(one_field) for name in ("weight_counts", "weight_edges")}
    return fig, weights.drop(columns="keys", errors="ignore").assign(**texts)


def _histograms(ax: Axes, rows: pd.DataFrame, color: str) -> None:
    for _, row in rows.iterrows():
        counts = np.asarray(row["weight_counts"], float)
        density = counts / counts.sum() / np.diff(row["weight_edges"])
        middle = (np.asarray(row["weight_edges"])[1:] + row["weight_edges"][:-1]) / 2
        ax.plot(middle, np.where(counts > 0, density, np.nan), color=color, lw=0.7,
                marker=".", ms=1, alpha=0.8)
    ax.set_yscale("log")
    ax.yaxis.set_minor_locator(NullLocator())
    # A few weights of some policies are a hundred times what all the others of most are.
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xticks([-10, 0, 10], ["−10", "0", "10"])
    ax.set_xticks([-1, 1], minor=True)


def _log_axis(ax: Axes) -> None:
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    crowded = high / low > 100  # labels would touch
    ax.xaxis.set_major_locator(LogLocator(subs=(1,) if crowded else (1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
