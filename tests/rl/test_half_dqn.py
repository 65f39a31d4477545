"""DQN in bfloat16: SB3's parameters, near its action values, and still told apart."""

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from quarl_nb.rl.half_dqn import HalfDQNPolicy
from quarl_nb.rl.sb3.convert import policy_from_model


def alike(env_id):
    options = dict(policy_kwargs=dict(net_arch=[64, 64]), seed=0, device="cpu", buffer_size=10)
    full, half = (DQN(policy, env_id, **options) for policy in ("MlpPolicy", HalfDQNPolicy))
    half.policy.load_state_dict(full.policy.state_dict())  # same names, same shapes
    return full, half


@pytest.fixture
def pair():
    return alike("CartPole-v1")


def test_action_values_are_near_those_in_full_precision(pair):
    full, half = pair
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32))
    exact, values = full.q_net(obs), half.q_net(obs)
    assert values.dtype == torch.float32
    difference = (exact - values).abs().max()
    # A product's relative error in bfloat16 is at most 2^-8; it is not exact either.
    assert 0 < difference < 0.03 * exact.abs().max()
    assert all(p.dtype == torch.float32 for p in half.policy.parameters())


def test_values_beyond_those_of_float16_are_none_beyond_bfloat16s(pair):
    obs = torch.full((1, 4), 1e7)
    full, half = (dqn.q_net(obs) for dqn in pair)
    assert full.abs().max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(half, full, rtol=0, atol=0.03 * full.abs().max().item())


def test_observations_are_encoded_as_in_full_precision():
    full, half = (dqn.q_net(torch.arange(16)) for dqn in alike("FrozenLake-v1"))  # cells, one-hot
    torch.testing.assert_close(half, full, rtol=0, atol=0.03 * full.abs().max().item())


def test_the_head_keeps_apart_what_bfloat16_would_not(pair):
    half = pair[1]
    head = half.q_net.q_net[-1]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([1000.0, 1001.0]))  # both 1000 in bfloat16
    assert half.q_net(torch.zeros(1, 4)).tolist() == [[1000.0, 1001.0]]


def test_it_learns_and_is_exported_like_any_dqn(pair):
    half = pair[1]
    before = [p.clone() for p in half.q_net.parameters()]
    half.learning_starts, half.batch_size = 4, 4
    half.learn(32)
    assert all((a != b).any() for a, b in zip(before, half.q_net.parameters(), strict=True))
    layers = [policy_from_model(dqn).spec.layers for dqn in pair]
    assert layers[0] == layers[1]
