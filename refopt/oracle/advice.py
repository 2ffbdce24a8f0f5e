"""A diagnosis in words, for a porter to act on; and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from refopt.oracle import spec
from refopt.oracle.between import Between
from refopt.oracle.diagnose import Diagnosis, Difference, Record
from refopt.oracle.observe import Subject
from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE, Finding

SHOWN = 3  # vectors that are named for each difference
FORMULAS = 2  # equations that are written out for each difference


def paragraph(subject: Subject, found: Diagnosis) -> str:
    """One paragraph: what is followed, what differs, what to change, what was not decided."""
    return " ".join([*_followed(subject, found), *_changes(found), *_open(subject, found)])


def _followed(subject: Subject, found: Diagnosis) -> Iterator[str]:
    name, n = subject.name, len(found.vectors)
    if not n:
        yield f"{name} answered no vector: nothing is known of it."
        return
    if found.status == CONFORMS:
        undecided = f"; undecided: {', '.join(found.open)}" if found.open else ""
        yield f"{name} conforms to {found.against} on all {n} vectors{undecided}."
        return
    if found.status == INCONCLUSIVE:
        yield f"{name} lies inside {found.against} on all {n} vectors, and so does every other rule"
        yield "that was tried: nothing is decided."
        return
    outside = f"{len(found.outside)} of {n} vectors lie outside {found.against}"
    if not found.held:
        assert found.first is not None
        assert found.nearest is not None
        inside = n - len(found.leaves)
        yield f"{name} follows no rule that is known, nor one with two changes: {outside}."
        yield f"Nearest is {_record(found.optimizer, found.nearest)}, which holds {inside} of {n};"
        yield f"{found.leaves[0]} leaves it: it {_values(found.first)} at {place(found.first)}."
        return
    yield f"{name} follows {_alternatives(found)}: {outside}."
    if found.idle:
        yield f"It shows {' and '.join(found.idle)} as it should, and computes with something else."


def _alternatives(found: Diagnosis) -> str:
    """What holds; what differs in rounding alone, or not at all, together."""
    records = [_record(found.optimizer, record) for record in found.held]
    more = f", or what these vectors do not tell from it: {', '.join(records[1:])}"
    return records[0] + (more if len(records) > 1 else "")


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
    yield f"it should be: {should} (spec/{optimizer}.md, {clause})."
    for left, (wanted, mine) in list(difference.equations.items())[:FORMULAS]:
        yield f"Write ${left} = {wanted}$, not $= {mine}$." if wanted else f"Drop ${left}$."
    some = ", ".join(difference.shown_by[:SHOWN])
    more = f" and {n - SHOWN} more" if n > SHOWN else ""
    first = difference.first
    yield f"Shown by {some}{more}: were it so,"
    yield f"{difference.case} {_values(first)} at {place(first)}."


def told(optimizer: str, axis: str, name: str) -> tuple[str, str]:
    """(what an alternative does, its clause); a mistaken hyperparameter has no clause."""
    known = spec.load(optimizer)["axes"].get(axis, {}).get("alternatives", {})
    if name in known:
        return known[name]["text"], known[name]["clause"]
    if name == "as-given":
        return "the hyperparameters as they are given", "hyperparameters"
    quantity, _, value = name.partition(":")
    return f"{quantity} is {value}, whatever is given", ""


def _open(subject: Subject, found: Diagnosis) -> Iterator[str]:
    """What was not decided, what would decide it, and what was not answered."""
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
    reasons: dict[tuple[str, str], list[str]] = {}
    for failed in subject.failed:
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
    first = None if found.first is None else found.first._asdict()
    return {
        "kind": "diagnosis",
        "implementation": subject.name,
        "version": subject.version,
        "optimizer": found.optimizer,
        "status": found.status,
        "against": found.against,
        "follows": [record._asdict() for record in found.held],
        "idle": list(found.idle),
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
        "first": first and _finite(first),
        "vectors": list(found.vectors),
        "outside": list(found.outside),
        "failed": [failed._asdict() for failed in subject.failed],
        "text": paragraph(subject, found),
    }


def comparison(names: tuple[str, str], found: Between) -> str:
    """Two rules beside each other, as one paragraph."""
    one, other = names
    records = [_record(found.optimizer, record) for record in (found.first, found.second)]
    parts = [f"{one} follows {records[0]}; {other} follows {records[1]}."]
    if not found.differ:
        parts.append(f"They agree on all {found.vectors} vectors.")
    for axis, first, second in found.axes:
        told_ = [told(found.optimizer, axis, name) for name in (first, second)]
        mine, its = (f"{text}{f' ({clause})' if clause else ''}" for text, clause in told_)
        parts.append(f"{axis.capitalize()}: {one} {mine}; {other} {its}.")
    if found.finding is not None:
        parts.append(f"They differ on {len(found.differ)} of {found.vectors} vectors, first on")
        parts.append(f"{found.differ[0]}, which {_values(found.finding)} at")
        parts.append(f"{place(found.finding)}.")
        while_ = "; or ".join(found.agree_while)
        parts.append(f"They agree while {while_}." if while_ else "No condition was found.")
    return " ".join(parts)


def plain(found: Between) -> dict[str, Any]:
    """Two rules beside each other as JSON."""
    finding = None if found.finding is None else _finite(found.finding._asdict())
    axes = [axis._asdict() for axis in found.axes]
    records = {"first": found.first._asdict(), "second": found.second._asdict()}
    return {**found._asdict(), **records, "axes": axes, "finding": finding}


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Numbers that JSON has; others as text."""
    return {
        name: repr(x) if isinstance(x, float) and not math.isfinite(x) else x
        for name, x in fields.items()
    }
