from __future__ import annotations

import os

import pytest

from quarl_nb.errors import QuarlError
from quarl_nb.paths import entries, project_root
from quarl_nb.store import ResultStore


def test_the_root_is_found_from_a_folder_below(tmp_path, monkeypatch):
    (tmp_path / "data" / "policies").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert project_root() == tmp_path


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
