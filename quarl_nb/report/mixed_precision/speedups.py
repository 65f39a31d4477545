"""How much faster half precision trains, and what a training step is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from quarl_nb.report.findings import processor
from quarl_nb.report.stats import ALPHA, median_ratio, named_generator
from quarl_nb.report.texts import interval_texts

CLOCK = ("CPU", "wall")  # of records without a GPU, and with one
PUBLISHED = 1.5  # "We use half-precision training to train a Pong model 50% faster"
POLICIES = ("A", "B", "C")  # the preprint's Pong models, which it trained on a GPU in float16


def speedups(records: pd.DataFrame) -> pd.DataFrame:
    """What half precision saves against float32 on the same processor and GPU, a row a policy
    and precision; of several training seeds the first that has both, as times do not depend on
    them.

    Times are CPU seconds of the one thread that computes, so that what else runs on the machine
    counts little; with a GPU, wall seconds. A training step is one environment step, one decision,
    and its share of an update. Environment steps have no precision, nor have DQN's decisions, which
    are made in float32 always (see `FastNatureCNN`): both sides have their means. PPO decides for
    several environments at once, in the precision that it trains in.

    Args:
        records: `ResultStore.frame("mixed_precision")`.

    Returns:
        policy, device, machine, precision, parameters, update_s, fp32_update_s
        (medians), learner, learner_low, learner_high (speed-up of the update, 95 % bootstrap over
        updates, which are of one process), training, training_low, training_high (speed-up of a
        training step), training_least (its lower end in an interval that holds for all rows at
        once), run (the same ratio, of a short run of all the code), energy (ratio of that run's
        joules, float32 over half), energy_method (`quarl_nb.energy`: read from a counter, or
        modelled), keys.
    """
    pairs = []
    if records.empty or "update_s" not in records:
        return pd.DataFrame()
    first: dict[tuple[str, ...], int] = {}
    records = _once(records, "seed")
    groups = records.groupby(["policy", "device", "seed", "machine"])
    for (policy, device, seed, _), group in groups:
        base = group[group["precision"] == "fp32"]
        for _, half in group[group["precision"] != "fp32"].iterrows() if len(base) else ():
            if first.setdefault((policy, device, half["precision"]), seed) != seed:
                continue
            pairs.append((base.iloc[0], half, f"{policy}{device}{seed}"))
    found = pd.DataFrame([_row(*pair, ALPHA / len(pairs)) for pair in pairs])
    if found.empty:
        return found
    return found.sort_values(["device", "precision", "parameters"], ignore_index=True)


def _once(records: pd.DataFrame, *more: str) -> pd.DataFrame:
    """The records, with their `machine`: one of each policy, device, precision, machine, and what
    `more` names.

    Of several that is one only timed, before those also trained, which may run side by side.
    """
    trained = records["returns"].notna() if "returns" in records else False
    found = records.assign(machine=records.apply(_machine, axis=1), trained=trained)
    found = found.sort_values(["trained", "seed"], kind="stable")
    return found.drop_duplicates(["policy", "device", "precision", "machine", *more])


def _machine(record: pd.Series) -> str:
    """The processor, and the GPU of a record that computed on one."""
    gpu = record.get("extra.device_name")
    return f"{processor(record)}, {gpu}" if isinstance(gpu, str) else processor(record)


def _row(base: pd.Series, half: pd.Series, name: str, alpha: float) -> dict[str, object]:
    fp32, ours = (np.asarray(_time(row, "update"), float) for row in (base, half))
    env_step, act = (np.array([_time(row, part) for row in (base, half)])
                     for part in ("env_step", "act"))  # fmt: skip
    rest = env_step.mean() + (act.mean() if half["algo"] == "dqn" else act) * np.ones(2)
    every, half_every = (int(row["train_freq"]) for row in (base, half))  # steps an update
    # Both of the same draws: all that a step takes besides is a number.
    steps = rest[0] + fp32 / every, rest[1] + ours / half_every
    learner, training, together = (
        median_ratio(x, y, named_generator(name), alpha=level)
        for (x, y), level in (((fp32, ours), ALPHA), (steps, ALPHA), (steps, alpha)))  # fmt: skip
    seconds = [1 / row["steps_per_s"] if row["device"] == "cuda" else row["run_energy"]["cpu_s"]
               for row in (base, half)]  # fmt: skip
    joules = [row["run_energy"]["energy_j"] for row in (base, half)]
    return {
        "policy": half["policy"], "device": half["device"], "machine": half["machine"],
        "precision": half["precision"], "parameters": half["parameters"],
        "update_s": float(np.median(ours)), "fp32_update_s": float(np.median(fp32)),
        **learner.columns("learner"), **training.columns("training"),
        "training_least": together.low,
        "run": seconds[0] / seconds[1], "energy": joules[0] / joules[1],
        "energy_method": " and ".join(sorted({
            row["run_energy"]["method"] for row in (base, half)})),
        "keys": (str(base["key"]), str(half["key"])),
    }  # fmt: skip


def _time(record: pd.Series, part: str) -> Any:
    """Seconds of a part of training: `update` (all that were timed), `act` or `env_step`."""
    return record[f"{part}_s" if record["device"] == "cuda" else f"{part}_cpu_s"]


def speedup_tables(records: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`speedups`, tidy and for reading."""
    tidy = speedups(records)
    if tidy.empty:
        return tidy, tidy
    shown = pd.DataFrame({
        "policy": tidy["policy"], "parameters": tidy["parameters"].map("{:,}".format),
        "device": tidy["device"], "machine": tidy["machine"], "precision": tidy["precision"],
        "update fp32 (ms)": tidy["fp32_update_s"].map(lambda s: f"{1000 * s:.4g}"),
        "update (ms)": tidy["update_s"].map(lambda s: f"{1000 * s:.4g}"),
        "learner [95 %]": interval_texts(tidy, "learner", ".2f"),
        "training step [95 %]": interval_texts(tidy, "training", ".2f"),
        "short run": [f"{row.run:.2f}x of {CLOCK[row.device == 'cuda']} seconds"
                      for row in tidy.itertuples()],
        "its energy (method)": [f"{row.energy:.2f}x ({row.energy_method})"
                                for row in tidy.itertuples()],
    })  # fmt: skip
    return tidy, shown


def parts_table(records: pd.DataFrame) -> pd.DataFrame:
    """What a training step is made of, in milliseconds, for reading: a row a policy, precision and
    machine.
    """
    if records.empty or "update_s" not in records:
        return pd.DataFrame()
    rows = []
    order = ["device", "parameters", "precision"]
    for _, record in _once(records).sort_values(order, kind="stable").iterrows():
        update_s = float(np.median(_time(record, "update"))) / record["train_freq"]
        parts = {"environment": _time(record, "env_step"), "decision": _time(record, "act"),
                 "learner": update_s}  # fmt: skip
        rows.append({
            **record[["policy", "device", "machine", "precision"]],
            **{f"{name} (ms)": f"{1000 * part_s:,.2f}" for name, part_s in parts.items()},
            "learner's share": f"{update_s / sum(parts.values()):.0%}",
            "steps a second, short run": f"{record['steps_per_s']:.3g}",
        })  # fmt: skip
    return pd.DataFrame(rows)
