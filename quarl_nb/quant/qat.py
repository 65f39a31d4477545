"""Quantization-aware training: layers that compute with quantized weights and activations.

Jacob et al. 2018 (arXiv 1712.05877), section 3; Krishnamoorthi 2018 (arXiv 1806.08342), 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.quant.affine import check_bits
from quarl_nb.quant.convert import check_no_matrix
from quarl_nb.quant.lsq import LearnedStep
from quarl_nb.quant.minmax import InputQuantizer, WeightQuantizer
from quarl_nb.quant.training import TrainingQuantizer

METHODS = ("minmax", "lsq")


class QATLayer(nn.Module):
    """What Linear and Conv2d become: `weight` reads as quantized, the parameter stays float32.

    Attributes:
        weight_quantizer: of the weight.
        input_quantizer: of what enters; Identity in the first layer of a network.
        holding: True while nothing trains, so that decisions may share one quantized weight; or a
            function that gives another number before the weight changes past its version.
    """

    weight_quantizer: WeightQuantizer | LearnedStep
    input_quantizer: InputQuantizer | LearnedStep | nn.Identity
    _holding: bool | Callable[[], int] = False
    _held: tuple[Tensor, tuple[int, int]] | None = None

    @property
    def weight(self) -> Tensor:
        """The weight on its levels (as it is before `start`), shape [out, ...]."""
        weight: Tensor = self._parameters["weight"]  # type: ignore[assignment]  # never None
        quantizer = self.weight_quantizer
        acting = not (self.training or torch.is_grad_enabled())
        if not (self._holding and acting and quantizer.enabled and quantizer.repeatable):
            return quantizer(weight)
        changes = self._holding() if callable(self._holding) else 0
        if self._held is None or self._held[1] != (weight._version, changes):
            self._held = quantizer(weight), (weight._version, changes)
        return self._held[0]

    @property
    def holding(self) -> bool | Callable[[], int]:
        return self._holding

    @holding.setter
    def holding(self, holding: bool | Callable[[], int]) -> None:
        self._holding, self._held = holding, None

    def __getstate__(self) -> dict[str, Any]:
        """A copy holds nothing: what counts the changes of this weight knows nothing of others."""
        return {name: v for name, v in vars(self).items() if name not in ("_holding", "_held")}

    def train(self, mode: bool = True) -> Self:
        """As of any module; training changes the weight (fused Adam without a new version)."""
        if mode:
            self._held = None
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.input_quantizer(x))

    def quantizers(self) -> list[TrainingQuantizer]:
        """One for the weight and, except in a first layer, one for the input."""
        both = (self.weight_quantizer, self.input_quantizer)
        return [quantizer for quantizer in both if isinstance(quantizer, TrainingQuantizer)]


class QATLinear(QATLayer, nn.Linear):  # type: ignore[override]  # weight is a property here
    """`nn.Linear`, quantization-aware."""


class QATConv2d(QATLayer, nn.Conv2d):  # type: ignore[override]  # weight is a property here
    """`nn.Conv2d`, quantization-aware."""


QAT_LAYERS: dict[type[nn.Module], type[QATLayer]] = {nn.Linear: QATLinear, nn.Conv2d: QATConv2d}


def quantize_aware(
    modules: Iterable[nn.Module], bits: int, per_channel: bool = False, method: str = "minmax"
) -> list[QATLayer]:
    """Make a network's Linear and Conv2d layers quantization-aware, in place.

    Weights, and the activations that enter every layer but the first, are quantized to `bits`
    once `start` of their quantizers is called. What enters the first layer is an observation, not
    an activation; biases stay float32. Layers, parameters and their names stay what they are, so
    that optimizers and references go on working.

    Args:
        modules: the parts of the network, in the order in which they run.
        bits: 2 to 16.
        per_channel: weights have a range for each output channel; minmax only.
        method: `minmax`, the range of the weight and the monitored range of activations; `lsq`,
            learned steps, whose parameters the caller gives to an optimizer.

    Returns:
        the layers, in order.

    Raises:
        QuarlError: an option is wrong, a layer is of another kind or quantized already, or there
            is none; nothing has been changed then.
    """
    check_choice("quantization-aware method", method, METHODS)
    if method == "lsq" and per_channel:
        raise QuarlError("learned steps are per tensor: per_channel=True needs method='minmax'")
    check_bits(bits)
    layers = list(dict.fromkeys(_plain_layers(modules)))  # a part that runs twice is one
    if not layers:
        raise QuarlError("nothing to quantize: the network has no Linear or Conv2d layer")
    for i, layer in enumerate(layers):
        learned = method == "lsq"
        weight = LearnedStep(bits, False) if learned else WeightQuantizer(bits, per_channel)
        activation = LearnedStep(bits, True) if learned else InputQuantizer(bits)
        device = layer.get_parameter("weight").device
        layer.add_module("weight_quantizer", weight.to(device))
        layer.add_module("input_quantizer", activation.to(device) if i else nn.Identity())
        # As torch.nn.utils.parametrize does, which however renames the parameters.
        layer.__class__ = QAT_LAYERS[type(layer)]
        layer.train(layer.training)
    return list(qat_layers(layers))


def _plain_layers(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    for module in modules:
        for name, layer in module.named_modules():
            if type(layer) in QAT_LAYERS:
                yield layer
            elif isinstance(layer, QATLayer):
                raise QuarlError(f"layer {name!r} is quantization-aware already")
            else:
                check_no_matrix(name, layer, QAT_LAYERS)


def qat_layers(modules: Iterable[nn.Module]) -> Iterator[QATLayer]:
    """The quantization-aware layers of `modules`, in order."""
    for module in modules:
        yield from (layer for layer in module.modules() if isinstance(layer, QATLayer))
