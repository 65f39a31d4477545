"""What it takes to train one policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Curriculum:
    """How far goals lie: from `start_m`, `factor` times as far whenever an agent is good enough.

    Good enough is a share of `success` of the newest `window` episodes. The paper has a curriculum
    on the goal's distance but does not give it.
    """

    start_m: float = 4.0
    factor: float = 1.5
    success: float = 0.6
    window: int = 100


@dataclass(frozen=True)
class Recipe:
    """One policy to train.

    Attributes:
        timesteps: environment steps (Atari: agent steps, four emulator frames each).
        hyperparameters: keyword arguments of the SB3 algorithm.
        normalize: running normalization of observations and rewards (SB3's ``VecNormalize``).
        target_return: training ends early once an evaluation reaches it.
        task: takes the environment's place in the name, where several policies share one.
        curriculum, reward_scale: of the navigation task; see `Curriculum` and `ArenaVecEnv`.
        judged_in: the environment of evaluations, where it is another (with other rewards).
        head: how the policy acts once trained (see `Head`), where not as the algorithm would
            without exploration.
        half_precision: DQN on vectors trains its hidden layers in bfloat16 (`HalfDQNPolicy`) where
            that is faster.
        source: where the hyperparameters come from, and what differs.
    """

    algo: str
    env_id: str
    timesteps: int
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    n_envs: int = 1
    normalize: bool = False
    action_noise: tuple[str, float] | None = None
    target_return: float | None = None
    eval_every: int = 25_000
    eval_episodes: int = 20
    source: str = "RL Zoo"
    task: str | None = None
    curriculum: Curriculum | None = None
    reward_scale: float = 1.0
    judged_in: str | None = None
    head: str | None = None
    half_precision: bool = False

    @property
    def name(self) -> str:
        """The policy's folder: ``ppo-CartPole-v1``."""
        return f"{self.algo}-{self.task or self.env_id}"

    def with_features(self, **options: Any) -> Recipe:
        """The same with these options of its features extractor (see `FastNatureCNN`)."""
        policy = self.hyperparameters.get("policy_kwargs", {})
        features = policy.get("features_extractor_kwargs", {}) | options
        changed = {"policy_kwargs": policy | {"features_extractor_kwargs": features}}
        return replace(self, hyperparameters=self.hyperparameters | changed)

    def with_uniform_replay(self) -> Recipe:
        """The same with SB3's own replay buffer in place of a prioritized one."""
        kept = {k: v for k, v in self.hyperparameters.items() if not k.startswith("replay_buffer")}
        return replace(self, hyperparameters=kept)


def linear(initial: float) -> Callable[[float], float]:
    """The RL Zoo's ``lin_x`` schedule: from `initial` to 0 as remaining progress goes 1 to 0."""
    return lambda progress_remaining: progress_remaining * initial
