"""QAT records -> one row a way of training, and what it gains over another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from quarl_nb.errors import QuarlError
from quarl_nb.report.policy_records import bits_of, returns_of
from quarl_nb.report.seeds import SeedGains, over_seeds
from quarl_nb.report.stats import with_ends
from quarl_nb.report.untrained import learned

# precision, method, regularizer
Way = tuple[str, str, str]
FP32: Way = ("fp32", "none", "none")
WAY = ["precision", "method", "regularizer"]
# What trainings that are compared have in common: their length, how the best policy was chosen,
# and the episodes that it ran.
BUDGET = [f"budget.{name}" for name in
          ("timesteps", "quant_delay", "evaluations", "eval_episodes", "first_seed")]  # fmt: skip
PTQ = "ptq"
W8A8 = "int8"  # of weights and activations; affineN copies quantize weights alone
W8A8_LABEL = "W8A8 PTQ"


def minmax(bits: int) -> Way:
    """Trained at so many bits with monitored ranges."""
    return (f"affine{bits}", "minmax", "none")


def ptq(precision: str = "affine8") -> Way:
    """Trained in float32 and quantized afterwards: the paper's 8*, by default."""
    return (precision, PTQ, "none")


def trained_in(rows: pd.DataFrame, way: Way) -> pd.DataFrame:
    """The rows of one way of training."""
    return rows[(rows[WAY] == list(way)).all(axis=1)]


def shared_seeds(rows: pd.DataFrame, ways: Sequence[Way]) -> set[int]:
    """The seeds that all of these ways have, of those that were trained in at all."""
    seeds = [{*trained_in(rows, way)["seed"]} for way in ways]
    return set.intersection(*filter(None, seeds)) if any(seeds) else set()


