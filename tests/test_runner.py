from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock, call

import numpy as np
import pytest

from quarl_nb import runner, workers
from quarl_nb.errors import QuarlError
from quarl_nb.processes import CONTEXT
from quarl_nb.processor import cpu_model
from quarl_nb.runner import RunSummary, plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.study import Measurement
from quarl_nb.testing import FakeStudy

# What a user's shell would run: `argv` is the records, the log, and seconds a cell.
SCRIPT = """
import sys
from pathlib import Path
from quarl_nb import studies
from quarl_nb.cli import main
from quarl_nb.testing import FakeStudy
studies.get_study = lambda name: FakeStudy(log=Path(sys.argv[2]))
sys.exit(main(["run", "fake", "--profile", "smoke", "--workers", "2", "--records", sys.argv[1],
               "--set", "n_cells=8", "--set", f"delay_s={sys.argv[3]}"]))
"""


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "records")


def run(store, study=None, **options):
    return run_study(study or FakeStudy(), "smoke", store, progress=False, **options)


def counts(summary: RunSummary):
    return summary.done, summary.skipped, summary.failed, summary.total


def error_texts(summary: RunSummary):
    return "\n".join(path.read_text() for path in summary.errors)


def test_a_gpu_is_metered_where_a_cell_computes_on_one(store, monkeypatch):
    metered = []

    class Meter(workers.EnergyMeter):
        def __init__(self, gpus):
            metered.append(gpus)
            super().__init__(gpus=gpus)

    monkeypatch.setattr(workers, "EnergyMeter", Meter)
    task, job = workers.Task(FakeStudy(), "smoke", store), plan(FakeStudy(), "smoke")[0]
    for budget in ({}, {"device": "cpu"}, {"device": "cuda"}):
        workers._measure(task, {}, replace(job, budget={**job.budget, **budget}))
    workers._measure(task, {}, replace(job, cell={**job.cell, "device": "cuda"}))
    assert metered == [False, False, True, True]


