"""Times and checks the policy of this folder on the machine it lies on; writes result.json.

Needs Python 3.9 and numpy alone:  python3 benchmark.py [--seconds 5]
ONNX Runtime is timed where it is installed, the C version once it is built:  make
Bring the result back:  quarl-nb edge import result.json
(without --observations: of others than the exported ones nobody knows the right actions)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
PERCENTILES = (10, 50, 90, 99)
WARM_UP_CALLS = 20
FIRST_CALLS, MOST_CALLS = 100, 1_000_000  # of the C version: the first ones tell how many it takes


def main() -> None:
    """Run what is there; print one line for each runtime."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of timed calls (default: 5)")
    parser.add_argument("--observations", type=Path, default=HERE / "observations.npz",
                        help="other observations, .npy or .npz with `obs`; their result is to be "
                        "read, not imported")
    parser.add_argument("--out", type=Path, default=HERE / "result.json")
    options = parser.parse_args()
    if not 0 <= options.seconds < float("inf"):
        parser.error("--seconds must be a number, 0 or more")
    start_time = datetime.now(timezone.utc).isoformat(timespec="seconds")  # noqa: UP017
    export = load_export()
    obs, actions = load_observations(options.observations)
    runtimes = {}
    if (session := open_session(export["precision"])) is not None:
        runtimes["onnxruntime"] = run_onnxruntime(session, export, obs, actions, options.seconds)
    if (HERE / "test_policy").exists():
        runtimes["c"] = run_c(export, options.seconds)
    if not runtimes:
        sys.exit("error: nothing to time: install onnxruntime, or build test_policy with make")
    result = {
        "format_version": 1,
        "start_time": start_time,
        "export": export,
        "board": describe_board(),
        "runtimes": runtimes,
    }
    try:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        sys.exit(f"error: cannot write '{options.out}': {error.strerror}")
    for name, measured in runtimes.items():
        same, n = measured["actions_as_recorded"], measured["observations"]
        print(
            f"{name}: median {1e6 * measured['latency_p50_s']:.1f} us, "
            f"{(measured['resident_bytes'] or 0) / 1e6:.1f} MB resident, "
            + (f"{same} of {n} actions as recorded" if same is not None else "no actions recorded")
        )
    others = actions is None or len(obs) != export["observations"]
    if others and "onnxruntime" in runtimes:
        print("these are not the exported observations: their result cannot be imported")


def load_export() -> dict[str, Any]:
    """What export.json says of this folder; ends with one line if it cannot be read."""
    try:
        return json.loads((HERE / "export.json").read_text())
    except OSError as error:
        sys.exit(f"error: cannot read export.json: {error.strerror}; copy the whole folder")
    except ValueError:
        sys.exit("error: export.json is damaged: copy the folder again")


