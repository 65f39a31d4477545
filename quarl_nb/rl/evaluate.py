"""Evaluation: exactly one episode per seed, every return kept."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch

from quarl_nb.errors import QuarlError, brief, check_counts, check_seeds, users_own
from quarl_nb.rl.atari import is_atari
from quarl_nb.rl.envs import close, factory_for, make_vec, reset_slots
from quarl_nb.rl.fits import check_acting
from quarl_nb.rl.random_actions import RandomActions, random_actions_of

logger = logging.getLogger(__name__)

ENDLESS_STEPS = 100_000  # after which an episode is told not to end; Atari's end after 27,000
RETURN_DIGITS = 7  # all seventeen would be a third of a record of a thousand episodes


class Playable(Protocol):
    """What evaluation asks of a policy; `quarl_nb.rl.policy_net.PolicyNet` is one.

    A policy with a `head` (`quarl_nb.rl.spec.Head`) says by it whether its actions are greedy; one
    with a `spec` (`quarl_nb.rl.spec.PolicySpec`), whether frames must be turned for it.
    """

    def initial_state(self, n: int) -> Any: ...

    def act(
        self, obs: np.ndarray, state: Any = None, generator: torch.Generator | None = None
    ) -> tuple[np.ndarray, Any]: ...


@dataclass(frozen=True)
class Evaluation:
    """Episodes in the order of their seeds.

    Attributes:
        returns: undiscounted sum of raw rewards, one an episode.
        lengths: environment steps, one an episode.
        seeds: what each episode's environment was reset with.
        wall_s: seconds for all of them.
        random_actions: share of the actions that were drawn instead of the policy's.
    """

    returns: list[float]
    lengths: list[int]
    seeds: list[int]
    wall_s: float
    random_actions: float = 0.0

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    def as_measured(self) -> dict[str, Any]:
        """Each episode's return, to `RETURN_DIGITS`, and length, as records keep them.

        Their seeds count up from the `first_seed` of a record's budget.
        """
        returns = [float(f"{value:.{RETURN_DIGITS}g}") for value in self.returns]
        return {"returns": returns, "lengths": self.lengths}


def evaluate(
    policy: Playable,
    env_id: str,
    seeds: Sequence[int],
    *,
    n_envs: int | None = None,
    make: Callable[[], gym.Env] | None = None,
    random_actions: float | None = None,
) -> Evaluation:
    """Run one episode for each seed, `n_envs` at a time, each to its end.

    A sub-environment takes the next seed when its episode ends, and no episode is dropped, so
    that short ones are not favoured (as they are when a fixed number of *first finished*
    episodes is kept). The same seeds give every precision the same initial states and no-ops
    (common random numbers).

    Args:
        seeds: from 0 to 2^31 - 1.
        n_envs: episodes at once (default: 5 for Atari, 10 else); the batch of the policy.
        make: factory of one environment, in place of the one that `env_id` names.
        random_actions: share of the (discrete) actions that are drawn instead, for each episode
            by its own seed (default: what the policy's head needs in `env_id`, see
            `quarl_nb.rl.random_actions`).

    Raises:
        QuarlError: a seed that environments do not take, no episode, `n_envs` below 1; no such
            environment, or it raised something, or gave an observation or a reward that is NaN or
            infinite; or the policy made NaN of an observation, or has a `spec` whose spaces are
            others.
    """
    seeds = _checked(seeds)
    if n_envs is None:
        # Few for Atari: a frame stack and a slot that idles at the end are dear there.
        n_envs = 5 if is_atari(env_id) else 10
    check_counts(1, n_envs=n_envs)
    n_envs = min(n_envs, len(seeds))
    if random_actions is None:
        random_actions = random_actions_of(getattr(policy, "head", None), env_id)
    started = time.perf_counter()
    env = make_vec(env_id, n_envs, make=factory_for(policy, env_id, make))
    try:
        check_acting(policy, env, env_id)
        apart = random_actions > 0 and not is_atari(env_id)
        chance = RandomActions(env.single_action_space, n_envs, random_actions, apart)
        returns, lengths = _run_episodes(policy, env, env_id, seeds, chance)
    finally:
        close(env)
    wall_s = time.perf_counter() - started
    return Evaluation(returns, lengths, seeds, wall_s, random_actions)


def _checked(seeds: Sequence[int]) -> list[int]:
    """The seeds as Python's integers, which torch's generators ask for."""
    if isinstance(seeds, range):  # whose ends are enough: it may be too long even for len()
        check_seeds(*seeds[:1], *seeds[-1:])
    try:
        integers = [operator.index(seed) for seed in seeds]
    except TypeError as error:
        raise QuarlError(f"seeds must be integers, not {brief(seeds)}") from error
    check_seeds(*integers)
    if not integers:
        raise QuarlError("evaluation needs at least one episode")
    return integers


def _run_episodes(
    policy: Playable, env: Any, env_id: str, seeds: list[int], chance: RandomActions
) -> tuple[list[float], list[int]]:
    n = env.num_envs
    # A slot runs one episode at a time; -1 marks a slot with no episode left to run.
    episode = np.arange(n)
    returns = np.zeros(len(seeds))
    lengths = np.zeros(len(seeds), dtype=np.int64)
    next_episode = n
    obs = reset_slots(env, np.ones(n, dtype=bool), seeds[:n])
    chance.begin(range(n), seeds[:n])
    state = policy.initial_state(n)
    generator = torch.Generator().manual_seed(seeds[0])
    steps = 0  # since an episode ended
    while (active := episode >= 0).any():
        _check_finite("an observation", obs, active, env_id)
        if not active.all():  # an idle slot's may be NaN, for which a policy would refuse all
            obs = np.nan_to_num(obs, posinf=0, neginf=0)
        actions, state = policy.act(obs, state, generator)
        actions = chance.replace(actions)
        with users_own("environment"):
            obs, rewards, terminated, truncated, _ = env.step(actions)
        _check_finite("a reward", rewards, active, env_id)
        returns[episode[active]] += rewards[active]
        lengths[episode[active]] += 1
        finished = (terminated | truncated) & active
        if not finished.any():
            steps += 1
            if steps == ENDLESS_STEPS:
                logger.warning("no episode of '%s' has ended in %d steps: has it a time limit "
                               "(max_episode_steps)?", env_id, steps)
            continue
        steps = 0
        slots = np.flatnonzero(finished)
        episode[slots] = -1
        slots = slots[: len(seeds) - next_episode]
        if len(slots):
            episode[slots] = np.arange(next_episode, next_episode + len(slots))
            next_episode += len(slots)
            mask = np.zeros(n, dtype=bool)
            mask[slots] = True
            begun = [seeds[i] for i in episode[slots]]
            obs = reset_slots(env, mask, begun)
            chance.begin(slots, begun)
            if state is not None:
                state[torch.as_tensor(mask)] = policy.initial_state(len(slots))
    return [float(r) for r in returns], [int(length) for length in lengths]


def _check_finite(what: str, values: np.ndarray, active: np.ndarray, env_id: str) -> None:
    """Raise a QuarlError if an episode that counts met a number that is none, ``[n_envs, ...]``.

    The last observation of an episode may be: no action follows from it.
    """
    if values.dtype.kind == "f" and not (np.isfinite(values).all()
                                         or np.isfinite(values[active]).all()):  # fmt: skip
        raise QuarlError(f"environment '{env_id}' gave {what} that is NaN or infinite")
