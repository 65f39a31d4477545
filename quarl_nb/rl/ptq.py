"""Post-training quantization of a policy (QuaRL, Appendix B.1)."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
from torch import nn

from quarl_nb.quant import Precision, parse_precision, quantize_module
from quarl_nb.rl.observations import CALIBRATION_STEPS, collect_observations
from quarl_nb.rl.policies import PolicyNet

CALIBRATION_SEED = 2_000_000  # of other episodes than those that returns are measured in


def quantize_policy(
    net: PolicyNet,
    precision: Precision | str,
    env_id: str,
    make: Callable[[], gym.Env] | None = None,
) -> PolicyNet:
    """`net` as if computed in `precision`, activations calibrated on its own observations.

    Args:
        precision: as "int8" or "affine4" (`parse_precision`).
        env_id: where the observations come from, see `quarl_nb.rl.envs`.
        make: makes that environment, in place of `make_env(env_id)`.

    Raises:
        QuarlError: an unknown precision or environment, or the policy cannot act there.
    """
    if not isinstance(precision, Precision):
        precision = parse_precision(precision)
    calibrate = None
    if precision.activation is not None:

        def calibrate(model: nn.Module) -> None:
            collect_observations(model, env_id, CALIBRATION_STEPS, CALIBRATION_SEED, make)

    quantized = quantize_module(net, precision, calibrate)
    assert isinstance(quantized, PolicyNet)
    return quantized
