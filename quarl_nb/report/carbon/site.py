"""The artefacts of carbon by file name: what `site` writes."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from quarl_nb.report.artefacts import Drawing, Table, joined
from quarl_nb.report.carbon import figures
from quarl_nb.report.carbon.costs import ALL, PERS, compared_runs, costed_runs, emissions
from quarl_nb.report.carbon.sensitivity import sensitivity, sensitivity_table
from quarl_nb.report.carbon.studies import study_energy, study_energy_table
from quarl_nb.report.carbon.tables import carbon_table, sides_table

TRAININGS = ("actorq", "actorq_staleness", "qat", "mixed_precision")
STUDIES = (*TRAININGS, "actorq_runtime", "actorq_scaling", "actorq_variants", "loading", "ptq",
           "ptq_public", "weights", "weights_public", "inference", "edge",
           "navigation")  # fmt: skip
TABLES = ("carbon_energy_by_study", "carbon_energy_of_training",
          *(f"carbon_{what}per_{per.replace(' ', '_')}"
            for per in PERS for what in ("", "sides_", "sensitivity_")))  # fmt: skip
FIGURES = ("carbon_ratios", "carbon_by_part")

OF_TRAINING = ["study", "task", "precision", "device"]  # what its energy is told by


def trainings(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The records of `TRAININGS` that trained: in mixed_precision some only time updates."""
    found = {name: frames[name] for name in TRAININGS}
    timed = found["mixed_precision"]
    trained = timed["returns"].notna() if "returns" in timed else [False] * len(timed)
    return found | {"mixed_precision": timed[trained]}


def tables_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """Tables by name, those without records left out.

    Args:
        frames: the records of every one of `STUDIES`.
    """
    runs = _costed(frames["actorq"])
    found, varied = emissions(runs), sensitivity(runs)
    trained = trainings(frames)
    made = {
        "carbon_energy_by_study": _energy({name: frames[name] for name in STUDIES}, ["study"]),
        "carbon_energy_of_training": _energy(trained, OF_TRAINING),
    }
    for per in PERS if len(found) else ():
        name, here = per.replace(" ", "_"), found[found["per"] == per]
        whole, other = here[here["part"] == ALL], varied[varied["per"] == per]
        until = "to 95 % of the best fp32 return" if per == "return" else f"per {per}"
        caption = f"Carbon {until}, published beside measured, with 95 % intervals over runs."
        made |= {
            f"carbon_per_{name}": Table(runs, whole, carbon_table(here, per), caption),
            f"carbon_sides_per_{name}": Table(
                runs, here, sides_table(here, per),
                f"Carbon {until} by part of a run: grams, and torch fp32 over this."),
            f"carbon_sensitivity_per_{name}": Table(
                runs, other, sensitivity_table(other, per),
                f"Carbon {until}, torch fp32 over int8, under other assumptions."),
        }
    return {name: table for name, table in made.items() if len(table.shown)}


def _energy(frames: Mapping[str, pd.DataFrame], by: list[str]) -> Table:
    spent = study_energy(frames)
    caption = f"Energy and carbon of the recorded runs by {', '.join(by)}, as the method estimates."
    return Table(joined(frames, frames), spent, study_energy_table(spent, by), caption)


def drawings_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Drawing]:
    """Figures by name; some have nothing to draw and say so when they are asked to."""
    runs = _costed(frames["actorq"])
    found = emissions(runs)
    return {
        "carbon_ratios": Drawing(runs, lambda: figures.carbon_ratios(found)),
        "carbon_by_part": Drawing(runs, lambda: figures.carbon_by_part(found)),
    }


def _costed(records: pd.DataFrame) -> pd.DataFrame:
    """The records that carbon rests on, whole."""
    runs = compared_runs(costed_runs(records), emissions(records, parts=[ALL]))
    return records[records["key"].isin(runs["key"])] if len(runs) else records[:0]
