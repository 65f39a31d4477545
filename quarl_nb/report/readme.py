"""What is written from the records as Markdown: the README's scoreboard, claims and Table 4."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from textwrap import shorten

import pandas as pd

from quarl_nb.errors import QuarlError
from quarl_nb.report.claims import named_source
from quarl_nb.report.ptq.tables import row_names
from quarl_nb.report.stats import Interval
from quarl_nb.report.texts import percent, percent_interval, return_text, without_tex
from quarl_nb.writing import write_atomically

START = "<!-- results: written by `quarl-nb reproduce` from the full records -->"
END = "<!-- end of results -->"
VERDICTS = ("reproduced", "not reproduced", "inconclusive", "not measured")
MEASURED_CHARACTERS = 220
COUNTED = ("The counts are of sentences, not of independent measurements: one measurement may "
           "decide several sentences.")  # fmt: skip
ABBREVIATIONS = ("PTQ is post-training quantization, QAT quantization-aware training, ORT ONNX "
                 "Runtime.")  # fmt: skip
# What claims are about and the notebooks that show it, by the study whose records decide.
TOPICS = {
    "ptq": "Post-training quantization (01, 02, 04)",
    "qat": "Quantization-aware training (03)",
    "mixed_precision": "Half-precision training (05)",
    "actorq": "ActorQ: speed-up, convergence, memory, carbon (06, 09)",
    "actorq_variants": "ActorQ: other quantizers, noise, algorithms (06)",
    "actorq_staleness": "ActorQ: staleness (07)",
    "actorq_runtime": "ActorQ: what actors and messages cost (08)",
    "actorq_scaling": "ActorQ: what actors and messages cost (08)",
    "inference": "ActorQ: what actors and messages cost (08)",
    "loading": "ActorQ: what actors and messages cost (08)",
    "edge": "Navigation on a small board (10)",
}


def scoreboard(found: pd.DataFrame) -> str:
    """Markdown for the README: how many claims hold, and what became of the abstracts', in short.

    Args:
        found: `claims.verdicts`.
    """
    counts = pd.crosstab(found["study"].map(TOPICS), found["verdict"], margins=True)
    counts = counts.reindex(index=[*dict.fromkeys(TOPICS.values()), "All"],
                            columns=VERDICTS, fill_value=0)  # fmt: skip
    lines = _table(["claims about (notebook)", *VERDICTS],
                   [[topic, *map(str, row)] for topic, *row in counts.itertuples()],
                   right=VERDICTS)  # fmt: skip
    told = [[f"“{without_tex(row['sentence'])}”", named_source(row["source"]),
             f"**{row['verdict']}**",
             shorten(row["measured"], MEASURED_CHARACTERS, placeholder=" ...")]
            for _, row in found.iterrows()
            if ", abstract" in row["source"] + row["also"]]  # fmt: skip
    lines += ["", f"{COUNTED} {ABBREVIATIONS}", "",
              "What the abstracts claim, in these words or others:", ""]  # fmt: skip
    lines += _table(["claim", "source", "verdict", "measured"], told)
    return _page(lines)


def claims_page(found: pd.DataFrame) -> str:
    """A page of every claim with its whole measurement and what decides it, by topic.

    Args:
        found: `claims.verdicts`.
    """
    lines = ["# Every claim of the papers, and whether it holds", "",
             "Intervals are of 95 % where no other level is told; [how to read them]"
             "(../../docs/method.md). Sentences are quoted; what is said of one in brackets "
             f"after its source is ours. {ABBREVIATIONS} TOST: two one-sided tests."]  # fmt: skip
    for topic, rows in found.groupby(found["study"].map(TOPICS), sort=False):
        cells = [[f"“{without_tex(row['sentence'])}”", named_source(row["source"]),
                  f"**{row['verdict']}**", row["measured"], row["decision"]]
                 for _, row in rows.iterrows()]  # fmt: skip
        lines += ["", f"## {topic}", ""]
        lines += _table(["claim", "source", "verdict", "measured", "reproduced if"], cells)
    return _page(lines)


def table4(rows: pd.DataFrame) -> str:
    """A page of Table 4's measured part: published fp32 and int8 beside 8-bit affine weights here.

    Args:
        rows: `ptq.tables.ptq_rows`.
    """
    lines = ["# Table 4: published beside measured", "",
             "Simulated returns of one policy each; [how to read them](../../docs/method.md). fp16 "
             "stands in [notebook 01](../../notebooks/rendered/01_ptq_tables.ipynb). Walker2D and "
             "HalfCheetah are other environments than the paper's: compare their losses alone.",
             ""]  # fmt: skip
    columns = ["policy", "fp32 published", "measured [95 %]", "int8 published",
               "8-bit measured [95 %]", "loss published", "loss measured [95 %]", "verdict"]
    cells = []
    measured = rows[rows["episodes"].notna()]
    measured = measured.assign(environment=row_names(measured))
    for (environment, algo), group in measured.groupby(["environment", "algo"], sort=False):
        at = group.set_index("precision")
        if not {"fp32", "int8"} <= set(at.index):
            continue
        full, eight = at.loc["fp32"], at.loc["int8"]
        earned = [return_text(Interval.of(side, "mean")) for side in (full, eight)]
        cells.append([f"{str(algo).upper()} {environment}", f"{full['published']:g}", earned[0],
                      f"{eight['published']:g}", earned[1], percent(eight["published_loss"]),
                      percent_interval(Interval.of(eight, "loss")), str(eight["verdict"])])
    return _page([*lines, *_table(columns, cells, right=columns[1:-1])])


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Container[str] = ()
) -> list[str]:
    """The lines of a Markdown table; the cells of the columns in `right` are aligned there."""
    marks = ["---:" if name in right else "---" for name in columns]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(columns)} |", f"|{'|'.join(marks)}|",
            *(f"| {' | '.join(row)} |" for row in escaped)]


def _page(lines: Iterable[str]) -> str:
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
