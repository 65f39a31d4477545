"""From stable-baselines3: every algorithm acts as its own `predict`, live, zipped and saved."""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecExtractDictObs,
    VecFrameStack,
    VecNormalize,
)
from torch import nn

from quarl_nb.cli import main
from quarl_nb.errors import QuarlError
from quarl_nb.rl.fast_cnn import FAST_CNN_POLICIES, FastNatureCNN
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import PolicyNet, load_policy, save_policy
from quarl_nb.rl.recipes import get_recipe
from quarl_nb.rl.safe_pickle import read_vecnormalize
from quarl_nb.rl.sb3.convert import env_id_in, policy_from_model, policy_from_zip

PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
OFF = {"buffer_size": 10, "device": "cpu"}


class Frames(gym.Env):
    """Random uint8 frames [4, 84, 84], five actions."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 0.0, False, False, {}


class SmallFrames(Frames):
    """Frames too small for a convolution."""

    observation_space = gym.spaces.Box(0, 255, (4, 4, 4), np.uint8)


class Skewed(gym.Env):
    """Continuous actions of shape [2] with uneven bounds."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float64)
    action_space = gym.spaces.Box(
        np.array([-0.4, 1.25], np.float32), np.array([0.7, 3.1], np.float32)
    )
    reset = Frames.reset
    step = Frames.step


def kwargs(**policy: Any) -> dict[str, Any]:
    return {"policy_kwargs": policy, "device": "cpu"}


PLAIN = kwargs(ortho_init=False)  # orthogonal initialization of a CNN takes seconds
MODELS: dict[str, Callable[[], BaseAlgorithm]] = {
    "a2c": lambda: sb3.A2C("MlpPolicy", CARTPOLE, device="cpu"),
    "a2c gSDE": lambda: sb3.A2C("MlpPolicy", PENDULUM, use_sde=True, device="cpu"),
    "ppo": lambda: sb3.PPO("MlpPolicy", Skewed(), device="cpu"),
    "ppo gSDE squashed": lambda: sb3.PPO(
        "MlpPolicy", PENDULUM, use_sde=True, **kwargs(squash_output=True)
    ),
    "ppo ELU": lambda: sb3.PPO(
        "MlpPolicy", CARTPOLE, **kwargs(activation_fn=nn.ELU, net_arch=dict(pi=[32], vf=[8, 8]))
    ),
    "ppo linear": lambda: sb3.PPO("MlpPolicy", CARTPOLE, **kwargs(net_arch=[])),
    "ppo frames": lambda: sb3.PPO("CnnPolicy", Frames(), n_steps=2, batch_size=2, **PLAIN),
    "ppo two extractors": lambda: sb3.PPO(
        "CnnPolicy", Frames(), n_steps=2, batch_size=2,
        **kwargs(share_features_extractor=False, ortho_init=False),
    ),
    "ppo flat frames": lambda: sb3.PPO("MlpPolicy", SmallFrames(), n_steps=2, batch_size=2),
    "ppo undivided frames": lambda: sb3.PPO(
        "CnnPolicy", Frames(), n_steps=2, batch_size=2,
        **kwargs(normalize_images=False, ortho_init=False),
    ),
    "a2c frames": lambda: sb3.A2C("CnnPolicy", Frames(), n_steps=2, **PLAIN),
    "dqn": lambda: sb3.DQN("MlpPolicy", CARTPOLE, **OFF),
    "dqn frames": lambda: sb3.DQN("CnnPolicy", Frames(), **OFF),
    "ddpg": lambda: sb3.DDPG("MlpPolicy", Skewed(), **OFF),
    "td3": lambda: sb3.TD3("MlpPolicy", PENDULUM, **OFF),
    "sac": lambda: sb3.SAC("MlpPolicy", Skewed(), **OFF),
    "sac gSDE": lambda: sb3.SAC(
        "MlpPolicy", PENDULUM, use_sde=True, buffer_size=10, **kwargs(clip_mean=0.05)
    ),
    "sac gSDE linear": lambda: sb3.SAC(
        "MlpPolicy", PENDULUM, use_sde=True, buffer_size=10, **kwargs(net_arch=[], clip_mean=0.05)
    ),
    "tqc gSDE linear": lambda: sb3_contrib.TQC(
        "MlpPolicy", PENDULUM, use_sde=True, buffer_size=10, **kwargs(net_arch=[], clip_mean=0.05)
    ),
    "trpo": lambda: sb3_contrib.TRPO("MlpPolicy", PENDULUM, device="cpu"),
    "qrdqn": lambda: sb3_contrib.QRDQN("MlpPolicy", CARTPOLE, **OFF),
    "tqc": lambda: sb3_contrib.TQC("MlpPolicy", PENDULUM, **OFF),
    "crossq linear": lambda: sb3_contrib.CrossQ(
        "MlpPolicy", PENDULUM, buffer_size=10, **kwargs(net_arch=[])
    ),
    "crossq without normalization": lambda: sb3_contrib.CrossQ(
        "MlpPolicy", PENDULUM, buffer_size=10, **kwargs(batch_norm=False)
    ),
    "ars": lambda: sb3_contrib.ARS("MlpPolicy", PENDULUM, device="cpu"),
    "ars linear": lambda: sb3_contrib.ARS("LinearPolicy", PENDULUM, device="cpu"),
}  # fmt: skip


