"""Half-precision training: the time of DQN's updates on Pong, by size of the policy.

Autocast computes the features extractor in half precision; parameters, gradients and the
optimizer's state stay fp32. Frames and convolutions are channels_last in every precision. In fp32 a
GPU computes in fp32: by default cuDNN takes TF32, of ten bits, for the convolutions of today's. Its
updates are CUDA graphs: launched one by one, the kernels of small policies take the processor as
long in any precision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.logger import Logger

from quarl_nb.energy import EnergyMeter
from quarl_nb.errors import (
    QuarlError,
    UnavailableError,
    check_choice,
    check_counts,
    check_episode_seeds,
    check_seeds,
)
from quarl_nb.processes import keep_freed_memory
from quarl_nb.rl.cuda_graph import EAGER_UPDATES, graphed_updates
from quarl_nb.rl.denormals import denormals_as_zero
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.fast_cnn import NATURE_FILTERS, PRECISIONS, LossScaler
from quarl_nb.rl.model import gpu_of, make_model
from quarl_nb.rl.recipes import Recipe, get_recipe
from quarl_nb.rl.sb3 import policy_from_model
from quarl_nb.studies.ptq import ATARI_EPISODES, FIRST_SEED, episode_seeds
from quarl_nb.studies.watched import Schedule, train_watched
from quarl_nb.study import Measurement

# Filters of the three convolutions, and units of the layer after them. The paper's zoo is "3 Layer
# Conv (128) + 128 FC": 128 filters each is policy A, 128 units alone are those of data/policies.
POLICIES = {
    "zoo": (NATURE_FILTERS, 128), "A": ((128, 128, 128), 128), "B": ((512, 512, 512), 512),
    "C": ((1024, 1024, 1024), 2048),
}  # fmt: skip
RECIPE = "dqn-PongNoFrameskip-v4"
DEVICES = ("cpu", "cuda")
BUFFER_SIZE = 10_000  # Table 5
T = TypeVar("T")


@dataclass(frozen=True)
class MixedPrecisionStudy:
    """Policies x precisions x devices.

    Parameters: `policies` (zoo, A, B, C), `precisions` (fp32, bf16, fp16; fp16 on cuda only),
    `devices` (cuda where there is one), `repeats` (timed updates), `stored` (transitions in the
    buffer while they are timed), `run_steps` (of the short run), `converge` (policies that are also
    trained), `timesteps`, `evaluations`, `eval_episodes`, `episodes`, `first_seed` (of that),
    `seeds` (of training; a policy that is only timed has the first).
    """

    name: str
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    schema_version: int = 1
    timed: bool = True

    def cells(self, parameters: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The matrix: (cell, budget) of every policy, device, and precision that it has.

        Raises:
            QuarlError: an unknown policy, precision or device, one to `converge` that is not in
                `policies`, or a number out of its range; no device that is here.
        """
        for name in (*parameters["policies"], *parameters["converge"]):
            check_choice("policy", name, POLICIES)
        if left_out := [p for p in parameters["converge"] if p not in parameters["policies"]]:
            raise QuarlError(f"converge names {', '.join(left_out)}, which policies does not: "
                             "only what is timed is also trained")  # fmt: skip
        for precision in parameters["precisions"]:
            check_choice("precision of training", precision, PRECISIONS)
        for device in parameters["devices"]:
            check_choice("device", device, DEVICES)
        devices = [device for device in parameters["devices"]
                   if device == "cpu" or torch.cuda.is_available()]
        if not devices:
            raise UnavailableError("device 'cuda' was asked for, but torch finds no CUDA GPU")
        recipe = get_recipe(RECIPE)
        timing = {name: parameters[name] for name in ("repeats", "stored", "run_steps")}
        training = {name: parameters[name] for name in
                    ("timesteps", "evaluations", "eval_episodes", "episodes")}
        check_counts(1, **timing, **training)
        training["first_seed"] = parameters["first_seed"]
        check_seeds(*parameters["seeds"])
        check_episode_seeds(training["first_seed"], training["episodes"])
        found = []
        for policy in parameters["policies"]:
            trained = policy in parameters["converge"]
            budget = timing | (training if trained else {})
            seeds = parameters["seeds"] if trained else parameters["seeds"][:1]
            for device, precision, seed in product(
                devices, parameters["precisions"], seeds
            ):
                if (device, precision) == ("cpu", "fp16"):
                    continue  # no CPU of ours computes in it
                cell = {"policy": policy, "algo": recipe.algo, "env_id": recipe.env_id,
                        "precision": precision, "device": device, "seed": seed}  # fmt: skip
                found.append((cell, budget))
        return found

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Time updates, environment steps and a short run; train, if the budget says so."""
        torch.set_num_threads(1)
        keep_freed_memory()
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        recipe = sized_recipe(cell["policy"], cell["precision"])
        with denormals_as_zero():  # as trainings do
            measured = with_dqn(timings, recipe, cell, budget)
        measured["filters"], measured["units"] = POLICIES[cell["policy"]]
        arrays: dict[str, np.ndarray] = {}
        if "timesteps" in budget:
            returns, arrays = with_dqn(converge, recipe, cell, budget)
            measured |= returns
        extra = {"hyperparameters_source": recipe.source, "device_name": gpu_of(cell["device"])}
        return Measurement(measured, backend="torch", arrays=arrays, extra=extra)


def sized_recipe(policy: str, precision: str) -> Recipe:
    """DQN on Pong with the network of `policy`, its features computed in `precision`."""
    recipe = get_recipe(RECIPE)
    filters, units = POLICIES[policy]
    recipe = recipe.with_features(features_dim=units, filters=filters, precision=precision)
    changed = {"buffer_size": BUFFER_SIZE}
    return replace(recipe, hyperparameters=recipe.hyperparameters | changed)


def with_dqn(
    work: Callable[[DQN, Recipe, Mapping[str, Any]], T],
    recipe: Recipe, cell: Mapping[str, Any], budget: Mapping[str, Any],
) -> T:  # fmt: skip
    """What `work` gives, done with an algorithm that is gone afterwards, buffer and all."""
    model = make_dqn(recipe, cell)
    with graphed_updates(model):
        return work(model, recipe, budget)


def make_dqn(recipe: Recipe, cell: Mapping[str, Any]) -> DQN:
    """The algorithm on its device, with a loss scaler in fp16."""
    model = make_model(recipe, cell["seed"], device=cell["device"])
    assert isinstance(model, DQN)
    if cell["precision"] == "fp16":
        LossScaler([model.q_net.features_extractor], model.policy.optimizer)
    return model


def timings(model: DQN, recipe: Recipe, budget: Mapping[str, Any]) -> dict[str, Any]:
    """What a step of training is made of, and what it takes altogether.

    Returns:
        update_s, update_cpu_s: every timed `DQN.train` of one batch, wall and CPU seconds; act_s,
        act_cpu_s, env_step_s, env_step_cpu_s: medians of one decision and of one environment step
        (four frames); train_freq: steps an update; steps_per_s and run_energy (as a record's
        `energy`) of `run_steps` steps of `learn`, updates included; parameters: how many the policy
        has; batch_size.
    """
    model.set_logger(Logger(folder=None, output_formats=[]))
    env_steps = fill_buffer(model, budget["stored"])
    batch_size = recipe.hyperparameters["batch_size"]
    # The first allocates; a GPU's first ones are no graph, and the next one makes it.
    warm_up = 1 if model.device.type == "cpu" else EAGER_UPDATES + 1
    updates = [timed(model, lambda: model.train(1, batch_size))
               for _ in range(warm_up + budget["repeats"])][warm_up:]
    obs = np.zeros((1, *model.observation_space.shape), np.uint8)  # type: ignore[misc]  # a Box
    acts = [timed(model, lambda: model.policy.predict(obs, deterministic=True))
            for _ in range(1 + budget["repeats"])][1:]
    model.learning_starts = 0
    # The exploration of a long run's end: nearly every action is the network's.
    model.exploration_schedule = lambda _: recipe.hyperparameters["exploration_final_eps"]
    steps = budget["run_steps"]
    with EnergyMeter(gpus=model.device.type != "cpu") as meter:
        run_s, _ = timed(model, lambda: model.learn(steps))
    assert model.env is not None
    model.env.close()
    return {
        "update_s": [wall_s for wall_s, _ in updates],
        "update_cpu_s": [cpu_s for _, cpu_s in updates],
        **dict(zip(("act_s", "act_cpu_s"), np.median(acts, axis=0), strict=True)),
        **dict(zip(("env_step_s", "env_step_cpu_s"), np.median(env_steps, axis=0), strict=True)),
        "train_freq": recipe.hyperparameters["train_freq"], "batch_size": batch_size,
        "steps_per_s": model.num_timesteps / run_s, "run_energy": meter.as_record(),
        "parameters": sum(p.numel() for p in model.q_net.parameters()),
    }  # fmt: skip


def fill_buffer(model: DQN, n: int) -> list[tuple[float, float]]:
    """Store `n` transitions of random actions; wall and CPU seconds of each environment step."""
    env, buffer = model.env, model.replay_buffer
    assert env is not None and buffer is not None
    model.action_space.seed(0)
    times, obs = [], env.reset()
    for _ in range(n):
        action = np.array([model.action_space.sample()])
        started = time.perf_counter(), time.process_time()
        new_obs, reward, done, infos = env.step(action)
        times.append((time.perf_counter() - started[0], time.process_time() - started[1]))
        buffer.add(obs, new_obs, action, reward, done, infos)  # type: ignore[arg-type]  # arrays
        obs = new_obs
    return times


def timed(model: DQN, work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds of `work`, all that it has started on a GPU included.

    On one thread the two agree, unless something else runs on the machine.
    """
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    started = time.perf_counter(), time.process_time()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - started[0], time.process_time() - started[1]


