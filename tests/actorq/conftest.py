from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from quarl_nb.rl.policies import PolicyNet


@pytest.fixture
def mlp_policy(make_policy):
    """Makes a ReLU network of random weights, its actions the largest output."""

    def make(obs: int, hidden: tuple[int, ...], actions: int, seed: int = 0) -> PolicyNet:
        layers: list[Any] = []
        for inputs, outputs in pairwise([obs, *hidden, actions]):
            layers += [("linear", {"in_features": inputs, "out_features": outputs}), "relu"]
        return make_policy((obs,), *layers[:-1], seed=seed)

    return make


@pytest.fixture
def counter():
    """Environment class whose observations count steps; reward 1; over or cut after `length`."""

    # Local, so that cloudpickle sends the class itself to other processes.
    class Counter(gym.Env):
        observation_space = gym.spaces.Box(0, 1000, (2,), np.float32)

        def __init__(self, length=7, truncates=False, discrete=True):
            self.length, self.truncates = length, truncates
            box = gym.spaces.Box(-2.0, 4.0, (2,), np.float32)
            self.action_space = gym.spaces.Discrete(3) if discrete else box
            self.t = self.episode = 0

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            self.t, self.episode = 0, self.episode + 1
            return self._obs(), {}

        def step(self, action):
            self.t += 1
            over = self.t >= self.length
            return self._obs(), 1.0, over and not self.truncates, over and self.truncates, {}

        def _obs(self):
            return np.array([self.t, self.episode], np.float32)

    return Counter


@pytest.fixture
def small_dqn():
    """Makes a DQN with a network of 8 units, ready after 20 steps."""
    from stable_baselines3 import DQN

    def make(env="CartPole-v1", **options):
        settings = dict(learning_starts=20, batch_size=8, buffer_size=5000, seed=0, device="cpu",
                        target_update_interval=50, policy_kwargs=dict(net_arch=[8]))  # fmt: skip
        return DQN("MlpPolicy", env, **(settings | options))

    return make
