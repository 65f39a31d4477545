"""What quantization-aware training costs: training time at 8 bits over that without it.

In float32, as the study trains, and for convolutions also in bfloat16, as `quarl-nb train` does
where that is faster; environments included, interleaved repeats in one run, on one thread.
Targets, over float32: 1.6x for an MLP, 1.4x for the Atari network.
"""

from __future__ import annotations

import sys
import time

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from quarl_nb.processes import keep_freed_memory
from quarl_nb.processor import bf16_is_faster
from quarl_nb.rl.atari import is_atari
from quarl_nb.rl.model import make_model
from quarl_nb.rl.qat import prepare_qat
from quarl_nb.rl.qat_networks import is_quantized
from quarl_nb.rl.quant_delay import QuantDelay
from quarl_nb.rl.recipes import Recipe, get_recipe
from quarl_nb.studies.qat import float32_recipe

REPEATS = 7  # the least of three swings by a fifth on a shared machine
# Recipe -> target, steps that are measured (off-policy: after the warm-up that comes first).
CASES = {
    "ppo-CartPole-v1": (1.6, 8_192),
    "a2c-CartPole-v1": (1.6, 8_000),
    "dqn-CartPole-v1": (1.6, 2_048),
    "ddpg-MountainCarContinuous-v0": (1.6, 1_000),
    "ppo-PongNoFrameskip-v4": (1.4, 2_048),
    "dqn-PongNoFrameskip-v4": (1.4, 1_000),
    "a2c-MsPacmanNoFrameskip-v4": (1.4, 2_048),
}
METHODS = ("minmax", "lsq")


def main() -> None:
    """Print the ratio of every recipe and method beside its target; of those named, if any are."""
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.set_flush_denormal(True)  # as the study trains
    for name in sys.argv[1:] or CASES:
        target, steps = CASES[name]
        compare(f"{name} in fp32 (target {target}x)", float32_recipe(name), steps)
        recipe = get_recipe(name)
        if is_atari(recipe.env_id) and bf16_is_faster():
            compare(f"{name} in bf16", recipe, steps)


def compare(told: str, recipe: Recipe, steps: int) -> None:
    """Print the time of training by each method over that of training without quantizers."""
    models = {"plain": make(recipe)}
    callbacks: dict[str, QuantDelay | None] = {"plain": None}
    for method in METHODS:
        models[method] = make(recipe)
        callbacks[method] = prepare_qat(models[method], bits=8, method=method)
    for kind, model in models.items():
        warm_up(model, callbacks[kind])
        assert kind == "plain" or is_quantized(model)
    seconds: dict[str, list[float]] = {kind: [] for kind in models}
    for _ in range(REPEATS):
        for kind, model in models.items():
            seconds[kind].append(wall_s(model, steps, callbacks[kind]))
    for method in METHODS:
        ratio = min(seconds[method]) / min(seconds["plain"])
        print(f"qat {method:6s} {ratio:.2f}x {told}", flush=True)
    for model in models.values():
        assert model.env is not None
        model.env.close()


def make(recipe: Recipe) -> BaseAlgorithm:
    """The recipe's model, its warm-up cut to a batch and its memory to what is needed here."""
    if "learning_starts" in recipe.hyperparameters or recipe.algo in ("dqn", "ddpg"):
        recipe.hyperparameters.update(learning_starts=300, buffer_size=5_000)
    return make_model(recipe, seed=0)


def warm_up(model: BaseAlgorithm, callback: QuantDelay | None) -> None:
    """Train until quantization has begun: two rollouts, or the warm-up and an update."""
    # DQN on CartPole trains every 256 steps, and quantization begins after an update.
    steps = 1_000
    if isinstance(model, OnPolicyAlgorithm):
        steps = 2 * model.n_steps * model.n_envs
    model.learn(steps, callback=callback)


def wall_s(model: BaseAlgorithm, steps: int, callback: QuantDelay | None) -> float:
    """Seconds of `steps` more environment steps of training."""
    started = time.perf_counter()
    model.learn(steps, callback=callback, reset_num_timesteps=False)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
