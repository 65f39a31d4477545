"""The learner feeds an algorithm as stable-baselines3's own loop does."""

import csv
from itertools import count

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TransformAction
from sb3_contrib import CrossQ
from stable_baselines3 import DDPG, DQN, PPO, TD3
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.vec_env import VecNormalize

from quarl_nb.actorq.algorithms import ALGORITHMS, make_algorithm
from quarl_nb.actorq.learner import Learner
from quarl_nb.actorq.settings import Settings, Transitions
from quarl_nb.errors import QuarlError, UnavailableError
from quarl_nb.rl.prioritized import PrioritizedDQN, PrioritizedReplayBuffer
from quarl_nb.rl.replay_state import restore_replay
from quarl_nb.rl.sb3.convert import policy_from_model


def transitions(obs, next_obs, actions, rewards, dones, timeouts, actor=0):
    """Of one environment: arrays ``[steps, ...]`` with the axis of environments put in."""
    arrays = (np.asarray(a)[:, None] for a in (obs, next_obs, actions, rewards, dones, timeouts))
    return Transitions(actor, 0, *arrays)


def test_continuous_actions_are_stored_scaled_and_timeouts_marked(counter):
    env = counter(discrete=False)  # actions from -2 to 4
    model = DDPG("MlpPolicy", env, buffer_size=10, device="cpu")
    learner = Learner(model, Settings(), 10)
    learner.insert(
        transitions(np.zeros((2, 2)), np.ones((2, 2)), np.array([[1.0, 4.0], [-2.0, 2.5]]),
                    np.array([1.0, 2.0]), np.array([False, True]), np.array([False, True]))
    )  # fmt: skip
    buffer = model.replay_buffer
    assert np.allclose(buffer.actions[:2, 0], [[0, 1], [-1, 0.5]])
    assert buffer.dones[:2, 0].tolist() == [0, 1] and buffer.timeouts[:2, 0].tolist() == [0, 1]
    assert learner.steps == 2 and learner.limiter.inserts == 2


def steps(actor, rewards):
    """Of an episode that goes on; observations are the actor's index."""
    n = len(rewards)
    none = np.zeros(n, bool)
    obs = np.full((n, 2), actor, np.float32)
    return transitions(obs, obs, np.zeros(n, np.int64), rewards, none, none, actor)


def test_steps_of_every_environment_are_inserted(counter):
    learner = Learner(DQN("MlpPolicy", counter(), buffer_size=10, device="cpu"), Settings(), 10)
    obs, none = np.zeros((3, 2, 2), np.float32), np.zeros((3, 2), bool)  # 3 steps of 2
    learner.insert(Transitions(0, 0, obs, obs, none.astype(int), np.ones((3, 2)), none, none))
    assert learner.steps == learner.limiter.inserts == 6


def test_actors_compute_in_eight_bits_unless_told_otherwise():
    assert Settings().precision == "int8" and Settings().communication is None
    assert Settings().runtime == "onnxruntime"


def test_every_run_of_every_seed_has_a_seed_of_its_own():
    seeds = {Settings(seed=seed).of_run(run).seed for seed in (0, 1) for run in range(3)}
    assert len(seeds) == 6


def test_messages_batches_and_the_warm_up_have_room_in_the_tolerance(counter):
    def tolerance(learning_starts, batch_size, ratio, **others):
        model = DQN("MlpPolicy", counter(), learning_starts=learning_starts, device="cpu",
                    batch_size=batch_size, buffer_size=10)  # fmt: skip
        options = dict(n_actors=2, transitions_per_message=20, samples_per_insert=ratio) | others
        return Learner(model, Settings(**options), 10).limiter.tolerance

    assert tolerance(10, 8, 4) == 2 * (2 * 20) * 4  # two messages of every actor
    assert tolerance(10, 500, 4) == 2 * 500  # two batches
    assert tolerance(10_000, 8, 4) == 1000 * 4  # a tenth of what the buffer starts with
    # A pull ends a message, however long it might be.
    assert tolerance(10, 8, 4, transitions_per_message=10**6, pull_period=70) == 2 * (2 * 70) * 4
    assert tolerance(10, 8, 4, transitions_per_message=50, pull_period=30) == 2 * (2 * 50) * 4


