"""Where the suite's data lies, and what a folder and a JSON file hold."""

from __future__ import annotations

import fnmatch
import json
import os
from pathlib import Path
from typing import Any

from quarl_nb.errors import QuarlError

# No records: a run writes them wherever it is told to, and would turn that folder into the project.
_MARKS = ("data/policies", "data/paper")


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


def policies_folder() -> Path:
    """Where the suite's trained policies lie, a folder each."""
    return project_root() / "data" / "policies"


def published_folder() -> Path:
    """Where the papers' claims and numbers lie.

    Raises:
        QuarlError: they do not: the package is installed, and this is no checkout.
    """
    folder = project_root() / "data" / "paper"
    if not folder.is_dir():
        raise QuarlError(f"no folder '{folder}': run this in a checkout of quarl_nb")
    return folder


def untrained_file() -> Path:
    """What policies that learned nothing earn: `rl.untrained` writes it, the report reads it."""
    return project_root() / "data" / "untrained_returns.json"


def content_of(path: Path) -> bytes:
    """What a file holds.

    Raises:
        QuarlError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise QuarlError(f"cannot read '{path}': {error.strerror}") from error


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


def entries(folder: Path, pattern: str) -> list[Path]:
    """What in `folder` is called like `pattern`, by name; nothing without the folder.

    Not what is hidden: systems put such files beside others.

    `Path.glob` takes a folder that may not be listed for an empty one.

    Raises:
        QuarlError: it is no folder, or may not be listed.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise QuarlError(f"cannot list '{folder}': {error.strerror}") from error
    found = fnmatch.filter(names, pattern)
    return [folder / name for name in sorted(found) if not name.startswith(".")]
