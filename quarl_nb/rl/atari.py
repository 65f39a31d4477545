"""Atari games with the protocol of stable-baselines3's ``AtariWrapper``, in C++ and one at a time.

Up to 30 no-ops at reset, frame skip 4, max over the last two frames, grey 84 x 84, four frames
stacked, no sticky actions, fire at reset and after a lost life where the game has it, raw rewards.
(Mnih et al. 2015; the limit of 108,000 emulator frames is half an hour of play.)
"""

from __future__ import annotations

import re
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from quarl_nb.errors import QuarlError, check_values, did_you_mean

ATARI_SUFFIX = "NoFrameskip-v4"
ATARI_NOOP_MAX = 30
ATARI_FRAME_SKIP = 4
FIRE = 1  # in every game that has it


def check_env_id(env_id: str) -> None:
    """QuarlError of what cannot be an environment's name, such as None."""
    check_values(str, bool, "an environment's name", env_id=env_id)


def is_atari(env_id: str) -> bool:
    """True for names of the form ``PongNoFrameskip-v4``; QuarlError of what is no name."""
    check_env_id(env_id)
    return env_id.endswith(ATARI_SUFFIX)


def atari_rom(env_id: str) -> str:
    """ale-py's ROM name of an Atari id: ``MsPacmanNoFrameskip-v4`` -> ``ms_pacman``."""
    game = env_id.removesuffix(ATARI_SUFFIX)
    rom = re.sub(r"(?<!^)(?=[A-Z])", "_", game).lower()
    known = roms.get_all_rom_ids()
    if rom not in known:
        hint = did_you_mean(rom, known)
        raise QuarlError(f"unknown environment '{env_id}': ale-py has no game '{rom}'{hint}")
    return rom


class FiringAtariVectorEnv(AtariVectorEnv):
    """ale-py's vector environment where the first action after a lost life is to fire.

    Breakout serves no ball until then. SB3's wrappers, as OpenAI Baselines' before them, fire where
    a lost life begins another episode, in training and in the returns that are reported; ale-py
    fires at the start of a game alone. What an agent chose for that one step is not played.
    """

    def __init__(self, game: str, num_envs: int, **options: Any) -> None:
        super().__init__(game, num_envs, **options)
        self._has_fire = ale_py.Action.FIRE in self.ale.get_action_set()
        self._lives = np.zeros(num_envs, dtype=np.int64)
        self._lost_life = np.zeros(num_envs, dtype=bool)

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """As ale-py's; environments that `reset_mask` leaves out still have their shot due."""
        obs, info = super().reset(seed=seed, options=options)
        self._lost_life &= ~(options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        self._lives = info["lives"].copy()
        return obs, info

    def step(self, actions: np.ndarray) -> Any:
        """As ale-py's."""
        self.send(actions)
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        """As ale-py's."""
        super().send(np.where(self._lost_life, FIRE, actions) if self._has_fire else actions)

    def recv(self) -> Any:
        """As ale-py's."""
        answer = super().recv()
        lives = answer[-1]["lives"]
        self._lost_life = lives < self._lives
        self._lives = lives.copy()
        return answer


class FireAfterLostLife(gym.Wrapper):
    """`FiringAtariVectorEnv` for one environment of ``gym.make``."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._has_fire = self._game.get_action_meanings()[FIRE] == "FIRE"
        self._lost_life = False

    @property
    def _game(self) -> Any:
        return self.unwrapped

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        self._lost_life = False
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's."""
        lives = self._game.ale.lives()
        answer = self.env.step(FIRE if self._has_fire and self._lost_life else action)
        self._lost_life = self._game.ale.lives() < lives
        return answer


def make_atari_vec(
    env_id: str,
    n_envs: int,
    *,
    n_threads: int = 1,
    autoreset: AutoresetMode = AutoresetMode.NEXT_STEP,
    life_loss_info: bool = False,
) -> AtariVectorEnv:
    """`n_envs` games in C++: uint8 observations ``[n_envs, 4, 84, 84]``.

    Raises:
        QuarlError: no such game, naming the nearest one.
    """
    return FiringAtariVectorEnv(
        atari_rom(env_id),
        n_envs,
        num_threads=n_threads,
        autoreset_mode=autoreset,
        noop_max=ATARI_NOOP_MAX,
        frameskip=ATARI_FRAME_SKIP,
        reward_clipping=False,
        life_loss_info=life_loss_info,
    )


def make_atari_env(env_id: str) -> gym.Env:
    """One game in stable-baselines3's reference wrappers: uint8 observations ``[4, 84, 84]``.

    Raises:
        QuarlError: no such game, naming the nearest one.
    """
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    atari_rom(env_id)
    gym.register_envs(ale_py)
    env = AtariWrapper(gym.make(env_id), terminal_on_life_loss=False, clip_reward=False)
    frames = gym.wrappers.ReshapeObservation(FireAfterLostLife(env), (84, 84))  # of [84, 84, 1]
    return gym.wrappers.FrameStackObservation(frames, 4, padding_type="zero")
