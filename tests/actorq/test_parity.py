"""With an fp32 actor in step with its learner, ActorQ is SB3's own `learn()`, bit for bit."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

from quarl_nb.actorq import ActorQ
from quarl_nb.actorq.learner import Learner
from quarl_nb.actorq.limiter import RateLimiter
from quarl_nb.actorq.settings import Settings, Transitions
from quarl_nb.rl.d4pg import D4PG

STEPS, LEARNING_STARTS, SEED = 150, 30, 3
ALGORITHMS = [DQN, DDPG, TD3, SAC, D4PG]
BUFFER = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def make(algorithm, env, **options):
    """With target networks that change within the run, and a learning rate that falls."""
    options |= dict(target_update_interval=20) if issubclass(algorithm, DQN) else {}
    options |= dict(target_update_period=20) if issubclass(algorithm, D4PG) else {}
    return algorithm("MlpPolicy", env, learning_rate=lambda remaining: 1e-3 * remaining,
                     learning_starts=LEARNING_STARTS, batch_size=16, seed=SEED, device="cpu",
                     train_freq=1, gradient_steps=1, buffer_size=1000,
                     policy_kwargs=dict(net_arch=[16, 16]), **options)  # fmt: skip


def assert_same(ours, theirs):
    """The same steps in the buffer, the same learned and target networks, the same optimizers."""
    assert ours.num_timesteps == theirs.num_timesteps == STEPS
    assert ours._n_updates == theirs._n_updates == STEPS - LEARNING_STARTS
    for name in BUFFER:
        mine, other = getattr(ours.replay_buffer, name), getattr(theirs.replay_buffer, name)
        assert np.array_equal(mine[:STEPS], other[:STEPS]), name
    mine, other = (flat(model.get_parameters()) for model in (ours, theirs))
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        equal = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
        assert equal(value, other[name]), name


def flat(tree, name=""):
    """Leaves of nested dictionaries and lists by their path."""
    if not isinstance(tree, dict | list):
        return {name: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    parts = (flat(value, f"{name}.{key}") for key, value in items)
    return {path: leaf for part in parts for path, leaf in part.items()}


class Recorder(BaseCallback):
    """Keeps every transition of SB3's own loop, actions as the environment took them."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def _on_step(self):
        found, info = self.locals, self.locals["infos"][0]
        done = bool(found["dones"][0])
        next_obs = info["terminal_observation"] if done else found["new_obs"][0]
        row = (self.model._last_obs[0].copy(), next_obs.copy(), found["actions"][0].copy(),
               found["rewards"][0], done, bool(info.get("TimeLimit.truncated")))  # fmt: skip
        self.rows.append(row)
        return True


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_data_give_the_same_parameters_as_sb3s_own_learning(algorithm):
    env = "CartPole-v1" if algorithm is DQN else "Pendulum-v1"
    recorder = Recorder()
    theirs = make(algorithm, env)
    theirs.learn(STEPS, callback=recorder)
    ours = make(algorithm, env)
    learner = Learner(ours, Settings(), STEPS)
    for row in recorder.rows:
        if ours.num_timesteps >= LEARNING_STARTS:
            ours.predict(row[0])  # SB3 explores with the generators that it trains with
        learner.insert(Transitions(0, 0, *(np.asarray([[field]]) for field in row)))
        if ours.num_timesteps > LEARNING_STARTS:
            learner.update()
    assert_same(ours, theirs)


class Track(gym.Env):
    """A point that actions push; cut after 20 steps, over when it is far out.

    Actions count in steps of 1/64: SB3 scales those that it stores back and forth, which changes
    the last bits of what the environment gets.
    """

    observation_space = gym.spaces.Box(-2, 2, (3,), np.float32)

    def __init__(self, discrete):
        box = gym.spaces.Box(np.float32([-1, -1]), np.float32([3, 1]))
        self.action_space = gym.spaces.Discrete(3) if discrete else box

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-1, 1, 3), 0
        return self.x.astype(np.float32), {}

    def step(self, action):
        push = np.round(np.resize(action, 3) * 64) / 64 - 1
        self.x, self.t = 0.9 * self.x + 0.1 * push, self.t + 1
        reward, over = -float(self.x @ self.x), bool(abs(self.x).max() > 0.8)
        return self.x.astype(np.float32), reward, over, self.t >= 20, {}


def acting_on_its_mean(algorithm):
    """Without exploration of its own: what ActorQ's actors run, their noise apart."""

    class Deterministic(algorithm):
        def predict(self, observation, *arguments, **options):
            return super().predict(observation, *arguments, **options | {"deterministic": True})

    return Deterministic


def learn_as_sb3(model, env_seed):
    """SB3's own loop, its environment and random actions seeded as the actor's."""
    model.set_random_seed(SEED)
    model.env.seed(env_seed)
    model.action_space.seed(env_seed)
    return model.learn(STEPS)


def learn_in_step(model, make_env, monkeypatch):
    """One actor that pulls before every step, and as many updates as SB3 makes after it.

    Returns:
        the run's result, and the seed that the actor gave its environment.
    """
    made = []

    def keep():
        made.append(make_env())
        return made[-1]

    def without_tolerance(self, *arguments):
        init(self, *arguments)
        self.tolerance = 0.0

    init = RateLimiter.__init__
    monkeypatch.setattr(RateLimiter, "__init__", without_tolerance)
    actorq = ActorQ(model, keep, "serial", precision="fp32", runtime="torch", n_actors=1,
                    noise_max=0.0, pull_period=1, transitions_per_message=1,
                    samples_per_insert=model.batch_size)  # fmt: skip
    return actorq.learn(STEPS, progress_bar=False), made[-1].np_random_seed


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_serial_loop_is_sb3s_own_learning(algorithm, monkeypatch):
    env = partial(Track, algorithm is DQN)
    quiet = dict(exploration_initial_eps=0.0, exploration_final_eps=0.0)
    options = quiet if algorithm is DQN else {}
    ours = make(algorithm, env(), **options)
    result, env_seed = learn_in_step(ours, env, monkeypatch)
    theirs = learn_as_sb3(make(acting_on_its_mean(algorithm), env(), **options), env_seed)
    buffer = ours.replay_buffer
    if isinstance(buffer, NStepReplayBuffer):
        # Whoever goes on with it begins another episode, where SB3 would go on with its own.
        assert buffer.timeouts[STEPS - 1] == 1
        buffer.timeouts[STEPS - 1] = 0
    assert_same(ours, theirs)
    assert 0 < buffer.timeouts[:STEPS].sum() < buffer.dones[:STEPS].sum()  # both ways of ending
    assert result.updates == STEPS - LEARNING_STARTS and set(result.ages) == {0}
