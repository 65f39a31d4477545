"""Joules, CO2 and CPU-seconds of a piece of work, and how they were obtained.

CPU-seconds are the kernel's. Joules come from counters where the machine has any, and else from
CPU-seconds and assumed watts; `method` says which.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from statistics import mean
from types import TracebackType
from typing import Any

import psutil

from quarl_nb.errors import QuarlError
from quarl_nb.power import (
    JOULES_PER_KWH,
    cpu_counter,
    gpu_counter,
    grid_intensity,
    ram_watts,
    silence,
    thread_watts,
)

COUNTRY_VARIABLE = "QUARL_COUNTRY"  # ISO 3166 code of three letters, for the grid's intensity
SAMPLE_S = 10.0  # RAPL counters wrap within minutes; children that hold memory come and go
ASLEEP_S = 1.0  # clocks that differ by less have not been asleep


class EnergyMeter:
    """Context manager that measures the work inside it, children included, alive or ended.

    A counter of the CPU says what the whole machine used; the run's part of it is its part of the
    CPU time that the machine spent. A GPU's counts whole. Memory is estimated (not of a board
    whose counter holds it) by the share of it that the run holds every `SAMPLE_S`; if it is
    shorter, when it starts and ends.

    What runs on a Ray cluster is not metered: its workers are no children, or end unseen.

    Args:
        country: of the electricity, ISO 3166 code of three letters (default: the environment
            variable QUARL_COUNTRY; without one, the world's average).
        gpus: whether to read them: what runs on the CPU does not use those that idle beside it.

    Attributes, set when the block ends:
        wall_s: elapsed seconds, sleep of the machine left out.
        cpu_s: CPU-seconds of this process and its descendants inside the block.
        other_cpu_s: CPU-seconds of everything else on the machine; None where it does not tell.
        suspended_s: how long the machine was asleep; above 0, distrust the joules.
        cpu_energy_j, gpu_energy_j, ram_energy_j: joules; 0 without a GPU counter.
        method: `rapl`, `pmic` or `tdp_x_cpu_time`, then `+nvml` where GPUs were read.
        assumed_watts: what estimates rest on: `cpu_per_thread` and `ram` (of all the memory).
        watts_source: where those come from.

    Raises:
        QuarlError: unknown country; entered again within its own block.
    """

    def __init__(self, country: str | None = None, gpus: bool = True) -> None:
        with silence():
            self.grid_kg_per_kwh, self.grid_source = grid_intensity(
                country or os.environ.get(COUNTRY_VARIABLE) or None
            )
            self._cpu_counter = cpu_counter()
            self._gpu_counter = gpu_counter() if gpus else None
        self.method = self._cpu_counter.method if self._cpu_counter else "tdp_x_cpu_time"
        if self._gpu_counter:
            self.method += f"+{self._gpu_counter.method}"
        self.assumed_watts, self.watts_source = {"ram": ram_watts()}, "codecarbon's model of memory"
        if self._cpu_counter is None:
            self.assumed_watts["cpu_per_thread"], source = thread_watts()
            self.watts_source = f"{source}; {self.watts_source}"
        self.wall_s = self.cpu_s = self.suspended_s = 0.0
        self.cpu_energy_j = self.gpu_energy_j = self.ram_energy_j = 0.0
        self.other_cpu_s: float | None = None
        self._metering = False

    @property
    def energy_j(self) -> float:
        """Joules of CPU, GPU and memory."""
        return self.cpu_energy_j + self.gpu_energy_j + self.ram_energy_j

    def __enter__(self) -> EnergyMeter:
        if self._metering:
            raise QuarlError("this EnergyMeter is metering: a block within needs one of its own")
        self._metering = True
        self._stop = threading.Event()
        self._sampled: list[float] = []
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        self._read_counters()
        self._joules = self._counted()
        self._start = _Reading()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        start, end = self._start, _Reading()
        self._metering = False
        self._stop.set()
        self._sampler.join()
        self._read_counters()
        self.wall_s, self.cpu_s = end.wall_s - start.wall_s, _spent(start.used, end.used)
        asleep = end.boot_s - start.boot_s - self.wall_s
        self.suspended_s = asleep if asleep > ASLEEP_S else 0.0
        if end.busy_s is not None and start.busy_s is not None:
            self.other_cpu_s = max(0.0, end.busy_s - start.busy_s - self.cpu_s)
        self._add_up(mean(self._sampled or (start.memory_share, end.memory_share)))

    def _add_up(self, memory_share: float) -> None:
        cpu, gpu = (now - before for now, before in zip(self._counted(), self._joules, strict=True))
        self.gpu_energy_j = gpu
        self.ram_energy_j = self.assumed_watts["ram"] * memory_share * self.wall_s
        if self._cpu_counter is None:
            self.cpu_energy_j = self.assumed_watts["cpu_per_thread"] * self.cpu_s
            return
        busy = self.cpu_s + (self.other_cpu_s or 0.0)
        self.cpu_energy_j = cpu * self.cpu_s / busy if busy else 0.0
        if self._cpu_counter.method == "pmic":
            self.ram_energy_j = 0.0  # the board's power holds the memory's

    def _counted(self) -> tuple[float, float]:
        counters = (self._cpu_counter, self._gpu_counter)
        cpu, gpu = (counter.joules if counter else 0.0 for counter in counters)
        return cpu, gpu

    def _read_counters(self) -> None:
        with silence():
            for counter in (self._cpu_counter, self._gpu_counter):
                if counter:
                    counter.read()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            if self._cpu_counter:
                self._cpu_counter.read()
            self._sampled.append(_memory_share(_tree()[1]))

    def as_record(self) -> dict[str, Any]:
        """The `energy` field of a record."""
        return {
            "energy_j": self.energy_j,
            "cpu_s": self.cpu_s,
            "method": self.method,
            "cpu_energy_j": self.cpu_energy_j,
            "gpu_energy_j": self.gpu_energy_j,
            "ram_energy_j": self.ram_energy_j,
            "assumed_watts": self.assumed_watts,
            "watts_source": self.watts_source,
            "grid_kg_per_kwh": self.grid_kg_per_kwh,
            "grid_source": self.grid_source,
            "co2_kg": self.energy_j / JOULES_PER_KWH * self.grid_kg_per_kwh,
            "other_cpu_s": self.other_cpu_s,
            "suspended_s": self.suspended_s,
        }


class _Reading:
    """Clocks, CPU-seconds and memory at one moment."""

    def __init__(self) -> None:
        self.wall_s, self.boot_s = time.perf_counter(), _boot_s()
        self.used, held = _tree()
        self.memory_share = _memory_share(held)
        self.busy_s = _machine_busy_s()


def _memory_share(held: int) -> float:
    return held / psutil.virtual_memory().total


@dataclass(frozen=True)
class _Used:
    """CPU-seconds of a process, and of its ended children that it waited for; its parent's pid."""

    own_s: float
    reaped_s: float
    parent: int


Tree = dict[psutil.Process, _Used]


def _tree() -> tuple[Tree, int]:
    """What this process and its descendants have used, and their resident bytes.

    A living process whose parent has ended (a daemon) is no descendant any more.
    """
    own_s, reaped_s = (
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    me = psutil.Process()
    used, held = {me: _Used(own_s, reaped_s, os.getppid())}, me.memory_info().rss
    for child in me.children(recursive=True):
        with suppress(psutil.Error):
            user, system, *reaped = child.cpu_times()[:4]
            used[child] = _Used(user + system, sum(reaped), child.ppid())
            held += child.memory_info().rss
    return used, held


def _spent(start: Tree, end: Tree) -> float:
    """CPU-seconds between two readings of the tree.

    Those of a process that has ended are in what its heir reaped, and with them what it had used
    before. That is taken off, but no more than the heir got: nobody tells whether an orphan that
    has ended was reaped before its parent ended or left to init.
    """
    before: dict[psutil.Process, float] = defaultdict(float)
    for process in start.keys() - end.keys():
        if (heir := _heir(process, start, end)) is not None:
            before[heir] += start[process].own_s + start[process].reaped_s
    spent = 0.0
    for process, now in end.items():
        then = start.get(process, _Used(0.0, 0.0, 0))
        reaped_s = now.reaped_s - then.reaped_s - before[process]
        spent += now.own_s - then.own_s + max(0.0, reaped_s)
    return spent


def _heir(process: psutil.Process, start: Tree, end: Tree) -> psutil.Process | None:
    """The nearest ancestor that is left; None if one below it went on outside the tree."""
    pids = {each.pid: each for each in start}
    found: psutil.Process | None = process
    while found is not None and found not in end:
        found = None if found.is_running() else pids.get(start[found].parent)
    return found


def _machine_busy_s() -> float | None:
    """CPU-seconds that the machine has spent on anything; None where it does not tell."""
    try:
        times = psutil.cpu_times()
    except (OSError, RuntimeError, psutil.Error):
        return None
    names = ("user", "nice", "system", "irq", "softirq")
    return sum(getattr(times, name, 0.0) for name in names)


def _boot_s() -> float:
    """Seconds of a clock that goes on while the machine sleeps."""
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()
    )
