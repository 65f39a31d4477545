"""How the actions spread during training: does quantization explore?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.labels import policy_label
from quarl_nb.report.qat.gains import (
    FP32,
    WAY,
    Way,
    minmax,
    shared_seeds,
    trained_in,
    way_label,
)
from quarl_nb.report.seeds import over_seeds
from quarl_nb.report.style import (
    CYCLE,
    GREY,
    LINES,
    PAGE_IN,
    STYLE,
    NothingToDrawError,
    common_legend,
    new_figure,
)

EXPLORED_BITS = (2, 4, 6, 8)
COLUMNS = 4
SPREADS = {
    "entropy": "entropy (nats)",
    "action_variance": "variance",
}  # of `studies.watched.spread_of_actions`


def curves_frame(
    records: Sequence[Mapping[str, Any]],
    arrays_of: Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]],
) -> pd.DataFrame:
    """One row a probe: policy, algo, precision, method, regularizer, seed, delayed, step, entropy
    (nats; NaN for DDPG), action_variance, key.

    Args:
        records: of the QAT study (`store.chosen`).
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
    noise = [_noise(bits) for bits in EXPLORED_BITS]
    return [[FP32, *(minmax(bits) for bits in EXPLORED_BITS), norm], [FP32, *noise]]


def _noise(bits: int) -> Way:
    return "fp32", "none", f"noise{bits}"


def exploration_figure(curves: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """How the actions spread during training: quantization above, noise below.

    Entropy; of DDPG, which has none, the variance of its actions. Means over the seeds that all
    curves of a panel have.

    Args:
        curves: of `curves_frame`.
    """
    spreads = {policy: "entropy" if rows["entropy"].notna().any() else "action_variance"
               for policy, rows in (curves.groupby("policy") if len(curves) else ())
               if rows["precision"].nunique() > 1}  # fmt: skip
    kinds = _kinds(curves, sorted(spreads, key=lambda name: (spreads[name] != "entropy", name)))
    if not kinds:
        raise NothingToDrawError("no policy has curves of QAT and of float32")
    points = []
    first: dict[str, Axes] = {}
    lines = [-(-len(panels) // COLUMNS) for _, panels in kinds]
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 0.2 + 0.3 * len(kinds) + 1.4 * sum(lines))
        parts = fig.subfigures(len(kinds), 1, squeeze=False, height_ratios=lines).flat
        for part, n_lines, (ways, panels) in zip(parts, lines, kinds, strict=True):
            axes = list(part.subplots(n_lines, COLUMNS, squeeze=False).flat)
            for ax, (policy, rows) in zip(axes, panels.items(), strict=False):
                points += [_draw_spread(ax, rows, spreads[policy], way, i)
                           for i, way in enumerate(ways)]  # fmt: skip
                ax.set_title(policy_label(policy))
                ax.sharey(first.setdefault(policy, ax))
            drawn = [spreads[policy] for policy in panels]
            for i, spread in enumerate(drawn):
                if i % COLUMNS == 0 or spread != drawn[i - 1]:
                    axes[i].set_ylabel(SPREADS[spread])
            for spare in axes[len(panels) :]:
                spare.remove()
            common_legend(part, axes[: len(panels)])
        fig.supxlabel("thousands of environment steps (dotted: quantization or noise begins)",
                      fontsize=7)  # fmt: skip
    return fig, pd.concat(points, ignore_index=True)


def _kinds(
    curves: pd.DataFrame, policies: Sequence[str]
) -> list[tuple[list[Way], dict[str, pd.DataFrame]]]:
    """The ways of one kind, and the curves of every policy trained in one of them: those of the
    seeds that all its ways have."""
    found = []
    for ways in explored_ways():
        panels = {}
        for policy in policies:
            rows = curves[curves["policy"] == policy]
            shared = shared_seeds(rows, ways)
            if shared and any(len(trained_in(rows, way)) for way in ways[1:]):
                panels[policy] = rows[rows["seed"].isin(shared)]
        if panels:
            found.append((ways, panels))
    return found


def _draw_spread(ax: Axes, rows: pd.DataFrame, spread: str, way: Way, i: int) -> pd.DataFrame:
    chosen = trained_in(rows, way)
    means = chosen.groupby("step", as_index=False)[[*SPREADS]].mean()
    if len(means):
        # float32 above the others, which hardly differ from it until quantization begins.
        color, order = (GREY, 3) if way == FP32 else (CYCLE[i - 1], 2)
        ax.plot(means["step"] / 1000, means[spread], color=color, ls=LINES[i % len(LINES)], lw=1,
                zorder=order, label=way_label(way))  # fmt: skip
        ax.axvline(chosen["step"].where(chosen["delayed"]).max() / 1000, color=GREY, lw=0.6,
                   ls=":")  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(3))
    return means.assign(policy=rows["policy"].iloc[0], **dict(zip(WAY, way, strict=True)))


def exploration_tables(curves: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean entropy after the delay, of every way of training, minus that of float32.

    Returns:
        as `entropy_differences`, a column a way.
    """
    ways = [way for ways in explored_ways() for way in ways if way != FP32]
    return entropy_differences(curves, [(way_label(way), way, FP32) for way in ways])


def noise_tables(curves: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean entropy after the delay, of training in some bits, minus that of training with noise as
    large as their quantization error: what quantization does beside being noise.

    Returns:
        as `entropy_differences`, a column a number of bits.
    """
    return entropy_differences(
        curves, [(f"{bits} bits", minmax(bits), _noise(bits)) for bits in EXPLORED_BITS]
    )


def entropy_differences(
    curves: pd.DataFrame, compared: Sequence[tuple[str, Way, Way]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean entropy after the delay of one way of training minus that of another, by policy.

    Args:
        curves: of `curves_frame`.
        compared: (label, way, subtracted way).

    Returns:
        tidy (policy, way: the label, seeds that both have, entropy in nats, difference, low, high:
        95 %, over seeds, NaN for few), and for reading: a row a policy, a column a label.
    """
    found = []
    known = curves[curves["entropy"].notna() & ~curves["delayed"]] if len(curves) else curves
    for policy, rows in known.groupby("policy") if len(known) else ():
        means = rows.groupby([*WAY, "seed"])["entropy"].mean()
        there = {key[:3] for key in means.index}
        for label, way, subtracted in compared:
            if not there.issuperset((way, subtracted)):
                continue
            both = pd.concat([means.loc[way], means.loc[subtracted]], axis=1, join="inner")
            if both.empty:
                continue
            entropy, less = both.to_numpy(float).T
            difference = over_seeds((entropy - less).tolist())
            found.append({"policy": policy, "way": label, "seeds": len(both),
                          "entropy": entropy.mean(), "difference": difference.value,
                          "low": difference.low, "high": difference.high})  # fmt: skip
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


def noise_text(tidy: pd.DataFrame) -> str:
    """How often quantization spreads actions otherwise than noise of its size (`noise_tables`)."""
    known = tidy.dropna(subset=["low"]) if len(tidy) else tidy
    if not len(known):
        return "No policy has three seeds both of quantization and of noise of its size."
    more, less = int((known["low"] > 0).sum()), int((known["high"] < 0).sum())
    return (f"Quantization spreads the actions certainly more than noise of its size in {more} and "
            f"certainly less in {less} of {len(known)} comparisons (policies times bits), each "
            f"tested alone at 95 % (about {0.05 * len(known):.1f} would be by chance); in the "
            "others noise alone may explain what quantization does.")  # fmt: skip
