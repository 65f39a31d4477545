from __future__ import annotations

import dataclasses
import os

import pytest

from quarl_nb.edge.boards import BOARDS, MACS_PER_CYCLE, RUNTIME_BYTES, Sourced, model_inputs
from quarl_nb.edge.build import Target, board
from quarl_nb.edge.cycles import InnerLoop, _loops, _macs, inner_loop
from quarl_nb.edge.export import export_policy
from quarl_nb.edge.pi_model import macs, predict, swap_s, weight_bytes
from quarl_nb.errors import QuarlError, UnavailableError
from quarl_nb.paths import project_root
from quarl_nb.quant import parse_precision
from quarl_nb.quant import weight_bytes as bytes_of_policy
from quarl_nb.store import ResultStore

# Appendix B.3's hidden layers and 25 actions; the observations are our environment's.
TABLE_6_SIZES = {"Policy I": (22, 64, 64, 64, 25), "Policy II": (22, 256, 256, 256, 25),
                 "Policy III": (22, 4096, 512, 1024, 25)}  # fmt: skip
PI_3B = BOARDS["Raspberry Pi 3B"]


def mlp(sizes: list[int]) -> list:
    found: list = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        found += [("linear", {"in_features": inputs, "out_features": outputs}), "relu"]
    return found[:-1]


def test_operations_and_bytes_by_hand():
    assert macs([3, 4, 2]) == 3 * 4 + 4 * 2
    assert weight_bytes([3, 4, 2], "fp32") == 4 * (20 + 6)
    assert weight_bytes([3, 4, 2], "int8") == 20 + 4 * 2 + 4 * 6
    assert weight_bytes([64, 4], "int4") == 64 * 4 // 2 + 4 * 2 * 4 + 4 * 4
    assert 10.9e6 < weight_bytes(TABLE_6_SIZES["Policy III"], "fp32") < 11e6


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_bytes_are_those_of_the_quantizer(make_policy, precision):
    sizes = [22, 70, 33, 25]
    net = make_policy((22,), *mlp(sizes))
    assert weight_bytes(sizes, precision) == bytes_of_policy(net, parse_precision(precision))


def test_a_prediction_by_hand():
    sizes = TABLE_6_SIZES["Policy III"]
    model = predict(PI_3B, sizes, "fp32", "onnxruntime")
    assert model.compute_s == pytest.approx(2_737_152 / (1.2e9 * 0.744))
    assert model.memory_s == pytest.approx(10_971_236 / 2100.2e6)
    assert model.latency_s == model.memory_s > model.compute_s and model.swap_s == 0
    assert model.resident_bytes == 10_971_236 + 63.9e6
    assert model.free_bytes == (925 - 95) * 2**20 - model.resident_bytes
    in_cache = predict(PI_3B, TABLE_6_SIZES["Policy I"], "int8")
    assert in_cache.memory_s == 0 and in_cache.latency_s == in_cache.compute_s
    assert in_cache.as_record()["modelled_latency_s"] == in_cache.latency_s


def test_what_exceeds_the_memory_comes_from_flash():
    sizes = [22, 20_000, 20_000, 25]
    model = predict(PI_3B, sizes, "fp32")
    excess = model.weight_bytes + 1.7e6 - 830 * 2**20
    assert excess > 0 and model.free_bytes == pytest.approx(-excess)
    assert model.swap_s == pytest.approx(excess / 18.45e6) == swap_s(PI_3B, excess)
    assert model.latency_s > model.swap_s
    assert predict(PI_3B, sizes, "int8").swap_s == 0


def test_no_policy_of_the_paper_exceeds_the_memory_of_any_board():
    free = [predict(pi, sizes, "fp32", "onnxruntime").free_bytes
            for pi in BOARDS.values() for sizes in TABLE_6_SIZES.values()]  # fmt: skip
    assert min(free) > 300 * 2**20


def test_the_model_reads_every_number_of_a_board():
    sizes = [*TABLE_6_SIZES.values(), (22, 20_000, 20_000, 25)]  # the last one swaps
    for field in dataclasses.fields(PI_3B):
        known = getattr(PI_3B, field.name)
        if isinstance(known, Sourced):
            other = dataclasses.replace(PI_3B, **{field.name: Sourced(2 * known.value, "twice")})
            assert [predict(other, s, "fp32") for s in sizes] != \
                [predict(PI_3B, s, "fp32") for s in sizes], field.name  # fmt: skip


def test_every_number_has_a_source():
    numbers = [*MACS_PER_CYCLE.values(), *RUNTIME_BYTES.values()]
    for pi in BOARDS.values():
        fields = (getattr(pi, field.name) for field in dataclasses.fields(pi))
        numbers += [value for value in fields if isinstance(value, Sourced)]
        assert {(pi.cpu, p) for p in ("fp32", "int8", "int4")} <= MACS_PER_CYCLE.keys()
    assert len(numbers) == 9 + 2 + 6 * len(BOARDS)
    assert all(number.value > 0 and len(number.source) > 10 for number in numbers)


def test_the_inputs_of_a_board_are_all_that_the_model_takes():
    inputs = model_inputs(PI_3B)
    assert inputs.pop("cpu") == "cortex_a53"
    assert inputs["macs_per_cycle_int8"] == dataclasses.asdict(MACS_PER_CYCLE["cortex_a53", "int8"])
    assert inputs["runtime_bytes_onnxruntime"]["value"] == RUNTIME_BYTES["onnxruntime"].value
    assert len(inputs) == 6 + 3 + 2 and all({*each} == {"value", "source"}
                                            for each in inputs.values())  # fmt: skip


