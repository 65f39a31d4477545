"""Actors act in the user's environment, and whatever that does wrong is one clear line."""

import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecMonitor,
    VecTransposeImage,
)
from torch import nn

from quarl_nb.actorq import ActorQ
from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.environments import make_checked, random_observations
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.settings import ActorTask, Orders, Settings
from quarl_nb.errors import QuarlError
from quarl_nb.rl.d4pg import D4PG
from quarl_nb.rl.envs import make_env


def fails(match, model, env=None, engine="serial", steps=400, **options):
    """A run that ends in one line."""
    with pytest.raises(QuarlError, match=match) as error:
        ActorQ(model, env, engine, n_actors=1, **options).learn(steps, progress_bar=False)
    assert "\n" not in str(error.value)


class Mish(DQN):
    """A DQN of an activation that no policy of ours has."""

    def __init__(self, *args, **options):
        super().__init__(*args, policy_kwargs=dict(activation_fn=nn.Mish, net_arch=[8]), **options)


@pytest.mark.parametrize(("algorithm", "options", "match"), [
    (Mish, {}, "activation .*Mish"),
    (DQN, dict(precision="fp16"), "onnxruntime does not compute in fp16"),
    (DQN, dict(communication="int4"), "no wire format for int4"),
    (DQN, dict(env="Acrobot-v1"), r"shape \[4\], 'Acrobot-v1' gives \[6\]"),
    (DQN, dict(env="CartPol-v1"), "did you mean 'CartPole-v1'"),
])  # fmt: skip
def test_what_actors_cannot_run_is_told_before_the_algorithm_begins_anew(algorithm, options, match):
    model = algorithm("MlpPolicy", "CartPole-v1", learning_starts=20, buffer_size=500, seed=0)
    model.learn(40)
    before = model.num_timesteps, model._episode_num, model.exploration_rate
    with pytest.raises(QuarlError, match=match):
        ActorQ(model, **{"engine": "serial", **options})
    assert (model.num_timesteps, model._episode_num, model.exploration_rate) == before


def test_a_run_is_not_begun_within_a_run(small_dqn):
    actorq = ActorQ(small_dqn(), engine="serial", n_actors=1)
    refused = []

    def again(result):
        with pytest.raises(QuarlError, match="this ActorQ is learning: it cannot begin another"):
            actorq.learn(50, progress_bar=False)
        refused.append(result.steps)

    assert actorq.learn(100, progress_bar=False, on_message=again).steps >= 100 and refused
    assert actorq.learn(50, progress_bar=False).steps >= 50  # afterwards it may


def scaled_cartpole(limit=15):
    env = gym.make("CartPole-v1", max_episode_steps=limit)
    return gym.wrappers.TransformReward(env, lambda reward: 100 * reward)


@pytest.mark.parametrize("engine", ["serial", "process"])
def test_wrappers_and_limits_of_the_algorithms_environment_are_the_actors_too(small_dqn, engine):
    model = small_dqn(scaled_cartpole())
    result = ActorQ(model, engine=engine, n_actors=1).learn(300, progress_bar=False)
    assert set(model.replay_buffer.rewards[:300, 0]) == {100.0}
    assert max(episode.length for episode in result.episodes) <= 15


def test_arguments_of_the_algorithms_environment_are_the_actors_too():
    model = SAC("MlpPolicy", gym.make("Pendulum-v1", g=0.0, render_mode="human"), device="cpu")
    env = ActorQ(model, engine="serial").make_env()
    assert env.unwrapped.g == 0.0 and env.unwrapped.render_mode is None


def test_a_monitor_of_sb3_around_the_algorithms_environment_is_none_of_the_actors(small_dqn):
    own = VecMonitor(DummyVecEnv([lambda: gym.make("CartPole-v1", max_episode_steps=15)]))
    env = ActorQ(small_dqn(own), engine="serial").make_env()
    assert env.spec == gym.make("CartPole-v1", max_episode_steps=15).spec


