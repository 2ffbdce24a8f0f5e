"""The matrix: which rule each release follows on each axis, in each dtype, and what shows it.

A cell says what an implementation chooses on an axis, whether that is what is documented, and which
alternatives its runs exclude. Its witness is the run that excludes most of them: what that run did
is shown beside the envelope of its rule, and beside those of the alternatives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refopt.errors import AdapterError
from refopt.interp.balls import precision
from refopt.oracle import golden, live, report, spec, suite
from refopt.oracle.compare import decisive
from refopt.oracle.diagnose import Likely, Observed, likely
from refopt.oracle.golden import Case, Recording, Sparse
from refopt.oracle.layered import judging
from refopt.oracle.own import numpy_run
from refopt.oracle.search import equal
from refopt.oracle.suite import AGREES, DIFFERS, FAILURES, Item, Result, Task
from refopt.oracle.verdict import CONFORMS, VIOLATION, Judge

DOCUMENTED = "documented"
OWN = "refopt"  # the name of refopt's own row
SAME, OTHER, OPEN, OUT = "same", "other", "open", "out"
"""What a cell says: as documented; otherwise; nothing was excluded; a violation."""
SHOWN = 3  # alternatives drawn beside a run


class Source(NamedTuple):
    """The recordings of a release, and who runs their cases here."""

    name: str  # "torch:NAdam"; "" where nothing runs them
    recordings: tuple[Recording, ...]
    python: str = ""  # the interpreter that has it; "": judged as recorded
    reason: str = ""  # why it, or another with the same recordings, is not run
    beside: bool = False  # another runs the same cases, and has its name

    def row(self, name: str) -> str:
        """What a run of this source is called in the matrix."""
        return f"{name}, {self.name.partition(':')[0]}" if self.beside else name


# -- what is run ----------------------------------------------------------------------------------


def sources(pattern: str, pythons: Iterable[str], *, run: bool) -> Iterator[Source]:
    """Every release that is known, and refopt itself on its vectors.

    Arguments
    ---------
    pattern: a glob; only cases whose id matches.
    pythons: interpreters to look in, before the one that runs refopt and the pinned environments.
    run: whether releases that are installed are run; else their recordings are judged.
    """
    for optimizer in spec.RULES:
        for path in sorted((golden.root() / "golden" / optimizer).glob("*.json")):
            found = tuple(suite.selected(golden.load(path), pattern))
            place = f"{optimizer}/{path.stem}"
            names = [name for name, row in live.IMPLEMENTATIONS.items() if row.recordings == place]
            several = [
                _installed(Source(name, found), [*pythons, *live.interpreters(name)])
                for name in (names if found and run else ())
            ]
            running = [source for source in several if source.python]
            reasons = [source.reason for source in several if not source.python]
            yield from (x._replace(beside=n > 0) for n, x in enumerate(running))
            if found and not running:
                why = "; ".join(reasons) or (f"{path.stem}: nothing runs it live" if run else "")
                yield Source("", found, reason=why)
            elif reasons:
                yield Source("", (), reason="; ".join(reasons))
        vectors = golden.recordings(optimizer, golden.root() / "vectors")
        if found := tuple(suite.selected(vectors, pattern)):
            yield Source(OWN, found)


def _installed(source: Source, pythons: Iterable[str]) -> Source:
    """The source with the first interpreter that has it, or with the reason why none has."""
    reasons = []
    for python in pythons:
        try:
            live.starter(source.name, python, 1.0)
        except live.Missing as missing:
            reasons.append(str(missing))
        else:
            return source._replace(python=python)
    return source._replace(reason=reasons[-1])


def tasks(source: Source, seconds: float) -> Iterator[Task]:
    """Every case of a source with the runs to judge; some of them are compared as well."""
    if source.name == OWN:
        for task in suite.tasks(source.recordings, as_recorded=False, every=True):
            own = [item for item in task.items if item.run is None and not item.status]
            yield task._replace(items=tuple(x._replace(name=OWN, axes=True) for x in own))
        return
    features = {x[:2]: x.feature for x in decisive(source.recordings)}
    for task in _answered(source, seconds):
        items = [item._replace(every=True) for item in task.items]
        items += [
            item._replace(profile=DOCUMENTED, feature=features[task.case.id, item.name], stale="")
            for item in task.items
            if item.run is not None and (task.case.id, item.name) in features
        ]
        yield task._replace(items=tuple(items))


def _answered(source: Source, seconds: float) -> Iterator[Task]:
    """What the release does here, or did when recorded; one that breaks goes no further."""
    if not source.python:
        yield from suite.tasks(source.recordings, numpy=False)
        return
    given = live.tasks(source.name, source.recordings, None, python=source.python, seconds=seconds)
    try:
        for task, recording in zip(given, source.recordings, strict=False):
            name = next(iter(recording.runs))  # of what gave no run
            items = (
                x._replace(name=name) if x.status in (suite.SKIPPED, *FAILURES) else x
                for x in task.items
            )
            yield task._replace(items=tuple(items))
    except AdapterError:  # its failures were yielded
        return


# -- what is found --------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """A run and its verdict."""

    case: Case
    item: Item
    result: Result


@dataclass
class Cell:
    """What an implementation does on an axis in a dtype."""

    does: list[str] = field(default_factory=list)  # alternatives that its cases ask for
    should: list[str] = field(default_factory=list)  # those that are documented for the same cases
    same: bool = True  # over the reals
    other: bool = False  # some run excludes what is documented
    excluded: dict[str, Evidence] = field(default_factory=dict)  # alternative -> what shows it best
    held: set[str] = field(default_factory=set)  # alternatives that some run does not exclude
    out: list[Evidence] = field(default_factory=list)  # violations that this axis explains

    @property
    def against(self) -> dict[str, Evidence]:
        """What shows it, by alternative: those that it has for other options are none of them."""
        own = {*self.does} if self.excluded.keys() - {*self.does} else set()
        return {name: x for name, x in sorted(self.excluded.items()) if name not in own}

    @property
    def undecided(self) -> list[str]:
        """The alternatives that no run excludes."""
        return sorted(self.held - self.excluded.keys() - {*self.does})

    @property
    def state(self) -> str:
        """What the cell says."""
        if self.out:
            return OUT
        return OTHER if self.other else SAME if self.same and self.excluded else OPEN

    @property
    def witness(self) -> tuple[Evidence | None, list[str]]:
        """(the run that shows most, the alternatives it excludes)."""
        if self.out:
            return self.out[0], []
        by: dict[tuple[str, str], list[str]] = {}
        for name, evidence in self.against.items():
            by.setdefault((evidence.case.id, evidence.item.name), []).append(name)
        if not by:
            return None, []
        names = max(by.values(), key=len)
        return self.excluded[names[0]], names


@dataclass
class Row:
    """An implementation of an optimizer."""

    source: Source
    tally: report.Row = field(default_factory=report.Row)
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)  # axis -> dtype -> cell
    notable: list[Result] = field(default_factory=list)  # what does not conform
    compared: list[Result] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    likely: Likely | None = None  # told by what was observed alone

    @property
    def made_by(self) -> str:
        """Package and version."""
        return ", ".join(sorted(self.tally.origins))


class Matrix:
    """All that was judged, by optimizer and implementation."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Row]] = {name: {} for name in spec.RULES}

    def add(self, source: Source, task: Task, results: Iterable[Result]) -> None:
        """Take the results of one case into account."""
        for item, result in zip(task.items, results, strict=True):
            rows = self.rows[suite.optimizer(result.case)]
            row = rows.setdefault(source.row(item.name), Row(source))
            if result.status in (AGREES, DIFFERS):
                row.compared.append(result)
                continue
            row.tally.add(result)
            if item.run is not None and item.run.steps:
                row.observed.append((task.case, item.run))
            if result.status != CONFORMS:
                row.notable.append(result)
            if result.verdict is not None and task.case.dtypes:
                self._place(row, Evidence(task.case, item, result))

    def _place(self, row: Row, evidence: Evidence) -> None:
        case, item, result = evidence
        verdict = result.verdict
        assert verdict is not None
        does, should = (_choices(case, p, evidence) for p in (item.profile, DOCUMENTED))
        rule, dtype = suite.rule(case), case.dtypes[0]
        named = set.intersection(*({axis for axis, _ in x} for x in result.named or [()]))
        for axis in {*verdict.excluded, *verdict.undecided, *named}:
            cell = row.cells.setdefault(axis, {}).setdefault(dtype, Cell())
            if axis in named and result.status == VIOLATION:
                cell.out.append(evidence)
            cell.held |= {*verdict.undecided.get(axis, ())}
            if not (excluded := verdict.excluded.get(axis, ())):
                continue
            for names, choices in ((cell.does, does), (cell.should, should)):
                names += [x for x in _name(rule, axis, choices) if x not in names]
            own, documented = getattr(does, axis), getattr(should, axis)
            same = own is documented or {*_name(rule, axis, does)} <= equal(rule, axis, should)
            cell.same &= same
            cell.other |= not same and bool({*_name(rule, axis, should)} & {*excluded})
            for name in excluded:
                cell.excluded[name] = max(cell.excluded.get(name, evidence), evidence, key=_clear)


