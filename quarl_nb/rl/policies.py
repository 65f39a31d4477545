"""Policies: the network of a description, and its safe form on disk."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.paths import write_atomically
from quarl_nb.rl.spec import Head, PolicySpec

__all__ = ["Head", "PolicyNet", "PolicySpec", "load_policy", "save_policy"]

FORMAT_VERSION = 1
TENSORS, DESCRIPTION = "policy.safetensors", "policy.json"
MAX_PART_BYTES = 4_500_000  # the repository has no files of more than 5 MB
_INPUT_LAYERS = ("normalize", "divide")


class PolicyNet(nn.Module):
    """A policy as one module, from raw observations to outputs.

    Args:
        spec: its description.
        tensors: the weights by name, as in `state_dict()`.

    Raises:
        QuarlError: tensors are missing, too many, of wrong shape, or not finite.
    """

    def __init__(self, spec: PolicySpec, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(layer.build() for layer in spec.layers)
        _check_tensors(self.state_dict(), tensors)
        self.load_state_dict(dict(tensors), assign=True)
        self.requires_grad_(False)
        self.eval()
        self._check_shapes()

    @classmethod
    def from_sb3(cls, model: Any, env_id: str | None = None, **options: Any) -> PolicyNet:
        """The acting path of a stable-baselines3 (or sb3-contrib) model; see `rl.sb3`."""
        from quarl_nb.rl.sb3 import policy_from_model

        return policy_from_model(model, env_id=env_id, **options)

    def with_head(self, kind: str) -> PolicyNet:
        """The same network, whose outputs another head without bounds turns into actions."""
        head = replace(self.spec.head, kind=kind)
        return PolicyNet(replace(self.spec, head=head), self.state_dict())

    @property
    def recurrent(self) -> bool:
        return any(layer.kind == "gru_cell" for layer in self.spec.layers)

    def _check_shapes(self) -> None:
        """Run once; torch's meta device would do, but imports its compiler for that (2 s)."""
        head, shape = self.spec.head, self.spec.obs_shape
        device = next((tensor.device for tensor in self.state_dict().values()), None)
        try:
            outputs = self(torch.zeros(1, *shape, device=device))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise QuarlError(f"layers do not fit observations {list(shape)}: {reason}") from error
        if outputs.ndim != 2 or not (head.discrete or outputs.shape[1] == len(head.low)):
            raise QuarlError(f"outputs {list(outputs.shape)} do not fit head '{head.kind}'")

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Logits, action values or action means ``[n, size]`` of raw observations ``[n, ...]``.

        A recurrent policy starts from its initial state; `step` carries the state on.
        """
        return self.step(obs, self.initial_state(len(obs)) if self.recurrent else None)[0]

    def step(
        self, obs: torch.Tensor, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Outputs ``[n, size]`` and the next state ``[n, hidden]`` (None if feed-forward)."""
        kinds = [layer.kind for layer in self.spec.layers]
        # Those two take any dtype; the others take float32.
        x = obs if kinds[0] in _INPUT_LAYERS else obs.float()
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
        return next(self.parameters()).device

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
            return self.spec.head.actions(outputs, generator), state


def save_policy(net: PolicyNet, folder: str | Path, provenance: Mapping[str, Any]) -> Path:
    """Write `folder`/policy.safetensors and policy.json; a half-written pair cannot be loaded.

    Tensors of more than `MAX_PART_BYTES` are cut into policy.safetensors.00, .01 and so on.

    Raises:
        QuarlError: the folder cannot be written, or the weights are not finite.
    """
    folder = Path(folder)
    tensors = {name: t.detach().cpu().contiguous() for name, t in net.state_dict().items()}
    _check_finite(tensors)
    payload = save_safetensors(tensors)
    spec = replace(net.spec, provenance={**net.spec.provenance, **provenance})
    description = {
        "format_version": FORMAT_VERSION,
        "tensors_sha256": hashlib.sha256(payload).hexdigest(),
        "spec": spec.to_json(),
    }
    _write_tensors(folder, payload)
    write_atomically(folder / DESCRIPTION, (json.dumps(description, indent=1) + "\n").encode())
    return folder


