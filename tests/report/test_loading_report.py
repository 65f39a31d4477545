"""The loading study's report against planted times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from quarl_nb.report.actorq import loading
from quarl_nb.report.actorq import site as actorq_site

# Milliseconds of a load, by way.
TIMES = {"state_dict_fp32": 2, "state_dict_fp16": 40, "state_dict_int8": 20, "pack_fp16": 36,
         "pack_int8": 12, "open_fp32": 30, "open_int8": 5}  # fmt: skip
REPACKING = dict(slower=["state_dict_int8", "state_dict_fp16"], than="state_dict_fp32")


def make_records(spread: float = 0.02, **changed: float) -> pd.DataFrame:
    around = 1 + spread * np.linspace(-1, 1, 11)
    times = {f"{way}_s": (1e-3 * ms * around).tolist() for way, ms in (TIMES | changed).items()}
    return pd.DataFrame([{"key": "k", "profile": "full", "network": "2048x3"} | times])


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
    found = loading.loads_slower(make_records(), "2048x3", **REPACKING)
    assert found.verdict == "reproduced" and found.keys == ("k",)
    assert found.interval is not None and found.interval.value == pytest.approx(10)
    assert "load_state_dict, fp16 40 ms" in found.measured
    quick = make_records(state_dict_int8=1)
    assert loading.loads_slower(quick, "2048x3", **REPACKING).verdict == "not reproduced"
    alike = make_records(state_dict_int8=2, spread=0.5)
    assert loading.loads_slower(alike, "2048x3", **REPACKING).verdict == "inconclusive"


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
    assert loading.loads_slower(make_records(), "64x3", **REPACKING).verdict == "not measured"
    assert loading.loads_slower(pd.DataFrame(), "64x3", **REPACKING).verdict == "not measured"
    smoke = make_records().assign(profile="smoke")
    assert loading.loads_slower(smoke, "2048x3", **REPACKING).verdict == "not measured"
    assert loading.loading_table(loading.loading_rows(pd.DataFrame())).empty


def test_findings_tell_the_processor_and_that_intervals_are_of_one_process() -> None:
    records = make_records().assign(**{"provenance.cpu": "A CPU"})
    slower = loading.loads_slower(records, "2048x3", **REPACKING).measured
    assert slower.startswith("2048x3 on A CPU: load_state_dict, int8 20 ms")
    packing = loading.packing_takes(records, "2048x3", ["fp16", "int8"], 0.5).measured
    assert packing.startswith("2048x3 on A CPU: packing takes 90% [")
    assert slower.endswith("(interval within one process)")
    assert packing.endswith("(intervals within one process)")
    made = actorq_site.tables_of(
        dict.fromkeys(actorq_site.STUDIES, pd.DataFrame()) | {"loading": records})
    assert "within one process" in made["loading"].caption