def _choices(case: Case, profile: str, evidence: Evidence) -> Any:
    """What a profile chooses for the options of a case."""
    rule, run = suite.rule(case), evidence.item.run
    judge = judging(rule)(rule, case, run or _NO_RUN, suite.profiles(case)[profile])
    return judge.settings()[0][1]


_NO_RUN = golden.Run("", {}, {}, None)


def _name(rule: Any, axis: str, choices: Any) -> list[str]:
    """The alternative that is chosen on an axis; none where an option made another of it."""
    named: dict[str, Any] = rule.AXES[axis]
    return [name for name, x in named.items() if x is getattr(choices, axis)][:1]


def _clear(evidence: Evidence) -> tuple[bool, int, int, str]:
    """How well a run shows something: one made to show it, with few numbers."""
    case = evidence.case
    numbers = sum(map(len, case.params)) * case.steps
    return "sharp" in case.id, min(case.steps, 6), -numbers, case.id


def identify(matrix: Matrix, processes: int, done: Callable[..., Any]) -> None:
    """Say of every row which profiles its runs fit, told by their numbers alone."""
    rows = [(optimizer, row) for optimizer, x in matrix.rows.items() for row in x.values()]
    wanted = [(optimizer, row.observed) for optimizer, row in rows if row.observed]
    found = done(suite.over(_likely, wanted, processes), len(wanted), "identifying")
    for (_, row), told in zip((x for x in rows if x[1].observed), found, strict=True):
        row.likely = told


