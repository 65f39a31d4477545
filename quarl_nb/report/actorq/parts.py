"""What an environment step costs an actor and the learner, and what messages cost of it."""

from __future__ import annotations

import pandas as pd

from quarl_nb.report.actorq.curves import TASKS
from quarl_nb.report.actorq.runs import ACTOR, BUT_PULLS, MACHINE, SETTING, actorq_runs
from quarl_nb.report.stats import ALPHA, mean_ratio

# An actor's time that is not waiting; Figure 4c's step, pull, deserialize and load_state_dict
# times, what its environment takes, and sending transitions.
ACTOR_PARTS = ("environment", "inference", "pull", "deserialize", "load", "send")
UNTOUCHED = ["environment", "inference"]  # by what an actor is sent and how often it pulls
LEARNER_PARTS = ("insert", "sample", "train", "publish")


def step_parts(records: pd.DataFrame) -> pd.DataFrame:
    """One row a run: seconds per environment step of each side, by activity.

    Returns:
        `SETTING`, precision, runtime, communication, actor, seed, runs = 1; the names of
        `ACTOR_PARTS` (seconds of one actor per step of its own), actor_wait, actor_step_s (their
        sum without waiting), learner_wait, learner_step_s (insert, sample, train and publish per
        environment step), predicted_step_s = max(actor_step_s / n_actors, learner_step_s): two
        sides that overlap perfectly; step_s = run_s over steps; updates_per_step (the learner's, of
        an environment step); payload_bytes, age_mean, age_p50, age_p95, restarts, key, profile.
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
            "step_s": run["run_s"] / steps, "updates_per_step": run["updates"] / steps,
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


def without_drift(parts: pd.DataFrame) -> pd.DataFrame:
    """`step_parts` with the `UNTOUCHED` parts of an actor's step at their mean over all runs of the
    same kind of actor, task and policy on one machine, whatever was sent and however often.

    For ratios of what messages cost, which may be a hundredth of a step. Runs of a kind follow one
    another, so that a machine that is slower for a minute lengthens the inference of that kind
    alone, by more than a message takes; it would decide in place of the messages. Kinds of actor
    keep their own means: that is what computing in 8 bits gains. (Frequent pulls leave caches cold
    for the environment, whatever was sent: it takes a few hundredths longer after them. So little
    of what a pull costs is spread over all periods, on both sides of a ratio.)
    """
    if parts.empty:
        return parts
    alike = parts.groupby([*BUT_PULLS, *MACHINE, "actor"], dropna=False)[UNTOUCHED]
    means = alike.transform("mean")
    drift_s = (parts[UNTOUCHED] - means).sum(axis=1)
    return parts.assign(**means, actor_step_s=parts["actor_step_s"] - drift_s)


def communication_speedups(parts: pd.DataFrame) -> pd.DataFrame:
    """What communication precision does at the same compute precision (Figure 4a, 4b).

    Returns:
        `SETTING`, precision, runtime, actor, communication, runs and base_runs (weights sent in
        fp32), steps_per_s of an actor that never waits, speedup over those with the ends of
        `curves.ratio` (NaN of those themselves), payload_bytes, smaller (fp32 bytes over these),
        keys, profile; settings with one communication precision left out.
    """
    rows: list[dict[str, object]] = []
    names = [*SETTING, "precision", "runtime", "actor"]
    parts = parts[parts["step_s"].notna()] if len(parts) else parts
    for setting, group in parts.groupby(names, sort=False, dropna=False) if len(parts) else ():
        base = group[group["communication"] == "fp32"]
        if group["communication"].nunique() < 2 or base.empty:
            continue
        for communication, runs in group.groupby("communication", sort=False):
            speedup = _speedup(base, runs) if communication != "fp32" else {}
            rows.append(dict(zip(names, setting, strict=True)) | {
                "communication": communication, "runs": len(runs), "base_runs": len(base),
                "steps_per_s": 1 / runs["actor_step_s"].mean(), **speedup,
                "payload_bytes": runs["payload_bytes"].mean(),
                "smaller": base["payload_bytes"].mean() / runs["payload_bytes"].mean(),
                "keys": tuple(dict.fromkeys([*base["key"], *runs["key"]])),
                "profile": runs["profile"].iloc[0],
            })  # fmt: skip
    return pd.DataFrame(rows)


def _speedup(base: pd.DataFrame, runs: pd.DataFrame) -> dict[str, float]:
    times = base["actor_step_s"].to_numpy(), runs["actor_step_s"].to_numpy()
    ratio, of_all = mean_ratio(*times), mean_ratio(*times, alpha=ALPHA / TASKS)
    together = {"speedup_least": of_all.low, "speedup_most": of_all.high}
    return ratio.columns("speedup") | together
