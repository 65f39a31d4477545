"""Child processes that start clean and leave nothing running: no orphans, and one thread each
unless they ask for more.

And what any process may need: Ctrl-C held back where it would break something
(`holding_interrupts`), and memory kept where large networks are moved (`keep_freed_memory`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running, set_forkserver_preload
from multiprocessing.process import BaseProcess

from quarl_nb.errors import QuarlError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
STOP_S = 5.0  # how long a child may take to end before it is killed
POLL_S = 0.5  # how soon a death is noticed where a child of the dead holds its pipes open
# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
KEPT_BYTES = 2**31 - 1  # the most that mallopt takes
# What takes a child seconds to import, and starts no thread: the server has it from its start.
# On macOS libraries of the system may crash in a fork.
PRELOADED = ["torch", "stable_baselines3"] if sys.platform == "linux" else []


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back, and SIGTERM: heard when the block has ended, but not after an error in it.

    To block the signals is not enough: another thread takes them (tqdm has one), and Python then
    interrupts the main one. That alone is interrupted, so that elsewhere nothing need be held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    handlers = {number: handler for number in (signal.SIGTERM, signal.SIGINT)
                if callable(handler := signal.getsignal(number))}  # fmt: skip
    # Not callable: it is ignored, or ends the process at once.
    for number in handlers:
        signal.signal(number, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if held:
        handlers[signal.Signals(held[0])](held[0], None)


@contextmanager
def child_environment() -> Iterator[None]:
    """What a child must have from birth: one thread a library, and no Ctrl-C of its own.

    Ctrl-C meanwhile is held back.
    """
    with holding_interrupts():
        resource_tracker.ensure_running()  # starting it unblocks signals, so not between
        before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it
        try:
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
            yield
        finally:
            _restore(before)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class ChildProcess(ForkServerProcess):
    """A child with the environment of the moment that it is started, which ends with its parent."""

    def start(self) -> None:
        """Begin it.

        Raises:
            QuarlError: the folder for temporary files is no place for the server's socket, or the
                server could not fork.
            OSError: too many open files.
        """
        set_forkserver_preload(PRELOADED)
        try:
            with child_environment():
                with _importing_as_here():
                    ensure_running()
                self._environment = dict(os.environ)
                super().start()
        except EOFError as error:
            reason = "the server that forks them has ended (too many processes, or no memory left?)"
            raise QuarlError(f"no process can be started: {reason}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            # Of Python's own, not the system's: a socket's path has some hundred bytes.
            reason = f"{error} in {tempfile.gettempdir()}; set a shorter TMPDIR"
            raise QuarlError(f"no process can be started: {reason}") from error

    def run(self) -> None:
        # The server may have been started by others (SB3), and has its signals and its environment
        # from then; threads inherit what is blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.environ.clear()
        os.environ.update(self._environment)
        threading.Thread(target=_exit_after_parent, daemon=True).start()
        if "numpy" in sys.modules:  # all would draw the server's numbers; Python's are its own
            sys.modules["numpy"].random.seed()
        super().run()


@contextmanager
def _importing_as_here() -> Iterator[None]:
    """Have the server import what this process would, and nothing of the current folder first."""
    own = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        _restore(before)


def _restore(variables: Mapping[str, str | None]) -> None:
    """Set environment variables to what they were, None: not there."""
    for name, value in variables.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


class ChildContext(ForkServerContext):
    """Children that a server forks, which has no threads; torch and Jupyter have some, and what
    they fork may hang. Spawned ones would import torch anew, each for seconds."""

    Process = ChildProcess


CONTEXT = ChildContext()


def lock_bars_by_threads() -> None:
    """Called first in a child that draws progress bars, which are no other process's.

    tqdm would make a semaphore for them, which a child that is ended by a signal leaves behind.
    """
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())


def _exit_after_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def end_child(process: BaseProcess, within_s: float) -> None:
    """Wait until a child that was told to end has ended; after `within_s` seconds kill it."""
    ends_at = time.monotonic() + within_s
    # In steps, since what `join` waits at is a pipe, too.
    while process.is_alive() and (left_s := ends_at - time.monotonic()) > 0:
        process.join(min(left_s, POLL_S))
    if process.is_alive():
        process.kill()
        process.join()


def death(exitcode: int | None) -> str:
    """How a process ended, as a phrase: "was ended by SIGKILL (out of memory?)"."""
    if exitcode is not None and exitcode < 0:
        hint = " (out of memory?)" if -exitcode == signal.SIGKILL else ""
        names = {each.value: each.name for each in signal.Signals}  # few real-time ones have any
        return f"was ended by {names.get(-exitcode, f'signal {-exitcode}')}{hint}"
    return f"ended with exit code {exitcode}"


def start_hint(process: BaseProcess, what: str) -> str:
    """What to try where a child of a script ended while it started, else "".

    A child imports the script that started it; of an error there it ends with 1, as no body does.
    """
    if process.exitcode != 1 or not hasattr(sys.modules["__main__"], "__file__"):
        return ""
    return f'; a script must start {what} under if __name__ == "__main__":'


def keep_freed_memory() -> None:
    """Have the C library use freed memory again, up to 2 GiB of it, in this process from now on.

    By default every tensor of some megabytes is mapped anew and returned when freed, and the kernel
    clears its pages one by one: a sixth of training DQN on Atari, a quarter of an update of three
    layers of 2048 units, two thirds of encoding them. Without glibc it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