def test_a_buffer_that_is_filled_again_leaves_the_tolerance_as_it_was(counter):
    model = DQN("MlpPolicy", counter(), learning_starts=15_000, buffer_size=10, device="cpu")
    learner = Learner(model, Settings(), 20_000, resumed=True, put_off=5000)
    assert learner.limiter.tolerance == 1000 * 16  # a tenth of 10,000


@pytest.fixture
def three_step_dqn(counter):
    return DQN("MlpPolicy", counter(), n_steps=3, gamma=0.5, buffer_size=50, device="cpu")


def test_n_step_returns_do_not_run_from_one_actors_steps_into_anothers(three_step_dqn):
    model = three_step_dqn
    learner = Learner(model, Settings(), 10)
    learner.insert(steps(0, [1.0, 2.0]))
    learner.insert(steps(0, [4.0]))  # goes on where the last message ended
    learner.insert(steps(1, [100.0, 100.0]))
    sample = model.replay_buffer._get_samples(np.array([0, 1, 2]))
    assert sample.rewards[:, 0].tolist() == [1 + 2 / 2 + 4 / 4, 2 + 4 / 2, 4]
    assert sample.discounts[:, 0].tolist() == [0.125, 0.25, 0.5]
    assert sample.dones[:, 0].tolist() == [0, 0, 0]
    assert (sample.next_observations == 0).all()


def test_n_step_returns_do_not_run_from_one_environments_steps_into_anothers(three_step_dqn):
    learner = Learner(three_step_dqn, Settings(envs_per_actor=2), 10)
    obs, none = np.zeros((2, 2, 2), np.float32), np.zeros((2, 2), bool)
    rewards = np.array([[1.0, 100.0], [2.0, 200.0]])
    learner.insert(Transitions(0, 0, obs, obs, none.astype(int), rewards, none, none))
    sample = three_step_dqn.replay_buffer._get_samples(np.arange(4))
    assert sample.rewards[:, 0].tolist() == [1 + 2 / 2, 2, 100 + 200 / 2, 200]


def test_an_episode_that_ended_before_another_actors_steps_is_over(three_step_dqn):
    learner = Learner(three_step_dqn, Settings(), 10)
    last = steps(0, [1.0, 2.0])
    last.dones = np.array([[False], [True]])
    learner.insert(last)
    learner.insert(steps(1, [100.0]))
    sample = three_step_dqn.replay_buffer._get_samples(np.array([0, 1]))
    assert sample.rewards[:, 0].tolist() == [1 + 2 / 2, 2]
    assert sample.dones[:, 0].tolist() == [1, 1]


def test_a_cut_ends_with_its_step_in_a_buffer_that_keeps_no_timeouts(counter):
    model = DQN("MlpPolicy", counter(), n_steps=3, buffer_size=4, device="cpu",
                replay_buffer_kwargs={"handle_timeout_termination": False})  # fmt: skip
    learner = Learner(model, Settings(), 10)
    learner.insert(steps(0, [1.0, 1.0]))
    learner.insert(steps(1, [1.0, 1.0]))  # cuts at 1, where the buffer comes again
    assert model.replay_buffer.timeouts[:, 0].tolist() == [0, 1, 0, 0]
    last = steps(1, [1.0, 1.0])
    last.dones[-1] = True
    learner.insert(last)
    assert model.replay_buffer._get_samples(np.array([1])).dones.item() == 1


