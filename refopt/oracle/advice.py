"""A diagnosis in words, for a porter to act on; and as JSON."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from typing import Any

from refopt.interp.notation import unicode
from refopt.oracle import spec
from refopt.oracle.between import Between
from refopt.oracle.diagnose import Departure, Diagnosis, Difference, Record
from refopt.oracle.observe import Subject
from refopt.oracle.report import counted, told
from refopt.oracle.suite import FAILURES, REJECTED, SKIPPED
from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE, VIOLATION, Finding

SHOWN = 3  # vectors that are named for each difference
FORMULAS = 2  # equations that are written out for each difference


def paragraph(subject: Subject, found: Diagnosis) -> str:
    """One paragraph: what is followed, what differs, what to change, what was not decided."""
    broke, other = _failed(subject, (*FAILURES, VIOLATION)), _failed(subject, (REJECTED, SKIPPED))
    followed, changes = _followed(subject, found), _changes(found)
    return " ".join([*broke, *followed, *changes, *_open(found), *other])


def _followed(subject: Subject, found: Diagnosis) -> Iterator[str]:
    name, n, against = subject.name, len(found.vectors), found.against
    every = f"{'all ' * (n > 1)}{counted(n, 'vector')}" + " that it answered" * subject.broke
    outside = f"{len(found.outside)} of {counted(n, 'vector')} lie outside {against}"
    if not n:
        yield f"{name} answered no vector: nothing is known of it."
    elif found.status == CONFORMS:
        undecided = f"; undecided: {', '.join(found.open)}" if found.open else ""
        yield f"{name} conforms to {against} on {every}{undecided}."
    elif found.status == INCONCLUSIVE:
        yield f"{name} lies inside {against} on {every}, and so does every other rule"
        yield "that was tried: nothing is decided."
    elif found.departure is not None:
        yield f"{name} follows no rule that is known, nor one with two changes: {outside}."
        yield from _departure(found, found.departure)
    elif found.otherwise and found.held[0] == Record(against, ()):
        yield f"{name} follows {against} but for a counter of another meaning: {outside}."
    elif found.rounded:
        yield f"{name} computes what {against} does, but for rounding: {outside}."
        yield f"They lie within the roundings of {_alternatives(found)}; an order of operations or"
        yield "a precision that is none of these cannot be told from that."
    elif found.where:
        yield f"{name} conforms to {against} except with {_listed(found.where)}, where it follows"
        yield f"{_alternatives(found)}: {outside}."
    else:
        yield f"{name} follows {_alternatives(found)}: {outside}."
    if found.idle:
        yield f"It shows {' and '.join(found.idle)} as it should, and computes with something else."
    for counter in found.otherwise:
        clauses = ", ".join(spec.load(found.optimizer)["exercised"].get(counter, ()))
        at = f" (spec/{found.optimizer}.md, {clauses})" if clauses else ""
        yield f"What it calls {counter} is not the rule's {counter}{at}; everything else holds."


def _departure(found: Diagnosis, x: Departure) -> Iterator[str]:
    """What is right and what departs first, by which equation, and what the failures share."""
    first, n = x.first, len(found.vectors)
    if not math.isfinite(first.observed) and not math.isnan(first.low):
        yield f"{x.quantity} is {first.observed!r} at step {first.step}, where the rule is finite."
    if x.right:
        yield f"Right: {', '.join(x.right)}. First to depart: {x.quantity}."
    elif x.hidden:
        yield f"First to depart: {x.quantity}; {', '.join(x.hidden)} are not shown: with them it"
        yield "could be said which of them is wrong."
    else:
        yield f"First to depart: {x.quantity}."
    lines = ", ".join(f"{unicode(left)} = {unicode(right)}" for left, right in x.equations.items())
    where = f"spec/{found.optimizer}.md, {', '.join(x.clauses)}"
    yield f"It should be {lines} ({where})."
    yield f"{x.case} {_values(first)} at {place(first)}."
    if x.step > 1:
        yield f"Nothing lies outside before step {x.step}."
    if x.small:
        yield "What lies outside has more than half its digits: equations in another order round"
        yield "so, and other small errors look the same."
    if found.common:
        yield f"What lies outside has in common: {_listed(found.common)}."
    if found.nearest and (inside := n - len(found.leaves)) * 2 > n:
        yield f"Nearest is {_record(found.optimizer, found.nearest)}, which holds {inside} of {n}."


def _listed(features: tuple[str, ...]) -> str:
    """Features of vectors in words."""
    named = {q for rule in spec.RULES.values() for q in {*rule.Hyper._fields} - {*rule.OPTIONS}}
    words = [
        f"{x} that is not 0" if x in named else WORDS.get(x, x.replace("change", "a change"))
        for x in features
    ]
    return " and ".join(words)


WORDS = {
    "several": "several parameters",
    "missing": "a missing gradient",
    "sparse": "a sparse gradient",
    "schedule": "a schedule",
    "groups": "several groups",
}
"""What a vector has, where its name says too little."""


def _alternatives(found: Diagnosis) -> str:
    """What holds; what differs in rounding alone, or not at all, together."""
    records = [_record(found.optimizer, record) for record in found.held]
    rest, more = records[1 : 1 + SHOWN], len(records) - 1 - SHOWN
    others = ", or ".join(rest) + (f", or {more} more" if more > 0 else "")
    return records[0] + (f", or what these vectors do not tell from it: {others}" if rest else "")


def _record(optimizer: str, record: Record) -> str:
    """A record in words."""
    source = spec.RULES[optimizer].PROFILES[record.profile].source
    text = f"{record.profile} ({source})"
    changes = " and ".join("=".join(change) for change in record.changes)
    return f"{text} with {changes}" if changes else text


def _changes(found: Diagnosis) -> Iterator[str]:
    for difference in found.differences:
        yield from _change(found.optimizer, difference)


def _change(optimizer: str, difference: Difference) -> Iterator[str]:
    """What one axis does, should do, and where it shows."""
    axis, n = difference.axis, len(difference.shown_by)
    does, it = told(optimizer, axis, difference.does)
    should, clause = told(optimizer, axis, difference.should)
    question = spec.load(optimizer)["axes"].get(axis, {}).get("question", "What is computed with?")
    yield f"{axis.capitalize()}: {question} Here: {does}{f' ({it})' if it else ''};"
    yield f"it {'may' if difference.rounding else 'should'} be: {should}"
    yield f"(spec/{optimizer}.md, {clause})."
    if difference.rounding:
        yield "Both are equal over the real numbers; the order or precision of rounding differs."
    for left, sides in list(difference.equations.items())[:FORMULAS]:
        name, wanted, mine = (unicode(x) for x in (left, *sides))
        if difference.rounding:
            yield f"{name} = {mine} is {wanted}, rounded otherwise."
        else:
            yield f"Write {name} = {wanted}, not {name} = {mine}." if wanted else f"Drop {name}."
    some = ", ".join(difference.shown_by[:SHOWN])
    more = f" and {n - SHOWN} more" if n > SHOWN else ""
    first = difference.first
    yield f"Shown by {some}{more}: were it so,"
    yield f"{difference.case} {_values(first)} at {place(first)}."


def _open(found: Diagnosis) -> Iterator[str]:
    """What was not decided, and what would decide it."""
    asked: dict[str, list[str]] = {}
    for x in found.undecided:
        if x.asked:
            by = f" (by {x.vector})" if x.vector else ""
            asked.setdefault(x.axis, []).append(x.name + by)
    if asked:
        text = "; ".join(f"{axis}: {', '.join(names)}" for axis, names in asked.items())
        yield f"Undecided, since every vector holds these as well: {text}."
    if never := list(dict.fromkeys(x.axis for x in found.undecided if not x.asked)):
        yield f"Not asked by any vector that was answered: {', '.join(never)}."


def _failed(subject: Subject, statuses: Container[str]) -> Iterator[str]:
    """What was not answered, and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for failed in subject.failed:
        if failed.status in statuses:
            short = failed.detail.strip().partition("\n")[0]
            reasons.setdefault((failed.status, short), []).append(failed.case)
    for (status, detail), cases in reasons.items():
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        yield f"{status.capitalize()}: {cases[0]}{more} ({detail})."


