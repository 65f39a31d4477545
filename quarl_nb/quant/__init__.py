"""Quantizers: numbers and modules, no reinforcement learning."""

from __future__ import annotations

from quarl_nb.quant.affine import (
    QParams,
    affine_qparams,
    dequantize,
    fake_quantize,
    is_finite,
    legacy_quantize_dequantize,
    quant_range,
    quantize,
)
from quarl_nb.quant.convert import quantize_module, quantize_weight, weight_bytes, weight_matrices
from quarl_nb.quant.fake import FakeQuantize, FixedQuantize
from quarl_nb.quant.nonuniform import (
    float8_quantize_dequantize,
    noise_like_error,
    quantile_quantize_dequantize,
    stochastic_quantize_dequantize,
)
from quarl_nb.quant.observer import (
    MinMaxObserver,
    MovingAverageObserver,
    MSEObserver,
    PercentileObserver,
    make_observer,
)
from quarl_nb.quant.qconfig import (
    RANGES,
    PerChannel,
    PerGroup,
    PerTensor,
    Precision,
    QConfig,
    parse_precision,
)
from quarl_nb.quant.statistics import quantization_error, weight_statistics

__all__ = [
    "RANGES",
    "FakeQuantize",
    "FixedQuantize",
    "MSEObserver",
    "MinMaxObserver",
    "MovingAverageObserver",
    "PerChannel",
    "PerGroup",
    "PerTensor",
    "PercentileObserver",
    "Precision",
    "QConfig",
    "QParams",
    "affine_qparams",
    "dequantize",
    "fake_quantize",
    "float8_quantize_dequantize",
    "is_finite",
    "legacy_quantize_dequantize",
    "make_observer",
    "noise_like_error",
    "parse_precision",
    "quant_range",
    "quantile_quantize_dequantize",
    "quantization_error",
    "quantize",
    "quantize_module",
    "quantize_weight",
    "stochastic_quantize_dequantize",
    "weight_bytes",
    "weight_matrices",
    "weight_statistics",
]
