"""The rules that decide why ActorQ works.

These claims name neither hardware nor size, so that small networks may decide them; runs of the
same training seed are paired, and no verdict rests on fewer than `MIN_RUNS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pandas as pd

from quarl_nb.report.actorq.findings import of_enough_runs
from quarl_nb.report.actorq.variants import VARIANTS, variant_rows
from quarl_nb.report.findings import NOT_MEASURED, Finding, Verdict, decided, measured
from quarl_nb.report.pvalues import at_least, holm
from quarl_nb.report.stats import ALPHA, Interval
from quarl_nb.report.texts import percent_interval

MIN_RUNS = 5


def variants_equal(
    records: pd.DataFrame, variants: Sequence[str], base: str, algos: Sequence[str]
) -> Finding:
    """Reproduced when every one of `variants` ends with the return of `base` within 5 %, with every
    one of `algos`; not reproduced when one ends with a loss of more than 5 % (Holm)."""
    rows = _rows(records, variants, base, algos)
    if rows.empty:
        return NOT_MEASURED
    missing = _missing(rows, variants, algos)
    lost = holm(rows["final_loss_p_loss"].fillna(1).tolist()) <= ALPHA
    equal = rows["final_loss_p_equivalent"] <= ALPHA
    verdict = decided(equal.all() and not missing, lost.any())
    text = f"{int(equal.sum())} of {len(rows)} within 5 % of {base}, {int(lost.sum())} lose more"
    return _of_final_return(verdict, rows, text, missing)


def variant_keeps_return(records: pd.DataFrame, variant: str, algos: Sequence[str]) -> Finding:
    """Reproduced when no one of `algos` loses 5 % of the final return of fp32 and each has learned;
    not reproduced when one loses more (Holm)."""
    rows = _rows(records, [variant], "fp32", algos)
    if rows.empty:
        return NOT_MEASURED
    missing = _missing(rows, [variant], algos)
    kept = (rows["final_loss_p_no_loss"] <= ALPHA) & (rows["final"] > rows["initial"])
    lost = holm(rows["final_loss_p_loss"].fillna(1).tolist()) <= ALPHA
    verdict = decided(kept.all() and not missing, lost.any())
    text = (f"without loss with {', '.join(rows['algo'][kept].str.upper()) or 'none'} of "
            f"{len(algos)} algorithms")  # fmt: skip
    return _of_final_return(verdict, rows, text, missing)


def variant_loses(records: pd.DataFrame, variant: str, algos: Sequence[str]) -> Finding:
    """Reproduced when `variant` ends with a loss of more than 5 % against fp32 with most of `algos`
    (`at_least`); not reproduced when it is without such a loss with at least half of them."""
    rows = _rows(records, [variant], "fp32", algos)
    if rows.empty:
        return NOT_MEASURED
    missing = _missing(rows, [variant], algos)
    # While a study is measured anew, an algorithm may be there with two trainings: the milder.
    worst_p = rows.groupby("algo")[["final_loss_p_loss", "final_loss_p_no_loss"]].max().fillna(1)
    lost, kept = (at_least(worst_p[name]) for name in worst_p)
    verdict = decided(lost > len(algos) / 2, kept >= len(algos) / 2)
    text = f"surely {lost} of {len(worst_p)} algorithms lose more than 5 %, {kept} less"
    return _of_final_return(verdict, rows, text, missing)


def needs_help(
    records: pd.DataFrame, variant: str, helped: str, algos: Sequence[str]
) -> Finding:
    """Reproduced when `variant` loses (`variant_loses`) where `helped` keeps the return of fp32
    (`variant_keeps_return`); not reproduced when `variant` does without."""
    alone = variant_loses(records, variant, algos)
    aided = variant_keeps_return(records, helped, algos)
    if "not measured" in (alone.verdict, aided.verdict):
        return NOT_MEASURED
    verdict = decided(alone.verdict == aided.verdict == "reproduced",
                      alone.verdict == "not reproduced")  # fmt: skip
    text = f"{VARIANTS[variant]}: {alone.measured}; {VARIANTS[helped]}: {aided.measured}"
    return Finding(verdict, text, aided.interval, tuple(dict.fromkeys(alone.keys + aided.keys)))


def noise_helps(
    records: pd.DataFrame, variant: str, noise: str, algos: Sequence[str]
) -> Finding:
    """Reproduced when `variant`'s mean return over the run is above that of fp32 with one of
    `algos`, and that of `noise` too (Holm over both and `algos`): a gain that noise about as large
    does not bring is none of noise. About: it is as large as the error of rounding the weights to
    256 levels of their range, and int8's levels are symmetric, its activations rounded too. Never
    not reproduced: it may be so "in some cases", and one that is not measured may be meant.
    """
    rows = _rows(records, [variant, noise], "fp32", algos)
    if rows.empty or variant not in {*rows["variant"]}:
        return NOT_MEASURED
    quantized, noisy = (rows[rows["variant"] == kind] for kind in (variant, noise))
    missing = _missing(rows, [variant, noise], algos)
    gained = holm(rows["p_area_gain"].fillna(1).tolist()) <= ALPHA
    gains, noise_gains = ({*side["algo"][gained[side.index]]} for side in (quantized, noisy))
    verdict: Verdict = "reproduced" if gains & noise_gains else "inconclusive"
    small = quantized["area_loss_p_no_gain"] <= ALPHA
    text = (f"gain of mean return over fp32, certainly below 5 % with {small.sum()} of "
            f"{len(small)}: {_gains(quantized)}")  # fmt: skip
    if len(noisy):
        text += f" (noise as of weights rounded to 256 levels: {_gains(noisy)})"
    deciding = quantized[quantized["algo"].isin(gains & noise_gains or {*algos})]
    gain = -Interval.of(deciding.loc[deciding["p_area_gain"].fillna(1).idxmin()], "area_loss")
    return of_enough_runs(verdict, rows, text + missing, gain, MIN_RUNS)


def _rows(
    records: pd.DataFrame, variants: Sequence[str], base: str, algos: Sequence[str]
) -> pd.DataFrame:
    rows = variant_rows(measured(records), base)
    if rows.empty:
        return rows
    asked = rows["variant"].isin([*variants]) & rows["algo"].isin([*algos])
    return rows[asked & rows["final_loss"].notna()].reset_index(drop=True)


def _missing(rows: pd.DataFrame, variants: Sequence[str], algos: Sequence[str]) -> str:
    """In words, of which variants and algorithms there are no rows; "" where all are there."""
    there = {*zip(rows["variant"], rows["algo"], strict=True)}
    gone = [f"{algo.upper()}, {VARIANTS[variant]}" for variant, algo in product(variants, algos)
            if (variant, algo) not in there]  # fmt: skip
    return f" (not measured: {'; '.join(gone)})" if gone else ""


def _of_final_return(verdict: Verdict, rows: pd.DataFrame, text: str, missing: str) -> Finding:
    """A finding that tells the largest loss of the final return."""
    worst = rows.loc[rows["final_loss"].idxmax()]
    loss, variant = Interval.of(worst, "final_loss"), VARIANTS[worst["variant"]]
    text += f"; largest loss {percent_interval(loss)} ({worst['algo'].upper()}, {variant}){missing}"
    return of_enough_runs(verdict, rows, text, loss, MIN_RUNS)


def _gains(rows: pd.DataFrame) -> str:
    """Of the mean return over the run by algorithm, with their intervals, in per cent."""
    return "; ".join(f"{row['algo'].upper()} {percent_interval(-Interval.of(row, 'area_loss'))}"
                     for _, row in rows.iterrows())  # fmt: skip
