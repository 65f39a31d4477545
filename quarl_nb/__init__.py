"""quarl_nb: quantized reinforcement-learning policies, measured in runnable notebooks."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
