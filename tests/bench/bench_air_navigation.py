"""Steps per second of the navigation world on one core: 64 arenas at once, and one alone.

Random actions, observations and the start of new episodes included; steps that only begin an
episode are not counted. The best of several rounds, by the clock and by CPU time (on a busy
machine the second says more). Target: 200,000 steps/s at 64 arenas.
"""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np

from quarl_nb.rl.air.navigation import ENV_ID, AirNavigationEnv

ARENAS, STEPS, ROUNDS = 64, 3000, 5


def main() -> None:
    """Print both rates."""
    rounds = [vector_rate() for _ in range(ROUNDS)]
    wall, cpu = (max(rates) for rates in zip(*rounds, strict=True))
    print(f"{ARENAS} arenas: {wall:8.0f} steps/s, {cpu:8.0f} steps per CPU-second (target 200000)")
    print(f"1 arena:   {max(single_rate() for _ in range(ROUNDS)):8.0f} steps/s")


def vector_rate() -> tuple[float, float]:
    """Steps per second and per CPU-second of `ARENAS` at once."""
    env = gym.make_vec(ENV_ID, num_envs=ARENAS)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(25, size=(STEPS, ARENAS))
    begun = 0
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        begun += int(np.count_nonzero(terminated | truncated))
    steps = STEPS * ARENAS - begun
    return steps / (time.perf_counter() - wall_start), steps / (time.process_time() - cpu_start)


def single_rate() -> float:
    """Steps per second of one arena."""
    env = AirNavigationEnv()
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(25, size=STEPS)
    started = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return STEPS / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
