"""Table 6's navigation policies on one core here (measured) and on Raspberry Pis (modelled).

Weights are random: time and memory depend on shapes, not on what was learned.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from quarl_nb.edge.boards import model_inputs
from quarl_nb.edge.build import (
    board,
    build,
    instructions_per_decision,
    policy_memory,
    run_test,
    this_machine,
)
from quarl_nb.edge.export import PRECISIONS, export_policy
from quarl_nb.edge.pi_model import BOARDS, RUNTIMES, predict
from quarl_nb.errors import QuarlError, check_at_least, check_choice, check_seeds
from quarl_nb.rl.air.navigation import ENV_ID, N_ACTIONS
from quarl_nb.rl.air.world import OBS_SIZE
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.observations import collect_observations
from quarl_nb.rl.policies import Head, PolicyNet, PolicySpec
from quarl_nb.studies.inference import CNNS, layers, random_weights
from quarl_nb.study import Measurement

HERE, EMULATED = "this machine", "emulated Cortex-A53"
N_OBSERVATIONS = 64


@dataclass(frozen=True)
class EdgeStudy:
    """Networks x precisions x runtimes x machines.

    Parameters: `networks` (hidden sizes as "64x3" or "4096-512-1024"), `precisions`, `runtimes`
    (onnxruntime, c), `machines` ("this machine" is measured, boards are modelled, and the emulated
    core counts instructions and bytes of the C), `seconds` (of timed calls), `seed` (of weights).
    """

    name: str
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    schema_version: int = 3
    timed: bool = True

    def cells(self, parameters: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The matrix: (cell, budget) of every network, precision, runtime and machine."""
        for what, allowed in (("precision", PRECISIONS), ("runtime", RUNTIMES),
                              ("machine", (HERE, EMULATED, *BOARDS))):  # fmt: skip
            for value in parameters[f"{what}s"]:
                check_choice(f"{what} of the edge study", value, allowed)
        check_at_least(0, seconds=parameters["seconds"])
        check_seeds(parameters["seed"])
        found = []
        for network in parameters["networks"]:
            navigation_layers(network)
            for precision in parameters["precisions"]:
                for runtime in parameters["runtimes"]:
                    for machine in parameters["machines"]:
                        if (machine, runtime) == (EMULATED, "onnxruntime"):
                            continue
                        cell = {"network": network, "precision": precision, "runtime": runtime,
                                "machine": machine, "seed": parameters["seed"]}  # fmt: skip
                        seconds = parameters["seconds"] if machine == HERE else 0.0
                        found.append((cell, {"seconds": seconds}))
        return found

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Export, then run what was exported in a process of its own, or model it."""
        torch.set_num_threads(1)
        network, runtime = cell["network"], cell["runtime"]
        extra = {"weights": "random", "weights_seed": cell["seed"]}
        if cell["machine"] in BOARDS:
            sizes = [layer.options["out_features"] for layer in navigation_layers(network)[::2]]
            pi = BOARDS[cell["machine"]]
            predicted = predict(pi, [OBS_SIZE, *sizes], cell["precision"], runtime)
            extra |= {"board": model_inputs(pi)}
            return Measurement(predicted.as_record(), runtime, "modelled", extra=extra)
        net = navigation_policy(network, cell["seed"])
        with tempfile.TemporaryDirectory() as place:
            obs = collect_observations(net, ENV_ID, N_OBSERVATIONS, cell["seed"])
            folder = export_policy(net, cell["precision"], place, obs, name=network)
            export = json.loads((folder / "export.json").read_text())
            if cell["machine"] == EMULATED:
                measured = _emulate_c(folder)
            else:
                run = _run_c if runtime == "c" else _run_onnxruntime
                measured = run(folder, budget["seconds"])
        measured["weight_bytes"] = export["weight_bytes"]
        measured["payload_bytes"] = export["c_bytes" if runtime == "c" else "onnx_bytes"]
        return Measurement(measured, runtime, extra=extra)


def _run_onnxruntime(folder: Path, seconds: float) -> dict[str, Any]:
    """benchmark.py of the folder, as a board runs it."""
    command = [sys.executable, "benchmark.py", "--seconds", str(seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise QuarlError(f"benchmark.py failed: {done.stderr.splitlines()[-1:]}")
    measured = json.loads((folder / "result.json").read_text())["runtimes"]["onnxruntime"]
    left_out = ("actions", "heat_before", "heat_after")
    kept = {name: value for name, value in measured.items() if name not in left_out}
    libraries = (Path(onnxruntime.__file__).parent / "capi").glob("*.so*")
    return kept | {"code_bytes": sum(library.stat().st_size for library in libraries)}


def _run_c(folder: Path, seconds: float) -> dict[str, Any]:
    """test_policy of the folder, built for this machine."""
    target = this_machine()
    program = build(folder, target)
    first = run_test(program, target, calls=100)
    calls = int(np.clip(seconds / first["latency_p50_s"], 100, 1_000_000))
    return _correct(run_test(program, target, calls)) | policy_memory(program)


def _correct(report: dict[str, Any]) -> dict[str, Any]:
    """The report of a program that computes the policy; what another takes is no measurement."""
    if not report["correct"]:
        raise QuarlError(f"the program's outputs differ from the policy's: {report}")
    return report


def navigation_layers(network: str) -> tuple[Layer, ...]:
    """The layers of a network for the drone of Appendix B.3: 22 observations, 25 actions.

    Raises:
        QuarlError: not the hidden sizes of an MLP.
    """
    found = list(layers(network))
    if network in CNNS:
        raise QuarlError(f"network {network!r} takes frames; allowed: hidden sizes as '256x3'")
    for i, name, size in ((0, "in_features", OBS_SIZE), (-1, "out_features", N_ACTIONS)):
        found[i] = replace(found[i], options={**found[i].options, name: size})
    return tuple(found)


def _emulate_c(folder: Path) -> dict[str, Any]:
    """Instructions and exact memory on a Cortex-A53; an emulator tells no time."""
    target = board("cortex_a53")
    program = build(folder, target)
    report = _correct(run_test(program, target))
    counts = {name: report[name] for name in ("observations", "actions_as_recorded")}
    instructions = {"instructions": instructions_per_decision(program), "printing_counted": False}
    return counts | instructions | policy_memory(program)


@lru_cache(maxsize=1)  # the cells of a network follow each other
def navigation_policy(network: str, seed: int) -> PolicyNet:
    """`navigation_layers` with `random_weights`."""
    found = navigation_layers(network)
    spec = PolicySpec("random", ENV_ID, (OBS_SIZE,), found, Head("argmax"))
    return random_weights(spec, seed)


TABLE_6 = ["64x3", "256x3", "4096-512-1024"]
SMOKE = {"networks": ["64x3"], "precisions": ["fp32", "int8"], "runtimes": list(RUNTIMES),
         "machines": [HERE, "Raspberry Pi 3B"], "seconds": 0.05, "seed": 0}  # fmt: skip
QUICK = SMOKE | {"networks": TABLE_6, "precisions": list(PRECISIONS), "machines": [HERE, *BOARDS],
                 "seconds": 0.5}  # fmt: skip
FULL = QUICK | {"machines": [HERE, EMULATED, *BOARDS], "seconds": 5.0}

EDGE = EdgeStudy("edge", {"smoke": SMOKE, "quick": QUICK, "full": FULL})
