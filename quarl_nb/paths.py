"""Where the suite's data lies: found from the working directory, never a fixed path."""

from __future__ import annotations

from pathlib import Path

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
