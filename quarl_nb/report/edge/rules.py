"""The rules that decide the claims of Appendix B.3: Tables 6 and 7, Figure 6, and 4 to 5 bits.

A verdict on time in general needs the paper's board; measured elsewhere, and modelled, the finding
tells its numbers and stays inconclusive. Bytes and success rates are the same on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from quarl_nb.report.actorq.findings import measured
from quarl_nb.report.edge.success import (
    PLAIN,
    QAT,
    STOPPED,
    loss_between,
    published_success,
    success_rows,
)
from quarl_nb.report.edge.timings import (
    PAPERS_BOARD,
    RUNTIMES,
    explanation_rows,
    explanation_text,
    latency_rows,
)
from quarl_nb.report.findings import MIN_EPISODES, NOT_MEASURED, Finding, Verdict, keys_of
from quarl_nb.report.losses import percent
from quarl_nb.report.pvalues import holm
from quarl_nb.report.seeds import MIN_SEEDS
from quarl_nb.report.stats import ALPHA, Interval


def int8_speedup(
    records: pd.DataFrame, policies: Sequence[str], low: float, high: float = float("inf")
) -> Finding:
    """Time of a decision, fp32 over int8 in one runtime, within `low` to `high`.

    Reproduced when it is in some runtime and one of `policies` on the paper's board, not
    reproduced when in none.
    """
    rows = _timed(records)
    rows = rows[rows["policy"].isin([*policies]) & (rows["precision"] == "int8")
                & rows["speedup"].notna()] if len(rows) else rows  # fmt: skip
    if not len(rows) or not (rows["source"] == "measured").any():
        return NOT_MEASURED
    board = _on_papers_board(rows)
    verdict: Verdict = "inconclusive"
    if board.any():
        within = rows["speedup"][board].between(low, high)
        verdict = "reproduced" if within.any() else "not reproduced"
    text = f"fp32 over int8: {_ratios_text(rows)}"
    asked = rows[board] if board.any() else rows[rows["source"] == "measured"]
    best = asked.loc[asked["speedup"].idxmax()]
    interval = Interval(best["speedup"], best["speedup_low"], best["speedup_high"])
    return Finding(verdict, text + _elsewhere(board), interval, keys_of(rows))


def larger_int8_faster(records: pd.DataFrame, larger: str, smaller: str) -> Finding:
    """`larger` in int8 against `smaller` in fp32: faster, at a success rate without loss (5 %).

    Not reproduced when it is slower in every runtime on the paper's board, or succeeds less.
    """
    rows = _timed(records)
    pairs = _pairs(rows, larger, smaller) if len(rows) else rows
    if not len(pairs) or not (pairs["source"] == "measured").any():
        return NOT_MEASURED
    board = _on_papers_board(pairs)
    ratios = "; ".join(f"{_where(row)} {row.ratio:.2f}x" for row in pairs.itertuples())
    text = f"time of {smaller} fp32 over {larger} int8: {ratios}"
    loss = loss_between(measured(records), (smaller, "fp32"), (larger, "int8"))
    kept = lost = False
    if loss is not None:
        kept, lost = loss.p_no_loss <= ALPHA, loss.p_loss <= ALPHA
        text += f"; success falls by {percent(loss.interval.value)}"
    verdict: Verdict = "inconclusive"
    if (board.any() and (pairs["ratio"][board] < 1).all()) or lost:
        verdict = "not reproduced"
    elif (pairs["ratio"][board] > 1).any() and kept:
        verdict = "reproduced"
    return Finding(verdict, text + _elsewhere(board), None, keys_of(pairs))


def resident_memory_smaller(records: pd.DataFrame, factor: float) -> Finding:
    """Resident bytes of the process, fp32 over int8: reproduced at `factor` or more in some policy
    and runtime, not reproduced in none. The text tells the weights alone too."""
    rows = _timed(records)
    rows = rows[(rows["source"] == "measured") & (rows["policy"] != "")] if len(rows) else rows
    place = ["policy", "runtime", "machine"]
    full, int8 = ([rows[rows["precision"] == name].set_index(place) for name in ("fp32", "int8")]
                  if len(rows) else (rows, rows))  # fmt: skip
    if not len(full) or not len(int8):
        return NOT_MEASURED
    ratios = (full["resident_bytes"] / int8["resident_bytes"]).dropna()
    weights = (full["weight_bytes"] / int8["weight_bytes"]).dropna()
    verdict: Verdict = "reproduced" if ratios.max() >= factor else "not reproduced"
    best = {runtime: group.max() for runtime, group in ratios.groupby("runtime")}
    text = "resident memory at most " + ", ".join(
        f"{ratio:.2f} times smaller in {RUNTIMES[str(name)]}" for name, ratio in best.items()
    ) + f"; the weights alone {weights.min():.2f} to {weights.max():.2f} times"
    interval = Interval(ratios.max(), ratios.min(), ratios.max())
    return Finding(verdict, text, interval, keys_of(rows[rows["precision"].isin(["fp32", "int8"])]))


def fp32_exceeds_memory(records: pd.DataFrame) -> Finding:
    """The bytes of the model: reproduced when every policy said to exceed the board's memory does,
    and no other; not reproduced when none does."""
    rows = explanation_rows(measured(records))
    said = rows[rows["said_to_exceed"]] if len(rows) else rows
    if not len(said):
        return NOT_MEASURED
    verdict: Verdict = "reproduced" if (rows["exceeds"] == rows["said_to_exceed"]).all() \
        else "not reproduced" if not said["exceeds"].any() else "inconclusive"
    return Finding(verdict, explanation_text(rows), None, keys_of(rows))


def success_falls(records: pd.DataFrame, low: float, high: float) -> Finding:
    """Success rate, fp32 minus int8 (min-max ranges), in every policy of Table 6.

    Reproduced when the interval of each fall meets `low` to `high`, not reproduced when one lies
    outside; unless policies that stopped learning at the published success all meet it. The text
    tells which method loses least.
    """
    rates = success_rows(measured(records))
    rows = rates[(rates["precision"] == "int8") & rates["fall"].notna()] if len(rates) else rates
    if not len(rows):
        return NOT_MEASURED
    early = rows["policy"].str.endswith(STOPPED)
    plain, stopped = (side[side["method"] == PLAIN] for side in (rows[~early], rows[early]))
    if not len(plain):
        return NOT_MEASURED
    meets, theirs = ((side["fall_low"] <= high) & (side["fall_high"] >= low)
                     for side in (plain, stopped))  # fmt: skip
    every = {*plain["policy"]} >= {*published_success()["policy"]}
    verdict: Verdict = "not reproduced"
    if meets.all():
        verdict = "reproduced" if every else "inconclusive"
    elif len(stopped) and theirs.all():
        verdict = "inconclusive"  # it depends on how much was learned
    text = f"fall in points at int8: {_falls_text(plain)}"
    others = rows[(rows["method"] != PLAIN) & ~early]
    if len(others):
        best = others.loc[others.groupby("policy")["fall"].idxmin()]
        text += "; least: " + ", ".join(f"{row.policy} {100 * row.fall:.1f} ({row.method})"
                                        for row in best.itertuples())  # fmt: skip
    if len(stopped):
        text += f"; with no more success than published: {_falls_text(stopped)}"
    worst = plain.loc[plain["fall"].idxmax()]
    interval = Interval(worst["fall"], worst["fall_low"], worst["fall_high"])
    told = pd.concat([plain, stopped])
    return _enough(Finding(verdict, text, interval, keys_of(told)), told)


def _falls_text(rows: pd.DataFrame) -> str:
    return "; ".join(
        f"{row.policy} {100 * row.fall:.1f} [{100 * row.fall_low:.1f}, {100 * row.fall_high:.1f}]"
        for row in rows.itertuples()
    )


def few_bits_pay(records: pd.DataFrame, precisions: Sequence[str]) -> Finding:
    """QAT at each of `precisions`, and the narrowest kernels that hold them.

    Reproduced when at the first of `precisions` every policy of Table 6 is without loss (5 %, over
    trainings) and its kernel is surely faster than fp32 in some policy and runtime on the paper's
    board. Not reproduced when a policy loses more (Holm) or no kernel is faster there. The text
    tells the other precisions too.
    """
    rates, times = success_rows(measured(records)), _timed(records)
    rows = rates[(rates["method"] == QAT) & rates["precision"].isin([*precisions])
                 & rates["fall"].notna()] if len(rates) else rates  # fmt: skip
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
    every = {*first["policy"]} >= {*published_success()["policy"]}
    trained = int(first["trainings"].min())
    board = _on_papers_board(kernels)
    there = kernels[board]
    verdict: Verdict = "inconclusive"
    if trained >= MIN_SEEDS and (lost or (board.any() and (there["speedup_high"] < 1).all())):
        verdict = "not reproduced"
    elif trained >= MIN_SEEDS and kept and every and (there["speedup_low"] > 1).any():
        verdict = "reproduced"
    text = "; ".join(_few_bits_text(rows[rows["precision"] == precision], times)
                     for precision in precisions if precision in set(rows["precision"]))
    if trained < MIN_SEEDS:
        text += f" (only {trained} of {MIN_SEEDS} trainings)"
    text += _elsewhere(board)
    best = kernels.loc[kernels["speedup"].idxmax()]
    interval = Interval(best["speedup"], best["speedup_low"], best["speedup_high"])
    keys = dict.fromkeys([*keys_of(first), *keys_of(kernels)])
    return _enough(Finding(verdict, text, interval, tuple(keys)), first)


def _few_bits_text(rates: pd.DataFrame, times: pd.DataFrame) -> str:
    kernel = rates["kernel"].iloc[0]
    falls = ", ".join(f"{row.policy} {100 * row.fall:.1f}" for row in rates.itertuples())
    timed = times[times["precision"] == kernel]
    return (f"{rates['precision'].iloc[0]} (QAT) falls by points: {falls}; its {kernel} kernel "
            f"over fp32: {_ratios_text(timed)}")  # fmt: skip


def _ratios_text(rows: pd.DataFrame) -> str:
    """Speed-ups by policy, place by place."""
    if rows.empty:
        return "not measured"
    places = rows.assign(where=[_where(row) for row in rows.itertuples()])
    return "; ".join(
        f"{where} " + ", ".join(f"{row.policy} {row.speedup:.2f}x" for row in group.itertuples())
        for where, group in places.groupby("where", sort=False)
    )


def _timed(records: pd.DataFrame) -> pd.DataFrame:
    """Times of this machine and of imported boards, and the model of the paper's."""
    rows = latency_rows(measured(records))
    if rows.empty:
        return rows
    asked = (rows["source"] == "measured") | (rows["machine"] == PAPERS_BOARD)
    once = (rows["source"] == "measured") | (rows["runtime"] == "c")  # modelled alike for both
    return rows[asked & once].reset_index(drop=True)


