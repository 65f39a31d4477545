"""Training the policies of `quarl_nb.rl.recipes` with stable-baselines3: resumable, best kept.

A run lives in ``runs/<name>/``: ``checkpoint.pt`` (newest state), ``best.pt`` (policy with the
best evaluation), ``progress.csv``. Both ``.pt`` files hold tensors and numbers alone and are
read with ``weights_only=True``.
"""

from __future__ import annotations

import csv
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from quarl_nb.errors import QuarlError
from quarl_nb.rl.envs import make_env
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.fast_cnn import FAST_CNN_POLICIES, FastNatureCNN
from quarl_nb.rl.recipes import Recipe, uses_frames
from quarl_nb.rl.sb3_vec import AtariVecEnv

ALGORITHMS = {"a2c": A2C, "ddpg": DDPG, "dqn": DQN, "ppo": PPO}
CHECKPOINT_EVERY_S = 120
# Larger replay buffers (Atari's) are not saved: a resumed run fills them again first.
MAX_SAVED_BUFFER_BYTES = 500_000_000
# Evaluation during training, which selects the best policy, never sees the seeds of the studies.
SELECTION_SEED = 10_000


@dataclass
class Progress:
    """What a run has reached so far, kept in its checkpoint."""

    timesteps: int = 0
    wall_s: float = 0.0
    best_return: float = -float("inf")
    best_timesteps: int = 0
    done: bool = False


def make_model(recipe: Recipe, seed: int, n_threads: int = 1) -> BaseAlgorithm:
    """The SB3 algorithm of a recipe, its environment (normalized where asked) attached."""
    env: VecEnv
    if uses_frames(recipe):
        env = AtariVecEnv(recipe.env_id, recipe.n_envs, seed=seed, n_threads=n_threads)
    else:
        env = make_vec_env(lambda: make_env(recipe.env_id), n_envs=recipe.n_envs, seed=seed)
    arguments = dict(recipe.hyperparameters)
    if recipe.normalize:
        env = VecNormalize(env, gamma=arguments.get("gamma", 0.99))
    policy_kwargs = dict(arguments.pop("policy_kwargs", {}))
    if policy_kwargs.get("activation_fn") == "relu":
        policy_kwargs["activation_fn"] = torch.nn.ReLU
    if policy_kwargs.get("optimizer_class") == "rmsprop_tf_like":
        policy_kwargs["optimizer_class"] = RMSpropTFLike
    policy: Any = "MlpPolicy"
    if uses_frames(recipe):
        policy = FAST_CNN_POLICIES[recipe.algo]
        policy_kwargs["features_extractor_class"] = FastNatureCNN
    if recipe.action_noise:
        arguments["action_noise"] = _action_noise(*recipe.action_noise, env.action_space.shape)
    model = ALGORITHMS[recipe.algo](
        policy, env, seed=seed, policy_kwargs=policy_kwargs, device="cpu", **arguments
    )
    if uses_frames(recipe):
        # After construction: orthogonal initialization fails on channels_last weights.
        model.policy.to(memory_format=torch.channels_last)
    return model


def _action_noise(kind: str, std: float, shape: tuple[int, ...]) -> Any:
    noise = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}[kind]
    return noise(mean=np.zeros(shape), sigma=std * np.ones(shape))


class SB3Actor:
    """A live SB3 model, deterministic, as `quarl_nb.rl.evaluate.evaluate` asks for it."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model = model
        self.normalizer = model.get_vec_normalize_env()

    def initial_state(self, n: int) -> None:
        return None

    def act(self, obs: np.ndarray, state: Any = None, generator: Any = None) -> tuple:
        if self.normalizer is not None:
            obs = self.normalizer.normalize_obs(obs)
        return self.model.predict(obs, deterministic=True)[0], None


def save_checkpoint(path: Path, model: BaseAlgorithm, progress: Progress, full: bool) -> None:
    """Write tensors and numbers by atomic rename; `full` adds optimizers and replay buffer."""
    normalizer = model.get_vec_normalize_env()
    state: dict[str, Any] = {"format": 1, "progress": vars(progress)}
    parameters = model.get_parameters()
    state["parameters"] = parameters if full else {"policy": parameters["policy"]}
    if normalizer is not None:
        rms = {"obs": normalizer.obs_rms, "ret": normalizer.ret_rms}
        state["normalizer"] = {
            name: {"mean": torch.as_tensor(r.mean), "var": torch.as_tensor(r.var), "n": float(r.count)}
            for name, r in rms.items()
        }
    if full and isinstance(model, OffPolicyAlgorithm):
        state["replay"] = _replay_tensors(model)
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load_checkpoint(path: Path, model: BaseAlgorithm) -> Progress:
    """Put a checkpoint's tensors into `model`; the reverse of `save_checkpoint`."""
    try:
        state = torch.load(path, weights_only=True)
        format_ = state["format"]
    except Exception as error:
        raise QuarlError(f"checkpoint '{path}' cannot be read ({error}); delete it to start anew") from error
    if format_ != 1:
        raise QuarlError(f"checkpoint '{path}' has format {format_}; this version reads format 1")
    exact = "policy.optimizer" in state["parameters"] or len(state["parameters"]) > 1
    model.set_parameters(state["parameters"], exact_match=exact, device="cpu")
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        for name, rms in (("obs", normalizer.obs_rms), ("ret", normalizer.ret_rms)):
            saved = state["normalizer"][name]
            rms.mean, rms.var = saved["mean"].numpy(), saved["var"].numpy()
            rms.count = saved["n"]
    if state.get("replay"):
        _restore_replay(model, state["replay"])
    progress = Progress(**state["progress"])
    model.num_timesteps = progress.timesteps
    return progress


