"""What an actor's new parameters cost to load: rows, table, and the claims that rest on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from quarl_nb.report.findings import (
    NOT_MEASURED,
    ONE_PROCESS,
    Finding,
    Verdict,
    decided,
    measured,
    processor,
)
from quarl_nb.report.stats import Interval, median_ratio, named_generator

# A way of loading, as a record names its seconds, and the reading that comes before it.
WAYS = {
    "deserialize_fp32": "reading a state_dict, fp32",
    "deserialize_fp16": "reading a state_dict, fp16",
    "deserialize_int8": "reading a state_dict, int8",
    "state_dict_fp32": "load_state_dict, fp32",
    "state_dict_fp16": "load_state_dict, fp16",
    "state_dict_int8": "load_state_dict, int8",
    "pack_fp16": "packing alone of load_state_dict, fp16",
    "pack_int8": "packing alone of load_state_dict, int8",
    "open_fp32": "payload, fp32",
    "open_int8": "payload, int8",
}
BASE = "state_dict_fp32"  # what every other is compared with
DECISIONS = {
    "decide_fp32": "one decision of torch, fp32",
    "decide_fp16": "fp16",
    "decide_int8": "int8",
}
FORMS = {"state_dict": "state_dict", "module": "module, pickled", "torchscript": "TorchScript",
         "payload": "payload for ONNX Runtime"}  # fmt: skip
LITTLE = 0.01  # of the bytes of a state_dict: what another form may save


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
            if not _has(record, f"{way}_s"):  # older records know no reading
                continue
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


def takes_longer(
    records: pd.DataFrame, network: str, longer: Sequence[str], than: Sequence[str]
) -> Finding:
    """Reproduced when all of `longer` surely take longer than all of `than`, for `network`.

    Not reproduced when one of them surely takes less than one of those. They are keys of `WAYS` or
    of `DECISIONS`.
    """
    record = _record(records, network, [f"{way}_s" for way in (*longer, *than)])
    if record is None:
        return NOT_MEASURED
    ratios = [_ratio(record, slow, quick) for slow in longer for quick in than]
    verdict = decided(all(ratio.low > 1 for ratio in ratios),
                      any(ratio.high < 1 for ratio in ratios))  # fmt: skip
    names = WAYS | DECISIONS
    times = {way: 1e3 * float(np.median(_seconds(record, way))) for way in (*longer, *than)}
    told = ", ".join(f"{names[way]} {ms:.2g} ms" for way, ms in times.items())
    text = f"{network} on {processor(record)}: {told} (interval {ONE_PROCESS})"
    least = min(ratios, key=lambda ratio: ratio.value)
    return Finding(verdict, text, least, (record["key"],))


def state_dict_most_compact(
    records: pd.DataFrame, network: str, precisions: Sequence[str]
) -> Finding:
    """Bytes of a policy by form: reproduced when in all `precisions` a `state_dict` takes less than
    torch's serialized objects (`module` and `torchscript`), and no form less by `LITTLE` of it;
    else not."""
    record = _record(records, network, [f"{form}_{precision}_bytes" for precision in precisions
                                        for form in ("state_dict", "module", "torchscript")])
    if record is None:
        return NOT_MEASURED
    smallest, told = True, []
    for precision in precisions:
        sizes = {form: record[name] for form in FORMS
                 if _has(record, name := f"{form}_{precision}_bytes")}  # fmt: skip
        shares = {form: size / sizes["state_dict"] for form, size in sizes.items()}
        smallest &= min(shares["module"], shares["torchscript"]) > 1
        smallest &= min(shares.values()) > 1 - LITTLE
        told.append(f"{precision} state_dict {sizes['state_dict']:,.0f} bytes, " + ", ".join(
            f"{FORMS[form]} {share - 1:+.3%}" for form, share in shares.items()
            if form != "state_dict"))  # fmt: skip
    verdict: Verdict = "reproduced" if smallest else "not reproduced"
    return Finding(verdict, f"{network}: {'; '.join(told)}", None, (record["key"],))


def packing_takes(
    records: pd.DataFrame, network: str, precisions: Sequence[str], share: float
) -> Finding:
    """Packing alone over `load_state_dict`, for `network`: reproduced when it surely takes more
    than `share` in each of `precisions`, not reproduced when surely less in one."""
    record = _record(records, network, [f"pack_{each}_s" for each in precisions])
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


def _record(records: pd.DataFrame, network: str, fields: Sequence[str]) -> pd.Series | None:
    """The one of `network` that has these, if it may decide."""
    for _, record in measured(records).iterrows():
        if record["network"] == network and all(_has(record, name) for name in fields):
            return record
    return None


def _has(record: pd.Series, name: str) -> bool:
    return name in record and bool(np.all(pd.notna(record[name])))


def _seconds(record: pd.Series, way: str) -> np.ndarray:
    return np.asarray(record[f"{way}_s"], float)


def _ratio(record: pd.Series, way: str, base: str) -> Interval:
    generator = named_generator(f"{record['network']}/{way}/{base}")
    return median_ratio(_seconds(record, way), _seconds(record, base), generator)
