"""Latency of decisions by network, batch and engine: rows and table."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES, COLORS, actor_label
from quarl_nb.report.findings import processor
from quarl_nb.report.stats import Floats, Interval, median_ratio, named_generator

RESAMPLES = 2000
SQUARE = re.compile(r"(\d+)x3")  # three hidden layers of one width


def latency_rows(records: pd.DataFrame) -> pd.DataFrame:
    """One row a network, engine and batch, networks from few weights to many.

    Args:
        records: `ResultStore.frame("inference")`.

    Returns:
        network, width (of square ones, else NaN), batch, precision, runtime, engine
        ("int8/onnxruntime"), processor, latency_us (median of the median of every block) with
        latency_low_us and latency_high_us (percentiles 10 and 90 of all calls), floor_us
        (`_floors_s`), payload_bytes, open_ms, build_ms (medians), over_torch and over_ort (how many
        times faster than fp32 of either runtime on that processor) each with _low and _high (95 %
        bootstrap over blocks, which are of one process), keys, profile.
    """
    if records.empty or "latency_medians_s" not in records:
        return pd.DataFrame()
    rows = records.assign(engine=records["precision"] + "/" + records["runtime"],
                          floor_s=_floors_s(records))
    found = []
    for (network, batch), group in rows.groupby(["network", "batch"]):
        generator = named_generator(f"{network}/{batch}")
        engines = group.drop_duplicates("engine").set_index("engine")
        square = SQUARE.fullmatch(str(network))
        for engine, row in engines.iterrows():
            line = _engine_row(row) | {
                "network": network, "width": float(square[1]) if square else float("nan"),
                "batch": batch, "engine": engine, "keys": (row["key"],),
            }  # fmt: skip
            for short, base in BASELINES.items():
                ratio = Interval(*3 * [float("nan")])
                peer = engines.loc[base] if base in engines.index else None
                if peer is not None and processor(peer) == processor(row):
                    ratio = median_ratio(blocks_s(peer), blocks_s(row), generator, RESAMPLES)
                line |= ratio.columns(f"over_{short}")
            found.append(line)
    order = {name: i for i, name in enumerate(COLORS)}
    table = pd.DataFrame(found)
    table["weights"] = table.groupby("network")["payload_bytes"].transform("max")
    table["order"] = table["engine"].map(order).fillna(len(order))
    table = table.sort_values(["weights", "network", "batch", "order"], kind="stable")
    return table.drop(columns=["weights", "order"]).reset_index(drop=True)


def _floors_s(records: pd.DataFrame) -> pd.Series:
    """Seconds to read the weights once at the best bandwidth that any record of their network and
    precision measured on that processor. (One record's own measurement may have been disturbed:
    decisions were quicker than the floor it gave.)"""
    processors = records.apply(processor, axis=1)
    return records["floor_s"].groupby(
        [processors, records["network"], records["precision"]]).transform("min")  # fmt: skip


def _engine_row(row: pd.Series) -> dict[str, object]:
    return {
        "precision": row["precision"], "runtime": row["runtime"], "processor": processor(row),
        "latency_us": 1e6 * float(np.median(row["latency_medians_s"])),
        "latency_low_us": 1e6 * row["latency_p10_s"],
        "latency_high_us": 1e6 * row["latency_p90_s"],
        "floor_us": 1e6 * row["floor_s"], "payload_bytes": row["payload_bytes"],
        "open_ms": 1e3 * float(np.median(row["open_s"])),
        "build_ms": 1e3 * float(np.median(row["build_s"])), "profile": row["profile"],
    }  # fmt: skip


def blocks_s(row: pd.Series) -> Floats:
    """Medians of a record's blocks of calls, shape [blocks]."""
    return np.asarray(row["latency_medians_s"], float)


def crossover(widths: Floats, ratios: Floats) -> float:
    """The width above which a ratio stays above 1, linear in log-log between measured widths.

    NaN where the widest is not above 1; 0 where every width is.

    Args:
        widths: shape [n], increasing. ratios: shape [n], positive.
    """
    below = np.flatnonzero(ratios <= 1)
    if not len(below):
        return 0.0
    last = below[-1]
    if last == len(ratios) - 1:
        return float("nan")
    low, high = np.log(ratios[last]), np.log(ratios[last + 1])
    share = -low / (high - low)
    return float(np.exp(np.log(widths[last]) + share * np.log(widths[last + 1] / widths[last])))


def latency_table(rows: pd.DataFrame, batch: int | None = None) -> pd.DataFrame:
    """`latency_rows` for reading, texts; one batch size or (None) all of them.

    Where they are of several processors, each tells its own.
    """
    if rows.empty:
        return rows
    rows = rows if batch is None else rows[rows["batch"] == batch]
    several = rows["processor"].nunique() > 1
    return pd.DataFrame({
        "network": rows["network"], "batch": rows["batch"],
        "engine": rows["engine"].map(actor_label),
        "median (us)": rows["latency_us"].map(_digits),
        "p10 to p90 (us)": [f"{_digits(row.latency_low_us)} to {_digits(row.latency_high_us)}"
                            for row in rows.itertuples()],
        "floor (us)": rows["floor_us"].map(_digits),
        "faster than torch fp32": _times(rows, "over_torch"),
        "faster than ORT fp32": _times(rows, "over_ort"),
        "payload (kB)": (rows["payload_bytes"] / 1e3).map("{:,.0f}".format),
        "opening (ms)": rows["open_ms"].map(_digits),
        **({"processor": rows["processor"]} if several else {}),
    }).reset_index(drop=True)  # fmt: skip


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(rows: pd.DataFrame, name: str) -> list[str]:
    return ["" if pd.isna(row[name]) or f"fp32/{_RUNTIME[name]}" == row["engine"]
            else Interval.of(row, name).text(".2f")
            for _, row in rows.iterrows()]  # fmt: skip


_RUNTIME = {"over_torch": "torch", "over_ort": "onnxruntime"}
