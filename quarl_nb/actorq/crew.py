"""A crew: the learner with its actors and its quantizer, wherever an engine lets these run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from quarl_nb.actorq.cores import SharedCores
from quarl_nb.actorq.member import HELLO, Member
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.settings import ActorTask, Transitions
from quarl_nb.actorq.variables import Variables
from quarl_nb.actorq.wire import encode
from quarl_nb.errors import QuarlError
from quarl_nb.processes import holding_interrupts

IDLE_S = 1.0  # longest sleep of the learner when it can neither learn nor read
MAX_EARLY_DEATHS = 3  # of one member, in a row and without a message
QUANTIZER = "quantizer"


M = TypeVar("M", bound=Member)


class Crew(ABC, Generic[M]):
    """The learner with its crew: takes messages in, learns, publishes, replaces the dead."""

    def __init__(self, run: Run, tasks: Sequence[ActorTask]) -> None:
        self.run, self.learner, self.settings = run, run.learner, tasks[0].settings
        self.tasks = list(tasks)
        self.members: dict[str, M] = {}
        self.early_deaths: Counter[str] = Counter()
        self.heard_at: Counter[str] = Counter()  # the run's steps after an actor's last message
        self.quantizing, self.published = False, self.learner.updates
        self.cores = SharedCores(len(tasks))

    @property
    def actors(self) -> list[M]:
        return [member for name, member in self.members.items() if name != QUANTIZER]

    def work(self) -> None:
        """Learn until the run is finished; nothing is left running."""
        try:
            self.start()
            self.learn()
        finally:
            with holding_interrupts():  # a second Ctrl-C would leave some running
                self.stop()
                self.cores.release()

    def start(self) -> None:
        """Start all members at once; when they are up, start the clock and let actors begin."""
        self._add_quantizer()
        for task in self.tasks:
            self._add_actor(task)
        for member in self.members.values():
            member.await_hello()
        self.run.start_clock()
        for actor in self.actors:
            self._begin(actor)

    def learn(self) -> None:
        """The learner's loop."""
        run, learner = self.run, self.learner
        while not run.finished:
            can_update = learner.can_update()
            with learner.timed("wait"):
                ready = self.ready(0.0 if can_update else IDLE_S)
            # Whoever was not heard for longest comes first, or one actor might fill all the room.
            for member in sorted(ready, key=lambda one: self.heard_at[one.name]):
                if not run.finished and (member.name == QUANTIZER or learner.can_receive()):
                    self._take(member)
            if can_update:
                with self.cores.shared():
                    run.update()
                self._publish_if_due()
        run.catch_up()

    def stop(self) -> None:
        """End every member."""
        for member in self.members.values():
            member.close()
        for member in self.members.values():
            member.interrupt()
        for member in self.members.values():
            member.end()

    @abstractmethod
    def ready(self, timeout_s: float) -> list[M]:
        """Who has a message or died, within `timeout_s`. Actors that are ahead are left unread."""

    @abstractmethod
    def new_actor(self, task: ActorTask) -> M:
        """An actor that is being started."""

    @abstractmethod
    def new_quantizer(self, restarts: int) -> M:
        """A quantizer that is being started."""

    @abstractmethod
    def order_payload(self, weights: Variables) -> None:
        """Hand the newest weights, fp32 on the wire, to the quantizer."""

    @abstractmethod
    def announce(self, publication: Any) -> int:
        """Let actors pull what the quantizer's message `publication` is about; its bytes."""

    def first_policy(self) -> tuple[Variables, Variables]:
        """The learner's weights and what actors pull first, made here."""
        net, version = self.learner.policy(), self.learner.updates
        first = make_variables(net, version, self.tasks[0])
        self.run.count_publication(len(first.payload))
        return Variables(version, encode(net, "fp32")), first

    @property
    def messages_ahead(self) -> int:
        """Messages that an actor may send ahead of their answers."""
        return self.settings.messages_ahead(self.learner.algorithm.batch_size)

    def _take(self, member: M) -> None:
        """Take in one message: transitions of an actor, or what the quantizer published."""
        with self.learner.timed("insert"):
            message = member.receive()
        if message is None:
            self._restart(member)
            return
        if message == HELLO:
            return
        self.early_deaths[member.name] = 0
        if isinstance(message, Transitions):
            self.run.receive(message)
            self.heard_at[member.name] = self.learner.steps
            self.cores.heard_from(message)
            member.send(self.learner.orders)
        else:
            publication, cpu_s = message
            self.quantizing = False
            self.run.count_publication(self.announce(publication), cpu_s)

    def _publish_if_due(self) -> None:
        """Have the newest weights quantized, unless the quantizer is busy with older ones."""
        learner = self.learner
        period = self.settings.updates_per_publication(learner.algorithm.batch_size)
        if self.quantizing or learner.updates - self.published < period:
            return
        with learner.timed("publish"):
            payload = encode(learner.policy(), "fp32")
            self.order_payload(Variables(learner.updates, payload))
        self.quantizing, self.published = True, learner.updates

    def _add_actor(self, task: ActorTask) -> M:
        with holding_interrupts():  # until it is one of those that `stop` ends
            actor = self.new_actor(task)
            self.members[actor.name] = actor
        return actor

    def _begin(self, actor: M) -> None:
        for _ in range(1 + self.messages_ahead):
            actor.send(self.learner.orders)

    def _add_quantizer(self, restarts: int = 0) -> None:
        with holding_interrupts():
            self.members[QUANTIZER] = self.new_quantizer(restarts)
        self.quantizing = False

    def _restart(self, member: M) -> None:
        """Start a member that died anew, unless it does nothing but die."""
        member.end()
        self.early_deaths[member.name] += 1
        deaths = self.early_deaths[member.name]
        if deaths >= MAX_EARLY_DEATHS:
            how = member.death()
            raise QuarlError(f"{member.name} {how}, {deaths} times without sending anything")
        self.run.result.restarts += 1
        if member.name == QUANTIZER:
            self._add_quantizer(member.restarts + 1)
            return
        index = int(member.name.removeprefix("actor "))
        self.tasks[index] = replace(self.tasks[index], restarts=member.restarts + 1)
        self.learner.cut(index)
        self._begin(self._add_actor(self.tasks[index]))
