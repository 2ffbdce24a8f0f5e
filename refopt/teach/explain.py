"""What a rule computes, in words and equations that come from the rule and its specification."""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from refopt.errors import Unknown
from refopt.interp import arrays
from refopt.interp.latex import aligned
from refopt.interp.notation import page, unicode
from refopt.oracle import golden, spec
from refopt.oracle.spec import RULES
from refopt.problems import PROBLEMS
from refopt.teach.runs import Setting, known, setting

Lines = dict[str, str]
"""Equations: left side to right side, LaTeX."""


WIDTH, LEAST = 80, 32
"""Columns of a table, and of its last column beside the others."""


class Form(NamedTuple):
    """Equations under one condition."""

    title: str
    lines: Lines


class Side(NamedTuple):
    """What one of two profiles takes on an axis."""

    profile: str
    alternative: str
    clause: str
    text: str
    source: str  # public: where it can be looked up
    lines: Lines  # those that the other has not


class Differing(NamedTuple):
    """A place where two profiles differ."""

    axis: str
    clause: str
    question: str
    sides: tuple[Side, Side]


# -- equations ------------------------------------------------------------------------------------
def forms(optimizer: str, profile: str = "documented") -> list[Form]:
    """The equations of a profile as it is by default, then what each thing asked for changes.

    Raises
    ------
    Unknown
        There is no such optimizer or profile.
    """
    s = setting(optimizer, profile)
    plain, full = s.profile.choices, s.rule.PROFILES[profile].choices
    found = [Form("", spec.equations(optimizer, plain, hyper=s.hyper))]
    for block in spec.load(optimizer)["blocks"]:
        if "layer" in block:
            lines = spec.equations(optimizer, plain, layer=block["layer"])
            found.append(Form(block["title"], lines))
        elif profile == "documented":
            found.append(Form(block["title"], _asked(s, block)))
    if profile != "documented":
        axes = spec.load(optimizer)["axes"]
        asked = s.rule.configured(full, s.hyper, dict.fromkeys(s.rule.OPTIONS, True))
        for axis in s.rule.AXES:
            choice = getattr(full, axis)
            if choice is not getattr(plain, axis):
                name = name_of(s.rule, axis, choice)
                # what no option asks for, other hyperparameters do
                hyper = s.hyper if getattr(asked, axis) is choice else None
                lines = _other(s, plain._replace(**{axis: choice}), hyper)
                text = axes[axis]["alternatives"][name]["text"]
                found.append(Form(f"Asked for {axis}, {name}: {text}", lines))
    return [form for form in found if form.lines]


def _asked(s: Setting, block: Mapping[str, Any]) -> Lines:
    if "options" in block:
        choices = s.rule.configured(s.profile.choices, s.rule.Hyper(), block["options"])
        return _other(s, choices, s.hyper)
    named = {axis: s.rule.AXES[axis][name] for axis, name in block["choices"].items()}
    return _other(s, s.profile.choices._replace(**named))


def _other(s: Setting, choices: Any, hyper: Any = None) -> Lines:
    """The equations that other choices have, and hyperparameters, and these have not."""
    plain = spec.equations(s.optimizer, s.profile.choices, hyper=s.hyper)
    other = spec.equations(s.optimizer, choices, hyper=hyper)
    return {left: right for left, right in other.items() if plain.get(left) != right}


def name_of(rule: Any, axis: str, choice: Any) -> str:
    """The name of an alternative."""
    found: dict[str, Any] = rule.AXES[axis]
    return next(name for name, other in found.items() if other is choice)


def latex(found: list[Form]) -> str:
    """Equations as LaTeX, one aligned block for each form."""
    return "\n\n".join(
        f"% {x.title}\n{aligned(x.lines)}" if x.title else aligned(x.lines) for x in found
    )


def mathml(found: list[Form]) -> str:
    """Equations as HTML: a paragraph for each title, and MathML."""
    return "\n".join(
        f"<p>{x.title}</p>\n{page(x.lines)}" if x.title else page(x.lines) for x in found
    )


def text(lines: Lines, indent: str = "  ") -> Iterator[str]:
    """Equations in Unicode, aligned at their signs."""
    left = [unicode(x) for x in lines]
    width = max(map(_width, left), default=0)
    for x, right in zip(left, lines.values(), strict=True):
        yield f"{indent}{' ' * (width - _width(x))}{x} = {unicode(right)}"


