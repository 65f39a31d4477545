"""A member of the crew, an actor or the quantizer, as the learner handles it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

HELLO = "hello"  # the first message of every member: it is up


@dataclass(frozen=True)
class Failure:
    """The last message of a member that met an error which a restart would not mend."""

    reason: str  # one line


class Member(Protocol):
    """The learner's handle on an actor or the quantizer, which run elsewhere.

    Attributes:
        name: for errors ("actor 2").
        restarts: how often it was started before.
    """

    name: str
    restarts: int

    def await_hello(self) -> None:
        """Block until it is up.

        Raises:
            QuarlError: it failed, or died on the way.
        """

    def receive(self) -> Any:
        """Its next message; None if it died before the message was whole.

        Raises:
            QuarlError: the message says that it failed for good.
        """

    def send(self, message: Any) -> None:
        """Tell it something; a member that has just died is found out elsewhere."""

    def close(self) -> None:
        """Let it end."""

    def interrupt(self) -> None:
        """After `close`: have it end amid its message, which may take an environment minutes."""

    def end(self) -> None:
        """Wait until it ended; kill it where it does not."""

    def death(self) -> str:
        """How it died, as a phrase."""
