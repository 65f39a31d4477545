"""What a run leaves on disk while it goes: a checkpoint, and snapshots of the learner's policy."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from quarl_nb.errors import QuarlError, check_at_least, check_counts
from quarl_nb.rl.checkpoint import held
from quarl_nb.rl.policies import DESCRIPTION, TENSORS
from quarl_nb.writing import make_file_writable, make_writable


@dataclass(frozen=True)
class Saving:
    """What a run leaves on disk while it goes.

    Attributes:
        checkpoint: file to resume from, written every `checkpoint_every_s` seconds; or None.
        snapshots: folder for the learner's policy every `snapshot_every` steps, of one run alone:
            resumed, it removes those beyond its checkpoint. Or None.
        snapshot_every: 0 for the first and the last policy alone.

    Raises:
        QuarlError: a period is no number (of steps: no integer), or less than 0.
    """

    checkpoint: Path | None = None
    checkpoint_every_s: float = 60.0
    snapshots: Path | None = None
    snapshot_every: int = 0

    def __post_init__(self) -> None:
        check_at_least(0, checkpoint_every_s=self.checkpoint_every_s)
        check_counts(0, snapshot_every=self.snapshot_every)

    def prepare(self) -> None:
        """Make the folders, so that what cannot be written is told before hours of training.

        Raises:
            QuarlError: a folder cannot be made or written.
        """
        if self.checkpoint:
            make_file_writable(self.checkpoint)
        if self.snapshots:
            make_writable(self.snapshots)

    def held(self) -> AbstractContextManager[None]:
        """Keep other runs from the checkpoint meanwhile; a QuarlError where one uses it."""
        return held(self.checkpoint) if self.checkpoint else nullcontext()

    def snapshot(self, steps: int) -> Path:
        """The folder of the policy after so many environment steps."""
        assert self.snapshots is not None
        return self.snapshots / f"{steps:09d}"

    def forget_lost(self, steps: int) -> None:
        """Remove the snapshots of a branch that was given up: the run goes on from `steps`.

        Raises:
            QuarlError: one cannot be removed.
        """
        for folder in self.snapshots.iterdir() if self.snapshots else ():
            try:
                if self._is_ours(folder) and int(folder.name) > steps:
                    shutil.rmtree(folder)
            except OSError as error:
                raise QuarlError(f"cannot remove '{folder}': {error.strerror}") from error

    def _is_ours(self, folder: Path) -> bool:
        """Whether it is called as snapshots are, and holds nothing but a policy, or part of one."""
        name = folder.name
        if not (name.isdecimal() and folder == self.snapshot(int(name)) and folder.is_dir()):
            return False
        names = [file.name.removeprefix(".") for file in folder.iterdir()]  # of killed writers, too
        return all(name.startswith((DESCRIPTION, TENSORS)) for name in names)


def with_paths(saving: Saving) -> Saving:
    """Users write paths as strings, too.

    Raises:
        QuarlError: a path is none, or `saving` is no `Saving`.
    """
    if not isinstance(saving, Saving):
        raise QuarlError(f"saving is {saving!r}; Saving(checkpoint=...) or None")
    for name in ("checkpoint", "snapshots"):
        path = getattr(saving, name)
        if not isinstance(path, str | os.PathLike | None):
            raise QuarlError(f"Saving({name}=...) is {path!r}; a path or None")
        saving = replace(saving, **{name: Path(path) if path else None})  # type: ignore[arg-type]
    return saving
