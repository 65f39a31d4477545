from __future__ import annotations

from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.quant import parse_precision, quantize_module
from quarl_nb.rl.envs import make_env
from quarl_nb.rl.evaluate import Evaluation, evaluate
from quarl_nb.rl.observations import collect_observations
from quarl_nb.rl.policies import Head


class SeedEnv(gym.Env):
    """An episode as long as its seed; every step's reward is the seed."""

    observation_space = gym.spaces.Box(0, 1000, (1,), dtype=np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        # Autoreset passes no seed: such an episode must never be counted.
        self.seed_ = 999 if seed is None else seed
        self.left = self.seed_
        return np.array([self.seed_], dtype=np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.seed_], dtype=np.float32), self.seed_, self.left == 0, False, {}


class Plain(SeedEnv):
    """It takes options, where it is given some."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed if options is None else options["seed"])


class Still:
    """A policy that always takes action 0 and remembers its batches."""

    def __init__(self):
        self.batches = []

    def initial_state(self, n):
        return None

    def act(self, obs, state=None, generator=None):
        self.batches.append(obs[:, 0].tolist())
        return np.zeros(len(obs), dtype=np.int64), None


class Drawing(Still):
    """A policy that draws a number for each of its actions."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def act(self, obs, state=None, generator=None):
        self.drawn.append(torch.rand(len(obs), generator=generator).tolist())
        return super().act(obs, state)


