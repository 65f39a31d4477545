"""D4PG: its updates against independent ones, its place among SB3's algorithms, what it solves."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn

from quarl_nb.actorq.algorithms import warmed_up
from quarl_nb.errors import QuarlError
from quarl_nb.rl.d4pg import D4PG
from quarl_nb.rl.envs import make_env
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.policies import PolicyNet, load_policy
from quarl_nb.rl.sb3.convert import policy_from_model

PENDULUM = "Pendulum-v1"
ATOMS = {"n_atoms": 5, "v_min": -4.0, "v_max": 4.0}
N = 6


class Skewed(gym.Env):
    """Three numbers to two actions with uneven bounds; rewards 1, 2, ...; ends at 4."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Box(
        np.array([-0.4, 1.25], np.float32), np.array([0.7, 3.1], np.float32)
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.t += 1
        return self.observation_space.sample(), float(self.t), self.t == 4, False, {}


def make_model(**options: Any) -> D4PG:
    """A small D4PG on `Skewed`, trained by plain gradient descent, ready to `train`."""
    policy = {"net_arch": {"pi": [8], "qf": [9]}, **options.pop("policy_kwargs", {})}
    defaults: dict[str, Any] = {"seed": 0, "device": "cpu", "buffer_size": 100, **ATOMS}
    model = D4PG(
        "MlpPolicy", options.pop("env", Skewed()), **defaults | options, policy_kwargs=policy
    )
    model.set_logger(Logger(None, []))
    return model


def plain_gradient_descent(**options: Any) -> D4PG:
    descent = {"optimizer_class": torch.optim.SGD}
    return make_model(learning_rate=1.0, policy_kwargs=descent, **options)


@pytest.fixture
def batch() -> ReplayBufferSamples:
    """`N` transitions of random n-step rewards and discounts, one of them terminal."""
    generator = torch.Generator().manual_seed(1)

    def draw(size: int) -> torch.Tensor:
        return torch.randn(N, size, generator=generator)

    dones = torch.zeros(N, 1)
    dones[2] = 1.0
    discounts = torch.full((N, 1), 0.9)
    discounts[4] = 0.5
    return ReplayBufferSamples(draw(3), draw(2).tanh(), draw(3), dones, 2 * draw(1), discounts)


def train_on(model: D4PG, batch: ReplayBufferSamples, steps: int = 1) -> None:
    """`train` on this batch, whatever the replay buffer holds."""
    model.replay_buffer.sample = lambda *args, **kwargs: batch  # type: ignore[union-attr,method-assign]
    model.train(steps, N)


def logged(model: D4PG, name: str) -> float:
    return model.logger.name_to_value[f"train/{name}"]


def weights(*modules: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for module in modules for p in module.parameters()]


def assert_close(left: list[torch.Tensor], right: list[torch.Tensor], **options: Any) -> None:
    torch.testing.assert_close(left, right, **options)


def expected_critic_loss(model: D4PG, batch: ReplayBufferSamples) -> torch.Tensor:
    """Cross-entropy of every sample, one after another, each atom's mass moved by hand."""
    atoms = [-4.0, -2.0, 0.0, 2.0, 4.0]
    losses = []
    for i in range(N):
        next_obs = batch.next_observations[i : i + 1]
        next_logits = model.critic_target(next_obs, model.actor_target(next_obs))[0][0]
        next_probabilities = next_logits.exp() / next_logits.exp().sum()
        assert batch.discounts is not None
        discount = 0.0 if batch.dones[i] else float(batch.discounts[i])
        target = [0.0] * 5
        for atom, probability in zip(atoms, next_probabilities.tolist(), strict=True):
            value = min(max(float(batch.rewards[i]) + discount * atom, -4.0), 4.0)
            for j in range(5):
                target[j] += probability * max(0.0, 1.0 - abs(value - atoms[j]) / 2.0)
        assert sum(target) == pytest.approx(1.0)
        logits = model.critic(batch.observations[i : i + 1], batch.actions[i : i + 1])[0][0]
        log_probabilities = logits - logits.exp().sum().log()
        losses.append(-sum(t * lp for t, lp in zip(target, log_probabilities, strict=True)))
    return torch.stack(losses).mean()


