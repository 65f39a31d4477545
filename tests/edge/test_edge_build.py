"""Built for this machine, and cross-compiled for a Cortex-A53 and emulated."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from quarl_nb.edge.build import (
    Target,
    board,
    build,
    instructions_per_decision,
    memory_of,
    policy_memory,
    run_test,
)
from quarl_nb.edge.export import export_policy
from quarl_nb.errors import QuarlError, UnavailableError
from quarl_nb.inference import build_payload, open_engine


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_board_computes_what_this_machine_computes(small_policy, obs, pi, tmp_path, precision):
    folder = export_policy(small_policy, precision, tmp_path, obs, name="p")
    report = run_test(build(folder, pi), pi)
    assert report["correct"] and report["actions_as_recorded"] == 50
    with np.load(folder / "observations.npz") as file:
        assert report["largest_difference"] < 2e-5 * np.abs(file["outputs"]).max()


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("gcc") is None, reason="no gcc for x87"
)
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_levels_are_whole_where_sums_are_wider_than_float(small_policy, obs, tmp_path, precision):
    folder = export_policy(small_policy, precision, tmp_path, obs, name="p")
    with np.load(folder / "observations.npz") as file:
        allowed = 2e-5 * np.abs(file["outputs"]).max()
    for standard in ("c99", "gnu99"):  # the latter keeps wide what is assigned
        x87 = Target(("gcc", f"-std={standard}", "-O3", "-mfpmath=387"))
        assert run_test(build(folder, x87), x87)["largest_difference"] < allowed


def test_memory_on_a_board_is_that_of_the_constants(small_policy, obs, pi, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    program = build(folder, pi)
    memory = policy_memory(program)
    c_bytes = json.loads((folder / "export.json").read_text())["c_bytes"]
    assert memory["writable_bytes"] == 0
    assert c_bytes <= memory["constant_bytes"] < c_bytes + 500
    assert 4 * 2 * 40 <= memory["stack_bytes"] < 3000  # two buffers of 40 floats
    assert memory_of(program)[".rodata"] > memory["constant_bytes"]  # it holds the test vector too


def test_instructions_are_counted_and_repeat(small_policy, obs, pi, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    program = build(folder, pi)
    try:
        counted = instructions_per_decision(program)
    except UnavailableError as error:
        pytest.skip(str(error))
    macs = 6 * 40 + 40 * 5
    assert macs / 16 < counted < 10 * macs
    assert abs(instructions_per_decision(program) - counted) <= 0.02 * counted


COUNTER = """#!/bin/sh
# In place of the emulator: ten instructions a decision and a thousand around them, but none is
# told where something was printed.
printed=$("$3" "$4") && [ -z "$printed" ] && echo "instructions $((1000 - 10 * $4))" >&2
"""


def test_what_is_counted_prints_nothing(small_policy, obs, here, tmp_path, monkeypatch):
    program = build(export_policy(small_policy, "int8", tmp_path, obs, name="p"), here)
    counter = tmp_path / "counter"
    counter.write_text(COUNTER)
    counter.chmod(0o755)
    monkeypatch.setattr("quarl_nb.edge.build.QEMU", str(counter))
    assert instructions_per_decision(program) == 10
    monkeypatch.chdir(tmp_path)
    assert instructions_per_decision(program.relative_to(tmp_path)) == 10


def test_a_folder_may_be_named_from_where_one_is(small_policy, obs, here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = build(export_policy(small_policy, "int8", Path("out"), obs, name="p"), here)
    assert program == Path("out/test_policy") and run_test(program, here)["correct"]


def test_test_policy_tells_percentiles(small_policy, obs, here, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    report = run_test(build(folder, here), here, calls=200)
    percentiles = [report[f"latency_p{p}_s"] for p in (10, 50, 90, 99)]
    assert 0 < report["latency_min_s"] <= percentiles[0] and percentiles == sorted(percentiles)
    assert report["calls"] == 200
    assert 100_000 < report["resident_bytes"] <= report["peak_resident_bytes"] < 20_000_000


def test_c_and_the_engine_of_the_suite_act_alike(small_policy, obs, here, tmp_path):
    """`open_engine` takes each call's own ranges, the exported policy fixed ones."""
    export_policy(small_policy, "int8", tmp_path, obs, name="p")
    engine = open_engine(build_payload(small_policy, "int8"))
    outputs = np.concatenate([engine.run(one[None]) for one in obs])
    with np.load(tmp_path / "observations.npz") as file:
        assert np.abs(outputs - file["outputs"]).max() < 0.05 * np.abs(outputs).max()


def test_compiler_errors_are_one_line(small_policy, obs, here, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    (folder / "policy.c").write_text("int broken(\n")
    with pytest.raises(QuarlError, match="the C compiler failed: .*error") as caught:
        build(folder, here)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_folder_that_nothing_was_exported_to_is_told(folder, here, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(QuarlError, match=f"no policy.c in '.*{folder}': export a policy to it"):
        build(tmp_path / folder, here)


def test_a_crash_is_one_line(tmp_path):
    program = tmp_path / "crash"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    with pytest.raises(QuarlError, match="'crash' ended with status 7"):
        run_test(program, Target(()))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"#!/bin/sh\necho half a rep\n", "'p' ended with status 0"),
        (b"\x7fELF of another machine", "cannot run 'p': Exec format error"),
        (b"#!/bin/sh\nsleep 9\n", "'p' did not end within 0.1 s"),
    ],
)
def test_a_program_that_reports_nothing_is_one_line(monkeypatch, tmp_path, program, message):
    monkeypatch.setattr("quarl_nb.edge.build.TIMEOUT_S", 0.1 if b"sleep" in program else 9)
    (tmp_path / "p").write_bytes(program)
    (tmp_path / "p").chmod(0o755)
    with pytest.raises(QuarlError, match=message):
        run_test(tmp_path / "p", Target(()))


def test_frames_are_those_of_the_compiler_that_built_last(small_policy, obs, here, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    (folder / "test_policy.su").write_text("policy.c:1:1:f\t123456\tstatic\n")
    try:
        target = board("cortex_a53")
    except UnavailableError as error:
        pytest.skip(str(error))
    assert policy_memory(build(folder, target))["stack_bytes"] < 5000


def test_fast_math_is_refused(small_policy, obs, here, tmp_path):
    folder = export_policy(small_policy, "int8", tmp_path, obs, name="p")
    with pytest.raises(QuarlError, match="ffast-math would undo round_even"):
        build(folder, Target((*here.command, "-ffast-math")))


def test_only_elf_files_have_sections(tmp_path):
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(QuarlError, match="'text' is not a 64-bit little-endian ELF file"):
        memory_of(tmp_path / "text")


def test_without_ziglang_a_board_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(UnavailableError, match=r"pip install quarl_nb\[edge\]"):
        board("cortex_a53")
