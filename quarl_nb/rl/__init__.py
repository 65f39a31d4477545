"""Policies, environments, evaluation and training."""
