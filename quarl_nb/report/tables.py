"""Records -> tables with a published column beside the measured one: CSV, HTML and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from quarl_nb.report.losses import paired_losses
from quarl_nb.report.paper import published_ptq
from quarl_nb.report.rules import MIN_EPISODES
from quarl_nb.report.stats import (
    ALPHA,
    MARGIN,
    Interval,
    iqm,
    probability_of_improvement,
    stratified_bootstrap,
)

# What stands for the paper's int8 column: 8-bit affine weights, as its own PTQ code does.
PAPER_INT8 = "affine8"


def ptq_rows(
    records: pd.DataFrame, int8: str = PAPER_INT8, published: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Table 4, tidy: one row a published number and measured policy (min-max ranges, own ones).

    A published number without a record keeps its row with nothing measured. `verdict` of fp16
    and int8: did a loss above 5 % appear where one was published, and none where none was. Of
    fp32: was the published reward reached (to 5 %), where the environment is the same.

    Args:
        records: `ResultStore.frame("ptq")`.
        int8: the measured precision that stands beside the published int8.

    Returns:
        environment, env_id, algo, precision, scheme, published, published_loss, policy, seed,
        episodes, mean, mean_low, mean_high (95 %), loss, loss_low, loss_high (95 %), verdict,
        source, keys.
    """
    rows = _with_published_loss(published_ptq() if published is None else published)
    rows["scheme"] = rows["precision"].replace({"int8": int8})
    wanted = ["algo", "env_id", "precision", "policy", "seed", "episodes", "mean", "mean_low",
              "mean_high", "loss", "loss_low", "loss_high", "p_no_loss", "p_loss", "keys"]
    losses = paired_losses(records)
    if losses.empty:
        losses = pd.DataFrame(columns=[*wanted, "public", "ranges"])
    losses = losses[(losses["ranges"] == "minmax") & ~losses["public"].astype(bool)][wanted]
    found = rows.merge(
        losses.rename(columns={"precision": "scheme"}), how="left",
        on=["algo", "env_id", "scheme"],
    )
    found["verdict"] = [_verdict(row) for _, row in found.iterrows()]
    return found.drop(columns=["p_no_loss", "p_loss", "same_reward_scale"]).rename(
        columns={"value": "published"}
    )


def _with_published_loss(published: pd.DataFrame) -> pd.DataFrame:
    """E = (fp32 - quantized) / |fp32| of the published numbers themselves."""
    fp32 = published[published["precision"] == "fp32"]
    rows = published.merge(
        fp32[["environment", "algo", "value"]], on=["environment", "algo"], suffixes=("", "_fp32")
    )
    rows["published_loss"] = (rows["value_fp32"] - rows["value"]) / rows["value_fp32"].abs()
    return rows.drop(columns="value_fp32")


def _verdict(row: pd.Series) -> str:
    if pd.isna(row["episodes"]):
        return "not measured"
    if row["precision"] == "fp32":
        if not row["same_reward_scale"]:
            return "other environment"
        needed = row["value"] - MARGIN * abs(row["value"])
        good, bad = row["mean_low"] >= needed, row["mean_high"] < needed
    else:
        lost, kept = row["p_loss"] <= ALPHA, row["p_no_loss"] <= ALPHA
        good, bad = (lost, kept) if row["published_loss"] > MARGIN else (kept, lost)
    if row["episodes"] < MIN_EPISODES or not (good or bad):
        return "inconclusive"
    return "reproduced" if good else "not reproduced"


def ptq_table(rows: pd.DataFrame, measured_only: bool = False) -> pd.DataFrame:
    """`ptq_rows` for reading: a row an algorithm and environment, published beside measured.

    Cells are texts: `mean [95 % interval]`, losses E in per cent, verdicts one a precision.
    """
    if measured_only:
        rows = rows[rows["episodes"].notna()]
    lines: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    names = rows["environment"] + np.where(
        rows.groupby(["algo", "environment", "precision"])["published"].transform("size") > 1,
        " (seed " + rows["seed"].astype(str) + ")", "",
    )
    for (_, row), name in zip(rows.iterrows(), names, strict=True):
        line = lines.setdefault((str(row["algo"]).upper(), name), {})
        head = str(row["precision"])
        line[(head, "published")] = f"{row['published']:g}"
        line[(head, "measured")] = _reward(row)
        if head != "fp32":
            line[(f"E {head}", "published")] = f"{row['published_loss']:.1%}"
            line[(f"E {head}", "measured")] = _loss(row)
        line[("episodes", "")] = "" if pd.isna(row["episodes"]) else f"{row['episodes']:.0f}"
        line[("verdict", head)] = row["verdict"]
    order = [(head, side) for head in ("fp32", "fp16", "int8", "E fp16", "E int8")
             for side in ("published", "measured")]
    order += [("episodes", ""), *(("verdict", head) for head in ("fp32", "fp16", "int8"))]
    table = pd.DataFrame.from_dict(lines, orient="index")
    table = table.reindex(columns=pd.MultiIndex.from_tuples(order)).fillna("")
    table.index = pd.MultiIndex.from_tuples(list(lines), names=["algorithm", "environment"])
    return table


