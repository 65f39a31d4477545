"""The studies, by name: what each measures and at which scale."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from quarl_nb.errors import QuarlError, check_choice

if TYPE_CHECKING:
    from quarl_nb.store import ResultStore
    from quarl_nb.study import Study

# Where each study is made; imported only when asked for, since studies need torch.
_MODULES = {
    "ptq": "quarl_nb.studies.ptq:PTQ",
    "ptq_public": "quarl_nb.studies.ptq:PTQ_PUBLIC",
    "weights": "quarl_nb.studies.weights:WEIGHTS",
    "weights_public": "quarl_nb.studies.weights:WEIGHTS_PUBLIC",
    "qat": "quarl_nb.studies.qat:QAT",
    "mixed_precision": "quarl_nb.studies.mixed_precision:MIXED_PRECISION",
    "inference": "quarl_nb.studies.inference:INFERENCE",
    "loading": "quarl_nb.studies.loading:LOADING",
    "edge": "quarl_nb.studies.edge:EDGE",
    "navigation": "quarl_nb.studies.navigation:NAVIGATION",
    "actorq": "quarl_nb.studies.actorq:SPEEDUP",
    "actorq_staleness": "quarl_nb.studies.actorq:STALENESS",
    "actorq_runtime": "quarl_nb.studies.actorq:RUNTIME",
    "actorq_scaling": "quarl_nb.studies.actorq:SCALING",
    "actorq_variants": "quarl_nb.studies.variants:ACTORQ_VARIANTS",
}
STUDIES = tuple(_MODULES)


def get_study(name: str) -> Study:
    """The study of that name; QuarlError naming the nearest otherwise."""
    module, _, attribute = _MODULES[check_choice("study", name, STUDIES)].partition(":")
    return getattr(import_module(module), attribute)


def open_records(root: str | Path | None = None) -> ResultStore:
    """The records under `root`, where a cell's planned record is shown before any other of it, and
    those of a policy that lies in data/policies before those of what lay there.

    Raises:
        QuarlError: `root` names no folder.
    """
    from quarl_nb.store import ResultStore

    if root is not None and (not isinstance(root, str | Path) or not str(root)):
        raise QuarlError(f"records is the name of a folder, not {root!r}")
    return ResultStore(root, planned_keys, weights_of)


def planned_keys(study: str, profile: str) -> frozenset[str]:
    """The keys of the records that a profile makes; none where it cannot be planned here.

    So it is with what no study here measures (boards), with files that this machine lacks, and in
    a project without the policies that the profile names.
    """
    from quarl_nb.runner import plan

    if study not in STUDIES or profile not in get_study(study).profiles:
        return frozenset()
    try:
        return frozenset(job.key for job in plan(get_study(study), profile))
    except QuarlError:
        return frozenset()


def weights_of(policy: str) -> str | None:
    """The SHA-256 of the weights of one's own policy in data/policies; None where none lies."""
    from quarl_nb.studies.policies import TrainedPolicies

    try:
        return TrainedPolicies().version(policy).get("tensors_sha256")
    except QuarlError:
        return None