def perturb(model: BaseAlgorithm) -> None:
    """Random weights, large enough that actions vary over `observations` and meet their bounds."""
    obs = observations(model)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.policy.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        if len(np.unique(model.predict(obs, deterministic=True)[0].round(3))) > 1:
            return
    raise AssertionError("no weights make different actions")


def observations(model: BaseAlgorithm, n: int = 64) -> np.ndarray:
    space = model.observation_space
    assert isinstance(space, gym.spaces.Box)
    rng = np.random.default_rng(0)
    if space.dtype == np.uint8:
        # Blocks of random brightness: in plain noise all frames look alike to a convolution.
        blocks = rng.integers(0, 256, (n // 2, 4, 4, 4)) * rng.uniform(size=(n // 2, 4, 1, 1))
        side = space.shape[-1] // 4
        return np.kron(blocks, np.ones((side, side))).astype(np.uint8)
    return rng.normal(0.0, 2.0, (n, *space.shape)).astype(space.dtype)


def assert_same(net: PolicyNet, model: BaseAlgorithm, obs: np.ndarray) -> None:
    expected = model.predict(obs, deterministic=True)[0]
    actions, _ = net.act(obs)
    assert actions.shape == expected.shape and actions.dtype == expected.dtype
    np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize("name", MODELS)
def test_same_actions_live_zipped_and_on_disk(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    perturb(model)
    obs = observations(model)
    live = policy_from_model(model)
    assert live.spec.algo == name.split()[0]
    assert_same(live, model, obs)
    model.save(tmp_path / "model.zip")
    zipped = load_policy(tmp_path / "model.zip")
    assert (zipped.spec.layers, zipped.spec.head) == (live.spec.layers, live.spec.head)
    assert zipped.spec.algo == live.spec.algo
    assert_same(zipped, model, obs)
    save_policy(zipped, tmp_path / "policy")
    assert_same(load_policy(tmp_path / "policy"), model, obs)


def test_environments_in_processes_of_their_own_tell_their_id() -> None:
    envs = make_vec_env(CARTPOLE, 2, vec_env_cls=SubprocVecEnv)
    model = sb3.PPO("MlpPolicy", VecNormalize(envs), device="cpu")
    try:
        assert policy_from_model(model).spec.env_id == CARTPOLE
    finally:
        envs.close()
    assert policy_from_model(model).spec.env_id is None


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: gym.make(PENDULUM), None),
        (lambda: gym.make(PENDULUM, render_mode="rgb_array"), None),
        (lambda: gym.make(PENDULUM, g=10.0), "g=10.0"),  # what it is, but its id does not say so
        (lambda: gym.make(PENDULUM, g=2.0, max_episode_steps=9), "g=2.0, max_episode_steps=9"),
        (lambda: gym.wrappers.RescaleAction(gym.make(PENDULUM), -1, 1), "RescaleAction"),
    ],
)
def test_what_an_id_does_not_tell_of_an_environment_is_told(
    make: Callable[[], gym.Env], told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = sb3.PPO("MlpPolicy", make(), device="cpu")
    assert policy_from_model(model, env_id=PENDULUM).spec.env_id == PENDULUM
    assert not caplog.records  # whoever names one knows
    assert policy_from_model(model).spec.env_id == PENDULUM
    said = f"the model acts in {PENDULUM} with {told}, which a policy does not keep: "
    assert [each.message.startswith(said) for each in caplog.records] == ([True] if told else [])


def test_our_own_vector_environment_is_what_its_id_says(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model(get_recipe("dqn-AirNavigation-I"), seed=0)
    env_id = policy_from_model(model).spec.env_id
    assert env_id and env_id.startswith("quarl/") and not caplog.records


def test_environments_that_do_not_tell_their_id_are_no_error() -> None:
    class Silent(DummyVecEnv):
        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            if attr_name == "spec":
                raise NotImplementedError
            return super().get_attr(attr_name, indices)

    model = sb3.PPO("MlpPolicy", Silent([lambda: gym.make(CARTPOLE)]), device="cpu")
    assert policy_from_model(model).spec.env_id is None


def test_the_fast_cnn_is_an_ordinary_one() -> None:
    fast = sb3.PPO(
        FAST_CNN_POLICIES["ppo"], Frames(), n_steps=2, batch_size=2,
        **kwargs(net_arch=[], features_extractor_class=FastNatureCNN, ortho_init=False),
    )  # fmt: skip
    perturb(fast)
    fast.policy.to(memory_format=torch.channels_last)
    stock = sb3.PPO(
        "CnnPolicy", Frames(), n_steps=2, batch_size=2, **kwargs(net_arch=[], ortho_init=False)
    )
    stock.policy.load_state_dict(fast.policy.state_dict())
    assert_same(policy_from_model(fast), stock, observations(stock))


@pytest.fixture
def normalized() -> BaseAlgorithm:
    """In an environment with `VecNormalize`."""
    env = VecNormalize(DummyVecEnv([lambda: gym.make(PENDULUM)]), clip_obs=1.5, epsilon=0.1)
    model = sb3.A2C("MlpPolicy", env, device="cpu")
    perturb(model)
    model.learn(200)
    return model


def test_normalization_is_the_first_step(normalized: BaseAlgorithm, tmp_path: Path) -> None:
    model, env = normalized, normalized.get_vec_normalize_env()
    model.save(tmp_path / "model.zip")
    env.save(str(tmp_path / "vecnormalize.pkl"))
    obs = observations(model)
    expected = model.predict(env.normalize_obs(obs), deterministic=True)[0]
    assert not np.array_equal(expected, model.predict(obs, deterministic=True)[0])
    reopened = sb3.A2C.load(tmp_path / "model.zip", device="cpu")  # SB3's zips have no statistics
    statistics = read_vecnormalize(tmp_path / "vecnormalize.pkl")
    given = policy_from_model(reopened, normalization=statistics)
    for net in (policy_from_model(model), load_policy(tmp_path / "model.zip"), given):
        assert net.spec.layers[0].kind == "normalize"
        np.testing.assert_array_equal(net.act(obs)[0], expected)
    assert policy_from_model(model).spec.env_id == PENDULUM
    of_one = replace(statistics, mean=statistics.mean[:1], var=statistics.var[:1])
    with pytest.raises(QuarlError, match=r"has statistics \[1\]; allowed: \[3\]"):
        policy_from_model(reopened, normalization=of_one)


class Parts(gym.Env):
    """Observations are a dictionary."""

    observation_space = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (1,))})
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}


