"""The rules of the claims on quantization-aware training, over training seeds.

A policy whose fp32 never learned (`untrained.never_learned`) loses nothing by quantization and
counts for no claim of "no loss"; for one of "better", it counts where its QAT did learn. Nor does
one count there that earns the same either way with every seed, as at the most its task gives. Of a
policy that counts, the seeds do that learned in fp32 or in QAT (`of_learned_seeds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from quarl_nb.report.findings import MIN_EPISODES, NOT_MEASURED, Finding, Verdict, keys_of
from quarl_nb.report.pvalues import at_least, holm
from quarl_nb.report.qat.gains import (
    FP32,
    W8A8,
    W8A8_LABEL,
    Way,
    gains,
    minmax,
    of_learned_seeds,
    ptq,
    trained_in,
    trainings,
)
from quarl_nb.report.seeds import MIN_SEEDS
from quarl_nb.report.stats import ALPHA, Interval
from quarl_nb.report.texts import counted, percent
from quarl_nb.report.untrained import leave_out, none_learned

# Of one policy, at the most that its environment gives perhaps, nothing follows for QAT in general.
MIN_POLICIES = 3
# "Until 5/6-bit quantization": 5 bits may keep the return or lose it.
KEPT_BITS, LOST_BITS = (6, 7, 8), (2, 3, 4)


def qat_no_loss(records: pd.DataFrame, bits: int, looks: int = 1) -> Finding:
    """Reproduced when most policies trained at `bits` are without loss against fp32.

    Not reproduced when at least half of them lose more than 5 % (`at_least`, both).

    Args:
        looks: with how many numbers of training seeds that was looked at, where they were added
            because it had been left open: each test is at 5 % divided by it (Bonferroni).
    """
    rows = trainings(records)
    found = _gains(rows, minmax(bits))
    unlearned = _unlearned(rows, [FP32])
    (table,), left_out = _decidable([found], unlearned)
    if table.empty:
        return _nothing([found], unlearned)
    kept, lost = (at_least(table[p], ALPHA / looks) for p in ("p_no_loss", "p_loss"))
    losing = counted(lost, "loses", "lose")
    text = f"surely {kept} of {len(table)} policies without loss, {losing} more than 5 %"
    half = len(table) / 2
    return _decide(table, kept > half, lost >= half, text + left_out)


def qat_kept_until(records: pd.DataFrame) -> Finding:
    """Reproduced when most policies are without loss at every one of `KEPT_BITS` and lose more than
    5 % at one of `LOST_BITS` (Bonferroni over bits, `at_least` over policies).

    Not reproduced when most do lose at one of `KEPT_BITS`, or do not at any of `LOST_BITS`.
    """
    rows = trainings(records)
    found = [_gains(rows, minmax(bits)) for bits in (*KEPT_BITS, *LOST_BITS)]
    unlearned = _unlearned(rows, [FP32])
    tables, left_out = _decidable(found, unlearned)
    indexed = [table.set_index("policy") for table in tables]
    above, below = indexed[: len(KEPT_BITS)], indexed[len(KEPT_BITS) :]
    policies = sorted(set.intersection(*(set(table.index) for table in (*above, *below))))
    if not policies:
        return _nothing(found, unlearned)
    table = pd.concat(t.loc[policies] for t in (*above, *below)).reset_index()

    def p(tables: list[pd.DataFrame], name: str) -> np.ndarray:
        return np.array([t.loc[policies, name].to_numpy(float) for t in tables])

    keeps, stays = p(above, "p_no_loss").max(axis=0), p(below, "p_no_loss").max(axis=0)
    drops = np.minimum(p(below, "p_loss").min(axis=0) * len(below), 1)
    fails = np.minimum(p(above, "p_loss").min(axis=0) * len(above), 1)
    half, both = len(policies) / 2, at_least(np.maximum(keeps, drops))
    losing = counted(at_least(drops), "loses", "lose")
    text = (f"surely {at_least(keeps)} of {len(policies)} policies without loss at "
            f"{_span(KEPT_BITS)} bits, {losing} more than 5 % at {_span(LOST_BITS)}, "
            f"{both} do both{left_out}")  # fmt: skip
    bad = max(at_least(fails, ALPHA / 2), at_least(stays, ALPHA / 2)) > half
    return _decide(table, both > half, bad, text)


def qat_beats_ptq(records: pd.DataFrame) -> Finding:
    """Reproduced when QAT earns more than PTQ at 8 bits in every policy.

    Not reproduced when in one it does not certainly gain, and certainly less than the 5 % that
    count as a difference (Holm). PTQ is the paper's 8*, of weights; that of activations too is
    named where it is recorded.
    """
    rows, way = trainings(records), minmax(8)
    found = _gains(rows, way, ptq())
    unlearned = _unlearned(rows, [FP32, way])
    (table,), left_out = _decidable([found], unlearned)
    if table.empty:
        return _nothing([found], unlearned)
    table, tied = _without_ties(table)
    better = (table["p_gain"] <= ALPHA).to_numpy()
    small = holm(table["p_no_gain"].tolist()) <= ALPHA
    same = small & ~better
    text = (f"QAT certainly earns more than PTQ in {better.sum()} of {len(table)} policies, "
            f"certainly not by 5 % in {small.sum()}{_named(table['policy'][small])}"
            f"{left_out}{tied}")
    text += _beside_w8a8(_gains(rows, way, ptq(W8A8)), set(table["policy"]))
    good, bad = bool(better.all()), bool(same.any())
    return _decide(table, good, bad, text, "smallest gain")


def qat_beats_fp32(records: pd.DataFrame) -> Finding:
    """Reproduced when QAT at 8 bits earns more than fp32 in more than half of the policies.

    Not reproduced when half of them gain less than 5 %, and do not certainly gain (`at_least`).
    """
    rows, way = trainings(records), minmax(8)
    found = _gains(rows, way)
    unlearned = _unlearned(rows, [FP32, way])
    (table,), left_out = _decidable([found], unlearned)
    if table.empty:
        return _nothing([found], unlearned)
    table, tied = _without_ties(table)
    p_gain, p_small = table["p_gain"].to_numpy(float), table["p_no_gain"].to_numpy(float)
    better, small = at_least(p_gain), at_least(p_small)
    same = at_least(np.where(p_gain <= ALPHA, 1.0, p_small))
    text = (f"QAT surely earns more than fp32 in {better} of {len(table)} policies, "
            f"not by 5 % in {small}{left_out}{tied}")  # fmt: skip
    half = len(table) / 2
    return _decide(table, better > half, same >= half, text, "smallest gain")


def qat_sometimes_beats_fp32(
    records: pd.DataFrame, bits: Sequence[int] = range(2, 9)
) -> Finding:
    """Reproduced when QAT earns more than fp32 in one policy, however few there are, at one of
    `bits` (Holm over policies and widths).

    Not reproduced when it certainly gains less than 5 % in every policy at every width: of those
    that were not trained at, nothing is known.
    """
    rows, ways = trainings(records), [minmax(each) for each in bits]
    found = [_gains(rows, way) for way in ways]
    unlearned = _unlearned(rows, [FP32, *ways])
    tables, left_out = _decidable(found, unlearned)
    table = pd.concat(tables, ignore_index=True)
    if table.empty:
        return _nothing(found, unlearned)
    table, tied = _without_ties(table)
    policies = table["policy"]
    better = pd.Series(holm(table["p_gain"].tolist()) <= ALPHA).groupby(policies).any()
    small = (table["p_no_gain"] <= ALPHA).groupby(policies).sum() == len(ways)
    text = (f"QAT certainly earns more than fp32 at one of {_span(bits)} bits in {better.sum()} of "
            f"{len(better)} policies, certainly not by 5 % at any in {small.sum()}{left_out}{tied}")
    good, bad = bool(better.any()), bool(small.all() and not better.any())
    return _decide(table, good, bad, text, "surest gain", 1 if good else MIN_POLICIES)


def _gains(rows: pd.DataFrame, way: Way, reference: Way = FP32) -> pd.DataFrame:
    """`gains` of the `trainings` over the seeds that learned in `way` or in float32."""
    pair = of_learned_seeds(pd.concat([trained_in(rows, each) for each in (FP32, way)]))
    return gains(rows.merge(pair[["policy", "seed"]].drop_duplicates()), way, reference)


def _unlearned(rows: pd.DataFrame, ways: Sequence[Way]) -> set[str]:
    """The policies that learned in none of these ways of training."""
    found = []
    for way in ways:
        learned = trained_in(rows, way).groupby("policy")["learned"].any()
        found.append({*learned.index[~learned.astype(bool)]})
    return set.intersection(*found)


def _decidable(
    tables: Sequence[pd.DataFrame], unlearned: set[str]
) -> tuple[list[pd.DataFrame], str]:
    """`gains` without policies that never learned or with too few seeds that did, and their names.

    Where no policy has enough of them, all stay, and `_decide` decides nothing.
    """
    _, left_out = leave_out(pd.concat(tables), unlearned)
    tables = [leave_out(table, unlearned)[0] for table in tables]
    fewest = pd.concat(tables).groupby("policy")["seeds"].min()
    few = fewest.index[fewest < MIN_SEEDS]
    if len(few) == len(fewest):
        return tables, left_out
    if len(few):
        left_out += f" (fewer than {MIN_SEEDS} training seeds that learned: {', '.join(few)})"
    return [table[~table["policy"].isin(few)].reset_index(drop=True) for table in tables], left_out


def _without_ties(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """`gains` without policies that gain exactly nothing with every seed, at every width, and
    their names.

    Where all do, all stay: their p-values decide nothing.
    """
    tied = (table["gain_low"] == 0) & (table["gain_high"] == 0)
    tied = tied.groupby(table["policy"]).transform("all")
    if not tied.any() or tied.all():
        return table, ""
    names = ", ".join(table["policy"][tied].unique())
    return table[~tied].reset_index(drop=True), f" (the same return either way: {names})"


def _named(policies: pd.Series) -> str:
    return f" ({', '.join(policies)})" if len(policies) else ""


def _nothing(tables: Sequence[pd.DataFrame], unlearned: set[str]) -> Finding:
    """Of `gains` that leave no policy to count: none learned, or none was measured."""
    table = pd.concat(tables)
    everyone = set(table["policy"])
    return none_learned(table) if everyone and everyone <= unlearned else NOT_MEASURED


def _beside_w8a8(found: pd.DataFrame, policies: set[str]) -> str:
    """The same in words against PTQ that quantizes what QAT does; decides nothing."""
    found = found[found["policy"].isin(policies)]
    if found.empty:
        return ""
    better = (found["p_gain"] <= ALPHA).sum()
    same = (holm(found["p_no_gain"].tolist()) <= ALPHA).sum()
    return (f" (than {W8A8_LABEL}, of weights and activations as QAT: in {better} of {len(found)}, "
            f"certainly not by 5 % in {same})")  # fmt: skip


def _decide(
    table: pd.DataFrame, good: bool, bad: bool, text: str,
    told: Literal["largest loss", "smallest gain", "surest gain"] = "largest loss",
    min_policies: int = MIN_POLICIES,
) -> Finding:
    """A finding over rows of `gains`, whose interval is that of the row that is `told`."""
    by = table["p_gain"] if told == "surest gain" else table["gain"]
    row = table.loc[by.idxmin()]
    interval = Interval.of(row, "gain")
    if told == "largest loss":
        interval = -interval
    text += f"; {told} {percent(interval.value)} ({row['policy']}, {row['precision']})"
    seeds, episodes = int(table["seeds"].min()), int(table["episodes"].min())
    verdict: Verdict = "inconclusive"
    if seeds < MIN_SEEDS:
        text += f" (only {counted(seeds, 'training seed')})"
    elif episodes < MIN_EPISODES:
        text += f" (only {counted(episodes, 'episode')})"
    elif (policies := table["policy"].nunique()) < min_policies:
        text += f" (only {counted(policies, 'policy', 'policies')})"
    elif bad:
        verdict = "not reproduced"
    elif good:
        verdict = "reproduced"
    keys = keys_of(table)
    return Finding(verdict, text, interval, keys)


def _span(bits: Sequence[int]) -> str:
    return f"{min(bits)} to {max(bits)}"
