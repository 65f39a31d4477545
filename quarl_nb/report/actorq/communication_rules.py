"""The rules that decide ActorQ's claims of what weights cost to send and to hold.

They are of bytes and of an actor's own step, which no learner on another processor changes. What
messages do to a step is decided `without_drift` of what they do not touch: inference is most of a
step, and from minute to minute changes by more than a message costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from quarl_nb.report.actorq.actors import INT8
from quarl_nb.report.actorq.curves import TASKS
from quarl_nb.report.actorq.findings import missing_tasks, of_enough_runs, tasks_told, told
from quarl_nb.report.actorq.parts import (
    UNTOUCHED,
    communication_speedups,
    step_parts,
    without_drift,
)
from quarl_nb.report.actorq.runs import ACTOR, BUT_PULLS, MACHINE, learning_runs
from quarl_nb.report.actorq.runtime_rules import FP32, actor_parts
from quarl_nb.report.findings import NOT_MEASURED, Finding, decided, keys_of, measured
from quarl_nb.report.stats import ALPHA, MARGIN, Interval, ratio_of_means

ON_ONE_MACHINE = [*BUT_PULLS, *MACHINE]  # what runs at two pull periods have in common
ALIKE = "inference and environment at their means"  # as `without_drift` has them


def messages_smaller(records: pd.DataFrame, factor: float) -> Finding:
    """Bytes of weights sent in fp32 over sent in 8 bits: above `factor` on every task that is
    measured."""
    rows = _communication(step_parts(measured(records)))
    return _bytes(rows, rows["smaller"].min() > factor) if len(rows) else NOT_MEASURED


def policy_smaller(records: pd.DataFrame, factor: float) -> Finding:
    """Bytes of the fp32 actors' policy as it is sent over the int8 actors': above `factor` on every
    task that is measured."""
    runs = learning_runs(measured(records))
    sizes = runs.groupby(["task", "width", "precision"])["payload_bytes"].mean().unstack() \
        if len(runs) else pd.DataFrame()
    if not {"fp32", "int8"} <= set(sizes):
        return NOT_MEASURED
    smaller = (sizes["fp32"] / sizes["int8"]).dropna().rename("smaller").reset_index()
    keys = runs["key"][runs["precision"].isin(["fp32", "int8"])]
    smaller["keys"] = [tuple(keys)] * len(smaller)
    return _bytes(smaller, smaller["smaller"].min() > factor) if len(smaller) else NOT_MEASURED


def communication_helps(records: pd.DataFrame, pull_period: int, factor: float) -> Finding:
    """Steps per second with weights sent in 8 bits over in fp32, fp32 actors, at `pull_period`:
    said to be "up to" `factor`.

    Reproduced when the largest ratio over tasks is surely above 1, corrected for all of them, and
    its interval reaches `factor`; not reproduced when on every task of Table 2 it is surely below
    `factor`, corrected too: a task that is not measured may be the one that was meant.
    """
    rows = _communication(without_drift(actor_parts(records)), pull_period)
    if rows.empty:
        return NOT_MEASURED
    most = rows.loc[rows["speedup"].idxmax()]
    below = (rows["speedup_most"] < factor).all() and not missing_tasks(rows)
    verdict = decided(most["speedup_least"] > 1 and most["speedup_most"] >= factor, below)
    text = _communication_text(rows, pull_period)
    return of_enough_runs(verdict, rows, text, Interval.of(most, "speedup"))


def communication_matters_little(records: pd.DataFrame, pull_period: int) -> Finding:
    """The same ratios; reproduced when every ratio is 1 within 5 %, not reproduced when
    one is not, corrected for all tasks."""
    rows = _communication(without_drift(actor_parts(records)), pull_period)
    if rows.empty:
        return NOT_MEASURED
    low, high = rows["speedup_low"], rows["speedup_high"]
    within = (low > 1 - MARGIN) & (high < 1 + MARGIN)
    apart = (rows["speedup_least"] > 1 + MARGIN) | (rows["speedup_most"] < 1 - MARGIN)
    verdict = decided(within.all(), apart.any())
    most = rows.loc[(rows["speedup"] - 1).abs().idxmax()]
    text = _communication_text(rows, pull_period)
    return of_enough_runs(verdict, rows, text, Interval.of(most, "speedup"))


def gains_by_scenario(records: pd.DataFrame, heavy: int, rare: int) -> Finding:
    """What quantizing communication gains over fp32 (torch) actors, and what quantizing compute
    gains beyond that (Figure 4: q = 8 sends 8 bits too), pulling every `heavy` steps and `rare`.

    Reproduced when on every task the former gains more at `heavy` and the latter at `rare`, not
    reproduced when on one task either gains less; corrected for all tasks and both. An actor's
    inference is the same at both: its share of a step is what differs. Runs of a kind follow one
    another, and where their inference drifted its mean is not known: intervals hold for all of it.
    """
    parts = _with_drift(actor_parts(records))
    rows = []
    groups = parts.groupby(ON_ONE_MACHINE, sort=False, dropna=False) if len(parts) else ()
    for setting, group in groups:
        runs = {key: part for key, part in group.groupby(["actor", "communication", "pull_period"])}
        drifts = {actor: [*part["drift_s"].agg(["min", "max"])]
                  for actor, part in group.groupby("actor")}  # fmt: skip
        gains = [_gain_of_gain(runs, drifts, *sides, *periods) for sides, periods in (
            (((FP32, "fp32"), (FP32, "int8")), (heavy, rare)),
            (((FP32, "int8"), (INT8, "int8")), (rare, heavy)))]  # fmt: skip
        if all(gains):
            rows.append(dict(zip(ON_ONE_MACHINE, setting, strict=True)) | {
                "pull_period": heavy, "runs": min(map(len, runs.values())),
                "keys": tuple(group["key"]), "communication": gains[0], "compute": gains[1],
            })
    if not rows:
        return NOT_MEASURED
    found = pd.DataFrame(rows)
    every = [gain for row in rows for gain in (row["communication"], row["compute"])]
    verdict = decided(all(gain.low > 1 for gain in every), any(gain.high < 1 for gain in every))
    text = "; ".join(f"{row['task']} communication {row['communication'].value:.2f}x, compute "
                     f"{row['compute'].value:.2f}x" for row in rows)
    text = (f"gain of communication at {heavy} over that at {rare} steps, of compute at {rare} "
            f"over that at {heavy}: {text}; {ALIKE}; {tasks_told(found)}")
    return of_enough_runs(verdict, found, text)


def _communication(parts: pd.DataFrame, pull_period: int = 0) -> pd.DataFrame:
    """8-bit weights to fp32 actors (the paper's q = 32, q_c = 8); torch where measured."""
    found = communication_speedups(parts)
    if found.empty:
        return found
    found = found[(found["communication"] == "int8") & (found["precision"] == "fp32")]
    if pull_period:
        found = found[found["pull_period"] == pull_period]
    torch = found["runtime"] == "torch"
    return (found[torch] if torch.any() else found).reset_index(drop=True)


def _communication_text(rows: pd.DataFrame, pull_period: int) -> str:
    ratios = "; ".join(f"{row['task']} {told(row, 'speedup')}" for _, row in rows.iterrows())
    return (f"pulling every {pull_period} steps, steps per second of fp32 actors, weights sent in "
            f"8 bits over sent in fp32: {ratios}; {ALIKE}; {tasks_told(rows)}")


def _bytes(rows: pd.DataFrame, holds: bool) -> Finding:
    """Bytes are exact: neither runs nor the setting matter."""
    least, most = rows["smaller"].min(), rows["smaller"].max()
    text = f"{least:.2f} to {most:.2f} times fewer bytes, on {tasks_told(rows)}"
    return Finding("reproduced" if holds else "not reproduced", text,
                   Interval(least, math.nan, math.nan), keys_of(rows))  # fmt: skip


def _with_drift(parts: pd.DataFrame) -> pd.DataFrame:
    """`without_drift`, and drift_s: how far from that mean of `UNTOUCHED` the runs of the same
    communication and pull period, which follow one another, have theirs."""
    if parts.empty:
        return parts
    even = without_drift(parts)
    off_s = parts[UNTOUCHED].sum(axis=1) - even[UNTOUCHED].sum(axis=1)
    alike = [parts[name] for name in (*ON_ONE_MACHINE, *ACTOR, "pull_period")]
    return even.assign(drift_s=off_s.groupby(alike, dropna=False).transform("mean"))


def _gain_of_gain(
    runs: Mapping[Any, pd.DataFrame], drifts: Mapping[Any, Sequence[float]],
    plain: tuple[str, str], quantized: tuple[str, str], here: int, there: int,
) -> Interval | None:
    """How many times more `quantized` (actor, communication) gains over `plain` at the pull period
    `here` than at `there`; None where one is not measured.

    Args:
        drifts: the least and the most drift_s of each kind of actor; the interval is as wide as
            those at any of them, together.
    """
    wanted = [(*plain, here), (*quantized, there), (*quantized, here), (*plain, there)]
    if not {*wanted} <= {*runs}:
        return None
    times = [runs[key]["actor_step_s"].to_numpy() for key in wanted]
    kinds = dict.fromkeys((plain[0], quantized[0]))
    each = []
    for drift in product(*(drifts[kind] for kind in kinds)):
        shift = dict(zip(kinds, drift, strict=True))
        moved = [s + shift[key[0]] for s, key in zip(times, wanted, strict=True)]
        each.append(ratio_of_means(moved[:2], moved[2:], ALPHA / (2 * TASKS)))
    value = ratio_of_means(times[:2], times[2:]).value
    return Interval(value, min(one.low for one in each), max(one.high for one in each))