def _likely(given: tuple[str, list[Observed]]) -> Likely:
    return likely(*given)


# -- what is drawn --------------------------------------------------------------------------------


class Drawing(NamedTuple):
    """What to draw of a run: for each axis the alternatives beside it."""

    row: str
    case: Case
    item: Item
    axes: dict[str, list[str]]


def drawings(matrix: Matrix) -> list[Drawing]:
    """What the witnesses of all cells show, each run once."""
    found: dict[tuple[str, str], Drawing] = {}
    for rows in matrix.rows.values():
        for name, row in rows.items():
            for axis, cells in row.cells.items():
                for cell in cells.values():
                    evidence, names = cell.witness
                    if evidence is not None:
                        key = evidence.case.id, name
                        drawing = found.setdefault(key, Drawing(name, *evidence[:2], {}))
                        drawing.axes[axis] = names[:SHOWN]
    return list(found.values())


Place = tuple[str, int, int]  # quantity, parameter, element


class Point(NamedTuple):
    """An observation beside its range; None where the range has no bounds."""

    step: int
    seen: float
    middle: float | None
    radius: float | None
    share: float | None  # of the radius, from the middle


Points = dict[Place, list[Point]]


def draw(drawing: Drawing) -> dict[str, Any]:
    """Curves by axis: what was observed, its envelope, and those of the alternatives."""
    _, case, item, axes = drawing
    rule, profile = suite.rule(case), suite.profiles(case)[item.profile]
    judge = judging(rule)(rule, case, item.run or numpy_run(case, profile), profile)
    with precision(), np.errstate(all="ignore"):  # what has no bounds is not drawn
        own = _points(judge, ())
        return {axis: _curve(judge, own, axis, names) for axis, names in axes.items()}


