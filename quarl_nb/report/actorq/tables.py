"""ActorQ's tables: Tables 2 and 3 published beside measured, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.actors import ACTORS, actor_label
from quarl_nb.report.actorq.knobs import KNOBS, knob_texts, varied
from quarl_nb.report.actorq.parts import ACTOR_PARTS, by_actor
from quarl_nb.report.actorq.runs import ANYWHERE, MACHINE
from quarl_nb.report.losses import percent_interval
from quarl_nb.report.paper import published
from quarl_nb.report.pvalues import least_p
from quarl_nb.report.stats import ALPHA, Interval

NEVER, UNMEASURED, UNLEARNED = "not reached", "not measured", "nothing learned"
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
    times = ["runs", "level", "time_s", *_with_ends("speedup_torch"), *_with_ends("speedup_ort")]
    returns = ["final", *_with_ends("final_loss"), "final_runs", "keys"]
    timed = found.reindex(columns=[*kind, *MACHINE, *times])
    measured = learned.rename(columns={"runs": "final_runs"}).reindex(columns=[*kind, *returns])
    # What `found` has is in `learned`, too: where fp32 ran on one machine, it ran on any.
    measured = measured.merge(timed, on=kind, how="left")
    wanted = ["task", "precision", "actor", *KNOBS, *times, *returns]
    return rows.merge(measured[wanted], on=["task", "precision"], how="left")


def table2(rows: pd.DataFrame) -> pd.DataFrame:
    """`table2_rows` for reading: a row a task (and setting, if there are several), published beside
    measured. Speed-ups are `value [95 % interval over runs]`; one run has no interval. Losses stand
    in every row of their setting, whichever machine its times are of; runs are those of the times.
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
    shown = shown.reindex(columns=pd.MultiIndex.from_tuples(order)).fillna("")
    names = ["task", *(KNOBS[knob] for knob in knobs)]
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
        unmeasured = {("reward", "95 %, measured"): UNMEASURED}
        return {(task, *len(knobs) * [""]): published_cells | unmeasured}
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
        fewest, most = int(kinds["runs"].min()), int(kinds["runs"].max())
        runs = str(most) if fewest == most else f"{fewest} to {most}"
        lines[name] = line | {("runs", ""): runs}
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
    text = (f"Of {len(quantized)} tasks and kinds of quantized actors, {equal} end at a return "
            f"equivalent to that of fp32 within the margin, and {lost} below it (each tested on "
            "its own, runs of the same training seed paired).")  # fmt: skip
    if few.empty:
        return text
    # Pairs that all agree are as certain as that many can be.
    return (f"{text} For {len(few)} of these the runs are too few for either to show: of "
            f"{few.max()} pairs no p-value is below {least_p(few.max()):.3g}.")  # fmt: skip


def table3(readings: pd.DataFrame) -> pd.DataFrame:
    """`table3.step_readings` for reading. As in Table 2, a level that is not reached is told, and
    what is not measured; by steps the mean curve may miss a level that it reaches in time."""
    measured = readings["total_steps"].notna()
    never = [NEVER if ran else UNMEASURED for ran in measured]
    return pd.DataFrame({
        "task": readings["task"],
        "steps trained, published": readings["published_steps"].map("{:,.0f}".format),
        "if actor steps: ms a step": readings["as_actor_steps_ms"].map("{:.1f}".format),
        "if learner updates: ms a step": readings["as_updates_ms"].map("{:.1f}".format),
        "fp32 torch actor, measured: ms a step": _numbers(
            readings["measured_ms"], ".2f", UNMEASURED),
        "reading that fits": readings["fits"].replace("", UNMEASURED),
        "actor steps to 95 %": _numbers(readings["steps"], ",.0f", never),
        "updates to 95 %": _numbers(readings["updates"], ",.0f", never),
        "actor steps in all": _numbers(readings["total_steps"], ",.0f", UNMEASURED),
        "updates in all": _numbers(readings["total_updates"], ",.0f", UNMEASURED),
    })  # fmt: skip


