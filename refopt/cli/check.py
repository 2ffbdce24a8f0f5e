"""`refopt check`, and what belongs to it: the main job."""

from __future__ import annotations

import difflib
import importlib.util
import re
import secrets
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from refopt.cli.base import (
    EXIT_CODES,
    Command,
    Jobs,
    Json,
    Junit,
    Profile,
    Select,
    app,
    exits,
    processors,
    progress,
    reading,
    say,
    text,
    writable,
)

Build = Annotated[
    bool,
    typer.Option(
        "--build",
        metavar="",
        help="Build the framework's pinned environment, if no interpreter has it.",
    ),
]


LARGEST_SEED = 10**18 - 1
Drawn = Annotated[
    bool,
    typer.Option(
        "--drawn/--no-drawn",
        metavar="",
        help="Ask py: and cmd: a few cases beside the vectors, drawn anew in each run.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=LARGEST_SEED,
        metavar="N",
        envvar="REFOPT_SEED",
        show_envvar=False,
        help="The seed of the cases that are drawn, as a run before printed it.",
        show_default=False,
    ),
]


def seeded(seed: int | None, *, drawn: bool) -> int | None:
    """The seed of what is drawn, a fresh one where none is given; None: nothing is drawn."""
    return (secrets.randbelow(10**6) if seed is None else seed) if drawn else None


def drawn_of(program: Any, seed: int, select: str) -> list[Any]:
    """The cases that are drawn for a program."""
    return [r for r in program.drawn(seed) if fnmatchcase(r.case.id, select)]


def interpreter(framework: str, python: str, *, build: bool) -> str:
    """The interpreter of a framework: the one that is named, or the first that has it.

    With `build` its pinned environment is made where there is none, after saying how large it is.
    """
    from refopt.oracle import environments, live

    if python != sys.executable:
        return python
    found = live.interpreter(framework)
    if found is not None or not build:
        return found or python
    environment = environments.of(framework)
    pins = environments.pins(environment)
    what = f"{len(pins)} packages, {environment.megabytes} MB, in {environment.home}"
    typer.echo(f"{environment.name}: {what}", err=True)
    for _ in _installing(environments.build(environment), len(pins)):
        pass
    return str(environment.interpreter)


