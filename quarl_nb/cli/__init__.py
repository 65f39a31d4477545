"""The command line: parses, calls one function, prints; everything is imported when needed."""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import quarl_nb
from quarl_nb.cli import actorq, edge, policies, results, studies
from quarl_nb.errors import INTERRUPTED, QuarlError
from quarl_nb.writing import abandon

# Commands that keep what they finished before they were interrupted, and go on from there. The
# others leave nothing, but for actorq, which hears Ctrl-C itself once it trains and says what it
# saves.
GO_ON = (studies.run_command, results.render_command, results.reproduce_command,
         policies.train_command)  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Bad usage is one line, as every other bad input; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        self.exit(QuarlError.exit_code, f"error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 (a cell or notebook failed), 2 (bad input), 130 (Ctrl-C or SIGTERM).

    Args:
        arguments: of the command; None: this process's, which has then nothing else to do.
    """
    if arguments is None:  # batch systems send it before they kill
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _mend_streams()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("quarl_nb").setLevel(logging.INFO)
    options, unknown = build_parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        status = options.command(options)
        if status == INTERRUPTED:
            _end_undisturbed(arguments)
        sys.stdout.flush()
        return status
    except QuarlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        _end_undisturbed(arguments)
        goes_on = ": what was finished is kept, the same command goes on"
        print(f"interrupted{goes_on if options.command in GO_ON else ''}", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        reader_is_gone = isinstance(error, BrokenPipeError)  # it has seen enough (`| head`)
        if reader_is_gone or error.filename is None:
            abandon(sys.stdout)
        if reader_is_gone:
            return 0
        place = "a file" if error.filename is None else f"'{error.filename}'"
        print(f"error: cannot use {place}: {error.strerror or error}", file=sys.stderr)
        return QuarlError.exit_code


def _mend_streams() -> None:
    """Have nothing fail of what is printed, as where a stream is closed or lacks a letter.

    Python has None in place of what the caller closed (`>&-`).
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w", encoding="utf-8")
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as of stderr; claims hold a ×


def _end_undisturbed(arguments: Sequence[str] | None) -> None:
    """Another signal would show tracebacks of what Python does as it ends, or hide the status."""
    if arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = Parser(
        prog="quarl-nb", description="Quantized reinforcement learning, measured.",
        epilog="example: quarl-nb run ptq --profile smoke",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=quarl_nb.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], int], example: str) -> argparse.ArgumentParser:
        name, text = run.__name__.removesuffix("_command"), str(run.__doc__)
        added = commands.add_parser(
            name, help=text, description=text, epilog=f"example: quarl-nb {name} {example}"
        )
        added.set_defaults(command=run, parser=added)
        return added

    studies.add_commands(command)
    results.add_commands(command)
    policies.add_commands(command)
    edge.add_commands(command)
    actorq.add_commands(command)
    return parser