def runtime_table(parts: pd.DataFrame) -> pd.DataFrame:
    """An actor's milliseconds per environment step by activity (Figure 4c, 4d), and the learner's.

    Args:
        parts: `parts.step_parts`.
    """
    rows = by_actor(parts)
    if rows.empty:
        return rows
    by = ["task", "width", "pull_period", "samples_per_insert"]
    rows = rows.sort_values(by, kind="stable", ignore_index=True)
    ms = {f"{name} (ms)": (1e3 * rows[name]).map("{:.3f}".format) for name in ACTOR_PARTS}
    return pd.DataFrame({
        "task": rows["task"], "width": rows["width"], "pull period": rows["pull_period"],
        "samples per insert": rows["samples_per_insert"].map("{:g}".format),
        **_differences(rows, shown=by),
        "actor": rows["actor"].map(actor_label), "sent as": rows["communication"], **ms,
        "actor in all (ms)": (1e3 * rows["actor_step_s"]).map("{:.3f}".format),
        "learner (ms)": (1e3 * rows["learner_step_s"]).map("{:.3f}".format),
        "predicted step (ms)": (1e3 * rows["predicted_step_s"]).map("{:.3f}".format),
        "measured step (ms)": (1e3 * rows["step_s"]).map("{:.3f}".format),
        "runs": rows["runs"],
    })  # fmt: skip


def age_table(parts: pd.DataFrame) -> pd.DataFrame:
    """How old the policies were that acted, and the recipe that made them so, for reading.

    Args:
        parts: `parts.step_parts`.
    """
    rows = by_actor(parts)
    if rows.empty:
        return rows
    recipe = ["pull_period", "samples_per_insert", "batch_size"]
    pulling_s = rows["pull"] + rows["deserialize"] + rows["load"]
    return pd.DataFrame({
        "task": rows["task"], **{KNOBS[name]: rows[name].map("{:g}".format) for name in recipe},
        "updates a step": rows["updates_per_step"].map("{:.3g}".format),
        **_differences(rows, shown=recipe),
        "age (updates), mean": _numbers(rows["age_mean"], ".1f"),
        "median": _numbers(rows["age_p50"], ".1f"),
        "95th percentile": _numbers(rows["age_p95"], ".1f"),
        "pulling (ms a step)": (1e3 * pulling_s).map("{:.3f}".format),
        "payload (MB)": (rows["payload_bytes"] / 1e6).map("{:.3g}".format), "runs": rows["runs"],
    })  # fmt: skip


def communication_table(found: pd.DataFrame) -> pd.DataFrame:
    """`parts.communication_speedups` for reading (Figure 4a, 4b)."""
    if found.empty:
        return found
    return pd.DataFrame({
        "task": found["task"], "pull period": found["pull_period"],
        **_differences(found, shown=["pull_period"]),
        "computed in": found["actor"].map(actor_label), "sent as": found["communication"],
        "steps per second": found["steps_per_s"].map("{:.0f}".format),
        "speed-up over sent as fp32": [
            interval_text(row, "speedup") for _, row in found.iterrows()],
        "payload (kB)": (found["payload_bytes"] / 1e3).map("{:,.0f}".format),
        "times smaller": found["smaller"].map("{:.2f}".format), "runs": found["runs"],
    })  # fmt: skip


def prediction_table(pairs: pd.DataFrame) -> pd.DataFrame:
    """`parts.predicted_speedups` for reading: predicted beside measured."""
    if pairs.empty:
        return pairs
    return pd.DataFrame({
        "task": pairs["task"],
        **_differences(pairs),
        "actor": pairs["actor"].map(actor_label), "over": pairs["baseline"].map(actor_label),
        "actor alone": pairs["gain"].map("{:.2f}".format),
        "load of the learner": pairs["load"].map("{:.2f}".format),
        "predicted": pairs["predicted"].map("{:.2f}".format),
        "measured": [interval_text(row, "measured") for _, row in pairs.iterrows()],
        "runs": pairs["runs"],
    })  # fmt: skip


def _differences(rows: pd.DataFrame, shown: Sequence[str] = ()) -> dict[str, list[str]]:
    """Columns of what the rows were set to where they differ in it, without those `shown`."""
    return {KNOBS[name]: [text for _, row in rows.iterrows()
                          for text in knob_texts(row, [name], rows)]
            for name in varied(rows) if name not in shown}  # fmt: skip


def _with_ends(name: str) -> list[str]:
    return [name, f"{name}_low", f"{name}_high"]


def _number(value: float, missing: str) -> str:
    return missing if pd.isna(value) else f"{value:.4g}"


def _numbers(
    values: Sequence[float] | pd.Series, form: str, missing: str | Sequence[str] = ""
) -> list[str]:
    texts = len(values) * [missing] if isinstance(missing, str) else missing
    return [text if pd.isna(value) else f"{value:{form}}"
            for value, text in zip(values, texts, strict=True)]


def interval_text(row: pd.Series, name: str, infinity: str = "\u221e") -> str:
    """A ratio with its interval, of the columns `name`, `name`_low and `name`_high; empty where it
    is missing, and 0 is never reached."""
    found = Interval(*(row.get(column, np.nan) for column in _with_ends(name)))
    if pd.isna(found.value):
        return ""
    return NEVER if found.value == 0 else found.text(".2f").replace("inf", infinity)
