"""Carbon's figures: the published bar chart measured, and what a run's carbon is made of."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from quarl_nb.report.actorq.actors import BASELINES, COLORS, actor_label
from quarl_nb.report.carbon.costs import ALL, PARTS, PERS
from quarl_nb.report.carbon.tables import labelled, published_ratios
from quarl_nb.report.stats import Interval
from quarl_nb.report.style import (
    BLACK,
    BLUE,
    GREY,
    PAGE_IN,
    STYLE,
    VERMILION,
    YELLOW,
    NothingToDrawError,
    common_legend,
    new_figure,
    panel_grid,
)

PART_COLORS = {"learner": BLUE, "actors": VERMILION, "quantizer": YELLOW, "memory": GREY}
TITLES = {"return": "to 95 % of the best fp32 return", "million steps": "per million steps"}
BAR = 0.8  # of a task's place, all its bars together


def carbon_ratios(rows: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Carbon of fp32 over that of quantized actors, by task: the bar chart of 002, measured.

    Left to the same return, right per million steps. Full bars: over fp32 actors in torch (the
    paper's), open ones: int8's in the same runtime; an arrow: an interval that ends further out;
    a bar through the whole panel: fp32 alone never got there. Grey: published range over tasks, and
    overall.

    Args:
        rows: `costs.emissions`.
    """
    points = _ratio_points(rows)
    if points.empty:
        raise NothingToDrawError("no quantized and fp32 actors that recorded their CPU-seconds")
    labels = list(dict.fromkeys(points["label"]))
    bars = list(dict.fromkeys(zip(points["actor"], points["baseline"], strict=True)))
    with mpl.rc_context(STYLE):
        fig = new_figure(PAGE_IN, 1.1 + 0.14 * len(labels) * len(bars))
        axes = fig.subplots(1, 2, sharey=True)
        for ax, per in zip(axes, PERS, strict=True):
            _draw_published(ax)
            here = points[points["per"] == per]
            # Of few runs an interval may end far from every bar.
            finite = here["ratio"][np.isfinite(here["ratio"])]
            most = 2 * max([published_ratios()[2], *finite])
            for i, (actor, baseline) in enumerate(bars):
                found = here[(here["actor"] == actor) & (here["baseline"] == baseline)]
                at = [labels.index(label) + BAR * ((i + 0.5) / len(bars) - 0.5)
                      for label in found["label"]]
                _draw_bars(ax, at, found, 0.8 * BAR / len(bars), actor, baseline, most)
            ax.set_xlim(0, min(most, ax.get_xlim()[1]))
            ax.set_title(TITLES[per])
            ax.set_xlabel("estimated carbon, fp32 / quantized actors")
        axes[0].set_yticks(range(len(labels)), labels)
        axes[0].invert_yaxis()
        handles = [_patch(actor, baseline) for actor, baseline in bars]
        handles.append(Patch(color=GREY, alpha=0.25, lw=0, label="published: tasks, overall"))
        fig.legend(handles=handles, loc="outside upper center", ncols=4)
    return fig, points


