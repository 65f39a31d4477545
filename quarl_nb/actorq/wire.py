"""Weights on the wire in a precision of their own, apart from the one that actors compute in.

The paper's Figure 4 sets communication precision (q_c) and compute precision (q) separately; 8-bit
communication sends 8-bit integers here, n-bit communication n bits a weight.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.inference.container import pack, unpack
from quarl_nb.inference.weights import check_finite, from_numpy, to_numpy
from quarl_nb.quant import (
    Precision,
    QParams,
    affine_qparams,
    parse_precision,
    quant_range,
    quantize,
    weight_matrices,
)
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.spec import PolicySpec

_SCALE, _ZERO_POINT = ".scale", ".zero_point"
_WHOLE = {8: "<u1", 16: "<u2"}  # bits that are whole bytes
_PIECE = 2**16  # values packed at once; a multiple of 8, which ends on a byte


def encode(net: PolicyNet, precision: str) -> bytes:
    """The network's tensors, weight matrices (and in a half precision everything) in `precision`.

    Raises:
        QuarlError: the precision has no wire format (int4, legacy), or weights are not finite.
    """
    fmt = wire_format(precision)
    matrices = {name for name, _ in weight_matrices(net)}
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            check_finite(tensor, name, precision)
        if fmt.cast is not None and tensor.dtype == torch.float32:
            arrays[name] = to_numpy(tensor.to(fmt.cast))
        elif fmt.weight is not None and name in matrices:
            low, high = tensor.aminmax()
            qparams = affine_qparams(low, high, fmt.weight.bits, fmt.weight.symmetric)
            integers = quantize(tensor, qparams) - qparams.quant_min
            arrays[name] = pack_bits(integers, fmt.weight.bits)
            arrays[name + _SCALE] = to_numpy(qparams.scale)
            arrays[name + _ZERO_POINT] = to_numpy(qparams.zero_point)
        else:
            arrays[name] = to_numpy(tensor)
    return pack({"precision": precision}, arrays)


def decode(payload: bytes, spec: PolicySpec) -> PolicyNet:
    """The network that `encode` sent, its weights on the levels of the wire's precision.

    Raises:
        QuarlError: the payload is cut, corrupted, or of another network.
    """
    try:
        about, arrays = unpack(payload)
    except QuarlError as error:
        raise QuarlError(f"weights on the wire are damaged: {error}") from error
    fmt = wire_format(about["precision"])
    decoded = {}
    for name, shape in _tensor_shapes(spec).items():
        if name not in arrays:
            raise QuarlError(f"weights on the wire lack '{name}': they are of another network")
        if name + _SCALE in arrays:
            assert fmt.weight is not None
            scale, zero_point = (from_numpy(arrays[name + end]) for end in (_SCALE, _ZERO_POINT))
            levels = quant_range(fmt.weight.bits, fmt.weight.symmetric)
            qparams = QParams(scale, zero_point, *levels)
            decoded[name] = _dequantized(arrays[name], shape, qparams, fmt.weight.bits)
            continue
        tensor = from_numpy(arrays[name])
        decoded[name] = tensor.float() if tensor.dtype == fmt.cast else tensor
    return PolicyNet(spec, decoded)


def _dequantized(
    packed: np.ndarray, shape: torch.Size, qparams: QParams, bits: int
) -> torch.Tensor:
    """`quant.dequantize` of packed integers: weights of `shape`.

    In place and in pieces that stay in a core's cache, three times as fast: an actor does it with
    every policy that it pulls.
    """
    count = shape.numel()
    if len(packed) != _n_bytes(count, bits):
        raise QuarlError(f"{len(packed)} bytes on the wire do not hold {count} x {bits} bits")
    weights = torch.empty(shape)
    values = weights.view(-1).numpy()
    zero, scale = np.float32(qparams.zero_point - qparams.quant_min), np.float32(qparams.scale)
    for piece, piece_bytes in _pieces(count, bits):
        part = values[piece]
        part[:] = unpack_bits(packed[piece_bytes], bits, len(part))
        part -= zero
        part *= scale
    return weights


def pack_bits(integers: torch.Tensor, bits: int) -> np.ndarray:
    """Unsigned integers below 2^bits, packed without gaps, lowest bit first: uint8, 1-d."""
    flat = integers.flatten().numpy()
    if bits in _WHOLE:
        return flat.astype(_WHOLE[bits]).view(np.uint8)
    packed = np.empty(_n_bytes(len(flat), bits), np.uint8)
    for piece, piece_bytes in _pieces(len(flat), bits):
        planes = (flat[piece, None] >> np.arange(bits)) & 1
        packed[piece_bytes] = np.packbits(planes.astype(np.uint8), bitorder="little")
    return packed


def unpack_bits(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The reverse of `pack_bits`: integers ``[count]``."""
    if bits in _WHOLE:
        return packed.view(_WHOLE[bits])
    planes = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(-1, bits)
    return (planes << np.arange(bits)).sum(1)


def _n_bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def _pieces(count: int, bits: int) -> Iterator[tuple[slice, slice]]:
    """Slices of `count` values and of their bytes.

    Each bit is a number while it is packed: those of a layer of 2048 x 2048 would take gigabytes.
    """
    for start in range(0, count, _PIECE):
        stop = min(start + _PIECE, count)
        yield slice(start, stop), slice(_n_bytes(start, bits), _n_bytes(stop, bits))


def wire_format(name: str) -> Precision:
    """The precision of weights on the wire; QuarlError of one that has no form there."""
    precision = parse_precision(name)
    if precision.legacy_bits is not None or name == "int4":
        raise QuarlError(
            f"no wire format for {name}; allowed: fp32, fp16, bf16, int8, affine2..affine16"
        )
    return precision


def _tensor_shapes(spec: PolicySpec) -> dict[str, torch.Size]:
    modules = torch.nn.ModuleList(layer.build() for layer in spec.layers)
    return {f"layers.{name}": tensor.shape for name, tensor in modules.state_dict().items()}
