"""One way to name and make every environment the papers use, always vectorized.

Names: Gymnasium ids (``CartPole-v1``, ``HalfCheetah-v5``, ``module:MyEnv-v0``), Atari games as
``<Game>NoFrameskip-v4`` (run by ale-py's C++ vector environment with the protocol of
stable-baselines3's ``AtariWrapper``), dm_control tasks as ``dm:<domain>-<task>`` and our own
``quarl/AirNavigation-v0``. ``rescaled:`` before one of bounded vectors scales observations from
their bounds to [-1, 1].
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import quarl_nb.rl.air.navigation  # noqa: F401  which registers our own environments
from quarl_nb.errors import QuarlError, brief, did_you_mean, one_line, users_own
from quarl_nb.rl.atari import check_env_id, is_atari, make_atari_env, make_atari_vec
from quarl_nb.rl.sb3.spaces import obs_of

OURS = "quarl/"
RESCALED = "rescaled:"
MONITOR = "stable_baselines3.common.monitor:Monitor"  # which SB3 puts around every environment


def make_env(env_id: str) -> gym.Env:
    """One unvectorized environment; for Atari, the reference wrappers of stable-baselines3.

    Raises:
        QuarlError: no such environment, naming the nearest one, its module is not found, or it
            raised something.
    """
    check_env_id(env_id)
    if env_id.startswith(RESCALED):
        return _rescaled(env_id.removeprefix(RESCALED))
    if is_atari(env_id):
        return make_atari_env(env_id)
    if env_id.startswith("dm:"):
        return _make_dm_control(env_id)
    silence_mujoco_deprecations()
    try:
        return gym.make(env_id)
    except gym.error.DependencyNotInstalled as error:
        raise QuarlError(f"environment '{env_id}' lacks a package: {one_line(error)}") from error
    except gym.error.Error as error:
        module, _, name = env_id.rpartition(":")
        hint = did_you_mean(env_id, gym.registry) + " (one of your own: its_module:its_id)"
        if module:
            hint = f"; '{module}' must gymnasium.register the id '{name}'"
        raise QuarlError(f"unknown environment '{env_id}'{hint} ({error})") from error
    except ImportError as error:
        reason = str(error).partition(". ")[0]  # gymnasium adds two sentences
        advice = ": put its folder on PYTHONPATH" if ":" in env_id else ""
        raise QuarlError(f"cannot import environment '{env_id}' ({reason}){advice}") from error
    except Exception as error:  # of the user's own environment
        raise QuarlError(f"environment '{env_id}' raised {one_line(error)}") from error


def _rescaled(env_id: str) -> gym.Env:
    env = make_env(env_id)
    space = env.observation_space
    if not (isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and space.is_bounded()
            and space.dtype.kind == "f" and (space.low < space.high).all()):  # fmt: skip
        raise QuarlError(f"'{RESCALED}' is of vectors of floats between finite bounds that differ, "
                         f"not of '{env_id}': {brief(space)}")
    return gym.wrappers.RescaleObservation(env, np.float32(-1), np.float32(1))


def make_vec(
    env_id: str,
    n_envs: int,
    *,
    make: Callable[[], gym.Env] | None = None,
) -> VectorEnv:
    """A vector environment for evaluation: full episodes, raw rewards.

    Atari observations are uint8 ``[n_envs, 4, 84, 84]``. Finished sub-environments are to be
    reset with `reset_slots` before the next step.

    Args:
        make: factory of one environment, in place of the one that `env_id` names.

    Raises:
        QuarlError: as `make_env`, or the factory raised something or returned something else.
    """
    if make is None and is_atari(env_id):
        return make_atari_vec(env_id, n_envs)
    if make is None and env_id.startswith(OURS):
        if env_id not in gym.registry:
            close(make_env(env_id))  # which tells it, and the nearest name
        return gym.make_vec(env_id, num_envs=n_envs)
    made = partial(made_by, make or partial(make_env, env_id))
    with users_own("environment"):
        vec = SyncVectorEnv([lambda: _Optionless(made())] * n_envs,
                            autoreset_mode=AutoresetMode.NEXT_STEP)  # fmt: skip
    check_apart(vec.envs)
    return vec


class _Optionless(gym.Wrapper):
    """Is reset without options, where a vector environment leaves {} of those that it was given."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=options or None)


def made_by(make: Callable[[], gym.Env]) -> gym.Env:
    """What a user's function makes.

    Raises:
        QuarlError: it raised something, or made no environment.
    """
    with users_own("environment"):
        env = make()
    if not isinstance(env, gym.Env):
        kind = type(env).__name__
        raise QuarlError(f"the function that makes environments returned {kind}, not a gym.Env")
    return env


def check_apart(envs: Sequence[gym.Env]) -> None:
    """Refuse one environment in two places, whose episodes would mix.

    Raises:
        QuarlError: the user's function makes the same one each time.
    """
    if len({id(env.unwrapped) for env in envs}) < len(envs):
        raise QuarlError("the function that makes environments returned the same one twice: it "
                         "must make a new one each time")  # fmt: skip


