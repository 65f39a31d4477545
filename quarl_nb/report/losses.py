"""PTQ records -> one row a quantized policy: what it loses against fp32 over the same episodes."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

import numpy as np
import pandas as pd

from quarl_nb.errors import QuarlError
from quarl_nb.report.compare import Loss, relative_loss
from quarl_nb.report.stats import Floats, Interval, bootstrap_weights, mean_interval
from quarl_nb.report.texts import AS_PERCENT

REFERENCE = "fp32"
PUBLIC = "public/"
# Ways to set the ranges, as figures and tables name them.
RANGES = {"minmax": "min-max", "per_channel": "per channel", "percentile": "percentile",
          "mse": "least squares"}  # fmt: skip
_POLICY = re.compile(
    r"(?P<algo>a2c|a3c-gru|ars|d4pg|ddpg|dqn|dueling-ddqn|ppo|qrdqn|sac|td3|tqc|trpo)-(?P<env>.+?)"
    r"(?P<ending>(NoFrameskip|Deterministic)?-v[0-9.]+)?$"
)
_WIDTH = re.compile(r"(?:affine|legacy)(\d+)$")
# Where a record tells which policy it is of: of one's own by the first, of the suite's the second.
TENSORS, TRAINED = "budget.tensors_sha256", "extra.start_time"


def bits_of(precision: str) -> int | None:
    """Simulated width of `affineN` and `legacyN`; None for formats (fp16, int8, ...)."""
    found = _WIDTH.match(precision)
    return int(found.group(1)) if found else None


def ptq_records(
    records: pd.DataFrame, precisions: Sequence[str] = (), algos: Sequence[str] = (),
    env_ids: Sequence[str] = (), ranges: Sequence[str] = (),
) -> pd.DataFrame:
    """The rows that hold returns, at `precisions` (and fp32), of `algos`, ...; () means all.

    `ranges` is filled with its default, `algo` is in lower case, and `version` that of
    `with_versions`. Of a policy's name that was given to another since, or whose policy was trained
    anew (by algorithm, environment and version), only the newest counts.
    """
    if records.empty or "returns" not in records:
        return pd.DataFrame()
    rows = newest_of_each_name(with_versions(records[records["returns"].notna()]))
    rows = rows.assign(
        ranges=rows["ranges"].fillna("minmax") if "ranges" in rows else "minmax",
        algo=rows["algo"].str.lower(),
    )
    keep = pd.Series(True, rows.index)
    if precisions:
        keep &= rows["precision"].isin([REFERENCE, *precisions])
    if ranges:
        keep &= rows["ranges"].isin([*ranges]) | (rows["precision"] == REFERENCE)
    for column, allowed in (("algo", algos), ("env_id", env_ids)):
        if allowed:
            keep &= rows[column].isin([*allowed])
    return rows[keep]


def with_versions(records: pd.DataFrame) -> pd.DataFrame:
    """With a column `version`: what tells a policy from another that had its name.

    The SHA-256 of the tensors where the record has it, else when the policy was trained; "" of the
    known public agents, and of what older records do not tell.
    """
    version = pd.Series("", records.index, dtype=object)
    for name in (TRAINED, TENSORS):  # one policy may have been saved twice, its tensors tell
        if name in records:
            version = records[name].astype(object).where(records[name].notna(), version)
    return records.assign(version=version)


def of_who_played(records: pd.DataFrame, played: pd.DataFrame) -> pd.DataFrame:
    """The `records` of policies in the version that played, as far as both tell which that was.

    Args:
        records: without episodes, as those of the weights studies: policy, and what
            `with_versions` reads.
        played: policy and version, as `ptq_records` and `paired_losses` have them.
    """
    told = played[played["version"] != ""].drop_duplicates("policy")
    records = with_versions(records)
    theirs = records["policy"].map(told.set_index("policy")["version"])
    unknown = theirs.isna() | (records["version"] == "")
    return records[unknown | (records["version"] == theirs)]


def newest_of_each_name(rows: pd.DataFrame) -> pd.DataFrame:
    """Of a name that another policy was given since, or whose policy was trained anew, the rows of
    the newest: by algorithm, environment and version (`with_versions`)."""
    if "provenance.start_time" not in rows:
        return rows
    by_age = rows.sort_values("provenance.start_time", kind="stable")
    named = by_age.groupby(["policy", "seed"], dropna=False)
    kept = pd.Series(True, by_age.index)
    for column in ("algo", "env_id", "version"):
        kept &= by_age[column] == named[column].transform("last")
    return rows[kept.reindex(rows.index)]


def percent(fraction: float) -> str:
    """0.0123 as 1.2%, without a negative zero."""
    return f"{fraction:{AS_PERCENT}}"


def percent_interval(share: Interval) -> str:
    """As 1.2% [0.3%, 2.0%]; without an interval where there is none, empty for NaN."""
    return "" if np.isnan(share.value) else share.text(AS_PERCENT)


def policy_label(policy: str) -> str:
    """`public/a2c-HalfCheetah-v3` as figures write it, A2C HalfCheetah (public); others stay."""
    return _label(policy, short=True)


def policy_labels(policies: Iterable[str]) -> dict[str, str]:
    """Labels of policies that are shown together, no two alike, as {policy: label}.

    `policy_label`, or the environment's whole name where that would be shared: ppo-MountainCar-v0
    is PPO MountainCar, and beside ppo-MountainCarContinuous-v0 PPO MountainCar-v0.
    """
    names = list(dict.fromkeys(policies))
    short = [policy_label(name) for name in names]
    return {name: label if short.count(label) == 1 else _label(name, short=False)
            for name, label in zip(names, short, strict=True)}  # fmt: skip


def _label(policy: str, short: bool) -> str:
    found = _POLICY.match(policy.removeprefix(PUBLIC))
    if found is None or not (found["ending"] or found["env"].startswith("AirNavigation-")):
        return policy  # as its owner calls it
    algo, env = found["algo"].upper(), found["env"]
    if short:
        env = env.replace("MountainCarContinuous", "MountainCar")  # the paper's own short name
        env = env[:1].upper() + env[1:]
    else:
        env += found["ending"] or ""
    return f"{algo} {env} (public)" if policy.startswith(PUBLIC) else f"{algo} {env}"


_COLUMNS = [
    "algo", "env_id", "policy", "public", "seed", "precision", "bits", "ranges", "episodes",
    "mean", "mean_low", "mean_high", "reference", "keys", "loss", "loss_low", "loss_high",
    "tost_low", "tost_high", "p_no_loss", "p_loss", "p_equivalent", "version",
]  # fmt: skip


def paired_losses(records: pd.DataFrame) -> pd.DataFrame:
    """Loss of every quantized policy against its own fp32 over common episode seeds.

    A policy's bootstrap generator is seeded by its name, so that its intervals do not depend on
    which other records there are; precisions of as many episodes share the draws, which keeps them
    paired.

    Args:
        records: `ResultStore.frame("ptq")`: key, algo, env_id, policy, seed, precision, ranges,
            returns (list), and `budget.first_seed` and what `with_versions` reads where known.

    Returns:
        One row a record that has an fp32 partner: algo, env_id, policy, public, seed, precision,
        bits, ranges, episodes, mean, mean_low, mean_high (95 %), reference (mean fp32 return),
        loss, loss_low, loss_high (95 %, fractions of |reference|, positive is worse), tost_low,
        tost_high (90 %), p_no_loss, p_loss, p_equivalent, keys (the two records), version (of the
        policy: `with_versions`). Without a row it has these columns too.

    Raises:
        QuarlError: two precisions are no pair (`paired_returns`).
    """
    rows: list[dict[str, object]] = []
    records = ptq_records(records)
    if records.empty:
        return pd.DataFrame(columns=_COLUMNS)
    for (policy, seed), group in records.groupby(["policy", "seed"], dropna=False, sort=True):
        reference = group[group["precision"] == REFERENCE]
        if len(reference):
            # Beside records without a seed its column is float: the name must not change with it.
            rows += _policy_rows(f"{policy}/{float(seed)}", reference.iloc[0], group)
    return pd.DataFrame(rows, columns=_COLUMNS)


def _policy_rows(name: str, reference: pd.Series, group: pd.DataFrame) -> list[dict[str, object]]:
    rows = []
    for _, record in group.iterrows():
        base, treatment = paired_returns(reference, record)
        found = _estimates(name, base.tobytes(), treatment.tobytes())
        rows.append(_row(reference, record, base, *found))
    return rows


@cache
def _estimates(name: str, base: bytes, treatment: bytes) -> tuple[Interval, Loss | None]:
    """Mean return of `treatment`, and its loss against `base`; None where the mean of that is 0.

    The returns are bytes, by which they are found again: tables, figures and claims ask for the
    losses of the same records some twenty times.
    """
    x, y = np.frombuffer(base), np.frombuffer(treatment)
    weights = episode_weights(name, len(x))
    return mean_interval(y, weights), relative_loss(x, y, weights) if x.mean() else None


@lru_cache(maxsize=4)  # a policy's records come one after another, of few numbers of episodes
def episode_weights(name: str, n: int) -> Floats:
    """The `bootstrap_weights` of n episodes, from a generator that is seeded by a policy's name."""
    return bootstrap_weights(n, np.random.default_rng(zlib.crc32(name.encode())))


