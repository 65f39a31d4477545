"""What a training step takes: an update, a decision and an environment step, each timed apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from quarl_nb.energy import EnergyMeter
from quarl_nb.rl.cuda_graph import EAGER_UPDATES
from quarl_nb.rl.recipes import Recipe

Times = list[tuple[float, float]]  # wall and CPU seconds


def step_times(
    model: BaseAlgorithm, recipe: Recipe, budget: Mapping[str, Any]
) -> dict[str, Any]:
    """What a step of training is made of, and what it takes altogether.

    Returns:
        update_s, update_cpu_s: every timed `train`, wall and CPU seconds; act_s, act_cpu_s,
        env_step_s, env_step_cpu_s: medians (PPO: over rollouts, of a rollout's mean) of one
        decision and of one environment step (four frames); train_freq: steps an update;
        steps_per_s and run_energy (as a record's `energy`) of a run of `learn`, updates included;
        parameters: how many the policy has; batch_size.
    """
    model.set_logger(Logger(folder=None, output_formats=[]))
    measured = (_dqn_times if isinstance(model, DQN) else _ppo_times)(model, recipe, budget)
    assert model.env is not None
    model.env.close()
    return measured | {"batch_size": recipe.hyperparameters["batch_size"]}


def _dqn_times(model: Any, recipe: Recipe, budget: Mapping[str, Any]) -> dict[str, Any]:
    """Of one batch an update, from a buffer of `stored` transitions; a run of `run_steps`."""
    env_steps = fill_buffer(model, budget["stored"])
    batch_size = recipe.hyperparameters["batch_size"]
    # The first allocates; a GPU's first ones are no graph, and the next one makes it.
    warm_up = 1 if model.device.type == "cpu" else EAGER_UPDATES + 1
    updates = [timed(model, lambda: model.train(1, batch_size))
               for _ in range(warm_up + budget["repeats"])][warm_up:]
    obs = np.zeros((1, *model.observation_space.shape), np.uint8)
    acts = [timed(model, lambda: model.policy.predict(obs, deterministic=True))
            for _ in range(1 + budget["repeats"])][1:]
    model.learning_starts = 0
    # The exploration of a long run's end: nearly every action is the network's.
    model.exploration_schedule = lambda _: recipe.hyperparameters["exploration_final_eps"]
    return {
        **_named("update", updates), **_medians("act", acts), **_medians("env_step", env_steps),
        **_run(model, budget["run_steps"]), "train_freq": recipe.hyperparameters["train_freq"],
        "parameters": sum(p.numel() for p in model.q_net.parameters()),
    }  # fmt: skip


def _ppo_times(model: Any, recipe: Recipe, budget: Mapping[str, Any]) -> dict[str, Any]:
    """Of all epochs over a rollout an update, in a run of `repeats` of them and a first one.

    What a rollout takes besides its own environment steps counts as decisions, a share a step.
    """
    train_freq = model.n_steps * model.n_envs
    model.env = _TimedSteps(model.env)
    watch = _Iterations()
    run = _run(model, (1 + budget["repeats"]) * train_freq, watch)
    rollouts = np.asarray(watch.rollouts)
    env_steps = np.reshape(model.env.times, (-1, model.n_steps, 2)).sum(axis=1)  # of a rollout
    warm = slice(1, None)  # the first rollout and update allocate
    return {
        **_named("update", watch.updates[warm]),
        **_medians("act", (rollouts - env_steps)[warm] / train_freq),
        **_medians("env_step", env_steps[warm] / train_freq), **run, "train_freq": train_freq,
        "parameters": sum(p.numel() for p in model.policy.parameters()),
    }  # fmt: skip


class _TimedSteps(VecEnvWrapper):
    """Wall and CPU seconds of every step of all environments."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.times: Times = []

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: np.ndarray) -> None:
        self._begun = _clock()
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        answer = self.venv.step_wait()
        self.times.append(_since(self._begun))
        return answer


class _Iterations(BaseCallback):
    """Wall and CPU seconds of every rollout and of the update after it."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: Times = []
        self.updates: Times = []

    def _on_training_start(self) -> None:
        self.begun = _clock()

    def _on_rollout_start(self) -> None:
        if self.rollouts:
            self.updates.append(self._lap())

    def _on_rollout_end(self) -> None:
        self.rollouts.append(self._lap())

    def _on_training_end(self) -> None:
        self.updates.append(self._lap())

    def _on_step(self) -> bool:
        return True

    def _lap(self) -> tuple[float, float]:
        begun, self.begun = self.begun, _clock()
        return self.begun[0] - begun[0], self.begun[1] - begun[1]


def _run(
    model: BaseAlgorithm, steps: int, callback: BaseCallback | None = None
) -> dict[str, Any]:
    """steps_per_s and run_energy of `learn`."""
    with EnergyMeter(gpus=model.device.type != "cpu") as meter:
        run_s, _ = timed(model, lambda: model.learn(steps, callback=callback))
    return {"steps_per_s": model.num_timesteps / run_s, "run_energy": meter.as_record()}


def _named(part: str, times: Times) -> dict[str, list[float]]:
    return {f"{part}_s": [wall_s for wall_s, _ in times],
            f"{part}_cpu_s": [cpu_s for _, cpu_s in times]}  # fmt: skip


def _medians(part: str, times: Any) -> dict[str, float]:
    return dict(zip((f"{part}_s", f"{part}_cpu_s"), np.median(times, axis=0), strict=True))


def fill_buffer(model: DQN, n: int) -> Times:
    """Store `n` transitions of random actions; what each environment step takes."""
    env = model.env
    buffer: Any = model.replay_buffer  # its hints take arrays alone
    assert env is not None
    model.action_space.seed(0)
    times: Times = []
    obs = env.reset()
    for _ in range(n):
        action = np.array([model.action_space.sample() for _ in range(env.num_envs)])
        started = _clock()
        new_obs, reward, done, infos = env.step(action)
        times.append(_since(started))
        buffer.add(obs, new_obs, action, reward, done, infos)
        obs = new_obs
    return times


def timed(model: BaseAlgorithm, work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds of `work`, all that it has started on a GPU included.

    On one thread the two agree, unless something else runs on the machine.
    """
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    started = _clock()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    return _since(started)


def _clock() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(started: tuple[float, float]) -> tuple[float, float]:
    now = _clock()
    return now[0] - started[0], now[1] - started[1]