@pytest.mark.parametrize("actor", [0, 1])
def test_n_step_returns_end_where_an_actor_was_started_again(three_step_dqn, actor):
    learner = Learner(three_step_dqn, Settings(), 10)
    learner.insert(steps(actor, [1.0, 1.0]))
    learner.cut(1 - actor)  # another's death cuts nothing
    learner.insert(steps(actor, [4.0]))
    learner.cut(actor)
    learner.insert(steps(actor, [100.0, 100.0]))
    sample = three_step_dqn.replay_buffer._get_samples(np.array([0, 1, 2]))
    assert sample.rewards[:, 0].tolist() == [1 + 1 / 2 + 4 / 4, 1 + 4 / 2, 4]
    assert sample.dones[:, 0].tolist() == [0, 0, 0]


def test_n_step_returns_end_where_a_run_was_resumed(three_step_dqn):
    Learner(three_step_dqn, Settings(), 10).insert(steps(0, [1.0, 1.0]))
    resumed = Learner(three_step_dqn, Settings(), 10, resumed=True)
    resumed.insert(steps(0, [100.0]))
    resumed.insert(steps(0, [8.0]))
    sample = three_step_dqn.replay_buffer._get_samples(np.array([0, 1, 2]))
    assert sample.rewards[:, 0].tolist() == [1 + 1 / 2, 1, 100 + 8 / 2]


def test_n_step_returns_end_where_sb3_goes_on_by_itself(three_step_dqn):
    learner = Learner(three_step_dqn, Settings(), 10)
    learner.insert(steps(0, [1.0, 2.0]))
    learner.close()
    one, info = np.zeros((1, 2), np.float32), [{}]
    three_step_dqn.replay_buffer.add(one, one, np.zeros(1), np.full(1, 100.0), np.zeros(1), info)
    sample = three_step_dqn.replay_buffer._get_samples(np.array([0, 1]))
    assert sample.rewards[:, 0].tolist() == [1 + 2 / 2, 2]
    assert sample.dones[:, 0].tolist() == [0, 0]


def test_actors_act_at_random_until_the_warm_up_is_complete(counter):
    model = DQN("MlpPolicy", counter(), learning_starts=3, buffer_size=10, device="cpu")
    learner = Learner(model, Settings(), 10)
    learner.insert(steps(0, [1.0, 1.0]))
    assert learner.orders.random
    learner.insert(steps(0, [1.0]))  # as in SB3: random while there are fewer steps
    assert not learner.orders.random


def test_schedules_stay_at_their_end_where_a_message_reaches_beyond_the_run(counter):
    model = DQN("MlpPolicy", counter(), buffer_size=10, device="cpu")
    Learner(model, Settings(), 4).insert(steps(0, [1.0] * 6))
    assert model.num_timesteps == 6 and model._current_progress_remaining == 0


def test_schedules_and_exploration_follow_the_whole_runs_steps(small_dqn):
    model = small_dqn(exploration_fraction=0.5, exploration_final_eps=0.2)
    learner = Learner(model, Settings(), 100)
    assert learner.orders.random
    obs = np.zeros((50, 4), np.float32)
    none = np.zeros(50, bool)
    learner.insert(transitions(obs, obs, np.zeros(50, int), np.ones(50), none, none))
    assert not learner.orders.random
    assert learner.orders.epsilon == pytest.approx(0.2)


def test_nothing_is_sampled_from_an_empty_buffer_where_learning_starts_at_once(counter):
    model = DQN("MlpPolicy", counter(), learning_starts=0, buffer_size=50, device="cpu")
    model.num_timesteps = 100
    restore_replay(model, {})  # a checkpoint without its buffer
    learner = Learner(
        model, Settings(), 200, resumed=True, ahead=-1000, put_off=model.learning_starts
    )
    assert not learner.can_update() and not learner.is_behind() and not learner.orders.random
    learner.insert(steps(0, [1.0]))
    assert learner.can_update() and learner.is_behind()
    learner.close()
    assert model.learning_starts == 0


