"""Tables and figures with their records, as a study's report hands them to `site` to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from quarl_nb.report.latex import latex
from quarl_nb.store import ResultStore
from quarl_nb.writing import write_atomically

BOARDS = "edge_board"


@dataclass(frozen=True)
class Table:
    """A table, tidy and for reading, and the records it rests on."""

    records: pd.DataFrame
    tidy: pd.DataFrame
    shown: pd.DataFrame
    caption: str


@dataclass(frozen=True)
class Drawing:
    """A figure to be drawn, and the records it rests on."""

    records: pd.DataFrame
    draw: Callable[[], tuple[Figure, pd.DataFrame]]


def frame_of(store: ResultStore, study: str, profile: str | None) -> pd.DataFrame:
    """The records of a profile; of what boards measured all, which are imported into none."""
    return store.frame(study, None if study == BOARDS else profile)


def joined(frames: Mapping[str, pd.DataFrame], studies: Iterable[str]) -> pd.DataFrame:
    """The records of `studies` in one frame; empty if there are none."""
    full = [frames[name] for name in studies if len(frames[name])]
    return pd.concat(full, ignore_index=True) if full else pd.DataFrame()


def save_table(
    rows: pd.DataFrame, shown: pd.DataFrame, name: str, folder: Path, provenance: Mapping[str, Any],
    caption: str,
) -> list[Path]:
    """Write `rows` as CSV, `shown` as HTML and LaTeX under its caption, the provenance as JSON."""
    plain = rows.drop(columns="keys", errors="ignore")
    index = not isinstance(shown.index, pd.RangeIndex)
    texts = {
        "csv": plain.to_csv(index=False, float_format="%.6g", lineterminator="\n"),
        "html": _html(shown, caption, index),
        "tex": latex(shown, name, caption, index),
        "json": json.dumps(dict(provenance), indent=1, sort_keys=True) + "\n",
    }
    paths = []
    for suffix, text in texts.items():
        paths.append(folder / f"{name}.{suffix}")
        write_atomically(paths[-1], text.encode())
    return paths


def _html(shown: pd.DataFrame, caption: str, index: bool) -> str:
    text = shown.to_html(border=0, classes="quarl-table", justify="left", index=index)
    opening, rest = text.split("\n", 1)
    return f"{opening}\n  <caption>{escape(caption, quote=False)}</caption>\n{rest}\n"
