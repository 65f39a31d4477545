"""Which policies never learned: of those, "without loss" says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from quarl_nb.errors import QuarlError
from quarl_nb.paths import read_object, untrained_file
from quarl_nb.report.findings import Finding, keys_of
from quarl_nb.report.policy_records import REFERENCE, finite_returns, ptq_records, returns_of
from quarl_nb.report.pvalues import permutation_p
from quarl_nb.report.stats import ALPHA, Floats


def untrained_returns(path: Path | None = None) -> dict[str, list[Floats]]:
    """Returns of policies that look at nothing, shape [episodes] each, by environment.

    They are random actions and, where an action has a zero, no action; `quarl_nb.rl.untrained`
    measures them into `untrained_file()`. Empty without that file.

    Raises:
        QuarlError: the file is damaged.
    """
    path = path or untrained_file()
    entries = read_object(path)
    try:
        return {
            env_id: [finite_returns(entry[name]["returns"])
                     for name in ("random", "idle") if name in entry]
            for env_id, entry in entries.items()
        }  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise QuarlError(f"returns of untrained policies '{path}': {error!r}") from error


def learned(
    records: pd.DataFrame, untrained: Mapping[str, list[Floats]] | None = None
) -> pd.Series:
    """Whether each training is better than every policy that looks at nothing.

    Better: a higher mean return, one-sided permutation test at 5 % over episodes. One whose
    environment is not among `untrained` counts as learned.

    Args:
        records: one row a training: env_id, returns (list).
        untrained: by default `untrained_returns()`.
    """
    known = untrained_returns() if untrained is None else untrained
    found = [_learned(row, known.get(row["env_id"], [])) for _, row in records.iterrows()]
    return pd.Series(found, records.index, dtype=bool)


def never_learned(
    records: pd.DataFrame, untrained: Mapping[str, list[Floats]] | None = None
) -> set[str]:
    """The policies of which no training `learned`.

    One training that learned is enough, and tests are not corrected for their number: both keep a
    policy that may have learned.

    Args:
        records: as `learned` takes them, and policy.
    """
    if records.empty:
        return set()
    policies = records["policy"].astype(str)
    return {*policies} - {*policies[learned(records, untrained)]}


def fp32_never_learned(records: pd.DataFrame) -> set[str]:
    """`never_learned` of the records in fp32 that hold returns; nobody where none does.

    Args:
        records: one policy a name (`ptq_records`), or it counts if any of its name learned.
    """
    if "returns" not in records:
        return set()
    return never_learned(records[records["returns"].notna() & (records["precision"] == REFERENCE)])


def _learned(record: pd.Series, untrained: list[Floats]) -> bool:
    return _better(returns_of(record).tobytes(), tuple(other.tobytes() for other in untrained))


@cache  # by the returns' bytes: every claim asks it of the same records
def _better(returns: bytes, untrained: tuple[bytes, ...]) -> bool:
    generator = np.random.default_rng(0)  # what one policy gives does not depend on the others
    own, others = np.frombuffer(returns), map(np.frombuffer, untrained)
    return all(permutation_p(own, other, generator) <= ALPHA for other in others)


def leave_out_unlearned(table: pd.DataFrame, records: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """`leave_out` of those in `table`, of PTQ, that never learned in fp32."""
    return leave_out(table, fp32_never_learned(ptq_records(records)))


def leave_out(table: pd.DataFrame, policies: set[str]) -> tuple[pd.DataFrame, str]:
    """The rows of the other policies, and in words which are gone."""
    gone = table["policy"].isin(policies)
    names = ", ".join(sorted(set(table["policy"][gone])))
    return table[~gone].reset_index(drop=True), f" (never learned: {names})" if names else ""


def none_learned(table: pd.DataFrame) -> Finding:
    """What a table that `leave_out` left nothing of decides: nothing."""
    names = ", ".join(sorted(set(table["policy"])))
    return Finding("inconclusive", f"no policy learned: {names}", None, keys_of(table))
