"""Two rules beside each other: where they differ, and while what they agree.

Each is a record: a profile with choices changed. One is run on NumPy on every vector, and its
parameters are put beside the envelope of the other: what a state is called, and in which form it is
kept, makes no difference. Agreement is by values: a formula that is another and gives the same on
some inputs is not seen there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

from refopt.interp.formats import FORMATS
from refopt.oracle import golden, rop, spec
from refopt.oracle.diagnose import Record
from refopt.oracle.golden import Case, Recording
from refopt.oracle.layered import judging
from refopt.oracle.mistakes import mistaken, own
from refopt.oracle.own import numpy_run
from refopt.oracle.search import Search
from refopt.oracle.verdict import Finding, Judge
from refopt.typing import Profile


class Axis(NamedTuple):
    """An axis on which two records differ."""

    axis: str
    first: str
    second: str


class Between(NamedTuple):
    """Two records beside each other."""

    optimizer: str
    first: Record
    second: Record
    axes: tuple[Axis, ...]
    rounding: tuple[Axis, ...]  # on which they are equal over the reals
    vectors: int
    differ: tuple[str, ...]  # ids of the vectors on which they do
    agree_while: tuple[str, ...]  # each is enough
    finding: Finding | None  # the first record's number outside the second's envelope


def between(
    optimizer: str,
    first: Record,
    second: Record,
    recordings: Iterable[Recording],
    progress: Callable[[str], None] = lambda what: None,
) -> Between:
    """Two records of an optimizer on some vectors."""
    cases = [recording.case for recording in recordings]
    outside: dict[str, tuple[Case, Finding]] = {}
    for case in cases:
        progress(case.id)
        if (finding := _outside(optimizer, case, first, second)) is not None:
            outside[case.id] = case, finding
    differ = [case for case, _ in outside.values()]
    alike = [case for case in cases if case.id not in outside]
    axes = list(_axes(optimizer, first, second))
    progress("while what they agree")
    return Between(
        optimizer,
        first,
        second,
        tuple(axis for axis, real in axes if real),
        tuple(axis for axis, real in axes if not real),
        len(cases),
        tuple(outside),
        tuple(_conditions(optimizer, differ, alike, first, second)) if differ else (),
        next((finding for _, finding in outside.values()), None),
    )


def _outside(optimizer: str, case: Case, first: Record, second: Record) -> Finding | None:
    """Where the numbers of one leave the envelope of the other; or the other way round."""
    rule = mistaken(optimizer)
    for one, other in ((first, second), (second, first)):
        profile: Profile = rule.PROFILES[one.profile]
        changed = {axis: rule.AXES[axis][name] for axis, name in one.changes}
        run = numpy_run(case, profile, changed)
        if run.error:
            continue
        params = {t: {"param": step["param"]} for t, step in run.steps.items()}
        run = run._replace(steps=params, factors={}, finalized=None)
        judge: Judge = judging(rule)(rule, case, run, rule.PROFILES[other.profile])
        if (beside := Search([judge], 0).first(0, other.changes)) is not None:
            return judge.finding(beside)
    return None


def _axes(optimizer: str, first: Record, second: Record) -> Iterator[tuple[Axis, bool]]:
    """The axes on which they take other formulas, and whether those differ over the reals."""
    rule = mistaken(optimizer)
    for axis, named in rule.AXES.items():
        one, other = (
            dict(record.changes).get(axis)
            or own(named, rule.PROFILES[record.profile].choices, axis)
            for record in (first, second)
        )
        if one != other:
            same = any({one, other} <= names for names in rule.SAME_EXACTLY.get(axis, ()))
            yield Axis(axis, one, other), not same


def _conditions(
    optimizer: str, differ: list[Case], alike: list[Case], first: Record, second: Record
) -> Iterator[str]:
    """What is enough for agreement on every vector: one feature less each, or else several.

    In float64, where rounding hides least. What cannot be taken from any vector is enough where
    vectors without it agree.
    """
    differ = [case for case in differ if {*case.dtypes} == {"float64"}] or differ
    known: dict[tuple[str, frozenset[str]], bool] = {}
    features = {case.id: _features(case) for case in differ}

    def left(words: frozenset[str]) -> list[Case]:
        """The vectors on which they differ without some features."""
        found = []
        for case in differ:
            key = case.id, words & features[case.id]
            if key not in known:
                plain = _without(case, key[1])
                known[key] = (
                    plain is not None and _outside(optimizer, plain, first, second) is not None
                )
            if known[key]:
                found.append(case)
        return found

    words = sorted(set().union(*features.values()))
    alone = {word: left(frozenset({word})) for word in words}
    plain = {word for word in words if any(_without(x, frozenset({word})) for x in differ)}
    plain |= {word for word in words if any(word not in _features(case) for case in alike)}
    if enough := [word for word in words if word in plain and not alone[word]]:
        yield from (_phrase(word) for word in enough)
        return
    taken: frozenset[str] = frozenset()
    rest = differ
    while rest and words:
        tried = {word: left(taken | {word}) for word in words if word not in taken}
        best = min(tried, key=lambda word: len(tried[word]), default="")
        if not best or len(tried[best]) == len(rest):
            return
        taken, rest = taken | {best}, tried[best]
    if taken:
        yield " and ".join(_phrase(word) for word in sorted(taken))


def _features(case: Case) -> set[str]:
    """What can be left out of a case: a learning rate of 0, or no step, is no case of interest."""
    changed = {f"change of {name}" for changes in case.changes.values() for name in changes}
    described = spec.load(case.id.partition(".")[0])["hyperparameters"]
    ranges = {name: described.get(name, {}).get("range", {}) for name in case.hyper}
    fixed = {name for name, x in case.hyper.items() if not isinstance(x, float) or name == "lr"}
    fixed |= {name for name, x in ranges.items() if "above" in x or x.get("least", 0) > 0}
    return (rop.needs(case) | changed) - fixed - {*FORMATS}


def _without(case: Case, words: frozenset[str]) -> Case | None:
    """A case without some features; None where it has one that it cannot lose."""
    source = cast(dict[str, Any], dict(case.source))
    hyper, options = dict(source["hyper"]), dict(source.get("options", {}))
    changes = {t: dict(x) for t, x in source.get("changes", {}).items()}
    for word in words:
        if word in hyper:
            hyper[word] = "0.0"
            changes = {t: x | {q: "0.0" for q in x if q == word} for t, x in changes.items()}
        elif word in options:
            options[word] = 0
        elif word.startswith("change of "):
            name = word.removeprefix("change of ")
            changes = {t: {q: v for q, v in x.items() if q != name} for t, x in changes.items()}
        else:
            return None
    changes = {t: x for t, x in changes.items() if x}
    groups = [
        group | {"hyper": {q: "0.0" if q in words else x for q, x in group["hyper"].items()}}
        for group in source.get("groups", ())
    ]
    source |= {"hyper": hyper, "options": options}
    source |= {"groups": groups} if groups else {}
    source = {key: x for key, x in source.items() if key != "changes"}
    return golden.parse(source | ({"changes": changes} if changes else {}))


def _phrase(word: str) -> str:
    """A condition in words."""
    if word.startswith("change of "):
        return f"{word.removeprefix('change of ')} does not change"
    if any(word in rule.Hyper._fields for rule in spec.RULES.values()):
        return f"{word} is 0"
    if any(word in rule.OPTIONS for rule in spec.RULES.values()):
        return f"{word} is off"
    return LACKING.get(word, f"no {word} is there")


LACKING = {
    "several": "there is one parameter",
    "missing": "no gradient is missing",
    "sparse": "no gradient is sparse",
    "schedule": "the learning rate follows no schedule",
    "groups": "there is one group",
}
"""What cannot be taken from a vector, where it is not."""
