"""Quantization-aware training of every algorithm by its own `learn`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import polyak_update
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant import parse_precision, quantize_module
from quarl_nb.quant.minmax import InputQuantizer, WeightQuantizer
from quarl_nb.quant.qat import QATLayer, qat_layers
from quarl_nb.rl.checkpoint import Progress, load_checkpoint, save_checkpoint
from quarl_nb.rl.d4pg import D4PG
from quarl_nb.rl.fast_cnn import FAST_CNN_POLICIES, FastNatureCNN
from quarl_nb.rl.policies import load_policy, save_policy
from quarl_nb.rl.prioritized import PrioritizedDQN, PrioritizedReplayBuffer
from quarl_nb.rl.qat import export_qat, prepare_qat
from quarl_nb.rl.qat_networks import is_quantized, qat_networks, training_quantizers
from quarl_nb.rl.quant_delay import QuantDelay

PLAIN: dict[str, Any] = {"device": "cpu", "seed": 0}
OFF = PLAIN | {"learning_starts": 20, "buffer_size": 500, "batch_size": 16, "train_freq": 2}


def small() -> dict[str, Any]:
    """Anew for each model: DDPG writes into it."""
    return {"policy_kwargs": dict(net_arch=[16, 16])}


MODELS: dict[str, Callable[[], BaseAlgorithm]] = {
    "ppo": lambda: sb3.PPO(
        "MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=2, **PLAIN
    ),
    "a2c": lambda: sb3.A2C("MlpPolicy", "Pendulum-v1", **PLAIN),
    "dqn": lambda: sb3.DQN("MlpPolicy", "CartPole-v1", target_update_interval=30, **OFF, **small()),
    "ddpg": lambda: sb3.DDPG("MlpPolicy", "Pendulum-v1", **OFF, **small()),
    "td3": lambda: sb3.TD3("MlpPolicy", "Pendulum-v1", **OFF, **small()),
    "sac": lambda: sb3.SAC("MlpPolicy", "Pendulum-v1", **OFF, **small()),
    "d4pg": lambda: D4PG("MlpPolicy", "Pendulum-v1", target_update_period=5, **OFF, **small()),
}  # fmt: skip
CHANNELS, LSQ = {"per_channel": True}, {"method": "lsq"}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((algo, {}) for algo in MODELS),
    *((algo, CHANNELS) for algo in ("ppo", "dqn")),
    *((algo, LSQ) for algo in ("a2c", "dqn", "ddpg", "sac", "d4pg")),
]


class Frames(gym.Env):
    """Random uint8 frames [4, 84, 84], three actions, episodes of 5 steps."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        return self.observation_space.sample(), float(action), self.steps == 5, False, {}


class Spy(BaseCallback):
    """Calls `look(model)` at every environment step."""

    def __init__(self, look: Callable[[Any], Any]) -> None:
        super().__init__()
        self.look = look

    def _on_step(self) -> bool:
        self.look(self.model)
        return True


def observations(model: BaseAlgorithm, n: int = 40) -> torch.Tensor:
    model.observation_space.seed(1)
    samples = np.array([model.observation_space.sample() for _ in range(n)])
    return torch.as_tensor(samples.clip(-3, 3) if samples.dtype != np.uint8 else samples)


@torch.no_grad()
def outputs(model: Any, obs: torch.Tensor) -> torch.Tensor:
    """What the model's own acting network says: values, logits up to a constant, means or tanh."""
    policy = model.policy
    policy.set_training_mode(False)
    if isinstance(model, sb3.DQN):
        return policy.q_net(obs)
    if isinstance(model, sb3.SAC):
        return policy.actor(obs, deterministic=True)
    if hasattr(policy, "actor"):
        return policy.actor(obs)
    distribution = policy.get_distribution(obs).distribution
    return distribution.logits if hasattr(distribution, "logits") else distribution.mean


def exported(model: BaseAlgorithm, net: nn.Module, obs: torch.Tensor) -> torch.Tensor:
    """The same of an exported policy."""
    out = net(obs)
    if hasattr(model.policy, "actor"):
        return out.tanh()
    if isinstance(model, sb3.PPO):
        return out - out.logsumexp(1, keepdim=True)
    return out


