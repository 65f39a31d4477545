"""What a precision means: plain descriptions of formats, granularities and ranges."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from quarl_nb.errors import QuarlError, check_choice, is_whole
from quarl_nb.quant.affine import MAX_BITS, MIN_BITS, check_bits
from quarl_nb.quant.observer import OBSERVERS

RANGES = ("minmax", "per_channel", "percentile", "mse")
CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16}
INT4_GROUP_SIZE = 32


@dataclass(frozen=True)
class PerTensor:
    """One scale for the whole tensor."""

    def n_scales(self, shape: Sequence[int]) -> int:
        return 1


@dataclass(frozen=True)
class PerChannel:
    """One scale for each output, axis 0: a [64, 4] Linear weight has 64."""

    def n_scales(self, shape: Sequence[int]) -> int:
        return shape[0]


@dataclass(frozen=True)
class PerGroup:
    """One scale for each `size` inputs of each output (the last group may be short).

    A [64, 70] Linear weight with size 32 has 64 x 3 scales, for 32, 32 and 6 inputs.
    """

    size: int

    def __post_init__(self) -> None:
        if not is_whole(self.size) or self.size < 1:
            raise QuarlError(f"group size {self.size!r} is not positive; allowed: 1, 2, ...")

    def n_scales(self, shape: Sequence[int]) -> int:
        return shape[0] * math.ceil(math.prod(shape[1:]) / self.size)


Granularity = PerTensor | PerChannel | PerGroup


@dataclass(frozen=True)
class QConfig:
    """How one kind of tensor is quantized.

    Attributes:
        bits: 2 to 16.
        symmetric: zero_point 0, restricted signed range; else affine.
        granularity: what shares a scale.
        observer: how the range is set: minmax, moving_average, percentile or mse.
    """

    bits: int
    symmetric: bool = False
    granularity: Granularity = PerTensor()
    observer: str = "minmax"

    def __post_init__(self) -> None:
        check_bits(self.bits)
        check_choice("observer", self.observer, OBSERVERS)


@dataclass(frozen=True)
class Precision:
    """What happens to a network's weights and activations; None leaves them in float32.

    Attributes:
        name: as written by users and in records.
        weight, activation: simulated integer formats.
        cast: float16 or bfloat16 for weights, biases and activations.
        legacy_bits: width for the original code's formula, weights only.
    """

    name: str
    weight: QConfig | None = None
    activation: QConfig | None = None
    cast: torch.dtype | None = None
    legacy_bits: int | None = None


def parse_precision(name: str, ranges: str = "minmax") -> Precision:
    """The precision called `name`, its ranges set as `ranges` says.

    Args:
        name: fp32, fp16, bf16, int8 (weights symmetric, activations affine), int4 (weights
            symmetric per group of 32, activations 8-bit affine), affine2..affine16 (weights per
            tensor, the paper's PTQ), legacy2..legacy16 (weights, the original code's formula).
        ranges: minmax; per_channel (min-max of each output channel's weights); percentile or mse
            (per tensor; activations too). Float and legacy precisions have only minmax, and
            int4, which is per group already, has no per_channel.

    Raises:
        QuarlError: anything else.
    """
    check_choice("ranges", ranges, RANGES)
    observer = "minmax" if ranges == "per_channel" else ranges
    granularity = PerChannel() if ranges == "per_channel" else PerTensor()
    activation = QConfig(8, observer=observer)
    kind, bits = _split_name(name)
    if kind == "affine":
        return Precision(name, weight=QConfig(bits, False, granularity, observer))
    if name == "int8":
        return Precision(name, QConfig(8, True, granularity, observer), activation)
    if name == "int4":
        _check_ranges(name, ranges, ("minmax", "percentile", "mse"))
        return Precision(name, QConfig(4, True, PerGroup(INT4_GROUP_SIZE), observer), activation)
    _check_ranges(name, ranges, ("minmax",))
    return Precision(name, cast=CASTS.get(name), legacy_bits=bits if kind == "legacy" else None)


def _split_name(name: str) -> tuple[str, int]:
    """("affine", 6) of "affine6"; ("int8", 0) of a format that exists."""
    if name in ("fp32", "int8", "int4", *CASTS):
        return name, 0
    match = re.fullmatch(r"(affine|legacy)([1-9]\d?)", str(name))
    if match is None or not MIN_BITS <= int(match[2]) <= MAX_BITS:
        raise QuarlError(
            f"unknown precision {name!r}; allowed: fp32, fp16, bf16, int8, int4, "
            f"affine{MIN_BITS}..affine{MAX_BITS}, legacy{MIN_BITS}..legacy{MAX_BITS}"
        )
    return match[1], int(match[2])


def _check_ranges(name: str, ranges: str, allowed: tuple[str, ...]) -> None:
    if ranges not in allowed:
        raise QuarlError(
            f"precision {name} cannot have ranges {ranges!r}; allowed: {', '.join(allowed)}"
        )
