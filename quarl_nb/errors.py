"""User-facing errors: one clear line that names the thing and what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from types import UnionType
from typing import Any

INTERRUPTED = 130  # exit status after Ctrl-C, as a shell's: 128 and the signal's number
SEEDS = 2**31  # the emulator's are below it, numpy's below 2^32; some runs add their steps


class QuarlError(Exception):
    """A user-facing mistake or bad input; `str()` is one clear line.

    The command line prints it as `error: <line>` and exits with `exit_code`.
    """

    exit_code = 2


class UnavailableError(QuarlError):
    """Something that is right to ask for but is not on this machine (files, an optional extra)."""


def check_at_least(least: int, **values: float) -> None:
    """Raise a QuarlError naming the first of `values` that is less than `least`, or no number."""
    for name, value in values.items():
        if not isinstance(value, Real) or not value >= least:
            raise QuarlError(f"{name} must be at least {least}, not {value!r}")


def is_whole(value: Any) -> bool:
    """Whether `value` is an integer, Python's or numpy's, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_counts(least: int, **values: int) -> None:
    """Raise a QuarlError naming the first of `values` that is no integer, or less than `least`."""
    for name, value in values.items():
        if not is_whole(value):
            raise QuarlError(f"{name} must be a whole number, not {value!r}")
        check_at_least(least, **{name: value})


def check_values(
    kind: type | UnionType, fits: Callable[[Any], bool], allowed: str, **values: Any
) -> None:
    """Raise a QuarlError naming the first of `values` that is not of `kind`, or does not fit."""
    for name, value in values.items():
        if not isinstance(value, kind) or not fits(value):
            raise QuarlError(f"{name} must be {allowed}, not {value!r}")


def check_seeds(*seeds: int) -> None:
    """Raise a QuarlError that names the first of `seeds` that some environment would not take."""
    for seed in seeds:
        if not is_whole(seed):
            raise QuarlError(f"seed must be a whole number, not {seed!r}")
        if not 0 <= seed < SEEDS:
            raise QuarlError(f"seed must be from 0 to {SEEDS - 1}, not {seed}")


def check_episode_seeds(first_seed: int, episodes: int) -> None:
    """`check_seeds` of as many in a row, one an episode."""
    check_seeds(first_seed)
    check_seeds(first_seed + max(1, episodes) - 1)  # none is for others to refuse


def same_type(what: str, value: Any, default: Any) -> Any:
    """`value`, if it has the type of `default` (an int becomes a float, or the same cell would have
    another key), else QuarlError."""
    if isinstance(default, (list, tuple)):
        if not isinstance(value, (list, tuple)):
            raise QuarlError(f"{what} must be a list, not {value!r}")
        return [same_type(f"{what}[{i}]", v, default[0]) for i, v in enumerate(value)] \
            if default else list(value)
    if default is None:
        return value
    allowed: tuple[type, ...] = (int, float) if type(default) is float else (type(default),)
    if type(value) not in allowed:
        raise QuarlError(f"{what} must be {type(default).__name__}, not {value!r}")
    if type(default) is float:
        if not math.isfinite(value):
            raise QuarlError(f"{what} must be finite, not {value}")
        return float(value)
    return value


def check_choice(what: str, value: str, allowed: Iterable[str]) -> str:
    """Return `value` if it is one of `allowed`, else raise a QuarlError that helps.

    Args:
        what: what the value is, as the user would call it ("environment").
        value: the value given.
        allowed: the values accepted, in the order they are to be listed.

    Raises:
        QuarlError: names the value, the nearest allowed one if any is near, and all allowed ones.
    """
    names = list(allowed)
    if value in names:
        return value
    hint = did_you_mean(value, names) or ";"
    raise QuarlError(f"unknown {what} {value!r}{hint} allowed: {', '.join(names) or 'none'}")


def did_you_mean(value: object, names: Iterable[str]) -> str:
    """The nearest of `names`, as "; did you mean 'affine8'?"; "" where none is near."""
    near = difflib.get_close_matches(str(value), list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class users_own:
    """Around calls of the user's code: whatever it raises becomes one line that names `what`.

    (No `contextmanager`, which costs an actor's step of 0.2 to 0.4 ms 2 % of it.)
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, QuarlError):
            raise QuarlError(f"{self._what} raised {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """The first line of what an exception says; of foreign code its kind, too."""
    text = str(error) if isinstance(error, QuarlError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0]


def brief(value: object) -> str:
    """What an exception or a space of foreign code says, its lines joined, up to 200 characters."""
    return " ".join(str(value).split())[:200]
