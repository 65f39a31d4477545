"""Commands on studies and what comes of them: run, render, status, claims, reproduce."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_nb.cli.arguments import add_settings, parse_settings, place
from quarl_nb.errors import QuarlError, UnavailableError, check_choice
from quarl_nb.paths import project_root

if TYPE_CHECKING:
    from quarl_nb.store import ResultStore
    from quarl_nb.study import Study

logger = logging.getLogger(__name__)
SHOWN = "full"


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    run = command(run_command, "ptq --profile smoke --workers 2 --set episodes=10")
    run.add_argument("study", help="name of a study (see status)")
    run.add_argument("--profile", default="quick", help="smoke, quick or full (default: quick)")
    run.add_argument("--shard", type=_shard, metavar="i/n",
                     help="only part i of n of the matrix (machines alike: a GPU in all or none)")
    run.add_argument("--recompute", action="store_true", help="measure cells that are done too")
    add_settings(run, "a parameter of the profile (an unknown one lists them; quarl_nb/studies/ "
                      "tells what each is); lists as a,b,c (repeatable)")

    render = command(render_command, "01_ptq_tables --set profile=quick --out my_notebooks")
    render.add_argument("notebooks", nargs="*", help="their names (default: all)")
    render.add_argument("--out", type=place, help="folder (default: notebooks/rendered)")
    add_settings(render, "a parameter of the notebooks; lists as a,b,c (repeatable)")

    status = command(status_command, "ptq")
    status.add_argument("study", nargs="?", help="name of a study (default: all)")

    claims = command(claims_command, "--profile full")
    claims.add_argument("--profile", help="default: the best that each study has")

    reproduce = command(reproduce_command, "--workers 2")
    reproduce.add_argument("--profile", default="quick", help="default: quick")

    for with_workers in (run, reproduce):
        with_workers.add_argument("--workers", type=int, default=1,
                                  help="processes (default: 1; what is timed runs in one)")
    for with_records in (run, status, claims):
        with_records.add_argument("--records", type=place, help="folder (default: data/records)")


def run_command(options: argparse.Namespace) -> int:
    """Measure the cells of a study that have no record yet."""
    from quarl_nb.store import ResultStore
    from quarl_nb.studies import get_study

    study = get_study(options.study)
    check_choice(f"profile of study {study.name!r}", options.profile, study.profiles)
    parameters = parse_settings(options.set, study.profiles[options.profile])
    return _run(study, options.profile, ResultStore(options.records), options.workers,
                shard=options.shard, recompute=options.recompute, parameters=parameters)


def render_command(options: argparse.Namespace) -> int:
    """Execute the notebooks with Papermill into notebooks/rendered."""
    from quarl_nb.render import default_parameters, find_notebooks, render_all

    folder = project_root() / "notebooks"
    notebooks = find_notebooks(folder, options.notebooks)
    parameters = parse_settings(options.set, default_parameters(notebooks))
    if isinstance(parameters.get("records"), str) and parameters["records"]:  # "": not this folder
        if not parameters.get("recompute"):  # which measures into a new folder, too
            _check_folder(Path(parameters["records"]))
        # The notebooks run in their own folder.
        parameters["records"] = str(Path(parameters["records"]).resolve())
    failures = render_all(notebooks, options.out or folder / "rendered", parameters)
    return 1 if failures else 0


def status_command(options: argparse.Namespace) -> int:
    """Count what is done, failed and missing of each study and profile, and other records."""
    from quarl_nb.runner import plan
    from quarl_nb.studies import STUDIES, get_study

    studies = [get_study(name) for name in ([options.study] if options.study else STUDIES)]
    store = _store(options.records)
    wide = max(len(name) for name in ("study", *(study.name for study in studies))) + 2
    print(f"{'study':<{wide}}{'profile':<9}{'cells':>6}{'done':>6}{'failed':>8}{'missing':>9}"
          f"{'other':>7}")  # fmt: skip
    for study in studies:
        for profile in study.profiles:
            try:
                keys = [job.key for job in plan(study, profile)]
            except QuarlError as error:
                print(f"{study.name:<{wide}}{profile:<9}{error}")
                continue
            recorded = store.keys(study.name, profile)
            done = len(recorded.intersection(keys))
            # One that failed beside a run that measured it, or when it was measured again, is done.
            failed = sum(store.error_path(study.name, profile, key).is_file()
                         for key in keys if key not in recorded)  # fmt: skip
            missing = len(keys) - done
            # Of other policies or parameters than the profile's: one's own.
            other = len(recorded) - done
            print(f"{study.name:<{wide}}{profile:<9}{len(keys):>6}{done:>6}{failed:>8}{missing:>9}"
                  f"{other:>7}")  # fmt: skip
    return 0


def claims_command(options: argparse.Namespace) -> int:
    """Tell of every published claim whether the records reproduce it."""
    from quarl_nb.report.artefacts import frame_of
    from quarl_nb.report.claims import verdicts
    from quarl_nb.store import PROFILES

    if options.profile:
        check_choice("profile", options.profile, PROFILES)
    store = _store(options.records)
    found = verdicts(lambda study: frame_of(store, study, options.profile))
    widths = {name: found[name].str.len().max() + 2 for name in ("verdict", "id")}
    for _, claim in found.iterrows():
        named = "".join(f"{claim[name]:<{wide}}" for name, wide in widths.items())
        print(f"{named}{claim['measured']}")
    counts = found["verdict"].value_counts()
    print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 0


def reproduce_command(options: argparse.Namespace) -> int:
    """Run a profile of every study, then draw every figure and table, then every notebook."""
    from quarl_nb.render import find_notebooks, render_all
    from quarl_nb.report.readme import write_scoreboard
    from quarl_nb.report.site import SCOREBOARD, build
    from quarl_nb.studies import STUDIES, get_study

    root, store = project_root(), _store(None)
    notebooks = find_notebooks(root / "notebooks")
    statuses = []
    for name in STUDIES:
        try:
            statuses.append(_run(get_study(name), options.profile, store, options.workers))
        except UnavailableError as error:
            logger.info("%s %s: left out, %s", name, options.profile, error)
    # What was just measured, and what the repository shows, which is the full profile alone: it
    # stays the same wherever this runs.
    written = {*build(store, root / "figures", options.profile),
               *build(store, root / "figures", SHOWN)}  # fmt: skip
    scoreboard = root / "figures" / SHOWN / SCOREBOARD
    if scoreboard in written:
        write_scoreboard(root / "README.md", scoreboard.read_text(encoding="utf-8"))
    logger.info("figures and tables: %d files in figures/", len(written))
    failures = render_all(notebooks, root / "notebooks" / "rendered", {"profile": SHOWN})
    return 1 if failures or any(statuses) else 0


def _store(records: Path | None) -> ResultStore:
    """The records to read; a folder that was named must be there."""
    from quarl_nb.studies import open_records

    if records is not None:
        _check_folder(records)
    return open_records(records)


def _check_folder(records: Path) -> None:
    if not records.is_dir():
        raise QuarlError(f"no records: '{records}' is not a folder")


def _run(study: Study, profile: str, store: ResultStore, workers: int, **options: Any) -> int:
    from quarl_nb.runner import run_study

    summary = run_study(study, profile, store, workers, **options)
    logger.info("%s %s: %d measured, %d already there, %d failed, of %d cells",
                study.name, profile, summary.done, summary.skipped, summary.failed, summary.total)
    return 1 if summary.failed else 0


def _shard(text: str) -> tuple[int, int]:
    try:
        part, parts = map(int, text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not i/n, e.g. 1/4") from None
    return part, parts
