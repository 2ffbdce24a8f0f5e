"""The smallest input on which an implementation leaves a profile, as a program that fails.

An input is made smaller by one change at a time, as long as the implementation leaves the profile
on it: fewer steps, one parameter of one element, no options, round numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from refopt.errors import CaseError
from refopt.interp.formats import FORMATS, from_bits, to_bits
from refopt.oracle import golden, rop, spec, suite
from refopt.oracle.golden import Case, Recording, Run
from refopt.oracle.layered import judging
from refopt.oracle.live import Asking
from refopt.oracle.verdict import Finding
from refopt.typing import Profile

ROUND = (0.0, 1.0, 0.5, 2.0, -1.0, 0.25)
"""Elements, the roundest first."""
PLAIN = ("0.0", "1.0", "0.5", "0.25", "0.125", "0.1", "0.9")
"""Hyperparameters, the roundest first."""

OPTIONS = {option for rule in spec.RULES.values() for option in rule.OPTIONS}

Source = dict[str, Any]
Ask = Callable[[Case], Run | None]


def start(ask: Ask, recordings: Iterable[Recording], profile: Profile) -> Case | None:
    """The vector of fewest numbers that an implementation leaves the profile on."""

    def size(recording: Recording) -> int:
        case = recording.case
        return case.steps * sum(map(len, case.params)) + len(case.options)

    for case, *_ in sorted(recordings, key=size):
        if _tried(ask, case.source, profile) is not None:
            return case
    return None


class Smallest(NamedTuple):
    """An input, and where an implementation leaves the profile on it."""

    case: Case
    run: Run
    first: Finding


def asker(asking: Asking, path: str = "") -> Ask:
    """What an implementation does with any case; `path`: through a release of several."""

    def ask(case: Case) -> Run | None:
        task = asking.task(Recording(case, {}, {}))
        runs = [item.run for item in task.items if not path or item.name == path]
        return runs[0] if runs else None

    return ask


def minimize(
    ask: Ask,
    case: Case,
    profile: Profile,
    progress: Callable[[str], None] = lambda what: None,
) -> Smallest | None:
    """The smallest input; None where the implementation conforms on `case` already."""
    smallest = _tried(ask, case.source, profile)
    while smallest is not None:
        for source in _smaller(smallest):
            progress(f"{len(source['params'])} parameters, {source['steps']} steps")
            if (found := _tried(ask, source, profile)) is not None:
                smallest = found
                break
        else:
            return smallest
    return None


def _tried(ask: Ask, source: Source, profile: Profile) -> Smallest | None:
    """Where an implementation leaves the profile at a number; None where it does not."""
    source = {key: x for key, x in source.items() if key not in ("kills", "decisive_through")}
    source["record"] = [*range(1, source["steps"] + 1)]
    source["id"] = f"{source['id'].split('.')[0]}.smallest.case"
    try:
        case = golden.parse(source)
    except CaseError:
        return None
    run = ask(case)
    if run is None or run.error:
        return None
    rule = spec.RULES[suite.optimizer(case.id)]
    first = judging(rule)(rule, case, run, profile).verdict(axes=False).first
    if first is None or math.isnan(first.low) or not math.isfinite(first.low + first.high):
        return None
    return Smallest(case, run, first)


def _smaller(smallest: Smallest) -> Iterator[Source]:
    """Inputs with one thing less, or rounder, the smallest first."""
    source, first = smallest.case.source, smallest.first
    for steps in (x for x in (1, 2, first.step) if x < source["steps"]):
        yield _with(source, steps=steps)
    for t in range(source["steps"] if source["steps"] > 1 else 0):
        rows = [source["grads"][n % len(source["grads"])] for n in range(source["steps"])]
        yield _with(source, steps=len(rows) - 1, grads=[*rows[:t], *rows[t + 1 :]])
    for key in ("groups", "changes", "order", "finalize"):
        if source.get(key):
            yield {k: x for k, x in source.items() if k != key}
    if len(source["params"]) > 1:
        for i in (first.parameter, *range(len(source["params"]))):
            yield _only(source, i)
    else:
        yield from _one_element(source, first.element)
    yield from _rounder(source)


def _with(source: Source, **changed: Any) -> Source:
    """A copy with some keys changed; what belongs to later steps is left out."""
    source = copy.deepcopy(source) | changed
    for key in ("changes", "order"):
        if key in source:
            source[key] = {t: x for t, x in source[key].items() if int(t) <= source["steps"]}
    source["grads"] = source["grads"][: source["steps"]]
    return source


def _only(source: Source, i: int) -> Source:
    """One parameter alone."""
    source = _with(
        source, params=[source["params"][i]], grads=[[row[i]] for row in source["grads"]]
    )
    return {key: x for key, x in source.items() if key not in ("groups", "order")}


def _one_element(source: Source, j: int) -> Iterator[Source]:
    """One element of the one parameter."""
    (param,) = source["params"]
    grads = [row[0] for row in source["grads"]]
    size = math.prod(param["shape"])
    if size == 1 or not all(isinstance(g, str) for g in grads if g is not None):
        return
    digits = len(param["bits"]) // size

    def element(bits: str) -> str:
        return bits[j * digits : (j + 1) * digits]

    yield _with(
        source,
        params=[{"dtype": param["dtype"], "shape": [1], "bits": element(param["bits"])}],
        grads=[[None if g is None else element(g)] for g in grads],
    )


def _rounder(source: Source) -> Iterator[Source]:
    """Numbers that are rounder: float64, options off, hyperparameters, elements."""
    optimizer = suite.optimizer(source["id"])
    dtype = source["params"][0]["dtype"]
    if dtype in FORMATS and dtype != "float64" and _dense(source):
        yield _in_double(source)
    for option, on in source.get("options", {}).items():
        if on:
            yield _with(source, options={**source["options"], option: 0})
    required = spec.RULES[optimizer].REQUIRED
    for name, value in source["hyper"].items():
        if name not in required:
            yield _with(source, hyper={k: x for k, x in source["hyper"].items() if k != name})
        for x in PLAIN[: PLAIN.index(value) if value in PLAIN else None]:
            if not isinstance(value, dict | list) and _allowed(optimizer, name, float(x)):
                yield _with(source, hyper={**source["hyper"], name: x})
    if dtype in FORMATS and _dense(source):
        yield from _round_elements(source, FORMATS[dtype])


def _dense(source: Source) -> bool:
    """Whether there are arrays alone, of one dtype."""
    same = len({p["dtype"] for p in source["params"]}) == 1
    return same and all(g is None or isinstance(g, str) for row in source["grads"] for g in row)


def _allowed(optimizer: str, name: str, x: float) -> bool:
    """Whether a hyperparameter may have a value."""
    described = spec.load(optimizer)["hyperparameters"].get(name, {}).get("range", {})
    below = described.get("below", math.inf)
    return float(described.get("least", 0.0)) <= x < float(below)


def _in_double(source: Source) -> Source:
    old, new = FORMATS[source["params"][0]["dtype"]], FORMATS["float64"]

    def doubled(bits: str | None) -> str | None:
        return None if bits is None else to_bits(from_bits(bits, old), new)

    params = [{**p, "dtype": new.name, "bits": doubled(p["bits"])} for p in source["params"]]
    return _with(
        source, params=params, grads=[[doubled(g) for g in row] for row in source["grads"]]
    )


def _round_elements(source: Source, f: Any) -> Iterator[Source]:
    """Each array with one element rounder."""

    def rounder(bits: str) -> Iterator[str]:
        values = from_bits(bits, f)
        for j, value in enumerate(values):
            for x in ROUND[: ROUND.index(value) if value in ROUND else None]:
                yield to_bits([*values[:j], x, *values[j + 1 :]], f)

    for i, param in enumerate(source["params"]):
        for bits in rounder(param["bits"]):
            params = copy.deepcopy(source["params"])
            params[i]["bits"] = bits
            yield _with(source, params=params)
    for t, row in enumerate(source["grads"]):
        for i, grad in enumerate(row):
            for bits in rounder(grad) if grad is not None else ():
                grads = copy.deepcopy(source["grads"])
                grads[t][i] = bits
                yield _with(source, grads=grads)


# -- programs -------------------------------------------------------------------------------------


def of_function(smallest: Smallest, place: str, takes: set[str], profile: str) -> str:
    """A Python program that calls a function (param, grad, state, **hyper), and fails."""
    module, name = place.split(":")
    case, first = smallest.case, smallest.first
    i, dtype = first.parameter, smallest.case.dtypes[first.parameter]
    names = rop.keywords(suite.optimizer(case.id))
    hyper = dict(case.source["hyper"])
    absent = spec.RULES[suite.optimizer(case.id)].PROFILES["documented"].hyper._asdict()
    lines = [
        f'"""{_claim(smallest, profile)}"""',
        "",
        "import sys",
        "",
        "import numpy as np",
        "",
        'sys.path.insert(0, ".")',
        f"from {module} import {name}",
        "",
        f"param = {_array(case.params[i], dtype, case.shapes[i])}",
        "state = None",
    ]
    for t in range(1, first.step + 1):
        hyper |= case.source.get("changes", {}).get(str(t), {})
        if (grad := case.gradients(t)[i]) is None:
            continue
        given = _keywords(names, absent, hyper, case.options, takes)
        lines.append(f"grad = {_array(grad, dtype, case.shapes[i])}")
        lines.append(f"param, state = {name}(param, grad, state{given})")
    value = "param" if first.quantity == "param" else f'state["{first.quantity}"]'
    lines += [
        f"got = float(np.ravel({value})[{first.element}])",
        f"assert {first.low!r} <= got <= {first.high!r}, got",
        "",
    ]
    return "\n".join(lines)


def _claim(smallest: Smallest, profile: str) -> str:
    first = smallest.first
    where = f"{first.quantity}[{first.element}] after step {first.step}"
    return f"By the profile {profile}, {where} lies between {first.low!r} and {first.high!r}."


def _array(values: Any, dtype: str, shape: Any) -> str:
    """The source text of an array."""
    text = f"np.array({list(values)!r}, np.{dtype})"
    return text if list(shape) == [len(values)] else f"{text}.reshape({tuple(shape)!r})"


def _keywords(
    names: dict[str, str],
    absent: dict[str, Any],
    hyper: dict[str, str],
    options: dict[str, Any],
    takes: set[str],
) -> str:
    """The source text of the keyword arguments of a call."""
    values = absent | {q: int(x) if x.isdigit() else float(x) for q, x in hyper.items()}
    values |= {q: bool(options.get(q)) for q in names if q not in values and q in takes & OPTIONS}
    given: dict[str, Any] = {}
    for q, keyword in names.items():
        if q in values and q in takes:
            base = keyword.split("[")[0]
            pair = (*given.get(base, ()), values[q])
            given[base] = values[q] if base == keyword else pair
    return "".join(f", {keyword}={value!r}" for keyword, value in given.items())


def of_program(smallest: Smallest, command: list[str], profile: str) -> str:
    """A Python program that asks a program by ROP/1, and fails."""
    case, first = smallest.case, smallest.first
    ((_, parts),) = rop.questions([Recording(case, {}, {})])
    asked = [rop.hello(suite.optimizer(case.id)), *parts[0].questions[: first.step + 1]]
    asked.append({"op": "bye", "seq": asked[-1]["seq"] + 1})
    dtype = smallest.run.dtypes.get(first.quantity, case.dtypes)[first.parameter]
    width = FORMATS[dtype].width // 4
    code = {"float16": ">e", "float32": ">f", "float64": ">d"}[dtype]
    lines = [
        f'"""{_claim(smallest, profile)}"""',
        "",
        "import json",
        "import struct",
        "import subprocess",
        "",
        f"command = {command!r}",
        "questions = [",
        *(f"    {question!r}," for question in asked),
        "]",
        'text = "".join(json.dumps(question) + "\\n" for question in questions)',
        "done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)",
        "answer = json.loads(done.stdout.splitlines()[-2])  # the last is to bye",
        f'bits = answer["{first.quantity}"][{first.parameter}]'
        f"[{first.element * width} : {(first.element + 1) * width}]",
        f'(got,) = struct.unpack("{code}", bytes.fromhex(bits))',
        f"assert {first.low!r} <= got <= {first.high!r}, got",
        "",
    ]
    return "\n".join(lines)
