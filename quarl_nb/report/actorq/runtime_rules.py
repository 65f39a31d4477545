"""The rules that decide ActorQ's claims of where the time goes."""

from __future__ import annotations

import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES, INT8
from quarl_nb.report.actorq.curves import TASKS
from quarl_nb.report.actorq.findings import (
    MIN_RUNS,
    finding,
    missing_tasks,
    preferred,
    tasks_told,
)
from quarl_nb.report.actorq.parts import step_parts
from quarl_nb.report.actorq.runs import ACTOR, SETTING
from quarl_nb.report.findings import NOT_MEASURED, Finding, decided, measured
from quarl_nb.report.seeds import over_seeds
from quarl_nb.report.stats import ALPHA, Interval, mean_ratio

FP32 = BASELINES["torch"]
TRANSFERS = ["pull", "deserialize", "load"]


def inference_dominates(records: pd.DataFrame, pull_period: int) -> Finding:
    """Figure 4c's parts of fp32 (torch) actors: reproduced when inference surely takes more than
    any other on every task, and with int8 less; not reproduced when surely not on any."""
    pairs = _pairs(records, pull_period)
    ratios = []
    for _, full, int8 in pairs:
        others = (full[full[TRANSFERS].mean().idxmax()], int8["inference"])
        ratios.append([mean_ratio(full["inference"].to_numpy(), other.to_numpy(), ALPHA / TASKS)
                       for other in others])  # fmt: skip
    text = "inference per step, fp32 torch to int8: " + "; ".join(
        f"{task} {1e3 * full['inference'].mean():.2f} to {1e3 * int8['inference'].mean():.2f} ms "
        f"(pull, deserialize, load {1e3 * full[TRANSFERS].sum(axis=1).mean():.2f} ms in fp32)"
        for task, full, int8 in pairs
    )
    return _of_an_actor(ratios, pairs, text)


def transfers_faster(records: pd.DataFrame, pull_period: int) -> Finding:
    """Pull and deserialize time together, fp32 (torch) over int8 actors: surely above 1 on every
    task; not reproduced when surely below on all.

    Together, because a payload that is sent ready to open has next to nothing to deserialize.
    """
    pairs = _pairs(records, pull_period)
    ratios = []
    for _, *runs in pairs:
        full, int8 = (side[["pull", "deserialize"]].sum(axis=1).to_numpy() for side in runs)
        ratios.append(mean_ratio(full, int8, ALPHA / TASKS))
    text = "pull and deserialize, fp32 torch over int8: " + "; ".join(
        f"{task} {ratio.value:.1f}x" for (task, *_), ratio in zip(pairs, ratios, strict=True)
    )
    return _of_an_actor([[ratio] for ratio in ratios], pairs, text)


def learner_waits_more(records: pd.DataFrame) -> Finding:
    """Share of the run that the learner waits, less the actors' share, fp32 (torch) actors:
    reproduced when surely above 0 on every task of Table 2, not reproduced when surely below on
    one (Student's t over runs, corrected for all tasks)."""
    parts = step_parts(measured(records))
    timed = (parts["actor"] == FP32) & parts["step_s"].notna() if len(parts) else parts
    if not timed.any(axis=None):
        return NOT_MEASURED
    runs = preferred(parts[timed])
    runs["learner"] = runs["learner_wait"] / runs["step_s"]
    runs["actors"] = runs["actor_wait"] / runs["n_actors"] / runs["step_s"]
    groups = [group for _, group in runs.groupby([*SETTING, *ACTOR], sort=False, dropna=False)]
    more = [(group["learner"] - group["actors"]).tolist() for group in groups]
    surely = [over_seeds(each, ALPHA / TASKS) for each in more]
    rows = pd.DataFrame([dict(group.iloc[0]) | {"runs": len(group), "keys": tuple(group["key"])}
                         for group in groups])  # fmt: skip
    more_on_all = all(each.low > 0 for each in surely) and not missing_tasks(rows)
    verdict = decided(more_on_all, any(each.high < 0 for each in surely))
    text = "waiting, learner and actors: " + "; ".join(
        f"{group['task'].iloc[0]} {group['learner'].mean():.0%} and {group['actors'].mean():.0%}"
        for group in groups
    )
    least = min(map(over_seeds, more), key=lambda each: each.value)
    return finding(verdict, rows, f"{text}; {tasks_told(rows)}", least)


def actor_parts(records: pd.DataFrame) -> pd.DataFrame:
    """`step_parts` of the paper's policy, 2048 wide."""
    parts = step_parts(measured(records))
    return parts[(parts["width"] == 2048) & parts["step_s"].notna()] if len(parts) else parts


def _pairs(
    records: pd.DataFrame, pull_period: int
) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Task, the runs of fp32 (torch) actors and those of int8 ones in the same setting, weights
    sent as they compute."""
    parts = actor_parts(records)
    if parts.empty:
        return []
    parts = parts[(parts["pull_period"] == pull_period)
                  & (parts["communication"] == parts["precision"])]  # fmt: skip
    found = []
    for _, group in parts.groupby(SETTING, sort=False, dropna=False):
        full, int8 = (group[group["actor"] == name] for name in (FP32, INT8))
        if len(full) and len(int8):
            found.append((str(group["task"].iloc[0]), full, int8))
    return found


def _of_an_actor(
    ratios: list[list[Interval]], pairs: list[tuple[str, pd.DataFrame, pd.DataFrame]], text: str
) -> Finding:
    """The verdict on ratios that are to be above 1 on every task. The learner that they were
    measured beside does not matter where, as in the paper, it works on another processor."""
    if not pairs:
        return NOT_MEASURED
    both = [pd.concat(runs) for _, *runs in pairs]
    keys = tuple(key for runs in both for key in runs["key"])
    fewest = min(len(runs) for _, *sides in pairs for runs in sides)
    verdict = decided(all(r.low > 1 for task in ratios for r in task),
                      all(any(r.high < 1 for r in task) for task in ratios))  # fmt: skip
    text += f"; {tasks_told(pd.concat(both))}"
    if fewest < MIN_RUNS:
        verdict, text = "inconclusive", f"{text} (only {fewest} of {MIN_RUNS} runs)"
    return Finding(verdict, text, None, keys)
