"""Worker processes that measure cells one at a time; a dead worker is a failed cell."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from quarl_nb import provenance
from quarl_nb.energy import EnergyMeter
from quarl_nb.errors import QuarlError
from quarl_nb.store import ResultStore, to_json
from quarl_nb.study import Study

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
POLL_S = 0.5  # how soon the death of a worker is noticed; results arrive at once
STOP_S = 5.0  # how long a worker may take to end before it is killed


@dataclass(frozen=True)
class Job:
    """One cell to measure, its budget, and the key of its record."""

    key: str
    cell: Mapping[str, Any]
    budget: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a job: `error` is None (recorded) or one line; `fatal` ends the run."""

    job: Job
    error: str | None = None
    fatal: bool = False


@dataclass(frozen=True)
class Task:
    """What a worker needs to know once."""

    study: Study
    profile: str
    store: ResultStore
    provenance: Mapping[str, Any]


def run_jobs(
    study: Study,
    profile: str,
    store: ResultStore,
    jobs: Sequence[Job],
    workers: int,
    provenance: Mapping[str, Any],
) -> Iterator[Outcome]:
    """Measure the jobs in up to `workers` processes; yields each outcome as it comes.

    Raises:
        QuarlError: a record cannot be written, or a worker cannot even start.
    """
    try:
        task = pickle.dumps(Task(study, profile, store, provenance))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise QuarlError(f"study {study.name!r} cannot go to a worker: {error}") from error
    waiting = list(reversed(jobs))
    crew = []
    try:
        crew = [Worker(task) for _ in range(min(workers, len(jobs)))]
        while crew:
            ready = wait([worker.connection for worker in crew], timeout=POLL_S)
            for worker in list(crew):
                if worker.connection in ready or not worker.process.is_alive():
                    outcome = worker.collect()
                    if outcome and outcome.fatal:
                        raise QuarlError(outcome.error)
                    if worker.job and outcome and not worker.process.is_alive():
                        pass
    finally:
        for worker in crew:
            worker.stop()
