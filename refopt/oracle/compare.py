"""How the runs of a release differ from the documented rule, told by their numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

from refopt.interp.balls import precision
from refopt.interp.envelope import Interval, ShapeError
from refopt.oracle.golden import Case, Recording, Run
from refopt.oracle.spec import RULES
from refopt.oracle.verdict import Changes, Judge

STEPS = 2  # the first that are compared: a second one has every state behind it
MOST = {"float32": 3, "float64": 1}  # changes at once
FEATURES = frozenset({"momentum", "centered", "weight_decay"})  # what turns a formula on
SHARP = {"epsilon", "lr-in-momentum", "l2"}  # tags of recordings made to show a formula
OFF = {"maximize", "decoupled_weight_decay"}  # what a case may state, and 0 asks for nothing

Place = tuple[int, int]
"""Step, and place of a quantity in the flow of data."""


class Comparison(NamedTuple):
    """A recording that stands for a release, and what it asks for."""

    case: str
    run: str
    feature: str  # "plain", or the one thing more: "momentum", "centered"
    dtype: str


def decisive(recordings: Iterable[Recording]) -> list[Comparison]:
    """The recordings to compare: of each release the sharpest for each feature.

    Only simple ones: one dtype, dense gradients, finite numbers. The sharpest is that with ε
    nearest to 1, of those made to show a formula. In float64, which shows the dtype of scalars,
    without any feature.
    """
    best: dict[tuple[str, ...], tuple[tuple[Any, ...], Comparison]] = {}
    for case, runs, provenance in recordings:
        if "framework" not in provenance or not _simple(case):
            continue
        asked, dtype = features(case), case.dtypes[0]
        if len(asked) > (dtype == "float32") or not asked <= FEATURES:
            continue
        near, size = abs(math.log(case.hyper["epsilon"])), sum(map(len, case.params))
        rank = (not SHARP & {*case.tags}, near, size, case.id)
        for name, run in runs.items():
            if 1 in run.steps and _finite(run):
                found = Comparison(case.id, name, "".join(asked) or "plain", dtype)
                key = (case.id.partition(".")[0], *found[1:])
                best[key] = min(best.get(key, (rank, found)), (rank, found))
    return [found for _, found in best.values()]


def features(case: Case) -> set[str]:
    """What a case asks for beyond the plain optimizer: options, and numbers that are not 0."""
    always = {*RULES[case.id.partition(".")[0]].REQUIRED} - FEATURES
    numbers = {name for name, x in case.hyper.items() if name not in always and x != 0}
    return numbers | {name for name, on in case.options.items() if on or name not in OFF}


def _simple(case: Case) -> bool:
    dtypes = {p["dtype"] for p in case.source["params"]}
    return (
        all(isinstance(x, float) for x in case.hyper.values())
        and case.hyper.get("epsilon", 0.0) > 0
        and dtypes in ({"float32"}, {"float64"})
        and len(case.groups) == 1
        and all(case.params)
        and all(isinstance(g, list) for row in case.grads for g in row)
    )


def _finite(run: Run) -> bool:
    return all(
        math.isfinite(x)
        for step in run.steps.values()
        for column in step.values()
        for values in column
        for x in values or ()
    )


def _differ(some: list[Interval], others: list[Interval]) -> bool:
    pairs = zip(some, others, strict=False)
    return not all(one.contains(other) and other.contains(one) for one, other in pairs)


class Explanation(Judge):
    """One run against a profile, and the changes of its choices that explain the run.

    Changes are found in the order of the flow of data: those under which the run passes the first
    quantity that it deviates in, one each or else two at once; then from there on.
    """

    def __init__(self, rule: Any, case: Case, run: Run, profile: Any) -> None:
        steps = {t: step for t, step in run.steps.items() if t <= STEPS}
        super().__init__(rule, case, run._replace(steps=steps, finalized=None), profile)

    def found(self) -> list[Changes]:
        """The smallest sets of changes under which the run conforms; none where more are needed."""
        with precision():
            reached: dict[Changes, Place | None] = {(): self._reach((), None)[0]}
            for _ in range(MOST[self.case.dtypes[0]]):
                if done := [changes for changes, place in reached.items() if place is None]:
                    return self._sharpest(done)
                reached = {
                    changes: place
                    for known, stuck in reached.items()
                    if stuck is not None
                    for changes, place in self._further(known, stuck)
                }
            return self._sharpest([changes for changes, place in reached.items() if place is None])

    def _further(self, known: Changes, stuck: Place) -> Iterator[tuple[Changes, Place | None]]:
        """What gets the run past a place, with how far: one more change, or else two."""
        _, before = self._reach(known, stuck)
        passed, acting = False, []
        for axis, name, _ in self._alternatives(known):
            changes = tuple(sorted((*known, (axis, name))))
            place, intervals = self._reach(changes, stuck)
            if place is None or place > stuck:
                passed = True
                yield changes, place
            elif not self._rounds(axis, name) and _differ(intervals[:1], before[:1]):
                acting.append((axis, name))
        two = len(known) + 2 <= MOST[self.case.dtypes[0]] and not passed
        for one, other in combinations(acting, 2) if two else ():
            if one[0] != other[0]:
                changes = tuple(sorted((*known, one, other)))
                place, _ = self._reach(changes, stuck)
                if place is None or place > stuck:
                    yield changes, place

    def _alternatives(self, known: Changes) -> Iterator[tuple[str, str, Any]]:
        """(axis, name, choice) of every change that can make a difference."""
        settings = [choices for _, choices in self._settings()]
        for axis, named in self.rule.AXES.items():
            if axis not in dict(known) and self._matters(axis):
                for name, choice in named.items():
                    if all(choice != getattr(choices, axis) for choices in settings):
                        yield axis, name, choice

    def _reach(self, changes: Changes, place: Place | None) -> tuple[Place | None, list[Interval]]:
        """(first place that the run deviates in, the intervals of some place up to there).

        A rule that does not keep what the run shows deviates there.
        """
        flow = {q: n for n, q in enumerate(self.rule.OBSERVABLE)}
        intervals: list[Interval] = []
        try:
            for check in self._forced({axis: self.rule.AXES[axis][name] for axis, name in changes}):
                here = (check.step, flow[check.quantity])
                if place is not None and here > place and len(intervals) < self._shown(place):
                    return place, intervals
                if here == place:
                    intervals.append(check.interval)
                if not self._passes(check):
                    return here, intervals
        except ShapeError:
            return (0, 0), intervals
        return None, intervals

    def _shown(self, place: Place) -> int:
        """How many observations a run has at a place."""
        t, n = place
        return sum(len(values or ()) for values in self.run.steps[t][self.rule.OBSERVABLE[n]])

    def _sharpest(self, found: list[Changes]) -> list[Changes]:
        """Without mere losses of precision that say less than another explanation."""
        attempts = {changes: self._attempt(changes) for changes in found}
        return [
            changes
            for changes in found
            if not any(self._rounds(*change) for change in changes)
            or not any(attempts[changes].contains(attempts[other]) for other in found)
        ]
