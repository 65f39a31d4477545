"""What README and docs point to is there, and what they show runs."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from quarl_nb.runner import run_study
from quarl_nb.store import ResultStore

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
         ROOT / "figures" / "full" / "table4.md"]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_files(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_study_of_ones_own_that_is_shown_is_measured(tmp_path, monkeypatch):
    """As a module, since the processes that measure import it."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (tmp_path / "pruning.py").write_text(source, encoding="utf-8")
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    store = ResultStore("my_records")
    few = {"pruned": [0.5, 0.99], "episodes": 2}
    done = run_study(import_module("pruning").PruningStudy(), "quick", store, parameters=few)
    assert (done.done, done.failed) == (2, 0)
    returns = store.frame("pruning").set_index("pruned")["returns"]
    assert np.mean(returns[0.5]) > np.mean(returns[0.99])


def test_there_are_links_to_check():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(re.findall(r"\]\(", text)) > 20