def test_the_algorithm_is_whole_again_afterwards(small_dqn, tmp_path):
    model = small_dqn()
    learner = Learner(model, Settings(), 100)
    learner.close()
    model.save(tmp_path / "model.zip")
    model.learn(30)


def test_a_users_own_sampler_is_trained_from_and_stays(small_dqn):
    model = small_dqn()
    buffer, asked = model.replay_buffer, []

    def sample(batch_size, env=None):
        asked.append(batch_size)
        return type(buffer).sample(buffer, batch_size, env)

    buffer.sample = sample
    learner = Learner(model, Settings(), 100)
    obs, none = np.zeros((50, 4), np.float32), np.zeros(50, bool)
    learner.insert(transitions(obs, obs, np.zeros(50, int), np.ones(50), none, none))
    learner.update()
    assert asked == [model.batch_size] and learner.seconds["sample"] > 0
    learner.close()
    assert buffer.sample is sample


def test_a_log_for_tensorboard_needs_it(small_dqn, tmp_path, monkeypatch):
    monkeypatch.setattr("stable_baselines3.common.logger.SummaryWriter", None)
    with pytest.raises(UnavailableError, match="^tensorboard_log needs tensorboard: pip install"):
        Learner(small_dqn(tensorboard_log=str(tmp_path)), Settings(), 10)
    model = small_dqn(tensorboard_log=str(tmp_path))
    model.set_logger(Logger(None, []))  # the user's own, which SB3 keeps
    Learner(model, Settings(), 10).close()


def test_what_cannot_be_fed_is_refused(small_dqn):
    with pytest.raises(QuarlError, match="off-policy algorithm, not PPO"):
        Learner(PPO("MlpPolicy", "CartPole-v1", device="cpu"), Settings(), 10)
    with pytest.raises(QuarlError, match="2 environments"):
        Learner(small_dqn(make_vec_env("CartPole-v1", 2)), Settings(), 10)
    with pytest.raises(QuarlError, match="VecNormalize"):
        Learner(small_dqn(VecNormalize(make_vec_env("CartPole-v1", 1))), Settings(), 10)
    with pytest.raises(QuarlError, match="do not follow each other: optimize_memory_usage"):
        model = small_dqn(optimize_memory_usage=True,
                          replay_buffer_kwargs={"handle_timeout_termination": False})  # fmt: skip
        Learner(model, Settings(), 10)
    model = small_dqn()
    model.replay_buffer = None
    with pytest.raises(QuarlError, match="DQN has no replay buffer that could be fed"):
        Learner(model, Settings(), 10)
    whole = TransformAction(gym.make("Pendulum-v1"), lambda action: action,
                            gym.spaces.Box(-2, 2, (1,), np.int64))  # fmt: skip
    with pytest.raises(QuarlError, match="no whole numbers, as Box.*int64.* has"):
        Learner(TD3("MlpPolicy", whole, device="cpu"), Settings(), 10)
    held = TransformAction(gym.make("Pendulum-v1"), lambda action: action,
                           gym.spaces.Box(np.float32([0, 1]), np.float32([1, 1])))  # fmt: skip
    with pytest.raises(QuarlError, match="no room between the bounds of Box"):
        Learner(TD3("MlpPolicy", held, device="cpu"), Settings(), 10)


def test_an_algorithm_loaded_without_its_environment_is_refused(small_dqn, tmp_path):
    small_dqn().save(tmp_path / "model.zip")
    model = DQN.load(tmp_path / "model.zip")
    with pytest.raises(QuarlError, match=r"the DQN has no environment: DQN.load\(path, env=...\)"):
        Learner(model, Settings(), 10)


