"""Run the benchmarks one after another, and keep what they print under what ran it and where.

    python tests/bench/run.py                   (all)
    python tests/bench/run.py train inference   (these)

Kept in data/bench, one file a run, which grows as they end: Ctrl-C leaves those that did.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

from quarl_nb.paths import project_root
from quarl_nb.provenance import collect

BENCHES = Path(__file__).parent


def run(scripts: list[Path], kept: Path) -> list[str]:
    """Run each to its end, its output shown and kept; the names of those that failed."""
    provenance = collect()
    stamp = provenance["start_time"].replace(":", "").removesuffix("+0000")
    cpu = re.sub(r"[^\w.]+", "-", provenance["cpu"] or "processor").strip("-")
    kept.mkdir(parents=True, exist_ok=True)
    failed = []
    with (kept / f"{stamp}_{cpu}.txt").open("w", encoding="utf-8") as file:
        print(json.dumps(provenance, indent=1), file=file)
        for script in scripts:
            started = time.monotonic()
            print(f"\n{script.name}", file=file, flush=True)
            command = [sys.executable, "-u", str(script)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
                for line in bench.stdout or ():
                    print(line, end="", flush=True)
                    print(line, end="", file=file, flush=True)
            print(f"{time.monotonic() - started:.0f} s, exit status {bench.returncode}", file=file)
            if bench.returncode:
                failed.append(script.name)
    return failed


def main() -> int:
    there = {path.stem.removeprefix("bench_"): path for path in sorted(BENCHES.glob("bench_*.py"))}
    names = sys.argv[1:] or [*there]
    if unknown := [name for name in names if name not in there]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(there)}")
        return 2
    failed = run([there[name] for name in names], project_root() / "data" / "bench")
    if failed:
        print(f"failed: {' '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
