from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import Head, PolicyNet, PolicySpec


@pytest.fixture
def make_policy() -> Callable[..., PolicyNet]:
    """`make_policy(obs_shape, (kind, options), kind, ..., head=)`: random weights."""

    def make(obs_shape, *layers, head: Head | None = None, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        built = tuple(Layer(layer) if isinstance(layer, str) else Layer(*layer) for layer in layers)
        tensors = {}
        for i, layer in enumerate(built):
            for name, meta in layer.build().state_dict(prefix=f"layers.{i}.").items():
                values = torch.randn(meta.shape, generator=generator, dtype=torch.float64)
                if name.endswith("var"):  # variances are positive
                    values = values.abs() + 0.5
                elif meta.ndim > 1:
                    values *= (2 / meta[0].numel()) ** 0.5
                tensors[name] = values.to(meta.dtype)
        spec = PolicySpec("test", None, obs_shape, built, head or Head("argmax"))
        return PolicyNet(spec, tensors)

    return make
