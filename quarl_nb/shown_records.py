"""Which of a profile's records to show: of each cell one, of each policy those of one version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from quarl_nb.study import canonical_json

Record = Mapping[str, Any]


def of_present_policies(
    records: Sequence[Record], weights_of: Callable[[str], str | None] | None
) -> list[Record]:
    """Without records of an older policy of the same name, where today's policy has records too.

    Users' own policies alone are told apart so: only their records hold a digest of the weights.

    Args:
        weights_of: name -> SHA-256 of the weights that lie there, None where none do; None: not
            known of any.
    """
    found: dict[str, set[str]] = {}
    for record in records:
        if weights := _weights(record):
            found.setdefault(record["cell"]["policy"], set()).add(weights)
    several = [name for name, known in found.items() if len(known) > 1]
    # Asked only where it decides: reading a policy's description loads torch.
    today = {name: weights_of(name) for name in several} if weights_of else {}
    shown = {name: weights for name, weights in today.items() if weights in found[name]}
    return [record for record in records
            if (name := record["cell"].get("policy")) not in shown
            or _weights(record) == shown[name]]  # fmt: skip


def one_of_each_cell(
    records: Iterable[Record], planned: Callable[[], Collection[str]] | None
) -> list[Record]:
    """One record a cell and device, sorted by key: a planned one, else the newest.

    A cell has several if it was measured with several budgets: those of `--set`, or of a profile
    that has changed since. A learner's device is one that changes what is measured.

    Args:
        planned: the keys that the profile measures today; None: not known.
    """
    cells: dict[str, list[Record]] = {}
    for record in records:
        measured = [record["cell"], record["budget"].get("device")]
        cells.setdefault(canonical_json(measured), []).append(record)
    keys: Collection[str] = ()
    # Asked only where it decides: planning loads the study, and torch with it.
    if planned and any(len(found) > 1 for found in cells.values()):
        keys = planned()
    best = (
        max(found, key=lambda record: (record["key"] in keys, *_age_order(record)))
        for found in cells.values()
    )
    return sorted(best, key=lambda record: str(record["key"]))


def _weights(record: Record) -> str | None:
    return record["budget"].get("tensors_sha256")


def _age_order(record: Record) -> tuple[int, str]:
    return record["schema_version"], record.get("provenance", {}).get("start_time", "")
