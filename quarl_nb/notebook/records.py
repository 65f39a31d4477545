"""Records that are there, or get measured where the reader asks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from quarl_nb.errors import QuarlError, UnavailableError, check_choice
from quarl_nb.report.claims import FAMILIES
from quarl_nb.report.labels import PUBLIC
from quarl_nb.report.texts import counted
from quarl_nb.store import ResultStore
from quarl_nb.study import PROFILES

FIRST_PROFILE = "quick"  # what a notebook measures where nothing is recorded and none is chosen
BEST = PROFILES[0]  # what takes hours to measure
CHOSEN_BY = {"policy": "policies", "task": "tasks"}  # what a record is of -> its parameter


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
        QuarlError: no such profile, no policy or no list is named, or one has no records (others
            do) and was not measured now; `recompute` is neither True nor False; the folder that is
            named is not there, and is not to be made by measuring.
    """
    _check_asked("policy", policies, profile, recompute)
    _check_folder(store, recompute)
    frames = {}
    for study in dict.fromkeys([*studies, *(n for s in studies for n in FAMILIES.get(s, ()))]):
        frames[study] = _of_today(_frame(store, study, profile), policies, store)
        wanted = None if policies is None else [name for name in policies if _is_of(study, name)]
        at = profile or store.best_profile(study) or FIRST_PROFILE
        if not recompute:
            wanted = _without_records(frames[study], wanted) if unasked else []
            if study in studies and wanted != [] and at == BEST:
                whose = f"of {', '.join(wanted)} " if wanted else ""
                print(f"{study} {at}: nothing {whose}is recorded; recompute=True measures it "
                      "(hours)")  # fmt: skip
                wanted = []
        if study in studies and wanted != []:
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
        QuarlError: no such profile, no task or no list is named, or one has no records (others do)
            and was not measured now; `recompute` is neither True nor False; as `load_records` of
            the folder.
    """
    _check_asked("task", tasks, profile, recompute)
    _check_folder(store, recompute)
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
        frame = _frame(store, study, profile)
        if chosen is not None and "env_id" in frame:
            recorded |= {*frame["env_id"]}
            frame = frame[frame["env_id"].isin([*chosen])].reset_index(drop=True)
        frames[study] = frame
    _check_recorded("task", tasks, recorded, studies)
    return frames


def _frame(store: ResultStore, study: str, profile: str | None) -> pd.DataFrame:
    """The records to show; how many are not is told."""
    frame = store.frame(study, profile)
    at = profile or store.best_profile(study)
    if at and (others := len(store.keys(study, at)) - len(frame)):
        print(f"{study} {at}: {counted(others, 'older record')} not shown, of cells that were "
              "measured again with another budget or policy")  # fmt: skip
    return frame


def _of_today(
    frame: pd.DataFrame, policies: Sequence[str] | None, store: ResultStore
) -> pd.DataFrame:
    """Without records of another policy of one's own that had one of the names before."""
    weights = "budget.tensors_sha256"
    if policies is None or store.weights_of is None or weights not in frame:
        return frame
    for name in policies:
        today = store.weights_of(name)
        others = (frame["policy"] == name) & frame[weights].notna() & (frame[weights] != today)
        if today and others.any():
            print(f"left out: {others.sum()} records of another policy that was called {name}")
            frame = frame[~others]
    return frame.reset_index(drop=True)


def _is_of(study: str, policy: str) -> bool:
    """Whether the study is of such policies: public agents, or our own."""
    return policy.startswith(PUBLIC) == study.endswith("_public")


def _has_tasks(study: str, profile: str) -> bool:
    """Whether the study's matrix is of tasks that can be chosen."""
    from quarl_nb.studies import get_study

    return "tasks" in get_study(study).profiles.get(profile, ())


def _without_records(frame: pd.DataFrame, wanted: list[str] | None) -> list[str] | None:
    """Those of `wanted` that are to be measured; None stands for all, which any record will do."""
    if frame.empty:
        return wanted
    return [name for name in wanted or () if name not in {*frame["policy"]}]


def _check_asked(
    what: str, names: Sequence[str] | None, profile: str | None, recompute: bool
) -> None:
    """Refuse what a notebook is easily given in place of a list or a switch, before it runs.

    Raises:
        QuarlError: no name, a text in place of a list of names, or of True or False; something
            else than names; no such profile.
    """
    if isinstance(names, str) and names:
        raise QuarlError(f"{CHOSEN_BY[what]} is a list of names, e.g. ['{names}'], not {names!r} "
                         "(papermill -y takes lists, its -p none)")  # fmt: skip
    if names is not None:
        if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
            raise QuarlError(f"{CHOSEN_BY[what]} is a list of names, not {names!r}")
        if not names:
            raise QuarlError(f"{CHOSEN_BY[what]}: none is named; all are if it is left out (None)")
    if profile is not None:
        check_choice("profile", profile, PROFILES)
    if not isinstance(recompute, bool):
        raise QuarlError(f"recompute is True or False, not {recompute!r}")


def _check_folder(store: ResultStore, recompute: bool) -> None:
    """Refuse a mistyped folder, in place of measuring into it; the project's own may yet come."""
    if not recompute and not store.root.is_dir() and store.root != ResultStore().root:
        # In full: a notebook's working directory is its own folder, not where its user looks.
        raise QuarlError(f"no records: '{store.root.absolute()}' is not a folder (where there is "
                         "`recompute`, that makes it, and measures)")  # fmt: skip


def _check_recorded(
    what: str, names: Sequence[str] | None, recorded: Collection[str], studies: Sequence[str]
) -> None:
    """Refuse a name that has no records, where there are records at all.

    Raises:
        QuarlError: which names have, and how to measure this one.
    """
    for name in (names or ()) if recorded else ():
        try:
            check_choice(f"{what} with records", name, sorted(recorded))
        except QuarlError as error:
            may_measure = _is_of if what == "policy" else _knows_task
            able = [study for study in studies if may_measure(study, name)]
            if not able:
                raise
            how = f"quarl-nb run {able[0]} --set {CHOSEN_BY[what]}={name}"
            raise QuarlError(f"{error}; measure it: recompute=True, or {how}") from error


def _knows_task(study: str, task: str) -> bool:
    """Whether the study has cells of this task."""
    from quarl_nb.studies import get_study
    from quarl_nb.study import resolve_parameters

    asked = get_study(study)
    try:
        return bool(asked.cells(resolve_parameters(asked, FIRST_PROFILE, {"tasks": [task]})))
    except QuarlError:
        return False


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
