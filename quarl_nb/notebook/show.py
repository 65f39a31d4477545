"""How results are shown: verdicts, figures, tables, and where they come from."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import matplotlib as mpl
import pandas as pd
from IPython.display import HTML, Image, Markdown, display
from matplotlib.figure import Figure

from quarl_nb.report.claims import Claim, named_source
from quarl_nb.report.style import STYLE, NothingToDrawError
from quarl_nb.report.texts import counted

PIXELS_PER_IN = 125  # of a figure on the page; the picture itself has STYLE's savefig.dpi
LONG_TEXT = 40  # characters of a table cell that may be broken into lines
SHOWN_PACKAGES = ("torch", "numpy", "stable-baselines3", "gymnasium", "ale-py", "mujoco")
COUNTED = {"policy": "policies", "task": "tasks", "network": "networks"}  # column -> its words


def quote_claims(claims: Iterable[Claim]) -> Markdown:
    """What was published, word for word, and where; a sentence that several claims quote once."""
    of_sentence: dict[str, list[Claim]] = {}
    for claim in claims:
        of_sentence.setdefault(claim.sentence, []).append(claim)
    lines = []
    for sentence, group in of_sentence.items():
        places = dict.fromkeys(named_source(claim.source) for claim in group)
        also = dict.fromkeys(named_source(other) for claim in group for other in claim.also)
        where = "; ".join(places)
        if also:
            where += f". Also, in these words or others: {'; '.join(also)}"
        lines.append(f"> “{sentence}”\n>\n> — {where}")
    return Markdown("\n\n".join(lines))


def tell_verdicts(found: pd.DataFrame) -> Markdown:
    """Each claim with its verdict, what was measured and what decided it.

    Args:
        found: `report.claims.verdicts`.
    """
    lines = []
    for _, row in found.iterrows():
        measured = f" {row['measured']} ({row['profile']} profile)." if row["measured"] else ""
        lines.append(f"- **{row['verdict']}**: “{row['sentence']}” ({named_source(row['source'])})."
                     f"{measured} *Holds if:* {row['decision']}.")
    return Markdown("\n".join(lines))


def count_runs(runs: pd.DataFrame) -> str:
    """ "12 runs of 1 task", or "nothing yet"."""
    if runs.empty:
        return "nothing yet"
    counts = {"run": len(runs), "task": runs["task"].nunique()}
    return " of ".join(counted(n, noun) for noun, n in counts.items())


def show_figure(
    draw: Callable[..., tuple[Figure, pd.DataFrame]], *args: Any, caption: str
) -> pd.DataFrame:
    """Draw, display with its caption, and return the plotted points (none: it says why)."""
    try:
        figure, points = draw(*args)
    except NothingToDrawError as reason:
        display(Markdown(f"*Nothing to draw: {reason}.*"))
        return pd.DataFrame()
    show_picture(figure, caption)
    return points


def show_picture(figure: Figure, caption: str) -> None:
    """Display a figure as it would be printed, sharp on any screen, and its caption."""
    picture = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(picture, format="png", metadata={"Software": None})
    width = round(figure.get_figwidth() * PIXELS_PER_IN)
    display(Image(picture.getvalue(), width=width, alt=caption))
    plain = caption.replace("*", r"\*")  # the paper's 8* is no emphasis
    display(Markdown(f"*{plain}*"))


def show_table(table: pd.DataFrame, index: bool = True, empty: str = "not measured") -> HTML:
    """A table with nothing cut off; only long texts may wrap, and stand on the left.

    Args:
        index: show the row labels.
        empty: what stands in place of a table without rows.
    """
    if table.empty:
        return HTML(f"<p><em>{empty}</em></p>")
    styler = table.map(_unbroken).rename(index=_unbroken).style.format(escape="html", precision=3)
    styler.set_uuid(f"{zlib.crc32(table.to_csv().encode()):08x}")  # the same table, the same bytes
    texts = {"text-align": "left", "min-width": "16em"}
    long = [name for name in table.columns if table[name].map(str).str.len().max() > LONG_TEXT]
    styler.set_properties(**texts, subset=long)
    return HTML((styler if index else styler.hide()).to_html())


def provenance_table(frames: Mapping[str, pd.DataFrame]) -> HTML:
    """A column a study: how many records, of which code, versions, machines and dates."""
    columns = {name: _provenance(frame) for name, frame in frames.items() if len(frame)}
    table = pd.DataFrame(columns).rename_axis("recorded").fillna("")
    return show_table(table, empty="nothing is recorded")


def _unbroken(cell: Any) -> Any:
    """Short texts keep to one line by no-break spaces, which every viewer honours."""
    short = isinstance(cell, str) and len(cell) <= LONG_TEXT
    return cell.replace(" ", "\u00a0") if short else cell


def _provenance(rows: pd.DataFrame) -> dict[str, str]:
    def distinct(name: str, missing: str = "not recorded") -> str:
        values = rows[name].dropna() if name in rows else pd.Series(dtype=object)
        return ", ".join(sorted({str(value) for value in values})) or missing

    packages = rows.get("provenance.packages", pd.Series(dtype=object)).dropna()
    used = {f"{name} {p[name]}" for p in packages for name in SHOWN_PACKAGES if name in p}
    times = rows.get("provenance.start_time", pd.Series(dtype=object)).dropna()
    started = sorted(time[:16].replace("T", " ") for time in times)
    commits = rows.get("provenance.git_commit", pd.Series(dtype=object)).dropna()
    changed = rows.get("provenance.dirty", pd.Series(dtype=object)).eq(True).sum()
    return {
        "records": f"{len(rows)}",
        "profile": distinct("profile"),
        **{words: f"{rows[name].nunique()}" for name, words in COUNTED.items() if name in rows},
        "backend, source": f"{distinct('backend')}, {distinct('source')}",
        "measured (UTC)": f"{started[0]} to {started[-1]}" if started else "not recorded",
        "time of all cells": f"{rows['wall_s'].sum() / 60:.1f} min",
        "code": ", ".join(sorted({commit[:12] for commit in commits})) or "not recorded",
        "of uncommitted code": f"{changed}",
        "packages": ", ".join(sorted(used)) or "not recorded",
        "Python": distinct("provenance.python"),
        "processor": distinct("provenance.cpu"),
        "GPU": distinct("provenance.gpu", "none"),
        "cores": distinct("provenance.cores"),
        "system": distinct("provenance.os"),
    }
