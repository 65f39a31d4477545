"""PolicyNet: the network of a description, its actions, and its form on disk."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import save as save_safetensors
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant import parse_precision, quantize_module
from quarl_nb.rl import policies
from quarl_nb.rl.layers import Dueling, Layer, Normalize, QuantileMean
from quarl_nb.rl.policies import Head, PolicyNet, PolicySpec, load_policy, save_policy

LINEAR = Layer("linear", {"in_features": 2, "out_features": 2})


def linear_policy(head: Head, weight: list[list[float]], bias: list[float]) -> PolicyNet:
    spec = PolicySpec("ppo", "CartPole-v1", (2,), (LINEAR,), head)
    tensors = {"layers.0.weight": torch.tensor(weight), "layers.0.bias": torch.tensor(bias)}
    return PolicyNet(spec, tensors)


@pytest.fixture
def net() -> PolicyNet:
    return linear_policy(Head("argmax"), [[1.0, 0.0], [0.0, 2.0]], [0.0, 0.5])


def test_a_folder_acts_where_it_is_told_to(net: PolicyNet, tmp_path: Path) -> None:
    save_policy(net, tmp_path)
    assert load_policy(tmp_path).spec.env_id == "CartPole-v1"
    assert load_policy(tmp_path, env_id="Acrobot-v1").spec.env_id == "Acrobot-v1"
    with pytest.raises(TypeError, match="vec_normalize"):
        load_policy(tmp_path, vec_normalize="x")  # type: ignore[call-arg]  # of vecnormalize


def gru_policy() -> PolicyNet:
    layers = (
        Layer("gru_cell", {"input_size": 3, "hidden_size": 4}),
        Layer("linear", {"in_features": 4, "out_features": 2}),
    )
    torch.manual_seed(0)
    cell, linear = nn.GRUCell(3, 4), nn.Linear(4, 2)
    tensors = {f"layers.0.{k}": v for k, v in cell.state_dict().items()}
    tensors |= {f"layers.1.{k}": v for k, v in linear.state_dict().items()}
    return PolicyNet(PolicySpec("a3c", None, (3,), layers, Head("sample")), tensors)


def test_argmax_takes_the_largest_output(net: PolicyNet) -> None:
    obs = np.array([[1.0, 0.0], [0.0, 0.1]])
    outputs = net(torch.as_tensor(obs))
    assert outputs.numpy() == pytest.approx(np.array([[1.0, 0.5], [0.0, 0.7]]))
    actions, state = net.act(obs)
    assert actions.tolist() == [0, 1] and actions.dtype == np.int64 and state is None


def test_clip_and_tanh_scale_match_hand_computed_actions() -> None:
    bounds = {"low": (-1.0, 0.0), "high": (1.0, 4.0), "shape": (2,)}
    obs = np.array([[0.5, 3.0], [-9.0, -9.0]], np.float32)
    identity = ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    clipped, _ = linear_policy(Head("clip", **bounds), *identity).act(obs)
    assert clipped.tolist() == [[0.5, 3.0], [-1.0, 0.0]] and clipped.dtype == np.float32
    squashed, _ = linear_policy(Head("tanh_scale", **bounds), *identity).act(obs)
    assert squashed[0] == pytest.approx([np.tanh(0.5), 2.0 + 2.0 * np.tanh(3.0)])
    assert squashed[1] == pytest.approx([-1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("kind", ["argmax", "clip", "tanh_scale"])
def test_actions_of_an_array_are_those_of_a_tensor(kind):
    head = Head(kind, (-1.0, 0.0), (1.0, 5.0), (2,))
    outputs = np.random.default_rng(0).standard_normal((100, 2), dtype=np.float32)
    got, expected = head.actions(outputs), head.actions(torch.from_numpy(outputs))
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 if kind == "tanh_scale" else 0)


def test_sample_follows_the_softmax_and_its_generator() -> None:
    policy = linear_policy(Head("sample"), [[0.0, 0.0], [0.0, 0.0]], [0.0, float(np.log(3.0))])
    obs = np.zeros((20_000, 2), np.float32)
    first, _ = policy.act(obs, None, torch.Generator().manual_seed(1))
    again, _ = policy.act(obs, None, torch.Generator().manual_seed(1))
    other, _ = policy.act(obs, None, torch.Generator().manual_seed(2))
    # Standard error of the share: sqrt(0.75 * 0.25 / 20000) = 0.003.
    assert first.mean() == pytest.approx(0.75, abs=0.015)
    assert (first == again).all() and (first != other).any()
    with pytest.raises(QuarlError, match="generator"):
        policy.act(obs)


def test_recurrent_policy_carries_its_state() -> None:
    policy = gru_policy()
    cell, linear = policy.layers
    obs = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))
    hidden = torch.zeros(2, 4)
    state = policy.initial_state(2)
    for x in obs:
        hidden = cell(x, hidden)
        outputs, state = policy.step(x, state)
        assert state is not None and torch.equal(state, hidden)
        assert torch.equal(outputs, linear(hidden))
    assert torch.equal(policy(obs[0]), policy.step(obs[0], None)[0])
    actions, state = policy.act(obs[0].numpy(), state, torch.Generator().manual_seed(0))
    assert actions.shape == (2,) and state is not None and state.shape == (2, 4)


def test_normalize_matches_its_formula() -> None:
    layer = Normalize([2], epsilon=1e-8, clip=2.0)
    layer.mean, layer.var = torch.tensor([1.0, 0.0]).double(), torch.tensor([4.0, 0.01]).double()
    assert layer(torch.tensor([[2.0, -1.0]]))[0].tolist() == pytest.approx([0.5, -2.0])


def test_dueling_and_quantile_mean_match_hand_computed_values() -> None:
    head = Dueling(1, 1, 3)
    values = {"advantage": [1.0, 2.0, 6.0], "value": [10.0]}
    for name, biases in values.items():
        for parameter in getattr(head, name).parameters():
            nn.init.zeros_(parameter)
        getattr(head, name)[2].bias.data = torch.tensor(biases)
    assert head(torch.zeros(1, 1)).tolist() == [[8.0, 9.0, 13.0]]
    quantiles = torch.tensor([[1.0, 10.0, 3.0, 20.0]])
    assert QuantileMean(2, 2)(quantiles).tolist() == [[2.0, 15.0]]


def test_disk_keeps_everything(net: PolicyNet, tmp_path: Path) -> None:
    save_policy(net, tmp_path / "p", {"steps": 10})
    loaded = load_policy(tmp_path / "p")
    assert loaded.spec == replace(net.spec, provenance={"steps": 10})
    assert all(torch.equal(net.state_dict()[k], v) for k, v in loaded.state_dict().items())
    gru = gru_policy()
    save_policy(gru, tmp_path / "p")
    obs = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(load_policy(tmp_path / "p")(obs), gru(obs))
    assert sorted(os.listdir(tmp_path / "p")) == ["policy.json", "policy.safetensors"]


def test_a_folder_may_be_called_as_a_zip_is(net: PolicyNet, tmp_path: Path) -> None:
    folder = save_policy(net, tmp_path / "policy.zip")
    assert load_policy(folder).spec == net.spec


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "int4"])
def test_rounded_activations_are_lost_nowhere_unsaid(
    net: PolicyNet, tmp_path: Path, precision: str
) -> None:
    obs = torch.ones(4, 2)
    simulated = quantize_module(net, parse_precision(precision), lambda model: model(obs))
    for loses in (lambda: save_policy(simulated, tmp_path / "policy"),
                  lambda: simulated.with_head("sample")):  # fmt: skip
        with pytest.raises(QuarlError, match="'layers.0' rounds its activations in simulation"):
            loses()
    assert not (tmp_path / "policy").exists() and simulated.with_head(None) is simulated
    weights_alone = quantize_module(net, parse_precision("affine4"))
    loaded = load_policy(save_policy(weights_alone, tmp_path / "policy"))
    assert torch.equal(loaded(obs), weights_alone(obs))


def test_provenance_may_hold_numpys_numbers_but_nothing_that_json_has_not(
    net: PolicyNet, tmp_path: Path
) -> None:
    save_policy(net, tmp_path, {"steps": np.int64(10), "means": np.array([1.5, 2.5])})
    assert load_policy(tmp_path).spec.provenance == {"steps": 10, "means": [1.5, 2.5]}
    with pytest.raises(QuarlError, match="^cannot describe the policy in JSON: "):
        save_policy(net, tmp_path, {"when": object()})
    assert load_policy(tmp_path).spec.provenance["steps"] == 10  # the older one is whole


def test_large_tensors_are_cut_into_parts(net: PolicyNet, tmp_path: Path, monkeypatch) -> None:
    whole = (save_policy(net, tmp_path / "whole") / "policy.safetensors").read_bytes()
    folder = save_policy(net, tmp_path / "cut")
    monkeypatch.setattr(policies, "MAX_PART_BYTES", len(whole) // 3 + 1)
    save_policy(net, folder)
    names = [f"policy.safetensors.0{i}" for i in range(3)]
    assert sorted(os.listdir(folder)) == ["policy.json", *names]
    assert b"".join((folder / name).read_bytes() for name in names) == whole
    loaded = load_policy(folder)
    assert all(torch.equal(net.state_dict()[k], v) for k, v in loaded.state_dict().items())
    (folder / names[2]).unlink()
    with pytest.raises(QuarlError, match="truncated or was changed"):
        load_policy(folder)
    monkeypatch.undo()
    save_policy(net, folder)
    assert sorted(os.listdir(folder)) == ["policy.json", "policy.safetensors"]


@pytest.mark.parametrize("source", ["folder", "public/ppo-CartPole-v1"])
@pytest.mark.parametrize("option", ["vecnormalize", "activation"])
def test_what_only_a_zip_lacks_is_not_passed_over(
    net: PolicyNet, tmp_path: Path, monkeypatch, source: str, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save_policy(net, "folder")
    with pytest.raises(QuarlError, match=f"^{option} goes with an SB3 zip: '{source}' has its own"):
        load_policy(source, **{option: "relu"})


def test_a_policy_of_more_than_a_hundred_parts_is_read_in_their_order(
    net: PolicyNet, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(policies, "MAX_PART_BYTES", 1)
    folder = save_policy(net, tmp_path)
    assert (folder / "policy.safetensors.100").exists()
    assert torch.equal(load_policy(folder).layers[0].weight, net.layers[0].weight)


def rewrite(folder: Path, **changes: object) -> None:
    """Change the tensors and make the checksum fit, so that the later checks are reached."""
    description = json.loads((folder / "policy.json").read_text())
    if "tensors" in changes:
        payload = save_safetensors(changes.pop("tensors"))  # type: ignore[arg-type]  # a dict
        (folder / "policy.safetensors").write_bytes(payload)
        description["tensors_sha256"] = hashlib.sha256(payload).hexdigest()
    (folder / "policy.json").write_text(json.dumps(description | changes))


WEIGHT, BIAS = torch.zeros(2, 2), torch.zeros(2)
BAD_TENSORS = {
    "missing tensor 'layers.0.bias'": {"layers.0.weight": WEIGHT},
    "unexpected tensor 'x'": {"layers.0.weight": WEIGHT, "layers.0.bias": BIAS, "x": BIAS.clone()},
    r"\[3, 2\]": {"layers.0.weight": torch.zeros(3, 2), "layers.0.bias": BIAS},
    "float64": {"layers.0.weight": WEIGHT.double(), "layers.0.bias": BIAS},
    "NaN": {"layers.0.weight": WEIGHT * torch.nan, "layers.0.bias": BIAS},
    "infinite": {"layers.0.weight": WEIGHT + torch.inf, "layers.0.bias": BIAS},
}


@pytest.mark.parametrize("message", BAD_TENSORS)
def test_bad_tensors_are_named(net: PolicyNet, tmp_path: Path, message: str) -> None:
    save_policy(net, tmp_path)
    rewrite(tmp_path, tensors=BAD_TENSORS[message])
    with pytest.raises(QuarlError, match=message) as caught:
        load_policy(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_damaged_files_are_named(net: PolicyNet, tmp_path: Path) -> None:
    with pytest.raises(QuarlError, match="no policy in"):
        load_policy(tmp_path / "nothing")
    save_policy(net, tmp_path)
    tensors = tmp_path / "policy.safetensors"
    payload = tensors.read_bytes()
    for changed in (payload[:-1], payload[:-1] + b"\x01", b""):
        tensors.write_bytes(changed)
        with pytest.raises(QuarlError, match="policy.safetensors .* truncated or was changed"):
            load_policy(tmp_path)
    tensors.unlink()
    with pytest.raises(QuarlError, match="cannot read policy.safetensors"):
        load_policy(tmp_path)
    tensors.write_bytes(payload)
    description = (tmp_path / "policy.json").read_text()
    for damaged in (description[:50], "[" * 200_000):
        (tmp_path / "policy.json").write_text(damaged)
        with pytest.raises(QuarlError, match="policy.json .* is damaged"):
            load_policy(tmp_path)
    for version in (2, "1", None):
        (tmp_path / "policy.json").write_text(description)
        rewrite(tmp_path, format_version=version)
        with pytest.raises(QuarlError, match="format version"):
            load_policy(tmp_path)


def then(kind: str, **options: object) -> dict[str, object]:
    """The layers of `net` and one more."""
    return {"layers": [asdict(LINEAR), {"kind": kind, "options": options}]}


NAN, BOUNDS = float("nan"), {"kind": "clip", "shape": [2]}
BAD_SPECS = {
    "unknown layer 'exec'": {"layers": [{"kind": "exec", "options": {}}]},
    "'linear' has no object of options: 'x'": {"layers": [{"kind": "linear", "options": "x"}]},
    "bad options": {"layers": [{"kind": "linear", "options": {"size": 3}}]},
    "layer 'linear' has bad options: device": then(
        "linear", in_features=10**6, out_features=10**6, device="cpu"),
    "layers do not fit": {"obs_shape": [3]},
    "unknown head 'x'": {"head": {"kind": "x", "low": [], "high": [], "shape": []}},
    "needs 2 bounds": {"head": {"kind": "clip", "low": [0], "high": [1], "shape": [2]}},
    "do not fit head": {"head": {"kind": "clip", "low": [0], "high": [1], "shape": [1]}},
    "bad policy description": {"layers": 3},
    "cannot convert float infinity": {"obs_shape": [float("inf")]},
    "head 'clip' needs bounds low <= high": {"head": BOUNDS | {"low": [1, 0], "high": [0, 1]}},
    "needs bounds low <= high": {"head": BOUNDS | {"low": [NAN, 0], "high": [1, 1]}},
    "layer 'hardtanh' has bad options: max_val": then("hardtanh", min_val=3, max_val=1),
    "int too big to convert": then("divide", by=10**400),
    "NaN or infinite outputs": then("divide", by=0),
    "env_id is 5, no name": {"env_id": 5},
}


@pytest.mark.parametrize("message", BAD_SPECS)
def test_bad_descriptions_are_named(net: PolicyNet, tmp_path: Path, message: str) -> None:
    save_policy(net, tmp_path)
    spec = json.loads((tmp_path / "policy.json").read_text())["spec"]
    rewrite(tmp_path, spec=spec | BAD_SPECS[message])
    with pytest.raises(QuarlError, match=message) as caught:
        load_policy(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_policy_without_weights_acts() -> None:
    net = PolicyNet(PolicySpec("ppo", None, (2,), (Layer("flatten"),), Head("argmax")), {})
    assert net.act(np.array([[1.0, 2.0], [4.0, 3.0]]))[0].tolist() == [1, 0]


def test_a_policy_without_layers_is_refused() -> None:
    with pytest.raises(QuarlError, match="a policy needs layers"):
        PolicyNet(PolicySpec("ppo", None, (2,), (), Head("argmax")), {})


def test_a_variance_that_epsilon_makes_negative_is_refused() -> None:
    layers = (Layer("normalize", {"shape": [2], "epsilon": -1.0, "clip": 10.0}), LINEAR)
    tensors = {"layers.0.mean": BIAS.double(), "layers.0.var": BIAS.double() + 0.5,
               "layers.1.weight": WEIGHT, "layers.1.bias": BIAS}  # fmt: skip
    with pytest.raises(QuarlError, match="NaN or infinite outputs"):
        PolicyNet(PolicySpec("ppo", None, (2,), layers, Head("argmax")), tensors)


@pytest.mark.parametrize(("place", "shape"), [(0, [1]), (0, []), (0, [1, 2]), (1, [2])])
def test_statistics_are_of_raw_observations_and_of_their_shape(place: int, shape: list) -> None:
    """Torch would broadcast them, C would read beyond them."""
    normalize = Layer("normalize", {"shape": shape, "epsilon": 1e-8, "clip": 10.0})
    layers = [Layer("flatten"), LINEAR]
    layers.insert(place, normalize)
    tensors = {f"layers.{place}.mean": torch.zeros(shape, dtype=torch.float64),
               f"layers.{place}.var": torch.ones(shape, dtype=torch.float64),
               "layers.2.weight": WEIGHT, "layers.2.bias": BIAS}  # fmt: skip
    message = rf"'layers.{place}' \(normalize\) has statistics \[.*\]; allowed: \[2\], those of"
    with pytest.raises(QuarlError, match=message):
        PolicyNet(PolicySpec("ppo", None, (2,), tuple(layers), Head("argmax")), tensors)


@pytest.mark.parametrize("kind", ["clip", "tanh_scale"])
def test_no_action_leaves_bounds_that_float32_does_not_have(kind) -> None:
    # The nearest float32 of pi is above it, that of 0.1 too, and of -0.7 it is within.
    space = gym.spaces.Box(np.array([-np.pi, 0.1, -0.7]), np.array([np.pi, 2 / 3, 1]), (3,),
                           np.float64)  # fmt: skip
    head = Head(kind, tuple(space.low), tuple(space.high), (3,))
    for outputs in (torch.full((1, 3), 50.0), torch.full((1, 3), -50.0)):
        (action,) = head.actions(outputs)
        assert space.contains(action.astype(np.float64))
        end = space.high if outputs[0, 0] > 0 else space.low
        np.testing.assert_allclose(action, end, rtol=2e-7)
    widest = Head("clip", (-1e300,), (1e300,), (1,)).actions(torch.tensor([[np.inf]]))
    assert widest == np.finfo(np.float32).max


def test_bounds_of_an_action_may_be_infinite_or_equal() -> None:
    Head("clip", low=(-np.inf, 1.0), high=(np.inf, 1.0), shape=(2,))


def test_a_description_cannot_allocate_memory() -> None:
    huge = Layer("linear", {"in_features": 2**20, "out_features": 2**20})
    with pytest.raises(QuarlError, match="missing tensor"):
        PolicyNet(PolicySpec("ppo", None, (2**20,), (huge,), Head("argmax")), {})


@pytest.mark.parametrize(
    ("obs_shape", "layer"),
    [
        ((2**25,), Layer("linear", {"in_features": 4, "out_features": 2})),
        ((2**13, 1), Layer("linear", {"in_features": 1, "out_features": 2**12})),
        ((1, 84, 84), Layer("conv2d", {"in_channels": 1, "out_channels": 1, "kernel_size": 1,
                                       "padding": 3000})),
    ],
    ids=["observation", "linear", "padding"],
)  # fmt: skip
def test_running_a_description_allocates_no_memory_either(
    obs_shape: tuple[int, ...], layer: Layer
) -> None:
    layers, module = (layer, Layer("flatten")), layer.build().to_empty(device="cpu")
    tensors = {f"layers.0.{name}": torch.zeros_like(t) for name, t in module.state_dict().items()}
    with pytest.raises(QuarlError, match="values of one observation; allowed: 16777216"):
        PolicyNet(PolicySpec("ppo", None, obs_shape, layers, Head("argmax")), tensors)


def test_padding_that_a_stride_hides_allocates_no_memory() -> None:
    hidden = Layer("conv2d", {"in_channels": 1, "out_channels": 1, "kernel_size": 1,
                              "padding_mode": "replicate", "padding": 9000, "stride": 18000})
    layers = (hidden, Layer("flatten"))
    tensors = {"layers.0.weight": torch.zeros(1, 1, 1, 1), "layers.0.bias": torch.zeros(1)}
    with pytest.raises(QuarlError, match="'conv2d' has bad options: padding_mode 'replicate'"):
        PolicyNet(PolicySpec("ppo", None, (1, 1, 1), layers, Head("argmax")), tensors)


def test_layers_that_mix_observations_are_refused() -> None:
    layers = (Layer("flatten", {"start_dim": 0, "end_dim": 1}), LINEAR)
    tensors = {"layers.1.weight": WEIGHT, "layers.1.bias": BIAS}
    with pytest.raises(QuarlError, match="mix observations"):
        PolicyNet(PolicySpec("ppo", None, (3, 2), layers, Head("argmax")), tensors)


def test_saving_where_one_cannot_is_one_line(net: PolicyNet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QuarlError, match="cannot write '"):
        save_policy(net, tmp_path / "file")


@pytest.mark.parametrize("files", [0, 1])  # that the disk still takes
def test_a_full_disk_leaves_the_older_policy(
    net: PolicyNet, tmp_path: Path, monkeypatch, files: int
) -> None:
    def fsync(_: int) -> None:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")

    left = iter(range(files))
    save_policy(net, tmp_path, {"steps": 10})
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(QuarlError, match="No space left on device"):
        save_policy(net, tmp_path, {"steps": 20})
    assert load_policy(tmp_path).spec.provenance["steps"] == 10
    assert sorted(os.listdir(tmp_path)) == ["policy.json", "policy.safetensors"]


def test_saving_leaves_what_is_no_file_of_a_policy(net: PolicyNet, tmp_path: Path) -> None:
    (tmp_path / "policy.safetensors.bak").write_text("their own")
    (tmp_path / "policy.safetensors.d").mkdir()
    save_policy(net, tmp_path)
    assert (tmp_path / "policy.safetensors.bak").read_text() == "their own"


def test_act_checks_the_observation(net: PolicyNet) -> None:
    with pytest.raises(QuarlError, match=r"shape \[2\], got \[3\]"):
        net.act(np.zeros((1, 3)))
