"""Engines: a quantized policy that really computes in its precision, numpy in and numpy out."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.inference.payload import Payload, decode

RUNTIMES = ("onnxruntime", "torch")


class Engine(Protocol):
    """A network that is ready to run.

    Attributes:
        payload_bytes: length of the payload that it was opened from.
    """

    payload_bytes: int

    def run(self, obs: np.ndarray) -> np.ndarray:
        """Head outputs, float32 ``[n, outputs]``, of raw observations ``[n, *obs_shape]``.

        Observations must be finite: what is NaN for fp32 is a number like any other for int8.

        Raises:
            QuarlError: observations of another shape, or none; frames that are not uint8.
        """
        ...


def open_engine(payload: bytes | bytearray | memoryview | Payload) -> Engine:
    """The engine of a payload made by `quarl_nb.inference.build_payload`, or by `make_payload`, of
    whose weights it may use the memory.

    Raises:
        QuarlError: not a payload, cut, corrupted, or not for this version or machine.
    """
    if isinstance(payload, Payload):
        content, size = payload, payload.nbytes
    else:
        encoded = bytes(payload)  # no copy of what is bytes
        content, size = decode(encoded), len(encoded)
    check_choice("runtime of the payload", content.runtime, RUNTIMES)
    # Each imports its runtime only when it is opened: an ONNX Runtime actor needs no torch.
    if content.runtime == "onnxruntime":
        from quarl_nb.inference.onnx import OnnxEngine

        return OnnxEngine(content, size)
    from quarl_nb.inference.torch import TorchEngine

    return TorchEngine(content, size)


def forwards(obs: np.ndarray) -> np.ndarray:
    """`obs` in C order, as torch takes it: with no axis that runs backwards (mirrored frames).

    Of an axis of one, numpy's `ascontiguousarray` leaves that alone.
    """
    return obs.copy() if min(obs.strides) < 0 else np.ascontiguousarray(obs)


def check_observations(obs: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise `Engine.run`'s errors, for an engine that takes `dtype` ``[n, *shape]``."""
    if obs.shape[1:] != shape or not len(obs):
        wanted = ", ".join(["n", *map(str, shape)])
        raise QuarlError(
            f"engine takes observations of shape [{wanted}] with n >= 1, got {list(obs.shape)}"
        )
    if dtype == np.uint8 and obs.dtype != np.uint8:
        raise QuarlError(f"engine takes frames of uint8, got {obs.dtype}")
