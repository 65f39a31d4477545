"""A share of random actions, where else nothing is left to chance (epsilon-greedy evaluation).

Without sticky actions a policy that always takes its best action plays few games of an Atari game,
each begun a few no-ops earlier or later: 30 episodes of our DQN on MsPacman were four games
(Machado et al. 2018, "Revisiting the Arcade Learning Environment"). One action in a hundred at
random, as DQN has at the end of its training (`exploration_final_eps` of the paper's Table 5),
makes every episode a game of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import gymnasium as gym
import numpy as np

from quarl_nb.errors import QuarlError
from quarl_nb.rl.atari import is_atari
from quarl_nb.rl.spec import Head

GREEDY_ATARI = 0.01


def random_actions_of(head: Head | None, env_id: str) -> float:
    """The share of random actions that a policy with this head (None: without one) needs: 0.01 if
    it is greedy and plays Atari, else 0."""
    greedy = head is not None and head.kind == "argmax"
    return GREEDY_ATARI if greedy and is_atari(env_id) else 0.0


class RandomActions:
    """Replaces actions of `n_envs` environments by uniformly random ones, each with probability
    `share`.

    Every episode has a generator of its own, so that policies that differ meet the same draws
    (common random numbers), whatever other episodes run beside it.

    Args:
        apart: draw by other numbers than gymnasium's `np_random` of the same seed, from which an
            environment draws where it begins. (ALE's emulators have generators of their own.)

    Raises:
        QuarlError: a share outside of 0..1, or actions that are not discrete.
    """

    def __init__(
        self, space: gym.Space, n_envs: int, share: float, apart: bool = False
    ) -> None:
        if not 0 <= share <= 1:
            raise QuarlError(f"random_actions is a share, from 0 to 1, not {share}")
        if share and not isinstance(space, gym.spaces.Discrete):
            raise QuarlError(f"random_actions needs discrete actions, not {space}")
        self.space, self.share, self.apart = space, share, apart
        self.generators = [np.random.default_rng(0)] * n_envs

    def begin(self, slots: Iterable[int], seeds: Iterable[int]) -> None:
        """An episode begins in each of these environments, with the seed beside it."""
        for slot, seed in zip(slots, seeds, strict=True):
            self.generators[slot] = np.random.default_rng((seed, 1) if self.apart else seed)

    def replace(self, actions: np.ndarray) -> np.ndarray:
        """`actions` ``[n_envs]``, some of them drawn."""
        if not self.share:
            return actions
        assert isinstance(self.space, gym.spaces.Discrete)
        return np.array([
            self.space.start + generator.integers(self.space.n)
            if generator.random() < self.share else action
            for generator, action in zip(self.generators, actions, strict=True)
        ])  # fmt: skip
