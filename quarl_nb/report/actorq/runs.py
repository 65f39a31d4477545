"""ActorQ records -> learning curves, time to the fp32 reward, speed-ups with their intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.actors import ACTORS, BASELINES
from quarl_nb.report.actorq.curves import (
    RESAMPLES,
    first_reached,
    generator_of,
    on_grid,
    ratio,
    redraw,
    redrawn_weights,
    reward_level,
    running_mean,
)
from quarl_nb.report.compare import relative_loss
from quarl_nb.report.stats import MARGIN, Floats, bootstrap_weights

# Where a run's times were measured; the GPU is the learner's, "" where it has none.
MACHINE = ["provenance.cpu", "gpu"]
# What two runs must share to be compared: fields of the cell and of the budget, the machine.
SETTING = ["task", "env_id", "algo", "width", "n_actors", "envs_per_actor", "pull_period",
           "samples_per_insert", "batch_size", "options", "budget.steps", "budget.evaluations",
           "budget.episodes", "budget.device", "budget.autocast", *MACHINE]  # fmt: skip
# Where their returns, steps and updates are compared, which are the same on any machine.
ANYWHERE = [name for name in SETTING if name not in MACHINE]
BUT_PULLS = [name for name in ANYWHERE if name != "pull_period"]
ACTOR = ["precision", "runtime", "communication"]
# Of the learner, and where a record does not tell, of the first in its machine.
GPU_NAMES = ["extra.device_name", "provenance.gpu"]
AXES = {"time_s": "curve_wall_s", "steps": "curve_steps", "updates": "curve_updates"}


def actorq_runs(records: pd.DataFrame) -> pd.DataFrame:
    """The rows of ActorQ studies, each run once, with `actor` ("int8/onnxruntime"), `gpu`, `run_s`.

    `gpu` is the learner's; "" where the learner is on the processor, whatever idles beside it.

    `run_s` is the clock of the loop. In a frame, `wall_s` is that of the whole cell, from its first
    import to the last evaluation; where the loop's own was not kept, it is that of the last
    evaluated policy, which is saved as the loop ends.

    Args:
        records: `ResultStore.frame` of actorq, actorq_staleness or actorq_runtime.
    """
    if records.empty or "actor_s" not in records:
        return pd.DataFrame()
    unused = records.columns.str.match(r"(provenance|energy|extra)\.")
    needed = ~unused | records.columns.isin([*SETTING, *GPU_NAMES])
    rows = records.loc[records["actor_s"].notna(), needed].copy()
    for name in (*SETTING, "budget.options", *GPU_NAMES):
        if name not in rows:
            rows[name] = ""
    rows["batch_size"] = [_batch_size(options) for options in rows["budget.options"]]
    rows["options"] = [json.dumps(options, sort_keys=True) for options in rows["budget.options"]]
    rows["actor"] = rows["precision"] + "/" + rows["runtime"]
    rows["gpu"] = [*map(_learners_gpu, rows["budget.device"], *(rows[name] for name in GPU_NAMES))]
    rows["run_s"] = _loop_s(rows)
    rows["order"] = [(*ACTORS, actor).index(actor) for actor in rows["actor"]]
    rows = rows.sort_values([*SETTING, "order", *ACTOR, "seed"], kind="stable")
    return rows.drop_duplicates([*SETTING, *ACTOR, "seed"]).reset_index(drop=True)


def _learners_gpu(device: object, *names: object) -> str:
    """The first of the GPU's names that is known, if the learner's device is one."""
    known = (name for name in names if isinstance(name, str) and name)
    return next(known, "") if device not in ("cpu", "") else ""


def _loop_s(rows: pd.DataFrame) -> pd.Series:
    """Seconds of the loop; NaN where a record has neither its clock nor an evaluation."""
    clock = rows["run_s"] if "run_s" in rows else pd.Series(np.nan, rows.index)
    if clock.notna().all():
        return clock
    return clock.astype(float).fillna(rows["curve_wall_s"].str[-1].astype(float))


def _batch_size(options: object) -> float:
    """Of the learner, by the algorithm's options; NaN where they leave it to the algorithm."""
    return options.get("batch_size", np.nan) if isinstance(options, dict) else np.nan


def learning_runs(records: pd.DataFrame) -> pd.DataFrame:
    """`actorq_runs` whose learner was evaluated and whose weights travelled as computed."""
    runs = actorq_runs(records)
    if runs.empty:
        return runs
    evaluated = runs["curve_returns"].map(lambda curve: len(curve) > 1)
    as_computed = runs["communication"] == runs["precision"]
    return runs[evaluated & as_computed].reset_index(drop=True)


