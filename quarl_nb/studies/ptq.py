"""Post-training quantization (Appendix B.1, Table 4; B.4, Figure 7): returns at each precision.

Weights (and for int8 and the half precisions, activations) of a trained policy are quantized,
simulated in fp32, and the policy is run for whole episodes on the same seeds at every precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from quarl_nb.errors import check_choice, check_counts, check_episode_seeds
from quarl_nb.inference import fast_policy
from quarl_nb.quant import RANGES, Precision, parse_precision, weight_bytes
from quarl_nb.rl.atari import is_atari
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.ptq import quantize_policy
from quarl_nb.studies.policies import PolicySource, PublicPolicies, Subject, TrainedPolicies, select
from quarl_nb.studies.ptq_episodes import SWEPT, episodes_of
from quarl_nb.study import Measurement

# Common random numbers: every precision runs the same episodes. Training selects its best
# policy on other seeds (quarl_nb.rl.train.SELECTION_SEED), calibration uses others still
# (quarl_nb.rl.ptq.CALIBRATION_SEED).
FIRST_SEED = 1_000_000

TABLE_4 = ["fp32", "fp16", "int8", "affine8", "legacy8"]
SWEEP = [f"affine{bits}" for bits in range(2, 17)]
CLASSIC = ["a2c-CartPole-v1", "dqn-CartPole-v1", "ppo-CartPole-v1",
           "a2c-MountainCarContinuous-v0", "ppo-MountainCarContinuous-v0"]  # fmt: skip
OTHER_RANGES = [ranges for ranges in RANGES if ranges != "minmax"]
EPISODES, ATARI_EPISODES = 100, 30


@dataclass(frozen=True)
class PTQStudy:
    """Policies x precisions x ways of setting ranges.

    Parameters: `policies` (names, or ["all"]), `precisions` (with min-max ranges), `ranges` (other
    ways to set ranges) and `ranges_at` (the precisions measured with them too), `episodes` (at
    most 30 on Atari), `judged` (precisions, with min-max ranges, that are measured over as many
    episodes as a verdict on the policy takes: `NEEDED`, if more), `swept` (policies of `SWEPT`, of
    which every precision with min-max ranges is, over its number), `first_seed`.
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
        formats = list(formats_of(parameters))
        self._check(parameters)
        found = []
        for policy in select(self.policies, parameters["policies"]):
            algo, env_id = self.policies.describe(policy)
            episodes = episodes_in(env_id, parameters["episodes"])
            budget = {"first_seed": parameters["first_seed"]} | self.policies.version(policy)
            if share := self.policies.random_actions(policy):
                budget["random_actions"] = share
            for precision, ranges in formats:
                judged = ranges == "minmax" and precision in parameters["judged"]
                swept = ranges == "minmax" and policy in parameters["swept"]
                needed = max(episodes, episodes_of(policy, judged, swept))
                check_episode_seeds(parameters["first_seed"], needed)
                cell = {"policy": policy, "algo": algo, "env_id": env_id,
                        "precision": precision, "ranges": ranges, "seed": 0}  # fmt: skip
                found.append((cell, budget | {"episodes": needed}))
        return found

    def _check(self, parameters: Mapping[str, Any]) -> None:
        """Refuse numbers that do not count, and what would have no effect."""
        check_counts(1, episodes=parameters["episodes"])
        for policy in parameters["swept"]:
            check_choice("policy to be swept", policy, SWEPT)
        # What a profile judges it may also name where other precisions are chosen.
        if parameters["judged"] not in [profile["judged"] for profile in self.profiles.values()]:
            for precision in parameters["judged"]:
                check_choice("precision to be judged", precision, parameters["precisions"])

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Quantize one policy and run its episodes."""
        precision = parse_precision(cell["precision"], cell["ranges"])
        return measure_policy(self.policies.load(cell["policy"]), precision, budget)


def formats_of(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(precision, ranges) of every quantization after training, each checked."""
    formats = [(precision, "minmax") for precision in parameters["precisions"]]
    formats += [(p, ranges) for ranges in parameters["ranges"] for p in parameters["ranges_at"]]
    for precision, ranges in formats:
        parse_precision(precision, ranges)
        yield precision, ranges


def episodes_in(env_id: str, most: int = EPISODES) -> int:
    """How many episodes a policy is measured over: `most`, of Atari no more than its own."""
    return min(most, ATARI_EPISODES) if is_atari(env_id) or env_id.startswith("ALE/") else most


def episode_seeds(budget: Mapping[str, Any]) -> range:
    """Those of the episodes that a cell is measured over, whatever its precision."""
    return range(budget["first_seed"], budget["first_seed"] + budget["episodes"])


def measure_policy(
    subject: Subject, precision: Precision, budget: Mapping[str, Any]
) -> Measurement:
    """Returns of `subject` in `precision` over the seeds of `budget`.

    Args:
        budget: episodes, first_seed, and random_actions where a share of them is drawn.
    """
    torch.set_num_threads(1)
    quantized = quantize_policy(subject.net, precision, subject.env_id, subject.make)
    result = evaluate(
        fast_policy(quantized), subject.env_id, episode_seeds(budget), make=subject.make,
        random_actions=budget.get("random_actions", 0.0),
    )  # fmt: skip
    measured = {
        **result.as_measured(),
        "weight_bytes": weight_bytes(subject.net, precision),
        "steps_per_s": sum(result.lengths) / result.wall_s,
    }
    return Measurement(measured, backend="simulated", extra=subject.extra)


SOME = ["fp32", "fp16", "int8", "legacy8", "affine2", "affine4", "affine6", "affine8"]
SMOKE = {"policies": ["ppo-CartPole-v1"], "precisions": ["fp32", "int8", "affine4"],
         "ranges": ["mse"], "ranges_at": ["affine4"], "episodes": 3, "judged": [], "swept": [],
         "first_seed": FIRST_SEED}  # fmt: skip
QUICK = SMOKE | {"policies": CLASSIC, "precisions": SOME, "episodes": 20}
FULL = QUICK | {"policies": ["all"], "precisions": TABLE_4 + [p for p in SWEEP if p != "affine8"],
                "ranges": OTHER_RANGES, "ranges_at": ["int8", "affine4"],
                "episodes": EPISODES, "judged": ["fp32", "fp16", "affine8"],
                "swept": list(SWEPT)}  # fmt: skip

PTQ = PTQStudy("ptq", TrainedPolicies(), {"smoke": SMOKE, "quick": QUICK, "full": FULL})

# Policies that nobody tuned here, and what mends them where 8 bits per tensor fails.
PUBLIC_SMOKE = SMOKE | {"policies": ["public/ppo-CartPole-v1"]}
PUBLIC_QUICK = PUBLIC_SMOKE | {
    "policies": ["public/ppo-CartPole-v1", "public/dqn-CartPole-v1", "public/dqn-Acrobot-v1"],
    "precisions": SOME, "ranges": OTHER_RANGES, "ranges_at": ["int8", "affine4"], "episodes": 20,
}  # fmt: skip
PUBLIC_FULL = PUBLIC_QUICK | {
    "policies": ["all"],
    "precisions": ["fp32", "fp16", "int8", "legacy8", *(f"affine{b}" for b in (8, 6, 5, 4, 3, 2))],
    "ranges_at": ["int8", "affine8", "affine6", "affine4"],
    "episodes": 100,
}  # fmt: skip
PTQ_PUBLIC = PTQStudy(
    "ptq_public", PublicPolicies(),
    {"smoke": PUBLIC_SMOKE, "quick": PUBLIC_QUICK, "full": PUBLIC_FULL},
)  # fmt: skip
