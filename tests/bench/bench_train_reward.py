"""The returns that our fast training reaches beside stock SB3's: same recipe, steps and seeds.

Ours differs by bfloat16 autocast, channels_last, fused optimizers and ale-py's C++ environments.
Equal reward needs runs that learn: the default is a check of some minutes that both paths work,
`--steps 1000000 --seeds 3` an answer (hours).

python tests/bench/bench_train_reward.py --algo ppo --game Breakout --steps 40000 --seeds 2
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import torch
from bench_train import stock_model

from quarl_nb.report.stats import stratified_bootstrap
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.recipes import get_recipe

FIRST_SEED = 20_000


def main() -> None:
    """Print the returns of both, their difference and its bootstrap interval."""
    options = parse()
    torch.set_num_threads(2)
    recipe = get_recipe(f"{options.algo}-{options.game}NoFrameskip-v4")
    recipe = replace(recipe, timesteps=options.steps)
    makers = {
        "untrained": lambda seed: make_model(recipe, seed, n_threads=2),
        "stock SB3": lambda seed: stock_model(recipe, seed),
        "quarl_nb": lambda seed: make_model(recipe, seed, n_threads=2),
    }
    returns: dict[str, list[np.ndarray]] = {name: [] for name in makers}
    for seed in range(options.seeds):
        for name, make in makers.items():
            model, started = make(seed), time.perf_counter()
            if name != "untrained":
                model.learn(recipe.timesteps)
            wall_s = time.perf_counter() - started
            returns[name].append(final_returns(model, recipe.env_id, options.episodes))
            reached = returns[name][-1].mean()
            print(f"seed {seed}  {name:10s} return {reached:8.2f}  {wall_s:5.0f} s", flush=True)
            model.env.close()
    report(recipe.name, options, returns)


def final_returns(model, env_id: str, episodes: int) -> np.ndarray:
    """Of the policy as it is at the end, on the same episodes for all, shape [episodes]."""
    seeds = range(FIRST_SEED, FIRST_SEED + episodes)
    net = PolicyNet.from_sb3(model, env_id=env_id)
    return np.array(evaluate(net, env_id, seeds, n_threads=2).returns)


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
    parser.add_argument("--episodes", type=int, default=10, help="of each evaluation")
    return parser.parse_args()


if __name__ == "__main__":
    main()
