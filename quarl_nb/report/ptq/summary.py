"""Each algorithm and precision over all its policies: interquartile mean and improvement."""

from __future__ import annotations

import numpy as np
import pandas as pd

from quarl_nb.report.losses import paired_returns
from quarl_nb.report.policy_records import ptq_records
from quarl_nb.report.stats import (
    Interval,
    iqm,
    percentile_interval,
    probability_of_improvement,
    stratified_bootstrap,
)

SUMMARY_PRECISIONS = ("fp32", "fp16", "affine8", "int8", "legacy8", "affine4")


def ptq_summary(records: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """Each algorithm and precision over its policies (min-max ranges), a task being a policy.

    Scores are 1 + (return - mean fp32 return) / |mean fp32 return|, the mean of the same episodes:
    precisions may have played fewer than fp32. The interquartile mean of fp32 itself is therefore
    near 1, but not 1: its own row is what the others stand against.

    Returns:
        algo, precision, policies, episodes, iqm, iqm_low, iqm_high, improvement,
        improvement_low, improvement_high: interquartile mean and probability that an episode
        beats one of fp32, with stratified 95 % bootstrap intervals.

    Raises:
        QuarlError: a precision and fp32 are no pair (`losses.paired_returns`).
    """
    scores = _normalized(ptq_records(records, SUMMARY_PRECISIONS, ranges=["minmax"]))
    found = []
    for (algo, precision), group in scores.groupby(["algo", "precision"]):
        tasks = list(group["pair"])
        middle = stratified_bootstrap([pair[0] for pair in tasks], iqm, generator, 1000)
        better = _improvement(tasks, generator)
        found.append({
            "algo": algo, "precision": precision, "policies": len(tasks),
            "episodes": sum(pair.shape[1] for pair in tasks),
            **middle.columns("iqm"), **better.columns("improvement"),
        })
    return pd.DataFrame(found)


def _improvement(tasks: list[np.ndarray], generator: np.random.Generator) -> Interval:
    """Both sides are redrawn independently: drawn in pairs, an episode would meet itself too
    often, and the interval could miss its own estimate."""
    def redrawn(side: int) -> list[np.ndarray]:
        return [generator.choice(task[side], task.shape[1]) for task in tasks]

    draws = [probability_of_improvement(redrawn(0), redrawn(1)) for _ in range(200)]
    whole = probability_of_improvement([t[0] for t in tasks], [t[1] for t in tasks])
    return percentile_interval(whole, np.array(draws))


def _normalized(records: pd.DataFrame) -> pd.DataFrame:
    """algo, precision, pair: scores of the record and of fp32 on its episodes, [2, episodes]."""
    rows = []
    for _, group in records.groupby(["policy", "seed"], dropna=False) if len(records) else ():
        fp32 = group[group["precision"] == "fp32"]
        if fp32.empty:
            continue
        for _, row in group.iterrows():
            shared, returns = paired_returns(fp32.iloc[0], row)
            if (base := shared.mean()) == 0:
                continue
            pair = np.stack([returns, shared])
            rows.append({"algo": row["algo"], "precision": row["precision"],
                         "pair": 1 + (pair - base) / abs(base)})
    return pd.DataFrame(rows, columns=["algo", "precision", "pair"])
