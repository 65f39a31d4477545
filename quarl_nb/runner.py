"""Running a study: its missing cells, in worker processes, one record each."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from quarl_nb.energy import EnergyMeter
from quarl_nb.errors import QuarlError, check_counts
from quarl_nb.locks import entered_first, in_turn
from quarl_nb.record import check_columns
from quarl_nb.store import ResultStore
from quarl_nb.study import Cell, Study, resolve_parameters
from quarl_nb.workers import Job, Outcome, Task, run_jobs

logger = logging.getLogger(__name__)
TIMED_LOCK = Path("quarl_nb.timed.lock")  # in the temporary directory: one for all users


@dataclass(frozen=True)
class RunSummary:
    """What a run did: `done + skipped + failed == total` unless it was interrupted."""

    done: int
    skipped: int
    failed: int
    total: int
    errors: tuple[Path, ...] = ()


def run_study(
    study: Study,
    profile: str,
    store: ResultStore,
    workers: int = 1,
    shard: tuple[int, int] | None = None,
    recompute: bool = False,
    parameters: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> RunSummary:
    """Measure the cells of `profile` that have no record yet.

    What is timed waits until no other timed study runs on this machine.

    Args:
        study: what to measure.
        profile: one of the study's profiles.
        store: where the records are and go.
        workers: processes that measure at once, each with one thread (one, if cells are timed).
        shard: (i, n): only the i-th of n parts of the matrix, i from 1, which are those of the
            other machines if these have the same matrix (a GPU in all or in none, the same
            policies); without it, another run of the study into the same folder is told.
        recompute: measure cells that have a record too.
        parameters: values in place of the profile's.
        progress: show a bar on stderr (only on a terminal, and not under CI).

    Raises:
        QuarlError: bad arguments, an unknown QUARL_COUNTRY, or records cannot be written.
        KeyboardInterrupt: on Ctrl-C, after the workers have ended; finished records stay.
    """
    check_counts(1, workers=workers)
    jobs = plan(study, profile, parameters, shard)

    def missing() -> list[Job]:
        return [job for job in jobs if recompute or not store.has(study.name, profile, job.key)]

    if not missing():
        return RunSummary(done=0, skipped=len(jobs), failed=0, total=len(jobs))
    EnergyMeter(gpus=False)  # an unknown country is to be told here, not by every cell
    store.prepare(study.name, profile)
    task = Task(study, profile, store)
    with _alone() if study.timed else _beside_others(store.root / study.name, told=not shard):
        # Asked again: whom it waited for may have measured some of them.
        done, errors = _measure(task, missing(), 1 if study.timed else workers, len(jobs), progress)
    return RunSummary(done, len(jobs) - done - len(errors), len(errors), len(jobs), tuple(errors))


def _measure(
    task: Task, missing: Sequence[Job], workers: int, total: int, progress: bool
) -> tuple[int, list[Path]]:
    """How many cells got their record, and the error files of the others."""
    done, errors = 0, []
    shown = progress and sys.stderr.isatty() and not os.environ.get("CI")
    bar = tqdm(
        total=total, initial=total - len(missing), disable=not shown,
        desc=f"{task.study.name} {task.profile}", unit="cell", file=sys.stderr,
    )  # fmt: skip
    # Closed at once on Ctrl-C, not whenever the exception lets go of the generator.
    with bar, closing(run_jobs(task, missing, workers)) as outcomes:
        for outcome in outcomes:
            if outcome.error is None:
                done += 1
            else:
                path = task.store.error_path(task.study.name, task.profile, outcome.job.key)
                errors.append(path)
                _report_failure(outcome, path)
            bar.update()
    return done, errors


def plan(
    study: Study,
    profile: str,
    parameters: Mapping[str, Any] | None = None,
    shard: tuple[int, int] | None = None,
) -> list[Job]:
    """The cells of a run, each once, in the study's order; `run_study`'s arguments and errors."""
    jobs: dict[str, Job] = {}
    for cell, budget in study.cells(resolve_parameters(study, profile, parameters)):
        check_columns(cell)  # before hours are spent on what could not be read
        key = Cell(study.name, cell).key(budget, study.schema_version)
        jobs.setdefault(key, Job(key, dict(cell), dict(budget)))
    if parameters and not jobs:
        raise QuarlError(f"nothing to measure: no cell of {study.name} has these parameters")
    part, parts = shard or (1, 1)
    if not 1 <= part <= parts:
        raise QuarlError(f"shard {part}/{parts} is not i/n with 1 <= i <= n")
    return list(jobs.values())[part - 1 :: parts]


def _alone() -> AbstractContextManager[None]:
    """No other timed study runs on this machine meanwhile."""
    waiting = "another timed study runs on this machine: waiting"
    return in_turn(Path(tempfile.gettempdir(), TIMED_LOCK), lambda: logger.warning(waiting))


@contextmanager
def _beside_others(folder: Path, told: bool) -> Iterator[None]:
    """Says, if it is to be `told`, that another run measures into the study's folder meanwhile."""
    with entered_first(folder) as first:
        if told and not first:
            logger.warning("another run writes into '%s': what both lack, both measure "
                           "(--shard 1/2 and 2/2 part the cells)", folder)  # fmt: skip
        yield


def _report_failure(outcome: Outcome, path: Path) -> None:
    cell = " ".join(f"{name}={value}" for name, value in outcome.job.cell.items())
    logger.warning("cell failed: %s: %s (see %s)", cell, outcome.error, os.path.relpath(path))
