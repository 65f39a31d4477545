"""The replay buffer in a checkpoint: its tensors, frames compressed, and its restoring."""

from __future__ import annotations

import logging
import zlib
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.errors import QuarlError
from quarl_nb.rl.prioritized import PrioritizedReplayBuffer

logger = logging.getLogger(__name__)

# Larger replay buffers are not saved: a resumed run fills them again first.
MAX_SAVED_BUFFER_BYTES = 500_000_000
_FRAMES = ("observations", "next_observations")
_BUFFERS = (*_FRAMES, "actions", "rewards", "dones", "timeouts")
# What is saved is all that these hold; a user's own may hold more, as priorities.
_KINDS = (ReplayBuffer, NStepReplayBuffer, PrioritizedReplayBuffer)


def replay_state(model: OffPolicyAlgorithm, pos: int, full: bool) -> dict[str, Any]:
    """What a checkpoint holds of the buffer as it was at `pos`; {} where that is too large.

    And of a kind of buffer that is not known.
    """
    buffer = model.replay_buffer
    assert buffer is not None
    if not _is_known(buffer):
        why = ("with optimize_memory_usage it keeps no next observations"
               if type(buffer) in _KINDS
               else f"a {type(buffer).__name__} may hold more than what is saved")
        logger.warning("the checkpoint has no replay buffer, as %s: resumed, the run fills it "
                       "again first", why)
        return {}
    used = buffer.buffer_size if full else pos
    tensors = {name: torch.as_tensor(array[:used]) for name, array in _arrays(buffer).items()}
    if buffer.observations.dtype == np.uint8 and used:
        tensors |= _pack_frames(tensors.pop(_FRAMES[0]).numpy(), tensors.pop(_FRAMES[1]).numpy())
    size = sum(tensor.nbytes for tensor in tensors.values())
    if size > MAX_SAVED_BUFFER_BYTES:
        logger.warning(
            "the checkpoint has no replay buffer, which takes %.0f MB (saved are up to %.0f): "
            "resumed, the run fills it again first", size / 1e6, MAX_SAVED_BUFFER_BYTES / 1e6,
        )  # fmt: skip
        return {}
    scalars: dict[str, Any] = {"pos": pos, "full": full}
    if isinstance(buffer, PrioritizedReplayBuffer):
        scalars["largest"] = buffer.largest
    return tensors | scalars


def _arrays(buffer: ReplayBuffer) -> dict[str, np.ndarray]:
    arrays = {name: getattr(buffer, name) for name in _BUFFERS}
    if isinstance(buffer, PrioritizedReplayBuffer):
        arrays["powers"] = buffer.powers
    return arrays


def _is_known(buffer: ReplayBuffer) -> bool:
    return type(buffer) in _KINDS and not buffer.optimize_memory_usage


def check_replay(model: BaseAlgorithm, saved: dict[str, Any]) -> None:
    """Refuse what `restore_replay` cannot put into the model's buffer.

    Raises:
        QuarlError: it is of a buffer of another size or number of environments.
    """
    buffer = model.replay_buffer if isinstance(model, OffPolicyAlgorithm) else None
    if buffer is None or not saved:
        return
    rows, n_envs = saved["rewards"].shape
    if n_envs != buffer.n_envs:  # which numpy would broadcast
        raise QuarlError(f"its replay buffer is of {n_envs} environments at once, that of the "
                         f"algorithm of {buffer.n_envs}")
    if rows > buffer.buffer_size or (saved["full"] and rows < buffer.buffer_size):
        raise QuarlError(
            f"its replay buffer has {rows} rows, that of the algorithm {buffer.buffer_size}"
        )
    if isinstance(buffer, PrioritizedReplayBuffer) and "powers" not in saved:
        raise QuarlError("its replay buffer has no priorities")


def restore_replay(model: BaseAlgorithm, saved: dict[str, Any]) -> None:
    """Put what `replay_state` gave back, in place; learning waits where that is not enough.

    Args:
        saved: passed `check_replay`.
    """
    if not isinstance(model, OffPolicyAlgorithm):
        return
    buffer = model.replay_buffer
    assert buffer is not None
    if saved and _is_known(buffer):
        _fill(buffer, saved)
    held = buffer.size() * buffer.n_envs
    learning_starts = max(1, model.learning_starts)  # nothing can be sampled from an empty buffer
    warm_up = min(learning_starts, buffer.buffer_size * buffer.n_envs)
    if held < min(model.num_timesteps, warm_up):
        # Without its buffer, or saved while that was filled again: learning waits.
        model.learning_starts = learning_starts + model.num_timesteps - held


def _fill(buffer: ReplayBuffer, saved: dict[str, Any]) -> None:
    if "frames" in saved:
        _unpack_frames(saved, buffer)
    for name, array in _arrays(buffer).items():
        if name in saved:
            array[: len(saved[name])] = saved[name].numpy()
    # One that was not full may fill a smaller one to its end.
    buffer.pos = saved["pos"] % buffer.buffer_size
    buffer.full = saved["full"] or saved["pos"] == buffer.buffer_size
    if isinstance(buffer, PrioritizedReplayBuffer):
        buffer.largest = saved["largest"]
    if isinstance(buffer, NStepReplayBuffer) and buffer.handle_timeout_termination:
        # The next step begins an episode: n-step returns end before it, bootstrapping. (Where the
        # buffer keeps no timeouts, none would be taken back when its row is used again.)
        last = buffer.pos - 1
        buffer.timeouts[last][buffer.dones[last] == 0] = 1


def _pack_frames(frames: np.ndarray, following: np.ndarray) -> dict[str, torch.Tensor]:
    """Observations and next observations [n, n_envs, ...], uint8, compressed.

    A next observation is stored only where it is not the observation of the next row, i.e. at an
    episode's end. A stack of four frames shares three with the stack before it, 21 kB back and so
    within zlib's window of 32 kB.
    """
    n = len(frames)
    own = [i for i in range(n) if not np.array_equal(following[i], frames[(i + 1) % n])]
    return {"frames": _pack(frames), "own_rows": torch.as_tensor(own, dtype=torch.int64),
            "own_frames": _pack(following[own])}  # fmt: skip


def _unpack_frames(saved: dict[str, Any], buffer: ReplayBuffer) -> None:
    """The reverse of `_pack_frames`, in place: a large buffer leaves no memory for a copy."""
    shape = buffer.observations.shape[1:]
    frames = _unpack(saved["frames"], shape)
    n = len(frames)
    buffer.observations[:n] = frames
    buffer.next_observations[: n - 1], buffer.next_observations[n - 1] = frames[1:], frames[0]
    buffer.next_observations[saved["own_rows"].numpy()] = _unpack(saved["own_frames"], shape)


def _pack(array: np.ndarray) -> torch.Tensor:
    packed = zlib.compress(np.ascontiguousarray(array).data, level=1)
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def _unpack(packed: torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(zlib.decompress(packed.numpy().tobytes()), np.uint8).reshape(-1, *shape)
