"""The Ray engine: actors and quantizer on the nodes of a cluster, the learner in the driver.

Payloads pass through Ray's object store. The learner owns them, so that no node takes a policy with
it; actors are told of each new one at once and fetch it when they pull.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from time import perf_counter
from typing import Any

import cloudpickle
import psutil
import torch

from quarl_nb.actorq.actor import ACTIVITIES, Actor
from quarl_nb.actorq.crew import HELLO, QUANTIZER, Crew, Failure
from quarl_nb.actorq.quantizer import quantize_policy
from quarl_nb.actorq.result import CpuClock
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.settings import ActorTask, Orders
from quarl_nb.actorq.variables import Variables
from quarl_nb.actorq.wire import decode
from quarl_nb.errors import QuarlError, UnavailableError
from quarl_nb.processes import STOP_S, child_environment, keep_freed_memory

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise UnavailableError("engine 'ray' needs pip install 'quarl_nb[ray]'") from error

CONNECT_S = 30.0  # within which a cluster must answer
START_S = 120.0  # within which an actor must be up, and a message that is ready be here


def run_ray(run: Run, tasks: Sequence[ActorTask]) -> None:
    """Start quantizer and actors in the cluster and learn until the run is finished.

    Raises:
        QuarlError: the cluster cannot be reached or is too small, an actor or the quantizer failed,
            or died again and again.
    """
    with cluster(len(tasks)):
        RayCrew(run, tasks).work()


@contextmanager
def cluster(n_actors: int) -> Iterator[None]:
    """A cluster with a CPU for each actor: the one that Ray is connected to already, the one at
    ``RAY_ADDRESS``, or one on this machine that ends with the run.

    Raises:
        QuarlError: it cannot be reached, or has too few CPUs.
    """
    if ray.is_initialized():
        _check_size(n_actors)
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    local = address == "local"
    options: dict[str, Any] = dict(num_cpus=n_actors, include_dashboard=False) if local else {}
    if not local:
        _check_reachable(address)
    before = psutil.Process().children()
    try:
        try:
            with child_environment():
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except Exception as error:  # Ray raises just that where a busy machine starts it slowly
            _kill_half_started(before)
            raise QuarlError(f"Ray at {address}: {error}".partition("\n")[0]) from error
        _check_size(n_actors)
        yield
    finally:
        ray.shutdown()  # of a cluster that was there before, only the connection


def _kill_half_started(before: list[psutil.Process]) -> None:
    """What a start that failed leaves, `ray.shutdown` does not know of."""
    for process in psutil.Process().children():
        if process not in before and "ray" in " ".join(process.cmdline()):
            process.kill()
            process.wait()


def _check_size(n_actors: int) -> None:
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < n_actors:
        raise QuarlError(f"{n_actors} actors need {n_actors} CPUs; the Ray cluster has {cpus}")


def _check_reachable(address: str) -> None:
    """Ask from a process of its own: Ray's client would retry for minutes."""
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdigit() and "/" not in host):
        raise QuarlError(f"RAY_ADDRESS is {address!r}; allowed: host:port, auto, local")
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        if address != "auto":
            socket.create_connection((host, int(port)), CONNECT_S).close()
        subprocess.run(command, capture_output=True, check=True, timeout=CONNECT_S)
    except (OSError, OverflowError) as error:
        raise QuarlError(f"no Ray cluster at RAY_ADDRESS {address}: {error}") from error
    except subprocess.SubprocessError as error:
        raise QuarlError(f"what is at RAY_ADDRESS {address} is no Ray cluster") from error


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Errors that a restart would not mend become a message."""

    @wraps(method)
    def guarded(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:
            return Failure.of(error)

    return guarded


class RemoteActor:
    """An actor, in a worker process of the cluster.

    Args:
        pickled: its `ActorTask`.
        newest: version and object of the first policy.
    """

    def __init__(self, pickled: bytes, newest: tuple[int, ray.ObjectRef]) -> None:
        self._pickled, self._newest = pickled, newest

    @_guarded
    def start(self) -> str:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._actor = Actor(cloudpickle.loads(self._pickled))  # from our own driver
        self._actor.open(ray.get(self._newest[1]))
        self._actor.seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._left, self._cpu = perf_counter(), CpuClock()
        return HELLO

    @ray.method(concurrency_group="variables")  # a thread of its own: it never waits for steps
    def offer(self, newest: tuple[int, ray.ObjectRef]) -> None:
        """Pull this from now on."""
        self._newest = max(self._newest, newest, key=lambda offered: offered[0])

    @_guarded
    def work(self, orders: Orders) -> bytes:
        """Pull if due and collect one message: pickled `Transitions`."""
        actor = self._actor
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

    def close(self) -> None: ...

    def _quantize(self, newest: Variables) -> Variables:
        return quantize_policy(decode(newest.payload, self._task.spec), newest.version, self._task)


class Remote:
    """The learner's handle on a `RemoteActor` or `RemoteQuantizer`: a crew's `Member`.

    Attributes:
        calls: results that are to come, oldest first.
        up: whether it said hello.
    """

    def __init__(self, name: str, handle: Any, restarts: int, *start: Any) -> None:
        self.name, self.handle, self.restarts = name, handle, restarts
        self.calls: deque[ray.ObjectRef] = deque([handle.start.remote(*start)])
        self.up, self.started = False, time.monotonic()
        self._closing: list[ray.ObjectRef] = []
        self._death = ""

    @property
    def overdue(self) -> bool:
        """Whether it should have been up long ago."""
        return not self.up and time.monotonic() - self.started > START_S

    def await_hello(self) -> None:
        if not ray.wait([self.calls[0]], timeout=START_S)[0]:
            raise QuarlError(f"{self.name} found no free CPU in the Ray cluster in {START_S:.0f} s")
        if self.receive() is None:
            raise QuarlError(f"{self.name} {self.death()} while it started")

    def receive(self) -> Any:
        try:
            message = ray.get(self.calls.popleft(), timeout=START_S)
        except RayTaskError as error:  # not of our making: code that the worker does not have
            raise QuarlError(f"{self.name}: {error.cause}".partition("\n")[0]) from error
        except RayError as error:
            self._death = "lost its node" if "its node has died" in str(error) else "was killed"
            return None
        if isinstance(message, Failure):
            raise QuarlError(f"{self.name}: {message.reason}")
        self.up = True
        return pickle.loads(message) if isinstance(message, bytes) else message

    def send(self, message: Any) -> None:
        self.calls.append(self.handle.work.remote(message))

    def close(self) -> None:
        if self.up:
            self._closing = [self.handle.close.remote()]

    def end(self) -> None:
        if self._closing:
            ray.wait(self._closing, timeout=STOP_S)
        ray.kill(self.handle)

    def death(self) -> str:
        return self._death


class RayCrew(Crew[Remote]):
    """A crew of Ray actors."""

    def __init__(self, run: Run, tasks: Sequence[ActorTask]) -> None:
        super().__init__(run, tasks)
        self.weights, first = self.first_policy()
        self.newest = first.version, ray.put(first)

    def ready(self, timeout_s: float) -> list[Remote]:
        waiting = [self.members[QUANTIZER]]
        if self.learner.limiter.can_insert(self.settings.transitions_per_message):
            waiting += self.actors
        first = {remote.calls[0]: remote for remote in waiting if remote.calls}
        if first and timeout_s and not ray.wait(list(first), timeout=timeout_s)[0]:
            self._check_somebody_acts()
            return []
        found = ray.wait(list(first), num_returns=len(first), timeout=0)[0] if first else []
        return [first[call] for call in found]

    def new_actor(self, task: ActorTask) -> Remote:
        remote: Any = ray.remote  # its type knows no concurrency groups
        options = dict(num_cpus=1, scheduling_strategy="SPREAD")
        kind = remote(concurrency_groups={"variables": 1}, **options)(RemoteActor)
        handle = kind.remote(cloudpickle.dumps(task), self.newest)
        return Remote(f"actor {task.index}", handle, task.restarts)

    def new_quantizer(self, restarts: int) -> Remote:
        handle = ray.remote(num_cpus=0)(RemoteQuantizer).remote(cloudpickle.dumps(self.tasks[0]))
        return Remote(QUANTIZER, handle, restarts, self.weights)

    def order_payload(self, weights: Variables) -> None:
        self.members[QUANTIZER].send(weights)

    def announce(self, publication: Any) -> int:
        with self.learner.timed("publish"):
            self.newest = publication.version, ray.put(publication)
            for actor in self.actors:
                actor.handle.offer.remote(self.newest)
        return len(publication.payload)

    def _check_somebody_acts(self) -> None:
        """Ray starts an actor when a CPU is free: a cluster that lost nodes may have none."""
        if all(actor.overdue for actor in self.actors):
            raise QuarlError(f"no actor found a free CPU in the Ray cluster in {START_S:.0f} s")
