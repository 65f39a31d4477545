from __future__ import annotations

import pytest
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.quant import (
    PerChannel,
    PerGroup,
    PerTensor,
    Precision,
    QConfig,
    parse_precision,
)


def test_formats_that_exist() -> None:
    assert parse_precision("fp32") == Precision("fp32")
    assert parse_precision("fp16") == Precision("fp16", cast=torch.float16)
    assert parse_precision("bf16") == Precision("bf16", cast=torch.bfloat16)
    activation = QConfig(8, symmetric=False)
    assert parse_precision("int8") == Precision("int8", QConfig(8, True), activation)
    assert parse_precision("int4") == Precision("int4", QConfig(4, True, PerGroup(32)), activation)


@pytest.mark.parametrize("bits", range(2, 17))
def test_simulated_widths_are_weights_only(bits: int) -> None:
    name = f"affine{bits}"
    assert parse_precision(name) == Precision(name, weight=QConfig(bits, False, PerTensor()))
    name = f"legacy{bits}"
    assert parse_precision(name) == Precision(name, legacy_bits=bits)


def test_ranges() -> None:
    assert parse_precision("affine6", "per_channel").weight == QConfig(6, False, PerChannel())
    int8 = parse_precision("int8", "per_channel")
    assert int8.weight == QConfig(8, True, PerChannel()) and int8.activation == QConfig(8)
    for observer in ("percentile", "mse"):
        int8 = parse_precision("int8", observer)
        assert int8.weight == QConfig(8, True, PerTensor(), observer)
        assert int8.activation == QConfig(8, False, PerTensor(), observer)


@pytest.mark.parametrize(
    "name", ["int7", "affine1", "affine17", "affine08", "legacy", "legacy32", "fp8", "", "INT8"]
)
def test_unknown_precisions_are_refused_with_the_allowed(name: str) -> None:
    with pytest.raises(QuarlError) as error:
        parse_precision(name)
    assert repr(name) in str(error.value) and "\n" not in str(error.value)
    for allowed in ("fp32", "fp16", "bf16", "int8", "int4", "affine2..affine16", "legacy2"):
        assert allowed in str(error.value)


@pytest.mark.parametrize(
    ("name", "ranges"), [("fp32", "mse"), ("fp16", "percentile"), ("legacy8", "per_channel")]
)
def test_ranges_that_would_change_nothing_are_refused(name: str, ranges: str) -> None:
    with pytest.raises(QuarlError, match="allowed: minmax$"):
        parse_precision(name, ranges)


def test_other_bad_descriptions_are_refused() -> None:
    with pytest.raises(QuarlError, match="allowed: minmax, percentile, mse"):
        parse_precision("int4", "per_channel")
    with pytest.raises(QuarlError, match="unknown ranges 'entropy'"):
        parse_precision("int8", "entropy")
    with pytest.raises(QuarlError, match="2 to 16"):
        QConfig(1)
    with pytest.raises(QuarlError, match="unknown observer"):
        QConfig(8, observer="histogram")
    with pytest.raises(QuarlError, match="not positive"):
        PerGroup(0)


def test_scales_are_counted() -> None:
    assert PerTensor().n_scales((64, 70)) == 1
    assert PerChannel().n_scales((64, 70)) == 64
    assert PerGroup(32).n_scales((64, 70)) == 64 * 3
    assert PerGroup(32).n_scales((16, 4, 8, 8)) == 16 * 8
