"""PTQ records -> one row a quantized policy: what it loses against fp32 over the same episodes."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import pandas as pd

from quarl_nb.errors import QuarlError
from quarl_nb.report.compare import Loss, relative_loss
from quarl_nb.report.labels import PUBLIC
from quarl_nb.report.policy_records import REFERENCE, bits_of, ptq_records, returns_of
from quarl_nb.report.stats import (
    RESAMPLES,
    Floats,
    Interval,
    bootstrap_weights,
    mean_interval,
    named_generator,
    with_ends,
)

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
def episode_weights(name: str, n: int, resamples: int = RESAMPLES) -> Floats:
    """The `bootstrap_weights` of n episodes, from a generator that is seeded by a policy's name."""
    return bootstrap_weights(n, named_generator(name), resamples)


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
        **mean.columns("mean"),
        "reference": float(base.mean()),
        "keys": tuple(dict.fromkeys([str(reference["key"]), str(record["key"])])),
        "version": record["version"],
    }
    if loss is None:  # the row stays, undecided
        undefined = (*with_ends("loss"), "tost_low", "tost_high")
        p_values = dict.fromkeys(("p_no_loss", "p_loss", "p_equivalent"), 1.0)
        return row | dict.fromkeys(undefined, float("nan")) | p_values
    return row | {
        **loss.interval.columns("loss"), "tost_low": loss.tost.low, "tost_high": loss.tost.high,
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
