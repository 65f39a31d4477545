"""Training the policies of `quarl_nb.rl.recipes` with stable-baselines3: resumable, best kept.

A run lives in ``runs/<name>/``: ``checkpoint.pt`` (newest state), ``best/`` (the policy with the
best evaluation), ``progress.csv``. A finished run's best policy goes to ``data/policies/<name>``.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from quarl_nb import provenance
from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.paths import project_root
from quarl_nb.rl.checkpoint import Progress, load_checkpoint, save_checkpoint
from quarl_nb.rl.evaluate import Evaluation, evaluate
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import PolicyNet, load_policy, save_policy
from quarl_nb.rl.recipes import Recipe, recipes

CHECKPOINT_EVERY_S = 120.0
# Evaluation during training, which selects the best policy, never sees the seeds of the studies.
SELECTION_SEED = 10_000
COLUMNS = ("timesteps", "wall_s", "training_return", "eval_return", "eval_std")


def train(
    recipe: Recipe, run_dir: Path, seed: int = 0, deadline: float | None = None
) -> Progress:
    """Train until the recipe's steps or target return are reached, or `deadline` (Unix time).

    Continues from ``run_dir/checkpoint.pt`` where there is one. At most `CHECKPOINT_EVERY_S`
    seconds of work are lost when the process is killed.

    Raises:
        QuarlError: the checkpoint cannot be read or written, or the parameters became NaN.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = run_dir / "checkpoint.pt"
    model = make_model(recipe, seed)
    progress = load_checkpoint(checkpoint, model) if checkpoint.exists() else Progress()
    if progress.done:
        return progress
    # A resumed run goes on with other random numbers than the ones it began with.
    model.set_random_seed(seed + progress.timesteps)
    remaining = recipe.timesteps - progress.timesteps
    monitor = _Monitor(recipe, run_dir, progress, seed, deadline)
    try:
        if remaining > 0:
            model.learn(remaining, callback=monitor, reset_num_timesteps=progress.timesteps == 0)
        if not progress.done and progress.timesteps >= recipe.timesteps:
            monitor.evaluate()
            progress.done = True
    except ValueError as error:
        if "nan" in str(error).lower():  # torch.distributions refuses a mean that is NaN
            where = f"at step {progress.timesteps}"
            raise QuarlError(f"{recipe.name} diverged {where}: NaN in the policy") from error
        raise
    finally:
        monitor.bar.close()
    monitor.checkpoint()
    return progress


