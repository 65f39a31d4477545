from __future__ import annotations

import os

import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.paths import entries, project_root, read_object
from quarl_nb.store import ResultStore


def test_the_root_is_found_from_a_folder_below(tmp_path, monkeypatch):
    (tmp_path / "data" / "policies").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert project_root() == tmp_path


@pytest.mark.parametrize("mark", ["policies", "paper"])
def test_the_nearest_root_is_found(tmp_path, monkeypatch, mark):
    (tmp_path / "data" / "policies").mkdir(parents=True)
    inner = tmp_path / "inner"
    (inner / "data" / mark).mkdir(parents=True)
    monkeypatch.chdir(inner / "data")
    assert project_root() == inner


def test_a_folder_of_records_is_no_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = project_root()
    ResultStore("data/records").prepare("ptq", "smoke")
    assert (tmp_path / "data" / "records").is_dir() and project_root() == before


def test_entries_are_sorted_and_match(tmp_path):
    for name in ("b.json", "a.json", "a.npz", ".a.json.x.tmp"):
        (tmp_path / name).touch()
    assert [path.name for path in entries(tmp_path, "*.json")] == ["a.json", "b.json"]
    assert entries(tmp_path / "none", "*") == []


def test_a_folder_that_may_not_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    def forbidden(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", forbidden)
    with pytest.raises(QuarlError, match=f"^cannot list '{tmp_path}': Permission denied$"):
        entries(tmp_path, "*.json")


def test_an_object_is_read_and_nothing_else(tmp_path):
    file = tmp_path / "file.json"
    assert read_object(file) == {}
    file.write_text('{"a": 1}')
    assert read_object(file) == {"a": 1}
    for text, why in (("[1]", "no object"), ("{", "Expecting")):
        file.write_text(text)
        with pytest.raises(QuarlError, match=f"^'{file}' is damaged: {why}"):
            read_object(file)