def test_recorded_predictions_follow_from_the_inputs_that_are_shown():
    """The first records hold no rate of a core and no size of a runtime: they are those of here."""
    records = ResultStore(project_root() / "data" / "records").frame("edge")
    modelled = records[records["source"] == "modelled"]
    assert len(modelled)
    sizes = dict(zip(("64x3", "256x3", "4096-512-1024"), TABLE_6_SIZES.values(), strict=True))
    for _, row in modelled.iterrows():
        pi = BOARDS[row["machine"]]
        again = predict(pi, sizes[row["network"]], row["precision"], row["runtime"]).as_record()
        assert row[[*again]].to_dict() == pytest.approx(again)
        assert row["extra.board"].items() <= model_inputs(pi).items()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predict(PI_3B, [1, 2], "fp16"), "unknown precision of the Pi model 'fp16'"),
        (lambda: predict(PI_3B, [1, 2], "fp32", "tf"), "unknown runtime of the Pi model 'tf'"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(QuarlError, match=message):
        call()


def test_loops_are_found_in_assembly():
    text = "start:\n\tmov x0, x1 // a note\n.LBB0_1:\n\tfmla v0.4s, v1.4s, v2.4s\n\tb.ne .LBB0_1\n"
    assert _loops(text)[1:] == [["fmla v0.4s, v1.4s, v2.4s", "b.ne .LBB0_1"]]


def test_a_loop_may_end_in_a_test_for_zero_and_holds_no_directives_and_no_other_loop():
    text = ".L1:\n\tmov x2, x3\n.L2:\n\t.loc 1 2\n\tnop\n\tcbnz x0, .L2\n\tcbz w1, .L1\n"
    assert _loops(text)[1:] == [["nop", "cbnz x0, .L2"]]
    assert _loops(text.replace("cbnz", "cbz"))[1:] == [["nop", "cbz x0, .L2"]]


def test_multiplications_of_every_instruction_by_hand():
    counted = {"fmla v0.4s, v1.4s, v2.4s": 4, "fmul v0.4s, v1.4s, v2.s[0]": 4,
               "smull v0.8h, v1.8b, v2.8b": 8, "smlal2 v0.8h, v1.16b, v2.16b": 8,
               "mla v0.8h, v1.8h, v2.8h": 8, "mul v0.8h, v1.8h, v2.8h": 8,
               "sdot v0.4s, v1.16b, v2.16b": 16, "add v0.4s, v0.4s, v1.4s": 0}  # fmt: skip
    assert {line: _macs([line]) for line in counted} == counted
    assert _macs([*counted]) == 56


def test_cycles_are_of_one_pass_of_the_loop_that_multiplies_most(monkeypatch, tmp_path):
    copies = ".L1:\n" + 9 * "\tldr q0, [x0]\n" + "\tb.ne .L1\n"
    told = ".L2:\n\tfmla v0.4s, v1.4s, v2.4s\n\tfmla v3.4s, v1.4s, v2.4s\n\tb.ne .L2\n"
    (tmp_path / "made.s").write_text(copies + told)
    made = {"compiler": f"#!/bin/sh\nfor last; do :; done\ncp {tmp_path}/made.s $last\n",
            "llvm-mca": "#!/bin/sh\necho 'Iterations:        100'\necho 'Total Cycles:      500'\n"}
    for name, content in made.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(
        "quarl_nb.edge.cycles.board", lambda cpu: Target((str(tmp_path / "compiler"),))
    )
    found = inner_loop(tmp_path, "cortex_a53")
    assert found == InnerLoop(macs=8, instructions=3, cycles=5.0)
    assert found.macs_per_cycle == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        (b"#!/bin/sh\nsleep 9\n", "'compiler' did not end within 0.1 s"),
        (b"\x7fELF of another machine", "cannot run 'compiler': Exec format error"),
        (b"#!/bin/sh\necho error: no >&2\nexit 1\n", "the C compiler failed: error: no"),
        (b"#!/bin/sh\nfor last; do :; done\necho nop > $last\n", "llvm-mca failed: error: bad"),
    ],
)
def test_a_tool_that_does_not_analyse_is_one_line(monkeypatch, tmp_path, compiler, message):
    made = {"compiler": compiler, "llvm-mca": b"#!/bin/sh\necho error: bad >&2\nexit 1\n"}
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("quarl_nb.edge.build.TIMEOUT_S", 0.1 if b"sleep" in compiler else 60)
    monkeypatch.setattr(
        "quarl_nb.edge.cycles.board", lambda cpu: Target((str(tmp_path / "compiler"),))
    )
    with pytest.raises(QuarlError, match=message):
        inner_loop(tmp_path, "cortex_a53")


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_the_rates_are_those_of_the_inner_loops(make_policy, tmp_path, precision):
    import numpy as np

    net = make_policy((22,), *mlp([22, 256, 256, 25]))
    obs = np.random.default_rng(0).standard_normal((4, 22), dtype=np.float32)
    folder = export_policy(net, precision, tmp_path, obs, name="p")
    for cpu in ("cortex_a53", "cortex_a72", "cortex_a76"):
        try:
            board(cpu)
            found = inner_loop(folder, cpu)
        except UnavailableError as error:
            pytest.skip(str(error))
        # Another version of the compiler or of the analyser may schedule a little differently.
        assert found.macs_per_cycle == pytest.approx(MACS_PER_CYCLE[cpu, precision].value, rel=0.3)
