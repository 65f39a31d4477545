"""What the records cost in energy and carbon."""

from __future__ import annotations

from quarl_nb.report.carbon import costs, figures, rules, sensitivity, site, studies, tables

__all__ = [
    "costs",
    "figures",
    "rules",
    "sensitivity",
    "site",
    "studies",
    "tables",
]
