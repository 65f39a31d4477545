"""What an ActorQ run did: returns, clocks of both sides, policy age, bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from quarl_nb.actorq.settings import Transitions

ROLES = ("learner", "actors", "quantizer")


class CpuClock:
    """CPU-seconds of this process, all its threads, lap by lap."""

    def __init__(self) -> None:
        self._then = process_time()

    def lap(self) -> float:
        """Those since the clock was made, or since the last lap."""
        before, self._then = self._then, process_time()
        return self._then - before


@dataclass(frozen=True)
class Episode:
    """An actor's episode (its policy quantized, with exploration): training return.

    Attributes:
        steps, wall_s: of the whole run when it ended.
    """

    steps: int
    wall_s: float
    actor: int
    episode_return: float
    length: int


@dataclass(frozen=True)
class Snapshot:
    """The learner's full-precision policy at a moment of the run, saved to be evaluated later.

    Attributes:
        cpu_s: by role, what the run had cost by then (see `Result`).
    """

    steps: int
    updates: int
    wall_s: float
    folder: Path
    cpu_s: dict[str, float]


@dataclass
class Result:
    """Filled as the run goes; whole at any moment, also after Ctrl-C or a failure.

    Attributes:
        steps: environment steps. updates: gradient steps. wall_s: seconds since actors started.
        ages: of each message, learner updates between the version that made it and its arrival.
        actor_s, learner_s: seconds by activity, of all actors together and of the learner.
        cpu_s: CPU-seconds by role since actors started (or, if resumed, started again); of actors
            and quantizer, up to their last message; of the learner, while the run goes, up to the
            last that it took in.
        pulls, pulled_bytes: by all actors. published, payload_bytes: by the quantizer.
        restarts: actors (and quantizers) that died and were started again.
        resumed_at, resumed_updates: steps and updates of the parts before a resumed run's last;
            `steps`, `updates` and `wall_s` are of the whole run, everything else is of this part.
        stopped: "done", "interrupted", or the error that ended the run.
    """

    steps: int = 0
    updates: int = 0
    wall_s: float = 0.0
    episodes: list[Episode] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    actor_s: dict[str, float] = field(default_factory=dict)
    learner_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROLES, 0.0))
    pulls: int = 0
    pulled_bytes: int = 0
    published: int = 0
    payload_bytes: int = 0
    restarts: int = 0
    resumed_at: int = 0
    resumed_updates: int = 0
    stopped: str = ""

    def add(self, transitions: Transitions, age: int, wall_s: float) -> None:
        """Account for a message that the learner took in `wall_s` seconds after the start."""
        self.steps += len(transitions)
        self.wall_s = wall_s
        self.ages.append(age)
        self.cpu_s["actors"] += transitions.cpu_s
        self.pulls += transitions.pulls
        self.pulled_bytes += transitions.pulled_bytes
        for activity, seconds in transitions.seconds.items():
            self.actor_s[activity] = self.actor_s.get(activity, 0.0) + seconds
        for episode_return, length in transitions.episodes:
            self.episodes.append(
                Episode(self.steps, wall_s, transitions.actor, episode_return, length)
            )

    @property
    def went_on(self) -> bool:
        """Whether this part of the run made any step or update."""
        return self.steps > self.resumed_at or self.updates > self.resumed_updates

    def recent_return(self, window: int = 10) -> float:
        """Mean training return of the last `window` episodes; NaN before the first."""
        returns = [episode.episode_return for episode in self.episodes[-window:]]
        return float(np.mean(returns)) if returns else float("nan")

    def as_measured(self) -> dict[str, Any]:
        """JSON for a record, episodes as columns; snapshots are the study's to evaluate."""
        plain = {k: v for k, v in vars(self).items() if k not in ("episodes", "snapshots")}
        plain["episodes"] = {
            column.name: [getattr(episode, column.name) for episode in self.episodes]
            for column in fields(Episode)
        }
        return plain
