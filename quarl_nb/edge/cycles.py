"""Cycles of the inner loops on a board's core, from LLVM's machine-code analyser (llvm-mca).

Not called by the suite: how `MACS_PER_CYCLE` of `quarl_nb.edge.boards` was computed;
tests/edge/test_pi_model.py recomputes it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from quarl_nb.edge.build import board, run_tool
from quarl_nb.errors import QuarlError, UnavailableError

ITERATIONS = 100
# Multiplications and additions that one NEON instruction makes.
_MACS = {
    r"f(mla|mul)\s+v\d+\.4s": 4,
    r"s(mull|mlal)2?\s+v\d+\.8h": 8,
    r"(mla|mul)\s+v\d+\.8h": 8,
    r"sdot\s+v\d+\.4s": 16,
}


@dataclass(frozen=True)
class InnerLoop:
    """The loop of a policy that multiplies most in one pass.

    Attributes:
        macs, instructions: of one pass.
        cycles: of one pass, everything in the first-level cache.
    """

    macs: int
    instructions: int
    cycles: float

    @property
    def macs_per_cycle(self) -> float:
        return self.macs / self.cycles


def inner_loop(folder: Path, cpu: str) -> InnerLoop:
    """Analyse policy.c of an exported folder, compiled for `cpu` (as cortex_a53).

    Raises:
        UnavailableError: no ziglang or no llvm-mca.
        QuarlError: the compiler or the analyser failed.
    """
    if shutil.which("llvm-mca") is None:
        raise UnavailableError("no llvm-mca: install LLVM")
    with tempfile.TemporaryDirectory() as place:
        assembly = Path(place) / "policy.s"
        run_tool([*board(cpu).command, "-g0", "-S", str(folder / "policy.c"), "-o", str(assembly)])
        body = max(_loops(assembly.read_text()), key=_macs)
    command = ["llvm-mca", "-march=aarch64", f"-mcpu={cpu.replace('_', '-')}", "-mattr=+dotprod",
               f"-iterations={ITERATIONS}"]  # fmt: skip
    told = run_tool(command, text="\n".join(body) + "\n", what="llvm-mca")
    found = re.search(r"Total Cycles:\s+(\d+)", told)
    if found is None:
        raise QuarlError(f"llvm-mca tells no cycles for {cpu}")
    return InnerLoop(_macs(body), len(body), int(found[1]) / ITERATIONS)


def _macs(body: list[str]) -> int:
    return sum(n for line in body for pattern, n in _MACS.items() if re.match(pattern, line))


def _loops(assembly: str) -> list[list[str]]:
    """Instructions of every loop without another label inside."""
    lines = [line.partition("//")[0].strip() for line in assembly.splitlines()]
    lines = [line for line in lines if line and (line[0] != "." or line.endswith(":"))]
    found, start = [[""]], 0
    for i, line in enumerate(lines):
        if line.endswith(":"):
            start = i
        branch = re.match(r"(?:b\.\w+|cbn?z\s+\w+,)\s*(\S+)", line)
        if branch and lines[start] == f"{branch[1]}:":
            found.append(lines[start + 1 : i + 1])
    return found
