"""Engines: policies that really compute in low precision.

`open_engine` (actor side) needs no torch; the others do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quarl_nb.inference.engine import RUNTIMES, Engine, open_engine

if TYPE_CHECKING:
    from quarl_nb.inference.export import build_payload, make_payload
    from quarl_nb.inference.policy import EnginePolicy, fast_policy

__all__ = ["RUNTIMES", "Engine", "EnginePolicy", "build_payload", "fast_policy", "make_payload",
           "open_engine"]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Those that need torch, imported when first asked for (PEP 562)."""
    if name in ("build_payload", "make_payload"):
        from quarl_nb.inference import export

        return getattr(export, name)
    if name in ("EnginePolicy", "fast_policy"):
        from quarl_nb.inference import policy

        return getattr(policy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
