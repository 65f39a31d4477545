"""The tasks that ActorQ was evaluated on (Table 3), in the environments of today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quarl_nb.errors import check_choice


@dataclass(frozen=True)
class Task:
    """One row of Table 3.

    Attributes:
        env_id: see `quarl_nb.rl.envs`.
        published: its name in Tables 2 and 3.
        steps, pull_period: Table 3's "steps trained" and "model pull frequency".
        options: of the algorithm, where its defaults are not those of its source.
    """

    env_id: str
    algo: str
    published: str
    steps: int
    pull_period: int = 1000
    options: Mapping[str, Any] = field(default_factory=dict)


# RL Zoo, DQN on the three classic tasks; ActorQ's rate limiter takes the place of train_freq.
_DQN = {
    "CartPole-v1": dict(
        learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1000,
        target_update_interval=10, exploration_fraction=0.16, exploration_final_eps=0.04,
    ),
    "Acrobot-v1": dict(
        learning_rate=6.3e-4, batch_size=128, buffer_size=50_000, learning_starts=1000,
        target_update_interval=250, exploration_fraction=0.12, exploration_final_eps=0.1,
    ),
    "MountainCar-v0": dict(
        learning_rate=4e-3, batch_size=128, buffer_size=10_000, learning_starts=1000, gamma=0.98,
        target_update_interval=600, exploration_fraction=0.2, exploration_final_eps=0.07,
    ),
}  # fmt: skip

TASKS = {
    task.env_id: task
    for task in (
        Task("dm:cartpole-balance", "d4pg", "Cartpole Balance", 40_000),
        Task("dm:walker-stand", "d4pg", "Walker Stand", 40_000),
        Task("dm:hopper-stand", "d4pg", "Hopper Stand", 100_000),
        Task("dm:reacher-hard", "d4pg", "Reacher Hard", 70_000),
        Task("dm:cheetah-run", "d4pg", "Cheetah Run", 200_000),
        Task("dm:finger-spin", "d4pg", "Finger Spin", 200_000),
        Task("dm:humanoid-stand", "d4pg", "Humanoid Stand", 500_000, 100),
        Task("dm:humanoid-walk", "d4pg", "Humanoid Walk", 700_000, 100),
        Task("CartPole-v1", "dqn", "Cartpole (Gym)", 60_000, options=_DQN["CartPole-v1"]),
        Task("Acrobot-v1", "dqn", "Acrobot (Gym)", 100_000, options=_DQN["Acrobot-v1"]),
        Task("MountainCar-v0", "dqn", "Mountain Car (Gym)", 200_000,
             options=_DQN["MountainCar-v0"]),
    )
}  # fmt: skip


def get_task(env_id: str) -> Task:
    """The task of that environment; QuarlError naming the nearest otherwise."""
    return TASKS[check_choice("task of ActorQ", env_id, TASKS)]
