"""Why ActorQ works: other quantizers, noise, a quantized learner, other algorithms."""

from __future__ import annotations

import json
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from quarl_nb.report.actorq.curves import running_mean
from quarl_nb.report.actorq.runs import mean_return, return_losses
from quarl_nb.report.pvalues import sign_flip_p
from quarl_nb.report.stats import named_generator
from quarl_nb.report.style import (
    BLACK,
    GREY,
    PAGE_IN,
    STYLE,
    VERMILION,
    NothingToDrawError,
    common_legend,
    new_figure,
    one_field,
)
from quarl_nb.report.texts import AS_PERCENT, interval_texts

VARIANTS = {
    "fp32": "full precision",
    "int8": "actors in int8",
    "float8": "actors' weights in float8",
    "quantile8": "actors' weights on 8-bit quantiles",
    "noise8": "actors' weights with noise",
    "learner8": "learner's weights in 8 bits",
    "learner8_stochastic": "8-bit learner, rounded stochastically",
}
_SHARED = ["algo", "env_id", "width", "budget.steps", "profile"]
# What runs that are compared have in common, where records tell it.
_TRAINING = [*_SHARED, *(f"budget.{name}" for name in
                         ("evaluations", "episodes", "options", "updates_per_step"))]  # fmt: skip


def variant_rows(records: pd.DataFrame, base: str = "fp32") -> pd.DataFrame:
    """One row a training (`_TRAINING`) and variant, compared with `base`.

    Args:
        records: `ResultStore.frame("actorq_variants")`.

    Returns:
        algo, env_id, width, budget.steps, profile, variant, runs; initial, final and area (means
        over runs: of the untrained policy, of the last 10 episodes, over the steps of the run);
        final_loss and area_loss against `base`, each with _low, _high, _p_no_loss, _p_loss,
        _p_no_gain and _p_equivalent (see `compare.Loss`), p_area_gain (small when
        the mean return over the run is above that of `base`); keys.
    """
    found: list[dict[str, object]] = []
    for group in _trainings(records):
        shared = {name: group[name].iloc[0] for name in _SHARED}
        bases = group[group["variant"] == base]
        for variant in VARIANTS:
            rows = group[group["variant"] == variant]
            if len(rows):
                found.append(shared | {"variant": variant} | _row(bases, rows))
    return pd.DataFrame(found)


def _trainings(records: pd.DataFrame) -> list[pd.DataFrame]:
    """The runs that may be compared, by algorithm: those with `_TRAINING` alike."""
    if records.empty:
        return []
    told = records[[name for name in _TRAINING if name in records]].to_dict("records")
    texts = [json.dumps(training, sort_keys=True) for training in told]  # options are no hashables
    groups = records.groupby(np.array(texts, object), sort=False)
    return sorted((runs for _, runs in groups), key=lambda runs: runs["algo"].iloc[0])


def _row(bases: pd.DataFrame, rows: pd.DataFrame) -> dict[str, object]:
    means = [running_mean(returns) for returns in rows["curve_returns"]]
    name = f"{rows['algo'].iloc[0]}/{rows['variant'].iloc[0]}"
    losses = return_losses(bases, rows, named_generator(name))
    return {
        "runs": len(rows), "initial": np.mean([m[0] for m in means]),
        "final": np.mean([m[-1] for m in means]), "area": _areas(rows).mean(), **losses,
        "p_area_gain": _p_gain(bases, rows),
        "keys": (*bases["key"], *rows["key"]),
    }  # fmt: skip


def _areas(rows: pd.DataFrame) -> pd.Series:
    """Mean returns over the steps of the runs, by seed."""
    areas = map(mean_return, rows["curve_steps"], rows["curve_returns"])
    return pd.Series([*areas], index=rows["seed"].to_numpy(), dtype=float)


def _p_gain(bases: pd.DataFrame, rows: pd.DataFrame) -> float:
    """One-sided: small unless "the mean return over the run is no larger than the base's"."""
    pairs = pd.concat([_areas(bases), _areas(rows)], axis=1, join="inner")
    if len(pairs) < 2:
        return float("nan")
    base, treated = pairs.to_numpy().T
    return sign_flip_p(treated - base)


