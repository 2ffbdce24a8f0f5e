"""Which rule an implementation follows, told by what it did alone.

A record is a profile with choices changed. It holds if every observation of every vector lies in
its envelope. Those with no change are tried first, of every profile; then with one, then with two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count, islice
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np

from refopt.interp.balls import precision
from refopt.interp.bands import Band
from refopt.interp.formats import FORMATS, Format
from refopt.oracle import golden, rop, spec
from refopt.oracle.golden import Case, Run, Sparse
from refopt.oracle.layered import judging
from refopt.oracle.mistakes import mistaken, own
from refopt.oracle.search import Beside, Changes, Search, alike, equal, narrower, sharpest
from refopt.oracle.verdict import CONFORMS, FORCED, INCONCLUSIVE, VIOLATION, Finding, Judge, of_any
from refopt.typing import Profile

MOST = 2  # choices that are changed at once
LINES = 3  # equations that are written out for what departs
Observed = tuple[Case, Run]
"""A vector, and what an implementation did with it."""


class Record(NamedTuple):
    """A profile with some choices changed."""

    profile: str
    changes: Changes


class Difference(NamedTuple):
    """What an implementation does otherwise than the profile it is compared with."""

    axis: str
    does: str  # names of alternatives
    should: str
    shown_by: tuple[str, ...]  # ids of the vectors that show it
    case: str  # the first of them
    first: Finding  # where it lies outside if nothing else differs
    equations: dict[str, tuple[str, str]]  # LaTeX: left side -> (as it should be, as it is)
    rounding: bool  # whether both are equal over the real numbers


class Undecided(NamedTuple):
    """An alternative that the observations hold as well."""

    axis: str
    name: str
    asked: bool  # whether some vector asks for it at all
    vector: str  # that would exclude it; "": none does


class Departure(NamedTuple):
    """Where an implementation that follows no rule leaves the one it is compared with."""

    right: tuple[str, ...]  # quantities that it shows, and that lie inside wherever they are
    hidden: tuple[str, ...]  # that come before and are not shown
    quantity: str  # the first that does not, in the order of the flow of data
    equations: dict[str, str]  # LaTeX: how it is made of the last one before it that is shown
    clauses: tuple[str, ...]  # that say so
    case: str  # id of a simple vector that shows it early
    first: Finding
    step: int  # the first at which anything is outside
    small: bool  # whether whatever is outside has more than half its digits right


class Diagnosis(NamedTuple):
    """What an implementation follows."""

    optimizer: str
    against: str  # the profile it is compared with
    vectors: tuple[str, ...]  # ids of those that it answered
    outside: tuple[str, ...]  # ids of those where it lies outside that profile
    held: tuple[Record, ...]  # that hold every observation, by as few changes as possible
    where: tuple[str, ...]  # features of the vectors that they hold; the others conform
    idle: tuple[str, ...]  # counters that it shows as they should be, and does not use
    otherwise: tuple[str, ...]  # counters that are not what the rule calls so
    differences: tuple[Difference, ...]  # of the first of them
    undecided: tuple[Undecided, ...]  # beside the first of them
    nearest: Record | None  # where nothing holds: what holds most vectors
    leaves: tuple[str, ...]  # ids of the vectors that it does not hold
    common: tuple[str, ...]  # features of all vectors outside, and not of all
    departure: Departure | None  # where nothing holds
    decided: bool  # whether some alternative is excluded

    @property
    def status(self) -> str:
        """What it comes to: `conforms`, `violation` or `inconclusive`."""
        if self.outside:
            return VIOLATION
        return CONFORMS if self.decided else INCONCLUSIVE

    @property
    def rounded(self) -> bool:
        """Whether what holds differs in roundings alone."""
        return bool(self.differences) and all(x.rounding for x in self.differences)

    @property
    def open(self) -> tuple[str, ...]:
        """The axes that some vector asks for, and none decides."""
        return tuple(dict.fromkeys(x.axis for x in self.undecided if x.asked))


Progress = Callable[[str], None]


def diagnose(
    optimizer: str,
    observed: Iterable[Observed],
    *,
    against: str = "documented",
    most: int = MOST,
    progress: Progress = lambda what: None,
) -> Diagnosis:
    """Which rule an implementation follows.

    Arguments
    ---------
    optimizer: `nadam`, `rmsprop` or `thor`.
    observed: what it did with each vector, all of that optimizer.
    against: the profile that it is to follow.
    most: choices that are changed at once.
    progress: is told what is tried next.

    Returns
    -------
    What holds, how that differs from `against`, and what was not decided.
    """
    rule = mistaken(optimizer)
    given = sorted((pair for pair in observed if not pair[1].error), key=_power, reverse=True)
    names = [case.id for case, _ in given]
    known = {against: rule.PROFILES[against], **rule.PROFILES}
    profiles = {name: of_any(profile) for name, profile in known.items()}
    judges = {
        name: [judging(rule)(rule, case, run, profile) for case, run in given]
        for name, profile in profiles.items()
    }
    searches = {name: Search(judged, most) for name, judged in judges.items()}
    outside = searches[against].shown(())
    held = _held(searches, against, progress) if given else []
    shown = {q for _, run in given for step in run.steps.values() for q in step}
    counters: set[str] = set()
    if given and not held and shown & {*rule.Clock._fields}:  # it may count what it does not use
        arrays = {
            name: Search([judge.of_arrays() for judge in judged], most)
            for name, judged in judges.items()
        }
        if held := _held(arrays, against, progress):
            searches, counters = arrays, shown & {*rule.Clock._fields}
    otherwise = {q for q in counters if any(_counts_otherwise(x, q) for x in judges[against])}
    found = _Found(optimizer, rule, tuple(given), searches, against)
    common = found.common(outside)
    where: tuple[str, ...] = ()
    if given and not held and common:  # where something is asked for, and right elsewhere
        those = [n for n, (case, _) in enumerate(given) if common <= features(case)]
        some = {against: Search([judges[against][n] for n in those], most)}
        if held := _held(some, against, progress):
            where = tuple(sorted(common))
            found = _Found(optimizer, rule, tuple(given[n] for n in those), some, against)
    progress("what else holds")
    failed = bool(given) and not held
    nearest, leaves = found.nearest() if failed else (None, [])
    undecided, decided = found.undecided(held[0]) if held else ([], False)
    return Diagnosis(
        optimizer=optimizer,
        against=against,
        vectors=tuple(names),
        outside=tuple(names[n] for n in outside),
        held=tuple(held),
        where=where,
        idle=() if Record(against, ()) in held else tuple(sorted(counters - otherwise)),
        otherwise=tuple(sorted(otherwise)),
        differences=tuple(found.differences(held[0])) if held else (),
        undecided=tuple(undecided),
        nearest=nearest,
        leaves=tuple(leaves),
        common=tuple(sorted(common)),
        departure=found.departure(outside) if failed else None,
        decided=decided,
    )


def features(case: Case) -> set[str]:
    """What a case asks for beyond the least: options, dtypes, changes, numbers that are not 0."""
    return rop.needs(case) | {f"change of {q}" for change in case.changes.values() for q in change}


def _counts_otherwise(judge: Judge, counter: str) -> bool:
    """Whether a counter that a run shows is not what the rule calls so, whatever else there is."""
    alone = judge.of_arrays(counter)
    with precision():
        return any(not x.holds for x in alone.beside(()) if x.key[1] == counter)


class Likely(NamedTuple):
    """The profiles that leave the fewest runs of an implementation outside."""

    rules: tuple[tuple[str, ...], ...]  # names of profiles; those of one rule together
    wider: tuple[tuple[str, ...], ...]  # that hold as much, mostly in wider ranges
    outside: tuple[str, ...]  # ids of the cases that the first of them leaves outside
    runs: int

    @property
    def text(self) -> str:
        """In words."""
        rules = " or ".join(" = ".join(f"`{name}`" for name in names) for names in self.rules)
        rules += ", and less closely " * bool(self.wider) + " or ".join(
            f"`{names[0]}`" for names in self.wider
        )
        return rules + (f", but for {len(self.outside)} of {self.runs}" if self.outside else "")


def likely(optimizer: str, observed: Iterable[Observed]) -> Likely:
    """Which profiles, as they are, hold most runs of an implementation; told by numbers alone."""
    rule = spec.RULES[optimizer]
    given = [pair for pair in observed if pair[1].steps]
    alike: dict[Any, list[str]] = {}
    for name, profile in rule.PROFILES.items():
        alike.setdefault(profile[1:4], []).append(name)
    best: dict[tuple[str, ...], list[str]] = {}
    fewest = len(given)
    for names in alike.values():
        outside: list[str] = []
        for case, run in given:
            if _judged(rule, names[0], [(case, run)], []).first(0, ()) is not None:
                outside.append(case.id)
            if len(outside) > fewest:
                break
        else:
            best = best if len(outside) == fewest else {}
            fewest = len(outside)
            best[tuple(names)] = outside
    wider: list[tuple[str, ...]] = []
    if len(best) > 1:
        inside = {names: _judged(rule, names[0], given, outside) for names, outside in best.items()}
        ranges = {names: search.ranges(()) for names, search in inside.items()}
        best = {names: best[names] for names in sharpest(ranges)}
        beaten = [x for x in best if any(narrower(ranges[y], ranges[x]) > 0 for y in best)]
        wider = beaten if len(beaten) < len(best) else []
        best = {names: best[names] for names in best if names not in wider}
    return Likely(tuple(best), tuple(wider), tuple(next(iter(best.values()), ())), len(given))


def _judged(rule: Any, name: str, given: list[Observed], outside: list[str]) -> Search:
    """The runs that a profile holds, beside it."""
    inside = (pair for pair in given if pair[0].id not in outside)
    return Search([judging(rule)(rule, *pair, rule.PROFILES[name]) for pair in inside], 0)


def _power(pair: Observed) -> tuple[int, int]:
    """What excludes most in the fewest steps comes first."""
    case, _ = pair
    return len(case.source.get("kills", ())), -case.steps


def _held(searches: dict[str, Search], against: str, progress: Progress) -> list[Record]:
    """The records that hold, by as few changes as possible.

    Where the first profile holds with so many changes, the others with as many say no more: only
    the profiles as they are are all tried. Nor does another with one change less, which differs
    from the first in more.
    """
    levels: dict[str, Iterator[list[Changes]]]
    levels = {name: search.levels() for name, search in searches.items()}
    for name, search in searches.items():
        search.joint = name == against
    for n in count():
        found: list[Record] = []
        for name in list(levels):
            progress(f"{name}, {n} changed" if n else name)
            if (changes := next(levels[name], None)) is None:
                del levels[name]
            else:
                found += [Record(name, x) for x in changes]
            if n and found:
                break
        if found and not n:
            best = sharpest({x: searches[x.profile].ranges(()) for x in found})
            rule, wider = searches[against].judged[0].rule, [x for x in found if x not in best]
            found = best + [x for x in wider if any(_same(rule, x, y) for y in best)]
        if n and found and against in levels and found[0].profile != against:
            found = [Record(against, x) for x in next(levels[against], [])] or found
        if found or not levels:
            return _clear(found, next(iter(searches.values())).judged[0].rule)
        if n == 1:  # two at once beside the most likely profiles alone
            progress("which profile is nearest")
            near = min(searches, key=lambda name: len(searches[name].shown(())))
            far = max(searches, key=lambda name: searches[name].reach)
            levels = {name: x for name, x in levels.items() if name == against}
            for name in dict.fromkeys((near, far)):
                if not searches[name].joint:
                    searches[name].joint = True
                    levels[name] = islice(searches[name].levels(), 1, None)
    return []


def _same(rule: ModuleType, one: Record, other: Record) -> bool:
    """Whether two profiles are equal over the real numbers."""
    choices = [rule.PROFILES[record.profile].choices for record in (one, other)]
    pairs = {axis: {own(named, c, axis) for c in choices} for axis, named in rule.AXES.items()}
    return all(
        len(names) == 1 or any(names <= same for same in rule.SAME_EXACTLY.get(axis, ()))
        for axis, names in pairs.items()
    )


def _clear(found: list[Record], rule: ModuleType) -> list[Record]:
    """Without those that say of an option by another axis that it is ignored, if others hold."""

    def undoes(record: Record) -> bool:
        own = rule.PROFILES[record.profile].choices
        return any(rule.AXES[a][name] is getattr(own, a, None) for a, name in record.changes)

    return [record for record in found if not undoes(record)] or found


class _Found(NamedTuple):
    """What the searches say of a record."""

    optimizer: str
    rule: ModuleType
    given: tuple[Observed, ...]
    searches: dict[str, Search]
    against: str

    def differences(self, record: Record) -> Iterator[Difference]:
        """Each axis that, taken from `against`, some vector excludes."""
        search = self.searches[record.profile]
        shown: dict[tuple[str, str, str], list[tuple[tuple[int, int], int, Finding, Any]]] = {}
        for n, judge in enumerate(cast("list[Judge]", search.judged)):
            (choices,) = _configured(judge, judge.profile)[:1]
            (wanted,) = _configured(judge, self.rule.PROFILES[self.against])[:1]
            for axis, named in self.rule.AXES.items():
                does = dict(record.changes).get(axis) or own(named, choices, axis)
                should = own(named, wanted, axis)
                if not does or does == should or should not in named or not judge.matters(axis):
                    continue
                others = tuple(change for change in record.changes if change[0] != axis)
                instead = tuple(sorted((*others, (axis, should))))
                if (beside := search.first(n, instead)) is not None:
                    it = choices._replace(**{axis: named[does]} if axis in choices._fields else {})
                    entry = axis, does, should
                    seen = _plainness(judge.case, beside), n, judge.finding(beside), it
                    shown.setdefault(entry, []).append(seen)
        for (axis, does, should), every in shown.items():
            every.sort(key=lambda x: x[:2])
            _, _, first, choices = every[0]
            cases = [self.given[n][0] for _, n, *_ in every]
            lines = self._equations(cases[0], choices, axis, should, first)
            ids = tuple(case.id for case in cases)
            rounding = should in alike(self.rule, axis, does)
            yield Difference(axis, does, should, ids, ids[0], first, lines, rounding)

    def _equations(
        self, case: Case, choices: Any, axis: str, should: str, first: Finding
    ) -> dict[str, tuple[str, str]]:
        """The equations of a step that an axis changes; none where it changes dtypes alone."""
        if axis not in choices._fields:
            return {}
        documented = choices._replace(**{axis: self.rule.AXES[axis][should]})
        wanted, mine = (self._lines(case, x, first) for x in (documented, choices))
        return {
            left: (wanted.get(left, ""), mine.get(left, ""))
            for left in {**wanted, **mine}
            if wanted.get(left) != mine.get(left)
        }

    def _lines(self, case: Case, choices: Any, first: Finding) -> dict[str, str]:
        """The equations of a step of a case, where an observation lies."""
        layer = case.layers[first.layer].kind if first.layer else ""
        sparse = any(isinstance(g, Sparse) for g in case.grads[0])
        return spec.equations(self.optimizer, choices, layer=layer, sparse=sparse)

    def undecided(self, record: Record) -> tuple[list[Undecided], bool]:
        """(each other rule over the reals that every vector holds, whether any is excluded)."""
        found, excluded = [], False
        search = self.searches[record.profile]
        judges = cast("list[Judge]", search.judged)
        kills = [set(judge.case.source.get("kills", ())) for judge in judges]
        for axis, named in spec.RULES[self.optimizer].AXES.items():
            settings = [choices for judge in judges for _, choices in judge.settings()]
            same = {dict(record.changes).get(axis, "")}
            if axis not in dict(record.changes):
                same = set().union(*(equal(self.rule, axis, choices) for choices in settings))
            for name in (name for name in named if name not in same):
                others = tuple(change for change in record.changes if change[0] != axis)
                changes = tuple(sorted((*others, (axis, name))))
                order = sorted(range(len(judges)), key=lambda n: f"{axis}={name}" not in kills[n])
                if all(search.first(n, changes) is None for n in order):
                    asked = any(judge.matters(axis) for judge in judges)
                    found.append(Undecided(axis, name, asked, self._separating(axis, name)))
                else:
                    excluded = True
        return found, excluded

    def _separating(self, axis: str, name: str) -> str:
        """A vector that excludes an alternative of the documented rule, and was not answered."""
        wanted = f"{axis}={name}"
        able = [id_ for id_, kills in _kills(self.optimizer).items() if wanted in kills]
        answered = {case.id for case, _ in self.given}
        return "" if answered & {*able} else next(iter(able), "")

    def nearest(self) -> tuple[Record | None, list[str]]:
        """(what holds most vectors, those that it does not hold).

        Of the profiles as they are, and of the changes under which the vectors got furthest; none
        where no other rule over the real numbers holds more of them than the one compared with.
        """
        tried = [Record(name, ()) for name in self.searches if not self._rounds(name, ())]
        tried += [
            Record(name, search.furthest[0])
            for name, search in self.searches.items()
            if search.furthest and search.furthest[0] and not self._rounds(name, search.furthest[0])
        ]
        outside = {x: self.searches[x.profile].shown(x.changes) for x in tried}
        mine = self.searches[self.against].shown(())
        best = min(tried, key=lambda record: len(outside[record]), default=None)
        if best is None or len(outside[best]) >= len(mine):
            return None, []
        return best, [self.given[n][0].id for n in outside[best]]

    def _rounds(self, profile: str, changes: Changes) -> bool:
        """Whether a record differs in roundings alone from the profile compared with."""
        wanted, mine = (self.rule.PROFILES[name].choices for name in (self.against, profile))
        changed = dict(changes)
        return all(
            own(named, wanted, axis)
            in alike(self.rule, axis, changed.get(axis) or own(named, mine, axis))
            for axis, named in self.rule.AXES.items()
        )

    def common(self, outside: Sequence[int]) -> set[str]:
        """The features of all vectors outside, without those of every vector."""
        if not outside:
            return set()
        asked = [features(case) for case, _ in self.given]
        every: set[str] = set.intersection(*asked)
        return set.intersection(*(asked[n] for n in outside)) - every

    def departure(self, outside: Sequence[int]) -> Departure:
        """What is right, what departs first and how it should be, by a simple vector."""
        search, flow = self.searches[self.against], self.rule.OBSERVABLE
        shown: set[str] = set()
        wrong: dict[str, list[tuple[tuple[int, int], int, Beside]]] = {}
        with precision():
            for n in outside:
                case, first = self.given[n][0], search.first(n, ())
                for x in search.judged[n].beside(()):
                    shown.add(x.key[1])
                    begins = x.mode == FORCED or (first and x.place[0] == first.place[0])
                    if begins and not x.holds:  # open-loop what follows is no departure
                        wrong.setdefault(x.key[1], []).append((_plainness(case, x), n, x))
        quantity = min(wrong, key=flow.index)
        _, n, beside = min(wrong[quantity], key=lambda seen: seen[:2])
        judge = cast(Judge, search.judged[n])
        right = tuple(q for q in flow if q in shown - {*wrong})
        finding, choices = judge.finding(beside), judge.settings()[0][1]
        equations, clauses = self._made(judge.case, choices, finding, right)
        case, before = judge.case, flow[: flow.index(quantity)]
        hidden = tuple(q for q in before if q not in shown and q in judge.kept)
        small = all(
            _small(x.range, x.observed, FORMATS[self.given[n][0].dtypes[x.key[2]]])
            for seen in wrong.values()
            for _, n, x in seen
        )
        step = min(x.place[0] for seen in wrong.values() for _, _, x in seen)
        return Departure(right, hidden, quantity, equations, clauses, case.id, finding, step, small)

    def _made(
        self, case: Case, choices: Any, first: Finding, right: Sequence[str]
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """The equations from what is right to what is not, and the clauses that say so."""
        data = spec.load(self.optimizer)
        left = {name.partition(".")[2]: x for name, x in data["quantities"].items()}
        lines, needed = self._lines(case, choices, first), {left.get(first.quantity, "")}
        known, made = {left[q] for q in right if q in left}, dict[str, str]()
        for symbol in reversed(lines):
            used = any(symbol in x for x in made.values())
            if symbol in needed or (used and symbol not in known):
                made[symbol] = lines[symbol]
        clauses = data["exercised"].get(first.quantity, ())
        return dict(reversed([*made.items()][:LINES])), tuple(clauses)


def _configured(judge: Judge, profile: Profile) -> list[Any]:
    """The choices of a profile for a case."""
    return [
        choices for _, choices in type(judge)(judge.rule, judge.case, judge.run, profile).settings()
    ]


def _small(near: Any, x: Any, f: Format) -> bool:
    """Whether what was observed has more than half its digits, if a number."""
    low, high = near.low, near.high
    if not isinstance(near, Band):
        low, high = (math.nan if end is None else float(end) for end in (low, high))
    away = np.maximum(low - x, x - high)
    return bool(np.all(near.holds(x) | (away <= 2.0 ** (-f.precision / 2) * np.abs(x))))


def _plainness(case: Case, beside: Beside) -> tuple[int, int]:
    """The order in which vectors are shown: early steps first, then what asks for little."""
    return beside.place[0], len(features(case)) + sum(map(len, case.params))


@cache
def _kills(optimizer: str) -> dict[str, frozenset[str]]:
    """What each vector excludes of the documented rule."""
    found = golden.recordings(optimizer, golden.root() / "vectors")
    return {r.case.id: frozenset(r.case.source.get("kills", ())) for r in found}