def _replay_tensors(model: OffPolicyAlgorithm) -> dict[str, Any]:
    buffer = model.replay_buffer
    assert buffer is not None
    used = buffer.buffer_size if buffer.full else buffer.pos
    arrays = {
        name: getattr(buffer, name)[:used]
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    }
    if sum(array.nbytes for array in arrays.values()) > MAX_SAVED_BUFFER_BYTES:
        return {}
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
    return tensors | {"pos": buffer.pos, "full": buffer.full}


def _restore_replay(model: BaseAlgorithm, saved: dict[str, Any]) -> None:
    buffer = model.replay_buffer  # type: ignore[attr-defined]  # off-policy by construction
    for name, value in saved.items():
        if name in ("pos", "full"):
            setattr(buffer, name, value)
        else:
            getattr(buffer, name)[: len(value)] = value.numpy()


class _Monitor(BaseCallback):
    """Evaluates, keeps the best policy, checkpoints, logs and stops a run."""

    def __init__(self, recipe: Recipe, run_dir: Path, progress: Progress, deadline: float | None) -> None:
        super().__init__()
        self.recipe, self.run_dir, self.progress = recipe, run_dir, progress
        self.deadline = deadline
        self.started = time.perf_counter() - progress.wall_s
        self.next_eval = progress.timesteps + recipe.eval_every
        self.next_checkpoint = time.perf_counter() + CHECKPOINT_EVERY_S
        self.rollout_returns: list[float] = []

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.rollout_returns.append(float(info["episode"]["r"]))
        self.progress.timesteps = self.num_timesteps
        if self.num_timesteps >= self.next_eval:
            self.next_eval += self.recipe.eval_every
            self.evaluate()
            if self.progress.done:
                return False
        if time.perf_counter() >= self.next_checkpoint:
            self.checkpoint()
        return self.deadline is None or time.time() < self.deadline

    def checkpoint(self) -> None:
        self.progress.wall_s = time.perf_counter() - self.started
        save_checkpoint(self.run_dir / "checkpoint.pt", self.model, self.progress, full=True)
        self.next_checkpoint = time.perf_counter() + CHECKPOINT_EVERY_S

    def evaluate(self) -> None:
        seeds = range(SELECTION_SEED, SELECTION_SEED + self.recipe.eval_episodes)
        result = evaluate(SB3Actor(self.model), self.recipe.env_id, seeds)
        self.progress.wall_s = time.perf_counter() - self.started
        if result.mean > self.progress.best_return:
            self.progress.best_return = result.mean
            self.progress.best_timesteps = self.num_timesteps
            save_checkpoint(self.run_dir / "best.pt", self.model, self.progress, full=False)
        target = self.recipe.target_return
        self.progress.done = target is not None and result.mean >= target
        recent = float(np.mean(self.rollout_returns[-100:])) if self.rollout_returns else float("nan")
        row = [self.num_timesteps, round(self.progress.wall_s, 1), recent, result.mean, result.std]
        print(f"{self.recipe.name}: step {row[0]:,} of {self.recipe.timesteps:,}, {row[1]:.0f} s, "
              f"training return {recent:.1f}, evaluation {result.mean:.1f} +- {result.std:.1f}, "
              f"best {self.progress.best_return:.1f}", flush=True)  # fmt: skip
        log = self.run_dir / "progress.csv"
        new = not log.exists()
        with log.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(["timesteps", "wall_s", "training_return", "eval_return", "eval_std"])
            writer.writerow(row)


def train(recipe: Recipe, run_dir: Path, seed: int = 0, deadline: float | None = None) -> Progress:
    """Train until the recipe's steps or target return are reached, or `deadline` (Unix time).

    Continues from ``run_dir/checkpoint.pt`` where there is one. At most `CHECKPOINT_EVERY_S`
    seconds of work are lost when the process is killed.

    Raises:
        QuarlError: the checkpoint cannot be read, or the parameters became NaN.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = run_dir / "checkpoint.pt"
    model = make_model(recipe, seed)
    progress = load_checkpoint(checkpoint, model) if checkpoint.exists() else Progress()
    if progress.done:
        return progress
    # A resumed run goes on with other random numbers than the ones it began with.
    model.set_random_seed(seed + progress.timesteps)
    monitor = _Monitor(recipe, run_dir, progress, deadline)
    remaining = recipe.timesteps - progress.timesteps
    try:
        if remaining > 0:
            model.learn(remaining, callback=monitor, reset_num_timesteps=progress.timesteps == 0)
        if not progress.done and progress.timesteps >= recipe.timesteps:
            monitor.evaluate()
            progress.done = True
    except ValueError as error:
        if "nan" in str(error).lower():
            raise QuarlError(f"{recipe.name} diverged at step {progress.timesteps}: NaN") from error
        raise
    monitor.checkpoint()
    return progress
