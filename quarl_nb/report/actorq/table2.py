"""Table 2, published beside measured: time to 95 % reward, speed-ups and losses of return."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from quarl_nb.report.actorq.actors import ACTORS, actor_label
from quarl_nb.report.actorq.knobs import HEADINGS, KNOBS, knob_texts, varied
from quarl_nb.report.actorq.runs import ANYWHERE, MACHINE
from quarl_nb.report.actorq.tables import NEVER, UNMEASURED, interval_text
from quarl_nb.report.paper import published
from quarl_nb.report.pvalues import least_p
from quarl_nb.report.stats import ALPHA, Interval, with_ends
from quarl_nb.report.texts import percent_interval, span

UNLEARNED = "nothing learned"
_Line = dict[tuple[str, str], str]  # a row's texts by column and what stands below it


def table2_rows(found: pd.DataFrame, learned: pd.DataFrame) -> pd.DataFrame:
    """Table 2, tidy: a row a published task and precision, and each kind of actor measured at it.

    Args:
        found: `runs.speedups`, for times.
        learned: the same of `ANYWHERE`, for returns.

    Returns:
        task, algo, precision, published_reward, published_s, published_speedup; `KNOBS`, actor,
        runs, level, time_s, speedup_torch and speedup_ort with _low and _high: within one machine,
        empty where no fp32 ran on it; final, final_loss with _low and _high, final_runs, keys: on
        any; all empty where not measured.
    """
    table = published("table2")
    rewards = table[table["quantity"] == "reward"].set_index("task")["value"].astype(float)
    times = table[table["quantity"] == "time_to_reward"]
    rows = times[["task", "algo", "precision", "value"]].rename(columns={"value": "published_s"})
    rows["published_reward"] = rows["task"].map(rewards)
    ratios = table[table["quantity"] == "speedup"].rename(columns={"value": "published_speedup"})
    rows = rows.merge(ratios[["task", "precision", "published_speedup"]], how="left")
    kind = [*ANYWHERE, "precision", "actor"]
    times = ["runs", "level", "time_s", *with_ends("speedup_torch"), *with_ends("speedup_ort")]
    returns = ["final", *with_ends("final_loss"), "final_runs", "keys"]
    timed = found.reindex(columns=[*kind, *MACHINE, *times])
    measured = learned.rename(columns={"runs": "final_runs"}).reindex(columns=[*kind, *returns])
    # What `found` has is in `learned`, too: where fp32 ran on one machine, it ran on any.
    measured = measured.merge(timed, on=kind, how="left")
    wanted = ["task", "precision", "actor", *KNOBS, *times, *returns]
    return rows.merge(measured[wanted], on=["task", "precision"], how="left")


def table2(rows: pd.DataFrame) -> pd.DataFrame:
    """`table2_rows` for reading: a row a task (and setting, if there are several), published beside
    measured, what is not measured told so. Speed-ups are `value [95 % interval over runs]`; one run
    has no interval. Losses stand in every row of their setting, whichever machine its times are of;
    runs are those of the times.
    """
    knobs = varied(rows[rows["keys"].notna()])
    lines: dict[tuple[str, ...], _Line] = {}
    for task, group in rows.groupby("task", sort=False):
        lines |= _task_lines(str(task), group, knobs)
    order = [("reward", "95 %, published"), ("reward", "95 %, measured"),
             *(("time (s), published", name) for name in ("fp32", "fp16", "int8")),
             *(("time (s), measured", actor_label(name)) for name in ACTORS),
             *(("speed-up", f"{name} {what}") for name in ("fp16", "int8")
               for what in ("published", "over torch fp32", "over ORT fp32")),
             *(("loss of final return", name) for name in ("fp16", "int8")), ("runs", "")]
    shown = pd.DataFrame.from_dict({i: line for i, line in enumerate(lines.values())}, "index")
    shown = shown.reindex(columns=pd.MultiIndex.from_tuples(order)).astype(object)
    shown = shown.fillna(UNMEASURED)
    names = ["task", *(HEADINGS[knob] for knob in knobs)]
    shown.index = pd.MultiIndex.from_tuples([*lines], names=names) if knobs \
        else pd.Index([task for task, *_ in lines], name="task")
    return shown


def _task_lines(
    task: str, group: pd.DataFrame, knobs: Sequence[str]
) -> dict[tuple[str, ...], _Line]:
    published_cells: _Line = {}
    for _, row in group.iterrows():
        published_cells |= _published_cells(row)
    measured = group[group["keys"].notna()]
    if measured.empty:
        return {(task, *len(knobs) * [""]): published_cells}
    setting = [knob for knob in knobs if knob not in MACHINE]
    losses: dict[tuple[str, ...], _Line] = {}
    for _, row in measured.iterrows():
        losses.setdefault((*knob_texts(row, setting, measured),), {}).update(_loss_cell(row))
    lines: dict[tuple[str, ...], _Line] = {}
    timed = measured[measured["runs"].notna()]
    at = [(task, *knob_texts(row, knobs, measured)) for _, row in timed.iterrows()]
    for name, kinds in timed.groupby(pd.Index(at, tupleize_cols=False), sort=False):
        line = published_cells | losses[(*knob_texts(kinds.iloc[0], setting, measured),)]
        for _, row in kinds.iterrows():
            line = line | _time_cells(row)
        lines[name] = line | {("runs", ""): span(kinds["runs"])}
    return lines


def _published_cells(row: pd.Series) -> _Line:
    cells = {("reward", "95 %, published"): f"{row['published_reward']:g}",
             ("time (s), published", row["precision"]): f"{row['published_s']:.0f}"}
    if row["precision"] != "fp32":
        cells["speed-up", f"{row['precision']} published"] = f"{row['published_speedup']:.2f}"
    return cells


def _time_cells(row: pd.Series) -> _Line:
    precision = row["precision"]
    cells = {("reward", "95 %, measured"): _number(row["level"], UNLEARNED),
             ("time (s), measured", actor_label(row["actor"])): _number(row["time_s"], NEVER)}
    if precision != "fp32":
        cells["speed-up", f"{precision} over torch fp32"] = interval_text(row, "speedup_torch")
        cells["speed-up", f"{precision} over ORT fp32"] = interval_text(row, "speedup_ort")
    return cells


def _loss_cell(row: pd.Series) -> _Line:
    loss = percent_interval(Interval.of(row, "final_loss"))
    return {("loss of final return", row["precision"]): loss} if row["precision"] != "fp32" else {}


def returns_told(learned: pd.DataFrame) -> str:
    """How many kinds of quantized actors end as fp32 does, how many below it, and of how many the
    runs are too few to tell, in words.

    Args:
        learned: `runs.speedups` of `ANYWHERE`.
    """
    quantized = learned[learned["precision"] != "fp32"] if len(learned) else learned
    if quantized.empty:
        return "No return of quantized actors is measured beside that of fp32."
    equal = (quantized["final_loss_p_equivalent"] <= ALPHA).sum()
    lost = (quantized["final_loss_p_loss"] <= ALPHA).sum()
    pairs = quantized[["runs", "base_runs"]].min(axis=1)
    few = pairs[pairs.map(least_p) > ALPHA]
    text = (f"By task and kind of quantized actors, {equal} of {len(quantized)} end at a return "
            f"equivalent to that of fp32 within the margin, and {lost} below it (each tested on "
            "its own, runs of the same training seed paired).")  # fmt: skip
    if few.empty:
        return text
    # Pairs that all agree are as certain as that many can be.
    return (f"{text} For {len(few)} of these the runs are too few for either to show: of "
            f"{few.max()} pairs no p-value is below {least_p(few.max()):.3g}.")  # fmt: skip


def _number(value: float, missing: str) -> str:
    return missing if pd.isna(value) else f"{value:.4g}"
