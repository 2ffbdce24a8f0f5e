"""`refopt vectors`, `refopt clauses`, `refopt mutants`: what the suite decides, and how well."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from refopt.cli.base import Command, Jobs, Json, app, exits, processors, progress, say

Optimizer = Annotated[
    str | None,
    typer.Argument(metavar="OPTIMIZER", help="nadam, rmsprop, sgd or thor.", show_default="all"),
]


@app.command(cls=Command)
def vectors(
    pattern: Annotated[
        str, typer.Argument(metavar="GLOB", help="Only those whose id matches.", show_default=False)
    ] = "*",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            metavar="",
            help="Check what they claim, their files by the JSON Schema where jsonschema is "
            "installed, and refopt itself on all of them, in less than 20 s.",
        ),
    ] = False,
    as_json: Json = False,
    jobs: Jobs = 0,
) -> None:
    """List the vectors: inputs with the true values of the documented rule, each rounded once.

    must: an implementation owes these values. may: it owes them if it takes the case at all.
    must-reject: it owes a refusal. Each vector states the clauses of the specification that it
    exercises, whom it excludes (kills), and through which step it decides where only parameters
    are seen. All of that is computed from balls by their only writer, python -m
    refopt.oracle.vectors.
    """
    with exits():
        from fnmatch import fnmatchcase

        from refopt.cli.check import judge
        from refopt.oracle import coverage, golden, suite
        from refopt.oracle.report import NOTHING, STALE, Terminal, counted

        started = time.perf_counter()
        every = [v for optimizer in coverage.optimizers() for v in coverage.sources(optimizer)]
        found = [v for v in every if fnmatchcase(v["id"], pattern)]
        if not found:
            typer.echo(f"no vector matches {pattern!r}", err=True)
            raise typer.Exit(NOTHING)
        if check:
            if faults := [*coverage.faults()]:
                typer.echo("\n".join(faults), err=True)
                raise typer.Exit(STALE)
            ids = {v["id"] for v in found}
            folder = golden.root() / "vectors"
            stored = (r for o in coverage.optimizers() for r in golden.recordings(o, folder))
            cases = [r for r in stored if r.case.id in ids]
            tasks = suite.tasks(cases, numpy=True, as_recorded=False)
            asked_for = {"implementation": None, "select": pattern, "profile": None}
            judge(tasks, len(cases), asked_for, started, as_json=as_json, junit=None, jobs=jobs)
        shown = ("id", "class", "comment", "clauses", "kills", "decisive_through", "modes", "steps")
        if as_json:
            for v in found:
                say({key: v[key] for key in shown})
            return
        console = Terminal()
        for v in found:
            decides = f"through step {v['decisive_through']} of {v['steps']}"
            console.say(f"[bold]{v['id']}[/] ({v['class']}): {v['comment']}")
            console.say(
                f"  {counted(len(v['clauses']), 'clause')}, kills {len(v['kills'])}, decides "
                f"{decides if v['decisive_through'] else 'from shown states alone'}"
            )
        classes = Counter(v["class"] for v in found)
        console.print(", ".join(f"{n} {name}" for name, n in classes.items()))


@app.command(cls=Command)
def clauses(
    optimizer: Optimizer = None,
    coverage: Annotated[
        bool,
        typer.Option(
            "--coverage",
            metavar="",
            help="Show with each the vectors that exercise it, and with each alternative on an "
            "axis those that exclude it; exit with 4 where there is none and no reason is stated.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the clauses of the specifications."""
    with exits():
        from refopt.oracle import coverage as covered
        from refopt.oracle.report import STALE, Terminal, escape

        chosen, console = _optimizers(optimizer), Terminal()
        for name in chosen:
            for clause in covered.clauses(name):
                if as_json:
                    say({"optimizer": name} | clause._asdict())
                    continue
                console.say(f"[bold]{clause.id}[/] {clause.kind}  {escape(clause.text)}")
                if coverage:
                    console.say(f"  {_who(clause)}")
            for alternative in covered.alternatives(name) if coverage else ():
                if as_json:
                    say({"optimizer": name} | alternative._asdict())
                    continue
                title = f"{alternative.axis}={alternative.name}"
                console.say(f"[bold]{title}[/] in {alternative.dtype}\n  {_who(alternative)}")
        if coverage and (missing := [x for name in chosen for x in covered.missing(name)]):
            typer.echo("\n".join(missing), err=True)
            raise typer.Exit(STALE)


def _who(tested: Any) -> str:
    """The vectors that test something, or why none does."""
    if not tested.vectors:
        return f"no vector: {tested.reason or 'and no reason is stated'}"
    some = ", ".join(id_.partition(".vector.")[2] for id_ in tested.vectors[:3])
    more = f" and {len(tested.vectors) - 3} more" if len(tested.vectors) > 3 else ""
    return some + more


@app.command(cls=Command)
def mutants(
    optimizer: Optimizer = None,
    pairs: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Draw so many changes of two choices a dtype."),
    ] = 25,
    as_json: Json = False,
    jobs: Jobs = 0,
) -> None:
    """Count how many wrong rules the vectors catch and the diagnosis names.

    A mutant is the documented rule with one choice changed, or with two (drawn by a fixed seed),
    run on NumPy on a vector. All of one change must be named, and 9 of 10 of two; the documented
    rule in every style of rounding must not be called wrong. Exits with 1 otherwise.
    """
    with exits():
        from refopt.oracle import mutants as tested
        from refopt.oracle import suite
        from refopt.oracle.report import OK, VIOLATED, Terminal

        chosen, console = _optimizers(optimizer), Terminal()
        one = [m for name in chosen for m in tested.singles(name)]
        two = [m for name in chosen for m in tested.pairs(name, pairs)]
        processes = jobs or min(processors(), 4)
        work: Iterable[Any] = suite.over(tested.tried, [*one, *two], processes)
        outcomes = list(progress(work, len(one) + len(two)))
        rounded = [x for found in suite.over(_right, chosen, processes) for x in found]
        score = tested.scored(outcomes, rounded)
        if as_json:
            for x in outcomes:
                say(x.mutant._asdict() | {"status": x.status, "vector": x.vector})
            for x in rounded:
                say(x._asdict())
        for name in () if as_json else chosen:
            console.say(f"[bold]{name}[/]")
            for line in tested.lines(name, outcomes, rounded):
                console.say(f"  {line}")
        if not as_json:
            console.print(f"pairs are drawn by seed {tested.SEED}")
        raise typer.Exit(OK if score else VIOLATED)


def _right(optimizer: str) -> list[Any]:
    from refopt.oracle import mutants as tested

    return list(tested.right(optimizer))


def _optimizers(name: str | None) -> list[str]:
    from refopt.oracle import coverage

    known = coverage.optimizers()
    if name is not None and name not in known:
        msg = f"OPTIMIZER must be one of {', '.join(known)}; got {name!r}"
        raise typer.BadParameter(msg)
    return known if name is None else [name]
