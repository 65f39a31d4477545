"""How long one decision takes: latency by network, batch and engine (Table 6; section 3.4).

Networks are the paper's, with random weights: time depends on shapes, not on what was learned.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from quarl_nb.errors import QuarlError, check_at_least, check_choice, check_counts, check_seeds
from quarl_nb.inference import RUNTIMES, Engine, build_payload, open_engine
from quarl_nb.inference.export import PRECISIONS
from quarl_nb.quant import parse_precision, weight_bytes
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import Head, PolicyNet, PolicySpec
from quarl_nb.study import Measurement, network_name

# The observations and actions of humanoid, the largest task of Table 2.
OBSERVATIONS, ACTIONS = 67, 21
# Filters of three convolutions and units of the layer after them: both readings of the zoo that the
# paper calls "3 Layer Conv (128) + 128 FC", of which the second is the preprint's policy A, and
# its policies B and C (see `quarl_nb.studies.mixed_precision`).
LARGE_CNNS = {"cnn-512x3": ((512, 512, 512), 512), "cnn-1024x3": ((1024, 1024, 1024), 2048)}
CNNS = {"nature-cnn": ((32, 64, 64), 128), "cnn-128x3": ((128, 128, 128), 128), **LARGE_CNNS}
# In half precision a processor without units for it takes seconds for a decision of a large one,
# thirty times as long as in fp32, and minutes for 64.
LARGE_PRECISIONS, LARGE_BATCH = ("fp32", "int8"), 8
FRAMES, ATARI_ACTIONS = (4, 84, 84), 6
CALIBRATION_FRAMES = 32
MIN_CACHED_BYTES = 2**20  # reading fewer would time the call


@dataclass(frozen=True)
class InferenceStudy:
    """Networks x engines (runtime, precision) x batch sizes.

    Parameters: `networks` (hidden sizes as "2048x3" or "4096-512-1024", or one of
    `CNNS`), `runtimes`, `precisions` (each in the runtimes that compute in it; of `LARGE_CNNS` only
    `LARGE_PRECISIONS`), `batches` (of those at most `LARGE_BATCH`), `repeats` (timed blocks),
    `repeat_s` (seconds a block), `seed` (of weights and observations).
    """

    name: str
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    schema_version: int = 1
    timed: bool = True

    def cells(self, parameters: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The matrix: (cell, budget) of every network, engine that can run it, and batch size."""
        budget = {name: parameters[name] for name in ("repeats", "repeat_s")}
        check_counts(1, repeats=budget["repeats"])
        check_at_least(0, repeat_s=budget["repeat_s"])
        check_seeds(parameters["seed"])
        for runtime in parameters["runtimes"]:
            check_choice("runtime", runtime, RUNTIMES)
        for precision in parameters["precisions"]:
            check_choice("precision of an engine", precision, sorted(sum(PRECISIONS.values(), ())))
        engines = [
            (runtime, precision)
            for runtime in parameters["runtimes"]
            for precision in parameters["precisions"]
            if precision in PRECISIONS[runtime]
        ]
        found = []
        for network in parameters["networks"]:
            layers(network)
            for runtime, precision in engines:
                if network in CNNS and precision == "int4":
                    continue  # no convolutions in int4
                large = network in LARGE_CNNS
                if large and precision not in LARGE_PRECISIONS:
                    continue
                for batch in parameters["batches"]:
                    check_counts(1, batch=batch)
                    if large and batch > LARGE_BATCH:
                        continue
                    cell = {"network": network, "runtime": runtime, "precision": precision,
                            "batch": batch, "seed": parameters["seed"]}  # fmt: skip
                    found.append((cell, budget))
        return found

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Build, open and run one engine on one thread."""
        torch.set_num_threads(1)
        net = random_policy(cell["network"], cell["seed"])
        obs = random_inputs(net, max(cell["batch"], CALIBRATION_FRAMES), cell["seed"])
        repeats = budget["repeats"]

        def build() -> bytes:
            runtime, precision = cell["runtime"], cell["precision"]
            return build_payload(net, precision, runtime=runtime, calibration=obs)

        payload = build()
        engine = open_engine(payload)
        n_bytes = weight_bytes(net, parse_precision(cell["precision"]))
        cached = read_bandwidth(max(n_bytes, MIN_CACHED_BYTES))
        measured = latencies(engine, obs[: cell["batch"]], repeats, budget["repeat_s"]) | {
            "payload_bytes": len(payload),
            "weight_bytes": n_bytes,
            "build_s": [timed(build) for _ in range(repeats)],
            "open_s": [timed(lambda: open_engine(payload)) for _ in range(repeats)],
            "cached_bytes_per_s": cached,
            "floor_s": n_bytes / cached,
        }
        extra = {"weights": "random", "weights_seed": cell["seed"]}
        return Measurement(measured, backend=cell["runtime"], extra=extra)


def layers(network: str) -> tuple[Layer, ...]:
    """The layers of a network by name.

    Raises:
        QuarlError: not a name of that form.
    """
    if network in CNNS:
        return _convolutional(*CNNS[network])
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9])", network)
    sizes = [match[1]] * int(match[2]) if match else network.split("-")
    if not all(re.fullmatch(r"[1-9]\d{0,4}", size) for size in sizes):
        raise QuarlError(
            f"unknown network {network!r}; allowed: {', '.join(CNNS)}, or hidden sizes as '2048x3' "
            "or '4096-512-1024'"
        )
    hidden = [int(size) for size in sizes]
    if network != (name := network_name(hidden)):  # it would be another cell
        raise QuarlError(f"network {network!r} is written {name!r}")
    found = []
    for inputs, outputs in zip([OBSERVATIONS, *hidden], hidden, strict=False):
        found += [_linear(inputs, outputs), Layer("relu")]
    return *found, _linear(hidden[-1], ACTIONS)


def _linear(inputs: int, outputs: int) -> Layer:
    return Layer("linear", {"in_features": inputs, "out_features": outputs})


def _convolutional(filters: tuple[int, int, int], units: int) -> tuple[Layer, ...]:
    """The layers of Mnih et al. 2015 with that many filters and units."""
    found = [Layer("divide", {"by": 255.0})]
    inputs = FRAMES[0]
    for outputs, kernel, stride in zip(filters, (8, 4, 3), (4, 2, 1), strict=True):
        options = {"in_channels": inputs, "out_channels": outputs, "kernel_size": kernel}
        found += [Layer("conv2d", options | {"stride": stride}), Layer("relu")]
        inputs = outputs
    found += [Layer("flatten"), _linear(inputs * 7 * 7, units), Layer("relu")]
    return *found, _linear(units, ATARI_ACTIONS)


@lru_cache(maxsize=1)  # the cells of a network follow each other
def random_policy(network: str, seed: int) -> PolicyNet:
    """A network of that name with `random_weights`, for humanoid's sizes or for frames."""
    shape = FRAMES if network in CNNS else (OBSERVATIONS,)
    return random_weights(PolicySpec("random", None, shape, layers(network), Head("argmax")), seed)


