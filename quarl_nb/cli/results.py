"""Commands that show what was measured: render, draw, claims; reproduce measures it first."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

from quarl_nb.cli.arguments import (
    add_records,
    add_settings,
    add_workers,
    check_folder,
    parse_settings,
    place,
    records_in,
)
from quarl_nb.cli.studies import measure
from quarl_nb.errors import QuarlError, UnavailableError, check_choice
from quarl_nb.paths import project_root
from quarl_nb.writing import folder_to_fill

logger = logging.getLogger(__name__)
SHOWN = "full"


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    render = command(render_command, "01_ptq_tables --set profile=quick --out my_notebooks")
    render.add_argument("notebooks", nargs="*", help="their names (default: all)")
    render.add_argument("--out", type=place, help="folder (default: notebooks/rendered)")
    add_settings(render, "a parameter of the notebooks; lists as a,b,c (repeatable)")

    draw = command(draw_command, "ptq_heatmap --records my_records --out my_figures --formats pdf")
    draw.add_argument("names", nargs="*", help="of tables and figures (default: all)")
    draw.add_argument("--profile", default=SHOWN, help=f"default: {SHOWN}")
    draw.add_argument("--out", type=place, help="folder, of one a profile (default: figures)")
    draw.add_argument("--formats", nargs="+", metavar="FORMAT",
                      help="of figures: svg, png, pdf (default: svg png)")
    add_records(draw)

    claims = command(claims_command, "--profile full")
    claims.add_argument("--profile", help="default: the best that each study has")
    add_records(claims)

    reproduce = command(reproduce_command, "--workers 2")
    reproduce.add_argument("--profile", default="quick", help="default: quick")
    add_workers(reproduce)


def render_command(options: argparse.Namespace) -> int:
    """Execute the notebooks with Papermill into notebooks/rendered."""
    from quarl_nb.render import default_parameters, find_notebooks, render_all

    folder = project_root() / "notebooks"
    notebooks = find_notebooks(folder, options.notebooks)
    parameters = parse_settings(options.set, default_parameters(notebooks))
    if isinstance(parameters.get("records"), str) and parameters["records"]:  # "": not this folder
        if not parameters.get("recompute"):  # which measures into a new folder, too
            check_folder(Path(parameters["records"]))
        # The notebooks run in their own folder.
        parameters["records"] = str(Path(parameters["records"]).resolve())
    failures = render_all(notebooks, options.out or folder / "rendered", parameters)
    return 1 if failures else 0


def draw_command(options: argparse.Namespace) -> int:
    """Write tables and figures of the records, with what they rest on, and every verdict."""
    from quarl_nb.report.site import STUDIES, build
    from quarl_nb.report.style import FORMATS, METADATA
    from quarl_nb.study import PROFILES

    check_choice("profile", options.profile, PROFILES)
    formats = options.formats or FORMATS
    for name in formats:
        check_choice("format of figures", name, METADATA)
    store = records_in(options.records)
    if options.records and not options.out:
        raise QuarlError("--records needs --out: figures/ shows the suite's own records")
    out = options.out or project_root() / "figures"
    with folder_to_fill(out):  # or it would be told a minute later
        written = build(store, out, options.profile, options.names, formats)
    if not written:
        others = [name for name in PROFILES if any(store.keys(study, name) for study in STUDIES)]
        there_are = f"; there are some of {', '.join(others)}" if others else ""
        raise QuarlError(f"no records of profile {options.profile!r} in '{store.root}'{there_are}")
    logger.info("%d files in %s", len(written), out / options.profile)
    return 0


def claims_command(options: argparse.Namespace) -> int:
    """Tell of every published claim whether the records reproduce it."""
    from quarl_nb.report.artefacts import frame_of
    from quarl_nb.report.claims import verdicts
    from quarl_nb.study import PROFILES

    if options.profile:
        check_choice("profile", options.profile, PROFILES)
    store = records_in(options.records)
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

    root, store = project_root(), records_in(None)
    notebooks = find_notebooks(root / "notebooks")
    statuses = []
    for name in STUDIES:
        try:
            statuses.append(measure(get_study(name), options.profile, store, options.workers))
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
