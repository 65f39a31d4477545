"""What an environment step costs an actor and the learner, and the speed-up that follows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES
from quarl_nb.report.actorq.curves import TASKS
from quarl_nb.report.actorq.runs import ACTOR, SETTING, actorq_runs
from quarl_nb.report.paper import published
from quarl_nb.report.stats import ALPHA, mean_ratio

# An actor's time that is not waiting; Figure 4c's step, pull, deserialize and load_state_dict
# times, what its environment takes, and sending transitions.
ACTOR_PARTS = ("environment", "inference", "pull", "deserialize", "load", "send")
LEARNER_PARTS = ("insert", "sample", "train", "publish")
# The paper's setting, for Table 3's two readings (section 3; Acme's batch).
PAPER_ACTORS, PAPER_SAMPLES_PER_INSERT, PAPER_BATCH = 4, 16, 256
TABLE3_NAMES = {"Cartpole": "Cartpole (Gym)", "Acrobot": "Acrobot (Gym)",
                "MountainCar": "Mountain Car (Gym)"}  # fmt: skip


def step_parts(records: pd.DataFrame) -> pd.DataFrame:
    """One row a run: seconds per environment step of each side, by activity.

    Returns:
        `SETTING`, precision, runtime, communication, actor, seed, runs = 1; the names of
        `ACTOR_PARTS` (seconds of one actor per step of its own), actor_wait, actor_step_s (their
        sum without waiting), learner_wait, learner_step_s (insert, sample, train and publish per
        environment step), predicted_step_s = max(actor_step_s / n_actors, learner_step_s): two
        sides that overlap perfectly; step_s = run_s over steps; payload_bytes, age_mean,
        age_p50, age_p95, restarts, key, profile.
    """
    rows = []
    for _, run in actorq_runs(records).iterrows():
        steps, actor, learner = run["steps"], run["actor_s"], run["learner_s"]
        parts = {name: actor.get(name, 0.0) / steps for name in ACTOR_PARTS}
        learner_step_s = sum(learner.get(name, 0.0) for name in LEARNER_PARTS) / steps
        row = {name: run[name] for name in [*SETTING, *ACTOR, "actor", "seed"]} | parts
        row |= {"actor_wait": actor.get("wait", 0.0) / steps,
                "actor_step_s": sum(parts.values()), "learner_step_s": learner_step_s,
                "learner_wait": learner.get("wait", 0.0) / steps}  # fmt: skip
        row |= {
            "predicted_step_s": max(row["actor_step_s"] / run["n_actors"], learner_step_s),
            "step_s": run["run_s"] / steps,
        }
        kept = ("payload_bytes", "age_mean", "age_p50", "age_p95", "restarts", "key", "profile")
        rows.append(row | {name: run[name] for name in kept if name in run} | {"runs": 1})
    return pd.DataFrame(rows)


def by_actor(parts: pd.DataFrame) -> pd.DataFrame:
    """`step_parts` averaged over the runs (seeds) of each setting and kind of actor."""
    if parts.empty:
        return parts
    names = [*SETTING, *ACTOR, "actor", "profile"]
    numbers = [name for name in parts.select_dtypes("number") if name not in (*names, "seed")]
    how = {name: "sum" if name == "runs" else "mean" for name in numbers}
    groups = parts.groupby(names, sort=False, dropna=False)
    return groups.agg(how | {"key": tuple}).rename(columns={"key": "keys"}).reset_index()


def predicted_speedups(parts: pd.DataFrame) -> pd.DataFrame:
    """Every kind of actor against both fp32 baselines at the same setting (weights as computed).

    Returns:
        `SETTING`, actor, baseline, runs, load (the learner's seconds per step over those of all
        fp32 actors together: above 1 the learner is the bottleneck), gain (fp32 over this actor's
        own seconds per step: the speed-up without any learner), predicted (ratio of
        predicted_step_s) and measured (ratio of step_s) with measured_low, measured_high (95 %
        over runs), keys, profile.
    """
    if parts.empty:
        return parts
    rows = []
    plain = parts[(parts["communication"] == parts["precision"]) & parts["step_s"].notna()]
    for setting, group in plain.groupby(SETTING, sort=False, dropna=False):
        actors = dict(list(group.groupby("actor", sort=False)))
        for baseline in BASELINES.values():
            for actor, runs in actors.items():
                if baseline not in actors or actor in (baseline, BASELINES["torch"]):
                    continue
                rows.append(dict(zip(SETTING, setting, strict=True)) | {
                    "actor": actor, "baseline": baseline,
                    **_predicted(actors[baseline], runs),
                })  # fmt: skip
    return pd.DataFrame(rows)


def _predicted(base: pd.DataFrame, runs: pd.DataFrame) -> dict[str, object]:
    measured = mean_ratio(base["step_s"].to_numpy(), runs["step_s"].to_numpy())
    actors_step_s = base["actor_step_s"].mean() / base["n_actors"].iloc[0]
    # A learner does the same for every kind of actor: one load, from both.
    learner_step_s = (base["learner_step_s"].mean() + runs["learner_step_s"].mean()) / 2
    return {
        "runs": min(len(base), len(runs)), "load": learner_step_s / actors_step_s,
        "gain": base["actor_step_s"].mean() / runs["actor_step_s"].mean(),
        "predicted": base["predicted_step_s"].mean() / runs["predicted_step_s"].mean(),
        "measured": measured.value, "measured_low": measured.low, "measured_high": measured.high,
        "keys": (*base["key"], *runs["key"]), "profile": runs["profile"].iloc[0],
    }


def bounded_speedup(load: np.ndarray, gain: float) -> np.ndarray:
    """Speed-up of actors that are `gain` times faster beside a learner of relative load `load`.

    max(1, load) / max(1 / gain, load): Amdahl's bound for two sides that overlap.
    """
    return np.maximum(1, load) / np.maximum(1 / gain, load)


def communication_speedups(parts: pd.DataFrame) -> pd.DataFrame:
    """What communication precision does at the same compute precision (Figure 4a, 4b).

    Returns:
        `SETTING`, precision, runtime, actor, communication, runs and base_runs (weights sent in
        fp32), steps_per_s of an actor that never waits, speedup over those with the ends of
        `curves.ratio`, payload_bytes, smaller (fp32 bytes over these), keys, profile; settings with
        one communication precision left out.
    """
    rows: list[dict[str, object]] = []
    names = [*SETTING, "precision", "runtime", "actor"]
    parts = parts[parts["step_s"].notna()] if len(parts) else parts
    for setting, group in parts.groupby(names, sort=False, dropna=False) if len(parts) else ():
        base = group[group["communication"] == "fp32"]
        if group["communication"].nunique() < 2 or base.empty:
            continue
        for communication, runs in group.groupby("communication", sort=False):
            times = base["actor_step_s"].to_numpy(), runs["actor_step_s"].to_numpy()
            ratio, of_all = mean_ratio(*times), mean_ratio(*times, alpha=ALPHA / TASKS)
            rows.append(dict(zip(names, setting, strict=True)) | {
                "communication": communication, "runs": len(runs), "base_runs": len(base),
                "steps_per_s": 1 / runs["actor_step_s"].mean(), "speedup": ratio.value,
                "speedup_low": ratio.low, "speedup_high": ratio.high,
                "speedup_least": of_all.low, "speedup_most": of_all.high,
                "payload_bytes": runs["payload_bytes"].mean(),
                "smaller": base["payload_bytes"].mean() / runs["payload_bytes"].mean(),
                "keys": tuple(dict.fromkeys([*base["key"], *runs["key"]])),
                "profile": runs["profile"].iloc[0],
            })  # fmt: skip
    return pd.DataFrame(rows)


def step_readings(
    speedups: pd.DataFrame, parts: pd.DataFrame, tables: Mapping[str, pd.DataFrame] | None = None
) -> pd.DataFrame:
    """Table 3's "steps trained" read as environment steps of all actors or as learner updates.

    Table 2 says how long fp32 took, so each reading says how long a step of one of the paper's
    four actors must have taken: 4 T / N if N counts environment steps, 16 times less if N counts
    updates (a batch of 256 at 16 samples per insert is an update every 16 environment steps). T
    is the time to 95 % reward, so both are lower bounds. The reading that fits is the one nearer,
    as a ratio, to the step that was measured here with the paper's fp32 actors. All that was
    measured of a task is of one setting.

    Args:
        speedups: `runs.speedups`. parts: `step_parts`, of the same records.
        tables: published table2 and table3, if not those of data/paper.

    Returns:
        One row a task of Table 3: task, published_steps, published_s, as_actor_steps_ms,
        as_updates_ms, measured_ms, fits ("actor steps", "learner updates", "" unmeasured); steps
        and updates to the level of the fp32 actors here; keys.
    """
    two, three = ((tables or {}).get(name, published(name)) for name in ("table2", "table3"))
    times = two[(two["quantity"] == "time_to_reward") & (two["precision"] == "fp32")]
    fp32_s = dict(zip(times["task"], times["value"].astype(float), strict=True))
    updates_per_step = PAPER_SAMPLES_PER_INSERT / PAPER_BATCH
    rows = []
    for _, row in three[three["quantity"] == "steps_trained"].iterrows():
        task, steps = TABLE3_NAMES.get(row["task"], row["task"]), float(row["value"])
        as_actor_ms = 1e3 * PAPER_ACTORS * fp32_s[task] / steps
        runs = _of_one_setting(parts, speedups, task)
        step_ms = _papers_step_ms(runs)
        fits = ""
        if np.isfinite(step_ms):
            off = np.abs(np.log(np.array([as_actor_ms, as_actor_ms * updates_per_step]) / step_ms))
            fits = ("actor steps", "learner updates")[int(off.argmin())]
        rows.append({
            "task": task, "published_steps": steps, "published_s": fp32_s[task],
            "as_actor_steps_ms": as_actor_ms, "as_updates_ms": as_actor_ms * updates_per_step,
            "measured_ms": step_ms, "fits": fits, **_to_level(speedups, runs),
            "keys": tuple(runs.get("key", ())),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _of_one_setting(parts: pd.DataFrame, speedups: pd.DataFrame, task: str) -> pd.DataFrame:
    """The runs of fp32 actors that tell of a task: of one kind, at one setting. Those that were
    evaluated come before others, then those of the paper's policy, of torch, the most runs."""
    evaluated = {key for keys in speedups["keys"] for key in keys} if len(speedups) else set()
    if parts.empty:
        return parts
    rows = parts[(parts["task"] == task) & (parts["precision"] == "fp32")
                 & (parts["communication"] == "fp32")]  # fmt: skip
    kinds = [runs for _, runs in rows.groupby([*SETTING, "actor"], sort=False, dropna=False)]
    return max(kinds, default=rows, key=lambda runs: (
        runs["key"].isin(evaluated).any(), _papers_policy(runs.iloc[0]),
        runs["actor"].iloc[0] == BASELINES["torch"], len(runs)))  # fmt: skip


def _papers_policy(run: pd.Series) -> bool:
    return bool(run["width"] == 2048 and run["envs_per_actor"] == 1)


def _papers_step_ms(runs: pd.DataFrame) -> float:
    """A step, if they are of the paper's kind of actor: fp32 in torch, policy of 3 x 2048."""
    if runs.empty or not _papers_policy(runs.iloc[0]) \
            or runs["actor"].iloc[0] != BASELINES["torch"]:
        return float("nan")
    return float(1e3 * runs["actor_step_s"].mean())


def _to_level(speedups: pd.DataFrame, runs: pd.DataFrame) -> dict[str, float]:
    """Steps and updates of these runs, of which `speedups` has a row if they were evaluated."""
    names = ("steps", "updates", "total_steps", "total_updates")
    if speedups.empty or runs.empty:
        return dict.fromkeys(names, float("nan"))
    key, actor = runs[["key", "actor"]].iloc[0]
    of_these = speedups["keys"].map(lambda keys: key in keys)
    rows = speedups[of_these & (speedups["actor"] == actor)]
    return {name: float(rows[name].iloc[0]) if len(rows) else float("nan") for name in names}
