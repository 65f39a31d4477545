"""The rules of the claims on quantization-aware training, over training seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from quarl_nb.report.findings import MIN_EPISODES, NOT_MEASURED, Finding, Verdict, keys_of
from quarl_nb.report.losses import percent
from quarl_nb.report.qat.gains import gains, minmax, ptq, trainings
from quarl_nb.report.seeds import MIN_SEEDS
from quarl_nb.report.stats import ALPHA, Interval, holm

# Of one policy, at the most that its environment gives perhaps, nothing follows for QAT in general.
MIN_POLICIES = 3


def qat_no_loss(
    records: pd.DataFrame, precisions: Sequence[str], min_policies: int = MIN_POLICIES
) -> Finding:
    """Reproduced when every policy trained at each of `precisions` is without loss against fp32.

    Not reproduced when one loses more than 5 % (Holm over policies and widths).
    """
    rows = trainings(records)
    tables, left_out = _decidable(
        [gains(rows, (precision, "minmax", "none")) for precision in precisions])
    table = pd.concat(tables, ignore_index=True)
    if table.empty:
        return NOT_MEASURED
    lost = holm(table["p_loss"].tolist()) <= ALPHA
    kept = (table["p_no_loss"] <= ALPHA).to_numpy()
    text = f"{kept.sum()} of {len(table)} policies without loss, {lost.sum()} lose more than 5 %"
    return _decide(table, bool(kept.all()), bool(lost.any()), text + left_out, min_policies)


def qat_kept_until(
    records: pd.DataFrame, kept_bits: Sequence[int] = (6, 7, 8),
    lost_bits: Sequence[int] = (2, 3, 4), min_policies: int = MIN_POLICIES,
) -> Finding:
    """Reproduced when most policies are without loss at every one of `kept_bits` and lose more than
    5 % at one of `lost_bits` (Bonferroni).

    Not reproduced when most do lose at one of `kept_bits`, or do not at any of `lost_bits`.
    """
    rows = trainings(records)
    tables, left_out = _decidable([gains(rows, minmax(bits)) for bits in (*kept_bits, *lost_bits)])
    indexed = [table.set_index("policy") for table in tables]
    above, below = indexed[: len(kept_bits)], indexed[len(kept_bits) :]
    policies = sorted(set.intersection(*(set(table.index) for table in (*above, *below))))
    if not policies:
        return NOT_MEASURED
    table = pd.concat(t.loc[policies] for t in (*above, *below)).reset_index()

    def p(tables: list[pd.DataFrame], name: str) -> np.ndarray:
        return np.array([t.loc[policies, name].to_numpy(float) for t in tables])

    keeps = p(above, "p_no_loss").max(axis=0) <= ALPHA
    drops = p(below, "p_loss").min(axis=0) * len(below) <= ALPHA
    fails = p(above, "p_loss").min(axis=0) * len(above) <= ALPHA
    stays = p(below, "p_no_loss").max(axis=0) <= ALPHA
    half = len(policies) / 2
    text = (f"{keeps.sum()} of {len(policies)} policies without loss at {_span(kept_bits)} bits, "
            f"{drops.sum()} lose more than 5 % at {_span(lost_bits)}{left_out}")  # fmt: skip
    good = keeps.sum() > half and drops.sum() > half
    return _decide(table, good, fails.sum() > half or stays.sum() > half, text, min_policies)


def qat_beats_ptq(
    records: pd.DataFrame, precision: str = "affine8", min_policies: int = MIN_POLICIES
) -> Finding:
    """Reproduced when QAT earns more than PTQ at `precision` in every policy.

    Not reproduced when in one it gains less than the 5 % that count as a difference (Holm).
    """
    found = gains(trainings(records), (precision, "minmax", "none"), ptq(precision))
    (table,), left_out = _decidable([found])
    if table.empty:
        return NOT_MEASURED
    better = (table["p_gain"] <= ALPHA).to_numpy()
    same = holm(table["p_no_gain"].tolist()) <= ALPHA
    text = (f"QAT earns more than PTQ in {better.sum()} of {len(table)} policies, "
            f"certainly not by 5 % in {same.sum()}{left_out}")  # fmt: skip
    return _decide(table, bool(better.all()), bool(same.any()), text, min_policies)


def qat_beats_fp32(
    records: pd.DataFrame, precision: str = "affine8", min_policies: int = MIN_POLICIES
) -> Finding:
    """Reproduced when QAT at `precision` earns more than fp32 in more than half of the policies.

    Not reproduced when half of them gain less than 5 % (Holm over policies, both).
    """
    (table,), left_out = _decidable([gains(trainings(records), (precision, "minmax", "none"))])
    if table.empty:
        return NOT_MEASURED
    better = holm(table["p_gain"].tolist()) <= ALPHA
    same = holm(table["p_no_gain"].tolist()) <= ALPHA
    text = (f"QAT earns more than fp32 in {better.sum()} of {len(table)} policies, "
            f"certainly not by 5 % in {same.sum()}{left_out}")  # fmt: skip
    half = len(table) / 2
    return _decide(table, better.sum() > half, same.sum() >= half, text, min_policies)


def _decidable(tables: Sequence[pd.DataFrame]) -> tuple[list[pd.DataFrame], str]:
    """`gains` without the policies of too few training seeds, and which those are in words.

    Where no policy has enough of them, all stay, and `_decide` decides nothing.
    """
    fewest = pd.concat(tables).groupby("policy")["seeds"].min()
    few = fewest.index[fewest < MIN_SEEDS]
    if len(few) == len(fewest):
        return [*tables], ""
    names = f" (too few training seeds to count: {', '.join(few)})" if len(few) else ""
    kept = [table[~table["policy"].isin(few)].reset_index(drop=True) for table in tables]
    return kept, names


def _decide(
    table: pd.DataFrame, good: bool, bad: bool, text: str, min_policies: int
) -> Finding:
    """A finding over rows of `gains`, with the row of the largest loss as its interval."""
    worst = table.loc[table["gain"].idxmin()]
    interval = Interval(-worst["gain"], -worst["high"], -worst["low"])
    text += f"; largest loss {percent(interval.value)} ({worst['policy']})"
    seeds, episodes = int(table["seeds"].min()), int(table["episodes"].min())
    verdict: Verdict = "inconclusive"
    if seeds < MIN_SEEDS:
        text += f" (only {seeds} training seed{'s' * (seeds > 1)})"
    elif episodes < MIN_EPISODES:
        text += f" (only {episodes} episodes)"
    elif (policies := table["policy"].nunique()) < min_policies:
        text += f" (only {policies} polic{'y' if policies == 1 else 'ies'})"
    elif bad:
        verdict = "not reproduced"
    elif good:
        verdict = "reproduced"
    keys = keys_of(table)
    return Finding(verdict, text, interval, keys)


def _span(bits: Sequence[int]) -> str:
    return f"{min(bits)} to {max(bits)}"