def load_policy(source: str | Path, **options: Any) -> PolicyNet:
    """A policy from wherever it lies; opening one never runs code of the file.

    Args:
        source: a folder with policy.safetensors and policy.json; a stable-baselines3 zip;
            `hub:owner/name`; or `public/ppo-CartPole-v1`, one of the public agents.
        options: of `rl.sb3.policy_from_zip`, for a zip (`env_id`, `activation`, `vecnormalize`).

    Raises:
        QuarlError: nothing there, or the file is damaged, tampered with or unsupported; an
            `activation` or `vecnormalize` of what is no zip.
    """
    text, path = str(source), Path(source)
    if text.startswith("hub:"):
        from quarl_nb.rl.hub import load_from_hub

        return load_from_hub(text, **options)
    if path.suffix == ".zip":
        from quarl_nb.rl.sb3 import policy_from_zip

        return policy_from_zip(path, **options)
    for name in ("activation", "vecnormalize"):
        if options.get(name) is not None:
            raise QuarlError(f"{name} goes with an SB3 zip: '{source}' has its own")
    if text.startswith("public/") and not path.exists():
        from quarl_nb.rl.public_agents import load_agent

        return load_agent(text.removeprefix("public/"))
    return _load_folder(path)


def load_spec(folder: Path) -> PolicySpec:
    """What the policy in a folder of `save_policy` is, without its weights.

    Raises:
        QuarlError: no policy there, damaged, or of another format version.
    """
    return _read_description(folder)[0]


def _load_folder(folder: Path) -> PolicyNet:
    spec, sha256 = _read_description(folder)
    try:
        payload = _read_tensors(folder)
    except OSError as error:
        raise _missing(folder, error) from error
    if hashlib.sha256(payload).hexdigest() != sha256:
        raise QuarlError(
            f"{TENSORS} of '{folder}' is truncated or was changed: its SHA-256 differs"
        )
    try:
        return PolicyNet(spec, load_safetensors(payload))
    except (QuarlError, SafetensorError) as error:
        raise QuarlError(f"policy '{folder}': {error}") from error


def _read_description(folder: Path) -> tuple[PolicySpec, str]:
    """The spec, and the SHA-256 that the tensors should have."""
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
    except OSError as error:
        raise _missing(folder, error) from error
    except ValueError as error:
        raise QuarlError(f"{DESCRIPTION} of '{folder}' is damaged: {error}") from error
    version = description.get("format_version") if isinstance(description, dict) else None
    if version != FORMAT_VERSION:
        raise QuarlError(
            f"{DESCRIPTION} of '{folder}' has format version {version}; known: {FORMAT_VERSION}"
        )
    try:
        return PolicySpec.from_json(description["spec"]), description.get("tensors_sha256")
    except (QuarlError, KeyError) as error:
        raise QuarlError(f"policy '{folder}': {error}") from error


def _missing(folder: Path, error: OSError) -> QuarlError:
    name = Path(error.filename or folder).name
    return QuarlError(f"no policy in '{folder}': cannot read {name}")


def _write_tensors(folder: Path, payload: bytes) -> None:
    names = [TENSORS]
    if len(payload) > MAX_PART_BYTES:
        names = [f"{TENSORS}.{i:02}" for i in range(math.ceil(len(payload) / MAX_PART_BYTES))]
    for i, name in enumerate(names):
        write_atomically(folder / name, payload[i * MAX_PART_BYTES : (i + 1) * MAX_PART_BYTES])
    for old in folder.glob(f"{TENSORS}*"):
        if old.name not in names:
            old.unlink()


def _read_tensors(folder: Path) -> bytes:
    parts = [path for path in folder.glob(f"{TENSORS}.*") if path.suffix[1:].isdecimal()]
    parts.sort(key=lambda path: int(path.suffix[1:]))  # as text, .100 comes before .11
    return b"".join(path.read_bytes() for path in parts or [folder / TENSORS])


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
    _check_finite(tensors)


def _check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise QuarlError(f"tensor '{name}' holds NaN or infinite weights")
