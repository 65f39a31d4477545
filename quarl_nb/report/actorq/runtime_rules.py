"""The rules that decide ActorQ's claims of where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from quarl_nb.report.actorq.actors import BASELINES, INT8
from quarl_nb.report.actorq.curves import TASKS
from quarl_nb.report.actorq.findings import (
    finding,
    missing_tasks,
    of_enough_runs,
    preferred,
    tasks_told,
)
from quarl_nb.report.actorq.parts import step_parts
from quarl_nb.report.actorq.runs import ACTOR, SETTING
from quarl_nb.report.findings import NOT_MEASURED, Finding, decided, measured
from quarl_nb.report.seeds import over_seeds
from quarl_nb.report.stats import ALPHA, Interval, mean_ratio

FP32 = BASELINES["torch"]
QUANTIZED = ("fp16/torch", INT8)  # Figure 4's 16 and 8 bits
TRANSFERS = ["pull", "deserialize", "load"]
_Pair = tuple[str, pd.DataFrame, dict[str, pd.DataFrame]]  # task, runs in fp32, quantized by actor


def inference_dominates(records: pd.DataFrame, pull_period: int) -> Finding:
    """Figure 4c's parts of fp32 (torch) actors: reproduced when inference surely takes more than
    pulling, deserializing or loading on every task, and in 8 and 16 bits less; not reproduced when
    surely not on any."""
    pairs = _pairs(records, pull_period)
    ratios = []
    for _, full, quantized in pairs:
        others = [full[full[TRANSFERS].mean().idxmax()],
                  *(runs["inference"] for runs in quantized.values())]  # fmt: skip
        ratios.append([_ratio(full["inference"], other) for other in others])
    text = f"pulling every {pull_period} steps, inference per step: " + "; ".join(
        f"{task} {_milliseconds(full, quantized, ['inference'])} "
        f"(pull, deserialize, load {1e3 * full[TRANSFERS].sum(axis=1).mean():.2f} ms in fp32)"
        for task, full, quantized in pairs
    )
    return _of_an_actor(ratios, pairs, text)


def actors_faster(records: pd.DataFrame, pull_period: int) -> Finding:
    """Time of an actor's step, environment and pulls included, fp32 (torch) over 8 and 16 bits:
    surely above 1 on every task; not reproduced when on each one of them is surely below."""
    pairs = _pairs(records, pull_period)
    ratios = [[_ratio(full["actor_step_s"], runs["actor_step_s"]) for runs in quantized.values()]
              for _, full, quantized in pairs]  # fmt: skip
    text = f"pulling every {pull_period} steps, an actor's step: " + "; ".join(
        f"{task} {_milliseconds(full, quantized, ['actor_step_s'])}"
        for task, full, quantized in pairs
    )
    return _of_an_actor(ratios, pairs, text)


def computation_and_communication(
    records: pd.DataFrame, rare: int, heavy: int, share: float
) -> Finding:
    """Shares of an fp32 (torch) actor's step: of inference when it pulls every `rare` steps, and of
    pulling, deserializing and loading when it pulls every `heavy`. Reproduced when both are surely
    above `share` on every task, not reproduced when one surely is below on all."""
    shares: list[list[Interval]] = []
    sides, told = [], []
    for what, parts, pull_period in (("inference", ["inference"], rare),
                                     ("pull, deserialize, load", TRANSFERS, heavy)):
        found = [full for _, full, _ in _pairs(records, pull_period)]
        if not found:
            return NOT_MEASURED
        shares.append([over_seeds(full[parts].sum(axis=1) / full["actor_step_s"], ALPHA / TASKS)
                       for full in found])  # fmt: skip
        told.append(f"{what} every {pull_period} steps: " + ", ".join(
            f"{full['task'].iloc[0]} {part.value:.0%}"
            for full, part in zip(found, shares[-1], strict=True)))  # fmt: skip
        sides += found
    verdict = decided(all(part.low > share for parts in shares for part in parts),
                      any(all(part.high < share for part in parts) for parts in shares))
    rows = _counted(sides)
    text = f"of an fp32 actor's step, {'; '.join(told)}; {tasks_told(rows)}"
    return of_enough_runs(verdict, rows, text)


def transfers_faster(records: pd.DataFrame, pull_period: int) -> Finding:
    """Pull and deserialize time together, fp32 (torch) over actors in 8 and 16 bits: surely above 1
    on every task; not reproduced when on each one of them is surely below.

    Together, because a payload that is sent ready to open has next to nothing to deserialize.
    """
    pairs = _pairs(records, pull_period)
    parts = ["pull", "deserialize"]
    ratios = [[_ratio(full[parts].sum(axis=1), runs[parts].sum(axis=1))
               for runs in quantized.values()] for _, full, quantized in pairs]  # fmt: skip
    text = (f"pulling every {pull_period} steps, pull and deserialize per step (payloads are sent "
            "ready to open, so all of it is pulling): ")  # fmt: skip
    text += "; ".join(f"{task} {_milliseconds(full, quantized, parts)}"
                      for task, full, quantized in pairs)  # fmt: skip
    return _of_an_actor(ratios, pairs, text)


def learner_waits_more(records: pd.DataFrame) -> Finding:
    """Share of the run that the learner waits, less the actors' share, fp32 (torch) actors:
    reproduced when surely above 0 on every task of Table 2, not reproduced when surely below on
    one (Student's t over runs, corrected for all tasks)."""
    parts = step_parts(measured(records))
    timed = (parts["actor"] == FP32) & parts["step_s"].notna() if len(parts) else parts
    if not timed.any(axis=None):
        return NOT_MEASURED
    runs = parts[timed].copy()
    runs["learner"] = runs["learner_wait"] / runs["step_s"]
    runs["actors"] = runs["actor_wait"] / runs["n_actors"] / runs["step_s"]
    rows = preferred(pd.DataFrame([
        dict(group.iloc[0]) | {
            "runs": len(group), "keys": tuple(group["key"]),
            "learner": group["learner"].mean(), "actors": group["actors"].mean(),
            "more": (group["learner"] - group["actors"]).tolist(),
        }
        for _, group in runs.groupby([*SETTING, *ACTOR], sort=False, dropna=False)
    ]))  # fmt: skip
    surely = [over_seeds(each, ALPHA / TASKS) for each in rows["more"]]
    more_on_all = all(each.low > 0 for each in surely) and not missing_tasks(rows)
    verdict = decided(more_on_all, any(each.high < 0 for each in surely))
    text = "waiting, learner and actors: " + "; ".join(
        f"{row['task']} {row['learner']:.0%} and {row['actors']:.0%}" for _, row in rows.iterrows()
    )
    least = min(map(over_seeds, rows["more"]), key=lambda each: each.value)
    return finding(verdict, rows, f"{text}; {tasks_told(rows)}", least)


def actor_parts(records: pd.DataFrame) -> pd.DataFrame:
    """`step_parts` of the paper's policy, 2048 wide."""
    parts = step_parts(measured(records))
    return parts[(parts["width"] == 2048) & parts["step_s"].notna()] if len(parts) else parts


def _pairs(records: pd.DataFrame, pull_period: int) -> list[_Pair]:
    """The runs of fp32 (torch) actors and those of `QUANTIZED` in the same setting, weights sent as
    they compute."""
    parts = actor_parts(records)
    if parts.empty:
        return []
    parts = parts[(parts["pull_period"] == pull_period)
                  & (parts["communication"] == parts["precision"])]  # fmt: skip
    found = []
    for _, group in parts.groupby(SETTING, sort=False, dropna=False):
        runs = {name: side for name, side in group.groupby("actor", sort=False)}
        quantized = {name: runs[name] for name in QUANTIZED if name in runs}
        if FP32 in runs and quantized:
            found.append((str(group["task"].iloc[0]), runs[FP32], quantized))
    return found


def _ratio(full: pd.Series, quantized: pd.Series) -> Interval:
    return mean_ratio(full.to_numpy(), quantized.to_numpy(), ALPHA / TASKS)


def _milliseconds(
    full: pd.DataFrame, quantized: Mapping[str, pd.DataFrame], parts: Sequence[str]
) -> str:
    """Those parts of a step, as "1.85 ms in fp32, 1.12 in fp16, 0.32 in int8"."""
    sides = {FP32: full, **quantized}
    means = {name: 1e3 * runs[[*parts]].sum(axis=1).mean() for name, runs in sides.items()}
    fp32, *others = (f"{ms:.2f}{' ms' if name == FP32 else ''} in {name.partition('/')[0]}"
                     for name, ms in means.items())  # fmt: skip
    return ", ".join([fp32, *others])


def _of_an_actor(ratios: list[list[Interval]], pairs: list[_Pair], text: str) -> Finding:
    """The verdict on ratios that are to be above 1 on every task."""
    if not pairs:
        return NOT_MEASURED
    rows = _counted([runs for _, full, quantized in pairs for runs in (full, *quantized.values())])
    both = all(len(quantized) == len(QUANTIZED) for *_, quantized in pairs)
    verdict = decided(both and all(r.low > 1 for task in ratios for r in task),
                      all(any(r.high < 1 for r in task) for task in ratios))  # fmt: skip
    return of_enough_runs(verdict, rows, f"{text}; {tasks_told(rows)}")


def _counted(sides: list[pd.DataFrame]) -> pd.DataFrame:
    """A row a kind of actor: task, runs, keys."""
    return pd.DataFrame([{"task": runs["task"].iloc[0], "runs": len(runs),
                          "keys": tuple(runs["key"])} for runs in sides])  # fmt: skip
