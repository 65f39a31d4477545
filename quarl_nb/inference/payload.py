"""The bytes that an engine opens: a header that says what they are, and tensors.

    magic (8) | header length (4) | CRC-32 of length and header (4) | header, JSON | tensors

Every tensor begins at a multiple of 64 bytes; the first, without a name, is the model.

Needs numpy alone, so that an actor can open a payload without torch.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl_nb.errors import QuarlError

MAGIC = b"quarl_nb"
FORMAT_VERSION = 1
ALIGNMENT = 64
_PREFIX = len(MAGIC) + 8


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


def encode(payload: Payload) -> bytes:
    """The payload as bytes; `decode` is the reverse."""
    arrays = {"": np.frombuffer(payload.model, np.uint8), **payload.tensors}
    # Not `ascontiguousarray`, which turns a scalar into [1].
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    header = {
        "format_version": FORMAT_VERSION,
        "runtime": payload.runtime,
        "precision": payload.precision,
        "obs_shape": list(payload.obs_shape),
        "obs_dtype": payload.obs_dtype,
        "tensors": [[name, a.dtype.name, list(a.shape)] for name, a in arrays.items()],
        "word_sum": sum(_word_sum(array.reshape(-1).view(np.uint8)) for array in arrays.values())
        % 2**64,
    }
    text = json.dumps(header).encode()
    text += b" " * (-(_PREFIX + len(text)) % ALIGNMENT)
    size = len(text).to_bytes(4, "little")
    crc = zlib.crc32(size + text).to_bytes(4, "little")
    pieces: list[Any] = [MAGIC, size, crc, text]
    for array in arrays.values():
        pieces += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % ALIGNMENT)]
    return b"".join(pieces)


def decode(content: bytes) -> Payload:
    """What `encode` wrote; tensors are read-only views of `content`.

    Raises:
        QuarlError: not a payload, of another format version, cut, or corrupted.
    """
    if content[: len(MAGIC)] != MAGIC:
        raise QuarlError("not a quarl_nb payload: it does not begin with its magic bytes")
    size_bytes, crc_bytes = content[8:12], content[12:_PREFIX]
    size = int.from_bytes(size_bytes, "little")
    text = content[_PREFIX : _PREFIX + size]
    if not text or zlib.crc32(size_bytes + text) != int.from_bytes(crc_bytes, "little"):
        raise QuarlError("payload is cut or corrupted: its header does not match its checksum")
    header = json.loads(text)
    if header.get("format_version") != FORMAT_VERSION:
        version = header.get("format_version")
        raise QuarlError(f"payload has format version {version!r}; known: {FORMAT_VERSION}")
    body = np.frombuffer(content, np.uint8, offset=_PREFIX + size)
    layout, end = _layout(header["tensors"])
    if len(body) != end or _word_sum(body) != header["word_sum"]:
        raise QuarlError(
            f"payload is cut or corrupted: {len(body)} of {end} bytes, or their checksum differs"
        )
    arrays = {
        name: body[start : start + nbytes].view(dtype).reshape(shape)
        for name, dtype, shape, start, nbytes in layout
    }
    return Payload(
        header["runtime"], header["precision"], tuple(header["obs_shape"]), header["obs_dtype"],
        arrays.pop("").tobytes(), arrays,
    )  # fmt: skip


def _layout(tensors: list[Any]) -> tuple[list[tuple[str, np.dtype, list[int], int, int]], int]:
    """Where each tensor lies in the body (name, dtype, shape, start, bytes), and the body's end."""
    layout, start = [], 0
    for name, dtype_name, shape in tensors:
        dtype = np.dtype(dtype_name)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        layout.append((name, dtype, shape, start, nbytes))
        start += nbytes + -nbytes % ALIGNMENT
    return layout, start


def _word_sum(content: np.ndarray) -> int:
    """Sum modulo 2^64 of the 64-bit words of bytes ``[n]``, the last one filled with zeros.

    Reads at the speed of memory, where a CRC of 8.6 MB would take longer than opening it.
    """
    whole = len(content) // 8 * 8
    rest = int.from_bytes(content[whole:].tobytes(), "little")
    return (int(np.add.reduce(content[:whole].view("<u8"))) + rest) % 2**64
