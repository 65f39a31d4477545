"""The rules that decide the claims of carbon; what may decide is as for ActorQ's speed.

A learner on a GPU without an energy counter decides nothing: most of what it used is not known.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES, INT8
from quarl_nb.report.actorq.findings import (
    MIN_REDRAWN_RUNS,
    finding,
    missing_tasks,
    preferred,
    range_verdict,
    told,
)
from quarl_nb.report.actorq.runs import SETTING, speedups
from quarl_nb.report.carbon.costs import ALL, costed_runs, emissions, mean_saving
from quarl_nb.report.findings import NOT_MEASURED, Finding, Verdict, decided, measured
from quarl_nb.report.stats import Interval, with_ends


def carbon_range(records: pd.DataFrame, low: float, high: float) -> Finding:
    """Carbon to 95 % reward, fp32 (torch) over int8: the `range_verdict` on `low` to `high`."""
    rows = _ratios(records)
    if rows.empty:
        return NOT_MEASURED
    least = rows.loc[rows["ratio_torch"].idxmin()]
    verdict = range_verdict(rows, "ratio_torch", low, high)
    return _finding(verdict, rows, _text(rows), Interval.of(least, "ratio_torch"))


def carbon_mean(records: pd.DataFrame, factor: float) -> Finding:
    """Its mean over the tasks of Table 2: reproduced when surely halfway from 1 to `factor`, and
    the interval is bounded and reaches `factor` or more: one wide enough to hold every factor
    shows none. Not reproduced when it ends below it."""
    rows = _ratios(records)
    if rows.empty:
        return NOT_MEASURED
    runs = costed_runs(measured(records)).merge(rows[SETTING], on=SETTING)
    mean = mean_saving(runs)
    holds = mean.low >= (1 + factor) / 2 and factor <= mean.high < np.inf
    verdict = "inconclusive" if missing_tasks(rows) else decided(holds, mean.high < factor)
    return _finding(verdict, rows, f"mean {mean} of {_text(rows)}", mean)


def carbon_follows_speed(records: pd.DataFrame) -> Finding:
    """Reproduced when int8's carbon ratio is above 1 by its interval wherever its time ratio is, or
    may be, of all tasks of Table 2, and one is faster for certain; not reproduced when carbon is
    below 1 and time above it on a task, both corrected for all."""
    rows = _ratios(records)
    times = speedups(measured(records))
    if rows.empty or times.empty:
        return NOT_MEASURED
    ends = [*with_ends("speedup_torch"), "speedup_torch_least"]
    rows = rows.merge(times[[*SETTING, "actor", *ends]], on=[*SETTING, "actor"])
    faster, slower = rows["speedup_torch_low"] > 1, rows["speedup_torch_high"] < 1
    # Where time tells neither, a task may be the faster one whose carbon does not follow.
    follows = faster.any() and (slower | (rows["ratio_torch_low"] > 1)).all()
    fails = (rows["speedup_torch_least"] > 1) & (rows["ratio_torch_most"] < 1)
    verdict = decided(follows and not missing_tasks(rows), fails.any())
    text = "; ".join(f"{row['task']} time {told(row, 'speedup_torch')}, carbon "
                     f"{told(row, 'ratio_torch')}" for _, row in rows.iterrows())
    text = f"faster on {faster.sum()} of {len(rows)} tasks; fp32 torch over int8: {text}"
    least = rows.loc[rows["ratio_torch"].idxmin()]
    return _finding(verdict, rows, text, Interval.of(least, "ratio_torch"))


def _finding(verdict: Verdict, rows: pd.DataFrame, text: str, interval: Interval) -> Finding:
    """As `finding`; undecided where the GPU of a learner was not metered."""
    on_gpu = ~rows["budget.device"].isin(["cpu", ""])
    if (on_gpu & ~rows["method"].str.contains("nvml")).any():
        verdict = "inconclusive"
        text += " (the learner's GPU was not metered)"
    return finding(verdict, rows, text, interval, MIN_REDRAWN_RUNS)


def _ratios(records: pd.DataFrame) -> pd.DataFrame:
    """Carbon of int8 actors to the return, in the paper's setting wherever measured there."""
    found = emissions(measured(records), parts=[ALL])
    if found.empty or "ratio_torch" not in found:
        return pd.DataFrame()
    keep = (found["per"] == "return") & (found["actor"] == INT8) & found["ratio_torch"].notna()
    return preferred(found[keep])


def _text(rows: pd.DataFrame) -> str:
    """The ratios over both baselines, 0 being never reached; and how the energy was found."""
    ratios = "; ".join(
        f"{row['task']} {told(row, 'ratio_torch')}"
        + (f" (over fp32 ORT {row['ratio_ort']:.2f})" if row.get("ratio_ort", 0) > 0 else "")
        for _, row in rows.iterrows()
    )
    methods = ", ".join(sorted(set(rows["method"])))
    return f"carbon to the return, {BASELINES['torch']} over int8: {ratios}; energy by {methods}"
