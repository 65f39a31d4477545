"""The artefacts of post-training quantization by file name: what `report.site` writes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from quarl_nb.report.artefacts import Drawing, Table, joined
from quarl_nb.report.losses import paired_losses
from quarl_nb.report.ptq import figures, tables
from quarl_nb.report.ptq.heatmap import loss_heatmap
from quarl_nb.report.ptq.weights import weight_distributions

EPISODES = ("ptq", "ptq_public")
STUDIES = (*EPISODES, "weights", "weights_public")
TABLES = ("table4_ptq", "ptq_losses", "ptq_summary", "sweet_spots")
FIGURES = ("sweet_spot", "ptq_loss", "ptq_heatmap", "ranges_rescue", "weight_distributions")


def tables_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """Tables by name, those without records left out.

    Args:
        frames: the records of every one of `STUDIES`.
    """
    flown = joined(frames, EPISODES)
    if flown.empty:
        return {}
    rows, losses = tables.ptq_rows(flown), paired_losses(flown)
    made = {
        "table4_ptq": Table(
            flown, rows, tables.ptq_table(rows),
            "Post-training quantization (Table 4), mean return with 95 % interval; published int8 "
            "beside 8-bit affine weights."),
        "ptq_losses": Table(
            flown, losses, tables.loss_table(losses),
            "Relative loss of mean return against fp32 over the same episodes, with 95 % "
            "intervals; min-max ranges, simulated."),
        "ptq_summary": Table(
            flown, *tables.summary_tables(flown, np.random.default_rng(0)),
            "Interquartile mean (IQM) of returns over fp32's and probability of a better episode "
            "than in fp32, over the policies of an algorithm, with 95 % intervals."),
        "sweet_spots": Table(
            flown, *tables.sweet_spot_tables(flown),
            "The width whose gain over fp32 is surest (where none is certain, that of the largest "
            "lower bound, often a copy of fp32), and the one that gains most, sure or not; bounds "
            "and p-values corrected for all widths, sweet spots for all policies too."),
    }  # fmt: skip
    return {name: table for name, table in made.items() if len(table.shown)}


def drawings_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, Drawing]:
    """Figures by name; some have nothing to draw and say so when they are asked to.

    Args:
        frames: the records of every one of `STUDIES`, and `histograms`: `weights.weights_frame`.
    """
    flown, every = joined(frames, EPISODES), joined(frames, STUDIES)
    return {
        "sweet_spot": Drawing(flown, lambda: figures.sweet_spot(flown)),
        "ptq_loss": Drawing(flown, lambda: figures.ptq_loss(flown)),
        "ptq_heatmap": Drawing(flown, lambda: loss_heatmap(flown)),
        "ranges_rescue": Drawing(flown, lambda: figures.ranges_rescue(flown)),
        "weight_distributions": Drawing(
            every, lambda: weight_distributions(frames["histograms"])),
    }  # fmt: skip
