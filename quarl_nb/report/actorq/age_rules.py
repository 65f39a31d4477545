"""The rules that decide what makes the policy that acts older."""

from __future__ import annotations

import pandas as pd

from quarl_nb.report.actorq.findings import of_enough, of_enough_runs
from quarl_nb.report.actorq.parts import step_parts
from quarl_nb.report.actorq.runs import ACTOR, SETTING
from quarl_nb.report.findings import NOT_MEASURED, Finding, decided, measured
from quarl_nb.report.stats import ALPHA, ratio_of_means
from quarl_nb.report.texts import counted


def lower_spi_fresher(records: pd.DataFrame) -> Finding:
    """At the most samples per insert over the fewest: `_older_at_the_most`."""
    return _older_at_the_most(records, "samples_per_insert", "samples per insert")


def rare_pulls_staler(records: pd.DataFrame) -> Finding:
    """At the longest pull period over the shortest: `_older_at_the_most`."""
    return _older_at_the_most(records, "pull_period", "steps from pull to pull")


def _older_at_the_most(records: pd.DataFrame, knob: str, unit: str) -> Finding:
    """Mean age of the acting policy, in updates that the learner has made since, at the most of
    `knob` over that at the least, all else the same: reproduced when surely above 1 wherever enough
    runs are measured, not reproduced when surely below somewhere (Bonferroni)."""
    runs = step_parts(measured(records))
    if runs.empty:
        return NOT_MEASURED
    alike = [name for name in (*SETTING, *ACTOR) if name != knob]
    kinds = [group for _, group in runs.groupby(alike, dropna=False) if group[knob].nunique() > 1]
    if not kinds:
        return NOT_MEASURED
    rows = of_enough(pd.DataFrame([_older(group, knob, ALPHA / len(kinds)) for group in kinds]))
    verdict = decided((rows["low"] > 1).all(), (rows["high"] < 1).any())
    first, last = (rows.loc[rows["older"].agg(end)] for end in ("idxmin", "idxmax"))
    text = (f"the policy that acts is {first['older']:.3g} to {last['older']:.3g} times as old, in "
            f"updates, at {first['most']:g} as at {first['least']:g} {unit}, in "
            f"{counted(len(rows), 'setting')} of {counted(rows['task'].nunique(), 'task')}")
    return of_enough_runs(verdict, rows, text, first["interval"])


def _older(group: pd.DataFrame, knob: str, alpha: float) -> dict[str, object]:
    """Of the runs of one setting and kind of actor."""
    least, most = group[knob].min(), group[knob].max()
    ends = [group[group[knob] == each] for each in (most, least)]
    over, under = ([end["age_mean"].to_numpy(float)] for end in ends)
    together = ratio_of_means(over, under, alpha)
    return {
        "task": group["task"].iloc[0], "least": least, "most": most, "older": together.value,
        "low": together.low, "high": together.high, "interval": ratio_of_means(over, under),
        "runs": min(map(len, ends)), "keys": tuple(pd.concat(ends)["key"]),
    }  # fmt: skip