def test_every_cell_gets_its_record(store):
    assert run(store) == RunSummary(done=3, skipped=0, failed=0, total=3)
    frame = store.frame("fake").sort_values("number")
    assert list(frame["returns"]) == [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    assert list(frame["lengths"]) == [[1, 1]] * 3
    records = store.records("fake", "smoke")
    assert {record["key"] for record in records} == {job.key for job in plan(FakeStudy(), "smoke")}
    for record in records:
        assert list(store.arrays(record)["curve"]) == list(range(record["cell"]["number"] + 1))
        assert record["energy"]["method"] in ("rapl", "pmic", "tdp_x_cpu_time")
        assert record["provenance"]["packages"]["numpy"]
        assert 1_000_000 < record["peak_memory_bytes"] < 1_000_000_000


def test_provenance_is_that_of_the_process_that_measured(store, monkeypatch):
    """One that replaces a dead worker days later runs what lies on disk by then."""
    monkeypatch.setattr("quarl_nb.provenance.cpu_model", lambda: "the runner's")
    run(store)
    cpus = {record["provenance"]["cpu"] for record in store.records("fake", "smoke")}
    assert cpus == {cpu_model()}


def test_workers_have_one_thread_and_leave_the_runner_alone(store, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    run(store)
    assert {record["extra"]["omp_threads"] for record in store.records("fake", "smoke")} == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "5"


def test_wall_time_is_that_of_the_cell(store):
    run(store, parameters={"n_cells": 1, "delay_s": 0.2})
    record = store.records("fake", "smoke")[0]
    assert 0.2 <= record["wall_s"] < 2.0
    assert record["energy"]["cpu_s"] < record["wall_s"]


@dataclass(frozen=True)
class OddStudy(FakeStudy):
    """Finds what it is told to, in this process."""

    found: Measurement = Measurement({}, backend="fake")

    def measure(self, cell, budget):
        return self.found


def measured(store, study, origin=()):
    job = plan(study, "smoke")[0]
    return workers._measure(workers.Task(study, "smoke", store), dict(origin), job)


def test_arrays_that_cannot_be_saved_fail_their_cell_alone(store):
    found = Measurement({"x": 1}, backend="fake", arrays={"objects": np.array([{}], object)})
    outcome = measured(store, OddStudy(found=found))
    assert outcome.error.startswith("ValueError: Object arrays") and not outcome.fatal
    [file] = store.root.rglob("*.error.txt")
    assert "Object arrays" in file.read_text() and not store.records("fake", "smoke")


def test_a_reason_that_is_no_text_is_told(store):
    path = store.write_error("fake", "smoke", "0" * 64, "no file '\udcff'")
    assert path.read_text() == r"no file '\udcff'"


def test_a_record_tells_what_ran_and_when_its_own_cell_began(store, monkeypatch):
    monkeypatch.setattr("quarl_nb.provenance.utc_now", lambda: "now")
    found = Measurement({"x": 1}, backend="onnxruntime", source="modelled")
    origin = {"git_commit": "abc", "start_time": "when the worker began"}
    assert measured(store, OddStudy(found=found), origin).error is None
    (record,) = store.records("fake", "smoke")
    assert (record["backend"], record["source"]) == ("onnxruntime", "modelled")
    assert record["provenance"] == {"git_commit": "abc", "start_time": "now"}


def test_a_measured_field_of_a_cell_fields_name_is_refused(store):
    outcome = measured(store, OddStudy(found=Measurement({"number": 3, "x": 1}, backend="fake")))
    assert outcome.error == "measured fields hide cell fields: number"
    assert not store.records("fake", "smoke")


@pytest.mark.parametrize("name", ["key", "wall_s", "budget.episodes", "extra.licence"])
def test_a_field_of_a_records_own_columns_name_is_refused(store, name):
    message = f"^fields called as a record's own are: {re.escape(name)}; taken are key, profile, "
    outcome = measured(store, OddStudy(found=Measurement({name: 3}, backend="fake")))
    assert re.search(message, outcome.error) and not store.records("fake", "smoke")

    class OddCells(OddStudy):
        def cells(self, parameters):
            return [({name: 1}, {})]

    with pytest.raises(QuarlError, match=message):  # before anything is measured
        plan(OddCells(), "smoke")


def test_a_field_that_only_begins_as_a_records_own_does_is_kept(store):
    found = Measurement({"extra": 1, "budget_s": 2, "keys": 4}, backend="fake")
    assert measured(store, OddStudy(found=found)).error is None
    assert store.frame("fake")[["extra", "budget_s", "keys"]].values.tolist() == [[1, 2, 4]]


def test_a_reason_that_cannot_be_written_ends_the_run(store, monkeypatch):
    full = Mock(side_effect=QuarlError("No space left on device"))
    monkeypatch.setattr(ResultStore, "write_error", full)
    outcome = measured(store, FakeStudy({0: "raise"}))
    assert outcome.fatal and outcome.error == "No space left on device"


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="resets it in /proc")
def test_peak_memory_is_that_of_the_cell_whatever_was_freed_before():
    with mmap(-1, 2**26) as memory:
        memory.write(bytes(2**26))
    peak = workers._peak_memory_bytes()
    workers._reset_peak_memory()
    assert peak - workers._peak_memory_bytes() > 2**25


def test_cells_are_measured_in_the_studys_order(store, tmp_path):
    run(store, FakeStudy(log=tmp_path / "log"))
    assert [number for number, _ in begun(tmp_path)] == [0, 1, 2]


def test_a_second_run_does_nothing_and_recompute_does_all(store, tmp_path):
    study = FakeStudy(log=tmp_path / "log")
    run(store, study)
    assert counts(run(store, study)) == (0, 3, 0, 3)
    assert len(study.log.read_text().splitlines()) == 3
    assert counts(run(store, study, recompute=True)) == (3, 0, 0, 3)
    assert len(study.log.read_text().splitlines()) == 6


def test_a_new_schema_version_measures_anew(store):
    run(store)
    assert run(store, FakeStudy(schema_version=2)).done == 3
    assert len(store.frame("fake")) == 3


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("raise", "ValueError: cell 1 was told to fail"),
        ("killed", "worker process was ended by SIGKILL (out of memory?)"),
        ("exit", "worker process ended with exit code 7"),
        ("not_json", "TypeError: object is not a JSON value"),
    ],
)
def test_a_failed_cell_leaves_its_reason_and_the_others_go_on(store, behaviour, reason, caplog):
    summary = run(store, FakeStudy({1: behaviour}))
    assert counts(summary) == (2, 0, 1, 3)
    assert reason in error_texts(summary)
    assert reason in caplog.text and "number=1" in caplog.text
    assert sorted(store.frame("fake")["number"]) == [0, 2]
    again = run(store)
    assert counts(again) == (1, 2, 0, 3)
    assert not summary.errors[0].exists()