def test_critic_update_equals_an_independent_one(batch: ReplayBufferSamples) -> None:
    model = plain_gradient_descent()
    with torch.no_grad():
        # Targets unlike the learned networks, so that it matters which are used where.
        for parameter in (*model.actor_target.parameters(), *model.critic_target.parameters()):
            parameter.mul_(2.0)
    loss = expected_critic_loss(model, batch)
    gradients = torch.autograd.grad(loss, list(model.critic.parameters()))
    expected = [p - g for p, g in zip(weights(model.critic), gradients, strict=True)]
    before = weights(model.critic)
    train_on(model, batch)
    assert logged(model, "critic_loss") == pytest.approx(loss.item())
    # Nothing of the actor's update reaches the critic.
    assert_close(weights(model.critic), expected)
    assert not torch.equal(before[0], expected[0])


def mean_q(model: D4PG, actor: nn.Module, obs: torch.Tensor) -> torch.Tensor:
    """Expectation of the critic at the actor's actions, ``[n]``."""
    logits = model.critic(obs, actor(obs))[0]
    return (logits.softmax(1) * torch.tensor([-4.0, -2.0, 0.0, 2.0, 4.0])).sum(1)


def test_actor_ascends_the_expectation_of_the_critic(batch: ReplayBufferSamples) -> None:
    model = plain_gradient_descent(max_dqda_norm=None)
    actor = copy.deepcopy(model.actor)
    train_on(model, batch)
    # The critic is the updated one, as in SB3's DDPG.
    values = mean_q(model, actor, batch.observations)
    gradients = torch.autograd.grad(-values.mean(), list(actor.parameters()))
    assert max(float(g.abs().max()) for g in gradients) > 1e-4
    assert_close(
        weights(model.actor),
        [p - g for p, g in zip(weights(actor), gradients, strict=True)],
    )
    assert logged(model, "actor_loss") == pytest.approx(-values.mean().item())


def test_dqda_is_clipped_for_each_sample(batch: ReplayBufferSamples) -> None:
    limit = 0.05
    model = plain_gradient_descent(max_dqda_norm=limit)
    actor = copy.deepcopy(model.actor)
    train_on(model, batch)
    total = [torch.zeros_like(p) for p in actor.parameters()]
    norms = []
    for obs in batch.observations.split(1):
        action = actor(obs)
        logits = model.critic(obs, action)[0]
        value = (logits.softmax(1) @ model.critic.atoms).sum()
        (dqda,) = torch.autograd.grad(value, action, retain_graph=True)
        norms.append(float(dqda.norm()))
        clipped = dqda * min(1.0, limit / norms[-1])
        gradients = torch.autograd.grad((action * clipped).sum(), list(actor.parameters()))
        total = [t + g / N for t, g in zip(total, gradients, strict=True)]
    assert min(norms) < limit < max(norms)
    expected = [p + g for p, g in zip(weights(actor), total, strict=True)]
    assert_close(weights(model.actor), expected)


def test_gradients_are_clipped_to_a_global_norm(batch: ReplayBufferSamples) -> None:
    model = plain_gradient_descent(max_grad_norm=1e-3)
    before = [weights(model.actor), weights(model.critic)]
    train_on(model, batch)
    for network, old in zip((model.actor, model.critic), before, strict=True):
        changes = [new - o for new, o in zip(weights(network), old, strict=True)]
        norm = torch.cat([c.flatten() for c in changes]).norm()
        assert float(norm) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_targets_follow_every_period(batch: ReplayBufferSamples, tau: float) -> None:
    model = make_model(target_update_period=3, tau=tau, learning_rate=0.1)
    initial = weights(model.actor, model.critic)
    train_on(model, batch, steps=2)
    assert_close(weights(model.actor_target, model.critic_target), initial, rtol=0, atol=0)
    train_on(model, batch, steps=1)
    learned = weights(model.actor, model.critic)
    expected = [(1 - tau) * old + tau * new for old, new in zip(initial, learned, strict=True)]
    assert_close(weights(model.actor_target, model.critic_target), expected)
    train_on(model, batch, steps=2)
    assert_close(weights(model.actor_target, model.critic_target), expected)


class Normalizing(FlattenExtractor):
    """Batch normalization before the network."""

    def __init__(self, observation_space: gym.Space) -> None:
        super().__init__(observation_space)
        self.norm = nn.BatchNorm1d(self.features_dim)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(observations))


