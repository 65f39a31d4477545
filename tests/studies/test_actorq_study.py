import json
import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from quarl_nb.actorq.algorithms import ALGORITHMS, make_algorithm, options_of
from quarl_nb.errors import QuarlError
from quarl_nb.processes import CONTEXT
from quarl_nb.report.actorq.knobs import papers_setting
from quarl_nb.report.paper import published
from quarl_nb.rl.policies import save_policy
from quarl_nb.rl.sb3.convert import policy_from_model
from quarl_nb.runner import plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies import actorq_training
from quarl_nb.studies.actorq import RUNTIME, SCALING, SPEEDUP, STALENESS
from quarl_nb.studies.actorq_training import train_evaluated
from quarl_nb.studies.tasks import TASKS, Task


def test_the_tasks_are_those_of_tables_2_and_3():
    table_2 = published("table2")
    assert {task.published for task in TASKS.values()} == set(table_2["task"])
    steps = published("table3").query("quantity == 'steps_trained'")
    ours = {task.env_id: task.steps for task in TASKS.values()}
    # Those that need more, see `Task`.
    longer = {"dm:cartpole-balance": 40_000, "dm:walker-stand": 40_000,
              "CartPole-v1": 60_000, "Acrobot-v1": 100_000,
              "rescaled:MountainCar-v0": 200_000}  # fmt: skip
    assert all(ours.pop(env_id) > published for env_id, published in longer.items())
    assert sorted([*longer.values(), *ours.values()]) == sorted(steps["value"].astype(int))
    pulls = published("table3").query("quantity == 'pull_period'")
    periods = {task.env_id: task.pull_period for task in TASKS.values()}
    assert sorted(periods.values()) == sorted(pulls["value"].astype(int))


def test_a_cell_is_one_run_from_actors_to_records(tmp_path):
    store = ResultStore(tmp_path)
    summary = run_study(
        SPEEDUP, "smoke", store, progress=False,
        parameters={"actors": ["int8/onnxruntime"], "steps": 1500},
    )  # fmt: skip
    assert (summary.done, summary.failed) == (1, 0)
    (record,) = store.records("actorq", "smoke")
    measured, arrays = record["measured"], store.arrays(record)
    assert measured["steps"] >= 1500 and measured["updates"] > 10 and measured["run_s"] > 0
    assert measured["curve_steps"][0] == 0 and measured["curve_steps"][-1] == measured["steps"]
    assert np.shape(measured["curve_returns"]) == (3, 2)
    for role in ("learner", "actors", "quantizer"):
        spent = measured["curve_cpu_s"][role]
        assert len(spent) == 3 and (np.diff(spent) >= 0).all() and spent[-1] > 0
        assert spent[-1] == measured["cpu_s"][role] < record["energy"]["cpu_s"]
    assert measured["pulls"] >= 14 and measured["payload_bytes"] < 6000
    assert len(arrays["episode_wall_s"]) == measured["episodes_finished"] > 20
    assert len(arrays["ages"]) == measured["messages"] and arrays["ages"].min() >= 0
    run, cell = measured["run_energy"], record["energy"]
    assert 0 < run["cpu_s"] < cell["cpu_s"] and 0 < run["energy_j"] < cell["energy_j"]
    assert measured["run_s"] < run["wall_s"] < record["wall_s"]
    assert record["extra"] == {"device_name": None}
    assert set(measured["actor_s"]) >= {"environment", "inference", "pull", "load", "wait"}
    assert record["cell"]["pull_period"] == 100 and record["cell"]["communication"] == "int8"


def test_zero_stands_for_the_tasks_own_setting():
    own = {"tasks": ["CartPole-v1", "dm:humanoid-stand"], "actors": ["int8/onnxruntime"],
           "pull_periods": [0], "widths": [0], "samples_per_insert": [0.0]}  # fmt: skip
    cells = [cell for cell, _ in SPEEDUP.cells(SPEEDUP.profiles["smoke"] | own)]
    knobs = ("width", "pull_period", "samples_per_insert")
    assert [[cell[knob] for knob in knobs] for cell in cells] == [[2048, 1000, 0.4], [2048, 100, 1]]
    asked = own | {"widths": [8], "samples_per_insert": [2.0], "pull_periods": [5]}
    cells = [cell for cell, _ in SPEEDUP.cells(SPEEDUP.profiles["smoke"] | asked)]
    assert [[cell[knob] for knob in knobs] for cell in cells] == [[8, 5, 2], [8, 5, 2]]


