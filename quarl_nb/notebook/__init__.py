"""What the notebooks share: records that are there or get measured, and how results are shown."""

from quarl_nb.notebook.records import load_records, load_runs
from quarl_nb.notebook.show import (
    LONG_TEXT,
    count_runs,
    provenance_table,
    quote_claims,
    show_figure,
    show_picture,
    show_table,
    tell_verdicts,
)

__all__ = [
    "LONG_TEXT",
    "count_runs",
    "load_records",
    "load_runs",
    "provenance_table",
    "quote_claims",
    "show_figure",
    "show_picture",
    "show_table",
    "tell_verdicts",
]
