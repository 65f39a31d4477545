"""An algorithm's updates on a GPU as CUDA graphs, which launch a whole update at once.

Launched from Python kernel by kernel, an update of the paper's networks keeps the processor busy
several times as long as the GPU.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from stable_baselines3 import DQN, TD3
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch.overrides import TorchFunctionMode

from quarl_nb.errors import one_line
from quarl_nb.rl.d4pg import D4PG

logger = logging.getLogger(__name__)

Replay = Callable[[], None]

# Whose updates do the same from one to the next, but for what is due in some of them (`PERIODS`),
# and read nothing from the GPU but losses (SAC's distributions check their parameters).
TRAINED_ALIKE = (DQN.train, TD3.train, D4PG.train)  # DDPG's is TD3's
PERIODS = ("policy_delay", "target_update_period")
EAGER_UPDATES = 10  # at first: what is made once (Adam's moments, workspaces) is there afterwards
LOGGED_EVERY = 100  # updates from one whose losses are read, as none of a graph's are, to the next


def train_once(algorithm: OffPolicyAlgorithm) -> None:
    """One gradient step on one batch, launched operation by operation.

    SAC and TQC move their targets in every `target_update_interval`-th step of a call of `train`,
    so in the first of each; here those of all calls are counted.
    """
    state: Any = algorithm
    interval = getattr(algorithm, "target_update_interval", 1)
    counts_calls = hasattr(algorithm, "_n_calls")  # as DQN's and QR-DQN's `_on_step` does
    due = counts_calls or state._n_updates % interval == 0
    with nullcontext() if due else _set_on(algorithm, tau=0.0):
        algorithm.train(gradient_steps=1, batch_size=algorithm.batch_size)


def can_be_graphed(algorithm: OffPolicyAlgorithm) -> bool:
    """Whether the learner is on a GPU, and its updates are known to be alike."""
    return (
        algorithm.device.type == "cuda"
        and type(algorithm).train in TRAINED_ALIKE
        and all(isinstance(each, torch.optim.Adam) for each in _optimizers(algorithm))
        and algorithm.observation_space.shape is not None  # no dictionary
    )


def cuda_graph(function: Callable[[], None], device: torch.device) -> Replay:
    """Capture what `function` launches, without running it: what is returned does."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        function()
    return graph.replay


