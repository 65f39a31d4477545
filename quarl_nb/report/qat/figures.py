"""Figure 5: return against the bits trained with."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.losses import policy_label
from quarl_nb.report.qat.gains import PTQ, trainings, way_table
from quarl_nb.report.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    STYLE,
    VERMILION,
    NothingToDrawError,
    common_legend,
    panel_grid,
)

STAR_AT = 8.8  # 8* stands to the right of the widths that were trained with
KNEE = (4.9, 6.1)  # "until 5/6-bit quantization": between 5 and 6 bits


def figure5(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Mean return against the bits trained with, a panel a policy, as Figure 5 of the paper.

    Bands and bars are 95 % intervals over training seeds, where there are enough of them; three
    that differ much have intervals beyond any return, which end at the frame.

    Args:
        records: `ResultStore.frame("qat")`.
    """
    table = way_table(trainings(records))
    widths = table[table["method"] == "minmax"] if len(table) else table
    if widths.empty:
        raise NothingToDrawError("no policy has records of QAT and of float32 for the same seeds")
    policies = list(dict.fromkeys(widths.sort_values(["algo", "env_id"])["policy"]))
    shown = table[table["policy"].isin(policies) & (table["regularizer"] == "none")]
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(policies), columns=3, height_in=1.5)
        for ax, policy in zip(axes, policies, strict=True):
            _draw_policy(ax, shown[shown["policy"] == policy])
            ax.set_title(policy_label(policy))
        fig.supxlabel("bits of weights and activations", fontsize=7)
        fig.supylabel("mean return per episode", fontsize=7)
        common_legend(fig, axes, columns=3)
    return fig, shown.drop(columns="keys")


def _draw_policy(ax: Axes, rows: pd.DataFrame) -> None:
    fp32 = rows[rows["precision"] == "fp32"].iloc[0]
    ax.axvspan(*KNEE, color=ORANGE, alpha=0.2, lw=0, label="published: kept until 5/6 bits")
    ax.axhline(fp32["mean"], color=GREY, lw=0.9, label="fp32")
    if not np.isnan(fp32["mean_low"]):
        ax.axhspan(fp32["mean_low"], fp32["mean_high"], color=GREY, alpha=0.2, lw=0)
    for method, color, marker, label in (
        (PTQ, GREEN, "s", "PTQ of fp32 (weights)"), ("minmax", BLUE, "o", "QAT"),
        ("lsq", VERMILION, "^", "QAT, learned steps"),
    ):  # fmt: skip
        line = rows[(rows["method"] == method) & rows["bits"].notna()].sort_values("bits")
        if method == PTQ:
            _star(ax, line[line["precision"] == "affine8"])
        if len(line) > (method == PTQ):
            ax.plot(line["bits"], line["mean"], color=color, marker=marker, ms=2.5, label=label,
                    ls="--" if method == PTQ else "-")  # fmt: skip
            ax.fill_between(line["bits"].to_numpy(float), line["mean_low"].to_numpy(float),
                            line["mean_high"].to_numpy(float), color=color, alpha=0.2, lw=0)
    ax.set_xticks([*range(2, 9), STAR_AT], [*map(str, range(2, 9)), "8*"])
    ax.set_xlim(1.6, STAR_AT + 0.4)
    low, high = rows["mean"].min(), rows["mean"].max()
    room = max(0.2 * (high - low), 0.05 * max(abs(low), abs(high)))
    ax.set_ylim(low - room, high + room)
    ax.yaxis.set_major_locator(MaxNLocator(4))


def _star(ax: Axes, rows: pd.DataFrame) -> None:
    for _, row in rows.iterrows():
        reach = np.nan_to_num([[row["mean"] - row["mean_low"]], [row["mean_high"] - row["mean"]]])
        ax.errorbar(STAR_AT, row["mean"], yerr=reach, color=BLACK, marker="*", ms=6, ls="",
                    elinewidth=0.8, label="8* (8-bit PTQ)")
