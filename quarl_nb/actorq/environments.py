"""The environments that actors step: like the algorithm's own, checked against its policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import HumanRendering, OrderEnforcing, PassiveEnvChecker, TimeLimit
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import (
    VecEnvWrapper,
    VecMonitor,
    VecTransposeImage,
    unwrap_vec_wrapper,
)

from quarl_nb.errors import QuarlError, one_line, users_own
from quarl_nb.rl.atari import is_atari
from quarl_nb.rl.envs import (
    MONITOR,
    channels_first,
    close,
    made_by,
    make_env,
    silence_mujoco_deprecations,
)
from quarl_nb.rl.fits import check_spaces
from quarl_nb.rl.spec import PolicySpec

# Wrappers that observations, rewards and ends of episodes are the same without.
UNCHANGING = (Monitor, HumanRendering, OrderEnforcing, PassiveEnvChecker)
GIVE_ONE = "give ActorQ(env=...) a function that makes one environment"


def env_factory(
    algorithm: OffPolicyAlgorithm, env: str | Callable[[], gym.Env] | None
) -> Callable[[], gym.Env]:
    """What makes an actor's environment: `env`, or one like the algorithm's own if it is None.

    Raises:
        QuarlError: cannot be built anew, or no function. (An unknown name is told when it is made.)
    """
    make = env
    if isinstance(env, str):
        make = partial(make_env, env)
        if env in gym.registry and not is_atari(env):
            # The script that registered it may not run where actors do.
            make = partial(_make, gym.spec(env))
    elif env is None:
        make = _like_the_algorithms(algorithm)
    if not callable(make):
        raise QuarlError(f"env is a {type(env).__name__}, not a name or a function that makes one")
    assert algorithm.env is not None
    transpose = unwrap_vec_wrapper(algorithm.env, VecTransposeImage)
    space = algorithm.observation_space
    if transpose is not None and not transpose.skip:
        make = partial(channels_first, make, space.shape)
    return partial(_make_castable, make, space.dtype)


def _make_castable(make: Callable[[], gym.Env], dtype: np.dtype | None) -> gym.Env:
    """An environment whose observations a replay buffer of type `dtype` can hold."""
    env = make()
    space = env.observation_space if isinstance(env, gym.Env) else None
    if space is None or space.dtype is None or dtype is None:
        return env  # refused elsewhere
    if not np.can_cast(space.dtype, dtype, "same_kind"):  # fractions of an integer would be lost
        close(env)
        raise QuarlError(
            f"the environment's observations are {space.dtype}, the algorithm's {dtype}"
        )
    return env


def _like_the_algorithms(algorithm: OffPolicyAlgorithm) -> Callable[[], gym.Env]:
    """Makes what the algorithm acts in, without the layers that SB3 itself puts around."""
    own = _environment(algorithm)
    spec = _spec(own)
    make = partial(_make, spec)
    try:
        # Atari's wrappers do not record their arguments; those of our own are known.
        if is_atari(spec.id) and _without_monitor(make_env(spec.id).spec) == spec:
            return partial(make_env, spec.id)
        again = make()
        alike = _wrappers(again) == _wrappers(own)
        close(again)
        if not alike:  # a spec has one time limit, which `gym.make` puts innermost
            raise QuarlError("its spec keeps neither two time limits nor the place of one")
    except Exception as error:  # of gymnasium, of a wrapper, of the environment
        raise QuarlError(
            f"the algorithm's environment cannot be built anew: {one_line(error)}; {GIVE_ONE}"
        ) from error
    return make


def _wrappers(env: gym.Env) -> list[tuple[type, int | None]]:
    """Those that change what is acted in, from the outermost in; with the steps of a time limit."""
    found = []
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, UNCHANGING):
            limit = env._max_episode_steps if isinstance(env, TimeLimit) else None
            found.append((type(env), limit))
        env = env.env
    return found


def _make(spec: EnvSpec) -> gym.Env:
    silence_mujoco_deprecations()
    return gym.make(spec)


def _environment(algorithm: OffPolicyAlgorithm) -> Any:
    """The first that the algorithm itself acts in; None where they are not in this process."""
    vec: Any = algorithm.env
    while isinstance(vec, VecEnvWrapper):
        if not isinstance(vec, VecTransposeImage | VecMonitor):
            raise QuarlError(f"actors step without {type(vec).__name__}; {GIVE_ONE}")
        vec = vec.venv
    return getattr(vec, "envs", [None])[0]


def _spec(env: gym.Env | None) -> EnvSpec:
    with users_own("environment's spec"):
        spec = None if env is None else _without_monitor(env.spec)
    if spec is None:
        raise QuarlError(f"the algorithm's environment has no gymnasium spec; {GIVE_ONE}")
    return spec


def _without_monitor(spec: EnvSpec | None) -> EnvSpec | None:
    """The spec without SB3's Monitor, and without a window for every actor."""
    if spec is None:
        return None
    wrappers = tuple(w for w in spec.additional_wrappers if w.entry_point != MONITOR)
    kwargs = {k: v for k, v in spec.kwargs.items() if (k, v) != ("render_mode", "human")}
    return replace(spec, additional_wrappers=wrappers, kwargs=kwargs)


def make_checked(make_env: Callable[[], gym.Env], spec: PolicySpec) -> gym.Env:
    """One of the user's environments.

    Raises:
        QuarlError: it cannot be made, or its spaces are not those of the policy.
    """
    env = made_by(make_env)
    try:
        _refuse_normalizers(env)
        check_spaces(spec, env.observation_space, env.action_space)
    except BaseException:
        close(env)
        raise
    return env


def _refuse_normalizers(env: gym.Env) -> None:
    """Each actor would gather statistics of its own, for one replay buffer."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.NormalizeObservation | gym.wrappers.NormalizeReward):
            raise QuarlError(f"ActorQ's actors step raw environments: no {type(env).__name__}")
        env = env.env


def begin_episode(env: gym.Env, seed: int | None = None) -> Any:
    """The first observation of a new episode.

    Raises:
        QuarlError: the environment returned something else than a pair, as those of old Gym do.
    """
    begun = env.reset(seed=seed)
    if not isinstance(begun, tuple) or len(begun) != 2:
        raise QuarlError("environment's reset must return (observation, info)")
    return begun[0]


def random_observations(
    make: Callable[[], gym.Env], spec: PolicySpec, seed: int, steps: int
) -> np.ndarray:
    """What random actions see, ``[steps, *obs_shape]``: inputs that set activations' ranges."""
    env = make_checked(make, spec)
    try:
        env.action_space.seed(seed)
        with users_own("environment"):
            seen = np.empty((steps, *spec.obs_shape), env.observation_space.dtype)
            obs, over = begin_episode(env, seed), False
            for i in range(steps):
                seen[i] = begin_episode(env) if over else obs  # a copy: some reuse their array
                obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
                over = terminated or truncated
        return seen
    finally:
        close(env)
