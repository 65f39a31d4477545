"""The rules of the claims on post-training quantization, over policies that learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from quarl_nb.report.correlation import RankCorrelation, correlation_within
from quarl_nb.report.findings import MIN_EPISODES, NOT_MEASURED, Finding, Verdict, decided, keys_of
from quarl_nb.report.labels import PUBLIC
from quarl_nb.report.losses import paired_losses
from quarl_nb.report.paper import published_ptq
from quarl_nb.report.policy_records import of_who_played, ptq_records
from quarl_nb.report.pvalues import at_least, holm
from quarl_nb.report.stats import ALPHA, Interval
from quarl_nb.report.texts import counted, percent_interval
from quarl_nb.report.untrained import leave_out_unlearned, none_learned

INTERVAL = f"{100 * (1 - 2 * ALPHA):.0f} % interval"  # its ends: bounds of one-sided tests
MIN_POLICIES = 8  # that a rank correlation is told of
MIN_COMPARED = 3  # policies that "every one", none or a difference is told of


def similar_rewards(
    records: pd.DataFrame, precisions: Sequence[str], algos: Sequence[str] = (),
    in_table4: bool = False,
) -> Finding:
    """Reproduced when every policy is equivalent to its fp32 (TOST, within 5 %).

    Not reproduced when a policy loses more than 5 % after Holm's correction over policies. With
    `in_table4` only those of an algorithm in an environment that Table 4 has, and reproduced only
    when all of these were measured: of some of them "every policy" is not known.
    """
    return _every_policy(records, precisions, algos, in_table4, "p_equivalent")


def no_loss(
    records: pd.DataFrame, precisions: Sequence[str], algos: Sequence[str] = (),
    in_table4: bool = False,
) -> Finding:
    """Reproduced when every policy is without loss (below 5 %) at one of `precisions` at least.

    A policy that may choose among k precisions is tested at 5 %/k each (Bonferroni). Not
    reproduced when a policy loses more than 5 % at all that it was measured at, the last named
    (the most generous) among them, Holm-corrected over policies. `in_table4`: `similar_rewards`.
    """
    return _every_policy(records, precisions, algos, in_table4, "p_no_loss")


def hardness_differs(records: pd.DataFrame, precisions: Sequence[str]) -> Finding:
    """Reproduced when at the same precision, by the same algorithm, a policy loses more than 5 %
    and one in another environment less; and in the same environment so do two of two algorithms.

    Not reproduced when every policy loses less than 5 %, or every one more, and they are of two
    algorithms and two environments at least. Holm over policies.
    """
    measured = losses_at(records, precisions)
    if measured.empty:
        return NOT_MEASURED
    losses, left_out = leave_out_unlearned(measured, records)
    if losses.empty:
        return none_learned(measured)
    hard = holm(losses["p_loss"].tolist()) <= ALPHA
    easy = holm(losses["p_no_loss"].tolist()) <= ALPHA
    text = f"{hard.sum()} of {len(losses)} policies lose more than 5 %, {easy.sum()} less"
    text += f", in {' or '.join(precisions)}"
    by_task = _differing(losses[hard], losses[easy], "algo", "env_id")
    by_algo = _differing(losses[hard], losses[easy], "env_id", "algo")
    text += f"; both by {counted(by_task, 'algorithm')} and in "
    text += f"{counted(by_algo, 'environment')}{left_out}"
    worst = _worst(losses)
    varied = bool((losses[["algo", "env_id"]].nunique() > 1).all())
    verdict: Verdict = "inconclusive" if _too_few(losses, MIN_COMPARED) \
        else decided(bool(by_task and by_algo), varied and (hard.all() or easy.all()))
    text += _few_note(losses, MIN_COMPARED)
    return Finding(verdict, text, _interval(worst), keys_of(losses))


def _differing(hard: pd.DataFrame, easy: pd.DataFrame, same: str, other: str) -> int:
    """How many values of `same` have a hard policy and an easy one that differ in `other`."""
    pairs = hard[[same, other]].merge(easy[[same, other]], on=same, suffixes=("", "_easy"))
    return int(pairs[same][pairs[other] != pairs[f"{other}_easy"]].nunique())


def wider_weights_lose_more(
    records: pd.DataFrame, precisions: Sequence[str], width: str = "range"
) -> Finding:
    """Reproduced when policies of wider weights (`width`) lose more from task to task, within each
    algorithm, and from algorithm to algorithm, within each environment: two rank correlations,
    both above 0 (permutation tests at 5 %). Over all policies at once, what algorithms differ in
    would pass for a difference of tasks too.

    Not reproduced when one of the two is below 0 (at 2.5 % each), else inconclusive. A policy of
    the suite and a public one that one algorithm trained for one environment count as two.

    Args:
        records: those of the PTQ and of the weights studies together; the latter hold `width`
            as a list, one value a layer, of which the largest counts (a tensor has one scale).
            Weights of another policy than the one that played count for nothing.
    """
    measured = losses_at(records, precisions)
    if measured.empty or width not in records:
        return NOT_MEASURED
    losses, left_out = leave_out_unlearned(measured, records)
    layers = of_who_played(records[records[width].notna()], measured)
    layers = layers.drop_duplicates("policy").set_index("policy")
    widths = layers[width].map(max)
    pairs = losses.assign(width=losses["policy"].map(widths)).dropna(subset=["width", "loss"])
    keys = keys_of(pairs) + tuple(layers["key"][layers.index.isin(pairs["policy"])])
    if len(pairs) < MIN_POLICIES:
        few = counted(len(pairs), "policy", "policies")
        return Finding("inconclusive", f"only {few}{left_out}", None, keys)
    over_tasks, over_algos = (_within(pairs, same) for same in ("algo", "env_id"))
    both = (over_tasks, over_algos)
    verdict: Verdict = "inconclusive" if _too_few(pairs, MIN_POLICIES) \
        else decided(all(each.p_above <= ALPHA for each in both),
                     any(each.p_below <= ALPHA / 2 for each in both))  # fmt: skip
    rho = float(pairs[["width", "loss"]].corr("spearman").iloc[0, 1])
    text = (f"rank correlation of {width} and loss {rho:.2f} over {len(pairs)} policies; from task "
            f"to task, within algorithms, {over_tasks}; from algorithm to algorithm, within "
            f"environments, {over_algos}{left_out}{_few_note(pairs, MIN_POLICIES)}")  # fmt: skip
    return Finding(verdict, text, Interval(rho, np.nan, np.nan), keys)


def _within(pairs: pd.DataFrame, same: str) -> RankCorrelation:
    """Of width and loss, among policies that have the column `same` in common."""
    width, loss = pairs[["width", "loss"]].to_numpy(float).T
    return correlation_within(width, loss, pairs[same].tolist(), np.random.default_rng(0))


def losses_at(
    records: pd.DataFrame, precisions: Sequence[str], algos: Sequence[str] = ()
) -> pd.DataFrame:
    """`paired_losses` at these precisions with min-max ranges (fp32's own rows only if asked)."""
    losses = paired_losses(ptq_records(records, precisions, algos, ranges=["minmax"]))
    if losses.empty:
        return losses
    return losses[losses["precision"].isin([*precisions])].reset_index(drop=True)


def _every_policy(
    records: pd.DataFrame, precisions: Sequence[str], algos: Sequence[str], in_table4: bool,
    p_good: str,
) -> Finding:
    measured = losses_at(records, precisions, algos)
    cells = _cells_of_table4(algos)
    if in_table4 and len(measured):
        measured = measured.merge(cells)
    if measured.empty:
        return NOT_MEASURED
    losses, left_out = leave_out_unlearned(measured, records)
    if losses.empty:
        return none_learned(measured)
    selection = _selection(losses, cells) if in_table4 else ""
    by_policy = losses.groupby(["policy", "seed"], dropna=False)
    generous = by_policy["precision"].agg(lambda names: precisions[-1] in set(names))
    # The best width of a policy: Bonferroni for a good one; to fail, all widths must.
    p_best = (by_policy[p_good].min() * len(set(precisions))).clip(upper=1)
    good = p_best <= ALPHA
    failed = (holm(by_policy["p_loss"].max().tolist()) <= ALPHA) & generous
    enough = not (selection or _too_few(losses, MIN_COMPARED))
    verdict = decided(good.all() and enough,
                      failed.any() and losses["episodes"].min() >= MIN_EPISODES)  # fmt: skip
    # Where fp32 earns 0 there is no loss, nor a best width.
    best = losses.dropna(subset="loss").groupby(["policy", "seed"], dropna=False)["loss"].idxmin()
    # Beside a verdict stands what decided it, not a larger loss that is less certain.
    shown = losses.loc[best[best.index.isin(failed.index[failed])] if failed.any() else best]
    worst = _worst(shown if len(shown) else losses)
    kind = "equivalent to fp32" if p_good == "p_equivalent" else "without loss"
    losers = [str(policy) for policy, _ in failed.index[failed]]
    who = ", public agents all" if losers and all(p.startswith(PUBLIC) for p in losers) else ""
    text = (
        f"{int(good.sum())} of {len(good)} policies {kind} "
        f"(surely {at_least(p_best.tolist())} of {len(good)}), "
        f"{counted(len(losers), 'loses', 'lose')} more than 5 %{who}; "
        f"largest loss {'of those ' if losers else ''}{_told(worst)}{selection}{left_out}"
        f"{_few_note(losses, MIN_COMPARED)}"
    )
    return Finding(verdict, text, _interval(worst), keys_of(losses))


def _told(row: pd.Series) -> str:
    """A loss in words, and whose it is."""
    told = percent_interval(_interval(row))
    loss = f"{told}, {INTERVAL}" if told else "undefined (fp32 earns 0)"
    return f"{loss} ({row['policy']}, {row['precision']})"


def _cells_of_table4(algos: Sequence[str]) -> pd.DataFrame:
    """algo, env_id: which environments Table 4 has of each of these algorithms; () means all."""
    cells = published_ptq()[["algo", "env_id"]].drop_duplicates()
    return cells[cells["algo"].isin([*algos])] if algos else cells


def _selection(measured: pd.DataFrame, cells: pd.DataFrame) -> str:
    """In words, where only some of the `cells` were measured."""
    here = len(measured[["algo", "env_id"]].drop_duplicates())
    return f" (a selection: {here} of {len(cells)} in Table 4)" if here < len(cells) else ""


def _too_few(losses: pd.DataFrame, min_policies: int) -> bool:
    return bool(_few_note(losses, min_policies))


def _few_note(losses: pd.DataFrame, min_policies: int) -> str:
    """In words, where episodes or policies are too few for what holds of all of them."""
    policies = len(losses[["policy", "seed"]].drop_duplicates())
    few = [counted(policies, "policy", "policies")] if policies < min_policies else []
    if (fewest := int(losses["episodes"].min())) < MIN_EPISODES:
        few.append(counted(fewest, "episode"))
    return f" (only {', '.join(few)})" if few else ""


def _interval(row: pd.Series) -> Interval:
    return Interval(float(row["loss"]), float(row["tost_low"]), float(row["tost_high"]))


def _worst(losses: pd.DataFrame) -> pd.Series:
    """The row of the largest loss; the first where none is defined."""
    defined = losses["loss"].dropna()
    return losses.loc[defined.idxmax()] if len(defined) else losses.iloc[0]
