"""The layers that a policy is made of, each built from its kind and plain options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from quarl_nb.errors import QuarlError, brief, check_choice
from quarl_nb.quant import FixedQuantize


class Normalize(nn.Module):
    """Observation normalization by fixed statistics, as SB3's ``VecNormalize`` does.

    ``clip((x - mean) / sqrt(var + epsilon), -clip, clip)``, in double precision as there.

    Shapes: ``[n, *shape]`` of any dtype -> float32 ``[n, *shape]``.
    """

    mean: torch.Tensor
    var: torch.Tensor

    def __init__(self, shape: list[int], epsilon: float, clip: float) -> None:
        super().__init__()
        self.epsilon, self.clip = epsilon, clip
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x.double() - self.mean) / torch.sqrt(self.var + self.epsilon)
        return torch.clamp(x, -self.clip, self.clip).float()


class Divide(nn.Module):
    """``x / by`` in float32: the /255 of frames ``[n, c, h, w]`` of uint8."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / self.by


class Dueling(nn.Module):
    """Duelling head (Wang et al. 2016, eq. 9): ``Q = V + A - mean(A)``.

    Both streams are Linear, LeakyReLU, Linear. Shapes: ``[n, in_features]`` -> ``[n, n_actions]``.
    """

    def __init__(self, in_features: int, hidden: int, n_actions: int) -> None:
        super().__init__()
        self.advantage = _two_layers(in_features, hidden, n_actions)
        self.value = _two_layers(in_features, hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(dim=1, keepdim=True)


class QuantileMean(nn.Module):
    """Action values as the mean over quantiles (QR-DQN, Dabney et al. 2018).

    Shapes: ``[n, n_quantiles * n_actions]`` -> ``[n, n_actions]``.
    """

    def __init__(self, n_quantiles: int, n_actions: int) -> None:
        super().__init__()
        self.shape = (n_quantiles, n_actions)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, *self.shape).mean(dim=1)


def _two_layers(in_features: int, hidden: int, out_features: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_features, hidden), nn.LeakyReLU(), nn.Linear(hidden, out_features)
    )


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}
# Those that take raw observations, and the type that they take them in; others take float32.
INPUT_DTYPES = {"normalize": "float64", "divide": "uint8"}
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "normalize": Normalize,
    "divide": Divide,
    "linear": nn.Linear,
    "conv2d": nn.Conv2d,
    "batch_norm2d": nn.BatchNorm2d,
    "layer_norm": nn.LayerNorm,
    "flatten": nn.Flatten,
    "gru_cell": nn.GRUCell,
    "dueling": Dueling,
    "quantile_mean": QuantileMean,
    "fixed_quantize": FixedQuantize,
    "hardtanh": nn.Hardtanh,
    **ACTIVATIONS,
}


@dataclass(frozen=True)
class Layer:
    """One layer: its kind and the keyword arguments it is built with.

    >>> Layer("linear", {"in_features": 4, "out_features": 64})
    >>> Layer("tanh")
    """

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("layer", self.kind, LAYERS)
        if not isinstance(self.options, Mapping):
            raise QuarlError(f"layer '{self.kind}' has no object of options: {self.options!r}")

    def build(self) -> nn.Module:
        """The module on the meta device: no file can make it allocate memory.

        Raises:
            QuarlError: the options do not fit the kind.
        """
        try:
            if placed := {"device", "dtype"}.intersection(self.options):
                raise TypeError(f"{placed.pop()} is not its to choose")
            # Torch would fill the borders of any other in memory, large ones too.
            if (mode := self.options.get("padding_mode", "zeros")) != "zeros":
                raise ValueError(f"padding_mode {mode!r}; allowed: 'zeros'")
            with torch.device("meta"):
                return LAYERS[self.kind](**self.options)
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise QuarlError(f"layer '{self.kind}' has bad options: {brief(error)}") from error


def class_path(value: Any) -> str:
    """Where a class is, as its text in SB3's zips says; what is no class as Python writes it."""
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else repr(value)


def kind_of_class(path: str) -> str:
    """The kind of an activation by `class_path`: one of the same name may compute another."""
    by_path = {class_path(module): kind for kind, module in ACTIVATIONS.items()}
    return by_path.get(path) or check_choice("activation", path, ACTIVATIONS)


def activation_kind(name: str) -> str:
    """The kind of an activation named as torch's class (`ReLU`, `LeakyReLU`) or as here."""
    by_class = {module.__name__: kind for kind, module in ACTIVATIONS.items()}
    return by_class.get(name) or check_choice("activation", name, ACTIVATIONS)
