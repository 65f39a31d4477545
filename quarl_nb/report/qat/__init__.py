"""Quantization-aware training: what it gains, and how its actions spread."""

from __future__ import annotations

from quarl_nb.report.qat import exploration, figures, gains, rules, site

__all__ = ["exploration", "figures", "gains", "rules", "site"]
