"""Which of ActorQ's runs may decide a claim, and how a finding tells them.

A verdict on time, waiting or convergence needs the paper's setting (section 3) and three runs of
each kind, five where redrawn runs give the interval; measured elsewhere the finding tells its
numbers and setting and stays inconclusive, unless it shows what is only claimed to be possible. One
on what an actor's own step costs needs the runs alone. The smoke profile decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.knobs import papers_setting, setting_label
from quarl_nb.report.actorq.tables import interval_text
from quarl_nb.report.findings import Finding, Verdict, keys_of
from quarl_nb.report.paper import published
from quarl_nb.report.stats import Interval

MIN_RUNS = 3  # "average over at least 3 runs", section 3
# Time to a return is that of redrawn, averaged curves: three runs make ten averages, too few to
# tell how much those of others would differ.
MIN_REDRAWN_RUNS = 5


def preferred(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows in the paper's setting that are of enough runs to be told, if there are any, else
    all that are, else all.

    Args:
        rows: of settings, with `runs` and, where they are compared with others, `base_runs`.
    """
    own = papers_setting(rows) & (_fewest_runs(rows) >= MIN_RUNS)
    return rows[own].reset_index(drop=True) if own.any() else of_enough(rows)


def of_enough(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are of enough runs to be told, if there are any, else all: see `preferred`."""
    enough = _fewest_runs(rows) >= MIN_RUNS
    return rows[enough if enough.any() else slice(None)].reset_index(drop=True)


def _fewest_runs(rows: pd.DataFrame) -> pd.Series:
    return rows.filter(["runs", "base_runs"]).min(axis=1)


def finding(
    verdict: Verdict, rows: pd.DataFrame, text: str, interval: Interval | None = None,
    min_runs: int = MIN_RUNS, possible: bool = False,
) -> Finding:
    """The verdict, if the rows are in the paper's setting and of enough runs (`of_enough_runs`).

    Args:
        possible: the claim is that something may happen: it is reproduced in any setting.
    """
    found = of_enough_runs(verdict, rows, text, interval, min_runs)
    other = rows[~papers_setting(rows)]
    if other.empty:
        return found
    told_where = f"{found.measured} (not the paper's setting: {setting_label(other)})"
    if possible and found.verdict == "reproduced":
        return replace(found, measured=told_where)
    return replace(found, verdict="inconclusive", measured=told_where)


def of_enough_runs(
    verdict: Verdict, rows: pd.DataFrame, text: str, interval: Interval | None = None,
    min_runs: int = MIN_RUNS,
) -> Finding:
    """The verdict, if the rows are of `min_runs` runs at least, as are the fp32 ones that they are
    compared with (`base_runs`).

    Enough for what an actor's own step costs: the learner that it was measured beside does not
    matter where, as in the paper, it works on another processor.
    """
    fewest = _fewest_runs(rows).min()
    if fewest < min_runs:
        verdict = "inconclusive"
        text += f" (as few as {fewest:.0f} runs of a kind, where {min_runs} decide)"
    return Finding(verdict, text, interval, keys_of(rows))


def missing_tasks(rows: pd.DataFrame, algos: Sequence[str] = ()) -> set[str]:
    """The tasks of Table 2 (of `algos`, if given) that `rows` have not."""
    table = published("table2")
    tasks = table["task"][table["algo"].isin([*algos])] if algos else table["task"]
    return set(tasks) - set(rows["task"])


def every_task(
    rows: pd.DataFrame, precisions: Sequence[str], algos: Sequence[str] = ()
) -> bool:
    """Whether each task of Table 2 (of `algos`) is measured in each of these precisions."""
    return not any(missing_tasks(rows[rows["precision"] == each], algos) for each in precisions)


def unmeasured_told(rows: pd.DataFrame, precisions: Sequence[str]) -> str:
    """The precisions that no task is measured in, as "; without fp16"."""
    absent = [precision for precision in precisions if precision not in {*rows["precision"]}]
    return f"; without {', '.join(absent)}" if absent else ""


def range_verdict(
    rows: pd.DataFrame, name: str, low: float, high: float, algos: Sequence[str] = ()
) -> Verdict:
    """On a published range of the ratio `name`, given its intervals, a row a task.

    Reproduced when every interval is above 1, that of the smallest ratio over tasks holds `low` and
    that of the largest `high`. Not reproduced when the smallest or the largest ratio cannot be that
    by the intervals that hold for all tasks at once: where one task is told well and another badly,
    the smallest estimate need not be of the task whose ratio is the smallest. Inconclusive while a
    task of Table 2 is missing, or where fp32 alone never reached the return of one.
    """
    ends = [(rows.loc[rows[name].idxmin()], low), (rows.loc[rows[name].idxmax()], high)]
    if missing_tasks(rows, algos) or not np.isfinite(ends[1][0][name]):
        return "inconclusive"
    together = rows[[f"{name}_least", f"{name}_most"]]
    for (least, most), end in ((together.min(), low), (together.max(), high)):
        if not least <= end <= most:
            return "not reproduced"
    holds = all(row[f"{name}_low"] <= end <= row[f"{name}_high"] for row, end in ends)
    return "reproduced" if holds and (rows[f"{name}_low"] > 1).all() else "inconclusive"


def tasks_told(rows: pd.DataFrame, algos: Sequence[str] = ()) -> str:
    """As "2 of 11 tasks"."""
    n = rows["task"].nunique()
    return f"{n} of {n + len(missing_tasks(rows, algos))} tasks"


def told(row: pd.Series, name: str) -> str:
    """`interval_text` for the words of a verdict, which are plain ASCII."""
    return interval_text(row, name, infinity="inf")
