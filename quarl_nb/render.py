"""Strict Papermill: wrong parameters are refused, failures raise, outputs do not churn."""

from __future__ import annotations

import ast
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from quarl_nb.errors import QuarlError, check_choice, one_line, same_type
from quarl_nb.paths import project_root
from quarl_nb.writing import make_file_writable, write_atomically

logger = logging.getLogger(__name__)

PARAMETERS_TAG = "parameters"
LISTS = ("policies", "tasks")  # parameters of which None stands for all
# What differs from run to run without meaning anything: kernel's cell files, object addresses.
_CELL_FILE = re.compile(r"\S*/ipykernel_\d+/\d+\.py")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


class NotebookError(QuarlError):
    """A notebook failed while it ran."""

    exit_code = 1


def render_notebook(
    path: str | Path, out: str | Path, parameters: Mapping[str, Any] | None = None
) -> Path:
    """Execute a notebook in its own folder and write the result to `out`, only if it succeeded.

    The output holds no times, paths or addresses: rendering again changes nothing but results.
    A failure leaves its traceback in `<out>.error.txt` (removed by the next success).

    Args:
        parameters: JSON values, for names assigned in the cell tagged `parameters`.

    Raises:
        QuarlError: not a notebook, no such parameter, or `out` cannot be written.
        NotebookError: a cell raised, the kernel died, or the notebook stopped before its end.
    """
    path, out = Path(path), Path(out)
    notebook = read_notebook(path)
    check_parameters(path, notebook, parameters or {})
    make_file_writable(out)  # or it would be told after minutes
    trace = out.with_suffix(".error.txt")
    try:
        done = _execute(notebook, path, dict(parameters or {}))
    except NotebookError as error:
        write_atomically(trace, f"{error}\n\n{error.__cause__ or ''}\n".encode())
        raise
    write_atomically(out, (nbformat.writes(clean(done)) + "\n").encode())
    trace.unlink(missing_ok=True)
    return out


def find_notebooks(folder: str | Path, names: Sequence[str] = ()) -> list[Path]:
    """The notebooks of a folder by name; those whose stem is in `names` if there are any.

    Raises:
        QuarlError: the folder has none, or not one of that name.
    """
    found = {path.stem: path for path in sorted(Path(folder).glob("*.ipynb"))}
    if not found:
        raise QuarlError(f"no notebooks in '{folder}'")
    wanted = [check_choice("notebook", Path(name).stem, found) for name in names]
    return [found[name] for name in wanted] or list(found.values())


def render_all(
    notebooks: Sequence[Path], out: str | Path, parameters: Mapping[str, Any] | None = None
) -> list[NotebookError]:
    """Render each notebook into the folder `out`; a failing one does not stop the others.

    Every notebook is checked before the first one runs.

    Returns:
        the failures, in order; empty if all went well.

    Raises:
        QuarlError: as `render_notebook`, before anything ran.
    """
    for path in notebooks:
        check_parameters(path, read_notebook(path), parameters or {})
        if path.parent.resolve() == Path(out).resolve():
            raise QuarlError(f"'{out}' holds the notebooks themselves: name another folder for "
                             "what is rendered")  # fmt: skip
    failures = []
    for path in notebooks:
        try:
            render_notebook(path, Path(out) / path.name, parameters)
            logger.info("rendered %s", path.name)
        except NotebookError as error:
            logger.warning("failed: %s", error)
            failures.append(error)
    return failures


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook in today's format; QuarlError if it cannot be read."""
    try:
        return nbformat.read(path, as_version=4)
    except OSError as error:
        raise QuarlError(f"cannot read notebook '{path}': {error.strerror}") from error
    except (ValueError, nbformat.reader.NotJSONError) as error:
        raise QuarlError(f"'{path}' is not a notebook: {str(error)[:80]!r}") from error


def default_parameters(notebooks: Sequence[Path]) -> dict[str, Any]:
    """The parameters of the notebooks with their defaults, in place of None what they are like:

    `records` a text, and each of `LISTS` a list of texts.
    """
    found: dict[str, Any] = {}
    for path in notebooks:
        found |= _parameters_of(path, read_notebook(path))
    like = {"records": "", **dict.fromkeys(LISTS, [""])}
    return {name: like.get(name, value) for name, value in found.items()}


