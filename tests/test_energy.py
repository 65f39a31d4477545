from __future__ import annotations

import subprocess
import sys
import time

from quarl_nb.energy import EnergyMeter

BURN = "import time\nwhile time.process_time() < 0.1: pass"


def test_work_counts_as_cpu_time():
    with EnergyMeter() as meter:
        start = time.process_time()
        while time.process_time() - start < 0.1:
            pass
    assert 0.09 <= meter.cpu_s <= meter.wall_s + 0.05  # one thread: no more CPU than wall time


def test_sleep_counts_as_wall_time_only():
    with EnergyMeter() as meter:
        time.sleep(0.1)
    assert meter.wall_s >= 0.1
    assert meter.cpu_s < 0.05


def test_a_child_that_ended_counts():
    with EnergyMeter() as meter:
        subprocess.run([sys.executable, "-c", BURN], check=True)
    assert meter.cpu_s >= 0.09


def test_the_record_claims_no_joules():
    with EnergyMeter() as meter:
        pass
    assert meter.as_record() == {"energy_j": None, "cpu_s": meter.cpu_s, "method": "cpu_time"}
