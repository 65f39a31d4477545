from __future__ import annotations

import pytest

from quarl_nb import processor

ZEN_3 = (
    "processor\t: 0\ncpu family\t: 25\nmodel name\t: AMD EPYC\n"
    "flags\t\t: fpu avx avx2 sha_ni hypervisor\n"
)
ZEN_4 = ZEN_3.replace("avx2", "avx2 avx512f avx512_vnni avx512_bf16")
ZEN_5 = ZEN_4.replace("family\t: 25", "family\t: 26").replace("bf16", "bf16 avx_vnni")
XEON = "model name\t: Intel(R) Xeon(R) Processor\nflags\t\t: avx2 avx512f amx_bf16 amx_int8\n"
NO_AMX = XEON.replace("amx_bf16 amx_int8", "avx512_vnni avx512_bf16")
PI_5 = "processor\t: 0\nFeatures\t: fp asimd asimddp\n\nModel\t\t: Raspberry Pi 5 Model B\n"


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """A file that says what a processor is; the machine counts as x86."""
    monkeypatch.setattr(processor.platform, "machine", lambda: "x86_64")

    def write(text):
        path = tmp_path / f"cpuinfo{len(list(tmp_path.iterdir()))}"
        path.write_text(text)
        return path

    return write


def test_generations_of_one_name_are_told_apart(cpuinfo):
    assert processor.cpu_model(cpuinfo(ZEN_3)) == "AMD EPYC (AVX2)"
    assert processor.cpu_model(cpuinfo(ZEN_4)) == "AMD EPYC (Zen 4)"
    assert processor.cpu_model(cpuinfo(ZEN_5)) == "AMD EPYC"
    assert processor.cpu_model(cpuinfo(XEON)) == "Intel(R) Xeon(R) Processor"
    assert processor.cpu_model(cpuinfo(NO_AMX)) == "Intel(R) Xeon(R) Processor (no AMX)"
    assert processor.cpu_model(cpuinfo(PI_5)) == "Raspberry Pi 5 Model B"


def test_features_are_those_that_count_and_no_others(cpuinfo):
    assert processor.cpu_features(cpuinfo(ZEN_3)) == ("avx2",)
    assert processor.cpu_features(cpuinfo(XEON)) == ("avx2", "avx512f", "amx_int8", "amx_bf16")
    assert processor.cpu_features(cpuinfo(PI_5)) == ("asimddp",)


def test_where_bf16_is_faster_and_int8_saturates(cpuinfo, monkeypatch):
    found = [
        (processor.bf16_is_faster(path), processor.saturates_int8(path))
        for path in map(cpuinfo, (ZEN_3, ZEN_5, XEON, NO_AMX))
    ]
    assert found == [(False, True), (True, False), (True, False), (False, False)]
    monkeypatch.setattr(processor.platform, "machine", lambda: "aarch64")
    assert not processor.saturates_int8(cpuinfo(PI_5))


def test_a_system_that_does_not_tell_is_taken_for_the_least(tmp_path, monkeypatch):
    missing = tmp_path / "missing"
    monkeypatch.setattr(processor.platform, "machine", lambda: "x86_64")
    assert processor.cpu_features(missing) == ()
    assert processor.saturates_int8(missing)
    assert not processor.bf16_is_faster(missing)


def test_the_output_is_none_of_a_command_that_fails_or_is_missing():
    assert processor.command_output("echo", "one") == "one"
    assert processor.command_output("false") is None
    assert processor.command_output("no-such-command") is None
