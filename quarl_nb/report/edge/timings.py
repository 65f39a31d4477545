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
# "Policies II and III take more memory than the total RAM capacity"; quantized, they fit.
SAID_TO_SWAP = (("Policy II", "fp32"), ("Policy III", "fp32"))
OBSERVATIONS, ACTIONS = 22, 25  # of the navigation task: what Table 6's policies take and give
# Columns of one policy over another: of medians, of its fast calls over the other's slow ones, and
# the reverse.
RATIOS = {"": ("latency_s", "latency_s"), "_low": ("low_s", "high_s"), "_high": ("high_s", "low_s")}
ISSUED_PER_CYCLE = 2  # instructions that a Cortex-A53 starts at most


def policies() -> dict[str, str]:
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
        "policy": found["policy"], "network": found["policy"].map(policies()),
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
    of_table6 = {_sizes(network): policy for policy, network in policies().items()}
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


def modelled_boards(records: pd.DataFrame) -> pd.DataFrame:
    """The records of modelled boards, whose `extra.board` holds what the model knows of each.

    A board's own result has a column of that name too, with what the board says of itself.
    """
    if "extra.board" not in records:
        return pd.DataFrame()
    return records[records["extra.board"].notna() & (records["source"] == "modelled")]


def explanation_rows(records: pd.DataFrame) -> pd.DataFrame:
    """Table 6's times beside the model of its board, and what swapping would have to explain.

    Args:
        records: as of `latency_rows`; the modelled ones of `PAPERS_BOARD` count, in ONNX Runtime
            (the larger of the two runtimes).

    Returns:
        policy, precision, published_s, modelled_s, ratio, weight_bytes, resident_bytes,
        free_bytes, flash_bytes (what flash would have to deliver in every decision, in order, to
        make up for the time that the model does not explain), flash_over_weights, exceeds (the
        memory, by the model), said_to_exceed (by the paper), keys.
    """
    boards = modelled_boards(records)
    if len(boards):
        boards = boards[(boards["machine"] == PAPERS_BOARD) & (boards["runtime"] == "onnxruntime")]
    if boards.empty:
        return pd.DataFrame()
    flash = boards["extra.board"].iloc[0]["flash"]["value"]
    rows = latency_rows(boards).rename(columns={"latency_s": "modelled_s"})
    times = published_times().rename(columns={"latency_s": "published_s"})
    found = times[["policy", "precision", "published_s"]].merge(rows, on=["policy", "precision"])
    found["ratio"] = found["published_s"] / found["modelled_s"]
    found["flash_bytes"] = flash * (found["published_s"] - found["modelled_s"]).clip(lower=0)
    found["flash_over_weights"] = found["flash_bytes"] / found["weight_bytes"]
    found["exceeds"] = found["free_bytes"] < 0
    pairs = zip(found["policy"], found["precision"], strict=True)
    found["said_to_exceed"] = [pair in SAID_TO_SWAP for pair in pairs]
    return found[["policy", "precision", "published_s", "modelled_s", "ratio", "weight_bytes",
                  "resident_bytes", "free_bytes", "flash_bytes", "flash_over_weights", "exceeds",
                  "said_to_exceed", "keys"]]  # fmt: skip


def explanation_text(rows: pd.DataFrame) -> str:
    """In words, whether Table 6's times can come from policies that exceed the RAM.

    Args:
        rows: `explanation_rows`.
    """
    said, rest = rows[rows["said_to_exceed"]], rows[~rows["said_to_exceed"]]
    if said.empty or rest.empty:
        return ""
    small, large = said.loc[said["weight_bytes"].idxmin()], rest.loc[rest["weight_bytes"].idxmax()]
    most = said.loc[said["resident_bytes"].idxmax()]
    memory = most["free_bytes"] + most["resident_bytes"]
    held = "none of them exceeds" if not said["exceeds"].any() else "one of them exceeds"
    text = (f"Of the policies said to exceed the memory {held} it: the largest, "
            f"{most['policy']} in {most['precision']}, makes by the model of a {PAPERS_BOARD} a "
            f"process of {most['resident_bytes'] / 1e6:.0f} MB, where {memory / 1e6:.0f} MB are "
            "free for it.")
    if small["weight_bytes"] < large["weight_bytes"]:
        text += (f" Nor can it be another, larger runtime: {small['policy']} in "
                 f"{small['precision']} ({small['weight_bytes'] / 1e6:.2f} MB) would exceed the "
                 f"memory and {large['policy']} in {large['precision']} "
                 f"({large['weight_bytes'] / 1e6:.2f} MB) fit into it.")
    shares = " and ".join(f"{row.flash_over_weights:.2g} times in {row.policy}"
                          for row in said.itertuples())
    return (f"{text} To take as long as published, by the same model, a decision would have to "
            f"read the weights from flash {shares}.")


def emulated_rows(records: pd.DataFrame) -> pd.DataFrame:
    """What the C takes on an emulated board's core.

    Returns:
        network, precision, machine, instructions (of one decision), printing_counted (whether they
        hold the printing of a number too, as in records of version 2: 1,000 to 1,400 instructions
        on x86-64, not known on Arm), least_s (at the clock of Table 7, `ISSUED_PER_CYCLE` in every
        cycle: a bound), code_bytes, constant_bytes, writable_bytes, stack_bytes, observations,
        actions_as_recorded, keys.
    """
    if "instructions" not in records:
        return pd.DataFrame()
    rows = records[records["instructions"].notna()]
    clock = published("table7").set_index("characteristic").loc["CPU Frequency"]
    assert clock["unit"] == "GHz"
    names = ["network", "precision", "machine", "instructions", "code_bytes", "constant_bytes",
             "writable_bytes", "stack_bytes", "observations", "actions_as_recorded"]  # fmt: skip
    printing = rows["printing_counted"] if "printing_counted" in rows \
        else pd.Series(np.nan, rows.index)
    found = rows[names].assign(
        printing_counted=[told is not False for told in printing],
        least_s=rows["instructions"] / (1e9 * float(clock["value"]) * ISSUED_PER_CYCLE),
        keys=[(key,) for key in rows["key"]],
        size=rows.groupby("network")["constant_bytes"].transform("max"),
    )
    return found.sort_values(["size", "constant_bytes"], ascending=[True, False]) \
                .drop(columns="size").reset_index(drop=True)


def board_inputs(records: pd.DataFrame, known: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """What the model knows of each board: machine, input, value (SI units, bytes), source.

    Args:
        known: `edge.boards.model_inputs` by board, for what the first records leave out (constants
            of cores and runtimes); what a record holds itself goes before.
    """
    boards = modelled_boards(records)
    if boards.empty:
        return pd.DataFrame()
    boards = boards.drop_duplicates("machine")
    return pd.DataFrame([
        {"machine": machine, "input": name, **number}
        for machine, board in zip(boards["machine"], boards["extra.board"], strict=True)
        for name, number in {**known.get(machine, {}), **board}.items()
        if isinstance(number, Mapping)
    ])  # fmt: skip
