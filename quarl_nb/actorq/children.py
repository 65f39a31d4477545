"""The child processes of the process engine: what runs in them, and the parent's handle on one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch

from quarl_nb.actorq.actor import Actor
from quarl_nb.actorq.member import HELLO, Failure
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.result import CpuClock
from quarl_nb.actorq.settings import ActorTask, Orders
from quarl_nb.actorq.variables import SharedVariables, Variables
from quarl_nb.actorq.wire import decode
from quarl_nb.errors import QuarlError, one_line
from quarl_nb.processes import (
    CONTEXT,
    POLL_S,
    STOP_S,
    death,
    end_child,
    keep_freed_memory,
    start_hint,
)

LEAVE_S = 1.0  # how long what is closed may go on with its message before it is interrupted


class Child:
    """The parent's handle on a child process and its pipe: a crew's `Member`.

    Args:
        name: for errors ("actor 2").
        body: runs in the child with its connection and `arguments`.
        restarts: how often this child was started before.
    """

    def __init__(
        self, name: str, body: Callable[..., None], arguments: tuple[Any, ...], restarts: int = 0
    ) -> None:
        self.name, self.restarts = name, restarts
        try:
            self.connection, remote = CONTEXT.Pipe()
            with remote:
                self.process = CONTEXT.Process(
                    target=_run, args=(body, remote, *arguments), name=name
                )
                self.process.start()
        except OSError as error:  # too many open files, or processes
            raise QuarlError(f"{name} cannot be started: {error.strerror}") from error

    def await_hello(self) -> None:
        while not self.connection.poll(POLL_S) and self.process.is_alive():
            pass
        if self.receive() is None:
            self.end()
            raise QuarlError(f"{self.name} {self.death()} while it started"
                             f"{start_hint(self.process, 'ActorQ')}")

    def receive(self) -> Any:
        if not self.process.is_alive() and not self.connection.poll():
            return None  # a child of its own holds the pipe open: it would never be at its end
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            return None
        if isinstance(message, Failure):
            raise QuarlError(f"{self.name}: {message.reason}")
        return message

    def send(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError:
            pass

    def close(self) -> None:
        self.connection.close()  # its next read or write of the pipe fails
        self.closed_at = time.monotonic()

    def interrupt(self) -> None:
        if self.process.is_alive():
            self.process.join(max(0.0, self.closed_at + LEAVE_S - time.monotonic()))
            self.process.terminate()

    def end(self) -> None:
        if not self.connection.closed:
            self.close()
        end_child(self.process, self.closed_at + STOP_S - time.monotonic())

    def death(self) -> str:
        return death(self.process.exitcode)


def act(connection: Connection, pickled: bytes, payloads: SharedVariables) -> None:
    """Body of an actor: pull when due, collect, send; each of the learner's orders is leave for one
    message, but the first, which is to begin."""
    task: ActorTask = cloudpickle.loads(pickled)  # from our own parent, never from a file
    actor = Actor(task)
    try:
        # The first opening loads the runtime: the clock starts when all are ready to run.
        actor.warm_up(_newest(payloads))
        connection.send(HELLO)
        orders: Orders = connection.recv()
        leave, clock = 0, CpuClock()
        while True:
            if actor.pull_due:
                with actor.timed("pull"):
                    variables = _newest(payloads)
                actor.open(variables)
            transitions = actor.collect(actor.message_steps, orders)
            with actor.timed("wait"):
                while not leave or connection.poll():  # of several orders the newest hold
                    orders = connection.recv()
                    leave += 1
            send(connection, actor.report(transitions, clock.lap()), actor.seconds)
            leave -= 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # closing is not interrupted
        actor.close()


def send(connection: Connection, message: Any, seconds: dict[str, float]) -> None:
    """Send a message; while a large one blocks, because the learner has yet to read, one waits."""
    started, cpu_started = time.perf_counter(), time.thread_time()
    connection.send(message)
    busy_s = time.thread_time() - cpu_started
    seconds["send"] += busy_s
    seconds["wait"] += max(0.0, time.perf_counter() - started - busy_s)


def quantize(
    connection: Connection, pickled: bytes, weights: SharedVariables, payloads: SharedVariables
) -> None:
    """Body of the quantizer: woken by a message, it publishes the newest weights quantized."""
    task: ActorTask = cloudpickle.loads(pickled)

    def newest_quantized() -> Variables:
        newest = _newest(weights)
        return make_variables(decode(newest.payload, task.spec), newest.version, task)

    newest_quantized()  # loads what is needed to build a payload
    connection.send(HELLO)
    clock = CpuClock()
    while True:
        connection.recv()
        variables = newest_quantized()
        payloads.publish(variables)
        connection.send((len(variables.payload), clock.lap()))


def _newest(shared: SharedVariables) -> Variables:
    variables = shared.pull()
    assert variables is not None  # the first is published before any child is started
    return variables


def _run(body: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    """Run a body until the parent closes the pipe, or interrupts it."""
    # SIGTERM ends it as Ctrl-C would, which a child has none of: environments are closed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Else a process that the environment starts would hold the pipe: if this one dies amid a
    # message, the learner would wait for the rest of it.
    os.register_at_fork(after_in_child=connection.close)
    os.set_inheritable(connection.fileno(), False)
    torch.set_num_threads(1)
    keep_freed_memory()
    exit_code = 0
    try:
        body(connection, *arguments)
    except (EOFError, ConnectionError):
        pass
    except KeyboardInterrupt:
        exit_code = 128 + signal.SIGTERM
    except Exception as error:
        _send_last(connection, Failure(one_line(error)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # taking torch's modules down would take a second


def _send_last(connection: Connection, failure: Failure) -> None:
    try:
        connection.send(failure)
    except OSError:
        pass  # nobody is there to hear it
