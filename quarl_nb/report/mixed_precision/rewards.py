"""What policies trained in half precision earn, against float32: over training seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd

from quarl_nb.report.mixed_precision.speedups import speedups
from quarl_nb.report.qat.gains import check_alike
from quarl_nb.report.seeds import SeedGains
from quarl_nb.report.texts import percent_interval

TRAINED = ["policy", "device", "precision"]  # what is trained; times are also of a machine


def trainings(records: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    """The runs that trained the policy of `row` on its device, in float32 and in its precision.

    Raises:
        QuarlError: they differ in length or episodes.
    """
    trained = records["returns"].notna() if "returns" in records else False
    same = (records["policy"] == row["policy"]) & (records["device"] == row["device"]) & trained
    runs = records[same & records["precision"].isin(["fp32", row["precision"]])]
    check_alike(runs, str(row["policy"]))
    return runs


def gains(runs: pd.DataFrame) -> SeedGains | None:
    """What half precision earns more, of the training seeds that both have; None without any."""
    means = runs.assign(mean=runs["returns"].map(np.mean) if len(runs) else ())
    table = means.pivot(index="seed", columns="precision", values="mean").dropna()
    if "fp32" not in table or table.shape[1] < 2 or table.empty:
        return None
    half, full = table.drop(columns="fp32").iloc[:, 0].tolist(), table["fp32"].tolist()
    return SeedGains.of(half, full, full)


def reward_table(records: pd.DataFrame) -> pd.DataFrame:
    """The gain of every policy that was trained to the end, for reading; empty without any.

    Args:
        records: `ResultStore.frame("mixed_precision")`.
    """
    lines = []
    table = speedups(records)
    for _, row in (table[TRAINED].drop_duplicates() if len(table) else table).iterrows():
        runs = trainings(records, row)
        if found := gains(runs):
            half = runs[runs["precision"] != "fp32"]
            lines.append({
                **row, "trainings": len(found.gain),
                "episodes each": int(half["returns"].map(len).min()),
                "gain over fp32 [95 %, trainings]": percent_interval(found.interval()),
            })  # fmt: skip
    return pd.DataFrame(lines)
