"""Why ActorQ works: other quantizers, noise, a quantized learner, other algorithms."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quarl_nb.report.actorq.curves import RESAMPLES, running_mean
from quarl_nb.report.actorq.runs import mean_return, return_losses
from quarl_nb.report.actorq.tables import loss_text
from quarl_nb.report.pvalues import sign_flip_p
from quarl_nb.report.style import BLACK, GREY, STYLE, VERMILION, NothingToDrawError, panel_grid

VARIANTS = {
    "fp32": "full precision",
    "int8": "actors in int8",
    "float8": "actors' weights in float8",
    "quantile8": "actors' weights on 8-bit quantiles",
    "noise8": "actors' weights with noise",
    "learner8": "learner's weights in 8 bits",
    "learner8_stochastic": "the same, rounded stochastically",
}
_TRAINING = ["algo", "env_id", "width", "budget.steps", "profile"]


def variant_rows(records: pd.DataFrame, base: str = "fp32") -> pd.DataFrame:
    """One row an algorithm and variant, compared with `base`.

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
    for training, group in records.groupby(_TRAINING, sort=False) if len(records) else ():
        shared = dict(zip(_TRAINING, training, strict=True))
        bases = group[group["variant"] == base]
        for variant in VARIANTS:
            rows = group[group["variant"] == variant]
            if len(rows):
                found.append(shared | {"variant": variant} | _row(bases, rows))
    return pd.DataFrame(found)


def _row(bases: pd.DataFrame, rows: pd.DataFrame) -> dict[str, object]:
    means = [running_mean(returns) for returns in rows["curve_returns"]]
    name = f"{rows['algo'].iloc[0]}/{rows['variant'].iloc[0]}"
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    losses = return_losses(bases, rows, generator, RESAMPLES)
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
        "loss of final return": [loss_text(row, "final_loss") for _, row in rows.iterrows()],
        "mean return over the run": rows["area"].map("{:.0f}".format),
        "loss of mean return": [loss_text(row, "area_loss") for _, row in rows.iterrows()],
        "runs": rows["runs"],
    })  # fmt: skip


def variant_figure(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Return by what is quantized, a panel an algorithm: every run, and the mean over runs.

    Filled: the last 10 episodes; hollow: the mean over the steps of the run.
    """
    rows = variant_rows(records)
    if rows.empty:
        raise NothingToDrawError("no run of ActorQ's variants: run actorq_variants first")
    trainings = [*rows.groupby(_TRAINING, sort=False)]
    order = [name for name in VARIANTS if name in set(rows["variant"])]
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(trainings), columns=3, height_in=1.7)
        for ax, (_, group) in zip(axes, trainings, strict=True):
            _draw_panel(ax, records, group, order)
        for ax in axes[::3]:
            ax.set_yticks(range(len(order)), [VARIANTS[name] for name in order])
        fig.supxlabel("return of the learner's policy", fontsize=7)
        handles, labels = axes[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return fig, rows.drop(columns="keys")


def _draw_panel(
    ax: Axes, records: pd.DataFrame, group: pd.DataFrame, order: Sequence[str]
) -> None:
    first = group.iloc[0]
    runs = records[(records[_TRAINING] == first[_TRAINING]).all(axis=1)]
    lasts = [running_mean(returns)[-1] for returns in runs["curve_returns"]]
    ax.plot(lasts, [order.index(v) for v in runs["variant"]], ".", ms=3, color=GREY, alpha=0.6,
            label="final return of a run")
    y = [order.index(variant) for variant in group["variant"]]
    ax.plot(group["final"], y, "o", ms=4.5, color=VERMILION, label="mean of runs")
    ax.plot(group["area"], y, "o", ms=4.5, mfc="none", color=BLACK,
            label="mean over the steps of the run")
    ax.set_yticks(range(len(order)), [""] * len(order))
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_title(f"{first['algo'].upper()}, {first['env_id']}")
