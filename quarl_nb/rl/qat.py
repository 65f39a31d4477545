"""Quantization-aware training of stable-baselines3 algorithms by their own, unmodified `learn`.

>>> model.learn(1_000_000, callback=prepare_qat(model, bits=4, quant_delay=500_000))
>>> net = export_qat(model)
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import get_parameters_by_name
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant.affine import check_bits
from quarl_nb.quant.lsq import LearnedStep
from quarl_nb.quant.qat import QATLayer, qat_layers, quantize_aware
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.qat_networks import (
    is_quantized,
    qat_algorithm,
    qat_networks,
    training_quantizers,
)
from quarl_nb.rl.quant_delay import QuantDelay
from quarl_nb.rl.sb3.convert import policy_from_model
from quarl_nb.rl.sb3.environment import env_id_of
from quarl_nb.rl.sb3.layers import Tensors

# The acting network, and what SB3 calls the list of its statistics that the target copies.
STATISTICS = {
    "dqn": ("q_net", "batch_norm_stats"),
    "ddpg": ("actor", "actor_batch_norm_stats"),
    "td3": ("actor", "actor_batch_norm_stats"),
    "d4pg": ("actor", "actor_batch_norm_stats"),
}


def prepare_qat(
    model: BaseAlgorithm,
    bits: int,
    *,
    quant_delay: int = 0,
    per_channel: bool = False,
    method: str = "minmax",
) -> QuantDelay:
    """Make a model's policy quantization-aware, in place; give the result to `learn` as callback.

    Quantized are the networks that act (a convolutional features extractor that actor and critic
    share included) and their target networks: weights, and activations where they enter a layer.
    Observations are not. Critics stay float32: only the actor is deployed, and a coarse critic
    would change the algorithm; so does SAC's log-std layer, which only explores. The paper's code
    differs: `tf.contrib.quantize` rewrote the whole graph of A2C, PPO and DDPG, critics included,
    and quantized what leaves a layer (after a relu, before a tanh), so also the last one's output.

    Before the delay the policy is float32 and ranges are observed; after it, training and the
    collection of data both use the quantized policy. Only batches of training move the ranges:
    SB3 collects data and evaluates in evaluation mode, where they are frozen. Quantization begins
    no earlier than every layer has seen such a batch, also without a delay; but of a `minmax`
    policy of one layer, whose weights alone are quantized, at the first step after the delay.

    To reopen a saved model: make it anew, `prepare_qat` it with the same arguments, then
    `model.set_parameters(zip)`, which runs no pickle. (`load` and `load_policy` fail on it:
    they know no quantizers.)

    Args:
        model: A2C, PPO, DQN, DDPG, TD3, SAC or `quarl_nb.rl.d4pg.D4PG`, with networks that
            `export_qat` can export.
        bits: of weights and activations, 2 to 16.
        quant_delay: environment steps before quantization (the paper's Table 5: 500,000 for DQN),
            of all that the model has made: with `reset_num_timesteps=False`, earlier runs count.
        per_channel, method: see `quantize_aware`.

    Raises:
        QuarlError: an unsupported algorithm, layer or option, or prepared already.
    """
    _check_is_algorithm(model, "prepare_qat")
    algo = qat_algorithm(model)
    bits = check_bits(bits)
    callback = QuantDelay(quant_delay)
    networks = qat_networks(model)
    if algo == "sac":
        _check_own_extractor(model.policy)
    if not any(qat_layers(networks[0])):
        # What cannot be exported is refused before it is trained.
        policy_from_model(model, env_id=env_id_of(model))
    for parts in networks:
        quantize_aware(parts, bits, per_channel, method)
    steps = [q.step for q in training_quantizers(networks[0]) if isinstance(q, LearnedStep)]
    if steps:
        owner: Any = getattr(model.policy, "actor", model.policy)
        # Decay would draw weights to 0, and steps with it to no levels at all.
        owner.optimizer.add_param_group({"params": steps, "weight_decay": 0.0})
    _follow_statistics(model, algo)
    return callback


def export_qat(model: BaseAlgorithm, env_id: str | None = None) -> PolicyNet:
    """The quantized policy by itself: weights on their levels, activations rounded by layers.

    Its outputs are those of `model` in evaluation mode, bit for bit (`FastNatureCNN` and
    `HalfDQNPolicy` compute in bfloat16, this in float32). Min-max PTQ at the same bits (with
    `ranges="per_channel"` where it was trained `per_channel`) leaves a `minmax` policy as it is, to
    float32 rounding of the scales: weights on levels have the same range and levels again. That
    holds for `lsq` only where a weight uses both its outermost levels.

    Raises:
        QuarlError: never quantized: not prepared, trained without the callback, or too briefly.
    """
    _check_is_algorithm(model, "export_qat")
    if not is_quantized(model):
        raise QuarlError(
            "the policy is not quantized: train it by learn(..., callback=prepare_qat(model, ...)) "
            "for longer than the delay and the warm-up"
        )
    layers = list(qat_layers(qat_networks(model)[0]))
    # Copies of the outer objects alone, so that the model itself stays as it is.
    plain = copy.copy(model)
    plain.policy = copy.copy(model.policy)
    tensors = _plain_tensors(model.policy)
    plain.policy.state_dict = lambda: tensors  # type: ignore[assignment]  # on the copy
    return _with_activations(policy_from_model(plain, env_id=env_id), layers)


def exported_qat(model: BaseAlgorithm, env_id: str | None = None) -> PolicyNet | None:
    """`export_qat`, or None while quantization has not begun."""
    return export_qat(model, env_id=env_id) if is_quantized(model) else None


def _check_is_algorithm(model: Any, function: str) -> None:
    if not isinstance(model, BaseAlgorithm):
        kind = type(model).__name__
        raise QuarlError(f"{function} takes a stable-baselines3 algorithm, not {kind}")


def _plain_tensors(policy: nn.Module) -> Tensors:
    """The state of `policy` without quantizers and with weights on their levels."""
    tensors = dict(policy.state_dict())
    for name, module in policy.named_modules(remove_duplicate=False):
        if isinstance(module, QATLayer):
            weight = f"{name}.weight"
            tensors[weight] = module.weight_quantizer.quantize(tensors[weight])
    return {name: t for name, t in tensors.items() if "_quantizer." not in name}


def _with_activations(net: PolicyNet, layers: list[QATLayer]) -> PolicyNet:
    """`net`, whose weight layers are `layers`, with their input quantizers before them."""
    spec: list[Layer] = []
    tensors: dict[str, torch.Tensor] = {}
    remaining = iter(layers)
    for layer, module in zip(net.spec.layers, net.layers, strict=True):
        if layer.kind in ("linear", "conv2d"):
            quantizer = next(remaining).input_quantizer
            if not isinstance(quantizer, nn.Identity):
                qparams = quantizer.qparams()
                tensors[f"layers.{len(spec)}.scale"] = qparams.scale
                tensors[f"layers.{len(spec)}.zero_point"] = qparams.zero_point
                spec.append(Layer("fixed_quantize", {"bits": quantizer.bits}))
        tensors |= {f"layers.{len(spec)}.{name}": t for name, t in module.state_dict().items()}
        spec.append(layer)
    return PolicyNet(replace(net.spec, layers=tuple(spec)), tensors)


def _check_own_extractor(policy: Any) -> None:
    """Refuse SAC's shared convolutions, which its critic would use quantized, its target not."""
    extractor = policy.actor.features_extractor
    if extractor is policy.critic.features_extractor and list(extractor.parameters()):
        raise QuarlError("QAT of SAC needs share_features_extractor=False: its target critic "
                         "has an extractor of its own")  # fmt: skip


def _follow_statistics(model: BaseAlgorithm, algo: str) -> None:
    """Let the target network copy ranges as SB3 lets it copy those of batch normalization.

    SB3 lists the tensors named ``running_*`` when a model is made; they are there only now.
    """
    if algo in STATISTICS:
        network, name = STATISTICS[algo]
        for suffix in ("", "_target"):
            tensors = get_parameters_by_name(getattr(model, network + suffix), ["running_"])
            setattr(model, name + suffix, tensors)