class Counter(Still):
    """A recurrent policy whose state counts the steps of each episode."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def initial_state(self, n):
        return torch.zeros(n, 1)

    def act(self, obs, state=None, generator=None):
        self.seen.append((obs[:, 0].astype(int).tolist(), state[:, 0].tolist()))
        return np.zeros(len(obs), dtype=np.int64), state + 1


@pytest.mark.parametrize("n_envs", [1, 2, 3, 7, 50])
def test_every_seed_gets_one_whole_episode(n_envs):
    seeds = [5, 1, 9, 2, 30, 4, 3]
    result = evaluate(Still(), "seed", seeds, n_envs=n_envs, make=SeedEnv)
    assert result.lengths == seeds
    assert result.returns == [float(seed * seed) for seed in seeds]
    assert result.seeds == seeds


def test_an_episode_ends_where_its_time_is_over():
    class Limited(SeedEnv):
        def step(self, action):
            obs, reward, over, _, info = super().step(action)
            return obs, reward, self.seed_ == 999, over, info  # what autoreset begins ends at once

    result = evaluate(Still(), "limited", [5, 1, 9, 2], n_envs=2, make=Limited)
    assert result.lengths == [5, 1, 9, 2]
    assert result.returns == [25.0, 1.0, 81.0, 4.0]


@pytest.mark.parametrize("env_id, n_envs", [("seed", 10), ("PongNoFrameskip-v4", 5)])
def test_by_default_five_games_of_atari_are_played_at_once_and_ten_episodes_else(env_id, n_envs):
    policy = Still()
    evaluate(policy, env_id, range(1, 13), make=SeedEnv)
    assert {len(batch) for batch in policy.batches} == {n_envs}


def test_a_policy_that_draws_its_actions_draws_them_by_the_first_seed():
    policy, generator = Drawing(), torch.Generator().manual_seed(7)
    evaluate(policy, "seed", [7, 3], make=SeedEnv)
    assert policy.drawn == [torch.rand(2, generator=generator).tolist() for _ in range(7)]


def test_calibration_resets_and_draws_by_its_seed():
    policy, generator = Drawing(), torch.Generator().manual_seed(7)
    seen = collect_observations(policy, "seed", 16, seed=7, make=SeedEnv)
    assert seen[:, 0].tolist() == [*range(7, 15)] * 2
    assert policy.drawn == [torch.rand(8, generator=generator).tolist() for _ in range(2)]


def test_environments_are_reset_without_options():
    result = evaluate(Still(), None, range(1, 6), n_envs=2, make=Plain)
    assert result.lengths == [1, 2, 3, 4, 5]


def test_a_recurrent_state_starts_anew_with_each_episode():
    policy = Counter()
    evaluate(policy, "seed", [3, 2, 4, 5], n_envs=2, make=SeedEnv)
    steps: dict[int, list[float]] = {}
    for seeds, states in policy.seen:
        for seed, state in zip(seeds, states, strict=True):
            steps.setdefault(seed, []).append(state)
    # A slot with no episode left runs on, unseen, until the others have finished.
    for seed in (3, 2, 4, 5):
        assert steps[seed][:seed] == list(range(seed))


def test_calibration_starts_a_recurrent_state_anew_with_each_episode():
    class Short(SeedEnv):
        def reset(self, **kwargs):
            return super().reset(seed=4)

    policy = Counter()
    collect_observations(policy, "short", 8 * 12, seed=0, make=Short)
    states = [states[0] for _, states in policy.seen]
    # The fifth is that of an episode's last observation, after which gymnasium resets.
    assert states == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


RUNS = pytest.mark.parametrize("run", [
    lambda make: evaluate(Still(), "own", [3, 4, 5], n_envs=2, make=make),
    lambda make: collect_observations(Still(), "own", 800, seed=3, make=make),
], ids=["evaluate", "collect_observations"])  # fmt: skip


@RUNS
@pytest.mark.parametrize("method", ["__init__", "reset", "step"])
def test_what_an_environment_of_ones_own_raises_is_one_line(run, method):
    def fails(*args, **kwargs):
        raise ValueError("no wind\nat all")

    with pytest.raises(QuarlError, match="^environment raised ValueError: no wind$"):
        run(type("Broken", (SeedEnv,), {method: fails}))


@RUNS
def test_what_is_no_environment_is_told(run):
    message = "^the function that makes environments returned int, not a gym.Env$"
    with pytest.raises(QuarlError, match=message):
        run(lambda: 5)
    with pytest.raises(QuarlError, match="^environment raised AttributeError: .*action_space"):
        run(type("Spaceless", (gym.Env,), {"observation_space": SeedEnv.observation_space}))


@pytest.mark.parametrize("wrong", [None, 5, ""])
@pytest.mark.parametrize("run", [
    lambda env_id: evaluate(Still(), env_id, [3]),
    lambda env_id: evaluate(Still(), env_id, [3], n_envs=1),
    lambda env_id: collect_observations(Still(), env_id, 8, seed=3),
    make_env,
], ids=["evaluate", "n_envs", "collect_observations", "make_env"])  # fmt: skip
def test_what_is_no_name_of_an_environment_is_told(run, wrong):
    with pytest.raises(QuarlError, match=f"^env_id must be an environment's name, not {wrong!r}$"):
        run(wrong)


@pytest.mark.parametrize("space", [
    gym.spaces.Tuple([SeedEnv.observation_space]),
    gym.spaces.Dict({"of": SeedEnv.observation_space}),
], ids=["Tuple", "Dict"])  # fmt: skip
@RUNS
def test_observations_of_several_arrays_are_told_as_such(run, space):
    message = f"^'own' gives {type(space).__name__}.*, policies take one array: wrap it in gymn"
    with pytest.raises(QuarlError, match=message):
        run(type("Several", (SeedEnv,), {"observation_space": space}))


@RUNS
def test_an_environment_that_cannot_be_closed_hides_nothing(run):
    closed = []

    class Stuck(SeedEnv):
        def close(self):
            closed.append(self)
            raise RuntimeError("the viewer is gone")

    run(Stuck)
    assert len(closed) == len(set(closed)) > 1
    with pytest.raises(QuarlError, match="^environment raised ValueError: no wind$"):
        run(type("Broken", (Stuck,), {"step": Mock(side_effect=ValueError("no wind"))}))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("what", ["an observation", "a reward"])
def test_what_is_no_number_is_told_with_the_environment_that_gave_it(what, wrong):
    class Own(SeedEnv):
        def step(self, action):
            obs, reward, over, *rest = super().step(action)
            if self.left == 2:
                obs, reward = (obs * wrong, reward) if what == "an observation" else (obs, wrong)
            return obs, reward, over, *rest

    with pytest.raises(QuarlError, match=f"^environment 'own' gave {what} that is NaN or infinite"):
        evaluate(Still(), "own", [1, 2, 4, 5], n_envs=2, make=Own)
    assert evaluate(Still(), "own", [1, 2, 2], n_envs=2, make=Own).lengths == [1, 2, 2]


@pytest.mark.parametrize("head", [Head("sample"), Head("argmax"), Head("clip", (-1,), (1,), (1,))])
def test_outputs_too_large_for_a_precision_are_told_of_the_policy(make_policy, head):
    class Far(SeedEnv):
        observation_space = gym.spaces.Box(0, 1e6, (2,))
        action_space = gym.spaces.Discrete(2) if head.discrete else gym.spaces.Box(-1, 1, (1,))

        def reset(self, **options):
            return np.full(2, 1e5, np.float32), super().reset(**options)[1]

    net = make_policy((2,), ("linear", {"in_features": 2, "out_features": 1 + head.discrete}),
                      head=head)  # fmt: skip
    net.layers[0].weight.copy_(torch.tensor([1.0, -1.0]))
    with pytest.raises(QuarlError, match="^the policy's outputs are NaN or infinite"):
        evaluate(quantize_module(net, parse_precision("fp16")), "far", [3], make=Far)


def test_the_last_observation_of_an_episode_may_be_anything(make_policy):
    class Exploding(SeedEnv):
        def step(self, action):
            obs, reward, over, *rest = super().step(action)
            return obs * (np.nan if over else 1), reward, over, *rest

    net = make_policy((1,), ("linear", {"in_features": 1, "out_features": 2}))
    for policy in (Still(), net):
        assert evaluate(policy, "own", [5, 1, 2], n_envs=3, make=Exploding).lengths == [5, 1, 2]


def test_episodes_that_do_not_end_are_told_once(monkeypatch, caplog):
    monkeypatch.setattr("quarl_nb.rl.evaluate.ENDLESS_STEPS", 6)
    assert evaluate(Still(), "short", [5, 6, 3], n_envs=1, make=SeedEnv).lengths == [5, 6, 3]
    assert not caplog.records
    evaluate(Still(), "long", [20], make=SeedEnv)
    (record,) = caplog.records
    assert record.message.startswith("no episode of 'long' has ended in 6 steps: has it a time")


def test_the_same_seeds_give_the_same_returns():
    class Lean(Still):
        def act(self, obs, state=None, generator=None):
            return (obs[:, 2] > 0).astype(np.int64), None

    first = evaluate(Lean(), "CartPole-v1", range(20), n_envs=4)
    second = evaluate(Lean(), "CartPole-v1", range(20), n_envs=7)
    assert first.returns == second.returns
    assert len(set(first.returns)) > 1


def test_the_deviation_is_that_of_the_episodes_themselves():
    found = Evaluation([1.0, 3.0, 5.0, 7.0], [1] * 4, [0, 1, 2, 3], 0.1)
    assert (found.mean, found.std) == (4.0, pytest.approx(5**0.5))


def test_records_keep_seven_digits_of_a_return():
    found = Evaluation([987.6608898639679, -1.234567891e-05, 1234567.0], [3, 1, 2], [7, 8, 9], 0.1)
    assert found.as_measured() == {
        "returns": [987.6609, -1.234568e-05, 1234567.0], "lengths": [3, 1, 2],
    }  # fmt: skip


@pytest.mark.parametrize("seeds", [np.array([3, 1]), torch.tensor([3, 1]), [np.int64(3), 1]])
def test_seeds_of_numpy_and_torch_are_integers_too(seeds):
    result = evaluate(Still(), "seed", seeds, make=SeedEnv)
    assert result.lengths == result.seeds == [3, 1]
    assert {type(seed) for seed in result.seeds} == {int}


@pytest.mark.parametrize("seeds", [[1.5], np.array([1.0]), ["a"], [None], 3])
def test_seeds_that_are_no_integers_are_an_error(seeds):
    with pytest.raises(QuarlError, match="^seeds must be integers, not "):
        evaluate(Still(), "CartPole-v1", seeds)


@pytest.mark.parametrize("n_envs", [0, -1])
def test_fewer_episodes_at_once_than_one_is_an_error(n_envs):
    with pytest.raises(QuarlError, match=f"^n_envs must be at least 1, not {n_envs}$"):
        evaluate(Still(), "CartPole-v1", [1, 2], n_envs=n_envs)
    with pytest.raises(QuarlError, match="^n_envs must be a whole number, not 2.5$"):
        evaluate(Still(), "CartPole-v1", [1, 2], n_envs=2.5)


def test_no_episodes_is_an_error():
    with pytest.raises(QuarlError, match="at least one episode"):
        evaluate(Still(), "CartPole-v1", [])


@pytest.mark.parametrize("seeds", [
    range(-1, 3), [3, 2**31], range(10**20), [10**20], [0, -1, 5], np.array([0, 2**31, 5]),
])  # fmt: skip
def test_seeds_that_an_environment_would_not_take_are_an_error(seeds):
    with pytest.raises(QuarlError, match="seed must be from 0 to 2147483647, not "):
        evaluate(Still(), "CartPole-v1", seeds)
