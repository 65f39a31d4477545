"""Cores that learner and actors share: how many threads the learner computes with."""

from __future__ import annotations

import platform
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch

from quarl_nb.actorq.settings import Transitions

FEW, RECENT = 3, 15  # updates at least and at most that tell how long one takes
TRIALS = 0.02  # share of the updates' time that may go into what was slower


class SharedCores:
    """Leaves actors the cores they use; the learner has the others, or one where that is faster.

    A thread that waits for its core holds up all others at every operation: beside one busy core of
    two (Zen 3), an update of DQN 64 wide takes 15 ms with two threads and 3 ms with one, 2048 wide
    476 ms and 290; with no core busy, because actors wait, the latter takes 152 ms with two. Beside
    somebody else's busy core (Zen 5) an update 256 wide takes 1 ms with one thread and 2 to 50 with
    two, and actors that wait for those seem to leave it their cores.
    """

    def __init__(self, n_actors: int) -> None:
        self.threads = torch.get_num_threads()
        self.busy = [1.0] * n_actors  # share of its time that each actor did not wait
        # Seconds of updates, on several threads or one.
        self.recent: dict[bool, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self.updates_s = self.trials_s = 0.0
        self.since_trial = 0  # updates

    def heard_from(self, transitions: Transitions) -> None:
        """Note how busy an actor was until this message; on another machine it shares no core."""
        if transitions.host != platform.node():
            self.busy[transitions.actor] = 0.0
            return
        seconds = transitions.seconds
        total = sum(seconds.values())
        self.busy[transitions.actor] = 1 - seconds["wait"] / total if total else 1.0

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

    def _choose(self) -> tuple[int, bool]:
        """All free cores or one, and whether to try what was slower.

        It is tried again now and then: actors, and whoever else is here, come and go.
        """
        free = max(1, self.threads - round(sum(self.busy)))
        faster, slower = sorted((free, 1), key=self._update_s)
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