def test_a_dm_control_task_needs_no_env_of_its_own():
    task = make_env("dm:cartpole-balance")
    model = D4PG("MlpPolicy", task, policy_kwargs={"net_arch": [8]}, v_min=0.0,
                 v_max=100.0, learning_starts=20)  # fmt: skip
    actorq = ActorQ(model, n_actors=1)
    assert actorq.make_env().spec == task.spec
    assert actorq.learn(60, progress_bar=False).steps >= 60  # in a process that never made one


def test_our_own_atari_environment_is_built_as_it_was(small_dqn):
    model = small_dqn(make_env("PongNoFrameskip-v4"), buffer_size=10)
    env = ActorQ(model, engine="serial").make_env()
    assert env.spec == make_env("PongNoFrameskip-v4").spec and "AtariWrapper" in str(env)


def test_an_environment_that_a_script_registered_is_known_to_actors(small_dqn, counter):
    gym.register("Counter-v0", counter, max_episode_steps=5)
    try:
        actorq = ActorQ(small_dqn(counter()), "Counter-v0", n_actors=1)
        result = actorq.learn(60, progress_bar=False)  # in processes that never registered it
    finally:
        del gym.registry["Counter-v0"]
    assert {episode.length for episode in result.episodes} == {5}


@pytest.mark.parametrize("name", ["NormalizeReward", "NormalizeObservation"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_normalizing_wrappers_are_refused(small_dqn, counter, name, wrapped):
    def make():
        env = getattr(gym.wrappers, name)(counter())
        return gym.wrappers.TimeLimit(env, 20) if wrapped else env

    actorq = ActorQ(small_dqn(counter()), make, engine="serial")
    with pytest.raises(QuarlError, match=f"raw environments: no {name}"):
        actorq.learn(60, progress_bar=False)


def test_observations_that_calibrate_are_not_one_and_the_same(counter, mlp_policy):
    closed = []

    class Reusing(counter):
        seen = np.zeros(2, np.float32)

        def _obs(self):
            self.seen[:] = self.t, self.episode
            return self.seen

        def close(self):
            closed.append(self)

    seen = random_observations(Reusing, mlp_policy(2, (4,), 3).spec, 0, 20)
    assert seen[:, 0].tolist() == [t % 7 for t in range(20)]
    assert len(closed) == 1


def test_a_reset_without_info_is_told_where_observations_calibrate(counter, mlp_policy):
    spec = mlp_policy(2, (4,), 3).spec
    for name in ("bare", "bare later"):
        with pytest.raises(QuarlError, match=r"^environment's reset must return \(observation, "):
            random_observations(broken(counter, name), spec, 0, 30)


def test_what_cannot_be_built_anew_asks_for_a_function(small_dqn):
    class Unrecorded(gym.Wrapper): ...

    class Raises(gym.Wrapper):
        @property
        def spec(self):
            raise RuntimeError("no spec of mine")

    asked = r"give ActorQ\(env=...\) a function that makes one environment"
    model = small_dqn(Unrecorded(gym.make("CartPole-v1")))
    fails(f"Unrecorded wrapper does not inherit .*; {asked}", model)
    model = small_dqn()
    model.env.envs[0] = Raises(gym.make("CartPole-v1"))
    fails("environment's spec raised RuntimeError: no spec of mine", model)
    stacked = VecFrameStack(DummyVecEnv([lambda: gym.make("CartPole-v1")]), 2)
    fails(f"actors step without VecFrameStack; {asked}", small_dqn(stacked))


def never_done(**options):
    """Action 1 does not take the car to its goal: what ends an episode is a limit."""
    return gym.make("MountainCar-v0", **options)


def limited(env, steps):
    return gym.wrappers.TimeLimit(env, steps)


def steps_of_an_episode(env):
    env.reset(seed=0)
    steps = 1
    while not any(env.step(1)[2:4]):
        steps += 1
    return steps


@pytest.mark.parametrize("make, steps", [
    (lambda: never_done(max_episode_steps=50), 50),
    (lambda: never_done(disable_env_checker=True, render_mode="rgb_array"), 200),
    (lambda: limited(never_done(max_episode_steps=-1), 30), 30),
    (lambda: gym.wrappers.MaxAndSkipObservation(never_done(max_episode_steps=40), 4), 10),
])  # fmt: skip
def test_actors_episodes_end_where_the_algorithms_do(small_dqn, make, steps):
    env = ActorQ(small_dqn(make()), engine="serial").make_env()
    assert steps_of_an_episode(env) == steps_of_an_episode(make()) == steps


@pytest.mark.parametrize("make", [
    lambda: limited(never_done(), 1000),  # it ends at 200 all the same
    lambda: limited(gym.wrappers.MaxAndSkipObservation(never_done(), 4), 40),  # of four steps each
])  # fmt: skip
def test_a_time_limit_that_a_spec_would_move_asks_for_a_function(small_dqn, make):
    message = r"neither two time limits nor the place of one; give ActorQ\(env=...\)"
    fails(message, small_dqn(make()))


def test_clipped_rewards_of_atari_are_not_dropped_silently(small_dqn):
    model = small_dqn(make_atari_env("PongNoFrameskip-v4"), buffer_size=10)
    fails("wrapper does not inherit .*a function that makes one environment", model)


def test_an_environment_without_a_spec_asks_for_a_function(small_dqn, counter):
    fails("no gymnasium spec; give ActorQ", small_dqn(counter()))
    fails("env is a Counter, not a name or a function", small_dqn(counter()), counter())


def broken(counter, name):
    """A counter that does one thing wrong, in its fourth episode or when it is made."""

    class Broken(counter):
        def reset(self, seed=None, options=None):
            if name == "reset" and self.episode == 4 or name == "first reset":
                raise ZeroDivisionError("no such\nwind")
            obs, info = super().reset(seed)
            bare = name == "bare" or name == "bare later" and self.episode == 4
            return obs if bare else (obs, info)

        def step(self, action):
            obs, reward, *rest = super().step(action)
            rewards = {"shape": np.zeros(2), "none": None}
            return (obs, rewards.get(name, reward), *rest[: 2 if name == "short" else 3])

    def make():
        if name == "made":
            raise OSError("no such device")
        return None if name == "nothing" else Broken()

    return make


@pytest.mark.parametrize("name, message", [
    ("reset", "environment raised ZeroDivisionError: no such$"),
    ("first reset", "environment raised ZeroDivisionError: no such$"),
    ("made", "environment raised OSError: no such device"),
    ("nothing", "returned NoneType, not a gym.Env"),
    ("shape", "environment raised TypeError: only "),
    ("none", "environment raised TypeError: float"),
    ("short", "environment raised ValueError: not enough values"),
    # Of two numbers, as the pair it should be.
    ("bare", r"^environment's reset must return \(observation, info\)$"),
    ("bare later", r"^environment's reset must return \(observation, info\)$"),
])  # fmt: skip
def test_whatever_an_environment_does_wrong_is_one_line(small_dqn, counter, name, message):
    fails(message, small_dqn(counter()), broken(counter, name))


def test_a_reset_that_raises_in_another_process_is_named(small_dqn, counter):
    message = "actor 0: environment raised ZeroDivisionError: no such$"
    fails(message, small_dqn(counter()), broken(counter, "reset"), "process", 10_000)


def test_an_environment_of_other_spaces_than_the_policys_is_refused(small_dqn, counter):
    class Five(counter):
        observation_space = gym.spaces.Box(0, 1, (5,), np.float32)

    class Seven(counter):
        def __init__(self):
            super().__init__()
            self.action_space = gym.spaces.Discrete(7)

    model = small_dqn(counter())
    fails("policy has 3 discrete actions, the environment takes 7 discrete actions", model, Seven)
    fails(r"policy has 3 discrete actions, the environment takes actions of shape \[2\]", model,
          lambda: counter(discrete=False))
    fails(r"takes observations of shape \[2\], the environment gives \[5\]", model, Five)
    model = SAC("MlpPolicy", "Pendulum-v1", device="cpu")

    def stronger():
        box = gym.spaces.Box(-5.0, 5.0, (1,), np.float32)
        return gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), box.low, box.high)

    fails("actions go from -2 to 2, those of the environment from -5 to 5", model, stronger)