def speedups(records: pd.DataFrame, setting: Sequence[str] = SETTING) -> pd.DataFrame:
    """Every kind of actor at every task and setting: time to reward, speed-up, loss of return.

    The level is 95 % of the best running mean of all fp32 runs of the setting, aggregated against
    steps; each configuration's own aggregated curve has to reach it. Intervals (95 %) redraw the
    runs of either side and of the level together; a single run has none.

    Args:
        setting: what runs must share; with `ANYWHERE`, times and their ratios are of no meaning.

    Returns:
        `setting`, precision, runtime, actor, runs (and base_runs of fp32, of torch where measured),
        level, initial (untrained); time_s, steps and
        updates to the level (NaN: never); total_s, total_steps, total_updates of a whole run;
        speedup_torch and speedup_ort (time against either fp32 baseline) and steps_ratio (steps
        of fp32 over steps here, fp32 of torch where measured), each with the ends of `ratio`; final
        (mean return of the last window), final_loss and area_loss with _low, _high, _p_no_loss,
        _p_loss, _p_gain, _p_no_gain, _p_equivalent (last return, and mean return over steps,
        against fp32, runs of the same training seed paired); keys; profile.
    """
    runs = learning_runs(records)
    if runs.empty:
        return pd.DataFrame()
    found: list[dict[str, object]] = []
    for values, group in runs.groupby([*setting], sort=False, dropna=False):
        shared = dict(zip(setting, values, strict=True))
        if (group["precision"] == "fp32").any():
            found += [shared | row for row in _setting_rows(group)]
    return pd.DataFrame(found)


def _setting_rows(group: pd.DataFrame) -> list[dict[str, object]]:
    drawn = redraw(group)
    actors = drawn.actors
    reached = {
        name: {axis: drawn.reached(name, column) for axis, column in AXES.items()}
        for name in actors
    }
    full = set(drawn.fp32["actor"])
    reference = next(name for name in (*BASELINES.values(), *actors) if name in full)
    return [
        _actor_row(rows, float(drawn.level[0]), reached[name])
        | {"initial": float(on_grid(drawn.fp32, "curve_steps").mean[0])}
        | {f"speedup_{short}{end}": value
           for short, base in BASELINES.items() if base in actors
           for end, value in ratio(reached[base]["time_s"], reached[name]["time_s"],
                                   min(len(actors[base]), len(rows)))}
        | {f"steps_ratio{end}": value
           for end, value in ratio(reached[reference]["steps"], reached[name]["steps"],
                                   min(len(actors[reference]), len(rows)))}
        | return_losses(actors[reference], rows, generator_of(str(rows["task"].iloc[0]), name))
        | {"base_runs": len(actors[reference]), "keys": drawn.keys(name)}
        for name, rows in actors.items()
    ]  # fmt: skip


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


def return_losses(
    base: pd.DataFrame, rows: pd.DataFrame, generator: np.random.Generator
) -> dict[str, float]:
    """Loss of the last return and of the mean return over steps of `rows` against `base`.

    Runs of the same training seed are paired. Names: final_loss and area_loss, bare and with _low,
    _high, _p_no_loss, _p_loss, _p_gain, _p_no_gain, _p_equivalent (see `compare.Loss`: exact for
    so few pairs, of which five can show something at 5 %); NaN where there are no pairs. Where most
    runs end alike and one fails, flipped signs are too certain that nothing is lost
    (`sign_flip_p`): p_no_loss and p_no_gain are 1 where the bootstrap's bound at 5 % reaches the
    margin.
    """
    needed = ["seed", "curve_steps", "curve_returns"]
    pairs = base[needed].merge(rows[needed], on="seed", suffixes=("_base", ""))
    p_values = ("p_no_loss", "p_loss", "p_gain", "p_no_gain", "p_equivalent")
    parts = ("", "_low", "_high", *(f"_{p}" for p in p_values))
    found = {f"{name}{part}": float("nan")
             for name in ("final_loss", "area_loss") for part in parts}
    if pairs.empty:
        return found
    weights = bootstrap_weights(len(pairs), generator, RESAMPLES)
    for name, summary in (("final_loss", _last_return), ("area_loss", mean_return)):
        x = np.array([*map(summary, pairs["curve_steps_base"], pairs["curve_returns_base"])])
        y = np.array([*map(summary, pairs["curve_steps"], pairs["curve_returns"])])
        if x.mean() == 0:
            continue
        loss = relative_loss(x, y, weights)
        found[name] = loss.interval.value
        if len(pairs) > 1:
            found |= {f"{name}_low": loss.interval.low, f"{name}_high": loss.interval.high}
            if loss.tost.high >= MARGIN:
                loss = replace(loss, p_no_loss=1.0)
            if loss.tost.low <= -MARGIN:
                loss = replace(loss, p_no_gain=1.0)
            found |= {f"{name}_{p}": getattr(loss, p) for p in p_values}
    return found


def _last_return(steps: Sequence[float], returns: Sequence[Sequence[float]]) -> float:
    return float(running_mean(returns)[-1])


def mean_return(steps: Sequence[float], returns: Sequence[Sequence[float]]) -> float:
    """Area under the learning curve over the steps it spans."""
    means, x = running_mean(returns), np.asarray(steps, float)
    return float(np.trapezoid(means, x) / (x[-1] - x[0]))


def steps_ratio(
    base: pd.DataFrame, rows: pd.DataFrame, generator: np.random.Generator
) -> list[tuple[str, float]]:
    """Steps to 95 % of the best return of `base`, of `rows` over `base`, as `ratio` gives them; NaN
    if nothing was learned."""
    weights = [redrawn_weights(n, generator) for n in (len(base), len(rows))]
    level = reward_level(weights[0] @ on_grid(base, "curve_steps").values)
    here = first_reached(rows, "curve_steps", weights[1], level)
    there = first_reached(base, "curve_steps", weights[0], level)
    return ratio(here, there, min(len(base), len(rows)))
