"""Every policy's loss at every precision on one page."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from quarl_nb.report.labels import policy_labels
from quarl_nb.report.losses import paired_losses
from quarl_nb.report.stats import ALPHA, MARGIN
from quarl_nb.report.style import (
    PAGE_HEIGHT_IN,
    PAGE_IN,
    PERCENT,
    STYLE,
    NothingToDrawError,
    new_figure,
)

COLUMNS = {"fp16": "fp16", "int8": "int8\nW8A8", "legacy8": "legacy\n8"} \
    | {f"affine{bits}": str(bits) for bits in range(16, 1, -1)}  # fmt: skip
_DEEPEST = 1.0  # the loss at which colours end: all that fp32 earned
_UNMEASURED = "0.88"  # grey


def loss_heatmap(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Relative loss in per cent, a row a policy, a column a precision; min-max ranges.

    Colour is linear within the 5 % that count as no loss, logarithmic beyond. Bold: more than 5 %
    are certainly lost (one-sided, each on its own). Grey: not measured.

    Args:
        records: as `losses.paired_losses` takes them.
    """
    losses = paired_losses(records)
    if len(losses):
        losses = losses[(losses["ranges"] == "minmax") & losses["precision"].isin([*COLUMNS])]
    if losses.empty:
        raise NothingToDrawError("no PTQ record of a quantized policy: run the study first")
    losses = losses.sort_values(["public", "algo", "policy", "seed"])
    rows = losses[["policy", "seed"]].drop_duplicates()
    shown = losses.pivot(index=["policy", "seed"], columns="precision")
    shown = shown.reindex(pd.MultiIndex.from_frame(rows))
    columns = [name for name in COLUMNS if name in set(losses["precision"])]
    several = rows["policy"].duplicated(keep=False)
    labels = policy_labels(rows["policy"])
    names = [labels[policy] + f", seed {seed:g}" * again
             for (policy, seed), again in zip(rows.to_numpy(), several, strict=True)]  # fmt: skip
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, min(1.2 + 0.16 * len(rows), PAGE_HEIGHT_IN))
        ax = fig.subplots()
        _draw(ax, shown["loss"][columns].set_axis(names), shown["p_loss"][columns] <= ALPHA)
        ax.set_xlabel("precision; numbers: bits of the weights (uniform affine, per tensor)")
    return fig, losses.drop(columns="keys")


def _draw(ax: Axes, losses: pd.DataFrame, certain: pd.DataFrame) -> None:
    texts = losses.map(lambda loss: f"{100 * loss:.0f}".replace("-0", "0").replace("-", "\u2212"))
    ticks = [-_DEEPEST, -0.25, -MARGIN, 0, MARGIN, 0.25, _DEEPEST]
    sns.heatmap(
        losses.astype(float), ax=ax, annot=texts, fmt="", annot_kws={"fontsize": 5},
        cmap="vlag", norm=SymLogNorm(MARGIN, vmin=-_DEEPEST, vmax=_DEEPEST, base=10),
        linewidths=0.4, xticklabels=[COLUMNS[name] for name in losses], yticklabels=True,
        cbar_kws={"ticks": ticks, "format": PERCENT, "aspect": 50, "pad": 0.01},
    )  # fmt: skip
    bar = ax.collections[0].colorbar
    assert bar is not None
    bar.minorticks_off()
    bar.set_label("relative loss of mean return against fp32")
    ax.set_facecolor(_UNMEASURED)
    ax.set_ylabel("")
    ax.tick_params(length=0, rotation=0)
    # Seaborn writes a text in every cell that has a value, row by row.
    bold = certain.to_numpy()[losses.notna().to_numpy()]
    for text, lost in zip(ax.texts, bold, strict=True):
        text.set_fontweight("bold" if lost else "normal")
