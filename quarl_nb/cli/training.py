"""Training the policies of the suite in several processes, and telling which are missing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from quarl_nb.errors import QuarlError, check_choice
from quarl_nb.processes import (
    CONTEXT,
    STOP_S,
    death,
    end_child,
    holding_interrupts,
    lock_bars_by_threads,
)
from quarl_nb.processor import usable_cores
from quarl_nb.writing import tell


def train_all(names: Sequence[str], hours: float | None, workers: int) -> int:
    """Train policies, `workers` at a time, until all are done or the time is over.

    Prints the folder of each that was finished.

    Returns:
        1 if any failed, else 0.
    """
    deadline = time.time() + 3600 * hours if hours is not None else None
    failed = _train_together(names, deadline, workers)
    if deadline is not None and time.time() >= deadline:
        _tell_unfinished(names)
    return failed


def _tell_unfinished(names: Sequence[str]) -> None:
    from quarl_nb.rl.zoo import is_settled

    for name in names:
        if not is_settled(name):
            tell(f"{name}: {_state(name)} as the time was over; the same command goes on",
                 sys.stderr)  # fmt: skip


def _train_together(names: Sequence[str], deadline: float | None, workers: int) -> int:
    if not names:
        return 0
    import torch

    # How fast a training is on more than two was not measured. OMP_NUM_THREADS may ask for fewer.
    cores = min(max(usable_cores() // workers, 1), torch.get_num_threads(), 2)
    if workers == 1:
        return _train_each(names, deadline, cores)
    # Each worker ends at its None, so that none ever waits for a name.
    queue = CONTEXT.SimpleQueue()
    for name in [*names, *[None] * workers]:
        queue.put(name)
    crew = [CONTEXT.Process(target=_work, args=(queue, deadline, cores)) for _ in range(workers)]
    try:
        with holding_interrupts():
            for process in crew:
                process.start()
        for process in crew:
            process.join()
    finally:
        with holding_interrupts():  # a second Ctrl-C would leave some running
            for process in crew:
                if process.is_alive():
                    process.terminate()
            for process in crew:
                end_child(process, STOP_S)
    for process in crew:
        if process.exitcode not in (0, 1):
            tell(f"error: a training {death(process.exitcode)}; the same command goes on from "
                 "its last checkpoint", sys.stderr)  # fmt: skip
    return 1 if any(process.exitcode for process in crew) else 0


def _work(queue: Any, deadline: float | None, cores: int) -> None:
    lock_bars_by_threads()
    sys.exit(_train_each(iter(queue.get, None), deadline, cores, show_bar=False))


def _train_each(
    names: Iterable[str], deadline: float | None, cores: int, show_bar: bool = True
) -> int:
    from quarl_nb.rl.zoo import train_policies

    failed = 0
    for _, result in train_policies(names, deadline, show_bar, cores):
        if isinstance(result, QuarlError):
            failed = 1
            tell(f"error: {result}", sys.stderr)
        else:
            tell(str(result), sys.stdout)
    return failed


def list_policies(names: Sequence[str], missing: bool) -> None:
    """Print the named policies, else every one with the count of Table 4, with their states.

    The state of one that cannot be read is what is wrong with it.

    Args:
        missing: only those not trained yet.

    Raises:
        QuarlError: no such policy.
    """
    from quarl_nb.report.paper import published_ptq
    from quarl_nb.rl.recipes import recipes

    known = recipes()
    named = dict.fromkeys(check_choice("policy", name, known) for name in names)
    states = {name: _state(name) for name in named or known}
    table = published_ptq()
    table_4 = {f"{row.algo}-{row.env_id}" for row in table.itertuples()}
    for name, state in states.items():
        if not missing or not state.startswith("trained"):
            print(f"{name:<36}{'Table 4' if name in table_4 else '':<9}{state}")
    if not named:
        trained = sum(states.get(name, "").startswith("trained") for name in table_4)
        print(f"Table 4: {trained} of {len(table_4)} policies trained")


def _state(name: str) -> str:
    from quarl_nb.rl.zoo import state_of

    try:
        return state_of(name)
    except QuarlError as error:
        return str(error)