@pytest.mark.parametrize("own, actors, refused", [
    (np.uint8, np.float32, True),  # of 0 to 1 nothing but zeros would be stored
    (np.int64, np.float32, True),
    (np.float32, np.float64, False),
    (np.float32, np.uint8, False),
    (np.int64, np.int32, False),
])  # fmt: skip
def test_observations_that_the_replay_buffer_would_cut_to_integers_are_refused(
    small_dqn, counter, own, actors, refused
):
    closed = []

    class Typed(counter):
        def __init__(self, dtype=actors):
            super().__init__()
            self.observation_space = gym.spaces.Box(0, 200, (2,), dtype)

        def close(self):
            closed.append(self)

    model = small_dqn(Typed(own))
    if refused:
        types = f"{np.dtype(actors)}, the algorithm's {np.dtype(own)}"
        fails(f"^the environment's observations are {types}$", model, Typed)
    else:
        ActorQ(model, Typed, "serial", n_actors=1).learn(60, progress_bar=False)
    assert len(closed) == 1


@pytest.mark.parametrize(("n_actors", "envs_per_actor"), [(1, 2), (2, 1)])
def test_one_environment_is_not_stepped_in_two_places(small_dqn, counter, n_actors, envs_per_actor):
    shared = counter()
    with pytest.raises(QuarlError, match="returned the same one twice"):
        ActorQ(small_dqn(counter()), lambda: shared, "serial", n_actors=n_actors,
               envs_per_actor=envs_per_actor).learn(60, progress_bar=False)  # fmt: skip


