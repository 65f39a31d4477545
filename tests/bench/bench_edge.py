"""One decision of Table 6's policies, batch 1, one core: our C against ONNX Runtime.

Peers: ONNX Runtime in the same precision (both run the exported folder, in turn within each
repeat) and fp32 in the same runtime. Pin it to a core: `taskset -c 1 python bench_edge.py`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

from quarl_nb.edge.build import build, run_test, this_machine
from quarl_nb.edge.export import PRECISIONS, export_policy
from quarl_nb.inference.onnx import session_options
from quarl_nb.rl.air.navigation import ENV_ID
from quarl_nb.rl.observations import collect_observations
from quarl_nb.studies.edge import TABLE_6, navigation_policy

REPEATS, CALLS = 9, 1000


def main() -> None:
    """Print medians (of the medians of the repeats) and their ratios."""
    torch.set_num_threads(1)
    for network in TABLE_6:
        net = navigation_policy(network, seed=0)
        obs = collect_observations(net, ENV_ID, 64, seed=0)
        medians = {}
        for precision in PRECISIONS:
            with tempfile.TemporaryDirectory() as place:
                folder = export_policy(net, precision, place, obs, name=network)
                medians[precision] = times_of(folder, precision, obs)
            c, onnx = medians[precision]
            print(f"{network:14s} {precision}: C {1e6 * c:7.2f} us, ONNX Runtime {1e6 * onnx:7.2f} "
                  f"us; C over ONNX Runtime {c / onnx:.2f}x (target: at most 2x)")
        for i, runtime in enumerate(("C", "ONNX Runtime")):
            gain = medians["fp32"][i] / medians["int8"][i]
            print(f"{network:14s} {runtime}: fp32 over int8 {gain:.2f}x "
                  "(target: 4096-512-1024 at least 2.5x)")
        if network == "256x3":
            print(f"{network:14s} C int8 {1e6 * medians['int8'][0]:.2f} us (target: under 4 us)")


def times_of(folder: Path, precision: str, obs: np.ndarray) -> tuple[float, float]:
    """Seconds of one decision in C and in ONNX Runtime."""
    target = this_machine()
    program = build(folder, target)
    path = str(folder / "policy.onnx")
    session = ort.InferenceSession(path, session_options(precision))
    feeds = [{"obs": one[None]} for one in obs]
    c, onnx = [], []
    for _ in range(REPEATS):
        c.append(run_test(program, target, CALLS)["latency_p50_s"])
        took = []
        for call in range(CALLS):
            started = time.perf_counter()
            session.run(None, feeds[call % len(feeds)])
            took.append(time.perf_counter() - started)
        onnx.append(float(np.median(took)))
    return float(np.median(c)), float(np.median(onnx))


if __name__ == "__main__":
    main()
