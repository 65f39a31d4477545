"""Learning curves of ActorQ's runs, redrawn: where they reach a return, with intervals."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import norm

from quarl_nb.report.pvalues import least_p
from quarl_nb.report.stats import ALPHA, MARGIN, Floats, bootstrap_weights, expanded_reach

WINDOW = 10  # episodes of the running mean ("running mean (window=10)", section 3)
RESAMPLES = 40_000  # of fewer, an end that few draws lie beyond is told in one digit alone
MIN_BEYOND = 20  # draws that lie beyond an end, where it is one of them
TASKS = 11  # of Table 2: what one of them decides must hold for all at once (Bonferroni)


def running_mean(returns: Sequence[Sequence[float]], window: int = WINDOW) -> Floats:
    """Mean of the last `window` episodes at every evaluation, shape [evaluations].

    Args:
        returns: the episodes of each evaluation, in order; fewer than `window` at the beginning.
    """
    counts = np.cumsum([len(episodes) for episodes in returns])
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([*map(np.asarray, returns)]))])
    first = np.maximum(counts - window, 0)
    return (sums[counts] - sums[first]) / (counts - first)


@dataclass(frozen=True)
class Curves:
    """Learning curves of some runs on one grid: x [points], values [runs, points]."""

    x: Floats
    values: Floats

    @property
    def mean(self) -> Floats:
        """The aggregated run, shape [points]."""
        return self.values.mean(axis=0)


def on_grid(runs: pd.DataFrame, column: str) -> Curves:
    """Running means of the learner's returns of every run against `column`, linear in between.

    Args:
        column: of what they are against, one list a run, never falling. The grid holds every run's
            points; a run that ended earlier keeps its last value.
    """
    curves = [
        (np.asarray(xs, float), running_mean(returns))
        for xs, returns in zip(runs[column], runs["curve_returns"], strict=True)
    ]
    grid = np.unique(np.concatenate([xs for xs, _ in curves]))
    return Curves(grid, np.stack([np.interp(grid, xs, ys) for xs, ys in curves]))


def crossing(x: Floats, curves: Floats, level: Floats) -> Floats:
    """Where curves first reach a level, linear between points; infinite where they never do.

    Args:
        x: shape [points], increasing. curves: shape [n, points]. level: shape [n].
    """
    above = curves >= level[:, None]
    at = above.argmax(axis=1)
    rows, before = np.arange(len(curves)), np.maximum(at - 1, 0)
    low, high = curves[rows, before], curves[rows, at]
    rise = np.where(high > low, high - low, 1.0)
    share = np.where(at > 0, (level - low) / rise, 0.0)
    reached = x[before] + share * (x[at] - x[before])
    return np.where(above.any(axis=1), reached, np.inf)


def reward_level(curves: Floats) -> Floats:
    """95 % of the best return of each curve, shape [n]: the best minus 5 % of its magnitude.

    NaN where the untrained policy is already there: nothing was learned.

    Args:
        curves: aggregated fp32 runs, shape [n, points].
    """
    best = curves.max(axis=1)
    level = best - MARGIN * np.abs(best)
    return np.where(curves[:, 0] < level, level, np.nan)


@dataclass(frozen=True)
class Redrawn:
    """The runs of one setting, and their bootstrap.

    Attributes:
        actors: the runs of each kind of actor. fp32: those of all full-precision kinds.
        weights: of each kind's runs, shape [1 + RESAMPLES, runs]: the first row is the estimate
            itself, the others are redrawn runs.
        level: `reward_level` of `fp32`, redrawn with them, shape [1 + RESAMPLES].
    """

    actors: dict[str, pd.DataFrame]
    fp32: pd.DataFrame
    weights: dict[str, Floats]
    level: Floats

    def reached(self, actor: str, column: str) -> Floats:
        """Where the aggregated curve against `column` first reaches the level; shape as `level`."""
        return first_reached(self.actors[actor], column, self.weights[actor], self.level)

    def keys(self, actor: str) -> tuple[str, ...]:
        """The records behind a figure about `actor`: its own, and those that set the level."""
        return tuple(dict.fromkeys([*self.fp32["key"], *self.actors[actor]["key"]]))


def redrawn_weights(n: int, generator: np.random.Generator) -> Floats:
    """Of n runs: first all alike, then `bootstrap_weights`, shape [1 + RESAMPLES, n]."""
    return np.vstack([np.full(n, 1 / n), bootstrap_weights(n, generator, RESAMPLES)])


def redraw(group: pd.DataFrame) -> Redrawn:
    """Redraw the runs of one setting, at least one of them fp32."""
    task = str(group["task"].iloc[0])
    actors = {str(name): rows for name, rows in group.groupby("actor", sort=False)}
    weights = {
        name: redrawn_weights(len(rows), generator_of(task, name))
        for name, rows in actors.items()
    }
    full = dict.fromkeys(group["actor"][group["precision"] == "fp32"])
    share = np.hstack([weights[name] * len(actors[name]) for name in full])
    fp32 = pd.concat([actors[name] for name in full])
    level = reward_level(share / len(fp32) @ on_grid(fp32, "curve_steps").values)
    return Redrawn(actors, fp32, weights, level)


def generator_of(task: str, actor: str) -> np.random.Generator:
    """What the runs of a kind of actor are redrawn with: so that neither its intervals nor those of
    others change when another kind is measured."""
    return np.random.default_rng([zlib.crc32(name.encode()) for name in (task, actor)])


def first_reached(rows: pd.DataFrame, column: str, weights: Floats, level: Floats) -> Floats:
    """Where weighted means of the runs' curves first reach a level, shape [n].

    Args:
        weights: shape [n, runs]. level: shape [n].
    """
    curves = on_grid(rows, column)
    return crossing(curves.x, weights @ curves.values, level)


def ratio(base: Floats, here: Floats, runs: int) -> list[tuple[str, float]]:
    """`base / here` with its intervals: the value beside "", the ends of 95 % beside "_low" and
    "_high", and beside "_least" and "_most" those that hold for `TASKS` ratios at once.

    Args:
        base, here: the estimate first, then redrawn; infinite where never reached, so that the
            ratio is 0 if that is here, infinite if it is the base, and NaN if it is both: such a
            draw counts as 0 for the lower end and as infinite for the upper one.
        runs: of the side that has fewer; a single one has no interval.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = base / here
    neither = np.isinf(base[1:]) & np.isinf(here[1:])
    lower, upper = (np.where(neither, end, ratios[1:]) for end in (0.0, np.inf))
    found = [("", float(ratios[0]))]
    for names, alpha in ((("_low", "_high"), ALPHA), (("_least", "_most"), ALPHA / TASKS)):
        ends = [float("nan")] * 2
        if runs > 1 and not neither.all():
            ends = _ends(ratios[0], lower, upper, runs, alpha)
        found += zip(names, ends, strict=True)
    return found


def _ends(value: float, lower: Floats, upper: Floats, runs: int, alpha: float) -> list[float]:
    """Percentiles of ratios redrawn for either end, as far out as normal quantiles of
    `expanded_reach` are; where fewer draws than `MIN_BEYOND` are, so many of their standard
    deviations, of the logarithm, from `value` at least. One of 0 or infinity has no other end
    where so few runs may agree by chance."""
    reach = expanded_reach(runs, 1 - alpha)
    tail = float(norm.sf(reach))
    # Infinite draws must not be interpolated.
    low, high = (float(np.quantile(draws, at, method="inverted_cdf"))
                 for draws, at in ((lower, tail), (upper, 1 - tail)))  # fmt: skip
    logs = np.log(lower[(lower > 0) & np.isfinite(lower)])
    if tail * len(lower) < MIN_BEYOND and len(logs):
        further = np.exp(reach * logs.std())
        low, high = min(low, value / further), max(high, value * further)
    if least_p(runs) > alpha / 2:
        low, high = 0.0 if np.isinf(value) else low, np.inf if value == 0 else high
    return [low, high]