def _installing(installed: Iterable[str], total: int) -> Iterable[str]:
    """What is installed, with a bar on a terminal; else a line each."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        yield from track(installed, "installing", total=total, console=console, transient=True)
        return
    for n, what in enumerate(installed, 1):
        typer.echo(f"installed {n} of {total}: {what}", err=True)
        yield what


@app.command(cls=Command, epilog=EXIT_CODES)
def check(
    implementation: Annotated[
        str | None,
        typer.Argument(
            metavar="IMPLEMENTATION",
            help="An installed framework (torch:NAdam, torch:RMSprop, keras:RMSprop, "
            "optax:rmsprop, …; any other name lists all); py:MODULE:FUNCTION, a Python function "
            "(param, grad, state, **hyper) -> (param, state) on NumPy arrays, whose state is None "
            "at first, looked for here and in PYTHONPATH; 'cmd:PROGRAM ARGUMENT…', a program in "
            "any language that speaks ROP/1; a file of recordings, or a folder where every .json "
            "is one. Without it every recording "
            "and vector of the suite is judged, and refopt itself on NumPy. What is named is run, "
            "with your rights.",
            show_default=False,
        ),
    ] = None,
    select: Select = "*",
    profile: Profile = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What py: or cmd: implements: nadam, rmsprop, sgd or thor."
        ),
    ] = None,
    as_json: Json = False,
    junit: Junit = None,
    jobs: Jobs = 0,
    python: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Run the framework, or the function of py:, in this interpreter.",
            show_default="the one that runs refopt",
        ),
    ] = sys.executable,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Give an implementation so long for an answer."),
    ] = 60.0,
    execution: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="How refopt itself runs the rules: plain, or fused, or compiled by jax or torch, "
            "and then by the profile of each recording too.",
        ),
    ] = "plain",
    build: Build = False,
    drawn: Drawn = True,
    seed: Seed = None,
) -> None:
    """Judge whether every value that an implementation gave can be explained by the rule.

    Teacher-forced: a step is judged from the state that was shown after the step before.
    Open-loop: what is hidden is computed from the first step on.
    """
    with exits():
        from refopt.oracle import drawn as drawing
        from refopt.oracle import live, rop, suite
        from refopt.oracle.own import EXECUTIONS

        started = time.perf_counter()
        if not 0 < timeout <= threading.TIMEOUT_MAX:
            most = f"{threading.TIMEOUT_MAX:g}"
            msg = f"--timeout must be a number of seconds above 0, at most {most}; got {timeout}"
            raise typer.BadParameter(msg)
        own = implementation is None and profile is None
        if execution not in ("plain", *(EXECUTIONS if own else ())):
            known = ", ".join(("plain", *EXECUTIONS))
            wanted = (
                f"one of {known}" if own else "plain where an implementation or profile is named"
            )
            msg = f"--execution must be {wanted}; got {execution!r}"
            raise typer.BadParameter(msg)
        if execution in ("jax", "torch") and importlib.util.find_spec(execution) is None:
            msg = f"--execution {execution} needs refopt[{execution}]"
            raise typer.BadParameter(msg)
        of, command = command_of(implementation, optimizer, python)
        seed = seeded(seed, drawn=drawn and bool(command))
        with reading(implementation is not None):
            if command:
                cases, framework = list(suite.selected(rop.vectors(of), select)), ""
            else:
                cases, framework = _cases(implementation, select)
        _known(profile, cases)
        tasks: Iterable[suite.Task]
        if command:
            tasks = live.answers(
                starter(command, of, timeout),
                cases,
                profile,
                lambda program: () if seed is None else drawn_of(program, seed, select),
            )
        elif framework:
            python = interpreter(framework, python, build=build)
            tasks = live.tasks(framework, cases, profile, python=python, seconds=timeout)
        else:
            reports = as_json or junit is not None
            with reading(implementation is not None or profile is not None):
                tasks = list(
                    suite.tasks(
                        cases,
                        profile,
                        numpy=own,
                        as_recorded=execution != "plain",
                        execution=execution,
                        every=reports,
                        beside="documented" if own else "",
                    )
                )
        asked_for: dict[str, Any] = {
            "implementation": implementation,
            "select": select,
            "profile": profile,
        }
        asked_for |= {} if seed is None else {"seed": seed}
        jobs = 1 if command else jobs  # what explains one run is tried on the next
        number = len(cases) + (0 if seed is None else drawing.number(of))
        judge(tasks, number, asked_for, started, as_json=as_json, junit=junit, jobs=jobs)


@app.command(cls=Command)
def gen(
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="What is implemented: nadam, rmsprop, sgd or thor.")
    ],
    select: Select = "*",
    takes: Annotated[
        str | None,
        typer.Option(
            metavar="WORD,…",
            help="Ask only for cases that need no more than this: dtypes, hyperparameters, "
            "options, several parameters, missing or sparse gradients; with set_state, states are "
            "set between the steps. docs/protocol.md has the words.",
            show_default="float32, float64, several, missing, and what the optimizer always has",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=LARGEST_SEED,
            metavar="N",
            help="Ask as well for cases drawn with this seed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the questions of the vectors as JSON Lines (ROP/1), for a program that reads a file."""
    with exits():
        from refopt.oracle import rop

        _optimizer(optimizer)
        known = rop.words(optimizer)
        words = rop.plain(optimizer) if takes is None else set(filter(None, takes.split(",")))
        if unknown := sorted(words - {*known}):
            msg = f"--takes must list some of {', '.join(known)}; got {', '.join(unknown)}"
            raise typer.BadParameter(msg)
        for question in rop.generate(optimizer, select, words, seed):
            say(question)