def _row(
    reference: pd.Series, record: pd.Series, base: Floats, mean: Interval, loss: Loss | None
) -> dict[str, object]:
    row: dict[str, object] = {
        "algo": record["algo"],
        "env_id": record["env_id"],
        "policy": record["policy"],
        "public": str(record["policy"]).startswith(PUBLIC),
        "seed": record["seed"],
        "precision": record["precision"],
        "bits": bits_of(str(record["precision"])),
        "ranges": record["ranges"],
        "episodes": len(base),
        "mean": mean.value, "mean_low": mean.low, "mean_high": mean.high,
        "reference": float(base.mean()),
        "keys": tuple(dict.fromkeys([str(reference["key"]), str(record["key"])])),
        "version": record["version"],
    }
    if loss is None:  # the row stays, undecided
        undefined = ("loss", "loss_low", "loss_high", "tost_low", "tost_high")
        p_values = dict.fromkeys(("p_no_loss", "p_loss", "p_equivalent"), 1.0)
        return row | dict.fromkeys(undefined, float("nan")) | p_values
    return row | {
        "loss": loss.interval.value, "loss_low": loss.interval.low,
        "loss_high": loss.interval.high, "tost_low": loss.tost.low, "tost_high": loss.tost.high,
        "p_no_loss": loss.p_no_loss, "p_loss": loss.p_loss, "p_equivalent": loss.p_equivalent,
    }


