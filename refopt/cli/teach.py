"""`refopt trace`, `explain`, `plot` and `exercise`: for who learns and teaches."""

from __future__ import annotations

import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from refopt.cli.base import Command, app, exits, reading
from refopt.cli.check import Build, command_of, interpreter
from refopt.cli.diagnose import Python

Optimizer = Annotated[
    str, typer.Argument(metavar="OPTIMIZER", help="By name, as nadam.", show_default=False)
]
PROBLEMS = (
    "quadratic, rosenbrock, beale, himmelblau, rastrigin, saddle, noisy-quadratic, logistic, digits"
)
Problem = Annotated[str, typer.Option(metavar="NAME", help=f"What is minimised: {PROBLEMS}.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A hyperparameter or option, as lr=0.1 or centered=1; may be repeated.",
    ),
]
Follows = Annotated[str, typer.Option("--profile", metavar="NAME", help="The rule to follow.")]
Dtype = Annotated[str, typer.Option(metavar="NAME", help="float16, float32 or float64.")]


class Form(StrEnum):
    """How a table is written."""

    text = "text"
    markdown = "markdown"
    csv = "csv"
    json = "json"


def numbers(given: list[str] | None) -> dict[str, Any]:
    """Hyperparameters as numbers by name; a whole number stays one."""
    from refopt.teach import runs

    try:
        return runs.numbers("--set", given or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def columns() -> int:
    """Of the terminal; into a file or a pipe 80."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 80


def known_dtype(name: str) -> str:
    """A dtype that NumPy has."""
    if name not in ("float16", "float32", "float64"):
        msg = f"--dtype must be float16, float32 or float64; got {name!r}"
        raise typer.BadParameter(msg)
    return name


@app.command(cls=Command)
def trace(
    optimizer: Optimizer,
    problem: Problem = "rosenbrock",
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="How many steps.")] = 5,
    profile: Follows = "documented",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Put another profile, a framework as torch:NAdam, py:MODULE:FUNCTION or "
            "'cmd:PROGRAM ARGUMENT…' (see refopt check) beside it on the same gradients, and mark "
            "the first difference.",
        ),
    ] = None,
    precision: Annotated[
        int | None,
        typer.Option(
            min=64,
            max=4096,
            metavar="BITS",
            help="Put the true value beside it, from balls of so many bits, and the digits lost.",
        ),
    ] = None,
    parameter: Annotated[
        int, typer.Option(min=0, metavar="N", help="Which parameter, from 0.")
    ] = 0,
    element: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Which element of it, from 0; or norm.",
            show_default="0, of a network norm",
        ),
    ] = None,
    dtype: Dtype = "float64",
    given: Set = None,
    form: Annotated[Form, typer.Option("--format", help="How the table is written.")] = Form.text,
    python: Python = sys.executable,
    build: Build = False,
) -> None:
    """Show every named number of an optimizer at every step."""
    with exits():
        from refopt.oracle import live
        from refopt.teach import trace as tables

        if against in live.IMPLEMENTATIONS:
            python = interpreter(against, python, build=build)
        program = (against or "").startswith(("py:", "cmd:"))
        try:
            table = tables.trace(
                optimizer,
                problem,
                steps,
                profile=profile,
                given=numbers(given),
                against=against,
                bits=precision,
                dtype=known_dtype(dtype),
                parameter=parameter,
                element=int(element) if element and element.isdigit() else element,
                python=python,
                command=command_of(against, optimizer, python, argument="--against")[1]
                if program
                else (),
            )
        except IndexError as error:
            raise typer.BadParameter(str(error)) from None
        typer.echo(tables.FORMATTED[form.value](table), nl=form is Form.json)


@app.command(cls=Command)
def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="An optimizer, as nadam; a profile, as keras-3; a clause, as NAD-5.3; a "
            "hyperparameter or option; or a vector.",
            show_default=False,
        ),
    ],
    profile: Follows = "documented",
    latex: Annotated[
        bool, typer.Option("--latex", metavar="", help="Print the equations as LaTeX.")
    ] = False,
    mathml: Annotated[
        bool, typer.Option("--mathml", metavar="", help="Print the equations as MathML.")
    ] = False,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="PROFILE PROFILE", help="Only what differs between two profiles."),
    ] = None,
) -> None:
    """Explain an optimizer by the equations of its rule, or anything else that has a name."""
    with exits():
        from refopt.teach import explain as explained

        if latex and mathml:
            msg = "--latex and --mathml must not be given together"
            raise typer.BadParameter(msg)
        if diff is not None:
            typer.echo(explained.difference(what, *diff), nl=False)
        elif latex or mathml:
            found = explained.forms(what, profile)
            typer.echo(explained.PRINTED["latex" if latex else "mathml"](found))
        elif profile != "documented":
            typer.echo(explained.optimizer(what, profile, columns()), nl=False)
        else:
            typer.echo(explained.anything(what, columns()), nl=False)


@app.command(cls=Command)
def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="paths of optimizers on a landscape; learning curves; quantities of an optimizer "
            "over steps; bands: a float16 run in its envelope; spectra of THOR's factors.",
            show_default=False,
        ),
    ],
    optimizers: Annotated[
        list[str],
        typer.Argument(
            metavar="OPTIMIZER…",
            help=r"Each OPTIMIZER\[/PROFILE]\[:NAME=VALUE,…], as rmsprop/keras-3:momentum=0.9. "
            "Without lr it takes the power of two that leaves the lowest value.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="A .png, .svg or .gif (animated).")
    ],
    problem: Problem = "rosenbrock",
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="How many steps.")] = 50,
    quantity: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of the rule, as m or v_hat; may be repeated."),
    ] = None,
) -> None:
    r"""Draw what optimizers do (needs matplotlib: pip install 'refopt\[teach]')."""
    with exits():
        from refopt.teach import plot as pictures

        try:
            figure = pictures.picture(kind, optimizers, problem, steps, quantity or ())
            pictures.save(figure, out)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        except OSError as error:
            msg = f"--out must be a file that can be written, got {out}: {error.strerror}"
            raise typer.BadParameter(msg) from None
        typer.echo(f"{out}")


@app.command(cls=Command)
def exercise(
    optimizer: Annotated[
        str | None,
        typer.Argument(
            metavar="OPTIMIZER",
            help="What is to be written: sgd, rmsprop, nadam or thor.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where the exercise is written."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Judge a file; it is run, with your rights."),
    ] = None,
    hint: Annotated[
        int,
        typer.Option(
            min=1, max=3, metavar="N", help="1: quantity and step; 2: the clause; 3: the equation."
        ),
    ] = 1,
) -> None:
    """Write an exercise, or judge one and give a hint; exits with 1 while it does not conform."""
    with exits():
        from refopt.oracle.report import VIOLATED
        from refopt.teach import exercise as exercises

        if (optimizer is None) == (check is None):
            msg = "either OPTIMIZER or --check must be given"
            raise typer.BadParameter(msg)
        if optimizer is not None:
            path = out or Path(f"{optimizer}_exercise.py")
            content = exercises.text(optimizer, path.name)
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(content)
            except OSError as error:
                msg = f"--out must be a new file that can be written, got {path}: {error.strerror}"
                raise typer.BadParameter(msg) from None
            typer.echo(f"{path}: write the step, then refopt exercise --check {path}")
            return
        with reading(True):
            report = exercises.check(check or Path())
        if report.conforms:
            typer.echo(f"conforms: {report.checks} values are those of {report.optimizer}")
            return
        for text in report.hints[:hint]:
            typer.echo(text)
        if hint < len(report.hints):
            typer.echo(f"more: --hint {hint + 1}")
        raise typer.Exit(VIOLATED)
