"""One run of the actor-learner loop, as its engines drive it."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable

from tqdm import tqdm

from quarl_nb.actorq.learner import Learner
from quarl_nb.actorq.result import CpuClock, Result, Snapshot
from quarl_nb.actorq.saving import Saving
from quarl_nb.actorq.settings import Transitions
from quarl_nb.errors import QuarlError, one_line
from quarl_nb.rl.checkpoint import Progress, has_finite_weights, save_checkpoint
from quarl_nb.rl.policies import save_policy

logger = logging.getLogger(__name__)


def _is_watched() -> bool:
    """Whether stderr goes to a terminal or a notebook."""
    ipython = sys.modules.get("IPython")
    return sys.stderr.isatty() or (ipython is not None and ipython.get_ipython() is not None)


class Run:
    """The learner, the result and the saving of one run: all that an engine must tell and ask.

    Args:
        progress: what was done before, if the run was resumed.
    """

    def __init__(
        self,
        learner: Learner,
        total_steps: int,
        saving: Saving,
        progress: Progress,
        bar: bool,
        on_message: Callable[[Result], None] | None = None,
    ) -> None:
        self.learner, self.total_steps, self.saving = learner, total_steps, saving
        self.result = Result(
            learner.steps, learner.updates, progress.wall_s, resumed_at=learner.steps,
            resumed_updates=learner.updates, learner_s=learner.seconds,
        )
        self.on_message = on_message
        self._wall_before_s = progress.wall_s
        # One that is resumed has its first already.
        again = learner.steps and not saving.snapshot_every
        self._next_snapshot: float = math.inf if again else learner.steps
        self._bar = tqdm(
            total=total_steps, initial=learner.steps, desc="ActorQ", unit="step",
            unit_scale=True, disable=not (bar and _is_watched()),
        )  # fmt: skip
        self.start_clock()

    def start_clock(self) -> None:
        """Count seconds from now: actors are up, the first policy is there."""
        self._started, self._cpu = time.perf_counter(), CpuClock()
        self._next_checkpoint = self._started + self.saving.checkpoint_every_s
        self._bar.unpause()  # its rate is of these seconds, too

    @property
    def wall_s(self) -> float:
        return self._wall_before_s + time.perf_counter() - self._started

    @property
    def finished(self) -> bool:
        return self.learner.steps >= self.total_steps

    def receive(self, transitions: Transitions) -> None:
        """Take in one message of an actor."""
        self._snapshot_if_due()
        age = self.learner.updates - transitions.version
        self.learner.insert(transitions)
        self.result.add(transitions, age, self.wall_s)
        self.count_cpu("learner")
        self._show(len(transitions))
        if self.on_message:
            self.on_message(self.result)
        if self.saving.checkpoint and time.perf_counter() >= self._next_checkpoint:
            self.checkpoint()

    def update(self) -> None:
        """One gradient step of the learner."""
        self.learner.update()
        self.result.updates, self.result.wall_s = self.learner.updates, self.wall_s

    def catch_up(self) -> None:
        """The updates still owed: the last messages are learned from as often as any."""
        while self.learner.is_behind():
            self.update()

    def count_publication(self, payload_bytes: int, cpu_s: float = 0.0) -> None:
        """Account for a policy that another process made ready to be pulled in `cpu_s`."""
        self.result.published += 1
        self.result.payload_bytes = payload_bytes
        self.result.cpu_s["quantizer"] += cpu_s

    def count_cpu(self, role: str) -> None:
        """Account the CPU-seconds of this process since the last call to `role`."""
        self.result.cpu_s[role] += self._cpu.lap()

    def checkpoint(self) -> None:
        """Save what a killed run goes on from; NaN never replaces what was saved before."""
        learner = self.learner
        if not has_finite_weights(learner.algorithm):
            return
        assert self.saving.checkpoint is not None
        progress = Progress(
            learner.steps, self.result.wall_s, done=self.finished, updates=learner.updates,
            ahead=learner.limiter.ahead,
        )  # fmt: skip
        with learner.timed("save"):
            save_checkpoint(self.saving.checkpoint, learner.algorithm, progress)
        self._next_checkpoint = time.perf_counter() + self.saving.checkpoint_every_s

    def close(self, stopped: str) -> None:
        """End the run: "done", "interrupted", "failed" or the `QuarlError` that ended it."""
        result, learner = self.result, self.learner
        self.count_cpu("learner")
        whole, learned = stopped in ("done", "interrupted"), learner.steps > result.resumed_at
        result.stopped = stopped
        learner.close()
        self._bar.close()
        if self.saving.checkpoint and whole and learner.steps:
            self.checkpoint()
        elif self.saving.checkpoint and learned and stopped != "failed":
            self._checkpoint_if_possible()
        if whole and learned:
            self._snapshot_if_due(last=True)  # a full disk may fail it, after all else is done

    def _checkpoint_if_possible(self) -> None:
        try:
            self.checkpoint()
        # The error that ended the run is on its way already. A GPU that failed raises RuntimeError.
        except (QuarlError, RuntimeError) as error:
            logger.warning("%s", one_line(error))

    def _snapshot_if_due(self, last: bool = False) -> None:
        if self.saving.snapshots is None or not (last or self.learner.steps >= self._next_snapshot):
            return
        steps, result, every = self.learner.steps, self.result, self.saving.snapshot_every
        # Of the period, not from here: a message's length would be added to each.
        self._next_snapshot = every * (steps // every + 1) if every else math.inf
        wall_s = result.wall_s if last else self.wall_s  # children take a second to end
        self.count_cpu("learner")
        cpu_s = dict(result.cpu_s)
        folder = self.saving.snapshot(steps)
        with self.learner.timed("save"):
            save_policy(self.learner.policy(), folder)
        result.snapshots.append(Snapshot(steps, self.learner.updates, wall_s, folder, cpu_s))

    def _show(self, steps: int) -> None:
        result, wall_s = self.result, max(time.perf_counter() - self._started, 1e-9)
        self._bar.update(steps)
        self._bar.set_postfix_str(
            f"return {result.recent_return():.1f}, "
            f"{(result.updates - result.resumed_updates) / wall_s:.1f} updates/s, "
            f"policy age {result.ages[-1]} updates, {result.pulled_bytes / 1e6:.0f} MB pulled",
            refresh=False,
        )