class _Monitor(BaseCallback):
    """Evaluates, keeps the best policy, checkpoints, logs and stops a run."""

    def __init__(
        self, recipe: Recipe, run_dir: Path, progress: Progress, seed: int, deadline: float | None
    ) -> None:
        super().__init__()
        self.recipe, self.run_dir, self.progress, self.seed = recipe, run_dir, progress, seed
        self.deadline = deadline
        self.started = time.perf_counter() - progress.wall_s
        self.next_eval = progress.timesteps + recipe.eval_every
        self.next_checkpoint = time.perf_counter() + CHECKPOINT_EVERY_S
        self.episode_returns: list[float] = []
        self.bar = tqdm(
            total=recipe.timesteps, initial=progress.timesteps, desc=recipe.name, unit="step",
            unit_scale=True, disable=not sys.stderr.isatty(),
        )  # fmt: skip

    def _on_step(self) -> bool:
        self.bar.update(self.num_timesteps - self.progress.timesteps)
        self.progress.timesteps = self.num_timesteps
        self.episode_returns += [i["episode"]["r"] for i in self.locals["infos"] if "episode" in i]
        if self.num_timesteps >= self.next_eval:
            self.next_eval += self.recipe.eval_every
            result = self.evaluate()
            target = self.recipe.target_return
            self.progress.done = target is not None and result.mean >= target
        if time.perf_counter() >= self.next_checkpoint:
            self.checkpoint()
        in_time = self.deadline is None or time.time() < self.deadline
        return in_time and not self.progress.done

    def checkpoint(self) -> None:
        self.progress.wall_s = time.perf_counter() - self.started
        save_checkpoint(self.run_dir / "checkpoint.pt", self.model, self.progress)
        self.next_checkpoint = time.perf_counter() + CHECKPOINT_EVERY_S

    def evaluate(self) -> Evaluation:
        seeds = range(SELECTION_SEED, SELECTION_SEED + self.recipe.eval_episodes)
        net = PolicyNet.from_sb3(self.model, env_id=self.recipe.env_id)
        result = evaluate(net, self.recipe.env_id, seeds)
        self.progress.wall_s = time.perf_counter() - self.started
        if result.mean > self.progress.best_return:
            self.progress.best_return = result.mean
            self.progress.best_timesteps = self.num_timesteps
            save_policy(net, self.run_dir / "best", describe_run(self.recipe, self.seed, result,
                                                                 self.progress))  # fmt: skip
        self._log(result)
        return result

    def _log(self, result: Evaluation) -> None:
        recent = float(np.mean(self.episode_returns[-100:])) if self.episode_returns else np.nan
        row = (self.num_timesteps, round(self.progress.wall_s, 1), recent, result.mean, result.std)
        log = self.run_dir / "progress.csv"
        new = not log.exists()
        with log.open("a", newline="") as file:
            csv.writer(file).writerows([COLUMNS, row] if new else [row])
        tqdm.write(
            f"{self.recipe.name}: step {self.num_timesteps:,} of {self.recipe.timesteps:,}, "
            f"{row[1]:.0f} s, training return {recent:.1f}, evaluation {result.mean:.1f} "
            f"+- {result.std:.1f}, best {self.progress.best_return:.1f}",
            file=sys.stderr,
        )


def describe_run(
    recipe: Recipe, seed: int, result: Evaluation, progress: Progress
) -> dict[str, Any]:
    """Where a trained policy came from, as JSON."""
    return {
        "trained_with": "quarl-nb train",
        "hyperparameters": {name: _plain(v) for name, v in recipe.hyperparameters.items()},
        "hyperparameters_source": recipe.source,
        "n_envs": recipe.n_envs,
        "normalize": recipe.normalize,
        "action_noise": list(recipe.action_noise) if recipe.action_noise else None,
        "seed": seed,
        "timesteps": progress.best_timesteps,
        "timesteps_planned": recipe.timesteps,
        "wall_s": round(progress.wall_s, 1),
        "selection": {"mean": result.mean, "std": result.std, "episodes": len(result.returns),
                      "first_seed": result.seeds[0]},
        **provenance.collect(),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """A hyperparameter as JSON; a schedule by its value at the start of training."""
    if callable(value):
        return f"linear from {value(1.0)}"
    return value


def main_train(
    names: Sequence[str], missing: bool = False, hours: float | None = None, seed: int = 0
) -> list[Path]:
    """Train the named policies (or those not yet in ``data/policies``) one after the other.

    Args:
        hours: stop in time, keeping checkpoints; the next call continues.

    Returns:
        the folders of the policies that were finished.
    """
    torch.set_num_threads(1)
    known, policies = recipes(), project_root() / "data" / "policies"
    wanted = [check_choice("policy", name, known) for name in names]
    if missing:
        wanted += [n for n in known if n not in wanted and not (policies / n).exists()]
    if not wanted:
        raise QuarlError("nothing to train: name policies, or --missing (all exist already)")
    deadline = time.time() + 3600 * hours if hours is not None else None
    finished = []
    for name in wanted:
        if deadline is not None and time.time() >= deadline:
            break
        run_dir = project_root() / "runs" / name
        if train(known[name], run_dir, seed, deadline).done:
            finished.append(publish(run_dir, policies / name))
    return finished


def publish(run_dir: Path, folder: Path) -> Path:
    """Copy a run's best policy to where the studies find it."""
    return save_policy(load_policy(run_dir / "best"), folder, {})
