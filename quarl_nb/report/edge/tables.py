"""The tables of the Pi study for reading: every column says measured, modelled or published."""

from __future__ import annotations

import pandas as pd

from quarl_nb.report.edge.success import METHODS, PLAIN, STOPPED, published_success
from quarl_nb.report.edge.timings import (
    HERE,
    PAPERS_BOARD,
    PRECISIONS,
    RUNTIMES,
    published_times,
    table6_networks,
)
from quarl_nb.report.stats import Interval
from quarl_nb.report.texts import points

Column = tuple[str, str]
PRINTING = "a decision and the printing of a number (1,000 to 1,400 on x86-64)"
MEASURED = "measured in simulated precision"  # flights with numbers rounded in fp32
WHOLE = 1000  # an input of the model from here on is shown without decimals


def table6(latencies: pd.DataFrame, successes: pd.DataFrame) -> pd.DataFrame:
    """Table 6: a row a policy and precision; published, measured and modelled side by side.

    Args:
        latencies: `timings.latency_rows`.
        successes: `success.success_rows`.
    """
    lines: dict[tuple[str, str], dict[Column, str]] = {
        (policy, precision): {} for policy in table6_networks() for precision in PRECISIONS
    }
    for _, row in published_times().iterrows():
        lines[row["policy"], row["precision"]] |= {
            ("one decision (ms)", f"published, {PAPERS_BOARD}"): ms(row["latency_s"]),
            ("speed-up over fp32", f"published, {PAPERS_BOARD}"): times(row["speedup"]),
        }
    for _, row in published_success().iterrows():
        lines[row["policy"], row["precision"]]["success", "published"] = f"{row['success']:.0%}"
    shown = _shown_in_table6(latencies)
    for (_, row), export in zip(shown.iterrows(), _exports(shown), strict=True):
        where = f"{row['source']}, {row['machine']}"
        process = ", ".join([where, RUNTIMES[row["runtime"]], *filter(None, [export])])
        time = process if row["source"] == "measured" else where  # modelled alike for both runtimes
        lines[row["policy"], row["precision"]] |= {
            ("one decision (ms)", time): ms(row["latency_s"]),
            ("speed-up over fp32", time): times(row["speedup"]),
            ("process (MB)", process): megabytes(row["resident_bytes"]),
            ("weights (kB)", ""): f"{row['weight_bytes'] / 1e3:,.0f}",
        }
    for _, row in successes.iterrows():
        if (line := (row["policy"], row["precision"])) in lines and row["method"] == PLAIN:
            lines[line]["success", MEASURED] = rate(row)
    table = pd.DataFrame.from_dict(lines, orient="index").fillna("")
    first = ["one decision (ms)", "speed-up over fp32", "weights (kB)", "process (MB)", "success"]
    columns = sorted(table.columns, key=lambda column: first.index(column[0]))
    table = table[columns]
    table.columns = pd.MultiIndex.from_tuples(columns)
    table.index = pd.MultiIndex.from_tuples([*lines], names=["policy", "precision"])
    return table


def _exports(latencies: pd.DataFrame) -> list[str]:
    """What tells the rows of a board apart that ran several policies of one network, else ""."""
    if latencies.empty:
        return []
    ranges = latencies["ranges"].mask(latencies["ranges"] == "minmax", "")
    names = latencies["exported"] + ranges.where(ranges == "", ", " + ranges)
    place = [latencies[name] for name in ("policy", "network", "machine", "runtime", "source")]
    return names.where(names.groupby(place).transform("nunique") > 1, "").tolist()


def _shown_in_table6(latencies: pd.DataFrame) -> pd.DataFrame:
    """Everything measured, and the model of the paper's board."""
    if latencies.empty:
        return latencies
    of_table6 = latencies["policy"] != ""
    asked = (latencies["source"] == "measured") | (latencies["machine"] == PAPERS_BOARD)
    return latencies[of_table6 & asked]


def explanation_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`modelled.explanation_rows` for reading."""
    if rows.empty:
        return rows
    yes = {True: "yes", False: "no"}
    return pd.DataFrame({
        "policy": rows["policy"], "precision": rows["precision"],
        "published (ms)": rows["published_s"].map(ms), "modelled (ms)": rows["modelled_s"].map(ms),
        "published / modelled": rows["ratio"].map("{:.3g}".format),
        "weights (MB)": (rows["weight_bytes"] / 1e6).map("{:.3f}".format),
        "process, modelled (MB)": (rows["resident_bytes"] / 1e6).map("{:.0f}".format),
        "left beside it, modelled (MB)": (rows["free_bytes"] / 1e6).map("{:.0f}".format),
        "exceeds memory, modelled": rows["exceeds"].map(yes),
        "exceeds memory, published": rows["said_to_exceed"].map(yes),
        "from flash in a decision, modelled (MB)": (rows["flash_bytes"] / 1e6).map("{:.3g}".format),
        "over its weights, modelled": rows["flash_over_weights"].map("{:.2g}".format),
    })  # fmt: skip


def boards_table(latencies: pd.DataFrame) -> pd.DataFrame:
    """Every board, modelled and imported: a decision's time, speed-up, and what bounds it."""
    rows = latencies[latencies["machine"] != HERE] if len(latencies) else latencies
    if rows.empty:
        return rows
    lines: dict[tuple[str, str, str], dict[Column, str]] = {}
    rows = rows.sort_values("machine", kind="stable")
    for (_, row), export in zip(rows.iterrows(), _exports(rows), strict=True):
        measured, precision = row["source"] == "measured", row["precision"]
        source = f"measured, {RUNTIMES[row['runtime']]}" if measured else "modelled"
        policy = (row["policy"] or row["network"]) + (f" ({export})" if export else "")
        name = (row["machine"], source, policy)
        lines.setdefault(name, {}).update({
            ("one decision (ms)", precision): ms(row["latency_s"]),
            ("speed-up over fp32", precision): times(row["speedup"]),
            ("bound by", precision): row["bound_by"],
        })  # fmt: skip
    shown = pd.DataFrame.from_dict(lines, orient="index")
    kinds = ("one decision (ms)", "speed-up over fp32", "bound by")
    order = [(kind, p) for kind in kinds for p in PRECISIONS if p != "fp32" or kind[0] != "s"]
    shown = shown.reindex(columns=pd.MultiIndex.from_tuples(order)).fillna("")
    shown.index = pd.MultiIndex.from_tuples([*lines], names=["board", "source", "policy"])
    return shown


