"""Time and memory of a policy on a Raspberry Pi, modelled from published numbers, fitted to none.

    latency = max(operations / rate, bytes from memory / bandwidth) + bytes swapped / flash

It is a lower bound: no interpreter, no system call, no cache miss but for weights that do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quarl_nb.edge.boards import BOARDS, MACS_PER_CYCLE, RUNTIME_BYTES, Board
from quarl_nb.errors import check_choice
from quarl_nb.quant.qconfig import INT4_GROUP_SIZE

__all__ = ["BOARDS", "RUNTIMES", "Prediction", "macs", "predict", "swap_s", "weight_bytes"]

RUNTIMES = tuple(RUNTIME_BYTES)
BITS = {"fp32": 32, "int8": 8, "int4": 4}


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
