"""What a rule finds: a verdict and what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from quarl_nb.report.stats import Interval

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not measured"]
# Fewer episodes than the Atari budget of the full profile decide nothing.
MIN_EPISODES = 30
# What intervals over repeats of a timing are of: another process has other memory and other clocks,
# and may well lie outside of them.
ONE_PROCESS = "within one process"


@dataclass(frozen=True)
class Finding:
    """A verdict, what was measured, its interval, and the keys of the records it rests on."""

    verdict: Verdict
    measured: str = ""
    interval: Interval | None = None
    keys: tuple[str, ...] = ()


def decided(holds: bool | np.bool_, fails: bool | np.bool_) -> Verdict:
    """Reproduced where a claim `holds`, else not reproduced where it `fails`, else inconclusive."""
    return "reproduced" if holds else "not reproduced" if fails else "inconclusive"


def measured(records: pd.DataFrame) -> pd.DataFrame:
    """The records that may decide: all but those of the smoke profile."""
    return records[records["profile"] != "smoke"] if len(records) else records


def keys_of(rows: pd.DataFrame) -> tuple[str, ...]:
    """The records behind some rows, each once: those of the column `keys`."""
    return tuple(dict.fromkeys(key for keys in rows["keys"] for key in keys))


def processor(record: Mapping[str, Any] | pd.Series) -> str:
    """Where a record was measured: times of different processors are not compared."""
    return str(record.get("provenance.cpu"))


NOT_MEASURED = Finding("not measured")
Rule = Callable[..., Finding]
