"""Weights on the wire in a precision of their own, apart from the one that actors compute in.

The paper's Figure 4 sets communication precision (q_c) and compute precision (q) separately; 8-bit
communication sends 8-bit integers here, n-bit communication n bits a weight.
"""

from __future__ import annotations

import numpy as np
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.inference.container import pack, unpack
from quarl_nb.inference.weights import check_finite, from_numpy, to_numpy
from quarl_nb.quant import (
    Precision,
    QParams,
    dequantize,
    make_observer,
    parse_precision,
    quant_range,
    quantize,
    weight_matrices,
)
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.spec import PolicySpec

_SCALE, _ZERO_POINT = ".scale", ".zero_point"


def encode(net: PolicyNet, precision: str) -> bytes:
    """The network's tensors, weight matrices (and in a half precision everything) in `precision`.

    Raises:
        QuarlError: the precision has no wire format (int4, legacy), or weights are not finite.
    """
    fmt = _wire_format(precision)
    matrices = {name for name, _ in weight_matrices(net)}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            check_finite(tensor, name, precision)
        if fmt.cast is not None and tensor.dtype == torch.float32:
            tensors[name] = tensor.to(fmt.cast)
        elif fmt.weight is not None and name in matrices:
            observer = make_observer("minmax", fmt.weight.bits, fmt.weight.symmetric)
            observer(tensor)
            qparams = observer.qparams()
            integers = quantize(tensor, qparams) - qparams.quant_min
            tensors[name] = pack_bits(integers, fmt.weight.bits)
            tensors[name + _SCALE] = qparams.scale
            tensors[name + _ZERO_POINT] = qparams.zero_point
        else:
            tensors[name] = tensor
    arrays = {name: to_numpy(tensor.detach().cpu()) for name, tensor in tensors.items()}
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
    fmt = _wire_format(about["precision"])
    tensors = {name: from_numpy(array) for name, array in arrays.items()}
    shapes = _tensor_shapes(spec)
    decoded = {}
    for name, shape in shapes.items():
        if name not in tensors:
            raise QuarlError(f"weights on the wire lack '{name}': they are of another network")
        tensor = tensors[name]
        if name + _SCALE in tensors:
            assert fmt.weight is not None
            lo, hi = quant_range(fmt.weight.bits, fmt.weight.symmetric)
            qparams = QParams(tensors[name + _SCALE], tensors[name + _ZERO_POINT], lo, hi)
            integers = unpack_bits(tensor, fmt.weight.bits, shape.numel()).reshape(shape) + lo
            tensor = dequantize(integers, qparams)
        elif fmt.cast is not None and tensor.dtype == fmt.cast:
            tensor = tensor.float()
        decoded[name] = tensor
    return PolicyNet(spec, decoded)


def pack_bits(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned integers below 2^bits, packed without gaps, lowest bit first: uint8, 1-d."""
    flat = integers.flatten().numpy()
    if bits == 8:
        return torch.from_numpy(flat.astype(np.uint8))
    planes = (flat[:, None] >> np.arange(bits)) & 1
    return torch.from_numpy(np.packbits(planes.astype(np.uint8).ravel(), bitorder="little"))


def unpack_bits(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The reverse of `pack_bits`: int32 ``[count]``."""
    if packed.numel() != -(-count * bits // 8):
        raise QuarlError(f"{packed.numel()} bytes on the wire do not hold {count} x {bits} bits")
    if bits == 8:
        return packed.int()
    planes = np.unpackbits(packed.numpy(), count=count * bits, bitorder="little")
    values = planes.reshape(count, bits).astype(np.int32) << np.arange(bits)
    return torch.from_numpy(values.sum(1, dtype=np.int32))


def _wire_format(name: str) -> Precision:
    precision = parse_precision(name)
    if precision.legacy_bits is not None or name == "int4":
        raise QuarlError(
            f"no wire format for {name}; allowed: fp32, fp16, bf16, int8, affine2..affine16"
        )
    return precision


def _tensor_shapes(spec: PolicySpec) -> dict[str, torch.Size]:
    modules = torch.nn.ModuleList(layer.build() for layer in spec.layers)
    return {f"layers.{name}": tensor.shape for name, tensor in modules.state_dict().items()}
