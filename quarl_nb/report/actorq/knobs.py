"""What runs were set to, where they differ in it: the columns and labels that tell them apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from quarl_nb.report.actorq.runs import MACHINE

# Columns of the setting that tables show where runs differ in them.
KNOBS = {"n_actors": "actors", "envs_per_actor": "envs an actor", "width": "width",
         "pull_period": "pull period", "samples_per_insert": "samples per insert",
         "budget.steps": "steps", "budget.evaluations": "evaluations",
         "budget.episodes": "episodes each", "batch_size": "batch", "options": "options",
         "budget.device": "learner on", "budget.autocast": "autocast", "gpu": "GPU",
         "provenance.cpu": "processor"}  # fmt: skip
# Those that every task has its own of: shown where runs of one task differ, not where tasks do.
OF_A_TASK = ("budget.steps", "budget.evaluations", "budget.episodes", "batch_size", "options",
             "budget.autocast")


def varied(rows: pd.DataFrame) -> list[str]:
    """Those of `KNOBS` that take several values; of `OF_A_TASK`, within a task.

    Args:
        rows: measured, with the task and the `SETTING` of each.
    """
    return [name for name in KNOBS if name in rows and _varies(rows, name)]


def _varies(rows: pd.DataFrame, name: str) -> bool:
    if name not in OF_A_TASK:
        return rows[name].nunique() > 1
    by = ["task", "batch_size"] if name == "options" else ["task"]  # the batch is an option, too
    values = rows.groupby(by, dropna=False)[name].nunique(dropna=False)
    return bool((values > 1).any())


def knob_texts(row: pd.Series, knobs: Sequence[str], rows: pd.DataFrame) -> list[str]:
    """A row's values of `knobs` in words, as they differ among `rows`; "none" where it has none."""
    same = rows[rows["task"] == row["task"]]
    return [_text(_own_options(row["options"], same["options"].dropna()) if name == "options"
                  else row[name]) for name in knobs]  # fmt: skip


def knobs_told(row: pd.Series, knobs: Sequence[str], rows: pd.DataFrame) -> list[str]:
    """`knob_texts` with their names, as "pull period 30"."""
    texts = knob_texts(row, knobs, rows)
    return [f"{KNOBS[name]} {text}" for name, text in zip(knobs, texts, strict=True)]


def machine_told(row: pd.Series, rows: pd.DataFrame) -> list[str]:
    """Where a row was measured: its processor and its learner's GPU, each where `rows` differ in
    it and the row has one."""
    return [str(row[name]) for name in MACHINE
            if name in rows and rows[name].nunique() > 1 and row[name]]  # fmt: skip


def _text(value: Any) -> str:
    if pd.isna(value) or value == "":
        return "none"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _own_options(options: str, every: pd.Series) -> str:
    """Those entries that some of `every` have not; the batch has a column of its own."""
    others = [_entries(text) for text in every.unique()]
    return ", ".join(f"{name} {value}" for name, value in _entries(options).items()
                     if name != "batch_size"
                     and not all((name, value) in other.items() for other in others))  # fmt: skip


def _entries(options: str) -> dict[str, Any]:
    loaded = json.loads(options)
    return loaded if isinstance(loaded, dict) else {}
