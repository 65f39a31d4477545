"""A policy as plain C99: policy.h and policy.c, without heap or dependency, weights inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from quarl_nb.edge.c_text import (
    ACTIVATION_TYPE,
    C_TYPES,
    HEADER,
    SIGNED_OFFSET,
    act_declaration,
    act_definition,
    declaration,
    literal,
)
from quarl_nb.errors import QuarlError
from quarl_nb.inference.export import obs_dtype
from quarl_nb.inference.weights import check_finite, check_sums, pack_int4, quantize_rows
from quarl_nb.quant import FakeQuantize, FixedQuantize, Precision, QParams
from quarl_nb.quant.qconfig import INT4_GROUP_SIZE
from quarl_nb.rl.layers import Divide, Normalize
from quarl_nb.rl.policies import PolicyNet

DEVICE = Path(__file__).parent / "device"
# These convert the observation themselves, from bytes or in double precision.
INPUT_LAYERS = ("normalize", "divide")
LAYERS = ("linear", "relu", "tanh", "hardtanh", "flatten", "identity", "fixed_quantize",
          *INPUT_LAYERS)  # fmt: skip
ROW_PADDING = 16  # bytes; one 128-bit vector


def check_layers(net: PolicyNet) -> None:
    """Refuse a layer that is none of `LAYERS`, or one of `INPUT_LAYERS` that is not the first.

    Raises:
        QuarlError: names it.
    """
    for i, layer in enumerate(net.spec.layers):
        if layer.kind not in LAYERS or (layer.kind in INPUT_LAYERS and i > 0):
            raise QuarlError(
                f"layer 'layers.{i}' ({layer.kind}) has no form in C; allowed: "
                f"{', '.join(LAYERS)}, the last two as the first layer"
            )


class CSource:
    """Writes a policy of vectors layer by layer, as `quarl_nb.inference.graph.Graph` does in ONNX.

    The method called as a layer's kind adds its lines of C. The numbers are those of the simulated
    policy: weights in the precision, activations that enter a layer in 256 fixed levels.

    Args:
        net: the policy, of layers that `check_layers` lets pass.
        precision: fp32, int8 or int4, from `parse_precision`.
        simulated: `net` after `quantize_module`, whose levels of activations are used.

    Attributes:
        arrays: the constants by name.

    Raises:
        QuarlError: bad weights (named), or a layer that takes other vectors.
    """

    def __init__(self, net: PolicyNet, precision: Precision, simulated: PolicyNet) -> None:
        self.net, self.precision, self.simulated = net, precision, simulated
        self.names = {module: name for name, module in net.named_modules()}
        self.arrays: dict[str, np.ndarray] = {}
        self.signed_arrays: dict[str, np.ndarray] = {}
        self.widths = [int(np.prod(net.spec.obs_shape))]
        self.lines: list[str] = []
        self.now, self.other = "a", "b"  # the buffers: the layer's input, and a free one
        if net.spec.layers[0].kind not in INPUT_LAYERS:
            self.lines.append(self.loop("a[i] = obs[i];"))
        for layer, module in zip(net.spec.layers, net.layers, strict=True):
            getattr(self, layer.kind)(module)

    def loop(self, statement: str) -> str:
        return f"for (int i = 0; i < {self.widths[-1]}; i++) {statement}"

    def call(self, function: str, *arguments: object) -> None:
        """Add a call that works on the buffer in place."""
        values = ", ".join(map(str, [self.now, self.widths[-1], *arguments]))
        self.lines.append(f"{function}({values});")

    def constant(self, name: str, value: Tensor, signed: Tensor | None = None) -> str:
        """Add a constant array, and what it is where activations are signed; its name in C."""
        name = name.replace("layers.", "layer_").replace(".", "_")
        self.arrays[name] = value.detach().cpu().contiguous().reshape(-1).numpy()
        if signed is not None:
            self.signed_arrays[name] = signed.numpy()
        return name

    def linear(self, module: nn.Linear) -> None:
        name, outputs = self.names[module], module.out_features
        if module.in_features != self.widths[-1]:
            raise QuarlError(
                f"layer {name!r} (linear) takes vectors of {module.in_features}, not "
                f"{self.widths[-1]} values: it has no form in C without a flatten before it"
            )
        bias = torch.zeros(outputs) if module.bias is None else module.bias
        for what, tensor in (("weight", module.weight), ("bias", bias)):
            check_finite(tensor, f"{name}.{what}", self.precision.name)
        rest = getattr(self, f"linear_{self.precision.name}")(name, module.weight, bias)
        arguments = [self.now, self.other, self.widths[-1], outputs, *rest]
        self.lines.append(f"linear({', '.join(map(str, arguments))});")
        self.widths.append(outputs)
        self.now, self.other = self.other, self.now

    def linear_fp32(self, name: str, weight: Tensor, bias: Tensor) -> list[str]:
        return [self.constant(f"{name}.weight", weight.t()), self.constant(f"{name}.bias", bias)]

    def linear_int8(self, name: str, weight: Tensor, bias: Tensor) -> list[str]:
        assert self.precision.weight is not None
        integers, scale = quantize_rows(weight, self.precision.weight)
        check_sums(integers, name)
        levels = self.levels(name)
        units = levels.scale * scale
        # What the zero of the levels adds to every sum goes into the bias.
        zero = levels.zero_point.double() * units.double() * integers.sum(dim=1)
        offset = SIGNED_OFFSET * units.double() * integers.sum(dim=1)
        padded = nn.functional.pad(integers, (0, -weight.shape[1] % ROW_PADDING))
        return [
            *_level_arguments(levels),
            self.constant(f"{name}.weight", padded),
            self.constant(f"{name}.scale", units),
            str(int(scale.ndim > 0)),
            self.constant(f"{name}.bias", (bias - zero).float(), (bias - zero + offset).float()),
        ]

    def linear_int4(self, name: str, weight: Tensor, bias: Tensor) -> list[str]:
        assert self.precision.weight is not None
        packed, scale = pack_int4(weight, self.precision.weight, INT4_GROUP_SIZE)
        levels = self.levels(name)
        scale = levels.scale * scale.reshape(len(weight), -1)
        nibbles = torch.stack([packed & 15, packed >> 4]).sum(dim=(0, 3), dtype=torch.int32)
        sums = ((nibbles - 8 * INT4_GROUP_SIZE) * scale.double()).sum(dim=1)
        bias = (bias + (SIGNED_OFFSET - levels.zero_point) * sums).float()
        return [
            *_level_arguments(levels),
            self.constant(f"{name}.weight", packed.permute(1, 2, 0)),
            self.constant(f"{name}.scale", scale.t()),
            self.constant(f"{name}.bias", bias),
        ]

    def levels(self, name: str) -> QParams:
        """The 256 levels of a layer's input."""
        quantizer = self.simulated.get_submodule(name).input_quantizer
        assert isinstance(quantizer, FakeQuantize)
        return quantizer.qparams

    def normalize(self, module: Normalize) -> None:
        name = self.names[module]
        mean = self.constant(f"{name}.mean", module.mean)
        deviation = self.constant(f"{name}.deviation", torch.sqrt(module.var + module.epsilon))
        low, high = (literal(limit, "float64") for limit in (-module.clip, module.clip))
        self.lines.append(self.loop(f"{{ const double x = (obs[i] - {mean}[i]) / {deviation}[i];"))
        self.lines.append(f"a[i] = (float)(x < {low} ? {low} : x > {high} ? {high} : x); }}")

    def divide(self, module: Divide) -> None:
        self.lines.append(self.loop(f"a[i] = (float)obs[i] / {literal(module.by)};"))

    def hardtanh(self, module: nn.Hardtanh) -> None:
        self.call("clip", literal(module.min_val), literal(module.max_val))

    def fixed_quantize(self, module: FixedQuantize) -> None:
        step, top = literal(float(module.scale)), literal(float(module.qparams.quant_max))
        self.call("fixed_quantize", step, *_level_arguments(module.qparams), top)

    def relu(self, module: nn.ReLU) -> None:
        self.call("relu")

    def tanh(self, module: nn.Tanh) -> None:
        self.call("hyperbolic_tangent")

    def flatten(self, module: nn.Flatten) -> None:
        """Nothing: values lie in a row already."""

    identity = flatten

    def header(self) -> str:
        """policy.h."""
        head = self.net.spec.head
        return HEADER.format(
            inputs=self.widths[0], outputs=self.widths[-1], precision=self.precision.name,
            input_type=C_TYPES[obs_dtype(self.net)], act=act_declaration(head),
            discrete="#define POLICY_DISCRETE /* actions are numbered */\n" * head.discrete,
        )  # fmt: skip

    def source(self) -> str:
        """policy.c."""
        widest = max(self.widths)
        kernels = [DEVICE / "layers.c", DEVICE / f"linear_{self.precision.name}.c"]
        body = "\n    ".join([*self.lines, self.loop(f"outputs[i] = {self.now}[i];")])
        return "\n".join([
            '#include <stddef.h>\n#include <stdint.h>\n\n#include "policy.h"\n',
            f"#define WIDEST {widest}\n#define WIDEST_PADDED {widest + -widest % ROW_PADDING}\n",
            ACTIVATION_TYPE * (self.precision.name == "int8"),
            *(path.read_text() for path in kernels),
            "/* ---- the policy ---- */\n",
            *map(self.array, self.arrays),
            f"\nvoid policy_run(const policy_input *obs, float *outputs)\n{{\n"
            f"    float a[WIDEST], b[WIDEST];\n    {body}\n}}\n",
            act_definition(self.net.spec.head),
        ])  # fmt: skip

    def array(self, name: str) -> str:
        text = declaration(name, self.arrays[name])
        if name not in self.signed_arrays:
            return text
        signed = declaration(name, self.signed_arrays[name])
        return f"#if UNSIGNED_ACTIVATIONS\n{text}\n#else\n{signed}\n#endif"


def _level_arguments(levels: QParams) -> list[str]:
    # The float32 reciprocal, as the simulation multiplies by it.
    return [literal(float(1.0 / levels.scale)), literal(float(levels.zero_point))]
