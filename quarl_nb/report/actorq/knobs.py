"""What runs were set to: whether as in the paper, in words, and in the columns they differ in."""

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
HEADINGS = {"setting": "setting", **KNOBS}  # the first stands for several, see `varied`
PAPERS_SETTING = "the paper's setting"  # as figures name it
# Those that every task has its own of: shown where runs of one task differ, not where tasks do.
OF_A_TASK = ("budget.steps", "budget.evaluations", "budget.episodes", "batch_size", "options",
             "budget.autocast")


def setting_label(rows: pd.DataFrame) -> str:
    """What runs were set to, in words: "1 actor x 1 env, 256 or 2048 wide, pull 1000, 1 sample an
    insert, batches of 128, learner on cpu"."""
    numbers = ["n_actors", "envs_per_actor", "width", "pull_period", "samples_per_insert",
               "batch_size"]  # fmt: skip
    each = {name: sorted(rows[name].unique()) for name in numbers}
    text = {name: " or ".join(f"{value:g}" for value in values) for name, values in each.items()}
    actors, samples = ("" if each[name] == [1] else "s"
                       for name in ("n_actors", "samples_per_insert"))  # fmt: skip
    devices = " or ".join(sorted({
        (device or "cpu") + (f" in {autocast}" if autocast else "")
        for device, autocast in zip(rows["budget.device"], rows["budget.autocast"].fillna(""),
                                    strict=True)}))  # fmt: skip
    return (f"{text['n_actors']} actor{actors} x {text['envs_per_actor']} env, "
            f"{text['width']} wide, pull {text['pull_period']}, "
            f"{text['samples_per_insert']} sample{samples} an insert, "
            f"batches of {text['batch_size']}, learner on {devices}")


def papers_setting(rows: pd.DataFrame) -> pd.Series:
    """Which rows are in the paper's setting: learner on a GPU, 4 actors with one environment each,
    policies of 3 x 2048, 16 samples per insert, in full precision (section 3), and batches of 256
    (Acme's, which the paper builds on; it names no size)."""
    return ((rows["n_actors"] == 4) & (rows["envs_per_actor"] == 1) & (rows["width"] == 2048)
            & (rows["samples_per_insert"] == 16) & (rows["batch_size"] == 256)
            & ~rows["budget.device"].isin(["cpu", ""])
            & rows["budget.autocast"].fillna("").eq(""))


def _is_papers(row: pd.Series) -> bool:
    return bool(papers_setting(row.to_frame().T).item())


def varied(rows: pd.DataFrame) -> list[str]:
    """Those of `KNOBS` that take several values; of `OF_A_TASK`, within a task.

    Where rows in the paper's setting differ from others in several, "setting" stands for these,
    beside the machine and what rows on either side differ in among themselves.

    Args:
        rows: measured, with the task and the `SETTING` of each.
    """
    names, own = _varied(rows), papers_setting(rows)
    if own.nunique() < 2 or len({*names} - {*MACHINE}) < 2:
        return names
    among = {*_varied(rows[own]), *_varied(rows[~own]), *MACHINE}
    return ["setting", *(name for name in names if name in among)]


def _varied(rows: pd.DataFrame) -> list[str]:
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

    def text(name: str) -> str:
        if name == "setting":
            return "the paper's" if _is_papers(row) else "another"
        if name == "options":
            return _text(_own_options(row["options"], same["options"].dropna()))
        return _text(row[name])

    return [text(name) for name in knobs]


def knobs_told(row: pd.Series, knobs: Sequence[str], rows: pd.DataFrame) -> list[str]:
    """`knob_texts` with their names, as "pull period 30"."""
    texts = knob_texts(row, knobs, rows)
    return [f"{HEADINGS[name]} {text}" for name, text in zip(knobs, texts, strict=True)]


def setting_told(
    row: pd.Series, rows: pd.DataFrame, but: Sequence[str] = (), always: Sequence[str] = ()
) -> list[str]:
    """What tells a row's setting from others of its task, in words that a figure has room for.

    Where they differ from the paper's in several knobs, that has its name, and of the others is
    told what they differ in among themselves.

    Args:
        row: one of `rows`, or like one of them.
        but: knobs that are left out.
        always: knobs that are told in any case, unless the name says them.
    """
    same = rows[rows["task"] == row["task"]]
    several, is_own = "setting" in varied(same), _is_papers(row)
    alike = same[papers_setting(same) == is_own] if several else same
    named = several and is_own
    told = {*_varied(alike), *(() if named else always)} - {*but}
    names = [name for name in KNOBS if name in told]
    return [PAPERS_SETTING] * named + knobs_told(row, names, alike)


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
