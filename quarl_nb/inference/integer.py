"""Policies as ONNX graphs that compute in int8 and int4."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quarl_nb.inference.engine import forwards
from quarl_nb.inference.graph import Graph
from quarl_nb.inference.weights import (
    check_sums,
    least_scale,
    pack_int4,
    quantize_bias,
    quantize_rows,
)
from quarl_nb.quant import FakeQuantize, FixedQuantize, Precision, QParams, quantize_module
from quarl_nb.quant.convert import weight_layers
from quarl_nb.quant.qconfig import INT4_GROUP_SIZE
from quarl_nb.rl.layers import Divide
from quarl_nb.rl.policies import PolicyNet

_CALIBRATION_BATCH = 256
# Layers that change nothing in u8, or only the shape; and with them all that take u8.
_ON_INTEGERS = ("relu", "flatten", "identity")
_OF_INTEGERS = (*_ON_INTEGERS, "fixed_quantize", "conv2d", "linear", "dueling")


class QuantizedGraph(Graph):
    """Base of the integer precisions.

    Args:
        precision: from `parse_precision`.
        unsigned: int8 weights as u8, 128 standing for zero: the same numbers, exact on processors
            that saturate (`saturates_int8`), slower on the others.
    """

    def __init__(self, net: PolicyNet, precision: Precision, unsigned: bool = False) -> None:
        assert precision.weight is not None
        self.precision, self.config = precision.name, precision.weight
        self.unsigned = unsigned
        super().__init__(net)

    def conv2d(self, module: nn.Conv2d, x: str) -> str:
        raise self.unsupported("conv2d", module)

    @property
    def zero_point(self) -> Tensor:
        """The integer that stands for a weight of zero."""
        return torch.tensor(128, dtype=torch.uint8) if self.unsigned else torch.tensor(0).char()

    def stored(self, integers: Tensor) -> Tensor:
        """A weight of int8 as the graph holds it."""
        return integers.view(torch.uint8) ^ 128 if self.unsigned else integers


class DynamicGraph(QuantizedGraph):
    """int8 `linear` layers whose u8 activations take their range anew in every call.

    The range is that of the whole batch, so that an observation's outputs depend a little on the
    others in its batch. All else is float32.
    """

    def linear(self, module: nn.Linear, x: str) -> str:
        name = self.names[module]
        integers, scale = quantize_rows(self.parameter(module, "weight"), self.config)
        check_sums(integers, name)
        weight = self.tensor(f"{name}.weight", self.stored(integers).t().contiguous())
        scale_name = self.tensor(f"{name}.scale", scale)
        # Left out it is zero, for which there are faster kernels.
        zero_point = self.tensor(f"{name}.zero_point", self.zero_point) if self.unsigned else ""
        bias = self.add(module, "bias")
        return self.op("DynamicQuantizeMatMul", x, weight, scale_name, zero_point, bias)


class BlockGraph(QuantizedGraph):
    """int4 `linear` layers in blocks of 32 inputs.

    At accuracy level 4 activations are rounded to int8, symmetric, in the same blocks.
    """

    def linear(self, module: nn.Linear, x: str) -> str:
        name = self.names[module]
        packed, scales = pack_int4(self.parameter(module, "weight"), self.config, INT4_GROUP_SIZE)
        weight, scale = self.tensor(f"{name}.weight", packed), self.tensor(f"{name}.scale", scales)
        return self.op(
            "MatMulNBits", x, weight, scale, "", "", self.add(module, "bias"),
            K=module.in_features, N=module.out_features, bits=4, block_size=INT4_GROUP_SIZE,
            accuracy_level=4,
        )  # fmt: skip


class StaticGraph(QuantizedGraph):
    """int8 with calibrated u8 activations, for policies with convolutions.

    Written with the operators that ONNX Runtime would fuse quantize-dequantize pairs to, so that
    opening needs no optimizer. A layer's output is rounded straight to the levels of the next
    one's input, whose range starts at zero after a relu, which clipping to it then replaces.
    After quantization-aware training these are the levels trained with (`fixed_quantize`).
    uint8 frames enter the first layer as they are, with scale 1/255; `quantize_module` rounds them
    to the range it saw, which leaves them alone too once it has seen a 255.

    Args:
        calibration: raw observations ``[n, *obs_shape]``.
    """

    def __init__(
        self, net: PolicyNet, precision: Precision, calibration: np.ndarray, unsigned: bool = False
    ) -> None:
        self.simulated = quantize_module(net, precision, lambda m: _run(m, calibration))
        self.levels: dict[str, QParams] = {}  # names of u8 values, and what they stand for
        super().__init__(net, precision, unsigned)

    def layer(self, kind: str, module: nn.Module, x: str) -> str:
        if x in self.levels and kind not in _OF_INTEGERS:
            raise self.unsupported(kind, module, "its input is in integers")
        return super().layer(kind, module, x)

    def input_qparams(self, module: nn.Module) -> QParams:
        quantizer = self.simulated.get_submodule(self.names[module]).input_quantizer
        assert isinstance(quantizer, FakeQuantize)
        return quantizer.qparams

    def output_qparams(self, module: nn.Module) -> QParams | None:
        """Levels of the next weight layer's input, or of the rounding before it; None unless only
        relus lie between."""
        if module not in list(self.net.layers):
            return None
        start = list(self.net.layers).index(module) + 1
        after, kinds = self.net.layers[start:], [layer.kind for layer in self.net.spec.layers]
        if not any(weight_layers(after)):
            return None  # outputs are real numbers, rounded or not
        kind_and_layer = zip(kinds[start:], after, strict=True)
        later = next(layer for kind, layer in kind_and_layer if kind not in _ON_INTEGERS)
        if isinstance(later, FixedQuantize):
            return later.qparams if later.bits <= 8 else None
        inputs = [layer for _, layer in weight_layers(later)]
        return self.input_qparams(inputs[0]) if inputs else None

    def as_integers(self, x: str, module: nn.Module) -> tuple[str, QParams, list[str]]:
        """`x` as u8, quantized for a layer unless it is already; its levels, and their names."""
        name = f"{self.names[module]}.input"
        if x not in self.levels:
            qparams = self.input_qparams(module)
            x = self.op("QuantizeLinear", x, *self.add_qparams(name, qparams))
            self.levels[x] = qparams
        return x, self.levels[x], self.add_qparams(name, self.levels[x])

    def add_qparams(self, name: str, qparams: QParams) -> list[str]:
        scale = self.tensor(f"{name}.scale", qparams.scale)
        return [scale, self.tensor(f"{name}.zero_point", qparams.zero_point.to(torch.uint8))]

    def weight_layer(self, kind: str, module: nn.Module, x: str, **attributes: Any) -> str:
        """`QLinearConv` or `QGemm`: u8 in, and out too where the next layer's levels are known."""
        name, target = self.names[module], self.output_qparams(module)
        x, levels, x_names = self.as_integers(x, module)
        weight, has_bias = self.parameter(module, "weight"), module.bias is not None
        real = self.parameter(module, "bias") if has_bias else weight.new_zeros(len(weight))
        integers, scale = quantize_rows(weight, self.config, least_scale(real, levels.scale))
        units = quantize_bias(real, levels.scale * scale, integers, name)
        bias = self.tensor(f"{name}.bias", units) if has_bias else ""
        weights = [self.tensor(f"{name}.weight", self.stored(integers))]
        weights.append(self.tensor(f"{name}.scale", scale))
        weights.append(self.tensor(f"{name}.zero_point", self.zero_point.expand(scale.shape)))
        to = [] if target is None else self.add_qparams(f"{name}.output", target)
        rest = [*to, bias] if kind == "QLinearConv" else [bias, *to]
        y = self.op(kind, x, *x_names, *weights, *rest, **attributes)
        if target is not None:
            self.levels[y] = target
        return y

    def conv2d(self, module: nn.Conv2d, x: str) -> str:
        if self.output_qparams(module) is None:
            why = "only relu, and rounding to 8 bits at most, may lie before the next weights"
            raise self.unsupported("conv2d", module, why)
        return self.weight_layer("QLinearConv", module, x, **self.conv_attributes(module))

    def linear(self, module: nn.Linear, x: str) -> str:
        return self.weight_layer("QGemm", module, x, transB=1)

    def divide(self, module: Divide, x: str) -> str:
        if module is not self.net.layers[0]:  # what enters is no frame of uint8
            return super().divide(module, x)
        scale, zero_point = torch.tensor(1 / module.by), torch.tensor(0, dtype=torch.int32)
        self.levels[x] = QParams(scale, zero_point, 0, 255)
        return x

    def fixed_quantize(self, module: FixedQuantize, x: str) -> str:
        if x not in self.levels:
            return super().fixed_quantize(module, x)
        levels, own = self.levels[x], module.qparams
        if (levels.scale, levels.zero_point) != (own.scale, own.zero_point):
            raise self.unsupported("fixed_quantize", module, "its input has other levels")
        return self.clip_levels(module, x, 0, own.quant_max)

    def relu(self, module: nn.ReLU, x: str) -> str:
        if x not in self.levels:
            return self.op("Relu", x)
        return self.clip_levels(module, x, int(self.levels[x].zero_point), 255)

    def clip_levels(self, module: nn.Module, x: str, low: int, high: int) -> str:
        """`x`, in u8, from level `low` to level `high`."""
        if (low, high) == (0, 255):
            return x
        y = self.op("Clip", x, *self.add_bounds(module, np.uint8(low), np.uint8(high)))
        self.levels[y] = self.levels[x]
        return y

    def flatten(self, module: nn.Flatten, x: str) -> str:
        y = super().flatten(module, x)
        if x in self.levels:
            self.levels[y] = self.levels[x]
        return y


def _run(net: nn.Module, obs: np.ndarray) -> None:
    device = next(net.parameters()).device
    for batch in torch.as_tensor(forwards(obs)).split(_CALIBRATION_BATCH):
        net(batch.to(device))
