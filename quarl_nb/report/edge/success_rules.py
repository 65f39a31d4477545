"""The rules that decide the claims of Appendix B.3 on success: Table 6's rates, and 4 to 5 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from quarl_nb.report.edge.places import elsewhere_text, on_papers_board, ratios_text, timed_rows
from quarl_nb.report.edge.success import (
    PLAIN,
    QAT,
    STOPPED,
    published_success,
    success_rows,
    weighted_sum,
)
from quarl_nb.report.findings import MIN_EPISODES, NOT_MEASURED, Finding, Verdict, keys_of, measured
from quarl_nb.report.labels import RANGES
from quarl_nb.report.pvalues import holm
from quarl_nb.report.seeds import MIN_SEEDS
from quarl_nb.report.stats import ALPHA, Interval
from quarl_nb.report.texts import counted, points


def success_falls(records: pd.DataFrame) -> Finding:
    """Success rate, fp32 minus int8 (min-max ranges), in every policy of Table 6, against the
    published fall, which is of 100 evaluations a rate.

    Reproduced when each fall is above 0 and as published, by the interval of the difference. Not
    reproduced when the mean difference over the policies is none that chance gives: one test of
    them all, which needs no correction; unless that of policies that stopped learning at the
    published success may be chance. The text tells which method loses least.
    """
    rates, table = success_rows(measured(records)), published_success()
    table = table[table["precision"] == "int8"].set_index("policy")
    if not len(rates):
        return NOT_MEASURED
    rows = rates[(rates["precision"] == "int8") & rates["fall"].notna()
                 & rates["policy"].str.removesuffix(STOPPED).isin(table.index)]  # fmt: skip
    early = rows["policy"].str.endswith(STOPPED)
    plain, stopped = (side[side["method"] == PLAIN] for side in (rows[~early], rows[early]))
    if not len(plain):
        return NOT_MEASURED
    each, mean = _less_published(plain, table)
    verdict: Verdict = "inconclusive"
    if not _holds_0(mean):
        # Where those that stopped agree, it depends on how much was learned.
        agree = len(stopped) and _holds_0(_less_published(stopped, table)[1])
        verdict = "inconclusive" if agree else "not reproduced"
    elif {*plain["policy"]} >= {*table.index} and all(map(_holds_0, each)):
        verdict = "reproduced" if (plain["fall_low"] > 0).all() else "inconclusive"
    text = (f"fall in points at int8: {_falls_text(plain)}; less the published, on average "
            f"{points(mean, 'z.1f')}")  # fmt: skip
    others = rows[(rows["method"] != PLAIN) & ~early]
    if len(others):
        best = others.loc[others.groupby("policy")["fall"].idxmin()]
        text += "; smallest fall by other ranges: " + ", ".join(
            f"{row.policy} {100 * row.fall:z.1f} ({RANGES[str(row.method)]})"
            for row in best.itertuples()
        )
    if len(stopped):
        reached = ", ".join(f"{each:.0%}" for each in stopped["success"] + stopped["fall"])
        text += (f"; of policies stopped near the published success ({reached} in fp32): "
                 f"{_falls_text(stopped)}")
    told = pd.concat([plain, stopped])
    worst = Interval.of(plain.loc[plain["fall"].idxmax()], "fall")
    return _enough(Finding(verdict, text, worst, keys_of(told)), told)


def _less_published(rows: pd.DataFrame, table: pd.DataFrame) -> tuple[list[Interval], Interval]:
    """By how much each fall is more than the published one of its policy, and their mean."""
    theirs = table.loc[rows["policy"].str.removesuffix(STOPPED)]
    each = [weighted_sum([1, -1], [Interval.of(side, "fall") for side in (row, published)])
            for (_, row), (_, published) in zip(rows.iterrows(), theirs.iterrows(), strict=True)]
    return each, weighted_sum([1 / len(each)] * len(each), each)


def _holds_0(interval: Interval) -> bool:
    return interval.low <= 0 <= interval.high


def _falls_text(rows: pd.DataFrame) -> str:
    return "; ".join(f"{row['policy']} {points(Interval.of(row, 'fall'), 'z.1f')}"
                     for _, row in rows.iterrows())  # fmt: skip


def few_bits_pay(records: pd.DataFrame, precisions: Sequence[str]) -> Finding:
    """QAT at each of `precisions`, and the narrowest kernels that hold them.

    Reproduced when at the first of `precisions` every policy of Table 6 is without loss (5 %, over
    trainings and over episodes) and its kernel is surely faster than fp32 in some policy and
    runtime on the paper's board. Not reproduced when one of these loses more (Holm), or when all
    ran there and no kernel was faster. The text tells the other precisions too.
    """
    rates, times = success_rows(measured(records)), timed_rows(records)
    table6 = {*published_success()["policy"]}  # none that stopped early, nor one's own
    rows = rates[(rates["method"] == QAT) & rates["precision"].isin([*precisions])
                 & rates["policy"].isin(table6) & rates["fall"].notna()] \
        if len(rates) else rates  # fmt: skip
    first = rows[rows["precision"] == precisions[0]] if len(rows) else rows
    times = times[(times["source"] == "measured") & times["speedup"].notna()
                  & (times["policy"] != "")] if len(times) else times  # fmt: skip
    if not len(first) or not len(times):
        return NOT_MEASURED
    kernels = times[times["precision"].isin(first["kernel"])]
    if kernels.empty:
        return NOT_MEASURED
    kept = (first["p_no_loss"] <= ALPHA).all()
    lost = (holm(first["p_loss"].tolist()) <= ALPHA).any()
    every = {*first["policy"]} >= table6
    trained = int(first["trainings"].min())
    board = on_papers_board(kernels)
    there = kernels[board]
    slower = {*there["policy"]} >= table6 and (there["speedup_high"] < 1).all()
    verdict: Verdict = "inconclusive"
    if trained >= MIN_SEEDS and (lost or slower):
        verdict = "not reproduced"
    elif trained >= MIN_SEEDS and kept and every and (there["speedup_low"] > 1).any():
        verdict = "reproduced"
    text = "; ".join(_few_bits_text(rows[rows["precision"] == precision], times)
                     for precision in precisions if precision in set(rows["precision"]))
    if trained < MIN_SEEDS:
        text += f" (as few as {trained} trainings, where {MIN_SEEDS} decide)"
    text += elsewhere_text(board)
    best = kernels.loc[kernels["speedup"].idxmax()]
    interval = Interval.of(best, "speedup")
    keys = dict.fromkeys([*keys_of(first), *keys_of(kernels)])
    return _enough(Finding(verdict, text, interval, tuple(keys)), first)


def _few_bits_text(rates: pd.DataFrame, times: pd.DataFrame) -> str:
    kernel = rates["kernel"].iloc[0]
    falls = ", ".join(f"{row.policy} {100 * row.fall:z.1f}" for row in rates.itertuples())
    timed = times[times["precision"] == kernel]
    return (f"{rates['precision'].iloc[0]} (QAT) falls by points: {falls}; its {kernel} kernel "
            f"over fp32: {ratios_text(timed)}")  # fmt: skip


def _enough(finding: Finding, rates: pd.DataFrame) -> Finding:
    fewest = int(rates["episodes"].min())
    if fewest >= MIN_EPISODES:
        return finding
    return replace(finding, verdict="inconclusive",
                   measured=f"{finding.measured} (only {counted(fewest, 'episode')})")  # fmt: skip
