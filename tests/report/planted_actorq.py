"""Planted ActorQ records with known times, returns and costs, to test the report against."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from quarl_nb.store import ResultStore
from quarl_nb.study import Cell

TASKS = {
    "Cartpole Balance": ("dm:cartpole-balance", "d4pg"),
    "Walker Stand": ("dm:walker-stand", "d4pg"), "Hopper Stand": ("dm:hopper-stand", "d4pg"),
    "Reacher Hard": ("dm:reacher-hard", "d4pg"), "Cheetah Run": ("dm:cheetah-run", "d4pg"),
    "Finger Spin": ("dm:finger-spin", "d4pg"), "Humanoid Stand": ("dm:humanoid-stand", "d4pg"),
    "Humanoid Walk": ("dm:humanoid-walk", "d4pg"), "Cartpole (Gym)": ("CartPole-v1", "dqn"),
    "Mountain Car (Gym)": ("MountainCar-v0", "dqn"), "Acrobot (Gym)": ("Acrobot-v1", "dqn"),
}
# Seconds of inference of one environment step, and bytes of a payload.
ENGINES = {"fp32/torch": (8e-3, 4000), "fp32/onnxruntime": (4e-3, 4000),
           "fp16/torch": (6e-3, 2000), "int8/onnxruntime": (1e-3, 1000)}  # fmt: skip
ENVIRONMENT_S, LEARNER_S = 1e-3, 2e-3
PULL_S = 0.2  # of 4000 bytes, and as much to deserialize them
# An actor's step takes 9 ms in torch fp32, 5 in ORT fp32 and 2 in int8, then the pulls.
TORCH_S, ORT_S, INT8_S = 9e-3 + 4e-4, 5e-3 + 4e-4, 2e-3 + 1e-4

# CPU-seconds of a run by side, and watts: of a thread, and of the memory that the run holds.
ACTING_S = {"fp32/torch": 40.0, "fp32/onnxruntime": 25.0, "fp16/torch": 30.0,
            "int8/onnxruntime": 10.0}  # fmt: skip
LEARNING_S, QUANTIZING_S = 10.0, 5.0
WATTS, MEMORY_W = 4.0, 2.0


def make_run(
    task: str, actor: str, seed: int, returns: Sequence[float], *, steps: int = 1000,
    communication: str = "", study: str = "actorq", device: str = "cuda", profile: str = "full",
    noise: float = 0.0, slower: float = 1.0, batch_size: int = 256, **cell: Any,
) -> dict[str, object]:
    """One row of a frame: evaluations of 10 episodes each, evenly spread over the steps.

    `slower` multiplies the wall clock, `noise` is added to it by seed.
    """
    env_id, algo = TASKS[task]
    precision, _, runtime = actor.partition("/")
    inference_s, payload_bytes = ENGINES[actor]
    communication = communication or precision
    setting: dict[str, Any] = {
        "width": 2048, "n_actors": 4, "envs_per_actor": 1, "pull_period": 1000,
        "samples_per_insert": 16.0, **cell,
    }  # fmt: skip
    pulls_s = PULL_S * payload_bytes / 4000 / setting["pull_period"]
    actor_step_s = ENVIRONMENT_S + inference_s + 2 * pulls_s
    step_s = max(actor_step_s / setting["n_actors"], LEARNER_S / setting["n_actors"])
    wall_s = slower * step_s * steps * (1 + noise * (seed - 1))
    share = np.linspace(0, 1, len(returns))
    row = {
        "task": task, "env_id": env_id, "algo": algo, "precision": precision, "runtime": runtime,
        **setting, "communication": communication, "seed": seed, "profile": profile,
        "steps": steps, "updates": steps // 16, "run_s": wall_s, "wall_s": wall_s + 60,
        "actor_s": {"environment": ENVIRONMENT_S * steps, "inference": inference_s * steps,
                    "pull": pulls_s * steps, "deserialize": pulls_s * steps, "load": 0.0,
                    "send": 0.0, "wait": 0.01 * wall_s},
        "learner_s": {"insert": 0.0, "sample": 0.1 * LEARNER_S * steps / setting["n_actors"],
                      "train": 0.9 * LEARNER_S * steps / setting["n_actors"], "publish": 0.0,
                      "wait": 0.5 * wall_s},
        "payload_bytes": payload_bytes if communication == precision
        else {"fp32": 4000, "fp16": 2000, "int8": 1000}[communication],
        "pulls": steps // setting["pull_period"] + 1, "restarts": 0,
        "age_mean": setting["pull_period"] / 16, "age_p50": setting["pull_period"] / 20,
        "age_p95": setting["pull_period"] / 8,
        "curve_steps": list(share * steps), "curve_updates": list(share * steps / 16),
        "curve_wall_s": list(share * wall_s), "curve_returns": [[value] * 10 for value in returns],
        "budget.steps": steps, "budget.device": device, "budget.autocast": "",
        "budget.options": {"batch_size": batch_size},
        "backend": runtime, "source": "measured",
    }  # fmt: skip
    name = f"{study}{task}{actor}{seed}{communication}{setting}{device}"
    return row | {"key": hashlib.sha256(name.encode()).hexdigest()}


def make_records(
    tasks: Sequence[str] = tuple(TASKS), actors: Sequence[str] = tuple(ENGINES),
    seeds: Sequence[int] = (0, 1, 2),
    returns: Callable[[str, str, int], Sequence[float]] = lambda *_: (0, 50, 100, 100),
    **options: Any,
) -> pd.DataFrame:
    """`make_run` of every task, kind of actor and seed; `returns` of each of them."""
    return pd.DataFrame([
        make_run(task, actor, seed, returns(task, actor, seed), **options)
        for task in tasks for actor in actors for seed in seeds
    ])


def with_energy(frame: pd.DataFrame, spread: float = 0.0) -> pd.DataFrame:
    """Runs that recorded what they cost: evenly with their steps, 0.36 kg CO2e a kWh.

    `spread` is added to the CPU-seconds by seed.
    """
    found = []
    for _, row in frame.iterrows():
        share = np.asarray(row["curve_steps"]) / row["steps"] * (1 + spread * (row["seed"] - 1))
        acting_s = ACTING_S[f"{row['precision']}/{row['runtime']}"]
        found.append(dict(row) | {
            "curve_cpu_s": {"learner": list(LEARNING_S * share), "actors": list(acting_s * share),
                            "quantizer": list(QUANTIZING_S * share)},
            "energy.cpu_s": 500.0, "energy.cpu_energy_j": 500 * WATTS, "energy.gpu_energy_j": 0.0,
            "run_energy": {"gpu_energy_j": 0.0, "ram_energy_j": MEMORY_W * row["wall_s"],
                           "wall_s": row["wall_s"]},
            "energy.ram_energy_j": MEMORY_W * row["wall_s"], "energy.energy_j": 3000.0,
            "energy.assumed_watts": {"ram": 20.0, "cpu_per_thread": WATTS},
            "energy.watts_source": "a default", "energy.grid_source": "a table",
            "energy.grid_kg_per_kwh": 0.36, "energy.method": "tdp_x_cpu_time",
            "energy.other_cpu_s": 0.5 * row["wall_s"],
        })
    return pd.DataFrame(found)


def communications(
    factor: float = 1.2, tasks: Sequence[str] = ("Walker Stand",), **options: Any
) -> pd.DataFrame:
    """fp32 actors whose weights travel in fp32, and in int8, whose pulls take so much less that
    their steps are `factor` times as fast."""
    made = [make_records(tasks, ["fp32/torch"], communication=wire, **options)
            for wire in ("fp32", "int8")]
    made[0]["actor_s"] = made[0]["actor_s"].map(lambda parts: slower_pulls(parts, factor))
    return pd.concat(made, ignore_index=True)


def slower_pulls(parts: Mapping[str, float], factor: float) -> dict[str, float]:
    """An actor whose steps take `factor` times as long, all for longer pulls."""
    busy_s = sum(seconds for name, seconds in parts.items() if name != "wait")
    return {**parts, "pull": parts["pull"] + (factor - 1) * busy_s}


def scaled(parts: Mapping[str, float], factor: float) -> dict[str, float]:
    """An actor that takes `factor` times as long for everything."""
    return {name: factor * seconds for name, seconds in parts.items()}


CELL = ("task", "env_id", "algo", "precision", "runtime", "width", "n_actors", "envs_per_actor",
        "pull_period", "samples_per_insert", "communication", "seed")  # fmt: skip


def write_runs(store: ResultStore, study: str, frame: pd.DataFrame) -> None:
    """The rows of a frame as records of `study`."""
    for _, row in frame.iterrows():
        cell = {name: row[name] for name in CELL}
        budget = {"steps": row["budget.steps"], "device": row["budget.device"], "autocast": ""}
        measured = {name: row[name] for name in frame.columns
                    if name not in CELL and "." not in name
                    and name not in ("key", "profile", "backend", "source", "wall_s")}  # fmt: skip
        store.write({
            "study": study, "profile": row["profile"], "schema_version": 1, "cell": cell,
            "budget": budget, "key": Cell(study, cell).key(budget, 1), "measured": measured,
            "backend": row["backend"], "source": "measured", "wall_s": row["wall_s"],
            "energy": {name.removeprefix("energy."): row[name] for name in frame.columns
                       if name.startswith("energy.")},
            "provenance": {"git_commit": "c0ffee" + "0" * 34, "dirty": False,
                           "start_time": "2026-11-21T05:00:00+00:00", "packages": {}},
        })  # fmt: skip
