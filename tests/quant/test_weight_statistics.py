from __future__ import annotations

import math
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from quarl_nb.errors import QuarlError
from quarl_nb.quant import (
    parse_precision,
    quantization_error,
    quantize_weight,
    weight_statistics,
)


def linear(rows: list[list[float]]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows))
    layer.weight = nn.Parameter(torch.tensor(rows))
    return layer


def test_statistics_by_hand() -> None:
    net = nn.Sequential(linear([[-1.0, 0.0], [1.25, 2.0]]), nn.ReLU(), linear([[3.0, 3.0]]))
    first, second = weight_statistics(net, parse_precision("affine2"))
    assert first["layer"] == "0.weight" and first["shape"] == [2, 2] and first["count"] == 4
    assert (first["min"], first["max"], first["range"]) == (-1.0, 2.0, 3.0)
    std = math.sqrt((1 + 1.25**2 + 4) / 4 - (2.25 / 4) ** 2)
    assert first["std"] == pytest.approx(std)
    assert first["range_over_std"] == pytest.approx(3 / std)
    # levels -1 0 1 2: only 1.25 moves, by 0.25
    assert first["mse"] == 0.0625 / 4 and first["max_error"] == 0.25
    assert first["sqnr_db"] == pytest.approx(10 * math.log10(6.5625 / 0.0625))
    assert second["std"] == 0 and second["range_over_std"] == 0 and second["range"] == 0


def test_no_error_is_infinite_signal_to_noise() -> None:
    error = quantization_error(torch.tensor([[0.1, 0.2]]), parse_precision("fp32"))
    assert error == {"mse": 0.0, "max_error": 0.0, "sqnr_db": math.inf}
    zeros = quantization_error(torch.zeros(2, 2), parse_precision("affine4"))
    assert zeros == {"mse": 0.0, "max_error": 0.0, "sqnr_db": math.inf}


@pytest.mark.parametrize("bits", range(4, 13))
def test_uniform_weights_gain_six_decibel_a_bit(bits: int) -> None:
    # Bennett: noise is step^2 / 12, so SQNR of a uniform variable is 20 log10(2^bits) dB.
    weight = torch.linspace(-1, 1, 100_000).reshape(100, -1)
    error = quantization_error(weight, parse_precision(f"affine{bits}"))
    assert error["sqnr_db"] == pytest.approx(20 * math.log10(2**bits), abs=0.6)


def test_bad_weights_are_refused_by_name() -> None:
    net = nn.Sequential(linear([[1.0]]), linear([[math.nan, 1.0]]))
    with pytest.raises(QuarlError, match="'1.weight'"):
        weight_statistics(net, parse_precision("affine8"))


def test_each_matrix_is_quantized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(side_effect=quantize_weight)
    monkeypatch.setattr("quarl_nb.quant.statistics.quantize_weight", counted)
    net = nn.Sequential(linear([[1.0, 2.0]]), linear([[3.0]]))
    weight_statistics(net, parse_precision("affine8"))
    assert counted.call_count == 2
