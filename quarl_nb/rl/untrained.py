"""Returns of policies that look at nothing: what a policy must beat to have learned.

``python -m quarl_nb.rl.untrained MyEnv-v0`` adds an environment to `data/untrained_returns.json`;
without names it measures those of the recipes and of the public agents again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.paths import read_object, untrained_file
from quarl_nb.provenance import package_versions, utc_now
from quarl_nb.rl.envs import make_env
from quarl_nb.rl.evaluate import Playable, evaluate
from quarl_nb.rl.public.envs import MAKERS
from quarl_nb.rl.recipes import get_recipe, recipes
from quarl_nb.writing import write_atomically

EPISODES = 30
# Of the public agents, besides the recipes', and how theirs are made (`public.envs.MAKERS`) where
# that matters to a policy that looks at nothing. Another agent plays Pong by "openai-pong", where
# random actions earn less (-20.4 instead of -20.1).
PUBLIC_ENVS = {
    "ALE/Breakout-v5": "baby-a3c", "ALE/Pong-v5": "baby-a3c", "Acrobot-v1": None,
    "Hopper-v5": None, "LunarLander-v3": None, "Pendulum-v1": None,
}  # fmt: skip


class RandomPolicy:
    """Draws every action uniformly from the action space (an `evaluate.Playable`).

    Raises:
        QuarlError: neither discrete nor a bounded box.
    """

    def __init__(self, space: gym.Space) -> None:
        bounded = isinstance(space, gym.spaces.Box) and space.is_bounded()
        if not bounded and not isinstance(space, gym.spaces.Discrete):
            raise QuarlError(f"no uniform actions of {space}: Discrete or a bounded Box is needed")
        self.space = space

    def initial_state(self, n: int) -> None:
        return None

    def act(
        self, obs: np.ndarray, state: Any = None, generator: torch.Generator | None = None
    ) -> tuple[np.ndarray, None]:
        """Actions [n] or [n, *shape] for observations [n, ...]."""
        space, n = self.space, len(obs)
        if isinstance(space, gym.spaces.Discrete):
            drawn = torch.randint(int(space.n), (n,), generator=generator)
            return drawn.numpy() + space.start, None
        assert isinstance(space, gym.spaces.Box)
        share = torch.rand((n, *space.shape), generator=generator).numpy()
        return (space.low + share * (space.high - space.low)).astype(space.dtype), None


class IdlePolicy:
    """Always the box's zero, no force, or the bound next to it (an `evaluate.Playable`).

    Beats random actions where actions cost something (MountainCarContinuous, HalfCheetah).
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        self.zero = np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)

    def initial_state(self, n: int) -> None:
        return None

    def act(
        self, obs: np.ndarray, state: Any = None, generator: torch.Generator | None = None
    ) -> tuple[np.ndarray, None]:
        """Actions [n, *shape] for observations [n, ...]."""
        return np.repeat(self.zero[None], len(obs), axis=0), None


def measure(env_id: str, episodes: int = EPISODES) -> dict[str, Any]:
    """One episode for each of the seeds 0 to `episodes` - 1, by policies that learned nothing.

    Those of `PUBLIC_ENVS` are played as the public agents play them.

    Returns:
        seeds; random, and idle unless actions are discrete (none of those is nothing by itself):
        mean, std, returns [episodes]; maker (None where `make_env` makes it), packages,
        start_time.

    Raises:
        QuarlError: no such environment, or its actions have no uniform distribution.
    """
    maker = PUBLIC_ENVS.get(env_id)
    make = partial(MAKERS[maker], env_id) if maker else None
    made = {"maker": maker, "packages": package_versions(), "start_time": utc_now()}
    env = make() if make else make_env(env_id)
    space = env.action_space
    env.close()
    policies: dict[str, Playable] = {"random": RandomPolicy(space)}
    if isinstance(space, gym.spaces.Box):
        policies["idle"] = IdlePolicy(space)
    found = {name: evaluate(policy, env_id, range(episodes), make=make)
             for name, policy in policies.items()}  # fmt: skip
    rows = {name: {"mean": each.mean, "std": each.std, "returns": each.returns}
            for name, each in found.items()}  # fmt: skip
    return {"seeds": list(range(episodes)), **rows, **made}


def add(env_ids: Sequence[str], path: Path | None = None) -> Path:
    """Measure environments and write them into the file, one line each; the others stay.

    Raises:
        QuarlError: the file is damaged or cannot be written, or as `measure`.
    """
    path = path or untrained_file()
    known = read_object(path)
    for env_id in env_ids:
        known[env_id] = measure(env_id)
        lines = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
        write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return path


def default_env_ids() -> list[str]:
    """The environments of the recipes and of the public agents."""
    return sorted({get_recipe(name).env_id for name in recipes()} | {*PUBLIC_ENVS})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=f"Measures into {untrained_file().name}.")
    parser.add_argument("env_ids", nargs="*", metavar="ENV", help="default: all that are known")
    try:
        print(add(parser.parse_args().env_ids or default_env_ids()))
    except QuarlError as error:
        sys.exit(f"error: {error}")
