"""ActorQ records -> learning curves, time to the fp32 reward, speed-ups with their intervals."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from quarl_nb.report.stats import (
    ALPHA,
    MARGIN,
    Floats,
    Interval,
    bootstrap_weights,
    relative_loss,
)

WINDOW = 10  # episodes of the running mean ("running mean (window=10)", section 3)
RESAMPLES = 2000
# The paper's actors in full precision, and those of the runtime that int8 runs in.
BASELINES = {"torch": "fp32/torch", "ort": "fp32/onnxruntime"}
ACTORS = (*BASELINES.values(), "fp16/torch", "int8/onnxruntime")  # as tables and figures order them
# What two runs must share to be compared; fields of the cell, then of the budget.
SETTING = ["task", "env_id", "algo", "width", "n_actors", "envs_per_actor", "pull_period",
           "samples_per_insert", "budget.steps", "budget.device", "budget.autocast"]  # fmt: skip
ACTOR = ["precision", "runtime", "communication"]
AXES = {"time_s": "curve_wall_s", "steps": "curve_steps", "updates": "curve_updates"}


def actorq_runs(records: pd.DataFrame) -> pd.DataFrame:
    """The rows of ActorQ studies, each run once, with `actor` ("int8/onnxruntime") and `run_s`.

    `run_s` is the clock of the loop. In a frame, `wall_s` is that of the whole cell, from its first
    import to the last evaluation; where the loop's own was not kept, it is that of the last
    evaluated policy, which is saved as the loop ends.

    Args:
        records: `ResultStore.frame` of actorq, actorq_staleness or actorq_runtime.
    """
    if records.empty or "actor_s" not in records:
        return pd.DataFrame()
    needed = ~records.columns.str.match(r"(provenance|energy|extra)\.")
    rows = records.loc[records["actor_s"].notna(), needed].copy()
    for name in SETTING:
        if name not in rows:
            rows[name] = ""
    rows["actor"] = rows["precision"] + "/" + rows["runtime"]
    if "run_s" not in rows:
        rows["run_s"] = [times[-1] if len(times) else np.nan for times in rows["curve_wall_s"]]
    rows["order"] = [(*ACTORS, actor).index(actor) for actor in rows["actor"]]
    rows = rows.sort_values([*SETTING, "order", *ACTOR, "seed"], kind="stable")
    return rows.drop_duplicates([*SETTING, *ACTOR, "seed"]).reset_index(drop=True)


def learning_runs(records: pd.DataFrame) -> pd.DataFrame:
    """`actorq_runs` whose learner was evaluated and whose weights travelled as computed."""
    runs = actorq_runs(records)
    if runs.empty:
        return runs
    evaluated = runs["curve_returns"].map(lambda curve: len(curve) > 1)
    as_computed = runs["communication"] == runs["precision"]
    return runs[evaluated & as_computed].reset_index(drop=True)


def actor_label(actor: str) -> str:
    """`int8/onnxruntime` as tables and figures write it: int8 ORT."""
    return actor.replace("/onnxruntime", " ORT").replace("/", " ")


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
        column: one of `AXES`' values. The grid holds every run's points; a run that ended earlier
            keeps its last value.
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


def speedups(records: pd.DataFrame, resamples: int = RESAMPLES) -> pd.DataFrame:
    """Every kind of actor at every task and setting: time to reward, speed-up, loss of return.

    The level is 95 % of the best running mean of all fp32 runs of the setting, aggregated against
    steps; each configuration's own aggregated curve has to reach it. Intervals (95 %) redraw the
    runs of either side and of the level together; a single run has none.

    Returns:
        `SETTING`, precision, runtime, actor, runs, level, initial (untrained); time_s, steps and
        updates to the level (NaN: never); total_s, total_steps, total_updates of a whole run;
        speedup_torch and speedup_ort (time against either fp32 baseline) and steps_ratio (steps
        of fp32 over steps here, fp32 of torch where measured), each with _low and _high; final
        (mean return of the last window), final_loss and area_loss with _low, _high, _p_no_loss,
        _p_loss, _p_equivalent (last return, and mean return over steps, against fp32, runs of the
        same training seed paired); keys; profile.
    """
    runs = learning_runs(records)
    if runs.empty:
        return pd.DataFrame()
    found: list[dict[str, object]] = []
    for setting, group in runs.groupby(SETTING, sort=False, dropna=False):
        shared = dict(zip(SETTING, setting, strict=True))
        if (group["precision"] == "fp32").any():
            found += [shared | row for row in _setting_rows(group, resamples)]
    return pd.DataFrame(found)


def _setting_rows(group: pd.DataFrame, resamples: int) -> list[dict[str, object]]:
    generator = np.random.default_rng(zlib.crc32(str(group["task"].iloc[0]).encode()))
    actors = {str(name): rows for name, rows in group.groupby("actor", sort=False)}
    # The first row of weights is the estimate itself, the others are redrawn runs.
    weights = {
        name: np.vstack([np.full(len(rows), 1 / len(rows)),
                         bootstrap_weights(len(rows), generator, resamples)])
        for name, rows in actors.items()
    }  # fmt: skip
    full = group[group["precision"] == "fp32"]
    share = np.hstack([weights[name] * len(actors[name]) for name in dict.fromkeys(full["actor"])])
    ordered = pd.concat([actors[name] for name in dict.fromkeys(full["actor"])])
    fp32 = on_grid(ordered, "curve_steps")
    level = reward_level(share / len(ordered) @ fp32.values)
    reached = {
        name: {axis: _reached(rows, column, weights[name], level) for axis, column in AXES.items()}
        for name, rows in actors.items()
    }
    reference = next(name for name in (*BASELINES.values(), *actors) if name in set(full["actor"]))
    return [
        _actor_row(rows, float(level[0]), reached[name])
        | {"initial": float(fp32.mean[0])}
        | {f"speedup_{short}{end}": value
           for short, base in BASELINES.items() if base in actors
           for end, value in _ratio(reached[base]["time_s"], reached[name]["time_s"],
                                    min(len(actors[base]), len(rows)))}
        | {f"steps_ratio{end}": value
           for end, value in _ratio(reached[reference]["steps"], reached[name]["steps"],
                                    min(len(actors[reference]), len(rows)))}
        | return_losses(actors[reference], rows, generator, resamples)
        | {"keys": (*ordered["key"], *rows["key"][~rows["key"].isin(ordered["key"])])}
        for name, rows in actors.items()
    ]  # fmt: skip


def _reached(rows: pd.DataFrame, column: str, weights: Floats, level: Floats) -> Floats:
    curves = on_grid(rows, column)
    return crossing(curves.x, weights @ curves.values, level)


def _actor_row(
    rows: pd.DataFrame, level: float, reached: dict[str, Floats]
) -> dict[str, object]:
    first = rows.iloc[0]
    to_level = {axis: value[0] if np.isfinite(value[0]) else np.nan
                for axis, value in reached.items()}
    return {
        "precision": first["precision"], "runtime": first["runtime"], "actor": first["actor"],
        "runs": len(rows), "level": level, **to_level, "total_s": rows["run_s"].mean(),
        "total_steps": rows["steps"].mean(), "total_updates": rows["updates"].mean(),
        "final": on_grid(rows, "curve_steps").mean[-1], "profile": first["profile"],
    }


def _ratio(base: Floats, here: Floats, runs: int) -> list[tuple[str, float]]:
    """`base / here`, estimate first, then redrawn; never reached here is a ratio of 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = base / here
    draws = ratios[1:][~np.isnan(ratios[1:])]
    value = float(ratios[0]) if np.isfinite(ratios[0]) else float("nan")
    low, high = float("nan"), float("nan")
    if runs > 1 and len(draws):
        # Infinite draws (fp32 did not get there) must not be interpolated.
        low, high = np.quantile(draws, [ALPHA / 2, 1 - ALPHA / 2], method="inverted_cdf")
    return [("", value), ("_low", float(low)), ("_high", float(high))]


