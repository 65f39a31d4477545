"""Value distributions over fixed atoms: their projection, Bellman target and mean."""

from __future__ import annotations

import torch


def project_distribution(
    values: torch.Tensor, probabilities: torch.Tensor, atoms: torch.Tensor
) -> torch.Tensor:
    """Move probability mass at any values to the two atoms nearest each, in proportion.

    Values outside of the atoms' range go to its ends; inside, the mean is preserved.
    Source: Bellemare et al. 2017, algorithm 1 (arXiv 1707.06887).

    Args:
        values: where the mass lies, ``[n, k]``.
        probabilities: the mass there, ``[n, k]``.
        atoms: ascending and evenly spaced, ``[m]``, m >= 2.

    Returns:
        probabilities of the atoms, ``[n, m]``.
    """
    n, k = values.shape
    (m,) = atoms.shape
    assert probabilities.shape == (n, k) and m >= 2
    least = atoms[0]
    spacing = (atoms[-1] - least) / (m - 1)
    places = ((values - least) / spacing).clamp(0, m - 1)
    lower = places.floor().clamp(max=m - 2)
    upper_share, at = places - lower, lower.long()
    projected = torch.zeros(n, m, dtype=probabilities.dtype, device=probabilities.device)
    projected.scatter_add_(1, at, probabilities * (1 - upper_share))
    return projected.scatter_add_(1, at + 1, probabilities * upper_share)


def bellman_target(
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    next_probabilities: torch.Tensor,
    atoms: torch.Tensor,
) -> torch.Tensor:
    """Distribution of ``R + discount * Z`` on the atoms of Z, ``[n, m]``.

    Source: Barth-Maron et al. 2018, section 3 and algorithm 1 (arXiv 1804.08617).

    Args:
        rewards: (n-step) rewards R, ``[n, 1]``.
        discounts: ``gamma ** steps``, 0 where the episode terminated, ``[n, 1]``.
        next_probabilities: of Z where the n steps end, ``[n, m]``.
        atoms: ``[m]``.
    """
    assert rewards.shape == discounts.shape == (len(next_probabilities), 1)
    return project_distribution(rewards + discounts * atoms, next_probabilities, atoms)


def mean_value(logits: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    """Expectations ``[n]`` of the distributions with these logits ``[n, m]`` over atoms ``[m]``."""
    assert logits.shape[1:] == atoms.shape
    return torch.softmax(logits, dim=1) @ atoms
