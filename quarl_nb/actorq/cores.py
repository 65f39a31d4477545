"""Cores that learner and actors share: how many threads the learner computes with."""

from __future__ import annotations

import platform

from quarl_nb.actorq.settings import Transitions
from quarl_nb.rl.threads import FasterThreads


class SharedCores(FasterThreads):
    """Leaves actors the cores they use; the learner has the others, or one where that is faster.

    Beside one busy core of two (Zen 3), an update of DQN 64 wide takes 15 ms with two threads and
    3 ms with one, 2048 wide 476 ms and 290; with no core busy, because actors wait, the latter
    takes 152 ms with two. Actors that wait for slow updates seem to leave them their cores.
    """

    def __init__(self, n_actors: int) -> None:
        super().__init__()
        self.busy = [1.0] * n_actors  # share of its time that each actor did not wait

    def heard_from(self, transitions: Transitions) -> None:
        """Note how busy an actor was until this message; on another machine it shares no core."""
        if transitions.host != platform.node():
            self.busy[transitions.actor] = 0.0
            return
        seconds = transitions.seconds
        total = sum(seconds.values())
        self.busy[transitions.actor] = 1 - seconds["wait"] / total if total else 1.0

    def free(self) -> int:
        """The cores that actors do not use; one at least."""
        return max(1, self.threads - round(sum(self.busy)))
