"""What a study's report hands to `site` to write: tables and figures with their records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """A table, tidy and for reading, and the records it rests on."""

    records: pd.DataFrame
    tidy: pd.DataFrame
    shown: pd.DataFrame
    caption: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure to be drawn, and the records it rests on."""

    records: pd.DataFrame
    draw: Callable[[], tuple[Figure, pd.DataFrame]]
