"""Checkpoints of replay buffers: every byte comes back, priorities included; what is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import re
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import Env
from gymnasium.spaces import Box, Discrete
from stable_baselines3 import A2C, DQN, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from quarl_nb.errors import QuarlError
from quarl_nb.rl import replay_state
from quarl_nb.rl.checkpoint import (
    Mark,
    Progress,
    has_finite_weights,
    held,
    load_checkpoint,
    read_progress,
    save_checkpoint,
)
from quarl_nb.rl.d4pg import D4PG
from quarl_nb.rl.prioritized import PrioritizedDQN, PrioritizedReplayBuffer

ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
PRIORITIZED: dict[str, Any] = {"replay_buffer_class": PrioritizedReplayBuffer}


class Film(Env):
    """Stacks of two random uint8 frames [2, 6, 6]; episodes of seven steps."""

    observation_space = Box(0, 255, (2, 6, 6), np.uint8)
    action_space = Discrete(2)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        super().reset(**kwargs)
        self.steps = 0
        self.stack = self.np_random.integers(0, 256, (2, 6, 6), np.uint8)
        return self.stack, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        newest = self.np_random.integers(0, 256, (1, 6, 6), np.uint8)
        self.stack = np.concatenate([self.stack[1:], newest])
        return self.stack, float(action), self.steps == 7, False, {}


def model(kind: type[DQN] = DQN, env: Any = Film, n_envs: int = 1, **options: Any) -> DQN:
    defaults = {"learning_starts": 10, "batch_size": 8, "buffer_size": 60}
    return kind("MlpPolicy", DummyVecEnv([env] * n_envs), seed=0, device="cpu",
                policy_kwargs={"net_arch": [4]}, **(defaults | options))  # fmt: skip


def reopened(saved: DQN, path: Path, **options: Any) -> DQN:
    save_checkpoint(path, saved, Progress(timesteps=saved.num_timesteps))
    other = model(type(saved), **options)
    load_checkpoint(path, other)
    return other


@pytest.mark.parametrize("steps", [25, 60, 100])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_packed_frames_come_back_as_they_were(tmp_path, steps, n_envs):
    saved = model(n_envs=n_envs)
    saved.learn(steps)
    other = reopened(saved, tmp_path / "c.pt", n_envs=n_envs)
    ours, theirs = saved.replay_buffer, other.replay_buffer
    assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
    for name in ARRAYS:
        used = ours.size()
        np.testing.assert_array_equal(getattr(ours, name)[:used], getattr(theirs, name)[:used])
    # Next observations are kept only at ends of episodes, which come every seven steps, and
    # where the buffer begins anew.
    state = torch.load(tmp_path / "c.pt", weights_only=True)["replay"]
    assert set(ARRAYS[:2]) & set(state) == set()
    ends = np.flatnonzero(ours.dones[: ours.size()].any(axis=1))
    assert set(ends) <= set(state["own_rows"].tolist())
    assert len(state["own_rows"]) <= len(ends) + 1


def test_the_frames_of_a_film_are_stored_once(tmp_path):
    saved = model()
    saved.learn(50)
    save_checkpoint(tmp_path / "c.pt", saved, Progress())
    state = torch.load(tmp_path / "c.pt", weights_only=True)["replay"]
    # Random frames of 36 bytes cannot be compressed; of four (two stacks) one is new each step.
    assert state["frames"].numel() + state["own_frames"].numel() < 0.5 * 50 * 4 * 36


def test_priorities_come_back_and_go_on(tmp_path):
    saved = model(PrioritizedDQN, **PRIORITIZED)
    saved.learn(72)
    other = reopened(saved, tmp_path / "c.pt", **PRIORITIZED)
    ours, theirs = saved.replay_buffer, other.replay_buffer
    assert len(np.unique(ours.powers)) > 10
    np.testing.assert_array_equal(ours.powers, theirs.powers)
    assert ours.largest == theirs.largest != 1.0
    for buffer in (ours, theirs):
        np.random.seed(0)
        buffer.drawn = buffer.draw(20, beta=0.7)
    for a, b in zip(ours.drawn, theirs.drawn, strict=True):
        np.testing.assert_array_equal(a, b)
    other.learn(28, reset_num_timesteps=False)
    assert other.num_timesteps == 100 and theirs.pos == 40


def test_a_resumed_model_makes_the_update_that_the_saved_one_makes(tmp_path):
    saved = model()
    saved.learn(40)
    other = reopened(saved, tmp_path / "c.pt")
    # Updates after every fourth step, from step 12 on, each of one batch.
    assert (other._n_updates, other._n_calls) == (saved._n_updates, saved._n_calls) == (8, 40)
    moments = saved.policy.optimizer.state_dict()["state"]
    assert moments[0]["step"] == 8 and moments[0]["exp_avg"].abs().sum() > 0
    for made in (saved, other):
        set_random_seed(1)
        made.set_logger(Logger(folder=None, output_formats=[]))
        made.train(1, 8)
    for ours, theirs in zip(saved.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_statistics_of_observations_and_returns_come_back(tmp_path):
    saved, other = normalized(), normalized()
    saved.learn(50)
    save_checkpoint(tmp_path / "c.pt", saved, Progress(timesteps=50))
    load_checkpoint(tmp_path / "c.pt", other)
    for name in ("obs_rms", "ret_rms"):
        ours, theirs = (getattr(m.get_vec_normalize_env(), name) for m in (saved, other))
        assert ours.count == theirs.count > 50
        np.testing.assert_array_equal(ours.mean, theirs.mean)
        np.testing.assert_array_equal(ours.var, theirs.var)
    assert 1 < theirs.mean < 10  # of returns, whose discounted sum ends at 10


def test_a_full_buffer_goes_into_one_of_its_size_alone(tmp_path):
    saved = model()
    saved.learn(70)  # of 60 rows
    for size in (59, 61):
        message = f"its replay buffer has 60 rows, that of the algorithm {size}"
        with pytest.raises(QuarlError, match=message):
            reopened(saved, tmp_path / "c.pt", buffer_size=size)
    half = model()
    half.learn(40)
    larger = reopened(half, tmp_path / "c.pt", buffer_size=200)
    assert larger.replay_buffer.size() == 40 and not larger.replay_buffer.full
    with pytest.raises(QuarlError, match="has 40 rows, that of the algorithm 30"):
        reopened(half, tmp_path / "c.pt", buffer_size=30)
    filled = reopened(half, tmp_path / "c.pt", buffer_size=40)
    assert filled.replay_buffer.full and filled.replay_buffer.pos == 0
    filled.learn(8, reset_num_timesteps=False)
    assert filled.replay_buffer.pos == 8


def sac(**options: Any) -> SAC:
    return SAC("MlpPolicy", "Pendulum-v1", seed=0, device="cpu", learning_starts=10, batch_size=8,
               policy_kwargs={"net_arch": [4]}, **options)  # fmt: skip


def d4pg(**options: Any) -> D4PG:
    return D4PG("MlpPolicy", "Pendulum-v1", seed=0, device="cpu", learning_starts=10, batch_size=8,
                policy_kwargs={"net_arch": [4]}, **options)  # fmt: skip


def normalized() -> A2C:
    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]), gamma=0.9)
    return A2C("MlpPolicy", env, seed=0, device="cpu", policy_kwargs={"net_arch": [4]})


def raw(size: int = 4) -> A2C:
    options = {"net_arch": [size]}
    return A2C("MlpPolicy", "CartPole-v1", seed=1, device="cpu", policy_kwargs=options)


REFUSED = {
    "size": (model, lambda: model(buffer_size=20), "its replay buffer has 32 rows, .* 20"),
    "priorities": (model, lambda: model(**PRIORITIZED), "its replay buffer has no priorities"),
    "network": (raw, lambda: raw(6), "it is of another network or environment"),
    "normalized": (normalized, raw, "it is of normalized observations, not of raw ones"),
    "raw": (raw, normalized, "it is of raw observations, not of normalized ones"),
    "returns": (d4pg, lambda: d4pg(v_max=100.0),
                "its v_min and v_max are -150 and 150, those of the algorithm -150 and 100"),
    "variables": (sac, lambda: sac(ent_coef=0.1), "its log_ent_coef is none of the algorithm's"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_leaves_the_model_as_it_was(what, tmp_path):
    saved, other, told = REFUSED[what][0](), REFUSED[what][1](), REFUSED[what][2]
    for trained in (saved, other):  # their optimizers have moments, too
        trained.learn(30 if trained is saved else 15)
    save_checkpoint(tmp_path / "c.pt", saved, Progress(timesteps=30))
    before = deepcopy(other.get_parameters()), other.num_timesteps, other._n_updates
    with pytest.raises(QuarlError, match=f"cannot be read: {told}; to start anew"):
        load_checkpoint(tmp_path / "c.pt", other)
    after = other.get_parameters(), other.num_timesteps, other._n_updates
    torch.testing.assert_close(after, before, rtol=0, atol=0)


class Owned(ReplayBuffer):
    """A user's own, which counts how often it was added to."""

    added = 0

    def add(self, *arguments: Any, **options: Any) -> None:
        self.added += 1
        super().add(*arguments, **options)