def test_dictionaries_are_called_what_they_are_not_their_extractor() -> None:
    model = sb3.DQN("MultiInputPolicy", Parts(), buffer_size=10, device="cpu")
    with pytest.raises(QuarlError, match="^unsupported observation space Dict; known: Box"):
        policy_from_model(model)


def test_normalized_dictionaries_are_called_what_they_are(tmp_path: Path) -> None:
    parts = VecNormalize(DummyVecEnv([Parts]), norm_obs_keys=["a"])
    sb3.PPO("MultiInputPolicy", parts, device="cpu").save(tmp_path / "model.zip")
    parts.save(str(tmp_path / "vecnormalize.pkl"))
    with pytest.raises(QuarlError, match="unsupported observation space .*Dict'>; known: Box"):
        load_policy(tmp_path / "model.zip")
    MODELS["dqn"]().save(tmp_path / "model.zip")
    with pytest.raises(QuarlError, match="pkl': it is of a dictionary of observations"):
        load_policy(tmp_path / "model.zip")
    parts.reset()  # the statistics now hold observations, as an OrderedDict
    parts.save(str(tmp_path / "vecnormalize.pkl"))
    with pytest.raises(QuarlError, match="pkl': it is of a dictionary of observations"):
        load_policy(tmp_path / "model.zip")


