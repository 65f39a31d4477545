"""The inference study's report against planted latencies."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from quarl_nb.report.actorq import inference
from quarl_nb.report.actorq import site as actorq_site
from quarl_nb.report.actorq.inference_figure import latency_figure
from quarl_nb.report.actorq.inference_rules import alone_takes_longer, int8_inference_faster
from quarl_nb.report.style import NothingToDrawError

# Microseconds by network: torch fp32, ORT fp32, ORT int8.
LATENCIES = {"64x3": (24, 5, 8), "256x3": (30, 10, 8), "2048x3": (1300, 700, 100),
             "nature-cnn": (300, 140, 70)}  # fmt: skip
ENGINES = ("fp32/torch", "fp32/onnxruntime", "int8/onnxruntime")


def make_records(
    latencies: dict[str, tuple[float, ...]] = LATENCIES, batch: int = 1, spread: float = 0.01
) -> pd.DataFrame:
    rows = []
    for network, times in latencies.items():
        for engine, us in zip(ENGINES, times, strict=True):
            precision, _, runtime = engine.partition("/")
            blocks = 1e-6 * us * (1 + spread * np.array([-1, -0.5, 0, 0.5, 1]))
            rows.append({
                "key": f"{network}/{engine}", "profile": "full", "network": network,
                "runtime": runtime, "precision": precision, "batch": batch, "seed": 0,
                "latency_medians_s": blocks.tolist(), "latency_p10_s": 0.9e-6 * us,
                "latency_p50_s": 1e-6 * us, "latency_p90_s": 1.5e-6 * us, "floor_s": 0.5e-6 * us,
                "payload_bytes": 8000 if precision == "fp32" else 2000,
                "open_s": [3e-3, 1e-3, 2e-3], "build_s": [0.01], "backend": runtime,
            })  # fmt: skip
    return pd.DataFrame(rows)


def test_rows_hold_medians_floors_and_ratios_against_both_baselines() -> None:
    rows = inference.latency_rows(make_records()).set_index(["network", "engine"])
    int8 = rows.loc["2048x3", "int8/onnxruntime"]
    assert int8["latency_us"] == pytest.approx(100) and int8["floor_us"] == pytest.approx(50)
    assert (int8["latency_low_us"], int8["latency_high_us"]) == pytest.approx((90, 150))
    assert int8["over_torch"] == pytest.approx(13) and int8["over_ort"] == pytest.approx(7)
    assert 13 * 0.98 < int8["over_torch_low"] < 13 < int8["over_torch_high"] < 13 * 1.03
    assert int8["open_ms"] == 2 and int8["payload_bytes"] == 2000
    assert int8["width"] == 2048 and np.isnan(rows.loc["nature-cnn", "int8/onnxruntime"]["width"])
    assert inference.latency_rows(pd.DataFrame()).empty


def test_the_floor_is_of_the_best_bandwidth_measured_there() -> None:
    """One measurement of it was disturbed, so that decisions would seem quicker than possible."""
    records = pd.concat([make_records({"64x3": (24, 5, 8)}, batch) for batch in (1, 8)],
                        ignore_index=True)  # fmt: skip
    records["floor_s"] = 1e-6 * np.array([9.0, 6.0, 2.0, 4.0, 7.0, 3.0])
    rows = inference.latency_rows(records)
    floors = rows.groupby("precision")["floor_us"].unique().map(list).to_dict()
    assert floors == {"fp32": [pytest.approx(4)], "int8": [pytest.approx(2)]}
    assert (rows["floor_us"] <= rows["latency_us"]).all()
    records["provenance.cpu"] = ["AMD"] * 3 + ["ARM"] * 3
    floors = inference.latency_rows(records).groupby(["processor", "precision"])["floor_us"].max()
    assert floors["AMD"].to_dict() == pytest.approx({"fp32": 6, "int8": 2})
    assert floors["ARM"].to_dict() == pytest.approx({"fp32": 4, "int8": 3})


def test_the_finding_tells_the_processor_and_that_intervals_are_of_one_process() -> None:
    records = make_records().assign(**{"provenance.cpu": "A CPU"})
    found = int8_inference_faster(records, ["2048x3"], 1.0)
    assert found.measured.startswith("2048x3 13.0x against torch")
    assert "the same runtime on A CPU; other networks: " in found.measured
    assert found.measured.endswith("(95% intervals, within one process, in the table)")
    latency = actorq_site.tables_of(
        dict.fromkeys(actorq_site.STUDIES, pd.DataFrame()) | {"inference": records})
    assert "within one process" in latency["inference_latency"].caption


def test_without_a_baseline_there_is_no_ratio() -> None:
    records = make_records()
    rows = inference.latency_rows(records[records["runtime"] == "onnxruntime"])
    assert rows["over_torch"].isna().all() and rows["over_ort"].notna().all()


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_without_both_baselines_the_claim_is_not_measured(runtime: str) -> None:
    records = make_records()
    missing = (records["precision"] == "fp32") & (records["runtime"] == runtime)
    found = int8_inference_faster(records[~missing], ["2048x3"], 1.0)
    assert found.verdict == "not measured"
    missing &= records["network"] != "2048x3"
    found = int8_inference_faster(records[~missing], ["2048x3"], 1.0)
    assert found.verdict == "reproduced" and "nan" not in found.measured


def test_a_baseline_of_another_processor_is_none() -> None:
    records = make_records()
    records["provenance.cpu"] = np.where(records["runtime"] == "torch", "theirs", "ours")
    rows = inference.latency_rows(records)
    int8 = rows[rows["precision"] == "int8"]
    assert int8["over_torch"].isna().all() and int8["over_ort"].notna().all()


def test_the_crossover_lies_where_the_ratio_is_one() -> None:
    widths = np.array([64.0, 256, 1024])
    # From 1/2 to 2 between 64 and 256: half way, in logarithms, is 128.
    assert inference.crossover(widths, np.array([0.5, 2, 4])) == pytest.approx(128)
    assert inference.crossover(widths, np.array([2.0, 0.5, 2])) == pytest.approx(512)
    assert inference.crossover(widths, np.array([1.5, 2, 4])) == 0
    assert np.isnan(inference.crossover(widths, np.array([2, 2, 0.9])))


def test_the_table_reads_as_text() -> None:
    records = pd.concat([make_records(), make_records(batch=8)])
    rows = inference.latency_rows(records)
    assert len(inference.latency_table(rows)) == 24
    shown = inference.latency_table(rows, batch=1).set_index(["network", "engine"])
    assert len(shown) == 12
    assert shown.loc[("64x3", "int8 ORT"), "median (us)"] == "8"
    assert shown.loc[("64x3", "int8 ORT"), "faster than ORT fp32"].startswith("0.6")
    assert shown.loc[("64x3", "fp32 ORT"), "faster than ORT fp32"] == ""
    assert shown.loc[("64x3", "fp32 torch"), "payload (kB)"] == "8"
    assert "processor" not in shown
    slow = inference.latency_table(rows.assign(open_ms=1234.5, latency_us=99.96))
    assert set(slow["opening (ms)"]) == {"1,234"} and set(slow["median (us)"]) == {"100"}


def test_of_several_processors_each_row_tells_its_own() -> None:
    both = [make_records({network: (24, 5, 8)}).assign(**{"provenance.cpu": cpu})
            for network, cpu in (("64x3", "AMD"), ("256x3", "ARM"))]
    shown = inference.latency_table(inference.latency_rows(pd.concat(both, ignore_index=True)))
    assert shown.groupby("network")["processor"].unique().map(list).to_dict() == {
        "64x3": ["AMD"], "256x3": ["ARM"]
    }
    fig, _ = latency_figure(pd.concat([*both, make_records({"nature-cnn": (3, 2, 1)}).assign(
        **{"provenance.cpu": "AMD"})], ignore_index=True))
    gains = fig.axes[1]
    assert {label.get_text() for label in gains.get_yticklabels()} == {
        "64x3", "256x3*", "nature-cnn"
    }
    assert gains.get_xlabel().endswith("\n* on ARM; else AMD")
    every = pd.concat(both, ignore_index=True)
    told = int8_inference_faster(every, ["64x3"], 1.0).measured
    ratios = "3.0x against torch, 0.6x against the same runtime"
    assert told.startswith(f"64x3 {ratios} on AMD; other networks: 256x3 {ratios} on ARM (")


def test_the_figure_plots_the_rows() -> None:
    _, points = latency_figure(make_records())
    assert len(points) == 12 and set(points["engine"]) == set(ENGINES)
    with pytest.raises(NothingToDrawError, match="no inference record of batch 8; allowed: 1$"):
        latency_figure(make_records(), batch=8)
    with pytest.raises(NothingToDrawError, match="of batch 1; run the study first"):
        latency_figure(pd.DataFrame())
    _, points = latency_figure(make_records({"nature-cnn": (3, 2, 1)}))
    assert len(points) == 3


@pytest.mark.parametrize(
    ("int8_us", "verdict"), [(100, "reproduced"), (900, "inconclusive"), (2000, "not reproduced")]
)
def test_int8_inference_is_judged_on_the_papers_network(int8_us: float, verdict: str) -> None:
    records = make_records(LATENCIES | {"2048x3": (1300, 700, int8_us)})
    found = int8_inference_faster(records, ["2048x3"], 1.0)
    assert found.verdict == verdict
    assert "64x3 3.0x against torch, 0.6x against the same runtime" in found.measured
    assert len(found.keys) == 12
    # 7 times as fast as the same runtime; of slower ones neither 6 nor 2 times.
    assert int8_inference_faster(records, ["2048x3"], 6.0).verdict == (
        "reproduced" if int8_us == 100 else "not reproduced")
    assert int8_inference_faster(records, ["512x3"], 1.0).verdict == "not measured"
    assert int8_inference_faster(pd.DataFrame(), ["64x3"], 1.0).verdict == "not measured"
    smoke = records.assign(profile="smoke")
    assert int8_inference_faster(smoke, ["2048x3"], 1.0).verdict == "not measured"


@pytest.mark.parametrize(
    ("torch_us", "ort_us", "verdict"),
    [(2600, 2800, "reproduced"), (2600, 5600, "inconclusive"), (2600, 7000, "not reproduced")],
)
def test_an_observation_alone_is_judged_against_one_in_a_batch(
    torch_us: float, ort_us: float, verdict: str
) -> None:
    """Alone 1300 and 700 us: in a batch of 8 as long as 4 times, and 2, 1 or 0.8 times as many."""
    batches = make_records({"2048x3": (torch_us, ort_us, 1), "64x3": (1, 1, 1)}, batch=8)
    batches["key"] += "/8"
    records = pd.concat([make_records(), batches], ignore_index=True)
    found = alone_takes_longer(records, "2048x3", 8)
    assert found.verdict == verdict
    assert found.interval.value == pytest.approx(5600 / ort_us)
    assert "batch of 8 4.0 [" in found.measured and "in fp32 torch" in found.measured
    assert found.keys == ("2048x3/fp32/torch", "2048x3/fp32/torch/8",
                          "2048x3/fp32/onnxruntime", "2048x3/fp32/onnxruntime/8")


def test_an_observation_alone_is_not_judged_without_both_runtimes_of_one_processor() -> None:
    batches = make_records(batch=8).assign(**{"provenance.cpu": "A"})
    records = pd.concat([make_records().assign(**{"provenance.cpu": "A"}), batches],
                        ignore_index=True)  # fmt: skip

    def verdict(shown: pd.DataFrame, network: str = "2048x3", batch: int = 8) -> str:
        return alone_takes_longer(shown, network, batch).verdict

    assert verdict(records) == "reproduced"
    assert verdict(records, batch=64) == verdict(records, network="512x3") == "not measured"
    for runtime in ("torch", "onnxruntime"):
        of_it = (records["runtime"] == runtime) & (records["batch"] == 8)
        assert verdict(records[~of_it]) == "not measured"
        moved = records.assign(**{"provenance.cpu": np.where(of_it, "B", "A")})
        assert verdict(moved) == "not measured"
    assert verdict(records.assign(profile="smoke")) == verdict(pd.DataFrame()) == "not measured"


def test_the_crossover_is_above_the_last_width_that_is_no_faster() -> None:
    widths = np.array([1.0, 4, 16, 64, 256])
    assert inference.crossover(widths, np.array([0.5, 2, 0.5, 2, 4])) == pytest.approx(32)
