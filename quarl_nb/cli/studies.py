"""Commands that measure: run, and status of what is measured."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quarl_nb.cli.arguments import (
    add_records,
    add_settings,
    add_workers,
    parse_settings,
    records_in,
)
from quarl_nb.errors import QuarlError, check_choice

if TYPE_CHECKING:
    from quarl_nb.store import ResultStore
    from quarl_nb.study import Study

logger = logging.getLogger(__name__)


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    run = command(run_command, "ptq --profile smoke --workers 2 --set episodes=10")
    run.add_argument("study", help="name of a study (see status)")
    run.add_argument("--profile", default="quick", help="smoke, quick or full (default: quick)")
    run.add_argument("--shard", type=_shard, metavar="i/n",
                     help="only part i of n of the matrix (machines alike: a GPU in all or none)")
    run.add_argument("--recompute", action="store_true", help="measure cells that are done too")
    add_settings(run, "a parameter of the profile (an unknown one lists them; quarl_nb/studies/ "
                      "tells what each is); lists as a,b,c (repeatable)")
    add_workers(run)
    add_records(run)

    status = command(status_command, "ptq")
    status.add_argument("study", nargs="?", help="name of a study (default: all)")
    add_records(status)


def run_command(options: argparse.Namespace) -> int:
    """Measure the cells of a study that have no record yet."""
    from quarl_nb.store import ResultStore
    from quarl_nb.studies import get_study

    study = get_study(options.study)
    check_choice(f"profile of study {study.name!r}", options.profile, study.profiles)
    parameters = parse_settings(options.set, study.profiles[options.profile])
    return measure(study, options.profile, ResultStore(options.records), options.workers,
                   shard=options.shard, recompute=options.recompute, parameters=parameters)


def status_command(options: argparse.Namespace) -> int:
    """Count what is done, failed and missing of each study and profile, and other records."""
    from quarl_nb.runner import plan
    from quarl_nb.studies import STUDIES, get_study

    studies = [get_study(name) for name in ([options.study] if options.study else STUDIES)]
    store = records_in(options.records)
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


def measure(study: Study, profile: str, store: ResultStore, workers: int, **options: Any) -> int:
    """Exit status of `runner.run_study`, which takes the `options`; what was done is told."""
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
