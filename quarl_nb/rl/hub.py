"""Policies from the Hugging Face Hub: ``hub:sb3/ppo-CartPole-v1``, read as safely as any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from quarl_nb.errors import QuarlError, brief
from quarl_nb.rl.envs import named_by_file
from quarl_nb.rl.policies import DESCRIPTION, TENSORS, PolicyNet, load_policy
from quarl_nb.rl.sb3.normalization import ANY_STATISTICS, SETTINGS

PREFIX = "hub:"
_FILES = (f"{TENSORS}*", DESCRIPTION, "*.zip", ANY_STATISTICS, SETTINGS, f"*/{SETTINGS}")

# (repository, revision) -> folder with its files
Download = Callable[[str, str | None], str]


def load_from_hub(source: str, download: Download | None = None, **options: Any) -> PolicyNet:
    """The policy of a repository on the Hub.

    Args:
        source: ``hub:owner/name``, or ``hub:owner/name@revision``.
        download: fetches a repository's files (default: huggingface_hub's `snapshot_download`).
        options: of `rl.sb3.convert.policy_from_zip`; `env_id` is where the policy of a folder
            acts, too.

    Raises:
        QuarlError: no such repository, no network, no policy in it, a bad file, or one that names
            an environment whose module would be imported (`env_id` names it all the same).
    """
    repository, _, revision = source.removeprefix(PREFIX).partition("@")
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise QuarlError(f"bad source '{source}'; allowed: {PREFIX}owner/name[@revision]")
    folder = Path((download or _snapshot)(repository, revision or None))
    if (folder / DESCRIPTION).is_file():
        net = load_policy(folder, **options)
    else:
        net = load_policy(_zip_in(folder, repository), **options)
    origin = {"source": f"{PREFIX}{repository}", "revision": revision or folder.name}
    # Whoever saves the policy makes it their own, and its environment is then trusted.
    env_id = options.get("env_id") or named_by_file(net.spec.env_id)
    net.spec = replace(net.spec, env_id=env_id, provenance={**net.spec.provenance, **origin})
    return net


def _zip_in(folder: Path, repository: str) -> Path:
    named = folder / f"{repository.split('/')[1]}.zip"
    zips = [named] if named.is_file() else sorted(folder.glob("*.zip"))
    if len(zips) != 1:
        names = ", ".join(file.name for file in zips) or "none"
        raise QuarlError(f"'{PREFIX}{repository}' must hold one model zip, it holds: {names}")
    return zips[0]


def _snapshot(repository: str, revision: str | None) -> str:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise QuarlError(
            f"'{PREFIX}{repository}' needs huggingface_hub: pip install 'quarl_nb[hub]'"
        ) from error
    try:
        return snapshot_download(repository, revision=revision, allow_patterns=list(_FILES))
    except HfHubHTTPError as error:
        raise QuarlError(f"no repository '{repository}' on the Hub: {brief(error)}") from error
    except (LocalEntryNotFoundError, OSError, ValueError) as error:
        raise QuarlError(f"cannot fetch '{repository}' from the Hub: {brief(error)}") from error
