"""Records of policies that played: which of them count, in which version of a policy."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from quarl_nb.errors import QuarlError
from quarl_nb.report.stats import Floats

REFERENCE = "fp32"
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


def returns_of(record: pd.Series) -> Floats:
    """Every episode's return of one record, shape [episodes].

    Raises:
        QuarlError: they are no `finite_returns`.
    """
    try:
        return finite_returns(record["returns"])
    except ValueError as error:
        which = f"{str(record['key'])[:12]} ({record['policy']}, {record['precision']})"
        raise QuarlError(f"record {which} has no finite returns: measure it again, or delete it "
                         "from data/records") from error  # fmt: skip


def finite_returns(values: ArrayLike) -> Floats:
    """As an array of shape [episodes].

    Raises:
        ValueError: there is none, or one that is no finite number.
    """
    returns = np.asarray(values, float)
    if returns.ndim != 1 or not returns.size or not np.isfinite(returns).all():
        raise ValueError("returns are to be finite numbers, one an episode")
    return returns
