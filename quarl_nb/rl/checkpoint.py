"""Checkpoints of a training run: tensors and numbers alone, read with ``weights_only=True``."""

from __future__ import annotations

import glob
import zipfile
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd

from quarl_nb.errors import QuarlError, brief
from quarl_nb.locks import held_alone
from quarl_nb.quant import is_finite
from quarl_nb.rl.d4pg_policies import D4PGPolicy
from quarl_nb.rl.replay_state import check_replay, replay_state, restore_replay
from quarl_nb.rl.sb3.environment import env_id_of
from quarl_nb.writing import replacing, sweep

FORMAT = 2
READABLE = (1, 2)  # 1 had neither packed frames nor priorities
# What SB3 counts by, beside `num_timesteps`: target updates and delays depend on it.
_COUNTERS = ("_n_updates", "_n_calls")


@dataclass
class Progress:
    """What a run has reached so far, kept in its checkpoint.

    Attributes:
        timesteps: environment steps that it has learned from; of a run that reached its target
            return, all it has made.
        stages: (environment steps, metres) of the curriculum, where the recipe has one.
        updates: gradient steps as SB3 counts them (of an ActorQ run its own; an algorithm may have
            made others before it); None of older checkpoints.
        ahead: transitions that an ActorQ learner had sampled beyond what its rate limiter asks for.
        seed: of a recipe's run; None of older checkpoints.
    """

    timesteps: int = 0
    wall_s: float = 0.0
    best_return: float = -float("inf")
    best_timesteps: int = 0
    done: bool = False
    stages: list[tuple[int, float]] = field(default_factory=list)
    updates: int | None = None
    ahead: int = 0
    seed: int | None = None


@dataclass(frozen=True)
class Mark:
    """What a model counts between two rollouts, to save it as of then while it collects the next.

    SB3 drops a rollout that is cut short. Collecting it trains nothing but moves these. (Running
    normalization keeps what it has seen; DQN's target network is copied at the same step again.)

    Attributes:
        counters: by their names in SB3.
        replay: where the next transition goes, and whether the buffer is full; or None.
    """

    counters: dict[str, int]
    replay: tuple[int, bool] | None

    @classmethod
    def of(cls, model: BaseAlgorithm) -> Mark:
        """Of a model as it is now."""
        counters = {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)}
        buffer = model.replay_buffer if isinstance(model, OffPolicyAlgorithm) else None
        return cls(counters, (buffer.pos, buffer.full) if buffer else None)


def held(path: Path) -> AbstractContextManager[None]:
    """Keep other runs from a checkpoint meanwhile: each would sweep and replace the other's.

    Raises:
        QuarlError: (when entered) another run holds it.
    """
    lock = path.with_name(f".{path.name}.lock")
    return held_alone(lock, f"checkpoint '{path}' is used by another run")


