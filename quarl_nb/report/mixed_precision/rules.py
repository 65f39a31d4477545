"""What decides the claim about half-precision training."""

from __future__ import annotations

import numpy as np
import pandas as pd

from quarl_nb.report.findings import NOT_MEASURED, Finding, Verdict, keys_of
from quarl_nb.report.losses import paired_losses
from quarl_nb.report.mixed_precision.speedups import PUBLISHED, speedups
from quarl_nb.report.stats import ALPHA, Interval
from quarl_nb.report.untrained import fp32_never_learned


def half_precision_speedup(records: pd.DataFrame, ratio: float = PUBLISHED) -> Finding:
    """Reproduced when a policy trains `ratio` times as fast as in float32 or faster (95 %, training
    step), and its return is without loss (episodes of one training each). The return of a policy
    whose fp32 never learned counts as not measured.

    Not reproduced when none can be that fast, or each that is loses more than 5 %.
    """
    table = speedups(records)
    if table.empty:
        return NOT_MEASURED
    unlearned = fp32_never_learned(records)
    losses = [None if row["policy"] in unlearned else _loss(records, row)
              for _, row in table.iterrows()]  # fmt: skip
    kept = np.array([loss is not None and loss["p_no_loss"] <= ALPHA for loss in losses])
    lost = np.array([loss is not None and loss["p_loss"] <= ALPHA for loss in losses])
    fast = (table["training_low"] >= ratio).to_numpy()
    slow = (table["training_high"] < ratio).to_numpy()
    best = table.loc[table["training"].idxmax()]
    interval = Interval(best["training"], best["training_low"], best["training_high"])
    verdict: Verdict = "inconclusive"
    if (fast & kept).any():
        verdict = "reproduced"
    elif (slow | lost).all():
        verdict = "not reproduced"
    text = (f"training steps {interval} times as fast, policy {best['policy']} in "
            f"{best['precision']} on {best['device']}")  # fmt: skip
    known = sum(loss is not None for loss in losses)
    text += f"; reward compared for {known} of {len(table)}, without loss in {kept.sum()}"
    text += f" (never learned: {', '.join(sorted(unlearned))})" if unlearned else ""
    return Finding(verdict, text, interval, keys_of(table))


def _loss(records: pd.DataFrame, row: pd.Series) -> pd.Series | None:
    """The loss of this policy and precision; None where no reward was measured."""
    if "returns" not in records:
        return None
    same = (records["policy"] == row["policy"]) & (records["device"] == row["device"])
    losses = paired_losses(records[same])
    if losses.empty:
        return None
    found = losses[losses["precision"] == row["precision"]]
    return found.iloc[0] if len(found) else None
