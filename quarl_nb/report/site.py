"""Redraw every table and figure of the records, and what the README shows of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from quarl_nb.report import actorq, carbon, edge, mixed_precision, ptq, qat
from quarl_nb.report.artefacts import Drawing, Table, save_table
from quarl_nb.report.claims import family_frame, verdicts
from quarl_nb.report.losses import paired_losses
from quarl_nb.report.ptq.weights import weight_distributions, weights_frame
from quarl_nb.report.readme import results_markdown
from quarl_nb.report.style import NothingToDrawError, save_figure
from quarl_nb.store import PROFILES, ResultStore

RESULTS = "results.md"  # what goes into the README
WEIGHTS_AT = "affine4"
Drawn = tuple[Figure, pd.DataFrame]
Frames = Mapping[str, pd.DataFrame]


def build(store: ResultStore, out: Path, profile: str | None = None) -> list[Path]:
    """Write `out`/<profile>/ with every table, figure and results.md that the records allow.

    Args:
        store: where the records are.
        out: the figures folder.
        profile: one profile, or None for the best that each study has; the folder is then named
            after the best of the PTQ study.

    Returns:
        The files written; none without records.
    """
    records = family_frame(lambda study: store.frame(study, profile), "ptq")
    if records.empty:
        return []
    folder = out / best_profile(records)
    written = _ptq_tables(records, folder)
    written += _draw(_ptq_figures(store, records, profile), records, folder)
    written += _training(store, folder, profile)
    written += _named(store, folder, profile, actorq.site.STUDIES, actorq.site.actorq_tables,
                      actorq.site.actorq_drawings)
    written += _named(store, folder, profile, edge.site.STUDIES, edge.site.edge_tables,
                      edge.site.edge_drawings)
    written += _named(store, folder, profile, carbon.site.STUDIES, carbon.site.carbon_tables,
                      carbon.site.carbon_drawings)
    found = verdicts(lambda study: store.frame(study, profile))
    return written + _claims(found, records, folder)


def _draw(
    figures: Mapping[str, Callable[[], Drawn]], records: pd.DataFrame, folder: Path
) -> list[Path]:
    written = []
    for name, draw in figures.items():
        try:
            fig, points = draw()
        except NothingToDrawError:
            continue
        kept = records[records["policy"].isin(set(points["policy"]))]
        source = provenance(kept, f"quarl_nb.report.site: {name}")
        written += save_figure(fig, points, name, source, folder)
    return written


def best_profile(records: pd.DataFrame) -> str:
    """The best profile among the records: full, else quick, else smoke."""
    return min(set(records["profile"]), key=PROFILES.index)


def provenance(records: pd.DataFrame, made_by: str) -> dict[str, Any]:
    """What an artefact rests on: record keys, and the distinct commits, versions, machines."""
    def distinct(column: str) -> list[str]:
        return sorted(set(records[column].dropna().astype(str))) if column in records else []

    return {
        "made_by": made_by,
        "profiles": distinct("profile"),
        "backends": distinct("backend"),
        "sources": distinct("source"),
        "git_commits": distinct("provenance.git_commit"),
        "dirty": distinct("provenance.dirty"),
        "cpus": distinct("provenance.cpu"),
        "python": distinct("provenance.python"),
        "records": sorted(records["key"]),
    }


def _ptq_tables(records: pd.DataFrame, folder: Path) -> list[Path]:
    if "returns" not in records:  # statistics of weights alone
        return []
    source = provenance(records[records["returns"].notna()], "quarl_nb.report.site: tables")
    written = []
    rows = ptq.tables.ptq_rows(records)
    if rows["episodes"].notna().any():
        caption = ("Post-training quantization (Table 4), mean return with 95 % interval; "
                   "published int8 beside 8-bit affine weights.")
        shown = ptq.tables.ptq_table(rows, measured_only=True)
        written += save_table(rows, shown, "table4_ptq", folder, source, caption)
    losses = paired_losses(records)
    plain = {
        "ptq_losses": (losses, ptq.tables.loss_table(losses)),
        "ptq_summary": ptq.tables.summary_tables(records, np.random.default_rng(0)),
        "sweet_spots": ptq.tables.sweet_spot_tables(records),
    }
    for name, (tidy, shown) in plain.items():
        if len(tidy):
            written += save_table(tidy, shown, name, folder, source)
    return written


def _ptq_figures(
    store: ResultStore, records: pd.DataFrame, profile: str | None
) -> Mapping[str, Callable[[], Drawn]]:
    return {
        "sweet_spot": lambda: ptq.figures.sweet_spot(records),
        "ptq_loss": lambda: ptq.figures.ptq_loss(records),
        "ranges_rescue": lambda: ptq.figures.ranges_rescue(records),
        "weight_distributions": lambda: weight_distributions(
            load_weights(store, paired_losses(records), WEIGHTS_AT, profile)
        ),
    }


def _training(store: ResultStore, folder: Path, profile: str | None) -> list[Path]:
    """What quantization-aware and half-precision training have recorded, likewise."""
    trained = _recorded(store, "qat", profile)
    timed = _recorded(store, "mixed_precision", profile)
    curves = load_curves(store, profile) if len(trained) else pd.DataFrame()
    shown = {
        "qat": (trained, *qat.gains.qat_tables(trained)),
        "qat_exploration": (trained, *qat.exploration.exploration_tables(curves)),
        "mixed_precision": (timed, *mixed_precision.speedup_tables(timed)),
    }
    written = []
    for name, (records, tidy, table) in shown.items():
        if len(tidy):
            source = provenance(records, f"quarl_nb.report.site: {name}")
            written += save_table(tidy, table, name, folder, source)
    drawn = {"figure5_qat": lambda: qat.figures.figure5(trained),
             "qat_exploration_curves": lambda: qat.exploration.exploration_figure(curves)}
    written += _draw(drawn, trained, folder)
    size = {"mixed_precision_speedup": lambda: mixed_precision.speedup_by_size(timed)}
    return written + _draw(size, timed, folder)


def _recorded(store: ResultStore, study: str, profile: str | None) -> pd.DataFrame:
    """The records of a study; those of the smoke profile only where asked for."""
    frame = store.frame(study, profile)
    return frame[frame["profile"] != "smoke"] if profile is None and len(frame) else frame


def _named(
    store: ResultStore, folder: Path, profile: str | None, studies: Sequence[str],
    tables_of: Callable[[Frames], Mapping[str, Table]],
    drawings_of: Callable[[Frames], Mapping[str, Drawing]],
) -> list[Path]:
    """What `studies` have recorded, by the names of a report; the smoke profile only where asked
    for."""
    frames = {name: _recorded(store, name, profile) for name in studies}
    written = []
    for name, table in tables_of(frames).items():
        source = provenance(table.records, f"quarl_nb.report.site: {name}")
        written += save_table(table.tidy, table.shown, name, folder, source, table.caption)
    for name, drawing in drawings_of(frames).items():
        try:
            fig, points = drawing.draw()
        except NothingToDrawError:
            continue
        source = provenance(drawing.records, f"quarl_nb.report.site: {name}")
        written += save_figure(fig, points, name, source, folder)
    return written


def load_curves(store: ResultStore, profile: str | None = None) -> pd.DataFrame:
    """`qat.exploration.curves_frame` over the QAT study of the store; empty without records."""
    return qat.exploration.curves_frame(store.chosen("qat", profile), store.arrays)


def load_weights(
    store: ResultStore, losses: pd.DataFrame, precision: str, profile: str | None = None
) -> pd.DataFrame:
    """`ptq.weights.weights_frame` over both weights studies of the store."""
    records = [
        record
        for study in ("weights", "weights_public")
        for record in store.chosen(study, profile)
    ]
    return weights_frame(records, store.arrays, losses, precision)


def _claims(found: pd.DataFrame, records: pd.DataFrame, folder: Path) -> list[Path]:
    source = provenance(records, "quarl_nb.report.site: claims")
    columns = ["id", "verdict", "measured", "sentence", "source", "decision", "study"]
    kept = found.assign(records=[" ".join(keys) for keys in found["keys"]])
    paths = save_table(kept, found[columns], "claims", folder, source)
    results = folder / RESULTS
    results.write_text(results_markdown(found, ptq.tables.ptq_rows(records)), encoding="utf-8")
    return [*paths, results]
