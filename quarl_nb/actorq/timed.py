"""Where the seconds of an actor or the learner go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter


class Timed:
    """Base of what accounts for its time.

    Attributes:
        seconds: by activity.
    """

    def __init__(self, activities: Iterable[str]) -> None:
        self.seconds = dict.fromkeys(activities, 0.0)

    @contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        """Account what is done inside to `activity`."""
        started = perf_counter()
        yield
        self.seconds[activity] += perf_counter() - started