def load_observations(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Raw observations [n, ...] and the recorded actions, None in a plain .npy.

    Ends with one line if the file is none of these.
    """
    try:
        with open(path, "rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content, None
            return content["obs"], content["actions"] if "actions" in content else None
    except OSError as error:
        sys.exit(f"error: cannot read '{path}': {error.strerror}")
    except Exception:  # numpy parses the header as Python, which fails in many ways
        sys.exit(f"error: '{path}' is no .npy, nor an .npz with `obs`")


def check_observations(obs: np.ndarray, shape: list[int], dtype: str) -> None:
    """End with one line unless they are [n, *shape], n >= 1, finite; bytes where `dtype` is."""
    if obs.dtype.kind not in "buif" or dtype == "uint8" != obs.dtype.name:
        sys.exit(f"error: observations must be {dtype}, not {obs.dtype}")
    if list(obs.shape[1:]) != shape or not len(obs):
        wanted = ", ".join(["n", *map(str, shape)])
        sys.exit(f"error: observations must be [{wanted}], n >= 1; got {list(obs.shape)}")
    if not np.isfinite(obs).all():
        sys.exit("error: observations hold NaN or infinite values")


def open_session(precision: str) -> Any | None:
    """The policy in ONNX Runtime, in one thread; None where that does not open it.

    A line tells why not: it is missing, or too old for the model.
    """
    try:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        levels = ort.GraphOptimizationLevel
        fp32 = precision == "fp32"  # the integer graphs are written in fused operators
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if fp32 else levels.ORT_DISABLE_ALL
        if precision == "int8":
            # Where u8 x s8 would saturate (x86 without VNNI), this pass makes weights u8.
            options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
            options.add_session_config_entry("session.x64quantprecision", "1")
        return ort.InferenceSession(str(HERE / "policy.onnx"), options, ["CPUExecutionProvider"])
    except Exception as error:  # its own have no common base
        reason = str(error).partition("\n")[0]
        print(f"onnxruntime: left out, {reason}")
        return None


def run_onnxruntime(
    session: Any, export: dict[str, Any], obs: np.ndarray, actions: np.ndarray | None,
    seconds: float,
) -> dict[str, Any]:
    """One decision at a time."""
    import onnxruntime as ort

    check_observations(obs, session.get_inputs()[0].shape[1:], export["obs_dtype"])
    feeds = [{"obs": one[None]} for one in obs.astype(export["obs_dtype"], copy=False)]

    outputs = np.concatenate([session.run(None, feed)[0] for feed in feeds])
    taken = to_actions(outputs, export["head"])
    if actions is not None and (actions.dtype.kind not in "buif" or actions.size != taken.size):
        sys.exit(f"error: actions {list(actions.shape)} are not those of {len(obs)} observations")
    before = describe_heat()
    times: list[float] = []
    for call in range(WARM_UP_CALLS):
        session.run(None, feeds[call % len(feeds)])
    # Not after the loop: its times would count as memory of the policy.
    resident = {"resident_bytes": status_bytes("VmRSS:"),
                "peak_resident_bytes": status_bytes("VmHWM:")}
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        feed = feeds[len(times) % len(feeds)]
        started = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - started)
    return {
        "version": ort.__version__,
        "observations": len(obs),
        "actions": taken.tolist(),
        "actions_as_recorded": None if actions is None
        else int(same_actions(taken, actions, export["action_tolerance"]).sum()),
        **percentiles(np.array(times)),
        **resident,
        "heat_before": before,
        "heat_after": describe_heat(),
    }


def run_c(export: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The same of test_policy, which holds the recorded observations itself.

    Ends with one line if it was built from another export, or does not run here.
    """
    before = describe_heat()
    first = ask_c(FIRST_CALLS)
    # The tolerance follows from the recorded outputs; C prints nine digits of it.
    if first["tolerance"] != float(f"{export['tolerance']:.9g}"):
        sys.exit("error: test_policy was built from another export: build it again with make")
    p50_ns = max(float(np.median(first["latency_ns"])), 1.0)  # a coarse clock may tell 0
    measured = ask_c(int(np.clip(1e9 * seconds / p50_ns, FIRST_CALLS, MOST_CALLS)))
    times = np.array(measured.pop("latency_ns")) / 1e9
    heat = {"heat_before": before, "heat_after": describe_heat()}
    return {**measured, **percentiles(times), **heat}


def ask_c(calls: int) -> dict[str, Any]:
    """What test_policy reports of as many timed calls."""
    try:
        command = [str(HERE / "test_policy"), str(calls)]
        return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    except (OSError, ValueError):  # built for another machine; ended without a report
        sys.exit("error: test_policy does not run here: build it again with make")


def to_actions(outputs: np.ndarray, head: dict[str, Any]) -> np.ndarray:
    """Actions of outputs [n, size]: numbers [n], or [n, size] within the head's bounds."""
    if head["kind"] == "argmax":
        return outputs.argmax(axis=1)
    low, high = np.array(head["low"], np.float32), np.array(head["high"], np.float32)
    if head["kind"] == "clip":
        return np.clip(outputs, low, high)
    return low + 0.5 * (np.tanh(outputs) + 1.0) * (high - low)


def same_actions(taken: np.ndarray, recorded: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether each action is the recorded one; continuous ones within `tolerance`."""
    difference = np.abs(taken - recorded.reshape(taken.shape))
    return difference.reshape(len(taken), -1).max(axis=1) <= tolerance


def percentiles(times: np.ndarray) -> dict[str, Any]:
    """Seconds of one decision."""
    found = {f"latency_p{p}_s": float(np.percentile(times, p)) for p in PERCENTILES}
    return {**found, "latency_min_s": float(times.min()), "calls": len(times)}


def describe_board() -> dict[str, Any]:
    """What the machine says that it is; None where it does not say."""
    model = read("/proc/device-tree/model")
    cpu = [line.partition(":")[2].strip() for line in (read("/proc/cpuinfo") or "").splitlines()
           if line.startswith(("model name", "CPU part", "Hardware"))]
    memory = [line.split()[1] for line in (read("/proc/meminfo") or "").splitlines()
              if line.startswith("MemTotal:")]
    return {
        "model": model.rstrip("\0\n") if model else None,
        "cpu": sorted(set(cpu)),
        "cores": os.cpu_count(),
        "memory_bytes": 1024 * int(memory[0]) if memory else None,
        "machine": platform.machine(),
        "os": platform.platform(),
        "python": platform.python_version(),
    }


def describe_heat() -> dict[str, Any]:
    """Temperature, clock and, on a Raspberry Pi, whether it throttles (0x0: it never did)."""
    zone = read("/sys/class/thermal/thermal_zone0/temp")
    clock = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    throttled = vcgencmd("get_throttled")
    measured = vcgencmd("measure_temp")
    temperature = float(measured.rstrip("'C")) if measured else None
    return {
        "temperature_c": int(zone) / 1000 if temperature is None and zone else temperature,
        "clock_hz": 1000 * int(clock) if clock else None,
        "throttled": throttled,
    }


def vcgencmd(question: str) -> str | None:
    """The firmware's answer, without what stands before "="; None without it."""
    try:
        done = subprocess.run(["vcgencmd", question], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    name, equals, value = done.stdout.strip().partition("=")
    return value if equals else None


def status_bytes(name: str) -> int | None:
    """A line of /proc/self/status, in bytes."""
    for line in (read("/proc/self/status") or "").splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    return None


def read(path: str) -> str | None:
    """A file's text, None if it cannot be read."""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None


if __name__ == "__main__":
    main()
