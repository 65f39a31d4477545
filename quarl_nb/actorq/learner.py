"""The learner: any stable-baselines3 off-policy algorithm, fed by actors, in full precision."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.actorq.limiter import RateLimiter
from quarl_nb.actorq.settings import Orders, Settings, Transitions
from quarl_nb.errors import QuarlError
from quarl_nb.processes import keep_freed_memory
from quarl_nb.rl.policies import PolicyNet

logger = logging.getLogger(__name__)

ACTIVITIES = ("insert", "sample", "train", "publish", "wait")
# Of the transitions that the buffer starts with (Acme's `samples_per_insert_tolerance_rate`).
TOLERANCE_RATE = 0.1


class Learner:
    """Feeds an algorithm's replay buffer and calls its `train()`; the rest stays as it is.

    Args:
        algorithm: DQN, DDPG, TD3, SAC, D4PG or another with one environment; trained in place.
        total_steps: environment steps of the whole run, for the algorithm's schedules.
        resumed: go on from the algorithm's `num_timesteps`, not from zero.

    Raises:
        QuarlError: the algorithm cannot be fed from outside (on-policy, several environments,
            normalized observations, memory-saving buffer).
    """

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        settings: Settings,
        total_steps: int,
        resumed: bool = False,
    ) -> None:
        check_algorithm(algorithm)
        keep_freed_memory()
        self.algorithm, self.settings = algorithm, settings
        algorithm._setup_learn(0, reset_num_timesteps=not resumed)
        algorithm._total_timesteps = total_steps  # what schedules count down from
        self._begin_schedules()
        ratio, batch = settings.samples_per_insert, algorithm.batch_size
        insert = settings.transitions_per_message * settings.n_actors
        tolerance = max(
            TOLERANCE_RATE * algorithm.learning_starts * ratio, 2 * batch, 2 * insert * ratio
        )
        self.limiter = RateLimiter(ratio, algorithm.learning_starts, tolerance)
        self.limiter.resume(algorithm.num_timesteps)
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self.warming = algorithm.num_timesteps < algorithm.learning_starts
        self._policy: PolicyNet | None = None
        # Whose step was inserted last (actor, environment); None where nothing goes on from it.
        self._last_stream: tuple[int, int] | None = None
        self._time_sampling()

    @property
    def steps(self) -> int:
        """Environment steps inserted so far."""
        return self.algorithm.num_timesteps

    @property
    def updates(self) -> int:
        """Gradient steps so far; the version of what is published now."""
        return self.algorithm._n_updates

    @property
    def orders(self) -> Orders:
        """How actors are to act now."""
        return Orders(self.warming, float(getattr(self.algorithm, "exploration_rate", 0.0)))

    def policy(self) -> PolicyNet:
        """The acting path as it is now, in full precision; to be used before the next update."""
        if self.algorithm.device.type != "cpu":
            return PolicyNet.from_sb3(self.algorithm)
        if self._policy is None:
            self._policy = PolicyNet.from_sb3(self.algorithm, share_weights=True)
        return self._policy

    @contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        """Account what is done inside to `activity`, in seconds."""
        started = perf_counter()
        yield
        self.seconds[activity] += perf_counter() - started

    def can_update(self) -> bool:
        return self.limiter.can_sample(self.algorithm.batch_size)

    def can_receive(self) -> bool:
        """Whether the rate limiter lets a message in; actors are blocked where it does not."""
        return self.limiter.can_insert(self.settings.transitions_per_message)

    def insert(self, transitions: Transitions) -> None:
        """Add transitions to the replay buffer, as SB3's `collect_rollouts` does after a step.

        Raises:
            QuarlError: a reward or observation that is not finite.
        """
        # The last observation of an episode is in `next_obs` alone.
        for sent in (transitions.rewards, transitions.obs, transitions.next_obs):
            if not np.isfinite(sent).all():
                actor = f"actor {transitions.actor}"
                raise QuarlError(f"{actor} sent a reward or observation that is NaN or infinite")
        with self.timed("insert"):
            for env in range(transitions.rewards.shape[1]):
                self._insert_stream(transitions, env)
            self.limiter.inserts += len(transitions)
            self.warming = self.steps < self.algorithm.learning_starts

    def cut(self, actor: int) -> None:
        """What this actor sends next does not go on from what it sent before: it is a new one."""
        if self._last_stream is not None and self._last_stream[0] == actor:
            self._last_stream = None

    def _insert_stream(self, transitions: Transitions, env: int) -> None:
        algorithm, buffer = self.algorithm, self.algorithm.replay_buffer
        assert buffer is not None
        stream = (transitions.actor, env)
        goes_on = stream == self._last_stream or not buffer.size()
        if isinstance(buffer, NStepReplayBuffer) and not goes_on:
            # Steps that follow each other in the buffer but not in one environment, or not in this
            # run: an n-step return must end there, bootstrapping (as it does at a timeout).
            cut = buffer.dones[buffer.pos - 1] == 0
            buffer.timeouts[buffer.pos - 1][cut] = 1
        self._last_stream = stream
        actions = transitions.actions[:, env]
        if transitions.actions.dtype.kind == "f":
            actions = algorithm.policy.scale_action(actions)
        for t in range(len(actions)):
            buffer.add(
                transitions.obs[t, env],
                transitions.next_obs[t, env],
                actions[t],
                transitions.rewards[t, env],
                transitions.dones[t, env],
                [{"TimeLimit.truncated": bool(transitions.timeouts[t, env])}],
            )
            algorithm.num_timesteps += 1
            algorithm._update_current_progress_remaining(
                algorithm.num_timesteps, algorithm._total_timesteps
            )
            algorithm._on_step()

    def update(self) -> None:
        """One gradient step on one batch."""
        batch = self.algorithm.batch_size
        before = self.seconds["sample"]
        with self.timed("train"):
            self.algorithm.train(gradient_steps=1, batch_size=batch)
        self.seconds["train"] -= self.seconds["sample"] - before
        self.limiter.samples += batch

    def _begin_schedules(self) -> None:
        """SB3's DQN knows its epsilon only once a step was made; actors ask before."""
        algorithm: Any = self.algorithm
        algorithm._update_current_progress_remaining(self.steps, algorithm._total_timesteps)
        if hasattr(algorithm, "exploration_schedule"):
            remaining = algorithm._current_progress_remaining
            algorithm.exploration_rate = algorithm.exploration_schedule(remaining)

    def _time_sampling(self) -> None:
        """Account the buffer's `sample`, which `train` calls, to an activity of its own."""
        buffer: Any = self.algorithm.replay_buffer
        sample = type(buffer).sample.__get__(buffer)

        def timed_sample(*args: Any, **kwargs: Any) -> Any:
            with self.timed("sample"):
                return sample(*args, **kwargs)

        buffer.sample = timed_sample

    def close(self) -> None:
        """Leave the algorithm as it was found: it can be saved, and trained by SB3 again."""
        vars(self.algorithm.replay_buffer).pop("sample", None)


def check_algorithm(algorithm: Any) -> None:
    """Refuse what no replay buffer of ours can feed; QuarlError saying why."""
    name = type(algorithm).__name__
    if not isinstance(algorithm, OffPolicyAlgorithm):
        raise QuarlError(
            f"ActorQ needs an off-policy algorithm, not {name}; allowed: DQN, DDPG, TD3, SAC, D4PG "
            "and other subclasses of stable_baselines3's OffPolicyAlgorithm"
        )
    if algorithm.get_vec_normalize_env() is not None:
        raise QuarlError("ActorQ's actors step raw environments: VecNormalize is not supported")
    if algorithm.n_envs != 1:
        raise QuarlError(
            f"the algorithm has {algorithm.n_envs} environments; give it one, and "
            "ActorQ(envs_per_actor=...) the number that each actor steps"
        )
    if algorithm.optimize_memory_usage:
        raise QuarlError("ActorQ's transitions do not follow each other: optimize_memory_usage")
    if not isinstance(algorithm.batch_size, int) or algorithm.replay_buffer is None:
        raise QuarlError(f"{name} has no replay buffer that could be fed")
