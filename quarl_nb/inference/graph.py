"""A policy as an ONNX graph in float32, and the graph's parts that every precision shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from quarl_nb.errors import QuarlError
from quarl_nb.inference.onnx import INPUT, OUTPUT
from quarl_nb.inference.weights import check_finite
from quarl_nb.quant import FixedQuantize
from quarl_nb.rl.layers import Divide, Dueling, Normalize, QuantileMean
from quarl_nb.rl.policies import PolicyNet

_OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
_IR_VERSION = 10
# ONNX Runtime's own operators; the others are standard ONNX.
_CONTRIB = ("DynamicQuantizeMatMul", "MatMulNBits", "QGemm")
_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "selu": "Selu", "sigmoid": "Sigmoid"}


class Graph:
    """Writes a policy layer by layer; the other precisions override its weight layers.

    The method called as a layer's kind takes the name of its input and returns that of its output.
    Weights are kept apart in `tensors`: the graph only names them and the session is given them,
    so that megabytes never pass through protobuf.

    Args:
        net: the policy.

    Raises:
        QuarlError: a layer that has no form in this precision, or bad weights (named).
    """

    precision = "fp32"

    def __init__(self, net: PolicyNet) -> None:
        self.net = net
        self.names = {module: name for name, module in net.named_modules()}
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, np.ndarray] = {}
        x = INPUT
        for layer, module in zip(net.spec.layers, net.layers, strict=True):
            x = self.layer(layer.kind, module, x)
        if not self.nodes:  # layers that change nothing: the output is the observation
            self.op("Identity", x)
        self.nodes[-1].output[0] = OUTPUT

    def layer(self, kind: str, module: Any, x: str) -> str:
        if (emit := getattr(self, kind, None)) is not None:
            return emit(module, x)
        if kind not in _ACTIVATIONS:
            raise self.unsupported(kind, module)
        return self.op(_ACTIVATIONS[kind], x)

    def unsupported(self, kind: str, module: nn.Module, why: str = "") -> QuarlError:
        line = f"layer {self.names[module]!r} ({kind}) cannot run in {self.precision}"
        return QuarlError(f"{line} with onnxruntime{why and ': '}{why}")

    def model(self, obs_dtype: str) -> bytes:
        """The graph as ONNX bytes, without weights."""
        shape: list[str | int | None] = ["n", *self.net.spec.obs_shape]
        obs_type = helper.np_dtype_to_tensor_dtype(np.dtype(obs_dtype))
        inputs = [helper.make_tensor_value_info(INPUT, obs_type, shape)]
        outputs = [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", None])]
        weights = [_declaration(name, array) for name, array in self.tensors.items()]
        graph = helper.make_graph(self.nodes, "policy", inputs, outputs, weights)
        model = helper.make_model(graph, opset_imports=_OPSETS, ir_version=_IR_VERSION)
        return model.SerializeToString()

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; "" is an input left out."""
        output = f"{kind}_{len(self.nodes)}"
        domain = "com.microsoft" if kind in _CONTRIB else ""
        self.nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def tensor(self, name: str, value: Tensor | np.ndarray) -> str:
        """Add a weight or a constant (not a shape, which the graph itself must hold)."""
        self.tensors[name] = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        return name

    def parameter(self, module: nn.Module, name: str) -> Tensor:
        """A parameter of a layer, checked to be finite."""
        value = getattr(module, name)
        check_finite(value, f"{self.names[module]}.{name}", self.precision)
        return value

    def add(self, module: nn.Module, name: str) -> str:
        """Add a parameter of a layer as it is; "" where it has none (a bias)."""
        if getattr(module, name) is None:
            return ""
        return self.tensor(f"{self.names[module]}.{name}", self.parameter(module, name))

    def add_bounds(self, module: nn.Module, low: np.generic, high: np.generic) -> list[str]:
        """Add the two constants that a `Clip` takes."""
        name = self.names[module]
        bounds = {f"{name}.low": low, f"{name}.high": high}
        return [self.tensor(key, np.asarray(value)) for key, value in bounds.items()]

    def normalize(self, module: Normalize, x: str) -> str:
        name, clip = self.names[module], np.float64(module.clip)
        deviation = torch.sqrt(module.var + module.epsilon)
        x = self.op("Sub", x, self.tensor(f"{name}.mean", module.mean))
        x = self.op("Div", x, self.tensor(f"{name}.deviation", deviation))
        x = self.op("Clip", x, *self.add_bounds(module, -clip, clip))
        return self.op("Cast", x, to=TensorProto.FLOAT)

    def divide(self, module: Divide, x: str) -> str:
        by = self.tensor(f"{self.names[module]}.by", np.array(module.by, np.float32))
        return self.op("Div", self.op("Cast", x, to=TensorProto.FLOAT), by)

    def linear(self, module: nn.Linear, x: str) -> str:
        return self.op("Gemm", x, self.add(module, "weight"), self.add(module, "bias"), transB=1)

    def conv2d(self, module: nn.Conv2d, x: str) -> str:
        weight, bias = self.add(module, "weight"), self.add(module, "bias")
        return self.op("Conv", x, weight, bias, **self.conv_attributes(module))

    def conv_attributes(self, module: nn.Conv2d) -> dict[str, Any]:
        if isinstance(module.padding, str):
            raise self.unsupported("conv2d", module, "padding must be numbers")
        return {
            "strides": list(module.stride),
            "pads": [*module.padding, *module.padding],
            "dilations": list(module.dilation),
            "group": module.groups,
        }

    def batch_norm2d(self, module: nn.BatchNorm2d, x: str) -> str:
        if not (module.affine and module.track_running_stats):
            raise self.unsupported("batch_norm2d", module, "it needs weights and running means")
        names = ("weight", "bias", "running_mean", "running_var")
        inputs = [self.add(module, name) for name in names]
        return self.op("BatchNormalization", x, *inputs, epsilon=module.eps)

    def flatten(self, module: nn.Flatten, x: str) -> str:
        if (module.start_dim, module.end_dim) != (1, -1):
            raise self.unsupported("flatten", module, "it must flatten all but the batch")
        # No layer adds dimensions: vectors stay vectors.
        return x if len(self.net.spec.obs_shape) == 1 else self.op("Flatten", x)

    def dueling(self, module: Dueling, x: str) -> str:
        advantage, value = self.stream(module.advantage, x), self.stream(module.value, x)
        mean = self.op("ReduceMean", advantage, self.op("Constant", value_ints=[1]))
        return self.op("Sub", self.op("Add", value, advantage), mean)

    def stream(self, module: Any, x: str) -> str:
        """A Sequential of Linear, LeakyReLU, Linear."""
        first, activation, last = module
        return self.linear(last, self.leaky_relu(activation, self.linear(first, x)))

    def quantile_mean(self, module: QuantileMean, x: str) -> str:
        x = self.op("Reshape", x, self.op("Constant", value_ints=[-1, *module.shape]))
        return self.op("ReduceMean", x, self.op("Constant", value_ints=[1]), keepdims=0)

    def hardtanh(self, module: nn.Hardtanh, x: str) -> str:
        low, high = np.float32(module.min_val), np.float32(module.max_val)
        return self.op("Clip", x, *self.add_bounds(module, low, high))

    def fixed_quantize(self, module: FixedQuantize, x: str) -> str:
        name, scale = self.names[module], module.scale
        # By the float32 reciprocal, as the policy itself; `QuantizeLinear` would divide.
        inverse = self.tensor(f"{name}.inverse_scale", 1.0 / scale)
        zero = self.tensor(f"{name}.zero_point", module.zero_point.float())
        x = self.op("Add", self.op("Round", self.op("Mul", x, inverse)), zero)
        top = np.float32(module.qparams.quant_max)
        x = self.op("Clip", x, *self.add_bounds(module, np.float32(0), top))
        return self.op("Mul", self.op("Sub", x, zero), self.tensor(f"{name}.scale", scale))

    def elu(self, module: nn.ELU, x: str) -> str:
        return self.op("Elu", x, alpha=module.alpha)

    def leaky_relu(self, module: nn.LeakyReLU, x: str) -> str:
        return self.op("LeakyRelu", x, alpha=module.negative_slope)

    def silu(self, module: nn.SiLU, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def gelu(self, module: nn.GELU, x: str) -> str:
        return self.op("Gelu", x, approximate=module.approximate)

    def identity(self, module: nn.Identity, x: str) -> str:
        return x

    def gru_cell(self, module: nn.GRUCell, x: str) -> str:
        raise self.unsupported("gru_cell", module, "engines keep no state between observations")


def _declaration(name: str, array: np.ndarray) -> TensorProto:
    """A tensor that the graph names and the session provides."""
    tensor = TensorProto(
        name=name, dims=array.shape, data_location=TensorProto.EXTERNAL,
        data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
    )  # fmt: skip
    # Required by the format; what the session is given comes before it.
    tensor.external_data.add(key="location", value="payload")
    return tensor
