"""`quarl-nb actorq`: what it leaves when it is done, interrupted, or met an error."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import psutil
import pytest

from quarl_nb.actorq import ActorQ
from quarl_nb.actorq.actorq import ENGINES
from quarl_nb.actorq.algorithms import make_algorithm
from quarl_nb.cli import build_parser, main
from quarl_nb.errors import QuarlError
from quarl_nb.rl.checkpoint import load_checkpoint, read_progress, save_checkpoint
from quarl_nb.rl.policies import load_digest, load_policy
from quarl_nb.studies.tasks import get_task

TINY = ["--algo", "dqn", "--width", "8", "--n-actors", "1"]
SERIAL = ["actorq", "--engine", "serial", *TINY]


def test_a_run_is_summed_up_and_its_policy_and_checkpoint_saved(tmp_path, capsys):
    folder, checkpoint = tmp_path / "new" / "policy", tmp_path / "runs" / "run.pt"
    command = [*SERIAL, "--env", "CartPole-v1", "--to", str(folder)]
    command += ["--checkpoint", str(checkpoint)]
    assert main([*command, "--steps", "200"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("200 steps and ") and out.endswith(f"policy: {folder}\n")
    made = load_policy(folder).spec
    assert made.env_id == "CartPole-v1"
    assert (made.provenance["timesteps"], made.provenance["precision"]) == (200, "int8")
    assert sorted(path.name for path in folder.iterdir()) == ["policy.json", "policy.safetensors"]
    assert main([*command, "--steps", "300"]) == 0
    assert capsys.readouterr().out.startswith("300 steps and ")
    assert read_progress(checkpoint).done and read_progress(checkpoint).timesteps == 300


def test_a_run_too_short_to_learn_anything_says_so(capsys):
    assert main([*SERIAL, "--env", "CartPole-v1", "--steps", "50"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("50 steps and 0 updates") and "nothing was learned" in out


def test_a_run_tells_of_as_many_episodes_as_ended(capsys):
    assert main([*SERIAL, "--env", "Pendulum-v1", "--algo", "ddpg", "--steps", "150"]) == 0
    assert "\nno episode ended\n" in capsys.readouterr().out  # of 200 steps
    assert main([*SERIAL, "--env", "Pendulum-v1", "--algo", "ddpg", "--steps", "450"]) == 0
    assert "\nmean return of the last 2 episodes: -" in capsys.readouterr().out


def test_an_error_leaves_what_was_done_until_then(tmp_path, capsys, broken_env):
    folder, checkpoint = tmp_path / "policy", tmp_path / "run.pt"
    command = [*SERIAL, "--env", broken_env, "--to", str(folder), "--checkpoint", str(checkpoint)]
    assert main([*command, "--steps", "1000"]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("150 steps and ")  # three messages of 50
    assert captured.err == "error: environment raised ZeroDivisionError: no such wind\n"
    assert load_policy(folder).spec.provenance["timesteps"] == 150
    progress = read_progress(checkpoint)
    assert progress.timesteps == 150 and not progress.done


def test_the_record_holds_what_was_measured_until_an_error_too(tmp_path, capsys, broken_env):
    for env_id, steps, status, stopped in [
        ("CartPole-v1", 200, 0, "done"),
        (broken_env, 150, 2, "environment raised ZeroDivisionError: no such wind"),
    ]:
        file = tmp_path / "new" / f"{env_id}.json"
        command = [*SERIAL, "--env", env_id, "--steps", "200", "--record", str(file)]
        assert main(command) == status
        assert capsys.readouterr().out.endswith(f"record: {file}\n")
        record = json.loads(file.read_text())
        measured = record["measured"]
        assert (measured["steps"], measured["stopped"]) == (steps, stopped)
        assert 0 < sum(measured["episodes"]["length"]) <= steps
        assert measured["actor_s"]["environment"] > 0 and record["energy"]["cpu_s"] > 0
        assert record["settings"]["env"] == env_id and record["settings"]["precision"] == "int8"
        assert "packages" in record["provenance"]


def test_a_gpu_that_fails_takes_the_policy_but_not_the_record(
    tmp_path, capsys, broken_env, monkeypatch
):
    """After a sticky error of CUDA every tensor on that GPU raises one."""
    def unreadable(model):
        raise RuntimeError("CUDA error: unspecified launch failure\nCompile with ...")

    for module in ("rl.checkpoint", "actorq.run"):
        monkeypatch.setattr(f"quarl_nb.{module}.has_finite_weights", unreadable)
    folder, file = tmp_path / "policy", tmp_path / "run.json"
    command = [*SERIAL, "--env", broken_env, "--to", str(folder), "--record", str(file)]
    assert main([*command, "--checkpoint", str(tmp_path / "run.pt"), "--steps", "200"]) == 2
    captured = capsys.readouterr()
    assert captured.err.endswith("error: environment raised ZeroDivisionError: no such wind\n")
    assert json.loads(file.read_text())["measured"]["steps"] == 150
    assert not folder.exists()


def test_the_record_of_a_run_on_ray_holds_no_energy_for_it_would_lack_the_actors(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(ENGINES, "ray", ENGINES["serial"])  # without a cluster
    file = tmp_path / "run.json"
    command = ["actorq", "--engine", "ray", *TINY, "--env", "CartPole-v1", "--steps", "100"]
    assert main([*command, "--record", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["settings"]["engine"] == "ray" and record["measured"]["steps"] >= 100
    assert record["energy"] == {}


def test_the_record_tells_what_ran_as_of_when_the_run_began(tmp_path, monkeypatch):
    moments = []

    def collect():
        moments.append("collected")
        return {"git_commit": "of then"}

    def learn(self, steps, whole=ActorQ.learn):
        moments.append("trained")
        return whole(self, steps)

    monkeypatch.setattr("quarl_nb.provenance.collect", collect)
    monkeypatch.setattr(ActorQ, "learn", learn)
    file = tmp_path / "run.json"
    command = [*SERIAL, "--env", "CartPole-v1", "--steps", "100", "--record", str(file)]
    assert main(command) == 0
    assert moments == ["collected", "trained"]
    assert json.loads(file.read_text())["provenance"] == {"git_commit": "of then"}


@pytest.mark.parametrize("option, name", [
    ("--to", "file"), ("--checkpoint", "file/run.pt"), ("--record", "file/run.json"),
])  # fmt: skip
def test_a_folder_that_cannot_be_written_is_told_before_training(tmp_path, capsys, option, name):
    (tmp_path / "file").write_text("in the way")
    assert main([*SERIAL, "--env", "CartPole-v1", option, str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: cannot write to '{tmp_path / 'file'}': File exists\n"


def test_a_record_that_is_a_folder_is_told_before_training(tmp_path, capsys):
    assert main([*SERIAL, "--env", "CartPole-v1", "--record", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: cannot write to '{tmp_path}': a folder\n")


def test_the_record_of_a_resumed_run_says_where_it_began(tmp_path, capsys):
    file = tmp_path / "run.json"
    command = [*SERIAL, "--env", "CartPole-v1", "--record", str(file)]
    command += ["--checkpoint", str(tmp_path / "run.pt"), "--steps"]
    began, episodes = [], []
    for steps in (200, 300, 300):
        assert main([*command, str(steps)]) == 0
        measured = json.loads(file.read_text())["measured"]
        began.append((measured["resumed_at"], measured["steps"]))
        episodes.append(measured["episodes"])
        assert 0 < sum(measured["episodes"]["length"])
    first = json.loads((tmp_path / "run.until-200.json").read_text())["measured"]
    assert first["steps"] == 200 and first["episodes"] == episodes[0] != episodes[1]
    assert began == [(0, 200), (200, 300), (200, 300)]  # the last had nothing to do
    out = capsys.readouterr().out
    assert out.endswith("nothing was left to do: 300 steps were made before\n") and "nan" not in out


def test_a_checkpoint_that_stood_still_loses_no_record_of_before_it(tmp_path):
    record, checkpoint = tmp_path / "run.json", tmp_path / "run.pt"
    command = [*SERIAL, "--env", "CartPole-v1", "--record", str(record),
               "--checkpoint", str(checkpoint), "--steps"]  # fmt: skip
    assert main([*command, "200"]) == 0
    stood_still = checkpoint.read_bytes()  # as where the weights became NaN after it
    for steps in (300, 400):
        checkpoint.write_bytes(stood_still)
        assert main([*command, str(steps)]) == 0
    found = [json.loads((tmp_path / name).read_text())["measured"]["steps"]
             for name in ("run.until-200.json", "run.until-200-2.json", "run.json")]  # fmt: skip
    assert found == [200, 300, 400]


def test_a_finished_run_leaves_its_policy_as_it_was_trained(tmp_path, capsys):
    folder = tmp_path / "policy"
    command = [*SERIAL, "--env", "CartPole-v1", "--steps", "200",
               "--checkpoint", str(tmp_path / "run.pt"), "--to"]  # fmt: skip
    assert main([*command, str(folder)]) == 0
    before = json.loads((folder / "policy.json").read_text())
    assert main([*command, str(folder), "--precision", "fp32"]) == 0
    assert json.loads((folder / "policy.json").read_text()) == before
    # Into a new folder it is saved, without the settings of a run that made none of its steps.
    assert main([*command, str(tmp_path / "copy"), "--precision", "fp32"]) == 0
    copy = (tmp_path / "copy" / "policy.json").read_text()
    assert "fp32" not in copy and '"precision"' not in copy


def test_a_finished_run_replaces_the_policy_of_an_earlier_part(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    command = [*SERIAL, "--env", "CartPole-v1", "--checkpoint", str(tmp_path / "run.pt")]
    assert main([*command, "--steps", "1300", "--to", str(old)]) == 0
    assert main([*command, "--steps", "1600", "--to", str(new)]) == 0
    trained = json.loads((new / "policy.json").read_text())["spec"]["provenance"]
    assert (trained["timesteps"], trained["resumed_at"]) == (1600, 1300)
    assert load_digest(old) != load_digest(new)
    capsys.readouterr()
    assert main([*command, "--steps", "1600", "--to", str(old)]) == 0
    told = f"nothing was left to do: 1,600 steps were made before\npolicy: {old}\n"
    assert capsys.readouterr().out == told
    assert load_digest(old) == load_digest(new)


def test_updates_that_a_finished_run_still_owed_are_in_its_policy(tmp_path, capsys):
    folder, checkpoint = tmp_path / "policy", tmp_path / "run.pt"
    # No task of the studies, whose learning rates have fallen to 0 by the end.
    command = [*SERIAL, "--env", "MountainCar-v0", "--steps", "1100",
               "--checkpoint", str(checkpoint), "--to", str(folder)]  # fmt: skip
    assert main(command) == 0
    before, learner = load_digest(folder), make_algorithm("dqn", "MountainCar-v0", 8)
    # As one that was killed before its last updates.
    progress = replace(load_checkpoint(checkpoint, learner), ahead=-10.0 * learner.batch_size)
    save_checkpoint(checkpoint, learner, progress)
    capsys.readouterr()
    assert main(command) == 0
    updates = read_progress(checkpoint).updates
    assert capsys.readouterr().out.startswith(f"1,100 steps and {updates} updates in ")
    assert updates > progress.updates
    assert load_digest(folder) != before


def test_a_checkpoint_that_is_a_folder_or_of_another_network_is_one_line(tmp_path, capsys):
    command = [*SERIAL, "--env", "CartPole-v1", "--steps", "100", "--checkpoint"]
    assert main([*command, str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: cannot write to '{tmp_path}': a folder\n"
    path = str(tmp_path / "run.pt")
    assert main([*command, path]) == 0
    capsys.readouterr()
    assert main([*command, path, "--width", "5"]) == 2
    told = f"error: checkpoint '{path}' cannot be read: it is of another network or environment; "
    assert capsys.readouterr().err.startswith(told)


def test_a_new_folder_is_left_only_with_a_policy_in_it(tmp_path, capsys, monkeypatch):
    def interrupted(task):
        raise KeyboardInterrupt

    command, new = [*SERIAL, "--env", "CartPole-v1", "--to"], tmp_path / "new"
    assert main([*command, str(new), "--steps", "0"]) == 2 and not new.exists()
    monkeypatch.setattr("quarl_nb.actorq.serial.Actor", interrupted)
    record = new / "run.json"
    assert main([*command, str(new), "--record", str(record)]) == 130 and not new.exists()
    new.mkdir()  # by the user
    assert main([*command, str(new)]) == 130 and new.is_dir()


def test_what_is_stopped_before_its_first_step_leaves_an_earlier_policy_alone(
    tmp_path, capsys, monkeypatch
):
    folder, file = tmp_path / "policy", tmp_path / "run.json"
    command = [*SERIAL, "--env", "CartPole-v1", "--steps", "200", "--to", str(folder)]
    assert main(command) == 0
    before = (folder / "policy.safetensors").read_bytes()
    capsys.readouterr()

    def interrupted(task):
        raise KeyboardInterrupt

    monkeypatch.setattr("quarl_nb.actorq.serial.Actor", interrupted)
    checkpoint = tmp_path / "run.pt"
    command += ["--checkpoint", str(checkpoint)]
    assert main([*command, "--seed", "1", "--record", str(file)]) == 130
    assert not checkpoint.exists()
    assert (folder / "policy.safetensors").read_bytes() == before and not file.exists()
    assert capsys.readouterr().out == "interrupted before the first step: nothing to save\n"


def test_ctrl_c_while_a_run_is_saved_loses_none_of_it(
    tmp_path, capsys, monkeypatch, ctrl_c, broken_env
):
    def interrupted(place):
        def save(*arguments):
            ctrl_c()
            return whole(*arguments)

        module, name = place.rsplit(".", 1)
        whole = getattr(importlib.import_module(module), name)
        monkeypatch.setattr(place, save)

    for place in (
        "actorq.run.save_checkpoint", "rl.policies.save_policy", "cli.actorq.write_atomically",
    ):  # fmt: skip
        interrupted(f"quarl_nb.{place}")
    for env_id, steps, status, stopped in [
        ("CartPole-v1", 200, 130, "interrupted"),
        (broken_env, 150, 2, "environment raised ZeroDivisionError: no such wind"),
    ]:
        checkpoint, folder, file = (tmp_path / f"{env_id}{name}" for name in (".pt", "", ".json"))
        command = [*SERIAL, "--env", env_id, "--steps", "200", "--to", str(folder)]
        command += ["--checkpoint", str(checkpoint), "--record", str(file)]
        assert main(command) == status
        captured = capsys.readouterr()
        assert captured.out.endswith(f"record: {file}\npolicy: {folder}\n")
        assert captured.err == ("interrupted\n" if status == 130 else f"error: {stopped}\n")
        assert read_progress(checkpoint).timesteps == steps
        assert load_policy(folder).spec.provenance["timesteps"] == steps
        assert json.loads(file.read_text())["measured"]["stopped"] == stopped


@pytest.mark.parametrize(("more", "expected"), [
    (["--env", "rescaled:MountainCar-v0", "--algo", "dqn"],  # as the study has it
     (2048, 1000, 0.4, True)),
    (["--env", "rescaled:MountainCar-v0", "--algo", "dqn", "--width", "8", "--no-ez-greedy"],
     (8, 1000, 0.4, False)),
    (["--env", "Pendulum-v1", "--algo", "td3"], (2048, 1000, 16.0, False)),  # the paper's
])  # fmt: skip
def test_a_task_of_the_studies_is_run_as_they_do(more, expected, monkeypatch):
    found = {}

    class Stop(Exception):
        pass

    def make(*arguments, **options):
        found["width"], found["options"] = arguments[2], options
        raise Stop

    names = ("width", "pull_period", "samples_per_insert", "ez_greedy")
    options = build_parser().parse_args(["actorq", *more])
    monkeypatch.setattr("quarl_nb.actorq.algorithms.make_algorithm", make)
    with pytest.raises(Stop):
        options.command(options)
    assert tuple(getattr(options, name) for name in names) == expected
    assert found["width"] == expected[0]
    tuned = "rescaled:MountainCar-v0" in more
    own = {"ez_greedy": True, **found["options"]}
    assert own == (get_task("rescaled:MountainCar-v0").options if tuned else {"ez_greedy": True})
    assert options.steps == (300_000 if tuned else 40_000)


@pytest.mark.parametrize(("more", "width", "gpus"), [
    (["--env", "dm:walker-stand", "--algo", "d4pg"], 1024, False),
    (["--env", "dm:walker-stand", "--algo", "d4pg", "--device", "cuda"], 2048, True),
    (["--env", "dm:walker-stand", "--algo", "td3"], 2048, False),  # no task of the studies
])  # fmt: skip
def test_a_task_is_run_as_the_studies_do_on_that_device_by_that_algorithm(
    more, width, gpus, monkeypatch
):
    made = Mock(side_effect=QuarlError("made"))
    monkeypatch.setattr("quarl_nb.actorq.algorithms.make_algorithm", made)
    monkeypatch.setattr("quarl_nb.energy.EnergyMeter", meter := Mock())
    assert main(["actorq", *more]) == 2
    assert made.call_args.args[2] == width
    meter.assert_called_once_with(gpus=gpus)


def test_options_of_the_algorithm_are_set_in_place_of_the_tasks_and_recorded(
    tmp_path, monkeypatch
):
    learners = []

    def learn(self, steps, whole=ActorQ.learn):
        learners.append(self.algorithm)
        return whole(self, steps)

    monkeypatch.setattr(ActorQ, "learn", learn)
    file = tmp_path / "run.json"
    for env_id, of_task in (("dm:cartpole-balance", get_task("dm:cartpole-balance").options),
                            ("Pendulum-v1", {})):  # fmt: skip
        command = [*SERIAL, "--env", env_id, "--algo", "d4pg", "--steps", "50"]
        given = {"v_min": -2000.0, "v_max": 5.0, "actor_learning_rate": "lin_1e-4"}
        command += [f"--set={name}={value}" for name, value in given.items()]
        assert main([*command, "--set", "v_max=7", "--record", str(file)]) == 0
        atoms = learners.pop().critic.atoms
        assert (atoms[0], atoms[-1]) == (-2000, 7)
        given["v_max"] = 7.0  # the last one counts
        assert json.loads(file.read_text())["settings"]["options"] == {**of_task, **given}


@pytest.mark.parametrize("value", ["0.5", "auto_0.5"])
def test_an_option_that_is_a_word_may_be_a_number(value, tmp_path):
    file = tmp_path / "run.json"
    command = [*SERIAL, "--env", "Pendulum-v1", "--algo", "sac", "--steps", "50", "--width", "8"]
    assert main([*command, f"--set=ent_coef={value}", "--record", str(file)]) == 0
    assert str(json.loads(file.read_text())["settings"]["options"]["ent_coef"]) == value


def test_weights_are_sent_in_the_precision_of_communication(tmp_path):
    file, sizes = tmp_path / "run.json", {}
    for communication in (None, "fp16", "affine4"):
        command = [*SERIAL, "--env", "CartPole-v1", "--steps", "50", "--precision", "fp32",
                   "--width", "256", "--record", str(file)]  # fmt: skip
        assert main(command + ["--communication", str(communication)] * bool(communication)) == 0
        record = json.loads(file.read_text())
        assert record["settings"]["communication"] == communication
        sizes[communication] = record["measured"]["payload_bytes"]
    assert 1.8 < sizes[None] / sizes["fp16"] < 2.1 and 7 < sizes[None] / sizes["affine4"] < 8.1


KNOWN = ("learning_rate, buffer_size, learning_starts, batch_size, tau, gamma, n_steps, "
         "actor_learning_rate, target_update_period, n_atoms, v_min, v_max, max_grad_norm, "
         "max_dqda_norm")  # fmt: skip


@pytest.mark.parametrize(("given", "message"), [
    ("--set=vmax=3", f"unknown option of d4pg 'vmax'; did you mean 'v_max'? allowed: {KNOWN}"),
    ("--set=policy_delay=2", f"unknown option of d4pg 'policy_delay'; allowed: {KNOWN}"),
    ("--set=train_freq=4", f"unknown option of d4pg 'train_freq'; allowed: {KNOWN}"),  # no effect
    ("--set=seed=3", "--set seed: the command has --seed for that"),
    ("--set=ez_greedy=true", "--set ez_greedy: the command has --ez-greedy for that"),
    ("--set=v_max", "--set 'v_max' is not NAME=VALUE"),
    ("--set=v_max=high", "option v_max must be float, not 'high'"),
    ("--set=n_steps=2.5", "option n_steps must be int, not 2.5"),
    ("--set=gamma=null", "option gamma must be float, not None"),
    ("--set=learning_rate=fast",
     "learning rate 'fast' is no number, nor like 'lin_3e-4' or 'warm_3e-4'"),
    ("--communication=int9", "unknown precision 'int9'; allowed: fp32, fp16, bf16, int8, int4, "
     "affine2..affine16, legacy2..legacy16"),
])  # fmt: skip
def test_an_option_that_there_is_not_is_one_line(given, message, tmp_path, capsys):
    command = [*SERIAL, "--env", "Pendulum-v1", "--algo", "d4pg", given]
    assert main([*command, "--to", str(tmp_path / "new")]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {message}\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("algo", "given", "message"), [
    ("td3", "policy_delay=0", "policy_delay must be at least 1, not 0"),
    ("td3", "target_policy_noise=-0.1", "target_policy_noise must be at least 0, not -0.1"),
    ("sac", "target_update_interval=0", "target_update_interval must be at least 1, not 0"),
    ("sac", "tau=-1", "tau must be from 0 to 1, not -1.0"),
    ("ddpg", "gamma=7", "gamma must be from 0 to 1, not 7.0"),
    ("ddpg", "n_steps=0", "n_steps must be at least 1, not 0"),
    ("dqn", "learning_starts=-5", "learning_starts must be at least 0, not -5"),
    ("dqn", "buffer_size=-4", "buffer_size must be at least 1, not -4"),
    ("dqn", "exploration_fraction=-1", "exploration_fraction must be from 0 to 1, not -1.0"),
    ("dqn", "max_grad_norm=-1", "max_grad_norm must be above 0, not -1.0"),
])  # fmt: skip
def test_an_option_out_of_its_range_is_one_line(algo, given, message, capsys):
    """SB3 takes them, and fails when the buffer is warm or trains something else."""
    env_id = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    assert main([*SERIAL, "--env", env_id, "--algo", algo, "--set", given]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_no_steps_are_refused(capsys):
    assert main([*SERIAL, "--env", "CartPole-v1", "--steps", "0"]) == 2
    assert capsys.readouterr().err == "error: total_steps must be at least 1, not 0\n"


@pytest.mark.parametrize(("option", "value", "message"), [
    ("--device", "bogus", "unknown device 'bogus'; allowed: cpu, cuda"),
    ("--seed", "-1", "seed must be from 0 to 2147483647, not -1"),
])  # fmt: skip
def test_a_device_or_seed_that_there_is_not_is_one_line(option, value, message, capsys):
    assert main([*SERIAL, "--env", "CartPole-v1", option, value]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_an_unknown_country_is_told_before_the_learner_is_made(monkeypatch, capsys):
    monkeypatch.setenv("QUARL_COUNTRY", "XYZ")
    assert main([*SERIAL, "--env", "CartPol-v1"]) == 2  # nor the environment looked for
    assert capsys.readouterr().err.startswith("error: no grid intensity of country 'XYZ'; ")


def test_a_precision_of_the_other_runtime_is_told_with_it(capsys):
    assert main([*SERIAL, "--env", "CartPole-v1", "--precision", "fp16"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.endswith(
        "allowed: fp32, int8, int4; with runtime torch: fp16, bf16\n"
    )


class Odd(gym.Env):
    """Begins with three numbers, whatever its space says."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}


