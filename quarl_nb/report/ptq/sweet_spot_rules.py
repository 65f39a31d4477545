"""The rules that decide the claims of sweet spots: of policies that learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from quarl_nb.report.compare import BestOfMany, best_of_many
from quarl_nb.report.findings import MIN_EPISODES, NOT_MEASURED, Finding, Verdict, decided, keys_of
from quarl_nb.report.ptq.rules import INTERVAL, MIN_COMPARED
from quarl_nb.report.ptq.sweet_spots import Widths, table_of, widths_of
from quarl_nb.report.pvalues import holm
from quarl_nb.report.stats import ALPHA, MARGIN, Interval
from quarl_nb.report.texts import counted
from quarl_nb.report.untrained import leave_out_unlearned, none_learned

HAVE_A_SPOT = ("policy has a sweet spot", "policies have a sweet spot")
SWEEP = frozenset(range(2, 17))  # widths of a whole sweep: only of those is there none


def sweet_spot_exists(
    records: pd.DataFrame, algos: Sequence[str] = (), env_ids: Sequence[str] = (),
) -> Finding:
    """Reproduced when a width beats fp32 by 5 % of |fp32| at least, and certainly: corrected for
    widths (max-t) and policies (Holm).

    Not reproduced when no width of any policy can gain more than 5 % of |fp32| (simultaneous upper
    bounds), and every one of `SWEEP` was measured of `MIN_COMPARED` policies at least, or of one
    where `env_ids` names whose; else inconclusive.
    """
    enough = 1 if env_ids else MIN_COMPARED
    rule = partial(_exists, against_wider=False, min_policies=enough)
    return _of_learned(rule, records, algos, env_ids)


def fewer_bits_beat_more(records: pd.DataFrame) -> Finding:
    """As `sweet_spot_exists`, over every pair of a narrower and a wider quantization.

    Only narrower ones that keep the fp32 return to 5 % count: of two broken policies one is
    always the better. The correction is for every pair, as luck decides which those are.
    """
    rule = partial(_exists, against_wider=True, min_policies=MIN_COMPARED)
    return _of_learned(rule, records)


def sweet_spots_differ(records: pd.DataFrame) -> Finding:
    """Reproduced when two policies of one algorithm in two environments have sweet spots, and each
    of a policy's is certainly none of the other's: a gain that misses 5 % of |fp32| by a hair is no
    difference. Not reproduced when at least two have some, and all policies of each such algorithm
    one width in common."""
    return _of_learned(_differ, records)


def _of_learned(
    rule: Callable[[list[Widths]], Finding], records: pd.DataFrame, algos: Sequence[str] = (),
    env_ids: Sequence[str] = (),
) -> Finding:
    """What `rule` finds of the policies that learned, with the names of those that did not."""
    widths = widths_of(records, algos, env_ids)
    measured = pd.DataFrame({"policy": [each.policy for each in widths],
                             "keys": [each.keys for each in widths], "widths": widths})
    if measured.empty:
        return NOT_MEASURED
    learned, left_out = leave_out_unlearned(measured, records)
    if learned.empty:
        return none_learned(measured)
    found = rule(learned["widths"].tolist())
    if found == NOT_MEASURED:
        return found
    return replace(found, measured=found.measured + left_out, keys=keys_of(learned))


def _differ(policies: list[Widths]) -> Finding:
    table = table_of(policies)
    spots = table[table["sweet_spot"]]
    text = f"{len(spots)} of {counted(len(table), *HAVE_A_SPOT)}"
    text += "".join(f"; {row.policy} at {row.bits} bits" for row in spots.itertuples())
    each = [(widths, *_spots(widths)) for widths, is_spot
            in zip(policies, table["sweet_spot"], strict=True) if is_spot]  # fmt: skip
    pairs = [(a, not_a, b, not_b) for (one, a, not_a), (other, b, not_b) in combinations(each, 2)
             if one.algo == other.algo and one.env_id != other.env_id]  # fmt: skip
    apart = any(a <= not_b and b <= not_a for a, not_a, b, not_b in pairs)
    shared = [set.intersection(*(spots for widths, spots, _ in each if widths.algo == algo))
              for algo in {widths.algo for widths, *_ in each}]  # fmt: skip
    return Finding(decided(apart, bool(pairs) and all(shared)), text)


def _spots(widths: Widths) -> tuple[set[int], set[int]]:
    """The widths that certainly gain, and enough; and those that certainly do not gain enough."""
    best = widths.gains()
    enough = MARGIN * abs(widths.reference.mean())
    bits = np.array(widths.bits)
    spots = (best.low > 0) & (best.gain >= enough)
    return set(bits[spots].tolist()), set(bits[best.high < enough].tolist())


def _exists(policies: list[Widths], against_wider: bool, min_policies: int) -> Finding:
    found, highest, missing = [], [], []
    for widths in policies:
        labels, best = _comparisons(widths, against_wider)
        if not labels:
            continue
        missing.append(SWEEP.difference(widths.bits))
        scale = abs(widths.reference.mean())
        at = best.best(MARGIN * scale)
        gain = Interval(float(best.gain[at]), float(best.low[at]), float(best.high[at]))
        found.append((widths.policy, labels[at], gain, gain.value / scale if scale else 0.0,
                      float(best.p_values[at])))  # fmt: skip
        highest.append(float(best.high.max()) / scale if scale else np.inf)
    if not found:
        return NOT_MEASURED
    adjusted = holm([p for *_, p in found])
    relative = np.array([share for *_, share, _ in found])
    certain = np.array([gain.low > 0 for _, _, gain, *_ in found]) & (adjusted <= ALPHA)
    spots = certain & (relative >= MARGIN)
    # The most certain one of those that count, else of those that are certain but too small.
    first = int(np.lexsort((-relative, adjusted, ~certain, ~spots))[0])
    policy, label, interval, *_ = found[first]
    fewest = min(len(widths.reference) for widths in policies)
    swept = sum(not bits for bits in missing)
    verdict: Verdict = "inconclusive" if fewest < MIN_EPISODES \
        else decided(spots.any(), swept >= min_policies and max(highest) < MARGIN)
    share = f"{relative[first]:.1%}" if np.isfinite(highest[first]) else "fp32 earns 0"
    kept = "with a narrower width that keeps fp32's return (by its estimate)"
    kinds = HAVE_A_SPOT if not against_wider else (
        f"policy {kept} has one that beats a wider", f"policies {kept} have one that beats a wider"
    )
    text = (
        f"{spots.sum()} of {counted(len(found), *kinds)}; surest ({INTERVAL} for all widths): "
        f"{policy} gains {interval} ({share}) at {label}, "
        f"corrected p = {adjusted[first]:.3g}"
    )
    # Of a policy whose surest width is a copy of fp32, the others may be too noisy to tell.
    if verdict == "inconclusive":
        text += _not_excluded([name for name, *_ in found], highest)
        if swept < min_policies and (left_out := sorted(set().union(*missing))):
            text += f"; not measured of every policy: {', '.join(map(str, left_out))} bits"
        if len(found) < min_policies:
            text += f" (only {counted(len(found), 'policy', 'policies')})"
    text += f" (only {counted(fewest, 'episode')})" if fewest < MIN_EPISODES else ""
    return Finding(verdict, text, interval)


def _not_excluded(policies: Sequence[str], highest: Sequence[float]) -> str:
    """The largest gain that may still be, as a share of fp32's return, and of which policies there
    is none: where that return is 0, or episodes are too few."""
    shares = [high for high in highest if np.isfinite(high)]
    unbounded = [policy for policy, high in zip(policies, highest, strict=True) if high == np.inf]
    text = f"; up to {max(shares):.1%} not excluded" if shares else ""
    return text + (f"; no bound for {', '.join(unbounded)}" if unbounded else "")


def _comparisons(widths: Widths, against_wider: bool) -> tuple[list[str], BestOfMany]:
    """Labels of the comparisons that count, and their gains, corrected for all that were made."""
    if not against_wider:
        return [f"{bits} bits" for bits in widths.bits], widths.gains()
    needed = widths.reference.mean() - MARGIN * abs(widths.reference.mean())
    works = widths.returns.mean(axis=1) >= needed
    lows, highs = np.triu_indices(len(works), 1)
    every = best_of_many(widths.returns[highs], widths.returns[lows], widths.signs)
    at = np.flatnonzero(works[lows])
    labels = [f"{widths.bits[lows[i]]} against {widths.bits[highs[i]]} bits" for i in at]
    return labels, BestOfMany(every.gain[at], every.low[at], every.high[at], every.p_values[at])
