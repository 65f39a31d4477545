"""A policy on a small board: what is copied there, what comes back, and what to expect of it."""
