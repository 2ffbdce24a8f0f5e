"""The search for explanations: which changes of a profile's choices hold what was observed.

One search for every rule, and for one run or many: changes are found in the order of the flow of
data. Those come first under which the runs pass the first quantity that they deviate in, one each
or else two at once; then those under which they pass the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

from refopt.interp.balls import precision

T = TypeVar("T")

Changes = tuple[tuple[str, str], ...]
"""(axis, alternative) of each choice that is changed."""

Ranges = dict[tuple[Any, ...], Any]
"""(run, observation) -> its range."""

Place = tuple[int, ...]
"""Step, place of a quantity in the flow of data, and where layers differ which parameter."""


class Beside(NamedTuple):
    """What was observed beside its range."""

    place: Place
    key: tuple[Any, ...]  # which observation
    holds: bool
    range: Any  # None where the rule gives none
    decides: bool = True  # whether it is a number beside a range that has bounds
    observed: Any = None
    mode: str = ""
    number: bool = True  # whether anything that was shown there is one


class Judged(Protocol):
    """A run that can be put beside a profile with choices changed."""

    rule: ModuleType

    def settings(self) -> list[tuple[Any, Any]]:
        """(hyperparameters, choices) of every group, at the start and after every change."""

    def matters(self, axis: str) -> bool:
        """Whether a choice on this axis can make a difference to the run."""

    def beside(self, changes: Changes, step: int = 0) -> Iterator[Beside]:
        """Every observation, or those of a step, beside its range under some changes, in order."""


class Stuck(NamedTuple):
    """Where the runs deviate first."""

    run: int
    beside: Beside

    @property
    def place(self) -> tuple[int, Place]:
        """The order in which observations are passed."""
        return self.run, self.beside.place


class Search:
    """Some runs of one implementation beside one profile. The sharpest run comes first."""

    def __init__(self, judged: Sequence[Judged], most: int) -> None:
        self.judged, self.most = judged, most
        self.joint = True  # whether two changes are tried where no one gets further
        self.furthest: tuple[Changes, Stuck] | None = None  # what deviates last, of all tried
        self._found: dict[tuple[int, Changes], Beside | None] = {}
        self._decided: set[tuple[int, Changes]] = set()  # where some range has bounds
        self._mattering = [{a: j.matters(a) for a in j.rule.AXES} for j in judged]

    def found(self) -> list[Changes]:
        """The smallest sets of changes under which all runs conform; none if it takes more."""
        *_, last = self.levels()
        return last

    def levels(self) -> Iterator[list[Changes]]:
        """What is found with no change, with one, and so on; it ends where anything is.

        Where the runs leave the numbers no rule is looked for: what is none would hold it.
        A loss of precision alone is wide enough to hold whatever is small: where nothing else is
        found, one change more is tried.
        """
        reached: dict[Changes, Stuck | None] = {(): (first := self.stuck(()))}
        self.furthest = None if first is None else ((), first)
        if self.numberless:
            yield []
            return
        done: list[Changes] = []
        for n in range(self.most + 1):
            done += [changes for changes, stuck in reached.items() if stuck is None]
            if () in done or not all(self._rounds(*x) for changes in done for x in changes):
                yield self._sharpest(done)
                return
            yield self._sharpest(done) if n == self.most else []
            if n < self.most:
                reached = {
                    changes: place
                    for known, stuck in reached.items()
                    if stuck is not None
                    for changes, place in self._further(known, stuck)
                }

    @cached_property
    def numberless(self) -> bool:
        """Whether each run that deviates does so first in what is no number."""
        if (stuck := self.stuck(())) is None or stuck.beside.number:
            return False
        found = (self.first(n, ()) for n in range(stuck.run, len(self.judged)))
        return not any(x is not None and x.number for x in found)

    @property
    def reach(self) -> tuple[int, Place]:
        """How far the runs got under any changes that were tried."""
        return (0, ()) if self.furthest is None else self.furthest[1].place

    def stuck(self, changes: Changes) -> Stuck | None:
        """Where the runs deviate first under some changes; None where they conform.

        Changes under which nothing has bounds hold whatever there is, and explain nothing.
        """
        for n in range(len(self.judged)):
            if (beside := self.first(n, changes)) is not None:
                return Stuck(n, beside)
        decided = any(self._key(n, changes) in self._decided for n in range(len(self.judged)))
        return None if decided or not changes else self.stuck(())

    def shown(self, changes: Changes) -> list[int]:
        """The runs that deviate under some changes, by number."""
        every = range(len(self.judged))
        return [n for n in every if self.first(n, changes) is not None]

    def first(self, n: int, changes: Changes) -> Beside | None:
        """The first observation of run `n` outside its range under some changes."""
        key = self._key(n, changes)
        if key not in self._found:
            self._found[key] = self._tried(n, changes)
        return self._found[key]

    def _key(self, n: int, changes: Changes) -> tuple[int, Changes]:
        """What a run depends on: the changes that can make a difference to it."""
        return n, tuple(change for change in changes if self._mattering[n][change[0]])

    def _tried(self, n: int, changes: Changes) -> Beside | None:
        """The first observation of run `n` outside."""
        found = None
        with precision():
            for beside in self.judged[n].beside(changes):
                if beside.decides:
                    self._decided.add(self._key(n, changes))
                if not beside.holds:
                    found = beside
                    break
        return found

    def _further(self, known: Changes, stuck: Stuck) -> Iterator[tuple[Changes, Stuck | None]]:
        """What gets the runs past a place, with how far: one more change, or else two."""
        passed, acting = False, []
        for change in self._alternatives(known, stuck.run):
            changes = tuple(sorted((*known, change)))
            further, there = self._passed(changes, stuck)
            if further is not stuck:
                passed = True
                yield changes, further
            elif not self._rounds(*change) and _differ(there, stuck.beside.range):
                acting.append(change)
        two = self.joint and len(known) + 2 <= self.most and not passed
        for one, other in combinations(acting, 2) if two else ():
            if one[0] != other[0]:
                changes = tuple(sorted((*known, one, other)))
                further, _ = self._passed(changes, stuck)
                if further is not stuck:
                    yield changes, further

    def _passed(self, changes: Changes, stuck: Stuck) -> tuple[Stuck | None, Any]:
        """(where the runs deviate now; still there if no further, the range there).

        A rule that does not keep what the run is stuck at gets no further; nor does one that has
        no bounds for it.
        """
        n, (place, key, *_) = stuck
        with precision():
            every = self.judged[n].beside(changes, place[0])
            now = next((x for x in every if x.key == key), None)
        if now is None:
            return stuck, None
        there = now.range
        if not now.holds or (stuck.beside.decides and not now.decides):
            return stuck, there
        first = self.first(n, changes)
        if first is not None and first.place <= place:
            return stuck, there
        further = self.stuck(changes)
        if further is None or further.place <= stuck.place:
            return (stuck if further else None), there
        if self.furthest is None or further.place > self.furthest[1].place:
            self.furthest = changes, further
        return further, there

    def _alternatives(self, known: Changes, n: int) -> Iterator[tuple[str, str]]:
        """Every change that can make a difference to run `n`."""
        settings = [choices for _, choices in self.judged[n].settings()]
        for axis, named in self.judged[n].rule.AXES.items():
            if axis not in dict(known) and self._mattering[n][axis]:
                for name, choice in named.items():
                    if all(choice is not getattr(choices, axis, None) for choices in settings):
                        yield axis, name

    def _rounds(self, axis: str, name: str) -> bool:
        """Whether an alternative differs from the profile's choices in rounding alone."""
        return all(
            name in equal(judged.rule, axis, choices)
            for judged in self.judged
            for _, choices in judged.settings()
        )

    def _sharpest(self, found: list[Changes]) -> list[Changes]:
        """Without mere losses of precision that say less than another explanation."""
        coarse = [c for c in found if any(self._rounds(*change) for change in c)]
        if not coarse or len(found) == 1:
            return found
        ranges = {changes: self.ranges(changes) for changes in found}
        return [
            changes
            for changes in found
            if changes not in coarse
            or not any(_contains(ranges[changes], ranges[other]) for other in found)
        ]

    def ranges(self, changes: Changes) -> Ranges:
        """The range of every observation under some changes."""
        with precision():
            return {
                (n, *beside.key): beside.range
                for n, judged in enumerate(self.judged)
                for beside in judged.beside(changes)
            }


