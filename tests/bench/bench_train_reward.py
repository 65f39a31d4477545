"""The returns that our fast training reaches beside stock SB3's: same recipe, steps and seeds.

Ours differs by channels_last, fused optimizers, ale-py's C++ environments and, where that is
faster, bfloat16 (`--precision bf16` anywhere).
Compared is what SB3 logs as `ep_rew_mean`, whole games with raw rewards, over the last 100 of
training. Equal reward needs runs that learn: the default is a check of some minutes that both
paths work, `--steps 1000000 --seeds 3` an answer (hours).

python tests/bench/bench_train_reward.py --algo ppo --game Breakout --steps 40000 --seeds 2
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import torch
from bench_train import stock_model
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from quarl_nb.report.stats import stratified_bootstrap
from quarl_nb.rl.model import make_model
from quarl_nb.rl.recipes import get_recipe

FIRST_STEPS = 5_000


def main() -> None:
    """Print the returns of both, their difference and its bootstrap interval."""
    options = parse()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)  # as `train` has it
    recipe = get_recipe(f"{options.algo}-{options.game}NoFrameskip-v4")
    recipe = replace(recipe, timesteps=options.steps)
    ours = recipe.with_features(precision=options.precision) if options.precision else recipe
    makers = {
        "stock SB3": lambda seed: stock_model(recipe, seed),
        "quarl_nb": lambda seed: make_model(ours, seed, n_threads=options.threads),
    }
    returns: dict[str, list[np.ndarray]] = {name: [] for name in makers}
    for seed in range(options.seeds):
        for name, make in makers.items():
            model, first, started = make(seed), FirstReturn(), time.perf_counter()
            model.learn(recipe.timesteps, callback=first)
            wall_s = time.perf_counter() - started
            returns[name].append(last_returns(model))
            print(f"seed {seed}  {name:10s} return {first.mean:8.2f} at first, "
                  f"{returns[name][-1].mean():8.2f} at last, {wall_s:5.0f} s", flush=True)
            assert model.env is not None
            model.env.close()
    report(recipe.name, options, returns)


class FirstReturn(BaseCallback):
    """The mean return of the games that are over after `FIRST_STEPS` steps, or the first that is
    over later: of little skill."""

    mean = float("nan")

    def _on_step(self) -> bool:
        some = self.num_timesteps >= FIRST_STEPS and self.model.ep_info_buffer
        if some and np.isnan(self.mean):
            self.mean = float(last_returns(self.model).mean())
        return True


def last_returns(model: BaseAlgorithm) -> np.ndarray:
    """Of the newest games of training, 100 at most."""
    assert model.ep_info_buffer
    return np.array([episode["r"] for episode in model.ep_info_buffer])


def report(name: str, options: argparse.Namespace, returns: dict[str, list[np.ndarray]]) -> None:
    """The intervals: over training seeds where there are at least three, else over episodes."""
    over_runs = options.seeds >= 3
    units = {
        path: [np.array([run.mean() for run in runs])] if over_runs else runs
        for path, runs in returns.items()
    }
    generator = np.random.default_rng(0)
    for path, scores in units.items():
        print(f"{path:10s} {stratified_bootstrap(scores, mean, generator)}")
    both = [*units["quarl_nb"], *units["stock SB3"]]
    half = len(both) // 2
    difference = stratified_bootstrap(
        both, lambda scores: mean(scores[:half]) - mean(scores[half:]), generator
    )
    verdict = "equal within noise" if difference.low <= 0 <= difference.high else "they differ"
    resampled = f"{options.seeds} training seeds" if over_runs else "episodes, not training seeds"
    print(f"train reward {name}, {options.steps} steps: quarl_nb - stock SB3 = {difference} "
          f"(95 %, over {resampled}): {verdict}")  # fmt: skip


def mean(scores) -> float:
    return float(np.mean([runs.mean() for runs in scores]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=("ppo", "a2c", "dqn"), default="ppo")
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=2, help="training seeds")
    parser.add_argument("--precision", choices=("fp32", "bf16"), help="of ours")
    parser.add_argument("--threads", type=int, default=2, help="returns do not depend on it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
