"""How actors explore: Gaussian noise on continuous actions (as the paper), epsilon on discrete."""

from itertools import groupby
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from quarl_nb.actorq import ActorQ
from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.exploration import NOISE_STEPS, EpsilonGreedy, GaussianNoise
from quarl_nb.actorq.learner import Learner
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.settings import ActorTask, Orders, Settings
from quarl_nb.rl.d4pg import D4PG
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.spec import Head, PolicySpec


class Still(gym.Env):
    """Nothing ever changes; rewards 0, over after 100 steps."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, action_space):
        self.action_space, self.t = action_space, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 0.0, self.t >= 100, False, {}


def actor_of(outputs, space, index=0, **settings):
    """An actor whose network always answers `outputs`, in a still environment."""
    head = Head("argmax")
    if isinstance(space, gym.spaces.Box):
        bounds = (tuple(map(float, bound.ravel())) for bound in (space.low, space.high))
        head = Head("tanh_scale", *bounds, space.shape)
    layer = Layer("linear", {"in_features": 3, "out_features": len(outputs)})
    tensors = {
        "layers.0.weight": torch.zeros(len(outputs), 3),
        "layers.0.bias": torch.tensor(outputs, dtype=torch.float32),
    }
    net = PolicyNet(PolicySpec("test", None, (3,), (layer,), head), tensors)
    task = ActorTask(index, lambda: Still(space), net.spec, Settings(precision="fp32", **settings))
    actor = Actor(task)
    actor.open(make_variables(net, 0, task))
    return actor


def acted(actor, steps, **orders):
    """Actions of an actor, ``[steps, envs, ...]``."""
    return actor.collect(steps, Orders(False, **orders)).actions


def box(low, high):
    return gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))


@pytest.mark.parametrize("n_actors, noise_max, sigmas", [
    (5, 0.2, [0.0, 0.05, 0.1, 0.15, 0.2]),
    (2, 0.2, [0.0, 0.2]),
    (3, 1.0, [0.0, 0.5, 1.0]),
    (1, 0.2, [0.1]),
])  # fmt: skip
def test_sigma_is_spread_evenly_over_the_actors(n_actors, noise_max, sigmas):
    settings = Settings(n_actors=n_actors, noise_max=noise_max)
    assert [settings.noise(actor) for actor in range(n_actors)] == pytest.approx(sigmas)


# 0.2 and 0.05 of half the range, around its middle, which a network of zeros answers.
@pytest.mark.parametrize("low, high, index, means, sigmas", [
    ([-2.0], [2.0], 4, [0.0], [0.4]),
    ([-2.0], [4.0], 4, [1.0], [0.6]),
    ([-2.0], [4.0], 1, [1.0], [0.15]),
    ([-1.0, 0.0], [1.0, 100.0], 4, [0.0, 50.0], [0.2, 10.0]),
    ([[-1.0], [-2.0]], [[1.0], [6.0]], 4, [[0.0], [2.0]], [[0.2], [0.8]]),
])  # fmt: skip
def test_noise_is_gaussian_with_sigma_in_half_widths_of_the_actions_range(
    low, high, index, means, sigmas
):
    actor = actor_of([0.0] * np.size(low), box(low, high), index, n_actors=5)
    actions = acted(actor, 4000)[:, 0]
    assert actions.shape[1:] == np.shape(low) and actions.dtype == np.float32
    z = (actions - means) / sigmas
    # Of 4000 draws the mean is within 0.08 and the standard deviation within 0.05 (over 4 sigma).
    assert np.abs(z.mean(0)).max() < 0.08 and np.abs(z.std(0) - 1).max() < 0.05
    assert (np.abs(z) < 1).mean() == pytest.approx(0.683, abs=0.03)
    along = z.reshape(4000, -1)
    assert abs(np.corrcoef(along[1:, 0], along[:-1, 0])[0, 1]) < 0.08  # each step draws anew
    assert along.shape[1] == 1 or abs(np.corrcoef(along.T)[0, 1]) < 0.08  # and each dimension


def test_noise_is_that_of_a_generator_asked_at_each_step():
    head = Head("tanh_scale", (-2.0, 0.0), (2.0, 8.0), (2,))
    noise = GaussianNoise(3, head, 0.1, np.random.default_rng(3))
    rng, middle = np.random.default_rng(3), np.float32([[0, 4]] * 3)
    for _ in range(2 * NOISE_STEPS + 1):
        drawn = rng.standard_normal((3, 2), np.float32) * np.float32([0.2, 0.4])
        np.testing.assert_array_equal(noise(middle.copy(), epsilon=0.0), middle + drawn)


def test_the_first_of_several_actors_acts_without_noise():
    actor = actor_of([0.5], box([-2.0], [4.0]), index=0, n_actors=5)
    assert acted(actor, 50).ravel().tolist() == pytest.approx([1 + 3 * np.tanh(0.5)] * 50)


def test_no_noise_asked_for_is_none_in_any_actor():
    actor = actor_of([0.0], box([-2.0], [4.0]), index=4, n_actors=5, noise_max=0.0)
    assert (acted(actor, 50) == 1).all()


def test_noisy_actions_are_clipped_to_the_bounds_of_each_dimension():
    low, high = np.array([-2.0, 0.0]), np.array([4.0, 1.0])
    actions = acted(actor_of([20.0, -20.0], box(low, high), 4, n_actors=5), 2000)[:, 0]
    assert (low <= actions).all() and (actions <= high).all()
    # At the bound itself half of the noise is cut, half of it stays.
    assert (actions[:, 0] == 4).mean() == pytest.approx(0.5, abs=0.05)
    assert (actions[:, 1] == 0).mean() == pytest.approx(0.5, abs=0.05)
    assert (4 - actions[:, 0]).mean() == pytest.approx(0.6 * 0.3989, abs=0.05)  # E max(0, noise)


def test_actors_and_their_environments_draw_noise_of_their_own():
    space, options = box([-2.0], [2.0]), dict(n_actors=1, envs_per_actor=2, seed=3)
    first = acted(actor_of([0.0], space, 0, **options), 1000)[..., 0]
    other = acted(actor_of([0.0], space, 1, **options), 1000)[..., 0]
    streams = np.concatenate([first, other], axis=1).T
    assert np.abs(np.corrcoef(streams) - np.eye(4)).max() < 0.15
    assert np.array_equal(first, acted(actor_of([0.0], space, 0, **options), 1000)[..., 0])


def test_in_the_loop_each_actors_actions_spread_as_its_sigma():
    env = Still(box([-2.0], [4.0]))
    # A learning rate of 0: the policy stays in the middle of the range.
    model = D4PG("MlpPolicy", env, learning_rate=0.0, learning_starts=0, batch_size=4, seed=0,
                 device="cpu", policy_kwargs=dict(net_arch=[4]))  # fmt: skip
    for parameter in model.actor.parameters():
        torch.nn.init.zeros_(parameter)
    ActorQ(model, lambda: Still(env.action_space), "serial", n_actors=3, precision="int8",
           samples_per_insert=0.01).learn(1500, progress_bar=False)  # fmt: skip
    # Messages of 50 by turns; the buffer holds actions in half widths around the middle.
    by_actor = model.replay_buffer.actions[:1500].reshape(10, 3, 50).swapaxes(0, 1).reshape(3, 500)
    assert by_actor.std(1) == pytest.approx([0.0, 0.1, 0.2], abs=0.02)
    assert np.abs(by_actor.mean(1)).max() < 0.04


def test_epsilon_is_the_share_of_actions_drawn_uniformly():
    actor = actor_of([0.0, 1.0, 0.5, -1.0], gym.spaces.Discrete(4), n_actors=1, envs_per_actor=2)
    actions = acted(actor, 4000, epsilon=0.4)
    # A random action is the greedy one, too, in one of four.
    shares = np.bincount(actions.ravel(), minlength=4) / actions.size
    assert shares == pytest.approx([0.1, 0.7, 0.1, 0.1], abs=0.02)
    explored = actions != 1
    assert (explored[:, 0] & explored[:, 1]).mean() == pytest.approx(0.3**2, abs=0.02)


@pytest.mark.parametrize("epsilon, shares", [(0.0, [0, 1, 0]), (1.0, [1 / 3, 1 / 3, 1 / 3])])
def test_epsilon_from_always_greedy_to_always_random(epsilon, shares):
    actor = actor_of([0.0, 1.0, 0.5], gym.spaces.Discrete(3), index=3, n_actors=4)
    actions = acted(actor, 3000, epsilon=epsilon)
    assert np.bincount(actions.ravel(), minlength=3) / 3000 == pytest.approx(shares, abs=0.04)
    assert actions.dtype.kind == "i"


def test_ez_greedy_keeps_a_random_action_for_a_zeta_distributed_duration():
    actor = actor_of([1.0, *[0.0] * 99], gym.spaces.Discrete(100), n_actors=1, ez_greedy=True)
    episodes = acted(actor, 60_000, epsilon=0.02).reshape(-1, 100)
    # Two that follow each other are rarely the same action of 99, and never over two episodes.
    lengths = [len(list(run)) for row in episodes for action, run in groupby(row) if action]
    assert len(lengths) > 800
    assert np.mean(np.equal(lengths, 1)) == pytest.approx(6 / np.pi**2, abs=0.05)
    assert np.mean(np.equal(lengths, 2)) == pytest.approx(6 / np.pi**2 / 4, abs=0.04)
    assert max(lengths) > 20


def test_a_random_action_that_goes_on_ends_with_its_episode():
    dice = SimpleNamespace(random=np.zeros, zipf=lambda a, size: np.full(size, 3),
                           integers=lambda n, size: np.full(size, next(actions)))  # fmt: skip
    actions, explore = iter([7, 8, 9]), EpsilonGreedy(2, 10, True, dice)
    assert explore(np.array([0, 1]), 0.1).tolist() == [7, 7]
    explore.end_episode(1)
    assert explore(np.array([0, 1]), 0.1).tolist() == [7, 8]
    assert explore(np.array([0, 1]), 0.0).tolist() == [7, 8]
    assert explore(np.array([0, 1]), 0.0).tolist() == [0, 8]
    assert explore(np.array([0, 1]), 0.1).tolist() == [9, 9]


def test_the_first_orders_hold_the_schedules_epsilon(small_dqn):
    model = small_dqn(learning_starts=0, exploration_initial_eps=0.7, exploration_final_eps=0.2,
                      exploration_fraction=0.5)  # fmt: skip
    assert Learner(model, Settings(), 100).orders == Orders(random=False, epsilon=0.7)
    model.num_timesteps = 25  # a quarter of the run: half way to the final epsilon
    orders = Learner(model, Settings(), 100, resumed=True).orders
    assert not orders.random and orders.epsilon == pytest.approx(0.45)


def test_a_replay_buffer_is_filled_at_random_the_first_time_alone(small_dqn):
    model = small_dqn()  # which begins to learn after 20 steps
    assert Learner(model, Settings(), 4000).orders.random
    model.num_timesteps, model.learning_starts = 2000, 2000 + 20  # resumed without its buffer
    again = Learner(model, Settings(), 4000, resumed=True, put_off=2000)
    assert not again.orders.random and not again.can_update()
    again.close()
    assert model.learning_starts == 20


def test_all_dqn_actors_follow_the_learners_epsilon_as_it_falls():
    env = Still(gym.spaces.Discrete(4))
    model = DQN("MlpPolicy", env, learning_rate=0.0, learning_starts=0, batch_size=4, seed=0,
                exploration_initial_eps=0.8, exploration_final_eps=0.0, exploration_fraction=0.5,
                buffer_size=4000, device="cpu", policy_kwargs=dict(net_arch=[4]))  # fmt: skip
    with torch.no_grad():
        model.q_net.q_net[-1].bias += torch.tensor([0.0, 0.0, 9.0, 0.0])
    ActorQ(model, lambda: Still(env.action_space), "serial", n_actors=2,
           samples_per_insert=0.01).learn(4000, progress_bar=False)  # fmt: skip
    # Messages of 50 by turns, ten of each actor in a quarter of the run.
    greedy = (model.replay_buffer.actions.ravel() == 2).reshape(4, 10, 2, 50)
    # By quarters of the run, epsilon falls from 0.8 to 0.4, to 0, and stays there.
    for actor in range(2):
        explored = 1 - greedy[:, :, actor].mean((1, 2))
        assert explored == pytest.approx([0.75 * 0.6, 0.75 * 0.2, 0, 0], abs=0.05)
        assert explored[3] == 0
