"""Arguments that several commands take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_nb.errors import QuarlError

if TYPE_CHECKING:
    from quarl_nb.store import ResultStore


def place(text: str) -> Path:
    """A file or folder; an empty name would be the current one. Same errors as `named`."""
    return Path(named(text))


def named(text: str) -> str:
    """What has a name; one that is empty, as of a variable that is not set, would be none given.

    Raises:
        argparse.ArgumentTypeError: it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def add_settings(parser: argparse.ArgumentParser, text: str) -> None:
    """Have a command take `--set NAME=VALUE`, repeatedly; `parse_settings` reads them."""
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=text)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Have a command take `--workers`."""
    parser.add_argument("--workers", type=int, default=1,
                        help="processes (default: 1; what is timed runs in one)")


def add_records(parser: argparse.ArgumentParser) -> None:
    """Have a command take `--records`, which `records_in` opens."""
    parser.add_argument("--records", type=place, help="folder (default: data/records)")


def records_in(folder: Path | None) -> ResultStore:
    """The records to read, the suite's own by default.

    Raises:
        QuarlError: the folder that was named is not there.
    """
    from quarl_nb.studies import open_records

    if folder is not None:
        check_folder(folder)
    return open_records(folder)


def check_folder(records: Path) -> None:
    """Refuse a folder of records that is not there.

    Raises:
        QuarlError: it is not.
    """
    if not records.is_dir():
        raise QuarlError(f"no records: '{records}' is not a folder")


def parse_settings(texts: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Parsed `--set NAME=VALUE`, like the defaults: JSON, else the bare text; lists as a,b,c too.

    What is a text by default, or a list of texts, is taken as it stands, be it a number.

    Raises:
        QuarlError: one of them is not NAME=VALUE.
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, bare = text.partition("=")
        if not equals or not name:
            raise QuarlError(f"--set {text!r} is not NAME=VALUE")
        default = defaults.get(name)
        value = _value(bare, default)
        if isinstance(default, list | tuple) and not isinstance(value, list | None):
            value = [_value(item, *default[:1]) for item in bare.split(",") if item]
        settings[name] = value
    return settings


def _value(text: str, default: Any = None) -> Any:
    try:  # True and False are what Python, and so the notebooks, call them
        value = json.loads({"True": "true", "False": "false"}.get(text, text))
    except (ValueError, RecursionError):
        return text
    return text if isinstance(default, str) and not isinstance(value, str) else value
