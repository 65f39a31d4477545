"""What ActorQ's records say: speed-ups, where the time goes, why it works."""

from __future__ import annotations

from quarl_nb.report.actorq import (
    actors,
    communication_rules,
    curve_figures,
    curves,
    inference,
    inference_figure,
    knobs,
    loading,
    parts,
    rules,
    runs,
    runtime_rules,
    scaling,
    site,
    staleness_figure,
    table3,
    tables,
    time_figures,
    variant_rules,
    variants,
)

__all__ = [
    "actors",
    "communication_rules",
    "curve_figures",
    "curves",
    "inference",
    "inference_figure",
    "knobs",
    "loading",
    "parts",
    "rules",
    "runs",
    "runtime_rules",
    "scaling",
    "site",
    "staleness_figure",
    "table3",
    "tables",
    "time_figures",
    "variant_rules",
    "variants",
]
