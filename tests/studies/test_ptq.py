from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from quarl_nb import quantize
from quarl_nb.errors import QuarlError
from quarl_nb.quant import parse_precision
from quarl_nb.quantize import quantize_table
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.observations import collect_observations
from quarl_nb.rl.policies import Head, PolicyNet, PolicySpec, load_digest, save_policy
from quarl_nb.rl.ptq import quantize_policy
from quarl_nb.runner import plan, run_study
from quarl_nb.store import ResultStore
from quarl_nb.studies import STUDIES, get_study
from quarl_nb.studies.policies import Subject, TrainedPolicies, select
from quarl_nb.studies.ptq import FIRST_SEED, PTQ, PTQ_PUBLIC, episodes_in, measure_policy
from quarl_nb.studies.weights import WEIGHTS, WEIGHTS_PUBLIC


def lean_policy() -> PolicyNet:
    """Pushes the cart to the side that the pole leans to; four inputs, two actions."""
    spec = PolicySpec(
        "ppo", "CartPole-v1", (4,),
        (Layer("linear", {"in_features": 4, "out_features": 2}),), Head("argmax"),
    )  # fmt: skip
    weight = torch.tensor([[0.0, 0.0, -1.0, -0.5], [0.0, 0.0, 1.0, 0.5]])
    return PolicyNet(spec, {"layers.0.weight": weight, "layers.0.bias": torch.zeros(2)})


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one policy; the study finds it from the working directory."""
    described = {"who": "test", "packages": {"torch": "2"}}
    save_policy(lean_policy(), tmp_path / "data" / "policies" / "ppo-CartPole-v1", described)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_smoke_profile_runs_from_policy_to_records(project):
    store = ResultStore()
    summary = run_study(PTQ, "smoke", store, progress=False)
    assert (summary.done, summary.failed, summary.total) == (4, 0, 4)
    frame = store.frame("ptq")
    frame = frame[frame["ranges"] == "minmax"].set_index("precision")
    assert set(frame.index) == {"fp32", "int8", "affine4"}
    assert frame.loc["fp32", "lengths"] == frame.loc["fp32", "returns"]  # reward 1 a step
    assert frame["budget.first_seed"].nunique() == 1
    assert frame.loc["affine4", "weight_bytes"] < frame.loc["fp32", "weight_bytes"]
    assert set(frame["backend"]) == {"simulated"}
    assert set(frame["extra.who"]) == {"test"}
    assert run_study(PTQ, "smoke", store, progress=False).skipped == 4


def test_every_precision_of_the_full_profile_is_measured(project):
    parameters = dict(PTQ.profiles["full"], episodes=2)
    for cell, budget in PTQ.cells(parameters):
        measured = PTQ.measure(cell, budget).measured
        assert len(measured["returns"]) == 2, cell
        assert np.isfinite(measured["returns"]).all()


@pytest.mark.parametrize("name", ["fp32", "int8", "affine2"])
def test_who_plays_is_the_quantized_policy_on_the_seeds_of_the_budget(name, monkeypatch):
    played = []

    def watched(policy, env_id, seeds, *, make, random_actions):
        played.append((policy, seeds, random_actions))
        return evaluate(policy, env_id, seeds, make=make, random_actions=random_actions)

    monkeypatch.setattr("quarl_nb.studies.ptq.evaluate", watched)
    subject = Subject("lean", "ppo", "CartPole-v1", lean_policy())
    budget = {"first_seed": 7, "episodes": 2, "random_actions": 0.25}
    measure_policy(subject, parse_precision(name), budget)
    ((policy, seeds, random_actions),) = played
    assert (seeds, random_actions) == (range(7, 9), 0.25)
    obs = np.random.default_rng(0).normal(0, 0.1, (5000, 4)).astype(np.float32)
    actions = policy.act(obs)[0]
    assert (actions == quantize_policy(lean_policy(), name, "CartPole-v1").act(obs)[0]).all()
    assert (actions != lean_policy().act(obs)[0]).any() == (name != "fp32")


def test_two_bits_leave_four_levels_of_which_one_is_zero():
    # At 2 bits the affine grid of [-1, 1] is -1, -1/3, 1/3, 1 shifted to hold zero exactly.
    quantized = quantize_policy(lean_policy(), "affine2", "CartPole-v1")
    levels = quantized.state_dict()["layers.0.weight"].unique()
    assert len(levels) <= 4
    assert 0.0 in levels


@pytest.mark.parametrize("precision", [8, "8", None])
def test_what_is_no_precision_is_told(precision):
    with pytest.raises(QuarlError, match=f"^unknown precision {precision!r}; allowed: fp32, "):
        quantize_policy(lean_policy(), precision, "CartPole-v1")


def test_int8_is_calibrated_on_the_policys_own_observations(project):
    quantized = quantize_policy(lean_policy(), "int8", "CartPole-v1")
    obs = torch.as_tensor(np.random.default_rng(0).normal(0, 0.1, (50, 4)), dtype=torch.float32)
    exact, got = lean_policy()(obs), quantized(obs)
    error = (exact - got).abs().max()
    assert 0 < error < 0.1


def test_int8_is_calibrated_on_two_thousand_steps_of_other_episodes_than_are_counted():
    quantized = quantize_policy(lean_policy(), "int8", "CartPole-v1")
    ranges = [quantized.layers[0].input_quantizer.qparams.scale.item()]
    for seed in (2_000_000, FIRST_SEED):
        seen = collect_observations(lean_policy(), "CartPole-v1", 2000, seed)
        ranges.append((seen.max() - seen.min()).item() / 255)
    used, own, counted = ranges
    assert used == pytest.approx(own) and used != pytest.approx(counted)


def test_a_table_of_ones_own_policy_leaves_torch_its_threads(project):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        quantize_table("data/policies/ppo-CartPole-v1", episodes=2)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)


def test_a_format_that_the_policy_cannot_run_in_is_left_out(project, monkeypatch, caplog):
    measure = quantize.measure_policy

    def measure_but_fp16(subject, precision, budget):
        if precision.name == "fp16":
            raise QuarlError("the policy's outputs are NaN or infinite")
        return measure(subject, precision, budget)

    monkeypatch.setattr(quantize, "measure_policy", measure_but_fp16)
    table = quantize_table("data/policies/ppo-CartPole-v1", episodes=2)
    assert list(table["precision"]) == ["fp32", "int8", "affine8"]
    assert "fp16 is left out: the policy's outputs are NaN" in caplog.text


def test_a_policy_of_ones_own_plays_as_many_episodes_as_the_suites(monkeypatch):
    played = []

    def measure(subject, formats, budget):
        played.append(budget["episodes"])
        raise QuarlError("enough")

    monkeypatch.setattr(quantize, "_measure", measure)
    for options in ({}, {"episodes": 7}):
        with pytest.raises(QuarlError, match="enough"):
            quantize_table("data/policies/ppo-CartPole-v1", **options)
    assert played == [100, 7]
    assert episodes_in("CartPole-v1") == 100 and episodes_in("CartPole-v1", 20) == 20
    assert episodes_in("PongNoFrameskip-v4") == episodes_in("ALE/Pong-v5") == 30


@pytest.mark.parametrize(("options", "message"), [
    ({"bits": (8, 17)}, "unknown precision 'affine17'"), ({"ranges": "foo"}, "unknown ranges"),
    ({"episodes": 1}, "episodes must be at least 2, not 1"),
    ({"episodes": 2.5}, "episodes must be a whole number, not 2.5"),
    ({"first_seed": 1.0}, "seed must be a whole number, not 1.0"),
])  # fmt: skip
def test_a_wrong_option_is_told_before_the_policy_is_loaded(monkeypatch, options, message):
    monkeypatch.setattr("quarl_nb.studies.policies.load_policy", None)
    with pytest.raises(QuarlError, match=message):
        quantize_table("data/policies/ppo-CartPole-v1", **options)


def test_cells_pair_every_precision_with_the_ranges_it_can_have(project):
    parameters = dict(
        PTQ.profiles["smoke"], precisions=["fp32", "legacy8", "affine8"],
        ranges=["mse"], ranges_at=["affine8"],
    )  # fmt: skip
    pairs = [(cell["precision"], cell["ranges"]) for cell, _ in PTQ.cells(parameters)]
    assert pairs == [
        ("fp32", "minmax"), ("legacy8", "minmax"), ("affine8", "minmax"), ("affine8", "mse")
    ]  # fmt: skip


def test_atari_policies_run_thirty_episodes(tmp_path, monkeypatch):
    net = lean_policy()
    net.spec = replace(net.spec, env_id="QbertNoFrameskip-v4")
    save_policy(net, tmp_path / "data" / "policies" / "dqn-QbertNoFrameskip-v4")
    monkeypatch.chdir(tmp_path)
    ((_, budget), *_) = PTQ.cells(PTQ.profiles["full"])
    assert budget["episodes"] == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": ["ppo-CartPole-v2"]}, "unknown policy 'ppo-CartPole-v2'; did you mean"),
        ({"precisions": ["affine17"]}, "unknown precision 'affine17'"),
        ({"precisions": ["affine1"]}, "unknown precision 'affine1'"),
        ({"ranges": ["best"]}, "unknown ranges 'best'"),
        ({"episodes": 0}, "episodes must be at least 1, not 0"),
        ({"first_seed": -1}, "seed must be from 0 to 2147483647, not -1"),
        ({"first_seed": 2**31 - 1, "episodes": 2}, "seed must be from 0 to 2147483647, not 21"),
        ({"swept": ["nope"]}, "unknown policy to be swept 'nope'; allowed: dqn-Breakout"),
        ({"judged": ["affine8"]}, "unknown precision to be judged 'affine8'; did you mean"),
        ({"episode": 3}, "unknown parameter of study 'ptq' 'episode'; did you mean 'episodes'"),
    ],
)
def test_bad_parameters_are_one_clear_line(project, change, message):
    with pytest.raises(QuarlError) as caught:
        plan(PTQ, "smoke", change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tampered_policy_fails_its_cells_and_no_others(project):
    folder = project / "data" / "policies"
    save_policy(lean_policy(), folder / "a2c-CartPole-v1")
    tensors = folder / "a2c-CartPole-v1" / "policy.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"\x01")
    parameters = {"policies": ["all"], "precisions": ["fp32"], "ranges_at": ["affine4"]}
    summary = run_study(PTQ, "smoke", ResultStore(), parameters=parameters, progress=False)
    assert (summary.done, summary.failed) == (2, 2)
    assert "changed" in summary.errors[0].read_text()


def test_nan_weights_are_refused_with_their_name(project):
    net = lean_policy()
    with torch.no_grad():
        net.layers[0].weight[0, 0] = float("nan")
    with pytest.raises(QuarlError, match="layers.0.weight"):
        quantize_policy(net, "affine8", "CartPole-v1")


def test_every_study_can_be_got_by_name():
    for name in STUDIES:
        assert get_study(name).name == name
    with pytest.raises(QuarlError, match="did you mean 'ptq'"):
        get_study("ptqs")


def test_trained_policies_describe_themselves_by_name(project):
    source = TrainedPolicies()
    assert source.names() == ["ppo-CartPole-v1"]
    assert source.describe("ppo-CartPole-v1") == ("ppo", "CartPole-v1")
    subject = source.load("ppo-CartPole-v1")
    assert subject.extra == {"who": "test"}  # a record tells which policy, that the rest
    assert subject.net.spec.provenance["packages"] == {"torch": "2"}


def test_a_greedy_policy_of_atari_plays_some_actions_at_random(project):
    folder = project / "data" / "policies" / "mine"
    own = lean_policy()
    own.spec = replace(own.spec, env_id="PongNoFrameskip-v4")
    save_policy(own, folder)
    shares = {}
    for head in ("argmax", "sample"):
        own.spec = replace(own.spec, head=Head(head))
        save_policy(own, folder)
        (_, budget), *_ = PTQ.cells({**PTQ.profiles["smoke"], "policies": ["mine"]})
        shares[head] = budget.get("random_actions")
    assert shares == {"argmax": 0.01, "sample": None}  # None: the key of the records before it


@pytest.mark.parametrize("study", [PTQ, WEIGHTS])
def test_another_policy_of_the_same_name_is_measured_anew(project, study):
    folder, store = project / "data" / "policies" / "mine", ResultStore()

    def run_it():
        save_policy(own, folder)
        return run_study(study, "smoke", store, progress=False, parameters={"policies": ["mine"]})

    own = lean_policy()
    first, again = run_it(), run_it()
    assert (first.done, again.done, again.skipped) == (first.total, 0, first.total)
    with torch.no_grad():
        own.layers[0].weight.mul_(-1)
    assert run_it().done == first.total
    digests = store.frame(study.name)["budget.tensors_sha256"]
    assert set(digests) == {load_digest(folder)}


@pytest.mark.parametrize("study", [PTQ_PUBLIC, WEIGHTS_PUBLIC])
def test_a_stranger_of_a_known_agents_name_is_not_taken_for_it(tmp_path, monkeypatch, study):
    """Only the known one's records, which are shipped, go by the name alone."""
    def keys(model: bytes, statistics: bytes) -> set[str]:
        (tmp_path / "model.zip").write_bytes(model)
        (tmp_path / "statistics.pkl").write_bytes(statistics)
        jobs = plan(study, "smoke", {"policies": ["public/ppo-CartPole-v1"]})
        told.append({job.budget.get("tensors_sha256") for job in jobs})
        return {job.key for job in jobs}

    entry = {"algo": "ppo", "env": "CartPole-v1", "source": "here", "licence": "MIT",
             "model": "model.zip", "vecnormalize": "statistics.pkl",
             "published_reward": None}  # fmt: skip
    (tmp_path / "index.json").write_text(json.dumps([entry]))
    monkeypatch.setenv("QUARL_NB_AGENTS", str(tmp_path))
    told: list = []
    stranger = keys(b"one", b"mean")
    assert keys(b"one", b"mean") == stranger
    assert not keys(b"two", b"mean") & stranger and not keys(b"one", b"other") & stranger
    known = hashlib.sha256(b"onemean").hexdigest()
    monkeypatch.setattr("quarl_nb.studies.policies.KNOWN", {"ppo-CartPole-v1": known[:16]})
    assert not keys(b"one", b"mean") & stranger
    assert told[0] == told[1] == {known} and told[-1] == {None}
    (tmp_path / "model.zip").unlink()
    with pytest.raises(QuarlError, match="cannot read '.*model.zip': No such file"):
        plan(study, "smoke", {"policies": ["public/ppo-CartPole-v1"]})


