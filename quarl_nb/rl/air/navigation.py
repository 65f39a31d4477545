"""QuaRL's drone navigation (Appendix B.3) as the gymnasium environment ``quarl/AirNavigation-v0``.

Importing this module registers it; ``gymnasium.make_vec`` gives the vectorized world.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from quarl_nb.errors import QuarlError
from quarl_nb.rl.air.world import (
    MAX_GOAL_DISTANCE_M,
    N_ACTIONS,
    N_DRAWS,
    N_RAYS,
    OBS_SIZE,
    AirWorld,
    Array,
    Mask,
)

ENV_ID = "quarl/AirNavigation-v0"
GOAL_ID = "quarl/AirNavigationGoal-v0"  # vectorized only
_LOW = np.concatenate([np.zeros(N_RAYS + 1), -np.ones(2), [0.0], -np.ones(2)]).astype(np.float32)
OBSERVATIONS = gym.spaces.Box(_LOW, np.ones(OBS_SIZE, np.float32))


class AirNavigationVectorEnv(VectorEnv):
    """Many arenas at once; an episode that has ended begins anew in the next step.

    ``reset`` takes one seed (arena i has seed + i), one an arena, or none, and as gymnasium's own
    ``options={"reset_mask": bool [num_envs]}``. Arena i with seed s flies as the single
    environment with seed s does, bit for bit. In the step that ends an episode
    ``info["is_success"]`` says whether the goal was reached.

    Args:
        max_goal_distance: of the first episodes, metres; see `set_max_goal_distance`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 1, max_goal_distance: float = MAX_GOAL_DISTANCE_M) -> None:
        self.num_envs = num_envs
        self.single_observation_space = OBSERVATIONS
        self.single_action_space = gym.spaces.Discrete(N_ACTIONS)
        self.observation_space = batch_space(OBSERVATIONS, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.world = AirWorld(num_envs, max_goal_distance)
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._ended = np.zeros(num_envs, bool)

    def set_max_goal_distance(self, metres: float) -> None:
        """The curriculum: how far the goals of new episodes may lie."""
        self.world.set_max_goal_distance(metres)

    def reset(
        self,
        *,
        seed: int | np.integer | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        everywhere = np.ones(self.num_envs, bool)
        slots = np.flatnonzero((options or {}).get("reset_mask", everywhere))
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + i for i in range(self.num_envs)]
        if seed is not None and len(seed) != self.num_envs:
            raise QuarlError(f"{len(seed)} seeds given; allowed: one of {self.num_envs} arenas")
        for i in slots.tolist():
            given = None if seed is None else seed[i]
            if given is not None or self._generators[i] is None:
                self._generators[i] = np_random(None if given is None else int(given))[0]
        self._begin(slots)
        return self.world.observe(), {}

    def step(self, actions: NDArray[np.integer]) -> tuple[Array, Array, Mask, Mask, dict[str, Any]]:
        anew = self._ended
        rewards, reached, collided, late = self.world.step(np.asarray(actions))
        if anew.any():
            for flags in (rewards, reached, collided, late):
                flags[anew] = 0
            self._begin(np.flatnonzero(anew))
        terminated = reached | collided
        self._ended = terminated | late
        info: dict[str, Any] = {}
        if self._ended.any():
            info = {"is_success": reached, "_is_success": self._ended.copy()}
        return self.world.observe(), rewards, terminated, late, info

    def _begin(self, slots: NDArray[np.intp]) -> None:
        draws = np.empty((len(slots), N_DRAWS), np.float32)
        for row, i in zip(draws, slots, strict=True):
            generator = self._generators[i]
            assert generator is not None
            generator.random(out=row, dtype=np.float32)
        self.world.reset(slots, draws.T)
        self._ended[slots] = False


class AirNavigationEnv(gym.Env):
    """One arena: the world of `AirNavigationVectorEnv` with num_envs = 1.

    Args:
        max_goal_distance: of the first episodes, metres; see `set_max_goal_distance`.
        render_mode: ``rgb_array`` or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}

    def __init__(
        self, max_goal_distance: float = MAX_GOAL_DISTANCE_M, render_mode: str | None = None
    ) -> None:
        self.observation_space = OBSERVATIONS
        self.action_space = gym.spaces.Discrete(N_ACTIONS)
        self.render_mode = render_mode
        self.world = AirWorld(1, max_goal_distance)

    def set_max_goal_distance(self, metres: float) -> None:
        """The curriculum: how far the goal of a new episode may lie."""
        self.world.set_max_goal_distance(metres)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        draws = self.np_random.random(N_DRAWS, dtype=np.float32)
        self.world.reset(np.array([0]), draws[:, None])
        return self.world.observe()[0], {}

    def step(self, action: int | np.integer) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        rewards, reached, collided, late = self.world.step(np.array([action]))
        success, terminated = bool(reached[0]), bool(reached[0] | collided[0])
        info = {"is_success": success} if terminated or late[0] else {}
        return self.world.observe()[0], float(rewards[0]), terminated, bool(late[0]), info

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]  # the base has no None
        """The arena from above, uint8 ``[height, width, 3]``."""
        if self.render_mode is None:
            return None
        from quarl_nb.rl.air.drawing import Flight, draw_frame

        flight = Flight(self.world)
        flight.record()
        return draw_frame(flight)


class GoalReachedVectorEnv(AirNavigationVectorEnv):
    """The same arenas with another reward: an episode returns 1 if it ends at the goal, else 0."""

    def step(self, actions: NDArray[np.integer]) -> tuple[Array, Array, Mask, Mask, dict[str, Any]]:
        obs, rewards, terminated, truncated, info = super().step(actions)
        reached = info.get("is_success", np.zeros_like(rewards))
        return obs, np.asarray(reached, np.float32), terminated, truncated, info


gym.register(
    ENV_ID,
    entry_point="quarl_nb.rl.air.navigation:AirNavigationEnv",
    vector_entry_point="quarl_nb.rl.air.navigation:AirNavigationVectorEnv",
)
gym.register(GOAL_ID, vector_entry_point="quarl_nb.rl.air.navigation:GoalReachedVectorEnv")
