from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import NatureCNN

from quarl_nb.rl.fast_cnn import FastNatureCNN
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.recipes import recipes

SPACE = Box(0, 255, (4, 84, 84), dtype=np.uint8)


def test_fast_features_are_nature_features_to_bf16_rounding():
    torch.manual_seed(0)
    fast, stock = FastNatureCNN(SPACE, 128), NatureCNN(SPACE, 128)
    stock.load_state_dict(fast.state_dict())
    fast.to(memory_format=torch.channels_last)
    frames = torch.randint(0, 256, (6, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        expected, got = stock(frames.float() / 255), fast(frames)
    assert got.dtype == torch.float32
    error = (got - expected).norm() / expected.norm()
    assert 0 < error < 0.02  # bf16 keeps 8 bits: computed in it, and close


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_actor_and_critic_agree_with_the_stock_policy_on_every_path(algo):
    model, obs = pong_model(algo), frames(8)
    stock = ActorCriticCnnPolicy(
        model.observation_space, model.action_space, lambda _: 0.0,
        features_extractor_kwargs=dict(features_dim=128),
    )  # fmt: skip
    stock.load_state_dict(model.policy.state_dict())
    with torch.no_grad():
        logits = stock.get_distribution(obs).distribution.logits
        values = stock.predict_values(obs)
        close_to(model.policy.get_distribution(obs).distribution.logits, logits)
        close_to(model.policy.predict_values(obs), values)
        actions, rollout_values, rollout_log_prob = model.policy(obs)
        close_to(rollout_values, values)
        trained_values, log_prob, _ = model.policy.evaluate_actions(obs, actions)
        close_to(trained_values, values)
        torch.testing.assert_close(log_prob, rollout_log_prob, rtol=0, atol=1e-3)
    model.env.close()


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn"])
def test_a_fast_model_acts_as_its_policy_net_does(algo):
    model, obs = pong_model(algo), frames(8)
    net = PolicyNet.from_sb3(model, env_id="PongNoFrameskip-v4")
    with torch.no_grad():
        if algo == "dqn":
            theirs = model.policy.q_net(obs)
        else:
            theirs = model.policy.get_distribution(obs).distribution.logits
        close_to(theirs, net(obs))
    model.env.close()


def pong_model(algo: str):
    recipe = recipes()[f"{algo}-PongNoFrameskip-v4"]
    recipe.hyperparameters.update({"buffer_size": 64} if algo == "dqn" else {})
    return make_model(recipe, seed=0)


def frames(n: int) -> torch.Tensor:
    numbers = np.random.default_rng(0).integers(0, 256, (n, 4, 84, 84), dtype=np.uint8)
    return torch.as_tensor(numbers)


def close_to(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to bf16 rounding, which keeps 8 bits."""
    if got.shape[-1] > 1:  # logits and action values: up to what they share
        got, expected = (x - x.mean(1, keepdim=True) for x in (got, expected))
    assert (got - expected).norm() / expected.norm() < 0.05
