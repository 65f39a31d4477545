"""From a recipe to a stable-baselines3 algorithm with its environment attached."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from quarl_nb.rl.atari import is_atari
from quarl_nb.rl.envs import OURS, make_env
from quarl_nb.rl.fast_cnn import FAST_CNN_POLICIES, FastNatureCNN, training_dtype
from quarl_nb.rl.half_dqn import HalfDQNPolicy
from quarl_nb.rl.prioritized import PrioritizedDQN, PrioritizedReplayBuffer
from quarl_nb.rl.recipes import Recipe
from quarl_nb.rl.sb3.vec_env import ArenaVecEnv, AtariVecEnv

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"a2c": A2C, "ddpg": DDPG, "dqn": DQN, "ppo": PPO}
NOISE = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}
# Recipes are plain data; these are the classes that their words stand for.
CLASSES = {"relu": torch.nn.ReLU, "prioritized": PrioritizedReplayBuffer}


def make_model(
    recipe: Recipe, seed: int, n_threads: int = 1, device: str = "cpu"
) -> BaseAlgorithm:
    """The SB3 algorithm of a recipe, its environment (normalized where asked) attached.

    Atari policies train with `FastNatureCNN` on the C++ environments, drones in arenas that are
    stepped at once; everything else is stock SB3.

    Args:
        seed: of the environments, the initial weights and the exploration.
        n_threads: of the C++ Atari environments.
        device: of the networks.
    """
    # SB3's callbacks refer to themselves: a model before this one, with gigabytes of replay buffer,
    # goes when Python looks for cycles, which it may not do as long as this one trains.
    gc.collect()
    arguments = _with_classes(recipe.hyperparameters)
    policy_kwargs = _with_classes(arguments.pop("policy_kwargs", {}))
    env, policy = _env(recipe, seed, n_threads), _policy(recipe, device)
    if is_atari(recipe.env_id):
        # As stock CnnPolicy: no hidden layers between the features and the heads.
        policy_kwargs |= dict(features_extractor_class=FastNatureCNN, net_arch=[])
    if recipe.action_noise:
        kind, std = recipe.action_noise
        assert env.action_space.shape is not None
        size = env.action_space.shape
        arguments["action_noise"] = NOISE[kind](mean=np.zeros(size), sigma=std * np.ones(size))
    prioritized = arguments.get("replay_buffer_class") is PrioritizedReplayBuffer
    model = (PrioritizedDQN if prioritized else ALGORITHMS[recipe.algo])(
        policy, env, seed=seed, policy_kwargs=policy_kwargs, device=device, **arguments
    )
    if is_atari(recipe.env_id):
        # After construction: orthogonal initialization fails on channels_last weights.
        model.policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # stubs
    return model


def gpu_of(device: str) -> str | None:
    """The name of the GPU that a device is; None for the processor, which provenance names."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None


def _with_classes(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: CLASSES.get(value, value) if isinstance(value, str) else value
        for name, value in options.items()
    }


def _env(recipe: Recipe, seed: int, n_threads: int) -> VecEnv:
    if is_atari(recipe.env_id):
        return AtariVecEnv(recipe.env_id, recipe.n_envs, seed=seed, n_threads=n_threads)
    if recipe.env_id.startswith(OURS):
        return ArenaVecEnv(recipe.env_id, recipe.n_envs, seed, recipe.reward_scale)
    env = make_vec_env(lambda: make_env(recipe.env_id), n_envs=recipe.n_envs, seed=seed)
    if recipe.normalize:
        return VecNormalize(env, gamma=recipe.hyperparameters.get("gamma", 0.99))
    return env


def _policy(recipe: Recipe, device: str) -> Any:
    if recipe.half_precision and training_dtype(torch.device(device)) == torch.bfloat16:
        return HalfDQNPolicy
    return FAST_CNN_POLICIES[recipe.algo] if is_atari(recipe.env_id) else "MlpPolicy"
