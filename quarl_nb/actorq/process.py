"""The process engine: actors and quantizer in processes of their own, on one machine.

The learner stays in the calling process. Variables pass through shared memory, transitions through
one pipe an actor, and whoever has nothing to do sleeps in the kernel. A message is answered once
the rate limiter has let it in; an actor sends one ahead of the answer, then it is blocked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from quarl_nb.actorq.children import Child, act, quantize
from quarl_nb.actorq.quantizer import quantize_policy
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.settings import ActorTask, Transitions
from quarl_nb.actorq.variables import SharedVariables, Variables
from quarl_nb.actorq.wire import encode
from quarl_nb.errors import QuarlError
from quarl_nb.processes import death

IDLE_S = 1.0  # longest sleep of the learner when it can neither learn nor read
MAX_EARLY_DEATHS = 3  # of one child, in a row and without a message
SPARE_BYTES = 65_536  # payloads of one network differ by their headers alone


def run_process(run: Run, tasks: Sequence[ActorTask]) -> None:
    """Start quantizer and actors and learn until the run is finished; nothing is left running.

    Raises:
        QuarlError: an actor or the quantizer failed, or died again and again.
    """
    crew = Crew(run, tasks)
    try:
        crew.start()
        crew.learn()
    finally:
        crew.stop()


class Crew:
    """The learner with its child processes."""

    def __init__(self, run: Run, tasks: Sequence[ActorTask]) -> None:
        self.run, self.learner, self.settings = run, run.learner, tasks[0].settings
        self.tasks = list(tasks)
        self.children: dict[str, Child] = {}
        self.early_deaths: dict[str, int] = {}
        self.quantizing, self.published = False, self.learner.updates
        net = self.learner.policy()
        first, weights = quantize_policy(net, self.published, tasks[0]), encode(net, "fp32")
        self.weights = SharedVariables(len(weights) + SPARE_BYTES, "fp32")
        self.payloads = SharedVariables(len(first.payload) + SPARE_BYTES, first.precision)
        self.weights.publish(Variables(self.published, "fp32", weights))
        self.payloads.publish(first)
        run.count_publication(len(first.payload))

    @property
    def actors(self) -> list[Child]:
        return [child for name, child in self.children.items() if name != "quantizer"]

    def start(self) -> None:
        """Start all children at once, and the clock when they are up."""
        self._start_quantizer()
        for task in self.tasks:
            self._start_actor(task)
        for child in self.children.values():
            child.await_hello()
        self.run.start_clock()

    def learn(self) -> None:
        """The learner's loop: take messages in, learn, publish."""
        run, learner = self.run, self.learner
        while not run.finished:
            can_update = learner.can_update()
            with learner.timed("wait"):
                ready = self._ready(0.0 if can_update else IDLE_S)
            for child in list(self.children.values()):
                if child.connection in ready:
                    self._take(child)
                elif child.process.sentinel in ready and not child.connection.poll():
                    self._restart(child)
            if can_update:
                run.update()
                self._publish_if_due()

    def stop(self) -> None:
        """End every child."""
        for child in self.children.values():
            child.close()
        for child in self.children.values():
            child.end()

    def _ready(self, timeout_s: float) -> list[Any]:
        """What there is to read, and who died. Actors that are ahead are left unread."""
        children = self.children.values()
        sources: list[Any] = [child.process.sentinel for child in children]
        sources.append(self.children["quantizer"].connection)
        if self.learner.limiter.can_insert(self.settings.transitions_per_message):
            sources += [child.connection for child in self.actors]
        return wait(sources, timeout_s)

    def _take(self, child: Child) -> None:
        """Take in one message: transitions of an actor, or bytes that the quantizer published."""
        message = child.receive()
        if message is None:
            self._restart(child)
            return
        if isinstance(message, Transitions):
            self.early_deaths[child.name] = 0
            self.run.receive(message)
            child.send(self.learner.orders)
        elif isinstance(message, int):
            self.early_deaths[child.name] = 0
            self.quantizing = False
            self.run.count_publication(message)

    def _publish_if_due(self) -> None:
        """Hand the newest weights to the quantizer, unless it is busy with older ones."""
        learner = self.learner
        if self.quantizing or learner.updates - self.published < self.publish_period:
            return
        with learner.timed("publish"):
            payload = encode(learner.policy(), "fp32")
            self.weights.publish(Variables(learner.updates, "fp32", payload))
            self.children["quantizer"].send("publish")
        self.quantizing, self.published = True, learner.updates

    @property
    def publish_period(self) -> int:
        """Learner updates between two publications; by default two for each pull of an actor."""
        settings = self.settings
        if settings.publish_period is not None:
            return settings.publish_period
        updates_per_step = settings.samples_per_insert / self.learner.algorithm.batch_size
        return max(1, round(settings.pull_period * settings.n_actors * updates_per_step / 2))

    def _start_actor(self, task: ActorTask) -> None:
        name = f"actor {task.index}"
        child = Child(name, act, (cloudpickle.dumps(task), self.payloads), task.restarts)
        self.children[name] = child
        child.send(self.learner.orders)  # to begin with
        child.send(self.learner.orders)  # leave to send one message ahead of its answer

    def _start_quantizer(self, restarts: int = 0) -> None:
        arguments = (cloudpickle.dumps(self.tasks[0]), self.weights, self.payloads)
        self.children["quantizer"] = Child("quantizer", quantize, arguments, restarts)
        self.quantizing = False

    def _restart(self, child: Child) -> None:
        """Start a child that died anew, unless it does nothing but die."""
        child.end()
        deaths = self.early_deaths[child.name] = self.early_deaths.get(child.name, 0) + 1
        if deaths >= MAX_EARLY_DEATHS:
            how = death(child.process.exitcode)
            raise QuarlError(f"{child.name} {how}, {deaths} times without sending anything")
        self.run.result.restarts += 1
        if child.name == "quantizer":
            self._start_quantizer(child.restarts + 1)
            return
        index = int(child.name.removeprefix("actor "))
        self.tasks[index] = replace(self.tasks[index], restarts=child.restarts + 1)
        self._start_actor(self.tasks[index])
