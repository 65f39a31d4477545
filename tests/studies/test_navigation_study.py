"""The navigation study: how flights end, what is quantized, what is trained."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.rl.air.navigation import ENV_ID, AirNavigationEnv
from quarl_nb.rl.air.world import MAX_STEPS, OBS_SIZE
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import (
    Head,
    PolicyNet,
    PolicySpec,
    load_digest,
    load_spec,
    save_policy,
)
from quarl_nb.runner import plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies.navigation import NAVIGATION, OUTCOMES, fine_tune, fly, network_of
from quarl_nb.studies.policies import TrainedPolicies
from quarl_nb.studies.watched import train_watched

POLICY = "dqn-AirNavigation-I"
TINY = dict(qat_timesteps=1_100, eval_episodes=1, episodes=4)


def pilot(hover: bool = False) -> PolicyNet:
    """A Policy I that flies at full speed, turns to its goal and sees no obstacles; or hovers."""
    sizes = [OBS_SIZE, 64, 64, 64, 25]
    layers: list[Layer] = []
    tensors: dict[str, torch.Tensor] = {}
    for inputs, outputs in pairwise(sizes):
        tensors[f"layers.{len(layers)}.weight"] = torch.zeros(outputs, inputs)
        tensors[f"layers.{len(layers)}.bias"] = torch.zeros(outputs)
        layers += [Layer("linear", {"in_features": inputs, "out_features": outputs}), Layer("relu")]
    first, second, third, last = (tensors[f"layers.{i}.weight"] for i in (0, 2, 4, 6))
    sine_of_bearing = OBS_SIZE - 1  # positive to the left
    first[0, sine_of_bearing], first[1, sine_of_bearing] = 1.0, -1.0
    for weight in (second, third):
        weight[0, 0] = weight[1, 1] = 1.0
    right, ahead, left = 20, 22, 24  # of the actions at 2.5 m/s
    last[left, 0] = last[right, 1] = 1.0
    tensors["layers.6.bias"][ahead] = 0.3
    tensors["layers.6.bias"][0] = 10.0 if hover else 0.0
    spec = PolicySpec("dqn", ENV_ID, (OBS_SIZE,), tuple(layers[:-1]), Head("argmax"))
    return PolicyNet(spec, tensors)


def weights_of(net: PolicyNet) -> list[torch.Tensor]:
    return [module.weight for module in net.layers if isinstance(module, nn.Linear)]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a Policy I."""
    save_policy(pilot(), tmp_path / "data" / "policies" / POLICY, {"who": "test"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_who_hovers_is_late_and_who_flies_arrives_or_crashes():
    result, outcomes = fly(pilot(hover=True), range(3))
    assert outcomes == ["timeout"] * 3
    assert result.lengths == [MAX_STEPS] * 3
    result, outcomes = fly(pilot(), range(100, 140))
    assert set(outcomes) == {"success", "crash"}
    # The reward tells them apart as well: 1000 and -100 over a flight of a few metres.
    assert [r > 0 for r in result.returns] == [o == "success" for o in outcomes]


def test_an_outcome_belongs_to_its_seed():
    seeds = range(100, 130)
    _, outcomes = fly(pilot(), seeds)
    for seed, outcome in zip(seeds, outcomes, strict=True):
        env = AirNavigationEnv()
        obs, _ = env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            action = pilot().act(obs[None])[0][0]
            obs, _, terminated, truncated, info = env.step(action)
        assert info["is_success"] == (outcome == "success")


def test_the_smoke_profile_runs_from_policy_to_records(project):
    store = ResultStore()
    summary = run_study(NAVIGATION, "smoke", store, parameters=TINY, progress=False)
    assert (summary.done, summary.failed) == (5, 0), [p.read_text() for p in summary.errors]
    frame = store.frame("navigation").set_index(["precision", "method"])
    assert list(frame.index.unique()) == list(frame.index)
    assert set(frame.index) == {("fp32", "minmax"), ("int8", "minmax"), ("affine4", "minmax"),
                                ("affine4", "per_channel"), ("affine4", "qat")}  # fmt: skip
    letters = {outcome[0] for outcome in OUTCOMES}
    for ended in frame["outcomes"]:
        assert {*ended} <= letters and len(ended) == TINY["episodes"]
    assert frame["budget.first_seed"].nunique() == 1
    assert set(frame["network"]) == {"64x3"}
    assert set(frame["extra.who"]) == {"test"}
    assert frame.loc[("affine4", "qat"), "timesteps"] == TINY["qat_timesteps"]
    weights = 22 * 64 + 64 * 64 * 2 + 64 * 25
    assert frame.loc[("affine4", "minmax"), "weight_bytes"] > weights // 2


@pytest.mark.parametrize("way", [dict(precisions=["affine4"], ranges=[], qat=[]),
                                 dict(precisions=[], ranges=[], qat=["affine4"])])  # fmt: skip
def test_who_flies_is_the_quantized_policy_on_the_seeds_of_the_budget(way, project, monkeypatch):
    flown = []

    def watched_fly(net, seeds):
        flown.append((net, seeds))
        return fly(net, seeds)

    monkeypatch.setattr("quarl_nb.studies.navigation.fly", watched_fly)
    ((cell, budget),) = cells(**way)
    NAVIGATION.measure(cell, budget)
    ((net, seeds),) = flown
    assert seeds == range(budget["first_seed"], budget["first_seed"] + TINY["episodes"])
    weights = weights_of(net)
    assert all(len(weight.unique()) <= 16 for weight in weights)
    assert not torch.equal(weights[0], weights_of(pilot())[0])  # 1 and -1 are none of its levels


def test_fine_tuning_begins_with_the_trained_policy_and_gives_a_quantized_one(project):
    trained = NAVIGATION.policies.load(POLICY).net
    (cell, budget), *_ = cells(precisions=[], ranges=[], qat=["affine8"])
    found = fine_tune(trained, cell, budget)
    for ours, theirs in zip(weights_of(found.net), weights_of(trained), strict=True):
        assert len(ours.unique()) <= 256
        # 25 updates of at most 1e-4 or so each, and half a level.
        step = (theirs.max() - theirs.min()) / 255
        assert (ours - theirs).abs().max() < 100 * 1e-4 + step
    kinds = [layer.kind for layer in found.net.spec.layers]
    assert kinds.count("fixed_quantize") == kinds.count("linear") - 1
    assert found.curves["eval_returns"].shape == (1, 1)


def test_fine_tuning_learns_from_what_the_policy_does(project, monkeypatch):
    """SB3 fills the replay buffer with random actions, of which the pilot would take 3 in 25."""
    models = []

    def train(model, *rest):
        models.append(model)
        return train_watched(model, *rest)

    monkeypatch.setattr("quarl_nb.studies.navigation.train_watched", train)
    (cell, budget), *_ = cells(precisions=[], ranges=[], qat=["affine8"])
    fine_tune(NAVIGATION.policies.load(POLICY).net, cell, budget)
    (model,) = models
    actions = model.replay_buffer.actions[: model.replay_buffer.pos]
    assert np.isin(actions, [20, 22, 24]).mean() > 0.8


def cells(**parameters: Any) -> list[tuple[dict, dict]]:
    return NAVIGATION.cells(NAVIGATION.profiles["smoke"] | TINY | parameters)


def test_cells_are_every_way_to_set_ranges_and_every_training(project):
    found = cells(precisions=["fp32", "int8"], ranges=["mse"], ranges_at=["int8"],
                  qat=["affine8"], qat_seeds=[0, 1])  # fmt: skip
    ways = [(cell["precision"], cell["method"], cell["seed"]) for cell, _ in found]
    assert ways == [("fp32", "minmax", 0), ("int8", "minmax", 0), ("int8", "mse", 0),
                    ("affine8", "qat", 0), ("affine8", "qat", 1)]  # fmt: skip
    assert {"timesteps" in budget for cell, budget in found if cell["method"] != "qat"} == {False}
    assert {cell["algo"] for cell, _ in found} == {"dqn"}
    assert {cell["env_id"] for cell, _ in found} == {ENV_ID}


def test_all_means_the_policies_that_exist_and_no_others(project):
    folder = project / "data" / "policies"
    save_policy(replace_env(pilot(), "CartPole-v1"), folder / "dqn-CartPole-v1")
    save_policy(pilot(), folder / "dqn-AirNavigation-II")
    found = cells(policies=["all"], qat=["affine4"])
    assert {cell["policy"] for cell, _ in found} == {POLICY, "dqn-AirNavigation-II"}
    assert {c["policy"] for c, _ in found if c["method"] == "qat"} == {POLICY}


def test_a_policy_that_stopped_early_is_quantized_and_never_trained_on(project):
    save_policy(pilot(), project / "data" / "policies" / f"{POLICY}-early")
    for profile in ("quick", "full"):
        found = NAVIGATION.cells(NAVIGATION.profiles[profile])
        early = [cell for cell, _ in found if cell["policy"] == f"{POLICY}-early"]
        others = [cell for cell, _ in found if cell["policy"] == POLICY]
        assert {cell["network"] for cell in early} == {"64x3"}
        ways, all_ways = ([(cell["precision"], cell["method"]) for cell in side]
                          for side in (early, others))  # fmt: skip
        assert ways == [way for way in all_ways if way[1] != "qat"] != all_ways


def replace_env(net: PolicyNet, env_id: str) -> PolicyNet:
    net.spec = replace(net.spec, env_id=env_id)
    return net


def test_networks_are_named_as_in_table_6():
    root = TrainedPolicies().root
    names = {name: network_of(name, load_spec(root / f"dqn-AirNavigation-{name}"))
             for name in ("I", "I-early", "II", "III")}  # fmt: skip
    assert names == {"I": "64x3", "I-early": "64x3", "II": "256x3", "III": "4096-512-1024"}


def test_a_policy_of_ones_own_flies_by_its_name_and_is_not_trained_on(project):
    folder = project / "data" / "policies" / "mine"
    save_policy(pilot(), folder)
    found = cells(policies=["mine"], qat=["affine4"])
    assert {(cell["policy"], cell["network"], cell["method"]) for cell, _ in found} == {
        ("mine", "64x3", "minmax"), ("mine", "64x3", "per_channel")
    }  # fmt: skip
    # Another policy of that name is measured anew.
    assert {budget["tensors_sha256"] for _, budget in found} == {load_digest(folder)}
    measured = NAVIGATION.measure(*found[0]).measured
    assert len(measured["outcomes"]) == TINY["episodes"]
    assert [r > 0 for r in measured["returns"]] == [o == "s" for o in measured["outcomes"]]
    save_policy(replace_env(pilot(), "CartPole-v1"), folder)
    with pytest.raises(QuarlError, match="'mine' acts in 'CartPole-v1', not in 'quarl/AirNav"):
        cells(policies=["mine"])


def test_it_is_told_where_none_of_the_chosen_policies_is_trained_on(project, caplog):
    save_policy(pilot(), project / "data" / "policies" / "dqn-AirNavigation-II")
    assert cells(policies=["dqn-AirNavigation-II"], qat=["affine4"])
    assert "no QAT, as qat_policies names none of the chosen policies" in caplog.text
    caplog.clear()
    assert cells(policies=["all"], qat=["affine4"])
    assert cells(policies=["dqn-AirNavigation-II"], qat=[])
    assert not caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": ["dqn-AirNavigation-IV"]}, "unknown policy 'dqn-AirNavigation-IV'"),
        ({"precisions": ["affine17"]}, "unknown precision 'affine17'"),
        ({"ranges": ["best"]}, "unknown ranges 'best'"),
        ({"qat": ["int8"]}, "no QAT in precision 'int8': only in affine2..affine16"),
        ({"qat": ["bogus"], "qat_policies": []}, "unknown precision 'bogus'"),
        ({"qat_policies": ["mine"]}, "no QAT of policy 'mine': it has no recipe to go on by"),
        ({"episodes": 0}, "episodes must be at least 1, not 0"),
        ({"first_seed": -1}, "seed must be from 0 to 2147483647, not -1"),
        ({"first_seed": 2**31 - 1, "episodes": 2}, "seed must be from 0 to 2147483647, not 21"),
        ({"qat_seeds": [-2]}, "seed must be from 0 to 2147483647, not -2"),
    ],
)
def test_bad_parameters_are_one_clear_line(project, change, message):
    save_policy(pilot(), project / "data" / "policies" / "mine")
    with pytest.raises(QuarlError) as caught:
        plan(NAVIGATION, "smoke", change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
