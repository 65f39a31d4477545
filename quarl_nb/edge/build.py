"""Builds an exported policy's C, for this machine or a board, and tells what it takes there."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quarl_nb.edge.c_source import DEVICE
from quarl_nb.errors import QuarlError, UnavailableError

TIMEOUT_S = 300
PERCENTILES = (10, 50, 90, 99)
QEMU = "qemu-aarch64"
COUNTED = 4  # decisions whose instructions are counted
MAPPED = 2  # SHF_ALLOC: the section takes memory when the program runs


@dataclass(frozen=True)
class Target:
    """A compiler and what it compiles for.

    Attributes:
        command: of the compiler, with its options.
        emulator: what runs its programs here; empty for this machine's own.
    """

    command: tuple[str, ...]
    emulator: tuple[str, ...] = ()


def this_machine() -> Target:
    """The C compiler of this machine; UnavailableError without one."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return Target((found, "-std=c99", "-O3", "-march=native"))
    return Target((*_zig(), "-std=c99", "-O3", "-mcpu=native"))


def board(cpu: str) -> Target:
    """A 64-bit Arm board's core, as cortex_a53; compiled by the Python package ziglang.

    Raises:
        UnavailableError: ziglang is not installed.
    """
    options = ("-std=c99", "-O3", "-target", "aarch64-linux-musl", f"-mcpu={cpu}", "-static")
    return Target((*_zig(), *options), (QEMU,))


def _zig() -> tuple[str, ...]:
    if importlib.util.find_spec("ziglang") is None:
        raise UnavailableError("no C compiler: install gcc, or `pip install quarl_nb[edge]`")
    return sys.executable, "-m", "ziglang", "cc"


def build(folder: Path, target: Target, name: str = "test_policy") -> Path:
    """The test program of an exported folder, `folder`/`name`; policy.c alone is `name`.o.

    Raises:
        QuarlError: no exported folder, or the compiler refused (its first error).
    """
    if not (folder / "policy.c").is_file():
        raise QuarlError(f"no policy.c in '{folder}': export a policy to it first")
    (folder / f"{name}.su").unlink(missing_ok=True)  # another compiler's: `policy_memory` reads it
    frames = "-fstack-size-section" if "ziglang" in target.command else "-fstack-usage"
    run_tool([*target.command, frames, "-c", "policy.c", "-o", f"{name}.o"], folder)
    run_tool([*target.command, "-o", name, "test_policy.c", f"{name}.o", "-lm"], folder)
    return folder / name


def run_test(program: Path, target: Target, calls: int = 1) -> dict[str, Any]:
    """What `program` reports of its test vector and of `calls` timed decisions.

    Returns:
        observations, correct, largest_difference, tolerance, actions_as_recorded, calls,
        latency_p10_s .. latency_p99_s, latency_min_s, resident_bytes, peak_resident_bytes (0
        where /proc does not tell; under an emulator, the emulator's).

    Raises:
        QuarlError: it ended otherwise than by reporting.
    """
    if target.emulator and shutil.which(target.emulator[0]) is None:
        raise UnavailableError(f"no {target.emulator[0]}: apt-get install qemu-user")
    program = program.resolve()  # it runs in its folder
    done = _start([*target.emulator, str(program), str(calls)], program.parent)
    try:
        reported = json.loads(done.stdout)
    except ValueError as error:
        raise QuarlError(f"'{program.name}' ended with status {done.returncode}") from error
    times = np.array(reported.pop("latency_ns")) / 1e9
    percentiles = {f"latency_p{p}_s": float(np.percentile(times, p)) for p in PERCENTILES}
    return reported | percentiles | {"latency_min_s": float(times.min()), "calls": len(times)}


def memory_of(program: Path) -> dict[str, int]:
    """Bytes of a 64-bit little-endian ELF file that lie in memory when it runs, by section.

    Raises:
        QuarlError: another kind of file.
    """
    found = _sections(program.read_bytes(), program.name)
    return {name: size for name, (flags, _, size) in found.items() if flags & MAPPED}


