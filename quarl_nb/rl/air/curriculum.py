"""The curriculum of the navigation task: goals move away as the agent learns to reach them."""

from __future__ import annotations

from collections import deque

from stable_baselines3.common.callbacks import BaseCallback

from quarl_nb.rl.air.world import MAX_GOAL_DISTANCE_M
from quarl_nb.rl.recipes import Curriculum


class CurriculumCallback(BaseCallback):
    """Sets how far the goals of new episodes may lie, until they may lie anywhere.

    After each move the agent proves itself anew: episodes before it do not count.

    Args:
        stages: (environment steps, metres) of what was so far, empty for a new run; it is
            continued in place, and its last stage is what holds when a run is resumed.
    """

    def __init__(self, curriculum: Curriculum, stages: list[tuple[int, float]]) -> None:
        super().__init__()
        self.curriculum, self.stages = curriculum, stages
        self.outcomes: deque[bool] = deque(maxlen=curriculum.window)

    def _on_training_start(self) -> None:
        # SB3 has begun the first episodes by now: those have goals anywhere.
        if not self.stages:
            self.stages.append((0, self.curriculum.start_m))
        self._set_distance()

    def _on_step(self) -> bool:
        self.outcomes += [i["is_success"] for i in self.locals["infos"] if "is_success" in i]
        full = len(self.outcomes) == self.curriculum.window
        distance = self.stages[-1][1]
        if full and distance < MAX_GOAL_DISTANCE_M:
            if sum(self.outcomes) >= self.curriculum.success * self.curriculum.window:
                farther = min(distance * self.curriculum.factor, MAX_GOAL_DISTANCE_M)
                self.stages.append((self.num_timesteps, farther))
                self._set_distance()
        return True

    def _set_distance(self) -> None:
        self.training_env.env_method("set_max_goal_distance", self.stages[-1][1])
        self.outcomes.clear()