def equal(rule: ModuleType, axis: str, choices: Any) -> set[str]:
    """The alternatives on an axis that are what was chosen, or equal to it over the reals."""
    mine = getattr(choices, axis, None)
    own = {name for name, choice in rule.AXES[axis].items() if choice is mine}
    return own.union(*(names for names in rule.SAME_EXACTLY.get(axis, ()) if names & own))


def alike(rule: ModuleType, axis: str, name: str) -> set[str]:
    """The alternatives that differ from one in roundings alone, those of every step included."""
    found = {name}
    for names in 2 * rule.SAME_EXACTLY.get(axis, ()):
        found |= names if names & found else set()
    return found


def _differ(one: Any, other: Any) -> bool:
    """Whether two ranges are there, and are not the same."""
    if one is None or other is None:
        return False
    return not (one.contains(other) and other.contains(one))


def sharpest(ranges: Mapping[T, Ranges]) -> list[T]:
    """Those of which no range is wider than another's."""
    return [k for k in ranges if not any(_contains(ranges[k], ranges[x]) for x in ranges if x != k)]


def narrower(mine: Ranges, its: Ranges) -> int:
    """In how many places the first lies within the second; less the reverse."""
    pairs = [(mine[key], its[key]) for key in mine.keys() & its.keys()]
    return sum(y.contains(x) - x.contains(y) for x, y in pairs if x is not None and y is not None)


def _contains(mine: Ranges, its: Ranges) -> bool:
    """Whether every range holds the other's, and some range holds more."""
    pairs = [(x, its.get(key)) for key, x in mine.items()]
    return all(y is not None and x.contains(y) for x, y in pairs) and any(
        y is not None and not y.contains(x) for x, y in pairs
    )
