"""Post-training quantization (Appendix B.1, Table 4; B.4, Figure 7): returns at each precision.

Weights (and for int8 and the half precisions, activations) of a trained policy are quantized,
simulated in fp32, and the policy is run for whole episodes on the same seeds at every precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import torch

from quarl_nb.quant import Precision, parse_precision, quantize_module, weight_bytes
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.observations import collect_observations
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.studies.policies import PolicySource, TrainedPolicies, select
from quarl_nb.study import Measurement

# Common random numbers: every precision runs the same episodes. Training selects its best
# policy on other seeds (quarl_nb.rl.train.SELECTION_SEED), calibration uses others still.
FIRST_SEED = 1_000_000
CALIBRATION_SEED = 2_000_000
CALIBRATION_STEPS = 2_000

TABLE_4 = ["fp32", "fp16", "int8", "affine8", "legacy8"]
SWEEP = [f"affine{bits}" for bits in range(2, 17)]
CLASSIC = ["a2c-CartPole-v1", "dqn-CartPole-v1", "ppo-CartPole-v1",
           "a2c-MountainCarContinuous-v0", "ppo-MountainCarContinuous-v0"]  # fmt: skip
ATARI_EPISODES = 30


@dataclass(frozen=True)
class PTQStudy:
    """Policies x precisions x ways of setting ranges.

    Parameters: `policies` (names, or ["all"]), `precisions`, `ranges` (minmax for every precision;
    the others for integer ones), `episodes` (at most 30 on Atari), `first_seed`.
    """

    name: str
    policies: PolicySource
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    schema_version: int = 1

    def cells(
        self, parameters: Mapping[str, Any]
    ) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The matrix: (cell, budget) of every policy, precision and range setting."""
        formats = [
            (precision, ranges)
            for precision in parameters["precisions"]
            for ranges in parameters["ranges"]
            if ranges == "minmax" or precision.startswith(("affine", "int8"))
        ]
        for precision, ranges in formats:
            parse_precision(precision, ranges)
        found = []
        for policy in select(self.policies, parameters["policies"]):
            algo, env_id = self.policies.describe(policy)
            episodes = parameters["episodes"]
            if "NoFrameskip" in env_id or env_id.startswith("ALE/"):
                episodes = min(episodes, ATARI_EPISODES)
            budget = {"episodes": episodes, "first_seed": parameters["first_seed"]}
            for precision, ranges in formats:
                cell = {"policy": policy, "algo": algo, "env_id": env_id,
                        "precision": precision, "ranges": ranges, "seed": 0}  # fmt: skip
                found.append((cell, budget))
        return found

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Quantize one policy and run its episodes."""
        torch.set_num_threads(1)
        subject = self.policies.load(cell["policy"])
        precision = parse_precision(cell["precision"], cell["ranges"])
        quantized = quantize_policy(
            subject.net, precision, subject.env_id, subject.make
        )
        seeds = range(budget["first_seed"], budget["first_seed"] + budget["episodes"])
        result = evaluate(quantized, subject.env_id, seeds, make=subject.make)
        measured = {
            "returns": result.returns,
            "lengths": result.lengths,
            "seeds": result.seeds,
            "weight_bytes": weight_bytes(subject.net, precision),
            "steps_per_s": sum(result.lengths) / result.wall_s,
        }
        return Measurement(measured, backend="simulated", extra=subject.extra)


def quantize_policy(
    net: PolicyNet,
    precision: Precision,
    env_id: str,
    make: Callable[[], gym.Env] | None = None,
) -> PolicyNet:
    """`net` as if computed in `precision`, activations calibrated on its own observations."""
    calibrate = None
    if precision.activation is not None:

        def calibrate(model: torch.nn.Module) -> None:
            collect_observations(model, env_id, CALIBRATION_STEPS, CALIBRATION_SEED, make)

    quantized = quantize_module(net, precision, calibrate)
    assert isinstance(quantized, PolicyNet)
    return quantized


def _profiles(
    quick_policies: Sequence[str], smoke_policies: Sequence[str], ranges: Sequence[str]
) -> dict[str, dict[str, Any]]:
    some = ["fp32", "fp16", "int8", "legacy8", "affine2", "affine4", "affine6", "affine8"]
    return {
        "smoke": {"policies": list(smoke_policies), "precisions": ["fp32", "int8", "affine4"],
                  "ranges": ["minmax"], "episodes": 3, "first_seed": FIRST_SEED},
        "quick": {"policies": list(quick_policies), "precisions": some,
                  "ranges": ["minmax"], "episodes": 20, "first_seed": FIRST_SEED},
        "full": {"policies": ["all"], "precisions": list(dict.fromkeys(TABLE_4 + SWEEP)),
                 "ranges": list(ranges), "episodes": 100, "first_seed": FIRST_SEED},
    }  # fmt: skip


PTQ = PTQStudy("ptq", TrainedPolicies(), _profiles(CLASSIC, ["ppo-CartPole-v1"], ["minmax"]))
