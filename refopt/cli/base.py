"""What every command of `refopt` shares: exit codes, options, progress."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from refopt.errors import CaseError, MissingExtra, Misused, RefoptError, Unknown

EXIT_CODES = (
    "Exit codes: 0: no violation, failure or stale expectation, and at least one run conforms; "
    "1: a violation; 2: wrong usage, a malformed file, or aborted; 3: the implementation or the "
    "harness broke; 4: an expectation is stale; 5: nothing ran, nothing was decided, or a must "
    "vector that it takes everything for was not answered; 130: interrupted; 141: whoever read the "
    "output left."
)


class Bare:
    """A flag has no value, and help shows none."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option `--help`."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class Command(Bare, TyperCommand):
    """A command."""


class Group(Bare, TyperGroup):
    """A group of commands."""


app = typer.Typer(
    name="refopt",
    cls=Group,
    help="The reference for optimizers: an oracle that says whether an implementation is right.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@contextmanager
def exits() -> Iterator[None]:
    """What goes wrong has an exit code of its own; nothing else is 1."""
    from refopt.oracle.live import Missing
    from refopt.oracle.report import BROKE, INTERRUPTED, LEFT, USAGE

    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # closed by whoever started us
                sys.stdout.flush()
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _forgotten()  # whoever read has seen enough
        raise typer.Exit(LEFT) from None
    except RefoptError as error:
        typer.echo(f"refopt: {error}", err=True)
        asked = isinstance(error, Missing | MissingExtra | Misused | Unknown)
        raise typer.Exit(USAGE if asked else BROKE) from None
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _forgotten()
            typer.echo(f"refopt: the output must be writable: {error.strerror}", err=True)
            raise typer.Exit(BROKE) from None
        typer.echo(traceback.format_exc(), err=True)
        raise typer.Exit(BROKE) from None


def _forgotten() -> None:
    """The flush at exit must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def reading(mine: bool) -> Iterator[None]:
    """A malformed file is a mistake of usage where the user named it, not where it is ours."""
    from refopt.oracle.report import USAGE

    try:
        yield
    except CaseError as error:
        if not mine:
            raise
        typer.echo(f"refopt: {error}", err=True)
        raise typer.Exit(USAGE) from None


@contextmanager
def writable(path: Path, option: str) -> Iterator[IO[bytes]]:
    """The file of an option, open from the start: a place that cannot be written is wrong usage."""
    try:
        file = path.open("wb")
    except OSError as error:
        msg = f"{option} must be a file that can be written, got {path}: {error.strerror}"
        raise typer.BadParameter(msg) from None
    with file:
        yield file


@contextmanager
def text(path: Path) -> Iterator[IO[str]]:
    """The text of a file, or of the standard input; what is no text is replaced."""
    if path == Path("-"):
        yield sys.stdin
        return
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        msg = f"FILE must be a file that can be read, got {path}: {error.strerror}"
        raise typer.BadParameter(msg) from None
    with file:
        yield file


def _version(wanted: bool) -> None:
    if wanted:
        from refopt.oracle import report, suite

        typer.echo(f"refopt {report.release()}, suite {suite.version()}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            help="Print the versions and stop.",
            callback=_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON Lines instead of text.")]
Select = Annotated[
    str, typer.Option("--select", metavar="GLOB", help="Only the cases whose id matches.")
]
Junit = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML report as well.")
]
Jobs = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Use so many processes; 0 is one for each processor, at most 4."
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Judge against this profile instead of each run's own; documented is the rule of the "
        "optimizer's documentation.",
    ),
]


def progress(results: Iterable[Any], total: int, what: str = "judging") -> Iterable[Any]:
    """The results, with a bar on a terminal; a line every tenth on one that cannot redraw."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal and console.is_dumb_terminal:
        return _tenths(results, total)
    return track(
        results,
        what,
        total=total,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _tenths(results: Iterable[Any], total: int) -> Iterator[Any]:
    for done, result in enumerate(results, 1):
        yield result
        if done * 10 // total > (done - 1) * 10 // total:
            typer.echo(f"judged {done} of {total} cases", err=True)


def say(message: Any) -> None:
    """Print one line of JSON, at once."""
    print(json.dumps(message, allow_nan=False), flush=True)


def processors() -> int:
    """How many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
