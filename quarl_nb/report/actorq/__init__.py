"""What ActorQ's records say: speed-ups, where the time goes, why it works."""

from __future__ import annotations

from quarl_nb.report.actorq import (
    curves,
    figures,
    inference,
    loading,
    parts,
    rules,
    runs,
    runtime_rules,
    site,
    tables,
    variant_rules,
    variants,
)

__all__ = [
    "curves",
    "figures",
    "inference",
    "loading",
    "parts",
    "rules",
    "runs",
    "runtime_rules",
    "site",
    "tables",
    "variant_rules",
    "variants",
]
