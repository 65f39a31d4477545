from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from quarl_nb import render
from quarl_nb.errors import QuarlError
from quarl_nb.render import NotebookError, find_notebooks, render_all, render_notebook

PARAMETERS = "profile = 'quick'  # why = not\nbits: int = 8\nnames = [\n    'a',\n]"


def write_notebook(path: Path, *cells: str, tags=("parameters",)) -> Path:
    notebook = new_notebook(cells=[new_markdown_cell("# A title"), new_code_cell(PARAMETERS)])
    notebook.cells[1].metadata["tags"] = list(tags)
    notebook.cells += [new_code_cell(cell) for cell in cells]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"c{number}"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def output_text(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    return "".join(o.get("text", "") for c in cells for o in c.get("outputs", []))


def test_parameters_arrive_and_the_folder_is_the_notebooks_own(tmp_path):
    (tmp_path / "nb").mkdir()
    (tmp_path / "nb" / "beside.txt").write_text("found")
    source = write_notebook(
        tmp_path / "nb" / "a{b}.ipynb",
        "print(repr(profile), bits, names, open('beside.txt').read())",
    )
    before, here = source.read_bytes(), Path.cwd()
    given = {"profile": 'quote " and\nline', "bits": None, "names": ["x", 1.5, True]}
    out = render_notebook(source, tmp_path / "out" / "a.ipynb", given)
    assert output_text(out) == "'quote \" and\\nline' None ['x', 1.5, True] found\n"
    assert source.read_bytes() == before
    assert Path.cwd() == here


def test_rendering_again_gives_the_same_bytes(tmp_path):
    source = write_notebook(
        tmp_path / "a.ipynb",
        "import os, sys, warnings\nprint(object(), os.getcwd(), sys.executable)\n"
        "for i in range(20): print(i, flush=True)",
        "warnings.warn('careful')",
    )
    out = tmp_path / "out.ipynb"
    first = render_notebook(source, out, {"bits": 4}).read_bytes()
    assert render_notebook(source, out, {"bits": 4}).read_bytes() == first
    text = first.decode()
    assert "papermill" not in text and "duration" not in text and "iopub" not in text
    assert sys.prefix not in text and "ipykernel_" not in text
    assert "UserWarning: careful" in text
    nbformat.validate(nbformat.read(out, as_version=4))


def test_scrub_replaces_what_belongs_to_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(render, "project_root", lambda: tmp_path)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    text = f"{tmp_path}/a.py {sys.prefix}/lib/x.py /home/ada/y.py <A at 0x7f12ab34cd56> 0x1F"
    assert render.scrub(text) == "./a.py <env>/lib/x.py ~/y.py <A at 0x...> 0x1F"
    assert render.scrub("/tmp/ipykernel_12/345.py:1: Warning") == "<cell>:1: Warning"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (("1 / 0", "print('after')"), r"failed in \[3\]: ZeroDivisionError: division by zero"),
        (("import os; os._exit(0)",), "failed: DeadKernelError: Kernel died"),
        (("import sys; sys.exit(0)", "print('after')"), "stopped before \"print"),
    ],
)
def test_a_failure_raises_and_keeps_the_old_output(tmp_path, cells, message):
    source = write_notebook(tmp_path / "a.ipynb", *cells)
    out = tmp_path / "out" / "a.ipynb"
    out.parent.mkdir()
    out.write_text("old")
    with pytest.raises(NotebookError, match=message) as error:
        render_notebook(source, out, {"bits": 3})
    assert error.value.exit_code == 1
    assert "\n" not in str(error.value)
    assert out.read_text() == "old"
    trace = out.with_suffix(".error.txt")
    assert trace.read_text().startswith(str(error.value))

    write_notebook(source, "print('good')")
    render_notebook(source, out)
    assert output_text(out) == "good\n"
    assert not trace.exists()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"profil": "full"}, "unknown parameter of notebook 'a.ipynb' 'profil'; did you mean"),
        ({"why": 1}, "allowed: profile, bits, names"),
        ({"bits": (1, 2)}, r"'bits' must be a JSON value, not \(1, 2\)"),
        ({"bits": {"a": {1}}}, "must be a JSON value"),
        ({"bits": "four"}, "^parameter 'bits' must be int, not 'four'$"),
        ({"bits": True}, "^parameter 'bits' must be int, not True$"),
    ],
)
def test_wrong_parameters_are_refused_before_running(tmp_path, parameters, message):
    source = write_notebook(tmp_path / "a.ipynb", "open('ran', 'w')")
    with pytest.raises(QuarlError, match=message):
        render_notebook(source, tmp_path / "out.ipynb", parameters)
    assert list(tmp_path.iterdir()) == [source]


