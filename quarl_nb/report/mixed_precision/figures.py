"""The speed-up of half-precision training against the size of the policy."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from quarl_nb.report.mixed_precision.speedups import PUBLISHED, speedups
from quarl_nb.report.style import (
    COLUMN_IN,
    CYCLE,
    GREY,
    MARKERS,
    STYLE,
    NothingToDrawError,
    interval_errors,
    new_figure,
)

_PARTS = {"learner": "update", "training": "training step"}


def of_dqn(records: pd.DataFrame) -> pd.DataFrame:
    """The records of DQN, which alone has policies of several sizes."""
    return records[records["algo"] == "dqn"] if len(records) else records


def speedup_by_size(records: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """DQN's speed-up over float32 against the policy's size: an update, and a training step."""
    table = speedups(of_dqn(records))
    if table.empty:
        raise NothingToDrawError("DQN has no records in float32 and in half precision")
    with mpl.rc_context(STYLE):
        fig = new_figure(COLUMN_IN, 3.0)
        ax = fig.subplots()
        ax.axhline(1, color=GREY, lw=0.7)
        ax.axhline(PUBLISHED, color=GREY, lw=0.9, ls=":", label="published: 50 % faster")
        kinds = table.groupby(["device", "machine", "precision"])
        for i, ((_, machine, precision), rows) in enumerate(kinds):
            where = machine.rpartition(", ")[2]  # the GPU, if it has one
            for part, style in (("learner", "-"), ("training", "--")):
                ax.errorbar(rows["parameters"], rows[part], yerr=interval_errors(rows, part),
                            ls=style, marker=MARKERS[i], color=CYCLE[i], elinewidth=0.8,
                            label=f"{precision} on {where}: {_PARTS[part]}")
        names = table.drop_duplicates("parameters").sort_values("parameters")
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xticks(names["parameters"], [
            f"{row.policy}\n{row.parameters / 1e6:.3g} M" for row in names.itertuples()
        ])
        ax.set_ylim(0, None)
        ax.set_xlabel("policy and its parameters")
        ax.set_ylabel("speed-up over fp32\n(95 % within one process)")
        fig.legend(loc="outside upper center")
    return fig, table.drop(columns="keys")
