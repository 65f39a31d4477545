"""Actors of every precision, on frames and on numbers: they learn, and the counts are right."""

import gymnasium as gym
import numpy as np
import onnx
import pytest
import torch
from stable_baselines3 import DQN, TD3

from quarl_nb.actorq import ActorQ, actor
from quarl_nb.actorq.environments import random_observations
from quarl_nb.actorq.quantizer import deserialize, make_variables
from quarl_nb.actorq.settings import ActorTask, Settings
from quarl_nb.inference import open_engine
from quarl_nb.inference.payload import decode
from quarl_nb.rl.d4pg import D4PG

LENGTH = 10  # steps of an episode


@pytest.fixture
def opened(monkeypatch):
    """The payloads that actors opened, in order."""
    payloads = []

    def keep(payload):
        payloads.append(payload)
        return open_engine(payload)

    monkeypatch.setattr(actor, "open_engine", keep)
    return payloads


class Episodes(gym.Env):
    """What is to be done is told by the observation alone; cut after `LENGTH` steps."""

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.new(), {}

    def step(self, action):
        reward, self.t = self.reward(action), self.t + 1
        return self.new(), reward, False, self.t >= LENGTH, {}


class Corner(Episodes):
    """Frames with one bright corner; the action that names it earns 1."""

    action_space = gym.spaces.Discrete(4)

    def __init__(self, channels_last):
        self.channels_last = channels_last
        shape = (36, 36, 1) if channels_last else (1, 36, 36)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)

    def new(self):
        self.corner = self.np_random.integers(4)
        frame = self.np_random.integers(0, 60, (1, 36, 36), np.uint8)
        row, column = 18 * (self.corner // 2), 18 * (self.corner % 2)
        frame[0, row : row + 18, column : column + 18] += 180
        return frame.transpose(1, 2, 0) if self.channels_last else frame

    def reward(self, action):
        return float(action == self.corner)


class Target(Episodes):
    """The nearer the action, from -2 to 4, comes to twice what is seen, the better."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-2.0, 4.0, (2,), np.float32)

    def new(self):
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen

    def reward(self, action):
        return -float(np.abs(action - 2 * self.seen).sum())


def assert_counts(result, model, steps, pull_period, ratio):
    """Of two actors; the learner may be a tolerance ahead in the end, not a batch behind."""
    assert result.stopped == "done" and result.restarts == 0
    assert result.steps == model.num_timesteps == steps
    assert result.updates == model._n_updates
    owed = (steps - model.learning_starts) * ratio
    tolerance = max(2 * model.batch_size, 2 * 2 * 50 * ratio, 0.1 * model.learning_starts * ratio)
    assert -model.batch_size < result.updates * model.batch_size - owed <= tolerance
    assert len(result.ages) == steps // 50 and min(result.ages) == 0 < max(result.ages)
    assert result.pulls == steps // pull_period
    assert result.pulled_bytes == result.pulls * result.payload_bytes
    assert [e.actor for e in result.episodes].count(0) == steps // 2 // LENGTH
    assert all(e.length == LENGTH for e in result.episodes)


def returns(result, first, last):
    return np.mean([e.episode_return for e in result.episodes[first:last]])


@pytest.mark.parametrize("channels_last", [False, True])
def test_int8_convolutions_learn_to_see(opened, channels_last):
    model = DQN("CnnPolicy", Corner(channels_last), learning_rate=1e-3, learning_starts=100,
                batch_size=32, buffer_size=2000, gamma=0.0, exploration_fraction=0.5, seed=0,
                exploration_final_eps=0.0, device="cpu")  # fmt: skip
    actorq = ActorQ(model, lambda: Corner(channels_last), "serial", precision="int8", n_actors=2,
                    pull_period=100, samples_per_insert=8)  # fmt: skip
    result = actorq.learn(800, progress_bar=False)
    assert_counts(result, model, 800, 100, 8)
    # At random a quarter of ten; then the int8 policies themselves act, without exploration.
    assert returns(result, 0, 10) < 5 and returns(result, -20, None) > 9
    for payload in opened:
        content = decode(payload)
        kinds = {node.op_type for node in onnx.load_from_string(content.model).graph.node}
        assert content.precision == "int8" and content.obs_dtype == "uint8"
        assert {"QLinearConv", "QGemm"} <= kinds and not {"Conv", "Gemm", "MatMul"} & kinds
    weights = sum(p.numel() for p in model.q_net.parameters())
    assert weights < result.payload_bytes < 1.3 * weights


class Steered(Corner):
    """The same frames; the nearer the action comes to the bright corner, the better."""

    action_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reward(self, action):
        corner = np.array([self.corner // 2, self.corner % 2])
        return -float(np.abs(action - (2 * corner - 1)).sum())


@pytest.mark.parametrize("seed, used", [(5, 5), (None, 0)])
def test_activations_are_calibrated_by_the_runs_own_seed(monkeypatch, seed, used):
    seeds = []

    def noted(make, spec, seed, steps):
        seeds.append(seed)
        return random_observations(make, spec, seed, 20)

    monkeypatch.setattr("quarl_nb.actorq.actorq.random_observations", noted)
    model = DQN("CnnPolicy", Corner(False), learning_starts=10**6, buffer_size=100, seed=seed,
                device="cpu")  # fmt: skip
    actorq = ActorQ(model, lambda: Corner(False), "serial", n_actors=1, transitions_per_message=20)
    actorq.learn(20, progress_bar=False)
    assert seeds == [used]


@pytest.mark.parametrize("algorithm", [TD3, D4PG])
def test_int8_convolutions_make_continuous_actions(opened, algorithm):
    model = algorithm("CnnPolicy", Steered(False), learning_starts=50, batch_size=16,
                      buffer_size=1000, policy_kwargs=dict(net_arch=[32]), seed=0,
                      device="cpu")  # fmt: skip
    actorq = ActorQ(model, lambda: Steered(False), "serial", precision="int8", n_actors=2,
                    pull_period=100, samples_per_insert=4, noise_max=0.0)  # fmt: skip
    result = actorq.learn(400, progress_bar=False)
    assert (result.stopped, result.steps, result.pulls) == ("done", 400, 4) and result.updates > 50
    # Without noise what an actor did last is what its payload computes from what it saw.
    outputs = open_engine(opened[-1]).run(model.replay_buffer.observations[350:400, 0])
    made = model.replay_buffer.actions[350:400, 0]
    assert np.abs(np.tanh(outputs) - made).max() < 1e-6 and np.ptp(made) > 1e-3
    kinds = {n.op_type for n in onnx.load_from_string(decode(opened[-1]).model).graph.node}
    assert {"QLinearConv", "QGemm"} <= kinds and not {"Conv", "Gemm", "MatMul"} & kinds


def test_activations_are_calibrated_with_what_random_actions_see(counter, mlp_policy):
    acted = []

    class Seen(counter):
        def step(self, action):
            acted.append(int(action))
            return super().step(action)

    spec = mlp_policy(2, (4,), 3).spec
    seen = random_observations(Seen, spec, 5, steps=60)
    # Each episode's first observation, and those after each step but the last, its seventh.
    assert seen.tolist() == [[step % 7, 1 + step // 7] for step in range(60)]
    assert np.bincount(acted, minlength=3).min() > 10  # of 59
    first, acted[:] = list(acted), []
    random_observations(Seen, spec, 5, steps=60)
    assert acted == first


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_weights_that_travel_as_actors_compute_are_sent_ready_to_open(
    counter, mlp_policy, precision
):
    net = mlp_policy(2, (8,), 3)

    def sent(communication):
        settings = Settings(precision=precision, communication=communication)
        task = ActorTask(0, counter, net.spec, settings)
        variables = make_variables(net, 1, task)
        return variables, deserialize(variables, task)

    variables, opened = sent(precision)
    assert opened == variables.payload and (variables, opened) == sent(None)


# Bytes of a weight.
@pytest.mark.parametrize("precision, runtime, size", [
    ("fp32", "torch", 4), ("fp16", "torch", 2), ("bf16", "torch", 2), ("int8", "onnxruntime", 1),
])  # fmt: skip
def test_d4pg_learns_with_actors_of_any_precision(opened, precision, runtime, size):
    model = D4PG("MlpPolicy", Target(), learning_rate=2e-3, learning_starts=100, batch_size=64,
                 gamma=0.0, n_steps=1, target_update_period=1, v_min=-8.0, v_max=0.0, seed=0,
                 device="cpu", policy_kwargs=dict(net_arch=[64, 64]))  # fmt: skip
    actorq = ActorQ(model, Target, "serial", precision=precision, runtime=runtime, n_actors=2,
                    pull_period=100, samples_per_insert=16, noise_max=0.05)  # fmt: skip
    result = actorq.learn(1200, progress_bar=False)
    assert_counts(result, model, 1200, 100, 16)
    # Random actions miss by 1.9 in each of two dimensions and ten steps.
    assert returns(result, 0, 10) < -30 and returns(result, -20, None) > -13
    contents = [decode(payload) for payload in opened]
    assert {(c.precision, c.runtime) for c in contents} == {(precision, runtime)}
    weights = 2 * 64 + 64 * 64 + 64 * 2
    assert size * weights < result.payload_bytes < size * weights + 6000
    assert all(torch.isfinite(p).all() for p in model.policy.parameters())