@pytest.mark.parametrize("options, why", [
    ({"replay_buffer_class": Owned}, "an? Owned may hold more than what is saved"),
    ({"optimize_memory_usage": True,
      "replay_buffer_kwargs": {"handle_timeout_termination": False}},
     "with optimize_memory_usage it keeps no next observations"),
])  # fmt: skip
def test_of_a_kind_of_buffer_that_is_not_known_no_half_is_saved(options, why, tmp_path, caplog):
    saved = model(**options)
    saved.learn(40)
    other = reopened(saved, tmp_path / "c.pt", **options)
    assert re.search(f"the checkpoint has no replay buffer, as {why}: resumed", caplog.text)
    assert other.replay_buffer.size() == 0 and other.learning_starts == 40 + 10
    older = model()
    older.learn(40)  # a checkpoint that has one, of the same algorithm
    save_checkpoint(tmp_path / "c.pt", older, Progress(timesteps=40))
    load_checkpoint(tmp_path / "c.pt", other)
    assert other.replay_buffer.size() == 0


@pytest.mark.parametrize("keeps_timeouts", [True, False])
def test_returns_of_several_steps_end_where_a_run_was_resumed(tmp_path, keeps_timeouts):
    options = {"n_steps": 3,
               "replay_buffer_kwargs": {"handle_timeout_termination": keeps_timeouts}}
    saved = model(**options)
    saved.learn(40)  # whose last step is the fifth of its episode
    other = reopened(saved, tmp_path / "c.pt", **options)
    other.learn(4, reset_num_timesteps=False)
    buffer = other.replay_buffer
    assert saved.replay_buffer.timeouts.sum() == 0 and buffer.dones[39] == 0
    assert buffer.timeouts.sum() == buffer.timeouts[39] == keeps_timeouts
    if keeps_timeouts:
        got = buffer._get_samples(np.array([38]))
        assert got.discounts == pytest.approx(0.99**2) and got.dones == 0
        np.testing.assert_array_equal(got.next_observations[0], buffer.next_observations[39, 0])


