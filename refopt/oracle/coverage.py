"""Which vector exercises each clause of a specification, and which excludes each alternative.

What no vector does must say why, in `unexercised`, `equal` or `unseen` of the specification; and
what says why must not be done by a vector.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from refopt.oracle import golden, spec
from refopt.oracle.search import equal

DTYPES = {"f32": "float32", "f64": "float64"}
MOST, LARGEST = 150, 1_500_000
"""Vectors of all optimizers together, and bytes of their files."""


class Clause(NamedTuple):
    """A clause, and who tests it."""

    id: str
    kind: str
    text: str
    vectors: tuple[str, ...]  # that exercise it
    reason: str  # why none does


class Alternative(NamedTuple):
    """An alternative on an axis, and who excludes it in a dtype."""

    axis: str
    name: str
    dtype: str
    vectors: tuple[str, ...]
    reason: str  # why none does


def optimizers() -> list[str]:
    """Those that have vectors, or state inputs of some."""
    folder = golden.root() / "vectors"
    return [o for o in spec.RULES if (folder / o).is_dir() or "vectors" in spec.load(o)]


@cache
def sources(optimizer: str) -> tuple[dict[str, Any], ...]:
    """The vectors of an optimizer as JSON objects; not to be written to."""
    path = golden.root() / "vectors" / optimizer / "documented.json"
    return tuple(json.loads(path.read_text(encoding="utf-8"))["cases"])


def clauses(optimizer: str) -> Iterator[Clause]:
    """Every clause, in order."""
    data = spec.load(optimizer)
    reasons = {id_: why["reason"] for why in data["unexercised"] for id_ in why["clauses"]}
    for clause in data["clauses"]:
        found = tuple(v["id"] for v in sources(optimizer) if clause["id"] in v["clauses"])
        why = reasons.get(clause["id"], "")
        yield Clause(clause["id"], clause["kind"], clause["text"], found, why)


def alternatives(optimizer: str) -> Iterator[Alternative]:
    """Every alternative to the documented choices, in both dtypes."""
    rule, unseen = spec.RULES[optimizer], spec.load(optimizer).get("unseen", {})
    choices = rule.PROFILES["documented"].choices
    for axis, named in rule.AXES.items():
        same = equal(rule, axis, choices)
        for name, choice in named.items():
            if choice is getattr(choices, axis):
                continue
            change = f"{axis}={name}"
            for ending, dtype in DTYPES.items():
                reason = unseen.get(change) or unseen.get(f"{change} in {dtype}", "")
                if name in same:
                    reason = "equal over the real numbers to what is documented"
                found = tuple(
                    v["id"]
                    for v in sources(optimizer)
                    if change in v["kills"] and v["id"].endswith(ending)
                )
                yield Alternative(axis, name, dtype, found, reason)


def missing(optimizer: str) -> Iterator[str]:
    """What no vector does and has no reason; and what has one, and a vector does."""
    for clause in clauses(optimizer):
        if not clause.vectors and not clause.reason:
            yield f"{clause.id}: no vector exercises it, and no reason is stated: {clause.text}"
        elif clause.vectors and clause.reason:
            yield f"{clause.id}: {clause.vectors[0]} exercises it, though {clause.reason}"
    for a in alternatives(optimizer):
        if not a.vectors and not a.reason:
            yield f"{a.axis}={a.name}: no vector of {a.dtype} excludes it, and no reason is stated"


def invalid() -> Iterator[str]:
    """What of the files of vectors is not valid by their schema, where jsonschema is installed."""
    if find_spec("jsonschema") is None:
        return
    import jsonschema

    schema = (golden.root() / "schema" / "vectors.schema.json").read_text(encoding="utf-8")
    validator = jsonschema.Draft202012Validator(json.loads(schema))
    for optimizer in optimizers():
        for path in sorted((golden.root() / "vectors" / optimizer).glob("*.json")):
            for error in validator.iter_errors(json.loads(path.read_text(encoding="utf-8"))):
                yield f"{optimizer}/{path.name}, {error.json_path}: {error.message:.200}"


def faults() -> Iterator[str]:
    """What the vectors as a whole must not be."""
    yield from invalid()
    every = [v for optimizer in optimizers() for v in sources(optimizer)]
    paths = [p for o in optimizers() for p in (golden.root() / "vectors" / o).glob("*")]
    size = sum(path.stat().st_size for path in paths)
    if len(every) > MOST or size > LARGEST:
        yield f"at most {MOST} vectors in {LARGEST} bytes; got {len(every)} in {size}"
    gone = golden.retired()
    for v in every:
        if v["id"] in gone:
            yield f"{v['id']}: its id is retired: {gone[v['id']]}"
        for key in ("comment", "clauses", "kills", "modes"):
            if not v[key]:
                yield f"{v['id']}: {key} must not be empty"
