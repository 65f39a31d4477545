from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

# A worker of pytest has a core, and so has what it starts: with more threads than cores, each
# thread of an operation waits for the other workers'. Read when torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from quarl_nb import runner
from quarl_nb.quant import FixedQuantize
from quarl_nb.quant.affine import affine_qparams
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import Head, PolicyNet, PolicySpec


@pytest.fixture(scope="session", autouse=True)
def timed_lock(tmp_path_factory) -> Iterator[None]:
    """Timed studies wait neither for other workers' nor for one that runs on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "TIMED_LOCK", tmp_path_factory.mktemp("timed") / "lock")
        yield


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


@pytest.fixture
def set_levels() -> Callable[[PolicyNet, np.ndarray], PolicyNet]:
    """`set_levels(net, obs)`: each `fixed_quantize` has the levels of what then enters it."""

    @torch.no_grad()
    def change(net: PolicyNet, obs: np.ndarray) -> PolicyNet:
        x = torch.as_tensor(obs)
        for layer in net.layers:
            if isinstance(layer, FixedQuantize):
                qparams = affine_qparams(x.min(), x.max(), layer.bits)
                layer.scale.copy_(qparams.scale)
                layer.zero_point.copy_(qparams.zero_point)
            x = layer(x)
        return net

    return change


class Broken(CartPoleEnv):
    """Raises at its 200th step."""

    taken = 0

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.taken == 200:
            raise ZeroDivisionError("no such wind")
        return super().step(action)


@pytest.fixture
def broken_env() -> Iterator[str]:
    """The id of a `Broken` environment."""
    gym.register("Broken-v0", Broken)
    yield "Broken-v0"
    del gym.registry["Broken-v0"]


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Interrupts this process, also where it runs in a shell's background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield partial(os.kill, os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)