def test_targets_get_the_statistics_of_batch_normalization_whole(
    batch: ReplayBufferSamples,
) -> None:
    options = {"features_extractor_class": Normalizing}
    model = make_model(target_update_period=2, tau=0.25, policy_kwargs=options)
    pairs = ((model.actor, model.actor_target), (model.critic, model.critic_target))
    for steps, share in ((1, 0.0), (1, 1.0)):
        train_on(model, batch, steps)
        for network, target in pairs:
            own, other = (one.features_extractor.norm for one in (network, target))
            assert own.running_mean.all()
            assert torch.equal(other.running_mean, share * own.running_mean)
            assert torch.equal(other.running_var, torch.ones(3).lerp(own.running_var, share))


@pytest.mark.parametrize("slow", [0.25, lambda remaining: 0.5 * remaining])
def test_the_actor_may_learn_at_a_rate_of_its_own(batch: ReplayBufferSamples, slow: Any) -> None:
    alike, slower = (plain_gradient_descent(actor_learning_rate=rate) for rate in (None, slow))
    initial = weights(alike.actor)
    for model in (alike, slower):
        model._current_progress_remaining = 0.5
        train_on(model, batch)
    assert_close(
        weights(slower.actor),
        [old + 0.25 * (new - old) for old, new in zip(initial, weights(alike.actor), strict=True)],
    )
    assert_close(weights(alike.critic), weights(slower.critic), rtol=0, atol=0)


def test_n_step_targets_by_hand() -> None:
    model = make_model(n_steps=3, gamma=0.5, learning_starts=100)
    model.learn(10)
    buffer = model.replay_buffer
    assert buffer is not None
    # Episodes of four steps with rewards 1, 2, 3, 4, the last of them terminal.
    samples = buffer._get_samples(np.array([0, 1, 2, 3, 8]))
    assert samples.discounts is not None
    returns = [1 + 2 / 2 + 3 / 4, 2 + 3 / 2 + 4 / 4, 3 + 4 / 2, 4.0, 1 + 2 / 2]
    np.testing.assert_allclose(samples.rewards[:, 0], returns)
    np.testing.assert_array_equal(samples.dones[:, 0], [0, 1, 1, 1, 0])
    # The last sample starts at the buffer's last but one: two steps are all there is.
    np.testing.assert_allclose(samples.discounts[[0, 4], 0], [1 / 8, 1 / 4])
    nexts = buffer.next_observations[[2, 3, 3, 3, 9], 0]
    np.testing.assert_array_equal(samples.next_observations, nexts)


def test_gamma_may_be_numpys() -> None:
    model = make_model(gamma=np.float64(0.9), n_steps=3, learning_starts=4, batch_size=4)
    assert model.learn(8).gamma == 0.9


def test_what_was_in_evaluation_trains_in_training_mode(batch: ReplayBufferSamples) -> None:
    model = make_model()
    for part in (model.policy, model.actor, model.critic):
        part.set_training_mode(False)
        train_on(model, batch)
        assert all(module.training for module in (model.policy, *model.critic.modules()))
        assert all(module.training for module in model.actor.modules())


def test_one_step_replay_uses_gamma(batch: ReplayBufferSamples) -> None:
    losses = []
    for discounts in (None, torch.full((N, 1), 0.7)):
        model = make_model(n_steps=1, gamma=0.7)
        train_on(model, batch._replace(discounts=discounts))
        losses.append(logged(model, "critic_loss"))
    assert losses[0] == losses[1]


def test_acts_as_its_policy_net_live_and_zipped(tmp_path: Path) -> None:
    model = make_model(policy_kwargs={"net_arch": {"pi": [16, 16], "qf": [8]}})
    with torch.no_grad():
        for parameter in model.actor.parameters():
            parameter.mul_(3.0)
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    expected, _ = model.predict(obs, deterministic=True)
    assert len(np.unique(expected.round(3), axis=0)) > 40
    model.save(tmp_path / "model.zip")
    for net in (policy_from_model(model), load_policy(tmp_path / "model.zip")):
        assert (net.spec.algo, net.spec.head.kind) == ("d4pg", "tanh_scale")
        assert net.spec.head.low == pytest.approx((-0.4, 1.25))
        np.testing.assert_array_equal(net.act(obs)[0], expected)
    np.testing.assert_array_equal(D4PG.load(tmp_path / "model.zip").predict(obs)[0], expected)