def test_normalization_inside_another_wrapper_is_refused() -> None:
    normalized = VecNormalize(DummyVecEnv([lambda: gym.make("MountainCarContinuous-v0")]))
    parts = VecNormalize(DummyVecEnv([Parts]), norm_obs_keys=["a"])
    for env, shapes in (
        (VecFrameStack(normalized, 3), r"\(2,\), not \(6,\)"),
        (VecExtractDictObs(parts, "a"), r"a dictionary, not \(1,\)"),
    ):
        model = sb3.PPO("MlpPolicy", env, n_steps=2, batch_size=2, device="cpu")
        with pytest.raises(QuarlError, match=f"inside another wrapper, .* {shapes}: put it outer"):
            policy_from_model(model)
    inside = VecFrameStack(DummyVecEnv([lambda: gym.make("MountainCarContinuous-v0")]), 3)
    assert policy_from_model(sb3.PPO("MlpPolicy", VecNormalize(inside), device="cpu"))


@pytest.mark.parametrize(
    ("file", "statistics"),
    [
        # The RL Zoo's folder of a run, and one that was renamed.
        ("Pendulum-v1_1/Pendulum-v1.zip", "Pendulum-v1_1/Pendulum-v1/vecnormalize.pkl"),
        ("Pendulum-v1_1/best_model.zip", "Pendulum-v1_1/Pendulum-v1/vecnormalize.pkl"),
        ("Pendulum-v1_1/rl_model_9_steps.zip", "Pendulum-v1_1/Pendulum-v1/vecnormalize.pkl"),
        ("renamed/best_model.zip", "renamed/Pendulum-v1/vecnormalize.pkl"),
        ("run/rl_model_9_steps.zip", "run/rl_model_vecnormalize_9_steps.pkl"),
    ],
)
def test_normalization_is_found(
    file: str, statistics: str, normalized: BaseAlgorithm, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO, "quarl_nb")
    (tmp_path / statistics).parent.mkdir(parents=True)
    normalized.save(tmp_path / file)
    normalized.get_vec_normalize_env().save(str(tmp_path / statistics))
    assert load_policy(tmp_path / file).spec.layers[0].kind == "normalize"
    assert caplog.messages == [f"observations normalized by '{tmp_path / statistics}'"]
    monkeypatch.chdir((tmp_path / file).parent)
    assert load_policy(Path(file).name).spec.layers[0].kind == "normalize"


