"""Policies that act by an engine, wherever a `PolicyNet` could act."""

from __future__ import annotations

import numpy as np
import torch

from quarl_nb.errors import QuarlError
from quarl_nb.inference.engine import open_engine
from quarl_nb.inference.export import build_payload
from quarl_nb.rl.evaluate import Playable
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.spec import check_no_nan


class EnginePolicy:
    """A policy whose network an engine computes; spec and head are the network's own.

    Args:
        net: the policy, feed-forward.
        payload: of `net`, from `build_payload`.
    """

    def __init__(self, net: PolicyNet, payload: bytes) -> None:
        self.spec, self.head, self.engine = net.spec, net.spec.head, open_engine(payload)

    def initial_state(self, n: int) -> None:
        """None: engines keep no state."""

    def act(
        self, obs: np.ndarray, state: None = None, generator: torch.Generator | None = None
    ) -> tuple[np.ndarray, None]:
        """Actions of raw observations ``[n, ...]``, and no state; see `PolicyNet.act`.

        Raises:
            QuarlError: the network's outputs are NaN.
        """
        outputs = torch.from_numpy(self.engine.run(obs))
        check_no_nan(outputs)
        return self.head.actions(outputs, generator), None


def fast_policy(net: PolicyNet) -> Playable:
    """`net` in fp32 by ONNX Runtime, or `net` itself where ONNX Runtime has no form for it.

    A network of Atari takes half of torch's time for a batch of five frames. Outputs differ by
    the rounding of sums in float32. Recurrent policies and simulated activations stay in torch.
    """
    try:
        return EnginePolicy(net, build_payload(net, "fp32"))
    except QuarlError:
        return net
