"""What runs were set to, where they differ in it: the columns and labels that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from quarl_nb.report.actorq.runs import MACHINE

# Columns of the setting that tables show where runs differ in them.
KNOBS = {"n_actors": "actors", "envs_per_actor": "envs an actor", "width": "width",
         "pull_period": "pull period", "samples_per_insert": "samples per insert",
         "budget.device": "learner on", "gpu": "GPU", "provenance.cpu": "processor"}  # fmt: skip


def varied(rows: pd.DataFrame) -> list[str]:
    """Those of `KNOBS` that take several values."""
    return [name for name in KNOBS if name in rows and rows[name].nunique() > 1]


def knob_texts(row: pd.Series, knobs: Sequence[str]) -> list[str]:
    """A row's values of `knobs` in words."""
    return [f"{x:g}" if isinstance(x, float) else str(x) for x in (row[name] for name in knobs)]


def machine_told(row: pd.Series, rows: pd.DataFrame) -> list[str]:
    """Where a row was measured: its processor and its learner's GPU, each where `rows` differ in
    it and the row has one."""
    return [str(row[name]) for name in MACHINE if rows[name].nunique() > 1 and row[name]]
