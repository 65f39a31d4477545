"""What an ActorQ run is set to, and what learner and actors tell each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Real

import gymnasium as gym
import numpy as np

from quarl_nb.errors import SEEDS, QuarlError, check_choice, check_counts, check_seeds
from quarl_nb.inference import RUNTIMES
from quarl_nb.quant import parse_precision
from quarl_nb.rl.policies import PolicyNet
from quarl_nb.rl.spec import PolicySpec

NOISE_MAX = 0.2
MOST_AHEAD = 100  # messages; answers to so many fit into a pipe


@dataclass(frozen=True)
class Settings:
    """Knobs of the actor-learner loop; the defaults are the paper's (section 3, Appendix A) but for
    `runtime`, which is PyTorch there."""

    precision: str = "int8"  # that actors compute in
    communication: str | None = None  # of weights on the wire; None: the actors' own
    runtime: str = "onnxruntime"  # that actors compute with
    n_actors: int = 4
    envs_per_actor: int = 1  # stepped together, one batch of inference
    pull_period: int = 1000  # environment steps of one actor between two pulls
    # By the learner. SB3's train_freq and gradient_steps, which have no effect here, ask for
    # batch_size * gradient_steps / train_freq.
    samples_per_insert: float = 16.0
    publish_period: int | None = None  # learner updates between publications; None: 2 per pull
    # Open what is pulled even if it acts already: what pulls cost where each finds a newer one.
    reopen: bool = False
    # Of all environments of an actor. With several actors or environments n-step returns end where
    # a message does, bootstrapping there. DQN's targets change between messages at most.
    transitions_per_message: int = 50
    noise_max: float = NOISE_MAX  # sigma of the last actor, in half widths of the action range
    ez_greedy: bool = False  # random discrete actions go on for a while; see `EpsilonGreedy`
    seed: int | None = None  # None: the algorithm's own, or 0 if it has none

    def __post_init__(self) -> None:
        parse_precision(self.precision)
        parse_precision(self.communication or self.precision)
        check_choice("runtime", self.runtime, RUNTIMES)
        counts = ("n_actors", "envs_per_actor", "pull_period", "transitions_per_message")
        check_counts(1, **{name: getattr(self, name) for name in counts})
        if self.publish_period is not None:
            check_counts(1, publish_period=self.publish_period)
        for name in ("reopen", "ez_greedy"):
            if not isinstance(getattr(self, name), bool):
                raise QuarlError(f"{name} is {getattr(self, name)!r}; True or False")
        if self.seed is not None:
            check_seeds(self.seed)
        for name in ("samples_per_insert", "noise_max"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not math.isfinite(value):
                raise QuarlError(f"{name} is {value!r}; a finite number")
        if self.samples_per_insert <= 0:
            raise QuarlError(f"samples_per_insert is {self.samples_per_insert}; more than 0")
        if self.noise_max < 0:
            raise QuarlError(f"noise_max is {self.noise_max}; at least 0")

    def of_run(self, run: int) -> Settings:
        """Those of the `run`-th run of one `ActorQ`, from 0: each later one has a seed of its own.

        Else its actors would make the random warm-up again, transition for transition.
        """
        if not run:
            return self
        (mixed,) = np.random.SeedSequence([self.seed or 0, run]).generate_state(1)
        return replace(self, seed=int(mixed) % SEEDS)

    def noise(self, actor: int) -> float:
        """Sigma of an actor's Gaussian action noise, spread evenly over 0 to `noise_max`.

        (Paper, section 3: "sigma is uniformly assigned between 0 and .2 according to the actor".)
        A lone actor gets the middle.
        """
        if self.n_actors == 1:
            return self.noise_max / 2
        return self.noise_max * actor / (self.n_actors - 1)

    def updates_per_publication(self, batch_size: int) -> int:
        """Learner updates between two publications; by default two for each pull of an actor."""
        if self.publish_period is not None:
            return self.publish_period
        pulled = self.pull_period * self.n_actors  # steps of all actors between pulls of one
        return max(1, round(pulled / self._steps_per_update(batch_size) / 2))

    def message_steps(self, until_pull: int) -> int:
        """Steps of each environment in a message that begins so many steps of its actor before a
        pull: less than one of each reaches over it."""
        return max(1, min(self.transitions_per_message, until_pull) // self.envs_per_actor)

    @property
    def message_transitions(self) -> int:
        """Of the longest message, which begins with a pull."""
        return self.message_steps(self.pull_period) * self.envs_per_actor

    def messages_ahead(self, batch_size: int) -> int:
        """Messages that an actor may send ahead of their answers: its share of an update's steps.

        The learner answers between updates. With fewer, actors would stand still during one as
        soon as these are sent, and the learner after it, until the rest of the steps is made (as
        they do where messages of images are larger than a pipe).
        """
        pull, envs, longest = self.pull_period, self.envs_per_actor, self.message_transitions
        # From one pull to the next: the long ones, what is left, the step that reaches over it.
        messages = pull // longest + (pull % longest >= envs) + (pull % envs > 0)
        message = math.ceil(pull / envs) * envs / messages
        share = self._steps_per_update(batch_size) / self.n_actors
        return min(max(1, math.ceil(share / message)), MOST_AHEAD)

    def _steps_per_update(self, batch_size: int) -> float:
        return batch_size / self.samples_per_insert


@dataclass(frozen=True)
class ActorTask:
    """What an actor is made from, in whichever process it runs.

    Attributes:
        calibration: raw observations ``[n, *obs_shape]`` that set the ranges of activations,
            where the precision needs them.
        quantizer: of a policy that is published, before the precision's own; see `ActorQ`.
        restarts: how often it died before.
        begun_at: environment steps that the run had made before it was resumed.
    """

    index: int
    make_env: Callable[[], gym.Env]
    spec: PolicySpec
    settings: Settings
    calibration: np.ndarray | None = None
    quantizer: Callable[[PolicyNet], PolicyNet] | None = None
    restarts: int = 0
    begun_at: int = 0


@dataclass(frozen=True)
class Orders:
    """What the learner tells an actor with each answer.

    Attributes:
        random: act at random (the replay buffer is being filled for the first time).
        epsilon: probability of a random action, where actions are discrete.
    """

    random: bool
    epsilon: float = 0.0


@dataclass
class Transitions:
    """Consecutive steps of one actor's environments, all made by one policy version.

    Attributes:
        actor: its index. version: of the policy that acted.
        obs, next_obs: ``[steps, envs, *obs_shape]``; `next_obs` is the last of its episode where
            that ended, never the first of the next.
        actions: ``[steps, envs, *action_shape]``, as the environment took them.
        rewards, dones, timeouts: ``[steps, envs]``; a timeout is done without being terminal.
        episodes: (return, length) of those that ended.
        seconds: what the actor spent them on, since its last message.
        cpu_s: CPU-seconds of the actor's process since its last message; 0 if it has none.
        pulled_bytes, pulls: since its last message.
        host: name of the machine that the actor runs on.
    """

    actor: int
    version: int
    obs: np.ndarray
    next_obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    timeouts: np.ndarray
    episodes: list[tuple[float, int]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    pulled_bytes: int = 0
    pulls: int = 0
    host: str = ""

    def __len__(self) -> int:
        return self.rewards.size
