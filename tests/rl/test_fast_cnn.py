from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn
from torch.nn import functional as F

from quarl_nb.errors import QuarlError
from quarl_nb.rl.fast_cnn import (
    FAST_CNN_POLICIES,
    FastActorCriticCnnPolicy,
    FastNatureCNN,
    LossScaler,
    _by_block,
    _bytes_by_block,
    _gpu_has_bfloat16,
    training_dtype,
)
from quarl_nb.rl.model import make_model
from quarl_nb.rl.recipes import recipes
from quarl_nb.rl.sb3.convert import policy_from_model

SPACE = Box(0, 255, (4, 84, 84), dtype=np.uint8)


def test_fast_features_are_nature_features_to_bf16_rounding():
    torch.manual_seed(0)
    fast, stock = FastNatureCNN(SPACE, 128, precision="bf16"), NatureCNN(SPACE, 128)
    stock.load_state_dict(fast.state_dict())
    fast.to(memory_format=torch.channels_last)
    frames = torch.randint(0, 256, (6, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        expected, got = stock(frames.float() / 255), fast(frames)
    assert got.dtype == torch.float32
    error = (got - expected).norm() / expected.norm()
    assert 2**-12 < error < 0.02  # bf16 keeps 8 bits: computed in it, and close


@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-5), ("fp16", 0.002)])
def test_other_precisions_are_nature_features_too(precision, most):
    torch.manual_seed(0)
    fast, stock = FastNatureCNN(SPACE, 16, precision=precision), NatureCNN(SPACE, 16)
    stock.load_state_dict(fast.state_dict())
    obs = frames(2)
    with torch.no_grad():
        expected, got = stock(obs.float() / 255), fast(obs)
    assert got.dtype == torch.float32
    assert (got - expected).norm() / expected.norm() < most


@pytest.mark.parametrize("size", [(84, 84), (86, 99)])
def test_a_convolution_of_blocks_is_the_strided_one(size):
    images = torch.randint(0, 256, (3, 2, *size), dtype=torch.uint8)
    weight = torch.randint(-9, 10, (5, 2, 8, 8)).double()
    expected = F.conv2d(images.double(), weight, stride=4)
    blocks = _bytes_by_block(images)
    assert torch.equal(F.conv2d(blocks.double(), _by_block(weight)), expected)
    assert blocks.is_contiguous(memory_format=torch.channels_last)
    whole = images[:, :, : size[0] // 4 * 4, : size[1] // 4 * 4]
    assert torch.equal(blocks, _by_block(whole))


def test_a_single_decision_is_computed_in_fp32():
    fast = FastNatureCNN(SPACE, 16, precision="bf16")
    obs = frames(2)
    with torch.no_grad():
        exact = torch.cat([fast(obs[:1]), fast(obs[1:])])
        assert not torch.equal(exact, fast(obs))
        fast.dtype = torch.float32
        torch.testing.assert_close(exact, fast(obs))
    fast.dtype = torch.bfloat16
    assert not torch.equal(fast(obs[:1]), exact[:1])  # a batch of one in training


@pytest.mark.parametrize("fast", [True, False])
def test_half_precision_is_the_default_only_where_it_is_faster(fast, monkeypatch):
    monkeypatch.setattr("quarl_nb.rl.fast_cnn.bf16_is_faster", lambda: fast)
    net, obs = FastNatureCNN(SPACE, 16), frames(2)
    features = net(obs)
    net.dtype = torch.bfloat16 if fast else torch.float32
    assert torch.equal(features, net(obs))
    net.dtype = torch.float32 if fast else torch.bfloat16
    assert not torch.equal(features, net(obs))


@pytest.mark.parametrize("major", [7, 8])
def test_a_gpu_that_would_emulate_bfloat16_trains_in_float32(major, monkeypatch):
    _gpu_has_bfloat16.cache_clear()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(major=major))
    monkeypatch.setattr("torch.cuda._check_bf16_tensor_supported", lambda _: True)
    expected = torch.bfloat16 if major >= 8 else torch.float32
    assert training_dtype(torch.device("cuda")) == expected
    _gpu_has_bfloat16.cache_clear()


