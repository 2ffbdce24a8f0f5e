"""The command `refopt`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from refopt.errors import CaseError, RefoptError

EXIT_CODES = (
    "Exit codes: 0: no violation, failure or stale expectation, and at least one run conforms; "
    "1: a violation; 2: wrong usage, a malformed file, or aborted; 3: the implementation or the "
    "harness broke; 4: an expectation is stale; 5: nothing ran, or nothing was decided; "
    "130: interrupted."
)


class _Bare:
    """A flag has no value, and help shows none."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class _Command(_Bare, TyperCommand):
    pass


class _Group(_Bare, TyperGroup):
    pass


app = typer.Typer(
    name="refopt",
    cls=_Group,
    help="The reference for optimizers: an oracle that says whether an implementation is right.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@contextmanager
def _exits() -> Iterator[None]:
    """What goes wrong has an exit code of its own; nothing else is 1."""
    from refopt.oracle.live import Missing
    from refopt.oracle.report import BROKE, INTERRUPTED, USAGE

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
        # Whoever read has seen enough; the flush at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(USAGE) from None
    except RefoptError as error:
        typer.echo(f"refopt: {error}", err=True)
        raise typer.Exit(USAGE if isinstance(error, Missing) else BROKE) from None
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception:
        typer.echo(traceback.format_exc(), err=True)
        raise typer.Exit(BROKE) from None


@contextmanager
def _reading(mine: bool) -> Iterator[None]:
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
def _writable(path: Path) -> Iterator[IO[bytes]]:
    """The file of a report, open from the start: a place that cannot be written is wrong usage."""
    try:
        file = path.open("wb")
    except OSError as error:
        msg = f"--junit must be a file that can be written, got {path}: {error.strerror}"
        raise typer.BadParameter(msg) from None
    with file:
        yield file


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
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
    str, typer.Option("--select", metavar="GLOB", help="Judge only the cases whose id matches.")
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
        help="Judge against this profile instead of each run's own (documented: the page).",
    ),
]


@app.command(cls=_Command, epilog=EXIT_CODES)
def check(
    implementation: Annotated[
        str | None,
        typer.Argument(
            metavar="IMPLEMENTATION",
            help="An installed framework (torch:NAdam, torch:RMSprop, keras:RMSprop, "
            "optax:rmsprop, …; any other name lists all); py:MODULE:FUNCTION, a Python function "
            "(param, grad, state, **hyper) -> (param, state) on NumPy arrays, whose state is None "
            "at first; 'cmd:PROGRAM ARGUMENT…', a program in any language that speaks ROP/1; a "
            "file of recordings, or a folder where every .json is one. Without it every recording "
            "and vector of the suite is judged, and refopt itself on NumPy. What is named is run, "
            "with your rights.",
            show_default=False,
        ),
    ] = None,
    select: Select = "*",
    profile: Profile = None,
    optimizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What py: or cmd: implements: nadam or rmsprop."),
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
) -> None:
    """Judge whether every value that an implementation gave can be explained by the rule."""
    with _exits():
        from refopt.oracle import live, rop, suite

        started = time.perf_counter()
        if not 0 < timeout <= threading.TIMEOUT_MAX:
            most = f"{threading.TIMEOUT_MAX:g}"
            msg = f"--timeout must be a number of seconds above 0, at most {most}; got {timeout}"
            raise typer.BadParameter(msg)
        of, command = _command(implementation, optimizer, python)
        with _reading(implementation is not None):
            if command:
                cases, framework = list(suite.selected(rop.vectors(of), select)), ""
            else:
                cases, framework = _cases(implementation, select)
        _known(profile, cases)
        tasks: Iterable[suite.Task]
        if command:
            tasks = live.answers(lambda: rop.Program(command, of, timeout), cases, profile)
        elif framework:
            tasks = live.tasks(framework, cases, profile, python=python, seconds=timeout)
        else:
            own = implementation is None and profile is None
            reports = as_json or junit is not None
            with _reading(implementation is not None or profile is not None):
                tasks = list(
                    suite.tasks(
                        cases,
                        profile,
                        numpy=own,
                        as_recorded=False,
                        every=reports,
                        beside="documented" if own else "",
                    )
                )
        asked_for = {"implementation": implementation, "select": select, "profile": profile}
        jobs = 1 if command else jobs  # what explains one run is tried on the next
        _judge(tasks, len(cases), asked_for, started, as_json=as_json, junit=junit, jobs=jobs)