def inputs_table(inputs: pd.DataFrame) -> pd.DataFrame:
    """`modelled.board_inputs` for reading."""
    if inputs.empty:
        return inputs
    texts = [f"{value:,.3f}" if value < WHOLE else f"{value:,.0f}" for value in inputs["value"]]
    return inputs.assign(value=texts).rename(
        columns={"machine": "board", "value": "value (SI units, bytes)"}
    )


def emulated_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`modelled.emulated_rows` for reading."""
    if rows.empty:
        return rows
    kinds = ("code", "constant", "writable", "stack")
    agreed = rows["actions_as_recorded"] / rows["observations"]
    return pd.DataFrame({
        "network": rows["network"], "precision": rows["precision"],
        "core": rows["machine"],
        "instructions, measured": rows["instructions"].map("{:,.0f}".format),
        "they hold": rows["printing_counted"].map({False: "a decision", True: PRINTING}),
        "at least (ms), modelled": rows["least_s"].map(ms),
        **{f"{kind} (kB), measured": (rows[f"{kind}_bytes"] / 1e3).map("{:,.1f}".format)
           for kind in kinds},
        "actions as simulated": agreed.map("{:.0%}".format),
    })  # fmt: skip


def success_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`success.success_rows` for reading, published rates beside them."""
    if rows.empty:
        return rows
    table = published_success().set_index(["policy", "precision"])
    places = zip(rows["policy"].str.removesuffix(STOPPED), rows["precision"], strict=True)
    beside = [table.loc[at] if at in table.index and method == PLAIN else None
              for at, method in zip(places, rows["method"], strict=True)]  # fmt: skip
    return pd.DataFrame({
        "policy": rows["policy"], "precision": rows["precision"],
        "method": rows["method"].map(METHODS).where(rows["precision"] != "fp32", ""),
        f"success, {MEASURED} [95 %]": [rate(row) for _, row in rows.iterrows()],
        "published [95 %]": ["" if row is None else rate(row) for row in beside],
        "fall, measured [95 %]": [_fall(row) for _, row in rows.iterrows()],
        "fall, published": ["" if row is None or not row["fall"] > 0 else f"{100 * row['fall']:.0f}"
                            for row in beside],
        "crashes": rows["crash"].map("{:.1%}".format),
        "out of time": rows["timeout"].map("{:.1%}".format), "episodes": rows["episodes"],
    })  # fmt: skip


def falls_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`success.success_rows` in short: a row a policy and method, a column a precision.

    A cell tells by how many points success falls below fp32, with its 95 % interval.
    """
    if rows.empty:
        return rows
    texts = rows.assign(text=[_fall(row) for _, row in rows.iterrows()])
    full = texts["precision"] == "fp32"
    wide = texts[~full].set_index(["policy", "method", "precision"])["text"] \
                       .unstack(sort=False).fillna("").reset_index()  # fmt: skip
    flown = {row["policy"]: rate(row) for _, row in texts[full].iterrows()}
    again = wide["policy"].duplicated()
    wide.insert(1, "success in fp32 [95 %]", wide["policy"].map(flown).fillna("").mask(again, ""))
    wide["policy"] = wide["policy"].mask(again, "")
    wide["method"] = wide["method"].map(METHODS)
    return wide.rename_axis(columns=None)


def ms(seconds: float) -> str:
    """Three digits of milliseconds."""
    return f"{1e3 * seconds:.3g}"


def times(ratio: float) -> str:
    """A speed-up, nothing where there is none."""
    return "" if pd.isna(ratio) else f"{ratio:.3g}×"


def megabytes(size: float) -> str:
    """Three digits of bytes in millions, nothing where a process does not tell them (NaN, 0)."""
    return f"{size / 1e6:.3g}" if size > 0 else ""


def rate(row: pd.Series) -> str:
    """A success rate in per cent with its interval."""
    return Interval(row["success"], row["low"], row["high"]).text(".1%")


def _fall(row: pd.Series) -> str:
    """In points."""
    if row["precision"] == "fp32" or pd.isna(row["fall"]):
        return ""
    return points(Interval.of(row, "fall"), "+z.1f")
