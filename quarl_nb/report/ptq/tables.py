"""Records -> tables with a published column beside the measured one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from quarl_nb.errors import check_choice
from quarl_nb.report.findings import MIN_EPISODES, decided
from quarl_nb.report.labels import policy_labels
from quarl_nb.report.losses import paired_losses
from quarl_nb.report.paper import published_ptq
from quarl_nb.report.policy_records import ptq_records
from quarl_nb.report.ptq.summary import ptq_summary
from quarl_nb.report.ptq.sweet_spots import sweet_spot_table
from quarl_nb.report.stats import ALPHA, MARGIN, Interval
from quarl_nb.report.texts import AS_PERCENT, interval_texts, percent, percent_interval, return_text

# What stands for the paper's int8 column: 8-bit affine weights, as its own PTQ code does.
PAPER_INT8 = "affine8"
INT8 = (PAPER_INT8, "int8", "legacy8")  # what else may
ALGOS = ("a2c", "dqn", "ppo", "ddpg")  # the order of Table 4's columns


def ptq_rows(records: pd.DataFrame, int8: str = PAPER_INT8) -> pd.DataFrame:
    """Table 4, tidy: one row a published number and measured policy (min-max ranges, own ones).

    A published number without a record keeps its row with nothing measured. `verdict` of fp16
    and int8: did a loss above 5 % appear where one was published, and none where none was. Of
    fp32: was the published reward reached (to 5 %), where the environment is the same; by the
    interval of the mean.

    Args:
        records: `ResultStore.frame("ptq")`.
        int8: the measured precision that stands beside the published int8, one of `INT8`.

    Returns:
        environment, env_id, algo, precision, scheme, published, published_loss, policy, seed,
        episodes, mean, mean_low, mean_high (95 %), loss, loss_low, loss_high (95 %), verdict,
        source, keys.

    Raises:
        QuarlError: no such int8.
    """
    check_choice("int8_as", int8, INT8)
    rows = _with_published_loss(published_ptq())
    rows["scheme"] = rows["precision"].replace({"int8": int8})
    wanted = ["algo", "env_id", "precision", "policy", "seed", "episodes", "mean", "mean_low",
              "mean_high", "loss", "loss_low", "loss_high", "p_no_loss", "p_loss", "keys"]
    losses = paired_losses(ptq_records(records, [*rows["scheme"].unique()], ranges=["minmax"]))
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
    return "inconclusive" if row["episodes"] < MIN_EPISODES else decided(good, bad)


def ptq_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of `ptq_rows` that are measured, for reading: a row an algorithm and environment,
    published beside measured.

    Cells are texts: `mean [95 % interval]`, losses E in per cent, verdicts one a precision.
    """
    rows = rows[rows["episodes"].notna()]
    rows = rows.sort_values("algo", key=lambda names: names.map(ALGOS.index), kind="stable")
    lines: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    episodes: dict[tuple[str, str], dict[str, list[str]]] = {}  # precisions by their number
    for (_, row), name in zip(rows.iterrows(), row_names(rows), strict=True):
        line = lines.setdefault((str(row["algo"]).upper(), name), {})
        head = str(row["precision"])
        line[(head, "published")] = f"{row['published']:g}"
        line[(head, "measured")] = return_text(Interval.of(row, "mean"))
        if head != "fp32":
            line[(f"E {head}", "published")] = percent(row['published_loss'])
            line[(f"E {head}", "measured")] = percent_interval(Interval.of(row, "loss"))
        line[("verdict", head)] = row["verdict"]
        played = episodes.setdefault((str(row["algo"]).upper(), name), {})
        played.setdefault(f"{row['episodes']:.0f}", []).append(head)
    for key, played in episodes.items():
        lines[key][("episodes", "")] = _episodes_text(played)
    order = [(head, side) for head in ("fp32", "fp16", "int8", "E fp16", "E int8")
             for side in ("published", "measured")]
    order += [("episodes", ""), *(("verdict", head) for head in ("fp32", "fp16", "int8"))]
    table = pd.DataFrame.from_dict(lines, orient="index")
    table = table.reindex(columns=pd.MultiIndex.from_tuples(order)).fillna("")
    table.index = pd.MultiIndex.from_tuples(list(lines), names=["algorithm", "environment"])
    return table


def _episodes_text(played: Mapping[str, Sequence[str]]) -> str:
    """As "30", or "400 (fp16: 30)" where precisions differ: fp32's number first."""
    (most, _), *others = played.items()
    told = [f"{', '.join(heads)}: {number}" for number, heads in others]
    return most + (f" ({'; '.join(told)})" if told else "")


def row_names(rows: pd.DataFrame) -> pd.Series:
    """The environment of each of `ptq_rows`; which policy and seed too, where there are several
    of the algorithm, at whatever precisions."""
    names = [f" ({row.policy}, seed {row.seed:.0f})" for row in rows.itertuples()]
    which = pd.Series(names, rows.index, dtype=object).where(rows["policy"].notna())
    several = which.groupby([rows["algo"], rows["environment"]]).transform("nunique") > 1
    return rows["environment"] + which.where(several).fillna("")


def loss_table(losses: pd.DataFrame) -> pd.DataFrame:
    """`paired_losses` for reading: a row a policy, a column a precision, min-max ranges."""
    rows = losses[(losses["ranges"] == "minmax") & (losses["precision"] != "fp32")]
    bits = dict(zip(rows["precision"], rows["bits"].fillna(99), strict=True))
    order = sorted(bits, key=lambda name: (name.rstrip("0123456789"), -bits[name]))
    texts = rows.assign(
        policy=rows["policy"].map(policy_labels(rows["policy"])),
        text=interval_texts(rows, "loss", AS_PERCENT),
    )
    return texts.pivot_table(
        index="policy", columns="precision", values="text", aggfunc=" / ".join
    ).reindex(columns=order).fillna("")


def summary_tables(
    records: pd.DataFrame, generator: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`summary.ptq_summary`, tidy and for reading."""
    tidy = ptq_summary(records, generator)
    shown = pd.DataFrame({
        "algorithm": tidy["algo"].str.upper(), "precision": tidy["precision"],
        "policies": tidy["policies"], "episodes": tidy["episodes"],
        "IQM of fp32-normalized return": interval_texts(tidy, "iqm", ".3f"),
        "P(better than fp32)": interval_texts(tidy, "improvement", ".3f"),
    }) if len(tidy) else tidy
    return tidy, shown


def sweet_spot_tables(records: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`sweet_spots.sweet_spot_table`, tidy and for reading."""
    tidy = sweet_spot_table(records)
    shown = pd.DataFrame({
        "policy": tidy["policy"].map(policy_labels(tidy["policy"])),
        "surest width (bits)": tidy["bits"],
        "its gain over fp32 (corrected 95 % bound)": _bounded(tidy["gain"], tidy["low"]),
        "corrected p": tidy["p_holm"].map("{:.3g}".format),
        "sweet spot": tidy["sweet_spot"].map({True: "yes", False: "no"}),
        "width that gains most (bits)": tidy["most_bits"],
        "its gain (corrected 95 % bound)": _bounded(tidy["most"], tidy["most_low"]),
    }) if len(tidy) else tidy
    return tidy, shown


def _bounded(gains: pd.Series, bounds: pd.Series) -> list[str]:
    return [f"{gain:.4g} (\u2265 {low:.4g})" for gain, low in zip(gains, bounds, strict=True)]
