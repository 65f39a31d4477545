"""Where the suite's data lies, reading JSON, and writing a file whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from quarl_nb.errors import QuarlError

STALE_S = 3600.0  # of a temporary file: to write the largest takes a minute

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


def untrained_file() -> Path:
    """What policies that learned nothing earn: `rl.untrained` writes it, the report reads it."""
    return project_root() / "data" / "untrained_returns.json"


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; empty without the file.

    Raises:
        QuarlError: it cannot be read, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise QuarlError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise QuarlError(f"'{path}' is damaged: {error}") from error
    if not isinstance(found, dict):
        raise QuarlError(f"'{path}' is damaged: no object")
    return found


def make_writable(folder: Path) -> None:
    """Make a folder, if need be, and try to write into it.

    Raises:
        QuarlError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise QuarlError(f"cannot write to '{folder}': {error.strerror}") from error


def make_file_writable(path: Path) -> None:
    """As `make_writable` of its folder.

    Raises:
        QuarlError: as there, or the path is a folder itself.
    """
    make_writable(path.parent)
    if path.is_dir():
        raise QuarlError(f"cannot write to '{path}': a folder")


def sweep(folder: Path, name: str = "*", older_than_s: float = STALE_S) -> None:
    """Remove what killed writers of files called `name` (a pattern) left in `folder`.

    Args:
        older_than_s: 0 where nobody else can be writing such a file.

    Raises:
        OSError: it cannot be removed.
    """
    for temporary in folder.glob(f".{name}.*.tmp"):
        with suppress(FileNotFoundError):  # its writer has just finished it
            if time.time() - temporary.stat().st_mtime >= older_than_s:
                temporary.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No other process, or thread, is in such a block of the same folder meanwhile.

    Where its file system locks no folders (NFS) nobody waits. A killed holder holds it no longer.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


@contextmanager
def held_alone(lock: Path, refusal: str) -> Iterator[None]:
    """Let nobody else be in such a block of the same lock file, which goes with its holder.

    One that a kill has left keeps nobody out, nor does a file system without locks (NFS).

    Raises:
        QuarlError: somebody else is (`refusal`), or the file cannot be written.
    """
    try:
        opened = lock.open("w")
    except OSError as error:
        raise QuarlError(f"cannot write to '{lock.parent}': {error.strerror}") from error
    with opened:
        if not _takes(opened):
            raise QuarlError(refusal)
        try:
            yield
        finally:
            with suppress(OSError):  # its folder may be gone
                lock.unlink()


def _takes(lock: IO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return os.fstat(lock.fileno()).st_nlink > 0  # else its last holder has just removed it


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is either whole or absent, whenever the process is killed.

    Raises:
        QuarlError: the disk is full or the folder cannot be written.
    """
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise QuarlError(f"cannot write '{path}': {error.strerror}") from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, in the folder of `path`, whose place it takes when the block ends.

    Of a block that raises, or a file that cannot be written, nothing is left.
    """
    # Not by the process id: containers that share a folder may have the same.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before the name is taken, or a crash leaves an empty file
        temporary.replace(path)
    finally:
        with suppress(OSError):  # it is gone where all went well
            temporary.unlink()
