"""What is written from the records as Markdown: the README's scoreboard, and Table 4."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten

import pandas as pd

from quarl_nb.errors import QuarlError
from quarl_nb.report.ptq.tables import row_names
from quarl_nb.report.stats import Interval
from quarl_nb.report.texts import percent, percent_interval, return_text
from quarl_nb.writing import write_atomically

START = "<!-- results: written by `quarl-nb reproduce` from the full records -->"
END = "<!-- end of results -->"
DECIDED = ("reproduced", "not reproduced")
VERDICTS = (*DECIDED, "inconclusive", "not measured")
MEASURED_CHARACTERS = 220
COUNTED = ("The counts are of sentences, not of independent measurements: one measurement may "
           "decide several sentences.")  # fmt: skip


def scoreboard(found: pd.DataFrame) -> str:
    """Markdown for the README: how many claims hold, and those that are decided, in short.

    Args:
        found: `claims.verdicts`.
    """
    counts = found["verdict"].value_counts()
    lines = ["| verdict | claims |", "|---|---:|"]
    lines += [f"| {verdict} | {counts.get(verdict, 0)} |" for verdict in VERDICTS]
    lines += ["", COUNTED, "", "| claim | source | verdict | measured |", "|---|---|---|---|"]
    for verdict in DECIDED:
        for _, row in found[found["verdict"] == verdict].iterrows():
            measured = shorten(str(row["measured"]), MEASURED_CHARACTERS, placeholder=" ...")
            cells = [f"“{row['sentence']}”", row["source"], f"**{verdict}**", measured]
            lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
    return "\n".join(lines) + "\n"


def table4(rows: pd.DataFrame) -> str:
    """A page of Table 4's measured part: published fp32 and int8 beside 8-bit affine weights here.

    Args:
        rows: `ptq.tables.ptq_rows`.
    """
    lines = ["# Table 4: published beside measured", "",
             "Simulated returns of one policy each; [how to read them](../../docs/method.md). fp16 "
             "stands in [notebook 01](../../notebooks/rendered/01_ptq_tables.ipynb). Walker2D and "
             "HalfCheetah are other environments than the paper's: compare their losses alone.", "",
             "| policy | fp32 published | measured [95 %] | int8 published "
             "| 8-bit measured [95 %] | loss published | loss measured [95 %] | verdict |",
             "|---|---:|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    measured = rows[rows["episodes"].notna()]
    measured = measured.assign(environment=row_names(measured))
    for (environment, algo), group in measured.groupby(["environment", "algo"], sort=False):
        at = group.set_index("precision")
        if not {"fp32", "int8"} <= set(at.index):
            continue
        full, eight = at.loc["fp32"], at.loc["int8"]
        earned = [return_text(Interval.of(side, "mean")) for side in (full, eight)]
        cells = [f"{str(algo).upper()} {environment}", f"{full['published']:g}", earned[0],
                 f"{eight['published']:g}", earned[1], percent(eight["published_loss"]),
                 percent_interval(Interval.of(eight, "loss")), str(eight["verdict"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_scoreboard(readme: Path, text: str) -> None:
    """Put the scoreboard between its two marks in the README.

    Raises:
        QuarlError: the marks are not there.
    """
    page = readme.read_text(encoding="utf-8")
    start, end = page.find(START), page.find(END)
    if not 0 <= start < end:
        raise QuarlError(f"'{readme.name}' lacks the marks of the scoreboard")
    write_atomically(readme, f"{page[: start + len(START)]}\n{text}{page[end:]}".encode())