def _width(x: str) -> int:
    return sum(1 for letter in x if letter not in "\u0302\u0304")


# -- an optimizer ---------------------------------------------------------------------------------
def optimizer(name: str, profile: str = "documented", width: int = WIDTH) -> str:
    """An optimizer: its equations, symbols, hyperparameters, and what it keeps.

    width: columns that tables may take; equations stay whole.
    """
    data, s = spec.load(name), setting(name, profile)
    found = forms(name, profile)
    every = {left: right for form in found for left, right in form.lines.items()}
    parts = [
        f"{data['title']}\n{profile}: {s.profile.source}",
        *(
            "\n".join([*([f"{form.title}:"] if form.title else []), *text(form.lines)])
            for form in found
        ),
        "Symbols\n" + _table([(unicode(x), meaning) for x, meaning in symbols(name, every)], width),
        "Hyperparameters\n"
        + _table([("", "", "default", "range", "meaning"), *hyperparameters(name, profile)], width),
        "State\n" + "\n".join(_wrapped(x, "  ", "    ", width) for x in memory(s)),
        "Sources\n" + "\n".join(_wrapped(x, "  ", "    ", width) for x in data["sources"]),
    ]
    return "\n\n".join(parts) + "\n"


def symbols(name: str, lines: Lines) -> list[tuple[str, str]]:
    """(symbol, meaning) of what occurs in equations; hyperparameters are apart."""
    meanings = spec.load(name)["meanings"]
    return [(x, meanings[x]) for x in occurring(meanings, lines)]


def occurring(several: Iterable[str], lines: Lines) -> list[str]:
    """The symbols that occur in equations."""
    written = " ".join(f"{left} {right}" for left, right in lines.items())
    return [x for x in several if re.search(rf"(?<![\\\w]){re.escape(x)}(?![_\w])", written)]


def hyperparameters(name: str, profile: str = "documented") -> list[tuple[str, ...]]:
    """(symbol, keyword, default of the profile, range, meaning) of each."""
    data = spec.load(name)
    clauses = {clause["id"]: clause["text"] for clause in data["clauses"]}
    values = RULES[name].PROFILES[profile].hyper
    return [
        (
            unicode(h["symbol"]),
            h["keyword"],
            "required" if "required" in h else _number(getattr(values, field)),
            spec.range_of(h),
            f"{clauses[h['clause']]} ({h['clause']})",
        )
        for field, h in data["hyperparameters"].items()
    ]


def _number(x: Any) -> str:
    return "None" if x is None else f"{x:g}"


def memory(s: Setting) -> Iterator[str]:
    """What is kept between steps, and how many bytes that is."""
    everything = s.rule.PROFILES[s.profile.name]
    kept: list[list[str]] = []
    for profile in (s.profile, everything):
        state, clock = arrays.init(s.rule, profile, np.zeros(1, np.float32))
        kept.append([q for q, x in state._asdict().items() if x is not None])
    for when, arrays_ in zip(("", ", with all that can be asked for"), kept, strict=True):
        if not when or arrays_ != kept[0]:
            size = 4 * len(arrays_)
            listed = f"of each element{when}: {', '.join(arrays_) or 'nothing'}"
            yield f"{listed}: {size} bytes in float32, {2 * size} in float64"
    counters = [q for q in clock._fields if q in s.rule.counted(s.profile.choices)]
    if hasattr(s.rule, "shapes_of"):
        shape = PROBLEMS["digits"].layers[0]
        layer = s.rule.Layer("dense", (0, 1), shape)
        shapes = s.rule.shapes_of(layer, s.hyper, s.profile.choices)
        count = sum(int(np.prod(x)) for x in shapes.values())
        listed = ", ".join(f"{q} {' × '.join(map(str, x))}" for q, x in shapes.items())
        of = f"of a dense layer of {shape[0]} × {shape[1]}"
        yield f"{of} also: {listed}: {4 * count} bytes in float32"
    if counters:
        yield f"of each parameter: {', '.join(counters)}: {8 * len(counters)} bytes"


