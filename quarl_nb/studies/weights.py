"""How policies' weights are distributed, and what quantizing them costs layer by layer.

The abstract's finding that "certain tasks and reinforcement learning algorithms yield policies
that are more difficult to quantize due to their effect of widening the models' distribution of
weights" is judged on these records. Nothing is run here, only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from quarl_nb.quant import parse_precision, weight_matrices, weight_statistics
from quarl_nb.studies.policies import PolicySource, PublicPolicies, TrainedPolicies, select
from quarl_nb.study import Measurement

HISTOGRAM_BINS = 101


@dataclass(frozen=True)
class WeightStudy:
    """Policies x precisions: one record of per-layer statistics each, with histograms.

    Parameters: `policies` (names, or ["all"]), `precisions`, `ranges`.
    """

    name: str
    policies: PolicySource
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    schema_version: int = 1
    timed: bool = False

    def cells(
        self, parameters: Mapping[str, Any]
    ) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The matrix: (cell, budget) of every policy, precision and range setting."""
        found = []
        for policy in select(self.policies, parameters["policies"]):
            algo, env_id = self.policies.describe(policy)
            budget = {"histogram_bins": HISTOGRAM_BINS} | self.policies.version(policy)
            for precision in parameters["precisions"]:
                for ranges in parameters["ranges"]:
                    parse_precision(precision, ranges)
                    cell = {"policy": policy, "algo": algo, "env_id": env_id,
                            "precision": precision, "ranges": ranges}  # fmt: skip
                    found.append((cell, budget))
        return found

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Statistics of every weight matrix; histograms of the weights, one row a layer."""
        subject = self.policies.load(cell["policy"])
        rows = weight_statistics(subject.net, parse_precision(cell["precision"], cell["ranges"]))
        measured = {name: [row[name] for row in rows] for name in rows[0]}
        counts, edges = zip(
            *(histogram(w, budget["histogram_bins"]) for _, w in weight_matrices(subject.net)),
            strict=True,
        )
        arrays = {"counts": np.stack(counts), "edges": np.stack(edges)}
        return Measurement(measured, backend="simulated", arrays=arrays, extra=subject.extra)


def histogram(weight: torch.Tensor, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts ``[bins]`` and edges ``[bins + 1]`` of a weight matrix over its own range."""
    return np.histogram(weight.detach().double().numpy().ravel(), bins=bins)


SMOKE = {"policies": ["ppo-CartPole-v1"], "precisions": ["affine8", "affine4"],
         "ranges": ["minmax"]}  # fmt: skip
QUICK = SMOKE | {"policies": ["all"]}
FULL = QUICK | {"precisions": ["affine8", "affine6", "affine4", "affine2"]}
PROFILES = {"smoke": SMOKE, "quick": QUICK, "full": FULL}

WEIGHTS = WeightStudy("weights", TrainedPolicies(), PROFILES)
WEIGHTS_PUBLIC = WeightStudy(
    "weights_public", PublicPolicies(),
    PROFILES | {"smoke": SMOKE | {"policies": ["public/ppo-CartPole-v1"]}},
)  # fmt: skip
