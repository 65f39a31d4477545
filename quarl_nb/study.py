"""What a study is: a matrix of cells, their budget, and how one cell is measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from quarl_nb.errors import QuarlError, check_choice, same_type

PROFILES = ("full", "quick", "smoke")  # best first


def canonical_json(value: Any) -> str:
    """The one JSON text of `value`: sorted keys, no spaces, no NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def network_name(hidden: Sequence[int]) -> str:
    """An MLP's hidden sizes as cells name them: 64x3, or 4096-512-1024 where they differ."""
    if not hidden:
        return "linear"
    return f"{hidden[0]}x{len(hidden)}" if len(set(hidden)) == 1 else "-".join(map(str, hidden))


@dataclass(frozen=True)
class Cell:
    """One point of a study's matrix (algorithm x environment x precision x seed ...).

    Args:
        study: the study's name.
        parameters: JSON values that say what is measured; they become columns of the results.
    """

    study: str
    parameters: Mapping[str, Any]

    def key(self, budget: Mapping[str, Any], schema_version: int) -> str:
        """SHA-256 (64 hex digits) of cell, budget and schema version: the name of the record.

        Raises:
            QuarlError: a parameter or budget value is not JSON.
        """
        identity = {
            "study": self.study,
            "cell": dict(self.parameters),
            "budget": dict(budget),
            "schema_version": schema_version,
        }
        try:
            text = canonical_json(identity)
        except (TypeError, ValueError) as error:
            raise QuarlError(f"cell of study {self.study!r} is not JSON: {error}") from error
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Measurement:
    """What `Study.measure` found for one cell.

    Args:
        measured: named results, JSON or numpy values; non-finite numbers are stored as null.
        backend: what ran ("simulated", "onnxruntime", "torch").
        source: whether a number was measured on this machine or modelled.
        arrays: curves and histograms, stored beside the record as .npz.
        extra: anything else worth keeping with the record (licence, where a policy came from).
    """

    measured: Mapping[str, Any]
    backend: str
    source: Literal["measured", "modelled"] = "measured"
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


class Study(Protocol):
    """A study is plain data and two functions; it must be picklable (workers measure it)."""

    @property
    def name(self) -> str:
        """The study's name, as on the command line."""
        ...

    @property
    def schema_version(self) -> int:
        """Raised whenever the meaning of a record changes; older records are then not reused."""
        ...

    @property
    def timed(self) -> bool:
        """Whether it times what it measures: of such cells a machine runs one at a time."""
        ...

    @property
    def profiles(self) -> Mapping[str, Mapping[str, Any]]:
        """Profile, one of `PROFILES` -> its parameters with their values."""
        ...

    def cells(
        self, parameters: Mapping[str, Any]
    ) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """The matrix for these parameters: (cell, budget) pairs of JSON values.

        Raises:
            QuarlError: a parameter's value is unknown (environment, precision, ...).
        """
        ...

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Measure one cell; runs in a worker process with one thread."""
        ...


def resolve_parameters(
    study: Study, profile: str, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The profile's parameters with `overrides` in their place.

    Raises:
        QuarlError: unknown profile, or none of `PROFILES`; unknown parameter, a value of another
            type than the default's (of a list's elements: than that of the first profile that has
            any), or one not finite.
    """
    check_choice(f"profile of study {study.name!r}", profile, study.profiles)
    if profile not in PROFILES:  # whose records nobody would find
        raise QuarlError(f"study {study.name!r} has a profile {profile!r}; a study's may be: "
                         f"{', '.join(PROFILES)}")  # fmt: skip
    parameters = dict(study.profiles[profile])
    for name, value in (overrides or {}).items():
        check_choice(f"parameter of study {study.name!r}", name, parameters)
        # An empty list does not tell what it is a list of.
        defaults = (parameters[name], *(other[name] for other in study.profiles.values()))
        telling = next((d for d in defaults if d not in ([], ())), parameters[name])
        parameters[name] = same_type(f"parameter {name!r}", value, telling)
    return parameters
