"""The policies of ``data/policies``: which are there, which are missing, and training them."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.locks import held_alone
from quarl_nb.paths import policies_folder, project_root
from quarl_nb.processes import keep_freed_memory
from quarl_nb.rl.atari import is_atari
from quarl_nb.rl.checkpoint import read_progress
from quarl_nb.rl.denormals import denormals_as_zero
from quarl_nb.rl.policies import DESCRIPTION, load_digest, load_policy, save_policy
from quarl_nb.rl.recipes import Recipe, get_recipe, recipes
from quarl_nb.rl.train import train
from quarl_nb.writing import make_writable

logger = logging.getLogger(__name__)


def policy_folder(name: str) -> Path:
    """Where the studies find a trained policy."""
    return policies_folder() / name


def run_folder(name: str) -> Path:
    """Where the run that trains a policy is."""
    return project_root() / "runs" / name


def is_published(name: str) -> bool:
    """Whether the whole policy is there: `save_policy` writes its description last."""
    return (policy_folder(name) / DESCRIPTION).exists()


def is_settled(name: str) -> bool:
    """Whether the policy is published and no run of it waits to go on."""
    checkpoint = run_folder(name) / "checkpoint.pt"
    return is_published(name) and not (checkpoint.exists() and not read_progress(checkpoint).done)


def state_of(name: str) -> str:
    """Of a recipe's policy: "trained", "at step 378,816 of 5,000,000" or "missing".

    A policy of a run that was cut short is "trained, stopped early at step 9 of 10"; one that is
    being trained anew, "trained; again at step 9 of 10", or, once that is done, "trained; another
    run of it is done, not published".

    Raises:
        QuarlError: its policy or its checkpoint cannot be read.
    """
    checkpoint = run_folder(name) / "checkpoint.pt"
    run = read_progress(checkpoint) if checkpoint.exists() else None
    at = f"at step {run.timesteps:,} of {get_recipe(name).timesteps:,}" if run else "missing"
    if not is_published(name):
        return at
    origin = load_policy(policy_folder(name)).spec.provenance
    state = _published_state(name, origin)
    if run is not None and run.done and _ended_otherwise(name):
        return f"{state}; another run of it is done, not published"
    # Where it is the run that was published, cut short, it is not trained again.
    if run is None or run.done or run.timesteps == origin.get("timesteps_run"):
        return state
    return f"{state}; again {at}"


def _ended_otherwise(name: str) -> bool:
    """Whether a run that is done has another policy than the published one, as of a kill between
    the two; not where one cannot be read."""
    try:
        return load_digest(run_folder(name) / "best") != load_digest(policy_folder(name))
    except QuarlError:
        return False


def _published_state(name: str, origin: Mapping[str, Any]) -> str:
    run = origin.get("timesteps_run")  # older policies, and others' policies, do not say
    if run is None or run >= origin["timesteps_planned"]:
        return "trained"
    target = get_recipe(name).target_return
    if target is not None and origin["selection"]["mean"] >= target:
        return "trained"
    return f"trained, stopped early at step {run:,} of {origin['timesteps_planned']:,}"


def wanted_policies(names: Sequence[str], missing: bool, retrain: bool = False) -> list[str]:
    """The named policies and, if `missing`, then those that are not trained, in recipes' order.

    A named one that is published already is left out, which is logged, unless `retrain` asks for
    it or its run in ``runs/`` is not done. A run that is done is published again, not trained anew.

    Raises:
        QuarlError: no such policy, none is asked for, or a checkpoint cannot be read.
    """
    known = recipes()
    named = list(dict.fromkeys(check_choice("policy", name, known) for name in names))
    if not named and not missing:
        raise QuarlError("nothing to train: name policies, or --missing")
    left = [n for n in known if missing and n not in named and not is_published(n)]
    if not named and not left:
        logger.info("no policy is missing")
    settled = [name for name in named if is_settled(name)]
    for name in settled:
        if (run_folder(name) / "checkpoint.pt").exists():  # which --retrain goes on from
            told = "%s is already trained; with '%s' deleted, --retrain trains it anew"
            if _ended_otherwise(name):
                told = "%s is already trained; what '%s' ended with, --retrain publishes"
            logger.info(told, name, run_folder(name))
        elif not retrain:
            logger.info("%s is already trained; --retrain trains it anew", name)
    return [name for name in named if retrain or name not in settled] + left


def shares_cores(recipe: Recipe) -> bool:
    """Whether updates are so large that two threads train faster than one (see docs/speed.md).

    True of Atari, and of DQN and DDPG with layers of at least 256 units and batches of at least
    100; in smaller updates threads wait for one another.
    """
    if is_atari(recipe.env_id):
        return True
    if recipe.algo in ("ppo", "a2c"):
        return False
    of_sb3 = {"dqn": [64, 64], "ddpg": [400, 300]}[recipe.algo]  # where a recipe names none
    units = recipe.hyperparameters.get("policy_kwargs", {}).get("net_arch", of_sb3)
    return min(units) >= 256 and recipe.hyperparameters["batch_size"] >= 100


def train_policies(
    names: Iterable[str], deadline: float | None = None, show_bar: bool = True, cores: int = 1
) -> Iterator[tuple[str, Path | QuarlError]]:
    """Train policies one after the other, each from its last checkpoint on.

    Args:
        names: taken one at a time, so that processes can share them.
        deadline: Unix time at which to stop and keep a checkpoint; the next call continues.
        show_bar: of progress, on a terminal.
        cores: for the trainings that gain by more than one (`shares_cores`), while they do
            (`faster_threads`).

    Yields:
        each policy that was finished, with its folder, or that failed, with the reason; what
        fails stops no other.
    """
    keep_freed_memory()
    with denormals_as_zero():  # torch starts its threads meanwhile, which then do so, too
        for name in names:
            if deadline is not None and time.time() >= deadline:
                return
            recipe, run_dir = get_recipe(name), run_folder(name)
            n_threads = cores if shares_cores(recipe) else 1
            torch.set_num_threads(n_threads)
            try:
                with held(run_dir, name):
                    if train(recipe, run_dir, deadline=deadline, show_bar=show_bar,
                             n_threads=n_threads).done:  # fmt: skip
                        yield name, publish(run_dir, policy_folder(name))
            except QuarlError as error:
                yield name, QuarlError(str(error))  # whose traceback does not hold on to the model
            except Exception as error:  # of an environment or a library; a queue runs for days
                yield name, _unexpected(name, run_dir, error)


def _unexpected(name: str, run_dir: Path, error: Exception) -> QuarlError:
    """What a run failed of, as one line; the traceback goes to ``<run_dir>/traceback.txt``."""
    path = run_dir / "traceback.txt"
    with suppress(OSError):  # a full disk may be what failed
        text = "".join(traceback.format_exception(error))
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    reason = " ".join("".join(traceback.format_exception_only(error)).split())[:200]
    return QuarlError(f"{name} failed: {reason}; see '{path}'")


@contextmanager
def held(run_dir: Path, name: str) -> Iterator[None]:
    """Keep other processes out of a run; whatever ends this process lets go of it.

    Raises:
        QuarlError: another process trains this policy, or the folder cannot be written.
    """
    make_writable(run_dir)
    with held_alone(run_dir / "lock", f"{name} is being trained by another process"):
        yield


def publish(run_dir: Path, folder: Path) -> Path:
    """Copy a run's best policy to where the studies find it, with the steps the run has made.

    Raises:
        QuarlError: the run has learned nothing, the policy or the run's checkpoint cannot be read,
            or the folder not written.
    """
    made = read_progress(run_dir / "checkpoint.pt")
    if made.updates == 0:
        raise QuarlError(
            f"{folder.name} is as it began: no update in {made.timesteps:,} steps; its recipe "
            "needs more, or a higher target return"
        )
    return save_policy(load_policy(run_dir / "best"), folder, {"timesteps_run": made.timesteps})
