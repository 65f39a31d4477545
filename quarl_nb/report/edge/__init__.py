"""The navigation policies on small boards: measured here, imported, or modelled."""

from __future__ import annotations

from quarl_nb.report.edge import (
    memory_figure,
    modelled,
    places,
    rules,
    site,
    success,
    success_figures,
    success_rules,
    tables,
    timings,
)

__all__ = [
    "memory_figure",
    "modelled",
    "places",
    "rules",
    "site",
    "success",
    "success_figures",
    "success_rules",
    "tables",
    "timings",
]
