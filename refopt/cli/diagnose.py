"""`refopt diagnose`: which rule an implementation follows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from refopt.cli.base import EXIT_CODES, Command, Json, Select, app, exits, reading, say
from refopt.cli.check import command_of

IMPLEMENTATION = (
    "An installed framework (torch:NAdam, keras:RMSprop, …), py:MODULE:FUNCTION, "
    "'cmd:PROGRAM ARGUMENT…', or a file of recordings; as in refopt check."
)
Implementation = Annotated[
    str, typer.Argument(metavar="IMPLEMENTATION", help=IMPLEMENTATION, show_default=False)
]
Optimizer = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What py: or cmd: implements: nadam or rmsprop."),
]
Python = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="Run the framework, or the function of py:, in this interpreter.",
        show_default="the one that runs refopt",
    ),
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, help="Give it so long for an answer.")
]


@app.command(cls=Command, epilog=EXIT_CODES)
def diagnose(
    implementation: Implementation,
    optimizer: Optimizer = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Say how it differs from this profile.")
    ] = "documented",
    select: Select = "*",
    as_json: Json = False,
    python: Python = sys.executable,
    timeout: Timeout = 60.0,
) -> None:
    """Say which rule an implementation follows, and what to change so that it is another."""
    with exits(), progressing() as progress:
        from refopt.oracle import advice
        from refopt.oracle.diagnose import diagnose as diagnosed
        from refopt.oracle.report import Terminal, escape
        from refopt.oracle.spec import RULES

        codes = []
        for subject in subjects(
            implementation, optimizer, select, python=python, seconds=timeout, progress=progress
        ):
            if profile not in (known := RULES[subject.optimizer].PROFILES):
                msg = f"--profile must be one of {', '.join(known)}; got {profile!r}"
                raise typer.BadParameter(msg)
            found = diagnosed(
                subject.optimizer, subject.observed, against=profile, progress=progress
            )
            codes.append(_code(subject, found))
            if as_json:
                say(advice.document(subject, found))
            else:
                progress("")
                Terminal().say(escape(advice.paragraph(subject, found)) + "\n")
    raise typer.Exit(worst(codes))


def _code(subject: Any, found: Any) -> int:
    """The exit code of one diagnosis."""
    from refopt.oracle.report import BROKE, NOTHING, OK, VIOLATED
    from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE

    if subject.broke:
        return BROKE
    return {CONFORMS: OK, INCONCLUSIVE: NOTHING}.get(found.status, VIOLATED)


def worst(codes: list[int]) -> int:
    """What outranks the others."""
    from refopt.oracle.report import BROKE, NOTHING, OK, VIOLATED

    order = [BROKE, VIOLATED, NOTHING, OK]
    return min(codes, key=order.index, default=NOTHING)


def subjects(
    implementation: str,
    optimizer: str | None,
    select: str,
    *,
    python: str,
    seconds: float,
    progress: Callable[[str], None],
) -> list[Any]:
    """What is named, as what it did with the vectors."""
    from refopt.oracle import live, observe

    of, command = command_of(implementation, optimizer, python)
    with reading(True):
        if command:
            name = implementation.partition(":")[2]
            tasks = observe.program(command, of, observe.vectors(of, select), seconds)
        elif implementation in live.IMPLEMENTATIONS:
            of, name = live.IMPLEMENTATIONS[implementation].recordings.split("/")[0], implementation
            found = observe.vectors(of, select)
            tasks = observe.framework(name, found, python=python, seconds=seconds)
        elif Path(implementation).exists():
            name, tasks = implementation, observe.recorded(Path(implementation))
        else:
            known = ", ".join(live.IMPLEMENTATIONS)
            msg = f"IMPLEMENTATION must be {known}, py:, cmd:, or a file; got {implementation!r}"
            raise typer.BadParameter(msg)
        return observe.subjects(name, tasks, progress)


@contextmanager
def progressing() -> Iterator[Callable[[str], None]]:
    """What tells a terminal what is tried; a line that is written over."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda what: None
        return
    with console.status("starting") as status:
        yield lambda what: status.update(what or "writing")
