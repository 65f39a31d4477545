"""Redraw every table and figure of the records, and what the README shows of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from quarl_nb.errors import check_choice
from quarl_nb.report import actorq, carbon, edge, mixed_precision, ptq, qat
from quarl_nb.report.artefacts import Drawing, Table, frame_of, joined, save_table
from quarl_nb.report.claims import verdicts
from quarl_nb.report.losses import paired_losses
from quarl_nb.report.ptq.weights import weights_frame
from quarl_nb.report.readme import claims_page, scoreboard, table4
from quarl_nb.report.style import FORMATS, NothingToDrawError, save_figure
from quarl_nb.report.texts import without_tex
from quarl_nb.store import ResultStore
from quarl_nb.writing import write_atomically

SCOREBOARD = "scoreboard.md"  # what the README shows
WEIGHTS_AT = "affine4"
Frames = Mapping[str, pd.DataFrame]


class Report(Protocol):
    """A module `report.*.site`: which studies it reads, and the artefacts by file name."""

    # Constants of a module.
    @property
    def STUDIES(self) -> Sequence[str]: ...  # noqa: N802

    @property
    def TABLES(self) -> Sequence[str]: ...  # noqa: N802

    @property
    def FIGURES(self) -> Sequence[str]: ...  # noqa: N802

    def tables_of(self, frames: Frames) -> Mapping[str, Table]: ...

    def drawings_of(self, frames: Frames) -> Mapping[str, Drawing]: ...


REPORTS: Sequence[Report] = (
    ptq.site, qat.site, mixed_precision.site, actorq.site, edge.site, carbon.site,
)  # fmt: skip
STUDIES = tuple(dict.fromkeys(study for report in REPORTS for study in report.STUDIES))


def build(
    store: ResultStore, out: Path, profile: str, names: Collection[str] = (),
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write `out`/`profile`/ with every table, figure and page that the records allow.

    Args:
        store: where the records are.
        out: the figures folder.
        profile: whose records are read.
        names: the tables and figures to write; all, and the pages, if none is named.
        formats: of figures, see `save_figure`.

    Returns:
        The files written; none without records.

    Raises:
        QuarlError: one of `names` is no table or figure.
        NothingToDrawError: the records hold nothing that one of `names` shows.
    """
    known = [name for report in REPORTS for name in (*report.TABLES, *report.FIGURES)]
    for name in names:
        check_choice("table or figure", name, known)
    frames = load_frames(store, profile)
    if joined(frames, STUDIES).empty:
        return []
    tables: dict[str, Table] = {}
    drawings: dict[str, Drawing] = {}
    for report in REPORTS:
        if not names or {*names} & {*report.TABLES}:
            tables |= report.tables_of(frames)
        if not names or {*names} & {*report.FIGURES}:
            drawings |= report.drawings_of(frames)
    for name in names:
        if name not in tables and name not in drawings:
            raise NothingToDrawError(f"the records hold nothing that table {name!r} shows")
    folder, written = out / profile, []
    for name in names or [*tables, *drawings]:
        try:
            if name in tables:
                written += _save(tables[name], name, folder)
            else:
                written += _draw(drawings[name], name, folder, formats)
        except NothingToDrawError:
            if names:  # it was asked for
                raise
    return written if names else written + _claims(frames, folder)


def _save(table: Table, name: str, folder: Path) -> list[Path]:
    source = provenance(table.records, name)
    return save_table(table.tidy, table.shown, name, folder, source, table.caption)


def _draw(drawing: Drawing, name: str, folder: Path, formats: Sequence[str]) -> list[Path]:
    fig, points = drawing.draw()
    return save_figure(fig, points, name, provenance(drawing.records, name), folder, formats)


def load_frames(store: ResultStore, profile: str) -> dict[str, pd.DataFrame]:
    """What the reports draw: the records of each study by its name, and what their arrays hold as
    `curves`, `learning`, `histograms`.
    """
    frames = {study: frame_of(store, study, profile) for study in STUDIES}
    losses = paired_losses(joined(frames, ptq.site.EPISODES))
    frames["curves"] = load_curves(store, profile)
    frames["learning"] = load_learning(store, profile)
    frames["histograms"] = load_weights(store, losses, WEIGHTS_AT, profile)
    return frames


def load_curves(store: ResultStore, profile: str | None = None) -> pd.DataFrame:
    """`qat.exploration.curves_frame` over the QAT study of the store; empty without records."""
    return qat.exploration.curves_frame(store.chosen("qat", profile), store.arrays)


def load_learning(store: ResultStore, profile: str | None = None) -> pd.DataFrame:
    """`mixed_precision.learning.learning_frame` over its study of the store; empty without any."""
    records = store.chosen("mixed_precision", profile)
    return mixed_precision.learning.learning_frame(records, store.arrays)


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


def provenance(records: pd.DataFrame, name: str) -> dict[str, Any]:
    """What an artefact rests on: record keys, and the distinct commits, versions, machines."""
    def distinct(column: str) -> list[str]:
        return sorted(set(records[column].dropna().astype(str))) if column in records else []

    return {
        "made_by": f"quarl_nb.report.site: {name}",
        "profiles": distinct("profile"),
        "backends": distinct("backend"),
        "sources": distinct("source"),
        "git_commits": distinct("provenance.git_commit"),
        "dirty": distinct("provenance.dirty"),
        "cpus": distinct("provenance.cpu"),
        "gpus": distinct("provenance.gpu"),
        "python": distinct("provenance.python"),
        "records": sorted(records["key"]),
    }


def _claims(frames: Frames, folder: Path) -> list[Path]:
    """The verdicts as a table, a page, and in short as the README shows them; Table 4 as a page."""
    found = verdicts(frames.__getitem__)
    every = joined(frames, STUDIES)
    deciding = every[every["key"].isin(set().union(*found["keys"]))]
    columns = ["id", "verdict", "measured", "sentence", "source", "decision", "study"]
    kept = found.assign(records=[" ".join(keys) for keys in found["keys"]])
    source = provenance(deciding, "claims")
    shown = found[columns].assign(sentence=found["sentence"].map(without_tex))
    paths = save_table(kept, shown, "claims", folder, source,
                       "Every claim of the papers, word for word, with its verdict and how it is "
                       "reached.")  # fmt: skip
    rows = ptq.tables.ptq_rows(joined(frames, ptq.site.EPISODES))
    pages = {SCOREBOARD: scoreboard(found), "claims.md": claims_page(found),
             "table4.md": table4(rows)}  # fmt: skip
    for name, text in pages.items():
        write_atomically(folder / name, text.encode())
        paths.append(folder / name)
    return paths
