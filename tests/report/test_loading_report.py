"""The loading study's report against planted times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from quarl_nb.report.actorq import loading
from quarl_nb.report.actorq import site as actorq_site

# Milliseconds of a load, by way.
TIMES = {"deserialize_fp32": 10, "deserialize_fp16": 9, "deserialize_int8": 3,
         "state_dict_fp32": 2, "state_dict_fp16": 40, "state_dict_int8": 20, "pack_fp16": 36,
         "pack_int8": 12, "open_fp32": 30, "open_int8": 5}  # fmt: skip
DECISIONS = {"decide_fp32": 4, "decide_fp16": 3, "decide_int8": 1}
BYTES = {"state_dict": 1000, "module": 1002, "torchscript": 1010, "payload": 995}
REPACKING = dict(longer=["state_dict_int8", "state_dict_fp16"], than=["state_dict_fp32"])


def make_records(spread: float = 0.02, **changed: float) -> pd.DataFrame:
    around = 1 + spread * np.linspace(-1, 1, 11)
    times = {f"{way}_s": (1e-3 * ms * around).tolist()
             for way, ms in (TIMES | DECISIONS | changed).items()}  # fmt: skip
    sizes = {f"{form}_{precision}_bytes": size for form, size in BYTES.items()
             for precision in ("fp32", "int8")}  # fmt: skip
    return pd.DataFrame([{"key": "k", "profile": "full", "network": "2048x3"} | times | sizes])


def test_rows_hold_medians_and_ratios_over_torch_fp32() -> None:
    rows = loading.loading_rows(make_records()).set_index("way")
    assert rows["load_ms"].to_dict() == pytest.approx(TIMES)
    int8 = rows.loc["state_dict_int8"]
    assert (int8["load_low_ms"], int8["load_high_ms"]) == pytest.approx((20 * 0.984, 20 * 1.016))
    assert int8["over_fp32"] == pytest.approx(10)
    assert 10 * 0.96 < int8["over_fp32_low"] < 10 < int8["over_fp32_high"] < 10 * 1.04
    table = loading.loading_table(rows.reset_index()).set_index("loaded by")
    assert table.loc["load_state_dict, fp32", "over load_state_dict, fp32"] == ""
    assert table.loc["payload, int8", "median (ms)"] == "5"


def test_slower_is_reproduced_only_when_every_way_surely_is() -> None:
    found = loading.takes_longer(make_records(), "2048x3", **REPACKING)
    assert found.verdict == "reproduced" and found.keys == ("k",)
    assert found.interval is not None and found.interval.value == pytest.approx(10)
    assert "load_state_dict, fp16 40 ms" in found.measured
    quick = make_records(state_dict_int8=1)
    assert loading.takes_longer(quick, "2048x3", **REPACKING).verdict == "not reproduced"
    alike = make_records(state_dict_int8=2, spread=0.5)
    assert loading.takes_longer(alike, "2048x3", **REPACKING).verdict == "inconclusive"


def test_all_of_the_longer_are_held_against_all_others() -> None:
    reading = dict(longer=["deserialize_fp32"], than=["deserialize_fp16", "deserialize_int8"])
    found = loading.takes_longer(make_records(), "2048x3", **reading)
    assert found.verdict == "reproduced"
    assert found.interval is not None and found.interval.value == pytest.approx(10 / 9)
    alike = loading.takes_longer(make_records(deserialize_fp16=10), "2048x3", **reading)
    assert alike.verdict == "inconclusive"
    longer = loading.takes_longer(make_records(deserialize_fp16=11), "2048x3", **reading)
    assert longer.verdict == "not reproduced"
    deciding = dict(longer=["decide_fp32"], than=["decide_fp16", "decide_int8"])
    told = loading.takes_longer(make_records(), "2048x3", **deciding).measured
    assert "one decision of torch, fp32 4 ms, fp16 3 ms, int8 1 ms" in told


def test_older_records_tell_nothing_of_what_they_did_not_time() -> None:
    new = [f"{way}_s" for way in (*TIMES, *DECISIONS) if way.startswith(("decide", "deserialize"))]
    old = make_records().drop(columns=[*new, *(f"{form}_int8_bytes" for form in BYTES)])
    reading = dict(longer=["deserialize_fp32"], than=["deserialize_int8"])
    assert loading.takes_longer(old, "2048x3", **reading).verdict == "not measured"
    assert loading.takes_longer(old, "2048x3", **REPACKING).verdict == "reproduced"
    assert loading.state_dict_most_compact(old, "2048x3", ["int8"]).verdict == "not measured"
    assert loading.state_dict_most_compact(old, "2048x3", ["fp32"]).verdict == "reproduced"
    assert len(loading.loading_rows(old)) == len(TIMES) - 3
    both = pd.concat([old.assign(network="64x3"), make_records()], ignore_index=True)
    assert loading.loading_rows(both)["network"].value_counts().to_dict() == {
        "2048x3": len(TIMES), "64x3": len(TIMES) - 3
    }


@pytest.mark.parametrize(
    ("form", "size", "verdict"),
    [("module", 1000, "not reproduced"), ("torchscript", 999, "not reproduced"),
     ("payload", 991, "reproduced"), ("payload", 990, "not reproduced")],
)  # fmt: skip
def test_the_most_compact_form_by_its_bytes(form, size, verdict) -> None:
    records = make_records()
    found = loading.state_dict_most_compact(records, "2048x3", ["fp32", "int8"])
    assert found.verdict == "reproduced" and found.keys == ("k",)
    assert ("2048x3: fp32 state_dict 1,000 bytes, module, pickled +0.200%, TorchScript +1.000%, "
            "payload for ONNX Runtime -0.500%; int8") in found.measured
    records[f"{form}_int8_bytes"] = size
    found = loading.state_dict_most_compact(records, "2048x3", ["fp32", "int8"])
    assert found.verdict == verdict
    assert loading.state_dict_most_compact(records, "2048x3", ["fp32"]).verdict == "reproduced"


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.5, "reproduced"), (0.7, "not reproduced"), (0.6, "inconclusive")],
)
def test_the_share_of_packing(share, verdict) -> None:
    both = ["fp16", "int8"]
    found = loading.packing_takes(make_records(), "2048x3", both, share)
    assert found.verdict == verdict and found.keys == ("k",)
    assert found.interval is not None and found.interval.value == pytest.approx(0.6)
    assert "packing takes 90% [" in found.measured


def test_what_was_not_loaded_is_not_measured() -> None:
    assert loading.takes_longer(make_records(), "64x3", **REPACKING).verdict == "not measured"
    assert loading.takes_longer(pd.DataFrame(), "64x3", **REPACKING).verdict == "not measured"
    smoke = make_records().assign(profile="smoke")
    assert loading.takes_longer(smoke, "2048x3", **REPACKING).verdict == "not measured"
    assert loading.loading_table(loading.loading_rows(pd.DataFrame())).empty


def test_findings_tell_the_processor_and_that_intervals_are_of_one_process() -> None:
    records = make_records().assign(**{"provenance.cpu": "A CPU"})
    slower = loading.takes_longer(records, "2048x3", **REPACKING).measured
    assert slower.startswith("2048x3 on A CPU: load_state_dict, int8 20 ms")
    packing = loading.packing_takes(records, "2048x3", ["fp16", "int8"], 0.5).measured
    assert packing.startswith("2048x3 on A CPU: packing takes 90% [")
    assert slower.endswith("(interval within one process)")
    assert packing.endswith("(intervals within one process)")
    made = actorq_site.tables_of(
        dict.fromkeys(actorq_site.STUDIES, pd.DataFrame()) | {"loading": records})
    assert "within one process" in made["loading"].caption
