"""The learners of the paper's size, for any environment."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl_nb.errors import (
    QuarlError,
    check_at_least,
    check_choice,
    check_counts,
    check_seeds,
    check_values,
    one_line,
)
from quarl_nb.rl.d4pg import D4PG
from quarl_nb.rl.envs import make_env
from quarl_nb.rl.fast_cnn import training_dtype
from quarl_nb.rl.half_dqn import HalfDQNPolicy
from quarl_nb.rl.recipes import linear
from quarl_nb.rl.sb3.spaces import obs_of

ALGORITHMS: dict[str, type[OffPolicyAlgorithm]] = {
    "d4pg": D4PG, "ddpg": DDPG, "dqn": DQN, "sac": SAC, "td3": TD3,
}  # fmt: skip
POLICY_WIDTH = 2048
CRITIC_WIDTH = 512
WARM_UP = 0.15
RATES = ("learning_rate", "actor_learning_rate")
# What SB3 takes as it comes: out of range it fails at the first update, or trains something else.
COUNTS = ("buffer_size", "n_steps", "policy_delay", "target_update_interval")
SHARES = ("exploration_final_eps", "exploration_fraction", "exploration_initial_eps", "gamma",
          "tau")  # fmt: skip
DEVIATIONS = ("target_noise_clip", "target_policy_noise")
# Parameters of algorithms that `make_algorithm` sets, and those that ActorQ refuses or has its own
# settings for.
_NO_OPTIONS = {
    "policy", "env", "policy_kwargs", "seed", "device", "autocast", "_init_setup_model",
    "train_freq", "gradient_steps", "action_noise", "use_sde", "sde_sample_freq",
    "use_sde_at_warmup", "replay_buffer_class", "replay_buffer_kwargs", "optimize_memory_usage",
    "stats_window_size", "tensorboard_log", "verbose",
}  # fmt: skip


def make_algorithm(
    algo: str,
    env_id: str,
    width: int = POLICY_WIDTH,
    seed: int = 0,
    device: str = "cpu",
    autocast: str = "",
    critic_width: int = CRITIC_WIDTH,
    fused: bool = True,
    **options: Any,
) -> OffPolicyAlgorithm:
    """An algorithm with the paper's networks (section 3): policy 3 x 2048, critic 3 x 512.

    Args:
        algo: d4pg, ddpg, dqn, sac or td3; DQN's network of action values is its policy.
        env_id: see `quarl_nb.rl.envs`.
        width: units in each hidden layer of the policy.
        device: of the networks: "cpu", "cuda" or one of several GPUs, as "cuda:1".
        critic_width: units in each hidden layer of the critics, where there are any.
        autocast: "bf16" lets a D4PG or DQN learner compute in bfloat16 (a RuntimeWarning where that
            is slower); "" in fp32.
        fused: one kernel for a whole step of Adam; without it torch makes a pass an operation.
        options: of the algorithm, in place of its defaults; a `learning_rate` or D4PG's
            `actor_learning_rate` of "lin_3e-4" falls from there to 0, as the RL Zoo writes it, and
            one of "warm_3e-4" rises to there first (`warmed_up`).

    Raises:
        QuarlError: an unknown algorithm or environment, an algorithm that cannot act there,
            observations of another space than Box, or images, a seed or device that there is not,
            networks that do not fit into its memory, an option out of its range, autocast of
            another algorithm than D4PG and DQN.
    """
    kind = ALGORITHMS[check_choice("algorithm of ActorQ", algo, ALGORITHMS)]
    check_counts(1, width=width, critic_width=critic_width)
    check_seeds(seed)
    check_device(device)
    policy: Any = "MlpPolicy"
    check_autocast(algo, autocast)
    if autocast:
        _warn_of_slow_autocast(device)
        if algo == "d4pg":
            options["autocast"] = torch.bfloat16
        else:
            policy = HalfDQNPolicy
    _check_ranges(options)
    for name in RATES:
        if isinstance(rate := options.get(name), str):
            options[name] = _schedule(rate)
    hidden: Any = [width] * 3
    if algo != "dqn":
        hidden = dict(pi=hidden, qf=[critic_width] * 3)
    network = dict(net_arch=hidden, optimizer_kwargs=dict(fused=fused))
    env = make_env(env_id)
    if obs_of(env.observation_space).image:
        own = f"{kind.__name__}('CnnPolicy', ...) of your own"
        raise QuarlError(
            f"{env_id} shows images, and these networks take vectors: hand a {own} to ActorQ"
        )
    with _made(f"{algo} of width {width}", f"{algo} cannot act in {env_id}"):
        return kind(
            policy, env, policy_kwargs=network, seed=int(seed), device=device, **options
        )  # type: ignore[call-arg]  # SB3's base class has other parameters than its algorithms


def options_of(algo: str) -> dict[str, Any]:
    """The `options` of `make_algorithm` that an algorithm heeds in ActorQ, with their defaults.

    Raises:
        QuarlError: an unknown algorithm.
    """
    kind = ALGORITHMS[check_choice("algorithm of ActorQ", algo, ALGORITHMS)]
    # D4PG hands TD3 what DDPG does: all but that one's additions.
    kinds: Any = (DDPG, D4PG) if kind is D4PG else (kind,)
    found: dict[str, Any] = {}
    for kind in kinds:
        for name, parameter in inspect.signature(kind).parameters.items():
            if name not in _NO_OPTIONS and parameter.kind != parameter.VAR_KEYWORD:
                real = parameter.annotation is float  # as DQN's max_grad_norm, which is 10
                found[name] = float(parameter.default) if real else parameter.default
    return found


@contextmanager
def _made(what: str, misfit: str) -> Iterator[None]:
    """What SB3 and torch refuse, in a line."""
    try:
        yield
    except AssertionError as error:  # SB3: the action space is not supported
        raise QuarlError(f"{misfit}: {error}".partition("\n")[0]) from error
    # torch: larger than memory, or int64; an option of its optimizers that is out of range
    except (RuntimeError, TypeError, MemoryError, ValueError) as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # amid a class: before Python 3.12
            raise error.__cause__ from None
        raise QuarlError(f"{what} cannot be made: {one_line(error)}") from error


def warmed_up(peak: float) -> Callable[[float], float]:
    """A learning rate that rises from 0 to `peak` in the first `WARM_UP` of a run and falls to 0 in
    the rest (slanted triangular; Howard and Ruder 2018, arXiv 1801.06146, section 3.2).

    Adam's first steps are as large as any, whatever an untrained critic's gradients are worth: wide
    actors saturate by them and no longer try anything else.
    """
    return lambda remaining: peak * min((1 - remaining) / WARM_UP, remaining / (1 - WARM_UP))


def _check_ranges(options: Mapping[str, Any]) -> None:
    def given(names: Iterable[str]) -> dict[str, Any]:
        return {name: options[name] for name in names if name in options}

    check_counts(0, **given(["learning_starts"]))
    check_counts(1, **given(COUNTS))
    check_at_least(0, **given(DEVIATIONS))
    check_values(Real, lambda x: 0 <= x <= 1, "from 0 to 1", **given(SHARES))
    # Clipping to a negative norm would turn the gradient around.
    check_values(Real, lambda x: x > 0, "above 0", **given(["max_grad_norm"]))


def _schedule(text: str) -> Callable[[float], float]:
    kind, _, rate = text.partition("_")
    try:
        schedule, peak = {"lin": linear, "warm": warmed_up}[kind], float(rate)
        if not 0 < peak < math.inf:
            raise ValueError
        return schedule(peak)
    except (KeyError, ValueError):
        allowed = "'lin_3e-4' or 'warm_3e-4'"
        raise QuarlError(f"learning rate {text!r} is no number, nor like {allowed}") from None


def check_autocast(algo: str, autocast: str) -> None:
    """Refuse what no learner of `algo` computes in.

    Raises:
        QuarlError: neither "bf16" nor "", or another algorithm than D4PG and DQN.
    """
    if not autocast:
        return
    check_choice("autocast", autocast, ("bf16",))
    if algo not in ("d4pg", "dqn"):
        raise QuarlError(f"{algo} has no autocast; allowed: d4pg, dqn")


def _warn_of_slow_autocast(device: str) -> None:
    if training_dtype(torch.device(device)) != torch.bfloat16:
        message = f"{device} is slower in bfloat16 than in float32 here: autocast costs time"
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def check_device(device: str) -> None:
    """Refuse a device of the learner that is not here.

    Raises:
        QuarlError: neither the processor nor one of the GPUs.
    """
    kind, colon, index = device.partition(":")
    check_choice("device", kind, ("cpu", "cuda"))
    # With a driver that is too old for torch there are devices to count, and none to use.
    found = 1 if kind == "cpu" else torch.cuda.is_available() and torch.cuda.device_count()
    if not found:
        raise QuarlError(f"device {device!r} was asked for, but torch finds no CUDA GPU")
    if colon and not (index.isdecimal() and int(index) < found):
        raise QuarlError(f"device {device!r} is not there; the last is '{kind}:{found - 1}'")
