"""The bytes that an engine opens: what to compute, and the weights (see `container`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quarl_nb.errors import QuarlError
from quarl_nb.inference.container import pack, unpack

_MODEL = ""  # the name of the first array


@dataclass(frozen=True)
class Payload:
    """A network in the form that `runtime` opens.

    Attributes:
        runtime: onnxruntime or torch.
        precision: what it computes in, as `quarl_nb.quant.parse_precision` names it.
        obs_shape, obs_dtype: of one raw observation.
        model: what to compute: an ONNX graph without weights, or a JSON description.
        tensors: the weights by name; views of the payload's bytes after `decode`.
    """

    runtime: str
    precision: str
    obs_shape: tuple[int, ...]
    obs_dtype: str
    model: bytes
    tensors: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the description and the weights."""
        return len(self.model) + sum(tensor.nbytes for tensor in self.tensors.values())


def encode(payload: Payload) -> bytes:
    """The payload as bytes; `decode` is the reverse."""
    about = {"runtime": payload.runtime, "precision": payload.precision,
             "obs_shape": list(payload.obs_shape), "obs_dtype": payload.obs_dtype}  # fmt: skip
    return pack(about, {_MODEL: np.frombuffer(payload.model, np.uint8), **payload.tensors})


def decode(content: bytes) -> Payload:
    """What `encode` wrote; tensors are read-only views of `content`.

    Raises:
        QuarlError: not an engine's payload, of another format version, cut, or corrupted.
    """
    about, arrays = unpack(content)
    try:
        return Payload(
            about["runtime"], about["precision"], tuple(about["obs_shape"]), about["obs_dtype"],
            arrays.pop(_MODEL).tobytes(), arrays,
        )  # fmt: skip
    except KeyError as error:  # `pack` made it of something else, as weights on the wire
        raise QuarlError(f"not an engine's payload: it lacks {error}") from error