def return_losses(
    base: pd.DataFrame, rows: pd.DataFrame, generator: np.random.Generator, resamples: int
) -> dict[str, float]:
    """Loss of the last return and of the mean return over steps of `rows` against `base`.

    Runs of the same training seed are paired. Names: final_loss and area_loss, bare and with _low,
    _high, _p_no_loss, _p_loss, _p_equivalent (see `stats.Loss`); NaN where there are no pairs.
    """
    needed = ["seed", "curve_steps", "curve_returns"]
    pairs = base[needed].merge(rows[needed], on="seed", suffixes=("_base", ""))
    parts = ("", "_low", "_high", "_p_no_loss", "_p_loss", "_p_equivalent")
    found = {f"{name}{part}": float("nan")
             for name in ("final_loss", "area_loss") for part in parts}
    if pairs.empty:
        return found
    weights = bootstrap_weights(len(pairs), generator, resamples)
    for name, summary in (("final_loss", _last_return), ("area_loss", _mean_return)):
        x = np.array([*map(summary, pairs["curve_steps_base"], pairs["curve_returns_base"])])
        y = np.array([*map(summary, pairs["curve_steps"], pairs["curve_returns"])])
        if x.mean() == 0:
            continue
        loss = relative_loss(x, y, weights)
        found[name] = loss.interval.value
        if len(pairs) > 1:
            found |= {f"{name}_low": loss.interval.low, f"{name}_high": loss.interval.high,
                      f"{name}_p_no_loss": loss.p_no_loss, f"{name}_p_loss": loss.p_loss,
                      f"{name}_p_equivalent": loss.p_equivalent}
    return found


def _last_return(steps: Sequence[float], returns: Sequence[Sequence[float]]) -> float:
    return float(running_mean(returns)[-1])


def _mean_return(steps: Sequence[float], returns: Sequence[Sequence[float]]) -> float:
    """Area under the learning curve over the steps it spans."""
    means, x = running_mean(returns), np.asarray(steps, float)
    return float(np.trapezoid(means, x) / (x[-1] - x[0]))


def steps_ratio(
    base: pd.DataFrame, rows: pd.DataFrame, generator: np.random.Generator,
    resamples: int = RESAMPLES,
) -> Interval:
    """Steps to 95 % of the best return of `base`, of `rows` over `base`; NaN if nothing learned."""
    weights = [
        np.vstack([np.full(n, 1 / n), bootstrap_weights(n, generator, resamples)])
        for n in (len(base), len(rows))
    ]
    level = reward_level(weights[0] @ on_grid(base, "curve_steps").values)
    here = _reached(rows, "curve_steps", weights[1], level)
    there = _reached(base, "curve_steps", weights[0], level)
    return Interval(*(value for _, value in _ratio(here, there, min(len(base), len(rows)))))