def _curve(judge: Judge, own: Points, axis: str, names: list[str]) -> dict[str, Any]:
    others = {name: _points(judge, ((axis, name),)) for name in names}
    place = max(own, key=lambda p: _apart(p, own, others.values()))
    quantity, i, j = place
    return {
        "quantity": quantity,
        "of": f"{quantity}[{j}] of parameter {i}",
        "points": [_rounded(p) for p in own[place]],
        "others": {
            name: [_rounded(p) for p in points.get(place, ())] for name, points in others.items()
        },
    }


def _apart(place: Place, own: Points, others: Iterable[Points]) -> tuple[bool, bool, float]:
    """How well a place shows a difference: outside itself, a parameter, many radii away."""
    out = any(p.share is not None and abs(p.share) > 1 for p in own[place])
    away = [
        abs(other.middle - p.middle) / p.radius
        for points in others
        for p, other in zip(own[place], points.get(place, ()), strict=False)
        if p.middle is not None and other.middle is not None and p.radius
    ]
    far = max(away, default=0.0)
    return out, place[0] == "param" and far > 1, far


def _points(judge: Judge, changes: Any) -> Points:
    found: Points = {}
    for beside in judge.beside(changes):
        t, q, i, *j = beside.key
        if j:
            found.setdefault((q, i, *j), []).append(_point(t, beside.observed, beside.range))
            continue
        low, high = (
            np.asarray(end, float).ravel() for end in (beside.range.low, beside.range.high)
        )
        for n, seen in enumerate(np.ravel(beside.observed)):
            k = n if len(low) > 1 else 0
            found.setdefault((q, i, n), []).append(_between(t, float(seen), low[k], high[k]))
    return found


def _point(t: int, seen: float, interval: Any) -> Point:
    if not interval.bounded:
        return Point(t, seen, None, None, None)
    return _between(t, seen, interval.low, interval.high)


def _between(t: int, seen: float, low: Any, high: Any) -> Point:
    """In the arithmetic of the ends, so that a narrow range is not lost in rounding."""
    middle, radius = (low + high) / 2, (high - low) / 2
    if not math.isfinite(float(middle)) or not math.isfinite(float(radius)):
        return Point(t, seen, None, None, None)
    share = float((seen - middle) / radius) if float(radius) and math.isfinite(seen) else None
    return Point(t, seen, float(middle), float(radius), share)


def _rounded(point: Point) -> list[float | None]:
    """A point as JSON: its numbers with the digits that a picture needs."""
    step, *numbers = point
    digits = (9, 9, 3, 4)
    known = [x if x is not None and math.isfinite(x) else None for x in numbers]
    return [
        step,
        *(x if x is None else float(f"{x:.{d}g}") for x, d in zip(known, digits, strict=True)),
    ]


# -- what is said ---------------------------------------------------------------------------------


def page(matrix: Matrix, curves: Mapping[tuple[str, str], Any], code: int) -> str:
    """The matrix as one HTML page that needs nothing else."""
    text = json.dumps(content(matrix, curves, code), allow_nan=False, separators=(",", ":"))
    template = (Path(__file__).parent / "matrix.html").read_text(encoding="utf-8")
    safe = text.replace("<", "\\u003c")  # no text of others ends the script
    return template.replace("{{data}}", safe).replace("{{made}}", _made())


def _made() -> str:
    today = datetime.now(UTC).date().isoformat()
    return f"refopt {report.release()}, suite {suite.version()}, {today}"


