"""How figures and tables name policies, and ways to set the ranges of their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable

PUBLIC = "public/"
RANGES = {"minmax": "min-max", "per_channel": "per channel", "percentile": "percentile",
          "mse": "least squares"}  # fmt: skip
_POLICY = re.compile(
    r"(?P<algo>a2c|a3c-gru|ars|crossq|d4pg|ddpg|dqn|dueling-ddqn|ppo|qrdqn|sac|td3|tqc|trpo)-"
    r"(?P<env>.+?)(?P<ending>(NoFrameskip|Deterministic)?-v[0-9.]+)?$"
)


def policy_label(policy: str) -> str:
    """`public/a2c-HalfCheetah-v3` as figures write it, A2C HalfCheetah (public); others stay."""
    return _label(policy, short=True)


def policy_labels(policies: Iterable[str]) -> dict[str, str]:
    """Labels of policies that are shown together, no two alike, as {policy: label}.

    `policy_label`, or the environment's whole name where that would be shared: ppo-MountainCar-v0
    is PPO MountainCar, and beside ppo-MountainCarContinuous-v0 PPO MountainCar-v0.
    """
    names = list(dict.fromkeys(policies))
    short = [policy_label(name) for name in names]
    return {name: label if short.count(label) == 1 else _label(name, short=False)
            for name, label in zip(names, short, strict=True)}  # fmt: skip


def _label(policy: str, short: bool) -> str:
    found = _POLICY.match(policy.removeprefix(PUBLIC))
    if found is None or not (found["ending"] or found["env"].startswith("AirNavigation-")):
        return policy  # as its owner calls it
    algo, env = found["algo"].upper(), found["env"]
    if short:
        env = env.replace("MountainCarContinuous", "MountainCar")  # the paper's own short name
        env = env[:1].upper() + env[1:]
    else:
        env += found["ending"] or ""
    return f"{algo} {env} (public)" if policy.startswith(PUBLIC) else f"{algo} {env}"