def _ratio_points(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a bar: label, per, actor, baseline (of those that were measured in the same setting,
    and metered alike), ratio with _low and _high, runs."""
    if rows.empty:
        return rows
    found = [
        {"label": label, "per": row["per"], "actor": row["actor"], "baseline": base,
         "runs": row["runs"], **Interval.of(row, f"ratio_{short}").columns("ratio")}
        for label, group in labelled(rows[rows["part"] == ALL])
        for _, row in group[group["precision"] != "fp32"].iterrows()
        for short, base in BASELINES.items()
        if base in set(group["actor"]) and (base == BASELINES["torch"] or row["runtime"] in base)
        # Without a ratio though it got there: not comparable.
        and (pd.notna(row[f"ratio_{short}"]) or pd.isna(row["kg"]))
    ]  # fmt: skip
    return pd.DataFrame(found)


def _draw_published(ax: Axes) -> None:
    least, typical, most = published_ratios()
    ax.axvspan(least, most, color=GREY, alpha=0.25, lw=0, zorder=0)
    ax.axvline(typical, color=GREY, lw=0.8, ls="--", zorder=0)
    ax.axvline(1, color=BLACK, lw=0.7, zorder=3)


def _draw_bars(
    ax: Axes, at: list[float], rows: pd.DataFrame, height: float, actor: str, baseline: str,
    most: float,
) -> None:
    """Bars at the places `at`; what ends beyond `most` has an arrow in place of its end. An
    infinite ratio ends at `most`, and words say so."""
    value = rows["ratio"].to_numpy(float)
    ends = rows[["ratio_low", "ratio_high"]].to_numpy(float).T
    drawn = np.minimum(np.nan_to_num(value), most)
    errors = np.where((value > 0) & (ends <= most), np.nan_to_num(np.abs(ends - drawn)), 0.0)
    ax.barh(at, drawn, height=height, xerr=errors,
            error_kw={"elinewidth": 0.7, "ecolor": BLACK}, **_look(actor, baseline))
    for y, ratio, high in zip(at, value, ends[1], strict=True):
        if np.isposinf(ratio):
            ax.annotate("fp32 never", (1, y), xytext=(2, 0), xycoords=("axes fraction", "data"),
                        textcoords="offset points", va="center", fontsize=5,
                        color=COLORS.get(actor, BLACK))
        elif ratio > 0 and high > most:
            ax.annotate("", (1, y), (ratio, y), xycoords=("axes fraction", "data"),
                        textcoords="data", arrowprops={"arrowstyle": "->", "lw": 0.7,
                                                       "shrinkA": 0, "shrinkB": 0})
        if not ratio > 0:
            ax.annotate("not reached", (0, y), xytext=(2, 0), textcoords="offset points",
                        va="center", fontsize=5, color=COLORS.get(actor, BLACK))


def _patch(actor: str, baseline: str) -> Patch:
    label = f"{actor_label(actor)} against {actor_label(baseline)}"
    return Patch(label=label, **_look(actor, baseline))


def _look(actor: str, baseline: str) -> dict[str, Any]:
    color = COLORS.get(actor, BLACK)
    paper = baseline == BASELINES["torch"]
    return {"facecolor": color if paper else "none", "edgecolor": color, "lw": 0.8}


def carbon_by_part(rows: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Grams of CO2e per million environment steps by what it was spent on, a panel a task.

    Args:
        rows: `costs.emissions`.
    """
    rows = rows[rows["per"] == "million steps"] if len(rows) else rows
    if rows.empty:
        raise NothingToDrawError("no ActorQ run that recorded its CPU-seconds")
    panels, points = list(labelled(rows)), []
    most = max(group["actor"].nunique() for _, group in panels)
    with mpl.rc_context(STYLE):
        fig, axes = panel_grid(len(panels), columns=3, height_in=1.75)
        for ax, (label, group) in zip(axes, panels, strict=True):
            grams = 1e3 * group.pivot(index="part", columns="actor", values="kg")
            actors = list(dict.fromkeys(group["actor"]))
            bottom = np.zeros(len(actors))
            for part in PARTS:
                ax.bar(range(len(actors)), grams.loc[part, actors], bottom=bottom, width=0.7,
                       color=PART_COLORS[part], label=part)
                bottom += grams.loc[part, actors].to_numpy()
            for x, top in enumerate(bottom):
                ax.annotate(f"{top:#.3g}", (x, top), ha="center", va="bottom", fontsize=5.5)
            ax.set_ylim(0, 1.12 * bottom.max())
            ax.set_xlim(-0.6, most - 0.4)
            ax.set_xticks(range(len(actors)), [actor_label(actor) for actor in actors],
                          rotation=35, ha="right", rotation_mode="anchor")  # fmt: skip
            ax.set_title(label, pad=4)
            shown = grams.loc[[*PARTS], actors].rename_axis(columns=None)
            points.append(shown.T.rename_axis("actor").reset_index().assign(label=label))
        fig.supylabel("g CO\u2082e per million steps (estimated)", fontsize=7)
        common_legend(fig, axes)
    return fig, pd.concat(points, ignore_index=True)
