"""From actors' messages to the replay buffer of a stable-baselines3 algorithm."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common import logger as sb3_logger
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.actorq.settings import Settings, Transitions
from quarl_nb.errors import QuarlError, UnavailableError, check_counts

logger = logging.getLogger(__name__)

LOG_EPISODES = 4  # between two lines of the algorithm's own log; the default of SB3's `learn`
FEW_RETURNS = 4  # n-step returns of full length that must fit into a message, or we warn


_SENT = {"rewards": "a reward", "obs": "an observation", "next_obs": "an observation",
         "actions": "an action"}  # fmt: skip


class ReplayFeed:
    """Does with actors' transitions what SB3's `collect_rollouts` does after a step of its own.

    Args:
        algorithm: passed `check_algorithm`; its `num_timesteps` counts what is added.
    """

    def __init__(self, algorithm: OffPolicyAlgorithm, settings: Settings) -> None:
        self.algorithm = algorithm
        # Whose step was added last (actor, environment); None where nothing goes on from it.
        self._last_stream: tuple[int, int] | None = None
        self._warn_of_short_returns(settings)

    def add(self, transitions: Transitions) -> None:
        """Add one message.

        Raises:
            QuarlError: a reward, observation or action that is not finite.
        """
        # The last observation of an episode is in `next_obs` alone.
        for name in ("rewards", "obs", "next_obs", "actions"):
            if not np.isfinite(getattr(transitions, name)).all():
                actor = f"actor {transitions.actor}"
                raise QuarlError(f"{actor} sent {_SENT[name]} that is NaN or infinite")
        for env in range(transitions.rewards.shape[1]):
            self._add_stream(transitions, env)
        self._log(transitions.episodes)

    def cut(self, actor: int) -> None:
        """What this actor sends next does not go on from what it sent before: it is a new one."""
        if self._last_stream is not None and self._last_stream[0] == actor:
            self._last_stream = None

    def end(self) -> None:
        """Whatever is added next does not go on from what was added last.

        An n-step return must end there, bootstrapping (as it does at a timeout), though in the
        buffer the steps follow each other.
        """
        buffer = self.algorithm.replay_buffer
        if isinstance(buffer, NStepReplayBuffer) and buffer.size():
            cut = buffer.dones[buffer.pos - 1] == 0
            buffer.timeouts[buffer.pos - 1][cut] = 1
        self._last_stream = None

    def update_progress(self) -> None:
        """Tell schedules how far the run is; beyond its end they would go below zero."""
        algorithm = self.algorithm
        steps = min(algorithm.num_timesteps, algorithm._total_timesteps)
        algorithm._update_current_progress_remaining(steps, algorithm._total_timesteps)

    def _add_stream(self, transitions: Transitions, env: int) -> None:
        algorithm, buffer = self.algorithm, self.algorithm.replay_buffer
        assert buffer is not None
        stream = (transitions.actor, env)
        if stream != self._last_stream:
            self.end()
        self._last_stream = stream
        actions = transitions.actions[:, env]
        if transitions.actions.dtype.kind == "f":
            actions = algorithm.policy.scale_action(actions)
        if _takes_a_block(buffer, len(actions)):
            _write(buffer, transitions, env, actions)
        else:
            _add_one_by_one(buffer, transitions, env, actions)
        for _ in range(len(actions)):
            algorithm.num_timesteps += 1
            self.update_progress()
            algorithm._on_step()

    def _log(self, episodes: list[tuple[float, int]]) -> None:
        """Write SB3's own figures to the algorithm's logger, wherever the user lets it write."""
        algorithm = self.algorithm
        assert algorithm.ep_info_buffer is not None
        for episode_return, length in episodes:
            algorithm.ep_info_buffer.append({"r": episode_return, "l": length})
            algorithm._episode_num += 1
            if algorithm._episode_num % LOG_EPISODES == 0:
                algorithm.dump_logs()

    def _warn_of_short_returns(self, settings: Settings) -> None:
        """Where streams take turns in the buffer, an n-step return ends with each message."""
        buffer, envs = self.algorithm.replay_buffer, settings.envs_per_actor
        if not isinstance(buffer, NStepReplayBuffer) or settings.n_actors * envs == 1:
            return
        steps = settings.message_steps(settings.pull_period)
        if steps < FEW_RETURNS * buffer.n_steps:
            logger.warning(
                "returns of %d steps end with every message, which has %d of each environment: "
                "transitions_per_message (and pull_period) of %d leave most of them whole",
                buffer.n_steps, steps, FEW_RETURNS * buffer.n_steps * envs,
            )  # fmt: skip


def _takes_a_block(buffer: ReplayBuffer, steps: int) -> bool:
    """Whether `_write` does at once what the buffer's own `add` would, four times as fast."""
    return (
        type(buffer) in (ReplayBuffer, NStepReplayBuffer)
        and buffer.handle_timeout_termination
        and buffer.pos + steps <= buffer.buffer_size
    )


