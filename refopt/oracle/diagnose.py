"""Which rule an implementation follows, told by what it did alone.

A record is a profile with choices changed. It holds if every observation of every vector lies in
its envelope. Those with no change are tried first, of every profile; then with one, then with two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import count, islice, pairwise
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

from refopt.oracle import golden, spec
from refopt.oracle.golden import Case, Run, Sparse
from refopt.oracle.layered import judging
from refopt.oracle.search import Changes, Search, equal, narrower, sharpest
from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE, VIOLATION, Finding, Judge
from refopt.typing import Profile

MOST = 2  # choices that are changed at once
DECAYS = ("beta1", "beta2", "rho", "momentum", "ema_momentum", "factor_decay")
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


class Undecided(NamedTuple):
    """An alternative that the observations hold as well."""

    axis: str
    name: str
    asked: bool  # whether some vector asks for it at all
    vector: str  # that would exclude it; "": none does


class Diagnosis(NamedTuple):
    """What an implementation follows."""

    optimizer: str
    against: str  # the profile it is compared with
    vectors: tuple[str, ...]  # ids of those that it answered
    outside: tuple[str, ...]  # ids of those where it lies outside that profile
    held: tuple[Record, ...]  # that hold every observation, by as few changes as possible
    idle: tuple[str, ...]  # counters that it shows otherwise than they hold, and does not use
    differences: tuple[Difference, ...]  # of the first of them
    undecided: tuple[Undecided, ...]  # beside the first of them
    nearest: Record | None  # where nothing holds: what holds most vectors
    leaves: tuple[str, ...]  # ids of the vectors that it does not hold
    first: Finding | None  # in the first of them

    decided: bool  # whether some alternative is excluded

    @property
    def status(self) -> str:
        """What it comes to: `conforms`, `violation` or `inconclusive`."""
        if self.outside:
            return VIOLATION
        return CONFORMS if self.decided else INCONCLUSIVE

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
    profiles = {against: rule.PROFILES[against], **rule.PROFILES}
    judges = {
        name: [judging(rule)(rule, case, run, profile) for case, run in given]
        for name, profile in profiles.items()
    }
    searches = {name: Search(judged, most) for name, judged in judges.items()}
    outside = [names[n] for n in searches[against].shown(())]
    held = _held(searches, against, progress) if given else []
    counts = {q for _, run in given for step in run.steps.values() for q in step}
    idle = sorted(counts & {*rule.Clock._fields})
    idled = bool(given and idle and not held)
    if idled:  # it may count what it does not use
        arrays = {
            name: Search([judge.of_arrays() for judge in judged], most)
            for name, judged in judges.items()
        }
        held = _held(arrays, against, progress)
        idled, searches = bool(held), arrays if held else searches
    progress("what else holds")
    found = _Found(optimizer, rule, names, searches, against)
    nearest, first = None, None
    leaves: list[str] = []
    if given and not held:
        nearest, leaves, first = found.nearest()
    undecided, decided = found.undecided(held[0]) if held else ([], False)
    return Diagnosis(
        optimizer=optimizer,
        against=against,
        vectors=tuple(names),
        outside=tuple(outside),
        held=tuple(held),
        idle=tuple(idle) if idled else (),
        differences=tuple(found.differences(held[0])) if held else (),
        undecided=tuple(undecided),
        nearest=nearest,
        leaves=tuple(leaves),
        first=first,
        decided=decided,
    )


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
        best = {names: best[names] for names in sharpest(inside)}
        beaten = [x for x in best if any(narrower(inside[y], inside[x]) > 0 for y in best)]
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
    the profiles as they are are all tried.
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
            found = [Record(name, ()) for name in sharpest({r[0]: searches[r[0]] for r in found})]
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
    names: list[str]  # of the vectors
    searches: dict[str, Search]
    against: str

    def differences(self, record: Record) -> Iterator[Difference]:
        """Each axis that, taken from `against`, some vector excludes."""
        search = self.searches[record.profile]
        shown: dict[tuple[str, str, str], tuple[list[int], Finding, Any]] = {}
        for n, judge in enumerate(cast("list[Judge]", search.judged)):
            (choices,) = _configured(judge, judge.profile)[:1]
            (wanted,) = _configured(judge, self.rule.PROFILES[self.against])[:1]
            for axis, named in self.rule.AXES.items():
                own = {name: x for name, x in named.items() if x is getattr(choices, axis, None)}
                does = dict(record.changes).get(axis) or next(iter(own), "")
                should = next(
                    (x for x in named if named[x] is getattr(wanted, axis, None)), "as-given"
                )
                if not does or does == should or should not in named or not judge.matters(axis):
                    continue
                others = tuple(change for change in record.changes if change[0] != axis)
                instead = tuple(sorted((*others, (axis, should))))
                if (beside := search.first(n, instead)) is not None:
                    it = choices._replace(**{axis: named[does]} if axis in choices._fields else {})
                    entry = axis, does, should
                    shown.setdefault(entry, ([], judge.finding(beside), it))[0].append(n)
        for (axis, does, should), (runs, first, choices) in shown.items():
            cases = tuple(self.names[n] for n in runs)
            case = cast(Judge, search.judged[runs[0]]).case
            lines = self._equations(case, choices, axis, should, first)
            yield Difference(axis, does, should, cases, cases[0], first, lines)

    def _equations(
        self, case: Case, choices: Any, axis: str, should: str, first: Finding
    ) -> dict[str, tuple[str, str]]:
        """The equations of a step that an axis changes; none where it changes dtypes alone."""
        if axis not in choices._fields:
            return {}
        layer = case.layers[first.layer].kind if first.layer else ""
        kinds = {"sparse": True} if any(isinstance(g, Sparse) for g in case.grads[0]) else {}
        wanted, mine = (
            spec.equations(self.optimizer, x, layer=layer, **kinds)
            for x in (choices._replace(**{axis: self.rule.AXES[axis][should]}), choices)
        )
        return {
            left: (wanted.get(left, ""), mine.get(left, ""))
            for left in {**wanted, **mine}
            if wanted.get(left) != mine.get(left)
        }

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
        return "" if {*able} & {*self.names} else next(iter(able), "")

    def nearest(self) -> tuple[Record, list[str], Finding]:
        """(what holds most vectors, those that it does not hold, where the first leaves it).

        Of the profiles as they are, and of the changes under which the vectors got furthest.
        """
        tried = [Record(name, ()) for name in self.searches]
        tried += [
            Record(name, search.furthest[0])
            for name, search in self.searches.items()
            if search.furthest and search.furthest[0]
        ]
        outside = {x: self.searches[x.profile].shown(x.changes) for x in tried}
        best = min(tried, key=lambda record: len(outside[record]))
        search, n = self.searches[best.profile], outside[best][0]
        beside = search.first(n, best.changes)
        assert beside is not None
        finding = cast(Judge, search.judged[n]).finding(beside)
        return best, [self.names[i] for i in outside[best]], finding


def _configured(judge: Judge, profile: Profile) -> list[Any]:
    """The choices of a profile for a case."""
    return [
        choices for _, choices in type(judge)(judge.rule, judge.case, judge.run, profile).settings()
    ]


@cache
def _kills(optimizer: str) -> dict[str, frozenset[str]]:
    """What each vector excludes of the documented rule."""
    found = golden.recordings(optimizer, golden.root() / "vectors")
    return {r.case.id: frozenset(r.case.source.get("kills", ())) for r in found}


@cache
def mistaken(optimizer: str) -> ModuleType:
    """The rule of an optimizer, and every hyperparameter that may have been taken for another."""
    rule = spec.RULES[optimizer]
    given = {**rule.AXES.get("given", {"as-given": _as_given}), **dict(_mistakes(optimizer))}
    axes = {**rule.AXES, "given": given}
    return cast(ModuleType, SimpleNamespace(**{**vars(rule), "AXES": axes}))


def _as_given(h: Any) -> Any:
    return h


def _mistakes(optimizer: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """(name, what it makes of the hyperparameters) of each mistake that no axis has.

    A release's default or 0 whatever is given; of a decay its complement, or one in another's
    place.
    """
    rule = spec.RULES[optimizer]
    sample = rule.Hyper(*(1 / (n + 3) for n, _ in enumerate(rule.Hyper._fields)))
    known = [mistake(sample) for mistake in rule.AXES.get("given", {}).values()]
    for name, mistake in _every_mistake(optimizer):
        if mistake(sample) not in known:
            yield name, mistake


def _every_mistake(optimizer: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    rule, described = spec.RULES[optimizer], spec.load(optimizer)["hyperparameters"]
    fields = [q for q in rule.Hyper._fields if q in described]
    decays = [q for q in fields if q in DECAYS]
    for q in fields:
        defaults = {getattr(profile.hyper, q) for profile in rule.PROFILES.values()}
        numbers = {x for x in defaults if isinstance(x, int | float) and not isinstance(x, bool)}
        limits = described[q].get("range", {})
        allowed = limits.get("least", 0) <= 0 and limits.get("above", -1) < 0
        real = q in rule.REQUIRED or any(isinstance(x, float) for x in numbers)
        zero = {0.0} if allowed and real else set()
        for x in sorted(numbers | zero):
            yield f"{q}:{x:g}", partial(_put, q, x)
        if q in decays:
            yield f"{q}:1-{q}", partial(_complement, q)
    for one, other in pairwise(decays):
        yield f"{one}:{other}", partial(_swap, one, other)


def _put(q: str, x: float, h: Any) -> Any:
    return h._replace(**{q: x})


def _complement(q: str, h: Any) -> Any:
    return h._replace(**{q: 1 - getattr(h, q)})


def _swap(one: str, other: str, h: Any) -> Any:
    return h._replace(**{one: getattr(h, other), other: getattr(h, one)})