# -- two profiles ---------------------------------------------------------------------------------
def diff(name: str, one: str, other: str) -> list[Differing]:
    """Where two profiles of an optimizer differ, in the order of the specification.

    Raises
    ------
    Unknown
        There is no such optimizer or profile.
    """
    rule = known("OPTIMIZER", RULES, name)
    pair = [known("--diff", rule.PROFILES, profile) for profile in (one, other)]
    found = []
    for axis, data in spec.load(name)["axes"].items():
        names = [name_of(rule, axis, getattr(profile.choices, axis)) for profile in pair]
        if names[0] != names[1]:
            lines = _lines(name, axis, data, names)
            sides = (
                _side(profile, alternative, data, own)
                for profile, alternative, own in zip(pair, names, lines, strict=True)
            )
            found.append(
                Differing(axis, data["clause"], data["question"], (next(sides), next(sides)))
            )
    return found


def _lines(name: str, axis: str, data: Mapping[str, Any], names: list[str]) -> list[Lines]:
    """The equations of both alternatives that are not the same."""
    rule, shows = RULES[name], {key: data[key] for key in ("sparse", "layer") if key in data}
    both = []
    for alternative in names:
        named = {**data.get("within", {}), axis: alternative}
        choices = rule.Choices(**{a: rule.AXES[a][x] for a, x in named.items()})
        both.append(spec.equations(name, choices, **shows))
    return [
        {left: right for left, right in own.items() if other.get(left) != right}
        for own, other in (both, reversed(both))
    ]


def _side(profile: Any, alternative: str, data: Mapping[str, Any], lines: Lines) -> Side:
    stated = data["alternatives"][alternative]
    source = stated.get("link") or profile.source
    return Side(profile.name, alternative, stated["clause"], stated["text"], source, lines)


def defaults(name: str, one: str, other: str) -> list[tuple[str, Any, Any]]:
    """(hyperparameter, value of the first, value of the second), where they differ."""
    pair = [RULES[name].PROFILES[profile].hyper._asdict() for profile in (one, other)]
    return [(q, x, pair[1][q]) for q, x in pair[0].items() if x != pair[1][q]]


def difference(name: str, one: str, other: str) -> str:
    """Two profiles beside each other, only where they differ."""
    parts = []
    for x in diff(name, one, other):
        lines = [f"{x.clause} {x.question} ({x.axis})"]
        for side in x.sides:
            lines.append(f"  {side.profile}: {side.text} ({side.clause}, {side.alternative})")
            lines += text(side.lines, "      ")
            lines.append(f"      {side.source}")
        parts.append("\n".join(lines))
    rows = [(q, _number(a), _number(b)) for q, a, b in defaults(name, one, other)]
    if rows:
        parts.append("Defaults\n" + _table([("", one, other), *rows]))
    halves = [RULES[name].PROFILES[p].half for p in (one, other)]
    if halves[0] != halves[1]:
        words = {
            "stored": "once for each stored quantity",
            "each": "after each operation",
            "float32": "after each operation; float64 is computed in float32",
        }
        parts.append(
            "16 bits are rounded\n"
            + _table([(p, words[h]) for p, h in zip((one, other), halves, strict=True)])
        )
    return "\n\n".join(parts or [f"{one} and {other} are the same rule"]) + "\n"


# -- anything else with a name --------------------------------------------------------------------
def anything(name: str, width: int = WIDTH) -> str:
    """What an optimizer, clause, profile, vector, hyperparameter or option is; see `optimizer`.

    Raises
    ------
    Unknown
        Nothing has that name.
    """
    if name in RULES:
        return optimizer(name, width=width)
    for found in (clause, profile, vector, argument):
        parts = list(found(name))
        if parts:
            return "\n".join(parts).rstrip() + "\n"
    names = {*RULES, *(x for rule in RULES.values() for x in (*rule.PROFILES, *rule.OPTIONS))}
    names |= {h for each in RULES for h in spec.load(each)["hyperparameters"]}
    near = difflib.get_close_matches(name, sorted(names)) or RULES
    kinds = ("a profile as keras-3", "a clause as NAD-5.3", "a hyperparameter", "an option")
    raise Unknown(argument="WHAT", known=[*near, *kinds, "a vector (refopt list)"], got=name)


