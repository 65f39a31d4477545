"""Training the policies of `quarl_nb.rl.recipes` with stable-baselines3: resumable, best kept.

A run lives in ``runs/<name>/``: ``checkpoint.pt`` (newest state), ``best/`` (the policy with the
best evaluation), ``progress.csv`` and, if it failed unexpectedly, ``traceback.txt``. A finished
run's best policy goes to ``data/policies/<name>``.
"""

from __future__ import annotations

import csv
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from quarl_nb.errors import QuarlError
from quarl_nb.rl.air.curriculum import CurriculumCallback
from quarl_nb.rl.checkpoint import (
    Mark,
    Progress,
    has_finite_weights,
    load_checkpoint,
    save_checkpoint,
)
from quarl_nb.rl.denormals import denormals_as_zero
from quarl_nb.rl.evaluate import Evaluation, evaluate
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import save_policy
from quarl_nb.rl.recipes import Recipe
from quarl_nb.rl.run_files import describe_run, forget_lost
from quarl_nb.rl.sb3.convert import policy_from_model
from quarl_nb.rl.threads import faster_threads
from quarl_nb.writing import abandon, make_writable

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY_S = 120.0
CHECKPOINT_SHARE = 0.05  # of the time at most; large replay buffers are saved less often
# Evaluation during training, which selects the best policy, never sees the seeds of the studies.
SELECTION_SEED = 10_000
COLUMNS = ("timesteps", "wall_s", "training_return", "eval_return", "eval_std")


def train(
    recipe: Recipe, run_dir: Path, seed: int = 0, deadline: float | None = None,
    show_bar: bool = True, n_threads: int = 1,
) -> Progress:
    """Train until the recipe's steps or target return are reached, or `deadline` (Unix time).

    Continues from ``run_dir/checkpoint.pt`` where there is one. When the process is killed, what
    it did since the last is lost: `CHECKPOINT_EVERY_S` seconds, or more where saving takes long
    (`CHECKPOINT_SHARE`). So is a rollout that a kill or the deadline cuts short: its steps do not
    count, as nothing was learned from them. `show_bar`: on a terminal. `n_threads`: of the games,
    where it is Atari; those of torch are the caller's.

    Raises:
        QuarlError: the folder or the checkpoint cannot be read or written, or is of another seed,
            or the parameters became NaN.
    """
    make_writable(run_dir)
    model = make_model(recipe, seed, n_threads)
    assert model.env is not None
    try:
        progress = _resume(run_dir / "checkpoint.pt", model, seed)
        _go_on(model, recipe, run_dir, progress, seed, deadline, show_bar)
    finally:
        model.env.close()
    return progress


def _resume(checkpoint: Path, model: BaseAlgorithm, seed: int) -> Progress:
    """Put the newest state into `model`, where there is one."""
    if not checkpoint.exists():
        return Progress(seed=seed)
    learning_starts = getattr(model, "learning_starts", 0)
    progress = load_checkpoint(checkpoint, model)
    if progress.seed not in (None, seed):
        raise QuarlError(f"'{checkpoint.parent}' is a run of seed {progress.seed}, not of {seed}; "
                         "to start anew, delete it or name another")
    if (put_off := getattr(model, "learning_starts", 0) - learning_starts) > 0:
        let_policy_act(model, put_off)
    return progress


def let_policy_act(model: Any, put_off: int) -> None:
    """Have a trained policy fill its replay buffer; SB3 acts at random until `learning_starts`.

    Args:
        model: an off-policy algorithm.
        put_off: environment steps of `learning_starts` in which the policy acts.
    """
    sample = model._sample_action

    def sample_action(learning_starts: int, *rest: Any) -> Any:
        return sample(learning_starts - put_off, *rest)

    model._sample_action = sample_action


def _go_on(
    model: BaseAlgorithm, recipe: Recipe, run_dir: Path, progress: Progress, seed: int,
    deadline: float | None, show_bar: bool,
) -> None:  # fmt: skip
    """Train what is left of a run, counting on in `progress`."""
    forget_lost(run_dir, progress)
    target = recipe.target_return
    reached = target is not None and progress.best_return >= target
    lost = progress.best_return == -np.inf  # its best policy: to be evaluated once more
    if progress.done and not lost and (reached or progress.timesteps >= recipe.timesteps):
        return
    progress.done = False  # the recipe has got more steps since
    # A resumed run goes on with other random numbers than the ones it began with.
    model.set_random_seed(seed + progress.timesteps)
    begun_at, remaining = progress.timesteps, recipe.timesteps - progress.timesteps
    monitor = _Monitor(recipe, run_dir, progress, seed, deadline, show_bar)
    monitor.init_callback(model)  # `learn` does so too, but not where no steps remain
    callbacks: list[BaseCallback] = [monitor]
    if recipe.curriculum:
        callbacks.append(CurriculumCallback(recipe.curriculum, progress.stages))
    try:
        if remaining > 0:
            with denormals_as_zero(), faster_threads(model):
                model.learn(
                    remaining, callback=callbacks, reset_num_timesteps=progress.timesteps == 0
                )
        if not progress.done and progress.timesteps >= recipe.timesteps:
            if monitor.evaluated_at != progress.timesteps:
                monitor.evaluate()
            progress.done = True
    except Exception as error:
        if is_divergence(error, model):
            raise diverged(recipe, monitor.num_timesteps) from error
        raise
    finally:
        monitor.bar.close()
    monitor.checkpoint()
    if not progress.done and progress.timesteps == begun_at:
        logger.warning("%s learned nothing: the time was over before its first rollout was whole",
                       recipe.name)  # fmt: skip


