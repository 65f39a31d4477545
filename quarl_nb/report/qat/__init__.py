"""Quantization-aware training: what it gains, and how its actions spread."""

from __future__ import annotations

from quarl_nb.report.qat import figures, gains, rules

__all__ = ["figures", "gains", "rules"]
