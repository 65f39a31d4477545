"""The rule that decides what samples per insert do to the age of the policy that acts."""

from __future__ import annotations

import pandas as pd

from quarl_nb.report.actorq.findings import of_enough_runs
from quarl_nb.report.actorq.parts import step_parts
from quarl_nb.report.actorq.runs import ACTOR, SETTING
from quarl_nb.report.findings import NOT_MEASURED, Finding, decided, measured
from quarl_nb.report.stats import ALPHA, ratio_of_means
from quarl_nb.report.texts import counted

SPI = "samples_per_insert"


def lower_spi_fresher(records: pd.DataFrame) -> Finding:
    """Mean age of the acting policy, in updates that the learner has made since, at the most
    samples per insert over that at the fewest, all else the same: reproduced when surely above 1
    wherever it is measured, not reproduced when surely below somewhere (Bonferroni)."""
    runs = step_parts(measured(records))
    if runs.empty:
        return NOT_MEASURED
    alike = [name for name in (*SETTING, *ACTOR) if name != SPI]
    kinds = [group for _, group in runs.groupby(alike, dropna=False) if group[SPI].nunique() > 1]
    if not kinds:
        return NOT_MEASURED
    rows = pd.DataFrame([_older(group, ALPHA / len(kinds)) for group in kinds])
    verdict = decided((rows["low"] > 1).all(), (rows["high"] < 1).any())
    least, most = (rows.loc[rows["older"].agg(end)] for end in ("idxmin", "idxmax"))
    text = (f"the policy that acts is {least['older']:.3g} to {most['older']:.3g} times as old, in "
            f"updates, at {least['most']:g} as at {least['fewest']:g} samples per insert, in "
            f"{counted(len(rows), 'setting')} of {counted(rows['task'].nunique(), 'task')}")
    return of_enough_runs(verdict, rows, text, least["interval"])


def _older(group: pd.DataFrame, alpha: float) -> dict[str, object]:
    """Of the runs of one setting and kind of actor."""
    fewest, most = group[SPI].min(), group[SPI].max()
    ends = [group[group[SPI] == spi] for spi in (most, fewest)]
    over, under = ([end["age_mean"].to_numpy(float)] for end in ends)
    together = ratio_of_means(over, under, alpha)
    return {
        "task": group["task"].iloc[0], "fewest": fewest, "most": most, "older": together.value,
        "low": together.low, "high": together.high, "interval": ratio_of_means(over, under),
        "runs": min(map(len, ends)), "keys": tuple(pd.concat(ends)["key"]),
    }  # fmt: skip
