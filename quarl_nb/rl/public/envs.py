"""The environments that public agents were trained in, made from today's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np

from quarl_nb.rl.envs import make_env


class TimeFeature(gym.ObservationWrapper):
    """Appends the remaining time, 1 at the start and 0 at the limit (Pardo et al. 2018).

    Observations ``[size]`` become ``[size + 1]``.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        box = env.observation_space
        assert isinstance(box, gym.spaces.Box) and env.spec and env.spec.max_episode_steps
        self.limit, self.elapsed = env.spec.max_episode_steps, 0
        self.observation_space = gym.spaces.Box(
            np.append(box.low, 0.0).astype(np.float32), np.append(box.high, 1.0).astype(np.float32)
        )

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.elapsed = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        self.elapsed += 1
        return super().step(action)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        remaining = 1.0 - self.elapsed / self.limit
        return np.append(observation, remaining).astype(np.float32)


class BabyA3CFrame(gym.ObservationWrapper):
    """The frame of github.com/greydanus/baby-a3c: float32 ``[1, 80, 80]`` in 0..1.

    Rows 35 to 195, the mean of the colours, stretched to 0..255 (scipy's `imresize` did),
    resized by Pillow's bilinear filter.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1, 80, 80), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        from PIL import Image

        grey = observation[35:195].mean(axis=2)
        low, high = grey.min(), grey.max()
        scale = 255.0 / (high - low) if high > low else 1.0
        stretched = ((grey - low) * scale + 0.5).astype(np.uint8)
        small = Image.fromarray(stretched).resize((80, 80), Image.Resampling.BILINEAR)
        return np.asarray(small, dtype=np.float32)[None] / np.float32(255.0)


class OpenAIPongFrame(gym.ObservationWrapper):
    """The frame of github.com/bhctsntrk/OpenAIPong-DQN: float32 ``[64, 80]`` in 0..1.

    Grey with red and blue exchanged, the score cut off, resized to 64 x 80, and then, as the
    author does, its 80 rows of 64 read as 64 rows of 80.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (64, 80), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        import cv2

        grey = cv2.cvtColor(observation, cv2.COLOR_BGR2GRAY)[20:]
        return (cv2.resize(grey, (64, 80)).reshape(64, 80) / 255.0).astype(np.float32)


class NewestFirst(gym.ObservationWrapper):
    """Turns a stack of frames ``[k, h, w]`` round: the newest one comes first."""

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(observation[::-1])


class EpsilonGreedyWrapper(gym.ActionWrapper):
    """Replaces an action by a uniformly random one with some probability.

    Draws from the environment's own generator, so that `reset(seed=...)` repeats an episode.
    """

    def __init__(self, env: gym.Env, probability: float) -> None:
        super().__init__(env)
        self.probability = probability

    def action(self, action: Any) -> Any:
        assert isinstance(self.action_space, gym.spaces.Discrete)
        random = self.unwrapped.np_random
        if random.random() < self.probability:
            return int(random.integers(self.action_space.n))
        return action


def make_time_feature(env_id: str) -> gym.Env:
    """An environment with `TimeFeature`."""
    return TimeFeature(make_env(env_id))


def make_baby_a3c(env_id: str) -> gym.Env:
    """Baby-A3C's environment: old Gym's ``Pong-v4``, ten thousand steps at most."""
    frames = BabyA3CFrame(_make_old_atari(env_id, frameskip=(2, 5)))
    return gym.wrappers.TimeLimit(frames, 10_000)


def make_openai_pong(env_id: str) -> gym.Env:
    """OpenAIPong-DQN's environment: old Gym's ``PongDeterministic-v4``, four frames stacked.

    Its author's agent takes a random action in 20; without it every game would be the same.
    """
    game = _make_old_atari(env_id, frameskip=4)
    frames = OpenAIPongFrame(EpsilonGreedyWrapper(game, probability=0.05))
    return NewestFirst(gym.wrappers.FrameStackObservation(frames, 4, padding_type="reset"))


MAKERS: dict[str, Callable[[str], gym.Env]] = {
    "time-feature": make_time_feature,
    "baby-a3c": make_baby_a3c,
    "openai-pong": make_openai_pong,
}


def _make_old_atari(env_id: str, frameskip: int | tuple[int, int]) -> gym.Env:
    """RGB frames, the minimal actions, no sticky ones; a pair draws the skip from [low, high)."""
    gym.register_envs(ale_py)
    return gym.make(
        env_id, frameskip=frameskip, repeat_action_probability=0.0, full_action_space=False
    )
