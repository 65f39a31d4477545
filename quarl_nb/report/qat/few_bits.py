"""The fewest bits: losses with monitored ranges and with learned steps, over common seeds."""

from __future__ import annotations

import pandas as pd

from quarl_nb.report.labels import policy_label
from quarl_nb.report.qat.gains import FP32, of_shared_seeds, trained_in, trainings, way_table
from quarl_nb.report.stats import Interval
from quarl_nb.report.texts import percent_interval

FEW = 4
METHODS = {"minmax": "monitored", "lsq": "learned steps"}


def few_bits_table(records: pd.DataFrame) -> pd.DataFrame:
    """Loss against float32 at `FEW` bits and below for reading: a row a policy, a column a width
    and method, over the seeds that float32 and all trainings by either method have.

    Beside it how many seeds these are, and how many of them learned in float32: what never learned
    there has nothing to lose, and counts for no claim of "no loss".

    Args:
        records: `ResultStore.frame("qat")`.
    """
    shared = of_shared_seeds(trainings(records), [*METHODS])
    table = way_table(shared)
    if len(table):
        table = table[table["bits"].le(FEW) & table["method"].isin([*METHODS])]
    if table.empty:
        return table
    learned = trained_in(shared, FP32).groupby("policy")["learned"].sum()
    shown = table.assign(
        bits=table["bits"].astype(int).map("{} bits".format), way=table["method"].map(METHODS),
        loss=[percent_interval(-Interval.of(row, "gain")) for _, row in table.iterrows()],
    ).pivot(index="policy", columns=["bits", "way"], values="loss")  # fmt: skip
    shown = shown.sort_index(axis=1, ascending=[True, False]).fillna("not measured")
    shown["seeds", ""] = table.groupby("policy")["seeds"].max()
    shown["learned in fp32", ""] = learned
    return shown.rename(index=policy_label)
