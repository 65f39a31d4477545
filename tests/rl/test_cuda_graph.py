"""Updates as CUDA graphs; a stand-in records and repeats operations on the processor."""

import copy
import logging
import sys
from functools import partial

import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from quarl_nb.actorq.algorithms import make_algorithm
from quarl_nb.actorq.learner import Learner
from quarl_nb.actorq.settings import Settings
from quarl_nb.rl import cuda_graph
from quarl_nb.rl.cuda_graph import GraphedUpdate, can_be_graphed, graphed_updates, train_once
from quarl_nb.studies import mixed_precision
from quarl_nb.studies.update_times import fill_buffer

BATCH, N = 16, 64


class Recorder(TorchDispatchMode):
    """Runs operations and notes them, with the very tensors that they read and wrote."""

    def __init__(self):
        super().__init__()
        self.launched = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        assert function is not torch.ops.aten._local_scalar_dense.default, "read by the processor"
        self.launched.append((function, args, kwargs or {}, out))
        return out

    def replay(self):
        with torch._C._AutoDispatchBelowAutograd():  # where they were noted
            for function, args, kwargs, out in self.launched:
                again = function(*args, **kwargs)
                for place, values in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(place, torch.Tensor) and place.data_ptr() != values.data_ptr():
                        place.copy_(values)


def recorded(function, device=None):
    """As `cuda_graph`, but capturing makes the update, so that its first replay does nothing."""
    with Recorder() as recorder:
        function()
    first = [True]

    def replay():
        if not first:
            recorder.replay()
        first.clear()

    return replay


def filled(algo, seed=0, **options):
    env_id = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    options = {"learning_rate": "lin_1e-2", "batch_size": BATCH, **options}
    model = make_algorithm(algo, env_id, width=8, critic_width=8, seed=seed, **options)
    learner = Learner(model, Settings(), 1000)
    buffer, rng = model.replay_buffer, np.random.default_rng(0)
    buffer.observations[:N] = rng.normal(size=buffer.observations[:N].shape)
    buffer.next_observations[:N] = rng.normal(size=buffer.observations[:N].shape)
    buffer.rewards[:N], buffer.pos = rng.normal(size=(N, 1)), N
    buffer.dones[:N] = rng.random((N, 1)) < 0.2
    shape = buffer.actions[:N].shape
    buffer.actions[:N] = rng.integers(2, size=shape) if algo == "dqn" else rng.uniform(-1, 1, shape)
    return model, learner


@pytest.mark.parametrize("interval", [1, 3])
def test_sac_moves_its_targets_as_often_as_asked_though_updates_are_single(interval):
    """As one call of SB3's `train` for all of them does."""
    finals = []
    for in_one_call in (False, True):
        model, _ = filled("sac", learning_rate=1e-2, target_update_interval=interval)
        np.random.seed(1)
        torch.manual_seed(1)
        targets = []
        for n in [7] if in_one_call else 7 * [1]:
            model.train(n, BATCH) if in_one_call else train_once(model)
            targets.append(model.critic_target.state_dict()["qf0.0.weight"].clone())
        finals.append(targets[-1])
        moved = [i for i in range(1, len(targets)) if not targets[i].equal(targets[i - 1])]
        assert in_one_call or moved == [*range(interval, 7, interval)]
        assert model.tau == 0.005
    assert finals[0].equal(finals[1])


def test_a_sac_that_watches_its_steps_is_one_all_the_same():
    """DQN counts steps in `_on_step`; that a subclass has its own does not tell that it counts."""

    class Watching(SAC):
        def _on_step(self):
            self.watched = True

    model, _ = filled("sac", learning_rate=1e-2, target_update_interval=3)
    model.__class__ = Watching
    targets = []
    for _ in range(7):
        train_once(model)
        targets.append(model.critic_target.state_dict()["qf0.0.weight"].clone())
    assert [i for i in range(1, 7) if not targets[i].equal(targets[i - 1])] == [3, 6]


def trained(model, update, n):
    """The weights after `n` updates whose learning rate falls."""
    np.random.seed(1)
    torch.manual_seed(1)
    for i in range(n):
        model._current_progress_remaining = 1 - i / n
        update()
    return copy.deepcopy(model.policy.state_dict())


ALGORITHMS = [
    ("dqn", {}), ("dqn", {"fused": False}), ("dqn", {"n_steps": 3}), ("dqn", {"autocast": "bf16"}),
    ("ddpg", {}), ("td3", {}), ("d4pg", {"target_update_period": 3}),
    # The actor's first step is after those that are no graph anyway.
    ("td3", {"policy_delay": 5}),
    ("d4pg", {"actor_learning_rate": "warm_1e-2", "n_steps": 1}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*slower in bfloat16")
@pytest.mark.parametrize(("algo", "options"), ALGORITHMS)
def test_replayed_updates_are_those_of_the_algorithm(algo, options, monkeypatch):
    # Adam that is not fused takes a rate that is a tensor on GPUs alone.
    adam = sys.modules[torch.optim.Adam.__module__]
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda: ["cpu"])
    monkeypatch.setattr(cuda_graph, "EAGER_UPDATES", 3)
    monkeypatch.setattr(cuda_graph, "LOGGED_EVERY", 9)
    model, learner = filled(algo, **options)
    expected = trained(model, learner.update, 25)
    model, learner = filled(algo, **options)
    captured = []
    learner._train = GraphedUpdate(model, lambda *made: captured.append(1) or recorded(*made))
    found = trained(model, learner.update, 25)
    assert len(captured) == (2 if algo in ("td3", "d4pg") and options.get("n_steps") != 1 else 1)
    assert model._n_updates == 25 == learner.updates
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=1e-4, atol=1e-5)
    assert learner.seconds["sample"] > 0


