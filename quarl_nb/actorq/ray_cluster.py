"""The Ray cluster that a run uses: the user's, or one of its own."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import ray

from quarl_nb.errors import QuarlError
from quarl_nb.processes import child_environment, holding_interrupts

CONNECT_S = 30.0  # within which a cluster must answer


@contextmanager
def cluster(n_actors: int) -> Iterator[None]:
    """A cluster with a CPU for each actor: the one that Ray is connected to already, the one at
    ``RAY_ADDRESS``, or one on this machine that ends with the run.

    Raises:
        QuarlError: it cannot be reached, or has too few CPUs.
    """
    if ray.is_initialized():
        _check_size(n_actors)
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    local = address == "local"
    options: dict[str, Any] = dict(num_cpus=n_actors, include_dashboard=False) if local else {}
    if not local:
        _check_reachable(address)
    before = psutil.Process().children()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        try:
            with child_environment():
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except BaseException as error:  # Ctrl-C too
            if not ray.is_initialized():
                with holding_interrupts():
                    _kill_half_started(before)
            if not isinstance(error, Exception):
                raise
            # Ray raises just `Exception` where a busy machine starts it slowly.
            raise QuarlError(f"Ray at {address}: {error}".partition("\n")[0]) from error
        _check_size(n_actors)
        yield
    finally:
        with holding_interrupts():  # a second Ctrl-C would leave it half shut down
            ray.shutdown()  # of a cluster that was there before, only the connection


def _kill_half_started(before: list[psutil.Process]) -> None:
    """What a start that failed leaves, `ray.shutdown` does not know of."""
    for process in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if process not in before and "ray" in " ".join(process.cmdline()):
                process.kill()
                process.wait()


def _check_size(n_actors: int) -> None:
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < n_actors:
        raise QuarlError(f"{n_actors} actors need {n_actors} CPUs; the Ray cluster has {cpus}")


def _check_reachable(address: str) -> None:
    """Ask from a process of its own: Ray's client would retry for minutes."""
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdigit() and "/" not in host):
        raise QuarlError(f"RAY_ADDRESS is {address!r}; allowed: host:port, auto, local")
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        if address != "auto":
            socket.create_connection((host, int(port)), CONNECT_S).close()
        subprocess.run(command, capture_output=True, check=True, timeout=CONNECT_S)
    except (OSError, OverflowError) as error:
        raise QuarlError(f"no Ray cluster at RAY_ADDRESS {address}: {error}") from error
    except subprocess.CalledProcessError as error:
        told = error.stderr.decode(errors="replace")
        if "RAY_AUTH_MODE" in told:  # one that `ray start` made where Ray has a token
            raise QuarlError(f"the Ray cluster at RAY_ADDRESS {address} asks for a token: set "
                             "RAY_AUTH_MODE=token") from error  # fmt: skip
        reason = f" ({told.strip().splitlines()[-1]})" if told.strip() else ""
        raise QuarlError(f"what is at RAY_ADDRESS {address} is no Ray cluster{reason}") from error
    except subprocess.TimeoutExpired as error:
        raise QuarlError(f"what is at RAY_ADDRESS {address} is no Ray cluster, or does not answer "
                         f"within {CONNECT_S:.0f} s") from error  # fmt: skip
