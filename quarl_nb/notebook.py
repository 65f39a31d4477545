"""What the notebooks share: records that are there or get measured, and how results are shown."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from IPython.display import HTML, Image, Markdown, display
from matplotlib.figure import Figure

from quarl_nb.errors import QuarlError, UnavailableError, check_choice
from quarl_nb.report.claims import FAMILIES, Claim
from quarl_nb.report.labels import PUBLIC
from quarl_nb.report.style import STYLE, NothingToDrawError
from quarl_nb.store import PROFILES, ResultStore

FIRST_PROFILE = "quick"  # what a notebook measures where nothing is recorded and none is chosen
PIXELS_PER_IN = 125  # of a figure on the page; the picture itself has STYLE's savefig.dpi
BEST = PROFILES[0]  # what takes hours to measure
LONG_TEXT = 40  # characters of a table cell that may be broken into lines
SHOWN_PACKAGES = ("torch", "numpy", "stable-baselines3", "gymnasium", "ale-py", "mujoco")
MEASURED = {"policy": "policies", "task": "tasks", "network": "networks"}  # column -> its words


def load_records(
    store: ResultStore,
    studies: Sequence[str],
    profile: str | None = None,
    policies: Sequence[str] | None = None,
    recompute: bool = False,
    workers: int = 2,
    unasked: bool = True,
) -> dict[str, pd.DataFrame]:
    """The records of `studies` and of those that claims read with them, a frame a study.

    Args:
        studies: run, if `recompute` or if they have no records; the others are only read.
        profile: None means the best profile with records, else `FIRST_PROFILE`.
        policies: names; None means all that have records (or that the profile names).
        unasked: run policies that have no records without `recompute` too; not what takes hours,
            as all of the best profile does, which no notebook begins on its own.

    Raises:
        QuarlError: no such profile, or a policy has no records (others do) and was not measured
            now.
    """
    frames = {}
    for study in dict.fromkeys([*studies, *(n for s in studies for n in FAMILIES.get(s, ()))]):
        frames[study] = store.frame(study, profile)
        wanted = None if policies is None else _names_in(study, policies)
        if not recompute:
            wanted = _without_records(frames[study], wanted) if unasked else []
            if wanted is None and profile == BEST:
                print(f"{study} {profile}: nothing is recorded; recompute=True measures it (hours)")
                wanted = []
        if study in studies and wanted != []:
            at = profile or store.best_profile(study) or FIRST_PROFILE
            parameters = {} if wanted is None else {"policies": wanted}
            _measure(store, study, at, parameters, recompute, workers)
            frames[study] = store.frame(study, at)
    recorded = {name for frame in frames.values() if len(frame) for name in frame["policy"]}
    _check_recorded("policy", policies, recorded, studies)
    return {study: _chosen(frame, policies) for study, frame in frames.items()}


def load_runs(
    store: ResultStore,
    studies: Sequence[str],
    profile: str | None = None,
    tasks: Sequence[str] | None = None,
    recompute: bool = False,
) -> dict[str, pd.DataFrame]:
    """The records of studies that time what they measure, a frame a study.

    Unlike `load_records`, nothing is measured unless `recompute` asks for it: a run takes minutes
    to hours and the machine to itself. A study without records is an empty frame.

    Args:
        profile: None means the best profile with records; measured then is `FIRST_PROFILE`.
        tasks: environments, e.g. "dm:cartpole-balance"; None means all. Studies that have no tasks
            to choose from are then only read, and whole.

    Raises:
        QuarlError: no such profile, or a task has no records (others do) and was not measured now.
    """
    frames = {}
    recorded: set[str] = set()
    for study in studies:
        at = profile or store.best_profile(study) or FIRST_PROFILE
        chosen = tasks if tasks is not None and _has_tasks(study, at) else None
        if recompute and chosen is None and tasks is not None:
            print(f"{study} {at}: left out, it has no tasks to choose from")
        elif recompute:
            parameters = {"tasks": [*chosen]} if chosen else {}
            _measure(store, study, at, parameters, recompute, workers=1)
        frame = store.frame(study, profile)
        if chosen is not None and "env_id" in frame:
            recorded |= {*frame["env_id"]}
            frame = frame[frame["env_id"].isin([*chosen])].reset_index(drop=True)
        frames[study] = frame
    _check_recorded("task", tasks, recorded, studies)
    return frames


def quote_claims(claims: Iterable[Claim]) -> Markdown:
    """What was published, word for word, and where; a sentence that several claims quote once."""
    places: dict[str, list[str]] = {}
    for claim in claims:
        places.setdefault(claim.sentence, []).extend([claim.source, *claim.also])
    return Markdown("\n\n".join(
        f"> “{sentence}”\n>\n> — {'; '.join(dict.fromkeys(where))}"
        for sentence, where in places.items()
    ))


def tell_verdicts(found: pd.DataFrame) -> Markdown:
    """Each claim with its verdict, what was measured and what decided it.

    Args:
        found: `report.claims.verdicts`.
    """
    lines = []
    for _, row in found.iterrows():
        measured = f" {row['measured']} ({row['profile']} profile)." if row["measured"] else ""
        lines.append(f"- **{row['verdict']}**: “{row['sentence']}” ({row['source']}).{measured} "
                     f"*Holds if:* {row['decision']}.")
    return Markdown("\n".join(lines))


def count_runs(runs: pd.DataFrame) -> str:
    """ "12 runs of 1 task", or "nothing yet"."""
    if runs.empty:
        return "nothing yet"
    counts = {"run": len(runs), "task": runs["task"].nunique()}
    return " of ".join(f"{n} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items())


def show_figure(
    draw: Callable[..., tuple[Figure, pd.DataFrame]], *args: Any, caption: str = ""
) -> pd.DataFrame:
    """Draw, display with its caption, and return the plotted points (none: it says why)."""
    try:
        figure, points = draw(*args)
    except NothingToDrawError as reason:
        display(Markdown(f"*Nothing to draw: {reason}.*"))
        return pd.DataFrame()
    show_picture(figure, caption)
    return points


def show_picture(figure: Figure, caption: str = "") -> None:
    """Display a figure as it would be printed, sharp on any screen, and its caption."""
    picture = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(picture, format="png", metadata={"Software": None})
    width = round(figure.get_figwidth() * PIXELS_PER_IN)
    display(Image(picture.getvalue(), width=width, alt=caption))
    if caption:
        plain = caption.replace("*", r"\*")  # the paper's 8* is no emphasis
        display(Markdown(f"*{plain}*"))


def show_table(table: pd.DataFrame, index: bool = True, empty: str = "not measured") -> HTML:
    """A table with nothing cut off; only long texts may wrap, and stand on the left.

    Args:
        index: show the row labels.
        empty: what stands in place of a table without rows.
    """
    if table.empty:
        return HTML(f"<p><em>{empty}</em></p>")
    styler = table.map(_unbroken).rename(index=_unbroken).style.format(escape="html", precision=3)
    styler.set_uuid(f"{zlib.crc32(table.to_csv().encode()):08x}")  # the same table, the same bytes
    texts = {"text-align": "left", "min-width": "16em"}
    long = [name for name in table.columns if table[name].map(str).str.len().max() > LONG_TEXT]
    styler.set_properties(**texts, subset=long)
    return HTML((styler if index else styler.hide()).to_html())


def provenance_table(frames: Mapping[str, pd.DataFrame]) -> HTML:
    """A column a study: how many records, of which code, versions, machines and dates."""
    columns = {name: _provenance(frame) for name, frame in frames.items() if len(frame)}
    table = pd.DataFrame(columns).rename_axis("recorded").fillna("")
    return show_table(table, empty="nothing is recorded")


def _unbroken(cell: Any) -> Any:
    """Short texts keep to one line by no-break spaces, which every viewer honours."""
    short = isinstance(cell, str) and len(cell) <= LONG_TEXT
    return cell.replace(" ", "\u00a0") if short else cell


def _provenance(rows: pd.DataFrame) -> dict[str, str]:
    def distinct(name: str, missing: str = "not recorded") -> str:
        values = rows[name].dropna() if name in rows else pd.Series(dtype=object)
        return ", ".join(sorted({str(value) for value in values})) or missing

    packages = rows.get("provenance.packages", pd.Series(dtype=object)).dropna()
    used = {f"{name} {p[name]}" for p in packages for name in SHOWN_PACKAGES if name in p}
    times = rows.get("provenance.start_time", pd.Series(dtype=object)).dropna()
    started = sorted(time[:16].replace("T", " ") for time in times)
    commits = rows.get("provenance.git_commit", pd.Series(dtype=object)).dropna()
    changed = rows.get("provenance.dirty", pd.Series(dtype=object)).eq(True).sum()
    return {
        "records": f"{len(rows)}",
        "profile": distinct("profile"),
        **{words: f"{rows[name].nunique()}" for name, words in MEASURED.items() if name in rows},
        "backend, source": f"{distinct('backend')}, {distinct('source')}",
        "measured (UTC)": f"{started[0]} to {started[-1]}" if started else "not recorded",
        "time of all cells": f"{rows['wall_s'].sum() / 60:.1f} min",
        "code": ", ".join(sorted({commit[:12] for commit in commits})) or "not recorded",
        "of uncommitted code": f"{changed}",
        "packages": ", ".join(sorted(used)) or "not recorded",
        "Python": distinct("provenance.python"),
        "processor": distinct("provenance.cpu"),
        "GPU": distinct("provenance.gpu", "none"),
        "cores": distinct("provenance.cores"),
        "system": distinct("provenance.os"),
    }


def _names_in(study: str, policies: Sequence[str]) -> list[str]:
    """Those of `policies` that the study can measure: public agents, or our own."""
    return [name for name in policies if name.startswith(PUBLIC) == study.endswith("_public")]


def _has_tasks(study: str, profile: str) -> bool:
    """Whether the study's matrix is of tasks that can be chosen."""
    from quarl_nb.studies import get_study

    return "tasks" in get_study(study).profiles.get(profile, ())


