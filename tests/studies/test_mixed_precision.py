"""The half-precision study, with networks so small that it takes seconds."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger

from quarl_nb.errors import QuarlError
from quarl_nb.paths import project_root
from quarl_nb.record import to_json
from quarl_nb.rl.policies import load_policy
from quarl_nb.runner import plan
from quarl_nb.studies import mixed_precision, update_times
from quarl_nb.studies.mixed_precision import (
    MIXED_PRECISION,
    POLICIES,
    Sized,
    make_sized,
    sized_recipe,
)
from quarl_nb.studies.update_times import fill_buffer, step_times

SMOKE = MIXED_PRECISION.profiles["smoke"]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(mixed_precision, "POLICIES", {
        "A": Sized((4, 4, 4), 8), "zoo-ppo": Sized((4, 4, 4), 8, "ppo")})  # fmt: skip
    monkeypatch.setattr(mixed_precision, "BUFFER_SIZE", 200)


def cell(precision: str) -> dict:
    return {"policy": "A", "precision": precision, "device": "cpu", "seed": 0}


def test_a_cell_times_updates_steps_and_a_run(small):
    for where, budget in MIXED_PRECISION.cells(SMOKE):
        found = MIXED_PRECISION.measure(where, budget)
        measured = found.measured
        assert found.backend == "torch"
        assert len(measured["update_s"]) == len(measured["update_cpu_s"]) == 2
        assert min(measured["update_s"]) > 0 and measured["env_step_s"] > 0
        assert 0 < measured["act_s"] < 1 and measured["steps_per_s"] > 0
        assert measured["act_cpu_s"] > 0 and measured["env_step_cpu_s"] > 0
        assert measured["run_energy"]["cpu_s"] > 0
        assert measured["filters"] == (4, 4, 4) and measured["train_freq"] == 4
        # 4 frames of 84 x 84 -> 20 x 20 -> 9 x 9 -> 7 x 7 -> 8 units -> 6 actions.
        convolutions = (4 * 64 * 4 + 4) + (4 * 16 * 4 + 4) + (4 * 9 * 4 + 4)
        assert measured["parameters"] == convolutions + (4 * 49 * 8 + 8) + (8 * 6 + 6)
        assert "returns" not in measured
        assert to_json(measured)


def test_a_gpus_fp32_is_fp32(small, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    where, budget = MIXED_PRECISION.cells(SMOKE)[0]
    MIXED_PRECISION.measure(where, budget)
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_parameters_and_optimizer_state_stay_fp32(small, precision):
    model = make_sized(sized_recipe("A", precision), cell(precision))
    model.set_logger(Logger(folder=None, output_formats=[]))
    fill_buffer(model, 40)
    assert model.replay_buffer.size() == 40
    before = [p.clone() for p in model.q_net.parameters()]
    model.train(2, 8)
    after = list(model.q_net.parameters())
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    states = [t for s in model.policy.optimizer.state.values() for t in s.values() if t.ndim]
    assert {t.dtype for t in (*after, *states)} == {torch.float32}
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in after if p.ndim == 4)
    model.env.close()


def test_precisions_differ_by_rounding_only(small):
    """The same seed: an update in half precision is that in fp32, nearly."""
    updates = {}
    for precision in ("fp32", "bf16", "fp16"):
        model = make_sized(sized_recipe("A", precision), cell(precision))
        model.set_logger(Logger(folder=None, output_formats=[]))
        fill_buffer(model, 40)
        torch.manual_seed(0)
        np.random.seed(0)
        model.train(1, 32)
        updates[precision] = torch.cat([p.grad.ravel() for p in model.q_net.parameters()])
        model.env.close()
    for precision in ("bf16", "fp16"):
        error = (updates[precision] - updates["fp32"]).norm() / updates["fp32"].norm()
        assert 0 < error < 0.1


def test_the_full_profile_trains_too(small):
    budget = {"repeats": 1, "stored": 40, "run_steps": 4, "timesteps": 40, "evaluations": 1,
              "eval_episodes": 1, "episodes": 1, "first_seed": 5}  # fmt: skip
    found = MIXED_PRECISION.measure(cell("bf16"), budget)
    assert len(found.measured["returns"]) == len(found.measured["lengths"]) == 1
    assert found.measured["timesteps"] == 40
    assert found.arrays["eval_returns"].shape == (1, 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ppo_is_timed_in_iterations_of_its_own(small, precision):
    where = cell(precision) | {"policy": "zoo-ppo", "algo": "ppo"}
    budget = {"repeats": 2, "stored": 20, "run_steps": 1, "timesteps": 1024, "evaluations": 1,
              "eval_episodes": 1, "episodes": 1, "first_seed": 5}  # fmt: skip
    measured = MIXED_PRECISION.measure(where, budget).measured
    assert measured["train_freq"] == 8 * 128 and measured["batch_size"] == 256
    assert len(measured["update_s"]) == len(measured["update_cpu_s"]) == 2
    assert measured["filters"] == (4, 4, 4)
    # Actor and critic share the features; their heads have 6 outputs and 1.
    convolutions = (4 * 64 * 4 + 4) + (4 * 16 * 4 + 4) + (4 * 9 * 4 + 4)
    assert measured["parameters"] == convolutions + (4 * 49 * 8 + 8) + (8 * 6 + 6) + (8 + 1)
    assert min(measured["update_s"]) > 0 and measured["act_s"] > 0 and measured["steps_per_s"] > 0
    assert len(measured["returns"]) == 1 and measured["timesteps"] == 1024
    assert to_json(measured)


def test_a_rollout_is_its_environment_steps_and_decisions(small, monkeypatch):
    """By a clock that goes on by one whenever it is looked at.

    Of a rollout's 128 steps of eight environments: twice each, and once at its end.
    """
    ticks = count()
    monkeypatch.setattr(update_times, "_clock", lambda: (float(now := next(ticks)), 10.0 * now))
    recipe = sized_recipe("zoo-ppo", "fp32")
    model = make_sized(recipe, cell("fp32") | {"policy": "zoo-ppo"})
    measured = step_times(model, recipe, {"repeats": 2, "stored": 20})
    assert measured["update_s"] == [1, 1] and measured["update_cpu_s"] == [10, 10]
    assert measured["env_step_s"] == 1 / 8 and measured["env_step_cpu_s"] == 10 / 8
    assert measured["act_s"] == 129 / 1024 and measured["act_cpu_s"] == 1290 / 1024
    assert model.num_timesteps == 3 * 1024


def test_ppo_is_not_trained_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = MIXED_PRECISION.cells(MIXED_PRECISION.profiles["full"])
    trained = [(cell["policy"], cell["device"], cell["precision"], cell["seed"])
               for cell, budget in found if "timesteps" in budget]  # fmt: skip
    assert trained == [("zoo-ppo", "cpu", precision, seed)
                       for precision in ("fp32", "bf16") for seed in range(3)]


def test_cells_have_the_precisions_that_a_device_computes_in(monkeypatch):
    parameters = MIXED_PRECISION.profiles["full"] | {"policies": ["zoo", "A"], "converge": ["zoo"]}
    for cuda, expected in (
        (False, ["cpu fp32", "cpu bf16"]),
        (True, ["cpu fp32", "cpu bf16", "cuda fp32", "cuda bf16", "cuda fp16"]),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        found = MIXED_PRECISION.cells(parameters)
        for policy, seeds in (("zoo", [0, 1, 2]), ("A", [0])):  # which is only timed
            made = [(f"{c['device']} {c['precision']}", c["seed"])
                    for c, _ in found if c["policy"] == policy]  # fmt: skip
            assert made == [(kind, seed) for kind in expected for seed in seeds]
        trained = {c["policy"] for c, budget in found if "timesteps" in budget}
        assert trained == {"zoo"}


def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(QuarlError, match="'cuda' was asked for, but torch finds no CUDA GPU"):
        MIXED_PRECISION.cells(SMOKE | {"devices": ["cuda"]})


def test_policies_grow_as_the_paper_says():
    assert [size.filters[0] for size in POLICIES.values()] == [32, 128, 512, 1024, 32]
    assert POLICIES["C"].units == 2048
    nature = load_policy(project_root() / "data" / "policies" / "dqn-PongNoFrameskip-v4")
    model = make_sized(sized_recipe("zoo", "fp32"), cell("fp32") | {"policy": "zoo"})
    shapes = [p.shape for p in model.q_net.parameters()]
    assert shapes == [p.shape for p in nature.parameters()]
    model.env.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": ["D"]}, "unknown policy 'D'"),
        ({"converge": ["a"]}, "unknown policy 'a'"),
        ({"converge": ["A", "C", "B"]}, "converge names C, B, which policies does not: only what"),
        ({"precisions": ["int8"]}, "unknown precision of training 'int8'"),
        ({"devices": ["gpu"]}, "unknown device 'gpu'"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"stored": -1}, "stored must be at least 1, not -1"),
        ({"eval_episodes": 0}, "eval_episodes must be at least 1, not 0"),
        ({"seeds": [-1]}, "seed must be from 0 to 2147483647, not -1"),
        ({"first_seed": -1}, "seed must be from 0 to 2147483647, not -1"),
        ({"first_seed": 2**31 - 1, "episodes": 2}, "seed must be from 0 to 2147483647, not 21"),
    ],
)
def test_bad_parameters_are_one_clear_line(change, message):
    with pytest.raises(QuarlError) as caught:
        plan(MIXED_PRECISION, "smoke", change)
    assert message in str(caught.value) and "\n" not in str(caught.value)
