"""How a network's weights are distributed and what quantizing them costs."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from quarl_nb.quant.convert import quantize_weight, weight_matrices
from quarl_nb.quant.qconfig import Precision


def quantization_error(
    weight: Tensor, precision: Precision, name: str = "weight"
) -> dict[str, float]:
    """Error of `weight` in `precision`; `name` and errors are those of `quantize_weight`.

    Returns:
        mse: mean squared error. max_error: largest absolute error.
        sqnr_db: signal to quantization noise, 10 log10(sum w^2 / sum e^2); inf without error.
    """
    weight = weight.detach().float()
    error = (quantize_weight(weight, precision, name) - weight).double()
    noise, signal = error.square().sum().item(), weight.double().square().sum().item()
    sqnr_db = math.inf if noise == 0 else 10 * math.log10(signal / noise)
    return {
        "mse": noise / weight.numel(),
        "max_error": error.abs().max().item(),
        "sqnr_db": sqnr_db,
    }


def weight_statistics(module: nn.Module, precision: Precision) -> list[dict[str, Any]]:
    """One row for each weight matrix: its distribution and its error in `precision`.

    Keys: layer (the parameter's name), shape, count, min, max, range (max - min), std (of the
    population), range_over_std, and those of `quantization_error`. A constant weight has
    range_over_std 0.

    Raises:
        QuarlError: NaN or infinite weights (the layer named).
    """
    rows = []
    for name, parameter in weight_matrices(module):
        weight = parameter.detach().float()
        error = quantization_error(weight, precision, name)
        lo, hi = weight.min().item(), weight.max().item()
        std = weight.double().std(correction=0).item()
        row = {"layer": name, "shape": list(weight.shape), "count": weight.numel()}
        row |= {"min": lo, "max": hi, "range": hi - lo, "std": std}
        row |= {"range_over_std": (hi - lo) / std if std > 0 else 0.0}
        rows.append(row | error)
    return rows
