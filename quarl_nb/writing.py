"""Writing files whole or not at all, and telling beforehand what cannot be written."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from quarl_nb.errors import QuarlError

STALE_S = 3600.0  # of a temporary file: to write the largest takes a minute


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
    """Make the folder of a file (of a link: of its target), and try to write the file there.

    Raises:
        QuarlError: as `make_writable`; its name is too long, or it is a folder, device or pipe.
    """
    make_writable(Path(os.path.realpath(path)).parent)
    if path.is_dir():
        raise QuarlError(f"cannot write to '{path}': a folder")
    if path.exists() and not path.is_file():
        raise QuarlError(f"cannot write to '{path}': no regular file")
    try:
        with _temporary(path) as temporary:
            temporary.touch()
    except OSError as error:
        raise QuarlError(f"cannot write to '{path}': {error.strerror}") from error


@contextmanager
def folder_to_fill(folder: Path | None) -> Iterator[None]:
    """`make_writable` of a folder, if any; where nothing was saved in it, it is not left behind.

    Raises:
        QuarlError: it cannot be made or written.
    """
    if folder is None:
        yield
        return
    is_new = not folder.exists()
    make_writable(folder)
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


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


def write_together(contents: Mapping[Path, bytes], stale: Iterable[Path]) -> None:
    """Write several files, of which none takes its place before all are on the disk.

    So a full disk leaves what was there as it was. `stale` files are removed just before the new
    ones come: a process killed there leaves some of these, in their order, beside no stale one.

    Raises:
        QuarlError: the disk is full, or a file cannot be written or removed.
    """
    with ExitStack() as stack:
        try:
            places = {}
            for path, content in contents.items():
                places[path] = stack.enter_context(_temporary(path))
                with places[path].open("wb") as file:
                    file.write(content)
                    _onto_disk(file)
            for path in stale:  # of a link that stays, what it points to
                (Path(os.path.realpath(path)) if path in places else path).unlink(missing_ok=True)
            for path, temporary in places.items():
                temporary.replace(os.path.realpath(path))
        except OSError as error:
            raise QuarlError(f"cannot write '{path}': {error.strerror}") from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, in the folder of `path`, whose place it takes when the block ends.

    Of a block that raises, or a file that cannot be written, nothing is left. Of a link, the file
    that it points to is replaced.
    """
    with _temporary(path) as temporary:
        with temporary.open("wb") as file:
            yield file
            _onto_disk(file)
        temporary.replace(os.path.realpath(path))


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Where to write what will take the place of `path`; `sweep` knows such names."""
    path = Path(os.path.realpath(path))
    # Not by the process id: containers that share a folder may have the same.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    finally:
        with suppress(OSError):  # it is gone where all went well
            temporary.unlink()


def tell(line: str, stream: TextIO) -> None:
    """Print a line for whoever still reads; where nobody does, what takes days goes on."""
    try:
        print(line, file=stream, flush=True)
    except OSError:  # `| head`, or the full disk of a log
        abandon(stream)


def abandon(stream: TextIO) -> None:
    """Let go nowhere what a standard stream that takes no more is yet to get.

    The interpreter flushes it at its end, and would show a traceback.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _onto_disk(file: BinaryIO) -> None:
    """Before a file takes its name, or a crash of the machine leaves an empty one."""
    file.flush()
    os.fsync(file.fileno())