def test_defaults_of_several_notebooks(tmp_path, monkeypatch):
    computed = "policies = records = None\nbits: list\nseed = other = 2\nfolder = open"
    sources = [write_notebook(tmp_path / "a.ipynb")]
    monkeypatch.setitem(globals(), "PARAMETERS", computed)
    sources.append(write_notebook(tmp_path / "b.ipynb"))
    assert render.default_parameters(sources) == {
        "profile": "quick", "bits": None, "names": ["a"], "policies": [""], "records": "",
        "seed": 2, "other": 2, "folder": None,
    }  # fmt: skip


def test_a_notebook_without_a_parameters_cell_is_refused(tmp_path):
    source = write_notebook(tmp_path / "a.ipynb", tags=())
    with pytest.raises(QuarlError, match="has 0 cells tagged 'parameters', must be 1"):
        render_notebook(source, tmp_path / "out.ipynb", {"bits": 3})


def test_a_parameters_cell_that_is_not_plain_python_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PARAMETERS", "x = 1\n%matplotlib inline")
    source = write_notebook(tmp_path / "n.ipynb")
    message = r"^'.*n\.ipynb': the cell tagged 'parameters' is not plain Python in line 2: invalid"
    with pytest.raises(QuarlError, match=message) as caught:
        render_notebook(source, tmp_path / "out.ipynb", {"x": 2})
    assert "\n" not in str(caught.value)


def test_a_default_that_python_refuses_is_no_literal(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PARAMETERS", "x = {[]: 1}")
    source = write_notebook(tmp_path / "n.ipynb")
    with pytest.raises(NotebookError, match=r"failed in \[1\]: TypeError"):
        render_notebook(source, tmp_path / "out.ipynb")


def test_what_is_no_notebook_is_refused(tmp_path):
    (tmp_path / "a.ipynb").write_text("{")
    with pytest.raises(QuarlError, match="a.ipynb' is not a notebook"):
        render_notebook(tmp_path / "a.ipynb", tmp_path / "out.ipynb")
    with pytest.raises(QuarlError, match="cannot read notebook '.*b.ipynb': No such file"):
        render_notebook(tmp_path / "b.ipynb", tmp_path / "out.ipynb")


def test_all_are_rendered_though_one_fails(tmp_path):
    for name, cell in (("01_a", "print('a')"), ("02_b", "1 / 0"), ("03_c", "print('c')")):
        write_notebook(tmp_path / "nb" / f"{name}.ipynb", cell)
    failures = render_all(find_notebooks(tmp_path / "nb"), tmp_path / "out")
    assert [str(failure) for failure in failures] == [
        f"'{tmp_path}/nb/02_b.ipynb' failed in [2]: ZeroDivisionError: division by zero"
    ]
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["01_a.ipynb", "02_b.error.txt", "03_c.ipynb"]


def test_all_are_checked_before_the_first_runs(tmp_path):
    write_notebook(tmp_path / "nb" / "a.ipynb", "open('ran', 'w')")
    write_notebook(tmp_path / "nb" / "b.ipynb", tags=())
    with pytest.raises(QuarlError, match="b.ipynb' has 0 cells"):
        render_all(find_notebooks(tmp_path / "nb"), tmp_path / "out")
    assert not (tmp_path / "nb" / "ran").exists()


def test_an_output_that_cannot_be_written_is_told_before_anything_runs(tmp_path):
    source = write_notebook(tmp_path / "nb" / "a.ipynb", "open('ran', 'w')")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(QuarlError, match="cannot write to '.*/file': File exists"):
        render_all([source], tmp_path / "file")
    (tmp_path / "out" / "a.ipynb").mkdir(parents=True)
    with pytest.raises(QuarlError, match="cannot write to '.*/out/a.ipynb': a folder"):
        render_all([source], tmp_path / "out")
    assert not (tmp_path / "nb" / "ran").exists()


def test_notebooks_are_not_rendered_over_themselves(tmp_path, monkeypatch):
    source = write_notebook(tmp_path / "nb" / "a.ipynb", "open('ran', 'w')")
    before = source.read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QuarlError, match="^'nb/../nb' holds the notebooks themselves"):
        render_all([source], "nb/../nb")
    assert source.read_bytes() == before and not (tmp_path / "nb" / "ran").exists()


def test_notebooks_are_found_by_name(tmp_path):
    for name in ("b", "a", "c"):
        write_notebook(tmp_path / f"{name}.ipynb")
    assert [path.stem for path in find_notebooks(tmp_path)] == ["a", "b", "c"]
    assert [p.stem for p in find_notebooks(tmp_path, ["c", "some/a.ipynb"])] == ["c", "a"]
    with pytest.raises(QuarlError, match="unknown notebook 'd'; allowed: a, b, c"):
        find_notebooks(tmp_path, ["d"])
    with pytest.raises(QuarlError, match="no notebooks in"):
        find_notebooks(tmp_path / "empty")
