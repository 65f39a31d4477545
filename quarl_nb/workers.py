"""Worker processes that measure cells one at a time; a dead worker is one failed cell."""

from __future__ import annotations

import pickle
import signal
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from quarl_nb import provenance
from quarl_nb.energy import EnergyMeter
from quarl_nb.errors import QuarlError, one_line
from quarl_nb.processes import (
    CONTEXT,
    POLL_S,
    STOP_S,
    death,
    end_child,
    holding_interrupts,
    lock_bars_by_threads,
    start_hint,
)
from quarl_nb.record import check_columns, to_json
from quarl_nb.store import ResultStore
from quarl_nb.study import Study


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
    """What every worker of a run knows."""

    study: Study
    profile: str
    store: ResultStore

    def fail(self, job: Job, line: str, details: str) -> Outcome:
        """Leave the error file of a failed cell."""
        try:
            self.store.write_error(self.study.name, self.profile, job.key, details)
        except QuarlError as error:
            return Outcome(job, str(error), fatal=True)
        return Outcome(job, line)


def run_jobs(task: Task, jobs: Sequence[Job], workers: int) -> Generator[Outcome, None, None]:
    """Measure the jobs in up to `workers` processes; yields each outcome as it comes.

    Close the generator to stop early: the workers end, cells in flight are lost.

    Raises:
        QuarlError: a record cannot be written, or a worker cannot start.
    """
    waiting = list(reversed(jobs))
    crew: list[Worker] = []
    try:
        with holding_interrupts():  # until the worker is one of those that are stopped
            for _ in range(min(workers, len(jobs))):
                crew.append(Worker(task))
        while crew:
            ready = wait([worker.connection for worker in crew], timeout=POLL_S)
            for worker in list(crew):
                if worker.connection not in ready and worker.process.is_alive():
                    continue
                lost = not worker.receive()
                if worker.outcome:
                    if worker.outcome.fatal:
                        raise QuarlError(worker.outcome.error)
                    yield worker.outcome
                # What is timed is metered too: memory that the cell before holds is none of it.
                worn = worker.outcome is not None and task.study.timed
                if waiting and not lost and not worn:
                    worker.give(waiting.pop())
                    continue
                worker.stop()
                crew.remove(worker)
                if waiting:
                    with holding_interrupts():
                        crew.append(Worker(task))
    finally:
        with holding_interrupts():  # a second Ctrl-C would leave some running
            for worker in crew:
                worker.close()
            ends_at = time.monotonic() + STOP_S  # for all: many may be starting, and hear nothing
            for worker in crew:
                end_child(worker.process, ends_at - time.monotonic())


class Worker:
    """The runner's side of one worker process.

    Attributes:
        job: what it is measuring, None while it starts or when it has reported.
        outcome: what the last `receive` brought, None if the worker only said that it started.
    """

    def __init__(self, task: Task) -> None:
        try:
            pickled = cloudpickle.dumps(task)  # with what a notebook or a script defines
        except Exception as error:  # pickling calls into whatever it meets
            name, reason = task.study.name, one_line(error)
            raise QuarlError(f"study {name!r} cannot go to a worker process: {reason}") from error
        self.task = task
        self.job: Job | None = None
        self.outcome: Outcome | None = None
        self.connection, remote = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_work, args=(remote, pickled))
        self.process.start()
        remote.close()

    def give(self, job: Job) -> None:
        """Let the worker measure `job`."""
        self.job = job
        try:
            self.connection.send(job)
        except OSError:
            pass  # it has just died; the next receive says so

    def receive(self) -> bool:
        """Take the worker's message into `outcome`; False if the worker is dead.

        Raises:
            QuarlError: it died before it could take a job.
        """
        # Only what is there is read: a dead worker's own children may hold the pipe open.
        if self.connection.poll():
            try:
                self.outcome, self.job = self.connection.recv(), None
                return True
            except (EOFError, OSError):
                pass
        self.process.join(STOP_S)
        reason = death(self.process.exitcode)
        if self.job is None:
            raise QuarlError(f"a worker process {reason} before it could measure anything"
                             f"{start_hint(self.process, 'a study')}")  # fmt: skip
        line = f"worker process {reason}"
        self.outcome, self.job = self.task.fail(self.job, line, line + "\n"), None
        return False

    def close(self) -> None:
        """Have the process end: by signal when it is measuring, else when it reads next."""
        if self.job is not None:
            self.process.terminate()  # first: it might hear it in what Python does at its end
        self.connection.close()

    def stop(self) -> None:
        """Close, and wait until the process has ended."""
        self.close()
        end_child(self.process, STOP_S)


def _work(connection: Connection, pickled: bytes) -> None:
    """Body of a worker process: say hello, then measure job after job until the pipe closes."""
    lock_bars_by_threads()
    signal.signal(signal.SIGTERM, _end)
    task: Task = pickle.loads(pickled)  # from our own parent, never from a file
    origin = provenance.collect()  # here: who replaces a dead worker runs the code of that time
    try:
        connection.send(None)
        while True:
            connection.send(_measure(task, origin, connection.recv()))
    except (EOFError, OSError):
        return


def _end(*_: object) -> NoReturn:
    """On SIGTERM, so that what is measured can end its own children first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + signal.SIGTERM)


def _measure(task: Task, origin: Mapping[str, Any], job: Job) -> Outcome:
    """Measure one cell and record it, `origin` with it, or leave its error file."""
    started = provenance.utc_now()
    _reset_peak_memory()
    try:
        device = {**job.budget, **job.cell}.get("device", "cpu")
        with EnergyMeter(gpus=device != "cpu") as meter:
            measurement = task.study.measure(job.cell, job.budget)
        record = to_json({
            "study": task.study.name,
            "profile": task.profile,
            "key": job.key,
            "schema_version": task.study.schema_version,
            "cell": job.cell,
            "budget": job.budget,
            "measured": measurement.measured,
            "backend": measurement.backend,
            "source": measurement.source,
            "energy": meter.as_record(),
            "wall_s": meter.wall_s,
            "peak_memory_bytes": _peak_memory_bytes(),
            "extra": measurement.extra,
            "provenance": {**origin, "start_time": started},
        })  # fmt: skip
        check_columns(job.cell, measurement.measured)
    except Exception as error:  # whatever a cell does, the others go on
        return task.fail(job, one_line(error), traceback.format_exc())
    try:
        task.store.write(record, measurement.arrays)
    except QuarlError as error:
        return Outcome(job, str(error), fatal=True)
    except Exception as error:  # such as arrays of objects
        return task.fail(job, one_line(error), traceback.format_exc())
    return Outcome(job)


def _reset_peak_memory() -> None:
    """Let the kernel count this process's peak memory anew (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # the peak then counts from the worker's start


def _peak_memory_bytes() -> int | None:
    """Peak resident memory of this process since the reset; None where /proc does not tell.

    Not `ru_maxrss`, which cannot be reset between cells.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    peaks = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peaks[0][1]) * 1024 if peaks else None
