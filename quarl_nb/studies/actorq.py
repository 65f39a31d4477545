"""ActorQ runs (sections 2 and 3): speed-up, staleness, where the time goes, and scaling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch

from quarl_nb.actorq import Settings
from quarl_nb.actorq.algorithms import check_autocast, check_device, make_algorithm
from quarl_nb.errors import QuarlError, check_counts
from quarl_nb.processor import usable_cores
from quarl_nb.rl.model import gpu_of
from quarl_nb.studies.actorq_training import train_evaluated
from quarl_nb.studies.tasks import get_task, split_options
from quarl_nb.study import Measurement

# Parameter -> what a cell has one value of; with tasks, actors and seeds, a study's matrix is the
# product of the values.
KNOBS = {"widths": "width", "n_actors": "n_actors", "envs_per_actor": "envs_per_actor",
         "pull_periods": "pull_period", "samples_per_insert": "samples_per_insert",
         "communications": "communication"}  # fmt: skip


@dataclass(frozen=True)
class ActorQStudy:
    """Tasks x actors x knobs of the loop, one run of training each.

    Parameters: `tasks` (environments of Table 3), `actors` ("int8/onnxruntime": the precision and
    runtime that actors compute in), `widths` (of the policy), `n_actors`, `envs_per_actor`,
    `pull_periods`, `samples_per_insert` (0 of these and of `widths`: the task's own),
    `communications` ("": as computed), `seeds`; `steps` (environment steps, 0: the task's own),
    `evaluations` of the learner's policy along the run, `episodes` each, `device` of the learner
    (see `Task.on`) and its `autocast` ("bf16" or ""), `options` of the algorithm, beside the
    task's own (None: the algorithm's default in place of the task's).

    With `reopens`, actors open every policy that they pull, as if each were new: what pulls cost
    beside a learner that publishes more often than actors pull, which one on two cores does not.
    """

    name: str
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    schema_version: int = 1
    timed: bool = True
    reopens: bool = False

    def cells(self, parameters: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The matrix: (cell, budget) of every task, kind of actor and setting."""
        check_device(parameters["device"])
        check_counts(0, steps=parameters["steps"], evaluations=parameters["evaluations"])
        check_counts(1, episodes=parameters["episodes"])
        found = []
        # A run of every kind, then the next seed: a machine that slows down slows all kinds alike.
        for env_id, seed, actor in product(
            parameters["tasks"], parameters["seeds"], parameters["actors"]
        ):
            task = get_task(env_id).on(parameters["device"])
            check_autocast(task.algo, parameters["autocast"])
            precision, runtime = _split(actor)
            budget = {name: parameters[name] for name in (
                "evaluations", "episodes", "device", "autocast")}  # fmt: skip
            options = {**task.options, **parameters["options"]}
            budget["options"] = {name: x for name, x in options.items() if x is not None}
            budget["steps"] = parameters["steps"] or task.steps
            for values in product(*(parameters[knob] for knob in KNOBS)):
                cell = {"task": task.published, "env_id": env_id, "algo": task.algo,
                        "precision": precision, "runtime": runtime}  # fmt: skip
                cell |= dict(zip(KNOBS.values(), values, strict=True)) | {"seed": seed}
                for name in ("width", "pull_period", "samples_per_insert"):
                    cell[name] = cell[name] or getattr(task, name)
                cell["communication"] = cell["communication"] or precision
                check_counts(1, width=cell["width"])
                _settings(cell)
                found.append((cell, budget))
        return found

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Train once; afterwards evaluate what the learner's policy was along the run."""
        torch.set_num_threads(1)
        task = get_task(cell["env_id"])
        options, actors_options = split_options(budget["options"])
        device, autocast = budget["device"], budget["autocast"]
        if device != "cpu":
            _load_kernels(task.algo, task.env_id, cell["width"], device, autocast,
                          json.dumps(options))  # fmt: skip
        algorithm = make_algorithm(task.algo, task.env_id, cell["width"], cell["seed"], device,
                                   autocast, **options)  # fmt: skip
        settings = _settings(cell) | {"reopen": self.reopens} | actors_options
        # Afterwards, when the actors have left their cores: a timed study has them to itself.
        result, curve = train_evaluated(
            algorithm, task.env_id, budget, usable_cores(), **settings
        )
        measured = result.as_measured() | curve
        measured["run_s"] = measured.pop("wall_s")  # of the run alone; `wall_s` is the cell's
        episodes = measured.pop("episodes")
        ages = np.array(measured.pop("ages"))
        arrays = {f"episode_{name}": np.array(values) for name, values in episodes.items()}
        measured |= {
            "age_mean": ages.mean(), "age_p50": np.median(ages), "age_p95": np.quantile(ages, 0.95),
            "messages": len(ages), "episodes_finished": len(episodes["steps"]),
        }  # fmt: skip
        return Measurement(
            measured, backend=cell["runtime"], arrays=arrays | {"ages": ages},
            extra={"device_name": gpu_of(device)},
        )


@cache
def _load_kernels(
    algo: str, env_id: str, width: int, device: str, autocast: str, options: str
) -> None:
    """Some updates of a learner that is thrown away.

    A process's first update on a GPU loads the kernels, too: the first cell would be charged with
    what the others find loaded.
    """
    first = {**json.loads(options), "learning_starts": 0}
    make_algorithm(algo, env_id, width, 0, device, autocast, **first).learn(10)


def _split(actor: str) -> tuple[str, str]:
    precision, slash, runtime = actor.partition("/")
    if not slash:
        raise QuarlError(f"actor {actor!r} is not precision/runtime, e.g. int8/onnxruntime")
    return precision, runtime


def _settings(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's settings of ActorQ, checked."""
    names = set(KNOBS.values()) - {"width"} | {"seed", "precision", "runtime"}
    settings = {name: cell[name] for name in names}
    Settings(**settings)
    return settings


# torch fp32 is what the paper's actors ran, ONNX Runtime fp32 the fair baseline of int8.
ACTORS = ["fp32/torch", "fp32/onnxruntime", "fp16/torch", "int8/onnxruntime"]
TWO_CORES = ["CartPole-v1", "Acrobot-v1", "rescaled:MountainCar-v0", "dm:cartpole-balance",
             "dm:walker-stand"]  # fmt: skip
SMOKE = {
    "tasks": ["CartPole-v1"], "actors": ["fp32/onnxruntime", "int8/onnxruntime"], "widths": [32],
    "n_actors": [1], "envs_per_actor": [1], "pull_periods": [100], "samples_per_insert": [4.0],
    "communications": [""], "seeds": [0], "steps": 2000, "evaluations": 2, "episodes": 2,
    "device": "cpu", "autocast": "", "options": {},
}  # fmt: skip
QUICK = SMOKE | {"actors": ACTORS[:2] + ACTORS[3:], "widths": [256], "steps": 8000,
                 "samples_per_insert": [1.0], "evaluations": 4, "episodes": 5}  # fmt: skip
# Actor-bound on two cores: one actor, one learner, a transition sampled at most once on average
# (except Walker Stand's, which is not learned so).
FULL = QUICK | {"tasks": TWO_CORES, "actors": ACTORS, "widths": [0], "seeds": [0, 1, 2],
                "pull_periods": [0], "samples_per_insert": [0.0], "steps": 0, "evaluations": 20,
                "episodes": 10, "autocast": "bf16"}  # fmt: skip
SPEEDUP = ActorQStudy("actorq", {"smoke": SMOKE, "quick": QUICK, "full": FULL})

# Figure 3: how often actors pull, and how old the policies are that fill the replay buffer.
STALENESS_FULL = FULL | {"tasks": ["dm:walker-stand", "CartPole-v1", "rescaled:MountainCar-v0"],
                         "actors": ["int8/onnxruntime"],
                         "pull_periods": [30, 100, 1000, 5000],
                         "seeds": [*range(7)]}  # fewer pairs in four settings show nothing (Holm)
STALENESS = ActorQStudy("actorq_staleness", {
    "smoke": SMOKE | {"actors": ["int8/onnxruntime"], "pull_periods": [50, 500]},
    "quick": QUICK | {"actors": ["int8/onnxruntime"], "pull_periods": [30, 1000]},
    "full": STALENESS_FULL,
})  # fmt: skip

# Figure 4: where an actor's time goes. Nothing needs to be learned: the learner stands still, as if
# it were on another machine, and no policy is evaluated.
RUNTIME_QUICK = SMOKE | {
    "actors": ["fp32/torch", "fp32/onnxruntime", "int8/onnxruntime"], "widths": [2048],
    "pull_periods": [30, 1000], "samples_per_insert": [0.01], "steps": 2000, "evaluations": 0,
    "options": {"learning_starts": 0},  # every step is an inference
}  # fmt: skip
RUNTIME = ActorQStudy("actorq_runtime", {
    "smoke": RUNTIME_QUICK | {"widths": [32], "pull_periods": [100]},
    "quick": RUNTIME_QUICK,
    "full": RUNTIME_QUICK | {
        "tasks": ["CartPole-v1", "dm:cartpole-balance", "dm:humanoid-stand"], "actors": ACTORS,
        "communications": ["", "fp32", "int8"], "steps": 3000,
        "seeds": [*range(10)],  # communication precision changes a run by less than runs differ
    },
}, schema_version=3, reopens=True)  # fmt: skip

# Where quantized actors pay: small and large policies, batched decisions, more actors, and a
# learner from idle (0.1 samples per insert) to busier than its actors (4).
SCALING_QUICK = RUNTIME_QUICK | {"actors": ["fp32/onnxruntime", "int8/onnxruntime"],
                                 "widths": [64, 2048], "pull_periods": [1000],
                                 "samples_per_insert": [0.1]}  # fmt: skip
SCALING = ActorQStudy("actorq_scaling", {
    "smoke": SCALING_QUICK | {"widths": [32]},
    "quick": SCALING_QUICK,
    "full": SCALING_QUICK | {
        "tasks": ["dm:cartpole-balance"], "widths": [64, 256, 2048],
        "actors": ["fp32/torch", "fp32/onnxruntime", "int8/onnxruntime"], "n_actors": [1, 2],
        "envs_per_actor": [1, 8], "samples_per_insert": [0.1, 1.0, 4.0], "steps": 3000,
        "autocast": "bf16", "seeds": [0, 1, 2],
        # Nothing needs to be learned here either, so that these stay when the task's own change.
        "options": {"learning_starts": 0, "learning_rate": 3e-4, "actor_learning_rate": 2e-5,
                    "n_steps": None},
    },
})  # fmt: skip
