"""Planted records of the Pi study with known times, bytes and flights, to test its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from quarl_nb.report.edge import timings
from quarl_nb.store import ResultStore
from quarl_nb.study import Cell

Row = dict[str, Any]
NETWORKS = {"Policy I": "64x3", "Policy II": "256x3", "Policy III": "4096-512-1024"}
WEIGHTS = {"64x3": 40_000, "256x3": 600_000, "4096-512-1024": 11_000_000}
SHARE = {"fp32": 1.0, "int8": 0.25, "int4": 0.125}
RAM, SYSTEM, RUNTIME = 1_000_000_000, 100_000_000, 60_000_000
BOARD = {"cpu": "cortex_a53", "ram_bytes": {"value": RAM, "source": "a datasheet"},
         "system_bytes": {"value": SYSTEM, "source": "free -m"},
         "flash": {"value": 20e6, "source": "assumed: a card"}}  # fmt: skip


def measured_row(network: str, precision: str, runtime: str, us: float, **more: Any) -> Row:
    """Percentiles 10 and 90 are a tenth below and above."""
    weights = WEIGHTS[network] * SHARE[precision]
    return {
        "key": f"{network}/{precision}/{runtime}", "profile": "full", "network": network,
        "precision": precision, "runtime": runtime, "machine": timings.HERE, "seed": 0,
        "source": "measured", "latency_p10_s": 0.9e-6 * us, "latency_p50_s": 1e-6 * us,
        "latency_p90_s": 1.1e-6 * us, "weight_bytes": weights, "code_bytes": 3000.0,
        "resident_bytes": weights + (RUNTIME if runtime == "onnxruntime" else 1e6),
    } | more  # fmt: skip


def modelled_row(network: str, precision: str, runtime: str, ms: float, ram: int = RAM) -> Row:
    weights = WEIGHTS[network] * SHARE[precision]
    resident = weights + RUNTIME
    free = ram - SYSTEM - resident
    board = BOARD | {"ram_bytes": {"value": ram, "source": "a datasheet"}}
    return {
        "key": f"pi/{network}/{precision}/{runtime}", "profile": "full", "network": network,
        "precision": precision, "runtime": runtime, "machine": timings.PAPERS_BOARD, "seed": 0,
        "source": "modelled", "modelled_latency_s": 1e-3 * ms, "modelled_compute_s": 1e-3 * ms,
        "modelled_memory_s": 2e-3 * ms if precision == "fp32" else 0.0,
        "modelled_swap_s": max(0.0, -free / 20e6), "modelled_weight_bytes": weights,
        "modelled_resident_bytes": resident, "modelled_free_bytes": free, "extra.board": board,
    }  # fmt: skip


def timed(ratio: float = 4.0, ram: int = RAM) -> pd.DataFrame:
    """int8 `ratio` times as fast as fp32 everywhere, int4 in between."""
    rows = []
    for i, network in enumerate(WEIGHTS):
        for precision, part in (("fp32", 1.0), ("int8", 1 / ratio), ("int4", 2 / ratio)):
            for runtime in timings.RUNTIMES:
                rows += [measured_row(network, precision, runtime, 10**i * part),
                         modelled_row(network, precision, runtime, 10**i * part / 10, ram)]
    return pd.DataFrame(rows)


def imported(network: list[int], precision: str, us: float, board: str) -> Row:
    """A board's own result, as `quarl-nb edge import` records it."""
    row = measured_row("64x3", precision, "c", us)
    del row["machine"], row["network"], row["weight_bytes"]
    return row | {"key": f"{board}/{network}/{precision}", "board": board, "policy": "p",
                  "extra.export": {"network": network, "weight_bytes": 7},
                  "ranges": "minmax"}  # fmt: skip


def flights(
    rates: Mapping[tuple[str, str], float], episodes: int = 1000, base: float = 0.9,
    networks: Mapping[str, str] = NETWORKS, ending: str = "", trainings: int = 1,
) -> pd.DataFrame:
    """Policies that reach the goal in exactly the first share of their episodes.

    Args:
        rates: by (precision, method); fp32 has `base`.
        ending: of the policies' names.
        trainings: with quantization, each 0.2 % better than the one before, around the rate.
    """
    rows = []
    for policy, network in networks.items():
        flown = [(each, rate, seed) for each, rate in {("fp32", "minmax"): base, **rates}.items()
                 for seed in range(trainings if each[1] == "qat" else 1)]  # fmt: skip
        for (precision, method), rate, seed in flown:
            own = rate + 0.002 * (seed - (trainings - 1) / 2) * (method == "qat")
            reached = round(own * episodes)
            rows.append({
                "key": f"{policy}{ending}/{precision}/{method}" + f"/{seed}" * (seed > 0),
                "profile": "full", "policy": policy + ending, "network": network,
                "algo": "dqn", "env_id": "quarl/AirNavigation-v0",
                "precision": precision, "method": method, "seed": seed,
                "outcomes": "s" * reached + "c" * (episodes - reached), "budget.first_seed": 0,
                "source": "measured",
            })  # fmt: skip
    return pd.DataFrame(rows)


def write_timed(store: ResultStore) -> None:
    """`timed` as records of the study `edge`."""
    names = ("network", "precision", "runtime", "machine", "seed")
    for row in timed().to_dict("records"):
        board = {"board": row.pop("extra.board")}
        _write(store, "edge", names, row, board if isinstance(board["board"], dict) else {})


def write_flights(store: ResultStore, rates: Mapping[tuple[str, str], float]) -> None:
    """`flights` as records of the study `navigation`."""
    names = ("policy", "algo", "env_id", "network", "precision", "method", "seed")
    for row in flights(rates).to_dict("records"):
        _write(store, "navigation", names, row, {})


def _write(
    store: ResultStore, study: str, names: Sequence[str], row: Row, extra: Row
) -> None:
    cell = {name: row[name] for name in names}
    rest = {name: value for name, value in row.items()
            if name not in (*names, "key", "profile", "source")}  # fmt: skip
    store.write({
        "study": study, "profile": row["profile"], "schema_version": 1, "cell": cell, "budget": {},
        "key": Cell(study, cell).key({}, 1), "measured": rest, "backend": "simulated",
        "source": row["source"], "wall_s": 1.0, "extra": extra,
        "provenance": {"git_commit": "c0ffee" + "0" * 34, "dirty": False, "packages": {},
                       "start_time": "2026-11-21T05:00:00+00:00"},
    })  # fmt: skip