def test_an_actor_by_itself_does_not_step_one_environment_as_two(counter, mlp_policy):
    shared, spec = counter(), mlp_policy(2, (8,), 3).spec
    with pytest.raises(QuarlError, match="returned the same one twice"):
        Actor(ActorTask(0, lambda: shared, spec, Settings(n_actors=1, envs_per_actor=2)))


@pytest.mark.parametrize("refused", ["spaces", "NormalizeReward"])
def test_an_environment_that_is_refused_is_closed(counter, mlp_policy, refused):
    closed = []

    class Closing(counter):
        def close(self):
            closed.append(self)
            raise RuntimeError("of its own")  # must not hide why it was refused

    make = Closing if refused == "spaces" else lambda: gym.wrappers.NormalizeReward(Closing())
    with pytest.raises(QuarlError, match="raw environments|takes observations of shape"):
        make_checked(make, mlp_policy(5 if refused == "spaces" else 2, (4,), 3).spec)
    assert len(closed) == 1


@pytest.mark.parametrize("reopen", [False, True])
def test_the_policy_that_acts_already_is_opened_again_only_if_asked(counter, mlp_policy, reopen):
    net = mlp_policy(2, (8,), 3)
    task = ActorTask(0, counter, net.spec, Settings(n_actors=1, reopen=reopen))
    actor = Actor(task)
    variables = make_variables(net, 1, task)
    actor.open(variables)
    first = actor._engine
    actor.open(variables)
    assert (actor._engine is not first) == reopen
    assert actor.pulls == 2 and actor.pulled_bytes == 2 * len(variables.payload)


def test_warming_up_counts_for_nothing(counter, mlp_policy):
    net = mlp_policy(2, (8,), 3)
    task = ActorTask(0, counter, net.spec, Settings(n_actors=1))
    actor = Actor(task)
    actor.warm_up(make_variables(net, 1, task))
    assert actor.pull_due and (actor.pulls, actor.pulled_bytes, actor.version) == (0, 0, 1)
    assert set(actor.seconds.values()) == {0.0}


def test_an_environments_seconds_are_told(counter, mlp_policy):
    class Slow(counter):
        def step(self, action):
            time.sleep(0.005)
            return super().step(action)

    net = mlp_policy(2, (8,), 3)
    actor = Actor(ActorTask(0, Slow, net.spec, Settings(n_actors=1)))
    sent = actor.report(actor.collect(10, Orders(True)), cpu_s=1.25)
    assert sent.seconds["environment"] >= 0.05 and sent.cpu_s == 1.25


