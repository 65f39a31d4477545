"""One ActorQ run, and what the learner's policy was worth along it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from itertools import repeat
from multiprocessing.util import Finalize
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.actorq import ActorQ, Result, Saving
from quarl_nb.actorq.result import ROLES
from quarl_nb.energy import EnergyMeter
from quarl_nb.errors import QuarlError
from quarl_nb.inference import fast_policy
from quarl_nb.processes import CONTEXT, holding_interrupts
from quarl_nb.record import to_json
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.policies import load_policy
from quarl_nb.studies.ptq import FIRST_SEED

START_S = 2.0  # of a process that evaluates: its imports


def train_evaluated(
    algorithm: OffPolicyAlgorithm, env_id: str, budget: Mapping[str, Any], processes: int = 1,
    **options: Any,
) -> tuple[Result, dict[str, Any]]:
    """Train by ActorQ; afterwards evaluate what the learner's policy was along the run.

    Args:
        budget: `steps`, `evaluations` along them (0: none) and `episodes` each.
        processes: that may evaluate at once.
        options: of `ActorQ`.

    Returns:
        What the run did; its `learning_curve`, and the `run_energy` of the run alone, from the
        start of the first process to the end of the last: a record's `energy`, and its wall_s.

    Raises:
        QuarlError: the run, or its evaluation, failed or was interrupted; its note holds what was
            measured until then.
    """
    with TemporaryDirectory() as folder:
        every = max(1, budget["steps"] // max(1, budget["evaluations"]))
        snapshots = Path(folder) if budget["evaluations"] else None
        saving = Saving(snapshots=snapshots, snapshot_every=every)
        actorq = ActorQ(algorithm, env_id, saving=saving, **options)
        try:
            with EnergyMeter(gpus=algorithm.device.type != "cpu") as meter:
                result = actorq.learn(budget["steps"], progress_bar=False)
            if result.stopped != "done":
                raise QuarlError(f"the run was {result.stopped}")
            curve = learning_curve(result, env_id, budget, processes)
        except QuarlError as error:
            done = to_json(actorq.result.as_measured())
            error.add_note(f"Until then: {json.dumps(done)}")  # for the cell's error file
            raise
        return result, curve | {"run_energy": meter.as_record() | {"wall_s": meter.wall_s}}


def learning_curve(
    result: Result, env_id: str, budget: Mapping[str, Any], processes: int = 1
) -> dict[str, Any]:
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
        "curve_returns": _evaluated(folders, env_id, seeds, processes),
    }  # fmt: skip


def _evaluated(
    folders: Sequence[Path], env_id: str, seeds: Sequence[int], processes: int
) -> list[list[float]]:
    """Returns of the policies in `folders`, by several processes where one would take long.

    Raises:
        QuarlError: a process died.
    """
    found: list[list[float]] = []
    started = time.perf_counter()
    for done, folder in enumerate(folders):
        left = folders[done:]
        left_s = (time.perf_counter() - started) / max(1, done) * len(left)
        worth_it = _evaluators.cache_info().currsize > 0 or left_s > 2 * START_S
        if min(processes, len(left)) > 1 and worth_it:
            return found + _evaluated_in_parallel(left, env_id, seeds, processes)
        found.append(_returns(folder, env_id, seeds))
    return found


def _evaluated_in_parallel(
    folders: Sequence[Path], env_id: str, seeds: Sequence[int], processes: int
) -> list[list[float]]:
    have_waited = _evaluators.cache_info().currsize > 0
    try:
        with holding_interrupts():
            found = _evaluators(processes).map(_returns, folders, repeat(env_id), repeat(seeds))
        return list(found)
    except BrokenProcessPool as error:
        _evaluators.cache_clear()
        if have_waited:  # one was killed meanwhile, perhaps: a run that has ended is not lost to it
            return _evaluated_in_parallel(folders, env_id, seeds, processes)
        raise QuarlError("a process that evaluated died (out of memory?)") from error


@cache
def _evaluators(processes: int) -> ProcessPoolExecutor:
    """Processes that evaluate, and wait for the next run's policies: each takes `START_S` to
    start."""
    pool = ProcessPoolExecutor(processes, CONTEXT)
    # A process that is a child itself waits for its children before Python would end the pool; and
    # its queues, by which it is ended, are closed at priority 10.
    Finalize(None, pool.shutdown, exitpriority=100)
    return pool


def _returns(folder: Path, env_id: str, seeds: Sequence[int]) -> list[float]:
    torch.set_num_threads(1)
    measured = evaluate(fast_policy(load_policy(folder)), env_id, seeds).as_measured()
    return measured["returns"]
