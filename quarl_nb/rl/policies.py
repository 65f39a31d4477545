"""Policies on disk: the safe form of one, and opening whatever form another has."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from quarl_nb.errors import QuarlError, one_line
from quarl_nb.rl.policy_net import PolicyNet, check_finite, check_without_hooks
from quarl_nb.rl.spec import Head, PolicySpec
from quarl_nb.writing import write_together

__all__ = ["Head", "PolicyNet", "PolicySpec", "load_policy", "save_policy"]

FORMAT_VERSION = 1
TENSORS, DESCRIPTION = "policy.safetensors", "policy.json"
MAX_PART_BYTES = 4_500_000  # the repository has no files of more than 5 MB


def save_policy(
    net: PolicyNet, folder: str | Path, provenance: Mapping[str, Any] | None = None
) -> Path:
    """Write `folder`/policy.safetensors and policy.json, which is there only with whole tensors.

    A policy that was there stays until the new one is on the disk.

    Tensors of more than `MAX_PART_BYTES` are cut into policy.safetensors.00, .01 and so on.

    Raises:
        QuarlError: the folder cannot be written, the weights are not finite, activations are
            rounded in simulation (by `quantize_policy`), which the files cannot hold, or
            `provenance` is no JSON (numpy's numbers and arrays are).
    """
    folder = Path(folder)
    check_without_hooks(net)
    check_finite(net.state_dict())
    payload = _payload_of(net)
    spec = replace(net.spec, provenance={**net.spec.provenance, **(provenance or {})})
    description = {
        "format_version": FORMAT_VERSION,
        "tensors_sha256": _sha256(payload),
        "spec": spec.to_json(),
    }
    try:
        text = json.dumps(description, indent=1, default=lambda value: value.tolist()) + "\n"
    except (AttributeError, TypeError, ValueError) as error:
        raise QuarlError(f"cannot describe the policy in JSON: {one_line(error)}") from error
    contents = {folder / name: part for name, part in _cut(payload).items()}
    # Beside other tensors an older description would say that a policy is there.
    stale = [folder / DESCRIPTION, *(path for path in _tensors_in(folder) if path not in contents)]
    write_together(contents | {folder / DESCRIPTION: text.encode()}, stale)
    return folder


def load_policy(
    source: str | Path,
    env_id: str | None = None,
    activation: str | None = None,
    vecnormalize: str | Path | None = None,
) -> PolicyNet:
    """A policy from wherever it lies; opening one never runs code of the file.

    Args:
        source: a folder with policy.safetensors and policy.json; a stable-baselines3 zip;
            `hub:owner/name`; or `public/ppo-CartPole-v1`, one of the public agents.
        env_id: where it acts, in place of what the source says.
        activation, vecnormalize: of a zip, see `rl.sb3.convert.policy_from_zip`.

    Raises:
        QuarlError: nothing there, or the file is damaged, tampered with or unsupported; an
            `activation` or `vecnormalize` of what is no zip.
    """
    text, path = str(source), Path(source)
    options: Any = dict(env_id=env_id, activation=activation, vecnormalize=vecnormalize)
    if text.startswith("hub:"):
        from quarl_nb.rl.hub import load_from_hub

        return load_from_hub(text, **options)
    if path.suffix == ".zip" and not path.is_dir():
        from quarl_nb.rl.sb3.convert import policy_from_zip

        return policy_from_zip(path, **options)
    for name in ("activation", "vecnormalize"):
        if options[name] is not None:
            raise QuarlError(f"{name} goes with an SB3 zip: '{source}' has its own")
    if text.startswith("public/") and not path.exists():
        from quarl_nb.rl.public.agents import load_agent

        net = load_agent(text.removeprefix("public/"))
    else:
        net = _load_folder(path)
    net.spec = replace(net.spec, env_id=env_id or net.spec.env_id)
    return net


def load_spec(folder: Path) -> PolicySpec:
    """What the policy in a folder of `save_policy` is, without its weights.

    Raises:
        QuarlError: no policy there, damaged, or of another format version.
    """
    return _read_description(folder)[0]


def load_digest(folder: Path) -> str:
    """SHA-256 of the weights of the policy in a folder of `save_policy`; `load_spec`'s errors."""
    return _read_description(folder)[1]


def digest_of(net: PolicyNet) -> str:
    """SHA-256 of the weights, as `load_digest` tells it once they are saved."""
    return _sha256(_payload_of(net))


def _load_folder(folder: Path) -> PolicyNet:
    spec, sha256 = _read_description(folder)
    try:
        payload = _read_tensors(folder)
    except OSError as error:
        raise _missing(folder, error) from error
    if _sha256(payload) != sha256:
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
    except (ValueError, RecursionError) as error:
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


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _missing(folder: Path, error: OSError) -> QuarlError:
    name = Path(error.filename or folder).name
    return QuarlError(f"no policy in '{folder}': cannot read {name}")


def _payload_of(net: PolicyNet) -> bytes:
    """What policy.safetensors holds."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in net.state_dict().items()}
    return save_safetensors(tensors)


def _cut(payload: bytes) -> dict[str, bytes]:
    """The files of tensors by name."""
    n = math.ceil(len(payload) / MAX_PART_BYTES)
    if n <= 1:
        return {TENSORS: payload}
    return {f"{TENSORS}.{i:02}": payload[i * MAX_PART_BYTES : (i + 1) * MAX_PART_BYTES]
            for i in range(n)}  # fmt: skip


def _tensors_in(folder: Path) -> list[Path]:
    """The parts in order, then the file of tensors that are not cut, whether it is there or not."""
    parts = [path for path in folder.glob(f"{TENSORS}.*") if path.suffix[1:].isdecimal()]
    parts.sort(key=lambda path: int(path.suffix[1:]))  # as text, .100 comes before .11
    return [*parts, folder / TENSORS]


def _read_tensors(folder: Path) -> bytes:
    *parts, whole = _tensors_in(folder)
    return b"".join(path.read_bytes() for path in parts or [whole])