@pytest.mark.parametrize("env", [Film, lambda: gym.make("CartPole-v1")], ids=["frames", "numbers"])
@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1)])
def test_a_buffer_goes_into_one_of_as_many_environments_alone(tmp_path, env, ours, theirs):
    saved = model(env=env, n_envs=ours)
    saved.learn(20)
    message = f"is of {ours} environments at once, that of the algorithm of {theirs}; to start anew"
    with pytest.raises(QuarlError, match=message):
        reopened(saved, tmp_path / "c.pt", env=env, n_envs=theirs)


# 28 further transitions find room among 60, begin anew after 8, or take the place of the oldest.
@pytest.mark.parametrize(("steps", "kept"), [(20, 20), (52, 52 - 20), (152, 60 - 28)])
def test_what_was_collected_after_the_mark_does_not_count(tmp_path, steps, kept):
    saved = model()
    saved.learn(steps)
    mark, before = Mark.of(saved), deepcopy(saved.replay_buffer)
    saved.learn(28, reset_num_timesteps=False)
    assert saved._n_calls == steps + 28
    save_checkpoint(tmp_path / "c.pt", saved, Progress(timesteps=steps), mark)
    other = model()
    load_checkpoint(tmp_path / "c.pt", other)
    assert (other._n_calls, other.num_timesteps) == (steps, steps)
    assert other.replay_buffer.size() == min(steps, 60) and other.replay_buffer.pos == steps % 60
    same = (other.replay_buffer.observations == before.observations)[: before.size()]
    assert same.all(axis=(1, 2, 3, 4)).sum() == kept


