"""Hypothesis without a deadline: on a busy machine a first call of torch takes over 200 ms."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quarl_nb", deadline=None)
settings.load_profile("quarl_nb")
