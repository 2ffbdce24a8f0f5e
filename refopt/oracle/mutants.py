"""How well the vectors and the search tell wrong rules: every change of one choice, and of two.

A mutant is the documented rule with choices changed, run on NumPy on a vector that excludes what it
changes. It is caught if it lies outside the documented envelope, and named if the search for what
holds its run finds those changes, or others that give the same bits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from refopt.oracle import golden, spec, styles
from refopt.oracle.coverage import DTYPES, alternatives
from refopt.oracle.golden import Recording, Run
from refopt.oracle.layered import judging
from refopt.oracle.own import numpy_run
from refopt.oracle.search import Changes, equal

NAMED, AMONG, CAUGHT, MISSED = "named", "named among others", "caught", "missed"
SEED = 20240501
TRIES = 4  # vectors on which a mutant is run until it is named


class Mutant(NamedTuple):
    """The documented rule of an optimizer with choices changed, in a dtype."""

    optimizer: str
    dtype: str
    changes: Changes


class Outcome(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    status: str  # NAMED, AMONG, CAUGHT or MISSED
    vector: str = ""  # that told it
    explanations: tuple[Changes, ...] = ()  # all that hold its run there


def singles(optimizer: str) -> Iterator[Mutant]:
    """Every change of one choice that is another rule, in both dtypes."""
    for a in alternatives(optimizer):
        if not a.reason and _numeric(a.vectors):
            yield Mutant(optimizer, a.dtype, ((a.axis, a.name),))


def identical(optimizer: str) -> Iterator[tuple[str, str]]:
    """(alternative, in which dtype if not in both; why it is not told from what is documented)."""
    found: dict[tuple[str, str], list[str]] = {}
    for a in alternatives(optimizer):
        if a.reason:
            found.setdefault((f"{a.axis}={a.name}", a.reason), []).append(a.dtype)
    for (change, reason), dtypes in found.items():
        yield change if len(dtypes) == len(DTYPES) else f"{change} in {dtypes[0]}", reason


def pairs(optimizer: str, number: int, seed: int = SEED) -> list[Mutant]:
    """Changes of two choices, drawn from those that some vector excludes both of."""
    found = []
    for dtype in DTYPES.values():
        one = [m.changes[0] for m in singles(optimizer) if m.dtype == dtype]
        every = [
            Mutant(optimizer, dtype, tuple(sorted(two)))
            for two in combinations(one, 2)
            if two[0][0] != two[1][0] and _vectors(optimizer, dtype, two)
        ]
        found += random.Random(f"{seed} {optimizer} {dtype}").sample(every, min(number, len(every)))
    return found


def tried(mutant: Mutant) -> Outcome:
    """Run a mutant on the vectors that exclude what it changes, until it is named."""
    rule = spec.RULES[mutant.optimizer]
    profile = rule.PROFILES["documented"]
    best = Outcome(mutant, MISSED)
    for recording in _vectors(mutant.optimizer, mutant.dtype, mutant.changes)[:TRIES]:
        case = recording.case
        run = numpy_run(case, profile, _choices(rule, mutant.changes))
        judge = judging(rule)(rule, case, run, profile)
        if judge.verdict(axes=False).first is None:
            continue
        held = tuple(judge.named())
        same = [c for c in held if c == mutant.changes or _same(run, case, profile, rule, c)]
        status = CAUGHT if not same else NAMED if len(same) == len(held) else AMONG
        found = Outcome(mutant, status, case.id, held)
        if status == NAMED:
            return found
        best = min(best, found, key=lambda x: ORDER.index(x.status))
    return best


ORDER = (NAMED, AMONG, CAUGHT, MISSED)
"""From the best to the worst."""


def _choices(rule: Any, changes: Changes) -> dict[str, Any]:
    return {axis: rule.AXES[axis][name] for axis, name in changes}


def _same(run: Run, case: Any, profile: Any, rule: Any, changes: Changes) -> bool:
    """Whether other changes give the same bits, NaN being NaN."""
    other = numpy_run(case, profile, _choices(rule, changes))
    return repr((other.steps, other.factors)) == repr((run.steps, run.factors))


def _numeric(ids: Iterable[str]) -> bool:
    """Whether a vector that has values is among these."""
    return any(".reject-" not in id_ for id_ in ids)


@cache
def recordings(optimizer: str) -> tuple[Recording, ...]:
    """The vectors that have values."""
    path = golden.root() / "vectors" / optimizer / "documented.json"
    return tuple(r for r in golden.load(path) if r.runs)


def _vectors(optimizer: str, dtype: str, changes: Iterable[tuple[str, str]]) -> list[Recording]:
    """The vectors of a dtype that exclude each of some changes; those that exclude least first.

    What excludes little has little that explains it beside the truth, and is quick.
    """
    wanted = {f"{axis}={name}" for axis, name in changes}
    found = [
        r
        for r in recordings(optimizer)
        if {*r.case.dtypes} == {dtype} and wanted <= {*r.case.source["kills"]}
    ]
    return sorted(found, key=lambda r: r.case.steps * sum(map(len, r.case.params)))


# -- what is right, in every rounding -------------------------------------------------------------


class Rounded(NamedTuple):
    """A right implementation on a vector, and where it would be called wrong."""

    case: str
    style: str
    wrong: str


LONGEST = 100  # steps of a vector that is run in every style


def right(optimizer: str, every: int = 1) -> Iterator[Rounded]:
    """The documented rule in every style of rounding, on `every` vector of float32 and float64.

    And each alternative that is equal to it over the real numbers, beside the envelope of the
    profile that declares it.
    """
    rule = spec.RULES[optimizer]
    profile = rule.PROFILES["documented"]
    for recording in recordings(optimizer)[::every]:
        case = recording.case
        if case.steps > LONGEST or not {*case.dtypes} <= {*DTYPES.values()}:
            continue
        for style, run in styles.runs(case, profile):
            yield Rounded(case.id, style, _outside(rule, case, run, profile))
        for axis, named in rule.AXES.items():
            for name in equal(rule, axis, profile.choices):
                changed = {axis: named[name]}
                if named[name] is not getattr(profile.choices, axis):
                    declared = profile._replace(choices=profile.choices._replace(**changed))
                    run = numpy_run(case, declared)
                    wrong = _outside(rule, case, run, declared)
                    yield Rounded(case.id, f"{axis}={name}", wrong)


def _outside(rule: Any, case: Any, run: Run, profile: Any) -> str:
    first = judging(rule)(rule, case, run, profile).verdict(axes=False).first
    return "" if first is None else f"step {first.step}, {first.quantity}"


# -- the score ------------------------------------------------------------------------------------

SHARE = 0.9
"""Of the changes of two choices that have to be named."""


def scored(outcomes: Sequence[Outcome], rounded: Sequence[Rounded]) -> bool:
    """Whether every change of one choice is named, 9 of 10 of two, and nothing right is wrong."""
    for optimizer in {x.mutant.optimizer for x in outcomes}:
        for n, share in ((1, 1.0), (2, SHARE)):
            of = [x.status for x in _of(outcomes, optimizer, n)]
            if sum(status in (NAMED, AMONG) for status in of) < share * len(of):
                return False
    return not any(x.wrong for x in rounded)


def lines(optimizer: str, outcomes: Sequence[Outcome], rounded: Sequence[Rounded]) -> Iterator[str]:
    """The score of an optimizer, for people."""
    for what, n in (("one change", 1), ("two changes", 2)):
        of = _of(outcomes, optimizer, n)
        counts = Counter((x.mutant.dtype, x.status) for x in of)
        for dtype in dict.fromkeys(x.mutant.dtype for x in of):
            parts = [f"{counts[dtype, s]} {s}" for s in ORDER if counts[dtype, s]]
            yield f"{what}, {dtype}: {', '.join(parts)}"
        for x in of:
            if x.status in (CAUGHT, MISSED):
                changes = ", ".join("=".join(change) for change in x.mutant.changes)
                yield f"  {x.status} in {x.mutant.dtype}: {changes} {x.vector}"
    mine = [x for x in rounded if x.case.startswith(f"{optimizer}.")]
    wrong = [x for x in mine if x.wrong]
    yield f"{len(mine)} runs that are right, in styles of rounding: {len(wrong)} called wrong"
    yield from (f"  {x.case}, {x.style}: {x.wrong}" for x in wrong)
    why: dict[str, list[str]] = {}
    for change, reason in identical(optimizer):
        why.setdefault(reason, []).append(change)
    yield from (f"not told, {reason}: {', '.join(changes)}" for reason, changes in why.items())


def _of(outcomes: Sequence[Outcome], optimizer: str, changes: int) -> list[Outcome]:
    return [
        x for x in outcomes if x.mutant.optimizer == optimizer and len(x.mutant.changes) == changes
    ]
