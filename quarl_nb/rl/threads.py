"""How many threads updates are computed with: all, or one where that is faster."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

FEW, RECENT = 3, 15  # updates at least and at most that tell how long one takes
TRIALS = 0.02  # share of the updates' time that may go into what was slower


class FasterThreads:
    """Torch's threads, or one while that is faster, by the time that updates take.

    A thread that waits for its core holds up all others at every operation: beside somebody else's
    busy core (Zen 5) an update 256 wide takes 1 ms with one thread and 2 to 50 with two.
    """

    def __init__(self) -> None:
        self.threads = torch.get_num_threads()
        # Seconds of updates, on several threads or one.
        self.recent: dict[bool, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self.updates_s = self.trials_s = 0.0
        self.since_trial = 0  # updates

    @contextmanager
    def shared(self) -> Iterator[None]:
        """The threads for one update, which is timed."""
        threads, trial = self._choose()
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        if self.updates_s:  # the first one warms up
            self.recent[threads > 1].append(seconds)
        self.updates_s += seconds
        if trial:
            self.since_trial = 0
            self.trials_s += seconds

    def free(self) -> int:
        """Threads at most that an update may have."""
        return self.threads

    def _choose(self) -> tuple[int, bool]:
        """All free cores or one, and whether to try what was slower.

        It is tried again now and then: whoever else is here comes and goes.
        """
        faster, slower = sorted((self.free(), 1), key=self._update_s)
        self.since_trial += 1
        affordable = self.trials_s + self._update_s(slower) < TRIALS * self.updates_s
        if slower != faster and self.since_trial > RECENT and affordable:
            return slower, True
        return faster, False

    def _update_s(self, threads: int) -> float:
        """Of late; 0 until there were a few, so that they are tried first."""
        seconds = self.recent[threads > 1]
        return median(seconds) if len(seconds) >= FEW else 0.0

    def release(self) -> None:
        """Set torch's threads to what they were."""
        torch.set_num_threads(self.threads)


@contextmanager
def faster_threads(model: Any) -> Iterator[None]:
    """Compute every `train` of an SB3 algorithm with torch's threads, or one while it is faster."""
    if torch.get_num_threads() == 1:
        yield
        return
    threads, train = FasterThreads(), model.train

    def timed_train(*args: Any, **options: Any) -> None:
        with threads.shared():
            train(*args, **options)

    model.train = timed_train
    try:
        yield
    finally:
        del model.train
        threads.release()