def ptq_summary(records: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """Each algorithm and precision over its policies (min-max ranges), a task being a policy.

    Scores are 1 + (return - mean fp32 return) / |mean fp32 return|, so fp32 is near 1.

    Returns:
        algo, precision, policies, episodes, iqm, iqm_low, iqm_high, improvement,
        improvement_low, improvement_high: interquartile mean and probability that an episode
        beats one of fp32, with stratified 95 % bootstrap intervals.
    """
    scores = _normalized(records)
    found = []
    for (algo, precision), group in scores.groupby(["algo", "precision"]):
        pairs = [np.stack([row.score, row.base]) if len(row.score) == len(row.base) else None
                 for row in group.itertuples()]
        tasks = [pair for pair in pairs if pair is not None]
        middle = stratified_bootstrap([pair[0] for pair in tasks], iqm, generator, 1000)
        better = _improvement(tasks, generator)
        found.append({
            "algo": algo, "precision": precision, "policies": len(tasks),
            "episodes": sum(pair.shape[1] for pair in tasks),
            "iqm": middle.value, "iqm_low": middle.low, "iqm_high": middle.high,
            "improvement": better.value, "improvement_low": better.low,
            "improvement_high": better.high,
        })
    return pd.DataFrame(found)


def _improvement(tasks: list[np.ndarray], generator: np.random.Generator) -> Interval:
    """Episodes are redrawn in pairs, so that common seeds stay common."""
    def statistic(drawn: list[np.ndarray]) -> float:
        return probability_of_improvement([p[0] for p in drawn], [p[1] for p in drawn])

    draws = []
    for _ in range(200):
        picks = [generator.integers(task.shape[1], size=task.shape[1]) for task in tasks]
        draws.append(statistic([t[:, pick] for t, pick in zip(tasks, picks, strict=True)]))
    low, high = np.quantile(draws, [ALPHA / 2, 1 - ALPHA / 2])
    return Interval(statistic(tasks), float(low), float(high))


def _normalized(records: pd.DataFrame) -> pd.DataFrame:
    rows = []
    keep = records[records["ranges"].fillna("minmax") == "minmax"]
    for _, group in keep.groupby(["policy", "seed"], dropna=False):
        fp32 = group[group["precision"] == "fp32"]
        if fp32.empty or np.mean(fp32["returns"].iloc[0]) == 0:
            continue
        base = np.asarray(fp32["returns"].iloc[0], float)
        for _, row in group.iterrows():
            scores = [1 + (np.asarray(x, float) - base.mean()) / abs(base.mean())
                      for x in (row["returns"], base)]
            rows.append({"algo": str(row["algo"]).lower(), "precision": row["precision"],
                         "score": scores[0], "base": scores[1]})
    return pd.DataFrame(rows, columns=["algo", "precision", "score", "base"])


def save_table(
    rows: pd.DataFrame, shown: pd.DataFrame, name: str, folder: Path, provenance: Mapping[str, Any],
    caption: str = "",
) -> list[Path]:
    """Write `rows` as CSV, `shown` as HTML and LaTeX (booktabs), and the provenance as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = rows.drop(columns="keys", errors="ignore")
    texts = {
        "csv": plain.to_csv(index=False, float_format="%.6g", lineterminator="\n"),
        "html": shown.to_html(border=0, classes="quarl-table", justify="left") + "\n",
        "tex": shown.style.format(escape="latex").format_index(escape="latex", axis=0)
        .format_index(escape="latex", axis=1)
        .to_latex(hrules=True, caption=caption or None, label=f"tab:{name}", position="t"),
        "json": json.dumps(dict(provenance), indent=1, sort_keys=True) + "\n",
    }
    paths = []
    for suffix, text in texts.items():
        paths.append(folder / f"{name}.{suffix}")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def _reward(row: pd.Series) -> str:
    if pd.isna(row["episodes"]):
        return ""
    digits = 0 if abs(row["mean"]) >= 1000 else 1
    mean, low, high = (f"{row[part]:.{digits}f}" for part in ("mean", "mean_low", "mean_high"))
    return mean if low == mean == high else f"{mean} [{low}, {high}]"


def _loss(row: pd.Series) -> str:
    if pd.isna(row["loss"]):
        return ""
    return f"{row['loss']:.1%} [{row['loss_low']:.1%}, {row['loss_high']:.1%}]"
