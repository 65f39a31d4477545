"""One training on two threads against one, of `quarl-nb train`: steps per second with learning.

Of each kind of recipe one, so that `shares_cores` says what is so. A process each, repeats by turns
in one run, of which each one's fastest counts.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from quarl_nb.processes import CONTEXT, keep_freed_memory
from quarl_nb.rl.model import make_model
from quarl_nb.rl.recipes import get_recipe
from quarl_nb.rl.zoo import shares_cores

REPEATS = 4
# Recipe -> steps that are measured, after as many that are not.
CASES = {
    "dqn-PongNoFrameskip-v4": 1_000, "ppo-PongNoFrameskip-v4": 2_048,
    "a2c-PongNoFrameskip-v4": 2_000, "ddpg-HalfCheetah-v5": 1_500,
    "ddpg-MountainCarContinuous-v0": 1_500, "dqn-AirNavigation-III": 3_000,
    "dqn-AirNavigation-II": 3_000, "dqn-AirNavigation-I": 3_000, "dqn-CartPole-v1": 3_000,
    "ppo-CartPole-v1": 8_192, "ppo-HalfCheetah-v5": 4_096, "a2c-HalfCheetah-v5": 4_000,
}  # fmt: skip
model: list[BaseAlgorithm] = []  # of a trainer's process


def main() -> None:
    """Print both rates and their ratio of every recipe, or of those named."""
    for name in sys.argv[1:] or CASES:
        rates: dict[int, list[float]] = {1: [], 2: []}
        with ExitStack() as stack:
            trainers = {
                threads: stack.enter_context(ProcessPoolExecutor(
                    1, mp_context=CONTEXT, initializer=prepare, initargs=(name, threads)))
                for threads in rates
            }  # fmt: skip
            for _ in range(REPEATS):
                for threads, process in trainers.items():
                    rates[threads].append(process.submit(rate, CASES[name]).result())
        one, two = max(rates[1]), max(rates[2])
        share = "shares cores" if shares_cores(get_recipe(name)) else "keeps to one"
        print(f"{name} ({share}): {one:.0f} steps/s on one thread, {two:.0f} on two, "
              f"{two / one:.2f}x", flush=True)  # fmt: skip


def prepare(name: str, threads: int) -> None:
    """In the trainer's process: make the model, and train to the end of its warm-up."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # as `train` has it
    keep_freed_memory()
    recipe = get_recipe(name)
    if recipe.algo in ("dqn", "ddpg"):  # updates from the first measured step on
        recipe.hyperparameters.update(learning_starts=300)
    model.append(make_model(recipe, seed=0, n_threads=threads))
    model[0].learn(CASES[name])


def rate(steps: int) -> float:
    """Environment steps per second of `steps` more of training."""
    started = time.perf_counter()
    model[0].learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