def test_the_entropy_coefficient_of_sac_comes_back(tmp_path):
    saved, other = sac(), sac()
    saved.learn(60)
    save_checkpoint(tmp_path / "c.pt", saved, Progress(timesteps=60))
    load_checkpoint(tmp_path / "c.pt", other)
    assert torch.equal(other.log_ent_coef, saved.log_ent_coef) and saved.log_ent_coef != 0
    [learned] = other.ent_coef_optimizer.param_groups[0]["params"]
    assert learned is other.log_ent_coef  # and it goes on being learned


def test_a_fixed_entropy_coefficient_is_the_algorithms_own(tmp_path):
    save_checkpoint(tmp_path / "c.pt", sac(ent_coef=0.1), Progress(timesteps=0))
    other = sac(ent_coef=0.5)
    load_checkpoint(tmp_path / "c.pt", other)
    assert other.ent_coef_tensor.item() == 0.5


def test_a_checkpoint_of_a_gpu_is_read_without_one(tmp_path, monkeypatch):
    saved = model()
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    save_checkpoint(tmp_path / "c.pt", saved, Progress(timesteps=5))
    assert load_checkpoint(tmp_path / "c.pt", model()) == Progress(timesteps=5)


def test_a_buffer_of_numbers_is_stored_as_it_is(tmp_path):
    saved = DQN(
        "MlpPolicy", "CartPole-v1", seed=0, device="cpu", buffer_size=30, learning_starts=5
    )
    saved.learn(40)
    save_checkpoint(tmp_path / "c.pt", saved, Progress())
    state = torch.load(tmp_path / "c.pt", weights_only=True)["replay"]
    np.testing.assert_array_equal(state["observations"], saved.replay_buffer.observations)


def test_a_buffer_too_large_is_left_out_and_collected_again(tmp_path, monkeypatch, caplog):
    saved = model()
    saved.learn(40)
    monkeypatch.setattr(replay_state, "MAX_SAVED_BUFFER_BYTES", 1000)
    other = reopened(saved, tmp_path / "c.pt")
    assert "the checkpoint has no replay buffer" in caplog.text
    assert other.replay_buffer.size() == 0
    assert other.learning_starts == 40 + 10
    before = [p.clone() for p in other.policy.parameters()]
    other.learn(8, reset_num_timesteps=False)
    assert all(map(torch.equal, before, other.policy.parameters()))


def test_a_buffer_saved_while_it_was_filled_again_is_filled_further(tmp_path, monkeypatch):
    saved = model(learning_starts=30)
    saved.learn(40)
    monkeypatch.setattr(replay_state, "MAX_SAVED_BUFFER_BYTES", 1000)
    other = reopened(saved, tmp_path / "c.pt", learning_starts=30)
    assert other.learning_starts == 40 + 30
    other.learn(8, reset_num_timesteps=False)
    monkeypatch.undo()
    again = reopened(other, tmp_path / "c.pt", learning_starts=30)
    assert again.replay_buffer.size() == 8
    assert again.learning_starts == 40 + 30  # of which 8 are there


