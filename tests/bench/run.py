"""Run the benchmarks one after another, and keep what they print under what ran it and where.

    python tests/bench/run.py                     (all)
    python tests/bench/run.py train inference     (these)
    python tests/bench/run.py memory:60 train_reward:--steps=1000000,--seeds=3
                                                  (with arguments of their own)

Kept in data/bench, one file a run, which grows as they end: Ctrl-C leaves those that did.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from quarl_nb.paths import project_root
from quarl_nb.provenance import collect

BENCHES = Path(__file__).parent


def run(benches: list[list[str]], kept: Path) -> list[str]:
    """Run each to its end, its output shown and kept; those that failed, as they were called.

    Args:
        benches: each a file in `BENCHES` and its arguments.
    """
    provenance = collect()
    stamp = provenance["start_time"][: len("2026-11-21T05:00:00")].replace(":", "")
    cpu = re.sub(r"[^\w.]+", "-", provenance["cpu"] or "processor").strip("-")
    kept.mkdir(parents=True, exist_ok=True)
    failed = []
    with (kept / f"{stamp}_{cpu}.txt").open("w", encoding="utf-8") as file:
        print(json.dumps(provenance, indent=1), file=file)
        for script, *arguments in benches:
            started, called = time.monotonic(), shlex.join([script, *arguments])
            print(f"\n{called}", file=file, flush=True)
            command = [sys.executable, "-u", str(BENCHES / script), *arguments]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
                for line in bench.stdout or ():
                    print(line, end="", flush=True)
                    print(line, end="", file=file, flush=True)
            print(f"{time.monotonic() - started:.0f} s, exit status {bench.returncode}", file=file)
            if bench.returncode:
                failed.append(called)
    return failed


def main() -> int:
    there = {path.stem.removeprefix("bench_"): path for path in sorted(BENCHES.glob("bench_*.py"))}
    benches = [bench.partition(":") for bench in sys.argv[1:] or there]
    if unknown := [name for name, _, _ in benches if name not in there]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(there)}")
        return 2
    commands = [[there[name].name, *(arguments.split(",") if arguments else ())]
                for name, _, arguments in benches]  # fmt: skip
    failed = run(commands, project_root() / "data" / "bench")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
