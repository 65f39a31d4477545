"""A training run that is watched: its curves, how its actions spread, and its best policy."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch.distributions import Categorical

from quarl_nb.errors import QuarlError
from quarl_nb.rl.denormals import denormals_as_zero
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.train import SELECTION_SEED, is_divergence

PROBES = 50  # points at which the distribution of actions is looked at
OBSERVATIONS = 256  # of the newest ones, over which it is averaged
POINTS = 100  # of a training's own returns, of which there may be tens of thousands


@dataclass(frozen=True)
class Schedule:
    """How long a run is and when it is evaluated: at equal distances after `delay`, to the end.

    Attributes:
        timesteps, delay: environment steps.
        evaluations: at least 1; the best policy is chosen among them.
        episodes: of each evaluation.
    """

    timesteps: int
    delay: int
    evaluations: int
    episodes: int


@dataclass(frozen=True)
class Trained:
    """What a run gave.

    Attributes:
        net: the policy of the best evaluation (of equal ones, the last).
        best_timesteps: when that was.
        training_s: seconds of `learn` without evaluations and probes.
        curves: training_steps, training_returns [points] (see `thinned`); eval_steps [evaluations],
            eval_returns [evaluations, episodes]; probe_steps, entropy, action_variance [probes]
            (see `spread_of_actions`).
    """

    net: PolicyNet
    best_timesteps: int
    training_s: float
    curves: dict[str, np.ndarray]

    def as_measured(self) -> dict[str, Any]:
        """The scalar fields, for a record."""
        return {"best_timesteps": self.best_timesteps, "training_s": self.training_s}


def train_watched(
    model: BaseAlgorithm,
    env_id: str,
    schedule: Schedule,
    export: Callable[[BaseAlgorithm], PolicyNet | None],
    callbacks: list[BaseCallback],
) -> Trained:
    """Let `model` learn by its own `learn`; writes no files.

    Args:
        export: the policy to evaluate; None while there is none yet.

    Raises:
        QuarlError: training diverged (NaN), or there was no policy at the end.
    """
    watcher = _Watcher(env_id, schedule, export)
    started = time.perf_counter()
    try:
        # Callbacks of quantization first: what is watched at a step is what acts from then on.
        with denormals_as_zero():
            model.learn(schedule.timesteps, callback=[*callbacks, watcher])
    except Exception as error:
        if is_divergence(error, model):
            at = f"step {model.num_timesteps}"
            raise QuarlError(f"training diverged at {at}: NaN or infinity in the policy") from error
        raise
    training_s = time.perf_counter() - started - watcher.watching_s
    if watcher.best is None:
        raise QuarlError("quantization never began: the run is too short for its warm-up")
    return Trained(watcher.best, watcher.best_timesteps, training_s, watcher.curves())


class _Watcher(BaseCallback):
    def __init__(
        self, env_id: str, schedule: Schedule, export: Callable[[BaseAlgorithm], PolicyNet | None]
    ) -> None:
        super().__init__()
        self.env_id, self.export = env_id, export
        self.seeds = range(SELECTION_SEED, SELECTION_SEED + schedule.episodes)
        after = np.linspace(schedule.delay, schedule.timesteps, schedule.evaluations + 1)
        # The last evaluation is that after the last update.
        self.eval_at = deque(after[1:-1])
        self.probe_at = deque(np.linspace(0, schedule.timesteps, PROBES + 1)[1:])
        self.best: PolicyNet | None = None
        self.best_return, self.best_timesteps, self.watching_s = -np.inf, 0, 0.0
        self.episodes: list[tuple[int, float]] = []
        self.evaluations: list[tuple[int, list[float]]] = []
        self.probes: list[tuple[int, float, float]] = []

    def _on_training_start(self) -> None:
        self.seen: deque[np.ndarray] = deque(maxlen=-(-OBSERVATIONS // self.training_env.num_envs))

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.episodes.append((self.num_timesteps, float(info["episode"]["r"])))
        self.seen.append(self.locals["new_obs"].copy())
        if self.probe_at and self.num_timesteps >= self.probe_at[0]:
            self.probe_at.popleft()
            self._timed(self._probe)
        if self.eval_at and self.num_timesteps >= self.eval_at[0]:
            self.eval_at.popleft()
            self._timed(self._evaluate)
        return True

    def _on_training_end(self) -> None:
        self._timed(self._evaluate)

    def _timed(self, watch: Callable[[], None]) -> None:
        started = time.perf_counter()
        watch()
        self.watching_s += time.perf_counter() - started

    def _probe(self) -> None:
        spread = spread_of_actions(self.model, np.concatenate(list(self.seen))[-OBSERVATIONS:])
        self.probes.append((self.num_timesteps, *spread))

    def _evaluate(self) -> None:
        net = self.export(self.model)
        if net is None:
            return
        returns = evaluate(net, self.env_id, self.seeds).returns
        self.evaluations.append((self.num_timesteps, returns))
        if np.mean(returns) >= self.best_return:
            self.best, self.best_timesteps = net, self.num_timesteps
            self.best_return = float(np.mean(returns))

    def curves(self) -> dict[str, np.ndarray]:
        """See `Trained`."""
        probes = np.array(self.probes, dtype=float).reshape(-1, 3)
        steps = np.array([step for step, _ in self.episodes], dtype=int)
        steps, returns = thinned(steps, np.array([r for _, r in self.episodes], dtype=float))
        return {
            "training_steps": steps,
            "training_returns": returns,
            "eval_steps": np.array([step for step, _ in self.evaluations]),
            "eval_returns": np.array([returns for _, returns in self.evaluations]),
            "probe_steps": probes[:, 0].astype(int),
            "entropy": probes[:, 1],
            "action_variance": probes[:, 2],
        }


def thinned(steps: np.ndarray, returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `POINTS` means of equally many episodes each (but for one), at their last steps.

    Args:
        steps, returns: of the episodes of a training, [episodes] each.
    """
    groups = [part for part in np.array_split(np.arange(len(steps)), POINTS) if len(part)]
    return steps[[part[-1] for part in groups]], np.array([returns[part].mean() for part in groups])


@torch.no_grad()
def spread_of_actions(model: Any, observations: np.ndarray) -> tuple[float, float]:
    """Entropy (nats) and variance of a model's actions over observations [n, ...].

    - A2C and PPO, discrete: means over observations of the entropy, and of the variance between
      the probabilities of the actions (0 when all are alike, larger the more certain they are).
    - A2C and PPO, continuous: means of the entropy and of the variance of an action's components.
    - DQN: the same of how often each action is the greedy one.
    - DDPG, TD3: no entropy (NaN); the variance of an action's components between observations.
    """
    policy = model.policy
    policy.set_training_mode(False)
    obs = policy.obs_to_tensor(observations)[0]
    if hasattr(policy, "get_distribution"):
        distribution = policy.get_distribution(obs).distribution
        if isinstance(distribution, Categorical):
            variance = distribution.probs.var(dim=1, correction=0).mean()
            return distribution.entropy().mean().item(), variance.item()
        entropy = distribution.entropy().sum(dim=1).mean()
        return entropy.item(), distribution.variance.mean().item()
    actions = policy._predict(obs, deterministic=True)
    if hasattr(model.action_space, "n"):
        shares = torch.bincount(actions, minlength=int(model.action_space.n)) / len(actions)
        return Categorical(shares).entropy().item(), shares.var(correction=0).item()
    return float("nan"), actions.var(dim=0, correction=0).mean().item()
