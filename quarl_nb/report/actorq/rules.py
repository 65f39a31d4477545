"""The rules that decide ActorQ's claims of speed and convergence.

Which runs may decide is in `quarl_nb.report.actorq.findings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.findings import (
    MIN_REDRAWN_RUNS,
    every_task,
    finding,
    missing_tasks,
    preferred,
    range_verdict,
    tasks_told,
    told,
    unmeasured_told,
)
from quarl_nb.report.actorq.runs import ANYWHERE, SETTING, speedups
from quarl_nb.report.findings import NOT_MEASURED, Finding, decided, measured
from quarl_nb.report.pvalues import at_least, holm, least_p
from quarl_nb.report.stats import ALPHA, MARGIN, Interval
from quarl_nb.report.texts import counted, percent


def speedup_above(
    records: pd.DataFrame, precisions: Sequence[str], factor: float, exceptions: int = 0,
    algos: Sequence[str] = (),
) -> Finding:
    """Time to 95 % reward, fp32 (torch) over actors of every one of `precisions`, on Table 2's
    tasks (those of `algos`).

    Reproduced when in each precision the intervals of all tasks but `exceptions` are above
    `factor`, not reproduced when in one precision those of more tasks are below it, corrected for
    all tasks.
    """
    rows = _speedups(records, precisions, algos)
    if rows.empty:
        return NOT_MEASURED

    def most_missed(missed: pd.Series) -> int:
        # A task may have several rows: of two GPUs, or of two pull periods.
        by_task = missed.groupby([rows["precision"], rows["task"]]).any()
        return int(by_task.groupby("precision").sum().max())

    above = most_missed(rows["speedup_torch_low"] <= factor) <= exceptions
    below = most_missed(rows["speedup_torch_most"] < factor) > exceptions
    verdict = decided(above and every_task(rows, precisions, algos), below)
    text = _range_text(rows, algos) + unmeasured_told(rows, precisions)
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
    losing = counted(int(lost.sum()), "loses", "lose")
    text = (f"{int(kept.sum())} of {len(rows)} without loss of {of}, {losing} more than 5 %, on "
            f"{tasks_told(rows)}; largest loss {percent(worst[measure])} "
            f"({worst['task']}, {worst['precision']})")  # fmt: skip
    text += _too_few_told(rows, "a loss") + unmeasured_told(rows, precisions)
    return finding(verdict, rows, text, Interval.of(worst, measure))


def _too_few_told(rows: pd.DataFrame, what: str) -> str:
    # Pairs that all agree are as certain as that many can be.
    most_pairs = int(rows[["runs", "base_runs"]].min(axis=1).max())
    if len(rows) * least_p(most_pairs) <= ALPHA:
        return ""
    comparisons = counted(len(rows), "comparison")
    return f" (too few runs for {what} to show, corrected for {comparisons})"


def _by_task(rows: pd.DataFrame, p_value: str) -> Iterator[np.ndarray]:
    """Of each precision one p-value a task: the largest of a task of several rows, which counts
    once, as one that was measured at two pull periods."""
    each = rows[p_value].fillna(1).groupby([rows["precision"], rows["task"]]).max()
    for _, of_tasks in each.groupby("precision"):
        yield of_tasks.to_numpy(float)


def returns_gained_somewhere(
    records: pd.DataFrame, precision: str, algos: Sequence[str]
) -> Finding:
    """Reproduced when the final return is above the fp32 one on a task of each of `algos` (Holm
    over tasks), else not reproduced when with one of them it gains less than 5 % on every task of
    Table 2 (Bonferroni over `algos`)."""
    rows = _speedups(records, [precision], algos, (), ANYWHERE, "final_loss")
    if rows.empty:
        return NOT_MEASURED
    gained = holm(rows["final_loss_p_gain"].fillna(1).tolist()) <= ALPHA
    largest_p = rows["final_loss_p_no_gain"].fillna(1).groupby(rows["algo"]).max()
    nowhere = largest_p.min() <= ALPHA / len(algos) and not missing_tasks(rows, algos)
    verdict = decided({*rows["algo"][gained]} >= {*algos}, nowhere)
    best = rows.loc[rows["final_loss"].idxmin()]
    gain, small = -Interval.of(best, "final_loss"), rows["final_loss_p_no_gain"] <= ALPHA
    text = (f"{int(gained.sum())} of {len(rows)} certainly end with a higher return than fp32, "
            f"{small.sum()} certainly not by 5 %, on {tasks_told(rows, algos)}; largest gain "
            f"{percent(gain.value)} ({best['task']})")  # fmt: skip
    return finding(verdict, rows, text + _too_few_told(rows, "a gain"), gain)


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
