"""From a policy to the payload that an engine opens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.inference.engine import RUNTIMES
from quarl_nb.inference.graph import Graph
from quarl_nb.inference.integer import BlockGraph, DynamicGraph, StaticGraph
from quarl_nb.inference.payload import Payload, encode
from quarl_nb.inference.torch import describe
from quarl_nb.processor import saturates_int8
from quarl_nb.quant import Precision, parse_precision
from quarl_nb.rl.layers import INPUT_DTYPES
from quarl_nb.rl.policy_net import PolicyNet, check_without_hooks

# ONNX Runtime's CPU provider has no bf16 kernels on x86, and computes fp16 in fp32 behind casts.
PRECISIONS = {"onnxruntime": ("fp32", "int8", "int4"), "torch": ("fp32", "fp16", "bf16")}


def build_payload(net: PolicyNet, precision: str, **options: Any) -> bytes:
    """What `make_payload` makes, as bytes: to be sent, and opened by `open_engine`."""
    return encode(make_payload(net, precision, **options))


@torch.no_grad()
def make_payload(
    net: PolicyNet,
    precision: str,
    *,
    runtime: str = "onnxruntime",
    ranges: str = "minmax",
    calibration: np.ndarray | None = None,
) -> Payload:
    """A policy, from raw observations to head outputs, ready to be opened by `open_engine`.

    Fast enough to publish a policy thousands of times: weights are quantized where they lie and
    never pass through protobuf. What needs no quantizing is the policy's own memory.

    Args:
        net: the policy, on any device.
        precision: fp32, int8 or int4 (no convolutions) with onnxruntime; fp32, fp16 or bf16 with
            torch. What a runtime would only store in a precision and compute in fp32 is refused.
        ranges: how the ranges of int8 and int4 are set; see `parse_precision`.
        calibration: typical raw observations ``[n, *obs_shape]``, for int8 with convolutions,
            whose activations have fixed ranges. Without convolutions each call takes its own.

    Raises:
        QuarlError: what does not run in that precision (the layer named), NaN or infinite weights
            (named), int8 sums that may exceed int32, no calibration where it is needed or frames
            that are not uint8, or a network of simulated precision.
    """
    parsed = parse_precision(precision, ranges)
    check_computes(runtime, precision)
    check_without_hooks(net)
    if runtime == "torch":
        model, tensors = describe(net, precision)
    else:
        graph = _graph(net, parsed, calibration)
        model, tensors = graph.model(obs_dtype(net)), graph.tensors
    return Payload(runtime, precision, net.spec.obs_shape, obs_dtype(net), model, tensors)


def check_computes(runtime: str, precision: str) -> None:
    """QuarlError of a precision that the runtime does not compute in."""
    check_choice("runtime", runtime, RUNTIMES)
    if precision not in PRECISIONS[runtime]:
        raise QuarlError(
            f"{runtime} does not compute in {precision} on a CPU; "
            f"allowed: {'; '.join(_precisions_by_runtime(runtime))}"
        )


def _precisions_by_runtime(runtime: str) -> list[str]:
    """What can be asked for instead: of this runtime first, then what only others compute in."""
    own = PRECISIONS[runtime]
    allowed = [", ".join(own)]
    for other in RUNTIMES:
        more = [precision for precision in PRECISIONS[other] if precision not in own]
        if more:
            allowed.append(f"with runtime {other}: {', '.join(more)}")
    return allowed


def obs_dtype(net: PolicyNet) -> str:
    """numpy's name of what one observation is given in.

    Frames stay bytes, and observations are normalized in float64, as `PolicyNet` does.
    """
    return INPUT_DTYPES.get(net.spec.layers[0].kind, "float32")


def _graph(net: PolicyNet, precision: Precision, calibration: np.ndarray | None) -> Graph:
    if precision.name == "fp32":
        return Graph(net)
    if precision.name == "int4":
        return BlockGraph(net, precision)
    if not any(layer.kind == "conv2d" for layer in net.spec.layers):
        return DynamicGraph(net, precision, unsigned=saturates_int8())
    shape = net.spec.obs_shape
    if calibration is None or calibration.shape[1:] != shape or not len(calibration):
        got = "none" if calibration is None else list(calibration.shape)
        raise QuarlError(
            f"int8 convolutions need calibration observations of {list(shape)}, got {got}"
        )
    if obs_dtype(net) == "uint8" != calibration.dtype.name:
        got = calibration.dtype.name
        raise QuarlError(f"calibration observations must be frames of uint8, got {got}")
    return StaticGraph(net, precision, calibration, unsigned=saturates_int8())
