"""The artefacts of quantization-aware training by file name: what `report.site` writes."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from quarl_nb.report.artefacts import Drawing, Table
from quarl_nb.report.qat.exploration import (
    exploration_figure,
    exploration_tables,
    noise_tables,
)
from quarl_nb.report.qat.figures import figure5
from quarl_nb.report.qat.tables import qat_tables

STUDIES = ("qat",)
TABLES = ("qat", "qat_exploration", "qat_against_noise")
FIGURES = ("figure5_qat", "qat_exploration_curves")


def tables_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """Tables by name, those without records left out.

    Args:
        frames: the records of `qat`, and `curves`: `exploration.curves_frame`.
    """
    trained = frames["qat"]
    made = {
        "qat": Table(
            trained, *qat_tables(trained),
            "Mean return over training seeds, with 95 % intervals, by what was trained with; "
            "8*: trained in fp32, then quantized to 8 bits; W8A8: weights and activations."),
        "qat_exploration": Table(
            trained, *exploration_tables(frames["curves"]),
            "Entropy of the policy's actions while it trains (of DQN: of how often each action is "
            "the greedy one over observations; DDPG has none), after the quantization delay: nats "
            "above that of fp32 training, with 95 % intervals over training seeds."),
        "qat_against_noise": Table(
            trained, *noise_tables(frames["curves"]),
            "The same entropy of training in so many bits, in nats above that of training with "
            "Gaussian noise on the weights, as large as their quantization error."),
    }
    return {name: table for name, table in made.items() if len(table.tidy)}


def drawings_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Drawing]:
    """Figures by name; some have nothing to draw and say so when they are asked to.

    Args:
        frames: as `tables_of`.
    """
    trained = frames["qat"]
    return {
        "figure5_qat": Drawing(trained, lambda: figure5(trained)),
        "qat_exploration_curves": Drawing(trained, lambda: exploration_figure(frames["curves"])),
    }