def test_a_loaded_model_trains_on_as_the_saved_one(tmp_path: Path) -> None:
    model = make_model(learning_starts=10, target_update_period=4, autocast=torch.bfloat16)
    model.learn(40)
    model.save(tmp_path / "model.zip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = D4PG.load(tmp_path / "model.zip", device="cpu")
    loaded.set_logger(Logger(None, []))
    assert type(loaded.replay_buffer) is type(model.replay_buffer)
    assert getattr(loaded.replay_buffer, "n_steps", None) == 5
    loaded.replay_buffer = model.replay_buffer
    for one in (model, loaded):
        one.set_random_seed(3)
        one.train(5, 16)
    for name in ("actor", "critic", "actor_target", "critic_target"):
        expected = weights(getattr(model, name))
        assert_close(weights(getattr(loaded, name)), expected, rtol=0, atol=0)


def test_a_loaded_model_may_have_other_returns_but_no_other_atoms(tmp_path: Path) -> None:
    make_model().save(tmp_path / "model.zip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = D4PG.load(tmp_path / "model.zip", device="cpu", n_steps=3, gamma=0.5)
        single = D4PG.load(tmp_path / "model.zip", device="cpu", n_steps=1)
    assert isinstance(other.replay_buffer, NStepReplayBuffer)
    assert (other.replay_buffer.n_steps, other.replay_buffer.gamma) == (3, 0.5)
    assert type(single.replay_buffer) is ReplayBuffer
    assert D4PG.load(tmp_path / "model.zip", device="cpu", v_max=4.0).critic.atoms[-1] == 4.0
    for name, value in {"n_atoms": 51, "v_min": -50.0, "v_max": 50.0}.items():
        with pytest.raises(QuarlError, match=f"saved with {name} .*, which cannot become {value}"):
            D4PG.load(tmp_path / "model.zip", device="cpu", **{name: value})


def test_a_policy_alone_is_saved_whole(tmp_path: Path) -> None:
    policy = make_model().policy
    policy.save(str(tmp_path / "policy.pt"))
    loaded = type(policy).load(str(tmp_path / "policy.pt"))
    assert_close(weights(loaded), weights(policy))
    torch.testing.assert_close(loaded.critic.atoms, torch.linspace(-4.0, 4.0, 5))


def test_networks_of_the_paper() -> None:
    arch = {"pi": [2048] * 3, "qf": [512] * 3}
    model = D4PG("MlpPolicy", PENDULUM, device="cpu", policy_kwargs={"net_arch": arch})
    assert [m.out_features for m in model.actor.mu if isinstance(m, nn.Linear)] == [
        2048, 2048, 2048, 1,
    ]  # fmt: skip
    (critic,) = model.critic.q_networks
    assert [m.out_features for m in critic.modules() if isinstance(m, nn.Linear)] == [
        512, 512, 512, 51,
    ]  # fmt: skip
    assert model.critic.atoms[[0, 25, 50]].tolist() == [-150.0, 0.0, 150.0]


def test_defaults_are_those_of_acme() -> None:
    model = D4PG("MlpPolicy", PENDULUM, device="cpu", buffer_size=10)
    assert (model.learning_rate, model.learning_starts, model.n_steps) == (1e-4, 1000, 5)
    assert (model.target_update_period, model.tau) == (100, 1.0)
    assert (model.max_grad_norm, model.max_dqda_norm) == (40.0, 1.0)
    assert torch.equal(model.critic.atoms, torch.linspace(-150, 150, 51))
    assert model.actor_learning_rate is None and model.autocast is None


class Frames(Skewed):
    """Random frames."""

    observation_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)


@pytest.mark.parametrize("share", [False, True])
def test_images_and_policy_options(share: bool) -> None:
    model = D4PG(
        "CnnPolicy", Frames(), learning_starts=4, batch_size=4, buffer_size=20, device="cpu",
        policy_kwargs={
            "net_arch": [16], "activation_fn": nn.ELU, "share_features_extractor": share,
            "features_extractor_kwargs": {"features_dim": 12},
            "optimizer_kwargs": {"fused": True},
        },
    )  # fmt: skip
    before = weights(model.actor, model.critic)
    model.learn(8)
    after = weights(model.actor, model.critic)
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert (model.critic.features_extractor is model.actor.features_extractor) is share
    obs = np.stack([model.observation_space.sample() for _ in range(5)])
    np.testing.assert_array_equal(
        policy_from_model(model).act(obs)[0], model.predict(obs, deterministic=True)[0]
    )


class Named(Skewed):
    """Observations in a dictionary."""

    observation_space = gym.spaces.Dict({"a": gym.spaces.Box(-1.0, 1.0, (3,), np.float32)})


def test_observations_in_dictionaries() -> None:
    options: dict[str, Any] = {"n_steps": 1, "learning_starts": 4, "batch_size": 4}
    model = D4PG("MultiInputPolicy", Named(), buffer_size=20, device="cpu", **options)
    before = weights(model.actor, model.critic)
    after = weights(model.learn(8).actor, model.critic)
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with pytest.raises(QuarlError, match="no n-step returns of dictionaries: give D4PG n_steps=1"):
        D4PG("MultiInputPolicy", Named(), buffer_size=20, device="cpu")


def test_autocast_computes_in_bf16_and_learns_in_fp32(batch: ReplayBufferSamples) -> None:
    seen: set[torch.dtype] = set()
    losses = []
    for dtype in (None, torch.bfloat16):
        model = make_model(autocast=dtype)
        for module in model.policy.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(lambda m, i, output: seen.add(output.dtype))
        train_on(model, batch)
        assert seen == {dtype or torch.float32}
        assert {p.dtype for p in model.policy.parameters()} == {torch.float32}
        losses.append((logged(model, "critic_loss"), logged(model, "actor_loss")))
        seen.clear()
        model.predict(np.zeros(3, np.float32))
        assert seen == {torch.float32}
        seen.clear()
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses[0], losses[1], atol=0.03)


