"""The project's files agree with each other."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from quarl_nb.cli import build_parser
from quarl_nb.runner import plan
from quarl_nb.studies import get_study

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
        origin = json.loads(path.read_text())["spec"]["provenance"]
        trained[path.parent.name] = {k: v for k, v in origin.items() if not isinstance(v, dict)}
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


def test_what_is_cited_is_this_version_and_the_papers_of_the_sources():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert [str(cited[name]) for name in ("title", "version", "license")] == [
        PROJECT[name] for name in ("name", "version", "license")
    ]
    sources = (ROOT / "README.md").read_text().partition("## Sources")[2]
    sources = " ".join(sources.split())
    assert {reference["title"] in sources for reference in cited["references"]} == {True}


# Imported, and brought by a requirement of which they are a part.
BROUGHT = {"cycler": "matplotlib", "ipython": "jupyterlab", "nbformat": "papermill",
           "traitlets": "jupyterlab"}  # fmt: skip
# Required and imported by nothing here: `make lab`, and pandas' HTML tables.
NOT_IMPORTED = {"jupyterlab", "jinja2"}


def imported() -> dict[str, set[str]]:
    """What the package imports that is not Python's own, and the distributions that have it."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "quarl_nb").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    modules = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"quarl_nb"}
    known = packages_distributions()
    return {name: {*map(canonicalize_name, known.get(name, [name]))} for name in modules}


def test_what_the_package_imports_is_required_and_the_other_way_round():
    extras = PROJECT["optional-dependencies"]
    optional = [text for name, texts in extras.items() if name not in ("dev", "all")
                for text in texts]  # fmt: skip
    required = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    allowed = required | {canonicalize_name(Requirement(text).name) for text in optional}
    allowed |= {name for name, by in BROUGHT.items() if by in allowed}
    found = imported()
    assert [name for name, homes in found.items() if not homes & allowed] == []
    assert required - set().union(*found.values()) == NOT_IMPORTED


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


def test_the_readme_gives_the_commands_of_make_test_for_conda():
    dry = ["make", "--no-print-directory", "-n", "-o", ".venv/.installed", "test", "WORKERS=2"]
    shown = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = [line.removeprefix(".venv/bin/") for line in shown.splitlines()]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert len(commands) == 3 and all(command in readme for command in commands)


def test_all_names_every_extra():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    assert Requirement(everything).extras == set(extras) - {"all"}


def benches_that(root: Path, **sources: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A project of these benchmarks: what runs those of some names."""
    benches = root / "tests" / "bench"
    benches.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "bench" / "run.py", benches)
    for name, source in sources.items():
        (benches / f"bench_{name}.py").write_text(source)
    (root / "data" / "paper").mkdir(parents=True)  # marks a project
    command = [sys.executable, str(benches / "run.py")]
    return lambda *names: subprocess.run(
        [*command, *names], cwd=root, capture_output=True, text=True)


def test_every_benchmark_runs_its_lines_are_kept_and_one_that_fails_is_told(tmp_path):
    kept = tmp_path / "data" / "bench"
    run_benches = benches_that(tmp_path, a="print('half')\nraise SystemExit(3)",
                               b="print('a ratio of 2x')")  # fmt: skip
    dry = ["make", "--no-print-directory", "-n", "-o", ".venv/.installed", "bench",
           "BENCH=train inference"]  # fmt: skip
    shown = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.endswith(".venv/bin/python tests/bench/run.py train inference\n")
    for names, status, lines in (((), 1, 2), (("b",), 0, 1), (("c",), 2, 0)):
        done = run_benches(*names)
        assert done.returncode == status, done.stderr
        assert ("half" in done.stdout) + ("a ratio of 2x" in done.stdout) == lines
        assert ("failed: bench_a.py" in done.stdout) == (status == 1)
        files = [*kept.glob("*")]
        assert len(files) == (status != 2)
        for file in files:
            provenance, _, printed = file.read_text().partition("\n}\n")
            assert '"git_commit"' in provenance and "a ratio of 2x\n" in printed
            assert re.findall(r"^\d+ s, exit status (\d)$", printed, re.M) == (
                ["3", "0"] if status == 1 else ["0"])  # fmt: skip
            file.unlink()


def test_arguments_of_a_benchmark_reach_it_and_are_kept(tmp_path):
    script = "import sys\nprint(sys.argv[1:])\nsys.exit(len(sys.argv))"
    done = benches_that(tmp_path, a=script)("a:60", "a:--steps=1000000,--seeds=3")
    (kept,) = (tmp_path / "data" / "bench").iterdir()
    lines = kept.read_text().partition("\n}\n")[2].splitlines()
    assert [line for line in lines if line.startswith(("bench", "["))] == [
        "bench_a.py 60", "['60']",
        "bench_a.py --steps=1000000 --seeds=3", "['--steps=1000000', '--seeds=3']",
    ]  # fmt: skip
    assert done.stdout.endswith("failed: bench_a.py 60, bench_a.py --steps=1000000 --seeds=3\n")


def snakemakes_expand(pattern: str, **values: object) -> list[str]:
    lists = [[v] if isinstance(v, str | int) else v for v in values.values()]
    return [pattern.format(**dict(zip(values, found, strict=True)))
            for found in itertools.product(*lists)]  # fmt: skip


@pytest.mark.parametrize("shards", [1, 3])
def test_the_snakefiles_jobs_are_shards_that_together_are_the_matrix(shards):
    text = (ROOT / "Snakefile").read_text()
    (flags,) = re.findall(r"input:\s+(expand\(.*\))\n\n", text, re.S)
    (output,) = re.findall(r'output: touch\("(.*)"\)\n', text)
    (shell,) = re.findall(r'shell:\n((?:\s+".*"\n)+)', text)
    names = {"expand": snakemakes_expand, "STUDY": "inference", "PROFILE": "quick"}
    job = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^-/]+)", output))
    params = SimpleNamespace(options="--set networks=3x64 --records 'my records'")
    keys = []
    for flag in eval(flags, names | {"SHARDS": shards}):
        ignored = ["git", "check-ignore", "-q", flag]
        assert subprocess.run(ignored, cwd=ROOT).returncode in (0, 128)  # 128: no checkout
        wildcards = SimpleNamespace(**job.fullmatch(flag).groupdict())
        command = ast.literal_eval(f"({shell})").format(
            wildcards=wildcards, threads=2, params=params)
        name, *arguments = shlex.split(command)
        options = build_parser().parse_args(arguments)
        assert (name, options.workers, options.set) == ("quarl-nb", 2, ["networks=3x64"])
        assert str(options.records) == "my records"
        found = plan(get_study(options.study), options.profile, shard=options.shard)
        keys += [cell.key for cell in found]
    whole = [cell.key for cell in plan(get_study("inference"), "quick")]
    assert len(whole) > 3 and sorted(keys) == sorted(whole)


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
