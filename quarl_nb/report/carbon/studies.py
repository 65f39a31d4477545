"""What the records of every study cost in energy and carbon."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from quarl_nb.report.actorq.runs import GPU_NAMES
from quarl_nb.report.carbon.costs import JOULES_PER_KWH, SUSPENDED

CPU_TIME = "cpu_time"  # records of the first meter: CPU-seconds, no joules
ASLEEP = ", asleep in between"  # the machine; a counter may have counted that or not
GROUP = ["study", "task", "precision", "device", "method"]


def study_energy(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row a study, task, precision, device and method of metering.

    Where a record holds CPU-seconds alone (`cpu_time`), its joules are those times the joules a
    CPU-second of all records that hold both, a GPU's left out, and the grid is theirs.

    Args:
        frames: records by name of the study.

    Returns:
        study, task (the name of the policy, or of the environment), precision, device (of the
        learner: a GPU by its name), method, cells,
        wall_h, cpu_h, kwh, kg (CO2e), others_h (CPU-hours of others on the machine) in told_h (of
        the cells that recorded it), profile.
    """
    parts = [_cells(rows).assign(study=name) for name, rows in frames.items()
             if "energy.cpu_s" in rows]  # fmt: skip
    if not parts:
        return pd.DataFrame()
    cells = pd.concat(parts, ignore_index=True)
    metered = cells[cells["joules"].notna()]
    without_gpu = metered["joules"] - metered["gpu_joules"]
    watts = without_gpu.sum() / metered["cpu_s"].sum() if len(metered) else np.nan
    joules = cells["joules"].fillna(watts * cells["cpu_s"])
    cells["kwh"] = joules / JOULES_PER_KWH
    cells["kg"] = cells["kwh"] * cells["grid"].fillna(metered["grid"].mean())
    return cells.groupby(GROUP, sort=False, dropna=False).agg(
        cells=("kg", "size"), wall_h=("wall_h", "sum"), cpu_h=("cpu_h", "sum"),
        kwh=("kwh", "sum"), kg=("kg", "sum"), others_h=("others_h", "sum"),
        told_h=("told_h", "sum"), profile=("profile", "first"),
    ).reset_index()  # fmt: skip


def _cells(rows: pd.DataFrame) -> pd.DataFrame:
    def numbers(name: str) -> pd.Series:
        return rows[name].astype(float) if name in rows else pd.Series(np.nan, rows.index)

    task = next((rows[name] for name in ("policy", "env_id") if name in rows), "")
    method = rows["energy.method"] if "energy.method" in rows else pd.Series(CPU_TIME, rows.index)
    asleep, others = numbers(SUSPENDED) > 0, numbers("energy.other_cpu_s")
    return pd.DataFrame({
        "task": task, "precision": rows["precision"] if "precision" in rows else "",
        "device": _devices(rows),
        "method": method.where(~asleep, method + ASLEEP), "profile": rows["profile"],
        "wall_h": rows["wall_s"] / 3600, "cpu_h": rows["energy.cpu_s"] / 3600,
        "cpu_s": rows["energy.cpu_s"],
        "joules": numbers("energy.energy_j").where(method != CPU_TIME),
        "gpu_joules": numbers("energy.gpu_energy_j").fillna(0),
        "grid": numbers("energy.grid_kg_per_kwh"),
        "others_h": others / 3600, "told_h": rows["wall_s"].where(others.notna()) / 3600,
    })  # fmt: skip


def _devices(rows: pd.DataFrame) -> pd.Series:
    """Where each row's networks were trained: "cpu", or the name of its GPU."""
    devices = next((rows[name] for name in ("device", "budget.device") if name in rows), None)
    if devices is None:
        return pd.Series("cpu", rows.index)
    gpus = rows.reindex(columns=[*GPU_NAMES]).bfill(axis=1).iloc[:, 0].fillna("a GPU")
    return gpus.where(devices.fillna("cpu") != "cpu", "cpu")


def study_energy_table(found: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """`study_energy` for reading, summed.

    Args:
        by: some of `GROUP`, e.g. ["study"].
    """
    if found.empty:
        return found
    studies = {name: i for i, name in enumerate(found["study"].unique())}
    found = found.sort_values(by, key=lambda names: names.replace(studies), kind="stable")
    lines = []
    for names, rows in found.groupby(by, sort=False, dropna=False):
        cells, wh, g = rows["cells"].sum(), 1e3 * rows["kwh"].sum(), 1e3 * rows["kg"].sum()
        load = rows["others_h"].sum() / rows["told_h"].sum() if rows["told_h"].any() else np.nan
        lines.append(dict(zip(by, names, strict=True)) | {
            "profile": "+".join(dict.fromkeys(rows["profile"])), "cells": cells,
            "hours": f"{rows['wall_h'].sum():.3g}", "CPU-hours": f"{rows['cpu_h'].sum():.3g}",
            "kWh": f"{wh / 1e3:.3g}", "kg CO2e": f"{g / 1e3:.3g}", "Wh a cell": f"{wh / cells:.3g}",
            "g CO2e a cell": f"{g / cells:.3g}",
            "cores busy with others": "unknown" if np.isnan(load) else f"{load:.1f}",
            "method": _methods(rows),
        })  # fmt: skip
    return pd.DataFrame(lines)


def _methods(rows: pd.DataFrame) -> str:
    """The methods with their cells where there are several."""
    cells = rows.groupby("method", sort=False)["cells"].sum()
    if len(cells) == 1:
        return str(cells.index[0])
    return ", ".join(f"{n} {name}" for name, n in cells.items())
