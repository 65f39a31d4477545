"""What metering costs: importing, preparing (once a process) and each use. Target: 1 % of a run.

The run is one of ten seconds, shorter than any cell of the studies' full profile.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from quarl_nb.energy import EnergyMeter

RUN_S, USES = 10.0, 50
# In a process of its own: only the first time counts.
FIRST = """
import time
started = time.perf_counter()
import quarl_nb.energy
imported = time.perf_counter()
quarl_nb.energy.EnergyMeter()
print(imported - started, time.perf_counter() - imported)
"""


def main() -> None:
    """Print milliseconds of each part, and the share of a run that the uses take."""
    command = [sys.executable, "-c", FIRST]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(5)]
    parts = zip(*(map(float, run.stdout.split()) for run in runs), strict=True)
    imported, prepared = (1e3 * min(seconds) for seconds in parts)
    EnergyMeter()
    wall, cpu = zip(*(one_use() for _ in range(USES)), strict=True)
    print(f"import quarl_nb.energy {imported:6.1f} ms; first EnergyMeter() {prepared:6.1f} ms")
    print(f"each use {1e3 * statistics.median(wall):6.2f} ms, CPU {1e3 * min(cpu):6.2f} ms")
    once, again = prepared / 1e3 / RUN_S, statistics.median(wall) / RUN_S
    print(f"of a run of {RUN_S:g} s: {again:.3%}, the first of a process {once:.1%} (target 1%)")


def one_use() -> tuple[float, float]:
    """Wall and CPU seconds of an empty metered block."""
    wall, cpu = time.perf_counter(), time.process_time()
    with EnergyMeter():
        pass
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