def save_checkpoint(
    path: Path, model: BaseAlgorithm, progress: Progress, mark: Mark | None = None
) -> None:
    """Write parameters, optimizers, normalization and replay buffer by atomic rename.

    `mark`: of the last moment between two rollouts, by default now; `progress` must be of it too.

    Frames of the replay buffer are compressed without loss: 10,000 transitions of an
    Atari game, 564 MB, take 8 to 12 MB and 1.5 s.

    Raises:
        QuarlError: the file cannot be written.
    """
    state: dict[str, Any] = {"format": FORMAT, "progress": asdict(progress)}
    state |= _identity(model)
    state["parameters"] = model.get_parameters()
    state["variables"] = {name: tensor.detach() for name, tensor in _variables(model).items()}
    mark = mark or Mark.of(model)
    state["counters"] = mark.counters
    state["normalizer"] = {
        name: {"mean": torch.as_tensor(rms.mean), "var": torch.as_tensor(rms.var),
               "count": float(rms.count)}
        for name, rms in _running_statistics(model).items()
    }  # fmt: skip
    if isinstance(model, OffPolicyAlgorithm):
        assert mark.replay is not None
        state["replay"] = replay_state(model, *mark.replay)
    try:
        # Each save that was killed left up to half a gigabyte; a run has one process that saves.
        sweep(path.parent, glob.escape(path.name), older_than_s=0)
        with replacing(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise QuarlError(f"cannot write checkpoint '{path}': {error}") from error


def load_checkpoint(path: Path, model: BaseAlgorithm) -> Progress:
    """Put a checkpoint into `model`, in place; the reverse of `save_checkpoint`.

    Raises:
        QuarlError: the file is damaged, of another format, or of another algorithm, environment,
            normalization, network, or size or number of environments of the replay buffer. The
            model is then as it was.
    """
    try:
        state = _read(path)
        progress = Progress(**state["progress"])
        _check_fits(model, state)
        _set_parameters(model, state["parameters"])
        variables = _variables(model)
        with torch.no_grad():
            for name, tensor in state.get("variables", {}).items():
                if variables[name].requires_grad:  # learned; a fixed one is the algorithm's own
                    variables[name].copy_(tensor)
        for name, rms in _running_statistics(model).items():
            saved = state["normalizer"][name]
            rms.mean, rms.var = saved["mean"].numpy(), saved["var"].numpy()
            rms.count = saved["count"]
        for name, count in state.get("counters", {}).items():
            setattr(model, name, count)
        model.num_timesteps = progress.timesteps
        restore_replay(model, state.get("replay", {}))
    except Exception as error:  # torch.load raises almost anything, as does another recipe's state
        raise _unreadable(path, error) from error
    return progress


def has_finite_weights(model: BaseAlgorithm) -> bool:
    """Whether nothing in the policy is NaN or infinite, target networks and ranges included."""
    return all(is_finite(tensor) for tensor in model.policy.state_dict().values())


def read_progress(path: Path) -> Progress:
    """How far the run of a checkpoint is; its tensors are not read.

    Raises:
        QuarlError: the file is damaged or of another format.
    """
    try:
        return Progress(**_read(path, tensors=False)["progress"])
    except Exception as error:  # torch.load raises almost anything on a damaged file
        raise _unreadable(path, error) from error


def _check_fits(model: BaseAlgorithm, state: dict[str, Any]) -> None:
    """Refuse a checkpoint of something else, as long as the model is as it was."""
    for what, own in _identity(model).items():
        saved = state.get(what)  # older checkpoints do not tell of environments
        if saved != own and None not in (saved, own):
            raise QuarlError(f"it is of {saved}, not of {own}")
    kinds = ["normalized" if found else "raw"
             for found in (state.get("normalizer"), _running_statistics(model))]  # fmt: skip
    if kinds[0] != kinds[1]:
        raise QuarlError(f"it is of {kinds[0]} observations, not of {kinds[1]} ones")
    shapes = {name: tensor.shape for name, tensor in _variables(model).items()}
    for name, tensor in state.get("variables", {}).items():
        if shapes.get(name) != tensor.shape:
            raise QuarlError(f"its {name} is none of the algorithm's")
    if isinstance(model.policy, D4PGPolicy):
        _check_bounds(model.policy, state["parameters"]["policy"])
    check_replay(model, state.get("replay", {}))


def _check_bounds(policy: D4PGPolicy, saved: dict[str, torch.Tensor]) -> None:
    """The atoms of D4PG's returns, saved with its networks, would replace the algorithm's."""
    theirs, ours = ((atoms[0].item(), atoms[-1].item())
                    for atoms in (saved["critic.atoms"], policy.critic.atoms))  # fmt: skip
    if theirs != ours:
        raise QuarlError("its v_min and v_max are {:g} and {:g}, those of the algorithm "
                         "{:g} and {:g}".format(*theirs, *ours))  # fmt: skip


def _set_parameters(model: BaseAlgorithm, parameters: dict[str, Any]) -> None:
    before: dict[str, Any] = deepcopy(model.get_parameters())
    try:
        model.set_parameters(parameters, exact_match=True, device="cpu")
    except Exception as error:
        model.set_parameters(before, exact_match=True, device="cpu")  # some were set already
        if isinstance(error, RuntimeError | ValueError):  # which list tensors and shapes
            raise QuarlError("it is of another network or environment") from error
        raise


def _read(path: Path, tensors: bool = True) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as file:
            # torch writes sums of all it saves and checks none.
            if tensors and (damaged := file.testzip()):
                raise zipfile.BadZipFile(damaged)
        state = torch.load(path, weights_only=True, mmap=not tensors, map_location="cpu")
    except OSError:
        raise
    except Exception as error:  # whose text tells how to read what may execute code
        raise QuarlError("it is damaged, or no checkpoint of quarl_nb") from error
    if not isinstance(state, dict) or "format" not in state:
        raise QuarlError("it is no checkpoint of quarl_nb")
    if state["format"] not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise QuarlError(f"it has format {state['format']}, this version reads {known}")
    return state


def _unreadable(path: Path, error: Exception) -> QuarlError:
    # A file that may not be read may be whole.
    advice = "" if isinstance(error, OSError) else "; to start anew, delete it or name another"
    return QuarlError(f"checkpoint '{path}' cannot be read: {brief(error)}{advice}")


def _identity(model: BaseAlgorithm) -> dict[str, str | None]:
    """What a checkpoint must be of; no environment's id where gymnasium did not make it."""
    return {"algorithm": type(model).__name__, "environment": env_id_of(model)}


def _variables(model: BaseAlgorithm) -> dict[str, torch.Tensor]:
    """What a model learns outside of its networks: SAC's entropy coefficient."""
    return {name: getattr(model, name) for name in model._get_torch_save_params()[1]}


def _running_statistics(model: BaseAlgorithm) -> dict[str, RunningMeanStd]:
    """What ``VecNormalize`` has gathered of observations and returns; {} without it."""
    normalizer = model.get_vec_normalize_env()
    if normalizer is None:
        return {}
    assert isinstance(normalizer.obs_rms, RunningMeanStd)  # none of ours observes a dictionary
    return {"obs": normalizer.obs_rms, "ret": normalizer.ret_rms}