@pytest.mark.parametrize("prioritized", [False, True])
def test_sampling_is_accounted_for_apart_from_training(counter, prioritized):
    algorithm, buffer = (PrioritizedDQN, PrioritizedReplayBuffer) if prioritized else (DQN, None)
    model = algorithm("MlpPolicy", counter(), replay_buffer_class=buffer, learning_starts=5,
                      batch_size=4, buffer_size=50, device="cpu")  # fmt: skip
    learner = Learner(model, Settings(), 100)
    learner.insert(steps(0, [1.0] * 10))
    learner.update()
    sampled = learner.seconds["sample"]
    assert sampled > 0 and learner.seconds["train"] > 0
    learner.close()
    model.train(gradient_steps=1, batch_size=4)
    assert learner.seconds["sample"] == sampled


def test_seconds_add_up_and_none_counts_twice(counter, monkeypatch):
    model = DQN("MlpPolicy", counter(), learning_starts=5, batch_size=4, buffer_size=50,
                device="cpu")  # fmt: skip
    learner = Learner(model, Settings(), 100)
    learner.insert(steps(0, [1.0] * 10))
    # Ticks where training begins, sampling begins and ends in it, and training ends.
    monkeypatch.setattr("quarl_nb.actorq.timed.perf_counter", map(float, count()).__next__)
    for updates in (1, 2):
        learner.update()
        assert (learner.seconds["sample"], learner.seconds["train"]) == (updates, 2 * updates)


def test_what_an_algorithm_raises_is_one_line(small_dqn, monkeypatch):
    learner = Learner(small_dqn(), Settings(), 10)

    def out_of_memory(**_):
        raise RuntimeError("CUDA out of memory\nTried to allocate 2 GiB")

    monkeypatch.setattr(learner.algorithm, "train", out_of_memory)
    with pytest.raises(QuarlError, match="^the learner raised RuntimeError: CUDA out of memory$"):
        learner.update()
    assert learner.updates == 0


def test_what_a_users_replay_buffer_raises_is_one_line(counter):
    class Full(ReplayBuffer):
        def add(self, *_):
            raise MemoryError("no room\nfor more")

    model = DQN("MlpPolicy", counter(), replay_buffer_class=Full, buffer_size=10, device="cpu")
    learner = Learner(model, Settings(), 10)
    with pytest.raises(QuarlError, match="^the learner raised MemoryError: no room$"):
        learner.insert(steps(0, [1.0]))


def test_sb3s_own_log_is_written(small_dqn, tmp_path):
    model = small_dqn()
    model.set_logger(configure(str(tmp_path), ["csv"]))
    learner, none = Learner(model, Settings(), 100), np.zeros(10, bool)
    obs = np.zeros((10, 4), np.float32)
    for _ in range(3):
        message = transitions(obs, obs, np.zeros(10, int), np.ones(10), none, none)
        message.episodes = [(7.0, 3), (9.0, 5)]
        learner.insert(message)
    [row] = csv.DictReader((tmp_path / "progress.csv").open())  # after the fourth episode
    assert float(row["rollout/ep_rew_mean"]) == 8 and float(row["rollout/ep_len_mean"]) == 4
    assert int(row["time/total_timesteps"]) == 20


@pytest.mark.parametrize("options, warned", [
    (dict(n_actors=1, transitions_per_message=2), False),  # one stream is never cut
    (dict(n_actors=2, transitions_per_message=12), False),
    (dict(n_actors=2, transitions_per_message=12, pull_period=11), True),
    (dict(n_actors=1, envs_per_actor=8), True),
])  # fmt: skip
def test_messages_too_short_for_n_step_returns_are_warned_of(
    three_step_dqn, caplog, options, warned
):
    Learner(three_step_dqn, Settings(**options), 10)
    assert ("returns of 3 steps end with every message" in caplog.text) == warned


def test_messages_as_long_as_a_warning_of_short_n_step_returns_asks_for_are_not_warned_of(
    three_step_dqn, caplog
):
    Learner(three_step_dqn, Settings(n_actors=1, envs_per_actor=8), 10)
    [told] = caplog.messages  # of each environment 50 // 8 steps
    assert "has 6 of each environment" in told and "(and pull_period) of 96 leave" in told
    caplog.clear()
    Learner(three_step_dqn, Settings(envs_per_actor=8, transitions_per_message=96), 10)
    assert not caplog.messages