def policy_memory(program: Path) -> dict[str, int]:
    """Exact memory of policy.c in a program of `build`.

    Returns:
        code_bytes, constant_bytes, writable_bytes; stack_bytes, the frames of all its functions
        together: no chain of calls is deeper.
    """
    compiled = program.with_suffix(".o")
    found = memory_of(compiled)
    frames = _gcc_frames if compiled.with_suffix(".su").exists() else _clang_frames
    kinds = {"code_bytes": (".text",), "constant_bytes": (".rodata",),
             "writable_bytes": (".data", ".bss")}  # fmt: skip
    memory = {
        kind: sum(size for name, size in found.items() if name.startswith(prefixes))
        for kind, prefixes in kinds.items()
    }
    return memory | {"stack_bytes": sum(frames(compiled))}


def _gcc_frames(compiled: Path) -> list[int]:
    lines = compiled.with_suffix(".su").read_text().splitlines()
    return [int(line.split("\t")[1]) for line in lines]


def _clang_frames(compiled: Path) -> list[int]:
    """Sizes in the section .stack_sizes: each an address of 8 bytes, then a ULEB128."""
    content = compiled.read_bytes()
    _, start, size = _sections(content, compiled.name)[".stack_sizes"]
    frames, i = [], start
    while i < start + size:
        i, value, shift = i + 8, 0, 0
        while True:
            byte, i = content[i], i + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        frames.append(value)
    return frames


def _sections(content: bytes, file: str) -> dict[str, tuple[int, int, int]]:
    """Flags, offset and size of every section (System V ABI, chapter 4), equal names added up."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise QuarlError(f"'{file}' is not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", content, 40)
    entry, count, names = struct.unpack_from("<HHH", content, 58)
    headers = [struct.unpack_from("<IIQQQQ", content, table + i * entry) for i in range(count)]
    text = headers[names][4]
    found: dict[str, tuple[int, int, int]] = {}
    for name_at, _, flags, _, offset, size in headers:
        name = content[text + name_at : content.index(b"\0", text + name_at)].decode()
        found[name] = flags, offset, size + found.get(name, (0, 0, 0))[2]
    return found


def instructions_per_decision(program: Path) -> int:
    """Instructions that one `policy_run` executes, counted by the emulator.

    The difference between runs of `COUNTED` decisions and of twice as many, so that start and end
    drop out; it holds the few instructions of the loop around each call.

    Raises:
        UnavailableError: no emulator, or none that takes the plugin.
    """
    if shutil.which(QEMU) is None:
        raise UnavailableError(f"no {QEMU}: apt-get install qemu-user")
    program = program.resolve()  # it runs in its folder
    with tempfile.TemporaryDirectory() as place:
        plugin = Path(place) / "count_instructions.so"
        run_tool([*this_machine().command, "-shared", "-fPIC", "-o", str(plugin),
                  str(DEVICE / "count_instructions.c")], DEVICE)  # fmt: skip
        counts = []
        for n in (COUNTED, 2 * COUNTED):
            command = [QEMU, "-plugin", str(plugin), str(program), str(-n)]
            found = re.search(r"^instructions (\d+)$", _start(command, program.parent).stderr, re.M)
            if found is None:
                raise UnavailableError(f"{QEMU} does not take the plugin that counts instructions")
            counts.append(int(found[1]))
    return (counts[1] - counts[0]) // COUNTED


def run_tool(
    command: Sequence[str], folder: Path | None = None, text: str | None = None,
    what: str = "the C compiler",
) -> str:
    """What a compiler, or another tool, prints.

    Args:
        folder: where it runs (default: here).
        text: its standard input.
        what: it is, for the error.

    Raises:
        QuarlError: it cannot be run, does not end in time, or fails (its first error).
    """
    done = _start(command, folder, text)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise QuarlError(f"{what} failed: {lines[0]}")
    return done.stdout


def _start(
    command: Sequence[str], folder: Path | None, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    name = Path(command[0]).name
    try:
        return subprocess.run(
            command, cwd=folder, input=text, capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise QuarlError(f"'{name}' did not end within {TIMEOUT_S} s") from error
    except OSError as error:
        raise QuarlError(f"cannot run '{name}': {error.strerror}") from error
