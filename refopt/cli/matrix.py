"""`refopt matrix`: which rule each release follows, as a page."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from refopt.cli.base import (
    EXIT_CODES,
    Command,
    Jobs,
    Select,
    app,
    exits,
    processors,
    progress,
    reading,
)


@app.command(cls=Command, epilog=EXIT_CODES)
def matrix(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Write matrix.html, matrix.md, matrix.jsonl, junit.xml and badges/ there.",
        ),
    ],
    select: Select = "*",
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded", metavar="", help="Run no framework: judge the recordings of all."
        ),
    ] = False,
    python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Look for frameworks in this interpreter first, before the one that runs refopt "
            "and the pinned environments in $REFOPT_ENVS; may be repeated.",
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = 0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Give a framework so long for a case.")
    ] = 60.0,
) -> None:
    """Judge every release that is known, and draw which rule each follows.

    A framework that is installed is run on the cases that it was recorded on; of any other the
    recordings are judged, and the page says so.
    """
    with exits():
        from refopt.oracle import matrix as m
        from refopt.oracle import report, suite

        started = time.perf_counter()
        try:
            (folder / "badges").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"FOLDER must be one that can be written to, got {folder}: {error.strerror}"
            raise typer.BadParameter(msg) from None
        with reading(False):
            found = list(m.sources(select, python or [], run=not recorded))
        if not found:
            typer.echo(f"no case matches {select!r}", err=True)
            raise typer.Exit(report.NOTHING)
        for source in found:
            if source.reason:
                typer.echo(f"not run: {source.reason}", err=True)
        drawn, tally, results = m.Matrix(), report.Tally(), []
        processes = jobs or min(processors(), 4)
        total = sum(len(source.recordings) for source in found)
        given: list[tuple[Any, Any]] = []
        for n, case in enumerate(
            progress(suite.spread(_tasks(found, timeout, given), processes), total)
        ):
            source, task = given[n]
            drawn.add(source, task, case)
            for result in case:
                tally.add(result)
                results.append(result)
        m.identify(drawn, processes, progress)
        wanted = m.drawings(drawn)
        curves = {
            (drawing.case.id, drawing.row): curve
            for drawing, curve in zip(
                wanted,
                progress(suite.over(m.draw, wanted, processes), len(wanted), "drawing"),
                strict=True,
            )
        }
        seconds = time.perf_counter() - started
        code = tally.exit_code
        lines = [
            report.header({"implementation": "matrix", "select": select, "profile": None}),
            *map(report.line, results),
            report.footer(tally, code, seconds, complete=True),
        ]
        files = {
            "matrix.html": m.page(drawn, curves, code),
            "matrix.md": "\n".join(m.markdown(drawn)) + "\n",
            "matrix.jsonl": "".join(json.dumps(x, allow_nan=False) + "\n" for x in lines),
            "junit.xml": report.junit(results, seconds).decode(),
            **{
                f"badges/{optimizer}-{name}.json": json.dumps(m.badge(optimizer, name, row)) + "\n"
                for optimizer, rows in drawn.rows.items()
                for name, row in rows.items()
            },
        }
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        report.summary(tally, report.Terminal(), seconds)
        typer.echo(f"wrote {folder / 'matrix.html'}")
    raise typer.Exit(code)


def _tasks(found: list[Any], seconds: float, given: list[tuple[Any, Any]]) -> Iterator[Any]:
    """The tasks of all sources; `given` has each with its source, in order."""
    from refopt.oracle import matrix as m

    for source in found:
        for task in m.tasks(source, seconds):
            given.append((source, task))
            yield task
