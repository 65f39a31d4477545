"""Figure 5: return against the bits trained with."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.losses import policy_label
from quarl_nb.report.qat.gains import PTQ, WAY, of_shared_seeds, trainings, way_table
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
    one_field,
    panel_grid,
)

STAR_AT, FP32_AT = 9.0, 10.0  # to the right of the widths that were trained with
KNEE = (4.9, 6.1)  # "until 5/6-bit quantization": between 5 and 6 bits


def figure5(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Return against the bits trained with, a panel a policy, as Figure 5 of the paper.

    Lines join the means over the training seeds that all ways of a panel have, dots are the
    trainings: Student's interval of three that differ much would be taller than the panel. The
    table beside the figure has it.

    Args:
        records: `ResultStore.frame("qat")`.
    """
    rows = of_shared_seeds(trainings(records))
    table = way_table(rows)
    widths = table[table["method"] == "minmax"] if len(table) else table
    if widths.empty:
        raise NothingToDrawError("no policy has records of QAT and of float32 for the same seeds")
    policies = list(dict.fromkeys(widths.sort_values(["algo", "env_id"])["policy"]))
    shown = table[table["policy"].isin(policies)]
    seed_means = rows.groupby(["policy", *WAY])["mean"].agg(list).rename("seed_means")
    shown = shown.join(seed_means, on=seed_means.index.names)
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(policies), columns=3, height_in=1.5)
        for ax, policy in zip(axes, policies, strict=True):
            here = shown[shown["policy"] == policy]
            _draw_policy(ax, here)
            one = " (one seed)" if here["seed_means"].map(len).max() == 1 else ""
            ax.set_title(policy_label(policy) + one)
        fig.supxlabel("bits of weights and activations", fontsize=7)
        fig.supylabel("mean return per episode", fontsize=7)
        common_legend(fig, axes, columns=3)
    return fig, shown.drop(columns="keys").assign(seed_means=shown["seed_means"].map(one_field))


def _draw_policy(ax: Axes, rows: pd.DataFrame) -> None:
    fp32 = rows[rows["precision"] == "fp32"].iloc[0]
    ax.axvspan(*KNEE, color=ORANGE, alpha=0.2, lw=0, label="published: kept until 5/6 bits")
    ax.axhline(fp32["mean"], color=GREY, lw=0.9, label="fp32")
    _dots(ax, FP32_AT, fp32, GREY, "o")
    for method, color, marker, aside, label in (
        (PTQ, GREEN, "s", 0.16, "PTQ of fp32 (weights)"), ("minmax", BLUE, "o", 0.0, "QAT"),
        ("lsq", VERMILION, "^", -0.16, "QAT, learned steps"),
    ):  # fmt: skip
        line = rows[(rows["method"] == method) & rows["bits"].notna()].sort_values("bits")
        if method == PTQ:
            for _, row in line[line["precision"] == "affine8"].iterrows():
                ax.plot(STAR_AT, row["mean"], color=BLACK, marker="*", ms=6, ls="",
                        label="8* (8-bit PTQ)")
                _dots(ax, STAR_AT, row, BLACK, "o")
        if len(line) > (method == PTQ):
            means = line.set_index("bits")["mean"].reindex(range(2, 9))  # broken where none is
            ax.plot(means.index + aside, means, color=color, marker=marker, ms=3, label=label,
                    ls="--" if method == PTQ else "-")
            for _, row in line.iterrows():
                _dots(ax, row["bits"] + aside, row, color, marker)
    ax.set_xticks([*range(2, 9), STAR_AT, FP32_AT], [*map(str, range(2, 9)), "8*", "32"])
    ax.set_xlim(1.6, FP32_AT + 0.4)
    means = np.concatenate([*rows["seed_means"]])
    room = max(0.08 * np.ptp(means), 0.05 * abs(means).max())
    ax.set_ylim(means.min() - room, means.max() + room)
    ax.yaxis.set_major_locator(MaxNLocator(4))


def _dots(ax: Axes, at: float, row: pd.Series, color: str, marker: str) -> None:
    means = row["seed_means"]
    ax.plot([at] * len(means), means, color=color, marker=marker, ms=2.5, mew=0, ls="", alpha=0.45)
