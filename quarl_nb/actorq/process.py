"""The process engine: actors and quantizer in processes of their own, on one machine.

The learner stays in the calling process. Variables pass through shared memory, transitions through
one pipe an actor, and whoever has nothing to do sleeps in the kernel. A message is answered once
the rate limiter has let it in; an actor sends those of one update ahead of the answers, then it is
blocked.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from quarl_nb.actorq.children import Child, act, quantize
from quarl_nb.actorq.crew import QUANTIZER, Crew
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.settings import ActorTask
from quarl_nb.actorq.variables import SharedVariables, Variables

SPARE_BYTES = 65_536  # payloads of one network differ by their headers alone


def run_process(run: Run, tasks: Sequence[ActorTask]) -> None:
    """Start quantizer and actors and learn until the run is finished; nothing is left running.

    Raises:
        QuarlError: an actor or the quantizer failed, or died again and again.
    """
    ProcessCrew(run, tasks).work()


class ProcessCrew(Crew[Child]):
    """A crew of child processes."""

    def __init__(self, run: Run, tasks: Sequence[ActorTask]) -> None:
        super().__init__(run, tasks)
        weights, first = self.first_policy()
        self.weights = SharedVariables(len(weights.payload) + SPARE_BYTES)
        self.payloads = SharedVariables(len(first.payload) + SPARE_BYTES)
        self.weights.publish(weights)
        self.payloads.publish(first)

    def ready(self, timeout_s: float) -> list[Child]:
        heard = [self.members[QUANTIZER]]
        if self.learner.can_receive():
            heard += self.actors
        found = wait([child.connection for child in heard], timeout_s)
        # Of a dead child the pipe is at its end, unless a child of its own holds it open.
        return [c for c in heard if c.connection in found or not c.process.is_alive()]

    def new_actor(self, task: ActorTask) -> Child:
        name = f"actor {task.index}"
        return Child(name, act, (cloudpickle.dumps(task), self.payloads), task.restarts)

    def new_quantizer(self, restarts: int) -> Child:
        arguments = (cloudpickle.dumps(self.tasks[0]), self.weights, self.payloads)
        return Child(QUANTIZER, quantize, arguments, restarts)

    def order_payload(self, weights: Variables) -> None:
        self.weights.publish(weights)
        self.members[QUANTIZER].send("publish")

    def announce(self, publication: Any) -> int:
        return publication  # the payload is in shared memory already; the message is its size