@pytest.mark.parametrize("study", [PTQ_PUBLIC, WEIGHTS_PUBLIC])
def test_an_index_of_agents_has_no_module_of_its_choice_imported(tmp_path, monkeypatch, study):
    entry = {"algo": "ppo", "env": "downloaded:Own-v0", "source": "here", "licence": "MIT",
             "model": "model.zip", "published_reward": None}  # fmt: skip
    (tmp_path / "index.json").write_text(json.dumps([entry]))
    (tmp_path / "model.zip").write_bytes(b"model")
    monkeypatch.setenv("QUARL_NB_AGENTS", str(tmp_path))
    with pytest.raises(QuarlError, match="'downloaded:Own-v0', which would run that module's code"):
        plan(study, "smoke", {"policies": ["public/ppo-downloaded:Own-v0"]})


def test_a_policy_of_ones_own_is_measured_by_its_name_alone(project):
    folder = project / "data" / "policies" / "mine"
    own = lean_policy()
    own.spec = replace(own.spec, algo="dqn")
    save_policy(own, folder)
    source, store = TrainedPolicies(), ResultStore()
    assert source.names() == ["ppo-CartPole-v1"]
    assert source.describe("mine") == ("dqn", "CartPole-v1")
    run_study(PTQ, "smoke", store, progress=False, parameters={"policies": ["mine"]})
    assert set(store.frame("ptq")["policy"]) == {"mine"}
    own.spec = replace(own.spec, env_id=None)
    save_policy(own, folder)
    with pytest.raises(QuarlError, match="'mine' does not say where it acts"):
        select(source, ["mine"])
    with pytest.raises(QuarlError, match="allowed: one that save_policy wrote to data/policies, "):
        select(source, ["my.zip"])
    with pytest.raises(QuarlError, match="unknown policy 'ppo-CartPole-v1'"):
        select(TrainedPolicies("dqn-AirNavigation-*"), ["ppo-CartPole-v1"])
