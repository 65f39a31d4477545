"""Carbon's tables: what quantized actors emit and save beside what was published, and by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from quarl_nb.report.actorq.actors import ACTORS, BASELINES, actor_label
from quarl_nb.report.actorq.knobs import HEADINGS, knob_texts, setting_told, varied
from quarl_nb.report.actorq.runs import SETTING
from quarl_nb.report.actorq.tables import NEVER, interval_text
from quarl_nb.report.carbon.costs import ALL, PARTS, SUSPENDED, Per
from quarl_nb.report.paper import published
from quarl_nb.report.stats import with_ends
from quarl_nb.report.texts import counted

METHODS = {
    "rapl": "the processor's own energy counter, by the run's part of the CPU time",
    "pmic": "the board's power chip, by the run's part of the CPU time",
    "tdp_x_cpu_time": "an estimate, not a reading: CPU-seconds times assumed watts",
    "nvml": "the GPU's own energy counter",
}
OVER = {"torch": "over torch fp32", "ort": "over ORT fp32"}

GRAMS = "g CO2e, estimated"  # the grid is assumed, and the watts where no counter is


def published_ratios() -> tuple[float, float, float]:
    """The smallest, the typical and the largest published ratio, fp32 over int8 (002 and 000)."""
    exact = published("carbon").drop_duplicates("quantity").set_index("quantity")["value"]
    return exact["smallest_ratio"], exact["typical_ratio"], exact["largest_ratio"]


def carbon_table(rows: pd.DataFrame, per: Per) -> pd.DataFrame:
    """g CO2e of every kind of actor and the ratio of fp32 to it, a row a task (and setting); the
    published ratios stand in the first.

    Args:
        rows: `costs.emissions`.
    """
    if rows.empty:
        return rows
    rows = rows[(rows["part"] == ALL) & (rows["per"] == per)]
    least, typical, most = published_ratios()
    names = [("published, over tasks", *len(varied(rows)) * [""])]
    lines = [{("fp32 / int8", OVER["torch"]): f"{least:g} to {most:g}; {typical:g} overall"}]
    for name, group in by_setting(rows):
        line = {("runs", ""): f"{group['runs'].min():.0f}"}
        for _, row in group.iterrows():
            line[GRAMS, actor_label(row["actor"])] = grams(row["kg"])
            line |= {(f"fp32 / {row['precision']}", over): interval_text(row, f"ratio_{short}")
                     for short, over in OVER.items() if row["precision"] != "fp32"}  # fmt: skip
        names.append(name)
        lines.append(line)
    columns = [*((GRAMS, actor_label(actor)) for actor in ACTORS),
               *((f"fp32 / {name}", over) for name in ("fp16", "int8") for over in OVER.values()),
               ("runs", "")]
    return _table(lines, columns, names, rows)


def sides_table(rows: pd.DataFrame, per: Per) -> pd.DataFrame:
    """Training and acting separately: g CO2e of every part of a run, and the ratio of torch fp32.

    Args:
        rows: `costs.emissions`.
    """
    if rows.empty:
        return rows
    rows = rows[rows["per"] == per]
    sides = ("learner", "actors")
    names, lines = [], []
    for name, group in by_setting(rows):
        for actor, kinds in group.groupby("actor", sort=False):
            line = {(GRAMS, row["part"]): grams(row["kg"]) for _, row in kinds.iterrows()}
            line |= {("torch fp32 / this", row["part"]): interval_text(row, "ratio_torch")
                     for _, row in kinds.iterrows()
                     if row["part"] in sides and actor != BASELINES["torch"]}  # fmt: skip
            names.append((*name, actor_label(str(actor))))
            lines.append(line)
    columns = [*((GRAMS, part) for part in (*PARTS, ALL)),
               *(("torch fp32 / this", part) for part in sides)]
    return _table(lines, columns, names, rows, ("kind of actor",))


def grams(kg: float) -> str:
    """kg CO2e as grams; NaN: the return was not reached."""
    return NEVER if pd.isna(kg) else f"{1e3 * kg:.3g}"


def savings(rows: pd.DataFrame, per: Per) -> str:
    """Where int8 actors save carbon by the interval of the ratio, and where they cost some:
    "against torch fp32 on 2 of 5 settings, and cost more on 1, ...".

    Args:
        rows: `costs.emissions`.
    """
    if rows.empty:
        return "not measured"
    kept = rows[(rows["part"] == ALL) & (rows["per"] == per) & (rows["precision"] == "int8")]
    told = []
    for short, over in OVER.items():
        ratios = kept.reindex(columns=with_ends(f"ratio_{short}")).dropna(how="all")
        if len(ratios):  # not every setting has both baselines
            _, low, high = (ratios[name] for name in ratios)
            told.append(f"{over.replace('over', 'against')} on {(low > 1).sum()} of {len(ratios)} "
                        f"settings, and cost more on {(high < 1).sum()}")  # fmt: skip
    return ", ".join(told) or "not measured"


def metering(runs: pd.DataFrame) -> list[str]:
    """How the joules of runs were found: a sentence a method, with its watts and its grid; and a
    warning where the machine slept.

    Args:
        runs: `costs.costed_runs`.
    """
    if runs.empty:
        return []
    names = [f"energy.{name}" for name in ("method", "watts_source", "grid_source",
                                           "grid_kg_per_kwh")]  # fmt: skip
    told = [
        f"{counted(len(rows), 'run')} by `{method}`: "
        f"{'; '.join(METHODS[part] for part in method.split('+'))} "
        f"({watts}). Grid: {1e3 * kg:.0f} g CO2e/kWh ({grid})."
        for (method, watts, grid, kg), rows in runs.groupby(names)
    ]
    slept = int((runs[SUSPENDED] > 0).sum()) if SUSPENDED in runs else 0
    if slept:
        told.append(f"**The machine slept during {slept} of them: distrust their joules.**")
    return told


def by_setting(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """The task and the varied knobs of every setting, in words, and its rows."""
    knobs = varied(rows)
    for _, group in rows.groupby(SETTING, sort=False, dropna=False):
        first = group.iloc[0]
        yield (str(first["task"]), *knob_texts(first, knobs, rows)), group


def labelled(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """A short label of every setting, and its rows: the task; where it was run at several, what
    tells them apart."""
    for (task, *_), group in by_setting(rows):
        yield ", ".join([task, *setting_told(group.iloc[0], rows)]), group


def _table(
    lines: list[dict[tuple[str, str], str]], columns: Sequence[tuple[str, str]],
    names: list[tuple[str, ...]], rows: pd.DataFrame, extra: tuple[str, ...] = (),
) -> pd.DataFrame:
    """Lines under their names, without columns that are empty throughout."""
    labels = ["task", *(HEADINGS[knob] for knob in varied(rows)), *extra]
    index = pd.MultiIndex.from_tuples(names, names=labels) if len(labels) > 1 \
        else pd.Index([name for (name,) in names], name=labels[0])
    shown = pd.DataFrame.from_records(lines, index=index)
    shown = shown.reindex(columns=pd.MultiIndex.from_tuples(columns))
    return shown.dropna(axis="columns", how="all").fillna("")