@pytest.mark.parametrize(("n_envs", "made", "steps", "warm_up", "put_off"), [
    (1, 30, 10, 50, 0),  # some of it before the run
    (2, 40, 40, 30, 0),  # 20 rows of two transitions
    (1, 80, 80, 100, 0),  # a full buffer, of 60
    (2, 40, 80, 100, 80 - 40),  # of 60 transitions that fit into it 40
])  # fmt: skip
def test_learning_waits_for_what_the_buffer_lacks(n_envs, made, steps, warm_up, put_off):
    other = model(n_envs=n_envs, learning_starts=warm_up)
    other.learn(made)
    other.num_timesteps = steps
    replay_state.restore_replay(other, {})
    assert other.learning_starts == warm_up + put_off


def test_the_first_format_is_still_read(tmp_path):
    saved = model()
    saved.learn(40)
    save_checkpoint(tmp_path / "c.pt", saved, Progress(timesteps=40))
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    buffer = saved.replay_buffer
    for name in ("frames", "own_rows", "own_frames"):
        del state["replay"][name]
    for name in ARRAYS[:2]:
        state["replay"][name] = torch.as_tensor(getattr(buffer, name)[: buffer.pos])
    progress = asdict(Progress(timesteps=40))
    del progress["stages"]
    torch.save(state | {"format": 1, "progress": progress}, tmp_path / "c.pt")
    other = model()
    assert load_checkpoint(tmp_path / "c.pt", other) == Progress(timesteps=40)
    np.testing.assert_array_equal(other.replay_buffer.next_observations, buffer.next_observations)


def test_progress_is_read_without_the_tensors(tmp_path):
    progress = Progress(timesteps=12, wall_s=1.5, best_return=3.0, done=True, stages=[(0, 4.0)])
    save_checkpoint(tmp_path / "c.pt", A2C("MlpPolicy", "CartPole-v1", device="cpu"), progress)
    found = read_progress(tmp_path / "c.pt")
    assert [tuple(stage) for stage in found.stages] == [(0, 4.0)]
    assert asdict(found) | {"stages": 0} == asdict(progress) | {"stages": 0}


