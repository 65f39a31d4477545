"""Figure 5 (return against the bits trained with) and how the actions spread during training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.losses import policy_label
from quarl_nb.report.qat.gains import FP32, PTQ, WAY, Way, minmax, trainings, way_label, way_table
from quarl_nb.report.seeds import over_seeds
from quarl_nb.report.style import (
    BLACK,
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    ORANGE,
    PAGE_IN,
    STYLE,
    VERMILION,
    NothingToDrawError,
    new_figure,
    panel_grid,
)

STAR_AT = 8.8  # 8* stands to the right of the widths that were trained with
KNEE = (4.9, 6.1)  # "until 5/6-bit quantization": between 5 and 6 bits
EXPLORED_BITS = (2, 4, 6, 8)
COLUMNS = 4
SPREADS = {
    "entropy": "entropy of the actions (nats)",
    "action_variance": "variance of the actions\nbetween observations",
}  # of `studies.watched.spread_of_actions`


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
        handles = dict(zip(*reversed(_legend(axes)), strict=True))
        fig.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
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


def _legend(axes: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    pairs = [pair for ax in axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    return [handle for handle, _ in pairs], [label for _, label in pairs]


def curves_frame(
    records: Sequence[Mapping[str, Any]],
    arrays_of: Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]],
) -> pd.DataFrame:
    """One row a probe: policy, algo, precision, method, regularizer, seed, delayed, step, entropy
    (nats; NaN for DDPG), action_variance, key.

    Args:
        records: of the QAT study (`store.records`).
        arrays_of: `store.arrays`: probe_steps, entropy, action_variance [probes].
    """
    found = []
    for record in records:
        cell, arrays = record["cell"], arrays_of(record)
        frame = pd.DataFrame({
            "step": arrays["probe_steps"], "entropy": arrays["entropy"],
            "action_variance": arrays["action_variance"],
        })
        same = {name: cell[name] for name in ("policy", "algo", "seed", *WAY)}
        delayed = frame["step"] <= record["budget"]["quant_delay"]
        found.append(frame.assign(**same, key=record["key"], delayed=delayed))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def explored_ways() -> list[list[Way]]:
    """What exploration is compared between: quantization, and noise of the same size."""
    norm: Way = ("fp32", "none", "layer_norm")
    noise: list[Way] = [("fp32", "none", f"noise{bits}") for bits in EXPLORED_BITS]
    return [[FP32, *(minmax(bits) for bits in EXPLORED_BITS), norm], [FP32, *noise]]


def exploration(curves: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """How the actions spread during training, mean over seeds: quantization above, noise below.

    Entropy; of DDPG, which has none, the variance of its actions, in panels of their own.

    Args:
        curves: of `curves_frame`.
    """
    spreads = {policy: "entropy" if rows["entropy"].notna().any() else "action_variance"
               for policy, rows in (curves.groupby("policy") if len(curves) else ())
               if rows["precision"].nunique() > 1}  # fmt: skip
    lines = _lines(curves, sorted(spreads, key=lambda name: (spreads[name] != "entropy", name)))
    if not lines:
        raise NothingToDrawError("no policy has curves of QAT and of float32")
    points = []
    first: dict[str, Axes] = {}
    legends: dict[Way, list[Axes]] = {}
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 0.4 + 1.5 * len(lines))
        columns = max(len(policies) for _, policies in lines)
        axes = fig.subplots(len(lines), columns, squeeze=False)
        for (ways, policies), line in zip(lines, axes, strict=True):
            labels = dict(SPREADS)
            for ax, policy in zip(line, policies, strict=False):
                rows, spread = curves[curves["policy"] == policy], spreads[policy]
                points += [_draw_spread(ax, rows, spread, way, i) for i, way in enumerate(ways)]
                ax.set_title(policy_label(policy))
                ax.set_ylabel(labels.pop(spread, ""))  # the first of its kind
                ax.sharey(first.setdefault(policy, ax))
            for spare in line[len(policies) :]:
                spare.remove()
            legends.setdefault(ways[1], []).extend(line[: len(policies)])
        for panels in legends.values():
            handles = dict(zip(*reversed(_legend(panels)), strict=True))
            panels[min(columns, len(panels)) - 1].legend(
                handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(1, 1))
        fig.supxlabel("environment steps (dotted: quantization or noise begins)", fontsize=7)
    return fig, pd.concat(points, ignore_index=True)


def _lines(curves: pd.DataFrame, policies: Sequence[str]) -> list[tuple[list[Way], list[str]]]:
    """Rows of panels: the ways of one kind, and as many policies trained in them as fit."""
    found: list[tuple[list[Way], list[str]]] = []
    for ways in explored_ways() if policies else ():
        taken = {policy for policy, *way in curves[["policy", *WAY]].drop_duplicates().to_numpy()
                 if tuple(way) in {*ways} - {FP32}}  # fmt: skip
        some = [policy for policy in policies if policy in taken]
        found += [(ways, some[i : i + COLUMNS]) for i in range(0, len(some), COLUMNS)]
    return found


def _draw_spread(ax: Axes, rows: pd.DataFrame, spread: str, way: Way, i: int) -> pd.DataFrame:
    chosen = rows[(rows[WAY] == list(way)).all(axis=1)]
    means = chosen.groupby("step", as_index=False)[[*SPREADS]].mean()
    if len(means):
        ax.plot(means["step"], means[spread], color=GREY if way == FP32 else CYCLE[i - 1],
                lw=1, label=way_label(way))
        ax.axvline(chosen["step"].where(chosen["delayed"]).max(), color=GREY, lw=0.6, ls=":")
    ax.xaxis.set_major_locator(MaxNLocator(3))
    return means.assign(policy=rows["policy"].iloc[0], **dict(zip(WAY, way, strict=True)))


def exploration_tables(curves: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean entropy after the delay minus that of float32, a row a policy and way of training.

    Returns:
        tidy (policy, way, seeds, entropy in nats, difference, low, high: 95 %, over seeds, NaN for
        few), and for reading: a row a policy, a column a way.
    """
    found = []
    known = curves[curves["entropy"].notna() & ~curves["delayed"]] if len(curves) else curves
    for policy, rows in known.groupby("policy") if len(known) else ():
        means = rows.groupby([*WAY, "seed"])["entropy"].mean()
        if FP32 not in {key[:3] for key in means.index}:
            continue
        base = means.loc[FP32]
        for way in [way for ways in explored_ways() for way in ways]:
            if way == FP32 or way not in {key[:3] for key in means.index}:
                continue
            both = pd.concat([means.loc[way], base], axis=1, join="inner").to_numpy(float)
            difference = over_seeds((both[:, 0] - both[:, 1]).tolist())
            found.append({
                "policy": policy, "way": way_label(way), "seeds": len(both),
                "entropy": both[:, 0].mean(), "difference": difference.value,
                "low": difference.low, "high": difference.high,
            })  # fmt: skip
    tidy = pd.DataFrame(found)
    if tidy.empty:
        return tidy, tidy
    texts = [f"{row.difference:+.3f}" if np.isnan(row.low)
             else f"{row.difference:+.3f} [{row.low:.3f}, {row.high:.3f}]"
             for row in tidy.itertuples()]  # fmt: skip
    shown = tidy.assign(policy=tidy["policy"].map(policy_label), text=texts)
    order = list(dict.fromkeys(tidy["way"]))
    shown = shown.pivot(index="policy", columns="way", values="text").reindex(columns=order)
    return tidy, shown.fillna("")
