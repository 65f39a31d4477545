"""The learner: any stable-baselines3 off-policy algorithm, fed by actors, in full precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.actorq.limiter import RateLimiter
from quarl_nb.actorq.replay import ReplayFeed, check_algorithm
from quarl_nb.actorq.settings import Orders, Settings, Transitions
from quarl_nb.actorq.timed import Timed
from quarl_nb.errors import users_own
from quarl_nb.processes import keep_freed_memory
from quarl_nb.rl.cuda_graph import GraphedUpdate, can_be_graphed, train_once
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.sb3.convert import policy_from_model

ACTIVITIES = ("insert", "sample", "train", "publish", "save", "wait")
SAMPLERS = ("sample", "sample_weighted")  # of replay buffers: SB3's, and by priority
# Of the transitions that the buffer starts with (Acme's `samples_per_insert_tolerance_rate`).
TOLERANCE_RATE = 0.1


def _memory(tensor: torch.Tensor) -> int:
    """Where it lies; views of one tensor share it."""
    return tensor.untyped_storage().data_ptr()


class Learner(Timed):
    """Feeds an algorithm's replay buffer and calls its `train()`; the rest stays as it is.

    On a GPU, updates of DQN, DDPG, TD3 and D4PG are replayed as CUDA graphs (see `GraphedUpdate`).

    Args:
        algorithm: DQN, DDPG, TD3, SAC, D4PG or another with one environment; trained in place.
        total_steps: environment steps of the whole run, for the algorithm's schedules.
        resumed: go on from the algorithm's `num_timesteps`, not from zero.
        updates: gradient steps that the run had made before it was resumed.
        ahead: of its rate limiter, by then.
        put_off: what a checkpoint without its whole replay buffer has added to `learning_starts`.

    Attributes:
        updates: gradient steps of the run so far; the version of what is published now.

    Raises:
        QuarlError: the algorithm cannot be fed from outside (on-policy, several environments,
            normalized observations, memory-saving buffer), or its environment raised something.
    """

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        settings: Settings,
        total_steps: int,
        resumed: bool = False,
        updates: int = 0,
        ahead: int = 0,
        put_off: int = 0,
    ) -> None:
        super().__init__(ACTIVITIES)
        check_algorithm(algorithm)
        keep_freed_memory()
        self.algorithm, self.settings = algorithm, settings
        with users_own("environment"):  # which it resets
            algorithm._setup_learn(0, reset_num_timesteps=not resumed)
        algorithm._total_timesteps = total_steps  # what schedules count down from
        self.updates = updates
        self._feed = ReplayFeed(algorithm, settings)
        self._begin_schedules()
        self._warm_up = algorithm.learning_starts - put_off
        self.limiter = self._limiter(ahead)
        self._policy: PolicyNet | None = None
        self._time_sampling()
        graphed = can_be_graphed(algorithm)
        self._train = GraphedUpdate(algorithm) if graphed else partial(train_once, algorithm)

    @property
    def steps(self) -> int:
        """Environment steps inserted so far."""
        return self.algorithm.num_timesteps

    @property
    def orders(self) -> Orders:
        """How actors are to act now."""
        # A buffer that is filled again is filled by the policy, which has learned by then.
        warming = self.steps < self._warm_up
        return Orders(warming, float(getattr(self.algorithm, "exploration_rate", 0.0)))

    def policy(self) -> PolicyNet:
        """The acting path as it is now, in full precision; to be used before the next update."""
        on_cpu = self.algorithm.device.type == "cpu"
        state = self.algorithm.policy.state_dict()
        if self._policy is None:
            tensors = {name: t if on_cpu else t.to("cpu", copy=True) for name, t in state.items()}
            policy = policy_from_model(self.algorithm, tensors=tensors)
            acting = {_memory(tensor) for tensor in policy.state_dict().values()}
            if not acting <= {_memory(tensor) for tensor in tensors.values()}:
                return policy  # computed from the tensors (CrossQ's), not made of them: made anew
            self._policy = policy
            self._acting = {name: t for name, t in tensors.items() if _memory(t) in acting}
        elif not on_cpu:  # of a critic and target networks nothing needs to be copied
            for name, tensor in self._acting.items():
                tensor.copy_(state[name])
        return self._policy

    def can_update(self) -> bool:
        return self.limiter.can_sample(self.algorithm.batch_size)

    def is_behind(self) -> bool:
        """Whether what is inserted asks for another update."""
        return self.limiter.owes(self.algorithm.batch_size)

    def can_receive(self) -> bool:
        """Whether the rate limiter lets a message in; actors are blocked where it does not."""
        return self.limiter.can_insert(self.settings.message_transitions)

    def insert(self, transitions: Transitions) -> None:
        """Add a message to the replay buffer.

        Raises:
            QuarlError: a reward, observation or action that is not finite; the algorithm or its
                replay buffer raised something.
        """
        with self.timed("insert"), users_own("the learner"):
            self._feed.add(transitions)
            self.limiter.inserts += len(transitions)

    def cut(self, actor: int) -> None:
        """What this actor sends next does not go on from what it sent before: it is a new one."""
        self._feed.cut(actor)

    def update(self) -> None:
        """One gradient step on one batch.

        Raises:
            QuarlError: the algorithm raised something.
        """
        batch = self.algorithm.batch_size
        before = self.seconds["sample"]
        with self.timed("train"), users_own("the learner"):
            self._train()
            if self.algorithm.device.type == "cuda":
                # Else what waits next for it (to sample, to publish) would be told to take long.
                torch.cuda.synchronize(self.algorithm.device)
        self.seconds["train"] -= self.seconds["sample"] - before
        self.limiter.samples += batch
        self.updates += 1

    def _limiter(self, ahead: int) -> RateLimiter:
        """From where the algorithm is now, with room for messages, batches and the warm-up."""
        algorithm, settings = self.algorithm, self.settings
        ratio = settings.samples_per_insert
        # Messages that pulls make shorter than the default do not narrow the tolerance, so that
        # what a serial run learns does not depend on them.
        asked = min(settings.transitions_per_message, Settings.transitions_per_message)
        longest = max(asked, settings.message_transitions)
        insert = longest * settings.n_actors
        tolerance = max(
            TOLERANCE_RATE * self._warm_up * ratio, 2 * algorithm.batch_size, 2 * insert * ratio
        )
        limiter = RateLimiter(ratio, algorithm.learning_starts, tolerance)
        limiter.resume(algorithm.num_timesteps, ahead)
        return limiter

    def _begin_schedules(self) -> None:
        """SB3's DQN knows its epsilon only once a step was made; actors ask before."""
        algorithm: Any = self.algorithm
        self._feed.update_progress()
        if hasattr(algorithm, "exploration_schedule"):
            remaining = algorithm._current_progress_remaining
            if getattr(algorithm, "exploration_fraction", 1) == 0:  # SB3's would divide by it
                remaining = 0.0
            algorithm.exploration_rate = algorithm.exploration_schedule(remaining)

    def _time_sampling(self) -> None:
        """Account the buffer's sampling, which `train` calls, to an activity of its own."""
        buffer: Any = self.algorithm.replay_buffer
        self._users_samplers = {name: vars(buffer)[name] for name in SAMPLERS
                                if name in vars(buffer)}  # fmt: skip
        for name in SAMPLERS:
            if hasattr(buffer, name):
                setattr(buffer, name, self._timed_sampler(getattr(buffer, name)))

    def _timed_sampler(self, sampler: Callable[..., Any]) -> Callable[..., Any]:
        def timed_sampler(*args: Any, **kwargs: Any) -> Any:
            with self.timed("sample"):
                return sampler(*args, **kwargs)

        return timed_sampler

    def close(self) -> None:
        """Leave the algorithm as it was found: it can be saved, and trained by SB3 again."""
        buffer = vars(self.algorithm.replay_buffer)
        for name in SAMPLERS:
            buffer.pop(name, None)
        buffer.update(self._users_samplers)
        self._feed.end()
        self.algorithm.learning_starts = self._warm_up