def test_all_workers_may_die_and_none_is_left_waiting(store):
    study = FakeStudy(dict.fromkeys(range(5), "killed"))
    assert counts(run(store, study, workers=2, parameters={"n_cells": 6})) == (1, 0, 5, 6)


def test_timed_studies_wait_for_one_another(store, caplog):
    line = "another timed study runs on this machine: waiting"
    with ThreadPoolExecutor() as pool:
        with runner._alone():
            waiting = pool.submit(run, store, FakeStudy(timed=True))
            wait_for(lambda: line in caplog.text)
            # What is not timed waits for none; here it measures the same cells.
            assert counts(run(store)) == (3, 0, 0, 3)
            assert not waiting.done()
        assert counts(waiting.result()) == (0, 3, 0, 3)
    assert counts(run(store, FakeStudy(timed=True), recompute=True)) == (3, 0, 0, 3)
    assert caplog.text.count(line) == 1


def test_two_runs_into_one_folder_are_told(store, caplog):
    line = f"another run writes into '{store.root / 'fake'}': what both lack, both measure"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(run, store, parameters={"delay_s": 1.0})
        wait_for(lambda: (store.root / "fake").is_dir())
        time.sleep(0.5)
        run(store, shard=(1, 3))  # whoever parts the cells knows
        assert not caplog.records
        run(store)
        assert line in caplog.text
        first.result()
    caplog.clear()
    run(store, recompute=True)
    assert not caplog.records


@pytest.mark.parametrize("timed", [True, False])
def test_cells_that_are_timed_have_a_process_each(timed, store, tmp_path):
    """The memory that one keeps would count as that of the next."""
    study = FakeStudy(timed=timed, log=tmp_path / "log")
    assert counts(run(store, study)) == (3, 0, 0, 3)
    assert len({process for _, process in begun(tmp_path)}) == (3 if timed else 1)


@pytest.mark.parametrize(("timed", "at_once"), [(True, 1), (False, 3)])
def test_of_cells_that_are_timed_one_is_measured_at_once(timed, at_once, store, monkeypatch):
    monkeypatch.setattr(runner, "run_jobs", started := Mock(return_value=(_ for _ in ())))
    run(store, FakeStudy(timed=timed), workers=3)
    assert started.call_args.args[2] == at_once


def test_the_bar_begins_at_what_is_done(store, monkeypatch):
    def run_jobs(task, jobs, workers_at_once):
        yield from map(workers.Outcome, jobs)

    measured(store, FakeStudy())  # the first of three
    monkeypatch.setattr(runner, "run_jobs", run_jobs)
    monkeypatch.setattr(runner, "tqdm", bar := MagicMock())
    run(store)
    assert (bar.call_args.kwargs["initial"], bar.call_args.kwargs["total"]) == (1, 3)
    assert bar.return_value.update.call_count == 2


def test_other_users_can_wait_for_a_timed_study_and_without_a_lock_nobody_does(
    tmp_path, monkeypatch
):
    timed_lock = tmp_path / "lock"
    monkeypatch.setattr(runner, "TIMED_LOCK", timed_lock)
    before = os.umask(0o077)
    try:
        with runner._alone():
            assert timed_lock.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)
    monkeypatch.setattr(runner, "TIMED_LOCK", timed_lock / "of a folder that is none")
    with runner._alone(), runner._alone():
        pass


