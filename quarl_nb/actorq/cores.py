"""Cores that learner and actors share: how many threads the learner computes with."""

from __future__ import annotations

import platform

import torch

from quarl_nb.actorq.settings import Transitions


class SharedCores:
    """Leaves actors the cores they use, and the learner a thread on each other core, at least one.

    A thread that waits for its core holds up all others at every operation: beside one busy core of
    two (Zen 3), an update of DQN 64 wide takes 15 ms with two threads and 3 ms with one, 2048 wide
    476 ms and 290. With no core busy, because actors wait, the latter takes 152 ms with two.
    """

    def __init__(self, n_actors: int) -> None:
        self.threads = torch.get_num_threads()
        self.busy = [1.0] * n_actors  # share of its time that each actor did not wait

    def heard_from(self, transitions: Transitions) -> None:
        """Note how busy an actor was until this message; on another machine it shares no core."""
        if transitions.host != platform.node():
            self.busy[transitions.actor] = 0.0
            return
        seconds = transitions.seconds
        total = sum(seconds.values())
        self.busy[transitions.actor] = 1 - seconds["wait"] / total if total else 1.0

    def share(self) -> None:
        """Set torch's threads for the next update."""
        threads = max(1, self.threads - round(sum(self.busy)))
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def release(self) -> None:
        """Set torch's threads to what they were."""
        torch.set_num_threads(self.threads)
