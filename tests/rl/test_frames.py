"""Frames ``[height, width, channels]``, for policies that stable-baselines3 turns them for."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
import torch

from quarl_nb.cli import main
from quarl_nb.errors import QuarlError
from quarl_nb.inference import fast_policy
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.fits import check_fits, n_outputs
from quarl_nb.rl.observations import collect_observations
from quarl_nb.rl.policies import Head, save_policy

ENV_ID = "Stripes-v0"


class Stripes(gym.Env):
    """Frames whose channels hold 10, 20 and 30, for three steps."""

    observation_space = gym.spaces.Box(0, 255, (4, 5, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)
    frame = np.broadcast_to(np.uint8([10, 20, 30]), (4, 5, 3))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return self.frame.copy(), {}

    def step(self, action):
        self.left -= 1
        return self.frame.copy(), 1.0, self.left == 0, False, {}


@pytest.fixture(autouse=True)
def stripes():
    gym.register(ENV_ID, Stripes)
    yield
    del gym.registry[ENV_ID]


@pytest.fixture
def policy_of(make_policy):
    layers = (("divide", {"by": 255.0}), "flatten", ("linear", {"in_features": 60,
              "out_features": 2}))  # fmt: skip
    return lambda *obs_shape: make_policy(obs_shape, *layers)


def test_frames_of_a_function_are_turned_as_those_of_a_name(policy_of):
    net = policy_of(3, 4, 5)
    check_fits(net, "own", Stripes)
    assert evaluate(net, "own", range(2), make=Stripes).returns == [3.0, 3.0]
    seen = collect_observations(net, "own", 16, seed=0, make=Stripes)
    assert seen.shape[1:] == (3, 4, 5) and set(seen[:, 0].ravel()) == {10}
    shared = Stripes()
    with pytest.raises(QuarlError, match="returned the same one twice"):
        evaluate(net, "own", range(2), make=lambda: shared)


def test_a_policy_sees_frames_with_the_channels_where_it_wants_them(policy_of):
    first, last = policy_of(3, 4, 5), policy_of(4, 5, 3)
    for net, axis in ((first, 1), (last, 3)):
        check_fits(net, ENV_ID)
        seen = np.moveaxis(collect_observations(net, ENV_ID, 16, seed=0), axis, 0)
        assert [set(channel.ravel()) for channel in seen] == [{10}, {20}, {30}]
        assert evaluate(net, ENV_ID, range(4)).lengths == [3] * 4
        assert evaluate(fast_policy(net), ENV_ID, range(4)).lengths == [3] * 4


def test_frames_of_another_size_are_refused_as_they_are(policy_of):
    message = r"observations of shape \[3, 5, 4\], 'Stripes-v0' gives \[4, 5, 3\]"
    with pytest.raises(QuarlError, match=message):
        check_fits(policy_of(3, 5, 4), ENV_ID)


@pytest.mark.parametrize(("space", "message"), [
    (gym.spaces.MultiDiscrete([3, 3]), "takes MultiDiscrete actions; known: Box, Discrete"),
    (gym.spaces.MultiBinary(2), "takes MultiBinary actions; known: Box, Discrete"),
    (gym.spaces.Discrete(2, start=1), "'Stripes-v0' counts its actions from 1; known: from 0"),
    (gym.spaces.Discrete(3), "the policy has .*, 'Stripes-v0' takes 3 discrete actions"),
    (gym.spaces.Box(-1, 1, (3,)), r"the policy has .*, 'Stripes-v0' takes actions of shape \[3\]"),
])  # fmt: skip
def test_actions_that_are_not_the_policys_are_refused(
    policy_of, make_policy, monkeypatch, space, message
):
    monkeypatch.setattr(Stripes, "action_space", space)
    layers = ("flatten", ("linear", {"in_features": 60, "out_features": 2}))
    head = Head("clip", low=(-1.0, -1.0), high=(1.0, 1.0), shape=(2,))
    for net in (policy_of(3, 4, 5), make_policy((3, 4, 5), *layers, head=head)):
        with pytest.raises(QuarlError, match=message):
            check_fits(net, ENV_ID)


@pytest.mark.parametrize("run", [
    lambda net, make: evaluate(net, "own", range(3), make=make),
    lambda net, make: collect_observations(net, "own", 16, seed=0, make=make),
])  # fmt: skip
@pytest.mark.parametrize(("name", "space", "message"), [
    ("observation_space", gym.spaces.Dict(x=gym.spaces.Discrete(2)), r"'own' gives Dict\("),
    ("observation_space", gym.spaces.Tuple([gym.spaces.Discrete(2)]), r"'own' gives Tuple\("),
    ("action_space", gym.spaces.Discrete(5), "'own' takes 5 discrete actions"),
])  # fmt: skip
def test_no_episode_is_run_of_other_spaces(policy_of, monkeypatch, run, name, space, message):
    monkeypatch.setattr(Stripes, name, space)
    with pytest.raises(QuarlError, match=f"^the policy .*, {message}"):
        run(policy_of(4, 5, 3), Stripes)


def test_outputs_are_counted_of_layers_that_quantize_or_recur(make_policy):
    linear = ("linear", {"in_features": 4, "out_features": 3})
    gru = ("gru_cell", {"input_size": 4, "hidden_size": 3})
    for layers in ((("fixed_quantize", {"bits": 8}), linear), (gru,)):
        with warnings.catch_warnings(action="error"):
            assert n_outputs(make_policy((4,), *layers).spec) == 3


def test_checking_a_policy_draws_no_random_numbers(policy_of):
    torch.manual_seed(3)
    check_fits(policy_of(3, 4, 5), ENV_ID)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    policy_of(3, 4, 5)
    assert torch.equal(drawn, torch.rand(1))


def test_actions_of_another_range_are_refused(make_policy, monkeypatch):
    monkeypatch.setattr(Stripes, "action_space", gym.spaces.Box(-2, 2, (2,)))
    layers = ("flatten", ("linear", {"in_features": 60, "out_features": 2}))
    for end in (1.0, 2.0):
        head = Head("clip", low=(-end, -end), high=(end, end), shape=(2,))
        net = make_policy((3, 4, 5), *layers, head=head)
        refused = pytest.raises(QuarlError, match="go from -1 to 1, those of 'Stripes-v0' from -2")
        with refused if end == 1 else nullcontext():
            check_fits(net, ENV_ID)


def test_every_command_takes_a_policy_of_turned_frames(policy_of, tmp_path, capsys):
    folder = str(save_policy(policy_of(3, 4, 5), tmp_path / "policy"))
    for command in (["evaluate", "--precision", "int8", "--episodes", "2"],
                    ["quantize", "--episodes", "2"],
                    ["export", "--to", str(tmp_path / "exported")]):  # fmt: skip
        assert main([command[0], folder, "--env", ENV_ID, *command[1:]]) == 0
        assert not capsys.readouterr().err
    recorded = np.load(tmp_path / "exported" / "observations.npz")["obs"]
    assert recorded.shape[1:] == (3, 4, 5) and set(recorded[:, 0].ravel()) == {10}
