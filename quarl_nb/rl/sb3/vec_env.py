"""Vector environments (ale-py's in C++, our own in numpy) as stable-baselines3 ``VecEnv``s."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv

from quarl_nb.rl.atari import make_atari_vec
from quarl_nb.rl.envs import make_vec


class _NativeVecEnv(VecEnv):
    """What both have in common: one object `env` holds all environments."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env = env
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.seed(seed)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)

    def _reset_all(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Reset by the seeds that `seed` has set since the last reset, as SB3's own do."""
        self._returns[:] = 0
        self._lengths[:] = 0
        answer = self.env.reset(seed=self._seeds[0])  # those of the others follow it
        self._reset_seeds()
        return answer

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, attr_name, None)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("its environments have no attributes of their own to set")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list:
        raise NotImplementedError("its environments have no methods of their own")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))


class AtariVecEnv(_NativeVecEnv):
    """Atari for SB3: rewards clipped to their sign, an episode ends at the loss of a life.

    As in SB3's ``AtariWrapper``, except that firing after a lost life is a step of the episode.
    Returns and lengths of whole games (raw rewards) are reported in ``info["episode"]``, as
    SB3's ``Monitor`` does.
    """

    def __init__(self, env_id: str, n_envs: int, seed: int, n_threads: int = 1) -> None:
        env = make_atari_vec(
            env_id,
            n_envs,
            n_threads=n_threads,
            autoreset=AutoresetMode.SAME_STEP,
            life_loss_info=True,
        )
        super().__init__(env, seed)
        self._frames = np.zeros(n_envs, dtype=np.int64)

    def reset(self) -> np.ndarray:
        obs, info = self._reset_all()
        self._frames = info["episode_frame_number"].copy()
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        self.env.send(np.asarray(actions, dtype=np.int64))

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, rewards, terminated, truncated, info = self.env.recv()
        self._returns += rewards
        self._lengths += 1
        dones = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        # A lost life ends the learner's episode but not the game: the game was over, and its
        # environment reset, where the emulator's frame count went back.
        game_over = info["episode_frame_number"] < self._frames
        self._frames = info["episode_frame_number"].copy()
        for i in np.flatnonzero(dones):
            infos[i]["terminal_observation"] = info["final_obs"][i] if game_over[i] else obs[i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            if game_over[i]:
                infos[i]["episode"] = {"r": float(self._returns[i]), "l": int(self._lengths[i])}
                self._returns[i] = 0
                self._lengths[i] = 0
        return obs, np.sign(rewards).astype(np.float32), dones, infos


class ArenaVecEnv(_NativeVecEnv):
    """Our own environments for SB3: all stepped at once, reset in the step that ends an episode.

    Returns and lengths of episodes (raw rewards) are reported in ``info["episode"]``, as SB3's
    ``Monitor`` does, and ``info["is_success"]`` is handed on.

    Args:
        reward_scale: rewards are multiplied by it.
    """

    def __init__(self, env_id: str, n_envs: int, seed: int, reward_scale: float = 1.0) -> None:
        super().__init__(make_vec(env_id, n_envs), seed)
        self._reward_scale = reward_scale

    def reset(self) -> np.ndarray:
        return self._reset_all()[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, rewards, terminated, truncated, info = self.env.step(self._actions)
        self._returns += rewards
        self._lengths += 1
        dones = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(dones):
            infos[i]["terminal_observation"] = obs[i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            infos[i]["is_success"] = bool(info["is_success"][i])
            infos[i]["episode"] = {"r": float(self._returns[i]), "l": int(self._lengths[i])}
        if dones.any():
            obs, _ = self.env.reset(options={"reset_mask": dones})
            self._returns[dones] = 0
            self._lengths[dones] = 0
        return obs, (rewards * self._reward_scale).astype(np.float32), dones, infos

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list:
        """Call a method of the vector environment, which acts on all of them."""
        result = getattr(self.env, method_name)(*args, **kwargs)
        return [result] * len(list(self._get_indices(indices)))
