"""The project's files agree with each other."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): pin
    for name, pin in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
}


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    return [r for r in map(Requirement, texts) if canonicalize_name(r.name) != "quarl-nb"]


@pytest.mark.parametrize("study", ["ptq", "weights", "navigation"])
def test_records_of_a_policy_are_of_the_one_that_is_here(study):
    """A policy that was trained anew leaves records of the one before under its name."""
    trained = {}
    for path in (ROOT / "data" / "policies").glob("*/policy.json"):
        trained[path.parent.name] = json.loads(path.read_text())["spec"]["provenance"]
    records = [json.loads(path.read_text())
               for path in (ROOT / "data" / "records" / study / "full").glob("*.json")]  # fmt: skip
    of_policies = [r for r in records if r["cell"].get("policy") in trained and r["extra"]]
    assert of_policies
    stale = {r["cell"]["policy"] for r in of_policies
             if r["extra"] != trained[r["cell"]["policy"]]}  # fmt: skip
    assert not stale


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_dependency_is_pinned_to_a_version_it_allows(requirement):
    pin = PINS[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin), f"{requirement} does not allow {pin}"


@pytest.mark.parametrize("name", ["torch", "stable-baselines3", "gymnasium", "ale-py", "mujoco"])
def test_what_is_installed_is_what_is_pinned(name):
    assert version(name).split("+")[0] == PINS[canonicalize_name(name)]


def test_versions_known_to_work_together():
    known = {"torch": "2.13.0", "stable-baselines3": "2.9.2", "gymnasium": "1.4.0",
             "ale-py": "0.12.1", "mujoco": "3.17.0", "dm-control": "1.0.50"}  # fmt: skip
    assert {name: PINS[name] for name in known} == known


def test_environment_yml_installs_the_project_with_its_constraints():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, nested = environment["dependencies"]
    assert pip == "pip"
    assert nested == {"pip": ["-c constraints.txt", "-e .[all]"]}
    assert Requirement(python.replace("=", "==")).name == "python"
    assert PROJECT["requires-python"] == ">=" + python.split("=")[1]


def test_all_names_every_extra():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    assert Requirement(everything).extras == set(extras) - {"all"}


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def test_the_repository_stays_light():
    sizes = {path: path.stat().st_size for path in tracked_files()}
    assert max(sizes.values(), default=0) <= 5_000_000
    assert sum(size for path, size in sizes.items() if ROOT / "data" in path.parents) <= 80_000_000


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.name)
def test_notebook_sources_hold_no_outputs_and_have_parameters(path):
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert any("parameters" in cell["metadata"].get("tags", []) for cell in code)
    for cell in code:
        source = "".join(cell["source"])
        assert len(source.splitlines()) <= 14, source
        assert not re.search(r"^\s*(def|class) ", source, re.M), "notebooks define no functions"
