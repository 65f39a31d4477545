"""Half-precision training: how much faster it is by size of the policy, and the verdict."""

from __future__ import annotations

from quarl_nb.report.mixed_precision import figures, learning, rewards, rules, site, speedups

__all__ = ["figures", "learning", "rewards", "rules", "site", "speedups"]
