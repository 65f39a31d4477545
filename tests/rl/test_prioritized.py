"""Prioritized replay against hand-computed probabilities and weights, and DQN that learns by it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecNormalize

from quarl_nb.errors import QuarlError
from quarl_nb.rl.prioritized import PrioritizedDQN, PrioritizedReplayBuffer
from quarl_nb.rl.qat import export_qat, prepare_qat

OBS, ACTION = Box(-np.inf, np.inf, (1,), np.float32), Discrete(3)


def filled(n: int, size: int = 8, n_envs: int = 1, **options: Any) -> PrioritizedReplayBuffer:
    """Transitions whose observation says which they are: step * n_envs + environment."""
    buffer = PrioritizedReplayBuffer(size, OBS, ACTION, n_envs=n_envs, **options)
    fill(buffer, n)
    return buffer


def fill(buffer: ReplayBuffer, n: int) -> None:
    for step in range(n):
        obs = np.arange(buffer.n_envs, dtype=np.float32)[:, None] + step * buffer.n_envs
        actions, infos = np.full((buffer.n_envs, 1), step % 3), [{}] * buffer.n_envs
        buffer.add(obs, obs + 1, actions, obs[:, 0] * 2, obs[:, 0] % 2, infos)


def test_defaults_are_those_of_stable_baselines_2():
    buffer = filled(1)
    assert (buffer.alpha, buffer.beta, buffer.epsilon) == (0.6, 0.4, 1e-6)


def test_probabilities_and_weights_are_those_computed_by_hand():
    buffer = filled(3, alpha=0.5, epsilon=1e-20)
    buffer.update_priorities(np.array([0, 1, 2]), np.array([1.0, -4.0, 9.0], np.float32))
    # p^alpha = 1, 2, 3: probabilities 1/6, 2/6, 3/6.
    np.testing.assert_allclose(buffer.powers[:3, 0], [1, 2, 3])
    np.random.seed(0)
    indices, weights = buffer.draw(60_000, beta=1.0)
    shares = np.bincount(indices) / 60_000
    np.testing.assert_allclose(shares, [1 / 6, 1 / 3, 1 / 2], atol=0.01)
    # (N P)^-1 = 2, 1, 2/3; over the largest: 1, 1/2, 1/3. At beta 1/2: their roots.
    np.testing.assert_allclose(weights, np.array([1, 1 / 2, 1 / 3])[indices], rtol=1e-6)
    indices, weights = buffer.draw(100, beta=0.5)
    np.testing.assert_allclose(weights, np.sqrt([1, 1 / 2, 1 / 3])[indices], rtol=1e-6)
    # Weighted by 1 / P the draws are uniform again: that is what beta = 1 corrects.
    np.testing.assert_allclose(shares * [1, 1 / 2, 1 / 3], 1 / 6, atol=0.01)


def test_weights_are_over_the_largest_of_what_is_stored():
    buffer = filled(2, size=8, alpha=0.5, epsilon=1e-20)
    buffer.update_priorities(np.array([0, 1]), np.array([4.0, 9.0], np.float32))
    # p^alpha = 2, 3, where the six empty places have 1: (N P)^-1 = 5/4, 5/6.
    indices, weights = buffer.draw(100, beta=1.0)
    np.testing.assert_allclose(weights, np.array([1, 2 / 3])[indices], rtol=1e-6)
    assert set(indices) == {0, 1}
    for _ in range(20):  # also where the largest is not among what is drawn
        index, weight = buffer.draw(1, beta=1.0)
        np.testing.assert_allclose(weight, np.array([1, 2 / 3])[index], rtol=1e-6)


def test_priorities_are_errors_and_epsilon_so_that_no_transition_is_lost():
    buffer = filled(2, alpha=0.5, epsilon=1e-4)
    buffer.update_priorities(np.array([0, 1]), np.array([0.0, -3e-4], np.float32))
    np.testing.assert_allclose(buffer.powers[:2, 0], [0.01, 0.02], rtol=1e-6)
    np.random.seed(0)
    assert set(buffer.draw(100)[0]) == {0, 1}


def test_gradients_are_clipped_to_the_largest_norm():
    sgd = dict(net_arch=[8], optimizer_class=torch.optim.SGD)
    model = PrioritizedDQN("MlpPolicy", "CartPole-v1", learning_starts=10, buffer_size=100, seed=0,
                           batch_size=8, learning_rate=1.0, max_grad_norm=1e-3, policy_kwargs=sgd,
                           train_freq=1, target_update_interval=1000, device="cpu",
                           replay_buffer_class=PrioritizedReplayBuffer)  # fmt: skip
    before = torch.nn.utils.parameters_to_vector(model.q_net.parameters()).detach().clone()
    model.learn(11)
    moved = torch.nn.utils.parameters_to_vector(model.q_net.parameters()) - before
    assert model._n_updates == 1
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_the_seed_is_that_of_stable_baselines3():
    buffer = filled(8)
    draws = []
    for _ in range(2):
        set_random_seed(3)
        draws.append(buffer.draw(20)[0])
    assert (draws[0] == draws[1]).all() and len(set(draws[0])) > 1


def test_new_transitions_get_the_largest_priority_so_far():
    buffer = filled(2, size=3, alpha=1.0, epsilon=1e-20)
    buffer.update_priorities(np.array([0, 1]), np.array([5.0, 0.5], np.float32))
    fill(buffer, 1)  # the third place
    fill(buffer, 1)  # the first again: its 5 is forgotten, though not that it was the largest
    assert buffer.powers[:, 0].tolist() == [5.0, 0.5, 5.0]
    buffer.update_priorities(np.array([0, 2]), np.array([1.0, 2.0], np.float32))
    fill(buffer, 1)
    assert buffer.powers[:, 0].tolist() == [1.0, 5.0, 2.0]


def test_the_largest_priority_is_raised_to_alpha_too():
    buffer = filled(1, size=3, alpha=0.5, epsilon=1e-20)
    buffer.update_priorities(np.array([0]), np.array([9.0], np.float32))
    fill(buffer, 2)
    assert buffer.powers[:, 0].tolist() == [3.0, 3.0, 3.0]


def test_a_transition_is_what_its_index_says_with_many_environments():
    buffer = filled(4, size=12, n_envs=3)
    assert buffer.size() == 4
    batch = buffer._get_samples(np.arange(12))
    assert batch.observations.ravel().tolist() == list(range(12))
    assert batch.next_observations.ravel().tolist() == list(range(1, 13))
    assert batch.rewards.ravel().tolist() == [2 * i for i in range(12)]
    assert batch.dones.ravel().tolist() == [i % 2 for i in range(12)]
    assert batch.actions.ravel().tolist() == [i // 3 % 3 for i in range(12)]


def test_a_cut_episode_is_not_an_end():
    buffer = PrioritizedReplayBuffer(2, OBS, ACTION)
    one = np.ones((1, 1), np.float32)
    buffer.add(one, one, one, one[0], one[0], [{"TimeLimit.truncated": True}])
    buffer.add(one, one, one, one[0], one[0], [{}])
    assert buffer._get_samples(np.array([0, 1])).dones.ravel().tolist() == [0, 1]


def test_samples_are_normalized_by_what_the_environment_has_seen():
    buffer, env = filled(3), VecNormalize(make_vec_env("CartPole-v1"), epsilon=0.0)
    env.obs_rms.mean, env.obs_rms.var, env.ret_rms.var = (np.array(x) for x in (1.0, 4.0, 16.0))
    batch = buffer._get_samples(np.arange(3), env)
    assert batch.observations.ravel().tolist() == [-0.5, 0, 0.5]  # of 0, 1, 2
    assert batch.next_observations.ravel().tolist() == [0, 0.5, 1]  # of 1, 2, 3
    assert batch.rewards.ravel().tolist() == [0, 0.5, 1]  # of 0, 2, 4


def test_only_what_is_stored_is_drawn():
    buffer = filled(2)
    buffer.powers[2:] = 1e6
    assert set(buffer.draw(200)[0]) == {0, 1}


def model(kind: type[DQN], **options: Any) -> DQN:
    made = kind(
        "MlpPolicy", "CartPole-v1", seed=0, device="cpu", batch_size=32, learning_starts=50,
        buffer_size=600, train_freq=2, target_update_interval=20, **options,
    )  # fmt: skip
    made.set_logger(Logger(folder=None, output_formats=[]))
    return made


BUFFER = {"replay_buffer_class": PrioritizedReplayBuffer}


def test_with_equal_weights_an_update_is_that_of_stock_dqn():
    stock, ours = model(DQN, **BUFFER), model(PrioritizedDQN, **BUFFER)
    stock.learn(60)
    # It never sets priorities: all are 1, and so are the weights.
    ours.replay_buffer = stock.replay_buffer
    ours.policy.load_state_dict(stock.policy.state_dict())
    # A copy: the loaded state is not one, and the first update would change both.
    ours.policy.optimizer.load_state_dict(deepcopy(stock.policy.optimizer.state_dict()))
    before = [p.clone() for p in stock.policy.parameters()]
    for made in (stock, ours):
        set_random_seed(1)
        made.train(1, 32)
    updated = list(stock.policy.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before, updated, strict=True))
    for a, b in zip(updated, ours.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)


def td_errors(ours: PrioritizedDQN) -> torch.Tensor:
    """Of all that is stored, by hand: [transitions]."""
    batch = ours.replay_buffer._get_samples(np.arange(ours.replay_buffer.size()))
    with torch.no_grad():
        ahead = ours.q_net_target(batch.next_observations).max(1, keepdim=True)[0]
        targets = batch.rewards + 0.99 * (1 - batch.dones) * ahead
    return (ours.q_net(batch.observations).gather(1, batch.actions) - targets).ravel()


def watch_draws(buffer: PrioritizedReplayBuffer) -> list[tuple[np.ndarray, np.ndarray]]:
    """A list that every (indices, weights) which the buffer draws from now on is appended to."""
    drawn: list[tuple[np.ndarray, np.ndarray]] = []
    draw = buffer.draw
    buffer.draw = lambda *args: drawn.append(found := draw(*args)) or found
    return drawn


def test_an_update_follows_the_weighted_loss():
    # Gradients are not clipped, and with this rate the parameters stay where they were taken.
    ours = model(PrioritizedDQN, learning_rate=0.0, max_grad_norm=1e9, **BUFFER)
    ours.learn(50)
    errors = np.random.default_rng(0).uniform(0.1, 9, 50).astype(np.float32)
    ours.replay_buffer.update_priorities(np.arange(50), errors)
    drawn = watch_draws(ours.replay_buffer)
    ours.train(1, 32)
    [(indices, weights)] = drawn
    assert weights.min() < 0.7 * weights.max()
    found = [p.grad.clone() for p in ours.q_net.parameters()]
    each = td_errors(ours).abs()[indices]
    huber = torch.where(each < 1, 0.5 * each**2, each - 0.5)
    loss = (torch.as_tensor(weights) * huber).sum() / 32
    by_hand = torch.autograd.grad(loss, list(ours.q_net.parameters()))
    for one, other in zip(found, by_hand, strict=True):
        torch.testing.assert_close(one, other)


def test_td_errors_become_priorities():
    ours = model(PrioritizedDQN, **BUFFER)
    ours.learn(50)
    with torch.no_grad():
        for parameter in ours.q_net_target.parameters():
            parameter.mul_(2)  # unlike the network that learns
    buffer = ours.replay_buffer
    drawn = watch_draws(buffer)
    errors = td_errors(ours).detach()
    ours.train(1, 32)
    indices = drawn[0][0]
    expected = (errors.abs().numpy().ravel()[indices] + 1e-6) ** 0.6
    np.testing.assert_allclose(buffer.powers[indices, 0], expected, rtol=1e-5)


def test_every_gradient_step_counts_as_an_update():
    ours = model(PrioritizedDQN, **BUFFER)
    ours.learn(50)
    drawn = watch_draws(ours.replay_buffer)
    ours.train(3, 32)
    assert ours._n_updates == len(drawn) == 3


def test_the_learning_rate_follows_its_schedule():
    ours = model(PrioritizedDQN, learning_rate=lambda left: 1e-3 * left, **BUFFER)
    ours.learn(300)
    assert ours.policy.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-5)


def test_beta_rises_to_one_over_the_run():
    ours = model(PrioritizedDQN, replay_buffer_kwargs=dict(beta=0.4), **BUFFER)
    seen: list[float] = []
    draw = ours.replay_buffer.draw
    ours.replay_buffer.draw = lambda n, beta: seen.append(beta) or draw(n, beta)
    ours.learn(300)
    assert seen == sorted(seen) and seen[-1] == pytest.approx(1.0)
    # The first update is at step 52, the first multiple of train_freq above the warm-up.
    assert seen[0] == pytest.approx(0.4 + 0.6 * 52 / 300)
    assert (ours.replay_buffer.powers[:300] != 1).any()


def test_it_trains_quantized_too():
    ours = model(PrioritizedDQN, **BUFFER)
    ours.learn(200, callback=prepare_qat(ours, 4))
    assert export_qat(ours).spec.algo == "dqn"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, "alpha of prioritized replay is 1.5"), ({"beta": -1}, "beta of"),
        ({"epsilon": 0.0}, "epsilon of prioritized replay is 0.0; allowed: above 0"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(QuarlError, match=message):
        filled(1, **options)


def test_another_buffer_and_divergence_are_refused():
    with pytest.raises(QuarlError, match="needs replay_buffer_class=PrioritizedReplayBuffer"):
        model(PrioritizedDQN)
    with pytest.raises(QuarlError, match="returns of one step, not n_steps=3"):
        model(PrioritizedDQN, replay_buffer_class=PrioritizedReplayBuffer, n_steps=3)
    with pytest.raises(QuarlError, match="holds no observations that are dictionaries"):
        PrioritizedReplayBuffer(10, Dict({"a": OBS}), ACTION)
    for bad in (np.nan, np.inf):
        with pytest.raises(QuarlError, match="diverged: a TD error is NaN"):
            filled(2).update_priorities(np.array([0]), np.array([bad], np.float32))
