"""Weight noise as large as the quantization error, and layer normalization that is exported."""

from __future__ import annotations

from typing import Any

import pytest
import stable_baselines3 as sb3
import torch
from torch import nn
from torch.nn import functional as F

from quarl_nb.quant import parse_precision, quantize_module
from quarl_nb.quant.qat import quantize_aware
from quarl_nb.rl.qat import export_qat, prepare_qat
from quarl_nb.rl.qat_networks import is_quantized
from quarl_nb.rl.sb3.convert import policy_from_model
from quarl_nb.studies.regularizers import (
    WeightNoise,
    noise_for_quantization,
    normalize_hidden_layers,
    with_layer_norm,
)

OFF = {"learning_starts": 20, "buffer_size": 200, "batch_size": 16, "train_freq": 2}
MODELS: dict[str, tuple[type, str, dict[str, Any]]] = {
    "ppo": (sb3.PPO, "CartPole-v1", {"n_steps": 32, "batch_size": 16, "n_epochs": 2}),
    "a2c": (sb3.A2C, "Pendulum-v1", {}),
    "dqn": (sb3.DQN, "CartPole-v1", OFF | {"target_update_interval": 10}),
    "ddpg": (sb3.DDPG, "Pendulum-v1", OFF),
}


def make(algo: str) -> Any:
    kind, env, options = MODELS[algo]
    small = {"policy_kwargs": {"net_arch": [16, 12]}}
    return kind("MlpPolicy", env, seed=0, device="cpu", **options, **small)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_noise_is_as_large_as_the_quantization_error(bits):
    weight = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    plain = torch.nn.Linear(300, 200)
    plain.weight.data = weight
    quantized = quantize_module(plain, parse_precision(f"affine{bits}")).weight
    noise = WeightNoise(bits)
    assert noise(weight) is weight
    noise.start()
    torch.manual_seed(0)
    one, two = (noise(weight) - weight for _ in range(2))
    error = (quantized - weight).square().mean().sqrt()
    assert one.square().mean().sqrt() == pytest.approx(error.item(), rel=0.02)
    assert abs((one * two).mean()) < 0.02 * error**2  # anew each time
    assert abs(one.mean()) < 0.02 * error
    assert noise.quantize(weight) is weight


def test_noise_is_drawn_anew_while_weights_are_held():
    (layer,) = quantize_aware([nn.Linear(4, 3)], bits=4)
    layer.add_module("weight_quantizer", WeightNoise(4))
    layer.weight_quantizer.start()
    layer.eval()
    layer.holding = True
    with torch.no_grad():
        assert not torch.equal(layer.weight, layer.weight)


def test_the_gradient_passes_noise():
    noise = WeightNoise(4)
    noise.start()
    weight = torch.randn(3, 3, requires_grad=True)
    noise(weight).mul(torch.arange(9.0).reshape(3, 3)).sum().backward()
    assert torch.equal(weight.grad, torch.arange(9.0).reshape(3, 3))


@pytest.mark.parametrize("algo", MODELS)
def test_training_with_noise_exports_the_weights_themselves(algo):
    model = make(algo)
    callback = prepare_qat(model, 2, quant_delay=60)
    noise_for_quantization(model)
    model.learn(120, callback=callback)
    assert is_quantized(model)
    net = export_qat(model)
    assert "fixed_quantize" not in {layer.kind for layer in net.spec.layers}
    trained = dict(model.policy.named_parameters())
    for tensor in net.state_dict().values():
        assert any(torch.equal(tensor, p) for p in trained.values())
    linear = [m for m in model.policy.modules() if hasattr(m, "weight_quantizer")]
    assert all(not torch.equal(m.weight, m.weight) for m in linear)


@pytest.mark.parametrize("algo", MODELS)
def test_the_exported_policy_normalizes_as_the_trained_one(algo):
    model = make(algo)
    before = set(model.policy.state_dict())
    plain = policy_from_model(model)
    normalize_hidden_layers(model)
    assert set(model.policy.state_dict()) == before
    model.learn(120)
    net = with_layer_norm(policy_from_model(model))
    kinds = [layer.kind for layer in net.spec.layers]
    assert kinds.count("layer_norm") == kinds.count("linear") - 1 == 2
    obs = torch.randn(20, *net.spec.obs_shape)
    model.policy.set_training_mode(False)
    with torch.no_grad():
        if algo in ("ppo", "a2c"):
            distribution = model.policy.get_distribution(obs).distribution
            theirs = distribution.logits if algo == "ppo" else distribution.mean
            ours = net(obs) - (net(obs).logsumexp(1, keepdim=True) if algo == "ppo" else 0)
        elif algo == "dqn":
            theirs, ours = model.q_net(obs), net(obs)
        else:
            theirs, ours = model.actor(obs), net(obs).tanh()
    torch.testing.assert_close(ours, theirs)
    hidden = F.linear(obs, net.layers[1].weight, net.layers[1].bias)
    torch.testing.assert_close(net.layers[2](hidden).mean(1), torch.zeros(20), atol=1e-5, rtol=0)
    assert not torch.allclose(plain(obs), net(obs))


def test_the_target_network_is_normalized_too():
    model = make("dqn")
    normalize_hidden_layers(model)
    obs = torch.randn(5, 4)
    torch.testing.assert_close(model.q_net(obs), model.q_net_target(obs))
