"""torch behind `Engine`: the policy's own modules in fp32, fp16 or bf16, eager, on the CPU."""

from __future__ import annotations

import json

import numpy as np
import torch
from torch import nn

from quarl_nb.errors import QuarlError, brief, check_choice
from quarl_nb.inference.engine import check_observations, forwards
from quarl_nb.inference.payload import Payload
from quarl_nb.inference.weights import check_finite, from_numpy, to_numpy
from quarl_nb.rl.layers import INPUT_DTYPES
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.spec import PolicySpec

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Those of `fixed_quantize` are the levels that it was trained with, from a float32 scale.
_UNCAST = (*INPUT_DTYPES, "fixed_quantize")


def describe(net: PolicyNet, precision: str) -> tuple[bytes, dict[str, np.ndarray]]:
    """A policy's description as JSON, and its tensors, cast but for those of `_UNCAST` layers.

    Raises:
        QuarlError: NaN or infinite weights (named), a recurrent policy, or another layer before one
            that takes raw observations.
    """
    if net.recurrent:
        raise QuarlError("layer 'gru_cell' cannot run: engines keep no state between observations")
    takes_raw = [layer.kind in INPUT_DTYPES for layer in net.spec.layers]
    if takes_raw != sorted(takes_raw, reverse=True):  # `TorchEngine` runs these before it casts
        i = takes_raw.index(True, takes_raw.index(False))
        raise QuarlError(f"layer 'layers.{i}' ({net.spec.layers[i].kind}) cannot run in torch: it "
                         "must be before all that compute")  # fmt: skip
    tensors = {}
    for i, (layer, module) in enumerate(zip(net.spec.layers, net.layers, strict=True)):
        for name, tensor in module.state_dict(prefix=f"{i}.").items():
            if tensor.is_floating_point():
                if layer.kind not in _UNCAST:
                    tensor = tensor.to(DTYPES[precision])
                check_finite(tensor, f"layers.{name}", precision)
            tensors[name] = to_numpy(tensor)
    return json.dumps(net.spec.to_json()).encode(), tensors


class TorchEngine:
    """Eager modules; threads are as the process has set them."""

    def __init__(self, content: Payload, payload_bytes: int) -> None:
        self.payload_bytes = payload_bytes
        self._shape, self._dtype = content.obs_shape, np.dtype(content.obs_dtype)
        check_choice("precision of the payload", content.precision, DTYPES)
        self._computes_in = DTYPES[content.precision]
        spec, layers = _build(content)
        n_inputs = sum(layer.kind in INPUT_DTYPES for layer in spec.layers)
        self._inputs, self._layers = layers[:n_inputs], layers[n_inputs:]

    def run(self, obs: np.ndarray) -> np.ndarray:
        check_observations(obs, self._shape, self._dtype)
        with torch.inference_mode():
            x = self._inputs(torch.as_tensor(forwards(obs))).to(self._computes_in)
            return self._layers(x).float().numpy()


def _build(content: Payload) -> tuple[PolicySpec, nn.Sequential]:
    try:
        spec = PolicySpec.from_json(json.loads(content.model))
        layers = nn.Sequential(*(layer.build() for layer in spec.layers))
        tensors = {name: from_numpy(array) for name, array in content.tensors.items()}
        layers.load_state_dict(tensors, assign=True)
    except (ValueError, RuntimeError) as error:  # no JSON; tensors that do not fit
        raise QuarlError(f"torch cannot open the payload: {brief(error)}") from error
    return spec, layers.eval()
