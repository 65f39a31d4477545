from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.atari_wrappers import (
    AtariWrapper,
    MaxAndSkipEnv,
    NoopResetEnv,
    WarpFrame,
)

from quarl_nb.errors import QuarlError
from quarl_nb.rl.atari import ATARI_FRAME_SKIP, atari_rom, make_atari_vec
from quarl_nb.rl.envs import (
    make_env,
    make_vec,
    named_by_file,
    reset_slots,
)


class FireOnce(gym.Wrapper):
    """ale-py's fire reset: a frame of FIRE, before no-ops (SB3's: FIRE, UP, four frames each)."""

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
    env = NoopResetEnv(FireOnce(env) if has_fire else env)
    env.override_num_noops = episode_frames - has_fire
    env = WarpFrame(MaxAndSkipEnv(env, ATARI_FRAME_SKIP))
    return gym.wrappers.FrameStackObservation(env, 4, padding_type="zero")


# Where moving objects of different colours overlap, the maximum over two frames differs between
# SB3 (of colours, then grey) and ale-py (of greys): a few pixels of some games.
EXACT_FRAMES = {"PongNoFrameskip-v4", "SpaceInvadersNoFrameskip-v4", "BreakoutNoFrameskip-v4"}


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
    game = reference.unwrapped
    has_fire = "FIRE" in game.get_action_meanings()
    differing, returns, done, lives = [], np.zeros(2), False, [game.ale.lives()] * 2
    while not done:
        action = int(generator.integers(vec.single_action_space.n))
        ours, ours_reward, terminated, truncated, _ = vec.step(np.array([action]))
        lost_life = lives[-1] < lives[-2]
        action = 1 if has_fire and lost_life else action
        theirs, their_reward, done, their_truncated, _ = reference.step(action)
        lives.append(game.ale.lives())
        assert ours_reward[0] == their_reward
        assert (terminated[0], truncated[0]) == (done, their_truncated)
        returns += ours_reward[0], their_reward
        differing.append((np.asarray(theirs).squeeze(-1) != ours[0]).mean())
    assert len(differing) > 100
    assert returns[0] == returns[1] != 0
    assert max(differing) == 0 if env_id in EXACT_FRAMES else np.mean(differing) < 0.02


def steps_of_a_game(env: gym.Env, limit: int = 1000) -> int:
    """How long an agent plays Breakout that never does anything."""
    env.reset(seed=3)
    return next((n for n in range(1, limit) if env.step(0)[2]), limit)


def test_who_never_fires_still_loses_all_lives():
    bare = AtariWrapper(gym.make("BreakoutNoFrameskip-v4"), terminal_on_life_loss=False)
    assert steps_of_a_game(bare) == 1000  # the second ball is never served
    assert steps_of_a_game(make_env("BreakoutNoFrameskip-v4")) < 200
    vec = make_atari_vec("BreakoutNoFrameskip-v4", 1)
    vec.reset(seed=3)
    assert any(vec.step(np.array([0]))[2][0] for _ in range(200))


def test_a_shot_stays_due_while_another_game_is_reset():
    def play(reset_other: bool) -> list[np.ndarray]:
        env, lives, frames = make_atari_vec("BreakoutNoFrameskip-v4", 2), [], []
        env.reset(seed=np.array([3, 4]))
        while not lives or lives[-1] == lives[0]:
            lives.append(env.step(np.zeros(2, dtype=np.int64))[-1]["lives"][0])
        if reset_other:
            env.reset(seed=np.array([5]), options={"reset_mask": np.array([False, True])})
        for _ in range(30):
            frames.append(env.step(np.zeros(2, dtype=np.int64))[0][0].copy())
        return frames

    assert np.array_equal(play(reset_other=True), play(reset_other=False))


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
    assert env.single_observation_space.shape == make_env(env_id).observation_space.shape