def _pairs(rows: pd.DataFrame, larger: str, smaller: str) -> pd.DataFrame:
    """Both policies side by side, a row a machine and runtime."""
    place = ["machine", "runtime", "source"]
    ours = rows[(rows["policy"] == larger) & (rows["precision"] == "int8")]
    theirs = rows[(rows["policy"] == smaller) & (rows["precision"] == "fp32")]
    pairs = ours.merge(theirs, on=place, suffixes=("", "_other"))
    pairs["ratio"] = pairs["latency_s_other"] / pairs["latency_s"]
    pairs["keys"] = [(*x, *y) for x, y in zip(pairs["keys"], pairs["keys_other"], strict=True)]
    return pairs


def _on_papers_board(rows: pd.DataFrame) -> pd.Series:
    """Measured on a Raspberry Pi 3 (its firmware says "Raspberry Pi 3 Model B Rev 1.2")."""
    name = PAPERS_BOARD.removesuffix("B")
    return rows["machine"].str.startswith(name) & (rows["source"] == "measured")


def _where(row: Any) -> str:
    if row.source == "modelled":
        return f"modelled for {row.machine}"
    return f"on {row.machine} in {RUNTIMES[row.runtime]}"


def _elsewhere(board: pd.Series) -> str:
    return "" if board.any() else f" (not measured on a {PAPERS_BOARD})"


def _enough(finding: Finding, rates: pd.DataFrame) -> Finding:
    fewest = int(rates["episodes"].min())
    if fewest >= MIN_EPISODES:
        return finding
    return replace(finding, verdict="inconclusive",
                   measured=f"{finding.measured} (only {fewest} episodes)")  # fmt: skip
