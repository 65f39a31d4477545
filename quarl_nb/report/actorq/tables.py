"""ActorQ's tables: Table 3 read in two ways, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.actors import actor_label
from quarl_nb.report.actorq.knobs import HEADINGS, KNOBS, knob_texts, varied
from quarl_nb.report.actorq.parts import ACTOR_PARTS, by_actor
from quarl_nb.report.stats import Interval, with_ends

NEVER, UNMEASURED = "not reached", "not measured"


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
    """`predictions.predicted_speedups` for reading."""
    if pairs.empty:
        return pairs
    return pd.DataFrame({
        "task": pairs["task"],
        **_differences(pairs),
        "actor": pairs["actor"].map(actor_label), "over": pairs["baseline"].map(actor_label),
        "actor alone": pairs["gain"].map("{:.2f}".format),
        "load of the learner": pairs["load"].map("{:.2f}".format),
        "accounted for by parts": pairs["accounted"].map("{:.2f}".format),
        "measured": [interval_text(row, "measured") for _, row in pairs.iterrows()],
        "error, predicted from other runs": _numbers(pairs["error"], ".0%"),
        "runs": pairs["runs"],
    })  # fmt: skip


def _differences(rows: pd.DataFrame, shown: Sequence[str] = ()) -> dict[str, list[str]]:
    """Columns of what the rows were set to where they differ in it, without those `shown`."""
    return {HEADINGS[name]: [text for _, row in rows.iterrows()
                          for text in knob_texts(row, [name], rows)]
            for name in varied(rows) if name not in shown}  # fmt: skip


def _numbers(
    values: Sequence[float] | pd.Series, form: str, missing: str | Sequence[str] = ""
) -> list[str]:
    texts = len(values) * [missing] if isinstance(missing, str) else missing
    return [text if pd.isna(value) else f"{value:{form}}"
            for value, text in zip(values, texts, strict=True)]


def interval_text(row: pd.Series, name: str, infinity: str = "\u221e") -> str:
    """A ratio with its interval, of the columns `name`, `name`_low and `name`_high; empty where it
    is missing, and 0 is never reached."""
    found = Interval(*(row.get(column, np.nan) for column in with_ends(name)))
    if pd.isna(found.value):
        return ""
    return NEVER if found.value == 0 else found.text(".2f").replace("inf", infinity)
