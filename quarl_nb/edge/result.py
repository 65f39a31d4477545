"""What a board sends back: checked, and put into the records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from quarl_nb import provenance
from quarl_nb.edge.export import FORMAT_VERSION, PRECISIONS
from quarl_nb.edge.pi_model import RUNTIMES
from quarl_nb.errors import QuarlError, check_choice, check_counts
from quarl_nb.paths import content_of
from quarl_nb.quant import RANGES
from quarl_nb.store import ResultStore
from quarl_nb.study import Cell

STUDY, PROFILE, SCHEMA_VERSION = "edge_board", "full", 1
_LATENCIES = ("latency_min_s", *(f"latency_p{p}_s" for p in (10, 50, 90, 99)))
_COUNTED = ("calls", "observations", "actions_as_recorded", "resident_bytes", "peak_resident_bytes")
_EXPORTED = ("observations", "onnx_bytes", "c_bytes", "weight_bytes")
# What tells that it ran as it should: the libraries' version, the comparison with the test vector.
_OWN = {"onnxruntime": ("version", str), "c": ("correct", bool)}


def import_result(path: str | Path, store: ResultStore) -> list[Path]:
    """One record of study `edge_board` for each runtime of a board's result.json; their files.

    Raises:
        QuarlError: the file is not a result, misses a field, or holds what cannot be (named).
    """
    path = Path(path)
    try:
        result = json.loads(content_of(path))
    except (ValueError, RecursionError) as error:
        raise QuarlError(f"'{path}' is not JSON: {error}") from error
    try:
        records = list(_records(result))
    except QuarlError as error:
        raise QuarlError(f"'{path}': {error}") from error
    store.prepare(STUDY, PROFILE)
    return [store.write(record) for record in records]


def _records(result: Any) -> Iterator[dict[str, Any]]:
    """Checked records; the first thing that is wrong is raised."""
    version = _field(result, "format_version", int)
    if version != FORMAT_VERSION:
        raise QuarlError(f"result has format version {version}; known: {FORMAT_VERSION}")
    export, board = _field(result, "export", dict), _field(result, "board", dict)
    started = _field(result, "start_time", str)
    try:
        datetime.fromisoformat(started)
    except ValueError as error:
        raise QuarlError(f"start_time must be in ISO 8601, not {started!r}") from error
    _check_export(export)
    model = board.get("model") or board.get("machine")
    if not model or not isinstance(model, str):
        raise QuarlError("result names no board: neither board.model nor board.machine")
    cpu = board.get("cpu") or []
    if not _is_list(cpu, str):
        raise QuarlError(f"board.cpu must be a list of names, not {cpu!r}")
    runtimes = _field(result, "runtimes", dict)
    if not runtimes:
        raise QuarlError("result holds no runtime")
    for runtime, measured in runtimes.items():
        check_choice("runtime of the result", runtime, RUNTIMES)
        where = f"runtimes.{runtime}."
        check_measured(measured, export["observations"], where)
        own = _field(measured, *_OWN[runtime], where)
        cell = {"policy": export["policy"], "precision": export["precision"],
                "ranges": export["ranges"], "runtime": runtime, "board": model}  # fmt: skip
        if "tensors_sha256" in export:  # older exports told policies of one name not apart
            cell["tensors_sha256"] = _field(export, "tensors_sha256", str, "export.")
        budget = {"calls": measured["calls"], "measured_at": started}
        kept = {name: value for name, value in measured.items() if name != "actions"}
        yield {
            "study": STUDY, "profile": PROFILE,
            "key": Cell(STUDY, cell).key(budget, SCHEMA_VERSION),
            "schema_version": SCHEMA_VERSION, "cell": cell, "budget": budget,
            "measured": kept, "backend": runtime, "source": "measured",
            "energy": {}, "wall_s": None,
            "extra": {"board": board, "export": export},
            # The board's; of what imports it, the code alone.
            "provenance": {**provenance.collect(), "start_time": started,
                           "packages": {"onnxruntime": own} if runtime == "onnxruntime" else {},
                           "cpu": ", ".join(cpu), "cpu_features": [], "gpu": None,
                           "cores": board.get("cores"), "os": board.get("os"),
                           "python": board.get("python")},
        }  # fmt: skip


def _check_export(export: dict[str, Any]) -> None:
    """Raise a QuarlError if it does not say what was exported."""
    for name in ("policy", "precision", "ranges"):
        _field(export, name, str, "export.")
    check_choice("precision of the result", export["precision"], PRECISIONS)
    check_choice("ranges of the result", export["ranges"], RANGES)
    for name in _EXPORTED:
        check_counts(1, **{f"export.{name}": _field(export, name, int, "export.")})
    network = _field(export, "network", list, "export.")
    if not _is_list(network, int) or len(network) < 2 or min(network) < 1:
        raise QuarlError(f"export.network must be sizes of layers, inputs first, not {network}")


def check_measured(measured: Any, n_observations: int, where: str = "") -> None:
    """Raise a QuarlError if one runtime's part of a result cannot be.

    Args:
        n_observations: how many the exported folder holds.
        where: name of the part, for the error.
    """
    for name in (*_LATENCIES, *_COUNTED):
        value, whole = _field(measured, name, object, where), name in _COUNTED
        if type(value) not in ((int,) if whole else (int, float)) or not abs(value) < math.inf:
            kind = "a whole number" if whole else "a number"
            raise QuarlError(f"{where}{name} must be {kind}, not {value!r}")
    latencies = [measured[name] for name in _LATENCIES]
    if latencies != sorted(latencies) or latencies[0] <= 0:
        raise QuarlError(f"{where}latencies must be positive and rising: {latencies}")
    check_counts(1, **{f"{where}calls": measured["calls"]})
    n = measured["observations"]
    if n != n_observations:
        raise QuarlError(f"{where}observations is {n}, but {n_observations} were exported")
    if not 0 <= measured["actions_as_recorded"] <= n:
        raise QuarlError(f"{where}actions_as_recorded must be 0 to {n}")
    if "actions" in measured and len(actions := _field(measured, "actions", list, where)) != n:
        raise QuarlError(f"{where}actions has {len(actions)} entries for {n} observations")
    if not 0 < measured["resident_bytes"] <= measured["peak_resident_bytes"]:
        raise QuarlError(f"{where}resident_bytes must be positive and at most the peak")
    if measured.get("correct") is False:
        raise QuarlError(f"{where}correct is false: this board's outputs differ from the policy's")


def _field(value: Any, name: str, kind: type, where: str = "") -> Any:
    if not isinstance(value, dict) or name not in value:
        raise QuarlError(f"field '{where}{name}' is missing")
    if not isinstance(value[name], kind):
        raise QuarlError(f"field '{where}{name}' must be {kind.__name__}")
    return value[name]


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(item) is kind for item in value)