def paired_returns(reference: pd.Series, record: pd.Series) -> tuple[Floats, Floats]:
    """Returns of both over the episodes that both ran, shape [episodes] each: those of the shorter.

    Args:
        reference, record: rows of `ptq_records`.

    Raises:
        QuarlError: returns are missing, or they ran on different episode seeds, with different
            shares of random actions, or another policy of that name.
    """
    _check_alike(reference, record)
    base, treatment = returns_of(reference), returns_of(record)
    n = min(len(base), len(treatment))
    return base[:n], treatment[:n]


def returns_of(record: pd.Series) -> Floats:
    """Every episode's return of one record, shape [episodes].

    Raises:
        QuarlError: none, or one that is not a number.
    """
    values = np.asarray(record["returns"], float)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise QuarlError(f"record {str(record['key'])[:12]} has no finite returns")
    return values


def _check_alike(reference: pd.Series, record: pd.Series) -> None:
    for column in ("budget.first_seed", "budget.random_actions", "version"):
        own, other = record.get(column), reference.get(column)
        if own != other and not (pd.isna(own) and pd.isna(other)):
            name = column.removeprefix("budget.")
            ran, fp32 = ("unknown" if value == "" else value for value in (own, other))
            raise QuarlError(
                f"{record['policy']}: {record['precision']} ran with {name} {ran}, fp32 with "
                f"{fp32}; run both with the same, or delete the record "
                f"{str(record['key'])[:12]}*.json or {str(reference['key'])[:12]}*.json"
            )
