"""The artefacts of the Pi study by file name: what `site` writes."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from quarl_nb.report.artefacts import Drawing, Table, joined
from quarl_nb.report.edge import memory_figure, modelled, success, success_figures, tables, timings

TIMED = ("edge", "edge_board")
STUDIES = (*TIMED, "navigation")
TABLES = ("table6_edge", "edge_explanation", "edge_boards", "edge_emulated", "edge_success")
FIGURES = ("figure6_edge", "edge_success_figure", "edge_success_latency")


def tables_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """Tables by name, those without records left out.

    Args:
        frames: the records of every one of `STUDIES`.
    """
    every, timed, flown = joined(frames, STUDIES), joined(frames, TIMED), frames["navigation"]
    latencies, successes = timings.latency_rows(timed), success.success_rows(flown)
    explained, emulated = modelled.explanation_rows(timed), modelled.emulated_rows(timed)
    made = {
        "table6_edge": Table(
            every, latencies, tables.table6(latencies, successes), "One decision, memory and "
            "success (Table 6): published, measured and modelled."),
        "edge_explanation": Table(
            timed, explained, tables.explanation_table(explained),
            "Whether swapping explains the published times: a process modelled against the memory "
            "of a Raspberry Pi 3B, and what by the model would have to be read in a decision."),
        "edge_boards": Table(
            timed, latencies, tables.boards_table(latencies),
            "One decision on every board, measured where results were imported, else modelled."),
        "edge_emulated": Table(
            timed, emulated, tables.emulated_table(emulated),
            "The C program on emulated cores: instructions of a decision, and bytes."),
        "edge_success": Table(
            flown, successes, tables.success_table(successes),
            "Success of navigation in simulated precision and its fall against fp32, in points, "
            "with 95 % intervals."),
    }  # fmt: skip
    return {name: table for name, table in made.items() if len(table.tidy) and len(table.shown)}


def drawings_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Drawing]:
    """Figures by name; some have nothing to draw and say so when they are asked to.

    Args:
        frames: the records of every one of `STUDIES`.
    """
    every, timed, flown = joined(frames, STUDIES), joined(frames, TIMED), frames["navigation"]
    return {
        "figure6_edge": Drawing(timed, lambda: memory_figure.memory_bars(timed)),
        "edge_success_figure": Drawing(flown, lambda: success_figures.success_figure(flown)),
        "edge_success_latency": Drawing(
            every, lambda: success_figures.success_against_latency(every)),
    }  # fmt: skip
