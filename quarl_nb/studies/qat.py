"""Quantization-aware training (Appendix B.2, Figure 5): returns against the bits trained with.

Each cell trains a policy from scratch by its recipe, keeps the one that evaluates best, and runs
it on the study's common seeds. What float32 training gives is also quantized afterwards (PTQ),
which is the paper's ``8*``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from quarl_nb.errors import QuarlError, check_choice, check_counts, check_episode_seeds, check_seeds
from quarl_nb.processes import keep_freed_memory
from quarl_nb.quant import parse_precision, weight_statistics
from quarl_nb.quant.qat import METHODS
from quarl_nb.rl.atari import is_atari
from quarl_nb.rl.evaluate import evaluate
from quarl_nb.rl.model import make_model
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.ptq import quantize_policy
from quarl_nb.rl.qat import exported_qat, prepare_qat
from quarl_nb.rl.recipes import Recipe, get_recipe
from quarl_nb.rl.sb3.convert import policy_from_model
from quarl_nb.studies.ptq import FIRST_SEED, episode_seeds, episodes_in
from quarl_nb.studies.regularizers import (
    noise_for_quantization,
    normalize_hidden_layers,
    with_layer_norm,
)
from quarl_nb.studies.watched import Schedule, train_watched
from quarl_nb.study import Measurement

LAYER_NORM = "layer_norm"
# The bits whose rounding error the noise is as large as, by regularizer.
NOISE = {f"noise{bits}": bits for bits in range(2, 17)}
Export = Callable[[BaseAlgorithm], PolicyNet | None]


@dataclass(frozen=True)
class QATStudy:
    """Recipes x (precision, method, regularizer) x training seeds.

    Parameters: `policies` (names of recipes), `precisions` (fp32, affine2..affine16), `lsq` (those
    trained with learned steps too), `ptq` (precisions to which the float32 policies are quantized
    afterwards), `regularizers` (of float32 training, in place of quantization: layer_norm, or
    noise2..noise16, Gaussian noise on the weights as large as their error at so many bits) for the
    policies in `regularized`, `seeds` (of training; only the first for the policies in `single`),
    `more_seeds` (of the policies in `replicated`, for float32 and its `precisions`, and of those in
    `replicated_at_8_bits` for float32 and affine8 alone),
    `max_timesteps` (or the recipe's steps, if fewer), `ddpg_timesteps` and `atari_timesteps` (at
    most so many of DDPG, which learns at every step, and on Atari), `quant_delay` (a fraction of
    them), `evaluations` and `eval_episodes` (during training), `episodes` (at most 30 on Atari),
    `first_seed`.
    """

    name: str
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    schema_version: int = 1
    timed: bool = False

    def cells(self, parameters: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The matrix: (cell, budget) of every policy, way of training and seed.

        Raises:
            QuarlError: an unknown policy, precision or regularizer, one that the policy cannot be
                trained with, a policy that this study cannot train, or a number out of its range.
        """
        found = []
        regularized, replicated, at_8_bits, single = (
            [get_recipe(name).name for name in parameters[group]]
            for group in ("regularized", "replicated", "replicated_at_8_bits", "single")
        )
        for name in parameters["policies"]:
            recipe = get_recipe(name)
            _check_can_train(recipe)
            ways = list(_ways(parameters, recipe, name in regularized))
            budget = _budget(parameters, recipe)
            seeds = parameters["seeds"][:1] if name in single else parameters["seeds"]
            for precision, method, regularizer in ways:
                # Beside its own returns a float32 policy has those of its quantized copies.
                ptq = {"ptq": parameters["ptq"]} if method == regularizer == "none" else {}
                compared = method != "lsq" and regularizer == "none"
                again = name in replicated or (
                    name in at_8_bits and precision in ("fp32", "affine8")
                )
                more = parameters["more_seeds"] if compared and again else ()
                for seed in (*seeds, *more):
                    cell = {"policy": name, "algo": recipe.algo, "env_id": recipe.env_id,
                            "precision": precision, "method": method,
                            "regularizer": regularizer, "seed": seed}  # fmt: skip
                    found.append((cell, budget | ptq))
        return found

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Train one policy and run its episodes."""
        torch.set_num_threads(1)
        keep_freed_memory()
        recipe = replace(float32_recipe(cell["policy"]), timesteps=budget["timesteps"])
        model = make_model(recipe, cell["seed"])
        assert model.env is not None
        try:
            callbacks, export = prepare(model, recipe, cell, budget["quant_delay"])
            schedule = Schedule(recipe.timesteps, budget["quant_delay"], budget["evaluations"],
                                budget["eval_episodes"])  # fmt: skip
            trained = train_watched(model, recipe.env_id, schedule, export, callbacks)
        finally:
            model.env.close()
        seeds = episode_seeds(budget)
        result = evaluate(trained.net, recipe.env_id, seeds)
        weights = weight_statistics(trained.net, parse_precision("affine8"))
        measured = {
            **result.as_measured(),
            **trained.as_measured(),
            "timesteps": model.num_timesteps,
            **{name: [row[name] for row in weights]
               for name in ("layer", "range", "std", "range_over_std")},
        }  # fmt: skip
        if "ptq" in budget:
            measured["ptq_returns"] = {
                precision: evaluate(
                    quantize_policy(trained.net, parse_precision(precision), recipe.env_id),
                    recipe.env_id, seeds,
                ).as_measured()["returns"]
                for precision in budget["ptq"]
            }  # fmt: skip
        extra = {"hyperparameters_source": recipe.source}
        return Measurement(measured, backend="simulated", arrays=trained.curves, extra=extra)


def float32_recipe(name: str) -> Recipe:
    """A policy's recipe as this study trains it: all layers in float32.

    bfloat16 has not all the levels of 8 bits: 235 of 256 in a range that ends at 1.3.
    """
    recipe = replace(get_recipe(name), half_precision=False)
    return recipe.with_features(precision="fp32") if is_atari(recipe.env_id) else recipe


def _check_can_train(recipe: Recipe) -> None:
    """Refuse what `train_watched` would train as something else than its recipe says."""
    if recipe.curriculum or recipe.judged_in:
        needs = "a curriculum" if recipe.curriculum else f"evaluations in {recipe.judged_in}"
        raise QuarlError(
            f"{recipe.name} needs {needs}, which the study qat has not; the study navigation "
            "trains navigation policies on with quantization"
        )


def _ways(
    parameters: Mapping[str, Any], recipe: Recipe, regularized: bool
) -> Iterator[tuple[str, str, str]]:
    """(precision, method, regularizer) of every way to train this policy, each checked."""
    for precision in parameters["precisions"]:
        if precision == "fp32":
            yield precision, "none", "none"
        else:
            trained_bits(precision)
            yield precision, "minmax", "none"
    for precision in parameters["lsq"]:
        trained_bits(precision)
        yield precision, "lsq", "none"
    for regularizer in parameters["regularizers"]:
        check_choice("regularizer", regularizer, (LAYER_NORM, *NOISE))
        if not regularized:
            continue
        if regularizer == LAYER_NORM and is_atari(recipe.env_id):
            raise QuarlError(f"{recipe.name}: layer_norm is for policies without convolutions")
        yield "fp32", "none", regularizer
    for precision in parameters["ptq"]:
        parse_precision(precision)


def _budget(parameters: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    fraction, timesteps = parameters["quant_delay"], parameters["max_timesteps"]
    if not 0 <= fraction < 1:
        raise QuarlError(f"quant_delay {fraction} is no fraction of the run: allowed 0 to below 1")
    counts = ("max_timesteps", "ddpg_timesteps", "atari_timesteps", "evaluations",
              "eval_episodes", "episodes")  # fmt: skip
    check_counts(1, **{name: parameters[name] for name in counts})
    check_seeds(*parameters["seeds"], *parameters["more_seeds"])
    timesteps = min(timesteps, recipe.timesteps)
    if recipe.algo == "ddpg":
        timesteps = min(timesteps, parameters["ddpg_timesteps"])
    if is_atari(recipe.env_id):
        timesteps = min(timesteps, parameters["atari_timesteps"])
    episodes = episodes_in(recipe.env_id, parameters["episodes"])
    check_episode_seeds(parameters["first_seed"], episodes)
    return {"timesteps": timesteps, "quant_delay": int(fraction * timesteps),
            "evaluations": parameters["evaluations"],
            "eval_episodes": parameters["eval_episodes"],
            "episodes": episodes, "first_seed": parameters["first_seed"]}  # fmt: skip


def trained_bits(precision: str) -> int:
    """4 of affine4.

    Raises:
        QuarlError: QAT has no such precision.
    """
    parsed = parse_precision(precision)
    if parsed.weight is None or not precision.startswith("affine"):
        raise QuarlError(f"no QAT in precision {precision!r}: only in affine2..affine16")
    return parsed.weight.bits


def prepare(
    model: BaseAlgorithm, recipe: Recipe, cell: Mapping[str, Any], quant_delay: int
) -> tuple[list[BaseCallback], Export]:
    """Make a model train as its cell says: callbacks for `learn`, and how to get its policy."""

    def plain(model: BaseAlgorithm) -> PolicyNet:
        return policy_from_model(model, env_id=recipe.env_id).with_head(recipe.head)

    def quantized(model: BaseAlgorithm) -> PolicyNet | None:
        net = exported_qat(model, env_id=recipe.env_id)
        return net and net.with_head(recipe.head)

    if cell["regularizer"] == LAYER_NORM:
        normalize_hidden_layers(model)
        return [], lambda model: with_layer_norm(plain(model))
    if noise_bits := NOISE.get(cell["regularizer"]):
        callback = prepare_qat(model, noise_bits, quant_delay=quant_delay)
        noise_for_quantization(model)
        return [callback], quantized
    if cell["precision"] == "fp32":
        return [], plain
    bits = trained_bits(cell["precision"])
    check_choice("quantization-aware method", cell["method"], METHODS)
    callback = prepare_qat(model, bits, quant_delay=quant_delay, method=cell["method"])
    return [callback], quantized


WIDTHS = [f"affine{bits}" for bits in range(2, 9)]
CLASSIC = ["ppo-CartPole-v1", "a2c-CartPole-v1", "dqn-CartPole-v1"]
SMOKE = {"policies": ["ppo-CartPole-v1"], "precisions": ["fp32", "affine4"], "lsq": [],
         "ptq": ["affine8"], "regularizers": [], "regularized": [], "seeds": [0],
         "replicated": [], "replicated_at_8_bits": [], "more_seeds": [], "single": [],
         # Of 300,000 and 250,000 steps, DDPG's best policies in `data/policies` took 80,000
         # (MountainCar) and 50,000 (HalfCheetah). On MsPacman PPO earned 549 after 100,000, where
         # random play earns 273; on Pong it stayed at -21 for 500,000.
         "max_timesteps": 2_048, "ddpg_timesteps": 100_000, "atari_timesteps": 200_000,
         "quant_delay": 0.5, "evaluations": 2, "eval_episodes": 3, "episodes": 5,
         "first_seed": FIRST_SEED}  # fmt: skip
QUICK = SMOKE | {"policies": CLASSIC[:2], "precisions": ["fp32", "affine8", "affine4", "affine2"],
                 "ptq": ["affine8", "int8"], "max_timesteps": 10_000, "evaluations": 2,
                 "eval_episodes": 5, "episodes": 20}  # fmt: skip
# The three kinds of Figure 5: classic control, MuJoCo (for PyBullet), Atari.
MOUNTAIN_CAR = [f"{algo}-MountainCarContinuous-v0" for algo in ("ppo", "a2c", "ddpg")]
HALF_CHEETAH = [f"{algo}-HalfCheetah-v5" for algo in ("ppo", "a2c", "ddpg")]
FULL = QUICK | {
    "policies": [
        *CLASSIC, *MOUNTAIN_CAR, *HALF_CHEETAH,
        *(f"{algo}-MsPacmanNoFrameskip-v4" for algo in ("ppo", "a2c", "dqn")),
    ],
    "precisions": ["fp32", *WIDTHS], "lsq": ["affine2", "affine3", "affine4"],
    "ptq": [*WIDTHS, "int8"], "regularizers": [LAYER_NORM, "noise2", "noise4", "noise6", "noise8"],
    "regularized": [*CLASSIC, "ppo-HalfCheetah-v5", "a2c-HalfCheetah-v5"], "seeds": [0, 1, 2],
    # Three trainings that all earn an environment's most show nothing at 5 % (1/8), five do; that
    # most of several policies lose nothing takes more.
    "replicated": [*CLASSIC, *MOUNTAIN_CAR[:2]], "more_seeds": [3, 4, 5, 6, 7],
    # What three seeds left open at the width that most claims are of; trained at all widths with
    # eight they would take a day.
    "replicated_at_8_bits": [*HALF_CHEETAH, "a2c-MsPacmanNoFrameskip-v4"],
    # A training on Atari takes A2C seven minutes, PPO a quarter of an hour, DQN more.
    "single": ["ppo-MsPacmanNoFrameskip-v4", "dqn-MsPacmanNoFrameskip-v4"],
    "max_timesteps": 500_000, "evaluations": 10, "episodes": 100,
}  # fmt: skip

QAT = QATStudy("qat", {"smoke": SMOKE, "quick": QUICK, "full": FULL})