def test_sizes_are_what_is_asked_for():
    net = FastNatureCNN(SPACE, 12, filters=(3, 5, 7), precision="fp32")
    shapes = [list(p.shape) for p in net.parameters() if p.ndim > 1]
    assert shapes == [[3, 4, 8, 8], [5, 3, 4, 4], [7, 5, 3, 3], [12, 7 * 7 * 7]]
    assert net(frames(2)).shape == (2, 12)
    with pytest.raises(QuarlError, match="unknown precision of training 'int8'"):
        FastNatureCNN(SPACE, precision="int8")


def test_a_scaler_begins_as_torchs_own():
    layer = nn.Linear(3, 2)
    scaler = LossScaler([layer], torch.optim.Adam(layer.parameters(), fused=True))
    stock = torch.amp.GradScaler("cpu")
    assert scaler.scale.item() == stock.get_scale() == 2.0**16
    assert scaler.interval == stock.get_growth_interval() == 2000


def scaled(interval: int = 2) -> tuple[nn.Linear, torch.optim.Adam, LossScaler]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), fused=True)
    return layer, optimizer, LossScaler([layer], optimizer, interval=interval)


def test_scaled_gradients_are_the_gradients():
    layer, _, scaler = scaled()
    x, plain = torch.randn(4, 3), nn.Linear(3, 2)
    plain.load_state_dict(layer.state_dict())
    inside: list[torch.Tensor] = []
    layer.weight.register_hook(inside.append)
    for each in (layer, plain):
        each(x).square().sum().backward()
    # A power of two scales exactly.
    for ours, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert scaler.scale == 2.0**16 and torch.equal(inside[0], layer.weight.grad)


def test_gradients_too_small_for_fp16_survive():
    found = []
    for scale in (1.0, 2.0**16):
        torch.manual_seed(0)
        net = FastNatureCNN(SPACE, 16, filters=(2, 2, 2), precision="fp16")
        optimizer = torch.optim.Adam(net.parameters(), fused=True)
        LossScaler([net], optimizer, scale=scale)
        (1e-9 * net(frames(2)).sum()).backward()
        found.append(net.linear[0].bias.grad.abs().max().item())
    assert found[0] == 0
    assert found[1] == pytest.approx(2e-9, rel=1e-3)  # two frames


def test_an_overflow_skips_the_step_and_halves_the_scale():
    layer, optimizer, scaler = scaled(interval=2)
    before = layer.weight.detach().clone()

    def step(factor: float) -> None:
        optimizer.zero_grad()
        (factor * layer(torch.ones(1, 3))).sum().backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 10.0)  # as every algorithm of SB3 does
        optimizer.step()

    step(float("inf"))
    assert torch.equal(layer.weight, before) and scaler.skipped == 1
    assert scaler.scale == 2.0**15
    step(1.0)
    assert not torch.equal(layer.weight, before) and scaler.scale == 2.0**15
    step(1.0)
    assert scaler.scale == 2.0**16 and scaler.skipped == 1
    # The left-out step is none of Adam's either.
    assert optimizer.state[layer.weight]["step"] == 2
    for _ in range(4):
        step(1.0)
    assert scaler.scale == 2.0**18  # after every two steps again


