"""What actors do at random, so that they see more than their policy would show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.actorq.settings import Settings
from quarl_nb.rl.spec import Head

NOISE_STEPS = 100
ZETA = 2.0  # exponent of the distribution of durations; Dabney et al. 2021 use it on every domain


class Exploration(Protocol):
    """Exploration of one actor in all of its environments."""

    def __call__(self, actions: np.ndarray, epsilon: float) -> np.ndarray:
        """The policy's actions ``[envs, ...]`` (changed in place), exploration added."""

    def end_episode(self, env: int) -> None:
        """Begin anew in this environment."""


class GaussianNoise:
    """Noise on continuous actions, of `Settings.noise` half widths of their range (section 3)."""

    def __init__(self, n_envs: int, head: Head, sigma: float, rng: np.random.Generator) -> None:
        self._low, self._high = head.limits
        self._sigma = sigma * (self._high - self._low) / 2
        self._noise = self._drawn(n_envs, rng)

    def __call__(self, actions: np.ndarray, epsilon: float) -> np.ndarray:
        if not self._sigma.any():
            return actions
        noisy = actions.reshape(len(actions), -1) + next(self._noise)
        np.minimum(np.maximum(noisy, self._low, out=noisy), self._high, out=noisy)
        return noisy.reshape(actions.shape)

    def _drawn(self, n_envs: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """The noise of each step, drawn for many at once: numpy's code is cold after a decision."""
        shape = (NOISE_STEPS, n_envs, len(self._low))
        while True:
            yield from rng.standard_normal(shape, np.float32) * self._sigma

    def end_episode(self, env: int) -> None:
        """Nothing: noise of one step knows nothing of the one before."""


class EpsilonGreedy:
    """A random discrete action, instead of the policy's, with probability epsilon.

    With `ez_greedy` each goes on for a duration n of probability proportional to n^-2, or until the
    episode ends (Dabney et al. 2021, "Temporally-extended epsilon-greedy exploration", algorithm
    in appendix B): exploration then gets to where single random steps do not.
    """

    def __init__(
        self, n_envs: int, n_actions: int, ez_greedy: bool, rng: np.random.Generator
    ) -> None:
        self._n_actions, self._ez_greedy, self._rng = n_actions, ez_greedy, rng
        self._action, self._left = np.zeros(n_envs, np.int64), np.zeros(n_envs, np.int64)
        self._exploring = False  # whether some environment has random actions left

    def __call__(self, actions: np.ndarray, epsilon: float) -> np.ndarray:
        begins = self._rng.random(len(actions)) < epsilon
        if not (self._exploring or begins.any()):
            return actions
        begins &= self._left == 0
        if n := np.count_nonzero(begins):
            self._action[begins] = self._rng.integers(self._n_actions, size=n)
            self._left[begins] = self._rng.zipf(ZETA, size=n) if self._ez_greedy else 1
        random = self._left > 0
        actions[random] = self._action[random]
        self._left[random] -= 1
        self._exploring = bool(self._left.any())
        return actions

    def end_episode(self, env: int) -> None:
        self._left[env] = 0


def exploration(
    head: Head, n_outputs: int, settings: Settings, actor: int, rng: np.random.Generator
) -> Exploration:
    """How an actor explores with a policy of this head."""
    if head.discrete:
        return EpsilonGreedy(settings.envs_per_actor, n_outputs, settings.ez_greedy, rng)
    return GaussianNoise(settings.envs_per_actor, head, settings.noise(actor), rng)


def left_out(algorithm: OffPolicyAlgorithm) -> list[str]:
    """How an algorithm would explore continuous actions by itself, and its actors do not."""
    ways = {
        "action_noise": algorithm.action_noise is not None,
        # SAC's, TQC's, CrossQ's; the actors of DDPG, TD3 and D4PG have no distribution.
        "samples of the policy": hasattr(getattr(algorithm, "actor", None), "action_dist"),
        "use_sde": algorithm.use_sde,
    }
    return [way for way, used in ways.items() if used]
