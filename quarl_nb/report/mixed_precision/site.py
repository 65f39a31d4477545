"""The artefacts of half-precision training by file name: what `report.site` writes."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from quarl_nb.report.artefacts import Drawing, Table
from quarl_nb.report.mixed_precision.figures import of_dqn, speedup_by_size
from quarl_nb.report.mixed_precision.learning import learning_figure
from quarl_nb.report.mixed_precision.speedups import speedup_tables

STUDIES = ("mixed_precision",)
TABLES = ("mixed_precision",)
FIGURES = ("mixed_precision_speedup", "mixed_precision_learning")


def tables_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """Tables by name, those without records left out."""
    timed = frames["mixed_precision"]
    tidy, shown = speedup_tables(timed)
    caption = (
        "Half-precision training of DQN on Pong (of zoo-ppo: PPO): how many times faster than in "
        "fp32 an update of the learner and a whole training step are; of a short run, its time and "
        "its energy (the method that found it stands beside). 95 % intervals are over updates "
        "within one process."
    )
    return {"mixed_precision": Table(timed, tidy, shown, caption)} if len(tidy) else {}


def drawings_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Drawing]:
    """Figures by name; some have nothing to draw and say so when they are asked to.

    Args:
        frames: the records of `mixed_precision`, and `learning`: `learning.learning_frame`.
    """
    timed, learning = frames["mixed_precision"], frames["learning"]
    trained = timed[timed["key"].isin(set(learning["key"]))] if len(learning) else timed.iloc[:0]
    return {
        "mixed_precision_speedup": Drawing(of_dqn(timed), lambda: speedup_by_size(timed)),
        "mixed_precision_learning": Drawing(trained, lambda: learning_figure(learning)),
    }