def content(matrix: Matrix, curves: Mapping[tuple[str, str], Any], code: int) -> dict[str, Any]:
    """All that the page shows."""
    cases: dict[str, Any] = {}
    optimizers = []
    for optimizer, rows in matrix.rows.items():
        if not rows:
            continue
        known = spec.load(optimizer)
        clauses = {clause["id"]: clause["text"] for clause in known["clauses"]}
        shown = {axis for row in rows.values() for axis in row.cells}
        optimizers.append(
            {
                "name": optimizer,
                "title": known["title"],
                "axes": [
                    {
                        "name": axis,
                        "question": x["question"],
                        "clause": x["clause"],
                        "text": clauses.get(x["clause"], ""),
                        "alternatives": {
                            name: [a["text"], a["clause"]] for name, a in x["alternatives"].items()
                        },
                    }
                    for axis, x in known["axes"].items()
                    if axis in shown
                ],
                "rows": [_row(name, row, cases, curves) for name, row in _sorted(rows)],
            }
        )
    return {"made": _made(), "exit": code, "optimizers": optimizers, "cases": cases}


def _sorted(rows: Mapping[str, Row]) -> list[tuple[str, Row]]:
    """refopt first, then by name."""
    return sorted(rows.items(), key=lambda x: (x[0] != OWN, x[0]))


def _row(
    name: str, row: Row, cases: dict[str, Any], curves: Mapping[tuple[str, str], Any]
) -> dict[str, Any]:
    cells: dict[str, dict[str, Any]] = {}
    for axis, by_dtype in row.cells.items():
        for dtype, cell in by_dtype.items():
            evidence, names = cell.witness
            for one in (*cell.against.values(), *cell.out):
                cases.setdefault(one.case.id, described(one.case))
            cells.setdefault(axis, {})[dtype] = {
                "state": cell.state,
                "does": cell.does,
                "should": cell.should,
                "excluded": {n: x.case.id for n, x in cell.against.items()},
                "undecided": cell.undecided,
                "witness": evidence.case.id if evidence else "",
                "shows": names[:SHOWN],
                "curve": curves.get((evidence.case.id, name), {}).get(axis) if evidence else None,
                "out": [list(report.plain(x.result)) for x in cell.out[:1]],
            }
    return {
        "name": name,
        "made_by": row.made_by,
        "run": name == OWN or bool(row.source.python),
        "why": row.source.reason,
        "counts": dict(row.tally.counts),
        "likely": row.likely.text.replace("`", "") if row.likely else "",
        "ulp": report.short(row.tally.worst_ulp),
        "command": _command(name, row),
        "notable": [_told(result) for result in row.notable],
        "against": list(report.differences(row.compared)),
        "cells": cells,
    }


def _command(name: str, row: Row) -> str:
    """How to see one row alone."""
    if name == OWN:
        return "refopt check --select '*.vector.*'"
    if row.source.python:
        return f"refopt check {row.source.name}"
    return f"refopt check --select '{_common([r.case.id for r in row.source.recordings])}'"


def _common(names: list[str]) -> str:
    """A glob of what the ids of a source have in common."""
    parts = [name.split(".") for name in names]
    return ".".join([*parts[0][:2], "*"])


def _told(result: Result) -> list[str]:
    """Case, status, and why."""
    lines = list(report.plain(result))
    if result.verdict is not None and result.verdict.first is None:
        axes = result.verdict.undecided.items()
        lines = ["undecided: " + "; ".join(f"{a}: {', '.join(x)}" for a, x in axes)]
    elif result.status not in (VIOLATION, *FAILURES) and not result.item.stale:
        lines = [result.item.detail.partition("\n")[0]]
    return [result.case, result.status, "\n".join(lines)]


def described(case: Case) -> dict[str, Any]:
    """A vector, as much of it as fits on a screen; `refopt show` has all of it."""
    source = case.source
    first = [f"parameter {i}: {_numbers(values)}" for i, values in enumerate(case.params[:SHOWN])]
    given = case.gradients(1) if case.grads else []
    gradients = [f"parameter {i}: {_numbers(x)}" for i, x in enumerate(given[:SHOWN])]
    return {
        "comment": case.comment,
        "dtype": ", ".join(dict.fromkeys(case.dtypes)),
        "steps": case.steps,
        "settings": report.settings(
            {**source.get("hyper", {}), **{k: v for k, v in source.get("options", {}).items() if v}}
        ),
        "params": first,
        "gradients": gradients,
    }


