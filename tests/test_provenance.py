from __future__ import annotations

import json
import socket
import subprocess
import sys
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from quarl_nb import provenance


def git(folder, *arguments):
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *settings, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A repository with code/a.py committed."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_clean_checkout(checkout):
    commit = git(checkout, "rev-parse", "HEAD")
    assert provenance.git_state(checkout / "code") == (commit, False)


def test_a_checkout_of_another_user(checkout, monkeypatch):
    commit = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch, for its tests
    assert provenance.git_state(checkout / "code") == (commit, False)


def test_only_the_code_makes_it_dirty(checkout):
    (checkout / "record.json").write_text("{}")
    assert provenance.git_state(checkout / "code")[1] is False
    (checkout / "code" / "b.py").write_text("")
    assert provenance.git_state(checkout / "code")[1] is True
    (checkout / "code" / "b.py").unlink()
    (checkout / "code" / "a.py").write_text("a = 2\n")
    assert provenance.git_state(checkout / "code")[1] is True


def test_no_commit_outside_git_or_where_the_code_is_not_tracked(tmp_path, checkout):
    (checkout / "site-packages").mkdir()
    (checkout / "site-packages" / "a.py").write_text("")
    assert provenance.git_state(checkout / "site-packages") == (None, None)
    assert provenance.git_state(tmp_path / "nowhere") == (None, None)


def test_no_commit_without_git_installed(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance.git_state(checkout / "code") == (None, None)
    assert provenance.gpu_name() is None


def test_gpu_name_is_the_first_line_of_nvidia_smi(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'NVIDIA H200'\necho 'NVIDIA L4'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.gpu_name() == "NVIDIA H200"


def test_collect_tells_versions_machine_and_time():
    found = provenance.collect()
    assert found["packages"]["numpy"] == version("numpy")
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cores"] >= 1
    start = datetime.fromisoformat(found["start_time"])
    assert start.utcoffset() == timedelta(0)


def test_collect_tells_the_state_of_the_code_that_runs(monkeypatch):
    def state(code):
        assert code == Path(provenance.__file__).parent
        return "abc", True

    monkeypatch.setattr(provenance, "git_state", state)
    found = provenance.collect()
    assert (found["git_commit"], found["dirty"]) == ("abc", True)


def test_collect_names_no_host_and_no_path():
    found = provenance.collect()
    text = json.dumps(found)
    for secret in (str(Path.home()), str(Path.cwd()), sys.prefix):
        assert secret == "/" or secret not in text
    assert socket.gethostname() not in [str(value) for value in found.values()]


def test_versions_are_read_without_importing_anything():
    code = ("import sys; from quarl_nb.provenance import collect; "
            "assert collect()['packages']['torch']; assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
