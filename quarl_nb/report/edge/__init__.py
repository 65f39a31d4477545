"""The navigation policies on small boards: measured here, imported, or modelled."""

from __future__ import annotations

from quarl_nb.report.edge import figures, rules, site, success, tables, timings

__all__ = [
    "figures",
    "rules",
    "site",
    "success",
    "tables",
    "timings",
]
