"""A record: the JSON of one measured cell, its checksum, and its row in a table."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from quarl_nb.errors import QuarlError
from quarl_nb.study import canonical_json

OWN = ("key", "profile", "backend", "source", "wall_s")  # a record's own columns in its row
GROUPS = ("budget", "energy", "provenance", "extra")


def check_columns(cell: Mapping[str, Any], measured: Mapping[str, Any] | None = None) -> None:
    """Refuse fields that would hide one another, or a record's own, in its row.

    Raises:
        QuarlError: names them.
    """
    if clash := set(cell) & set(measured or {}):
        raise QuarlError(f"measured fields hide cell fields: {', '.join(sorted(clash))}")
    own = [name for name in {**cell, **(measured or {})}
           if name in OWN or name.partition(".")[0] in GROUPS and "." in name]  # fmt: skip
    if own:
        raise QuarlError(f"fields called as a record's own are: {', '.join(own)}; taken are "
                         f"{', '.join(OWN)}, and {'.*, '.join(GROUPS)}.*")  # fmt: skip


def flatten(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as one row: cell and measured fields bare, the others under their group's name."""
    row = {"key": record["key"], "profile": record["profile"], **record["cell"]}
    row |= record["measured"]
    row |= {name: record[name] for name in OWN if name in record}
    for group in GROUPS:
        row |= {f"{group}.{name}": value for name, value in record.get(group, {}).items()}
    return row


def to_json(value: Any) -> Any:
    """`value` in JSON types: numpy scalars and arrays unpacked, non-finite numbers None.

    Raises:
        TypeError: something in it is not a JSON value.
    """
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is not a JSON value: {value!r}")


def to_text(record: Mapping[str, Any]) -> str:
    """A record's JSON, a line a field: with one for every episode it would be a third larger."""
    compact = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
    fields = ",\n".join(f"{compact(name)}:{compact(value)}" for name, value in record.items())
    return f"{{\n{fields}\n}}\n"


def checksum(record: Mapping[str, Any]) -> str:
    """SHA-256 of a record's canonical JSON without its own checksum."""
    rest = {name: value for name, value in record.items() if name != "sha256"}
    return hashlib.sha256(canonical_json(rest).encode()).hexdigest()
