"""Locks: one holder at a time, and none where a file system has no locks."""

import errno
import fcntl

import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.locks import entered_first, held_alone, in_turn, locked


def test_the_first_in_a_folder_is_told_so_and_the_next_is_not(tmp_path):
    with entered_first(tmp_path) as first, entered_first(tmp_path) as second:
        assert (first, second) == (True, False)
    with entered_first(tmp_path) as first:
        assert first


def test_a_lock_file_keeps_others_out_and_goes_with_its_holder(tmp_path):
    lock = tmp_path / "lock"
    with held_alone(lock, "held"):
        with pytest.raises(QuarlError, match="^held$"), held_alone(lock, "held"):
            pass
        assert lock.exists()
    assert not lock.exists()
    lock.touch()  # as a kill leaves it
    with held_alone(lock, "held"):
        pass


def test_a_lock_file_that_its_holder_removes_meanwhile_holds_nobody(tmp_path, monkeypatch):
    def late(file, how, flock=fcntl.flock):
        (tmp_path / "lock").unlink()  # between its opening here and its locking
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(QuarlError, match="^held$"), held_alone(tmp_path / "lock", "held"):
        pass


def test_without_locks_nobody_waits(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    lock = tmp_path / "lock"
    with locked(tmp_path), locked(tmp_path), held_alone(lock, ""), held_alone(lock, ""):
        pass
    with in_turn(lock, pytest.fail), in_turn(lock, pytest.fail), entered_first(tmp_path) as first:
        assert first
