"""Records on disk: one JSON file a cell (and .npz for curves), written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.locks import locked
from quarl_nb.paths import entries, project_root
from quarl_nb.record import checksum, flatten, to_json, to_text
from quarl_nb.shown_records import of_present_policies, one_of_each_cell
from quarl_nb.study import PROFILES, Cell
from quarl_nb.writing import make_writable, sweep, write_atomically

if TYPE_CHECKING:
    import pandas as pd

_RENEW = "delete it, and its study measures the cell again"


class ResultStore:
    """The records under `root`: <study>/<profile>/<key>.json, arrays beside it.

    Arrays are in <key>.<hash of the arrays>.npz, so that a writer that is killed before its record
    follows replaces none that a record rests on.

    Args:
        root: the folder of the records; by default `data/records` of the project.
        planned: study and profile -> the keys that it measures today (`studies.planned_keys`), by
            which `chosen` tells which of a cell's records to show; by default none is known.
        weights_of: policy -> the SHA-256 of the weights that lie under that name today, if any do
            (`studies.weights_of`), by which `chosen` leaves out what lay there before.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        planned: Callable[[str, str], Collection[str]] | None = None,
        weights_of: Callable[[str], str | None] | None = None,
    ) -> None:
        self.root = Path(root) if root is not None else project_root() / "data" / "records"
        self.planned, self.weights_of = planned, weights_of

    def path(self, study: str, profile: str, key: str) -> Path:
        """The file of a record, whether or not it exists."""
        return self.root / study / profile / f"{key}.json"

    def error_path(self, study: str, profile: str, key: str) -> Path:
        """The file that tells why a cell failed, whether or not it exists."""
        return self.root / study / profile / f"{key}.error.txt"

    def has(self, study: str, profile: str, key: str) -> bool:
        """Whether the cell is done: its record is there (it appears only when whole)."""
        return self.path(study, profile, key).is_file()

    def prepare(self, study: str, profile: str) -> None:
        """Make the folder, check that it can be written, sweep what killed writers left.

        Raises:
            QuarlError: the folder cannot be written.
        """
        folder = self.path(study, profile, "key").parent
        make_writable(folder)
        try:
            sweep(folder)
            self._sweep_arrays(folder)
        except OSError as error:
            raise QuarlError(f"cannot write to '{folder}': {error.strerror}") from error

    def _sweep_arrays(self, folder: Path) -> None:
        """Remove arrays of writers that were killed before their record followed."""
        found: dict[str, list[Path]] = {}
        for file in folder.glob("*.npz"):
            if re.fullmatch(r"[0-9a-f]{64}\.[0-9a-f]{12}\.npz", file.name):
                found.setdefault(file.name.partition(".")[0], []).append(file)
        for key, files in found.items():
            path = folder / f"{key}.json"
            if len(files) > 1 or not path.is_file():
                with locked(folder):  # else a writer's are about to have theirs
                    kept = self._arrays_at(path)
                    for file in files:
                        if file != kept:
                            file.unlink(missing_ok=True)

    def write(
        self, record: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> Path:
        """Write one record (and its arrays first), each by atomic rename; returns its path.

        Numpy values become JSON ones and non-finite numbers null. The cell's error file goes.

        Raises:
            QuarlError: the disk is full or the folder cannot be written.
        """
        plain = to_json(record)
        path = self.path(plain["study"], plain["profile"], plain["key"])
        content = _compressed(arrays) if arrays else None
        if content is not None:
            plain["arrays_sha256"] = hashlib.sha256(content).hexdigest()
        plain["sha256"] = checksum(plain)
        make_writable(path.parent)
        try:
            with locked(path.parent):  # another writer of the cell may replace what this rests on
                replaced = self._arrays_at(path)
                if content is not None:
                    write_atomically(_named_arrays(path, plain["arrays_sha256"]), content)
                write_atomically(path, to_text(plain).encode())
                if replaced and replaced != _arrays_of(path, plain):
                    _discard(replaced)
        except OSError as error:
            raise QuarlError(f"cannot write '{path}': {error.strerror}") from error
        _discard(self.error_path(plain["study"], plain["profile"], plain["key"]))
        return path

    def write_error(self, study: str, profile: str, key: str, text: str) -> Path:
        """Leave the reason why a cell failed; same errors as `write`."""
        path = self.error_path(study, profile, key)
        write_atomically(path, text.encode(errors="backslashreplace"))
        return path

    def read(self, path: str | Path) -> dict[str, Any]:
        """One record, checked.

        Raises:
            QuarlError: the file is missing, truncated, or does not match its key or checksum.
        """
        path = Path(path)
        try:
            record = json.loads(path.read_bytes())
            cell = Cell(record["study"], record["cell"])
            key = cell.key(record["budget"], record["schema_version"])
            whole = record["key"] == key == path.stem and record["sha256"] == checksum(record)
        except OSError as error:
            raise QuarlError(f"cannot read record '{path}': {error.strerror}") from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise QuarlError(
                f"record '{path}' is truncated or not a record ({error!r}): {_RENEW}"
            ) from error
        if not whole:
            raise QuarlError(f"record '{path}' was changed after it was written: {_RENEW}")
        return record

    def arrays(self, record: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The arrays of a record ({} if it has none).

        Raises:
            QuarlError: the .npz is missing or not the one that was written with the record.
        """
        path = _arrays_of(self.path(record["study"], record["profile"], record["key"]), record)
        if path is None:
            return {}
        try:
            content = path.read_bytes()
        except OSError as error:
            raise QuarlError(f"cannot read arrays '{path}': {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != record["arrays_sha256"]:
            raise QuarlError(f"arrays '{path}' are truncated or were changed")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return dict(file)

    def _arrays_at(self, path: Path) -> Path | None:
        """The arrays of the record that is at `path` now; None if it has none, or is damaged."""
        with suppress(QuarlError):
            return _arrays_of(path, self.read(path))
        return None

    def records(self, study: str, profile: str) -> list[dict[str, Any]]:
        """Every record of a profile, sorted by key, superseded ones too.

        Raises:
            QuarlError: as `read`, or a record is of another study or profile.
        """
        found = []
        for path in entries(self.root / study / profile, "*.json"):
            record = self.read(path)
            if (record["study"], record["profile"]) != (study, profile):
                # Copied here, a quick one would decide claims as a full one.
                own = f"{record['study']}/{record['profile']}"
                raise QuarlError(f"record '{path}' is of '{own}': move it there, or delete it")
            found.append(record)
        return found

    def keys(self, study: str, profile: str) -> set[str]:
        """Of every record of a profile, superseded ones too; none is read."""
        return {path.stem for path in entries(self.root / study / profile, "*.json")}

    def best_profile(self, study: str) -> str | None:
        """The profile to show: full, else quick, else smoke; None without a record."""
        for profile in PROFILES:
            if self.keys(study, profile):
                return profile
        return None

    def chosen(self, study: str, profile: str | None = None) -> list[Mapping[str, Any]]:
        """The records to show, sorted by key: one a cell and device (`one_of_each_cell`), of what
        lies under a policy's name today (`of_present_policies`).

        Args:
            profile: by default the best that has records.

        Raises:
            QuarlError: no such profile, or a record that cannot be `read`.
        """
        if profile is not None:
            check_choice("profile", profile, PROFILES)
        profile = profile or self.best_profile(study)
        if profile is None:
            return []
        records = of_present_policies(self.records(study, profile), self.weights_of)
        planned = self.planned and partial(self.planned, study, profile)
        return one_of_each_cell(records, planned)

    def frame(self, study: str, profile: str | None = None) -> pd.DataFrame:
        """One row a cell, its `chosen` record; by default of the best profile that has records.

        Columns: key, profile, every cell field, every measured field, backend, source, wall_s,
        and `budget.*`, `energy.*`, `provenance.*`, `extra.*`. Empty without records; same errors
        as `chosen`.
        """
        import pandas as pd

        return pd.DataFrame([flatten(record) for record in self.chosen(study, profile)])


def _discard(path: Path) -> None:
    """Remove what a record replaces, if possible: the record is in place all the same."""
    with suppress(OSError):
        path.unlink()


def _compressed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """An .npz of them for `np.load`, by LZMA: a fifth smaller for curves than numpy's own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def _named_arrays(path: Path, digest: str) -> Path:
    """Where arrays of this SHA-256 are written, for the record at `path`."""
    return path.with_suffix(f".{digest[:12]}.npz")


def _arrays_of(path: Path, record: Mapping[str, Any]) -> Path | None:
    """Where the arrays of the record at `path` are (older ones: in <key>.npz); None without any."""
    if "arrays_sha256" not in record:
        return None
    named, older = _named_arrays(path, record["arrays_sha256"]), path.with_suffix(".npz")
    return older if older.is_file() and not named.is_file() else named