def test_batches_are_normalized_as_the_algorithm_itself_would():
    env = VecNormalize(make_vec_env("Pendulum-v1"))
    model = DDPG("MlpPolicy", env, learning_starts=100, batch_size=BATCH).learn(50)
    update = GraphedUpdate(model, recorded)
    np.random.seed(1)
    update._sample()
    np.random.seed(1)
    expected = model.replay_buffer.sample(BATCH, env=env)
    torch.testing.assert_close(update._batch.observations, expected.observations)
    torch.testing.assert_close(update._batch.rewards, expected.rewards)


def test_losses_are_logged_from_updates_that_are_no_graph():
    model, learner = filled("dqn")
    learner._train = GraphedUpdate(model, recorded)
    trained(model, learner.update, cuda_graph.EAGER_UPDATES + 5)
    logged = model.logger.name_to_value
    assert np.isfinite(logged["train/loss"])
    assert logged["train/n_updates"] == cuda_graph.EAGER_UPDATES
    assert logged["train/learning_rate"] == pytest.approx(1e-2 / 15)


def test_a_capture_that_fails_is_told_and_updates_go_on(caplog):
    def fails(function, device):
        function()
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors")

    model, learner = filled("dqn")
    learner._train = GraphedUpdate(model, fails)
    with caplog.at_level(logging.WARNING):
        trained(model, learner.update, 15)
    (record,) = caplog.records
    assert record.message == ("updates are not made a CUDA graph: RuntimeError: "
                              "operation not permitted when stream is capturing")  # fmt: skip
    assert model._n_updates == 15 == learner.updates
    (group,) = model.policy.optimizer.param_groups
    assert isinstance(group["lr"], float) and not group["capturable"]


def test_a_graph_leaves_no_trace_on_the_algorithm():
    model, learner = filled("d4pg")
    before = {*vars(model)}, {*vars(model.replay_buffer)}
    learner._train = GraphedUpdate(model, recorded)
    trained(model, learner.update, 15)
    assert ({*vars(model)}, {*vars(model.replay_buffer)}) == before
    for optimizer in (model.actor.optimizer, model.critic.optimizer):
        for group in optimizer.param_groups:
            assert isinstance(group["lr"], float) and group["capturable"] is False
    learner.close()
    assert "sample" not in vars(model.replay_buffer)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_learn_replays_graphs_for_a_while(precision, monkeypatch):
    """As half-precision training on Pong does, a loss scaler's counts and scales included."""
    monkeypatch.setattr(mixed_precision, "POLICIES", {"A": mixed_precision.Sized((2, 2, 2), 4)})
    monkeypatch.setattr(mixed_precision, "BUFFER_SIZE", 50)
    replaying = partial(GraphedUpdate, capture=recorded)
    found = []
    for graphed in (False, True):
        monkeypatch.setattr(cuda_graph, "can_be_graphed", lambda _, graphed=graphed: graphed)
        monkeypatch.setattr(cuda_graph, "GraphedUpdate", replaying if graphed else None)
        recipe = mixed_precision.sized_recipe("A", precision)
        cell = {"precision": precision, "device": "cpu", "seed": 0}
        model = mixed_precision.make_sized(recipe, cell)
        fill_buffer(model, 40)
        model.learning_starts = 0
        before = {*vars(model)}
        with graphed_updates(model):
            assert ("train" in vars(model)) == graphed
            model.learn(4 * (cuda_graph.EAGER_UPDATES + 5))
        assert {*vars(model)} - before <= {"_logger"}
        assert model._n_updates == cuda_graph.EAGER_UPDATES + 5
        found.append(model.q_net.state_dict())
        model.env.close()
    for name, weights in found[0].items():
        torch.testing.assert_close(found[1][name], weights, rtol=1e-4, atol=1e-5)


class OwnTrain(make_algorithm("dqn", "CartPole-v1", width=8).__class__):
    def train(self, gradient_steps, batch_size=100):
        """Who knows what it does."""


@pytest.mark.parametrize(("device", "kind", "options", "graphed"), [
    ("cuda", None, {}, True), ("cpu", None, {}, False), ("cuda", OwnTrain, {}, False),
    ("cuda", None, {"optimizer_class": torch.optim.SGD}, False),
])  # fmt: skip
def test_what_is_made_a_graph(device, kind, options, graphed):
    from stable_baselines3 import DQN

    model = (kind or DQN)("MlpPolicy", "CartPole-v1", policy_kwargs=options, buffer_size=10,
                          device="cpu")  # fmt: skip
    model.device = torch.device(device)  # told to be a GPU's
    assert can_be_graphed(model) == graphed