class _Monitor(BaseCallback):
    """Evaluates, keeps the best policy, checkpoints, logs and stops a run."""

    def __init__(
        self, recipe: Recipe, run_dir: Path, progress: Progress, seed: int,
        deadline: float | None, show_bar: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.recipe, self.run_dir, self.progress, self.seed = recipe, run_dir, progress, seed
        self.deadline, self.num_timesteps = deadline, progress.timesteps
        self.started = time.perf_counter() - progress.wall_s
        self.next_eval = (progress.timesteps // recipe.eval_every + 1) * recipe.eval_every
        self.next_checkpoint = time.perf_counter() + CHECKPOINT_EVERY_S
        self.evaluated_at: int | None = None  # in this process
        self.episode_returns: list[float] = []
        self.bar = tqdm(
            total=recipe.timesteps, initial=progress.timesteps, desc=recipe.name, unit="step",
            unit_scale=True, disable=not (show_bar and sys.stderr.isatty()),
        )  # fmt: skip

    def _init_callback(self) -> None:
        self.mark, self.collecting = Mark.of(self.model), False

    def _on_rollout_start(self) -> None:
        self._count_steps()
        self.collecting = True

    def _on_rollout_end(self) -> None:
        self.collecting = False

    def _on_training_end(self) -> None:
        if not self.collecting:  # else the last rollout was cut short
            self._count_steps()

    def _count_steps(self) -> None:
        """Count all steps so far: they have been learned from, or the run is over."""
        self.progress.timesteps, self.mark = self.num_timesteps, Mark.of(self.model)

    def _on_step(self) -> bool:
        self.bar.update(self.num_timesteps - self.bar.n)
        self.episode_returns += [i["episode"]["r"] for i in self.locals["infos"] if "episode" in i]
        if self.num_timesteps >= self.next_eval:
            self.next_eval += self.recipe.eval_every
            result = self.evaluate()
            target = self.recipe.target_return
            if target is not None and result.mean >= target:
                self.progress.done = True
                self._count_steps()
            self.checkpoint()  # it says which policy is the best so far
        if time.perf_counter() >= self.next_checkpoint:
            self.checkpoint()
        in_time = self.deadline is None or time.time() < self.deadline
        return in_time and not self.progress.done

    def checkpoint(self) -> None:
        self._check_finite()
        begun = time.perf_counter()
        self.progress.wall_s = begun - self.started
        self.progress.updates = self.model._n_updates
        save_checkpoint(self.run_dir / "checkpoint.pt", self.model, self.progress, self.mark)
        ended = time.perf_counter()
        self.next_checkpoint = ended + max(CHECKPOINT_EVERY_S, (ended - begun) / CHECKPOINT_SHARE)

    def _check_finite(self) -> None:
        if not has_finite_weights(self.model):
            raise diverged(self.recipe, self.num_timesteps)

    def evaluate(self) -> Evaluation:
        self._check_finite()
        seeds = range(SELECTION_SEED, SELECTION_SEED + self.recipe.eval_episodes)
        net = policy_from_model(self.model, env_id=self.recipe.env_id).with_head(self.recipe.head)
        env_id = self.recipe.judged_in or self.recipe.env_id
        result = evaluate(net, env_id, seeds)
        self.progress.wall_s = time.perf_counter() - self.started
        self.evaluated_at = self.num_timesteps
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
        new = not log.exists() or not log.stat().st_size  # a kill may have left an empty one
        try:
            with log.open("a", newline="") as file:
                csv.writer(file).writerows([COLUMNS, row] if new else [row])
        except OSError as error:
            raise QuarlError(f"cannot write '{log}': {error.strerror}") from error
        try:
            tqdm.write(
                f"{self.recipe.name}: step {self.num_timesteps:,} of {self.recipe.timesteps:,}, "
                f"{row[1]:.0f} s, training return {recent:.1f}, evaluation {result.mean:.1f} "
                f"+- {result.std:.1f}, best {self.progress.best_return:.1f}",
                file=sys.stderr,
            )
        except OSError:  # who read it is gone (`2>&1 | head`): no reason to end
            abandon(sys.stderr)


def is_divergence(error: Exception, model: BaseAlgorithm) -> bool:
    """Whether `error`, which ended training, comes of parameters that are not finite or huge.

    An environment may raise anything at an action that is NaN, Box2D an AssertionError.
    """
    # Of parameters that are finite but huge: torch.distributions refuses a mean or a scale.
    refused = isinstance(error, ValueError) and str(error).startswith("Expected parameter")
    return refused or not has_finite_weights(model)


def diverged(recipe: Recipe, timesteps: int) -> QuarlError:
    """What to raise when a parameter is not a number; the run keeps its last checkpoint."""
    return QuarlError(f"{recipe.name} diverged at step {timesteps}: NaN or infinity in the policy")
