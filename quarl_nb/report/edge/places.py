"""Where the times that a claim of Appendix B.3 asks for were taken, and how a finding says it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from quarl_nb.report.edge.timings import PAPERS_BOARD, RUNTIMES, latency_rows
from quarl_nb.report.findings import measured


def timed_rows(records: pd.DataFrame) -> pd.DataFrame:
    """Times of this machine and of imported boards, and the model of the paper's."""
    rows = latency_rows(measured(records))
    if rows.empty:
        return rows
    asked = (rows["source"] == "measured") | (rows["machine"] == PAPERS_BOARD)
    once = (rows["source"] == "measured") | (rows["runtime"] == "c")  # modelled alike for both
    return rows[asked & once].reset_index(drop=True)


def on_papers_board(rows: pd.DataFrame) -> pd.Series:
    """Measured on a Raspberry Pi 3 (its firmware says "Raspberry Pi 3 Model B Rev 1.2")."""
    name = PAPERS_BOARD.removesuffix("B")
    return rows["machine"].str.startswith(name) & (rows["source"] == "measured")


def ratios_text(rows: pd.DataFrame) -> str:
    """Speed-ups by policy, place by place."""
    if rows.empty:
        return "not measured"
    places = rows.assign(where=[where_text(row) for row in rows.itertuples()])
    return "; ".join(
        f"{where} " + ", ".join(f"{row.policy} {row.speedup:.2f}x" for row in group.itertuples())
        for where, group in places.groupby("where", sort=False)
    )


def where_text(row: Any) -> str:
    """The machine and runtime of one time."""
    if row.source == "modelled":
        return f"modelled for {row.machine}"
    # Boards have names; of a machine here the processor is what a reader can compare with.
    return f"on {row.processor or row.machine} in {RUNTIMES[row.runtime]}"


def elsewhere_text(board: pd.Series) -> str:
    """What a finding adds where no row was measured `on_papers_board`."""
    return "" if board.any() else f" (not measured on a {PAPERS_BOARD})"
