"""Checkpoints of a training run: tensors and numbers alone, read with ``weights_only=True``."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd

from quarl_nb.errors import QuarlError

FORMAT = 1
# Larger replay buffers (Atari's) are not saved: a resumed run fills them again first.
MAX_SAVED_BUFFER_BYTES = 500_000_000
# What SB3 counts by, beside `num_timesteps`: target updates and delays depend on it.
_COUNTERS = ("_n_updates", "_n_calls")
_BUFFERS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


@dataclass
class Progress:
    """What a run has reached so far, kept in its checkpoint."""

    timesteps: int = 0
    wall_s: float = 0.0
    best_return: float = -float("inf")
    best_timesteps: int = 0
    done: bool = False


def save_checkpoint(path: Path, model: BaseAlgorithm, progress: Progress) -> None:
    """Write parameters, optimizers, normalization and replay buffer by atomic rename.

    Raises:
        QuarlError: the file cannot be written.
    """
    state: dict[str, Any] = {"format": FORMAT, "progress": asdict(progress)}
    state["parameters"] = model.get_parameters()
    state["counters"] = {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)}
    state["normalizer"] = {
        name: {"mean": torch.as_tensor(rms.mean), "var": torch.as_tensor(rms.var),
               "count": float(rms.count)}
        for name, rms in _running_statistics(model).items()
    }  # fmt: skip
    if isinstance(model, OffPolicyAlgorithm):
        state["replay"] = _replay_state(model)
    temporary = path.with_suffix(".tmp")
    try:
        torch.save(state, temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        temporary.unlink(missing_ok=True)
        raise QuarlError(f"cannot write checkpoint '{path}': {error}") from error


def load_checkpoint(path: Path, model: BaseAlgorithm) -> Progress:
    """Put a checkpoint into `model`, in place; the reverse of `save_checkpoint`.

    Raises:
        QuarlError: the file is damaged, of another format, or of another recipe.
    """
    try:
        state = torch.load(path, weights_only=True)
        if state["format"] != FORMAT:
            raise QuarlError(f"it has format {state['format']}, this version reads {FORMAT}")
        model.set_parameters(state["parameters"], exact_match=True, device="cpu")
        for name, rms in _running_statistics(model).items():
            saved = state["normalizer"][name]
            rms.mean, rms.var = saved["mean"].numpy(), saved["var"].numpy()
            rms.count = saved["count"]
        for name, count in state.get("counters", {}).items():
            setattr(model, name, count)
        _restore_replay(model, state.get("replay", {}))
        progress = Progress(**state["progress"])
    except Exception as error:  # torch.load raises almost anything on a damaged file
        reason = " ".join(str(error).split())[:200]
        raise QuarlError(
            f"checkpoint '{path}' cannot be read: {reason}; delete it to start anew"
        ) from error
    model.num_timesteps = progress.timesteps
    return progress


def _running_statistics(model: BaseAlgorithm) -> dict[str, RunningMeanStd]:
    """What ``VecNormalize`` has gathered of observations and returns; {} without it."""
    normalizer = model.get_vec_normalize_env()
    if normalizer is None:
        return {}
    assert isinstance(normalizer.obs_rms, RunningMeanStd)  # none of ours observes a dictionary
    return {"obs": normalizer.obs_rms, "ret": normalizer.ret_rms}


def _replay_state(model: OffPolicyAlgorithm) -> dict[str, Any]:
    buffer = model.replay_buffer
    assert buffer is not None
    used = buffer.buffer_size if buffer.full else buffer.pos
    arrays = {name: getattr(buffer, name)[:used] for name in _BUFFERS}
    if sum(array.nbytes for array in arrays.values()) > MAX_SAVED_BUFFER_BYTES:
        return {}
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
    return tensors | {"pos": buffer.pos, "full": buffer.full}


def _restore_replay(model: BaseAlgorithm, saved: dict[str, Any]) -> None:
    if not isinstance(model, OffPolicyAlgorithm):
        return
    buffer = model.replay_buffer
    assert buffer is not None
    if not saved:
        # An empty buffer: collect the warm-up again before learning goes on.
        model.learning_starts += model.num_timesteps
        return
    for name in _BUFFERS:
        getattr(buffer, name)[: len(saved[name])] = saved[name].numpy()
    buffer.pos, buffer.full = saved["pos"], saved["full"]
