"""The speed-up of a step that the parts of actors and learner predict, beside the measured one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES
from quarl_nb.report.actorq.runs import SETTING
from quarl_nb.report.stats import mean_ratio

_Pair = tuple[dict[str, object], pd.DataFrame, pd.DataFrame]  # what both share, fp32 runs, others


def predicted_speedups(parts: pd.DataFrame) -> pd.DataFrame:
    """Every kind of actor against both fp32 baselines at the same setting (weights as computed).

    Args:
        parts: `parts.step_parts`.

    Returns:
        `SETTING`, actor, baseline, runs, load (the learner's seconds per step over those of all
        fp32 actors together: above 1 the learner is the bottleneck), gain (fp32 over this actor's
        own seconds per step: the speed-up without any learner), accounted (ratio of
        predicted_step_s of these runs: no prediction, but whether their parts make up their steps),
        measured (ratio of step_s) with measured_low, measured_high (95 % over runs), error (mean
        of |log(measured / predicted)| over `held_out_speedups`: 0.05 is 5 % off; NaN of one run),
        keys, profile.
    """
    return pd.DataFrame([shared | _row(base, runs) for shared, base, runs in _pairs(parts)])


def held_out_speedups(parts: pd.DataFrame) -> pd.DataFrame:
    """Every run beside the fp32 one of its seed, predicted by the parts of the other seeds' runs.

    A mean of such predictions would be that of all parts again, so that each stands for itself.

    Args:
        parts: `parts.step_parts`.

    Returns:
        `SETTING`, actor, baseline, seed, predicted (ratio of mean predicted_step_s of the others),
        measured (ratio of step_s), held_out (False of a single seed, which its own parts predict).
    """
    rows = [_held_out(base, runs).assign(**shared) for shared, base, runs in _pairs(parts)]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def _pairs(parts: pd.DataFrame) -> Iterator[_Pair]:
    if parts.empty:
        return
    plain = parts[(parts["communication"] == parts["precision"]) & parts["step_s"].notna()]
    for setting, group in plain.groupby(SETTING, sort=False, dropna=False):
        actors = dict(list(group.groupby("actor", sort=False)))
        for baseline, (actor, runs) in product(BASELINES.values(), actors.items()):
            if baseline in actors and actor not in (baseline, BASELINES["torch"]):
                shared: dict[str, object] = dict(zip(SETTING, setting, strict=True))
                yield shared | {"actor": actor, "baseline": baseline}, actors[baseline], runs


def _row(base: pd.DataFrame, runs: pd.DataFrame) -> dict[str, object]:
    measured = mean_ratio(base["step_s"].to_numpy(), runs["step_s"].to_numpy())
    actors_step_s = base["actor_step_s"].mean() / base["n_actors"].iloc[0]
    # A learner does the same for every kind of actor: one load, from both.
    learner_step_s = (base["learner_step_s"].mean() + runs["learner_step_s"].mean()) / 2
    each = _held_out(base, runs)
    errors = np.log(each["measured"] / each["predicted"]).abs()
    return {
        "runs": min(len(base), len(runs)), "load": learner_step_s / actors_step_s,
        "gain": base["actor_step_s"].mean() / runs["actor_step_s"].mean(),
        "accounted": base["predicted_step_s"].mean() / runs["predicted_step_s"].mean(),
        **measured.columns("measured"),
        "error": errors.mean() if len(each) > 1 else float("nan"),
        "keys": (*base["key"], *runs["key"]), "profile": runs["profile"].iloc[0],
    }


def _held_out(base: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """One row a seed of both: seed, predicted, measured, held_out."""
    both = base.merge(runs, on="seed", suffixes=("_base", ""))
    others = [
        (own.sum() - own) / (len(both) - 1) if len(both) > 1 else own
        for own in (both["predicted_step_s_base"], both["predicted_step_s"])
    ]
    return pd.DataFrame({
        "seed": both["seed"], "predicted": others[0] / others[1],
        "measured": both["step_s_base"] / both["step_s"], "held_out": len(both) > 1,
    })  # fmt: skip


def bounded_speedup(load: np.ndarray, gain: float) -> np.ndarray:
    """Speed-up of actors that are `gain` times faster beside a learner of relative load `load`.

    max(1, load) / max(1 / gain, load): Amdahl's bound for two sides that overlap.
    """
    return np.maximum(1, load) / np.maximum(1 / gain, load)
