"""Post-training quantization: losses, sweet spots, and the weights behind them."""

from __future__ import annotations

from quarl_nb.report.ptq import (
    figures,
    rules,
    site,
    summary,
    sweet_spot_rules,
    sweet_spots,
    tables,
    weights,
)

__all__ = ["figures", "rules", "site", "summary", "sweet_spot_rules", "sweet_spots", "tables",
           "weights"]  # fmt: skip
