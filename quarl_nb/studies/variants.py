"""Why ActorQ works: what is quantized, how, and with which algorithm (section 2, not timed).

Every cell is one run of the loop in one process (`serial`), which repeats bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor

from quarl_nb.actorq.algorithms import make_algorithm
from quarl_nb.errors import check_choice, check_counts, check_seeds
from quarl_nb.quant import (
    QParams,
    affine_qparams,
    fake_quantize,
    float8_quantize_dequantize,
    noise_like_error,
    quantile_quantize_dequantize,
    stochastic_quantize_dequantize,
    weight_matrices,
)
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.studies.actorq_training import train_evaluated
from quarl_nb.study import Measurement

Rounding = Callable[[Tensor, torch.Generator], Tensor]


def _qparams(x: Tensor) -> QParams:
    return affine_qparams(x.min(), x.max(), bits=8)


def _nearest(x: Tensor, _: torch.Generator) -> Tensor:
    """On 256 levels from the least to the greatest weight, affine: a step of (max - min) / 255."""
    return fake_quantize(x, _qparams(x))


def _stochastic(x: Tensor, generator: torch.Generator) -> Tensor:
    return stochastic_quantize_dequantize(x, _qparams(x), generator)


def _noise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian noise as large (rms) as the error of `_nearest`.

    int8 actors round to a step that is wider, unless weights reach as far down as up: theirs are
    symmetric, max |w| / 127 apart.
    """
    return x + noise_like_error(x, _nearest(x, generator), generator)


@dataclass(frozen=True)
class Variant:
    """What differs from a run in full precision.

    Attributes:
        precision: that actors compute in.
        published: what is done to each weight matrix that actors get.
        learned: what is done to each of the learner's weight matrices after each of its updates.
    """

    precision: str = "fp32"
    published: Rounding | None = None
    learned: Rounding | None = None


VARIANTS = {
    "fp32": Variant(),
    "int8": Variant(precision="int8"),
    "float8": Variant(published=lambda x, _: float8_quantize_dequantize(x)),
    "quantile8": Variant(published=lambda x, _: quantile_quantize_dequantize(x, bits=8)),
    "noise8": Variant(published=_noise),
    "learner8": Variant(learned=_nearest),
    "learner8_stochastic": Variant(learned=_stochastic),
}


@dataclass(frozen=True)
class Training:
    """How an algorithm is trained: on a task that takes a minute with small networks."""

    env_id: str
    steps: int
    updates_per_step: float
    options: Mapping[str, Any]


# Ours, so that a training fails rarely: one that does outweighs what int8 could cost. Found in full
# precision on three to six training seeds from 1000 on, which the study does not use. DQN at a
# constant rate can forget what it knew (one training of 24 ended at 106), and D4PG with Acme's
# targets, copied every 100 updates, and actor steps of 1e-3 saturates its actor for good (4 of 24).
# The RL Zoo's are for other sizes (CartPole) or need hours with fewer updates (MuJoCo).
_SHARED = dict(batch_size=64, buffer_size=100_000, learning_starts=1000)
_DQN = _SHARED | dict(learning_rate="lin_1e-3", target_update_interval=200, n_steps=5,
                      exploration_fraction=0.16, exploration_final_eps=0.1)  # fmt: skip
_FALLING = _SHARED | dict(learning_rate="lin_1e-3")
_D4PG = _FALLING | dict(actor_learning_rate=2e-4, n_steps=1, tau=0.005, target_update_period=1,
                        v_min=-1600.0, v_max=0.0)  # fmt: skip
TRAININGS = {
    "dqn": Training("CartPole-v1", 50_000, 0.5, _DQN),
    "ddpg": Training("Pendulum-v1", 15_000, 1.0, _FALLING),
    "td3": Training("Pendulum-v1", 20_000, 1.0, _FALLING),
    "sac": Training("Pendulum-v1", 10_000, 1.0, _SHARED | dict(learning_rate=1e-3)),
    "d4pg": Training("Pendulum-v1", 15_000, 1.0, _D4PG),
}


