"""Locks between processes: of a file, or of a folder.

A killed holder holds none any longer: no process that it spawned inherits the file. Where a file
system has no locks (NFS), nobody waits.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from quarl_nb.errors import QuarlError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No other process, or thread, is in such a block of the same folder meanwhile."""
    with _opened(folder) as opened:
        _wait(opened)
        yield


@contextmanager
def entered_first(folder: Path) -> Iterator[bool]:
    """Whether nobody else is in such a block of the same folder; none is kept out."""
    with _opened(folder) as opened:
        yield _take(opened)


@contextmanager
def held_alone(lock: Path, refusal: str) -> Iterator[None]:
    """Let nobody else be in such a block of the same lock file, which goes with its holder.

    One that a kill has left keeps nobody out.

    Raises:
        QuarlError: somebody else is (`refusal`), or the file cannot be written.
    """
    try:
        opened = lock.open("w")
    except OSError as error:
        raise QuarlError(f"cannot write to '{lock.parent}': {error.strerror}") from error
    with opened:
        if not _take(opened) or _removed(opened):
            raise QuarlError(refusal)
        try:
            yield
        finally:
            with suppress(OSError):  # its folder may be gone
                lock.unlink()


@contextmanager
def in_turn(lock: Path, tell: Callable[[], None]) -> Iterator[None]:
    """Wait for whoever is in such a block of the same lock file, of any user; `tell` of it first.

    The file stays. Where it cannot be made or opened, nobody waits.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            with suppress(FileExistsError):
                lock.touch(exist_ok=False)
                lock.chmod(0o644)  # whatever the umask: other users lock it, too
            opened = stack.enter_context(lock.open("rb"))
            if not _take(opened):
                tell()
                _wait(opened)
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        yield opened
    finally:
        os.close(opened)


def _take(opened: int | IO) -> bool:
    """Whether nobody else held it."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here
        pass
    return True


def _removed(opened: IO) -> bool:
    """Whether its last holder has just removed the file, so that the next opens another."""
    with suppress(OSError):
        return os.fstat(opened.fileno()).st_nlink == 0
    return False


def _wait(opened: int | IO) -> None:
    with suppress(OSError):
        fcntl.flock(opened, fcntl.LOCK_EX)