@app.command(cls=Command, epilog=EXIT_CODES)
def ver(
    answers: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The answers of a program to what refopt gen wrote; - is the standard input.",
            show_default=False,
        ),
    ],
    select: Select = "*",
    profile: Profile = None,
    as_json: Json = False,
    junit: Junit = None,
) -> None:
    """Judge the answers of a program to the questions of refopt gen."""
    with exits():
        from refopt.oracle import rop
        from refopt.oracle.process import LONGEST

        started = time.perf_counter()
        with reading(True), text(answers) as file:
            lines = iter(lambda: file.readline(LONGEST), "")
            answered = rop.Answers(lines)
            tasks = list(answered.tasks(select, profile))
        _known(profile, tasks)
        asked_for: dict[str, Any] = {
            "implementation": str(answers),
            "select": select,
            "profile": profile,
        }
        asked_for |= {} if answered.seed is None else {"seed": answered.seed}
        judge(tasks, len(tasks), asked_for, started, as_json=as_json, junit=junit, jobs=1)


def judge(
    tasks: Iterable[Any],
    cases: int,
    asked_for: dict[str, Any],
    started: float,
    *,
    as_json: bool,
    junit: Path | None,
    jobs: int,
) -> NoReturn:
    """Judge and report; ends with the exit code."""
    from refopt.oracle import report, suite

    with ExitStack() as stack:
        xml = None if junit is None else stack.enter_context(writable(junit, "--junit"))
        tally, results = report.Tally(), []
        code, complete = report.BROKE, False
        try:
            if as_json:
                say(report.header(asked_for))
            processes = min(jobs or min(processors(), 4), cases) or 1
            for case in progress(suite.spread(tasks, processes), cases):
                for result in case:
                    tally.add(result)
                    results.append(result)
                    if as_json:
                        say(report.line(result))
            code, complete = tally.exit_code, True
        except KeyboardInterrupt:
            code = report.INTERRUPTED
            raise
        finally:
            seconds = time.perf_counter() - started
            if as_json:
                say(report.footer(tally, code, seconds, complete=complete))
            else:
                report.summary(tally, report.Terminal(), seconds, complete=complete)
                if "seed" in asked_for:
                    typer.echo(f"drawn with seed {asked_for['seed']}: --seed asks the same again")
            if xml is not None:
                xml.write(report.junit(results, seconds))
    raise typer.Exit(code)


def _known(profile: str | None, found: Iterable[Any]) -> None:
    """A profile must be one of the optimizers of what was found."""
    from refopt.oracle import suite

    asked = {suite.optimizer(x.case.id) for x in found}
    if profile is not None and profile not in (known := suite.profile_names(asked)):
        msg = f"--profile must be one of {', '.join(known)}; got {profile!r}"
        raise typer.BadParameter(msg)


def _optimizer(name: str | None) -> str:
    """The name of an optimizer that the protocol can ask for."""
    from refopt.oracle.spec import RULES

    if name is None or name not in RULES:
        known = ", ".join(RULES)
        msg = f"--optimizer must be one of {known}: what is implemented; got {name!r}"
        raise typer.BadParameter(msg)
    return name


def starter(command: list[str], optimizer: str, seconds: float) -> Callable[[], Any]:
    """What starts a program; the first time it is said what to know of it."""
    from refopt.oracle import rop

    said: list[str] = []

    def start() -> rop.Program:
        program = rop.Program(command, optimizer, seconds)
        if not said:
            said.extend(rop.notes(program.spoken, optimizer))
            for note in said:
                typer.echo(f"refopt: {note}", err=True)
            said.append("")
        return program

    return start