def check_parameters(
    path: Path, notebook: nbformat.NotebookNode, parameters: Mapping[str, Any]
) -> None:
    """Refuse what Papermill only warns of, or silently ignores.

    Raises:
        QuarlError: there is not exactly one `parameters` cell, it is not plain Python or does not
            assign a parameter, or a value is of another type than its default, or than literals
            that Papermill can write.
    """
    known = _parameters_of(path, notebook)
    for name, value in parameters.items():
        check_choice(f"parameter of notebook {path.name!r}", name, known)
        if not _is_literal(value):  # Papermill would pass a tuple, say, as the string of it
            raise QuarlError(f"parameter {name!r} must be a JSON value, not {value!r}")
        default = [] if isinstance(known[name], list) else known[name]  # of anything
        if value is not None:
            same_type(f"parameter {name!r}", value, default)


def assigned_values(source: str) -> dict[str, Any]:
    """Names assigned at the top level of a cell, with their values; None for what is no literal.

    Read from the syntax tree: Papermill's own inspection skips lines with two equal signs.

    Raises:
        SyntaxError: the cell is not plain Python.
    """
    values: dict[str, Any] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = _literal_in(node.value)
            values |= {target.id: value for target in targets if isinstance(target, ast.Name)}
    return values


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Strip, in place, what would make two renderings of the same results differ."""
    notebook.metadata.pop("papermill", None)
    notebook.metadata.get("language_info", {}).pop("version", None)
    for number, cell in enumerate(notebook.cells):
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
        elif "id" not in cell:
            cell.id = f"cell-{number}"
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = scrub(output.text)
            data = output.get("data", {})
            for kind in [kind for kind in data if kind.startswith("text/")]:
                data[kind] = scrub(data[kind])
    return notebook


def scrub(text: str) -> str:
    """`text` without this machine's folders, kernel cell files and object addresses."""
    for folder, name in ((sys.prefix, "<env>"), (project_root(), "."), (Path.home(), "~")):
        if str(folder) != "/":
            text = text.replace(f"{folder}/", f"{name}/")
    return _ADDRESS.sub("0x...", _CELL_FILE.sub("<cell>", text))


def _parameters_of(path: Path, notebook: nbformat.NotebookNode) -> dict[str, Any]:
    tagged = [c for c in notebook.cells if PARAMETERS_TAG in c.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise QuarlError(f"'{path}' has {len(tagged)} cells tagged {PARAMETERS_TAG!r}, must be 1")
    try:
        return assigned_values(tagged[0].source)
    except SyntaxError as error:  # a magic command, say
        raise QuarlError(
            f"'{path}': the cell tagged {PARAMETERS_TAG!r} is not plain Python in line "
            f"{error.lineno}: {error.msg}"
        ) from error


def _execute(
    notebook: nbformat.NotebookNode, path: Path, parameters: dict[str, Any]
) -> nbformat.NotebookNode:
    """Run every cell; only an exception counts, never Papermill's status in the metadata."""
    import papermill
    from traitlets.config import Config

    # What it logs is raised, or was checked more strictly before.
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    # Papermill takes a notebook without these fields only from a file, and a file's name
    # with braces as a template.
    notebook.metadata["papermill"] = {}
    for cell in notebook.cells:
        cell.metadata.setdefault("tags", [])
    try:
        done = papermill.execute_notebook(
            notebook, None, parameters, kernel_name="python3", language="python",
            cwd=path.resolve().parent, progress_bar=False, record_timing=False,
            coalesce_streams=True, config=Config(
                KernelManager={"transport_encryption": "auto"},
                # Its shutdown is logged as an error by the kernel.
                NotebookClient={"extra_arguments": ["--IPKernelApp.log_level=50"]},
            ),
        )  # fmt: skip
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # of the cell that was cut off
        raise
    except papermill.PapermillExecutionError as error:
        line = f"{error.ename}: {error.evalue}".partition("\n")[0]
        raise NotebookError(f"'{path}' failed in [{error.exec_count}]: {line}") from error
    except Exception as error:  # a dead kernel, a missing one, a lost connection
        raise NotebookError(f"'{path}' failed: {one_line(error)}") from error
    for cell in done.cells:  # sys.exit(0) ends a notebook early without an error
        if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None:
            raise NotebookError(f"'{path}' stopped before {cell.source.splitlines()[0]!r}")
    return done


def _literal_in(node: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(node) if node else None
    except (ValueError, TypeError):  # the latter of {[]: 1}, which fails as it runs
        return None


def _is_literal(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_literal(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_literal(v) for k, v in value.items())
    return value is None or type(value) in (bool, int, float, str)
