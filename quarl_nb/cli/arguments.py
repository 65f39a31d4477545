"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
from pathlib import Path


def place(text: str) -> Path:
    """A file or folder; an empty name, as of a variable that is not set, would be the current one.

    Raises:
        argparse.ArgumentTypeError: it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)
