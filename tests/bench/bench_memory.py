"""Memory of ActorQ's processes over a long run, by the tenth of the run.

    python tests/bench/bench_memory.py      (two minutes)
    python tests/bench/bench_memory.py 60   (the target's hour; kept: make bench BENCH=memory:60)
"""

from __future__ import annotations

import multiprocessing
import sys
import time

import numpy as np
import psutil

from quarl_nb.actorq import ActorQ, Result
from quarl_nb.actorq.algorithms import make_algorithm
from quarl_nb.processor import bf16_is_faster

TARGET_MB = 700
FOREVER = 10**9


def main(minutes: float) -> None:
    """Print each process's largest resident size in every tenth, policy 3 x 2048, int8."""
    learner = make_algorithm("dqn", "CartPole-v1", autocast="bf16" if bf16_is_faster() else "",
                             batch_size=32, buffer_size=50_000, learning_starts=1000)  # fmt: skip
    seen: list[tuple[float, str, float]] = []
    started = time.monotonic()

    def watch(result: Result) -> None:
        elapsed = time.monotonic() - started
        for child in [*multiprocessing.active_children(), multiprocessing.current_process()]:
            size = psutil.Process(child.pid).memory_info().rss
            seen.append((elapsed, child.name, size / 1e6))
        if elapsed > 60 * minutes:
            raise KeyboardInterrupt

    actorq = ActorQ(learner, "CartPole-v1", n_actors=1, pull_period=100, publish_period=1,
                    samples_per_insert=1)  # fmt: skip
    result = actorq.learn(FOREVER, progress_bar=False, on_message=watch)
    print(f"{result.steps:,} steps, {result.updates:,} updates, {result.pulls:,} pulls of "
          f"{result.payload_bytes / 1e6:.1f} MB in {result.wall_s / 60:.1f} minutes")
    ends = np.linspace(0, result.wall_s, 11)[1:]
    for name in dict.fromkeys(name for _, name, _ in seen):
        times, sizes = np.array([(at, mb) for at, who, mb in seen if who == name]).T
        tenth = np.minimum(np.searchsorted(ends, times), 9)
        largest = [sizes[tenth == i].max(initial=0) for i in range(10)]
        print(f"{name:12} MB by tenth: " + " ".join(f"{size:.0f}" for size in largest))
        if name.startswith("actor"):
            print(f"{name:12} {max(largest):.0f} MB at most (target {TARGET_MB})")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2)
