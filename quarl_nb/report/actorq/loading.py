"""What an actor's new parameters cost to load: rows, table, and the claims that rest on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from quarl_nb.report.findings import (
    NOT_MEASURED,
    ONE_PROCESS,
    Finding,
    decided,
    measured,
    processor,
)
from quarl_nb.report.stats import Interval, median_ratio, named_generator

# A way of loading, as a record names its seconds; what every other is compared with comes first.
WAYS = {
    "state_dict_fp32": "load_state_dict, fp32",
    "state_dict_fp16": "load_state_dict, fp16",
    "state_dict_int8": "load_state_dict, int8",
    "pack_fp16": "packing alone of load_state_dict, fp16",
    "pack_int8": "packing alone of load_state_dict, int8",
    "open_fp32": "payload, fp32",
    "open_int8": "payload, int8",
}
BASE = "state_dict_fp32"


def loading_rows(records: pd.DataFrame) -> pd.DataFrame:
    """One row a network and way of loading, the quickest network first.

    Args:
        records: `ResultStore.frame("loading")`.

    Returns:
        network, way (a key of `WAYS`), load_ms (median) with load_low_ms and load_high_ms
        (percentiles 10 and 90), over_fp32 (its median over that of fp32's `load_state_dict`) with
        over_fp32_low, over_fp32_high (95 % bootstrap over repeats, of one process), keys, profile.
    """
    if records.empty:
        return pd.DataFrame()
    found = []
    by_size = records[f"{BASE}_s"].map(np.median).sort_values().index
    for _, record in records.loc[by_size].iterrows():
        for way in WAYS:
            milliseconds = 1e3 * _seconds(record, way)
            low, middle, high = np.percentile(milliseconds, [10, 50, 90])
            ratio = _ratio(record, way, BASE)
            found.append({
                "network": record["network"], "way": way, "load_ms": middle, "load_low_ms": low,
                "load_high_ms": high, **ratio.columns("over_fp32"), "keys": (record["key"],),
                "profile": record["profile"],
            })  # fmt: skip
    return pd.DataFrame(found)


def loading_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`loading_rows` for reading, texts."""
    if rows.empty:
        return rows
    return pd.DataFrame({
        "network": rows["network"], "loaded by": rows["way"].map(WAYS),
        "median (ms)": rows["load_ms"].map("{:.3g}".format),
        "p10 to p90 (ms)": [f"{row.load_low_ms:.3g} to {row.load_high_ms:.3g}"
                            for row in rows.itertuples()],
        "over load_state_dict, fp32": [
            "" if row["way"] == BASE else Interval.of(row, "over_fp32").text(".3g")
            for _, row in rows.iterrows()],
    })  # fmt: skip


def loads_slower(
    records: pd.DataFrame, network: str, slower: Sequence[str], than: str
) -> Finding:
    """Reproduced when every way of `slower` surely takes longer than `than`, for `network`.

    Not reproduced when one of them surely takes less. Ways are keys of `WAYS`.
    """
    record = _record(records, network)
    if record is None:
        return NOT_MEASURED
    ratios = {way: _ratio(record, way, than) for way in slower}
    verdict = decided(all(ratio.low > 1 for ratio in ratios.values()),
                      any(ratio.high < 1 for ratio in ratios.values()))  # fmt: skip
    times = {way: 1e3 * float(np.median(_seconds(record, way))) for way in (*slower, than)}
    told = ", ".join(f"{WAYS[way]} {ms:.2g} ms" for way, ms in times.items())
    text = f"{network} on {processor(record)}: {told} (interval {ONE_PROCESS})"
    least = min(ratios.values(), key=lambda ratio: ratio.value)
    return Finding(verdict, text, least, (record["key"],))


def packing_takes(
    records: pd.DataFrame, network: str, precisions: Sequence[str], share: float
) -> Finding:
    """Packing alone over `load_state_dict`, for `network`: reproduced when it surely takes more
    than `share` in each of `precisions`, not reproduced when surely less in one."""
    record = _record(records, network)
    if record is None:
        return NOT_MEASURED
    shares = {each: _ratio(record, f"pack_{each}", f"state_dict_{each}") for each in precisions}
    verdict = decided(all(part.low > share for part in shares.values()),
                      any(part.high < share for part in shares.values()))  # fmt: skip
    told = ", ".join(
        f"{part.text('.0%')} of load_state_dict in {each}" for each, part in shares.items()
    )
    text = f"{network} on {processor(record)}: packing takes {told} (intervals {ONE_PROCESS})"
    least = min(shares.values(), key=lambda part: part.value)
    return Finding(verdict, text, least, (record["key"],))


def _record(records: pd.DataFrame, network: str) -> pd.Series | None:
    """The one of `network`, if it may decide."""
    for _, record in measured(records).iterrows():
        if record["network"] == network:
            return record
    return None


def _seconds(record: pd.Series, way: str) -> np.ndarray:
    return np.asarray(record[f"{way}_s"], float)


def _ratio(record: pd.Series, way: str, base: str) -> Interval:
    generator = named_generator(f"{record['network']}/{way}/{base}")
    return median_ratio(_seconds(record, way), _seconds(record, base), generator)
