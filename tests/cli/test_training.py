"""`quarl-nb train` in several processes: shares the work, survives failures and being killed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import cloudpickle
import pytest
import torch

from quarl_nb.cli import main, training
from quarl_nb.errors import QuarlError
from quarl_nb.report.paper import published_ptq
from quarl_nb.rl import zoo
from quarl_nb.rl.checkpoint import Progress, read_progress, save_checkpoint
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import load_policy, save_policy
from quarl_nb.rl.recipes import get_recipe
from quarl_nb.rl.sb3.convert import policy_from_model
from quarl_nb.rl.train import train

PPO, A2C, DQN = (f"{algo}-CartPole-v1" for algo in ("ppo", "a2c", "dqn"))
PAPER = Path(__file__).resolve().parents[2] / "data" / "paper"
NO = os.strerror(errno.ENOTDIR)


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "data" / "policies").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nearly_done(name: str) -> None:
    """Leave a run of the untrained policy that lacks its last 64 steps."""
    recipe = get_recipe(name)
    zoo.run_folder(name).mkdir(parents=True)
    progress = Progress(timesteps=recipe.timesteps - 64)
    save_checkpoint(zoo.run_folder(name) / "checkpoint.pt", make_model(recipe, 0), progress)


def published(name: str, **provenance) -> None:
    """Publish the untrained policy."""
    net = policy_from_model(make_model(get_recipe(name), 0), env_id=get_recipe(name).env_id)
    save_policy(net, zoo.policy_folder(name), provenance)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_what_is_left_is_finished_and_what_failed_is_named(project, workers):
    for name in (PPO, A2C):
        nearly_done(name)
    zoo.run_folder(DQN).mkdir()
    (zoo.run_folder(DQN) / "checkpoint.pt").write_bytes(b"truncated")
    # In a process of its own: what forks its children was started by it, and writes where it does.
    command = [sys.executable, "-m", "quarl_nb.cli", "train", DQN, PPO, A2C, "--workers", workers]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    folders = {name: zoo.policy_folder(name) for name in (PPO, A2C)}
    assert sorted(done.stdout.splitlines()) == sorted(map(str, folders.values()))
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert re.search(f"{DQN}/checkpoint.pt' cannot be read: .*to start anew, delete it", line)
    assert not zoo.policy_folder(DQN).exists()
    for name, folder in folders.items():
        assert load_policy(folder).spec.provenance["timesteps"] >= get_recipe(name).timesteps


def test_a_trained_policy_is_not_trained_again_without_a_word(project, capfd, caplog):
    published(PPO)
    description = (zoo.policy_folder(PPO) / "policy.json").read_bytes()
    assert main(["train", PPO]) == 0
    assert caplog.messages == [f"{PPO} is already trained; --retrain trains it anew"]
    assert not capfd.readouterr().out
    assert (zoo.policy_folder(PPO) / "policy.json").read_bytes() == description
    nearly_done(PPO)
    assert main(["train", PPO, "--retrain"]) == 0
    assert capfd.readouterr().out == f"{zoo.policy_folder(PPO)}\n"
    assert (zoo.policy_folder(PPO) / "policy.json").read_bytes() != description


def test_what_is_not_done_when_the_time_is_over_is_told(project, capfd):
    assert main(["train", PPO, A2C, "--hours", "1e-12", "--workers", "1"]) == 0
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.splitlines() == [
        f"{name}: missing as the time was over; the same command goes on" for name in (PPO, A2C)
    ]


def test_the_time_is_in_hours(monkeypatch):
    monkeypatch.setattr(training, "time", SimpleNamespace(time=lambda: 1000.0))
    monkeypatch.setattr(training, "_train_together", together := Mock(return_value=0))
    assert training.train_all([PPO], 2.0, 3) == 0
    together.assert_called_once_with([PPO], 8200.0, 3)


@pytest.mark.parametrize(("options", "workers"), [
    ([], 2), (["--workers", "1"], 1), (["--workers", "2"], 2), (["--workers", "5"], 2),
])  # fmt: skip
def test_there_are_no_more_processes_than_policies(project, monkeypatch, options, workers):
    monkeypatch.setattr("quarl_nb.cli.policies.usable_cores", lambda: 4)
    monkeypatch.setattr(training, "train_all", started := Mock(return_value=0))
    assert main(["train", PPO, A2C, *options]) == 0
    started.assert_called_once_with([PPO, A2C], None, workers)


@pytest.mark.parametrize(("usable", "threads", "workers", "cores"), [
    (1, 1, 1, 1), (2, 2, 1, 2), (2, 2, 2, 1), (8, 8, 1, 2), (8, 8, 3, 2), (3, 3, 5, 1),
    (8, 1, 1, 1),  # OMP_NUM_THREADS=1
])  # fmt: skip
def test_the_cores_are_shared_out_among_the_processes(
    monkeypatch, usable, threads, workers, cores
):
    monkeypatch.setattr(training, "usable_cores", lambda: usable)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    monkeypatch.setattr(training, "_train_each", alone := Mock(return_value=0))
    process = Mock(return_value=Mock(exitcode=0, is_alive=lambda: False))
    monkeypatch.setattr(training, "CONTEXT", Mock(Process=process))
    training.train_all([PPO, A2C], None, workers)
    told = [alone.call_args.args] if workers == 1 else [c.kwargs["args"] for c in process.mock_calls
                                                        if "args" in c.kwargs]  # fmt: skip
    assert {arguments[2] for arguments in told} == {cores}


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_trainings_go_on_where_nobody_reads_of_them(project, monkeypatch, stream):
    for name in (PPO, A2C):
        nearly_done(name)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as unread, monkeypatch.context() as patch:
        patch.setattr(sys, stream, unread)
        assert main(["train", PPO, A2C, "--workers", "1"]) == 0
    assert zoo.is_settled(PPO) and zoo.is_settled(A2C)


def test_an_unexpected_error_is_one_line_and_the_exit_status(project, capfd, monkeypatch):
    def failing(recipe, run_dir, **options):
        if recipe.name == DQN:
            raise RuntimeError("the emulator is broken")
        return train(recipe, run_dir, **options)

    nearly_done(A2C)
    monkeypatch.setattr(zoo, "train", failing)
    assert main(["train", DQN, A2C, "--workers", "1"]) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines() == [str(zoo.policy_folder(A2C))]
    line = f"error: {DQN} failed: RuntimeError: the emulator is broken; see "
    assert line in captured.err and "Traceback" not in captured.err


@pytest.fixture
def table_4(monkeypatch):
    paper = published_ptq(PAPER)
    monkeypatch.setattr("quarl_nb.report.paper.published_ptq", lambda: paper)


def test_the_list_names_what_cannot_be_read_and_what_was_stopped_early(project, table_4, capsys):
    zoo.run_folder(PPO).mkdir(parents=True)
    torch.save({"format": 99}, zoo.run_folder(PPO) / "checkpoint.pt")
    published(A2C, timesteps_run=902_469, timesteps_planned=1_000_000, selection={"mean": 21.0})
    published(DQN)
    (zoo.policy_folder(DQN) / "policy.safetensors").write_bytes(b"truncated")
    assert main(["train", "--list"]) == 0
    *rows, total = capsys.readouterr().out.splitlines()
    found = {line.split()[0]: line.split(maxsplit=3)[3] for line in rows if "Table 4" in line}
    assert len(found) == 36
    assert "checkpoint.pt' cannot be read: it has format 99" in found[PPO]
    assert found[A2C] == "trained, stopped early at step 902,469 of 1,000,000"
    assert "is truncated or was changed" in found[DQN]
    assert found["dqn-QbertNoFrameskip-v4"] == "missing"
    assert total == "Table 4: 1 of 36 policies trained"
    assert main(["train", "--list", "--missing"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert {name for name in (PPO, A2C, DQN) if any(name in row for row in rows)} == {PPO, DQN}


def test_a_trained_policy_that_waits_to_be_trained_anew_is_told_and_listed(
    project, table_4, capsys
):
    published(PPO)
    nearly_done(PPO)  # by an earlier --retrain
    published(A2C)
    state = "trained; again at step 99,936 of 100,000"
    assert main(["train", PPO, A2C, "--retrain", "--hours", "1e-12", "--workers", "1"]) == 0
    told = f"{PPO}: {state} as the time was over; the same command goes on\n"
    assert capsys.readouterr().err == told
    assert main(["train", "--list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    found = {line.split()[0]: line.split(maxsplit=3)[3] for line in rows if "Table 4" in line}
    assert found[PPO] == state and found[A2C] == "trained"
    assert rows[-1] == "Table 4: 2 of 36 policies trained"


def test_the_list_of_what_is_missing_for_table_4(project, table_4, capsys):
    nearly_done(PPO)
    published(A2C)
    assert main(["train", "--list", "--missing"]) == 0
    *rows, total = capsys.readouterr().out.splitlines()
    assert total == "Table 4: 1 of 36 policies trained"
    found = {line.split()[0]: line.split(maxsplit=1)[1] for line in rows}
    assert found[PPO] == "Table 4  at step 99,936 of 100,000"
    assert A2C not in found and len([row for row in found.values() if "Table 4" in row]) == 35
    assert found["dqn-QbertNoFrameskip-v4"] == "Table 4  missing"
    assert main(["train", "--list"]) == 0
    assert f"{A2C:<36}Table 4  trained" in capsys.readouterr().out


def test_the_list_of_named_policies_is_of_these_alone(project, table_4, capsys):
    published(A2C)
    assert main(["train", PPO, A2C, PPO, "--list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [[PPO, "Table", "4", "missing"], [A2C, "Table", "4", "trained"]]
    assert main(["train", PPO, A2C, "--list", "--missing"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [PPO]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ppo-CartPole", "--list"], "unknown policy 'ppo-CartPole'; did you mean 'ppo-CartPole"),
        (["--workers", "0"], "--workers must be at least 1, not 0"),
        (["--hours", "-1"], "--hours must be finite and above 0, not -1.0"),
        (["--hours", "nan"], "--hours must be finite and above 0, not nan"),
        (["--hours", "inf"], "--hours must be finite and above 0, not inf"),
        (["ppo-QbertNoFrameskip"], "did you mean 'ppo-QbertNoFrameskip-v4'"),
    ],
)
def test_bad_input_trains_nothing(project, arguments, message, capsys):
    assert main(["train", PPO, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (project / "runs").exists()


def test_a_folder_that_cannot_be_written_is_one_line(project, capsys):
    (project / "runs").write_text("in the way")
    assert main(["train", PPO]) == 1
    assert capsys.readouterr().err == f"error: cannot write to '{zoo.run_folder(PPO)}': {NO}\n"


class ByValue:
    """A function of this file, which a child cannot import."""

    def __init__(self, function):
        self.function = function

    def __reduce__(self):
        return cloudpickle.loads, (cloudpickle.dumps(self.function),)


def test_a_training_that_is_killed_is_told(project, monkeypatch, capfd):
    def killed(queue, deadline, cores):
        if queue.get() == PPO:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(training, "_work", ByValue(killed))
    assert training.train_all([PPO, A2C], None, workers=2) == 1
    assert capfd.readouterr().err == (
        "error: a training was ended by SIGKILL (out of memory?); the same command goes on from "
        "its last checkpoint\n"
    )


def test_interrupted_workers_that_do_not_hear_it_are_killed_and_a_second_ctrl_c_leaves_none(
    project, monkeypatch, tmp_path, ctrl_c
):
    def deaf(queue, deadline, cores):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / f"{os.getpid()}.deaf").touch()
        time.sleep(1e6)

    def interrupt():
        until(lambda: len(list(tmp_path.glob("*.deaf"))) == 2)
        ctrl_c()

    def interrupted(process, within_s, end=training.end_child):
        ctrl_c()
        end(process, within_s)

    monkeypatch.setattr(training, "_work", ByValue(deaf))
    monkeypatch.setattr(training, "end_child", interrupted)
    monkeypatch.setattr(training, "STOP_S", 0.1)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            training.train_all([PPO, A2C], None, workers=2)
        assert not multiprocessing.active_children()
    finally:
        for process in multiprocessing.active_children():
            process.kill()


@pytest.mark.slow
def test_a_killed_training_leaves_no_process_and_goes_on_where_it_was(project):
    command = [sys.executable, "-m", "quarl_nb.cli", "train", PPO, A2C, "--workers", "2"]
    checkpoints = [zoo.run_folder(name) / "checkpoint.pt" for name in (PPO, A2C)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as parent:
        until(lambda: all(path.exists() for path in checkpoints))
        parent.send_signal(signal.SIGKILL)
    until(lambda: all(map(is_free, (PPO, A2C))))
    at = [read_progress(path).timesteps for path in checkpoints]
    assert min(at) >= 9_984  # the whole rollouts of 256 before the evaluation at 10,000
    assert main(["train", PPO, A2C, "--hours", str(20 / 3600), "--workers", "2"]) == 0
    for name, path, before in zip((PPO, A2C), checkpoints, at, strict=True):
        assert read_progress(path).timesteps > before or zoo.policy_folder(name).exists()


def is_free(name: str) -> bool:
    try:
        with zoo.held(zoo.run_folder(name), name):
            return True
    except QuarlError:
        return False


def until(reached, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)