@dataclass(frozen=True)
class VariantStudy:
    """Algorithms x variants x training seeds.

    Parameters: `algos` (of `TRAININGS`), `variants` (of `VARIANTS`), `seeds`, `more_seeds` (of the
    variants in `replicated`), `width` (of the three hidden layers of policy and critics), `steps`
    (environment steps, 0: the training's own), `evaluations` of the learner's policy along the run
    and `episodes` each.
    """

    name: str
    profiles: Mapping[str, Mapping[str, Any]] = field(hash=False)
    schema_version: int = 1
    timed: bool = False

    def cells(self, parameters: Mapping[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The matrix: (cell, budget) of every algorithm, variant and seed."""
        counts = ("width", "evaluations", "episodes")
        check_counts(1, **{name: parameters[name] for name in counts})
        check_counts(0, steps=parameters["steps"])
        check_seeds(*parameters["seeds"], *parameters["more_seeds"])
        for variant in (*parameters["variants"], *parameters["replicated"]):
            check_choice("variant", variant, VARIANTS)
        found = []
        for algo, variant in product(parameters["algos"], parameters["variants"]):
            training = TRAININGS[check_choice("algorithm of the study", algo, TRAININGS)]
            budget = {name: parameters[name] for name in ("evaluations", "episodes")}
            budget["steps"] = parameters["steps"] or training.steps
            budget["updates_per_step"] = training.updates_per_step
            budget["options"] = dict(training.options)
            more = parameters["more_seeds"] if variant in parameters["replicated"] else []
            for seed in (*parameters["seeds"], *more):
                cell = {"algo": algo, "env_id": training.env_id, "variant": variant,
                        "width": parameters["width"], "seed": seed}  # fmt: skip
                found.append((cell, budget))
        return found

    def measure(self, cell: Mapping[str, Any], budget: Mapping[str, Any]) -> Measurement:
        """Train once; afterwards evaluate what the learner's policy was along the run."""
        torch.set_num_threads(1)
        variant, options = VARIANTS[cell["variant"]], budget["options"]
        algorithm = make_algorithm(
            cell["algo"], cell["env_id"], cell["width"], cell["seed"],
            critic_width=cell["width"], **options,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(cell["seed"])
        if variant.learned is not None:
            round_after_updates(algorithm, variant.learned, generator)
        quantizer = variant.published and published_as(variant.published, generator)
        settings = dict(precision=variant.precision, n_actors=1, pull_period=100,
                        samples_per_insert=budget["updates_per_step"] * options["batch_size"],
                        seed=cell["seed"])  # fmt: skip
        result, curve = train_evaluated(
            algorithm, cell["env_id"], budget, engine="serial", quantizer=quantizer, **settings
        )
        measured = {name: curve[name] for name in ("curve_steps", "curve_updates", "curve_returns")}
        return Measurement(
            measured | {"steps": result.steps, "updates": result.updates}, backend="onnxruntime"
        )


def published_as(
    rounding: Rounding, generator: torch.Generator
) -> Callable[[PolicyNet], PolicyNet]:
    """`ActorQ`'s quantizer that applies `rounding` to every weight matrix."""

    def quantizer(net: PolicyNet) -> PolicyNet:
        tensors = dict(net.state_dict())
        tensors |= {name: rounding(w.detach(), generator) for name, w in weight_matrices(net)}
        return PolicyNet(net.spec, tensors)

    return quantizer


def round_after_updates(
    algorithm: OffPolicyAlgorithm, rounding: Rounding, generator: torch.Generator
) -> None:
    """Hold the algorithm's weight matrices in low precision: whenever one of its optimizers made a
    step, actor's and critics' are rounded in place. Optimizer state and biases stay float32."""

    def round_weights(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        with torch.no_grad():
            for weight in (p for group in optimizer.param_groups for p in group["params"]):
                if weight.ndim > 1:
                    weight.copy_(rounding(weight, generator))

    for module in algorithm.policy.modules():
        optimizer = getattr(module, "optimizer", None)
        if isinstance(optimizer, torch.optim.Optimizer):
            optimizer.register_step_post_hook(round_weights)


SMOKE = {"algos": ["dqn"], "variants": ["fp32", "int8", "noise8", "learner8"], "seeds": [0],
         "replicated": [], "more_seeds": [],
         "width": 32, "steps": 2000, "evaluations": 2, "episodes": 2}  # fmt: skip
QUICK = SMOKE | {"algos": ["dqn", "ddpg"], "variants": [*VARIANTS], "seeds": [0, 1], "steps": 4000,
                 "evaluations": 4, "episodes": 5}  # fmt: skip
# Whether these cost an algorithm 5 % takes more trainings than whether rounding to nearest does.
FULL = QUICK | {"algos": [*TRAININGS], "seeds": [*range(8)], "width": 64, "steps": 0,
                "replicated": ["fp32", "int8", "learner8_stochastic"],
                "more_seeds": [*range(8, 24)], "evaluations": 20, "episodes": 10}  # fmt: skip
ACTORQ_VARIANTS = VariantStudy("actorq_variants", {"smoke": SMOKE, "quick": QUICK, "full": FULL})
