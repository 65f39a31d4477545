"""Raspberry Pis: what the datasheets and published measurements say, each with its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Sourced:
    """A number in SI units and bytes, and where it comes from; "assumed: why" where nowhere."""

    value: float
    source: str


@dataclass(frozen=True)
class Board:
    """What the model needs of a board.

    Attributes:
        cpu: the core, as compilers name it.
        clock_hz: of one core.
        cache_bytes: of the last level of cache; weights that fit are not read from memory.
        bandwidth: bytes/s that one core moves, reads and writes together (as STREAM counts).
        ram_bytes: what the system sees.
        system_bytes: what runs beside the policy.
        flash: bytes/s, read in order.
    """

    cpu: str
    clock_hz: Sourced
    cache_bytes: Sourced
    bandwidth: Sourced
    ram_bytes: Sourced
    system_bytes: Sourced
    flash: Sourced


_MIB = 2**20
_KAISER = "ThomasKaiser/Knowledge, articles/Quick_Review_of_RPi_Zero_2_W.md (tinymembench)"
_DRAMBLE = "pidramble.com/wiki/benchmarks/microsd-cards"
_FREE = "andythemoron.com/blog/2017-04-23/Understanding-Linux-Memory-Usage (free -m, Pi 3B)"
_SYSTEM = Sourced(95 * _MIB, f"{_FREE}; it counts all programs but no caches")
_SAME_SYSTEM = Sourced(95 * _MIB, f"assumed: as on the Pi 3B ({_FREE})")
_PI2_FLASH = Sourced(18.45e6, f"{_DRAMBLE}: Samsung Evo+ 32GB, hdparm, Pi 2 (same reader)")

BOARDS = {
    "Raspberry Pi 3B": Board(
        "cortex_a53",
        Sourced(1.2e9, "003 (ActorQ), Table 7"),
        Sourced(512 * 2**10, "jamesrandominfo.blogspot.com/2016/02: 512KB L2, as on the Pi 2"),
        Sourced(2 * 1050.1e6, f"{_KAISER}: memcpy of the Pi 3B+, which has the same LPDDR2"),
        Sourced(925 * _MIB, f"{_FREE}: of 1 GB"),
        _SYSTEM, _PI2_FLASH,
    ),
    "Raspberry Pi Zero 2 W": Board(
        "cortex_a53",
        Sourced(1.0e9, _KAISER),
        Sourced(512 * 2**10, f"{_KAISER}: the die of the Pi 3B"),
        Sourced(2 * 1295.5e6, f"{_KAISER}: memcpy, cores at 1.2 GHz"),
        Sourced(512 * _MIB, f"{_KAISER}; less what the GPU keeps"),
        _SAME_SYSTEM,
        Sourced(18.45e6, "assumed: as on the Pi 3B, whose die it has"),
    ),
    "Raspberry Pi 4": Board(
        "cortex_a72",
        Sourced(1.5e9, "magpi.raspberrypi.com/articles/raspberry-pi-4-specs-benchmarks"),
        Sourced(_MIB, "github.com/ponyatov/nimbook/wiki/BCM2711: 1 MiB shared L2"),
        Sourced(5527.3e6, "sci-pi.org.uk/bench/stream.html: STREAM Copy, one thread"),
        Sourced(4096 * _MIB, "magpi.raspberrypi.com/articles/raspberry-pi-4-specs-benchmarks"),
        _SAME_SYSTEM,
        Sourced(43.92e6, f"{_DRAMBLE}: Samsung Evo+ 32GB, hdparm"),
    ),
    "Raspberry Pi 5": Board(
        "cortex_a76",
        Sourced(2.4e9, "github.com/geerlingguy/sbc-reviews/issues/81: Cortex-A76 at 2.4 GHz"),
        Sourced(2 * _MIB, "Linux, arch/arm64/boot/dts/broadcom/bcm2712.dtsi: shared L3"),
        Sourced(2 * 6155.2e6, "github.com/raspberrypi/firmware/issues/1876: tinymembench C copy"),
        Sourced(4096 * _MIB, "github.com/raspberrypi/firmware/issues/1876: 4GB board"),
        _SAME_SYSTEM,
        Sourced(90e6, "assumed: near the 104 MB/s of its SDR104 reader"),
    ),
}  # fmt: skip

_LOOP = (
    "llvm-mca 14.0.6 on the inner loop of our C for 256x3, compiled by ziglang 0.17.0 "
    "(quarl_nb.edge.cycles)"
)
_A57 = f"{_LOOP}; that LLVM schedules this core as a Cortex-A57"
MACS_PER_CYCLE = {
    ("cortex_a53", "fp32"): Sourced(0.744, _LOOP),
    ("cortex_a53", "int8"): Sourced(1.580, _LOOP),
    ("cortex_a53", "int4"): Sourced(1.753, _LOOP),
    ("cortex_a72", "fp32"): Sourced(2.880, _A57),
    ("cortex_a72", "int8"): Sourced(4.459, _A57),
    ("cortex_a72", "int4"): Sourced(3.111, _A57),
    ("cortex_a76", "fp32"): Sourced(2.880, _A57),
    ("cortex_a76", "int8"): Sourced(4.348, _A57),
    ("cortex_a76", "int4"): Sourced(3.111, _A57),
}

# What a process holds besides the weights.
RUNTIME_BYTES = {
    "c": Sourced(1.7e6, "measured on x86-64: VmRSS of test_policy, 64x3 int8"),
    "onnxruntime": Sourced(
        63.9e6, "measured on x86-64: VmRSS of benchmark.py with onnxruntime 1.31.0, 64x3 int8"
    ),
}


def model_inputs(board: Board) -> dict[str, Any]:
    """All that the model takes for `board`, as records hold it: the fields of a `Board`, and
    macs_per_cycle_<precision> of its core and runtime_bytes_<runtime>; {"value", "source"} each."""
    rates = {f"macs_per_cycle_{precision}": asdict(rate)
             for (cpu, precision), rate in MACS_PER_CYCLE.items() if cpu == board.cpu}  # fmt: skip
    held = {f"runtime_bytes_{runtime}": asdict(size) for runtime, size in RUNTIME_BYTES.items()}
    return asdict(board) | rates | held
