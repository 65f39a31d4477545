"""A child process that died is noticed, whoever holds its pipe open."""

from __future__ import annotations

import errno
import gc
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from quarl_nb.actorq.children import Child, quantize
from quarl_nb.actorq.quantizer import make_variables
from quarl_nb.actorq.settings import ActorTask, Settings
from quarl_nb.actorq.variables import SharedVariables, Variables
from quarl_nb.actorq.wire import encode
from quarl_nb.errors import QuarlError
from quarl_nb.processes import CONTEXT

pytestmark = pytest.mark.timeout(60)  # what is tested here did not end at all


class ByValue:
    """A function that goes to a child, which cannot import this file."""

    def __init__(self, function: Callable[[Connection], None]) -> None:
        self.function = function

    def __reduce__(self) -> Any:
        return cloudpickle.loads, (cloudpickle.dumps(self.function),)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Path]:
    """A file for the process id of a child's child, which is ended after the test."""
    path = tmp_path / "pid"
    yield path
    os.kill(int(path.read_text()), signal.SIGKILL)


def dying(sleeper: Path, last_words: bytes, program: bool = False) -> ByValue:
    """The body of a child that leaves a process, forked or started as a `program` that inherits
    what it may, writes `last_words` and is killed."""

    def body(connection: Connection) -> None:
        if program:
            pid = subprocess.Popen(["sleep", "1000000"], close_fds=False).pid
        elif not (pid := os.fork()):
            time.sleep(1e6)
        sleeper.write_text(str(pid))
        os.write(connection.fileno(), last_words)
        os.kill(os.getpid(), signal.SIGKILL)

    return ByValue(body)


@pytest.mark.parametrize("program", [False, True])
@pytest.mark.parametrize("last_words", [b"", struct.pack("!i", 1000) + b"half a message"])
def test_who_dies_before_its_first_message_is_whole_is_told(
    sleeper: Path, monkeypatch: pytest.MonkeyPatch, last_words: bytes, program: bool
) -> None:
    monkeypatch.setattr("quarl_nb.actorq.children.STOP_S", 1e6)  # which it is not waited for
    child = Child("actor 0", dying(sleeper, last_words, program), ())
    with pytest.raises(QuarlError, match="^actor 0 was ended by SIGKILL .* while it started$"):
        child.await_hello()


def test_what_a_dead_child_had_said_is_heard(sleeper: Path) -> None:
    hello = b"\x80\x04\x8c\x05hello."
    child = Child("actor 0", dying(sleeper, struct.pack("!i", len(hello)) + hello), ())
    while child.process.is_alive():  # `join` would wait for the sleeper
        time.sleep(0.01)
    assert child.receive() == "hello" and child.receive() is None
    child.end()


def test_a_child_that_the_system_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(CONTEXT.Process, "start", refused)
    open_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(QuarlError) as told:
        Child("actor 2", ByValue(lambda connection: None), ())
    assert str(told.value) == "actor 2 cannot be started: Resource temporarily unavailable"
    del told
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= open_before


def test_what_is_closed_may_end_its_message_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarl_nb.actorq.children.LEAVE_S", 30.0)
    finished = tmp_path / "finished"

    def body(connection: Connection) -> None:
        connection.send("hello")
        try:
            connection.recv()
        finally:  # of the pipe that is closed
            time.sleep(0.3)
            finished.touch()

    child = Child("actor 0", ByValue(body), ())
    child.await_hello()
    child.close()
    child.interrupt()
    child.end()
    assert finished.exists()


def test_the_quantizer_publishes_the_newest_weights_as_of_their_version(
    counter: Any, mlp_policy: Any
) -> None:
    first, newer = mlp_policy(2, (4,), 3, seed=0), mlp_policy(2, (4,), 3, seed=1)
    task = ActorTask(0, counter, first.spec, Settings(n_actors=1))
    weights, payloads = SharedVariables(100_000), SharedVariables(100_000)
    weights.publish(Variables(3, encode(first, "fp32")))
    told: list[Any] = []

    def recv() -> None:
        if len(told) == 2:
            raise EOFError
        weights.publish(Variables(8, encode(newer, "fp32")))

    connection: Any = SimpleNamespace(send=told.append, recv=recv)
    with pytest.raises(EOFError):
        quantize(connection, cloudpickle.dumps(task), weights, payloads)
    expected = make_variables(newer, 8, task)
    assert payloads.pull() == expected
    assert told[0] == "hello" and told[1][0] == len(expected.payload) and told[1][1] >= 0
