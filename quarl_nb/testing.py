"""Fakes: studies and publishers that behave as asked, to test concurrency without training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quarl_nb.errors import check_choice
from quarl_nb.study import Measurement

if TYPE_CHECKING:
    from quarl_nb.actorq.variables import SharedVariables

BEHAVIOURS = ("ok", "raise", "killed", "exit", "not_json")


@dataclass(frozen=True)
class FakeStudy:
    """Cells 0..n_cells-1; cell i measures `returns = [i, i + 1]` in the way that it is told.

    Args:
        behaviours: cell number -> one of BEHAVIOURS; the others are "ok".
        log: a file that gets a line (the cell's number, the process id) whenever a cell begins.
        schema_version, timed: as of any study.
    """

    behaviours: Mapping[int, str] = field(default_factory=dict)
    log: Path | None = None
    schema_version: int = 1
    timed: bool = False
    name: str = "fake"

    @property
    def profiles(self) -> Mapping[str, Mapping[str, Any]]:
        """`n_cells` cells of `delay_s` seconds each, for `algos`."""
        smoke = {"n_cells": 3, "delay_s": 0.0, "algos": ["ppo"], "episodes": 2}
        return {"smoke": smoke, "quick": {**smoke, "n_cells": 4}}

    def cells(
        self, parameters: Mapping[str, Any]
    ) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """One cell for each algorithm and number."""
        for algo in parameters["algos"]:
            check_choice("algorithm", algo, ("ppo", "dqn"))
        budget = {"episodes": parameters["episodes"], "delay_s": parameters["delay_s"]}
        return [
            ({"algo": algo, "number": number}, budget)
            for algo in parameters["algos"]
            for number in range(parameters["n_cells"])
        ]

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Sleep `delay_s`, then behave."""
        number = cell["number"]
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{number} {os.getpid()}\n")
        time.sleep(budget["delay_s"])
        behaviour = check_choice("behaviour", self.behaviours.get(number, "ok"), BEHAVIOURS)
        if behaviour == "raise":
            raise ValueError(f"cell {number} was told to fail")
        if behaviour == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "exit":
            os._exit(7)
        if behaviour == "not_json":
            return Measurement({"returns": [object()]}, backend="fake")
        returns = np.array([number, number + 1.0])
        threads = os.environ.get("OMP_NUM_THREADS")
        return Measurement(
            {"returns": returns, "lengths": [1] * budget["episodes"]},
            backend="fake",
            arrays={"curve": np.arange(number + 1)},
            extra={"omp_threads": threads},
        )


def numbered_payload(version: int, size: int) -> bytes:
    """About `size` bytes that no mixture of two versions equals."""
    return np.full(size - version % 100, version % 251, np.uint8).tobytes()


def publish_versions(shared: SharedVariables, count: int, size: int, seed: int) -> None:
    """Publish versions 0 to `count` - 1, half of them after a random delay of about 1 ms."""
    from quarl_nb.actorq.variables import Variables

    rng = np.random.default_rng(seed)
    for version in range(count):
        shared.publish(Variables(version, numbered_payload(version, size)))
        time.sleep(rng.exponential(0.001) * (rng.random() < 0.5))
