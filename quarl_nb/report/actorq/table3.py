"""Which steps Table 3's "steps trained" are."""

from __future__ import annotations

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES
from quarl_nb.report.actorq.runs import SETTING
from quarl_nb.report.paper import published

# The paper's setting, for Table 3's two readings (section 3; Acme's batch).
PAPER_ACTORS, PAPER_SAMPLES_PER_INSERT, PAPER_BATCH = 4, 16, 256
TABLE3_NAMES = {"Cartpole": "Cartpole (Gym)", "Acrobot": "Acrobot (Gym)",
                "MountainCar": "Mountain Car (Gym)"}  # fmt: skip


def step_readings(speedups: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Table 3's "steps trained" read as environment steps of all actors or as learner updates.

    Table 2 says how long fp32 took, so each reading says how long a step of one of the paper's
    four actors must have taken: 4 T / N if N counts environment steps, 16 times less if N counts
    updates (a batch of 256 at 16 samples per insert is an update every 16 environment steps). T
    is the time to 95 % reward, so both are lower bounds. The reading that fits is the one nearer,
    as a ratio, to the step that was measured here with the paper's fp32 actors. All that was
    measured of a task is of one setting.

    Args:
        speedups: `runs.speedups`. parts: `parts.step_parts`, of the same records.

    Returns:
        One row a task of Table 3: task, published_steps, published_s, as_actor_steps_ms,
        as_updates_ms, measured_ms, fits ("actor steps", "learner updates", "" unmeasured); steps
        and updates to the level of the fp32 actors here; keys.
    """
    two, three = published("table2"), published("table3")
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
