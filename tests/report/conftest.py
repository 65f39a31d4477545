"""Synthetic PTQ records with known losses: truth to check the report layer against."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import pytest

POLICIES = {
    "a2c-CartPole-v1": ("a2c", "CartPole-v1", 480.0),
    "ppo-CartPole-v1": ("ppo", "CartPole-v1", 490.0),
    "a2c-BipedalWalker-v3": ("a2c", "BipedalWalker-v3", 240.0),
    "ppo-BipedalWalker-v3": ("ppo", "BipedalWalker-v3", 300.0),
    "dqn-PongNoFrameskip-v4": ("dqn", "PongNoFrameskip-v4", 20.0),
    "ddpg-MountainCarContinuous-v0": ("ddpg", "MountainCarContinuous-v0", 93.0),
}


def make_records(
    loss: Callable[[str, str, str], float],
    precisions: tuple[str, ...],
    policies: Mapping[str, tuple[str, str, float]] = POLICIES,
    ranges: tuple[str, ...] = ("minmax",),
    episodes: int = 40,
    noise: float = 0.02,
    seed: int = 0,
) -> pd.DataFrame:
    """Records whose quantized returns lose the fraction `loss(policy, precision, ranges)`.

    `noise` is the standard deviation of an episode's own change, a fraction of the fp32 mean;
    what episodes differ in themselves (five times that) is common to all precisions.
    """
    generator = np.random.default_rng(seed)
    rows = []
    for policy, (algo, env_id, mean) in policies.items():
        common = mean * (1 + 5 * noise * generator.standard_normal(episodes))
        for precision in ("fp32", *precisions):
            for way in ranges if precision.startswith("affine") else ("minmax",):
                change = 0.0 if precision == "fp32" else loss(policy, precision, way)
                own = 0.0 if precision == "fp32" else noise * generator.standard_normal(episodes)
                returns = common - abs(mean) * (change + own)
                rows.append({
                    "key": hashlib.sha256(f"{policy}{precision}{way}".encode()).hexdigest(),
                    "profile": "quick", "algo": algo, "env_id": env_id, "policy": policy,
                    "seed": 0, "precision": precision, "ranges": way,
                    "returns": returns.tolist(), "lengths": [100 * i for i in range(episodes)],
                    "backend": "simulated", "source": "measured", "wall_s": 1.0,
                    "budget.first_seed": 1000, "budget.episodes": episodes,
                    "provenance.git_commit": "0" * 40, "provenance.dirty": False,
                })
    return pd.DataFrame(rows)


@pytest.fixture
def records() -> Callable[..., pd.DataFrame]:
    return make_records