def test_rescaled_observations_are_the_same_ones_from_their_bounds_to_one():
    raw, scaled = make_env("MountainCar-v0"), make_env("rescaled:MountainCar-v0")
    assert (scaled.observation_space.low == -1).all() and (scaled.observation_space.high == 1).all()
    pairs = [(raw.reset(seed=3)[0], scaled.reset(seed=3)[0])]
    pairs += [(raw.step(2)[0], scaled.step(2)[0]) for _ in range(30)]
    for (position, velocity), obs in pairs:
        # Positions are from -1.2 to 0.6, velocities from -0.07 to 0.07.
        assert obs == pytest.approx([(position + 0.3) / 0.9, velocity / 0.07], abs=1e-5)
        assert obs.dtype == np.float32
    vec = make_vec("rescaled:MountainCar-v0", 2)
    assert vec.reset(seed=0)[0].min() > -0.35  # raw positions: -0.6 to -0.4


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "dm:cartpole-balance"])
def test_only_vectors_with_bounds_can_be_rescaled(env_id):
    with pytest.raises(QuarlError, match=f"between finite bounds that differ, not of '{env_id}': "):
        make_env(f"rescaled:{env_id}")


@pytest.mark.parametrize(("high", "dtype"), [
    ([5, 5], np.int64), ([5, 5], np.uint8), ([5, 0], np.float32),
])  # fmt: skip
def test_integers_and_what_never_changes_cannot_be_rescaled(high, dtype):
    class Own(gym.Env):
        observation_space = gym.spaces.Box(0, np.array(high, dtype), (2,), dtype)
        action_space = gym.spaces.Discrete(2)

    gym.register("Own-v0", Own, disable_env_checker=True)
    try:
        with pytest.raises(QuarlError, match="vectors of floats between finite bounds that differ"):
            make_env("rescaled:Own-v0")
    finally:
        del gym.registry["Own-v0"]


def test_one_environment_is_not_stepped_in_two_places():
    shared = make_env("CartPole-v1")
    with pytest.raises(QuarlError, match="it must make a new one each time"):
        make_vec("own", 2, make=lambda: shared)
    assert make_vec("own", 1, make=lambda: shared).num_envs == 1


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


@pytest.mark.parametrize("env_id", ["quarl/AirNavigaton-v0", "quarl/AirNavigation-v7"])
def test_an_unknown_one_of_our_own_is_one_line_as_a_vector_too(env_id):
    for make in (make_env, lambda env_id: make_vec(env_id, 2)):
        with pytest.raises(QuarlError, match=f"'{env_id}'; did you mean 'quarl/AirNavigation-v0'"):
            make(env_id)


def test_an_environment_of_a_module_that_is_not_found_or_registers_nothing(tmp_path, monkeypatch):
    for name, imported in (("empty_module", "gymnasium"), ("broken_module", "no_such_dependency")):
        (tmp_path / f"{name}.py").write_text(f"import {imported}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(QuarlError, match="'empty_module' must gymnasium.register the id 'MyEnv'"):
        make_env("empty_module:MyEnv")
    for module, missing in (("no_module", "no_module"), ("broken_module", "no_such_dependency")):
        with pytest.raises(QuarlError) as caught:
            make_env(f"{module}:MyEnv-v0")
        assert str(caught.value) == (
            f"cannot import environment '{module}:MyEnv-v0' (No module named '{missing}'): "
            "put its folder on PYTHONPATH"
        )


@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_of_a_retired_environment_no_folder_is_advised():
    with pytest.raises(QuarlError, match="^cannot import environment 'HalfCheetah-v3' .*moved"):
        make_env("HalfCheetah-v3")
    with pytest.raises(QuarlError) as caught:
        make_env("HalfCheetah-v3")
    assert "PYTHONPATH" not in str(caught.value)


@pytest.mark.parametrize("env_id", [
    None, "CartPole-v1", "quarl/AirNavigation-v0", "dm:walker-stand", "rescaled:MountainCar-v0",
    "rescaled:dm:walker-stand",
])  # fmt: skip
def test_a_file_may_name_what_imports_no_module_of_its_choice(env_id):
    assert named_by_file(env_id) == env_id
    if env_id:
        with pytest.raises(QuarlError, match="would run that module's code"):
            named_by_file(f"module:{env_id}")


@pytest.mark.parametrize(("error", "says"), [
    (RuntimeError("no such wind\nat all"), "raised .*no such wind$"),
    (gym.error.DependencyNotInstalled("Box2D is not installed"), "lacks a package: .*Box2D"),
])  # fmt: skip
def test_what_an_environment_raises_when_it_is_made_is_one_line(error, says):
    def broken(**_):
        raise error

    gym.register("Windless-v0", broken)
    try:
        with pytest.raises(QuarlError, match=f"^environment 'Windless-v0' {says}"):
            make_env("Windless-v0")
    finally:
        del gym.registry["Windless-v0"]