def test_nan_never_reaches_the_buffer(small_dqn):
    learner = Learner(small_dqn(), Settings(), 10)
    obs, none = np.zeros((1, 4), np.float32), np.zeros(1, bool)
    sent = dict(obs=obs, next_obs=obs, rewards=np.zeros(1), actions=np.zeros((1, 1)))
    for name in sent:
        broken = sent | {name: np.full_like(sent[name], np.nan)}
        message = "actor 2 sent an? (observation|reward|action) that is NaN"
        with pytest.raises(QuarlError, match=message):
            learner.insert(transitions(**broken, dones=none, timeouts=none, actor=2))
    assert learner.steps == 0 and not learner.algorithm.replay_buffer.size()


def test_the_published_policy_is_the_algorithms_after_every_update(small_dqn):
    model = small_dqn()
    learner = Learner(model, Settings(), 100)
    obs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    none = np.zeros(40, bool)
    learner.insert(transitions(obs, obs, np.zeros(40, int), np.ones(40), none, none))
    outputs = []
    for _ in range(3):
        learner.update()
        policy = learner.policy()(torch.from_numpy(obs))
        assert torch.equal(policy, model.q_net(torch.from_numpy(obs)))
        outputs.append(policy)
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("algo, env_id", [("dqn", "CartPole-v1"), ("d4pg", "Pendulum-v1")])
def test_a_gpus_policy_is_a_copy_that_is_brought_up_to_date(algo, env_id):
    model = make_algorithm(algo, env_id, width=8, critic_width=8)
    learner = Learner(model, Settings(), 100)
    # Told to be a GPU's: what is published must not follow the weights by itself.
    model.device = torch.device("cuda")
    obs = np.random.default_rng(0).normal(size=(5, *model.observation_space.shape))
    first = learner.policy()
    before = first(torch.from_numpy(obs).float()).clone()
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(0.1)
    assert torch.equal(first(torch.from_numpy(obs).float()), before)
    now = learner.policy()(torch.from_numpy(obs).float())
    assert torch.equal(now, policy_from_model(model)(torch.from_numpy(obs).float()))
    assert not torch.equal(now, before)


