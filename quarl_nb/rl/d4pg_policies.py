"""D4PG's policies: TD3's actor and one categorical critic."""

from __future__ import annotations

import math
from typing import Any

import torch
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.td3 import policies as td3
from torch import nn

from quarl_nb.errors import QuarlError, is_whole


class CategoricalCritic(ContinuousCritic):
    """Distribution of the return over `n_atoms` atoms, evenly spaced from `v_min` to `v_max`.

    Shapes: observations ``[n, ...]``, actions in [-1, 1] ``[n, size]`` -> a tuple of one tensor
    of logits ``[n, n_atoms]``.
    """

    atoms: torch.Tensor

    def __init__(self, n_atoms: int, v_min: float, v_max: float, **options: Any) -> None:
        if not (is_whole(n_atoms) and n_atoms >= 2 and 0 < v_max - v_min < math.inf):
            raise QuarlError(
                "D4PG needs an integer n_atoms >= 2 and v_min < v_max, both finite, "
                f"got {n_atoms}, {v_min}, {v_max}"
            )
        super().__init__(**{**options, "n_critics": 1})
        network = self.q_networks[0]
        assert isinstance(network, nn.Sequential) and isinstance(network[-1], nn.Linear)
        network[-1] = nn.Linear(network[-1].in_features, n_atoms)
        self.register_buffer("atoms", torch.linspace(v_min, v_max, n_atoms))


class D4PGPolicy(td3.TD3Policy):
    """TD3's actor, and one categorical critic in place of its two."""

    critic: CategoricalCritic
    critic_target: CategoricalCritic

    def __init__(
        self,
        *args: Any,
        n_atoms: int = 51,
        v_min: float = -150.0,
        v_max: float = 150.0,
        **options: Any,
    ) -> None:
        # Before the base class, which builds the critics.
        self.distribution: dict[str, Any] = {"n_atoms": n_atoms, "v_min": v_min, "v_max": v_max}
        super().__init__(*args, **options)

    def make_critic(self, features_extractor: Any = None) -> CategoricalCritic:
        options = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return CategoricalCritic(**self.distribution, **options).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.distribution}


class CnnPolicy(D4PGPolicy, td3.CnnPolicy):
    """`D4PGPolicy` of images, over SB3's ``NatureCNN``."""


class MultiInputPolicy(D4PGPolicy, td3.MultiInputPolicy):
    """`D4PGPolicy` of dictionaries."""