def clause(id_: str) -> Iterator[str]:
    """A clause of a specification, or an alternative of an axis, with its code."""
    for name, rule in RULES.items():
        data = spec.load(name)
        for x in data["clauses"]:
            if x["id"] == id_:
                yield f"{id_} ({x['kind']}) {x['text']}\n"
        for axis, found in data["axes"].items():
            for alternative, stated in found["alternatives"].items():
                if id_ in (found["clause"], stated["clause"]):
                    yield f"{stated['clause']} {axis}, {alternative}: {stated['text']}"
                    yield from text(spec.shown(name, axis, alternative))
                    if id_ == stated["clause"]:
                        yield from _seen(rule, axis, alternative, stated)


def _seen(rule: Any, axis: str, alternative: str, stated: Mapping[str, Any]) -> Iterator[str]:
    choice = rule.AXES[axis][alternative]
    if inspect.isfunction(choice):
        yield "\n" + inspect.getsource(choice).rstrip()
    takes = [p for p, x in rule.PROFILES.items() if getattr(x.choices, axis) is choice]
    yield f"\nprofiles: {', '.join(takes) or 'none'}"
    if stated["found"]:
        yield f"seen in: {'; '.join(stated['found'])}"
    if "link" in stated:
        yield stated["link"]
    yield ""


def profile(name: str) -> Iterator[str]:
    """A profile: what it follows, and where it differs from what is documented."""
    for optimizer_, rule in RULES.items():
        if name in rule.PROFILES:
            yield f"{optimizer_}, {name}: {rule.PROFILES[name].source}"
            if name != "documented":
                yield f"\n{difference(optimizer_, 'documented', name)}"


def vector(pattern: str) -> Iterator[str]:
    """A vector: what it is for, and which mistakes it shows."""
    optimizer_ = pattern.partition(".")[0]
    if optimizer_ in RULES and "." in pattern:
        for found in golden.recordings(optimizer_, golden.root() / "vectors"):
            case = found.case
            if fnmatchcase(case.id, pattern):
                yield f"{case.id}: {case.comment}"
                hyper = ", ".join(f"{q}={x}" for q, x in case.hyper.items())
                yield f"  {case.steps} steps of {len(case.params)} parameters; {hyper}"
                yield f"  clauses: {', '.join(case.source.get('clauses', ()))}"
                yield f"  excludes: {', '.join(map(_killed, case.source.get('kills', ())))}"


def _killed(x: Any) -> str:
    return x if isinstance(x, str) else str(x)


def argument(name: str) -> Iterator[str]:
    """A hyperparameter or an option, of every optimizer that has it."""
    for optimizer_, rule in RULES.items():
        for field, h in spec.load(optimizer_)["hyperparameters"].items():
            if name in (field, re.sub(r"\[.*", "", h["keyword"])):
                row = next(r for r in hyperparameters(optimizer_) if r[0] == unicode(h["symbol"]))
                yield f"{optimizer_}: {row[0]}, default {row[2]}, {row[3]}; {row[4]}"
        if name in rule.OPTIONS:
            s = setting(optimizer_)
            full = rule.PROFILES["documented"].choices
            yield f"{optimizer_}, with {name}:"
            yield from text(_other(s, rule.configured(full, s.hyper, {name: True})))


def _table(rows: list[tuple[str, ...]], width: int = WIDTH) -> str:
    """Columns beside each other; the words of the last go on below, from a place that leaves room.

    Where none is left beside the others, the last stands below them.
    """
    *widths, _ = (max(map(_width, column)) for column in zip(*rows, strict=True))
    indent = " " * (sum(widths) + 2 * len(widths) + 2)
    beside = width - len(indent) >= LEAST
    indent = indent if beside else " " * 6
    lines = []
    for *row, last in rows:
        cells = [x + " " * (n - _width(x)) for x, n in zip(row, widths, strict=True)]
        parts = ["  ".join([*cells, last])] if beside else ["  ".join(cells).rstrip(), last]
        lines += [_wrapped(parts[0], "  ", indent, width)]
        lines += [_wrapped(part, indent, indent, width) for part in parts[1:]]
    return "\n".join(lines)


def _wrapped(x: str, first: str, later: str, width: int) -> str:
    given: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(x, width, initial_indent=first, subsequent_indent=later, **given)


PRINTED: dict[str, Callable[[list[Form]], str]] = {"latex": latex, "mathml": mathml}
