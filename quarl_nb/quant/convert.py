"""Post-training quantization of a network: weights now, activations after calibration."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from quarl_nb.errors import QuarlError
from quarl_nb.quant.affine import is_finite, legacy_quantize_dequantize
from quarl_nb.quant.fake import FakeQuantize
from quarl_nb.quant.qconfig import PerChannel, PerTensor, Precision

ModuleT = TypeVar("ModuleT", bound=nn.Module)
RECURRENT = (nn.GRUCell, nn.LSTMCell, nn.GRU, nn.LSTM)
LAYERS = (nn.Linear, nn.Conv2d, *RECURRENT)


def weight_layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every (name, layer) of `module` that holds weight matrices that we quantize."""
    for name, layer in module.named_modules():
        if isinstance(layer, LAYERS):
            yield name, layer


def weight_matrices(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every (name, weight) that we quantize, once: [out, in], [out, in, h, w] or [gates*h, in]."""
    seen: set[int] = set()
    for layer_name, layer in weight_layers(module):
        for name, parameter in layer.named_parameters(layer_name, recurse=False):
            if name.rpartition(".")[2].startswith("weight") and id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter


def check_no_matrix(name: str, layer: nn.Module, allowed: Iterable[type[nn.Module]]) -> None:
    """Raise a QuarlError if a layer that would stay float32 has a matrix of its own.

    Args:
        allowed: the kinds of layer that can be quantized, which the error names.
    """
    if isinstance(layer, nn.LayerNorm):  # whose weights, of any shape, scale element by element
        return
    if any(parameter.ndim > 1 for parameter in layer.parameters(recurse=False)):
        kinds = ", ".join(kind.__name__ for kind in allowed)
        raise QuarlError(f"cannot quantize {type(layer).__name__} {name!r}; allowed: {kinds}")


def _check_finite(parameter: Tensor, name: str) -> None:
    if not is_finite(parameter):
        raise QuarlError(f"cannot quantize {name!r}: it holds NaN or infinite values")


def quantize_weight(weight: Tensor, precision: Precision, name: str = "weight") -> Tensor:
    """A float32 copy of `weight` that holds only values of the precision.

    Args:
        weight: shape [out, ...]. Legacy is per output channel above two dimensions, as the
            original code does for convolutions, and per tensor otherwise.
        name: for the error.

    Raises:
        QuarlError: NaN or infinite values, or values too large for the precision.
    """
    weight = weight.detach().float()
    _check_finite(weight, name)
    quantized = _to_levels(weight, precision)
    if not is_finite(quantized):
        raise QuarlError(f"cannot turn {name!r} into {precision.name}: values exceed its range")
    return quantized


def _to_levels(weight: Tensor, precision: Precision) -> Tensor:
    if precision.cast is not None:
        return weight.to(precision.cast).float()
    if precision.legacy_bits is not None:
        axis = 0 if weight.ndim > 2 else None
        return legacy_quantize_dequantize(weight, precision.legacy_bits, axis)
    if precision.weight is not None:
        return FakeQuantize(precision.weight, max_samples=None)(weight)
    return weight.clone()


def quantize_module(
    module: ModuleT,
    precision: Precision,
    calibrate: Callable[[ModuleT], object] | None = None,
) -> ModuleT:
    """A deep copy of `module` that computes as if in `precision`, simulated in float32.

    Weights of Linear, Conv2d, GRUCell, LSTMCell, GRU and LSTM layers are quantized; biases stay
    float32, except in fp16 and bf16, which cast them too and round what enters and leaves every
    such layer. Integer activations are quantized where they enter such a layer, hidden states
    included (but not those of a layer that calibration gave none); inside GRU and LSTM, between
    steps and stacked layers, they are not seen.

    Args:
        precision: from `parse_precision`.
        calibrate: runs typical observations through the network given to it, which is in
            evaluation mode meanwhile; needed (and called, once) only if the precision quantizes
            activations.

    Raises:
        QuarlError: no such layer, or another that has matrices, bad weights (named), or activations
            that calibration never saw.
    """
    module = copy.deepcopy(module)
    for name, layer in module.named_modules():
        if not isinstance(layer, LAYERS):
            check_no_matrix(name, layer, LAYERS)
    matrices = list(weight_matrices(module))
    if not matrices:
        allowed = ", ".join(kind.__name__ for kind in LAYERS)
        raise QuarlError(f"{type(module).__name__} has no weights to quantize; allowed: {allowed}")
    for name, parameter in module.named_parameters():
        _check_finite(parameter, name)
    with torch.no_grad():
        for name, weight in matrices:
            weight.copy_(quantize_weight(weight, precision, name))
    if precision.cast is not None:
        _cast_module(module, precision)
    if precision.activation is not None:
        if calibrate is None:
            raise QuarlError(f"{precision.name} quantizes activations: it needs calibration data")
        _quantize_activations(module, precision, calibrate)
    return module


def _cast_module(module: nn.Module, precision: Precision) -> None:
    for name, layer in weight_layers(module):
        with torch.no_grad():
            for parameter_name, parameter in layer.named_parameters(name, recurse=False):
                parameter.copy_(quantize_weight(parameter, precision, parameter_name))
        layer.register_forward_pre_hook(partial(_round_inputs, precision.cast), with_kwargs=True)
        layer.register_forward_hook(partial(_round_output, precision.cast))


def _round(value: Any, dtype: torch.dtype | None) -> Any:
    """Round a tensor, or each tensor of a (nested) tuple, to `dtype`; None stays None."""
    if isinstance(value, tuple):
        return tuple(_round(item, dtype) for item in value)
    return value if value is None else value.to(dtype).to(value.dtype)


def _refuse_packed(values: Iterable[Any]) -> None:
    if any(isinstance(value, PackedSequence) for value in values):
        raise QuarlError("a PackedSequence cannot be quantized: give the layer padded sequences")


def _round_inputs(dtype: torch.dtype | None, layer: nn.Module, args: Any, kwargs: Any) -> Any:
    _refuse_packed((*args, *kwargs.values()))
    return _round(args, dtype), {key: _round(value, dtype) for key, value in kwargs.items()}


def _round_output(dtype: torch.dtype | None, layer: nn.Module, args: Any, output: Any) -> Any:
    return _round(output, dtype)


def _quantize_activations(
    module: ModuleT, precision: Precision, calibrate: Callable[[ModuleT], object]
) -> None:
    assert precision.activation is not None
    layers = list(weight_layers(module))
    for name, layer in layers:
        if hasattr(layer, "input_quantizer"):
            raise QuarlError(f"layer {name!r} is quantized already; quantize the original network")
        for kind in ("input", "state") if isinstance(layer, RECURRENT) else ("input",):
            quantizer = FakeQuantize(precision.activation)
            quantizer.enabled = False
            layer.add_module(f"{kind}_quantizer", quantizer)
        layer.register_forward_pre_hook(_quantize_inputs, with_kwargs=True)
    with torch.no_grad(), _evaluating(module):
        calibrate(module)
    for name, layer in layers:
        _freeze_quantizers(name, layer)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Every submodule in evaluation mode, as ranges are of a network that acts: training moves
    running statistics and drops activations. Then each in its own again."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def _freeze_quantizers(name: str, layer: Any) -> None:
    if not layer.input_quantizer.observer.observed:
        raise QuarlError(f"calibration never ran the input of layer {name!r}: its range is unknown")
    layer.input_quantizer.freeze()
    state = getattr(layer, "state_quantizer", None)
    if state and state.observer.observed:
        state.freeze()
    elif state:  # the layer began from zeros of its own, which every quantizer has as a level
        layer.state_quantizer = nn.Identity()


def _quantize_inputs(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values = dict(zip(("input", "hx"), args, strict=False)) | kwargs
    _refuse_packed(values.values())
    values["input"] = layer.input_quantizer(values["input"])
    state = values.get("hx")
    if isinstance(state, tuple):  # an LSTM's cell state meets no matrix: it stays float32
        values["hx"] = (layer.state_quantizer(state[0]), state[1])
    elif state is not None:
        values["hx"] = layer.state_quantizer(state)
    return (), values


def weight_bytes(module: nn.Module, precision: Precision) -> int:
    """Bytes of `module`'s parameters, weights packed in `precision` with scales and zero points.

    A scale takes 4 bytes, a zero point (affine only) whole bytes of its width; legacyN takes N + 1
    bits a weight, as its 2^N + 1 levels need. Other parameters take 4 bytes, or 2 where cast.
    """
    weights = {id(parameter) for _, parameter in weight_matrices(module)}
    cast = {id(p) for _, layer in weight_layers(module) for p in layer.parameters(recurse=False)}
    total = 0
    for parameter in module.parameters():
        if id(parameter) in weights:
            total += _packed_bytes(parameter.shape, precision)
        else:
            half = precision.cast is not None and id(parameter) in cast
            total += parameter.numel() * (2 if half else 4)
    return total


def _packed_bytes(shape: torch.Size, precision: Precision) -> int:
    if precision.legacy_bits is not None:
        granularity = PerChannel() if len(shape) > 2 else PerTensor()
        bits, per_scale = precision.legacy_bits + 1, 4
        return math.ceil(shape.numel() * bits / 8) + granularity.n_scales(shape) * per_scale
    if precision.weight is not None:
        bits = precision.weight.bits
        per_scale = 4 if precision.weight.symmetric else 4 + math.ceil(bits / 8)
        n_scales = precision.weight.granularity.n_scales(shape)
        return math.ceil(shape.numel() * bits / 8) + n_scales * per_scale
    return shape.numel() * (2 if precision.cast is not None else 4)