@pytest.mark.parametrize("terminated, truncated, timeout", [
    (True, False, False), (False, True, True), (True, True, False),
])  # fmt: skip
def test_an_episode_that_is_over_as_its_time_is_up_is_no_timeout(
    counter, mlp_policy, terminated, truncated, timeout
):
    class Ending(counter):
        def step(self, action):
            obs, reward, *_ = super().step(action)
            return obs, reward, terminated and self.t == 7, truncated and self.t == 7, {}

    actor = Actor(ActorTask(0, Ending, mlp_policy(2, (8,), 3).spec, Settings(n_actors=1)))
    sent = actor.collect(8, Orders(True))
    assert sent.dones[:, 0].tolist() == [False] * 6 + [True, False]
    assert sent.timeouts[:, 0].tolist() == [False] * 6 + [timeout, False]


def test_environments_of_one_actor_have_seeds_of_their_own(counter, mlp_policy):
    task = ActorTask(0, counter, mlp_policy(2, (8,), 3).spec,
                     Settings(n_actors=1, envs_per_actor=3))  # fmt: skip
    actor = Actor(task)
    assert len({env.np_random_seed for env in actor.envs}) == 3
    actions = actor.collect(40, Orders(True)).actions
    assert len({tuple(stream) for stream in actions.T.tolist()}) == 3


def test_an_actor_that_is_started_again_does_not_repeat_itself(counter, mlp_policy):
    def actions(restarts):
        task = ActorTask(0, counter, mlp_policy(2, (8,), 3).spec, Settings(n_actors=1),
                         restarts=restarts)  # fmt: skip
        return Actor(task).collect(40, Orders(True)).actions.ravel().tolist()

    assert actions(0) == actions(0)
    assert len({tuple(actions(restarts)) for restarts in range(3)}) == 3


@pytest.mark.parametrize("obs, actions, message", [
    (2, 7, "of another network: it has 7 outputs, the policy 3"),
    (5, 3, r"observations of shape \[n, 5\]"),
])  # fmt: skip
def test_a_payload_of_another_network_does_not_act(counter, mlp_policy, obs, actions, message):
    net, other = mlp_policy(2, (8,), 3), mlp_policy(obs, (8,), actions)
    task = ActorTask(0, counter, net.spec, Settings(n_actors=1))
    actor = Actor(task)
    actor.open(make_variables(net, 1, task))
    assert actor.collect(3, Orders(False)).version == 1
    actor.open(make_variables(other, 2, task))
    with pytest.raises(QuarlError, match=message):
        actor.collect(3, Orders(False))


def test_what_actors_need_must_pickle_but_for_the_serial_engine(small_dqn, counter):
    lock = threading.Lock()

    def locked():
        with lock:
            return counter()

    for engine in ("process", "ray"):
        fails("cannot be sent to actors' processes: TypeError: cannot", small_dqn(counter()),
              locked, engine)  # fmt: skip
    model = small_dqn(counter())
    fails("the quantizer cannot be sent", model, counter, "process", quantizer=lock.acquire)
    assert ActorQ(model, locked, "serial").learn(30, progress_bar=False).steps >= 30


class Frames(gym.Env):
    """Frames ``[height, width, channels]`` whose channels hold 10, 20 and 30."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        return self._obs(), 1.0, self.t >= 7, False, {}

    def _obs(self):
        return np.broadcast_to(np.uint8([10, 20, 30]), (36, 36, 3)).copy()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("monitored", [False, True])
def test_frames_with_channels_last_are_turned_as_sb3_does(first, monitored):
    def channels_first():
        space = gym.spaces.Box(0, 255, (3, 36, 36), np.uint8)
        return gym.wrappers.TransformObservation(Frames(), lambda o: o.transpose(2, 0, 1), space)

    own = VecMonitor(VecTransposeImage(DummyVecEnv([Frames]))) if monitored else Frames()
    model = DQN("CnnPolicy", own, learning_starts=20, batch_size=8, buffer_size=100,
                device="cpu")  # fmt: skip
    env = channels_first if first else Frames
    result = ActorQ(model, env, "serial", n_actors=1, precision="int8", samples_per_insert=1,
                    transitions_per_message=10).learn(40, progress_bar=False)  # fmt: skip
    assert result.steps == 40 and result.updates > 0
    stored = model.replay_buffer.observations[:40, 0]
    assert stored.shape[1:] == (3, 36, 36)
    assert [set(stored[:, channel].ravel()) for channel in range(3)] == [{10}, {20}, {30}]
