"""Half-precision training on Pong: how long updates take, by size of the policy; what is learned.

Autocast computes the features extractor in half precision; parameters, gradients and the
optimizer's state stay fp32. Frames and convolutions are channels_last in every precision. In fp32 a
GPU computes in fp32: by default cuDNN takes TF32, of ten bits, for the convolutions of today's. Its
updates are CUDA graphs: launched one by one, the kernels of small policies take the processor as
long in any precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.errors import (
    QuarlError,
    UnavailableError,
    check_choice,
    check_counts,
    check_episode_seeds,
    check_seeds,
)
from quarl_nb.processes import keep_freed_memory
from quarl_nb.rl.cuda_graph import graphed_updates
from quarl_nb.rl.denormals import denormals_as_zero
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.fast_cnn import NATURE_FILTERS, PRECISIONS, LossScaler
from quarl_nb.rl.model import gpu_of, make_model
from quarl_nb.rl.recipes import Recipe, get_recipe
from quarl_nb.rl.sb3.convert import policy_from_model
from quarl_nb.studies.ptq import ATARI_EPISODES, FIRST_SEED, episode_seeds
from quarl_nb.studies.update_times import step_times
from quarl_nb.studies.watched import Schedule, train_watched
from quarl_nb.study import Measurement


@dataclass(frozen=True)
class Sized:
    """A policy: filters of its three convolutions, units of the layer after them, and what trains
    it."""

    filters: tuple[int, int, int]
    units: int
    algo: str = "dqn"


# The paper's zoo is "3 Layer Conv (128) + 128 FC": 128 filters each is policy A, 128 units alone
# are those of data/policies. As the preprint's they are DQN's; one is PPO's, since trainings can be
# compared once they have learned. In Table 5's million steps DQN has hardly begun (-16.8 and -1.0
# in two trainings); PPO's of data/policies was at 20 after 1.4 of 3 million. In half as many, over
# which its rates fall, it does not get far (-15.2 and -20.5), in as many to 6.1 and 11.1 (seed 0).
POLICIES = {
    "zoo": Sized(NATURE_FILTERS, 128), "A": Sized((128, 128, 128), 128),
    "B": Sized((512, 512, 512), 512), "C": Sized((1024, 1024, 1024), 2048),
    "zoo-ppo": Sized(NATURE_FILTERS, 128, "ppo"),
}  # fmt: skip
ENV_ID = "PongNoFrameskip-v4"
DEVICES = ("cpu", "cuda")
BUFFER_SIZE = 10_000  # Table 5
T = TypeVar("T")


@dataclass(frozen=True)
class MixedPrecisionStudy:
    """Policies x precisions x devices.

    Parameters: `policies` (zoo, A, B, C, zoo-ppo), `precisions` (fp32, bf16, fp16; fp16 on cuda
    only), `devices` (cuda where there is one, not for PPO), `repeats` (timed updates), `stored`
    (DQN's environment steps timed before them, in its buffer), `run_steps` (of its short run),
    `converge` (policies that are also trained), `timesteps`, `evaluations`, `eval_episodes`,
    `episodes`, `first_seed` (of that), `seeds` (of training; a policy that is only timed has the
    first).
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
                algo = POLICIES[policy].algo
                # No CPU of ours computes in fp16; no graph is made of PPO's updates.
                if (device, precision) == ("cpu", "fp16") or (device, algo) == ("cuda", "ppo"):
                    continue
                cell = {"policy": policy, "algo": algo, "env_id": ENV_ID,
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
            measured = with_model(step_times, recipe, cell, budget)
        size = POLICIES[cell["policy"]]
        measured |= {"filters": size.filters, "units": size.units}
        arrays: dict[str, np.ndarray] = {}
        if "timesteps" in budget:
            returns, arrays = with_model(converge, recipe, cell, budget)
            measured |= returns
        extra = {"hyperparameters_source": recipe.source, "device_name": gpu_of(cell["device"])}
        return Measurement(measured, backend="torch", arrays=arrays, extra=extra)


def sized_recipe(policy: str, precision: str) -> Recipe:
    """Pong with the network of `policy` and what trains it, its features in `precision`.

    Replay is uniform: what a prioritized one adds is the same for every network and precision.
    """
    size = POLICIES[policy]
    recipe = get_recipe(f"{size.algo}-{ENV_ID}").with_uniform_replay()
    recipe = recipe.with_features(
        features_dim=size.units, filters=size.filters, precision=precision
    )
    changed = {"buffer_size": BUFFER_SIZE} if size.algo == "dqn" else {}
    return replace(recipe, hyperparameters=recipe.hyperparameters | changed)


def with_model(
    work: Callable[[BaseAlgorithm, Recipe, Mapping[str, Any]], T],
    recipe: Recipe, cell: Mapping[str, Any], budget: Mapping[str, Any],
) -> T:  # fmt: skip
    """What `work` gives, done with an algorithm that is gone afterwards, buffer and all."""
    model = make_sized(recipe, cell)
    with graphed_updates(model) if isinstance(model, OffPolicyAlgorithm) else nullcontext():
        return work(model, recipe, budget)


def make_sized(recipe: Recipe, cell: Mapping[str, Any]) -> BaseAlgorithm:
    """The algorithm on its device, DQN in fp16 with a loss scaler."""
    model = make_model(recipe, cell["seed"], device=cell["device"])
    if cell["precision"] == "fp16":
        assert isinstance(model, DQN)
        LossScaler([model.q_net.features_extractor], model.policy.optimizer)
    return model


def converge(
    model: BaseAlgorithm, recipe: Recipe, budget: Mapping[str, Any]
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
    measured = {**result.as_measured(), **trained.as_measured(), "timesteps": model.num_timesteps}
    return measured, trained.curves


SMOKE = {"policies": ["A"], "precisions": ["fp32", "bf16"], "devices": ["cpu"], "repeats": 2,
         "stored": 64, "run_steps": 8, "converge": [], "timesteps": 1, "evaluations": 1,
         "eval_episodes": 1, "episodes": 1, "first_seed": FIRST_SEED, "seeds": [0]}  # fmt: skip
QUICK = SMOKE | {"repeats": 5, "stored": 500}
FULL = QUICK | {
    "policies": [*POLICIES],
    "precisions": ["fp32", "bf16", "fp16"], "devices": ["cpu", "cuda"], "repeats": 30,
    "stored": 2_000, "run_steps": 200, "converge": ["zoo-ppo"], "timesteps": 3_000_000,
    "evaluations": 10, "eval_episodes": 5, "episodes": ATARI_EPISODES, "seeds": [0, 1, 2],
}  # fmt: skip

MIXED_PRECISION = MixedPrecisionStudy(
    "mixed_precision", {"smoke": SMOKE, "quick": QUICK, "full": FULL}
)
