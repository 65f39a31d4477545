"""The rules that decide the claims of Appendix B.3 on time and memory: Tables 6 and 7, Figure 6.

A verdict on time in general needs the paper's board; measured elsewhere, and modelled, the finding
tells its numbers and stays inconclusive. The bytes of weights are the same on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from quarl_nb.report.edge.modelled import SAID_TO_SWAP, explanation_rows, explanation_text
from quarl_nb.report.edge.places import (
    elsewhere_text,
    on_papers_board,
    ratios_text,
    timed_rows,
    where_text,
)
from quarl_nb.report.edge.success import loss_between
from quarl_nb.report.edge.timings import RATIOS, RUNTIMES, published_times, table6_networks
from quarl_nb.report.findings import NOT_MEASURED, Finding, decided, keys_of, measured
from quarl_nb.report.stats import ALPHA, Interval
from quarl_nb.report.texts import percent


def int8_speedup(
    records: pd.DataFrame, policies: Sequence[str], low: float, high: float = float("inf"),
    each: bool = False,
) -> Finding:
    """Time of a decision, fp32 over int8 in one runtime, within `low` to `high`.

    Reproduced when it is in some runtime on the paper's board with one of `policies` (`each`: with
    every one), not reproduced when it is beyond in every runtime with all (with one): a policy that
    did not run there may be the one. Either by the slow calls of one against the fast ones of the
    other, and the reverse.
    """
    rows = timed_rows(records)
    rows = rows[rows["policy"].isin([*policies]) & (rows["precision"] == "int8")
                & rows["speedup"].notna()] if len(rows) else rows  # fmt: skip
    if not len(rows) or not (rows["source"] == "measured").any():
        return NOT_MEASURED
    board = on_papers_board(rows)
    there = rows[board]
    within = there["speedup_low"].ge(low) & there["speedup_high"].le(high)
    beyond = there["speedup_high"].lt(low) | there["speedup_low"].gt(high)
    met, missed = within.groupby(there["policy"]).any(), beyond.groupby(there["policy"]).all()
    all_ran = {*there["policy"]} >= {*policies}
    if each:
        verdict = decided(all_ran and met.all(), missed.any())
    else:
        verdict = decided(met.any(), all_ran and missed.all())
    text = f"fp32 over int8: {ratios_text(rows)}"
    asked = rows[board] if board.any() else rows[rows["source"] == "measured"]
    best = asked.loc[asked["speedup"].idxmax()]
    interval = Interval.of(best, "speedup")
    return Finding(verdict, text + elsewhere_text(board), interval, keys_of(rows))


def larger_int8_faster(records: pd.DataFrame, larger: str, smaller: str) -> Finding:
    """`larger` in int8 against `smaller` in fp32: faster, at a success rate without loss (5 %).

    Not reproduced when it is slower in every runtime on the paper's board, or succeeds less.
    Faster is with its slow calls against the other's fast ones, slower the reverse.
    """
    rows = timed_rows(records)
    pairs = _pairs(rows, larger, smaller) if len(rows) else rows
    if not len(pairs) or not (pairs["source"] == "measured").any():
        return NOT_MEASURED
    board = on_papers_board(pairs)
    ratios = "; ".join(f"{where_text(row)} {row.ratio:.2f}x" for row in pairs.itertuples())
    text = f"time of {smaller} fp32 over {larger} int8: {ratios}"
    loss = loss_between(measured(records), (smaller, "fp32"), (larger, "int8"))
    kept = lost = False
    if loss is not None:
        kept, lost = loss.p_no_loss <= ALPHA, loss.p_loss <= ALPHA
        text += f"; success falls by {percent(loss.interval.value)} of that of {smaller} in fp32"
    faster, slower = pairs["ratio_low"][board] > 1, pairs["ratio_high"][board] < 1
    verdict = decided(faster.any() and kept, lost or (board.any() and slower.all()))
    return Finding(verdict, text + elsewhere_text(board), None, keys_of(pairs))


def resident_memory_smaller(records: pd.DataFrame, factor: float) -> Finding:
    """Resident bytes of the process, fp32 over int8: reproduced at `factor` or more in some policy
    and runtime, not measured where no board tells both. Not reproduced when not even the weights
    alone are, in any policy of Table 6: how much of a process is no policy depends on the program
    and the machine."""
    rows = timed_rows(records)
    rows = rows[(rows["source"] == "measured") & (rows["policy"] != "")] if len(rows) else rows
    place = ["policy", "exported", "runtime", "machine"]
    full, int8 = ([rows[rows["precision"] == name] for name in ("fp32", "int8")]
                  if len(rows) else (rows, rows))  # fmt: skip
    if not len(full) or not len(int8):
        return NOT_MEASURED
    pairs = full.merge(int8, on=place, suffixes=("", "_int8")).set_index(place)
    ratios = (pairs["resident_bytes"] / pairs["resident_bytes_int8"]).dropna()
    if ratios.empty:
        return NOT_MEASURED
    weights = (pairs["weight_bytes"] / pairs["weight_bytes_int8"]).dropna()
    all_ran = {*weights.index.get_level_values("policy")} >= {*table6_networks()}
    verdict = decided(ratios.max() >= factor, all_ran and weights.max() < factor)
    best = {runtime: group.max() for runtime, group in ratios.groupby("runtime")}
    text = "resident memory at most " + ", ".join(
        f"{ratio:.2f} times smaller in {RUNTIMES[str(name)]}" for name, ratio in best.items()
    ) + f"; the weights alone {weights.min():.2f} to {weights.max():.2f} times"
    most = Interval(ratios.max(), math.nan, math.nan)
    return Finding(verdict, text, most, keys_of(rows[rows["precision"].isin(["fp32", "int8"])]))


def fp32_exceeds_memory(records: pd.DataFrame) -> Finding:
    """The bytes of the model: reproduced when every policy said to exceed the board's memory does,
    and no other; not reproduced when none does. One that is not modelled may be the one."""
    rows = explanation_rows(measured(records))
    said = rows[rows["said_to_exceed"]] if len(rows) else rows
    if not len(said):
        return NOT_MEASURED
    alike = (rows["exceeds"] == rows["said_to_exceed"]).all()
    verdict = decided(alike and len(rows) == len(published_times()),
                      len(said) == len(SAID_TO_SWAP) and not said["exceeds"].any())  # fmt: skip
    return Finding(verdict, explanation_text(rows), None, keys_of(rows))


def _pairs(rows: pd.DataFrame, larger: str, smaller: str) -> pd.DataFrame:
    """Both policies side by side, a row a machine, processor and runtime."""
    place = ["machine", "processor", "runtime", "source"]
    ours = rows[(rows["policy"] == larger) & (rows["precision"] == "int8")]
    theirs = rows[(rows["policy"] == smaller) & (rows["precision"] == "fp32")]
    pairs = ours.merge(theirs, on=place, suffixes=("", "_other"))
    for end, (full, int8) in RATIOS.items():
        pairs[f"ratio{end}"] = pairs[f"{full}_other"] / pairs[int8]
    pairs["keys"] = [(*x, *y) for x, y in zip(pairs["keys"], pairs["keys_other"], strict=True)]
    return pairs
