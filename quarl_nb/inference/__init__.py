"""Engines: policies that really compute in low precision.

`build_payload` (learner side) needs torch; `open_engine` (actor side) does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quarl_nb.inference.engine import RUNTIMES, Engine, open_engine

if TYPE_CHECKING:
    from quarl_nb.inference.export import build_payload

__all__ = ["RUNTIMES", "Engine", "build_payload", "open_engine"]


def __getattr__(name: str) -> Any:
    """The two that need torch, imported when first asked for (PEP 562)."""
    if name in ("build_payload"):
        from quarl_nb.inference import export

        return getattr(export, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
