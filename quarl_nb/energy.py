"""Joules and CPU-seconds of a piece of work, and how they were obtained."""

from __future__ import annotations

import resource
import time
from types import TracebackType
from typing import Any


def _cpu_s() -> float:
    """CPU-seconds (user + system) of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class EnergyMeter:
    """Context manager that measures the work inside it.

    Attributes, set when the block ends:
        wall_s: elapsed seconds.
        cpu_s: CPU-seconds of this process and of the children that ended inside the block.
        energy_j: joules, None where no energy counter is read.
        method: how they were obtained; "cpu_time" reads no energy counter.
    """

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.energy_j: float | None = None
        self.method = "cpu_time"

    def __enter__(self) -> EnergyMeter:
        self._wall_start_s = time.perf_counter()
        self._cpu_start_s = _cpu_s()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.wall_s = time.perf_counter() - self._wall_start_s
        self.cpu_s = _cpu_s() - self._cpu_start_s

    def as_record(self) -> dict[str, Any]:
        """The `energy` field of a record."""
        return {"energy_j": self.energy_j, "cpu_s": self.cpu_s, "method": self.method}
