"""Figure 5: return against the bits trained with."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.labels import policy_label
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
from quarl_nb.report.texts import counted

STAR_AT, FP32_AT = 9.0, 10.0  # to the right of the widths that were trained with
KNEE = (4.9, 6.1)  # "until 5/6-bit quantization": between 5 and 6 bits


def figure5(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Return against the bits trained with, a panel a policy, as Figure 5 of the paper.

    Lines join the means over the training seeds that fp32, QAT and PTQ of a panel have in common;
    those of learned steps, of which there are fewer trainings, over seeds that they share with
    fp32. Titles tell how many. Dots are the trainings: Student's interval of three that differ
    much would be taller than the panel. The table beside the figure has it.

    Args:
        records: `ResultStore.frame("qat")`.
    """
    table = _panels(trainings(records))
    widths = table[table["method"] == "minmax"] if len(table) else table
    if widths.empty:
        raise NothingToDrawError("no policy has records of QAT and of float32 for the same seeds")
    policies = list(dict.fromkeys(widths.sort_values(["algo", "env_id"])["policy"]))
    shown = table[table["policy"].isin(policies)]
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(policies), columns=3, height_in=1.6)
        for ax, policy in zip(axes, policies, strict=True):
            here = shown[shown["policy"] == policy]
            _draw_policy(ax, here)
            ax.set_title(f"{policy_label(policy)}\n{_seeds_told(here)}")
        fig.supxlabel("bits of weights and activations", fontsize=7)
        fig.supylabel("mean return per episode", fontsize=7)
        common_legend(fig, axes, columns=3)
    return fig, shown.drop(columns="keys").assign(seed_means=shown["seed_means"].map(one_field))


def _panels(rows: pd.DataFrame) -> pd.DataFrame:
    """`way_table` with the mean of every training, `seed_means`: learned steps over seeds that
    they share with fp32, all else over those that fp32, QAT and PTQ share."""
    parts = []
    for methods in (["none", "minmax", PTQ], ["lsq"]):
        shared = of_shared_seeds(rows, methods)
        means = shared.groupby(["policy", *WAY])["mean"].agg(list).rename("seed_means")
        if len(table := way_table(shared)):
            ours = table[table["method"].isin(methods)]
            parts.append(ours.join(means, on=means.index.names))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _seeds_told(rows: pd.DataFrame) -> str:
    """ "5 seeds", or "5 seeds (learned steps: 3)" where these have others."""
    learned = rows["method"] == "lsq"
    most = rows["seeds"][~learned].max()
    told = counted(most, "seed")
    fewer = {*rows["seeds"][learned]} - {most}
    return told + (f" (learned steps: {min(fewer)})" if fewer else "")


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
