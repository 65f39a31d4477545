"""What runs on the nodes of a Ray cluster: actors and the quantizer."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any

import cloudpickle
import ray
import torch

from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.member import HELLO, Failure
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.result import CpuClock
from quarl_nb.actorq.settings import ActorTask, Orders
from quarl_nb.actorq.variables import Variables
from quarl_nb.actorq.wire import decode
from quarl_nb.errors import one_line
from quarl_nb.processes import keep_freed_memory


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Errors that a restart would not mend become a message."""

    @wraps(method)
    def guarded(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:
            return Failure(one_line(error))

    return guarded


class RemoteActor:
    """An actor, in a worker process of the cluster.

    Args:
        pickled: its `ActorTask`.
        newest: version and object of the first policy.
    """

    def __init__(self, pickled: bytes, newest: tuple[int, ray.ObjectRef]) -> None:
        self._pickled, self._newest = pickled, newest
        self._left: float | None = None  # when the last message was ready

    @_guarded
    def start(self) -> str:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._actor = Actor(cloudpickle.loads(self._pickled))  # from our own driver
        self._actor.warm_up(ray.get(self._newest[1]))
        self._cpu = CpuClock()
        return HELLO

    @ray.method(concurrency_group="variables")  # a thread of its own: it never waits for steps
    def offer(self, newest: tuple[int, ray.ObjectRef]) -> None:
        """Pull this from now on."""
        self._newest = max(self._newest, newest, key=lambda offered: offered[0])

    @_guarded
    def work(self, orders: Orders) -> bytes:
        """Pull if due and collect one message: pickled `Transitions`."""
        actor = self._actor
        if self._left is not None:  # before the first message it waited for the run to begin
            actor.seconds["wait"] += perf_counter() - self._left
        if actor.pull_due:
            with actor.timed("pull"):
                variables = ray.get(self._newest[1])
            actor.open(variables)
        transitions = actor.collect(actor.message_steps, orders)
        with actor.timed("send"):  # the rest of the way is Ray's, beside the next message
            message = pickle.dumps(actor.report(transitions, self._cpu.lap()))
        self._left = perf_counter()
        return message

    @ray.method(concurrency_group="variables")
    def interrupt(self) -> None:
        """Let `close`, which comes after all that it has to do, come after the step it makes."""
        self._actor.interrupted = True

    def close(self) -> None:
        self._actor.close()


class RemoteQuantizer:
    """The quantizer, in a worker process of the cluster."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    @_guarded
    def start(self, weights: Variables) -> str:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._task: ActorTask = cloudpickle.loads(self._pickled)
        self._quantize(weights)  # loads what is needed to build a payload
        self._cpu = CpuClock()
        return HELLO

    @_guarded
    def work(self, weights: Variables) -> tuple[Variables, float]:
        return self._quantize(weights), self._cpu.lap()

    def interrupt(self) -> None: ...

    def close(self) -> None: ...

    def _quantize(self, newest: Variables) -> Variables:
        return make_variables(decode(newest.payload, self._task.spec), newest.version, self._task)
