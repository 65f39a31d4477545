"""Which parts of a stable-baselines3 algorithm are trained quantized, and their quantizers."""

from __future__ import annotations

from stable_baselines3.common.base_class import BaseAlgorithm
from torch import nn

from quarl_nb.errors import check_choice
from quarl_nb.quant.qat import qat_layers
from quarl_nb.quant.training import TrainingQuantizer
from quarl_nb.rl.sb3.layers import algorithm_of

_ON_POLICY = ("pi_features_extractor", "mlp_extractor.policy_net", "action_net")
# The parts of an algorithm's policy that act, in the order in which they run.
ACTING: dict[str, tuple[str, ...]] = {
    "a2c": _ON_POLICY,
    "ppo": _ON_POLICY,
    "dqn": ("q_net",),
    "ddpg": ("actor",),
    "td3": ("actor",),
    "d4pg": ("actor",),
    "sac": ("actor.features_extractor", "actor.latent_pi", "actor.mu"),
}


def qat_algorithm(model: BaseAlgorithm) -> str:
    """The algorithm's name in lower case.

    Raises:
        QuarlError: not one of `ACTING`.
    """
    algo = algorithm_of(model.policy.state_dict(), vars(model))
    return check_choice("algorithm for QAT", algo, ACTING)


def qat_networks(model: BaseAlgorithm) -> list[list[nn.Module]]:
    """The parts of the acting network, then those of its target network if there is one."""
    names = ACTING[qat_algorithm(model)]
    targets = tuple(f"{name}_target" for name in names)
    known = [names, targets] if hasattr(model.policy, targets[0]) else [names]
    return [[model.policy.get_submodule(name) for name in network] for network in known]


def training_quantizers(parts: list[nn.Module]) -> list[TrainingQuantizer]:
    """Those of all layers of `parts` that `quantize_aware` has prepared."""
    return [quantizer for layer in qat_layers(parts) for quantizer in layer.quantizers()]


def is_quantized(model: BaseAlgorithm) -> bool:
    """Whether `model` is quantization-aware and its delay is over."""
    quantizers = [q for parts in qat_networks(model) for q in training_quantizers(parts)]
    return bool(quantizers) and all(q.enabled for q in quantizers)
