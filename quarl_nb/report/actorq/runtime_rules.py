"""The rules that decide ActorQ's claims of communication and of where the time goes."""

from __future__ import annotations

import pandas as pd

from quarl_nb.report.actorq.findings import (
    finding,
    interval_of,
    missing_tasks,
    preferred,
    tasks_told,
    told,
)
from quarl_nb.report.actorq.parts import by_actor, communication_speedups, step_parts
from quarl_nb.report.actorq.runs import SETTING, learning_runs
from quarl_nb.report.findings import NOT_MEASURED, Finding, Verdict, keys_of, measured
from quarl_nb.report.stats import MARGIN, Interval


def messages_smaller(records: pd.DataFrame, factor: float) -> Finding:
    """Bytes of weights sent in fp32 over sent in 8 bits: reproduced at `factor` or more."""
    rows = _communication(records)
    return _bytes(rows, rows["smaller"].min() >= factor) if len(rows) else NOT_MEASURED


def policy_smaller(records: pd.DataFrame, factor: float) -> Finding:
    """Bytes of the fp32 actors' policy over the int8 actors': above `factor` on every task."""
    runs = learning_runs(measured(records))
    sizes = runs.groupby(["task", "width", "precision"])["payload_bytes"].mean().unstack() \
        if len(runs) else pd.DataFrame()
    if not {"fp32", "int8"} <= set(sizes):
        return NOT_MEASURED
    smaller = (sizes["fp32"] / sizes["int8"]).dropna().rename("smaller").reset_index()
    keys = runs["key"][runs["precision"].isin(["fp32", "int8"])]
    smaller["keys"] = [tuple(keys)] * len(smaller)
    return _bytes(smaller, smaller["smaller"].min() > factor) if len(smaller) else NOT_MEASURED


def communication_helps(records: pd.DataFrame, pull_period: int) -> Finding:
    """Steps per second with weights sent in 8 bits over in fp32, fp32 actors, at `pull_period`.

    Reproduced when the largest gain over tasks is surely above 1, corrected for all of them, not
    reproduced when every one is below 1.
    """
    rows = _communication(records, pull_period)
    if rows.empty:
        return NOT_MEASURED
    most = rows.loc[rows["speedup"].idxmax()]
    verdict: Verdict = "reproduced" if most["speedup_least"] > 1 \
        else "not reproduced" if (rows["speedup_high"] < 1).all() else "inconclusive"
    return finding(verdict, rows, _communication_text(rows), interval_of(most, "speedup"))


def communication_matters_little(records: pd.DataFrame, pull_period: int) -> Finding:
    """As `communication_helps`; reproduced when every ratio is 1 within 5 %, not reproduced when
    one is not, corrected for all tasks."""
    rows = _communication(records, pull_period)
    if rows.empty:
        return NOT_MEASURED
    low, high = rows["speedup_low"], rows["speedup_high"]
    within = (low > 1 - MARGIN) & (high < 1 + MARGIN)
    apart = (rows["speedup_least"] > 1 + MARGIN) | (rows["speedup_most"] < 1 - MARGIN)
    verdict: Verdict = "reproduced" if within.all() else "not reproduced" if apart.any() \
        else "inconclusive"
    most = rows.loc[(rows["speedup"] - 1).abs().idxmax()]
    return finding(verdict, rows, _communication_text(rows), interval_of(most, "speedup"))


def inference_dominates(records: pd.DataFrame, pull_period: int) -> Finding:
    """Figure 4c's parts of fp32 (torch) actors: reproduced when inference is the largest on every
    task, and smaller with int8; not reproduced when on none."""
    pairs = _parts(records, pull_period)
    if pairs.empty:
        return NOT_MEASURED
    others = pairs[["pull", "deserialize", "load"]].max(axis=1)
    holds = (pairs["inference"] > others) & (pairs["inference_int8"] < pairs["inference"])
    text = "inference per step, fp32 torch to int8: " + "; ".join(
        f"{row.task} {1e3 * row.inference:.2f} to {1e3 * row.inference_int8:.2f} ms "
        f"(pull, deserialize, load {1e3 * (row.pull + row.deserialize + row.load):.2f} ms in fp32)"
        for row in pairs.itertuples()
    )
    return _all_or_none(holds, pairs, text)