def random_weights(spec: PolicySpec, seed: int) -> PolicyNet:
    """A policy with normal weights of variance 2 / inputs (He et al. 2015) and small biases."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for i, layer in enumerate(spec.layers):
        for name, meta in layer.build().state_dict(prefix=f"layers.{i}.").items():
            std = 0.1 if meta.ndim == 1 else (2 / meta[0].numel()) ** 0.5
            tensors[name] = std * torch.randn(meta.shape, generator=generator)
    return PolicyNet(spec, tensors)


def random_inputs(net: PolicyNet, n: int, seed: int) -> np.ndarray:
    """uint8 frames or normal float32 vectors, ``[n, *obs_shape]``."""
    rng, shape = np.random.default_rng(seed), (n, *net.spec.obs_shape)
    if net.spec.layers[0].kind == "divide":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.standard_normal(shape, dtype=np.float32)


def latencies(engine: Engine, obs: np.ndarray, repeats: int, repeat_s: float) -> dict[str, Any]:
    """Seconds that one call takes on `obs`, over `repeats` blocks of about `repeat_s` seconds.

    Returns:
        latency_p10_s .. latency_p99_s: percentiles over all calls; latency_medians_s: the median
        of every block; calls: how many there were.
    """
    warm = min(timed(lambda: engine.run(obs)) for _ in range(5))
    calls = int(np.clip(repeat_s / warm, 3, 5000))
    times = np.array([[timed(lambda: engine.run(obs)) for _ in range(calls)]
                      for _ in range(repeats)])  # fmt: skip
    percentiles = {f"latency_p{p}_s": np.percentile(times, p) for p in (10, 50, 90, 99)}
    return percentiles | {"latency_medians_s": np.median(times, axis=1), "calls": times.size}


def timed(call: Callable[[], Any]) -> float:
    """Wall seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def read_bandwidth(n_bytes: int) -> float:
    """Bytes per second at which one thread reads an array of `n_bytes` again and again.

    The floor of a network whose weights are that large: they lie in whatever cache holds them.
    """
    array = torch.ones(n_bytes // 8, dtype=torch.int64)
    return 8 * len(array) / min(timed(array.sum) for _ in range(9))


PAPER = ["64x3", "256x3", "4096-512-1024", "2048x3", "nature-cnn", "cnn-128x3"]  # but LARGE_CNNS
SMOKE = {"networks": ["64x3"], "runtimes": list(RUNTIMES), "precisions": ["fp32", "int8"],
         "batches": [1], "repeats": 3, "repeat_s": 0.002, "seed": 0}  # fmt: skip
QUICK = SMOKE | {"networks": [*PAPER, "512x3", "1024x3"], "precisions": ["fp32", "bf16", "int8"],
                 "batches": [1, 8], "repeats": 5, "repeat_s": 0.03}  # fmt: skip
FULL = QUICK | {"networks": [*PAPER, *LARGE_CNNS, "128x3", "512x3", "1024x3", "4096x3"],
                "batches": [1, 8, 64], "precisions": ["fp32", "fp16", "bf16", "int8", "int4"],
                "repeats": 10, "repeat_s": 0.05}  # fmt: skip

INFERENCE = InferenceStudy("inference", {"smoke": SMOKE, "quick": QUICK, "full": FULL})
