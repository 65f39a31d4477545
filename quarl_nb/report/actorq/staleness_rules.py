"""The rules that decide ActorQ's claims about how often actors pull.

Which runs may decide is in `quarl_nb.report.actorq.findings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.curves import on_grid
from quarl_nb.report.actorq.findings import MIN_REDRAWN_RUNS, finding, of_enough, preferred, told
from quarl_nb.report.actorq.knobs import setting_told
from quarl_nb.report.actorq.runs import (
    ACTOR,
    BUT_PULLS,
    MACHINE,
    learning_runs,
    return_losses,
    steps_ratio,
)
from quarl_nb.report.findings import NOT_MEASURED, Finding, decided, measured
from quarl_nb.report.pvalues import holm
from quarl_nb.report.stats import ALPHA, Interval, named_generator
from quarl_nb.report.texts import percent


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
    each = (f"{row['task']} {told(row, 'ratio')}" for _, row in found.iterrows())
    text = f"steps at {periods[1]} over {periods[0]}: " + "; ".join(each)
    least = Interval.of(found.loc[found["ratio"].idxmin()], "ratio")
    return finding(verdict, _at_both_periods(found), text, least, MIN_REDRAWN_RUNS)


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
