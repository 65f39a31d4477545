"""Imports go one way: quant <- rl <- studies; store, study <- runner; records <- report."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "quarl_nb"
# What each layer may import of ours; a layer is a sub-package or a module of the top level.
BASE = {"errors", "locks", "paths", "processor", "writing", ""}
CORE = BASE | {"study", "record", "store", "provenance", "energy", "workers"}
ALLOWED = {
    "errors": set(),
    "locks": {"errors"},
    "paths": {"errors"},
    "writing": {"errors"},
    "processor": set(),
    "quant": BASE | {"quant"},
    "rl": BASE | {"quant", "rl", "provenance", "processes"},
    "inference": BASE | {"quant", "rl", "inference"},
    "actorq": BASE | {"quant", "inference", "rl", "processes", "actorq"},
    "study": BASE,
    "record": {"errors", "study"},
    "shown_records": {"study"},
    "store": BASE | {"study", "record", "shown_records"},
    "provenance": BASE,
    "power": BASE,
    "energy": BASE | {"power"},
    "processes": BASE,
    "workers": CORE | {"processes"},
    "runner": CORE,
    "edge": BASE | {"quant", "inference", "rl", "store", "study", "provenance", "edge"},
    "studies": CORE
    | {"quant", "inference", "rl", "actorq", "edge", "processes", "studies", "runner"},
    "report": BASE | {"report", "record", "store", "study", "provenance"},
    "render": BASE,
}


def layer_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def our_imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "quarl_nb":
                names = [f"quarl_nb.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {layer_of(n) for n in names if n == "quarl_nb" or n.startswith("quarl_nb.")}
    return found - {"__version__"}


@pytest.mark.parametrize("layer", ALLOWED)
def test_layer_imports_only_what_lies_below_it(layer):
    folder = PACKAGE / layer
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{layer}.py"]
    assert files
    for path in files:
        assert our_imports(path) <= ALLOWED[layer], path


def test_every_layer_is_known():
    found = [*PACKAGE.glob("*.py"), *(path.parent for path in PACKAGE.glob("*/__init__.py"))]
    layers = {path.stem for path in found}
    on_top = {"__init__", "__main__", "cli", "testing", "notebook", "quantize"}
    assert layers - on_top == set(ALLOWED)


def test_the_report_and_the_command_line_work_without_torch():
    code = """
import sys

class NoTorch:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not to be imported")

sys.meta_path.insert(0, NoTorch())
import quarl_nb.cli, quarl_nb.runner
import quarl_nb.report.claims, quarl_nb.report.site
"""
    subprocess.run([sys.executable, "-c", code], check=True)
