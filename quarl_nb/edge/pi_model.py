"""Time and memory of a policy on a Raspberry Pi, modelled from published numbers, fitted to none.

    latency = max(operations / rate, bytes from memory / bandwidth) + bytes swapped / flash

It is a lower bound: no interpreter, no system call, no cache miss but for weights that do not fit.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quarl_nb.edge.boards import BOARDS, MACS_PER_CYCLE, RUNTIME_BYTES, Board
from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.quant.qconfig import INT4_GROUP_SIZE

__all__ = ["BOARDS", "RUNTIMES", "Prediction", "macs", "predict", "table_6", "weight_bytes"]

RUNTIMES = tuple(RUNTIME_BYTES)
BITS = {"fp32": 32, "int8": 8, "int4": 4}
# Appendix B.3 gives the hidden layers and 25 actions; the observations are our environment's.
TABLE_6_SIZES = {"Policy I": (22, 64, 64, 64, 25), "Policy II": (22, 256, 256, 256, 25),
                 "Policy III": (22, 4096, 512, 1024, 25)}  # fmt: skip
# "Policies II and III take more memory than the total RAM capacity"; quantized, they fit.
SAID_TO_SWAP = (("Policy II", "fp32"), ("Policy III", "fp32"))


@dataclass(frozen=True)
class Prediction:
    """One decision, modelled.

    Attributes:
        compute_s, memory_s, swap_s: time of the operations, of reading the weights from memory
            (0 if the cache holds them), and of reading from flash what exceeds the memory.
        weight_bytes, resident_bytes: of the weights; of the whole process.
        free_bytes: memory left when it runs; negative where it swaps.
    """

    compute_s: float
    memory_s: float
    swap_s: float
    weight_bytes: int
    resident_bytes: float
    free_bytes: float

    @property
    def latency_s(self) -> float:
        return max(self.compute_s, self.memory_s) + self.swap_s

    def as_record(self) -> dict[str, Any]:
        """All of it as measured fields of a record, times with the prefix `modelled_`."""
        fields = {**asdict(self), "latency_s": self.latency_s}
        return {f"modelled_{name}": value for name, value in fields.items()}


def macs(sizes: Sequence[int]) -> int:
    """Multiplications of one decision of an MLP with layers of `sizes`, inputs first."""
    return sum(a * b for a, b in zip(sizes, sizes[1:], strict=False))


def weight_bytes(sizes: Sequence[int], precision: str) -> int:
    """Weights, their scales (float32; int4: one in 32 weights) and biases (float32)."""
    bits = BITS[check_choice("precision of the Pi model", precision, BITS)]
    total = 0
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        groups = outputs * -(-inputs // INT4_GROUP_SIZE)
        scales = {"fp32": 0, "int8": 1, "int4": groups}[precision]
        total += -(-inputs * outputs * bits // 8) + 4 * (scales + outputs)
    return total


def predict(board: Board, sizes: Sequence[int], precision: str, runtime: str = "c") -> Prediction:
    """One decision of an MLP on one core of `board`.

    Args:
        sizes: of the layers, inputs first.
        runtime: c or onnxruntime; it decides the memory, and the time where that does not suffice
            (both are given the rate of our C loops).
    """
    check_choice("runtime of the Pi model", runtime, RUNTIMES)
    n_bytes = weight_bytes(sizes, precision)
    rate = board.clock_hz.value * MACS_PER_CYCLE[board.cpu, precision].value
    from_memory = n_bytes if n_bytes > board.cache_bytes.value else 0
    resident = RUNTIME_BYTES[runtime].value + n_bytes
    free = board.ram_bytes.value - board.system_bytes.value - resident
    return Prediction(
        compute_s=macs(sizes) / rate,
        memory_s=from_memory / board.bandwidth.value,
        swap_s=swap_s(board, max(0.0, -free)),
        weight_bytes=n_bytes,
        resident_bytes=resident,
        free_bytes=free,
    )


def swap_s(board: Board, n_bytes: float) -> float:
    """Seconds to read `n_bytes` from flash, in order (the kindest case)."""
    return n_bytes / board.flash.value


def table_6(published: Path, board: str = "Raspberry Pi 3B") -> list[dict[str, Any]]:
    """Table 6 beside the model, one row for each policy and precision.

    The paper's explanation holds for a row where `exceeds_memory` equals `paper_says_exceeds`.
    `flash_bytes_needed` is what would have to come from flash in every decision, in order, to
    make up for the time that the model does not explain.

    Args:
        published: data/paper/table6.csv.

    Raises:
        QuarlError: that file lacks a time.
    """
    with published.open(newline="") as file:
        found = [row for row in csv.DictReader(file) if row["quantity"] == "inference_time"]
    times = {(row["policy"], row["precision"]): float(row["value"]) / 1e3 for row in found}
    rows = []
    for policy, sizes in TABLE_6_SIZES.items():
        for precision in ("fp32", "int8"):
            if (policy, precision) not in times:
                raise QuarlError(f"'{published.name}' has no time of {policy} {precision}")
            model = predict(BOARDS[board], sizes, precision, "onnxruntime")
            published_s = times[policy, precision]
            unexplained_s = max(0.0, published_s - model.latency_s)
            needed = unexplained_s * BOARDS[board].flash.value
            rows.append({
                "policy": policy, "precision": precision, "board": board,
                "published_s": published_s, "modelled_s": model.latency_s,
                "ratio": published_s / model.latency_s, "source": "modelled",
                "weight_bytes": model.weight_bytes, "resident_bytes": model.resident_bytes,
                "free_bytes": model.free_bytes, "flash_bytes_needed": needed,
                "flash_over_weights": needed / model.weight_bytes,
                "exceeds_memory": model.free_bytes < 0,
                "paper_says_exceeds": (policy, precision) in SAID_TO_SWAP,
            })  # fmt: skip
    return rows
