"""Table 6's success rates: the navigation policies at each precision, and what mends a loss.

PTQ quantizes a trained policy, QAT goes on training it with quantization. All fly the same
episodes. Policies that stopped learning at the published success fly beside those that went on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import DQN
from torch import nn

from quarl_nb.errors import QuarlError, check_counts, check_episode_seeds, check_seeds
from quarl_nb.quant import Precision, parse_precision, weight_bytes
from quarl_nb.rl.air.navigation import ENV_ID, AirNavigationEnv
from quarl_nb.rl.evaluate import Evaluation, evaluate
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import PolicyNet, PolicySpec, load_spec
from quarl_nb.rl.ptq import quantize_policy
from quarl_nb.rl.qat import exported_qat, prepare_qat
from quarl_nb.rl.recipes import EARLY, get_recipe, recipes
from quarl_nb.rl.train import let_policy_act
from quarl_nb.studies.policies import TrainedPolicies, select
from quarl_nb.studies.ptq import FIRST_SEED, episode_seeds, formats_of
from quarl_nb.studies.qat import trained_bits
from quarl_nb.studies.watched import Schedule, Trained, train_watched
from quarl_nb.study import Measurement, network_name

logger = logging.getLogger(__name__)
OUTCOMES = ("success", "crash", "timeout")
QAT = "qat"
FINE_TUNING_RATE = 1 / 3  # of the recipe's: the policy is to stay near where it is
FINE_TUNING_WARM_UP = 1_000  # environment steps of the policy before it learns


@dataclass(frozen=True)
class NavigationStudy:
    """Policies x precisions x methods.

    A cell's method is how a trained policy's ranges are set (minmax, per_channel, percentile,
    mse; see `parse_precision`), or qat: the trained policy learns on for a fraction of its steps,
    with weights and activations of that width. (From scratch Policy III alone would take hours
    at each width, and what is asked is whether *this* policy's loss can be mended.)

    Parameters: `policies` (names, or ["all"]; of one's own those that act in this environment),
    `precisions` (with min-max ranges), `ranges` (other ways to set ranges) and `ranges_at` (the
    precisions measured with them too), `qat` (precisions trained with), `qat_policies` (those that
    have a recipe to go on by), `qat_seeds`, `qat_timesteps`, `evaluations` and `eval_episodes`
    (during that training), `episodes`, `first_seed`.
    """

    name: str
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    policies: TrainedPolicies = TrainedPolicies("dqn-AirNavigation-*")
    schema_version: int = 2
    timed: bool = False

    def cells(self, parameters: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The matrix: (cell, budget) of every policy, precision and method."""
        budget = {name: parameters[name] for name in ("episodes", "first_seed")}
        training = {name: parameters[name] for name in ("evaluations", "eval_episodes")}
        training["timesteps"] = parameters["qat_timesteps"]
        check_counts(1, episodes=budget["episodes"], **training)
        training["warm_up"] = FINE_TUNING_WARM_UP
        check_episode_seeds(**budget)
        check_seeds(*parameters["qat_seeds"])
        chosen = select(self.policies, parameters["policies"])
        trained_on = self._trained_on(parameters)
        if parameters["qat"] and chosen and not {*chosen} & {*trained_on}:
            logger.warning("navigation: no QAT, as qat_policies names none of the chosen policies")
        found = []
        for policy in chosen:
            algo, env_id = self.policies.describe(policy)
            spec = load_spec(self.policies.root / policy)
            common = {"policy": policy, "algo": algo, "env_id": env_id,
                      "network": network_of(policy, spec)}  # fmt: skip
            played = budget | self.policies.version(policy)
            for precision, method in formats_of(parameters):
                cell = common | {"precision": precision, "method": method, "seed": 0}
                found.append((cell, played))
            for precision in parameters["qat"] if policy in trained_on else ():
                for seed in parameters["qat_seeds"]:
                    cell = common | {"precision": precision, "method": QAT, "seed": seed}
                    found.append((cell, played | training))
        return found

    def _trained_on(self, parameters: Mapping[str, Any]) -> list[str]:
        """The policies that may learn on; `qat` and `qat_policies` are checked."""
        for precision in parameters["qat"]:
            trained_bits(precision)
        wanted = select(self.policies, parameters["qat_policies"])
        for policy in wanted:
            if policy not in recipes():
                raise QuarlError(f"no QAT of policy {policy!r}: it has no recipe to go on by")
        # It would not have stopped early, if it were to go on.
        return [policy for policy in wanted if not policy.endswith(EARLY)]

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Quantize one policy, or train it with quantization, and fly its episodes."""
        torch.set_num_threads(1)
        subject = self.policies.load(cell["policy"])
        if cell["method"] == QAT:
            trained = fine_tune(subject.net, cell, budget)
            precision = parse_precision(cell["precision"])
            measured = _fly(trained.net, subject.net, precision, budget) | trained.as_measured()
            measured["timesteps"] = budget["timesteps"]
            return Measurement(measured, "simulated", arrays=trained.curves, extra=subject.extra)
        precision = parse_precision(cell["precision"], cell["method"])
        quantized = quantize_policy(subject.net, precision, ENV_ID)
        measured = _fly(quantized, subject.net, precision, budget)
        return Measurement(measured, "simulated", extra=subject.extra)


def network_of(policy: str, spec: PolicySpec) -> str:
    """The hidden layers of a policy as Table 6 has them: "64x3" or "4096-512-1024".

    Raises:
        QuarlError: it acts in another environment.
    """
    if spec.env_id != ENV_ID:
        raise QuarlError(f"policy {policy!r} acts in {spec.env_id!r}, not in {ENV_ID!r}")
    sizes = [linear.out_features for layer in spec.layers for linear in _linear(layer.build())]
    return network_name(sizes[:-1])


def _fly(
    net: PolicyNet, original: PolicyNet, precision: Precision, budget: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns and lengths, and `outcomes`: one letter an episode, the first of its outcome."""
    result, outcomes = fly(net, episode_seeds(budget))
    return {
        **result.as_measured(),
        "outcomes": "".join(outcome[0] for outcome in outcomes),
        "weight_bytes": weight_bytes(original, precision),
    }


def fly(net: PolicyNet, seeds: range) -> tuple[Evaluation, list[str]]:
    """One episode for each seed, and how each ended (one of `OUTCOMES`)."""
    found: dict[int, str] = {}
    result = evaluate(net, ENV_ID, seeds, make=lambda: _Witness(AirNavigationEnv(), found))
    return result, [found[seed] for seed in seeds]


class _Witness(gym.Wrapper):
    """Writes down how each episode ended, under the seed that it began with."""

    def __init__(self, env: gym.Env, found: dict[int, str]) -> None:
        super().__init__(env)
        self.found = found
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seed = seed
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        # Without a seed an arena only idles until the others have ended.
        if self.seed is not None and (terminated or truncated):
            success, crash, timeout = OUTCOMES
            failure = crash if terminated else timeout
            self.found[self.seed] = success if info["is_success"] else failure
        return obs, reward, terminated, truncated, info


def fine_tune(net: PolicyNet, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Trained:
    """Let a trained policy learn on with quantized weights and activations; the best is kept.

    By its recipe without the curriculum, at a lower rate of learning and with the exploration
    that its training ended with.
    """
    recipe = get_recipe(cell["policy"])
    options = recipe.hyperparameters
    gentler = dict(learning_rate=FINE_TUNING_RATE * options["learning_rate"],
                   learning_starts=budget["warm_up"],
                   exploration_initial_eps=options["exploration_final_eps"])  # fmt: skip
    gentle = replace(recipe, hyperparameters=options | gentler, half_precision=False)
    model = make_model(gentle, cell["seed"])
    assert isinstance(model, DQN)
    for network in (model.q_net, model.q_net_target):
        for layer, trained in zip(_linear(network), _linear(net), strict=True):
            layer.load_state_dict(trained.state_dict())
    let_policy_act(model, budget["warm_up"])
    callback = prepare_qat(model, trained_bits(cell["precision"]))
    schedule = Schedule(budget["timesteps"], 0, budget["evaluations"], budget["eval_episodes"])
    export = partial(exported_qat, env_id=ENV_ID)
    return train_watched(model, ENV_ID, schedule, export, [callback])


def _linear(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


POLICY_I = "dqn-AirNavigation-I"
BITS = [f"affine{bits}" for bits in (8, 6, 5, 4)]
SMOKE = {"policies": [POLICY_I], "precisions": ["fp32", "int8", "affine4"],
         "ranges": ["per_channel"], "ranges_at": ["affine4"], "qat": ["affine4"],
         "qat_policies": [POLICY_I], "qat_seeds": [0], "qat_timesteps": 1_500, "evaluations": 1,
         "eval_episodes": 5, "episodes": 10, "first_seed": FIRST_SEED}  # fmt: skip
QUICK = SMOKE | {"policies": ["all"], "precisions": ["fp32", "fp16", "int8", *BITS],
                 "qat_timesteps": 5_000, "eval_episodes": 50, "episodes": 100}  # fmt: skip
FULL = QUICK | {"precisions": ["fp32", "fp16", "legacy8", "int8", "int4", *BITS],
                "ranges": ["per_channel", "percentile", "mse"], "ranges_at": ["int8", *BITS],
                "qat": BITS, "qat_policies": ["all"], "qat_seeds": [0, 1, 2],
                "qat_timesteps": 10_000, "evaluations": 5, "eval_episodes": 200,
                "episodes": 1000}  # fmt: skip

NAVIGATION = NavigationStudy("navigation", {"smoke": SMOKE, "quick": QUICK, "full": FULL})
