"""Where the suite's data lies, and writing a file whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from quarl_nb.errors import QuarlError

_MARKS = ("data/records", "data/policies", "data/paper")


def project_root() -> Path:
    """The directory that holds `data/`, so that notebooks and shells find the same records.

    It is the nearest one from the working directory upwards, else the checkout of the package,
    else the working directory itself.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[1]):
        if any((folder / mark).is_dir() for mark in _MARKS):
            return folder
    return here


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is either whole or absent, whenever the process is killed.

    Raises:
        QuarlError: the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise QuarlError(f"cannot write '{path}': {error.strerror}") from error
