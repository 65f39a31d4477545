"""What is claimed of the time that decisions take on an actor."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES, actor_label
from quarl_nb.report.actorq.inference import blocks_s, latency_rows
from quarl_nb.report.findings import (
    NOT_MEASURED,
    ONE_PROCESS,
    Finding,
    decided,
    measured,
    processor,
)
from quarl_nb.report.stats import ALPHA, Interval, median_ratio, named_generator


def int8_inference_faster(
    records: pd.DataFrame, networks: Sequence[str], factor: float
) -> Finding:
    """Reproduced when int8 is surely `factor` times as fast as both fp32 baselines on every one of
    `networks`, batch 1.

    Not reproduced when surely less than both on one of them. The text tells every other network.
    """
    records = measured(records)
    rows = latency_rows(records)
    rows = rows[(rows["precision"] == "int8") & (rows["batch"] == 1)] if len(rows) else rows
    rows = rows.dropna(subset=["over_torch", "over_ort"]) if len(rows) else rows
    asked = rows[rows["network"].isin([*networks])] if len(rows) else rows
    if asked.empty:
        return NOT_MEASURED
    faster = (asked[["over_torch_low", "over_ort_low"]] > factor).all(axis=None)
    slower = (asked[["over_torch_high", "over_ort_high"]] < factor).all(axis=1).any()
    verdict = decided(faster and len(asked) == len(networks), slower)
    worst = asked.loc[asked["over_ort"].idxmin()]
    interval = Interval.of(worst, "over_ort")
    others = rows[~rows["network"].isin([*networks])]
    text = _ratios_text(asked)
    text += f"; other networks: {_ratios_text(others)}" if len(others) else ""
    text += f" ({1 - ALPHA:.0%} intervals, {ONE_PROCESS}, in the table)"
    keys = records[(records["batch"] == 1) & records["precision"].isin(["fp32", "int8"])]["key"]
    return Finding(verdict, text, interval, tuple(keys))


def _ratios_text(rows: pd.DataFrame) -> str:
    """Of every network, by processor."""
    found = []
    for name, group in rows.groupby("processor"):
        ratios = [f"{row.network} {row.over_torch:.1f}x against torch, {row.over_ort:.1f}x against "
                  "the same runtime" for row in group.itertuples()]  # fmt: skip
        found.append(f"{'; '.join(ratios)} on {name}")
    return "; ".join(found)


def alone_takes_longer(records: pd.DataFrame, network: str, batch: int) -> Finding:
    """Time of an observation alone over that of one in a batch of `batch`, for `network` in fp32.

    Reproduced when surely above 1 in both runtimes, not reproduced when surely below in one.
    """
    records = measured(records)
    if records.empty:
        return NOT_MEASURED
    records = records[(records["network"] == network) & (records["precision"] == "fp32")]
    engines = records["precision"] + "/" + records["runtime"]
    ratios, told, keys = [], [], []
    for base in BASELINES.values():
        rows = records[engines == base].drop_duplicates("batch").set_index("batch")
        if not {1, batch} <= {*rows.index} or processor(rows.loc[1]) != processor(rows.loc[batch]):
            return NOT_MEASURED
        generator = named_generator(f"{network}/{base}/{batch}")
        ratio = median_ratio(batch * blocks_s(rows.loc[1]), blocks_s(rows.loc[batch]), generator)
        ratios.append(ratio)
        told.append(f"{ratio.text('.1f')} in {actor_label(base)} on {processor(rows.loc[1])}")
        keys += [rows.loc[1]["key"], rows.loc[batch]["key"]]
    verdict = decided(all(ratio.low > 1 for ratio in ratios),
                      any(ratio.high < 1 for ratio in ratios))  # fmt: skip
    text = (f"{network}: time of an observation alone over one in a batch of {batch} "
            f"{', '.join(told)} ({1 - ALPHA:.0%} intervals, {ONE_PROCESS})")
    return Finding(verdict, text, min(ratios, key=lambda ratio: ratio.value), tuple(keys))
