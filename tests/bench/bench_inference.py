"""One decision of the 67-2048x3-21 policy, batch 1, on one core: ONNX Runtime int8 against fp32.

Peers: torch eager fp32 (what the paper's actors ran), ONNX Runtime fp32 (the fair baseline) and,
for opening a payload, `load_state_dict` of torch's own dynamically quantized modules. They
are timed in turn within each repeat, so that a busy machine slows them alike; the medians over
repeats are compared, and the fastest is printed too. Run it pinned to a core:
`taskset -c 1 python tests/bench/bench_inference.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from quarl_nb.inference import build_payload, open_engine
from quarl_nb.studies.inference import random_inputs, random_policy, timed
from quarl_nb.studies.loading import torch_loader

NETWORK, REPEATS, CALLS, OPENINGS = "2048x3", 15, 40, 5


def main() -> None:
    """Print the times and their ratios."""
    torch.set_num_threads(1)
    net = random_policy(NETWORK, seed=0)
    one, eight = (random_inputs(net, n, seed=0) for n in (1, 8))
    payloads = {
        "torch fp32": build_payload(net, "fp32", runtime="torch"),
        "onnxruntime fp32": build_payload(net, "fp32"),
        "onnxruntime int8": build_payload(net, "int8"),
    }
    engines = {name: open_engine(payload) for name, payload in payloads.items()}
    int8, payload = engines["onnxruntime int8"], payloads["onnxruntime int8"]
    runs: dict[str, Callable[[], Any]] = {
        name: partial(engine.run, one) for name, engine in engines.items()
    }
    runs["onnxruntime int8, 8 observations"] = lambda: int8.run(eight)
    loads = {
        "torch int8 load_state_dict": torch_loader(net, "int8"),
        "open int8": lambda: open_engine(payload),
        "build int8": lambda: build_payload(net, "int8"),
    }
    seconds = medians(runs, CALLS) | medians(loads, OPENINGS)
    print(f"payload {len(payload)} bytes")
    fast = seconds["onnxruntime int8"]
    report("int8 against torch eager fp32", seconds["torch fp32"] / fast, "at least 12x")
    report("int8 against ONNX Runtime fp32", seconds["onnxruntime fp32"] / fast, "at least 6x")
    eight_s = seconds["onnxruntime int8, 8 observations"]
    report("8 observations against one", eight_s / fast, "at most 2.2x")
    loading = seconds["open int8"] / seconds["torch int8 load_state_dict"]
    report("opening against torch int8 load_state_dict", loading, "at most 0.33x")
    print(f"opening int8: {1e3 * seconds['open int8']:.1f} ms (target: at most 6 ms)")
    print(f"building int8: {1e3 * seconds['build int8']:.1f} ms (target: at most 30 ms)")


def report(what: str, ratio: float, target: str) -> None:
    print(f"{what}: {ratio:.2f}x (target: {target})")


def medians(calls: dict[str, Callable[[], Any]], n: int) -> dict[str, float]:
    """Seconds of each call: the median of `REPEATS` medians of `n`, taken in turn; printed."""
    blocks: dict[str, list[float]] = {name: [] for name in calls}
    fastest = dict.fromkeys(calls, float("inf"))
    for _ in range(REPEATS):
        for name, call in calls.items():
            call()  # the weights of the one before are in the cache
            times = [timed(call) for _ in range(n)]
            blocks[name].append(float(np.median(times)))
            fastest[name] = min(fastest[name], *times)
    found = {name: float(np.median(times)) for name, times in blocks.items()}
    for name, value in found.items():
        print(f"{name:34s} median {1e6 * value:9.1f} us   fastest {1e6 * fastest[name]:9.1f} us")
    return found


if __name__ == "__main__":
    main()