def test_autocast_to_fp16_is_refused() -> None:
    with pytest.raises(QuarlError, match="autocast is None or torch.bfloat16, got torch.float16"):
        make_model(autocast=torch.float16)


@pytest.mark.parametrize(
    ("name", "wrong", "allowed"),
    [
        *[("n_steps", wrong, "at least 1") for wrong in (0, -1)],
        ("target_update_period", 0, "at least 1"),
        *[(name, 2.5, "a whole number") for name in ("n_steps", "target_update_period")],
        *[("tau", wrong, "from 0 to 1") for wrong in (-0.1, 5.0, float("nan"))],
        *[("gamma", wrong, "from 0 to 1") for wrong in (-1.0, 1.5, float("nan"))],
        *[("max_grad_norm", wrong, "above 0") for wrong in (-1.0, 0.0, float("nan"), None)],
        *[("max_dqda_norm", wrong, "above 0 or None") for wrong in (-1.0, float("nan"))],
        *[("actor_learning_rate", wrong, "above 0 or None") for wrong in (-1.0, "fast")],
    ],
)
def test_an_option_that_would_crash_or_misguide_training_is_named(
    name: str, wrong: Any, allowed: str
) -> None:
    with pytest.raises(QuarlError, match=f"^{name} must be {allowed}, not {wrong!r}$"):
        make_model(**{name: wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_atoms": 1},
        {"n_atoms": 10.5},
        {"v_min": 4.0},
        {"v_max": float("nan")},
        {"v_min": -float("inf")},
    ],
)
def test_an_impossible_support_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(QuarlError, match="n_atoms >= 2 and v_min < v_max"):
        make_model(**wrong)


def trained(env_id: str, steps: int, seed: int, **options: Any) -> PolicyNet:
    env = make_env(env_id)
    assert isinstance(env.action_space, gym.spaces.Box)
    size = env.action_space.shape
    model = D4PG(
        "MlpPolicy", env, learning_rate=1e-3, target_update_period=25, seed=seed, device="cpu",
        action_noise=NormalActionNoise(np.zeros(size), np.full(size, 0.3)),
        policy_kwargs={"net_arch": [64, 64], "optimizer_kwargs": {"fused": True}}, **options,
    )  # fmt: skip
    return policy_from_model(model.learn(steps))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_solves_pendulum(seed: int) -> None:
    net = trained(PENDULUM, 6000, seed, v_min=-1000.0, v_max=0.0)
    assert evaluate(net, PENDULUM, range(20)).mean > -250


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_solves_cartpole_balance(seed: int) -> None:
    env_id = "dm:cartpole-balance"
    net = trained(env_id, 20_000, seed, v_min=0.0, v_max=100.0, actor_learning_rate=warmed_up(1e-3))
    assert evaluate(net, env_id, range(5)).mean > 900
