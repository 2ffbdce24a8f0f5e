"""Every named number of a rule at every step, beside another rule's and beside the true value."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refopt.errors import AdapterError
from refopt.interp.formats import FORMATS, to_bits, ulp
from refopt.oracle import golden
from refopt.oracle.golden import Case, Run
from refopt.oracle.suite import Item
from refopt.problems import Pass
from refopt.teach.runs import OnBalls, Setting, exact, known, problem_of, setting, taken

PROGRAMS = ("py:MODULE:FUNCTION", "'cmd:PROGRAM ARGUMENT…'")
LAYERED = ("weight_decay", "loss_scale", "batch_size", "split_dim", "frequency")
"""Hyperparameters that every case of layers states."""
SECONDS = 60.0  # for each answer of an implementation
NORM = "norm"
"""In place of an element: the Euclidean norm of the array."""


class Difference(NamedTuple):
    """Where two columns of numbers differ first."""

    step: int
    quantity: str
    where: str  # which element
    mine: float
    other: float
    beyond_rounding: bool  # whether no rounding of the stated rule explains it


class Trace(NamedTuple):
    """A table: (step, quantity) to a number, for each series.

    `series`: by name; the first is the rule itself. "true" has texts, and "lost" the decimal
    digits that are wrong beyond the last one.
    """

    optimizer: str
    problem: str
    dtype: str
    where: str  # which element
    steps: int
    quantities: list[str]
    series: dict[str, dict[tuple[int, str], Any]]
    differences: tuple[Difference, ...] = ()  # the first, and the first beyond rounding


def trace(
    optimizer: str,
    problem: str = "rosenbrock",
    steps: int = 5,
    *,
    profile: str = "documented",
    given: Mapping[str, Any] | None = None,
    against: str | None = None,
    bits: int | None = None,
    dtype: str = "float64",
    parameter: int = 0,
    element: int | str | None = None,
    python: str = sys.executable,
    command: Sequence[str] = (),
) -> Trace:
    """The numbers of an optimizer on a problem.

    Arguments
    ---------
    optimizer, profile, problem: by name.
    steps: how many.
    given: hyperparameters and options by name; else the profile's.
    against: another profile, a framework of `refopt check`, or the name of a program; it is given
        the gradients that the first one saw, so that what differs comes from the rule alone.
    bits: of the balls that give the true value for these gradients; None: no true value.
    dtype: of the parameters.
    parameter: by number.
    element: by its number in C order, or "norm"; None: 0, of a network the norm.
    python: the interpreter that has the framework.
    command: what starts the program (docs/protocol.md).

    Returns
    -------
    Scalars and quantities of each step in the order of the equations.

    Raises
    ------
    Unknown
        Something has no such name.
    IndexError
        There is no such parameter or element.
    AdapterError
        The framework or the program did not take the steps.
    """
    of = problem_of(problem)
    s = setting(optimizer, profile, given, of)
    if element is None:
        element = NORM if of.layers else 0
    pick = _Pick(of.start(np, dtype), parameter, element)
    done = list(taken(s, of, steps, dtype=dtype))
    seen = [x.seen for x in done]
    mine = {
        (x.step, q): value for x in done for q, value in _numbers(x, parameter, pick.number).items()
    }
    quantities = list(dict.fromkeys(q for _, q in mine))
    table = Trace(optimizer, problem, dtype, pick.name, steps, quantities, {profile: mine})
    if bits is not None:
        table.series.update(_true(s, of, seen, dtype, parameter, pick, bits, mine))
    if against is not None:
        case = case_of(s, problem, seen, dtype)
        other, run = _other(s, against, case, pick, python, command)
        name = against if against != profile else f"{against} again"
        table.series[name] = other
        table = table._replace(differences=tuple(_differences(s, case, run, table, other)))
    return table


class _Pick:
    """One element of a parameter, or the norm, of arrays shaped like it or not."""

    def __init__(self, params: list[Any], parameter: int, element: int | str) -> None:
        if not 0 <= parameter < len(params):
            msg = f"the parameter must be one of 0 to {len(params) - 1}, got {parameter}"
            raise IndexError(msg)
        self.shape, self.parameter, self.element = params[parameter].shape, parameter, element
        size = params[parameter].size
        if element != NORM and (isinstance(element, str) or not 0 <= element < size):
            msg = f"the element must be one of 0 to {size - 1}, or norm; got {element}"
            raise IndexError(msg)
        self.name = f"parameter {parameter}, " + (
            "norm" if element == NORM else f"element {element}"
        )

    def number(self, x: Any) -> Any:
        """A number as it is; of an array the element, or the norm where it has another shape."""
        if np.shape(x) == () and not isinstance(x, np.ndarray):
            return x
        if self.element == NORM or np.shape(x) != self.shape:
            line = np.ravel(x)
            return sum((e * e for e in line.tolist()), 0 * line[0]) ** 0.5
        return np.ravel(x)[self.element]


def _numbers(x: Any, i: int, pick: Any) -> dict[str, Any]:
    """Everything with a name at a step, in the order of the equations."""
    found = {"grad": pick(x.seen.gradients[i])}
    found |= {q: pick(value) for q, value in x.scalars[i]._asdict().items()}
    for q, value in x.quantities[i]._asdict().items():
        if value is not None:
            found[q] = pick(value)
    return found


def _true(
    s: Setting,
    problem: Any,
    seen: list[Pass],
    dtype: str,
    parameter: int,
    pick: _Pick,
    bits: int,
    mine: Mapping[tuple[int, str], Any],
) -> dict[str, dict[tuple[int, str], Any]]:
    """The true value of each number, and how many digits of it are lost."""
    true, lost = {}, {}
    with exact(bits):
        balls = list(taken(s, problem, len(seen), dtype=dtype, seen=seen, on=OnBalls()))
        for x in balls:
            for q, ball in _numbers(x, parameter, pick.number).items():
                rounded = mine[x.step, q]
                if isinstance(rounded, bool) or isinstance(ball, float | np.floating):
                    continue  # no ball: as given
                f = FORMATS[str(getattr(rounded, "dtype", "float64"))]
                digits = 3 + math.ceil(f.precision * math.log10(2))
                true[x.step, q] = ball.str(digits, radius=False)
                lost[x.step, q] = _lost(float(abs(ball - float(rounded)).mid()), float(ball), f)
    return {"true": true, "lost": lost}


def _lost(error: float, true: float, f: Any) -> float:
    """Decimal digits lost beyond the last: 0 where the number is the true one, rounded once."""
    half = ulp(true, f) / 2 if math.isfinite(true) else math.nan
    return max(0.0, math.log10(error / half)) if error > 0 else 0.0


# -- against --------------------------------------------------------------------------------------
def case_of(s: Setting, problem: str, seen: list[Pass], dtype: str) -> Case:
    """The case (`refopt-golden/1`) of a run: its start, hyperparameters and gradients."""
    of, f = problem_of(problem), FORMATS[dtype]

    def array(x: Any, kind: str = dtype) -> dict[str, Any]:
        values = np.ravel(np.asarray(x, kind)).astype(float).tolist()
        return {"dtype": kind, "shape": [*np.shape(x)], "bits": to_bits(values, f)}

    params = of.start(np, dtype)
    numbers = {q: x for q, x in s.hyper._asdict().items() if _stated(s, q, x)}
    source: dict[str, Any] = {
        "id": f"{s.optimizer}.teach.{problem}",
        "comment": f"{of.title}.",
        "tags": [],
        "hyper": {q: repr(x) for q, x in numbers.items()},
        "options": {name: int(on) for name, on in s.options.items()},
        "params": [array(p) for p in params],
        "steps": len(seen),
        "record": [*range(1, len(seen) + 1)],
        "grads": [[array(g)["bits"] for g in x.gradients] for x in seen],
    }
    if hasattr(s.rule, "Layer"):
        source |= _layers(of, params, seen, s.hyper.frequency, array)
    return golden.parse(source)


def _stated(s: Setting, q: str, x: Any) -> bool:
    """Whether a case states a hyperparameter: what it must, and what is not as everywhere."""
    required = (*s.rule.REQUIRED, *(LAYERED if hasattr(s.rule, "Layer") else ()))
    return (q in required or x != getattr(s.rule.Hyper(), q)) and x is not None


def _layers(
    of: Any, params: list[Any], seen: list[Pass], frequency: int, array: Any
) -> dict[str, Any]:
    """What a case of layers has more: the net, and what its layers saw when they refresh."""
    if not of.layers:
        layers = [{"name": f"p{i}", "kind": "other", "params": [i]} for i, _ in enumerate(params)]
        return {"layers": layers}
    names = [f"fc{i}" for i, _ in enumerate(of.layers, 1)]
    layers = [
        {"name": name, "kind": "dense", "params": [2 * i, 2 * i + 1]}
        for i, name in enumerate(names)
    ]
    statistics = {
        str(t): {
            name: {"a": array(a), "ds": array(ds)}
            for name, a, ds in zip(names, x.activations, x.output_gradients, strict=True)
        }
        for t, x in enumerate(seen, 1)
        if (t - 1) % frequency == 0
    }
    return {"layers": layers, "statistics": statistics}


def _other(
    s: Setting, against: str, case: Case, pick: _Pick, python: str, command: Sequence[str]
) -> tuple[dict[tuple[int, str], Any], Run]:
    """The numbers of another profile or of an implementation, for the same gradients."""
    from refopt.oracle.own import numpy_run

    profiles = s.rule.PROFILES
    if command or against not in profiles:
        run = _ran(s, against, case, python, command)
        return _shown(run, pick, case), run
    problem = problem_of(case.id.rpartition(".")[2])
    other = setting(s.optimizer, against, {**s.hyper._asdict(), **s.options}, problem)
    seen = [_pass(case, t) for t in range(1, case.steps + 1)]
    done = taken(other, problem, case.steps, dtype=case.dtypes[0], seen=seen)
    numbers = {
        (x.step, q): value
        for x in done
        for q, value in _numbers(x, pick.parameter, pick.number).items()
    }
    return numbers, numpy_run(case, profiles[against])


def _pass(case: Case, t: int) -> Pass:
    def shaped(x: Any) -> Any:
        return np.reshape(x.values, x.shape)

    layers = case.statistics.get(t, {}).values()
    pairs: Any = zip(case.gradients(t), case.shapes, strict=True)
    grads: list[Any] = [np.reshape(g, shape) for g, shape in pairs]
    return Pass(
        np.asarray(math.nan),
        grads,
        [shaped(x["a"]) for x in layers],
        [shaped(x["ds"]) for x in layers],
    )


def _ran(s: Setting, name: str, case: Case, python: str, command: Sequence[str]) -> Run:
    """What an implementation does with a case here and now; its first run."""
    (item,) = _asked(s, case, command) if command else _live(s, name, case, python)
    if item.run is None or item.run.error:
        msg = f"{name}: {item.status}: {item.detail}"
        raise AdapterError(msg)
    return item.run


def _live(s: Setting, name: str, case: Case, python: str) -> tuple[Item, ...]:
    """What a framework does, by the first of its paths."""
    from refopt.oracle import live

    found = live.IMPLEMENTATIONS.items()
    ours = {k: x for k, x in found if x.recordings.startswith(s.optimizer)}
    if hasattr(s.rule, "Layer"):
        ours = {}  # its network computes gradients of its own
    known("--against", {**s.rule.PROFILES, **ours, **dict.fromkeys(PROGRAMS)}, name)
    path = next(iter(next(live.cases(name)).runs))
    asked = golden.parse({**case.source, "profiles": [path]})
    blank = golden.Recording(asked, {path: Run(path, {}, {})}, {})
    (task,) = live.tasks(name, [blank], None, python=python, seconds=SECONDS)
    return task.items


def _asked(s: Setting, case: Case, command: Sequence[str]) -> tuple[Item, ...]:
    """What a program does, from its own state at each step."""
    from refopt.oracle import live, rop
    from refopt.oracle.process import Failure

    ((blank, parts),) = rop.questions([golden.Recording(case, {}, {})])
    try:
        with closing(rop.Program([*command], s.optimizer, SECONDS)) as program:
            ask = partial(program.ask, seconds=SECONDS)
            return rop.items(program.spoken, blank, parts, ask, None)
    except Failure as failure:
        return (live.unjudged(command[0], None, failure.status, failure.detail),)


def _shown(run: Run, pick: _Pick, case: Case) -> dict[tuple[int, str], Any]:
    """What a run shows, by step and quantity."""
    found = {}
    for t, quantities in run.steps.items():
        for q, columns in quantities.items():
            values = columns[pick.parameter]
            if values is not None:
                size = math.prod(pick.shape)
                array = np.reshape(values, pick.shape) if len(values) == size else values[0]
                found[t, q] = pick.number(array)
    of = [name for name, layer in case.layers.items() if pick.parameter in layer.params]
    for t, factors in (run.factors or {}).items():
        for q, tensors in factors.items():
            for x in (tensors[name] for name in of if name in tensors):
                found[t, q] = pick.number(np.reshape(x.values, x.shape))
    return found


def _differences(
    s: Setting, case: Case, run: Run, table: Trace, other: Mapping[tuple[int, str], Any]
) -> Iterator[Difference]:
    """The first number that is another one, and the first that no rounding explains."""
    from refopt.oracle.layered import judging

    (mine, *_) = table.series.values()
    for key in sorted(mine, key=lambda key: (key[0], table.quantities.index(key[1]))):
        a, b = (float(x.get(key, math.nan)) for x in (mine, other))
        if a != b and not (math.isnan(a) or math.isnan(b)):
            yield Difference(*key, table.where, a, b, False)
            break
    else:
        return
    for steps in sorted({key[0], case.steps}):  # the last only where the first shows nothing
        seen = run._replace(steps={t: x for t, x in run.steps.items() if t <= steps})
        judge = judging(s.rule)(s.rule, case._replace(steps=steps), seen, s.profile)
        if (x := judge.verdict(axes=False).first) is not None:
            where = f"parameter {x.parameter}, element {x.element}"
            yield Difference(x.step, x.quantity, where, (x.low + x.high) / 2, x.observed, True)
            return


# -- text -----------------------------------------------------------------------------------------
def rows(table: Trace) -> Iterator[dict[str, Any]]:
    """One record for each number, in the order of the table."""
    for t in range(1, table.steps + 1):
        for q in table.quantities:
            for series, values in table.series.items():
                if (t, q) in values:
                    x = values[t, q]
                    plain = x if isinstance(x, bool | str) else float(x)
                    yield {"step": t, "quantity": q, "series": series, "value": plain}


def as_csv(table: Trace) -> str:
    """The table as CSV, a number a row, each with all its digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ("step", "quantity", "series", "value"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(table))
    return text.getvalue()


