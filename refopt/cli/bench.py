"""`refopt bench`: how fast a step is beside its peers."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from refopt.cli.base import Command, Json, app, exits, say, writable


@app.command(cls=Command)
def bench(
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="nadam, rmsprop or thor; may be repeated; else the first two."
        ),
    ] = None,
    tensors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIST",
            help="A number of elements, resnet50, bert-base or 1000x1000; of thor the factors of "
            "resnet50, or resnet50-128, their blocks; may be repeated.",
            show_default="1e3 to 5e7, and all lists",
        ),
    ] = None,
    contestant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run only these; may be repeated."),
    ] = None,
    tensorflow: Annotated[
        str,
        typer.Option(metavar="PATH", help="A Python with TensorFlow 2.9, to be timed as well."),
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Interleaved rounds.")] = 9,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="Of every library.")] = 1,
    as_json: Json = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all figures as JSON as well.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=r"Draw the ratios (needs refopt\[teach]): .svg or .png."),
    ] = None,
) -> None:
    """Time steps of refopt, of its peers that are installed, and of memory alone.

    Ratios are to refopt within one round; quartiles over the rounds.
    """
    with exits():
        if kind := os.environ.get("OPENBLAS_CORETYPE"):
            msg = f"OPENBLAS_CORETYPE must be unset: it changes what is measured; got {kind!r}"
            raise typer.BadParameter(msg)
        from refopt import bench as measuring

        if tensorflow and shutil.which(tensorflow) is None:
            msg = f"--tensorflow must be a Python interpreter, got {tensorflow!r}"
            raise typer.BadParameter(msg)
        if plot is not None and plot.suffix not in (".svg", ".png"):
            msg = f"--plot must be a .svg or a .png, got {plot}"
            raise typer.BadParameter(msg)
        names = dict.fromkeys((*measuring.CONTESTANTS, measuring.TENSORFLOW, *measuring.REFRESHES))
        wanted = _known("--contestant", contestant, names)
        chosen = _known("--optimizer", optimizer, ("nadam", "rmsprop", "thor"))
        runs = [
            (name, which)
            for name in chosen or ("nadam", "rmsprop")
            for which in _lists(name, tensors, measuring)
        ]
        measuring.limit_threads(threads)
        found: list[Any] = []
        header = {**measuring.machine(), "threads": threads, "rounds": rounds}
        if as_json:
            say(header)
        with ExitStack() as stack:  # a file that cannot be written is found before the work
            file = None if output is None else stack.enter_context(writable(output, "--output"))
            for name, which in runs:
                timings = list(measuring.measured(name, which, rounds, wanted, tensorflow))
                found += timings
                if as_json:
                    for timing in timings:
                        say(timing._asdict())
                else:
                    _print(timings)
            if file is not None:
                everything = {**header, "timings": [timing._asdict() for timing in found]}
                file.write(json.dumps(everything, indent=1).encode())
        if plot is not None:
            measuring.drawn(found, plot)


def _lists(optimizer: str, given: list[str] | None, measuring: Any) -> list[str]:
    """The tensors on which an optimizer is timed."""
    own = measuring.FACTORS if optimizer == "thor" else measuring.LISTS
    sizes = () if optimizer == "thor" else measuring.SIZES
    for name in given or ():
        if name not in own and not (sizes and _is_size(name)):
            known = ", ".join((*(["a number of elements"] if sizes else []), *own))
            msg = f"--tensors of {optimizer} must be one of {known}; got {name!r}"
            raise typer.BadParameter(msg)
    return given or [*sizes, *own]


def _is_size(name: str) -> bool:
    try:
        return float(name) >= 1
    except ValueError:
        return False


def _known(option: str, given: list[str] | None, known: Any) -> list[str]:
    for name in given or ():
        if name not in known:
            msg = f"{option} must be one of {', '.join(known)}; got {name!r}"
            raise typer.BadParameter(msg)
    return given or []


def _print(timings: list[Any]) -> None:
    """One table: a row a contestant."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{timings[0].optimizer}, {timings[0].tensors}", title_justify="left")
    for column in ("", "ms", "times refopt", "quartiles", "extra memory"):
        table.add_column(column, justify="left" if column == "" else "right")
    for timing in timings:
        low, middle, high = timing.ratio
        extra = "" if timing.extra is None else f"{timing.extra / 1e6:.2f} MB"
        row = (f"{timing.seconds[1] * 1e3:.4g}", f"{middle:.2f}", f"{low:.2f}–{high:.2f}", extra)
        table.add_row(timing.contestant, *row)
    Console().print(table)
