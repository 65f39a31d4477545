"""CrossQ's actor as one of SAC's: its batch normalization folded into the layers that follow."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quarl_nb.errors import QuarlError

EPSILON = 1e-3  # sb3-contrib's default
_TRUNK = "actor.latent_pi."
_NORM = ("ra_mean", "ra_var", "scale", "bias")


def fold_batch_norm(
    tensors: Mapping[str, torch.Tensor], epsilon: float
) -> dict[str, torch.Tensor]:
    """The policy's tensors without normalization, Linear layers named as SAC names them.

    A trunk of CrossQ (Bhatt et al. 2024, arXiv 1902.05605) is normalization, Linear, activation,
    and so on, and a last normalization before `actor.mu`. When it acts, one computes
    ``s (x - ra_mean) + bias`` with ``s = scale / sqrt(ra_var + epsilon)``, so that it and the
    Linear layer ``W, b`` after it are ``(W s) x + b + W (bias - s ra_mean)``: a Linear layer. That
    is computed in double precision and rounded once; what is not folded is shared, not copied.

    Args:
        epsilon: what the normalization adds to its running variance.

    Raises:
        QuarlError: shapes that do not fit each other.
        KeyError: a tensor is missing.
    """
    folded = dict(tensors)
    mu = "actor.mu.0." if "actor.mu.0.weight" in tensors else "actor.mu."
    n_norms = sum(name.startswith(_TRUNK) and name.endswith(".ra_mean") for name in tensors)
    for i in range(n_norms):
        norm = f"{_TRUNK}{3 * i}."
        last = i == n_norms - 1
        source, target = (mu, mu) if last else (f"{_TRUNK}{3 * i + 1}.", f"{_TRUNK}{2 * i}.")
        folded.pop(norm + "steps")
        parts = [folded.pop(norm + part) for part in _NORM]
        weight, bias = folded.pop(source + "weight"), folded.pop(source + "bias")
        fits = weight.ndim == 2 and bias.shape == weight.shape[:1]
        if not fits or any(part.shape != weight.shape[1:] for part in parts):
            raise QuarlError(f"batch normalization '{norm}*' does not fit the layer '{source}*'")
        mean, var, scale, shift = (part.double() for part in parts)
        s = scale / torch.sqrt(var + epsilon)
        folded[target + "weight"] = (weight * s).to(weight.dtype)
        folded[target + "bias"] = (bias + weight.double() @ (shift - s * mean)).to(bias.dtype)
    return folded
