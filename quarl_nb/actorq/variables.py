"""Variables: versioned policy parameters on their way from the learner to the actors.

The word is Acme's (Hoffman et al. 2020, arXiv 2006.00979).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from quarl_nb.errors import QuarlError
from quarl_nb.processes import CONTEXT

SLOTS = 3
_EMPTY = -1


@dataclass(frozen=True)
class Variables:
    """One published policy.

    Attributes:
        version: learner updates made when it was published; never decreases.
        payload: what an actor opens.
    """

    version: int
    payload: bytes


class SharedVariables:
    """The newest variables in shared memory: one writer, any number of readers, no locks.

    A ring of slots, each stamped with its version before and after its bytes: a reader that was
    overtaken by the writer sees the stamps differ and reads again, so that no killed process can
    block another or leave it a torn payload. The memory is anonymous and goes with its last user.
    Stamps rely on stores being seen in the order in which they are made, as x86 has it; elsewhere
    a torn payload would be refused by its own checksum (`inference.container`).

    Passed to a child process when that is started, like every multiprocessing primitive.

    Args:
        capacity: bytes of the largest payload.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._bytes = CONTEXT.RawArray(ctypes.c_uint8, SLOTS * capacity)
        # Per slot: version when writing began, version when it ended, size; then the newest slot.
        self._stamps = CONTEXT.RawArray(ctypes.c_int64, [_EMPTY] * (3 * SLOTS + 1))

    @property
    def version(self) -> int:
        """Version of the newest variables; -1 before the first."""
        slot = self._stamps[-1]
        return _EMPTY if slot == _EMPTY else self._stamps[3 * slot + 1]

    def publish(self, variables: Variables) -> None:
        """Make `variables` the newest.

        Raises:
            QuarlError: larger than the capacity, or older than what is there.
        """
        size = len(variables.payload)
        if size > self.capacity:
            raise QuarlError(f"variables of {size:,} bytes exceed the {self.capacity:,} set aside")
        if variables.version < self.version:
            raise QuarlError(f"variables {variables.version} are older than {self.version}")
        slot = (self._stamps[-1] + 1) % SLOTS
        begun, ended, length = range(3 * slot, 3 * slot + 3)
        self._stamps[begun] = variables.version
        self._stamps[ended] = _EMPTY
        self._slot(slot)[:size] = np.frombuffer(variables.payload, np.uint8)
        self._stamps[length] = size
        self._stamps[ended] = variables.version
        self._stamps[-1] = slot

    def pull(self) -> Variables | None:
        """A copy of the newest variables; None before the first."""
        while (slot := self._stamps[-1]) != _EMPTY:
            begun, ended, length = range(3 * slot, 3 * slot + 3)
            version = self._stamps[ended]
            payload = self._slot(slot)[: self._stamps[length]].tobytes()
            whole = version != _EMPTY and self._stamps[begun] == version == self._stamps[ended]
            # A slot that was just written anew is not the newest yet: the next pull would go back.
            if whole and self._stamps[-1] == slot:
                return Variables(version, payload)
        return None

    def _slot(self, slot: int) -> np.ndarray:
        """The bytes of a slot, uint8 ``[capacity]``, shared."""
        start = slot * self.capacity
        return np.ctypeslib.as_array(self._bytes)[start : start + self.capacity]
