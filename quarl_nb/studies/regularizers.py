"""What quantization-aware training is compared with: noise on the weights, layer normalization."""

from __future__ import annotations

from dataclasses import replace

from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn
from torch.nn import functional as F

from quarl_nb.quant import noise_like_error
from quarl_nb.quant.minmax import WeightQuantizer
from quarl_nb.quant.qat import qat_layers
from quarl_nb.rl.layers import Layer
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.qat_networks import qat_networks


class WeightNoise(WeightQuantizer):
    """Gaussian noise on a weight, anew at each use, as large (rms) as its quantization error.

    It separates what quantization does from what noise of its size does. The exported policy is
    the one without noise.
    """

    repeatable = False

    def __init__(self, bits: int) -> None:
        super().__init__(bits, per_channel=False)

    def quantize(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        if not self.enabled:
            return x
        weight = x.detach()
        return x + noise_like_error(weight, super().quantize(weight))


def noise_for_quantization(model: BaseAlgorithm) -> None:
    """Put weight noise where `prepare_qat` has put quantizers, in place; activations stay exact."""
    for layer in qat_layers([model.policy]):
        layer.add_module("weight_quantizer", WeightNoise(layer.weight_quantizer.bits))
        layer.add_module("input_quantizer", nn.Identity())


class _NormalizedLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(super().forward(x), (self.out_features,))


def normalize_hidden_layers(model: BaseAlgorithm) -> None:
    """Layer normalization (Ba et al. 2016), without gain and bias, in place.

    After each hidden Linear layer of the networks that act (those that QAT quantizes) and of their
    targets. Parameters and their names stay what they are.
    """
    for parts in qat_networks(model):
        linear = [m for part in parts for m in part.modules() if isinstance(m, nn.Linear)]
        for layer in linear[:-1]:
            layer.__class__ = _NormalizedLinear


def with_layer_norm(net: PolicyNet) -> PolicyNet:
    """`net` with layer normalization after each Linear layer but the last."""
    last = max(i for i, layer in enumerate(net.spec.layers) if layer.kind == "linear")
    layers: list[Layer] = []
    tensors: dict[str, Tensor] = {}
    for i, (layer, module) in enumerate(zip(net.spec.layers, net.layers, strict=True)):
        tensors |= {f"layers.{len(layers)}.{name}": t for name, t in module.state_dict().items()}
        layers.append(layer)
        if layer.kind == "linear" and i != last:
            size = {"normalized_shape": [layer.options["out_features"]]}
            layers.append(Layer("layer_norm", size | {"elementwise_affine": False}))
    return PolicyNet(replace(net.spec, layers=tuple(layers)), tensors)
