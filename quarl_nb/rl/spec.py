"""The plain description of a policy: layers, head, where it acts and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.rl.layers import Layer

HEADS = ("argmax", "tanh_scale", "clip", "sample")


@dataclass(frozen=True)
class Head:
    """How outputs become actions.

    `argmax` takes the largest of ``[n, actions]``; `sample` draws from their softmax;
    `clip` clips a mean ``[n, size]`` to [low, high]; `tanh_scale` squashes it by tanh and
    scales (-1, 1) to [low, high].

    Attributes:
        low, high: bounds of a continuous action, flattened; empty for discrete ones.
        shape: shape of one continuous action.
    """

    kind: str
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_choice("head", self.kind, HEADS)
        if self.discrete:
            return
        size = int(np.prod(self.shape))
        if not len(self.low) == len(self.high) == size:
            raise QuarlError(f"head '{self.kind}' needs {size} bounds low and high")
        if not (np.array(self.low) <= np.array(self.high)).all():  # nor is NaN
            raise QuarlError(f"head '{self.kind}' needs bounds low <= high")
        if self.kind == "tanh_scale" and not np.isfinite([*self.low, *self.high]).all():
            raise QuarlError("head 'tanh_scale' needs finite bounds")

    @property
    def discrete(self) -> bool:
        return self.kind in ("argmax", "sample")

    def spans(self, space: spaces.Box) -> bool:
        """Whether a continuous action's bounds are those of a space of the same shape."""
        return np.allclose([space.low.ravel(), space.high.ravel()], [self.low, self.high])

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """`low` and `high`, float32 ``[size]``."""
        with np.errstate(over="ignore"):  # what is beyond float32 is infinite
            return np.array(self.low).astype(np.float32), np.array(self.high).astype(np.float32)

    @cached_property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """The outermost float32 within `low` and `high`, each ``[size]``: bounds of a float64 space
        may lie between two of them."""
        (low, high), infinity = self.bounds, np.float32(np.inf)
        return (np.where(low < self.low, np.nextafter(low, infinity), low),
                np.where(high > self.high, np.nextafter(high, -infinity), high))

    @cached_property
    def _lies_between_floats(self) -> bool:
        """Whether float32 lacks a bound, so that a squashed action may be beyond it."""
        return not all(map(np.array_equal, self.bounds, self.limits))

    def actions(
        self, outputs: torch.Tensor | np.ndarray, generator: torch.Generator | None = None
    ) -> np.ndarray:
        """Actions of outputs ``[n, size]``: int64 ``[n]`` or float32 ``[n, *shape]``.

        An array's are computed by numpy alone, for actors between whose decisions megabytes of
        weights push all code out of the caches; its tanh is an ulp from torch's.
        """
        if self.kind == "sample":
            return _drawn(torch.as_tensor(outputs), generator)
        squash = self.kind == "tanh_scale"
        if isinstance(outputs, torch.Tensor):
            outputs = outputs.float()  # which numpy has, unlike bfloat16
            values = (torch.tanh(outputs) if squash else outputs).cpu().numpy()
        else:
            values = np.tanh(outputs) if squash else outputs
        if self.kind == "argmax":
            return values.argmax(axis=1)
        if squash:
            low, high = self.bounds
            # The order of operations is SB3's `unscale_action`, so that results are the same bits.
            values = low + 0.5 * (values + np.float32(1.0)) * (high - low)
        if not squash or self._lies_between_floats:
            values = np.clip(values, *self.limits)
        return values.reshape(-1, *self.shape)


def _drawn(outputs: torch.Tensor, generator: torch.Generator | None) -> np.ndarray:
    if generator is None:
        raise QuarlError("head 'sample' needs a generator")
    probabilities = torch.softmax(outputs.float().cpu(), dim=1)
    check_no_nan(probabilities)  # as those of infinite outputs are, too
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0].numpy()


def check_no_nan(outputs: torch.Tensor) -> None:
    """QuarlError where outputs of a policy are NaN, from which no action follows."""
    if outputs.isnan().any():
        raise QuarlError("the policy's outputs are NaN or infinite: its observations may be too "
                         "large for its precision")  # fmt: skip


@dataclass(frozen=True)
class PolicySpec:
    """What a policy is, apart from its weights; equal to its JSON.

    Attributes:
        algo: what trained it (`ppo`, `dqn`, ...).
        env_id: where it acts, None if unknown.
        obs_shape: of one raw observation.
        layers: from raw observation to outputs; at most one is recurrent.
        provenance: where it came from, free-form JSON.
    """

    algo: str
    env_id: str | None
    obs_shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    head: Head
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PolicySpec:
        """The reverse of `to_json`; QuarlError when a field is missing or wrong."""
        try:
            head, env_id = value["head"], value["env_id"]
            if not isinstance(env_id, str | None):
                raise TypeError(f"env_id is {env_id!r}, no name")
            bounds = {key: tuple(float(x) for x in head[key]) for key in ("low", "high")}
            return cls(
                algo=str(value["algo"]),
                env_id=env_id,
                obs_shape=tuple(int(size) for size in value["obs_shape"]),
                layers=tuple(Layer(**layer) for layer in value["layers"]),
                head=Head(head["kind"], **bounds, shape=tuple(int(n) for n in head["shape"])),
                provenance=dict(value["provenance"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise QuarlError(f"bad policy description: {error!r}") from error
