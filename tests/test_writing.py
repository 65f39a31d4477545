from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.writing import (
    folder_to_fill,
    make_file_writable,
    replacing,
    tell,
    write_atomically,
    write_together,
)


@pytest.fixture
def full_after(monkeypatch):
    """A disk that takes so many files more."""

    def make(files: int) -> None:
        left = iter(range(files))

        def fsync(_):
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", fsync)

    return make


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


def test_what_takes_its_place_is_on_the_disk_whole(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    write_atomically(tmp_path / "a", b"four")
    write_together({tmp_path / "b": b"seven!!"}, [])
    assert sizes == [4, 7]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(QuarlError, match="cannot write .*x.json.: File exists"):
        write_atomically(tmp_path / "file" / "x.json", b"")


def test_files_written_together_come_all_or_not_at_all(tmp_path, full_after):
    old = {tmp_path / name: name.encode() for name in ("a", "b", "c")}
    write_together(old, [])
    full_after(1)
    with pytest.raises(QuarlError, match=f"^cannot write '{tmp_path}/b': No space left on device$"):
        write_together({tmp_path / "a": b"new", tmp_path / "b": b"new"}, [tmp_path / "c"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == old
    full_after(2)
    write_together({tmp_path / "a": b"new", tmp_path / "b": b"new"}, [tmp_path / "c"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict(a=b"new", b=b"new")


def test_of_a_link_the_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "link", tmp_path / "there" / "file"
    link.symlink_to(file)
    for content in (b"one", b"two"):  # also while it points to nothing
        make_file_writable(link)
        write_atomically(link, content)
        assert link.is_symlink() and file.read_bytes() == content
    for stale in ([], [link]):
        write_together({link: b"three"}, stale)
        assert link.is_symlink() and [*file.parent.iterdir()] == [file]
        assert file.read_bytes() == b"three"


@pytest.mark.skipif(not Path("/proc").exists(), reason="links to what is open are in /proc")
def test_a_link_may_lie_where_nothing_can_be_written(tmp_path):
    with (tmp_path / "file").open("w") as file:
        make_file_writable(Path(f"/proc/self/fd/{file.fileno()}"))


def test_what_cannot_be_written_is_told_before(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, why in [("pipe", "no regular file"), ("x" * 240, "File name too long")]:
        with pytest.raises(QuarlError, match=f"cannot write to '{tmp_path}/{name}': {why}"):
            make_file_writable(tmp_path / name)
    with pytest.raises(QuarlError, match="a folder"):
        make_file_writable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_what_nobody_reads_is_let_go():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:  # which flushes as it closes
        for _ in range(2):
            tell("a line", unread)


def test_a_folder_in_which_nothing_was_saved_is_not_left(tmp_path):
    for name in ("filled", "empty"):
        with folder_to_fill(tmp_path / name):
            assert (tmp_path / name).is_dir()
            if name == "filled":
                (tmp_path / name / "file").touch()
    with folder_to_fill(tmp_path / "filled"), folder_to_fill(None):
        (tmp_path / "filled" / "file").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["filled"]  # it was there before
