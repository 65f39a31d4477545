"""The figures of the PTQ study: each takes a plain frame, returns the figure and its points."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.compare import paired_difference
from quarl_nb.report.labels import RANGES, policy_labels
from quarl_nb.report.losses import paired_losses
from quarl_nb.report.policy_records import ptq_records
from quarl_nb.report.ptq.rules import losses_at
from quarl_nb.report.ptq.sweet_spots import Widths, table_of, widths_of
from quarl_nb.report.stats import ALPHA, MARGIN, mean_interval
from quarl_nb.report.style import (
    BLUE,
    CYCLE,
    GREY,
    MARKERS,
    ORANGE,
    PAGE_HEIGHT_IN,
    PAGE_IN,
    STYLE,
    VERMILION,
    NothingToDrawError,
    common_legend,
    interval_errors,
    loss_axis,
    new_figure,
    panel_grid,
)

FP16_AT = 19.5  # fp16 stands to the right of 16 bits: it is no affine width
LOSS_PRECISIONS = ("fp16", "affine8", "int8", "legacy8", "affine4")


def sweet_spot(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Return against bit width, a panel a policy (Figure 7 of the paper, with intervals).

    The band is the 95 % interval of the paired difference to fp32, drawn about the fp32 mean;
    the grey band is that of the fp32 mean itself. A star is a sweet spot that survives the
    correction for all widths and policies.

    Args:
        records: as `losses.paired_losses` takes them.
    """
    policies = widths_of(records)
    if not policies:
        raise NothingToDrawError("no policy has records at fp32 and three affine widths")
    table = table_of(policies)
    spots = dict(zip(table["policy"], table["bits"].where(table["sweet_spot"]), strict=True))
    fp16 = _fp16_beside(records, policies)
    points = []
    with mpl.rc_context(STYLE):
        columns = 4 if len(policies) <= 24 else 6  # six rows of four fill a page
        fig, axes = panel_grid(len(policies), columns)
        labels = policy_labels(widths.policy for widths in policies)
        for ax, widths in zip(axes, policies, strict=True):
            rows = _width_points(widths)
            rows["sweet_spot"] = rows["bits"] == spots.get(widths.policy)
            half = fp16[fp16["policy"] == widths.policy]
            _draw_widths(ax, widths, rows, half)
            label = labels[widths.policy].replace(" (public)", "\n(public)")
            ax.set_title(label, fontsize=7 if columns == 4 else 5.5)
            points.append(rows)
        fig.supxlabel("bits of the weights (uniform affine, per tensor)", fontsize=7)
        fig.supylabel("mean return per episode", fontsize=7)
        common_legend(fig, axes)
    return fig, pd.concat(points, ignore_index=True)


def _fp16_beside(records: pd.DataFrame, policies: list[Widths]) -> pd.DataFrame:
    """fp16's losses over the episodes that a panel's widths have: it may have played more, over
    which neither its own mean nor that of fp32 is the panel's."""
    fewest = {each.policy: len(each.reference) for each in policies}
    rows = ptq_records(records, ["fp16"])
    rows = rows[rows["policy"].isin([*fewest])]
    cut = [[*returns[: fewest[policy]]] for policy, returns
           in zip(rows["policy"], rows["returns"], strict=True)]  # fmt: skip
    return losses_at(rows.assign(returns=cut), ["fp16"])


def _width_points(widths: Widths) -> pd.DataFrame:
    base = mean_interval(widths.reference, widths.weights)
    rows = []
    for bits, returns in zip(widths.bits, widths.returns, strict=True):
        gain = paired_difference(returns, widths.reference, widths.weights)
        rows.append({
            "policy": widths.policy, "bits": bits, "mean": returns.mean(),
            **gain.columns("difference"), **base.columns("fp32"), "episodes": len(returns),
        })
    return pd.DataFrame(rows)


def _draw_widths(ax: Axes, widths: Widths, rows: pd.DataFrame, half: pd.DataFrame) -> None:
    fp32 = rows["fp32"].iloc[0]
    ax.axhspan(rows["fp32_low"].iloc[0], rows["fp32_high"].iloc[0], color=GREY, alpha=0.2, lw=0)
    ax.axhline(fp32, color=GREY, lw=0.9, label="fp32 (95 % interval)")
    ax.axhline(fp32 - MARGIN * abs(fp32), color=GREY, lw=0.7, ls=":", label="fp32 − 5 %")
    ax.fill_between(rows["bits"], fp32 + rows["difference_low"], fp32 + rows["difference_high"],
                    color=BLUE, alpha=0.25, lw=0)
    ax.plot(rows["bits"], rows["mean"], color=BLUE, marker="o", ms=2,
            label="affine (95 % of paired difference)")
    for _, row in half.iterrows():
        span = abs(row["reference"])
        ax.errorbar(FP16_AT, row["mean"], marker="D", ms=3, color=ORANGE, ls="",
                    yerr=[[max(row["loss_high"] - row["loss"], 0) * span],
                          [max(row["loss"] - row["loss_low"], 0) * span]], label="fp16")
    star = rows[rows["sweet_spot"]]
    ax.plot(star["bits"], star["mean"], ls="", marker="*", ms=8, color=VERMILION,
            label="sweet spot (corrected)")
    ax.set_xticks([2, 4, 8, 12, FP16_AT], ["2", "4", "8", "12", "fp16"])
    ax.set_xlim(1.5, FP16_AT + 1)
    ax.yaxis.set_major_locator(MaxNLocator(4))