def test_a_scaler_asks_for_an_optimizer_that_can_leave_a_step_out():
    layer = nn.Linear(3, 2)
    with pytest.raises(QuarlError, match=r"fp16 needs .*optimizer_kwargs=dict\(fused=True\)"):
        LossScaler([layer], torch.optim.Adam(layer.parameters()))


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_actor_and_critic_agree_with_the_stock_policy_on_every_path(algo):
    model, obs = pong_model(algo), frames(8)
    stock = ActorCriticCnnPolicy(
        model.observation_space, model.action_space, lambda _: 0.0,
        features_extractor_kwargs=dict(features_dim=128),
    )  # fmt: skip
    stock.load_state_dict(model.policy.state_dict())
    with torch.no_grad():
        logits = stock.get_distribution(obs).distribution.logits
        values = stock.predict_values(obs)
        close_to(model.policy.get_distribution(obs).distribution.logits, logits)
        close_to(model.policy.predict_values(obs), values)
        actions, rollout_values, rollout_log_prob = model.policy(obs)
        close_to(rollout_values, values)
        trained_values, log_prob, _ = model.policy.evaluate_actions(obs, actions)
        close_to(trained_values, values)
        torch.testing.assert_close(log_prob, rollout_log_prob, rtol=0, atol=1e-3)
    model.env.close()


def test_actor_and_critic_have_hidden_layers_of_their_own():
    policy = FastActorCriticCnnPolicy(
        SPACE, Discrete(3), lambda _: 0.0, features_extractor_kwargs={"features_dim": 8},
        net_arch={"pi": [5], "vf": [7]},
    )  # fmt: skip
    obs = frames(2)
    with torch.no_grad():
        actions, values, log_prob = policy(obs)
        assert torch.equal(policy.predict_values(obs), values)
        assert torch.equal(policy.get_distribution(obs).log_prob(actions), log_prob)


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn"])
def test_a_fast_model_acts_as_its_policy_net_does(algo):
    model, obs = pong_model(algo), frames(8)
    net = policy_from_model(model, env_id="PongNoFrameskip-v4")
    with torch.no_grad():
        if algo == "dqn":
            theirs = model.policy.q_net(obs)
        else:
            theirs = model.policy.get_distribution(obs).distribution.logits
        close_to(theirs, net(obs))
    model.env.close()


@pytest.mark.parametrize(
    ("algo", "option"),
    [("ppo", "normalize_images"), ("ppo", "share_features_extractor"), ("dqn", "normalize_images")],
)
def test_options_that_it_would_pass_over_are_refused(algo, option):
    with pytest.raises(QuarlError, match=f"policies of the fast CNN have no {option}=False"):
        FAST_CNN_POLICIES[algo](SPACE, Discrete(3), lambda _: 0.0, **{option: False})


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_policy_of_the_fast_cnn_has_its_extractor_and_no_other(algo):
    small = {"features_extractor_kwargs": {"features_dim": 8}, "net_arch": []}
    kind = FAST_CNN_POLICIES[algo]
    policy = kind(SPACE, Discrete(3), lambda _: 0.0, **small)
    assert policy._predict(frames(2)).shape == (2,)
    for other, named in ((NatureCNN, "NatureCNN"), (partial(FastNatureCNN), "functools.partial")):
        with pytest.raises(QuarlError, match=f"by FastNatureCNN, not by {named}"):
            kind(SPACE, Discrete(3), lambda _: 0.0, features_extractor_class=other, **small)


def test_frames_that_are_divided_already_are_refused():
    with pytest.raises(QuarlError, match="takes uint8 frames, got torch.float32: it goes with"):
        FastNatureCNN(SPACE, 16, precision="fp32")(frames(2) / 255)


def pong_model(algo: str):
    recipe = recipes()[f"{algo}-PongNoFrameskip-v4"]
    recipe.hyperparameters.update({"buffer_size": 64} if algo == "dqn" else {})
    return make_model(recipe, seed=0)


def frames(n: int) -> torch.Tensor:
    numbers = np.random.default_rng(0).integers(0, 256, (n, 4, 84, 84), dtype=np.uint8)
    return torch.as_tensor(numbers)


def close_to(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to bf16 rounding, which keeps 8 bits."""
    if got.shape[-1] > 1:  # logits and action values: up to what they share
        got, expected = (x - x.mean(1, keepdim=True) for x in (got, expected))
    assert (got - expected).norm() / expected.norm() < 0.05
