"""A user's own policy: what each precision costs it, as one table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from quarl_nb.errors import QuarlError, check_counts, check_episode_seeds
from quarl_nb.quant import parse_precision
from quarl_nb.report.losses import paired_losses
from quarl_nb.rl.random_actions import random_actions_of
from quarl_nb.studies.policies import Subject, load_acting
from quarl_nb.studies.ptq import EPISODES, FIRST_SEED, episodes_in, measure_policy

logger = logging.getLogger(__name__)

COLUMNS = ["precision", "ranges", "mean", "mean_low", "mean_high",
           "loss", "loss_low", "loss_high", "weight_bytes"]  # fmt: skip


def quantize_table(
    source: str | Path,
    env_id: str | None = None,
    bits: Sequence[int] = (8,),
    episodes: int | None = None,
    ranges: str = "minmax",
    vecnormalize: str | Path | None = None,
    activation: str | None = None,
    first_seed: int = FIRST_SEED,
) -> pd.DataFrame:
    """Measure a policy in fp32, fp16, int8 and `bits` wide affine weights (simulated).

    Args:
        source, env_id, vecnormalize, activation: as `load_acting` takes them.
        bits: repeated ones count once.
        episodes: for each precision, on the same seeds (default: the studies' 100, on Atari 30).
        ranges: how integer ranges are set: minmax, per_channel, percentile or mse.

    Returns:
        One row a precision: mean return with its 95 % interval, loss (a fraction of the fp32
        return, positive is worse) with its 95 % interval, bytes of all parameters, biases included.

    Raises:
        QuarlError: the policy cannot be read or does not fit the environment, no environment is
            known, or only by the policy's file, of a module whose code would run, bits or ranges
            are not among those allowed, fewer than 2 episodes, a seed that environments do not
            take.
    """
    formats = [("fp32", "minmax"), ("fp16", "minmax"), ("int8", ranges)]
    formats += [(f"affine{b}", ranges) for b in dict.fromkeys(bits)]
    for name, how in formats:
        parse_precision(name, how)  # a wrong one is to be told before minutes of episodes
    if episodes is not None:
        check_counts(2, episodes=episodes)  # of one there is no interval
    check_episode_seeds(first_seed, episodes or EPISODES)
    subject = load_acting(source, env_id, vecnormalize, activation)
    if episodes is None:
        episodes = episodes_in(subject.env_id)
    budget = {"episodes": episodes, "first_seed": first_seed,
              "random_actions": random_actions_of(subject.net.spec.head, subject.env_id)}
    records = _measure(subject, formats, budget)
    losses = paired_losses(records)
    return losses.merge(records[["precision", "ranges", "weight_bytes"]])[COLUMNS]


def _measure(
    subject: Subject, formats: list[tuple[str, str]], budget: Mapping[str, Any]
) -> pd.DataFrame:
    """A record of each format that the policy can run in (fp32 must be one).

    `measure_policy` takes one thread; the caller's come back.
    """
    rows, threads = [], torch.get_num_threads()
    try:
        for name, how in formats:
            try:
                measured = measure_policy(subject, parse_precision(name, how), budget).measured
            except QuarlError as error:  # as fp16's outputs, of observations beyond 65,504
                if name == "fp32":
                    raise
                logger.warning("%s is left out: %s", name, error)
                continue
            rows.append({"key": name, "policy": subject.name, "algo": subject.algo, "seed": 0,
                         "env_id": subject.env_id, "precision": name, "ranges": how,
                         "budget.random_actions": budget["random_actions"],
                         **measured})  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    return pd.DataFrame(rows)
