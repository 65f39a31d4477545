"""Policies: a plain description, the network it builds, and their safe form on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import nn

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.rl.layers import Layer

FORMAT_VERSION = 1
TENSORS, DESCRIPTION = "policy.safetensors", "policy.json"
HEADS = ("argmax", "tanh_scale", "clip", "sample")
_INPUT_LAYERS = ("normalize", "divide")


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
        if self.kind == "tanh_scale" and not np.isfinite([*self.low, *self.high]).all():
            raise QuarlError("head 'tanh_scale' needs finite bounds")

    @property
    def discrete(self) -> bool:
        return self.kind in ("argmax", "sample")

    def actions(self, outputs: torch.Tensor, generator: torch.Generator | None) -> np.ndarray:
        """Actions of outputs ``[n, size]``: int64 ``[n]`` or float32 ``[n, *shape]``."""
        if self.kind == "sample":
            if generator is None:
                raise QuarlError("head 'sample' needs a generator")
            probabilities = torch.softmax(outputs.float().cpu(), dim=1)
            return torch.multinomial(probabilities, 1, generator=generator)[:, 0].numpy()
        if self.kind == "argmax":
            return outputs.argmax(dim=1).cpu().numpy()
        low, high = (np.array(bound, np.float32) for bound in (self.low, self.high))
        if self.kind == "clip":
            actions = np.clip(outputs.float().cpu().numpy(), low, high)
        else:
            # The order of operations is SB3's `unscale_action`, so that results are the same bits.
            squashed = torch.tanh(outputs.float()).cpu().numpy()
            actions = low + 0.5 * (squashed + np.float32(1.0)) * (high - low)
        return actions.reshape(-1, *self.shape)


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
            head = value["head"]
            bounds = {key: tuple(float(x) for x in head[key]) for key in ("low", "high")}
            return cls(
                algo=str(value["algo"]),
                env_id=value["env_id"],
                obs_shape=tuple(int(size) for size in value["obs_shape"]),
                layers=tuple(Layer(**layer) for layer in value["layers"]),
                head=Head(head["kind"], **bounds, shape=tuple(int(n) for n in head["shape"])),
                provenance=dict(value["provenance"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise QuarlError(f"bad policy description: {error!r}") from error


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
        self._check_shapes()
        _check_tensors(self.state_dict(), tensors)
        self.load_state_dict(dict(tensors), assign=True)
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def from_sb3(cls, model: Any, env_id: str | None = None, **options: Any) -> PolicyNet:
        """The acting path of a stable-baselines3 (or sb3-contrib) model; see `rl.sb3`."""
        from quarl_nb.rl.sb3 import policy_from_model

        return policy_from_model(model, env_id=env_id, **options)

    @property
    def recurrent(self) -> bool:
        return any(layer.kind == "gru_cell" for layer in self.spec.layers)

    def _check_shapes(self) -> None:
        """Run once on the meta device, which computes shapes only."""
        head, shape = self.spec.head, self.spec.obs_shape
        try:
            outputs = self(torch.empty(1, *shape, device="meta"))
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / TENSORS, payload)
        _replace(folder / DESCRIPTION, (json.dumps(description, indent=1) + "\n").encode())
    except OSError as error:
        raise QuarlError(f"cannot write policy to '{folder}': {error.strerror}") from error
    return folder


def load_policy(source: str | Path, **options: Any) -> PolicyNet:
    """A policy from wherever it lies; opening one never runs code of the file.

    Args:
        source: a folder with policy.safetensors and policy.json; a stable-baselines3 zip;
            `hub:owner/name`; or `public/ppo-CartPole-v1`, one of the public agents.
        options: of `rl.sb3.policy_from_zip`, for a zip (`env_id`, `activation`, `vecnormalize`).

    Raises:
        QuarlError: nothing there, or the file is damaged, tampered with or unsupported.
    """
    text, path = str(source), Path(source)
    if text.startswith("hub:"):
        from quarl_nb.rl.hub import load_from_hub

        return load_from_hub(text, **options)
    if text.startswith("public/") and not path.exists():
        from quarl_nb.rl.public_agents import load_agent

        return load_agent(text.removeprefix("public/"))
    if path.suffix == ".zip":
        from quarl_nb.rl.sb3 import policy_from_zip

        return policy_from_zip(path, **options)
    return _load_folder(path)


def _load_folder(folder: Path) -> PolicyNet:
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
        payload = (folder / TENSORS).read_bytes()
    except OSError as error:
        name = Path(error.filename or folder).name
        raise QuarlError(f"no policy in '{folder}': cannot read {name}") from error
    except ValueError as error:
        raise QuarlError(f"{DESCRIPTION} of '{folder}' is damaged: {error}") from error
    version = description.get("format_version") if isinstance(description, dict) else None
    if version != FORMAT_VERSION:
        raise QuarlError(
            f"{DESCRIPTION} of '{folder}' has format version {version}; known: {FORMAT_VERSION}"
        )
    if hashlib.sha256(payload).hexdigest() != description.get("tensors_sha256"):
        raise QuarlError(
            f"{TENSORS} of '{folder}' is truncated or was changed: its SHA-256 differs"
        )
    try:
        return PolicyNet(PolicySpec.from_json(description["spec"]), load_safetensors(payload))
    except (QuarlError, SafetensorError, KeyError) as error:
        raise QuarlError(f"policy '{folder}': {error}") from error


def _replace(path: Path, payload: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(payload)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
