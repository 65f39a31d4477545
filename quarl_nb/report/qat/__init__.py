"""Quantization-aware training: what it gains, and how its actions spread."""

from __future__ import annotations

from quarl_nb.report.qat import exploration, few_bits, figures, gains, rules, site, tables

__all__ = ["exploration", "few_bits", "figures", "gains", "rules", "site", "tables"]