def ptq_loss(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Relative loss of every policy and precision with 95 % intervals, min-max ranges.

    Symmetric-log axis, linear within the shaded +-5 % that counts as no loss.
    """
    losses = losses_at(records, LOSS_PRECISIONS)
    if losses.empty:
        raise NothingToDrawError("no PTQ record at these precisions: run the study first")
    losses = losses.sort_values(["public", "algo", "policy"])
    policies = list(dict.fromkeys(losses["policy"]))
    shown = [name for name in LOSS_PRECISIONS if name in set(losses["precision"])]
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, min(0.9 + 0.24 * len(policies), PAGE_HEIGHT_IN))
        ax = fig.subplots()
        ax.axvspan(-MARGIN, MARGIN, color=GREY, alpha=0.15, lw=0)
        ax.axvline(0, color=GREY, lw=0.7)
        for i, name in enumerate(shown):
            rows = losses[losses["precision"] == name].dropna(subset=["loss"])
            at = np.array([policies.index(p) for p in rows["policy"]], float)
            at += 0.15 * (i - (len(shown) - 1) / 2)
            ax.errorbar(rows["loss"], at, xerr=interval_errors(rows, "loss"), ls="",
                        marker=MARKERS[i], color=CYCLE[i], elinewidth=0.8, label=name)
        _policy_axis(ax, policies)
        loss_axis(ax, "x")
        ax.set_xlabel("relative loss of mean return against fp32 (right is worse; log beyond "
                      f"±{MARGIN:.0%})")
        common_legend(fig, [ax])
    return fig, losses.drop(columns="keys")


def ranges_rescue(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """What other ranges mend: loss against bits, a panel a policy that min-max ranges harm.

    Shows policies that lose more than 5 % (one-sided, each on its own) with min-max ranges at a
    width where other ranges were measured too; affine weights only.
    """
    losses = paired_losses(records)
    if losses.empty:
        raise NothingToDrawError("no PTQ record: run the study first")
    losses = losses[losses["bits"].notna() & losses["precision"].str.startswith("affine")
                    & losses["ranges"].isin([*RANGES])]
    compared = losses.groupby(["policy", "bits"])["ranges"].transform("nunique") > 1
    harmed = compared & (losses["ranges"] == "minmax") & (losses["p_loss"] <= ALPHA)
    policies = sorted(set(losses.loc[harmed, "policy"]))
    if not policies:
        raise NothingToDrawError("no policy with other ranges loses 5 % with min-max ones")
    losses = losses[losses["policy"].isin(policies)].sort_values(["policy", "ranges", "bits"])
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(policies), columns=3, height_in=1.6)
        labels = policy_labels(policies)
        for ax, policy in zip(axes, policies, strict=True):
            ax.axhspan(-MARGIN, MARGIN, color=GREY, alpha=0.15, lw=0)
            for i, (name, label) in enumerate(RANGES.items()):
                rows = losses[(losses["policy"] == policy) & (losses["ranges"] == name)]
                ax.errorbar(rows["bits"] + 0.12 * (i - 1.5), rows["loss"],
                            yerr=interval_errors(rows, "loss"), color=CYCLE[i],
                            marker=MARKERS[i], elinewidth=0.8, label=label)
            ax.set_title(labels[policy])
            loss_axis(ax, "y")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set_xlim(1.5, max(8, losses.loc[losses["policy"] == policy, "bits"].max()) + 0.5)
        fig.supxlabel("bits of the weights (uniform affine)", fontsize=7)
        fig.supylabel(f"relative loss of mean return (log beyond ±{MARGIN:.0%})", fontsize=7)
        common_legend(fig, axes)
    return fig, losses.drop(columns="keys")


def _policy_axis(ax: Axes, policies: list[str]) -> None:
    ax.set_yticks(range(len(policies)), [*policy_labels(policies).values()])
    ax.set_ylim(len(policies) - 0.4, -0.6)
    for between in range(1, len(policies)):
        ax.axhline(between - 0.5, color=GREY, lw=0.25)