def command_of(
    implementation: str | None,
    optimizer: str | None,
    python: str,
    path: Iterable[str] = (),
    argument: str = "IMPLEMENTATION",
) -> tuple[str, list[str]]:
    """(optimizer, command) of a program that speaks ROP/1; empty where something else is named.

    `path`: folders where the module of py: may be.
    """
    kind, _, named = (implementation or "").partition(":")
    if kind not in ("py", "cmd"):
        if optimizer is not None:
            msg = f"--optimizer must be absent but for py: and cmd:, got {optimizer!r}"
            raise typer.BadParameter(msg)
        return "", []
    from refopt.oracle import rop

    of = _optimizer(optimizer)
    if kind == "py":
        if not re.fullmatch(r"[\w.]+:\w+", named):
            msg = f"{argument} must be py:MODULE:FUNCTION, got {implementation!r}"
            raise typer.BadParameter(msg)
        if shutil.which(python) is None:
            msg = f"--python must be a Python interpreter, got {python!r}"
            raise typer.BadParameter(msg)
        return of, rop.function(named, of, python, path)
    try:
        command = shlex.split(named)
    except ValueError as error:
        msg = f"{argument} must be cmd:PROGRAM ARGUMENT…, got {implementation!r}: {error}"
        raise typer.BadParameter(msg) from None
    if not command or shutil.which(command[0]) is None:
        msg = f"{argument} must be cmd: and a program that can be started, got {named!r}"
        raise typer.BadParameter(msg)
    return of, command


@app.command("list", cls=Command)
def list_(
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="GLOB", help="List only the cases whose id matches.", show_default=False
        ),
    ] = "*",
    as_json: Json = False,
) -> None:
    """List the cases of the suite, and who ran them."""
    with exits():
        from refopt.oracle import report, suite

        cases = [report.listed(r) for r in suite.selected(suite.recordings(), pattern)]
        if not cases:
            typer.echo(f"no case matches {pattern!r}", err=True)
            raise typer.Exit(report.NOTHING)
        if as_json:
            for case in cases:
                say(case._asdict())
            return
        console = report.Terminal()
        console.say(report.table_of(cases, names=console.width >= 120))
        runs = report.counted(sum(len(case.runs) for case in cases), "run")
        console.print(f"{report.counted(len(cases), 'case')}, {runs}")


@app.command(cls=Command)
def show(
    case: Annotated[str, typer.Argument(metavar="ID", help="Id of a case; see refopt list.")],
) -> None:
    """Show a case: its numbers in decimals and in bits, its runs, and their verdicts."""
    with exits():
        from refopt.oracle import drawn, own, report, suite

        found = [r for r in suite.recordings() if r.case.id == case]
        if drawn.parsed(case):
            found = [own.recorded(drawn.case(case))]
        if not found:
            msg = f"ID must be that of a case (refopt list), got {case!r}"
            raise typer.BadParameter(msg)
        console = report.Terminal()
        for recording in found:
            (task,) = suite.tasks([recording], numpy=False)
            for part in report.shown(recording, suite.work(task)):
                console.say(part)


def _cases(implementation: str | None, select: str) -> tuple[list[Any], str]:
    """(recordings, name of the framework to run on their cases; none: judge their runs)."""
    from refopt.oracle import live, suite

    if implementation in live.IMPLEMENTATIONS:
        return list(suite.selected(live.cases(implementation), select)), implementation
    if implementation is not None and not Path(implementation).exists():
        close = difflib.get_close_matches(implementation, live.IMPLEMENTATIONS)
        known = ", ".join(close or live.IMPLEMENTATIONS)
        file = implementation.endswith(".json") or "/" in implementation
        wanted = "a file or folder that exists" if file else f"{known}, or a file or folder"
        msg = f"IMPLEMENTATION must be {wanted}; got {implementation!r}"
        raise typer.BadParameter(msg)
    folder = None if implementation is None else Path(implementation)
    return list(suite.selected(suite.recordings(folder), select)), ""