@app.command(cls=_Command)
def gen(
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="What is implemented: nadam or rmsprop.")
    ],
    select: Select = "*",
    takes: Annotated[
        str | None,
        typer.Option(
            metavar="WORD,…",
            help="Ask only for cases that need no more than this: dtypes, hyperparameters, "
            "options, several parameters, missing or sparse gradients.",
            show_default="float32, float64, several, missing, and what the optimizer always has",
        ),
    ] = None,
) -> None:
    """Write the questions of the vectors as JSON Lines (ROP/1), for a program that reads a file."""
    with _exits():
        from refopt.oracle import rop

        _optimizer(optimizer)
        known = rop.words(optimizer)
        words = rop.plain(optimizer) if takes is None else set(filter(None, takes.split(",")))
        if unknown := sorted(words - {*known}):
            msg = f"--takes must list some of {', '.join(known)}; got {', '.join(unknown)}"
            raise typer.BadParameter(msg)
        for question in rop.generate(optimizer, select, words):
            _say(question)


@app.command(cls=_Command, epilog=EXIT_CODES)
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
    with _exits():
        from refopt.oracle import rop
        from refopt.oracle.process import LONGEST

        started = time.perf_counter()
        with _reading(True), _text(answers) as file:
            lines = iter(lambda: file.readline(LONGEST), "")
            tasks = list(rop.Answers(lines).tasks(select, profile))
        _known(profile, tasks)
        asked_for = {"implementation": str(answers), "select": select, "profile": profile}
        _judge(tasks, len(tasks), asked_for, started, as_json=as_json, junit=junit, jobs=1)


def _judge(
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
        xml = None if junit is None else stack.enter_context(_writable(junit))
        tally, results = report.Tally(), []
        code, complete = report.BROKE, False
        try:
            if as_json:
                _say(report.header(asked_for))
            processes = min(jobs or min(_processors(), 4), cases) or 1
            for case in _progress(suite.spread(tasks, processes), cases):
                for result in case:
                    tally.add(result)
                    results.append(result)
                    if as_json:
                        _say(report.line(result))
            code, complete = tally.exit_code, True
        except KeyboardInterrupt:
            code = report.INTERRUPTED
            raise
        finally:
            seconds = time.perf_counter() - started
            if as_json:
                _say(report.footer(tally, code, seconds, complete=complete))
            else:
                report.summary(tally, report.Terminal(), seconds, complete=complete)
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
    from refopt.oracle import rop

    if name is None or name not in rop.OBJECTS:
        known = " or ".join(rop.OBJECTS)
        msg = f"--optimizer must be {known}: what is implemented; got {name!r}"
        raise typer.BadParameter(msg)
    return name


def _command(
    implementation: str | None, optimizer: str | None, python: str
) -> tuple[str, list[str]]:
    """(optimizer, command) of a program that speaks ROP/1; empty where something else is named."""
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
            msg = f"IMPLEMENTATION must be py:MODULE:FUNCTION, got {implementation!r}"
            raise typer.BadParameter(msg)
        if shutil.which(python) is None:
            msg = f"--python must be a Python interpreter, got {python!r}"
            raise typer.BadParameter(msg)
        return of, rop.function(named, of, python)
    try:
        command = shlex.split(named)
    except ValueError as error:
        msg = f"IMPLEMENTATION must be cmd:PROGRAM ARGUMENT…, got {implementation!r}: {error}"
        raise typer.BadParameter(msg) from None
    if not command or shutil.which(command[0]) is None:
        msg = f"IMPLEMENTATION must be cmd: and a program that can be started, got {named!r}"
        raise typer.BadParameter(msg)
    return of, command


@app.command("list", cls=_Command)
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
    with _exits():
        from refopt.oracle import report, suite

        cases = [report.listed(r) for r in suite.selected(suite.recordings(), pattern)]
        if not cases:
            typer.echo(f"no case matches {pattern!r}", err=True)
            raise typer.Exit(report.NOTHING)
        if as_json:
            for case in cases:
                _say(case._asdict())
            return
        console = report.Terminal()
        console.say(report.table_of(cases, names=console.width >= 120))
        runs = report.counted(sum(len(case.runs) for case in cases), "run")
        console.print(f"{report.counted(len(cases), 'case')}, {runs}")


@app.command(cls=_Command)
def show(
    case: Annotated[str, typer.Argument(metavar="ID", help="Id of a case; see refopt list.")],
) -> None:
    """Show a case: its numbers in decimals and in bits, its runs, and their verdicts."""
    with _exits():
        from refopt.oracle import report, suite

        found = [r for r in suite.recordings() if r.case.id == case]
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
        known = ", ".join(live.IMPLEMENTATIONS)
        msg = f"IMPLEMENTATION must be {known}, or a file or folder; got {implementation!r}"
        raise typer.BadParameter(msg)
    folder = None if implementation is None else Path(implementation)
    return list(suite.selected(suite.recordings(folder), select)), ""


def _progress(results: Iterable[Any], total: int) -> Iterable[Any]:
    """The results, with a bar on a terminal; a line every tenth on one that cannot redraw."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal and console.is_dumb_terminal:
        return _tenths(results, total)
    return track(
        results,
        "judging",
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


def _say(message: Any) -> None:
    print(json.dumps(message, allow_nan=False), flush=True)


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