def factory_for(
    policy: Any, env_id: str, make: Callable[[], gym.Env] | None = None
) -> Callable[[], gym.Env] | None:
    """What makes an environment whose frames are turned for the policy if need be, as
    `channels_first` does it; None where `make_vec`'s own way will do.

    Args:
        make: as `make_vec` takes it.
    """
    spec = getattr(policy, "spec", None)
    named_ours = make is None and (is_atari(env_id) or env_id.startswith(OURS))
    if spec is None or len(spec.obs_shape) != 3 or named_ours:
        return make
    return partial(channels_first, make or partial(make_env, env_id), spec.obs_shape)


def named_by_file(env_id: str | None) -> str | None:
    """An environment's name as a policy's file gives it: no file may have code run.

    Raises:
        QuarlError: making it would import a module, which the user alone may name.
    """
    if env_id and ":" in env_id.removeprefix(RESCALED).removeprefix("dm:"):
        raise QuarlError(f"the policy says that it acts in {env_id!r}, which would run that "
                         "module's code: where you trust it, name it yourself (--env, env_id=)")
    return env_id


def channels_first(make: Callable[[], gym.Env], shape: tuple[int, ...] | None) -> gym.Env:
    """An environment of frames ``[channels, height, width]``, as SB3 turns them for its policies.

    Args:
        shape: of the policy's observations; an environment whose frames would not have it when
            they are turned is left as it is.
    """
    env = make()
    space = env.observation_space if isinstance(env, gym.Env) else None
    if not isinstance(space, gym.spaces.Box) or space.shape == shape or not obs_of(space).image:
        return env
    height, width, channels = space.shape
    if shape != (channels, height, width):
        return env
    turned = gym.spaces.Box(0, 255, shape, np.uint8)
    return gym.wrappers.TransformObservation(env, lambda x: np.transpose(x, (2, 0, 1)), turned)


def reset_slots(env: VectorEnv, mask: np.ndarray, seeds: Sequence[int]) -> np.ndarray:
    """Reset the sub-environments in `mask`, each with its own seed; the others stay as they are.

    Args:
        mask: bool ``[n_envs]``.
        seeds: one seed for each True in `mask`, in order.

    Returns:
        observations of all sub-environments ``[n_envs, ...]``.

    Raises:
        QuarlError: one of them raised something.
    """
    options = {"reset_mask": mask}
    if isinstance(env, AtariVectorEnv):
        return env.reset(seed=np.asarray(seeds), options=options)[0]
    per_env: Any = [None] * env.num_envs  # a list is allowed, whatever VectorEnv's types say
    for slot, seed in zip(np.flatnonzero(mask), seeds, strict=True):
        per_env[slot] = int(seed)
    with users_own("environment"):
        return env.reset(seed=per_env, options=options)[0].copy()


def close(env: gym.Env | VectorEnv) -> None:
    """Close an environment that has done its work; an error of its own would hide the real one."""
    parts: Sequence[Any] = env.envs if isinstance(env, SyncVectorEnv) else [env]
    for part in parts:
        with suppress(Exception):
            part.close()


@cache
def silence_mujoco_deprecations() -> None:
    """Gymnasium's own models use attributes that MuJoCo deprecates, once for every environment.

    Without a handler MuJoCo prints each and appends it to a file in the working directory.
    """
    try:
        import mujoco
    except ImportError:
        return

    def report(message: str) -> None:
        if "deprecated" not in message:
            warnings.warn(f"MuJoCo: {message}", RuntimeWarning, stacklevel=2)

    mujoco.set_mju_user_warning(report)


def _make_dm_control(env_id: str) -> gym.Env:
    # With a spec, by which it can be built anew; without gymnasium's checks in every step.
    spec = EnvSpec(env_id, f"{__name__}:load_dm_control", order_enforce=False,
                   disable_env_checker=True, kwargs={"env_id": env_id})  # fmt: skip
    return gym.wrappers.FlattenObservation(gym.make(spec))


def load_dm_control(env_id: str) -> gym.Env:
    """The task ``dm:<domain>-<task>``; its observations are a dictionary.

    Raises:
        QuarlError: no such task, or dm_control is missing.
    """
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "disabled")  # else it looks for a window, and warns
    try:
        from dm_control import suite
        from shimmy.dm_control_compatibility import DmControlCompatibilityV0
    except ImportError as error:
        raise QuarlError(f"'{env_id}' needs pip install 'quarl_nb[dm]' ({error})") from error
    domain, _, task = env_id.removeprefix("dm:").partition("-")
    names = [f"dm:{d}-{t}" for d, t in suite.ALL_TASKS]
    if env_id not in names:
        raise QuarlError(f"unknown environment '{env_id}'{did_you_mean(env_id, names)}")
    return DmControlCompatibilityV0(suite.load(domain, task))
