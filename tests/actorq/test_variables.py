"""Variables through shared memory: never torn, never backwards, whoever is killed."""

import os
import signal
import time

import numpy as np
import pytest

from quarl_nb.actorq.variables import SharedVariables, Variables
from quarl_nb.errors import QuarlError
from quarl_nb.processes import CONTEXT
from quarl_nb.testing import numbered_payload, publish_versions

SIZE = 1_000_000


def test_a_thousand_versions_under_random_delays_are_never_torn_never_backwards():
    shared = SharedVariables(SIZE)
    writer = CONTEXT.Process(target=publish_versions, args=(shared, 1000, SIZE, 0))
    writer.start()
    rng = np.random.default_rng(1)
    seen = []
    while not seen or seen[-1] < 999:
        variables = shared.pull()
        if variables is None:
            assert writer.exitcode is None
            continue
        assert variables.payload == numbered_payload(variables.version, SIZE)
        assert not seen or variables.version >= seen[-1]
        seen.append(variables.version)
        time.sleep(rng.exponential(0.001) * (rng.random() < 0.5))
    writer.join()
    assert len(set(seen)) > 20


def test_a_writer_killed_at_any_moment_leaves_a_whole_payload_and_room_for_the_next():
    shared = SharedVariables(SIZE)
    writer = CONTEXT.Process(target=publish_versions, args=(shared, 10**9, SIZE, 0))
    writer.start()
    while shared.version < 3:
        assert writer.exitcode is None
        time.sleep(0.01)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    left = shared.pull()
    assert left.payload == numbered_payload(left.version, SIZE)
    shared.publish(Variables(left.version + 1, numbered_payload(left.version + 1, SIZE)))
    assert shared.pull().version == left.version + 1


def test_a_writer_that_ends_amid_the_bytes_leaves_the_payload_before_and_room_for_the_next(
    monkeypatch,
):
    class Killed(np.ndarray):
        def __setitem__(self, where, values):
            super().__setitem__(slice(0, SIZE // 2), values[: SIZE // 2])
            raise KeyboardInterrupt

    shared = SharedVariables(SIZE)
    shared.publish(Variables(1, numbered_payload(1, SIZE)))
    slot_of = shared._slot
    monkeypatch.setattr(shared, "_slot", lambda slot: slot_of(slot).view(Killed))
    with pytest.raises(KeyboardInterrupt):
        shared.publish(Variables(2, numbered_payload(2, SIZE)))
    monkeypatch.undo()
    assert shared.pull() == Variables(1, numbered_payload(1, SIZE))
    shared.publish(Variables(3, numbered_payload(3, SIZE)))
    assert shared.pull() == Variables(3, numbered_payload(3, SIZE))


def test_a_reader_that_the_writer_overtakes_amid_the_bytes_reads_again(monkeypatch):
    shared = SharedVariables(SIZE)
    shared.publish(Variables(1, numbered_payload(1, SIZE)))
    slot_of = shared._slot

    def overtaken(slot):
        """The bytes of a slot after the writer has gone once around the ring."""
        monkeypatch.undo()
        for version in (2, 3, 4):
            shared.publish(Variables(version, numbered_payload(version, SIZE)))
        return slot_of(slot)

    monkeypatch.setattr(shared, "_slot", overtaken)
    assert shared.pull() == Variables(4, numbered_payload(4, SIZE))


def test_nothing_is_there_before_the_first():
    shared = SharedVariables(10)
    assert shared.pull() is None and shared.version == -1


def test_what_does_not_fit_or_is_older_is_refused():
    shared = SharedVariables(10)
    shared.publish(Variables(5, b"12345"))
    with pytest.raises(QuarlError, match="exceed"):
        shared.publish(Variables(6, bytes(11)))
    with pytest.raises(QuarlError, match="older"):
        shared.publish(Variables(4, b""))
    assert shared.pull() == Variables(5, b"12345")


def test_a_version_may_be_published_again_as_by_a_quantizer_that_was_started_again():
    shared = SharedVariables(10)
    shared.publish(Variables(5, b"12345"))
    shared.publish(Variables(5, b"whole slot"))
    assert shared.pull() == Variables(5, b"whole slot") and shared.version == 5


def test_a_slot_is_marked_whole_when_its_bytes_and_their_size_are_there():
    shared, seen = SharedVariables(10), []
    for version in (1, 2, 3):
        shared.publish(Variables(version, b"old"))
    stamps = shared._stamps

    class Watched:
        """The stamps, and what a reader finds whole in the first slot after each is written."""

        def __getitem__(self, at):
            return stamps[at]

        def __setitem__(self, at, value):
            stamps[at] = value
            begun, ended, size = stamps[0:3]
            if begun == ended:
                seen.append((begun, shared._slot(0)[:size].tobytes()))

    shared._stamps = Watched()
    shared.publish(Variables(4, b"newer"))  # the ring comes to that slot again
    assert set(seen) == {(4, b"newer")}


def test_what_is_written_but_not_yet_the_newest_is_not_pulled():
    """A reader that took its slot before two publications meets the third, in that very slot."""
    shared = SharedVariables(10)
    for version in (1, 2, 3, 4):
        shared.publish(Variables(version, b"payload"))
    stamps = shared._stamps
    newest = stamps[-1]

    class Overtaken(list):
        """The stamps as such a reader sees them: at first the slot that is written next."""

        reads = 0

        def __getitem__(self, at):
            if at == -1:
                self.reads += 1
                return (newest + 1) % 3 if self.reads == 1 else newest
            return stamps[at]

    begun, ended = (3 * ((newest + 1) % 3) + i for i in (0, 1))
    stamps[begun] = stamps[ended] = 5  # whole, and the next line of `publish` has not run
    shared._stamps = Overtaken()
    assert shared.pull().version == 4
