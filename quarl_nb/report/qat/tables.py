"""QAT for reading: every way of training against float32, and 8 bits trained or rounded."""

from __future__ import annotations

import pandas as pd

from quarl_nb.report.labels import policy_label
from quarl_nb.report.policy_records import bits_of
from quarl_nb.report.qat.gains import (
    FP32,
    PTQ,
    W8A8,
    W8A8_LABEL,
    WAY,
    Way,
    gains,
    minmax,
    ptq,
    trainings,
    way_label,
    way_table,
)
from quarl_nb.report.stats import Interval
from quarl_nb.report.texts import percent_interval, return_text


def qat_tables(records: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`way_table`, tidy and for reading: a row a policy, a column a way of training.

    A cell whose mean is over fewer seeds than others of its row says so.
    """
    tidy = way_table(trainings(records))
    if tidy.empty:
        return tidy, tidy
    ways = [tuple(way) for way in tidy[WAY].to_numpy()]
    most = tidy.groupby("policy")["seeds"].transform("max")
    shown = tidy.assign(
        policy=tidy["policy"].map(policy_label), way=[way_label(way) for way in ways],
        text=[_mean_text(row, n) for (_, row), n in zip(tidy.iterrows(), most, strict=True)],
    )  # fmt: skip
    order = [way_label(way) for way in sorted(set(ways), key=_order)]
    shown = shown.pivot(index="policy", columns="way", values="text").reindex(columns=order)
    return tidy, shown.fillna("")


def eight_bits_table(rows: pd.DataFrame) -> pd.DataFrame:
    """What 8 bits gain, of |float32 return|, for reading: a row a policy, a column a comparison.

    QAT quantizes weights and activations, the paper's 8* weights alone; PTQ of both (`W8A8`) stands
    beside it where there are records.
    """
    pairs = {"QAT over fp32": (minmax(8), FP32), "8* over fp32": (ptq(), FP32),
             "QAT over 8*": (minmax(8), ptq()), "W8A8 PTQ over fp32": (ptq(W8A8), FP32),
             "QAT over W8A8 PTQ": (minmax(8), ptq(W8A8))}  # fmt: skip
    columns = {}
    for name, pair in pairs.items():
        columns[name] = {
            policy_label(row["policy"]): percent_interval(Interval.of(row, "gain"))
            for _, row in gains(rows, *pair).iterrows()
        }
    table = pd.DataFrame(columns)
    empty = [name for name in table if W8A8_LABEL in name and table[name].isna().all()]
    return table.drop(columns=empty).fillna("")


def _order(way: Way) -> tuple[int, int, str]:
    kinds = {"none": 0, "minmax": 1, "lsq": 2, PTQ: 3}
    bits = bits_of(way[0]) or 0
    return (kinds[way[1]] if way[2] == "none" else 4), -bits, way[2]


def _mean_text(row: pd.Series, most: int) -> str:
    text = return_text(Interval.of(row, "mean"))
    return text if row["seeds"] == most else f"{text} (seeds: {row['seeds']})"