def converge(
    model: DQN, recipe: Recipe, budget: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Train: returns of the best policy (run in fp32) and the curves of training."""
    env_id = recipe.env_id
    schedule = Schedule(budget["timesteps"], 0, budget["evaluations"], budget["eval_episodes"])
    assert model.env is not None
    try:
        trained = train_watched(
            model, env_id, schedule, lambda m: policy_from_model(m, env_id=env_id), []
        )
    finally:
        model.env.close()
    result = evaluate(trained.net, env_id, episode_seeds(budget))
    measured = {
        **result.as_measured(),
        "timesteps": model.num_timesteps, "best_timesteps": trained.best_timesteps,
        "training_s": trained.training_s,
    }  # fmt: skip
    return measured, trained.curves


SMOKE = {"policies": ["A"], "precisions": ["fp32", "bf16"], "devices": ["cpu"], "repeats": 2,
         "stored": 64, "run_steps": 8, "converge": [], "timesteps": 1, "evaluations": 1,
         "eval_episodes": 1, "episodes": 1, "first_seed": FIRST_SEED, "seeds": [0]}  # fmt: skip
QUICK = SMOKE | {"repeats": 5, "stored": 500}
FULL = QUICK | {
    "policies": ["zoo", "A", "B", "C"],
    "precisions": ["fp32", "bf16", "fp16"], "devices": ["cpu", "cuda"], "repeats": 30,
    "stored": 2_000, "run_steps": 200, "converge": ["zoo"], "timesteps": 1_000_000,
    "evaluations": 10, "eval_episodes": 5, "episodes": ATARI_EPISODES, "seeds": [0, 1, 2],
}  # fmt: skip

MIXED_PRECISION = MixedPrecisionStudy(
    "mixed_precision", {"smoke": SMOKE, "quick": QUICK, "full": FULL}
)