def _numbers(values: Any) -> str:
    if values is None:
        return "none"
    if isinstance(values, Sparse):
        return f"rows {list(values.indices)}: {_numbers(values.values)}"
    more = f", … {len(values)} in all" if len(values) > 6 else ""
    return ", ".join(f"{x:.6g}" for x in values[:6]) + more


def markdown(matrix: Matrix) -> Iterator[str]:
    """The matrix for a page of text: what each implementation did, and does otherwise."""
    yield "# Which rule each release follows\n"
    yield (
        f"Made by `refopt matrix`: {_made()}. Each run was judged against the rule of its own "
        "release. What a release does otherwise than documented is listed where some run of it "
        "excludes what is documented. [matrix.html](matrix.html) is the whole matrix: for every "
        "implementation, axis and dtype the run that shows it, and its envelope. What an "
        "implementation follows is told from its numbers, without its name, as the profile that "
        "holds most of its runs; profiles with = between them are one rule under two names.\n"
    )
    for optimizer, rows in matrix.rows.items():
        if not rows:
            continue
        known = spec.load(optimizer)
        yield f"## {known['title']}\n"
        yield (
            "| implementation | version | judged | by its numbers alone it follows | conforms | "
            "other | worst ulp |"
        )
        yield "|---|---|---|---|---:|---|---:|"
        for name, row in _sorted(rows):
            counts = row.tally.counts
            others = ", ".join(f"{n} {s}" for s, n in counts.most_common() if s != CONFORMS)
            how = "here" if name == OWN or row.source.python else "as recorded"
            worst = report.short(row.tally.worst_ulp)
            follows = row.likely.text if row.likely else ""
            yield (
                f"| {name} | {row.made_by} | {how} | {follows} | {counts[CONFORMS]} | {others} | "
                f"{worst} |"
            )
        yield ""
        yield "Otherwise than documented:\n"
        for name, row in _sorted(rows):
            yield from _otherwise(name, row, known["axes"])
        yield ""


def _otherwise(name: str, row: Row, axes: Mapping[str, Any]) -> Iterator[str]:
    """One line an axis on which an implementation has another choice, and one for violations."""
    if n := row.tally.counts[VIOLATION]:
        first = next(result for result in row.notable if result.status == VIOLATION)
        runs = report.counted(n, "run")
        yield f"- **{name}**: {runs} outside the rule of its release, {first.case} for one."
    for axis in axes:
        cells = row.cells.get(axis, {})
        other = {dtype: cell for dtype, cell in cells.items() if cell.state == OTHER}
        if other:
            does = dict.fromkeys(x for cell in other.values() for x in cell.does)
            should = dict.fromkeys(x for cell in other.values() for x in cell.should)
            texts = "; ".join(
                f"`{x}` ({axes[axis]['alternatives'][x]['clause']}), "
                f"{axes[axis]['alternatives'][x]['text']}"
                for x in does
                if x not in should or len(does) == 1
            )
            yield f"- **{name}**, {axis}: {texts}. In {', '.join(other)}."


def badge(optimizer: str, name: str, row: Row) -> dict[str, Any]:
    """What a badge says, as shields.io reads it (endpoint schema 1)."""
    counts = row.tally.counts
    bad = counts[VIOLATION] + sum(counts[status] for status in FAILURES)
    known, of = counts[suite.DEVIATES], sum(counts.values()) - counts[suite.SKIPPED]
    if bad:
        message, color = f"{bad} of {of} do not conform", "red"
    elif known:
        message, color = f"{counts[CONFORMS]} of {of} conform, {known} deviate", "yellow"
    else:
        message = f"{counts[CONFORMS]} of {of} conform"
        color = "brightgreen" if counts[CONFORMS] else "lightgrey"
    return {
        "schemaVersion": 1,
        "label": f"{optimizer}, {name}",
        "message": message,
        "color": color,
    }
