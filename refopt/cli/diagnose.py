"""`refopt diagnose`: which rule an implementation follows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from refopt.cli.base import EXIT_CODES, Command, Json, Select, app, exits, reading, say
from refopt.cli.check import Build, Drawn, Seed, command_of, interpreter, seeded, starter

IMPLEMENTATION = (
    "An installed framework (torch:NAdam, keras:RMSprop, …), py:MODULE:FUNCTION, "
    "'cmd:PROGRAM ARGUMENT…', or a file of recordings; as in refopt check."
)
Implementation = Annotated[
    str, typer.Argument(metavar="IMPLEMENTATION", help=IMPLEMENTATION, show_default=False)
]
Optimizer = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What py: or cmd: is: nadam, rmsprop, sgd or thor."),
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
    build: Build = False,
    drawn: Drawn = True,
    seed: Seed = None,
) -> None:
    """Say which rule an implementation follows, and what to change so that it is another."""
    with exits(), progressing() as progress:
        from refopt.oracle import advice
        from refopt.oracle.diagnose import diagnose as diagnosed
        from refopt.oracle.report import OK, Terminal, escape

        codes: list[int] = []
        given: dict[str, Any] = {
            "python": python,
            "seconds": timeout,
            "build": build,
            "progress": progress,
        }
        for subject in subjects(implementation, optimizer, select, **given):
            against = _profile(subject.optimizer, profile)
            found = diagnosed(
                subject.optimizer, subject.observed, against=against, progress=progress
            )
            codes.append(_code(subject, found))
            if as_json:
                say(advice.document(subject, found))
            else:
                progress("")
                Terminal().say(escape(advice.paragraph(subject, found)) + "\n")
        of, command = command_of(implementation, optimizer, python)
        if command and drawn and codes == [OK] and profile == "documented":
            asked = seeded(seed, drawn=True)
            codes += _drawn(of, command, timeout, asked, as_json=as_json)
    raise typer.Exit(worst(codes))


def _drawn(
    of: str, command: list[str], seconds: float, seed: int | None, *, as_json: bool
) -> list[int]:
    """The exit codes of what conforms on the vectors where it leaves what is drawn beside them."""
    from refopt.oracle import live, report, rop, suite

    def more(program: Any) -> Any:
        return program.drawn(seed)

    tasks = live.answers(lambda: rop.Program(command, of, seconds), (), None, more)
    tally = report.Tally()
    for (result,) in map(suite.work, tasks):
        tally.add(result)
    wrong = [r.case for r in tally.notable]
    text = "; ".join("\n".join(report.plain(result)) for result in tally.notable[:1])
    if as_json:
        say({"kind": "drawn", "seed": seed, "cases": len(tally.cases), "outside": wrong})
    elif wrong:
        said = f"It leaves {len(wrong)} of {len(tally.cases)} cases drawn with --seed {seed}"
        typer.echo(f"{said}: {', '.join(wrong)}\n{text}")
    else:
        typer.echo(f"It holds {len(tally.cases)} cases drawn with --seed {seed} as well.")
    return [tally.exit_code] if wrong else []


@app.command(cls=Command)
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A profile. " + IMPLEMENTATION)],
    second: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    optimizer: Optimizer = None,
    select: Select = "*",
    as_json: Json = False,
    python: Python = sys.executable,
    timeout: Timeout = 60.0,
) -> None:
    """Say how two rules differ, and while what they agree: profiles, or implementations."""
    with exits(), progressing() as progress:
        from refopt.oracle import advice, observe
        from refopt.oracle.between import between
        from refopt.oracle.report import NOTHING, OK, Terminal, escape

        sides = [
            _followed(x, optimizer, select, python=python, seconds=timeout, progress=progress)
            for x in (first, second)
        ]
        optimizers = sorted({of for _, found in sides for of in found})
        shared = [of for of in optimizers if all(of in found for _, found in sides)]
        if optimizer is not None:
            shared = [of for of in shared if of == optimizer]
        if not shared:
            msg = f"A and B must be of one optimizer; got {first!r} and {second!r}"
            raise typer.BadParameter(msg)
        (one, a), (other, b) = sides
        known = 0
        for of in shared:
            if a[of] is None or b[of] is None:
                lost = [name for name, side in ((one, a), (other, b)) if side[of] is None]
                typer.echo(f"{' and '.join(lost)}: no rule is known; see refopt diagnose", err=True)
                continue
            if not (vectors := observe.vectors(of, select)):
                continue
            found = between(of, a[of], b[of], vectors, progress)
            known += 1
            text = advice.comparison((one, other), found)
            if as_json:
                say({"kind": "comparison", "text": text, **advice.plain(found)})
            else:
                progress("")
                Terminal().say(escape(text) + "\n")
    raise typer.Exit(OK if known else NOTHING)


def _followed(
    name: str, optimizer: str | None, select: str, **given: Any
) -> tuple[str, dict[str, Any]]:
    """(name, the record that is followed, by optimizer); None where no record is known."""
    from refopt.oracle.diagnose import Record
    from refopt.oracle.diagnose import diagnose as diagnosed
    from refopt.oracle.spec import RULES

    profiles = {of: Record(name, ()) for of, rule in RULES.items() if name in rule.PROFILES}
    if profiles:
        return name, profiles
    of = optimizer if name.startswith(("py:", "cmd:")) else None
    found: dict[str, Any] = {}
    for subject in subjects(name, of, select, **given):
        held = diagnosed(subject.optimizer, subject.observed, progress=given["progress"]).held
        found.setdefault(subject.optimizer, held[0] if held else None)
    return name, found


@app.command(cls=Command, epilog=EXIT_CODES)
def minimize(
    implementation: Annotated[
        str,
        typer.Argument(
            metavar="IMPLEMENTATION",
            help="An installed framework, py:MODULE:FUNCTION or 'cmd:PROGRAM ARGUMENT…'.",
            show_default=False,
        ),
    ],
    optimizer: Optimizer = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="The profile that it should follow.")
    ] = "documented",
    select: Select = "*",
    python: Python = sys.executable,
    timeout: Timeout = 60.0,
    build: Build = False,
) -> None:
    """Print the smallest input on which an implementation fails, as a Python program."""
    with exits(), progressing() as progress:
        from refopt.oracle import live, observe
        from refopt.oracle import minimize as minimizing
        from refopt.oracle.report import OK, VIOLATED
        from refopt.oracle.spec import RULES

        of, command = command_of(implementation, optimizer, python)
        start: Callable[[], Any]
        if command:
            start, paths = starter(command, of, timeout), [""]
            cases = observe.vectors(of, select)
            program = start()
            takes = program.spoken.takes
            program.close()
        elif implementation in live.IMPLEMENTATIONS:
            of = live.IMPLEMENTATIONS[implementation].recordings.split("/")[0]
            if hasattr(RULES[of], "Layer"):
                msg = f"{implementation} runs networks of its own, which cannot be made smaller"
                raise typer.BadParameter(msg)
            python = interpreter(implementation, python, build=build)
            start = live.starter(implementation, python, timeout)
            cases = observe.cases(implementation, select)
            adapter = start()
            paths = adapter.paths or [""]
            adapter.close()
        else:
            known = ", ".join(live.IMPLEMENTATIONS)
            msg = f"IMPLEMENTATION must be {known}, py: or cmd:; got {implementation!r}"
            raise typer.BadParameter(msg)
        against = _profile(of, profile)
        rule_profile, found, path = RULES[of].PROFILES[against], None, ""
        asking = live.Asking(start, None)
        try:
            for path in paths:
                ask = minimizing.asker(asking, path)
                case = minimizing.start(ask, cases, rule_profile)
                found = case and minimizing.minimize(ask, case, rule_profile, progress)
                if found:
                    break
        finally:
            asking.close()
        progress("")
        if not found:
            typer.echo(f"{implementation} leaves {against} on no vector that it answers", err=True)
            raise typer.Exit(OK)
        if not command:
            text = minimizing.of_framework(found, implementation, python, path, against)
        elif implementation.startswith("py:"):
            text = minimizing.of_function(found, implementation[3:], takes, against)
        else:
            text = minimizing.of_program(found, command, against)
        typer.echo(text)
    raise typer.Exit(VIOLATED)


def _profile(optimizer: str, name: str) -> str:
    """A profile of an optimizer, by name."""
    from refopt.oracle.spec import RULES

    if name not in (known := RULES[optimizer].PROFILES):
        msg = f"--profile must be one of {', '.join(known)}; got {name!r}"
        raise typer.BadParameter(msg)
    return name


def _code(subject: Any, found: Any) -> int:
    """The exit code of one diagnosis."""
    from refopt.oracle.report import BROKE, NOTHING, OK, VIOLATED
    from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE

    if subject.broke:
        return BROKE
    if subject.wrong:
        return VIOLATED
    owed = any(failed.owed for failed in subject.failed)
    if owed and found.status == CONFORMS:
        return NOTHING
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
    build: bool = False,
    progress: Callable[[str], None],
) -> list[Any]:
    """What is named, as what it did with the vectors."""
    from refopt.oracle import live, observe

    of, command = command_of(implementation, optimizer, python)
    with reading(True):
        if command:
            name = implementation.partition(":")[2]
            found = observe.vectors(of, select)
            tasks = live.answers(starter(command, of, seconds), found, None)
        elif implementation in live.IMPLEMENTATIONS:
            name, found = implementation, observe.cases(implementation, select)
            able = interpreter(name, python, build=build)
            tasks = observe.framework(name, found, python=able, seconds=seconds)
        elif Path(implementation).exists():
            name, tasks = implementation, observe.recorded(Path(implementation), select)
        else:
            known = ", ".join(live.IMPLEMENTATIONS)
            msg = f"IMPLEMENTATION must be {known}, py:, cmd:, or a file; got {implementation!r}"
            raise typer.BadParameter(msg)
        did = observe.subjects(name, tasks, progress)
        if not did:
            typer.echo(f"no case of {name} matches the selection: nothing ran", err=True)
        return did


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
