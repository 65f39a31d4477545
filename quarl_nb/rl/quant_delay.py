"""The callback that lets quantization-aware training begin after its delay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from quarl_nb.errors import QuarlError, check_counts
from quarl_nb.quant.qat import QATLayer, qat_layers
from quarl_nb.rl.prioritized import PrioritizedDQN
from quarl_nb.rl.qat_networks import is_quantized, qat_networks, training_quantizers

logger = logging.getLogger(__name__)


class QuantDelay(BaseCallback):
    """Starts quantization after `delay` environment steps, in acting and target networks at once.

    What does not train at present is quantized once and not at every use: the acting network while
    SB3 collects data, DQN's target network during one `train`, which leaves it alone.

    Raises:
        QuarlError: the delay is no number of steps; (in `learn`) the model is not the one that was
            prepared, or the run not longer than the delay, of a model that is not yet quantized.
            One that goes on (`reset_num_timesteps=False`) may be a part of a longer run.
    """

    def __init__(self, delay: int) -> None:
        super().__init__()
        check_counts(0, quant_delay=delay)
        self.delay = delay

    def _on_training_start(self) -> None:
        networks = qat_networks(self.model)
        self.acting_layers = list(qat_layers(networks[0]))
        if not self.acting_layers:
            raise QuarlError("this callback is of another model: give `learn` what prepare_qat of "
                             "this one returns")  # fmt: skip
        self.started = is_quantized(self.model)
        total = self.locals["total_timesteps"]
        whole = self.locals.get("reset_num_timesteps", True)
        if not self.started and whole and self.delay >= total:
            raise QuarlError(f"quant_delay {self.delay} is not shorter than the run, {total} steps")
        steady = networks[1:] if _leaves_target(self.model) else []
        self.target_layers = [layer for parts in steady for layer in qat_layers(parts)]
        self.networks = [training_quantizers(parts) for parts in networks]

    def _on_rollout_start(self) -> None:
        self._hold(self.target_layers, False)
        self._hold(self.acting_layers, True)

    def _on_rollout_end(self) -> None:
        self._hold(self.acting_layers, False)
        # A training that is interrupted lets go of it at the next step.
        self._hold(self.target_layers, partial(getattr, self.model, "num_timesteps"))

    def _hold(self, layers: list[QATLayer], holding: bool | Callable[[], int]) -> None:
        for layer in layers:
            layer.holding = holding

    def _on_step(self) -> bool:
        if not self.started and self.num_timesteps >= self.delay:
            self._start()
        return True

    def _on_training_end(self) -> None:
        # A run that is stopped ends within a rollout.
        self._hold(self.acting_layers + self.target_layers, False)
        if not self.started:
            logger.warning(
                "quantization never began: the run ended %s",
                "before its delay was over" if self.num_timesteps < self.delay
                else "before every layer had seen a training batch and another step",
            )  # fmt: skip

    def _start(self) -> None:
        acting, *targets = self.networks
        if not all(quantizer.observed for quantizer in acting):
            return
        for quantizer in acting:
            quantizer.start()
        for target in targets:
            for source, quantizer in zip(acting, target, strict=True):
                quantizer.load_state_dict(source.state_dict())
        self.started = True


def _leaves_target(model: Any) -> bool:
    """Whether `train` does not move the target network: not of other algorithms, nor for certain
    of a user's own DQN."""
    train = getattr(model.train, "__func__", None)
    return isinstance(model, DQN) and train in (DQN.train, PrioritizedDQN.train)