def test_shards_are_disjoint_and_together_the_matrix(store):
    parameters = {"n_cells": 7}
    parts = [plan(FakeStudy(), "smoke", parameters, (i, 3)) for i in (1, 2, 3)]
    assert [len(part) for part in parts] == [3, 2, 2]
    keys = [job.key for part in parts for job in part]
    assert sorted(keys) == sorted(job.key for job in plan(FakeStudy(), "smoke", parameters))
    assert counts(run(store, shard=(2, 3), parameters=parameters)) == (2, 0, 0, 2)
    assert sorted(store.frame("fake")["number"]) == [1, 4]


def test_the_same_cell_twice_is_measured_once(store):
    assert counts(run(store, parameters={"algos": ["ppo", "ppo"]})) == (3, 0, 0, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": {"episode": 3}}, "did you mean 'episodes'"),
        ({"parameters": {"algos": ["pppo"]}}, "unknown algorithm 'pppo'; did you mean 'ppo'"),
        ({"shard": (0, 2)}, "shard 0/2"),
        ({"shard": (3, 2)}, "shard 3/2"),
        ({"workers": 0}, "workers must be at least 1"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(store, options, message):
    with pytest.raises(QuarlError, match=message):
        run(store, **options)
    assert not store.root.exists()


def test_an_unknown_country_is_told_once_and_before_anything_runs(store, monkeypatch):
    monkeypatch.setenv("QUARL_COUNTRY", "XYZ")
    with pytest.raises(QuarlError, match="no grid intensity of country 'XYZ'"):
        run(store)
    assert not store.root.exists()


def test_a_study_that_cannot_be_sent_is_refused(store):
    @dataclass(frozen=True)
    class Locked(FakeStudy):
        lock: threading.Lock = field(default_factory=threading.Lock)

    message = "^study 'fake' cannot go to a worker process: TypeError: cannot pickle '_thread.lock'"
    with pytest.raises(QuarlError, match=message):
        run(store, Locked())


STUDY = """
import sys
from quarl_nb.runner import run_study
from quarl_nb.store import ResultStore
from quarl_nb.study import Measurement
from quarl_nb.testing import FakeStudy

class Mine(FakeStudy):
    def measure(self, cell, budget):
        return Measurement({"doubled": 2 * cell["number"]}, backend="fake")

run_study(Mine(), "smoke", ResultStore(sys.argv[1]), workers=2, progress=False)
"""


def test_a_study_may_stand_where_no_module_is_as_in_a_notebook(store):
    subprocess.run([sys.executable, "-c", STUDY, str(store.root)], check=True)
    assert store.frame("fake").sort_values("number")["doubled"].tolist() == [0, 2, 4]


def test_a_script_without_its_guard_is_told_so(store, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(STUDY)
    done = subprocess.run([sys.executable, str(script), str(store.root)], stderr=subprocess.PIPE,
                          text=True)  # fmt: skip
    error = done.stderr.strip().splitlines()[-1]
    assert done.returncode
    assert error.endswith('; a script must start a study under if __name__ == "__main__":')


def test_a_worker_that_dies_before_its_first_cell_ends_the_run(store):
    class Deadly(FakeStudy):
        def __reduce__(self):
            return os._exit, (3,)

    with pytest.raises(QuarlError, match="ended with exit code 3 before it could measure"):
        run(store, Deadly())
    assert not list(store.root.rglob("*.error.txt"))


def test_records_that_cannot_be_written_stop_the_run(tmp_path):
    (tmp_path / "records").write_text("in the way")
    with pytest.raises(QuarlError, match="cannot write to"):
        run(ResultStore(tmp_path / "records"))


def test_a_disk_that_fills_up_is_one_line(tmp_path):
    limit = ("import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
             "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))")
    done = subprocess.run(
        [sys.executable, "-B", "-c", limit + SCRIPT, tmp_path / "records", tmp_path / "log", "0"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: cannot write '") and "File too large" in lines[0]
    assert not list((tmp_path / "records").rglob("*.json"))


def start(tmp_path, delay_s):
    # A shell's background jobs, and what these start, ignore it.
    hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", hearing + SCRIPT, tmp_path / "records", tmp_path / "log",
               str(delay_s)]  # fmt: skip
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def begun(tmp_path):
    """(cell number, worker's process id) of each line of the log."""
    log = tmp_path / "log"
    text = log.read_text() if log.exists() else ""
    return [tuple(map(int, line.split())) for line in text.splitlines()]


def runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_stopped_loses_only_cells_in_flight(tmp_path, how):
    folder = tmp_path / "records" / "fake" / "smoke"
    process = start(tmp_path, 0.4)
    wait_for(lambda: len(list(folder.glob("*.json"))) >= 2)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: the workers get it too
    else:
        process.kill()
    stderr = process.communicate(timeout=30)[1]
    wait_for(lambda: not any(runs(pid) for _, pid in begun(tmp_path)))
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert stderr.startswith("interrupted") and stderr.count("\n") == 1

    finished = {path: path.read_bytes() for path in folder.glob("*.json")}
    done = {json.loads(content)["cell"]["number"] for content in finished.values()}
    assert 2 <= len(done) < 8
    assert len(ResultStore(tmp_path / "records").records("fake", "smoke")) == len(done)

    before = len(begun(tmp_path))
    again = start(tmp_path, 0.4)  # the delay is part of the budget, so of the key
    assert again.wait(timeout=60) == 0
    again.communicate()
    assert sorted(number for number, _ in begun(tmp_path)[before:]) == sorted(set(range(8)) - done)
    assert len(list(folder.glob("*.json"))) == 8
    assert all(path.read_bytes() == content for path, content in finished.items())


def test_ctrl_c_while_a_worker_is_started_leaves_none_running(store, monkeypatch, ctrl_c):
    begin = CONTEXT.Process.start

    def interrupted(self):
        begin(self)
        ctrl_c()
        time.sleep(0.2)  # tqdm's thread takes the signal, then this one is interrupted

    monkeypatch.setattr(CONTEXT.Process, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(store)
    assert not multiprocessing.active_children()


def test_a_second_ctrl_c_while_workers_are_stopped_leaves_none_running(
    store, tmp_path, monkeypatch, ctrl_c
):
    def interrupted(process, within_s, end=workers.end_child):
        ctrl_c()
        end(process, within_s)

    def interrupt():
        wait_for(lambda: len(begun(tmp_path)) == 2)
        ctrl_c()

    monkeypatch.setattr(workers, "end_child", interrupted)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(store, FakeStudy(log=tmp_path / "log"), workers=2, parameters={"delay_s": 600.0})
        assert not multiprocessing.active_children()
    finally:
        for process in multiprocessing.active_children():
            process.kill()


def test_workers_that_hear_nothing_are_waited_for_together(store, monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def late(process, within_s):
        clock.now += max(0.0, within_s)

    monkeypatch.setattr(workers, "time", clock, raising=False)
    monkeypatch.setattr(workers, "Worker", lambda task: Mock())
    monkeypatch.setattr(workers, "wait", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(workers, "end_child", ended := Mock(side_effect=late))
    with pytest.raises(KeyboardInterrupt):
        run(store, workers=3)
    assert ended.call_count == 3 and clock.now == workers.STOP_S


def test_a_worker_that_measures_is_told_to_end_before_its_pipe_closes():
    worker, told = object.__new__(workers.Worker), Mock()
    worker.connection, worker.process, worker.job = told.connection, told.process, told.job
    worker.close()
    assert told.mock_calls == [call.process.terminate(), call.connection.close()]


def test_the_runner_itself_imports_no_torch():
    code = "import sys, quarl_nb.runner; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_parameters_that_leave_nothing_to_measure_are_refused(store):
    with pytest.raises(QuarlError, match="nothing to measure: no cell of fake"):
        run(store, parameters={"n_cells": 0})
    assert counts(run(store, parameters={"n_cells": 1}, shard=(2, 2))) == (0, 0, 0, 0)


def test_a_study_may_have_no_cells(store, monkeypatch):
    monkeypatch.setattr(FakeStudy, "cells", lambda *_: [])
    assert counts(run(store)) == (0, 0, 0, 0)