def _write(buffer: ReplayBuffer, sent: Transitions, env: int, actions: np.ndarray) -> None:
    """Add the steps of one environment to one of SB3's buffers that has room before its end."""
    steps = len(actions)
    rows = slice(buffer.pos, buffer.pos + steps)
    buffer.observations[rows, 0] = sent.obs[:, env].reshape(steps, *buffer.obs_shape)
    buffer.next_observations[rows, 0] = sent.next_obs[:, env].reshape(steps, *buffer.obs_shape)
    buffer.actions[rows, 0] = actions.reshape(steps, buffer.action_dim)
    buffer.rewards[rows, 0] = sent.rewards[:, env]
    buffer.dones[rows, 0] = sent.dones[:, env]
    buffer.timeouts[rows, 0] = sent.timeouts[:, env]
    buffer.pos = rows.stop % buffer.buffer_size
    buffer.full = buffer.full or rows.stop == buffer.buffer_size


def _add_one_by_one(buffer: Any, sent: Transitions, env: int, actions: np.ndarray) -> None:
    for t in range(len(actions)):
        if isinstance(buffer, NStepReplayBuffer):
            # A cut of the step that was here, where the buffer keeps no timeouts.
            buffer.timeouts[buffer.pos] = 0
        step = slice(t, t + 1)  # of one environment, as SB3 adds a step
        info: dict[str, Any] = {"TimeLimit.truncated": bool(sent.timeouts[t, env])}
        if sent.dones[t, env]:
            info["terminal_observation"] = sent.next_obs[t, env]
        buffer.add(
            sent.obs[step, env], sent.next_obs[step, env], actions[step], sent.rewards[step, env],
            sent.dones[step, env], [info],
        )  # fmt: skip


def unused_hooks(algorithm: OffPolicyAlgorithm) -> list[str]:
    """What a user's subclass changes of SB3's own collecting of transitions, which actors
    replace."""
    found = []
    for name in ("collect_rollouts", "predict", "_sample_action", "_store_transition"):
        owner = next(kind for kind in type(algorithm).__mro__ if name in vars(kind))
        if owner.__module__.partition(".")[0] not in ("stable_baselines3", "sb3_contrib"):
            found.append(name)
    return found


def check_algorithm(algorithm: Any) -> None:
    """Refuse what no replay buffer of ours can feed; QuarlError saying why."""
    name = type(algorithm).__name__
    if isinstance(algorithm, type):
        raise QuarlError(f"ActorQ needs an algorithm that is made, {algorithm.__name__}(...), not "
                         "the class")  # fmt: skip
    if not isinstance(algorithm, OffPolicyAlgorithm):
        raise QuarlError(
            f"ActorQ needs an off-policy algorithm, not {name}; allowed: DQN, DDPG, TD3, SAC, D4PG "
            "and other subclasses of stable_baselines3's OffPolicyAlgorithm"
        )
    if algorithm.env is None:
        raise QuarlError(f"the {name} has no environment: {name}.load(path, env=...) gives it one")
    if algorithm.get_vec_normalize_env() is not None:
        raise QuarlError("ActorQ's actors step raw environments: VecNormalize is not supported")
    if algorithm.n_envs != 1:
        raise QuarlError(
            f"the algorithm has {algorithm.n_envs} environments; give it one, and "
            "ActorQ(envs_per_actor=...) the number that each actor steps"
        )
    if algorithm.optimize_memory_usage:
        raise QuarlError("ActorQ's transitions do not follow each other: optimize_memory_usage")
    if algorithm.replay_buffer is None:
        raise QuarlError(f"{name} has no replay buffer that could be fed")
    check_counts(1, batch_size=algorithm.batch_size)
    space = algorithm.action_space
    if isinstance(space, spaces.Box):
        if space.dtype.kind != "f":
            raise QuarlError(f"actions are kept within [-1, 1]: no whole numbers, as {space} has")
        if not (space.low < space.high).all():
            raise QuarlError("actions are scaled to [-1, 1]: no room between the bounds of "
                             f"{space}")  # fmt: skip
    logs = algorithm.tensorboard_log is not None and not algorithm._custom_logger
    if logs and sb3_logger.SummaryWriter is None:
        raise UnavailableError("tensorboard_log needs tensorboard: pip install tensorboard")
