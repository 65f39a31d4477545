from __future__ import annotations

import errno
import os

import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.paths import project_root, replacing, write_atomically


def test_the_root_is_found_from_a_folder_below(tmp_path, monkeypatch):
    (tmp_path / "data" / "records").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert project_root() == tmp_path


def test_writing_replaces_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b.txt"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_two_writers_of_one_process_id_are_not_in_each_others_way(tmp_path, monkeypatch):
    def late(_):
        monkeypatch.setattr(os, "fsync", lambda _: None)
        write_atomically(path, b"other")

    path = tmp_path / "record.json"
    monkeypatch.setattr(os, "fsync", late)
    write_atomically(path, b"own")
    assert path.read_bytes() == b"own"


def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    write_atomically(path, b"old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(QuarlError, match=r"cannot write '.*record.json': No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_of_a_block_that_raises_nothing_is_left(tmp_path):
    path = tmp_path / "run.pt"
    write_atomically(path, b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(QuarlError, match="cannot write .*x.json.: File exists"):
        write_atomically(tmp_path / "file" / "x.json", b"")