def variant_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`variant_rows` for reading, texts."""
    if rows.empty:
        return rows
    return pd.DataFrame({
        "algorithm": rows["algo"].str.upper(), "environment": rows["env_id"],
        "what is quantized": rows["variant"].map(VARIANTS),
        "final return": rows["final"].map("{:.0f}".format),
        "loss of final return": interval_texts(rows, "final_loss", AS_PERCENT),
        "mean return over the run": rows["area"].map("{:.0f}".format),
        "loss of mean return": interval_texts(rows, "area_loss", AS_PERCENT),
        "runs": rows["runs"],
    })  # fmt: skip


def variant_figure(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Return by what is quantized, a column an algorithm: every run, and means over common seeds,
    which compare alike; runs of seeds that only some variants have are hollow.

    Above: the last 10 episodes; below: the mean over the steps of the run. Axes end where the runs
    of variants do that learn; one that ends with less than half of what fp32 gains is an arrow
    with its mean.
    """
    trainings = [(runs, variant_rows(_of_common_seeds(runs))) for runs in _trainings(records)]
    if not trainings:
        raise NothingToDrawError("no run of ActorQ's variants: run actorq_variants first")
    there = set(records["variant"])
    order = [name for name in VARIANTS if name in there]
    points = []
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 0.7 + 2 * (0.3 + 0.2 * len(order)))
        grid = fig.subplots(2, len(trainings), sharey=True, squeeze=False)
        for axes, (runs, rows) in zip(grid.T, trainings, strict=True):
            points.append(_draw_column(axes, runs, rows, order))
        for ax in grid[:, 0]:
            ax.set_yticks(range(len(order)), [VARIANTS[name] for name in order])
            ax.set_ylim(len(order) - 0.4, -0.6)
        common_legend(fig, [grid[0, 0]])
    return fig, pd.concat(points, ignore_index=True).drop(columns="keys")


def _of_common_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Of one training the runs whose seed every variant has, so that means compare alike; all of
    them where variants share none."""
    common = set.intersection(*(set(rows["seed"]) for _, rows in runs.groupby("variant")))
    return runs[runs["seed"].isin(common)] if common else runs


def _draw_column(
    axes: Sequence[Axes], runs: pd.DataFrame, group: pd.DataFrame, order: Sequence[str]
) -> pd.DataFrame:
    """One algorithm's two panels; returns its rows with the runs' returns and what is an arrow."""
    first = group.iloc[0]
    lasts = [running_mean(returns)[-1] for returns in runs["curve_returns"]]
    common = runs.index.isin(_of_common_seeds(runs).index)
    runs = runs.assign(final=lasts, area=_areas(runs).to_numpy(), common=common)
    full = group[group["variant"] == "fp32"]
    half = (full["initial"] + full["final"]).mean() / 2  # NaN without fp32: nothing is left out
    group = group.assign(beyond_axis=group["final"] < half, **{
        f"{name}_runs": [one_field(runs[name][runs["variant"] == v]) for v in group["variant"]]
        for name in ("final", "area")
    })  # fmt: skip
    names = ("final return,\nlast ten episodes", "mean over\nthe run's steps")
    for ax, name, label in zip(axes, ("final", "area"), names, strict=True):
        ax.margins(x=0.1)
        inside = group[~group["beyond_axis"]]
        _draw_points(ax, runs, inside, name, order)
        # A run of another variant may have reached as far.
        outside = group["beyond_axis"] & (group[name] < ax.get_xlim()[0])
        _draw_points(ax, runs, group[group["beyond_axis"] & ~outside], name, order)
        for _, row in group[outside].iterrows():
            ax.annotate(f"\u25c2 {row[name]:.0f}".replace("-", "\u2212"),
                        (0.02, order.index(row["variant"])), fontsize=6, color=VERMILION,
                        xycoords=("axes fraction", "data"), va="center",
                        bbox={"fc": "white", "ec": "none", "pad": 0.5})  # fmt: skip
        ax.xaxis.set_major_locator(MaxNLocator(3))
        ax.grid(axis="y", color=GREY, lw=0.3, alpha=0.4)
        ax.set_xlabel(label)
    axes[0].set_title(f"{first['algo'].upper()}\n{first['env_id']}")
    return group


def _draw_points(
    ax: Axes, runs: pd.DataFrame, rows: pd.DataFrame, name: str, order: Sequence[str]
) -> None:
    """The means of `rows`, and below them, since they would be hidden, each of their runs."""
    shown = runs[runs["variant"].isin(rows["variant"])]
    for common, part in shown.groupby("common"):
        face, label = (BLACK, "a run") if common else ("none", "a run of a seed that some lack")
        y = [order.index(variant) + 0.28 for variant in part["variant"]]
        ax.plot(part[name], y, "o", ms=2, mfc=face, mec=BLACK, mew=0.3, alpha=0.5, label=label)
    y = [order.index(variant) for variant in rows["variant"]]
    ax.plot(rows[name], y, "o", ms=3.5, color=VERMILION, label="mean over common seeds")
