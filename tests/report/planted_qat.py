"""Planted QAT records with known losses, to test the report against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from quarl_nb.report.qat.gains import FP32, WAY, Way, minmax, ptq

POLICIES = {"ppo-CartPole-v1": 400.0, "a2c-CartPole-v1": 300.0, "ddpg-Pendulum-v1": -200.0}
BITS = range(2, 9)
LSQ: Way = ("affine4", "lsq", "none")
# policy, way -> what it loses, a fraction of |float32|.
Loss = Callable[[str, Way], float]


def planted(
    loss: Loss, n_seeds: int = 3, noise: float = 0.003, episodes: int = 30,
    policies: Sequence[str] = tuple(POLICIES), extra: Sequence[Way] = (),
) -> pd.DataFrame:
    """`ResultStore.frame("qat")` with the losses that are asked for, and PTQ copies at all bits."""
    generator = np.random.default_rng(0)
    rows = []
    for policy in policies:
        base, scale = POLICIES[policy], abs(POLICIES[policy])
        algo, _, env_id = policy.partition("-")

        def returns(way: Way, policy=policy, base=base, scale=scale) -> list[float]:
            own = base - scale * (loss(policy, way) + noise * generator.standard_normal())
            return list(own + np.linspace(-1, 1, episodes))

        for way in (FP32, *map(minmax, BITS), *extra):
            for seed in range(n_seeds):
                precision, method, regularizer = way
                row: dict[str, Any] = {
                    "key": f"{policy}{way}{seed}", "profile": "full", "policy": policy,
                    "algo": algo, "env_id": env_id, "precision": precision, "method": method,
                    "regularizer": regularizer, "seed": seed, "returns": returns(way),
                }
                if way == FP32:
                    copies = {f"affine{b}": returns(ptq(f"affine{b}")) for b in BITS}
                    row["ptq_returns"] = copies
                rows.append(row)
    return pd.DataFrame(rows)


def knee(policy: str, way: Way) -> float:
    """No loss down to 5 bits, 30 % below; PTQ loses 10 % at 8 bits."""
    bits = int(way[0].removeprefix("affine")) if way[0] != "fp32" else 8
    return 0.1 if way[1] == "ptq" else 0.3 if bits < 5 else 0.0


def none(policy: str, way: Way) -> float:
    """No loss, however it was trained."""
    return 0.0


def of_seed(value: dict[int, float], way: Way, frame: pd.DataFrame) -> pd.DataFrame:
    """The records with the returns of this way set by seed; its other seeds are gone."""
    ours = (frame[WAY] == list(way)).all(axis=1)
    frame = frame[~ours | frame["seed"].isin(list(value))].copy()
    ours = ours[frame.index]
    frame.loc[ours, "returns"] = frame[ours]["seed"].map(lambda seed: [value[seed]] * 30)
    return frame


def five_seeds_of_fp32_three_of_4_bits() -> pd.DataFrame:
    """And 4 bits of a seed more, which float32 has not."""
    frame = planted(none, policies=["a2c-CartPole-v1"], n_seeds=5)
    frame = of_seed({0: 100.0, 1: 200, 2: 300, 3: 400, 4: 500}, FP32, frame)
    return of_seed({0: 90.0, 2: 310, 4: 500, 7: 9000}, minmax(4), pd.concat([
        frame, frame[frame["precision"] == "affine4"].head(1).assign(seed=7, key="another")
    ], ignore_index=True))  # fmt: skip


def five_seeds_and_three_of_learned_steps() -> pd.DataFrame:
    """Of float32 and of 4 bits five; of 4 bits with learned steps the first three."""
    frame = planted(none, policies=["a2c-CartPole-v1"], n_seeds=5, extra=[LSQ])
    frame = of_seed({0: 100.0, 1: 200, 2: 300, 3: 400, 4: 500}, FP32, frame)
    frame = of_seed({0: 90.0, 1: 200, 2: 310, 3: 0, 4: 0}, minmax(4), frame)
    return of_seed({0: 100.0, 1: 190, 2: 250}, LSQ, frame)


def car(fp32: Sequence[float], eight: Sequence[float], copies: int = 3) -> pd.DataFrame:
    """Records of alike policies on Mountain Car (nothing done earns 0), with returns by seed."""
    cars = [{
        "key": f"{name}{precision}{seed}", "profile": "full", "policy": name, "algo": "ddpg",
        "env_id": "MountainCarContinuous-v0", "precision": precision, "method": method,
        "regularizer": "none", "seed": seed, "returns": [mean] * 30,
        "ptq_returns": {"affine8": [fp32[seed]] * 30},
    } for name in (f"car {i}" for i in range(copies))
      for precision, method, means in (("fp32", "none", fp32), ("affine8", "minmax", eight))
      for seed, mean in enumerate(means)]  # fmt: skip
    return pd.DataFrame(cars)
