"""The spaces of stable-baselines3 models: of a live one, or as its zip writes them in text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from quarl_nb.errors import QuarlError


@dataclass(frozen=True)
class ObsSpace:
    """Shape of one observation, and whether it is a uint8 image of 0..255."""

    shape: tuple[int, ...]
    image: bool


@dataclass(frozen=True)
class ActionSpace:
    """`n` actions, or boxes of [low, high], float32 arrays of one action's shape."""

    n: int | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def obs_of(space: gym.Space) -> ObsSpace:
    if not isinstance(space, gym.spaces.Box):
        raise QuarlError(f"unsupported observation space {type(space).__name__}; known: Box")
    image = space.dtype == np.uint8 and len(space.shape) == 3
    return ObsSpace(space.shape, bool(image and not space.low.any() and (space.high == 255).all()))


def action_of(space: gym.Space) -> ActionSpace:
    if isinstance(space, gym.spaces.Discrete):
        return ActionSpace(n=int(space.n))
    if isinstance(space, gym.spaces.Box):
        return ActionSpace(low=space.low, high=space.high)
    raise QuarlError(f"unsupported action space {type(space).__name__}; known: Box, Discrete")


def obs_in(text: Mapping[str, Any]) -> ObsSpace:
    if not str(text.get(":type:")).endswith(".Box'>"):
        raise QuarlError(f"unsupported observation space {text.get(':type:')}; known: Box")
    shape = _shape_in(text)
    image = text.get("dtype") == "uint8" and len(shape) == 3
    bounds = [set(_numbers(text.get(key))) for key in ("low", "high")]
    return ObsSpace(shape, image and bounds == [{0.0}, {255.0}])


def action_in(text: Mapping[str, Any]) -> ActionSpace:
    """Boxes without bounds where the text has them not: numpy abbreviates arrays of over a thousand
    numbers, and old files may lack them."""
    kind = str(text.get(":type:"))
    if kind.endswith(".Discrete'>"):
        return ActionSpace(n=int(text["n"]))
    if not kind.endswith(".Box'>"):
        raise QuarlError(f"unsupported action space {kind}; known: Box, Discrete")
    shape = _shape_in(text)
    low, high = (np.array(_numbers(text.get(k)), np.float32) for k in ("low", "high"))
    if low.size == high.size == int(np.prod(shape)):
        return ActionSpace(low=low.reshape(shape), high=high.reshape(shape))
    return ActionSpace()


def _shape_in(text: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(x) for x in _numbers(text.get("_shape", text.get("shape"))))


def _numbers(text: Any) -> list[float]:
    return [float(x) for x in re.findall(r"[-+]?(?:inf|\d+\.?\d*(?:e[-+]?\d+)?)", str(text))]
