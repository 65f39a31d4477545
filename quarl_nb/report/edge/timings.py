"""Table 6 on one core here (measured), on boards (imported) and on Raspberry Pis (modelled)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from quarl_nb.report.findings import processor
from quarl_nb.report.paper import published
from quarl_nb.study import network_name

HERE, PAPERS_BOARD = "this machine", "Raspberry Pi 3B"
PRECISIONS = ("fp32", "int8", "int4")
RUNTIMES = {"onnxruntime": "ORT", "c": "C"}
OBSERVATIONS, ACTIONS = 22, 25  # of the navigation task: what Table 6's policies take and give
# Columns of one policy over another: of medians, of its fast calls over the other's slow ones, and
# the reverse.
RATIOS = {"": ("latency_s", "latency_s"), "_low": ("low_s", "high_s"), "_high": ("high_s", "low_s")}


def table6_networks() -> dict[str, str]:
    """Table 6's policies and their networks, as {"Policy I": "64x3"}."""
    rows = published("table6").drop_duplicates("policy")
    return dict(zip(rows["policy"], rows["network"].str.removeprefix("mlp "), strict=True))


def published_times() -> pd.DataFrame:
    """Table 6's times and speed-ups: policy, network, precision, machine, source ("published"),
    latency_s, speedup (NaN for fp32)."""
    rows = published("table6")
    wide = rows.pivot(index=["policy", "precision"], columns="quantity", values="value")
    found = wide.reset_index().rename_axis(columns=None)
    return pd.DataFrame({
        "policy": found["policy"], "network": found["policy"].map(table6_networks()),
        "precision": found["precision"], "machine": PAPERS_BOARD, "source": "published",
        "latency_s": found["inference_time"] / 1e3, "speedup": found["speedup"],
    })  # fmt: skip


def latency_rows(records: pd.DataFrame) -> pd.DataFrame:
    """One row a policy, precision, runtime and machine that has a time.

    Args:
        records: those of the studies `edge` and `edge_board`, in one frame; others are left out.

    Returns:
        policy (of Table 6, else ""), network, exported (the name that a board's policy has, with
        its digest where others have that name, too; "": of the study), ranges (of its levels; "":
        none, or of the study), precision, runtime, machine,
        processor (of `HERE`; "": a board tells its own), source (measured, modelled), latency_s
        (median) with low_s and high_s (percentiles 10 and 90 of all calls; NaN where modelled),
        speedup (over fp32 of that policy, runtime, machine and processor) with speedup_low and
        speedup_high (its slow calls against the other's fast ones, the reverse), resident_bytes,
        weight_bytes, code_bytes, free_bytes (of the board, beside the system and the process;
        modelled), bound_by (modelled), keys, profile.
    """
    if records.empty or "runtime" not in records:
        return pd.DataFrame()
    found = pd.DataFrame([row for record in records.to_dict("records") if (row := _row(record))])
    if found.empty:
        return found
    found["exported"] = _told_apart(found["exported"], found.pop("digest"))
    place = ["sizes", "exported", "ranges", "precision", "runtime", "machine"]
    found = found.drop_duplicates(place, keep="last")
    of_table6 = {_sizes(network): policy for policy, network in table6_networks().items()}
    found.insert(0, "policy", found["sizes"].map(of_table6).fillna(""))
    found = _with_speedups(found).drop(columns="sizes")
    ranks = found.assign(
        size=found.groupby("network")["weight_bytes"].transform("max"),
        at=found["precision"].map({name: i for i, name in enumerate(PRECISIONS)}),
        modelled=found["source"] == "modelled",
    )
    order = ["size", "network", "modelled", "machine", "runtime", "at"]
    return found.loc[ranks.sort_values(order, kind="stable").index].reset_index(drop=True)


def _row(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """A record's times and bytes under one set of names; None without a time."""
    measured = pd.notna(record.get("latency_p50_s"))
    if not measured and pd.isna(record.get("modelled_latency_s")):
        return None
    prefix, export = "" if measured else "modelled_", record.get("extra.export")
    if isinstance(export, Mapping):  # a board's own result
        place = _exported(record, export)
    else:
        place = {"network": record["network"], "sizes": _sizes(record["network"]),
                 "exported": "", "digest": "", "ranges": "", "machine": record["machine"],
                 "weight_bytes": record[f"{prefix}weight_bytes"]}  # fmt: skip
    return place | {
        "precision": record["precision"], "runtime": record["runtime"],
        "source": record["source"],
        "latency_s": record["latency_p50_s" if measured else "modelled_latency_s"],
        "low_s": record.get("latency_p10_s", np.nan), "high_s": record.get("latency_p90_s", np.nan),
        "resident_bytes": record[f"{prefix}resident_bytes"],
        "code_bytes": record.get("code_bytes", np.nan),
        "free_bytes": record.get("modelled_free_bytes", np.nan),
        "bound_by": "" if measured else _bound(record),
        "processor": processor(record) if place["machine"] == HERE else "",
        "keys": (record["key"],), "profile": record["profile"],
    }  # fmt: skip


def _exported(record: Mapping[str, Any], export: Mapping[str, Any]) -> dict[str, Any]:
    """Which policy a board ran. The ranges of fp32 mean nothing: it has no levels."""
    first, *hidden, last = export["network"]
    name = network_name(hidden)
    return {"network": name, "sizes": _sizes(name, first, last), "exported": record["policy"],
            "digest": export.get("tensors_sha256", ""),
            "ranges": "" if record["precision"] == "fp32" else record["ranges"],
            "machine": record["board"], "weight_bytes": export["weight_bytes"]}  # fmt: skip


def _told_apart(names: pd.Series, digests: pd.Series) -> pd.Series:
    """`best_model`, or `best_model (0a1b2c3d)` where several policies are named so."""
    several = digests.groupby(names).transform("nunique") > 1
    return names.where(~several, names + " (" + digests.str[:8] + ")")


def _sizes(network: str, first: int = OBSERVATIONS, last: int = ACTIONS) -> str:
    return f"{first} {network} {last}"


def _bound(record: Mapping[str, Any]) -> str:
    if record["modelled_swap_s"] > 0:
        return "flash"
    return "memory" if record["modelled_memory_s"] > record["modelled_compute_s"] else "arithmetic"


def _with_speedups(rows: pd.DataFrame) -> pd.DataFrame:
    place = ["sizes", "exported", "runtime", "machine", "processor"]
    times = ["latency_s", "low_s", "high_s"]
    base = rows.loc[rows["precision"] == "fp32", [*place, *times, "keys"]]
    found = rows.merge(base, on=place, how="left", suffixes=("", "_fp32"))
    quantized = found["precision"] != "fp32"
    for end, (full, ours) in RATIOS.items():
        found[f"speedup{end}"] = (found[f"{full}_fp32"] / found[ours]).where(quantized)
    found["keys"] = [
        (*full, *ours) if use and isinstance(full, tuple) else ours
        for use, full, ours in zip(quantized, found["keys_fp32"], found["keys"], strict=True)
    ]
    return found.drop(columns=[f"{name}_fp32" for name in (*times, "keys")])
