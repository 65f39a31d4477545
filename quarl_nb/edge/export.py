"""Writes a folder that runs a policy on a board and needs nothing of ours there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from quarl_nb.edge.c_source import DEVICE, CSource, check_layers
from quarl_nb.edge.vectors import Vectors
from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.inference.engine import forwards
from quarl_nb.inference.export import obs_dtype
from quarl_nb.inference.graph import Graph
from quarl_nb.inference.integer import BlockGraph, StaticGraph
from quarl_nb.quant import Precision, parse_precision, quantize_module, weight_bytes
from quarl_nb.rl.policies import digest_of
from quarl_nb.rl.policy_net import PolicyNet, check_without_hooks
from quarl_nb.writing import write_together

FORMAT_VERSION = 1
PRECISIONS = ("fp32", "int8", "int4")
DESCRIPTION = "export.json"
COPIED = ("benchmark.py", "test_policy.c", "Makefile")
MADE = ("test_policy", "result.json")  # by the Makefile and benchmark.py
# Largest difference allowed, relative to the largest value. Sums of integers are exact everywhere,
# but an activation that lies between two levels may round to either of them.
TOLERANCE = {"fp32": 1e-4, "int8": 0.02, "int4": 0.02}


@torch.no_grad()
def export_policy(
    net: PolicyNet,
    precision: str,
    folder: str | Path,
    observations: np.ndarray,
    *,
    name: str,
    ranges: str = "minmax",
    env_id: str | None = None,
) -> Path:
    """Write the policy as ONNX and as C, with recorded observations to check both on the board.

    Files: policy.onnx (it gives what the head takes, of which `to_actions` of benchmark.py makes
    actions; on x86 without VNNI sums of its int8 weights are right only in a session with
    benchmark.py's options), observations.npz (`obs`, and the `outputs` and `actions` of the
    simulated policy), benchmark.py; policy.c, policy.h, test_policy.c, test_vectors.h and
    Makefile; export.json, which says what this is. An earlier export there is removed, and
    what was made of it: the program built and its result.

    Args:
        precision: fp32, int8 or int4.
        observations: raw, ``[n, *obs_shape]``; they calibrate the policy, and those of
            `Vectors.of` are recorded.
        name: of the policy, for its records.
        ranges: how the ranges of integers are set; see `parse_precision`.
        env_id: where the board's policy acts (default: what the policy says).

    Raises:
        QuarlError: a layer, head or precision without a form in C or ONNX Runtime, a policy of
            simulated precision, bad weights, int8 sums that may exceed int32, observations that
            are none, of another shape or not finite numbers, outputs that are not finite, a folder
            that cannot be written, or one that is no earlier export and holds a file that would
            be written or removed.
    """
    folder = Path(folder)
    check_exportable(net, precision, ranges)
    parsed = parse_precision(precision, ranges)
    obs = _as_inputs(observations, net)
    graph = onnx_graph(net, parsed, obs)
    if isinstance(graph, StaticGraph):  # both have the levels of one calibration
        simulated = graph.simulated
    else:
        simulated = quantize_module(net, parsed, lambda model: model(torch.as_tensor(obs)))
    source = CSource(net, parsed, simulated)
    vectors = Vectors.of(simulated, obs, TOLERANCE[precision])
    model = self_contained(graph.model(obs.dtype.name), graph.tensors)
    description = {
        "format_version": FORMAT_VERSION, "policy": name,
        "tensors_sha256": digest_of(net),  # several policies may have one name
        "precision": precision, "ranges": ranges,
        "algo": net.spec.algo, "env_id": env_id or net.spec.env_id, "network": source.widths,
        "head": head_of(net), "obs_dtype": obs.dtype.name,
        "observations": len(vectors.obs), **vectors.tolerances,
        "weight_bytes": weight_bytes(net, parsed), "onnx_bytes": len(model),
        "c_bytes": sum(array.nbytes for array in source.arrays.values()),
    }  # fmt: skip
    _write(folder, (json.dumps(description, indent=1) + "\n").encode(), {
        "policy.onnx": model,
        "policy.h": source.header().encode(),
        "policy.c": source.source().encode(),
        "test_vectors.h": vectors.header().encode(),
        **{file: (DEVICE / file).read_bytes() for file in COPIED},
        "observations.npz": vectors.npz(),
    })  # fmt: skip
    return folder


def check_exportable(net: PolicyNet, precision: str, ranges: str = "minmax") -> None:
    """What can be told before there are observations.

    Raises:
        QuarlError: a precision, ranges, a head or a layer that `export_policy` would refuse, or
            a policy of simulated precision.
    """
    check_choice("precision of an export", precision, PRECISIONS)
    parse_precision(precision, ranges)
    if net.spec.head.kind == "sample":
        raise QuarlError("head 'sample' draws its actions; allowed: argmax, clip, tanh_scale")
    check_layers(net)
    check_without_hooks(net)


def onnx_graph(net: PolicyNet, precision: Precision, obs: np.ndarray) -> Graph:
    """The policy in ONNX; int8 with fixed levels of activations, as in the simulated policy.

    ONNX Runtime has no int4 kernel with fixed levels: there each block of 32 activations takes its
    own range in every call.
    """
    if precision.name == "fp32":
        return Graph(net)
    if precision.name == "int4":
        return BlockGraph(net, precision)
    return StaticGraph(net, precision, obs)


def self_contained(model: bytes, tensors: Mapping[str, np.ndarray]) -> bytes:
    """The graph `model` as an ordinary .onnx file, weights inside."""
    proto = onnx.ModelProto.FromString(model)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(tensors[tensor.name]), tensor.name))
    return proto.SerializeToString()


def head_of(net: PolicyNet) -> dict[str, Any]:
    """What benchmark.py needs to turn outputs into actions; bounds finite, as JSON wants them."""
    head, limit = net.spec.head, float(np.finfo(np.float32).max)
    low, high = (np.clip(bound, -limit, limit).tolist() for bound in (head.low, head.high))
    return {"kind": head.kind, "low": low, "high": high}


def _as_inputs(obs: np.ndarray, net: PolicyNet) -> np.ndarray:
    """Recorded observations in the type that the policy takes, checked."""
    shape, dtype = net.spec.obs_shape, obs_dtype(net)
    if obs.shape[1:] != shape or not len(obs):
        wanted = ", ".join(["n", *map(str, shape)])
        raise QuarlError(f"recorded observations must be [{wanted}], n >= 1; got {list(obs.shape)}")
    if dtype == "uint8" != obs.dtype.name:
        raise QuarlError(f"recorded observations must be frames of uint8, got {obs.dtype}")
    if obs.dtype.kind not in "buif":
        raise QuarlError(f"recorded observations must be real numbers, got {obs.dtype}")
    with np.errstate(over="ignore"):  # to infinity
        obs = forwards(np.asarray(obs, dtype))
    if not np.isfinite(obs).all():
        raise QuarlError(f"recorded observations hold NaN or infinite values in {dtype}")
    return obs


def _write(folder: Path, description: bytes, files: Mapping[str, bytes]) -> None:
    """Write an export's files, and remove those of an earlier one there."""
    if not os.path.lexists(folder / DESCRIPTION):
        for file in (*files, *MADE):
            if os.path.lexists(folder / file):
                raise QuarlError(
                    f"'{folder / file}' would be lost, and no {DESCRIPTION} beside it says that it "
                    "is of an export: name another folder, or move the file away"
                )
    # The description first: by it what a killed export leaves is known as one, and as all others
    # are removed before, that is never half of another's.
    contents = {DESCRIPTION: description, **files}
    write_together({folder / file: content for file, content in contents.items()},
                   stale=[folder / file for file in (*files, *MADE)])  # fmt: skip
