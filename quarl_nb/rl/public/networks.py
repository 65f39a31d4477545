"""The networks of public agents that are no stable-baselines3 zips, by their authors' tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import Head, PolicySpec

Tensors = Mapping[str, torch.Tensor]
Network = tuple[PolicySpec, dict[str, torch.Tensor]]  # the description names no environment


def _baby_a3c(tensors: Tensors) -> Network:
    """Four convolutions, a GRU cell and a linear head; frames ``[1, 80, 80]``."""
    parts: list[tuple[str | None, Layer]] = []
    for i in range(1, 5):
        parts.append((f"conv{i}", _conv(tensors[f"conv{i}.weight"], stride=2, padding=1)))
        parts.append((None, Layer("elu")))
    parts.append((None, Layer("flatten")))
    gates, inputs = tensors["gru.weight_ih"].shape
    parts.append(("gru", Layer("gru_cell", {"input_size": inputs, "hidden_size": gates // 3})))
    parts.append(("actor_linear", _linear(tensors["actor_linear.weight"])))
    return _assemble("a3c-gru", parts, tensors, (1, 80, 80), "sample")


def _dueling_dqn(tensors: Tensors) -> Network:
    """Three convolutions with batch normalization and a duelling head; ``[4, 64, 80]``."""
    parts: list[tuple[str | None, Layer]] = []
    for i, stride in ((1, 4), (2, 2), (3, 1)):
        weight = tensors[f"conv{i}.weight"]
        parts.append((f"conv{i}", _conv(weight, stride=stride)))
        parts.append((f"bn{i}", Layer("batch_norm2d", {"num_features": len(weight)})))
        parts.append((None, Layer("relu")))
    parts.append((None, Layer("flatten")))
    hidden, inputs = tensors["Alinear1.weight"].shape
    n_actions = len(tensors["Alinear2.weight"])
    head = Layer(
        "dueling", {"in_features": inputs, "hidden": hidden, "n_actions": n_actions}
    )
    renamed = dict(tensors)
    for ours, theirs in (("advantage", "A"), ("value", "V")):
        for place, number in ((0, 1), (2, 2)):
            for part in ("weight", "bias"):
                name = f"head.{ours}.{place}.{part}"
                renamed[name] = tensors[f"{theirs}linear{number}.{part}"]
    return _assemble("dueling-ddqn", [*parts, ("head", head)], renamed, (4, 64, 80), "argmax")


CONVERTERS = {"a3c-gru": _baby_a3c, "dueling-ddqn": _dueling_dqn}


def _conv(weight: torch.Tensor, **options: int) -> Layer:
    out_channels, in_channels, *kernel = weight.shape
    sizes = {"in_channels": in_channels, "out_channels": out_channels, "kernel_size": kernel}
    return Layer("conv2d", sizes | options)


def _linear(weight: torch.Tensor) -> Layer:
    out_features, in_features = weight.shape
    return Layer("linear", {"in_features": in_features, "out_features": out_features})


def _assemble(
    algo: str, parts: list[tuple[str | None, Layer]], tensors: Tensors,
    obs_shape: tuple[int, ...], head: str,
) -> Network:
    """Description and tensors of layers given with the prefix of their tensors."""
    renamed = {
        f"layers.{i}.{name.removeprefix(prefix + '.')}": tensor
        for i, (prefix, _) in enumerate(parts)
        if prefix is not None
        for name, tensor in tensors.items()
        if name.startswith(prefix + ".")
    }
    layers = tuple(layer for _, layer in parts)
    return PolicySpec(algo, None, obs_shape, layers, Head(head)), renamed
