from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch

from quarl_nb.edge.build import Target, board, this_machine
from quarl_nb.errors import UnavailableError
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
                if name.endswith("var"):
                    values = values.abs() + 0.5
                elif meta.ndim > 1:
                    values *= (2 / meta[0].numel()) ** 0.5
                tensors[name] = values.to(meta.dtype)
        spec = PolicySpec("test", None, obs_shape, built, head or Head("argmax"))
        return PolicyNet(spec, tensors)

    return make


@pytest.fixture
def small_policy(make_policy) -> PolicyNet:
    first = ("linear", {"in_features": 6, "out_features": 40})
    return make_policy((6,), first, "relu", ("linear", {"in_features": 40, "out_features": 5}))


@pytest.fixture
def obs() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((50, 6), dtype=np.float32)


@pytest.fixture(scope="session")
def here() -> Target:
    try:
        return this_machine()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def pi() -> Target:
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("no qemu-aarch64: apt-get install qemu-user")
    try:
        return board("cortex_a53")
    except UnavailableError as error:
        pytest.skip(str(error))
