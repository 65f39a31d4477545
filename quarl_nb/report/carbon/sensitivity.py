"""Carbon under other assumptions: grids, watts of a hardware thread, and whether memory counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES, INT8
from quarl_nb.report.actorq.runs import SETTING
from quarl_nb.report.actorq.tables import NEVER, interval_text
from quarl_nb.report.carbon.costs import ALL, AS_RECORDED, Assumptions, Per, emissions
from quarl_nb.report.carbon.tables import grams, labelled

CODECARBON = "codecarbon 3.3.0"
# kg CO2e a kWh of electricity in 2023.
GRIDS = {"Norway": 0.03008, "France": 0.056039, "United States": 0.369473, "Germany": 0.38095,
         "China": 0.582317, "India": 0.713441}  # fmt: skip
# Watts (TDP) and hardware threads of a laptop, a server and a desktop.
PROCESSORS = {"Intel Core i7-8565U": (15, 8), "Intel Xeon E5-2699 v4": (145, 44),
              "Intel Core i7-7700K": (91, 8)}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One assumption changed: which, to what, who says so."""

    changed: str
    value: str
    source: str
    assumed: Assumptions


VARIANTS = (
    Variant("none", "as recorded", "the records", AS_RECORDED),
    *(Variant("grid", f"{name}, {1000 * kg:.0f} g/kWh", f"{CODECARBON}, 2023",
              Assumptions(kg_per_kwh=kg)) for name, kg in GRIDS.items()),
    *(Variant("watts of a thread", f"{tdp / threads:.1f} W",
              f"{name}: {tdp} W / {threads} threads ({CODECARBON})",
              Assumptions(watts_per_thread=tdp / threads))
      for name, (tdp, threads) in PROCESSORS.items()),
    Variant("memory", "not counted", "processor alone", Assumptions(memory="none")),
    Variant("memory", "all of the machine's", f"{CODECARBON}, machine mode",
            Assumptions(memory="all")),
)  # fmt: skip


def sensitivity(records: pd.DataFrame) -> pd.DataFrame:
    """`costs.emissions` in all, under every one of `VARIANTS`: with changed, value and source."""
    return pd.concat([
        emissions(records, variant.assumed, [ALL])
        .assign(changed=variant.changed, value=variant.value, source=variant.source)
        for variant in VARIANTS
    ], ignore_index=True)


def sensitivity_table(rows: pd.DataFrame, per: Per) -> pd.DataFrame:
    """A row an assumption: torch fp32 over int8 by setting, and the grams saved over all of them.

    Args:
        rows: `sensitivity`.
    """
    if rows.empty or not {BASELINES["torch"], INT8} <= {*rows["actor"]}:
        return pd.DataFrame()
    rows = rows[rows["per"] == per]
    lines = []
    for name, group in rows.groupby(["changed", "value", "source"], sort=False):
        int8, base = (group[group["actor"] == actor] for actor in (INT8, BASELINES["torch"]))
        pairs = base.merge(int8, on=SETTING, suffixes=("_base", "_int8"))
        saved = (pairs["kg_base"] - pairs["kg_int8"]).dropna()
        lines.append(
            dict(zip(("assumption", "value", "source"), name, strict=True))
            | {label: interval_text(row.iloc[0], "ratio_torch")
               for label, row in labelled(int8)}
            | {"g CO2e saved, estimated": _saved_text(saved.tolist(), len(pairs))}
        )
    return pd.DataFrame(lines)


def _saved_text(kg: Sequence[float], settings: int) -> str:
    """Their sum, and of how many settings where fp32 or int8 did not get there in all of them."""
    if not kg:
        return NEVER if settings else ""
    missed = f" ({len(kg)} of {settings} settings; none where either never got there)"
    return grams(sum(kg)) + (missed if len(kg) < settings else "")
