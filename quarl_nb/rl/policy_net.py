"""The network of a policy: a description's layers, from raw observations to actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import nn

from quarl_nb.errors import QuarlError, brief
from quarl_nb.quant import is_finite
from quarl_nb.rl.layers import INPUT_DTYPES, Normalize
from quarl_nb.rl.spec import Head, PolicySpec, check_no_nan

# Of one observation, between any two layers: far above any policy's, and 64 MiB of float32.
MAX_VALUES = 2**24


class PolicyNet(nn.Module):
    """A policy as one module, from raw observations to outputs.

    Args:
        spec: its description.
        tensors: the weights by name, as in `state_dict()`.

    Raises:
        QuarlError: tensors are missing, too many, of wrong shape, or not finite; or the layers
            fit neither observations, each other nor the head, make no finite outputs of zeros, mix
            observations, or make more than `MAX_VALUES` of one.
    """

    def __init__(self, spec: PolicySpec, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(layer.build() for layer in spec.layers)
        _check_tensors(self.state_dict(), tensors)
        self.load_state_dict(dict(tensors), assign=True)
        self.requires_grad_(False)
        self.eval()
        self._check_normalization()
        self._check_outputs()

    def with_head(self, kind: str | None) -> PolicyNet:
        """The same network, whose outputs another head without bounds turns into actions; itself
        for None.

        Raises:
            QuarlError: no such head, or a network of simulated precision.
        """
        if kind is None:
            return self
        check_without_hooks(self)
        head = replace(self.spec.head, kind=kind)
        return PolicyNet(replace(self.spec, head=head), self.state_dict())

    @property
    def head(self) -> Head:
        return self.spec.head

    @property
    def recurrent(self) -> bool:
        return any(layer.kind == "gru_cell" for layer in self.spec.layers)

    def _check_normalization(self) -> None:
        """Refuse statistics of anything but raw observations: what runs a policy broadcasts none,
        and normalizes in the type that the first layer takes."""
        shape = self.spec.obs_shape
        for i, layer in enumerate(self.layers):
            if isinstance(layer, Normalize) and (i > 0 or layer.mean.shape != shape):
                raise QuarlError(
                    f"layer 'layers.{i}' (normalize) has statistics {list(layer.mean.shape)}; "
                    f"allowed: {list(shape)}, those of observations, as the first layer"
                )

    def _check_outputs(self) -> None:
        """Refuse a description by what becomes of one observation of zeros."""
        head, shape = self.spec.head, self.spec.obs_shape
        if not self.layers:
            raise QuarlError("a policy needs layers")
        try:
            self._run_zeros(0)  # which allocates nothing, but every layer's output has its shape
            outputs = self._run_zeros(1)
        except (RuntimeError, ValueError, IndexError, TypeError, OverflowError) as error:
            raise QuarlError(
                f"layers do not fit observations {list(shape)}: {brief(error)}"
            ) from error
        if outputs.ndim != 2 or not (head.discrete or outputs.shape[1] == len(head.low)):
            raise QuarlError(f"outputs {list(outputs.shape)} do not fit head '{head.kind}'")
        if not is_finite(outputs):  # of finite weights: an option makes them so, or overflow
            raise QuarlError("layers make NaN or infinite outputs of an observation of zeros")

    def _run_zeros(self, n: int) -> torch.Tensor:
        """Outputs of `n` observations of zeros, checked layer by layer."""
        x = torch.zeros(n, *self.spec.obs_shape, device=self.device)
        for layer in (nn.Identity(), *self.layers):  # the observation itself is checked, too
            x = layer(x)
            if len(x) != n:
                raise QuarlError("layers mix observations")
            if (size := math.prod(x.shape[1:])) > MAX_VALUES:
                raise QuarlError(f"layers make {size} values of one observation; "
                                 f"allowed: {MAX_VALUES}")  # fmt: skip
        return x

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Logits, action values or action means ``[n, size]`` of raw observations ``[n, ...]``.

        A recurrent policy starts from its initial state; `step` carries the state on.
        """
        return self.step(obs, self.initial_state(len(obs)))[0]

    def step(
        self, obs: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Outputs ``[n, size]`` and the next state ``[n, hidden]`` (None if feed-forward)."""
        kinds = [layer.kind for layer in self.spec.layers]
        x = obs if kinds[0] in INPUT_DTYPES else obs.float()
        for kind, layer in zip(kinds, self.layers, strict=True):
            if kind == "gru_cell":
                x = state = layer(x, state)
            else:
                x = layer(x)
        return x, state

    def initial_state(self, n: int) -> torch.Tensor | None:
        """Zeros ``[n, hidden]`` of a recurrent policy, else None."""
        for layer in self.spec.layers:
            if layer.kind == "gru_cell":
                return torch.zeros(n, layer.options["hidden_size"], device=self.device)
        return None

    @property
    def device(self) -> torch.device:
        first = next(chain(self.parameters(), self.buffers()), None)
        return torch.device("cpu") if first is None else first.device

    def act(
        self,
        obs: np.ndarray,
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[np.ndarray, torch.Tensor | None]:
        """Actions of raw observations ``[n, ...]``, and the next state.

        Args:
            state: of a recurrent policy, ``[n, hidden]`` (None: the initial one).
            generator: of the head `sample`.

        Returns:
            int64 ``[n]`` or float32 ``[n, *action shape]``; state ``[n, hidden]`` or None.

        Raises:
            QuarlError: observations of another shape, or outputs that are NaN.
        """
        if obs.shape[1:] != self.spec.obs_shape:
            raise QuarlError(
                f"policy of {self.spec.env_id} takes observations of shape "
                f"{list(self.spec.obs_shape)}, got {list(obs.shape[1:])}"
            )
        with torch.no_grad():
            if state is None:
                state = self.initial_state(len(obs))
            outputs, state = self.step(torch.as_tensor(obs, device=self.device), state)
            check_no_nan(outputs)
            return self.spec.head.actions(outputs, generator), state


def _check_tensors(
    expected: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> None:
    if expected.keys() != tensors.keys():
        odd = sorted(expected.keys() ^ tensors.keys())[0]
        what = "missing" if odd in expected else "unexpected"
        raise QuarlError(f"weights do not fit the description: {what} tensor '{odd}'")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise QuarlError(
                f"tensor '{name}' is {tensor.dtype} {list(tensor.shape)}, "
                f"the description says {expected[name].dtype} {list(expected[name].shape)}"
            )
    check_finite(tensors)


def check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """QuarlError where a tensor holds NaN or infinity."""
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise QuarlError(f"tensor '{name}' holds NaN or infinite weights")


def check_without_hooks(net: PolicyNet) -> None:
    """QuarlError if a layer rounds activations in hooks, as `quantize_module` has them do: neither
    a description nor a payload nor C can hold what hooks do."""
    for name, module in net.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise QuarlError(
                f"layer {name!r} rounds its activations in simulation: "
                "give the policy as it was trained"
            )