def place(first: Finding) -> str:
    """Where an observation lies."""
    of = f"layer {first.layer}" if first.layer else f"parameter {first.parameter}"
    return f"step {first.step}, {first.quantity}[{first.element}] of {of}"


def _values(first: Finding) -> str:
    """What was observed, and what is possible."""
    if math.isnan(first.low):
        return f"would have no number, and has {first.observed!r},"
    numbers = first.low, first.high, first.observed
    digits = 9 if len({f"{x:.9g}" for x in numbers}) == len(set(numbers)) else 17
    low, high, observed = (f"{x:.{digits}g}" for x in numbers)
    return f"would have {low} to {high}, and has {observed},"


def document(subject: Subject, found: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON."""
    departure = found.departure
    first = departure and _finite(departure.first._asdict())
    return {
        "kind": "diagnosis",
        "implementation": subject.name,
        "version": subject.version,
        "optimizer": found.optimizer,
        "status": found.status,
        "against": found.against,
        "follows": [record._asdict() for record in found.held],
        "where": list(found.where),
        "idle": list(found.idle),
        "otherwise": list(found.otherwise),
        "differences": [
            {
                **difference._asdict(),
                "first": _finite(difference.first._asdict()),
                "clause": told(found.optimizer, difference.axis, difference.should)[1],
            }
            for difference in found.differences
        ],
        "undecided": [undecided._asdict() for undecided in found.undecided],
        "nearest": found.nearest and found.nearest._asdict(),
        "leaves": list(found.leaves),
        "common": list(found.common),
        "departure": departure and {**departure._asdict(), "first": first},
        "first": first,
        "vectors": list(found.vectors),
        "outside": list(found.outside),
        "failed": [failed._asdict() for failed in subject.failed],
        "text": paragraph(subject, found),
    }


def comparison(names: tuple[str, str], found: Between) -> str:
    """Two rules beside each other, as one paragraph."""
    one, other = names
    records = [_record(found.optimizer, record) for record in (found.first, found.second)]
    pairs = zip(names, (found.first, found.second), records, strict=True)
    parts = [x if name == r.profile else f"{name} follows {x}" for name, r, x in pairs]
    parts = [f"{parts[0]}; {parts[1]}."]
    if not found.differ:
        parts.append(f"They agree on all {found.vectors} vectors.")
    for axis, first, second in found.axes:
        told_ = [told(found.optimizer, axis, name) for name in (first, second)]
        mine, its = (f"{text}{f' ({clause})' if clause else ''}" for text, clause in told_)
        question = spec.load(found.optimizer)["axes"].get(axis, {}).get("question", "")
        parts.append(f"{axis.capitalize()}: {question} {one}: {mine}; {other}: {its}.")
    if found.rounding:
        rounding = ", ".join(f"{x.axis} ({x.first}, {x.second})" for x in found.rounding)
        parts.append(f"They round otherwise, and are equal over the real numbers, in {rounding}.")
    if found.finding is not None:
        of = counted(found.vectors, "vector")
        parts.append(f"They differ on {len(found.differ)} of {of}, first on {found.differ[0]}:")
        parts.append(f"one {_values(found.finding)} at {place(found.finding)}.")
        while_ = "; or ".join(found.agree_while)
        parts.append(f"They agree while {while_}." if while_ else "No condition was found.")
    return " ".join(parts)


def plain(found: Between) -> dict[str, Any]:
    """Two rules beside each other as JSON."""
    finding = None if found.finding is None else _finite(found.finding._asdict())
    axes = [axis._asdict() for axis in found.axes]
    rounding = [axis._asdict() for axis in found.rounding]
    records = {"first": found.first._asdict(), "second": found.second._asdict()}
    return {**found._asdict(), **records, "axes": axes, "rounding": rounding, "finding": finding}


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Numbers that JSON has; others as text."""
    return {
        name: repr(x) if isinstance(x, float) and not math.isfinite(x) else x
        for name, x in fields.items()
    }
