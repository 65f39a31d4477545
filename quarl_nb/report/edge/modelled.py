"""What boards would do, by the model of them (Raspberry Pis) or on an emulated core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from quarl_nb.report.edge.timings import PAPERS_BOARD, latency_rows, published_times
from quarl_nb.report.paper import published

# "Policies II and III take more memory than the total RAM capacity"; quantized, they fit.
SAID_TO_SWAP = (("Policy II", "fp32"), ("Policy III", "fp32"))
ISSUED_PER_CYCLE = 2  # instructions that a Cortex-A53 starts at most


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
    held = "One" if said["exceeds"].any() else "None"
    text = (f"{held} of the policies said to exceed the memory does: the largest, "
            f"{most['policy']} in {most['precision']}, makes by the model of a {PAPERS_BOARD} a "
            f"process of {most['resident_bytes'] / 1e6:.0f} MB, where {memory / 1e6:.0f} MB are "
            "free for it.")
    if small["weight_bytes"] < large["weight_bytes"]:
        text += (f" A larger runtime would not explain it either: {small['policy']} in "
                 f"{small['precision']} ({small['weight_bytes'] / 1e6:.2f} MB of weights) would "
                 f"have to overflow while {large['policy']} in {large['precision']} "
                 f"({large['weight_bytes'] / 1e6:.2f} MB) fits.")
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
        known: `quarl_nb.edge.boards.model_inputs` by board, for what the first records leave out
            (constants of cores and runtimes); what a record holds itself goes before.
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
