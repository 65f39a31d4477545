"""An actor: runs a quantized policy in its environments and accounts for its time."""

from __future__ import annotations

import platform
from time import perf_counter

import gymnasium as gym
import numpy as np
import torch

from quarl_nb.actorq.environments import begin_episode, close, make_checked
from quarl_nb.actorq.exploration import exploration
from quarl_nb.actorq.quantizer import deserialize
from quarl_nb.actorq.settings import ActorTask, Orders, Transitions
from quarl_nb.actorq.timed import Timed
from quarl_nb.actorq.variables import Variables
from quarl_nb.errors import QuarlError, users_own
from quarl_nb.inference import Engine, open_engine
from quarl_nb.rl.envs import check_apart
from quarl_nb.rl.fits import n_outputs

ACTIVITIES = ("environment", "inference", "pull", "deserialize", "load", "send", "wait")


class Actor(Timed):
    """Steps its environments with the newest policy that it opened.

    Attributes:
        interrupted: set by another thread: `collect` is to end with the step that it makes.

    Raises:
        QuarlError: an environment raised, or is not the policy's.
    """

    interrupted = False

    def __init__(self, task: ActorTask) -> None:
        super().__init__(ACTIVITIES)
        self.task, settings = task, task.settings
        # Neither a restart nor a resumed run goes through the numbers that came before again.
        sequence = np.random.SeedSequence(
            [settings.seed or 0, task.index, task.restarts, task.begun_at]
        )
        self._rng = np.random.default_rng(sequence)
        self.envs: list[gym.Env] = []
        try:
            self._obs = self._begin()
        except BaseException:
            self.close()
            raise
        self._returns = np.zeros(len(self.envs))
        self._lengths = np.zeros(len(self.envs), np.int64)
        self._n_outputs = n_outputs(task.spec)
        self._exploration = exploration(
            task.spec.head, self._n_outputs, settings, task.index, self._rng
        )
        self._engine: Engine | None = None
        self.version = -1
        self.pulled_bytes, self.pulls = 0, 0
        self._steps_until_pull = 0

    def _begin(self) -> np.ndarray:
        """Make the environments, each with a seed of its own; their first observations."""
        for _ in range(self.task.settings.envs_per_actor):
            self.envs.append(make_checked(self.task.make_env, self.task.spec))
        check_apart(self.envs)
        seeds = [int(seed) for seed in self._rng.integers(2**31, size=len(self.envs))]
        with users_own("environment"):
            first = [begin_episode(env, seed) for env, seed in zip(self.envs, seeds, strict=True)]
            obs = np.stack([self._checked(obs) for obs in first])
        for env, seed in zip(self.envs, seeds, strict=True):
            env.action_space.seed(seed)
        return obs

    @property
    def pull_due(self) -> bool:
        """Whether the next thing to do is to pull."""
        return self._steps_until_pull <= 0

    @property
    def message_steps(self) -> int:
        """Steps of each environment in the next message."""
        return self.task.settings.message_steps(self._steps_until_pull)

    def open(self, variables: Variables) -> None:
        """Act with `variables` from now on.

        The version that acts already is left in place, unless the settings say `reopen`.

        Raises:
            QuarlError: the payload is damaged.
        """
        self.pulls += 1
        self._steps_until_pull = self.task.settings.pull_period
        self.pulled_bytes += len(variables.payload)
        if variables.version < self.version:
            raise QuarlError(f"variables went back from {self.version} to {variables.version}")
        if variables.version == self.version and not self.task.settings.reopen:
            return
        with self.timed("deserialize"):
            payload = deserialize(variables, self.task)
        with self.timed("load"):
            self._engine = open_engine(payload)
        self.version = variables.version

    def warm_up(self, variables: Variables) -> None:
        """Open a first policy, which loads the runtime too: that counts for nothing, and the first
        thing to do afterwards is to pull."""
        self.open(variables)
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self.pulls, self.pulled_bytes, self._steps_until_pull = 0, 0, 0

    def collect(self, steps: int, orders: Orders) -> Transitions:
        """Step every environment `steps` times.

        Raises:
            QuarlError: no variables were opened yet, or those of another network; an environment
                raised or returned observations of another shape; it was interrupted.
        """
        n = len(self.envs)
        obs = np.empty((steps + 1, n, *self._obs.shape[1:]), self._obs.dtype)
        next_obs = np.empty((steps, n, *self._obs.shape[1:]), self._obs.dtype)
        rewards = np.zeros((steps, n), np.float32)
        dones, timeouts = np.zeros((steps, n), bool), np.zeros((steps, n), bool)
        actions, episodes = [], []
        obs[0] = self._obs
        for t in range(steps):
            if self.interrupted:
                raise QuarlError("the run is over")
            action = self._actions(obs[t], orders)
            actions.append(action.copy())  # an environment may change its own in place
            started = perf_counter()
            with users_own("environment"):
                for i, env in enumerate(self.envs):
                    seen, reward, terminated, truncated, _ = env.step(action[i])
                    next_obs[t, i] = obs[t + 1, i] = self._checked(seen)
                    rewards[t, i] = float(reward)
                    self._returns[i] += rewards[t, i]
                    self._lengths[i] += 1
                    if terminated or truncated:
                        dones[t, i], timeouts[t, i] = True, not terminated
                        episodes.append((float(self._returns[i]), int(self._lengths[i])))
                        self._returns[i], self._lengths[i] = 0.0, 0
                        self._exploration.end_episode(i)
                        obs[t + 1, i] = self._checked(begin_episode(env))
            self.seconds["environment"] += perf_counter() - started
        self._obs = obs[-1]
        self._steps_until_pull -= rewards.size
        return Transitions(
            self.task.index, self.version, obs[:-1], next_obs, np.stack(actions), rewards,
            dones, timeouts, episodes,
        )  # fmt: skip

    def report(self, transitions: Transitions, cpu_s: float = 0.0) -> Transitions:
        """Add to a message what happened since the last one, `cpu_s` of its process included."""
        transitions.cpu_s = cpu_s
        transitions.seconds, self.seconds = self.seconds, dict.fromkeys(ACTIVITIES, 0.0)
        transitions.pulled_bytes, self.pulled_bytes = self.pulled_bytes, 0
        transitions.pulls, self.pulls = self.pulls, 0
        transitions.host = platform.node()
        return transitions

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            close(env)

    def _actions(self, obs: np.ndarray, orders: Orders) -> np.ndarray:
        """Actions of observations ``[envs, ...]``, exploration added."""
        if orders.random:
            return np.stack([env.action_space.sample() for env in self.envs])
        if self._engine is None:
            raise QuarlError("the actor has no policy yet: open variables first")
        started = perf_counter()
        outputs = self._engine.run(obs)  # refuses observations of another shape than its own
        if outputs.shape[1] != self._n_outputs:
            raise QuarlError(
                f"the payload is of another network: it has {outputs.shape[1]} outputs, "
                f"the policy {self._n_outputs}"
            )
        if not np.isfinite(outputs).all():
            precision = self.task.settings.precision
            raise QuarlError(f"the policy's outputs in {precision} are NaN or infinite")
        # A torch actor squashes by torch, too: actions are then SB3's own bits.
        by_torch = self.task.settings.runtime == "torch"
        greedy = self.task.spec.head.actions(torch.from_numpy(outputs) if by_torch else outputs)
        actions = self._exploration(greedy, orders.epsilon)
        self.seconds["inference"] += perf_counter() - started
        return actions

    def _checked(self, obs: np.ndarray) -> np.ndarray:
        # SB3's vector environments cast to the space's type, too.
        obs = np.asarray(obs, dtype=self.envs[0].observation_space.dtype)
        if obs.shape != self.task.spec.obs_shape:
            raise QuarlError(
                f"environment returned an observation of shape {list(obs.shape)}, "
                f"the policy takes {list(self.task.spec.obs_shape)}"
            )
        return obs
