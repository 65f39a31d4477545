"""One ActorQ run, and what the learner's policy was worth along it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.actorq import ActorQ, Result, Saving
from quarl_nb.actorq.result import ROLES
from quarl_nb.errors import QuarlError
from quarl_nb.inference import fast_policy
from quarl_nb.processes import SPAWN, child_environment, end_with_parent
from quarl_nb.processor import usable_cores
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.policies import load_policy
from quarl_nb.store import to_json
from quarl_nb.studies.ptq import FIRST_SEED

FEW_EPISODES = 40  # evaluated sooner than processes for them start


def train_evaluated(
    algorithm: OffPolicyAlgorithm, env_id: str, budget: Mapping[str, Any], **options: Any
) -> tuple[Result, dict[str, Any]]:
    """Train by ActorQ; afterwards evaluate what the learner's policy was along the run.

    Args:
        budget: `steps`, `evaluations` along them (0: none) and `episodes` each.
        options: of `ActorQ`.

    Raises:
        QuarlError: the run failed or was interrupted; its note holds what was measured until then.
    """
    with TemporaryDirectory() as folder:
        every = max(1, budget["steps"] // max(1, budget["evaluations"]))
        snapshots = Path(folder) if budget["evaluations"] else None
        saving = Saving(snapshots=snapshots, snapshot_every=every)
        actorq = ActorQ(algorithm, env_id, saving=saving, **options)
        try:
            result = actorq.learn(budget["steps"], progress_bar=False)
            if result.stopped != "done":
                raise QuarlError(f"the run was {result.stopped}")
        except QuarlError as error:
            done = to_json(actorq.result.as_measured())
            error.add_note(f"Until then: {json.dumps(done)}")  # for the cell's error file
            raise
        return result, learning_curve(result, env_id, budget)


def learning_curve(result: Result, env_id: str, budget: Mapping[str, Any]) -> dict[str, Any]:
    """Returns of the learner's full-precision policy along the run, the same seeds each time.

    ("We measure the quality of the full precision policy from the learner", section 2.) Beside them
    what the run had cost by then: seconds, and CPU-seconds by role.
    """
    seeds = range(FIRST_SEED, FIRST_SEED + budget["episodes"])
    folders = [snapshot.folder for snapshot in result.snapshots]
    return {
        "curve_steps": [snapshot.steps for snapshot in result.snapshots],
        "curve_updates": [snapshot.updates for snapshot in result.snapshots],
        "curve_wall_s": [snapshot.wall_s for snapshot in result.snapshots],
        "curve_cpu_s": {role: [snapshot.cpu_s[role] for snapshot in result.snapshots]
                        for role in ROLES},
        "curve_returns": _evaluated(folders, env_id, seeds),
    }  # fmt: skip


def _evaluated(
    folders: Sequence[Path], env_id: str, seeds: Sequence[int]
) -> list[list[float]]:
    """Returns of the policies in `folders`, on all cores: the actors have left theirs."""
    processes = min(usable_cores(), len(folders))
    if processes < 2 or len(folders) * len(seeds) < FEW_EPISODES:
        return [_returns(folder, env_id, seeds) for folder in folders]
    pool = ProcessPoolExecutor(processes, SPAWN, initializer=end_with_parent)
    try:
        with child_environment():
            found = pool.map(_returns, folders, repeat(env_id), repeat(seeds))
        return list(found)
    finally:
        pool.shutdown(cancel_futures=True)


def _returns(folder: Path, env_id: str, seeds: Sequence[int]) -> list[float]:
    torch.set_num_threads(1)
    measured = evaluate(fast_policy(load_policy(folder)), env_id, seeds).as_measured()
    return measured["returns"]
