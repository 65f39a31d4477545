"""The Ray engine: actors and quantizer on the nodes of a cluster, the learner in the driver.

Payloads pass through Ray's object store. The learner owns them, so that no node takes a policy with
it; actors are told of each new one at once and fetch it when they pull.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import cloudpickle
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from quarl_nb.actorq.crew import QUANTIZER, Crew
from quarl_nb.actorq.member import Failure
from quarl_nb.actorq.ray_cluster import cluster
from quarl_nb.actorq.ray_workers import RemoteActor, RemoteQuantizer
from quarl_nb.actorq.run import Run
from quarl_nb.actorq.settings import ActorTask
from quarl_nb.actorq.variables import Variables
from quarl_nb.errors import QuarlError
from quarl_nb.processes import STOP_S

# Within which an actor must be up, and a message that is ready be here. On two cores that are busy
# with other work a worker has taken more than two minutes to import what it needs.
START_S = 300.0


def run_ray(run: Run, tasks: Sequence[ActorTask]) -> None:
    """Start quantizer and actors in the cluster and learn until the run is finished.

    Raises:
        QuarlError: the cluster cannot be reached or is too small, an actor or the quantizer failed,
            or died again and again.
    """
    with cluster(len(tasks)):
        RayCrew(run, tasks).work()


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
            raise QuarlError(f"{self.name} was not up in {START_S:.0f} s: no CPU of the cluster "
                             "is free, or what it makes takes longer")  # fmt: skip
        if self.receive() is None:
            raise QuarlError(f"{self.name} {self.death()} while it started")

    def receive(self) -> Any:
        try:
            message = ray.get(self.calls.popleft(), timeout=START_S)
        except RayTaskError as error:  # not of our making: code that the worker does not have
            raise QuarlError(f"{self.name}: {error.cause}".partition("\n")[0]) from error
        except RayError as error:
            # Nothing killed it: its node cannot make it.
            if isinstance(error, RayActorError) and error.actor_init_failed:
                reason = str(error).strip().splitlines()[-1]
                raise QuarlError(f"{self.name}: {reason} (on a node of the Ray cluster, which must "
                                 "import quarl_nb)") from error  # fmt: skip
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

    def interrupt(self) -> None:
        if self.up:
            self.handle.interrupt.remote()

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
        if self.learner.can_receive():
            waiting += self.actors
        first = {remote.calls[0]: remote for remote in waiting if remote.calls}
        if first and timeout_s and not ray.wait(list(first), timeout=timeout_s)[0]:
            self._check_somebody_acts()
            return []
        found = ray.wait(list(first), num_returns=len(first), timeout=0)[0] if first else []
        return [first[call] for call in found]

    @property
    def messages_ahead(self) -> int:
        """One: orders are those of the call, and `close` comes after all calls."""
        return 1

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
            raise QuarlError(f"no actor was up in {START_S:.0f} s: no CPU of the Ray cluster is "
                             "free, or their environments take longer to make")  # fmt: skip
