"""The processor that this runs on, and what it computes fast, or at all exactly."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# What decides how fast low precision is, as Linux names it: of x86, then of Arm.
FEATURES = (
    "avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
    "asimddp", "i8mm", "bf16",
)  # fmt: skip
_X86 = ("x86_64", "AMD64")


def cpu_model(cpuinfo: Path = CPUINFO) -> str | None:
    """The processor's name as the system gives it, None where it gives none.

    Virtual machines give generations of different speed one name. Of three that are all an
    "AMD EPYC", only Zen 5 keeps it; Zen 4, whose AVX-512 is half as wide, becomes "(Zen 4)", and
    Zen 3 "(AVX2)", as does any x86 processor that has no AVX-512. A Xeon that computes bfloat16
    has AMX for it; one whose host hides that becomes "(no AMX)".
    """
    text = _text(cpuinfo)
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    if found is None:
        name = command_output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
        return name or None
    name, features = found[1].strip(), cpu_features(cpuinfo)
    if "avx2" in features and "avx512f" not in features:
        return f"{name} (AVX2)"
    if _is_intel(cpuinfo) and "avx512_bf16" in features and "amx_bf16" not in features:
        return f"{name} (no AMX)"
    family = re.search(r"^cpu family\s*:\s*(\d+)$", text, re.MULTILINE)
    zen_3_or_4 = name.startswith("AMD") and family is not None and family[1] == "25"
    return f"{name} (Zen 4)" if zen_3_or_4 else name


@cache
def cpu_features(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Those of FEATURES that the processor has; none where the system does not tell."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _text(cpuinfo), re.MULTILINE)
    words = found[1].split() if found else []
    return tuple(name for name in FEATURES if name in words)


@cache
def bf16_is_faster(cpuinfo: Path = CPUINFO) -> bool:
    """Whether products of bfloat16 take less time than those of float32.

    Without instructions for them torch's stand-in takes eighty times as long. A Xeon has AMX for
    them; its AVX-512 has them too, but takes twice as long as for float32 (84 against 160 GFLOP/s
    on one core whose host hides AMX), where a Zen 4 or 5 takes half.
    """
    features = cpu_features(cpuinfo)
    if "avx512_bf16" in features and not _is_intel(cpuinfo):
        return True
    return not {"amx_bf16", "bf16"}.isdisjoint(features)


def saturates_int8(cpuinfo: Path = CPUINFO) -> bool:
    """Whether ONNX Runtime's products of u8 and s8 are inexact here.

    On x86 without VNNI it adds them in pairs of 16 bits, which saturate.
    """
    if platform.machine() not in _X86:
        return False
    return {"avx_vnni", "avx512_vnni", "amx_int8"}.isdisjoint(cpu_features(cpuinfo))


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def command_output(*command: str) -> str | None:
    """Standard output of a command, None if it is missing, fails or takes over ten seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _is_intel(cpuinfo: Path) -> bool:
    return re.search(r"^model name\s*:\s*Intel", _text(cpuinfo), re.MULTILINE) is not None


def _text(cpuinfo: Path) -> str:
    try:
        return cpuinfo.read_text()
    except OSError:
        return ""
