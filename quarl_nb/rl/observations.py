"""Observations that a policy really meets, to calibrate the ranges of its activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from quarl_nb.rl.envs import make_vec

CALIBRATION_ENVS = 8


def collect_observations(
    policy: Any,
    env_id: str,
    steps: int,
    seed: int,
    make: Callable[[], gym.Env] | None = None,
) -> np.ndarray:
    """Run `policy` for `steps` environment steps in all and return what it saw ``[steps, ...]``.

    In as many environments at once as `CALIBRATION_ENVS`: `steps` is rounded down to a multiple.

    Running the policy is what shows activations to observers attached to it, so that the caller
    may ignore the result.
    """
    env = make_vec(env_id, CALIBRATION_ENVS, make=make)
    generator = torch.Generator().manual_seed(seed)
    seen = []
    try:
        obs, _ = env.reset(seed=seed)
        state = policy.initial_state(CALIBRATION_ENVS)
        for _ in range(max(1, steps // CALIBRATION_ENVS)):
            seen.append(obs.copy())
            actions, state = policy.act(obs, state, generator)
            obs, *_ = env.step(actions)
    finally:
        env.close()
    return np.concatenate(seen)
