"""How soon a child process has what an actor imports: forked by the server, against spawned.

The first child of the server waits for its imports as a spawned one does; the others need not.
"""

from __future__ import annotations

import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import psutil

from quarl_nb.processes import CONTEXT, end_child

CHILDREN = 5  # by turns


def main() -> None:
    """Print seconds until a child is ready, of its CPU, and the memory that it shares with none."""
    first, *_ = start(CONTEXT)
    kinds = {"forked": CONTEXT, "spawned": get_context("spawn")}
    found: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in kinds}
    for _ in range(CHILDREN):
        for kind, context in kinds.items():
            found[kind].append(start(context))
    medians = {kind: [statistics.median(column) for column in zip(*runs, strict=True)]
               for kind, runs in found.items()}  # fmt: skip
    for kind, (ready_s, cpu_s, own_bytes) in medians.items():
        print(f"{kind:8s} ready after {ready_s:.2f} s, {cpu_s:.2f} s of CPU, "
              f"{own_bytes / 2**20:.0f} MiB of its own")  # fmt: skip
    print(f"spawned / forked {medians['spawned'][0] / medians['forked'][0]:.1f}x; "
          f"the server's first child {first:.2f} s")  # fmt: skip


def start(context: Any) -> tuple[float, float, int]:
    """Seconds until a child is ready; its CPU-seconds and bytes then."""
    connection, remote = context.Pipe()
    process = context.Process(target=import_all, args=(remote,))
    started = time.perf_counter()
    process.start()
    cpu_s, own_bytes = connection.recv()
    ready_s = time.perf_counter() - started
    end_child(process, 60)
    return ready_s, cpu_s, own_bytes


def import_all(connection: Connection) -> None:
    """Body of a child: import what runs an actor, and say so."""
    import onnxruntime  # noqa: F401

    import quarl_nb.actorq.children  # noqa: F401

    connection.send((time.process_time(), psutil.Process().memory_full_info().uss))


if __name__ == "__main__":
    main()
