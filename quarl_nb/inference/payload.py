"""The bytes that an engine opens: a header that says what they are, and tensors.

    magic (8) | header length (4) | CRC-32 of length and header (4) | header, JSON | tensors

Every tensor begins at a multiple of 64 bytes; the first, without a name, is the model.

Needs numpy alone, so that an actor can open a payload without torch.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl_nb.errors import QuarlError

MAGIC = b"quarl_nb"
FORMAT_VERSION = 2
ALIGNMENT = 64
_BLOCK_WORDS = 2048  # 16 KiB: the sums of a block stay in the fastest cache
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
    body: list[np.ndarray] = []
    for array in arrays.values():
        body += [array.reshape(-1).view(np.uint8), np.zeros(-array.nbytes % ALIGNMENT, np.uint8)]
    header = {
        "format_version": FORMAT_VERSION,
        "runtime": payload.runtime,
        "precision": payload.precision,
        "obs_shape": list(payload.obs_shape),
        "obs_dtype": payload.obs_dtype,
        "tensors": [[name, a.dtype.name, list(a.shape)] for name, a in arrays.items()],
        "checksum": checksum(body),
    }
    text = json.dumps(header).encode()
    text += b" " * (-(_PREFIX + len(text)) % ALIGNMENT)
    size = len(text).to_bytes(4, "little")
    crc = zlib.crc32(size + text).to_bytes(4, "little")
    return b"".join([MAGIC, size, crc, text, *(piece.data for piece in body)])


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
    if len(body) != end or checksum(_pieces(body, layout)) != header["checksum"]:
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


def _pieces(
    body: np.ndarray, layout: list[tuple[str, np.dtype, list[int], int, int]]
) -> Iterable[np.ndarray]:
    """The body's bytes, tensors and what fills up to the next one by turns."""
    for _, _, _, start, nbytes in layout:
        end = start + nbytes
        yield body[start:end]
        yield body[end : end + -nbytes % ALIGNMENT]


def checksum(pieces: Iterable[np.ndarray]) -> int:
    """CRC-32 of sums of each piece's 64-bit words: by their place in a block, and by block.

    Words that change places change one of the sums. Of 8.6 MB it takes 0.3 ms, where the CRC-32 of
    all bytes takes 1.5 ms.
    """
    crc = 0
    for piece in pieces:
        whole = len(piece) // (8 * _BLOCK_WORDS) * 8 * _BLOCK_WORDS
        if whole:
            blocks = piece[:whole].view("<u8").reshape(-1, _BLOCK_WORDS)
            for axis in (0, 1):
                crc = zlib.crc32(np.add.reduce(blocks, axis=axis).astype("<u8").data, crc)
        crc = zlib.crc32(piece[whole:].data, crc)
    return crc
