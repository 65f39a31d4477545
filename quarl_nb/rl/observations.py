"""Observations that a policy really meets, to calibrate the ranges of its activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from quarl_nb.errors import users_own
from quarl_nb.rl.envs import close, factory_for, make_vec
from quarl_nb.rl.fits import check_acting

CALIBRATION_ENVS = 8
CALIBRATION_STEPS = 2_000  # in all


def collect_observations(
    policy: Any,
    env_id: str,
    steps: int,
    seed: int,
    make: Callable[[], gym.Env] | None = None,
) -> np.ndarray:
    """Run `policy` for `steps` environment steps in all and return what it saw ``[steps, ...]``.

    In as many environments at once as `CALIBRATION_ENVS`: `steps` is rounded down to a multiple.
    Of long episodes this is the beginning: 2,000 steps show the first 250 of eight. An episode's
    last observation, on which nobody acts, is among them.

    Running the policy is what shows activations to observers attached to it, so that the caller
    may ignore the result.

    Raises:
        QuarlError: no such environment, of other spaces than the policy's, or it raised something.
    """
    env = make_vec(env_id, CALIBRATION_ENVS, make=factory_for(policy, env_id, make))
    generator = torch.Generator().manual_seed(seed)
    seen = []
    try:
        check_acting(policy, env, env_id)
        with users_own("environment"):
            obs, _ = env.reset(seed=seed)
        state = policy.initial_state(CALIBRATION_ENVS)
        over = np.zeros(CALIBRATION_ENVS, bool)
        for _ in range(max(1, steps // CALIBRATION_ENVS)):
            seen.append(obs.copy())
            actions, state = policy.act(obs, state, generator)
            with users_own("environment"):
                obs, _, terminated, truncated, _ = env.step(actions)
            if state is not None and over.any():  # these were reset by this step: NEXT_STEP
                state[torch.as_tensor(over)] = policy.initial_state(int(over.sum()))
            over = terminated | truncated
    finally:
        close(env)
    return np.concatenate(seen)