class GraphedUpdate:
    """Gradient steps of an algorithm's own `train()`, captured once and replayed from then on.

    A graph repeats the same kernels on the same memory, so that what changes is written there
    before: the batch, and the learning rates. Where capturing fails, updates go on as before.

    Args:
        algorithm: of which `can_be_graphed` is true.
        capture: `cuda_graph`, or what stands for it.
    """

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        capture: Callable[[Callable[[], None], torch.device], Replay] = cuda_graph,
    ) -> None:
        self.algorithm, self._capture = algorithm, capture
        # As it is now: `graphed_updates` puts this object in its place.
        self._train = partial(algorithm.train, 1, algorithm.batch_size)
        self._optimizers = _optimizers(algorithm)
        groups = [group for each in self._optimizers for group in each.param_groups]
        self._rates = [(g, torch.tensor(0.0, device=algorithm.device)) for g in groups]
        self._batch: ReplayBufferSamples | None = None
        self._replays: dict[tuple[bool, ...], Replay] = {}
        self._made, self._failed = 0, False
        # What was due in updates so far. The first update of a kind is no graph: an optimizer that
        # seldom steps makes its moments then, and each replay would make them anew.
        self._met: set[tuple[bool, ...]] = set()

    def __call__(self) -> None:
        """Sample a batch and make one gradient step."""
        algorithm: Any = self.algorithm
        due = tuple(
            (algorithm._n_updates + 1) % getattr(algorithm, period, 1) == 0 for period in PERIODS
        )
        eager = self._failed or self._made < EAGER_UPDATES or self._made % LOGGED_EVERY == 0
        eager = eager or due not in self._met
        self._made += 1
        self._met.add(due)
        if eager or not self._replayed(due):
            self._train()

    def _replayed(self, due: tuple[bool, ...]) -> bool:
        algorithm: Any = self.algorithm
        self._sample()
        algorithm._update_learning_rate(self._optimizers)
        for group, rate in self._rates:
            rate.fill_(group["lr"])
        if due not in self._replays:
            try:
                self._replays[due] = self._captured()
            except RuntimeError as error:  # of CUDA, too
                logger.warning("updates are not made a CUDA graph: %s", one_line(error))
                self._failed = True
                return False
        self._replays[due]()
        algorithm._n_updates += 1
        return True

    def _sample(self) -> None:
        """A new batch, where graphs look for it."""
        buffer: Any = self.algorithm.replay_buffer
        batch = buffer.sample(self.algorithm.batch_size, env=self.algorithm._vec_normalize_env)
        if self._batch is None:
            self._batch = batch
            return
        for place, values in zip(self._batch, batch, strict=True):
            if place is not None:  # discounts, where returns are of one step
                place.copy_(values)

    def _captured(self) -> Replay:
        """The graph of an update like the next one."""
        algorithm: Any = self.algorithm
        n_updates = algorithm._n_updates
        unlogged = {"_logger": Logger(None, []), "_update_learning_rate": lambda _: None}
        try:
            with (
                _set_on(algorithm.replay_buffer, sample=lambda *_, **__: self._batch),
                _set_on(algorithm, **unlogged),
                _capturable(self._optimizers, self._rates),
                _Unread(),
            ):
                return self._capture(self._train, algorithm.device)
        finally:
            algorithm._n_updates = n_updates


@contextmanager
def graphed_updates(algorithm: OffPolicyAlgorithm) -> Iterator[None]:
    """For a while `algorithm.train`, and so `learn`, replays graphs, where `can_be_graphed`."""
    if not can_be_graphed(algorithm):
        yield
        return
    update = GraphedUpdate(algorithm)

    def train(gradient_steps: int, batch_size: int) -> None:
        assert batch_size == algorithm.batch_size, "a graph is of one size"
        for _ in range(gradient_steps):
            update()

    with _set_on(algorithm, train=train):
        yield


def _optimizers(algorithm: OffPolicyAlgorithm) -> list[torch.optim.Optimizer]:
    names, _ = algorithm._get_torch_save_params()
    saved = (attrgetter(name)(algorithm) for name in names)
    return [each for each in saved if isinstance(each, torch.optim.Optimizer)]


class _Unread(TorchFunctionMode):
    """Nothing is computed yet: reading a loss to log it gives NaN in place of failing."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.item:
            return math.nan
        if function is torch.Tensor.tolist:
            return torch.full(args[0].shape, math.nan).tolist()
        return function(*args, **(kwargs or {}))


@contextmanager
def _set_on(target: Any, **attributes: Any) -> Iterator[None]:
    """Attributes of this one object, set for a while."""
    before = {name: vars(target)[name] for name in attributes if name in vars(target)}
    vars(target).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(target)[name]
        vars(target).update(before)


@contextmanager
def _capturable(
    optimizers: Sequence[torch.optim.Optimizer],
    rates: Sequence[tuple[dict[str, Any], torch.Tensor]],
) -> Iterator[None]:
    """Adam that keeps its rate and count of steps where its weights are, for a while.

    (Not for longer: a checkpoint that says so could not be resumed on a processor.)
    """
    for state in (state for each in optimizers for state in each.state.values()):
        state["step"] = state["step"].to(state["exp_avg"].device)
    before = [{name: group[name] for name in ("lr", "capturable")} for group, _ in rates]
    for group, rate in rates:
        group.update(lr=rate, capturable=True)
    try:
        yield
    finally:
        for (group, _), values in zip(rates, before, strict=True):
            group.update(values)
