"""The published numbers (data/paper/*.csv) and the environments that they were measured in."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.paths import published_folder

TABLES = (*(f"table{number}" for number in range(2, 8)), "carbon")


def published(name: str, folder: Path | None = None) -> pd.DataFrame:
    """Table `name` of the ActorQ paper, or the carbon of 000 and 002: one row a number, with its
    `source`.

    Columns `value` and `unit` in every table; `value` is numeric wherever the whole table is.

    Raises:
        QuarlError: no such table, or its file cannot be read.
    """
    check_choice("table", name, TABLES)
    return _read(f"{name}.csv", folder)


def environments(table: int, folder: Path | None = None) -> pd.DataFrame:
    """What each environment name of the paper's table is today, and why.

    Columns: table, name, env_id, same_reward_scale (bool: published and measured rewards
    compare, else only relative losses do), reason.
    """
    rows = _read("environments.csv", folder)
    rows["same_reward_scale"] = rows["same_reward_scale"] == "yes"
    return rows[rows["table"] == table].reset_index(drop=True)


def published_ptq(folder: Path | None = None) -> pd.DataFrame:
    """Table 4 with today's environment ids: environment, env_id, same_reward_scale, algo,
    precision (fp32, fp16, int8), value (mean reward), source."""
    names = environments(4, folder).drop(columns=["table", "reason"])
    rows = published("table4", folder).merge(
        names, left_on="environment", right_on="name", how="left", validate="many_to_one"
    )
    return rows.drop(columns=["name", "unit"])


def _read(name: str, folder: Path | None) -> pd.DataFrame:
    path = (folder or published_folder()) / name
    try:
        rows = pd.read_csv(path, keep_default_na=False, dtype={"value": str})
    except (OSError, pd.errors.ParserError) as error:
        raise QuarlError(f"published numbers '{path}' cannot be read: {error}") from error
    if "value" in rows:
        numbers = pd.to_numeric(rows["value"], errors="coerce")
        if numbers.notna().all():
            rows["value"] = numbers
    return rows