def _without_records(frame: pd.DataFrame, wanted: list[str] | None) -> list[str] | None:
    """Those of `wanted` that are to be measured; None stands for all, which any record will do."""
    if frame.empty:
        return wanted
    return [name for name in wanted or () if name not in {*frame["policy"]}]


def _check_recorded(
    what: str, names: Sequence[str] | None, recorded: Collection[str], studies: Sequence[str]
) -> None:
    """Refuse a name that has no records, where there are records at all.

    Raises:
        QuarlError: which names have, and how to measure this one.
    """
    for name in (names or ()) if recorded else ():
        able = [study for study in studies if _names_in(study, [name])]
        try:
            check_choice(f"{what} with records", name, sorted(recorded))
        except QuarlError as error:
            how = f"quarl-nb run {able[0]} --set {MEASURED[what]}={name}" if able else "its study"
            raise QuarlError(f"{error}; measure it: recompute=True, or {how}") from error


def _chosen(frame: pd.DataFrame, policies: Sequence[str] | None) -> pd.DataFrame:
    if policies is None or frame.empty:
        return frame
    return frame[frame["policy"].isin([*policies])].reset_index(drop=True)


def _measure(
    store: ResultStore, study: str, profile: str, parameters: Mapping[str, Any],
    recompute: bool, workers: int,
) -> None:
    """Run the study's missing cells, with those of `parameters` that it has.

    Raises:
        QuarlError: it has no such profile.
    """
    from quarl_nb.runner import run_study
    from quarl_nb.studies import get_study

    asked = get_study(study)
    check_choice(f"profile of study {study!r}", profile, asked.profiles)
    known = {name: parameters[name] for name in parameters if name in asked.profiles[profile]}
    try:
        done = run_study(asked, profile, store, workers, recompute=recompute, parameters=known,
                         progress=False)
    except UnavailableError as reason:
        print(f"{study} {profile}: left out, {reason}")
        return
    print(f"{study} {profile}: measured {done.done} of {done.total} cells, {done.failed} failed")