BOX = gym.spaces.Box(-1, 1, (4,), np.float32)


@pytest.mark.parametrize(("space", "message"), [
    (gym.spaces.Dict({"wind": BOX}), "unsupported observation space Dict; known: Box"),
    (BOX, "environment raised ValueError: could not broadcast input array from shape (3,) into "
          "shape (4,)"),
    (gym.spaces.Box(0, 255, (84, 84, 1), np.uint8), "Odd-v0 shows images, and these networks take "
     "vectors: hand a DQN('CnnPolicy', ...) of your own to ActorQ"),
])  # fmt: skip
def test_observations_that_no_learner_can_take_are_one_line(space, message, capsys):
    gym.register("Odd-v0", Odd, kwargs={"space": space}, disable_env_checker=True)
    try:
        assert main([*SERIAL, "--env", "Odd-v0"]) == 2
    finally:
        del gym.registry["Odd-v0"]
    assert capsys.readouterr().err == f"error: {message}\n"


SCRIPT = """
    import sys
    from quarl_nb.actorq.run import Run
    from quarl_nb.cli import main

    def receive(self, transitions, receive=Run.receive):
        receive(self, transitions)
        print("received", flush=True)

    if __name__ == "__main__":
        Run.receive = receive
        sys.exit(main())
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_with_130_a_summary_and_no_orphans(ending, tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "policy"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), "actorq", "--env", "CartPole-v1", *TINY]
    command += ["--steps", "10000000", "--to", str(folder)]
    # A terminal sends its signal to all of its foreground group, a batch system to all of a job.
    # Ctrl-C reaches a child also where these tests run in a shell's background, which ignores it.
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    for _ in range(10):
        assert running.stdout.readline() == "received\n"
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 2
    os.killpg(running.pid, ending)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130 and "Traceback" not in err
    summary = out.replace("received\n", "")
    assert " steps and " in summary and summary.endswith(f"policy: {folder}\n")
    assert load_policy(folder).spec.provenance["timesteps"] >= 500
    assert not psutil.wait_procs(children, timeout=10)[1]


def saving(tmp_path):
    """A short run's folder, record and command."""
    folder, file = tmp_path / "policy", tmp_path / "run.json"
    return folder, file, [*SERIAL, "--env", "CartPole-v1", "--steps", "200", "--to", str(folder),
                          "--record", str(file)]  # fmt: skip


