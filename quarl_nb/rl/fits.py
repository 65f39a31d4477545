"""Whether a policy fits an environment: what it observes, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import VectorEnv
from torch import nn

from quarl_nb.errors import QuarlError, brief
from quarl_nb.rl.envs import close, factory_for, make_vec
from quarl_nb.rl.policy_net import PolicyNet
from quarl_nb.rl.spec import PolicySpec


def check_fits(
    net: PolicyNet, env_id: str, make: Callable[[], gym.Env] | None = None
) -> None:
    """`check_spaces` of a named environment, or of what `make` makes, which is made for it.

    Raises:
        QuarlError: as `check_spaces` and `make_vec`.
    """
    env = make_vec(env_id, 1, make=factory_for(net, env_id, make))
    try:
        check_acting(net, env, env_id)
    finally:
        close(env)


def check_acting(policy: Any, env: VectorEnv, env_id: str) -> None:
    """`check_spaces` where the policy has a `spec`; one without may act on any arrays.

    Raises:
        QuarlError: as `check_spaces`, or observations that are several arrays.
    """
    observations = env.single_observation_space
    if (spec := getattr(policy, "spec", None)) is not None:
        check_spaces(spec, observations, env.single_action_space, f"'{env_id}'")
    elif isinstance(observations, gym.spaces.Tuple | gym.spaces.Dict):
        raise QuarlError(f"'{env_id}' gives {brief(observations)}, policies take one array: wrap "
                         "it in gymnasium.wrappers.FlattenObservation")  # fmt: skip


def check_spaces(
    spec: PolicySpec, observations: gym.Space, actions: gym.Space, env: str = "the environment"
) -> None:
    """Refuse an environment whose observations or actions are not those of the policy.

    Args:
        env: what messages call it.

    Raises:
        QuarlError: names what the policy has and what the environment wants, which may be
            actions of a kind that no policy has.
    """
    shape, head = spec.obs_shape, spec.head
    if not isinstance(observations, gym.spaces.Box) or observations.shape != shape:
        raise QuarlError(f"the policy takes observations of shape {list(shape)}, {env} gives "
                         f"{_name_observations(observations)}")
    has = (f"{n_outputs(spec)} discrete actions" if head.discrete
           else f"actions of shape {list(head.shape)}")  # fmt: skip
    wants = _name_actions(actions, env)
    if has != wants:
        raise QuarlError(f"the policy has {has}, {env} takes {wants}")
    if isinstance(actions, gym.spaces.Box) and not head.spans(actions):
        raise QuarlError(
            f"the policy's actions go from {min(head.low):g} to {max(head.high):g}, those of "
            f"{env} from {actions.low.min():g} to {actions.high.max():g}: it was trained in "
            "another environment"
        )


def n_outputs(spec: PolicySpec) -> int:
    """How many outputs a policy has: one for each discrete action or continuous dimension."""
    if not spec.head.discrete:
        return len(spec.head.low)
    network = nn.Sequential(*(layer.build() for layer in spec.layers)).eval()
    # Any weights, since torch imports its compiler (2 s) to run a network without; none of zero,
    # by which layers that quantize would divide.
    shapes = network.state_dict().items()
    ones = {name: torch.ones(like.shape, dtype=like.dtype) for name, like in shapes}
    network.load_state_dict(ones, assign=True)
    with torch.no_grad():
        return network(torch.zeros(1, *spec.obs_shape)).shape[1]


def _name_observations(space: gym.Space) -> str:
    return str(list(space.shape)) if isinstance(space, gym.spaces.Box) else brief(space)


def _name_actions(space: gym.Space, env: str) -> str:
    if isinstance(space, gym.spaces.Box):
        return f"actions of shape {list(space.shape)}"
    if not isinstance(space, gym.spaces.Discrete):
        raise QuarlError(f"{env} takes {type(space).__name__} actions; known: Box, Discrete")
    if space.start != 0:  # heads count from 0, as stable-baselines3's policies do
        raise QuarlError(f"{env} counts its actions from {space.start}; known: from 0")
    return f"{space.n} discrete actions"