def test_a_gpu_that_is_not_there_is_told_before_any_cell(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(QuarlError, match="'cuda' was asked for, but torch finds no CUDA GPU"):
        SPEEDUP.cells(SPEEDUP.profiles["full"] | {"device": "cuda"})


@pytest.fixture
def gpu(monkeypatch):
    """One is found; nothing may run on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.mark.usefixtures("gpu")
def test_a_learner_on_a_gpu_trains_every_task_as_the_paper_did():
    own = {"tasks": [*TASKS], "actors": ["int8/onnxruntime"], "n_actors": [4], "steps": 0,
           "pull_periods": [0], "widths": [0], "samples_per_insert": [0.0], "autocast": "",
           "device": "cuda", "seeds": [0]}  # fmt: skip
    cells = SPEEDUP.cells(SPEEDUP.profiles["full"] | own)
    rows = pd.DataFrame([
        cell | {"batch_size": budget["options"]["batch_size"]}
        | {f"budget.{name}": budget[name] for name in ("device", "autocast", "steps")}
        for cell, budget in cells
    ])  # fmt: skip
    assert papers_setting(rows).all() and len(rows) == len(TASKS) == 11
    table = published("table3").set_index(["task", "quantity"])["value"]
    for _, row in rows.iterrows():
        # "Cartpole", "MountainCar": Gym's have other names in Table 2.
        name = row["task"].removesuffix(" (Gym)").replace("Mountain Car", "MountainCar")
        steps = int(table[name, "steps_trained"])
        # Which are too few, as steps of the environment, where they were tried.
        longer = {"Cartpole Balance": 100_000, "Cartpole": 200_000}
        assert row["budget.steps"] == longer.get(name, steps) >= steps
        assert row["pull_period"] == int(table[name, "pull_period"])


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_learner_on_a_processor_has_the_tasks_own_settings(device):
    assert all(task.on(device) is task for task in TASKS.values())
    assert TASKS["CartPole-v1"].on("cuda:0") == TASKS["CartPole-v1"].on("cuda")


def test_a_tasks_options_go_to_its_algorithm_and_those_of_actors_to_actorq(monkeypatch):
    class Stop(Exception):
        pass

    def train(algorithm, env_id, budget, processes, **settings):
        raise Stop(algorithm.gamma, env_id, settings["ez_greedy"], settings["reopen"])

    monkeypatch.setattr("quarl_nb.studies.actorq.train_evaluated", train)
    asked = {"tasks": ["rescaled:MountainCar-v0"], "widths": [8], "options": {"gamma": 0.5}}
    cell, budget = SPEEDUP.cells(SPEEDUP.profiles["smoke"] | asked)[0]
    with pytest.raises(Stop) as caught:
        SPEEDUP.measure(cell, budget)
    assert caught.value.args == (0.5, "rescaled:MountainCar-v0", True, False)


@pytest.mark.parametrize(("env_id", "algo"), [("CartPole-v1", "dqn"), ("Pendulum-v1", "d4pg")])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_another_learner_loads_the_kernels_first(env_id, algo, device, monkeypatch):
    """`cuda` stands for one here: both learners are made on the processor."""
    made = []

    def make(algo, env_id, width, seed, device, autocast, **options):
        made.append(make_algorithm(algo, env_id, width, seed, "cpu", autocast, **options))
        return made[-1]

    def train(algorithm, *_, **__):
        assert algorithm is made[-1] and not algorithm._n_updates
        raise QuarlError("stop")

    monkeypatch.setattr("quarl_nb.studies.actorq.make_algorithm", make)
    monkeypatch.setattr("quarl_nb.studies.actorq.train_evaluated", train)
    monkeypatch.setattr("quarl_nb.studies.actorq.get_task", lambda env_id: Task(
        env_id, algo, "a task", 100, options={"n_steps": 3, "batch_size": 8}))
    monkeypatch.setattr("quarl_nb.studies.actorq.check_device", lambda device: None)
    asked = {"tasks": [env_id], "widths": [8], "device": device, "seeds": [0, 1]}
    for cell, budget in SPEEDUP.cells(SPEEDUP.profiles["smoke"] | asked):
        with pytest.raises(QuarlError, match="stop"):
            SPEEDUP.measure(cell, budget)
    first = [learner._n_updates > 0 for learner in made]
    assert first == ([True] if device == "cuda" else []) + [False] * 4


def test_a_run_that_failed_leaves_what_was_measured_until_then(broken_env):
    budget = {"steps": 1000, "evaluations": 0, "episodes": 1}
    learner = make_algorithm("dqn", broken_env, width=8)
    with pytest.raises(QuarlError, match="no such wind") as caught:
        train_evaluated(learner, broken_env, budget, engine="serial", n_actors=1)
    (note,) = caught.value.__notes__
    measured = json.loads(note.removeprefix("Until then: "))
    assert measured["steps"] == 150 and measured["stopped"].endswith("no such wind")
    assert 0 < sum(measured["episodes"]["length"]) <= 150


def curve_of_a_short_run(processes):
    budget = {"steps": 300, "evaluations": 2, "episodes": 3}
    learner = make_algorithm("dqn", "CartPole-v1", width=8)
    options = {"engine": "serial", "n_actors": 1, "samples_per_insert": 1.0}
    _, curve = train_evaluated(learner, "CartPole-v1", budget, processes, **options)
    return curve["curve_returns"]


@pytest.fixture
def evaluators(monkeypatch):
    """None at first, those of the test only; a function that gives their process numbers."""
    monkeypatch.setattr(actorq_training, "START_S", 0.0)
    actorq_training._evaluators.cache_clear()
    yield lambda: {*actorq_training._evaluators(2)._processes}
    actorq_training._evaluators(2).shutdown()
    actorq_training._evaluators.cache_clear()


def test_policies_along_a_run_are_evaluated_alike_by_one_process_and_by_several(evaluators):
    curves = [curve_of_a_short_run(processes=1), curve_of_a_short_run(processes=2)]
    first = evaluators()
    curves.append(curve_of_a_short_run(processes=2))  # by the same processes
    assert 1 <= len(first) <= 2 and first <= evaluators()
    assert curves[0] == curves[1] == curves[2] and np.shape(curves[0]) == (3, 3)
    assert len({*np.ravel(curves[0])}) > 1


def test_a_run_is_not_lost_to_evaluators_that_died_before_it_ended(evaluators):
    expected = curve_of_a_short_run(processes=2)
    for pid in evaluators():
        os.kill(pid, signal.SIGKILL)
    assert curve_of_a_short_run(processes=2) == expected


def test_evaluators_that_die_whenever_they_are_asked_end_the_run(evaluators, monkeypatch):
    monkeypatch.setattr(actorq_training, "_returns", _die)
    for _ in range(2):  # new ones each time
        with pytest.raises(QuarlError, match="a process that evaluated died"):
            actorq_training._evaluated_in_parallel([Path(), Path()], "CartPole-v1", range(3), 2)


def _die(folder, env_id, seeds):
    os._exit(1)


def test_a_worker_that_evaluated_ends_with_its_evaluators(tmp_path):
    save_policy(policy_from_model(make_algorithm("dqn", "CartPole-v1", width=8)), tmp_path / "net")
    work = ([tmp_path / "net"] * 2, "CartPole-v1", range(3), 2)
    worker = CONTEXT.Process(target=actorq_training._evaluated_in_parallel, args=work)
    worker.start()
    worker.join(60)
    worker.kill()
    assert worker.exitcode == 0


@pytest.mark.parametrize("study", [SPEEDUP, STALENESS, RUNTIME, SCALING])
@pytest.mark.parametrize("profile", ["smoke", "quick", "full"])
def test_every_profile_is_a_valid_matrix_of_different_cells(study, profile):
    for communication in study.profiles[profile]["communications"]:  # "" may equal another
        parameters = {"communications": [communication]}
        cells = study.cells(study.profiles[profile] | parameters)
        assert len(plan(study, profile, parameters)) == len(cells) > 0  # `plan` drops equal ones


def test_the_full_profile_has_both_baselines_and_three_seeds():
    cells = [job.cell for job in plan(SPEEDUP, "full")]
    acrobot = [c for c in cells if c["env_id"] == "Acrobot-v1"]
    actors = {(c["precision"], c["runtime"]) for c in acrobot}
    assert {("fp32", "torch"), ("fp32", "onnxruntime"), ("int8", "onnxruntime")} < actors
    assert {c["seed"] for c in acrobot} == {0, 1, 2} and {c["width"] for c in acrobot} == {2048}


@pytest.mark.parametrize("parameters, message", [
    ({"tasks": ["dm:walker-stnad"]}, "did you mean 'dm:walker-stand'"),
    ({"actors": ["int8"]}, "not precision/runtime"),
    ({"actors": ["int8/onnx"]}, "unknown runtime 'onnx'"),
    ({"n_actors": [0]}, "n_actors must be at least 1, not 0"),
    ({"widths": [-1]}, "width must be at least 1, not -1"),
    ({"steps": -1}, "steps must be at least 0, not -1"),
    ({"evaluations": -1}, "evaluations must be at least 0, not -1"),
    ({"episodes": 0}, "episodes must be at least 1, not 0"),
    ({"autocast": "fp99"}, "unknown autocast 'fp99'; allowed: bf16"),
])  # fmt: skip
def test_wrong_parameters_are_one_clear_line(parameters, message):
    with pytest.raises(QuarlError, match=message):
        plan(SPEEDUP, "smoke", parameters)


@pytest.mark.parametrize("arguments, message", [
    (("d4gp", "Pendulum-v1"), "did you mean 'd4pg'"),
    (("d4pg", "CartPole-v1"), "d4pg cannot act in CartPole-v1"),
    (("d4pg", "Pendulum-v1", 0), "width must be at least 1, not 0"),
    (("dqn", "CartPole-v1", 10**8), "dqn of width 100000000 cannot be made: RuntimeError: .*alloc"),
    (("dqn", "CartPole-v1", 10**23), "cannot be made: TypeError: .*Overflow"),
    (("dqn", "CartPole-v1", 8, -1), "seed must be from 0 to 2147483647, not -1"),
    (("dqn", "CartPole-v1", 8, 2**32), "seed must be from 0 to 2147483647, not 4294967296"),
    (("dqn", "CartPole-v1", 8, 0, "bogus"), "unknown device 'bogus'; allowed: cpu, cuda"),
    (("dqn", "CartPole-v1", 8, 0, ""), "unknown device ''; allowed: cpu, cuda"),
    (("dqn", "CartPole-v1", 8, 0, "meta"), "unknown device 'meta'; allowed: cpu, cuda"),
    (("dqn", "CartPole-v1", 8, 0, "cpu:x"), "device 'cpu:x' is not there; the last is 'cpu:0'"),
    (("dqn", "CartPole-v1", 8, 0, "cuda:2"), "device 'cuda:2' is not there; the last is 'cuda:1'"),
    (("sac", "Pendulum-v1", 8, 0, "cpu", "bf16"), "sac has no autocast"),
])  # fmt: skip
def test_algorithms_that_cannot_be_made_say_why(arguments, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(QuarlError, match=message) as caught:
        make_algorithm(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_known_options_are_an_algorithms_own_and_their_defaults_its_own(algo):
    env_id = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    small = {"width": 8, "critic_width": 8}
    options = options_of(algo)
    plain = make_algorithm(algo, env_id, **small)
    by_name = make_algorithm(algo, env_id, **small, **options)
    assert {"learning_rate", "batch_size", "gamma"} < set(options)
    assert not {"policy", "env", "seed", "device", "policy_kwargs", "train_freq"} & set(options)
    for name in {"learning_rate", "batch_size", "gamma", "n_steps", "tau"}:
        assert getattr(by_name, name) == getattr(plain, name) == options[name]


def test_half_precision_that_is_slower_is_told(monkeypatch):
    monkeypatch.setattr("quarl_nb.rl.fast_cnn.bf16_is_faster", lambda: False)
    with pytest.warns(RuntimeWarning, match="slower in bfloat16"):
        make_algorithm("dqn", "CartPole-v1", width=8, autocast="bf16")


@pytest.mark.parametrize("counted", [0, 1])
def test_a_gpu_that_is_absent_or_has_too_old_a_driver_is_told(counted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: counted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(QuarlError, match="device 'cuda:0' was asked for, but torch finds no CUDA"):
        make_algorithm("dqn", "CartPole-v1", device="cuda:0")


def test_a_learning_rate_may_fall_as_the_rl_zoo_writes_it():
    model = make_algorithm("dqn", "CartPole-v1", width=8, learning_rate="lin_2e-3")
    assert [model.lr_schedule(remaining) for remaining in (1.0, 0.5, 0.0)] == [2e-3, 1e-3, 0.0]
    assert make_algorithm("dqn", "CartPole-v1", 8, learning_rate=3e-4).lr_schedule(0.5) == 3e-4
    d4pg = make_algorithm("d4pg", "Pendulum-v1", width=8, actor_learning_rate="lin_2e-3")
    assert callable(d4pg.actor_learning_rate) and d4pg.actor_learning_rate(0.5) == 1e-3


def test_a_learning_rate_may_warm_up_first():
    model = make_algorithm("dqn", "CartPole-v1", width=8, learning_rate="warm_2e-3")
    rates = [model.lr_schedule(remaining) for remaining in (1.0, 0.925, 0.85, 0.425, 0.0)]
    np.testing.assert_allclose(rates, [0.0, 1e-3, 2e-3, 1e-3, 0.0], atol=1e-12)


@pytest.mark.parametrize("rate", ["exp_1e-3", "lin_", "lin_fast", "1e-3", "",
                                  "lin_-1e-3", "warm_-1e-3", "lin_nan", "warm_inf", "lin_0"])
def test_another_schedule_is_refused(rate):
    with pytest.raises(QuarlError, match=f"learning rate '{rate}' is no number, nor like 'lin_3e"):
        make_algorithm("dqn", "CartPole-v1", width=8, learning_rate=rate)


def test_the_learner_has_the_papers_networks():
    model = make_algorithm("d4pg", "Pendulum-v1")
    shapes = [p.shape for name, p in model.actor.named_parameters() if name.endswith("weight")]
    assert [tuple(shape) for shape in shapes] == [(2048, 3), (2048, 2048), (2048, 2048), (1, 2048)]
    critic = [p.shape[0] for n, p in model.critic.named_parameters() if n.endswith("weight")]
    assert critic == [512, 512, 512, 51]
