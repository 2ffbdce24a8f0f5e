"""The verdict on one run: inside the envelope of a profile, outside it, or nothing decided.

Each recorded step is judged teacher-forced, from the recorded state before it, so that the envelope
stays narrow for ever; where that state is not known, open-loop, from the start (ENV-13).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from refopt.interp.balls import precision
from refopt.interp.envelope import ROUNDINGS, Envelope, Interval, ShapeError
from refopt.interp.formats import FORMATS, ulp
from refopt.oracle.golden import Case, Run, Sparse, Values
from refopt.oracle.replay import Memory, Replay
from refopt.oracle.search import Beside, Changes, Search, equal
from refopt.typing import Profile

CONFORMS, VIOLATION, INCONCLUSIVE = "conforms", "violation", "inconclusive"
OPEN, FORCED = "open-loop", "teacher-forced"


class Finding(NamedTuple):
    """One observation outside its envelope."""

    step: int
    quantity: str
    parameter: int
    element: int
    observed: float
    low: float  # the envelope, outward in float64; NaN where no finite value is possible
    high: float
    mode: str  # "open-loop" or "teacher-forced"
    layer: str = ""  # whose factor or inverse it is


class Verdict(NamedTuple):
    """What can be said of a run against a profile."""

    case: str
    profile: str
    status: str
    checks: int  # observations compared
    open: int  # of those, within an envelope without bounds (they decide nothing)
    excluded: dict[str, list[str]]  # axis -> alternatives that the run excludes
    undecided: dict[str, list[str]]  # axis -> alternatives that hold the run as well
    first: Finding | None  # the first violation, in the order of steps and data flow
    # largest distance of a parameter from the centre, in ulp of it or its update, where the
    # envelope determines half the digits of the update
    worst_ulp: float
    worst_share: float  # the same over all quantities, as a share of the envelope's radius


class Measured(NamedTuple):
    """The observations of a run beside their envelopes; each field as in `Verdict`."""

    checks: int
    open: int
    first: Finding | None
    worst_ulp: float
    worst_share: float


class Check(NamedTuple):
    """One observation beside its envelope."""

    step: int
    quantity: str
    parameter: int
    element: int
    observed: float
    interval: Interval
    mode: str


def judge(
    rule: ModuleType,
    case: Case,
    run: Run,
    profile: Profile,
    *,
    k: int = ROUNDINGS,
    flush: bool | None = None,
    axes: bool = True,
) -> Verdict:
    """Judge a run of a case; `axes` also asks which alternatives it excludes.

    `flush`: let subnormals become zero; None: where the case is tagged so.
    """
    return Judge(rule, case, run, profile, k=k, flush=flush).verdict(axes=axes)


def of_any(profile: Profile) -> Profile:
    """A profile for any program, which may round each operation in 16 bits."""
    return profile._replace(half="each") if profile.half == "stored" else profile


class Judge:
    """One run against one profile, and against that profile with choices changed."""

    MOST = 2  # changes of choices that are tried at once

    def __init__(
        self,
        rule: ModuleType,
        case: Case,
        run: Run,
        profile: Profile,
        *,
        k: int = ROUNDINGS,
        flush: bool | None = None,
    ) -> None:
        self.rule, self.case, self.run, self.profile = rule, case, run, profile
        self.k = k
        self.flush = "flush" in case.tags if flush is None else flush
        self._deciding: set[tuple[Any, ...]] | None = None  # what has bounds, or lies outside
        self._starts: dict[int, Memory] = {}  # step -> what the recorded state before it gives
        self._ticked: dict[int, dict[int, Any]] = {}  # step -> coefficients by group
        with precision():
            states = self._replay(clocks=True).start().states
        self.kept = {q for state in states for q in Replay.kept(state)}

    def verdict(self, *, axes: bool = True, skip: Container[tuple[str, str]] = ()) -> Verdict:
        """Every observation, and with `axes` every alternative that may be told apart.

        `skip`: alternatives, as (axis, name), that need no answer, since other runs exclude them;
        they are asked only until one is excluded, where no other is.
        """
        with precision():
            checks, unbounded, first, worst_ulp, worst_share = self._measured()
            excluded: dict[str, list[str]] = {}
            undecided: dict[str, list[str]] = {}
            if axes and first is None:
                # the sign of the step is the quickest to exclude
                named = sorted(
                    self.alternatives(), key=lambda a: (a[:2] in skip, a[0] != "objective")
                )
                for axis, name, choice in named:
                    if excluded and (axis, name) in skip:
                        break
                    held = not self.matters(axis) or self.holds({axis: choice})
                    (undecided if held else excluded).setdefault(axis, []).append(name)
        return Verdict(
            self.case.id,
            self.profile.name,
            VIOLATION if first else CONFORMS if excluded else INCONCLUSIVE,
            checks,
            unbounded,
            excluded,
            undecided,
            first,
            worst_ulp,
            worst_share,
        )

    def _measured(self) -> Measured:
        checks = unbounded = 0
        self._deciding = deciding = set()
        first: Finding | None = None
        worst_ulp = worst_share = 0.0
        for check in _order(self.rule, self._checks()):
            checks += 1
            unbounded += not check.interval.bounded
            outside = not check.interval.holds(check.observed)
            if outside or check.interval.bounded:
                deciding.add(check[:4])
            if outside:
                first = first or self._placed(check)
            elif check.mode == FORCED and check.interval.bounded:
                distance, share = _distance(check, self.case, self.run)
                worst_ulp, worst_share = max(worst_ulp, distance), max(worst_share, share)
        return Measured(checks, unbounded, first, worst_ulp, worst_share)

    def alternatives(self) -> Iterator[tuple[str, str, Any]]:
        """(axis, name, choice) of every single change that is another rule over the reals."""
        settings = [choices for _, choices in self.settings()]
        for axis, named in self.rule.AXES.items():
            same = set().union(*(equal(self.rule, axis, choices) for choices in settings))
            # what is equal to the profile's own choice differs where an option is off by it alone
            own = getattr(self.profile.choices, axis, None)
            same |= {n for n in equal(self.rule, axis, self.profile.choices) if named[n] is not own}
            yield from ((axis, name, choice) for name, choice in named.items() if name not in same)

    def named(self, most: int | None = None) -> list[Changes]:
        """The smallest sets of changes of choices under which the run conforms."""
        return Search([self], self.MOST if most is None else most).found()

    def beside(self, changes: Changes, step: int = 0) -> Iterator[Beside]:
        """Every observation, or those of a step, beside its range under some changes, in order.

        A rule that pairs arrays of different sizes cannot have run: nothing may be anywhere.
        """
        flow = {q: place for place, q in enumerate(self.rule.OBSERVABLE)}
        try:
            changed = {axis: self.rule.AXES[axis][name] for axis, name in changes}
            for check in self._forced(changed, step):
                holds = self._passes(check) if changes else check.interval.holds(check.observed)
                yield Beside(
                    (check.step, flow[check.quantity]),
                    check[:4],
                    holds,
                    check.interval,
                    self._counts(check),
                    check.observed,
                    check.mode,
                    math.isfinite(check.observed),
                )
        except ShapeError:
            nowhere = Interval(None, None)
            yield Beside((0, 0), (0, "param", 0, 0), False, nowhere, True, math.nan, OPEN)

    def _counts(self, check: Check) -> bool:
        """Whether a number that a step gave lies beside bounds."""
        stepped = self._stepped(check.parameter, check.step + 1)
        return stepped and math.isfinite(check.observed) and check.interval.bounded

    def finding(self, beside: Beside) -> Finding:
        """An observation that does not hold, as a verdict has it."""
        t, q, i, j = beside.key
        return self._placed(Check(t, q, i, j, beside.observed, beside.range, beside.mode))

    def _placed(self, check: Check) -> Finding:
        """A check as a verdict has it; of a case of different elements under its own place."""
        found = _finding(check)
        places = self.case.source.get("elements")
        if places is None or check.quantity not in (*self.kept, "param"):
            return found
        return found._replace(element=places[check.parameter][check.element])

    def _passes(self, check: Check) -> bool:
        """Whether an observation is inside; or holds under the profile itself, without bounds."""
        if check.interval.holds(check.observed):
            return True
        if self._deciding is None:
            self._measured()
        assert self._deciding is not None
        return check[:4] not in self._deciding

    def of_arrays(self, keep: str = "") -> Judge:
        """The same without the counters that the run shows, except one to `keep`."""
        counters = {*self.rule.Clock._fields} - {keep}
        steps = {
            t: {q: x for q, x in step.items() if q not in counters}
            for t, step in self.run.steps.items()
        }
        return type(self)(self.rule, self.case, self.run._replace(steps=steps), self.profile)

    def holds(self, changed: dict[str, Any]) -> bool:
        """Whether the run lies inside the envelope of the profile with these choices changed.

        An observation that holds under the profile itself, without bounds, decides nothing.
        """
        with precision():
            try:
                return all(self._passes(check) for check in self._forced(changed))
            except ShapeError:  # a rule that pairs arrays of different sizes cannot have run
                return False

    def settings(self) -> list[tuple[Any, Any]]:
        """(hyperparameters, choices) of every group, at the start and after every change."""
        replay = self._replay()
        hypers = [
            replay.hyper(t, overrides)
            for _, overrides in self.case.groups
            for t in (1, *self.case.changes)
        ]
        return [(hyper, replay.choices(hyper)) for hyper in hypers]

    def matters(self, axis: str) -> bool:
        """Whether a choice on this axis can make a difference to the run."""
        matters = self.rule.MATTERS.get(axis)
        case, settings = self.case, self.settings()
        return matters is None or matters(
            [hyper for hyper, _ in settings],
            [choices for _, choices in settings],
            len(case.params) > 1 or any(None in step for step in case.grads),
            any(isinstance(g, Sparse) for step in case.grads for g in step),
        )

    def _replay(self, changed: dict[str, Any] | None = None, *, clocks: bool = False) -> Replay:
        return Replay(
            self.rule,
            self.case,
            self.profile,
            changed,
            space=Envelope(self.k, flush=self.flush),
            only_clocks=clocks,
        )

    def _checks(self) -> Iterator[Check]:
        """Every observation teacher-forced, and open-loop where the state before is not known.

        Where everything is known, the second says nothing that the first does not: an envelope
        from a state that lies inside an envelope lies inside what follows from that.
        """
        replay, steps = self._replay(), self.run.steps
        for t, before in self._before({}, self.kept):
            self._starts[t], self._ticked[t] = self._start(replay, t, before), {}
            memory = replay.step(t, self._starts[t], self._ticked[t])
            yield from _compare(replay, self.run, t, memory, FORCED)
        gap = max((t for t in steps if not self._known(t, self.kept)), default=0)
        for t, memory in replay.open_loop() if gap else ():
            if t in steps:
                yield from _compare(replay, self.run, t, memory, OPEN)
            if t == gap:
                break

    def _before(self, changed: dict[str, Any], kept: set[str]) -> Iterator[tuple[int, Memory]]:
        """(step, counters before it) for every step that everything `kept` before is known of."""
        replay = self._replay(changed, clocks=True)
        known = [t for t in self.run.steps if self._known(t, kept)]
        if replay.remembers(self.run):
            start = replay.start()
            after = replay.step(1, start) if known != [1] else start
            yield from ((t, start if t == 1 else after) for t in known)
            return
        _, before = next(track := replay.open_loop())
        for t, memory in track:
            if t in known:
                yield t, before
            if t >= max(known, default=0):
                return
            before = memory

    def _known(self, t: int, kept: set[str]) -> bool:
        """Whether everything before step `t` is known: null stands for no state only at first."""
        before = self._shown(t)
        return t == 1 or (
            kept <= before.keys()
            and all(
                before[q][i] is not None or not self._stepped(i, t)
                for q in kept
                for i in range(len(self.case.params))
            )
        )

    def _shown(self, t: int) -> dict[str, list[Values | None]]:
        """What is known of the state before step `t`: what it was set to, or what was shown."""
        return self.run.before.get(t) or self.run.steps.get(t - 1, {})

    def _stepped(self, i: int, t: int) -> bool:
        """Whether parameter `i` had a gradient before step `t`."""
        return any(self.case.gradients(s)[i] is not None for s in range(1, t))

    def _start(self, replay: Replay, t: int, before: Memory) -> Memory:
        if t == 1:
            return replay.start()
        return replay.forced(before, self._shown(t), self.run)

    def _forced(self, changed: dict[str, Any], only: int = 0) -> Iterator[Check]:
        """Every observation, or those of a step, teacher-forced; open-loop where no state is shown.

        A changed choice may keep more state than the run shows.
        """
        replay, run = self._replay(changed), self.run
        kept = {q for state in replay.start().states for q in Replay.kept(state)}
        shown = run.before or run.steps
        if any(not kept <= step.keys() for step in shown.values()):
            for t, memory in replay.open_loop():
                if t in run.steps and only in (0, t):
                    yield from _compare(replay, run, t, memory, OPEN)
                if only and t == only:
                    return
        elif self._starts and kept == self.kept and set(changed) <= set(self.rule.ARRAY_AXES):
            for t, start in self._starts.items():
                if only in (0, t):
                    memory = replay.step(t, start, self._ticked[t])
                    yield from _compare(replay, run, t, memory, FORCED)
        else:
            for t, before in self._before(changed, kept):
                if only in (0, t):
                    memory = replay.step(t, self._start(replay, t, before))
                    yield from _compare(replay, run, t, memory, FORCED)


def named_by(
    rule: ModuleType, case: Case, run: Run, profile: Profile, *, k: int = ROUNDINGS
) -> list[Changes]:
    """The changes of choices, one or several at once, under which a run that deviates conforms."""
    return Judge(rule, case, run, profile, k=k).named()


def _compare(replay: Replay, run: Run, t: int, memory: Memory, mode: str) -> Iterator[Check]:
    predicted = replay.predicted(t, memory)
    for quantity in replay.rule.OBSERVABLE:
        for i, values in enumerate(run.steps[t].get(quantity, [])):
            expected = (predicted[quantity][i] if quantity in predicted else None) or []
            for j, observed in enumerate(values or [] if expected else []):
                interval = expected[j if len(expected) > 1 else 0]
                yield Check(t, quantity, i, j, observed, interval, mode)
    if run.finalized and t == replay.case.steps:
        for i, (values, state) in enumerate(zip(run.finalized, memory.states, strict=True)):
            final = memory.params[i] if state.average is None else state.average
            for j, observed in enumerate(values or ()):
                yield Check(t, "average", i, j, observed, final.elements[j], mode)


def _order(rule: ModuleType, checks: Iterator[Check]) -> list[Check]:
    """By step, then in the order of the data flow, teacher-forced (narrow) first."""
    flow = {q: place for place, q in enumerate(rule.OBSERVABLE)}
    return sorted(checks, key=lambda c: (c.step, flow[c.quantity], c.mode == OPEN))


def _finding(check: Check) -> Finding:
    low = math.nan if check.interval.low is None else float(check.interval.low.lower())
    high = math.nan if check.interval.high is None else float(check.interval.high.upper())
    return Finding(*check[:5], low, high, check.mode)


def _distance(check: Check, case: Case, run: Run) -> tuple[float, float]:
    """(ulp of the update for a parameter, share of the radius) of an observation inside."""
    low, high = check.interval.low, check.interval.high
    centre, radius = (low + high) / 2, (high - low) / 2
    away = float(abs(centre - check.observed))
    # a point is wide by the error of balls alone; what lies inside has a share of at most 1
    wide = radius > abs(centre) * 2.0**-200
    share = min(away / float(radius), 1.0) if wide else 0.0
    if check.quantity != "param":
        return 0.0, share
    i, j = check.parameter, check.element
    before = (
        case.params[i]
        if check.step == 1
        else (run.before.get(check.step) or run.steps[check.step - 1])["param"][i] or []
    )
    update = check.observed - before[j]
    f = FORMATS[case.dtypes[i]]
    if radius * 2.0 ** (f.precision / 2) > abs(update):
        return 0.0, share  # not half the digits of the update are determined: no place to count in
    # where the update is below the last place of the parameter, that place is what rounds
    return away / max(ulp(update, f), ulp(check.observed, f)), share