def test_a_record_that_cannot_be_written_costs_no_policy(tmp_path, capsys, monkeypatch):
    def full(path, content):
        raise QuarlError(f"cannot write '{path}': No space left on device")

    folder, file, command = saving(tmp_path)
    monkeypatch.setattr("quarl_nb.cli.actorq.write_atomically", full)
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.err == f"error: cannot write '{file}': No space left on device\n"
    assert captured.out.startswith("200 steps") and captured.out.endswith(f"policy: {folder}\n")
    assert load_policy(folder).spec.provenance["timesteps"] == 200


def test_a_reader_that_is_gone_costs_neither_record_nor_policy(tmp_path, monkeypatch):
    def gone(result):
        raise BrokenPipeError

    folder, file, command = saving(tmp_path)
    monkeypatch.setattr("quarl_nb.cli.actorq._print_result", gone)
    options = build_parser().parse_args(command)
    with pytest.raises(BrokenPipeError):
        options.command(options)
    assert load_policy(folder).spec.provenance["timesteps"] == 200
    assert json.loads(file.read_text())["measured"]["steps"] == 200


@pytest.mark.parametrize("names", [("--record", "--checkpoint"), ("--checkpoint", "--to")])
@pytest.mark.parametrize("written", ["policy.json", "policy.safetensors"])
def test_a_file_is_not_named_twice(tmp_path, capsys, names, written):
    path = tmp_path / "policy" / written
    places = {"--to": path.parent}
    command = [*SERIAL, "--env", "CartPole-v1"]
    for name in names:
        command += [name, str(places.get(name, path))]
    assert main(command) == 2
    assert capsys.readouterr().err == (
        f"error: '{path}' is named twice: --record, --checkpoint and --to write files of their "
        "own\n"
    )
    assert not path.parent.exists()