def test_each_checkpoint_has_its_own_normalization(
    normalized: BaseAlgorithm, tmp_path: Path
) -> None:
    normalized.learn(20, CheckpointCallback(10, str(tmp_path), save_vecnormalize=True))
    nets = [load_policy(tmp_path / f"rl_model_{steps}_steps.zip") for steps in (10, 20)]
    means = [net.layers[0].mean for net in nets]
    assert not torch.equal(*means)
    assert np.array_equal(means[1], normalized.get_vec_normalize_env().obs_rms.mean)
    normalized.save(tmp_path / "best_model.zip")  # of which of the two?
    with pytest.raises(QuarlError, match="'rl_model_vecnormalize_10_steps.pkl' .* vecnormalize="):
        load_policy(tmp_path / "best_model.zip")
    given = tmp_path / "rl_model_vecnormalize_10_steps.pkl"
    net = policy_from_zip(tmp_path / "best_model.zip", vecnormalize=given)
    assert torch.equal(net.layers[0].mean, means[0])


def test_normalization_of_another_model_is_not_taken(
    normalized: BaseAlgorithm, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    normalized.get_vec_normalize_env().save(str(tmp_path / "other" / "vecnormalize.pkl"))
    normalized.save(tmp_path / "model.zip")
    assert load_policy(tmp_path / "model.zip").spec.layers[0].kind == "flatten"
    beside = tmp_path / "vecnormalize.pkl"
    (tmp_path / "other" / "vecnormalize.pkl").rename(beside)
    MODELS["dqn"]().save(tmp_path / "CartPole-v1.zip")
    with pytest.raises(QuarlError, match=rf"'{beside}' normalizes observations \[3\], not \[4\]"):
        load_policy(tmp_path / "CartPole-v1.zip")


def test_a_live_normalizer_that_leaves_observations_as_they_are_is_no_step(
    normalized: BaseAlgorithm,
) -> None:
    normalized.get_vec_normalize_env().norm_obs = False
    net = policy_from_model(normalized)
    assert net.spec.layers[0].kind == "flatten"
    assert_same(net, normalized, observations(normalized))


def test_a_policy_stays_as_it_was_while_its_model_learns_unless_it_shares_its_tensors(
    normalized: BaseAlgorithm,
) -> None:
    obs = torch.ones(5, 3)
    kept = policy_from_model(normalized)
    tensors = normalized.policy.state_dict()
    following = policy_from_model(normalized, tensors=tensors)
    before = kept(obs)
    assert torch.equal(following(obs), before)
    with torch.no_grad():
        normalized.policy.action_net.bias += 1
    assert torch.equal(kept(obs), before)
    torch.testing.assert_close(following(obs), before + 1)


def test_statistics_that_leave_observations_as_they_are_are_not_told(
    normalized: BaseAlgorithm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quarl_nb")
    normalized.get_vec_normalize_env().norm_obs = False
    normalized.get_vec_normalize_env().save(str(tmp_path / "vecnormalize.pkl"))
    normalized.save(tmp_path / "model.zip")
    assert load_policy(tmp_path / "model.zip").spec.layers[0].kind == "flatten"
    assert not caplog.messages


def test_a_policy_of_normalized_observations_without_their_statistics_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for normalizes in (False, True):
        plain = DummyVecEnv([lambda: gym.make(CARTPOLE)])
        env = VecNormalize(plain) if normalizes else plain
        model = sb3.PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu",
                        policy_kwargs=dict(net_arch=[4]))  # fmt: skip
        model.learn(8).save(tmp_path / f"{normalizes}.zip")
        policy_from_model(model)
        assert "trained with VecNormalize" not in caplog.text
        load_policy(tmp_path / f"{normalizes}.zip", env_id=CARTPOLE)
        assert ("; give vecnormalize=... unless it had norm_obs=False" in caplog.text) == normalizes
        opened = sb3.PPO.load(tmp_path / f"{normalizes}.zip", device="cpu")
        policy_from_model(opened, env_id=CARTPOLE)
        told = "the model was trained with VecNormalize, whose statistics were not found"
        assert (told in caplog.text) == normalizes


RAW = ("normalize: false", "- - normalize_advantage\n    - true", "gamma: 0.9", "normalize: False",
       "normalize: false  # raw", "normalize: null", "normalize:\n  obs: false",
       "# do not normalize: ever", "- - normalize\n  - False\n")
NORMALIZING = ("- - - normalize\n    - true\n", "normalize: true", "- normalize\n - {'a': 1}")


def test_missing_normalization_is_not_passed_over(tmp_path: Path) -> None:
    MODELS["dqn"]().save(tmp_path / "CartPole-v1.zip")
    (tmp_path / "CartPole-v1").mkdir()
    for folder in (tmp_path, tmp_path / "CartPole-v1"):
        config = folder / "config.yml"
        for stated in NORMALIZING:
            config.write_text(stated)
            with pytest.raises(QuarlError, match=f"as '{config}' says: give vecnormalize="):
                load_policy(tmp_path / "CartPole-v1.zip")
        for stated in RAW:
            config.write_text(stated)
            assert load_policy(tmp_path / "CartPole-v1.zip").spec.env_id == CARTPOLE


@pytest.mark.parametrize(
    ("path", "env_id"),
    [
        ("a/CartPole-v1.zip", "CartPole-v1"),
        ("a/ppo-CartPole-v1.zip", "CartPole-v1"),
        ("a/PPO_CartPole-v1.zip", "CartPole-v1"),
        ("a/my-PPO-CartPole-v1.zip", "CartPole-v1"),
        ("a/MyRun_CartPole-v1.zip", "CartPole-v1"),
        ("ppo-PongNoFrameskip-v4/model.zip", "PongNoFrameskip-v4"),
        ("Pendulum-v1_12/best_model.zip", "Pendulum-v1"),
        ("My-Project-v2/model.zip", None),
        ("a/model.zip", None),
    ],
)
def test_environment_from_the_name(path: str, env_id: str | None) -> None:
    assert env_id_in(Path(path)) == env_id


@pytest.mark.parametrize(("trained_on", "env_id"), [
    ("Swimmer-v3", "Swimmer-v5"), ("Swimmer-v4", "Swimmer-v4"),  # which is still there
])  # fmt: skip
def test_policies_act_where_they_were_trained_while_that_is_there(
    trained_on: str, env_id: str, tmp_path: Path
) -> None:
    zipped = tmp_path / f"ppo-{trained_on}.zip"
    sb3.PPO("MlpPolicy", "Swimmer-v5", **kwargs(net_arch=[4])).save(zipped)
    assert policy_from_zip(zipped).spec.env_id == env_id


class Masked(Frames):
    """Says which actions are allowed, as MaskablePPO wants to know."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)

    def action_masks(self) -> np.ndarray:
        return np.ones(5, bool)


class Doubling(BaseFeaturesExtractor):
    """Has no tensors, and yet changes what the network sees."""

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space, int(np.prod(space.shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * x


class FlattenExtractor(Doubling):
    """Of the same name as SB3's."""


class GELU(nn.Module):
    """Of the same name as torch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


class Custom(sb3.common.policies.ActorCriticPolicy):
    """A policy class that is not SB3's."""


def layer_normalized_sac() -> BaseAlgorithm:
    model = sb3.SAC("MlpPolicy", PENDULUM, **OFF, policy_kwargs=dict(net_arch=[8]))
    model.actor.latent_pi.append(nn.LayerNorm(8))
    return model


UNSUPPORTED: dict[str, Callable[[], BaseAlgorithm]] = {
    "RecurrentPPO": lambda: sb3_contrib.RecurrentPPO("MlpLstmPolicy", CARTPOLE, device="cpu"),
    "action masks": lambda: sb3_contrib.MaskablePPO("MlpPolicy", Masked(), device="cpu"),
    "unsupported layers 'actor.latent_pi": lambda: layer_normalized_sac(),
    "features extractor '.*Doubling'": lambda: sb3.PPO(
        "MlpPolicy", CARTPOLE, **kwargs(features_extractor_class=Doubling)
    ),
    "features extractor '.*test_sb3.FlattenExtractor'": lambda: sb3.PPO(
        "MlpPolicy", CARTPOLE, **kwargs(features_extractor_class=FlattenExtractor)
    ),
    "features extractor 'functools.partial.*NatureCNN": lambda: sb3.A2C(
        "CnnPolicy", Frames(), n_steps=2,
        **kwargs(features_extractor_class=partial(NatureCNN), ortho_init=False),
    ),
    "unknown activation '.*test_sb3.GELU'": lambda: sb3.PPO(
        "MlpPolicy", CARTPOLE, **kwargs(activation_fn=GELU)
    ),
    "activation": lambda: sb3.PPO(
        "MlpPolicy", CARTPOLE, **kwargs(activation_fn=partial(nn.LeakyReLU, negative_slope=0.2))
    ),
    "custom policy class": lambda: sb3.PPO(Custom, CARTPOLE, device="cpu"),
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_models_say_so(message: str, tmp_path: Path) -> None:
    model = UNSUPPORTED[message]()
    with pytest.raises(QuarlError, match=message):
        policy_from_model(model)
    model.save(tmp_path / "m.zip")
    with pytest.raises(QuarlError, match=message) as caught:
        load_policy(tmp_path / "m.zip")
    assert "\n" not in str(caught.value)


def rewrite(file: Path, change: Callable[[dict[str, Any]], None], **members: bytes) -> None:
    """Change a zip's `data`, and replace members."""
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(contents["data"])
    change(data)
    contents |= {"data": json.dumps(data).encode(), **members}
    with zipfile.ZipFile(file, "w") as archive:
        for name, payload in contents.items():
            archive.writestr(name, payload)


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    MODELS["ppo gSDE squashed"]().save(tmp_path / "m.zip")
    return tmp_path / "m.zip"


def test_an_unknown_activation_must_be_given(zipped: Path) -> None:
    rewrite(zipped, lambda data: data.pop("policy_kwargs"))
    with pytest.raises(QuarlError, match="give activation="):
        load_policy(zipped)
    given = policy_from_zip(zipped, activation="relu")
    assert [layer.kind for layer in given.spec.layers].count("relu") == 2


def test_every_command_that_opens_a_zip_takes_its_activation(
    zipped: Path, tmp_path: Path, capsys
) -> None:
    rewrite(zipped, lambda data: data.pop("policy_kwargs"))
    np.save(tmp_path / "obs.npy", np.ones((3, 3), np.float32))
    episodes = ["--env", PENDULUM, "--episodes", "2"]
    commands = [
        ["evaluate", str(zipped), *episodes], ["quantize", str(zipped), *episodes],
        ["export", str(zipped), "--to", str(tmp_path / "board"),
         "--observations", str(tmp_path / "obs.npy")],
    ]
    for command in commands:
        assert main(command) == 2
        assert "give activation=..., or --activation\n" in capsys.readouterr().err
        assert main([*command, "--activation", "relo"]) == 2
        assert "unknown activation 'relo'; did you mean 'relu'" in capsys.readouterr().err
        assert main([*command, "--activation", "relu"]) == 0


def test_an_activation_with_options_cannot_be_given_either(tmp_path: Path) -> None:
    UNSUPPORTED["activation"]().save(tmp_path / "m.zip")
    for given in (None, "leaky_relu"):
        with pytest.raises(QuarlError, match="unsupported: an activation with options, functools"):
            policy_from_zip(tmp_path / "m.zip", activation=given)
    without = sb3.PPO("MlpPolicy", CARTPOLE, **kwargs(activation_fn=partial(nn.LeakyReLU)))
    without.save(tmp_path / "n.zip")
    for net in (policy_from_model(without), load_policy(tmp_path / "n.zip")):
        assert "leaky_relu" in [layer.kind for layer in net.spec.layers]


def test_an_activation_against_the_zip_is_refused(zipped: Path) -> None:
    with pytest.raises(QuarlError, match="the zip says 'tanh'"):
        policy_from_zip(zipped, activation="relu")


def test_bounds_come_from_the_environment_where_the_zip_has_none(zipped: Path) -> None:
    rewrite(zipped, lambda data: data["action_space"].pop("low"))
    with pytest.raises(QuarlError, match="give env_id="):
        load_policy(zipped)
    head = policy_from_zip(zipped, env_id=PENDULUM).spec.head
    assert (head.low, head.high) == ((-2.0,), (2.0,))


class Malicious:
    """Creates a marker file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_malicious_zips_run_nothing(zipped: Path, tmp_path: Path) -> None:
    import pickle

    marker = tmp_path / "marker"
    trap = base64.b64encode(pickle.dumps(Malicious(marker))).decode()

    def poison(data: dict[str, Any]) -> None:
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = trap

    rewrite(zipped, poison)
    assert load_policy(zipped).spec.algo == "ppo"
    buffer = io.BytesIO()
    torch.save({"action_net.weight": Malicious(marker)}, buffer)
    rewrite(zipped, poison, **{"policy.pth": buffer.getvalue()})
    with pytest.raises(QuarlError, match="policy.pth in .* refused"):
        load_policy(zipped)
    assert not marker.exists()
    # The trap works: SB3's own loader falls into it.
    with pytest.raises(Exception):  # noqa: B017  (whatever SB3 says then)
        sb3.PPO.load(zipped)
    assert marker.exists()


def test_damaged_zips_are_one_line(zipped: Path, tmp_path: Path) -> None:
    whole = zipped.read_bytes()
    for damaged in (whole[:-30], whole[: len(whole) // 2], b"", whole[:-30] + b"\0" * 30):
        zipped.write_bytes(damaged)
        with pytest.raises(QuarlError, match="m.zip") as caught:
            load_policy(zipped)
        assert "\n" not in str(caught.value)
    zipped.write_bytes(whole)
    rewrite(zipped, lambda data: None, data=b"[1, 2")
    with pytest.raises(QuarlError, match="'data' .* is not JSON"):
        load_policy(zipped)
    with pytest.raises(QuarlError, match="cannot read"):
        load_policy(tmp_path / "none.zip")


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        ("action_space", {"n": None}),
        ("action_space", {"n": "x"}),
        ("action_space", {"n": float("inf")}),
        ("action_space", {}),
        ("observation_space", {"_shape": "inf"}),
        ("policy_kwargs", {"clip_mean": [1]}),
    ],
)
def test_damaged_settings_are_one_line(key: str, damage: dict[str, Any], tmp_path: Path) -> None:
    MODELS["dqn"]().save(tmp_path / "m.zip")

    def spoil(data: dict[str, Any]) -> None:
        data[key].pop("n", None)
        data[key].update(damage)

    rewrite(tmp_path / "m.zip", spoil)
    with pytest.raises(QuarlError, match="'data' in .*m.zip' is damaged: ") as caught:
        load_policy(tmp_path / "m.zip")
    assert "\n" not in str(caught.value)


def test_nan_weights_are_named(tmp_path: Path) -> None:
    model = MODELS["dqn"]()
    with torch.no_grad():
        next(model.policy.parameters()).fill_(torch.nan)
    model.save(tmp_path / "m.zip")
    with pytest.raises(QuarlError, match="NaN"):
        load_policy(tmp_path / "m.zip")
