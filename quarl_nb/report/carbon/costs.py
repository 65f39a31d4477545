"""Carbon of ActorQ's runs: to the same return and per million steps, by side, with intervals.

The loop itself records the CPU-seconds of learner, actors and quantizer with every policy it saves,
so the cost of getting to a return is measured and no share of the whole. A share of the cell's
energy by time would not do: the cell also imports, compiles and evaluates, in short runs for longer
than it trains. Joules follow from those seconds at the cell's own joules per CPU-second; memory
counts at its mean watts over the run (in older records over the cell), with what processes hold
that evaluated the run before and wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES, INT8
from quarl_nb.report.actorq.curves import Redrawn, ratio, redraw
from quarl_nb.report.actorq.runs import SETTING, learning_runs
from quarl_nb.report.findings import keys_of
from quarl_nb.report.stats import Floats, Interval, mean_ratio, with_ends

JOULES_PER_KWH = 3.6e6
Per = Literal["return", "million steps"]
PERS: tuple[Per, ...] = ("return", "million steps")
ROLES = ("learner", "actors", "quantizer")
PARTS = (*ROLES, "memory")
ALL = "all"  # of `PARTS` together
ENERGY = ("cpu_s", "cpu_energy_j", "ram_energy_j", "assumed_watts", "grid_kg_per_kwh",
          "grid_source", "method", "watts_source", "other_cpu_s")  # fmt: skip
SUSPENDED = "energy.suspended_s"


@dataclass(frozen=True)
class Assumptions:
    """What turns a run's seconds into carbon, where it is not to be as its record has it.

    Attributes:
        watts_per_thread: of a busy hardware thread; None: the record's joules per CPU-second.
        memory: "share" of the power of all memory by the share that the run holds (the record's),
            "none" of it, or "all" of it, as if the machine were there for the run alone.
        kg_per_kwh: kg CO2e of the grid; None: the record's.
    """

    watts_per_thread: float | None = None
    memory: Literal["share", "none", "all"] = "share"
    kg_per_kwh: float | None = None


AS_RECORDED = Assumptions()


def costed_runs(records: pd.DataFrame, assumed: Assumptions = AS_RECORDED) -> pd.DataFrame:
    """`learning_runs` that recorded their CPU-seconds along the way, with what they used.

    Adds, for every one of `PARTS` and for `ALL`, curve_<part>_kwh: kWh since the actors started,
    at every evaluation. A GPU is the learner's, at its mean watts over the run. Adds the grid's
    kg_per_kwh, the fields `ENERGY` of the record, and `SUSPENDED` where it is told. Left out are
    runs on a GPU that recorded the joules of the cell alone, evaluations and all.

    Args:
        records: `ResultStore.frame` of an ActorQ study.
    """
    runs = learning_runs(records)
    names = [f"energy.{name}" for name in ENERGY]
    if runs.empty or "curve_cpu_s" not in runs or not {*names} <= {*records}:
        return pd.DataFrame()
    names += {SUSPENDED} & {*records}  # older records do not tell
    runs = runs[runs["curve_cpu_s"].notna()].merge(records[["key", *names]], on="key")
    of_runs = runs["run_energy"] if "run_energy" in runs else [None] * len(runs)
    runs["gpu_w"] = [*map(_gpu_watts, runs["budget.device"], of_runs)]
    runs["ram_w"] = [_watts(run, "ram_energy_j") for run in of_runs]
    runs["ram_w"] = runs["ram_w"].fillna(runs["energy.ram_energy_j"] / runs["wall_s"])
    runs = runs[runs[["energy.cpu_energy_j", "gpu_w"]].notna().all(axis=1)].reset_index(drop=True)
    joules = [_joules(row, assumed) for _, row in runs.iterrows()]
    for part in (*PARTS, ALL):
        runs[f"curve_{part}_kwh"] = [list(parts[part] / JOULES_PER_KWH) for parts in joules]
    recorded = runs["energy.grid_kg_per_kwh"]
    return runs.assign(kg_per_kwh=recorded if assumed.kg_per_kwh is None else assumed.kg_per_kwh)


def _gpu_watts(device: object, run_energy: Any) -> float:
    """Of a run from its first process to its last, which is longer than the actors act: none with
    its learner on the processor, NaN where they were not recorded."""
    if device in ("cpu", ""):
        return 0.0
    return _watts(run_energy, "gpu_energy_j")


def _watts(run_energy: Any, joules: str) -> float:
    """Mean over a run; NaN of a record that has the energy of its cell alone."""
    known = isinstance(run_energy, dict) and "wall_s" in run_energy
    return run_energy[joules] / run_energy["wall_s"] if known else np.nan


def _joules(run: pd.Series, assumed: Assumptions) -> dict[str, Floats]:
    """Joules by part at every evaluation."""
    seconds = np.asarray(run["curve_wall_s"], float)
    watts = assumed.watts_per_thread
    if watts is None:
        watts = run["energy.cpu_energy_j"] / run["energy.cpu_s"]
    found = {role: watts * np.asarray(run["curve_cpu_s"][role], float) for role in ROLES}
    found["learner"] = found["learner"] + run["gpu_w"] * seconds
    memory = {"share": run["ram_w"], "none": 0.0,
              "all": run["energy.assumed_watts"]["ram"]}[assumed.memory]  # fmt: skip
    if run["energy.method"].startswith("pmic"):
        memory = 0.0  # the board's joules hold it
    found["memory"] = memory * seconds
    return found | {ALL: np.sum([*found.values()], axis=0)}


def emissions(
    records: pd.DataFrame, assumed: Assumptions = AS_RECORDED, parts: Sequence[str] = (*PARTS, ALL)
) -> pd.DataFrame:
    """Carbon of every kind of actor at every task and setting, and its ratio to that of fp32.

    "return": until the aggregated curve first reaches 95 % of the best fp32 return, as for the time
    to reward (`actorq.runs.speedups`), but against carbon in place of time; of a part, what runs
    had spent on it by then. "million steps": of the whole run, over the environment steps it made.
    Intervals (95 %) of the former redraw the runs of either side and of the level together, those
    of the latter are Welch's; a single run has none. Both sides of a ratio are on one grid, and
    there is none between runs that were metered by several methods.

    Returns:
        `SETTING`, precision, runtime, actor, runs (and base_runs of fp32, of torch where measured),
        level, part, per; kg (CO2e; NaN where the return was never reached), ratio_torch and
        ratio_ort (fp32 of either runtime over this), each with _low and _high; method, load
        (CPU-seconds a second of others on the machine), keys, profile.
    """
    runs = costed_runs(records, assumed)
    found: list[dict[str, object]] = []
    for setting, group in runs.groupby(SETTING, sort=False, dropna=False) if len(runs) else ():
        if not (group["precision"] == "fp32").any():
            continue
        shared, drawn = dict(zip(SETTING, setting, strict=True)), redraw(group)
        for per, part in product(PERS, parts):
            kwh = {actor: _kwh(drawn, actor, part, per) for actor in drawn.actors}
            found += [shared | {"per": per, "part": part} | _row(drawn, actor, kwh)
                      | _ratios(drawn, actor, part, kwh if per == "return" else None)
                      for actor in kwh]  # fmt: skip
    return pd.DataFrame(found)


def compared_runs(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Those of `costed_runs` that `emissions` compares: a setting without fp32 has no rows."""
    return runs[runs["key"].isin(keys_of(rows))] if len(rows) else runs[:0]


def _kwh(drawn: Redrawn, actor: str, part: str, per: Per) -> Floats:
    """kWh, the estimate first, then redrawn; infinite where the return is not reached."""
    runs, weights = drawn.actors[actor], drawn.weights[actor]
    spent, whole = runs[f"curve_{part}_kwh"], runs[f"curve_{ALL}_kwh"]
    if per == "million steps":
        return weights @ _per_million_steps(runs, part)
    reached = drawn.reached(actor, f"curve_{ALL}_kwh")
    if part == ALL:
        return reached
    shares = [np.interp(reached, *curves) for curves in zip(whole, spent, strict=True)]
    return np.where(np.isfinite(reached), (weights * np.transpose(shares)).sum(axis=1), np.inf)


def _per_million_steps(runs: pd.DataFrame, part: str) -> Floats:
    """kWh of each run."""
    return (1e6 * runs[f"curve_{part}_kwh"].str[-1] / runs["steps"]).to_numpy(float)


def _ratios(
    drawn: Redrawn, actor: str, part: str, to_return: dict[str, Floats] | None
) -> dict[str, float]:
    """Both baselines' kWh over this actor's: to the return where that is given, else per step."""
    found: dict[str, float] = {}
    for short, base in BASELINES.items():
        if base not in drawn.actors:
            continue
        ours, theirs = drawn.actors[actor], drawn.actors[base]
        name = f"ratio_{short}"
        if not metered_alike(ours, theirs):
            found |= dict.fromkeys(with_ends(name), np.nan)
        elif to_return:
            ends = ratio(to_return[base], to_return[actor], min(len(ours), len(theirs)))
            found |= {f"{name}{end}": value for end, value in ends}
        else:
            it = mean_ratio(_per_million_steps(theirs, part), _per_million_steps(ours, part))
            found |= it.columns(name)
    return found


def metered_alike(ours: pd.DataFrame, theirs: pd.DataFrame) -> bool:
    """Whether one method metered all of these `costed_runs`: a counter and an estimate differ by
    more than what is compared."""
    return len({*ours["energy.method"], *theirs["energy.method"]}) == 1


def _row(drawn: Redrawn, actor: str, kwh: dict[str, Floats]) -> dict[str, object]:
    rows = drawn.actors[actor]
    first, kg = rows.iloc[0], kwh[actor][0] * rows["kg_per_kwh"].mean()
    return {
        "precision": first["precision"], "runtime": first["runtime"], "actor": actor,
        "runs": len(rows), "level": float(drawn.level[0]),
        "base_runs": len(drawn.actors.get(BASELINES["torch"], drawn.fp32)),
        "kg": float(kg) if np.isfinite(kg) else np.nan,
        "method": ", ".join(sorted(set(rows["energy.method"]))),
        "load": (rows["energy.other_cpu_s"].astype(float) / rows["wall_s"]).mean(),
        "keys": drawn.keys(actor), "profile": first["profile"],
    }  # fmt: skip


def mean_saving(runs: pd.DataFrame) -> Interval:
    """Carbon to the return, fp32 (torch) over int8: the mean over tasks, its interval over runs.

    A task of several settings counts once, by the mean over them. Settings where both were not
    metered by one method are left out. NaN where none has both or neither got there, infinite where
    fp32 alone did not.

    Args:
        runs: `costed_runs`.
    """
    pair = (BASELINES["torch"], INT8)
    draws: dict[str, list[Floats]] = {}
    fewest = len(runs)
    for (task, *_), group in runs.groupby(SETTING, sort=False, dropna=False) if len(runs) else ():
        sides = [group[group["actor"] == name] for name in pair]
        if all(map(len, sides)) and metered_alike(*sides):
            drawn = redraw(group)
            fewest = min(fewest, *map(len, sides))
            spent = [_kwh(drawn, name, ALL, "return") for name in pair]
            with np.errstate(invalid="ignore"):  # neither got there: infinity over infinity
                draws.setdefault(task, []).append(spent[0] / spent[1])
    # As in `ratio`, where neither got there counts as 0 for one end and as infinite for the other.
    low, high = (dict(ratio(mean, np.ones_like(mean), fewest))
                 for mean in (_mean_of_tasks(draws, end) for end in (0.0, np.inf)))  # fmt: skip
    if not draws or low[""] != high[""]:
        return Interval(*[float("nan")] * 3)
    return Interval(low[""], low["_low"], high["_high"])


def _mean_of_tasks(draws: dict[str, list[Floats]], neither: float) -> Floats:
    """Mean over tasks of the mean over the settings of each, `neither` in place of NaN."""
    tasks = [np.where(np.isnan(ratios), neither, ratios).mean(axis=0) for ratios in draws.values()]
    return np.mean(tasks, axis=0) if tasks else np.array([np.nan])