def test_ctrl_c_amid_a_class_that_torch_makes_is_no_bad_option(monkeypatch):
    """Before 3.12 Python raises a RuntimeError from what interrupts a class's `__set_name__`."""

    def interrupted(*_, **__):
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setitem(ALGORITHMS, "dqn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_algorithm("dqn", "CartPole-v1", width=8)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batch_normalization_is_folded_anew_at_every_publication(device):
    model = CrossQ("MlpPolicy", "Pendulum-v1", policy_delay=1, learning_rate=0.1, batch_size=8,
                   buffer_size=100, device="cpu", policy_kwargs=dict(net_arch=[8, 8]))  # fmt: skip
    learner = Learner(model, Settings(), 100)
    obs = np.random.default_rng(0).normal(3, 2, (40, 3)).astype(np.float32)
    none = np.zeros(40, bool)
    learner.insert(transitions(obs, obs, np.ones((40, 1)), np.ones(40), none, none))
    published = []
    for _ in range(3):
        learner.update()
        # Told to be a GPU's, while it is asked.
        model.device = torch.device(device)
        outputs = learner.policy()(torch.from_numpy(obs))
        model.device = torch.device("cpu")
        model.policy.set_training_mode(False)
        with torch.no_grad():
            expected = model.actor.mu(model.actor.latent_pi(torch.from_numpy(obs)))
        torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
        published.append(outputs)
    assert not torch.allclose(published[0], published[1], atol=1e-2)
    assert not torch.allclose(published[1], published[2], atol=1e-2)


class OneByOne(ReplayBuffer):
    """SB3's, but for its type: nothing is written past its `add`."""


class OneByOneNStep(NStepReplayBuffer):
    """The same of n-step returns."""


class Witness(ReplayBuffer):
    """One that remembers the shapes it was given, and what it is told of an episode's end."""

    def add(self, obs, next_obs, action, reward, done, infos):
        shapes = [np.shape(each) for each in (obs, next_obs, action, reward, done, infos)]
        vars(self).setdefault("seen", []).append(shapes)
        self.last = obs, next_obs, infos[0].get("terminal_observation"), done
        super().add(obs, next_obs, action, reward, done, infos)


@pytest.mark.parametrize("discrete", [True, False])
def test_a_users_replay_buffer_is_given_steps_as_sb3_gives_them(counter, discrete):
    def made():
        kind = DQN if discrete else DDPG
        return kind("MlpPolicy", counter(discrete=discrete), buffer_size=100, device="cpu",
                    replay_buffer_class=Witness, learning_starts=50)  # fmt: skip

    own, fed = made(), made()
    own.learn(5)
    actions = np.zeros(5, np.int64) if discrete else np.zeros((5, 2), np.float32)
    obs, done = np.random.default_rng(0).normal(size=(6, 2)), np.arange(5) == 4
    Learner(fed, Settings(), 10).insert(
        transitions(obs[:-1], obs[1:], actions, np.ones(5), done, done)
    )
    assert fed.replay_buffer.seen == own.replay_buffer.seen[:5]
    before, after, terminal, ended = fed.replay_buffer.last
    assert np.array_equal(before, obs[4:5]) and np.array_equal(after[0], terminal) and ended == [1]


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("buffer", [OneByOne, OneByOneNStep])
def test_messages_written_at_once_are_what_add_makes_of_them(counter, discrete, buffer):
    def filled(buffer):
        kind = DQN if discrete else DDPG
        model = kind("MlpPolicy", counter(discrete=discrete), buffer_size=100, device="cpu",
                     replay_buffer_class=buffer)  # fmt: skip
        learner, rng = Learner(model, Settings(envs_per_actor=2), 1000), np.random.default_rng(0)
        for k in range(25):  # the eighth ends where the buffer does, later ones reach over it
            shape = (n := [7, 20, 1, 22][k % 4], 2)
            actions = rng.integers(3, size=shape) if discrete else rng.uniform(-2, 4, (*shape, 2))
            obs, done = rng.normal(size=(n + 1, 2, 2)), rng.random(shape) < 0.2
            learner.insert(Transitions(k % 3, 0, obs[:-1], obs[1:], actions, rng.normal(size=shape),
                                       done, done & (rng.random(shape) < 0.5)))  # fmt: skip
        return model

    at_once, one_by_one = filled(buffer.__base__), filled(buffer)
    left, right = (vars(model.replay_buffer) for model in (at_once, one_by_one))
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        assert np.array_equal(left[name], right[name]) and left[name].dtype == right[name].dtype
    assert (left["pos"], left["full"]) == (right["pos"], right["full"]) and left["full"]
    assert at_once.num_timesteps == one_by_one.num_timesteps == 2 * 307


@pytest.mark.parametrize("more", [1, 2, 3, 4])
def test_a_message_that_reaches_over_the_buffers_end_goes_on_at_its_beginning(counter, more):
    model = DQN("MlpPolicy", counter(), buffer_size=10, device="cpu")
    learner = Learner(model, Settings(), 100)
    learner.insert(steps(0, [1.0] * 8))
    learner.insert(steps(0, [2.0] * more))
    buffer = model.replay_buffer
    over = max(0, more - 2)
    expected = [2.0] * over + [1.0] * (8 - over) + [2.0] * min(more, 2) + [0.0] * (2 - min(more, 2))
    assert buffer.rewards[:, 0].tolist() == expected
    assert (buffer.pos, buffer.full) == ((8 + more) % 10, more >= 2)