def acting_layers(model: BaseAlgorithm) -> list[QATLayer]:
    return [
        layer
        for name, layer in model.policy.named_modules()
        if isinstance(layer, QATLayer) and "target" not in name
    ]


@pytest.mark.parametrize("algo, way", CASES, ids=str)
def test_learn_trains_a_quantized_policy_that_exports_and_reopens(
    algo: str, way: dict[str, Any], tmp_path: Path
) -> None:
    model = MODELS[algo]()
    before = {name: p.clone() for name, p in model.policy.named_parameters()}
    model.learn(150, callback=prepare_qat(model, 3, quant_delay=40, **way))
    obs = observations(model)

    after = model.policy.state_dict()
    names = {n.rpartition(".")[0] for n, p in before.items() if not torch.equal(after[n], p)}
    for name, layer in model.policy.named_modules():
        if isinstance(layer, QATLayer):
            assert name in names or "target" in name
            rows = layer.weight.flatten(1) if "per_channel" in way else [layer.weight]
            assert all(len(row.unique()) <= 8 for row in rows)
            assert layer.quantizers()[0].enabled
    assert len(acting_layers(model)) == 3

    net = export_qat(model)
    assert torch.equal(exported(model, net, obs), outputs(model, obs))
    save_policy(net, tmp_path / "policy")
    assert torch.equal(load_policy(tmp_path / "policy")(obs), net(obs))
    if "method" not in way:
        ranges = "per_channel" if "per_channel" in way else "minmax"
        again = quantize_module(net, parse_precision("affine3", ranges))
        torch.testing.assert_close(again(obs), net(obs), rtol=1e-5, atol=1e-5)

    model.save(tmp_path / "model.zip")
    reopened = MODELS[algo]()
    prepare_qat(reopened, 3, quant_delay=40, **way)
    reopened.set_parameters(tmp_path / "model.zip")
    assert is_quantized(reopened)
    assert torch.equal(outputs(reopened, obs), outputs(model, obs))


@pytest.mark.parametrize("algo", MODELS)
def test_a_saved_model_does_not_pass_for_its_float_network(algo: str, tmp_path: Path) -> None:
    model = MODELS[algo]()
    prepare_qat(model, 3)
    model.save(tmp_path / "model.zip")
    with pytest.raises(QuarlError, match="model.zip' is a quantization-aware model: ") as caught:
        load_policy(tmp_path / "model.zip")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn"])
def test_the_fast_cnn_trains_quantized(algo: str) -> None:
    arguments = PLAIN | dict(policy_kwargs=dict(
        features_extractor_class=FastNatureCNN, features_extractor_kwargs=dict(features_dim=16),
        net_arch=[],
    ))  # fmt: skip
    if algo != "dqn":
        arguments["policy_kwargs"]["ortho_init"] = False
        arguments["n_steps"] = 8
    if algo == "ppo":
        arguments |= dict(batch_size=8, n_epochs=1)
    if algo == "dqn":
        arguments |= dict(buffer_size=50, learning_starts=10, batch_size=4)
    kind = {"ppo": sb3.PPO, "a2c": sb3.A2C, "dqn": sb3.DQN}[algo]
    model = kind(FAST_CNN_POLICIES[algo], Frames(), **arguments)
    model.policy.to(memory_format=torch.channels_last)
    model.learn(24, callback=prepare_qat(model, 4))
    layers = acting_layers(model)
    assert len(layers) == 5 and all(len(layer.weight.unique()) <= 16 for layer in layers)
    obs = observations(model, 6)
    got, expected = outputs(model, obs), export_qat(model)(obs)
    got, expected = (x - x.mean(1, keepdim=True) for x in (got, expected))
    assert (got - expected).norm() / expected.norm() < 0.1  # bf16, whose roundings change levels


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn", "ddpg", "d4pg"])
def test_before_the_delay_training_is_that_of_float32(algo: str) -> None:
    def run(delay: int | None) -> tuple[list[list[torch.Tensor]], list[bool]]:
        parameters, quantized = [], []

        def look(model: Any) -> None:
            parameters.append([p.clone() for p in model.policy.parameters()])
            quantized.append(is_quantized(model))

        model = MODELS[algo]()
        delayed = [] if delay is None else [prepare_qat(model, 2, quant_delay=delay)]
        model.learn(110, callback=[*delayed, Spy(look)])
        return parameters, quantized

    plain, never = run(None)
    delayed, quantized = run(70)
    assert not any(never)
    assert quantized == [False] * 69 + [True] * (len(quantized) - 69)
    for step in (0, 40, 69):
        assert all(map(torch.equal, plain[step], delayed[step]))
    assert not all(map(torch.equal, plain[-1], delayed[-1]))