def test_what_cannot_be_read_is_one_clear_line(tmp_path):
    path = tmp_path / "c.pt"
    saved = model()
    save_checkpoint(path, saved, Progress())
    state = torch.load(path, weights_only=True)
    another = A2C("MlpPolicy", "CartPole-v1", device="cpu")
    with pytest.raises(QuarlError, match="c.pt' cannot be read: it is of DQN, not of A2C; to"):
        load_checkpoint(path, another)
    torch.save(state | {"format": 3}, path)
    for read in (read_progress, lambda path: load_checkpoint(path, saved)):
        with pytest.raises(QuarlError, match="it has format 3, this version reads 1 and 2") as line:
            read(path)
        assert "\n" not in str(line.value)
    whole = path.read_bytes()
    for content in (b"101", pickle.dumps({"format": object}), whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(QuarlError, match="c.pt' cannot be read: it is damaged, or no check"):
            read_progress(path)
    torch.save([1, 2], path)
    with pytest.raises(QuarlError, match="it is no checkpoint of quarl_nb; to start anew"):
        read_progress(path)


def test_a_checkpoint_that_may_not_be_read_need_not_be_deleted(tmp_path):
    (tmp_path / "c.pt").mkdir()
    for read in (read_progress, lambda path: load_checkpoint(path, model())):
        with pytest.raises(QuarlError, match="c.pt' cannot be read: ") as line:
            read(tmp_path / "c.pt")
        assert "delete it" not in str(line.value)


@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_weights_are_finite_where_ranges_and_targets_are_too(bad):
    assert has_finite_weights(model())
    target, buffered = model(), model()
    with torch.no_grad():
        next(target.q_net_target.parameters()).view(-1)[0] = bad
    buffered.q_net.register_buffer("running_max", torch.tensor([1.0, bad]))
    assert not has_finite_weights(target) and not has_finite_weights(buffered)


def test_one_changed_bit_of_a_weight_is_noticed_and_changes_nothing(tmp_path):
    path, saved = tmp_path / "c.pt", model()
    save_checkpoint(path, saved, Progress())
    weight = max(saved.policy.state_dict().values(), key=torch.Tensor.numel)
    content = bytearray(path.read_bytes())
    content[content.index(weight.numpy().tobytes())] ^= 1
    path.write_bytes(content)
    other = model()
    before = {name: tensor.clone() for name, tensor in other.policy.state_dict().items()}
    with pytest.raises(QuarlError, match="c.pt' cannot be read: it is damaged, or no checkpoint"):
        load_checkpoint(path, other)
    assert all(torch.equal(t, before[name]) for name, t in other.policy.state_dict().items())
    assert read_progress(path) == Progress()  # which reads no tensors


def test_a_checkpoint_knows_what_its_run_acted_in(tmp_path):
    path = tmp_path / "c.pt"
    cartpole = DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=10)
    save_checkpoint(path, cartpole, Progress())
    load_checkpoint(path, cartpole)
    state = torch.load(path, weights_only=True)
    torch.save(state | {"environment": "Maze-v0"}, path)
    with pytest.raises(QuarlError, match="cannot be read: it is of Maze-v0, not of CartPole-v1"):
        load_checkpoint(path, cartpole)
    del state["environment"]  # older checkpoints do not tell
    torch.save(state, path)
    load_checkpoint(path, cartpole)


def test_a_checkpoint_is_of_one_run_at_a_time_and_nothing_is_left_of_its_lock(tmp_path):
    path = tmp_path / "c.pt"
    (tmp_path / ".c.pt.lock").touch()  # of a run that was killed
    with pytest.raises(ZeroDivisionError), held(path), held(tmp_path / "d.pt"):
        with pytest.raises(QuarlError, match="^checkpoint '.*c.pt' is used by another run$"):
            held(path).__enter__()
        raise ZeroDivisionError
    assert not [*tmp_path.iterdir()]


def test_a_lock_that_its_last_holder_removes_meanwhile_holds_nothing(tmp_path, monkeypatch):
    flock = fcntl.flock

    def too_late(file, operation):
        Path(file.name).unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with pytest.raises(QuarlError, match="is used by another run"), held(tmp_path / "c.pt"):
        pass


def test_what_cannot_be_written_leaves_the_last_one(tmp_path, monkeypatch):
    path = tmp_path / "c.pt"
    save_checkpoint(path, model(), Progress(timesteps=1))

    def full_disk(state: Any, file: BinaryIO) -> None:
        file.write(b"half")
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(QuarlError, match="cannot write checkpoint"):
        save_checkpoint(path, model(), Progress(timesteps=2))
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]
    assert read_progress(path).timesteps == 1


def test_the_last_checkpoint_goes_when_the_next_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "c.pt"
    save_checkpoint(path, model(), Progress(timesteps=1))

    def broken_disk(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken_disk)
    with pytest.raises(QuarlError, match="cannot write checkpoint '.*c.pt': .*Input/output error"):
        save_checkpoint(path, model(), Progress(timesteps=2))
    assert list(tmp_path.iterdir()) == [path] and read_progress(path).timesteps == 1


def test_what_killed_saves_left_goes_with_the_next_save(tmp_path):
    left, others = tmp_path / ".c.pt.0a1b.tmp", tmp_path / ".d.pt.0a1b.tmp"
    for temporary in (left, others):
        temporary.write_bytes(b"half")
    save_checkpoint(tmp_path / "c.pt", model(), Progress())
    assert {*tmp_path.iterdir()} == {tmp_path / "c.pt", others}
