"""What our processes have in common."""

import platform
import signal
import subprocess
import sys
import time

import pytest

from quarl_nb.processes import SPAWN, end_child

PAGES = 16 * 2**20 // 4096
COUNT_FAULTS = """
import resource
import numpy as np
from quarl_nb.processes import keep_freed_memory
{call}
np.ones(16 * 2**20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(16 * 2**20, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_used_again_without_a_page_fault() -> None:
    def faults(call: str) -> int:
        code = COUNT_FAULTS.format(call=call)
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        return int(done.stdout)

    # numpy asks for huge pages where the kernel gives them, which are 512 pages each.
    assert faults("keep_freed_memory()") < PAGES / 512
    assert faults("") >= 10 * PAGES / 512


def test_a_child_that_ends_is_waited_for_and_one_that_does_not_is_killed() -> None:
    ends, stays = (SPAWN.Process(target=time.sleep, args=(seconds,)) for seconds in (0.1, 1e6))
    end_child(stays, 60)  # not started yet
    for process in (ends, stays):
        process.start()
    end_child(ends, 60)
    assert ends.exitcode == 0
    end_child(stays, 0.1)
    assert stays.exitcode == -signal.SIGKILL
