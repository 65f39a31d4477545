"""Recorded observations, and what a policy must answer to them on a board."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch

from quarl_nb.edge.c_text import declaration, literal
from quarl_nb.errors import QuarlError
from quarl_nb.rl.policies import PolicyNet

OBSERVATIONS = 256


@dataclass(frozen=True)
class Vectors:
    """Observations ``[n, *obs_shape]``, and the outputs ``[n, ...]`` and actions of a policy.

    The tolerances are absolute: of outputs, and of actions (0 where these are numbers of choices).
    """

    obs: np.ndarray
    outputs: np.ndarray
    actions: np.ndarray
    tolerances: dict[str, float]

    @classmethod
    def of(cls, policy: PolicyNet, obs: np.ndarray, tolerance: float) -> Vectors:
        """`OBSERVATIONS` of `obs` at most, evenly spread, and what `policy` answers to them.

        Args:
            tolerance: relative to the largest value.

        Raises:
            QuarlError: outputs that are not finite.
        """
        obs = obs[np.linspace(0, len(obs) - 1, min(len(obs), OBSERVATIONS)).astype(int)]
        outputs, actions = policy(torch.as_tensor(obs)).numpy(), policy.act(obs)[0]
        if not np.isfinite(outputs).all():
            raise QuarlError("outputs for the recorded observations are NaN or infinite")
        choices = policy.spec.head.discrete
        return cls(obs, outputs, actions, {
            "tolerance": tolerance * float(np.abs(outputs).max()),
            "action_tolerance": 0.0 if choices else tolerance * float(np.abs(actions).max()),
        })  # fmt: skip

    def npz(self) -> bytes:
        """observations.npz, which benchmark.py reads."""
        recorded = io.BytesIO()
        np.savez(recorded, obs=self.obs, outputs=self.outputs, actions=self.actions)
        return recorded.getvalue()

    def header(self) -> str:
        """test_vectors.h, which test_policy.c includes; actions int32 ``[n]`` or ``[n, size]``."""
        n = len(self.obs)
        whole = self.actions.dtype.kind in "iu"
        # A continuous action may have no dimensions either.
        actions = self.actions.astype(np.int32) if whole else self.actions.reshape(n, -1)
        defines = {"TEST_VECTORS": str(n)} | {
            f"TEST_{name.upper()}": literal(value, "float64")
            for name, value in self.tolerances.items()
        }
        return "\n".join([
            "/* Recorded observations, and the outputs and actions of the simulated policy. */",
            *(f"#define {name} {value}" for name, value in defines.items()),
            declaration("test_obs", self.obs.reshape(n, -1)),
            declaration("test_outputs", self.outputs),
            declaration("test_actions", actions),
        ]) + "\n"  # fmt: skip
