from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.random_actions import RandomActions, random_actions_of
from quarl_nb.rl.spec import Head


class Heard(gym.Env):
    """Ten steps (nine where the seed is odd) whose rewards are the digits of what was played."""

    observation_space = gym.spaces.Box(0, 1, (1,), dtype=np.float32)
    action_space = gym.spaces.Discrete(4, start=2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_, self.length = 0, 10 - (seed or 0) % 2
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.step_ += 1
        reward = float(action) * 10.0**self.step_
        return np.zeros(1, np.float32), reward, self.step_ == self.length, False, {}


class Twos:
    """Always action 2."""

    def initial_state(self, n):
        return None

    def act(self, obs, state=None, generator=None):
        return np.full(len(obs), 2), None


def played(share, n_envs=2, seeds=range(9)):
    return evaluate(Twos(), "heard", seeds, n_envs=n_envs, make=Heard, random_actions=share).returns


def test_only_a_greedy_policy_of_atari_needs_random_actions():
    assert random_actions_of(Head("argmax"), "PongNoFrameskip-v4") == 0.01
    assert random_actions_of(Head("sample"), "PongNoFrameskip-v4") == 0.0
    assert random_actions_of(Head("argmax"), "CartPole-v1") == 0.0
    assert random_actions_of(None, "PongNoFrameskip-v4") == 0.0  # draws its actions as it likes


def test_evaluation_draws_what_the_head_of_its_policy_needs_and_says_so():
    policy, seeds, pong = Twos(), range(100, 400), "PongNoFrameskip-v4"
    assert evaluate(policy, pong, [0], make=Heard).random_actions == 0.0
    policy.head = Head("argmax")
    found = evaluate(policy, pong, seeds, make=Heard)
    assert found.random_actions == 0.01
    assert found.returns == evaluate(policy, pong, seeds, make=Heard, random_actions=0.01).returns
    assert len(set(found.returns)) > 2  # two without draws: of ten steps and of nine
    assert evaluate(policy, "heard", [0], make=Heard).random_actions == 0.0
    assert evaluate(policy, pong, [0], make=Heard, random_actions=0.0).random_actions == 0.0


def test_an_episode_draws_by_its_own_seed_whatever_runs_beside_it():
    alone = [played(0.5, 1, [seed])[0] for seed in range(9)]
    assert len(set(alone)) == 9
    for n_envs in (1, 2, 4, 9):
        assert played(0.5, n_envs) == alone


def test_a_share_of_zero_changes_nothing_and_of_one_draws_uniformly():
    assert played(0.0, seeds=[0]) == [2.0 * 1111111111_0]
    space = gym.spaces.Discrete(4, start=2)
    chance = RandomActions(space, 2, 1.0)
    chance.begin([0, 1], [5, 6])
    drawn = np.array([chance.replace(np.array([9, 9])) for _ in range(4000)]).ravel()
    counts = np.unique(drawn, return_counts=True)
    assert counts[0].tolist() == [2, 3, 4, 5]
    assert counts[1].min() > 1850  # of 2000 expected; standard deviation 39


def test_the_share_is_the_share_of_steps_that_are_drawn():
    chance = RandomActions(gym.spaces.Discrete(1000), 1, 0.1)
    chance.begin([0], [3])
    changed = [chance.replace(np.array([-1]))[0] >= 0 for _ in range(10_000)]
    assert 900 < sum(changed) < 1100


def test_what_is_drawn_does_not_follow_from_the_chance_of_the_environment():
    """CartPole begins where gymnasium's generator of the episode's seed says: with the same numbers
    the first action would be random in the fifth of episodes that begin lowest, and in no other."""
    firsts = [played(0.2, 1, [seed])[0] // 10 % 10 for seed in range(300)]
    drawn = [seed for seed, first in enumerate(firsts) if first != 2]  # a quarter draw 2 again
    lowest = [seed for seed in drawn if gym.utils.seeding.np_random(seed)[0].random() < 0.2]
    assert 25 < len(drawn) < 65 and len(lowest) < len(drawn) / 2  # 45 and 9 expected


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_from_zero_to_one(share):
    with pytest.raises(QuarlError, match="from 0 to 1"):
        played(share)


def test_continuous_actions_have_no_random_one():
    with pytest.raises(QuarlError, match="discrete actions"):
        RandomActions(gym.spaces.Box(0, 1, (1,)), 1, 0.1)
