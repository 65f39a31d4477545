"""What a rule finds: a verdict and what it rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from quarl_nb.report.stats import Interval

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not measured"]
# Fewer episodes than the Atari budget of the full profile decide nothing.
MIN_EPISODES = 30


@dataclass(frozen=True)
class Finding:
    """A verdict, what was measured, its interval, and the keys of the records it rests on."""

    verdict: Verdict
    measured: str = ""
    interval: Interval | None = None
    keys: tuple[str, ...] = ()


NOT_MEASURED = Finding("not measured")
Rule = Callable[..., Finding]
