"""Prioritized experience replay for stable-baselines3's DQN: Schaul et al. 2016 (1511.05952).

>>> PrioritizedDQN("MlpPolicy", env, replay_buffer_class=PrioritizedReplayBuffer)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from torch.nn import functional as F

from quarl_nb.errors import QuarlError

Indices = NDArray[np.int64]


class PrioritizedReplayBuffer(ReplayBuffer):
    """Samples transition i with probability p_i^alpha / sum_k p_k^alpha (equation 1).

    New transitions have the largest priority so far (algorithm 1, line 6), so that each is seen
    soon; with an algorithm that never calls `update_priorities` (stock DQN) all are alike, and
    sampling is uniform. Random numbers are those of `np.random`, which SB3 seeds.

    A sum tree would sample in O(log n); numpy's cumulative sum is O(n) without a loop in Python,
    0.04 ms for the paper's 10,000 transitions, 0.5 ms for 100,000.

    Args:
        alpha: how much priorities count; 0.6 in Table 5 of the paper and in stable-baselines 2.
        beta: exponent of the importance weights when training begins; it ends at 1.
        epsilon: added to |TD error|, so that no transition is lost.

    Attributes:
        powers: p^alpha of every transition, shape [buffer_size, n_envs].
    """

    def __init__(
        self, buffer_size: int, observation_space: spaces.Space, *args: Any,
        alpha: float = 0.6, beta: float = 0.4, epsilon: float = 1e-6, **kwargs: Any,
    ) -> None:  # fmt: skip
        if isinstance(observation_space, spaces.Dict):
            raise QuarlError("prioritized replay holds no observations that are dictionaries")
        super().__init__(buffer_size, observation_space, *args, **kwargs)
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not 0 <= value <= 1:
                raise QuarlError(f"{name} of prioritized replay is {value}; allowed: 0 to 1")
        if not epsilon > 0:  # one TD error of 0 would take every weight to 0
            raise QuarlError(f"epsilon of prioritized replay is {epsilon}; allowed: above 0")
        if self.optimize_memory_usage:
            raise QuarlError("prioritized replay has no optimize_memory_usage=True")
        self.alpha, self.beta, self.epsilon = alpha, beta, epsilon
        self.powers = np.ones((self.buffer_size, self.n_envs))
        self.largest = 1.0

    def add(self, *args: Any, **kwargs: Any) -> None:
        """As `ReplayBuffer.add`; the new transitions get the largest priority so far."""
        self.powers[self.pos] = self.largest
        super().add(*args, **kwargs)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """As `ReplayBuffer.sample`, by priority; for algorithms that know no weights."""
        return self._get_samples(self.draw(batch_size)[0], env)

    def sample_weighted(
        self, batch_size: int, beta: float, env: VecNormalize | None = None
    ) -> tuple[ReplayBufferSamples, Indices, NDArray[np.float32]]:
        """Transitions by priority with their indices and importance weights, see `draw`."""
        indices, weights = self.draw(batch_size, beta)
        return self._get_samples(indices, env), indices, weights

    def draw(self, batch_size: int, beta: float = 1.0) -> tuple[Indices, NDArray[np.float32]]:
        """Indices of transitions by priority, and their importance weights, [batch_size] each.

        Weights are (N P(i))^-beta (section 3.4) over the largest that any stored transition has,
        as in stable-baselines 2.

        Returns:
            indices into the transitions, step * n_envs + environment; weights in (0, 1].
        """
        powers = self.powers[: self.size()].ravel()
        cumulated = np.cumsum(powers)
        mass = np.random.random(batch_size) * cumulated[-1]
        # A mass that rounds up to the total belongs to the last transition.
        indices = np.searchsorted(cumulated, mass, side="right").clip(max=len(powers) - 1)
        weights = (powers[indices] / powers.min()) ** -beta
        return indices, weights.astype(np.float32)

    def update_priorities(self, indices: Indices, td_errors: NDArray[np.float32]) -> None:
        """Set p = |TD error| + epsilon (section 3.3, proportional) of drawn transitions.

        Raises:
            QuarlError: an error is NaN or infinite: training has diverged.
        """
        powers = (np.abs(td_errors, dtype=np.float64) + self.epsilon) ** self.alpha
        if not np.isfinite(powers).all():
            raise QuarlError("training diverged: a TD error is NaN or infinite")
        self.powers.reshape(-1)[indices] = powers
        self.largest = max(self.largest, float(powers.max()))

    def _get_samples(
        self, batch_inds: Indices, env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        """The transitions of `draw`'s indices (SB3's draws the environment by chance)."""
        at = np.divmod(batch_inds, self.n_envs)
        ends = (self.dones[at] * (1 - self.timeouts[at])).reshape(-1, 1)
        rewards = self._normalize_reward(self.rewards[at].reshape(-1, 1), env)
        arrays: tuple[Any, ...] = (
            self._normalize_obs(self.observations[at], env), self.actions[at],
            self._normalize_obs(self.next_observations[at], env), ends, rewards,
        )  # fmt: skip
        return ReplayBufferSamples(*(self.to_torch(array) for array in arrays))


class PrioritizedDQN(DQN):
    """SB3's DQN with importance weights in its loss, and TD errors given back as priorities.

    `train` is SB3 2.9.2's line by line but for four: transitions are drawn with weights, each one's
    Huber loss is multiplied by its weight, its TD error becomes its priority, and returns are of
    one step. Beta rises linearly to 1 over the run, as in stable-baselines 2.

    Raises:
        QuarlError: (when made) the replay buffer is of another class, or n_steps is above 1.
    """

    replay_buffer: PrioritizedReplayBuffer

    def _setup_model(self) -> None:
        super()._setup_model()
        if not isinstance(self.replay_buffer, PrioritizedReplayBuffer):
            raise QuarlError("PrioritizedDQN needs replay_buffer_class=PrioritizedReplayBuffer")
        if self.n_steps > 1:
            raise QuarlError(f"PrioritizedDQN has returns of one step, not n_steps={self.n_steps}")

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """`gradient_steps` updates on batches drawn by priority."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        buffer = self.replay_buffer
        beta = 1 - (1 - buffer.beta) * self._current_progress_remaining
        losses = []
        for _ in range(gradient_steps):
            batch, indices, weights = buffer.sample_weighted(
                batch_size, beta, self._vec_normalize_env
            )
            with torch.no_grad():
                next_values = self.q_net_target(batch.next_observations).max(dim=1)[0]
                ahead = (1 - batch.dones) * self.gamma * next_values.reshape(-1, 1)
                targets = batch.rewards + ahead
            values = self.q_net(batch.observations).gather(1, batch.actions.long())
            each = F.smooth_l1_loss(values, targets, reduction="none")
            loss = (buffer.to_torch(weights).reshape(-1, 1) * each).mean()
            losses.append(loss.item())
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            errors = (values - targets).detach().cpu().numpy().ravel()
            buffer.update_priorities(indices, errors)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
