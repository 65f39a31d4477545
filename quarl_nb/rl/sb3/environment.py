"""The environment of a live stable-baselines3 model: its id, and what that does not tell."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from quarl_nb.errors import brief
from quarl_nb.rl.atari import is_atari
from quarl_nb.rl.envs import MONITOR

logger = logging.getLogger(__name__)

# Arguments of `gym.make` and `gym.make_vec` that leave an environment what it is.
_ASIDE = ("render_mode", "num_envs", "vectorization_mode")


def env_id_of(model: Any) -> str | None:
    """The id of a live model's environment; None without one, or where it does not tell.

    Environments that gymnasium did not make have none, and those of a ``SubprocVecEnv``, in
    processes of their own, tell it until they are closed.
    """
    spec = _spec_of(model)
    return spec.id if spec else None


def warn_of_changes(model: Any) -> None:
    """Tell what makes a live model's environment another one than its id alone names."""
    spec = _spec_of(model)
    if spec is None or spec.id not in gym.registry or is_atari(spec.id):
        return
    plain = gym.spec(spec.id)
    same = {name: brief(value) for name, value in plain.kwargs.items()}
    changes = [f"{name}={brief(value)}" for name, value in spec.kwargs.items()
               if name not in _ASIDE and same.get(name) != brief(value)]  # fmt: skip
    if spec.max_episode_steps != plain.max_episode_steps:
        changes.append(f"max_episode_steps={spec.max_episode_steps}")
    known = (MONITOR, *(wrapper.entry_point for wrapper in plain.additional_wrappers))
    changes += [w.name for w in spec.additional_wrappers if w.entry_point not in known]
    if changes:
        logger.warning("the model acts in %s with %s, which a policy does not keep: evaluate it "
                       "there (make=...), or register that environment and give its env_id",
                       spec.id, ", ".join(changes))  # fmt: skip


def _spec_of(model: Any) -> EnvSpec | None:
    try:
        return model.env.get_attr("spec")[0] if model.env else None
    except (EOFError, OSError, AttributeError, NotImplementedError):  # closed, or not SB3's own
        return None