def of_shared_seeds(rows: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Of each policy float32 and the trainings by `methods`, without a regularizer, in the seeds
    that all of these ways have.

    A way that shares no seed with float32 compares with nothing, and is left out.
    """
    plain = rows["regularizer"] == "none"
    rows = rows[plain & rows["method"].isin([FP32[1], *methods])]
    shared = {}
    for policy, group in rows.groupby("policy"):
        same = group[group["seed"].isin(trained_in(group, FP32)["seed"])]
        shared[policy] = shared_seeds(same, [*same[WAY].itertuples(index=False, name=None)])
    pairs = zip(rows["policy"], rows["seed"], strict=True)
    return rows[np.array([seed in shared[policy] for policy, seed in pairs], bool)]


def of_learned_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of two ways of training without the seeds that learned in neither.

    Such a seed fails however it is trained: its gain of exactly 0 tells nothing of precision. One
    that fails in one way alone is a loss or a gain. Were those left out that fail in float32
    (rather than in both), failures that strike either way by chance would pass for losses of the
    other. A policy that learned with no seed keeps all, for rules to leave it out by name.

    Args:
        rows: records, or `trainings`, which know who learned.
    """
    each = rows["learned"].astype(bool) if "learned" in rows else learned(rows)
    seeds = each.groupby([rows["policy"], rows["seed"]], dropna=False).transform("any")
    return rows[seeds | ~rows["policy"].isin(rows["policy"][seeds])]


def way_label(way: Way) -> str:
    """As figures write it: fp32, 4 bits, 4 bits (lsq), 8* (PTQ), W8A8 PTQ, layer norm, ..."""
    precision, method, regularizer = way
    if regularizer.startswith("noise"):
        return f"noise of {regularizer.removeprefix('noise')} bits"
    if regularizer != "none":
        return regularizer.replace("_", " ")
    bits = bits_of(precision)
    name = precision if bits is None else f"{bits} bits"
    if method == PTQ:
        if precision == W8A8:
            return W8A8_LABEL
        return "8* (PTQ)" if precision == "affine8" else f"{name} (PTQ)"
    return f"{name} (lsq)" if method == "lsq" else name


def trainings(records: pd.DataFrame) -> pd.DataFrame:
    """One row a trained policy, and one for each quantized copy of a float32 one.

    Args:
        records: `ResultStore.frame("qat")`.

    Returns:
        policy, algo, env_id, seed, precision, method, regularizer, bits, episodes, mean (return of
        the policy over its episodes), learned (`untrained.learned`, a copy as its float32 policy),
        profile, key, and `BUDGET` (None where unknown).
    """
    measured = records if "returns" in records else records.head(0)
    rows = []
    for (_, record), useful in zip(measured.iterrows(), learned(measured), strict=True):
        row = {name: record[name] for name in
               ("policy", "algo", "env_id", "seed", *WAY, "profile", "key")}
        row |= {name: record.get(name) for name in BUDGET} | {"learned": useful}
        returns = returns_of(record)
        rows.append(row | {"episodes": len(returns), "mean": returns.mean()})
        copies = record.get("ptq_returns")
        for precision, values in copies.items() if isinstance(copies, dict) else ():
            copy = {"precision": precision, "method": PTQ}
            rows.append(row | copy | {"episodes": len(values), "mean": float(np.mean(values))})
    found = pd.DataFrame(rows, columns=["policy", "algo", "env_id", "seed", *WAY, "episodes",
                                        "mean", "learned", "profile", "key", *BUDGET])  # fmt: skip
    return found.assign(bits=found["precision"].map(bits_of))


def gains(rows: pd.DataFrame, way: Way, reference: Way = FP32) -> pd.DataFrame:
    """What `way` earns more than `reference`, a row a policy that has both for common seeds.

    Differences are taken seed by seed (same initial weights, same environments), as shares of the
    mean float32 return over the same seeds (`SeedGains`). A seed that float32 lacks, where it is
    not what is compared, counts as float32's mean.

    Args:
        rows: of `trainings`.

    Returns:
        policy, precision (of `way`), seeds (how many both have), episodes (fewest of a record),
        mean and reference (mean returns over these seeds), mean_low, mean_high (95 % over them, NaN
        below `MIN_SEEDS`), gain, gain_low, gain_high (likewise), `SeedGains.p_values`, keys.

    Raises:
        QuarlError: a policy's trainings differ in `BUDGET`.
    """
    found = []
    for policy, group in rows.groupby("policy", sort=True):
        ours, theirs, base = (_of(group, each) for each in (way, reference, FP32))
        seeds = [seed for seed in ours.index if seed in theirs.index]
        if not seeds or base.empty:
            continue
        ours, theirs = ours.loc[seeds], theirs.loc[seeds]
        own = base["mean"].reindex(seeds).fillna(base["mean"].mean())
        gain = SeedGains.of(*(means.tolist() for means in (ours["mean"], theirs["mean"], own)))
        if gain is None:
            continue
        check_alike(pd.concat([ours, theirs, base]), str(policy))
        found.append({
            "policy": policy, "precision": way[0], "seeds": len(seeds),
            "episodes": int(min(ours["episodes"].min(), theirs["episodes"].min())),
            **over_seeds(ours["mean"].tolist()).columns("mean"),
            "reference": theirs["mean"].mean(),
            **gain.interval().columns("gain"), **gain.p_values(),
            "keys": tuple(dict.fromkeys([*ours["key"], *theirs["key"]])),
        })  # fmt: skip
    columns = ["policy", "precision", "seeds", "episodes", *with_ends("mean"),
               "reference", *with_ends("gain"), "p_gain", "p_no_gain", "p_loss", "p_no_loss",
               "keys"]  # fmt: skip
    return pd.DataFrame(found, columns=columns)


def check_alike(runs: pd.DataFrame, policy: str) -> None:
    """Refuse to compare trainings of a policy that differ in `BUDGET`, or of which some tell none.

    Raises:
        QuarlError: they do.
    """
    for name in BUDGET:
        values = runs[name].drop_duplicates() if name in runs else ()
        if len(values) > 1:
            one, other = ("unknown" if pd.isna(value) else f"{value:.0f}" for value in values[:2])
            raise QuarlError(
                f"{policy}: trainings that are compared had {name.removeprefix('budget.')} {one} "
                f"and {other}; run all with the same"
            )


def way_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Every policy and way of training against float32, over the seeds that both have.

    Returns:
        the columns of `gains`, and algo, env_id, precision, method, regularizer, bits.
    """
    found = []
    for keys, group in rows.groupby(["policy", *WAY], sort=True):
        policy, way = str(keys[0]), tuple(map(str, keys[1:]))
        same = rows[rows["policy"] == policy]
        for gain in gains(same, way).to_dict("records"):  # type: ignore[arg-type]  # three names
            found.append({
                **gain, **dict(zip(WAY, way, strict=True)), "bits": group["bits"].iloc[0],
                "algo": group["algo"].iloc[0], "env_id": group["env_id"].iloc[0],
            })  # fmt: skip
    return pd.DataFrame(found)


def _of(rows: pd.DataFrame, way: Way) -> pd.DataFrame:
    return trained_in(rows, way).drop_duplicates("seed").set_index("seed").sort_index()
