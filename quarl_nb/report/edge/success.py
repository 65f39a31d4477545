"""Success of the navigation policies against precision: Wilson intervals, published beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from quarl_nb.errors import QuarlError
from quarl_nb.report.compare import Loss, paired_difference, relative_loss
from quarl_nb.report.edge.timings import table6_networks
from quarl_nb.report.labels import RANGES
from quarl_nb.report.losses import episode_weights
from quarl_nb.report.paper import published
from quarl_nb.report.policy_records import TENSORS, newest_of_each_name, with_versions
from quarl_nb.report.pvalues import sign_flip_p
from quarl_nb.report.seeds import over_seeds, p_above
from quarl_nb.report.stats import MARGIN, Floats, Interval, alike, wilson, with_ends

PLAIN, QAT = "minmax", "qat"  # methods; fp32 is recorded under the first
METHODS = {name: f"PTQ, {label}" for name, label in RANGES.items()} | {QAT: "QAT"}
EARLY, STOPPED = "-early", ", stopped early"  # a policy's name in records; its name here
PAPERS_EPISODES = 100  # "for 100 evaluations"
OUTCOMES = {"success": "s", "crash": "c", "timeout": "t"}  # a record's letter of each
# The narrowest kernel that holds the weights of a precision. Symmetric ones have a level less than
# affine ones of their width: none holds affine8.
KERNELS: Mapping[str, str] = {
    "fp32": "fp32", "int8": "int8", "affine7": "int8", "affine6": "int8", "affine5": "int8",
    "affine4": "int8", "int4": "int4",
}  # fmt: skip


def published_success() -> pd.DataFrame:
    """Table 6's success rates: policy, precision, success with low and high (95 %, Wilson) of its
    100 evaluations, and of quantized ones fall (fp32 minus this, in flights of its own) with
    fall_low and fall_high (95 %, Newcombe)."""
    table = published("table6")
    rows = table[table["quantity"] == "success_rate"].set_index(["policy", "precision"])["value"]
    rates = {at: wilson(round(value / 100 * PAPERS_EPISODES), PAPERS_EPISODES)
             for at, value in rows.items()}  # fmt: skip
    found = []
    for (policy, precision), rate in rates.items():
        row = {"policy": policy, "precision": precision, "success": rate.value, "low": rate.low,
               "high": rate.high}  # fmt: skip
        if precision != "fp32":
            fall = weighted_sum([1, -1], [rates[policy, "fp32"], rate])
            row |= fall.columns("fall")
        found.append(row)
    return pd.DataFrame(found)


def weighted_sum(weights: Sequence[float], parts: Sequence[Interval]) -> Interval:
    """The sum of independent estimates, each times its weight, with an interval from theirs.

    How far it reaches to either side are the parts' reaches added in squares (Zou & Donner 2008,
    "Construction of confidence limits about effect measures"): of the difference of two `wilson`
    intervals it is Newcombe's (1998, method 10).
    """
    values, lows, highs = np.array([[part.value, part.low, part.high] for part in parts]).T
    ends = np.sort(np.multiply(weights, [lows, highs]), axis=0)
    terms = np.multiply(weights, values)
    reach = np.linalg.norm(ends - terms, axis=1)
    value = float(terms.sum())
    return Interval(value, value - float(reach[0]), value + float(reach[1]))


def success_rows(records: pd.DataFrame) -> pd.DataFrame:
    """One row a policy, precision and method.

    Where a policy was trained with several seeds (with quantization), the interval is over the
    seeds, which all fly the same episodes; two seeds have none.

    Args:
        records: those of the study `navigation`; others are left out.

    Returns:
        policy (of Table 6, and `STOPPED` if it learned no more than the published success; one's
        own as it is recorded), network, precision, method, kernel (the narrowest that holds it),
        trainings, episodes, success with low and high (95 %, Wilson; over trainings Student's t),
        crash and timeout (rates), fall (fp32 minus this, over common episodes) with fall_low and
        fall_high (95 %, paired bootstrap, over trainings Student's t), p_no_loss and p_loss (of
        5 % of the fp32 rate; of trainings over both, these and episodes), keys, profile.

    Raises:
        QuarlError: two precisions of a policy flew different episodes.
    """
    rows = _flights(records)
    if rows.empty:
        return pd.DataFrame()
    full = rows[rows["precision"] == "fp32"].set_index("policy")
    networks = table6_networks()
    names = {network: policy for policy, network in networks.items()}
    found = []
    for (policy, precision, method), group in rows.groupby(["policy", "precision", "method"]):
        network, own = group[["network", "own"]].iloc[0]
        flown = _pooled(group["success"])
        rate = _rate(group["success"])
        base = full.loc[policy] if policy in full.index else None
        found.append({
            "policy": policy if own else _name(policy, names.get(network)), "network": network,
            "precision": precision, "method": method, "kernel": KERNELS.get(str(precision), ""),
            "trainings": len(group), "episodes": len(flown),
            "success": rate.value, "low": rate.low, "high": rate.high,
            "crash": _pooled(group["crash"]).mean(), "timeout": _pooled(group["timeout"]).mean(),
            **_fall(group, base), "profile": group["profile"].iloc[0],
            "keys": tuple(dict.fromkeys([*group["key"], *([] if base is None else [base["key"]])])),
        })  # fmt: skip
    order = {name: i for i, name in enumerate([*networks, *map(stopped, networks)])}
    table = pd.DataFrame(found)
    table["at"] = table["policy"].map(order).fillna(len(order))
    table["wide"] = -table["precision"].map(bits)
    table["way"] = table["method"].map([*METHODS].index)
    return table.sort_values(["at", "wide", "precision", "way"], kind="stable") \
                .drop(columns=["at", "wide", "way"]).reset_index(drop=True)


def _flights(records: pd.DataFrame) -> pd.DataFrame:
    """The rows that hold flights, with `own` (of a policy that is none of the suite's), and whether
    each episode was a success, a crash or a timeout (0 or 1).

    Of a name that was given to another policy since, only the newest counts.
    """
    if records.empty or "outcomes" not in records:
        return pd.DataFrame()
    rows = newest_of_each_name(with_versions(records[records["outcomes"].notna()]))
    ended = {outcome: [[int(each == letter) for each in flown] for flown in rows["outcomes"]]
             for outcome, letter in OUTCOMES.items()}  # fmt: skip
    return rows.assign(own=rows[TENSORS].notna() if TENSORS in rows else False, **ended)


def stopped(policy: str) -> str:
    """The policy of Table 6 that learned no more than the published success."""
    return policy + STOPPED


def _name(recorded: str, policy: str | None) -> str:
    """Of a policy in Table 6, else as it is recorded."""
    if policy is None:
        return recorded
    return stopped(policy) if recorded.endswith(EARLY) else policy


def loss_between(
    records: pd.DataFrame, reference: tuple[str, str], treatment: tuple[str, str]
) -> Loss | None:
    """The loss of one (policy of Table 6, precision) against another over the same episodes.

    Both with min-max ranges; None where one is not recorded, or where the reference never succeeds.
    """
    rows = _flights(records)
    if rows.empty:
        return None
    rows = rows[~rows["policy"].str.endswith(EARLY) & ~rows["own"]]
    networks, sides = table6_networks(), []
    for policy, precision in (reference, treatment):
        found = rows[(rows["network"] == networks[policy]) & (rows["precision"] == precision)
                     & (rows["method"] == PLAIN)]  # fmt: skip
        if found.empty:
            return None
        sides.append(found.iloc[0])
    if not _flew_the_same(*sides) or not any(sides[0]["success"]):
        return None
    base, ours = (np.asarray(side["success"], float) for side in sides)
    name = "/".join((*reference, *treatment))
    return relative_loss(base, ours, episode_weights(name, len(base)))


def _flew_the_same(one: pd.Series, other: pd.Series) -> bool:
    """Whether two records are of episodes with the same seeds, which count up from the first."""
    first, second = ((row["budget.first_seed"], len(row["success"])) for row in (one, other))
    return first == second


def bits(precision: str) -> int:
    """Of the weights: 32 for fp32, 8 for int8 and affine8."""
    return int(precision.lstrip("abcdefghijklmnopqrstuvwxyz"))


def _fall(group: pd.DataFrame, full: pd.Series | None) -> dict[str, float]:
    """Fall and losses against fp32 over the same episodes; NaN without it, or where it is 0."""
    if full is None or not any(full["success"]):
        return dict.fromkeys(with_ends("fall"), np.nan) | {"p_no_loss": 1.0, "p_loss": 1.0}
    if not all(_flew_the_same(full, row) for _, row in group.iterrows()):
        raise QuarlError(f"{full.name}: {group['precision'].iloc[0]} and fp32 flew different "
                         "episodes; run both on the same")  # fmt: skip
    base, ours = (np.asarray(flown, float) for flown in (full["success"], group["success"].iloc[0]))
    if not _one_tells(group["success"]):
        return _fall_over_trainings(group, base)
    weights = episode_weights(str(full.name), len(base))
    fall, loss = paired_difference(base, ours, weights), relative_loss(base, ours, weights)
    return fall.columns("fall") | {"p_no_loss": loss.p_no_loss, "p_loss": loss.p_loss}


def _one_tells(trainings: pd.Series) -> bool:
    """Whether a single one's episodes tell how surely it succeeds: there is no other, or all
    succeed as often, which leaves Student's t without a scale."""
    return bool(alike(np.array([np.mean(flown) for flown in trainings])))


def _rate(trainings: pd.Series) -> Interval:
    """Of success; several trainings flew the same episodes, and differ more than these tell."""
    if _one_tells(trainings):
        flown = trainings.iloc[0]
        return wilson(sum(flown), len(flown))
    rate = over_seeds([float(np.mean(flown)) for flown in trainings])
    return Interval(rate.value, *np.clip([rate.low, rate.high], 0.0, 1.0).tolist())


def _fall_over_trainings(group: pd.DataFrame, base: Floats) -> dict[str, float]:
    """Each p-value is the larger of two: over trainings, and over episodes. The luck of fp32's
    flights is in every training's fall, so that trainings that agree would pass for certain."""
    lost = base - np.array([*group["success"]], float)  # [trainings, episodes]
    falls, left = lost.mean(axis=1), MARGIN * base - lost.mean(axis=0)
    found, margin = over_seeds(falls.tolist()), MARGIN * base.mean()
    return found.columns("fall") | {
        "p_no_loss": max(p_above((-falls).tolist(), -margin), sign_flip_p(left)),
        "p_loss": max(p_above(falls.tolist(), margin), sign_flip_p(-left)),
    }  # fmt: skip


def _pooled(episodes: pd.Series) -> Floats:
    return np.concatenate([np.asarray(flown, float) for flown in episodes])
