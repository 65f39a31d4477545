"""Where a record came from: code, packages and machine; never a host, a user or a path."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import quarl_nb
from quarl_nb.processor import command_output, cpu_features, cpu_model, usable_cores

PACKAGES = (
    "torch", "numpy", "stable-baselines3", "sb3-contrib", "gymnasium", "ale-py", "mujoco",
    "dm-control", "shimmy", "onnx", "onnxruntime", "safetensors", "pandas", "scipy",
)  # fmt: skip


def utc_now() -> str:
    """The time now, UTC, ISO 8601 to the millisecond: of one cell's records the newest is shown."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def collect() -> dict[str, Any]:
    """The provenance of work done in this process from now on.

    Returns:
        git_commit, dirty (both None outside git), packages {name: version}, cpu, cpu_features,
        cores (usable by this process), gpu (None without one), os, python, start_time.
    """
    commit, dirty = git_state(Path(__file__).parent)
    return {
        "git_commit": commit,
        "dirty": dirty,
        "packages": package_versions(),
        "cpu": cpu_model(),
        "cpu_features": list(cpu_features()),
        "cores": usable_cores(),
        "gpu": gpu_name(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "start_time": utc_now(),
    }


def git_state(code: Path) -> tuple[str | None, bool | None]:
    """(commit, whether files under `code` differ from it); (None, None) where git has no answer.

    Only the code counts: a run writes records into the same repository.
    """
    # Also of a checkout that is another user's, whose code runs here already.
    git = ("git", "-c", "safe.directory=*", "-C", str(code))
    tracked = command_output(*git, "ls-files", "--", ".")
    commit = command_output(*git, "rev-parse", "--verify", "HEAD")
    if not tracked or commit is None:
        return None, None
    status = command_output(*git, "status", "--porcelain", "--", ".")
    return commit, bool(status)


def package_versions() -> dict[str, str]:
    """Versions of this package and of the installed ones among PACKAGES; imports none of them."""
    versions = {"quarl_nb": quarl_nb.__version__}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def gpu_name() -> str | None:
    """Name of the first NVIDIA GPU, None without one."""
    names = command_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return names.splitlines()[0].strip() if names else None
