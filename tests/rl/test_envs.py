from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.atari_wrappers import MaxAndSkipEnv, NoopResetEnv, WarpFrame

from quarl_nb.errors import QuarlError
from quarl_nb.rl.envs import (
    ATARI_FRAME_SKIP,
    atari_rom,
    make_atari_vec,
    make_env,
    make_vec,
    reset_slots,
)


class FireOnce(gym.Wrapper):
    """ale-py's fire reset: one frame of FIRE (SB3's presses FIRE, then UP, four frames each)."""

    def reset(self, **kwargs):
        self.env.reset(**kwargs)
        obs, _, _, _, info = self.env.step(1)
        return obs, info


def reference_env(env_id: str, episode_frames: int) -> gym.Env:
    """SB3's own wrappers on NoFrameskip-v4, started after `episode_frames` emulator frames."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make(env_id)
    has_fire = "FIRE" in env.unwrapped.get_action_meanings()
    env = NoopResetEnv(env)
    env.override_num_noops = episode_frames - has_fire
    if has_fire:
        env = FireOnce(env)
    env = WarpFrame(MaxAndSkipEnv(env, ATARI_FRAME_SKIP))
    return gym.wrappers.FrameStackObservation(env, 4, padding_type="zero")


# Where moving objects of different colours overlap, the maximum over two frames differs between
# SB3 (of colours, then grey) and ale-py (of greys): a few pixels of some games.
EXACT_FRAMES = {"PongNoFrameskip-v4", "SpaceInvadersNoFrameskip-v4"}


@pytest.mark.parametrize(
    "env_id",
    ["Pong", "SpaceInvaders", "Breakout", "BeamRider", "MsPacman", "Qbert", "Seaquest"],
)
def test_atari_vec_env_has_the_protocol_of_sb3_wrappers(env_id):
    env_id += "NoFrameskip-v4"
    vec = make_atari_vec(env_id, 1)
    ours, info = vec.reset(seed=np.array([11]))
    reference = reference_env(env_id, int(info["episode_frame_number"][0]))
    reference.reset(seed=11)
    generator = np.random.default_rng(0)
    differing, returns, done = [], np.zeros(2), False
    while not done:
        action = int(generator.integers(vec.single_action_space.n))
        ours, ours_reward, terminated, truncated, _ = vec.step(np.array([action]))
        theirs, their_reward, done, their_truncated, _ = reference.step(action)
        assert ours_reward[0] == their_reward
        assert (terminated[0], truncated[0]) == (done, their_truncated)
        returns += ours_reward[0], their_reward
        differing.append((np.asarray(theirs).squeeze(-1) != ours[0]).mean())
    assert len(differing) > 100
    assert returns[0] == returns[1] != 0
    assert max(differing) == 0 if env_id in EXACT_FRAMES else np.mean(differing) < 0.02


def test_an_atari_seed_gives_the_same_episode_in_every_slot():
    env = make_vec("PongNoFrameskip-v4", 3)
    first = reset_slots(env, np.ones(3, dtype=bool), [5, 6, 5])
    assert (first[0] == first[2]).all()
    for _ in range(20):
        env.step(np.array([2, 3, 4]))
    again = reset_slots(env, np.array([False, True, False]), [5])
    assert (again[1] == first[0]).all()
    assert not (again[0] == first[0]).all()


def test_reset_slots_leaves_the_other_environments_alone():
    env = make_vec("CartPole-v1", 3)
    first = reset_slots(env, np.ones(3, dtype=bool), [1, 2, 3])
    moved, *_ = env.step(np.array([1, 1, 1]))
    again = reset_slots(env, np.array([False, True, False]), [1])
    np.testing.assert_array_equal(again[1], first[0])
    np.testing.assert_array_equal(again[[0, 2]], moved[[0, 2]])


@pytest.mark.parametrize(
    ("env_id", "shape"),
    [
        ("CartPole-v1", (4,)),
        ("BipedalWalker-v3", (24,)),
        ("HalfCheetah-v5", (17,)),
        ("PongNoFrameskip-v4", (4, 84, 84)),
        ("dm:cartpole-balance", (5,)),
        ("dm:humanoid-stand", (67,)),
    ],
)
def test_every_kind_of_environment_can_be_made_and_stepped(env_id, shape):
    env = make_vec(env_id, 2)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (2, *shape)
    obs, rewards, *_ = env.step(env.action_space.sample())
    assert obs.shape == (2, *shape)
    assert rewards.shape == (2,)


def test_rom_names():
    assert atari_rom("MsPacmanNoFrameskip-v4") == "ms_pacman"
    assert atari_rom("QbertNoFrameskip-v4") == "qbert"


@pytest.mark.parametrize(
    ("env_id", "near"),
    [
        ("CartPole-v7", "CartPole-v"),
        ("Cartpole-v1", "CartPole-v1"),
        ("PnogNoFrameskip-v4", "pong"),
        ("dm:cartpole-blance", "dm:cartpole-balance"),
    ],
)
def test_unknown_environments_are_named_with_the_nearest(env_id, near):
    with pytest.raises(QuarlError, match=near) as caught:
        make_env(env_id)
    assert env_id in str(caught.value)
