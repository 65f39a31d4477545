"""What lies beside a run's checkpoint: the best policy, what it says of its origin, and a log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from quarl_nb import provenance
from quarl_nb.errors import QuarlError
from quarl_nb.rl.checkpoint import Progress
from quarl_nb.rl.evaluate import Evaluation
from quarl_nb.rl.policies import load_policy
from quarl_nb.rl.recipes import Recipe
from quarl_nb.writing import write_atomically


def forget_lost(run_dir: Path, progress: Progress) -> None:
    """Make what lies beside a checkpoint agree with it: a kill may have come before it was written.

    The best policy may be better than any that the checkpoint knows of, and stays; where a kill
    has left half of one, the next evaluation writes it anew.
    """
    _cut_log(run_dir / "progress.csv", progress.timesteps)
    try:
        best = load_policy(run_dir / "best").spec.provenance
    except QuarlError:
        progress.best_return = -float("inf")
        return
    # Before its first evaluation a run may find the best of another.
    if progress.best_timesteps and best["selection"]["mean"] > progress.best_return:
        progress.best_return = best["selection"]["mean"]
        progress.best_timesteps = best["timesteps"]


def _cut_log(log: Path, timesteps: int) -> None:
    """Drop the rows of steps that will be made anew, and what is no row."""
    lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
    steps = [line.split(b",")[0] for line in lines]
    kept = [line for line, step in zip(lines[1:], steps[1:], strict=True)
            if step.isdigit() and int(step) <= timesteps]  # fmt: skip
    if len(kept) < len(lines) - 1:
        write_atomically(log, b"".join([lines[0], *kept]))


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
        **_curriculum(recipe, progress),
        "seed": seed,
        "timesteps": progress.best_timesteps,
        "timesteps_planned": recipe.timesteps,
        "wall_s": round(progress.wall_s, 1),
        "selection": {"mean": result.mean, "std": result.std, "episodes": len(result.returns),
                      "first_seed": result.seeds[0], "env_id": recipe.judged_in or recipe.env_id},
        **provenance.collect(),
    }  # fmt: skip


def _curriculum(recipe: Recipe, progress: Progress) -> dict[str, Any]:
    """The curriculum as planned and as it went; nothing of a recipe without one."""
    if recipe.curriculum is None:
        return {}
    stages = [list(stage) for stage in progress.stages]
    return {"reward_scale": recipe.reward_scale,
            "curriculum": {**asdict(recipe.curriculum), "stages": stages}}  # fmt: skip


def _plain(value: Any) -> Any:
    """A hyperparameter as JSON; a schedule by its value at the start of training."""
    if callable(value):
        return f"linear from {value(1.0)}"
    return value