def test_data_are_collected_by_the_quantized_policy() -> None:
    model = MODELS["ppo"]()
    levels: list[int] = []
    first = model.policy.mlp_extractor.policy_net[0]

    def look(model: Any) -> None:
        assert not model.policy.training
        levels.append(len(first.weight.unique()))

    model.learn(128, callback=[prepare_qat(model, 2, quant_delay=70), Spy(look)])
    assert min(levels[:69]) > 4 and max(levels[69:]) <= 4  # from the 70th step on


@pytest.mark.parametrize("algo, options", CASES)
def test_holding_weights_while_collecting_changes_nothing(
    algo: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> dict[str, Any]:
        model = MODELS[algo]()
        model.learn(150, callback=prepare_qat(model, 4, quant_delay=40, **options))
        assert is_quantized(model)
        return model.policy.state_dict()

    held = trained()
    monkeypatch.setattr(QuantDelay, "_hold", lambda *_, **__: None)
    plain = trained()
    assert all(torch.equal(held[name], plain[name]) for name in plain)


def test_the_callback_of_another_model_is_refused() -> None:
    callback = prepare_qat(MODELS["ppo"](), 4)
    with pytest.raises(QuarlError, match="this callback is of another model"):
        MODELS["ppo"]().learn(64, callback=callback)
    for function in (partial(prepare_qat, bits=4), export_qat):
        with pytest.raises(QuarlError, match="qat takes a stable-baselines3 algorithm, not Linear"):
            function(torch.nn.Linear(2, 2))


def test_weights_are_quantized_once_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["ppo"]()
    model.learn(64, callback=prepare_qat(model, 4))
    acted: list[WeightQuantizer] = []
    quantize = WeightQuantizer.quantize

    def count(self: WeightQuantizer, x: torch.Tensor) -> torch.Tensor:
        acted.extend([] if torch.is_grad_enabled() else [self])
        return quantize(self, x)

    monkeypatch.setattr(WeightQuantizer, "quantize", count)
    # A callback of its own for every call, as `learn` allows: the second finds layers prepared.
    model.learn(64, callback=QuantDelay(0), reset_num_timesteps=False)
    assert len(acted) == 2 * 3  # rollouts of 32 steps, layers that act


@pytest.mark.parametrize(
    "kind, buffer", [(sb3.DQN, None), (PrioritizedDQN, PrioritizedReplayBuffer)]
)
def test_dqn_quantizes_its_target_once_a_training(
    monkeypatch: pytest.MonkeyPatch, kind: Any, buffer: Any
) -> None:
    def train() -> tuple[dict[str, torch.Tensor], int]:
        model: Any = kind("MlpPolicy", "CartPole-v1", target_update_interval=30, train_freq=8,
                          gradient_steps=4, learning_starts=16, replay_buffer_class=buffer,
                          buffer_size=1000, **PLAIN, **small())  # fmt: skip
        model.learn(32, callback=prepare_qat(model, 4))
        targets = {layer.weight_quantizer for layer in qat_layers([model.q_net_target])}
        quantized = []
        quantize = WeightQuantizer.quantize

        def count(self: WeightQuantizer, x: torch.Tensor) -> torch.Tensor:
            quantized.extend([self] if self in targets else [])
            return quantize(self, x)

        with monkeypatch.context() as patch:
            patch.setattr(WeightQuantizer, "quantize", count)
            model.learn(64, callback=QuantDelay(0), reset_num_timesteps=False)
        return model.policy.state_dict(), len(quantized)

    held, times = train()
    monkeypatch.setattr(QuantDelay, "_hold", lambda *_, **__: None)
    plain, every_time = train()
    # Layers, after 8 rollouts with 4 updates each.
    assert (times, every_time) == (8 * 3, 8 * 4 * 3)
    assert all(torch.equal(held[name], plain[name]) for name in plain)


class SoftDQN(sb3.DQN):
    """Moves its target network after every update, as many variants of DQN do."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        for _ in range(gradient_steps):
            super().train(1, batch_size)
            polyak_update(self.q_net.parameters(), self.q_net_target.parameters(), 0.05)
            if is_quantized(self):
                _check_target(self)


class SteppingDQN(sb3.DQN):
    """Moves its target network at every step of the environment."""

    def _on_step(self) -> None:
        polyak_update(self.q_net.parameters(), self.q_net_target.parameters(), 0.05)
        if is_quantized(self):
            _check_target(self)


@pytest.mark.parametrize("kind", [SoftDQN, SteppingDQN])
def test_a_dqn_of_ones_own_may_move_its_target_at_any_time(kind: Any) -> None:
    model = kind("MlpPolicy", "CartPole-v1", **(OFF | {"gradient_steps": 4}), **small())
    model.learn(80, callback=prepare_qat(model, 8))
    assert is_quantized(model)


def test_a_callback_may_move_the_target_of_a_dqn() -> None:
    def move(model: Any) -> None:
        polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 0.05)
        if is_quantized(model):
            _check_target(model)

    options = OFF | {"target_update_interval": 10**9}
    model: Any = sb3.DQN("MlpPolicy", "CartPole-v1", **options, **small())
    model.learn(80, callback=[prepare_qat(model, 8), Spy(move)])
    assert is_quantized(model)


def test_after_an_interrupted_run_the_target_is_quantized_anew_as_it_moves() -> None:
    model: Any = MODELS["dqn"]()  # updates its target after steps 30, 60, 90, ...

    def interrupt(model: Any) -> None:
        if model.num_timesteps == 55:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn(100, callback=[prepare_qat(model, 8), Spy(interrupt)])
    assert is_quantized(model)
    model.learn(40, callback=Spy(_check_target), reset_num_timesteps=False)


def test_a_training_that_was_interrupted_lets_go_of_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = MODELS["dqn"]()
    sample, calls = type(model.replay_buffer).sample, []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(model.num_timesteps)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return sample(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(model.replay_buffer), "sample", interrupted)
        model.learn(500, callback=prepare_qat(model, 8))
    assert is_quantized(model) and any(layer.holding for layer in qat_layers([model.q_net_target]))
    model.learn(70, callback=Spy(_check_target), reset_num_timesteps=False)


@pytest.mark.parametrize("interval", [1, 30])
def test_the_target_of_a_dqn_with_two_environments_is_quantized_anew_as_it_moves(
    interval: int,
) -> None:
    options = OFF | small() | {"target_update_interval": interval}
    model: Any = sb3.DQN("MlpPolicy", make_vec_env("CartPole-v1", 2), **options)
    model.learn(60, callback=prepare_qat(model, 8))
    model.learn(60, callback=[QuantDelay(0), Spy(_check_target)], reset_num_timesteps=False)


@torch.no_grad()
def _check_target(model: Any) -> None:
    for layer in qat_layers([model.q_net_target]):
        expected = layer.weight_quantizer.quantize(dict(layer.named_parameters())["weight"])
        assert torch.equal(layer.weight, expected)


def test_what_trains_is_not_held() -> None:
    class Watched(sb3.PPO):
        def train(self) -> None:
            held.append([layer.holding for layer in qat_layers([self.policy])])
            super().train()

    held: list[list[Any]] = []
    model = Watched("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=2, **PLAIN)
    model.learn(64, callback=prepare_qat(model, 4))
    assert held == [[False] * 3] * 2


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_run_that_is_stopped_holds_nothing(algo: str) -> None:
    model = MODELS[algo]()

    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps < 40

    model.learn(96, callback=[prepare_qat(model, 4), Stop()])
    assert is_quantized(model) and model.num_timesteps == 40
    assert not any(layer.holding for layer in qat_layers([model.policy]))


def test_ranges_move_in_training_alone() -> None:
    model = MODELS["ppo"]()
    callback = prepare_qat(model, 8)
    counts: list[float] = []
    quantizer: Any = model.policy.action_net.input_quantizer
    model.learn(96, callback=[callback, Spy(lambda _: counts.append(
        quantizer.running_count.item()))])  # fmt: skip
    # 32 steps of a rollout, then 2 epochs of 2 batches: only those count.
    assert counts == [0.0] * 32 + [4.0] * 32 + [8.0] * 32
    model.policy.set_training_mode(False)
    before = quantizer.running_max.clone()
    model.predict(np.full((5, 4), 50.0, np.float32))
    assert torch.equal(quantizer.running_max, before)


def test_critics_and_value_networks_stay_float() -> None:
    for algo, name in [("ppo", "mlp_extractor.value_net"), ("ppo", "value_net"), ("ddpg", "critic"),
                       ("ddpg", "critic_target"), ("d4pg", "critic")]:  # fmt: skip
        model = MODELS[algo]()
        prepare_qat(model, 8)
        assert not list(qat_layers([model.policy.get_submodule(name)]))


def test_dqn_target_network_follows_at_every_update() -> None:
    model: Any = MODELS["dqn"]()  # updates its target after steps 30, 60, 90, ...
    model.train_freq = model.train_freq._replace(frequency=4)  # no training between 90 and 92
    same: dict[int, bool] = {}

    def look(model: Any) -> None:
        states = (list(net.state_dict().values()) for net in (model.q_net, model.q_net_target))
        same[model.num_timesteps] = all(map(torch.equal, *states))

    model.learn(95, callback=[prepare_qat(model, 4), Spy(look)])
    assert same[91] and same[31] and not same[90] and not same[94]
    assert all(quantizer.enabled for quantizer in _inputs(model.q_net_target))
    stale = [q.running_max.item() for q in _inputs(model.q_net_target)]
    assert stale != [q.running_max.item() for q in _inputs(model.q_net)]


def test_the_target_network_computes_what_the_network_does() -> None:
    model: Any = MODELS["dqn"]()
    model.learn(100, callback=prepare_qat(model, 4, quant_delay=50))
    obs = observations(model)
    with torch.no_grad():
        assert not torch.equal(model.q_net_target(obs), outputs(model, obs))
        model._n_calls = 29
        model._on_step()  # SB3's own update
        assert torch.equal(model.q_net_target(obs), outputs(model, obs))


def test_d4pg_target_actor_follows_at_every_update() -> None:
    model: Any = MODELS["d4pg"]()  # updates its targets by every fifth update
    same: dict[int, bool] = {}

    def look(model: Any) -> None:
        states = (list(net.state_dict().values()) for net in (model.actor, model.actor_target))
        same[model._n_updates] = all(map(torch.equal, *states))

    model.learn(80, callback=[prepare_qat(model, 4), Spy(look)])
    assert is_quantized(model)
    assert same == {updates: updates % 5 == 0 for updates in range(30)}


@pytest.mark.parametrize("algo", ["ddpg", "td3", "d4pg"])
def test_actor_target_has_the_ranges_of_the_actor(algo: str) -> None:
    model: Any = MODELS[algo]()
    model.learn(80, callback=prepare_qat(model, 4))
    for source, target in zip(_inputs(model.actor), _inputs(model.actor_target), strict=True):
        assert target.enabled and source.running_count > 0
        for name in ("running_count", "running_min", "running_max"):
            assert torch.equal(getattr(source, name), getattr(target, name))


@pytest.mark.parametrize("algo", ["ddpg", "d4pg"])
def test_learned_steps_of_the_target_are_averaged(algo: str) -> None:
    model: Any = MODELS[algo]()
    model.tau = 0.005  # as DDPG's is
    model.learn(80, callback=prepare_qat(model, 4, method="lsq"))
    for layer, target in zip(qat_layers([model.actor]), qat_layers([model.actor_target]),
                             strict=True):  # fmt: skip
        step, averaged = layer.weight_quantizer.step, target.weight_quantizer.step
        assert step != averaged and step.item() == pytest.approx(averaged.item(), rel=0.5)


def _inputs(network: nn.Module) -> list[InputQuantizer]:
    return [module for module in network.modules() if isinstance(module, InputQuantizer)]


@pytest.mark.parametrize("algo", MODELS)
def test_the_optimizer_keeps_its_parameters_and_gets_the_steps(algo: str) -> None:
    model = MODELS[algo]()
    actor = getattr(model.policy, "actor", None)
    optimizer = (actor or model.policy).optimizer
    before = [id(p) for p in optimizer.param_groups[0]["params"]]
    prepare_qat(model, 4, method="lsq")
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == before
    steps = {id(p) for name, p in model.policy.named_parameters()
             if name.endswith(".step") and "target" not in name}  # fmt: skip
    assert {id(p) for p in optimizer.param_groups[1]["params"]} == steps and len(steps) == 5


def test_learned_steps_do_not_decay_with_the_weights() -> None:
    decaying = dict(optimizer_class=torch.optim.AdamW, optimizer_kwargs=dict(weight_decay=0.1))
    model = sb3.PPO("MlpPolicy", "CartPole-v1", policy_kwargs=decaying, device="cpu")
    prepare_qat(model, 4, method="lsq")
    decays = [group["weight_decay"] for group in model.policy.optimizer.param_groups]
    assert decays == [0.1, 0.0]


def test_a_delay_may_last_for_some_of_the_parts_a_run_goes_on_in() -> None:
    model = MODELS["a2c"]()
    callback, begun = prepare_qat(model, 4, quant_delay=90), []
    for _ in range(3):
        model.learn(40, callback=callback, reset_num_timesteps=False)
        begun.append(is_quantized(model))
    assert begun == [False, False, True] and model.num_timesteps == 120


def test_errors() -> None:
    with pytest.raises(QuarlError, match="1 bits; allowed: 2 to 16"):
        prepare_qat(MODELS["ppo"](), 1)
    for delay in (-1, 0.5, float("nan"), "10", None):
        with pytest.raises(QuarlError, match="quant_delay must be (at least 0|a whole number), "):
            prepare_qat(MODELS["ppo"](), 8, quant_delay=delay)
    assert QuantDelay(np.int64(500)).delay == 500
    numpys = MODELS["ppo"]()
    prepare_qat(numpys, np.int64(4))
    assert {type(q.bits) for q in training_quantizers(qat_networks(numpys)[0])} == {int}
    with pytest.raises(QuarlError, match="algorithm, not ActorCriticPolicy"):
        prepare_qat(MODELS["ppo"]().policy, 8)
    for algo in ("QRDQN", "CrossQ"):
        told = f"unknown algorithm for QAT '{algo.lower()}'; .*allowed: a2c, ppo"
        with pytest.raises(QuarlError, match=told):
            prepare_qat(_of_contrib(algo), 8)
    model = MODELS["a2c"]()
    callback = prepare_qat(model, 8, quant_delay=100)
    with pytest.raises(QuarlError, match="quant_delay 100 is not shorter than the run, 100 steps"):
        model.learn(100, callback=callback)
    assert model.num_timesteps == 0
    with pytest.raises(QuarlError, match="already"):
        prepare_qat(model, 8)
    with pytest.raises(QuarlError, match=r"not quantized: train it by learn\(..., callback="):
        export_qat(model)
    with pytest.raises(QuarlError, match="not quantized"):
        export_qat(MODELS["a2c"]())


class Normalized(BaseFeaturesExtractor):
    """A features extractor that no policy file can hold."""

    def __init__(self, space: gym.Space) -> None:
        super().__init__(space, 8)
        assert space.shape
        self.net = nn.Sequential(nn.Linear(space.shape[0], 8), nn.LayerNorm(8))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.net(obs)


def test_what_cannot_be_exported_is_refused_before_it_is_trained() -> None:
    model = sb3.A2C("MlpPolicy", "CartPole-v1", device="cpu",
                policy_kwargs=dict(features_extractor_class=Normalized))  # fmt: skip
    with pytest.raises(QuarlError, match="unsupported"):
        prepare_qat(model, 8)
    assert not any(isinstance(layer, QATLayer) for layer in model.policy.modules())


class Steered(Frames):
    """The same, with actions of two numbers."""

    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)  # type: ignore[assignment]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return super().step(action[0])


@pytest.mark.parametrize("method", ["minmax", "lsq"])
def test_sac_trains_convolutions_quantized_unless_its_critic_shares_them(method: str) -> None:
    def sac(share: bool) -> Any:
        policy = dict(net_arch=[8], features_extractor_kwargs={"features_dim": 16})
        arguments = OFF | dict(buffer_size=60, policy_kwargs=policy)
        policy["share_features_extractor"] = share
        return sb3.SAC("CnnPolicy", Steered(), **arguments)

    model = sac(share=False)
    model.learn(30, callback=prepare_qat(model, 4, method=method))
    assert is_quantized(model)
    with pytest.raises(QuarlError, match="^QAT of SAC needs share_features_extractor=False: "):
        prepare_qat(sac(share=True), 4, method=method)


def test_a_saved_model_reopens_only_as_it_was_prepared(tmp_path: Path) -> None:
    model = MODELS["a2c"]()
    model.learn(60, callback=prepare_qat(model, 3))
    model.save(tmp_path / "model.zip")
    for bits, per_channel, told in ((8, False, "8: "), (3, True, "3 per channel: ")):
        other = MODELS["a2c"]()
        prepare_qat(other, bits, per_channel=per_channel)
        with pytest.raises(QuarlError, match=f"saved with 3 bits, prepared for {told}"):
            other.set_parameters(tmp_path / "model.zip")


@pytest.mark.parametrize("saved, opened", [("minmax", "lsq"), ("lsq", "minmax")])
def test_a_model_saved_by_another_method_says_so(
    saved: str, opened: str, tmp_path: Path
) -> None:
    model, other = MODELS["a2c"](), MODELS["a2c"]()
    prepare_qat(model, 4, method=saved)
    prepare_qat(other, 4, method=opened)
    model.save(tmp_path / "model.zip")
    with pytest.raises(QuarlError, match="^saved by another method .*: prepare_qat the model with"):
        other.set_parameters(tmp_path / "model.zip")


def test_a_run_too_short_to_quantize_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = sb3.DQN("MlpPolicy", "CartPole-v1", learning_starts=1000, buffer_size=100, device="cpu")
    model.learn(30, callback=prepare_qat(model, 4))
    assert "quantization never began" in caplog.text
    with pytest.raises(QuarlError, match="longer than the delay and the warm-up"):
        export_qat(model)


def test_a_run_that_diverges_says_so() -> None:
    model = MODELS["dqn"]()
    callback = prepare_qat(model, 8)

    def poison(model: Any) -> None:
        if model.num_timesteps == 60:
            with torch.no_grad():
                model.q_net.q_net[0].bias.fill_(float("nan"))

    with pytest.raises(QuarlError, match="diverged"):
        model.learn(100, callback=[callback, Spy(poison)])


def test_training_goes_on_quantized_from_a_checkpoint(tmp_path: Path) -> None:
    model = MODELS["dqn"]()
    model.learn(100, callback=prepare_qat(model, 4, quant_delay=50))
    save_checkpoint(tmp_path / "checkpoint.pt", model, Progress(timesteps=100))
    reopened = MODELS["dqn"]()
    callback = prepare_qat(reopened, 4, quant_delay=50)
    load_checkpoint(tmp_path / "checkpoint.pt", reopened)
    obs = observations(model)
    assert torch.equal(outputs(reopened, obs), outputs(model, obs))
    started: list[bool] = []
    reopened.learn(20, callback=[callback, Spy(lambda m: started.append(is_quantized(m)))],
                   reset_num_timesteps=False)  # fmt: skip
    assert started == [True] * 20


def test_a_quantized_model_learns_on_for_fewer_steps_than_its_delay(tmp_path: Path) -> None:
    model = MODELS["a2c"]()
    callback = prepare_qat(model, 4, quant_delay=50)
    model.learn(60, callback=callback)
    model.save(tmp_path / "model.zip")
    reopened = MODELS["a2c"]()
    anew = prepare_qat(reopened, 4, quant_delay=50)
    reopened.set_parameters(tmp_path / "model.zip")
    quantized: list[bool] = []
    look = Spy(lambda m: quantized.append(is_quantized(m)))
    for trained, delayed in ((model, callback), (model, QuantDelay(50)), (reopened, anew)):
        trained.learn(20, callback=[delayed, look])
    assert quantized == [True] * 60


def _of_contrib(algo: str) -> BaseAlgorithm:
    sb3_contrib = pytest.importorskip("sb3_contrib")
    env_id = "CartPole-v1" if algo == "QRDQN" else "Pendulum-v1"
    return getattr(sb3_contrib, algo)("MlpPolicy", env_id, buffer_size=10, device="cpu")
