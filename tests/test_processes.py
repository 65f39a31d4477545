"""What our processes have in common."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.processes import (
    CONTEXT,
    PRELOADED,
    child_environment,
    death,
    end_child,
    holding_interrupts,
)

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
    ends, stays = (CONTEXT.Process(target=time.sleep, args=(seconds,)) for seconds in (0.1, 1e6))
    end_child(stays, 60)  # not started yet
    for process in (ends, stays):
        process.start()
    end_child(ends, 60)
    assert ends.exitcode == 0
    end_child(stays, 0.1)
    assert stays.exitcode == -signal.SIGKILL


LATER = """
import os
from quarl_nb.processes import CONTEXT

def tell():
    print(os.environ.get("SET_LATER"), "HOME" in os.environ, os.environ["OMP_NUM_THREADS"])

def run_child():
    child = CONTEXT.Process(target=tell)
    child.start()
    child.join()

if __name__ == "__main__":
    os.environ.update(HOME="/", OMP_NUM_THREADS="4")
    run_child()  # from now on there is a server
    os.environ["SET_LATER"] = "yes"
    del os.environ["HOME"]
    run_child()
"""


def test_a_child_has_the_environment_of_the_moment_and_not_that_of_the_server(
    tmp_path: Path,
) -> None:
    (script := tmp_path / "script.py").write_text(LATER)
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["None True 1", "yes False 1"]


TWO_CHILDREN = """
import os, sys
import psutil
from quarl_nb.processes import CONTEXT

def tell():
    server = psutil.Process(os.getppid())
    print(server.pid, server.num_threads(), "torch" in sys.modules, "quarl_nb.quant" in sys.modules)

if __name__ == "__main__":
    for _ in range(2):
        child = CONTEXT.Process(target=tell)
        child.start()
        child.join()
    print(os.getpid(), 1, "torch" in sys.modules, "quarl_nb.quant" in sys.modules)
"""


@pytest.mark.skipif(not PRELOADED, reason="children import for themselves")
def test_children_are_forked_with_torch_from_a_process_without_threads(tmp_path: Path) -> None:
    """A thread that held a lock at the fork would leave it locked in the child.

    Of our own code the server has none: what is edited amid a run, its next child runs.
    """
    (script := tmp_path / "script.py").write_text(TWO_CHILDREN)
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    first, second, parent = (line.split() for line in done.stdout.splitlines())
    assert first == second == [first[0], "1", "True", "False"]
    assert parent[0] != first[0] and parent[1:] == ["1", "False", "False"]


DRAWING = """
from quarl_nb.processes import CONTEXT

def draw():
    import random
    import numpy
    print(random.random(), numpy.random.random())

if __name__ == "__main__":
    for _ in range(2):
        child = CONTEXT.Process(target=draw)
        child.start()
        child.join()
"""


def test_children_draw_other_random_numbers_than_one_another(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(DRAWING)
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    numbers = done.stdout.split()
    assert len(set(numbers)) == len(numbers) == 4


def test_a_module_of_the_current_folder_is_not_taken_for_pythons(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(DRAWING)
    (folder := tmp_path / "elsewhere").mkdir()
    (folder / "calendar.py").write_text("raise SystemExit('usage: calendar.py YEAR')")
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.split()) == 4, done.stderr


NO_FORK = """
import os, sys

def fork():
    raise BlockingIOError(11, "Resource temporarily unavailable")

if any("forkserver" in argument for argument in sys.orig_argv):
    os.fork = fork
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks elsewhere, too")
def test_where_no_process_can_be_forked_one_line_says_so(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(DRAWING)
    (tmp_path / "sitecustomize.py").write_text(NO_FORK)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, script], env=os.environ | {"PYTHONPATH": paths},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("(too many processes, or no memory left?)")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="a long TMPDIR is left out by Python")
def test_a_folder_that_is_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(TWO_CHILDREN)
    (folder := tmp_path / ("x" * 100)).mkdir()
    done = subprocess.run([sys.executable, script], env=os.environ | {"TMPDIR": str(folder)},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 1 and f" in {folder}; set a shorter TMPDIR" in done.stderr


def test_a_death_is_told_by_the_name_of_the_signal_where_it_has_one() -> None:
    assert death(-signal.SIGKILL) == "was ended by SIGKILL (out of memory?)"
    assert death(-signal.SIGTERM) == "was ended by SIGTERM"
    assert death(-40) == "was ended by signal 40"  # a real-time one
    assert death(3) == "ended with exit code 3"


@pytest.fixture
def busy_thread() -> Iterator[None]:
    """Another thread, as tqdm has one: a signal that the main thread blocks comes to it."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join()


def surroundings() -> tuple[dict[str, str], set[int], object]:
    """What the start of a child changes for a while."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return dict(os.environ), mask, signal.getsignal(signal.SIGINT)


def test_ctrl_c_while_a_child_is_started_is_heard_afterwards(
    ctrl_c: Callable[[], None], busy_thread: None
) -> None:
    before, steps = surroundings(), []
    with pytest.raises(KeyboardInterrupt):
        with child_environment():
            assert os.environ["OMP_NUM_THREADS"] == "1"
            ctrl_c()
            time.sleep(0.2)
            steps.append("started")
        steps.append("went on")
    assert steps == ["started"] and surroundings() == before


def test_a_child_has_one_thread_whichever_library_computes() -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    with child_environment():
        assert [os.environ[name] for name in names] == ["1", "1", "1"]


def test_ctrl_c_before_a_child_is_started_leaves_no_trace(
    ctrl_c: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("multiprocessing.resource_tracker.ensure_running", ctrl_c)
    before = surroundings()
    with pytest.raises(KeyboardInterrupt), child_environment():
        pass
    assert surroundings() == before


def test_sigterm_is_held_back_where_it_interrupts() -> None:
    before, steps = signal.signal(signal.SIGTERM, signal.default_int_handler), []
    try:
        with pytest.raises(KeyboardInterrupt):
            with holding_interrupts():
                os.kill(os.getpid(), signal.SIGTERM)
                steps.append("the end of the block")
        assert signal.getsignal(signal.SIGTERM) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == ["the end of the block"]


def test_an_error_goes_before_ctrl_c_that_was_held_back(ctrl_c: Callable[[], None]) -> None:
    before = surroundings()
    with pytest.raises(QuarlError, match="the disk is full"):
        with holding_interrupts():
            ctrl_c()
            raise QuarlError("the disk is full")
    assert surroundings() == before


def test_blocks_in_one_another_let_ctrl_c_go_where_the_outermost_ends(
    ctrl_c: Callable[[], None],
) -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):
        with holding_interrupts():
            with child_environment():
                ctrl_c()
            steps.append("after the inner")
    assert steps == ["after the inner"]


def test_where_ctrl_c_is_ignored_it_stays_so_and_other_threads_hold_nothing(
    ctrl_c: Callable[[], None],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with holding_interrupts():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        ctrl_c()
    with ThreadPoolExecutor() as pool:

        def start() -> str:
            with child_environment():
                return os.environ["OMP_NUM_THREADS"]

        assert pool.submit(start).result() == "1"