def as_json(table: Trace) -> str:
    """The table as one JSON object; what is not finite is a string."""
    head = {q: getattr(table, q) for q in ("optimizer", "problem", "dtype", "where", "steps")}
    numbers = [
        {**row, "value": row["value"] if _finite(row["value"]) else str(row["value"])}
        for row in rows(table)
    ]
    differences = [x._asdict() for x in table.differences]
    return json.dumps({**head, "rows": numbers, "differences": differences}, allow_nan=False)


def as_markdown(table: Trace) -> str:
    """The table in Markdown: a row for each quantity and series, a column for each step."""
    several = len(table.series) > 1
    header = ["quantity", *["series"] * several, *(f"step {t}" for t in _steps(table))]
    lines = [header, ["---"] * len(header)]
    for q, series, cells in _cells(table, list(_steps(table))):
        lines.append([f"`{q}`", *[series] * several, *cells])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([body, *("\n" + said(x, table) for x in table.differences)]) + "\n"


def as_text(table: Trace, width: int = 100) -> str:
    """The table for a terminal: as many steps beside each other as fit."""
    several = len(table.series) > 1
    names = max(len("quantity"), *map(len, table.quantities)) + 2
    labels = max(map(len, table.series)) + 2 if several else 0
    cells = {
        (q, series, t): cell for t in _steps(table) for q, series, (cell,) in _cells(table, [t])
    }
    column = max(map(len, cells.values())) + 2
    beside = max(1, (width - names - labels) // column)
    parts = [
        f"{table.optimizer} on {table.problem}, {table.dtype}, {table.where}",
        "",
    ]
    for first in range(1, table.steps + 1, beside):
        steps = range(first, min(first + beside, table.steps + 1))
        head = "".join(f"{f'step {t}':>{column}}" for t in steps)
        parts.append(f"{'quantity':{names}}{'':{labels}}{head}")
        before = ""
        for q in table.quantities:
            for series in table.series:
                line = "".join(f"{cells.get((q, series, t), ''):>{column}}" for t in steps)
                if line.strip():
                    label = (
                        f"{q if q != before else '':{names}}{series if several else '':{labels}}"
                    )
                    parts.append((label + line).rstrip())
                    before = q
        parts.append("")
    return "\n".join([*parts, *(said(x, table) for x in table.differences)]).rstrip() + "\n"


def said(x: Difference, table: Trace) -> str:
    """A difference in a sentence."""
    mine, *_ = table.series
    *_, other = table.series
    what = "that no rounding explains" if x.beyond_rounding else "of any bit"
    beside = "" if math.isnan(x.mine) else f"{mine} {x.mine}, "
    place = "" if x.where == table.where else f" of {x.where}"
    pair = f"{beside}{other} {x.other}"
    return f"first difference {what}: step {x.step}, {x.quantity}{place}: {pair}"


def _steps(table: Trace) -> range:
    return range(1, table.steps + 1)


def _cells(table: Trace, steps: list[int]) -> Iterator[tuple[str, str, list[str]]]:
    """(quantity, series, a text for each step); the first difference has a mark."""
    marked = {(x.step, x.quantity) for x in table.differences if x.where == table.where}
    *_, last = table.series
    for q in table.quantities:
        for series, values in table.series.items():
            if any((t, q) in values for t in steps):
                yield (
                    q,
                    series,
                    [
                        _shortened(values.get((t, q), ""))
                        + ("*" if (t, q) in marked and series == last else "")
                        for t in steps
                    ],
                )


def _shortened(x: Any) -> str:
    if isinstance(x, bool | str):
        return str(x)
    return f"{float(x):.9g}"


def _finite(x: Any) -> bool:
    return isinstance(x, bool | str) or math.isfinite(x)


FORMATTED = {"text": as_text, "markdown": as_markdown, "csv": as_csv, "json": as_json}
"""Every form of a table."""
