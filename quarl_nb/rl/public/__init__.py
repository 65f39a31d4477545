"""Publicly trained agents: their files, networks and environments."""
