from __future__ import annotations

import numpy as np
import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.inference import EnginePolicy, build_payload, fast_policy
from quarl_nb.quant import parse_precision, quantize_module
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.spec import Head

BODY = (("linear", {"in_features": 4, "out_features": 16}), "tanh",
        ("linear", {"in_features": 16, "out_features": 2}))  # fmt: skip
HEADS = {
    "argmax": Head("argmax"),
    "sample": Head("sample"),
    "clip": Head("clip", low=(-0.2, -0.2), high=(0.2, 0.1), shape=(2,)),
    "tanh_scale": Head("tanh_scale", low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,)),
}


@pytest.fixture
def obs():
    return np.random.default_rng(0).standard_normal((50, 4), dtype=np.float32)


@pytest.mark.parametrize("kind", HEADS)
def test_actions_are_those_of_the_network_with_every_head(make_policy, obs, kind):
    net = make_policy((4,), *BODY, head=HEADS[kind])
    policy = fast_policy(net)
    assert isinstance(policy, EnginePolicy)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    got, state = policy.act(obs, policy.initial_state(len(obs)), generators[0])
    expected, _ = net.act(obs, None, generators[1])
    assert state is None
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_outputs_that_are_no_numbers_are_told(make_policy, obs):
    body = (("linear", {"in_features": 4, "out_features": 4}), "relu",
            ("linear", {"in_features": 4, "out_features": 2}))  # fmt: skip
    net = make_policy((4,), *body)
    with torch.no_grad():
        net.layers[0].weight.copy_(4 * torch.eye(4))
        net.layers[2].weight.copy_(torch.tensor([[1.0, -1.0, 1.0, -1.0]] * 2))
    policy = fast_policy(net)
    assert isinstance(policy, EnginePolicy) and policy.act(np.abs(obs))[0].shape == (50,)
    with pytest.raises(QuarlError, match="the policy's outputs are NaN"):  # inf - inf
        policy.act(np.full((1, 4), 3e38, np.float32))


def test_an_evaluation_by_the_engine_is_that_of_the_network(make_policy):
    net = make_policy((4,), *BODY)
    runs = [evaluate(policy, "CartPole-v1", range(12)) for policy in (net, fast_policy(net))]
    assert runs[0].lengths == runs[1].lengths


def test_simulated_activations_stay_in_torch_and_never_enter_a_payload(make_policy, obs):
    net = make_policy((4,), *BODY)
    frames = torch.as_tensor(obs)
    for name in ("int8", "fp16"):
        simulated = quantize_module(net, parse_precision(name), lambda model: model(frames))
        assert fast_policy(simulated) is simulated
        for runtime in ("onnxruntime", "torch"):
            with pytest.raises(QuarlError, match="rounds its activations in simulation"):
                build_payload(simulated, "fp32", runtime=runtime)


def test_a_hook_on_what_leaves_a_layer_stays_in_torch_too(make_policy):
    net = make_policy((4,), *BODY)
    net.layers[0].register_forward_hook(lambda layer, args, output: output.round())
    assert fast_policy(net) is net


def test_a_recurrent_policy_stays_in_torch(make_policy):
    cell = ("gru_cell", {"input_size": 4, "hidden_size": 8})
    net = make_policy((4,), cell, ("linear", {"in_features": 8, "out_features": 2}))
    assert fast_policy(net) is net
