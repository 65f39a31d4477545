"""The rules that decide ActorQ's claims of speed and convergence.

Which runs may decide is in `quarl_nb.report.actorq.findings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.curves import on_grid
from quarl_nb.report.actorq.findings import (
    MIN_REDRAWN_RUNS,
    every_task,
    finding,
    missing_tasks,
    of_enough,
    preferred,
    range_verdict,
    tasks_told,
    told,
    unmeasured_told,
)
from quarl_nb.report.actorq.knobs import setting_told
from quarl_nb.report.actorq.runs import (
    ACTOR,
    ANYWHERE,
    BUT_PULLS,
    MACHINE,
    SETTING,
    learning_runs,
    return_losses,
    speedups,
    steps_ratio,
)
from quarl_nb.report.findings import NOT_MEASURED, Finding, decided, measured
from quarl_nb.report.pvalues import at_least, holm, least_p
from quarl_nb.report.stats import ALPHA, MARGIN, Interval, named_generator
from quarl_nb.report.texts import counted, percent


def speedup_above(
    records: pd.DataFrame, precisions: Sequence[str], factor: float, exceptions: int = 0
) -> Finding:
    """Time to 95 % reward, fp32 (torch) over actors of every one of `precisions`.

    Reproduced when in each precision the intervals of all tasks but `exceptions` are above
    `factor`, not reproduced when in one precision those of more tasks are below it, corrected for
    all tasks.
    """
    rows = _speedups(records, precisions)
    if rows.empty:
        return NOT_MEASURED

    def most_missed(missed: pd.Series) -> int:
        # A task may have several rows: of two GPUs, or of two pull periods.
        by_task = missed.groupby([rows["precision"], rows["task"]]).any()
        return int(by_task.groupby("precision").sum().max())

    above = most_missed(rows["speedup_torch_low"] <= factor) <= exceptions
    below = most_missed(rows["speedup_torch_most"] < factor) > exceptions
    verdict = decided(above and every_task(rows, precisions), below)
    text = _range_text(rows) + unmeasured_told(rows, precisions)
    return finding(verdict, rows, text, _least(rows, "speedup_torch"), MIN_REDRAWN_RUNS)


def speedup_range(
    records: pd.DataFrame, low: float, high: float, algos: Sequence[str] = ()
) -> Finding:
    """Time to 95 % reward, fp32 (torch) over int8: the `range_verdict` on `low` to `high`."""
    rows = _speedups(records, ["int8"], algos)
    if rows.empty:
        return NOT_MEASURED
    verdict = range_verdict(rows, "speedup_torch", low, high, algos)
    return finding(verdict, rows, _range_text(rows, algos), _least(rows, "speedup_torch"),
                   MIN_REDRAWN_RUNS)


def as_slow_as_fp32(
    records: pd.DataFrame, precision: str, env_ids: Sequence[str], pull_period: int
) -> Finding:
    """Time to 95 % reward that gains less than 5 % over fp32 (torch), on every one of `env_ids`
    (slower than fp32 is slow enough: the paper's own are 0.97 and 0.94 times as fast); not
    reproduced when one gains more, corrected for all tasks."""
    here = records[records["pull_period"] == pull_period] if len(records) else records
    rows = _speedups(here, [precision], (), env_ids)
    if rows.empty:
        return NOT_MEASURED
    no_faster = (rows["speedup_torch_high"] < 1 + MARGIN).all()
    faster = (rows["speedup_torch_least"] > 1 + MARGIN).any()
    verdict = decided(no_faster and len(set(rows["env_id"])) == len(env_ids), faster)
    return finding(verdict, rows, _range_text(rows), _least(rows, "speedup_torch"),
                   MIN_REDRAWN_RUNS)


def returns_kept(
    records: pd.DataFrame, precisions: Sequence[str], measure: str = "final_loss",
    broadly: bool = False,
) -> Finding:
    """Reproduced when on every task the return loses less than 5 % of the fp32 one.

    Not reproduced when one loses more, Holm over tasks and precisions.

    Args:
        measure: "final_loss" (end of the run) or "area_loss" (mean over the steps of the run).
        broadly: most tasks are enough, in each precision (`at_least`); not reproduced when at least
            half of them lose more.
    """
    rows = _speedups(records, precisions, setting=ANYWHERE, measure=measure)
    if rows.empty:
        return NOT_MEASURED
    kept = rows[f"{measure}_p_no_loss"] <= ALPHA
    lost = holm(rows[f"{measure}_p_loss"].fillna(1).tolist()) <= ALPHA
    holds, fails = bool(kept.all()), bool(lost.any())
    if broadly:
        holds = all(at_least(p) > len(p) / 2 for p in _by_task(rows, f"{measure}_p_no_loss"))
        fails = any(at_least(p) >= len(p) / 2 for p in _by_task(rows, f"{measure}_p_loss"))
    verdict = decided(holds and every_task(rows, precisions), fails)
    worst = rows.loc[rows[measure].idxmax()]
    of = {"final_loss": "final return", "area_loss": "mean return over the run"}[measure]
    text = (f"{int(kept.sum())} of {len(rows)} without loss of {of}, {int(lost.sum())} lose more "
            f"than 5 %, on {tasks_told(rows)}; largest loss {percent(worst[measure])} "
            f"({worst['task']}, {worst['precision']})")  # fmt: skip
    # Pairs that all agree are as certain as that many can be.
    most_pairs = int(rows[["runs", "base_runs"]].min(axis=1).max())
    if len(rows) * least_p(most_pairs) > ALPHA:
        text += " (too few runs for a loss to show, corrected for "
        text += f"{counted(len(rows), 'comparison')})"
    text += unmeasured_told(rows, precisions)
    return finding(verdict, rows, text, Interval.of(worst, measure))


def _by_task(rows: pd.DataFrame, p_value: str) -> Iterator[np.ndarray]:
    """Of each precision one p-value a task: the largest of a task of several rows, which counts
    once, as one that was measured at two pull periods."""
    each = rows[p_value].fillna(1).groupby([rows["precision"], rows["task"]]).max()
    for _, of_tasks in each.groupby("precision"):
        yield of_tasks.to_numpy(float)


def fewer_steps(records: pd.DataFrame, precision: str, env_ids: Sequence[str]) -> Finding:
    """Reproduced when on every one of `env_ids` 95 % reward takes fewer steps than with fp32, not
    reproduced when it takes more on one, corrected for all tasks."""
    rows = _speedups(records, [precision], (), env_ids, ANYWHERE, "steps_ratio")
    if rows.empty:
        return NOT_MEASURED
    fewer = (rows["steps_ratio_low"] > 1).all() and len(set(rows["env_id"])) == len(env_ids)
    verdict = decided(fewer, (rows["steps_ratio_most"] < 1).any())
    return finding(verdict, rows, _steps_text(rows), _least(rows, "steps_ratio"), MIN_REDRAWN_RUNS)


def fewer_steps_somewhere(
    records: pd.DataFrame, precision: str, algos: Sequence[str]
) -> Finding:
    """Reproduced when 95 % reward takes fewer steps than with fp32 on a task of each of `algos`,
    corrected for all tasks; not reproduced when on every task of Table 2 it takes less than 5 %
    fewer with one of them."""
    rows = _speedups(records, [precision], algos, (), ANYWHERE, "steps_ratio")
    if rows.empty:
        return NOT_MEASURED
    fewer, perhaps = (
        {*rows["algo"][some]} for some in
        (rows["steps_ratio_least"] > 1, rows["steps_ratio_most"] >= 1 + MARGIN)
    )  # fmt: skip
    verdict = decided(fewer >= {*algos}, not missing_tasks(rows, algos) and not perhaps >= {*algos})
    text = f"{_steps_text(rows)}; {tasks_told(rows, algos)}"
    return finding(verdict, rows, text, _least(rows, "steps_ratio"), MIN_REDRAWN_RUNS)


def rare_pulls_harm(records: pd.DataFrame) -> Finding:
    """Mean return over the run, longest pull period against the shortest, task by task.

    Reproduced when one task loses more than 5 % (Holm), in whatever setting: the claim is that this
    may happen. Never not reproduced, as a task that is not measured may be meant.
    """
    rows = []
    for often, rare, row in _two_periods(learning_runs(measured(records))):
        generator = named_generator(str(row["task"]))
        loss = return_losses(often, rare, generator)
        if np.isnan(loss["area_loss"]):
            continue  # no training seed in common, while the study runs
        rows.append(row | loss | {
            "change": f"{percent(loss['area_loss'])} from {row['shorter']} to {row['pull_period']} "
                      f"steps ({_end_and_age(often)}, then {_end_and_age(rare)})",
        })  # fmt: skip
    if not rows:
        return NOT_MEASURED
    found = of_enough(pd.DataFrame(rows))
    lost = holm(found["area_loss_p_loss"].fillna(1).tolist()) <= ALPHA
    verdict = decided(lost.any(), False)
    found = found.sort_values("area_loss", ascending=False, kind="stable")
    text = (f"{lost.sum()} of {len(found)} lose more than 5 % of the mean return over a run: "
            + "; ".join(_change_told(row, found) for _, row in found.iterrows()))  # fmt: skip
    interval = Interval.of(found.iloc[0], "area_loss")
    return finding(verdict, _at_both_periods(found), text, interval, possible=True)


def _change_told(row: pd.Series, rows: pd.DataFrame) -> str:
    """With what tells it from other settings of the same task, wherever they were measured."""
    setting = setting_told(row, rows, but=["pull_period", *MACHINE])
    return ", ".join([row["task"], row["actor"], *setting, row["change"]])


def _end_and_age(runs: pd.DataFrame) -> str:
    return (f"{on_grid(runs, 'curve_steps').mean[-1]:.4g} at the end with policies "
            f"{runs['age_mean'].mean():.0f} updates old")


def rare_pulls_slower(
    records: pd.DataFrame, periods: Sequence[int], env_ids: Sequence[str]
) -> Finding:
    """Steps to 95 % of the best return at the first of `periods`, at the second over the first:
    reproduced when more on every one of `env_ids`, not reproduced when fewer on one, corrected for
    all tasks."""
    runs, rows = learning_runs(measured(records)), []
    here = runs[runs["env_id"].isin([*env_ids])] if len(runs) else runs
    for often, rare, row in _two_periods(here, periods):
        ratios = steps_ratio(often, rare, np.random.default_rng(0))
        rows.append(row | {f"ratio{end}": value for end, value in ratios})
    learned = [row for row in rows if not np.isnan(row["ratio"])]
    if not learned:
        return NOT_MEASURED
    found = preferred(pd.DataFrame(learned))
    slower = (found["ratio_low"] > 1).all() and {*found["env_id"]} == {*env_ids}
    verdict = decided(slower, (found["ratio_most"] < 1).any())
    text = "; ".join(f"{row['task']} {told(row, 'ratio')}" for _, row in found.iterrows())
    return finding(verdict, _at_both_periods(found), f"steps at {periods[1]} over {periods[0]}: "
                   f"{text}", _least(found, "ratio"), MIN_REDRAWN_RUNS)


def _two_periods(
    runs: pd.DataFrame, periods: Sequence[int] = ()
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]]:
    """Runs that pull often, those that pull rarely and are like them otherwise, and what a row
    about both begins with: their setting at the longer period, the shorter, how many runs, keys.

    Args:
        periods: the shorter and the longer; those of each setting's ends if there are none.
    """
    groups = runs.groupby([*BUT_PULLS, *ACTOR], sort=False, dropna=False) if len(runs) else ()
    for _, group in groups:
        each = group["pull_period"]
        short, long = periods or (each.min(), each.max())
        often, rare = group[each == short], group[each == long]
        if short != long and len(often) and len(rare):
            yield often, rare, dict(rare.iloc[0]) | {
                "shorter": short, "runs": min(len(often), len(rare)),
                "keys": (*often["key"], *rare["key"])}


def _at_both_periods(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `_two_periods`, each at its longer and at its shorter period, to tell the setting."""
    return pd.concat([rows, rows.assign(pull_period=rows["shorter"])], ignore_index=True)


def _speedups(
    records: pd.DataFrame, precisions: Sequence[str], algos: Sequence[str] = (),
    env_ids: Sequence[str] = (), setting: Sequence[str] = SETTING, measure: str = "speedup_torch",
) -> pd.DataFrame:
    """`speedups` of these that have a `measure`, of tasks that fp32 actors learned; in the paper's
    setting wherever measured there."""
    found = speedups(measured(records), setting=setting)
    if found.empty:
        return found
    keep = found["precision"].isin([*precisions])
    for column, allowed in (("algo", algos), ("env_id", env_ids)):
        keep &= found[column].isin([*allowed]) if allowed else True
    if measure not in found:
        return found[:0]
    return preferred(found[keep & found["level"].notna() & found[measure].notna()])


def _steps_text(rows: pd.DataFrame) -> str:
    each = (f"{row['task']} {told(row, 'steps_ratio')}" for _, row in rows.iterrows())
    return "steps of fp32 over those here: " + "; ".join(each)


def _range_text(rows: pd.DataFrame, algos: Sequence[str] = ()) -> str:
    """Smallest and largest speed-up over fp32 of torch, then over fp32 of the same runtime."""
    parts = []
    for precision, group in rows.groupby("precision", sort=False):
        over = group["speedup_torch"]
        ends = [group.loc[i] for i in dict.fromkeys([over.idxmin(), over.idxmax()])]
        parts.append(f"{precision} over fp32 torch " + " to ".join(
            f"{told(row, 'speedup_torch')} ({row['task']})" for row in ends))
        if "speedup_ort" in group and group["speedup_ort"].notna().any():
            over_ort = group["speedup_ort"].agg(["min", "max"]).map("{:.2f}".format).unique()
            parts[-1] += f", over fp32 ORT {' to '.join(over_ort)}"
    return "; ".join(parts) + f"; {tasks_told(rows, algos)}"


def _least(rows: pd.DataFrame, name: str) -> Interval:
    return Interval.of(rows.loc[rows[name].idxmin()], name)
