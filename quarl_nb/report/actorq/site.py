"""The artefacts of ActorQ and of what its actors do, by file name: what `site` writes."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from quarl_nb.report.actorq import (
    curve_figures,
    inference,
    loading,
    scaling,
    staleness_figure,
    tables,
    time_figures,
)
from quarl_nb.report.actorq.inference_figure import latency_figure
from quarl_nb.report.actorq.parts import by_actor, communication_speedups, step_parts
from quarl_nb.report.actorq.predictions import predicted_speedups
from quarl_nb.report.actorq.runs import ANYWHERE, speedups
from quarl_nb.report.actorq.table2 import table2, table2_rows
from quarl_nb.report.actorq.table3 import step_readings
from quarl_nb.report.actorq.variants import variant_figure, variant_rows, variant_table
from quarl_nb.report.artefacts import Drawing, Table

STUDIES = ("actorq", "actorq_staleness", "actorq_runtime", "actorq_scaling", "actorq_variants",
           "inference", "loading")  # fmt: skip
TABLES = ("table2_actorq", "table3_actorq", "actorq_predicted", "actorq_runtime",
          "actorq_communication", "actorq_scaling", "actorq_variants", "inference_latency",
          "loading")  # fmt: skip
FIGURES = ("figure1_actorq", "figure2_actorq", "figure3_actorq", "figure4_actorq",
           "actorq_variants_figure", "actorq_speedup_map", "actorq_scaling_figure",
           "inference_latency_figure")  # fmt: skip
# What the columns of `tables.prediction_table` are.
_ACCOUNT = (
    "of an actor alone, as the parts of these same runs account for, and measured (95 %); error: "
    "how far a run and the fp32 one of its seed lie from what the parts of the other seeds' runs "
    "predict, on average; load: the learner's seconds per step over those of the fp32 actors."
)


def tables_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """Tables by name, those without records left out.

    Args:
        frames: the records of every one of `STUDIES`.
    """
    speed, runtime, latency = (frames[name] for name in ("actorq", "actorq_runtime", "inference"))
    found, parts = speedups(speed), step_parts(speed)
    timed = step_parts(runtime)
    both = pd.concat([speed, runtime], ignore_index=True)
    reached = table2_rows(found, speedups(speed, setting=ANYWHERE))
    pairs = predicted_speedups(step_parts(both))
    readings = step_readings(found, parts)
    sent = communication_speedups(timed)
    scaled = scaling.scaling_rows(frames["actorq_scaling"])
    variants = variant_rows(frames["actorq_variants"])
    latencies, loads = inference.latency_rows(latency), loading.loading_rows(frames["loading"])
    made = {
        "table2_actorq": Table(
            speed, reached, table2(reached), "Time to 95 % reward and speed-up (Table 2), "
            "published beside measured, with 95 % intervals over runs; times are of one machine, "
            "losses of runs on any."),
        "table3_actorq": Table(
            speed, readings, tables.table3(readings), "Steps trained (Table 3), read as actor "
            "steps or as learner updates, beside the time of a step."),
        "actorq_predicted": Table(
            both, pairs, tables.prediction_table(pairs),
            f"Steps per second over those of fp32 actors: {_ACCOUNT}"),
        "actorq_runtime": Table(
            runtime, by_actor(timed), tables.runtime_table(timed),
            "Where the time of an environment step goes (Figure 4c, 4d): milliseconds of an actor "
            "by activity and of the learner, means over runs."),
        "actorq_communication": Table(
            runtime, sent, tables.communication_table(sent),
            "Precision of weights on the wire against that of inference (Figure 4a, 4b): steps "
            "per second of an actor, over those with weights sent in fp32 (95 %), all of its step "
            "as measured (verdicts take inference and environment at each kind of actor's mean)."),
        "actorq_scaling": Table(
            frames["actorq_scaling"], scaled, tables.prediction_table(scaled),
            "Steps per second of int8 over fp32 actors, by width, actors, environments and samples "
            f"per insert: {_ACCOUNT}"),
        "actorq_variants": Table(
            frames["actorq_variants"], variants, variant_table(variants),
            "What is quantized and how: final return and mean return over the run, losses against "
            "full precision over runs of the same seed (95 %)."),
        "inference_latency": Table(
            latency, latencies, inference.latency_table(latencies),
            "Time of one inference on one core, 95 % intervals over blocks within one process; "
            "floor: reading as many bytes as the weights have, again and again, by a plain sum, at "
            "the best speed measured."),
        "loading": Table(
            frames["loading"], loads, loading.loading_table(loads),
            "Time to load a policy that was pulled, by what it is loaded with, 95 % intervals over "
            "repeats within one process."),
    }  # fmt: skip
    return {name: table for name, table in made.items() if len(table.records) and len(table.tidy)}


def drawings_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Drawing]:
    """Figures by name; some have nothing to draw and say so when they are asked to.

    Args:
        frames: the records of every one of `STUDIES`.
    """
    speed, stale, runtime, scaled, variants, latency = (frames[name] for name in (
        "actorq", "actorq_staleness", "actorq_runtime", "actorq_scaling", "actorq_variants",
        "inference"))  # fmt: skip
    trained = pd.concat([speed, runtime, scaled], ignore_index=True)
    return {
        "figure1_actorq": Drawing(speed, lambda: curve_figures.convergence(speed, "time")),
        "figure2_actorq": Drawing(speed, lambda: curve_figures.convergence(speed, "steps")),
        "figure3_actorq": Drawing(stale, lambda: staleness_figure.staleness(stale)),
        "figure4_actorq": Drawing(runtime, lambda: time_figures.runtime_breakdown(runtime)),
        "actorq_variants_figure": Drawing(
            variants, lambda: variant_figure(variants)),
        "actorq_speedup_map": Drawing(trained, lambda: time_figures.speedup_map(trained)),
        "actorq_scaling_figure": Drawing(scaled, lambda: scaling.scaling_figure(scaled)),
        "inference_latency_figure": Drawing(latency, lambda: latency_figure(latency)),
    }