def transfers_faster(records: pd.DataFrame, pull_period: int) -> Finding:
    """Pull and deserialize time together, fp32 (torch) over int8 actors: above 1 on every task.

    Together, because a payload that is sent ready to open has next to nothing to deserialize.
    """
    pairs = _parts(records, pull_period)
    if pairs.empty:
        return NOT_MEASURED
    fp32 = pairs["pull"] + pairs["deserialize"]
    int8 = pairs["pull_int8"] + pairs["deserialize_int8"]
    text = "pull and deserialize, fp32 torch over int8: " + "; ".join(
        f"{task} {ratio:.1f}x" for task, ratio in zip(pairs["task"], fp32 / int8, strict=True)
    )
    return _all_or_none(fp32 > int8, pairs, text)


def learner_waits_more(records: pd.DataFrame) -> Finding:
    """Share of the run that the learner waits, against the actors' share, fp32 (torch) actors:
    reproduced when it is larger on every task of Table 2, not reproduced when on none."""
    rows = by_actor(step_parts(measured(records)))
    timed = (rows["actor"] == "fp32/torch") & rows["step_s"].notna() if len(rows) else []
    rows = preferred(rows[timed]) if len(rows) else rows
    if rows.empty:
        return NOT_MEASURED
    learner = rows["learner_wait"] / rows["step_s"]
    actor = rows["actor_wait"] / rows["n_actors"] / rows["step_s"]
    text = "waiting, learner and actors: " + "; ".join(
        f"{task} {x:.0%} and {y:.0%}"
        for task, x, y in zip(rows["task"], learner, actor, strict=True)
    )
    verdict: Verdict = "reproduced" if (learner > actor).all() and not missing_tasks(rows) \
        else "not reproduced" if (learner < actor).all() else "inconclusive"
    return finding(verdict, rows, f"{text}; {tasks_told(rows)}")


def _communication(records: pd.DataFrame, pull_period: int = 0) -> pd.DataFrame:
    """8-bit weights to fp32 actors (the paper's q = 32, q_c = 8); torch where measured."""
    found = communication_speedups(step_parts(measured(records)))
    if found.empty:
        return found
    found = found[(found["communication"] == "int8") & (found["precision"] == "fp32")]
    if pull_period:
        found = found[found["pull_period"] == pull_period]
    torch = found["runtime"] == "torch"
    return (found[torch] if torch.any() else found).reset_index(drop=True)


def _communication_text(rows: pd.DataFrame) -> str:
    ratios = "; ".join(f"{row['task']} {told(row, 'speedup')}" for _, row in rows.iterrows())
    return f"steps per second, sent in 8 bits over fp32: {ratios}"


def _bytes(rows: pd.DataFrame, holds: bool) -> Finding:
    """Bytes are exact: neither runs nor the setting matter."""
    least, most = rows["smaller"].min(), rows["smaller"].max()
    text = f"{least:.2f} to {most:.2f} times fewer bytes, on {tasks_told(rows)}"
    return Finding("reproduced" if holds else "not reproduced", text,
                   Interval(least, least, most), keys_of(rows))  # fmt: skip


def _parts(records: pd.DataFrame, pull_period: int) -> pd.DataFrame:
    """fp32 torch actors with what int8 actors spend beside them ("_int8"), a row a task."""
    parts = by_actor(step_parts(measured(records)))
    if parts.empty:
        return parts
    parts = parts[(parts["pull_period"] == pull_period) & (parts["width"] == 2048)
                  & (parts["communication"] == parts["precision"])]  # fmt: skip
    full, int8 = (parts[parts["actor"] == name] for name in ("fp32/torch", "int8/onnxruntime"))
    pairs = full.merge(int8, on=SETTING, suffixes=("", "_int8"))
    pairs["keys"] = [(*x, *y) for x, y in zip(pairs["keys"], pairs["keys_int8"], strict=True)]
    return pairs


def _all_or_none(holds: pd.Series, pairs: pd.DataFrame, text: str) -> Finding:
    """Parts of thousands of steps of an actor: they say the same of it beside any learner."""
    verdict: Verdict = "reproduced" if holds.all() else "not reproduced" if not holds.any() \
        else "inconclusive"
    return Finding(verdict, text, None, tuple(key for keys in pairs["keys"] for key in keys))
