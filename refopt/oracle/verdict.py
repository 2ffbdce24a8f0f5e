"""The verdict on one run: inside the envelope of a profile, outside it, or nothing decided.

A run is judged twice: open-loop, from the start to every recorded step, and teacher-forced, each
recorded step from the recorded state before it, so that the envelope stays narrow for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from refopt.interp.balls import precision
from refopt.interp.envelope import ROUNDINGS, Interval
from refopt.interp.formats import FORMATS, ulp
from refopt.oracle.golden import Case, Run
from refopt.oracle.replay import ARRAYS, NUMBERS, Memory, Replay
from refopt.typing import Profile

CONFORMS, VIOLATION, INCONCLUSIVE = "conforms", "violation", "inconclusive"


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
    worst_ulp: float  # largest distance of a parameter from the centre, in ulp of its update
    worst_share: float  # the same over all quantities, as a share of the envelope's radius


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
    flush: bool = False,
    axes: bool = True,
) -> Verdict:
    """Judge a run of a case; `axes` also asks which alternatives it excludes."""
    with precision():
        checks = 0
        unbounded = 0
        first: Finding | None = None
        worst_ulp = worst_share = 0.0
        for check in _order(_checks(rule, case, run, profile, k=k, flush=flush)):
            checks += 1
            unbounded += not check.interval.bounded
            if not check.interval.holds(check.observed):
                first = first or _finding(check)
            elif check.mode == "teacher-forced" and check.interval.bounded:
                distance, share = _distance(check, case, run)
                worst_ulp, worst_share = max(worst_ulp, distance), max(worst_share, share)
        excluded: dict[str, list[str]] = {}
        undecided: dict[str, list[str]] = {}
        if axes and first is None:
            for axis, name, choice in alternatives(rule, case, profile):
                held = holds(rule, case, run, profile, {axis: choice}, k=k, flush=flush)
                (undecided if held else excluded).setdefault(axis, []).append(name)
        status = VIOLATION if first else CONFORMS if excluded else INCONCLUSIVE
        return Verdict(
            case.id,
            profile.name,
            status,
            checks,
            unbounded,
            excluded,
            undecided,
            first,
            worst_ulp,
            worst_share,
        )


def alternatives(rule: ModuleType, case: Case, profile: Profile) -> Iterator[tuple[str, str, Any]]:
    """(axis, name, choice) of every single change that is another rule over the reals."""
    replay = Replay(rule, case, profile)
    own = [
        replay.choices(replay.hyper(t, overrides))
        for _, overrides in case.groups
        for t in (1, *case.changes)
    ]
    for axis, named in rule.AXES.items():
        current = {getattr(choices, axis) for choices in own}
        names = {name for name, choice in named.items() if choice in current}
        for equal in rule.SAME_EXACTLY.get(axis, ()):
            names |= equal if names & equal else set()
        for name, choice in named.items():
            if name not in names:
                yield axis, name, choice


def holds(
    rule: ModuleType,
    case: Case,
    run: Run,
    profile: Profile,
    changed: dict[str, Any],
    *,
    k: int = ROUNDINGS,
    flush: bool = False,
) -> bool:
    """Whether a run lies inside the envelope of a profile with some choices changed."""
    with precision():
        return all(
            check.interval.holds(check.observed)
            for check in _forced(rule, case, run, profile, changed, k=k, flush=flush)
        )


def named_by(
    rule: ModuleType, case: Case, run: Run, profile: Profile, *, k: int = ROUNDINGS
) -> list[tuple[str, str]]:
    """(axis, alternative) of every single change under which a run that deviates conforms."""
    replay = Replay(rule, case, profile)
    own = replay.choices(replay.hyper(1, {}))
    return [
        (axis, name)
        for axis, named in rule.AXES.items()
        for name, choice in named.items()
        if choice != getattr(own, axis) and holds(rule, case, run, profile, {axis: choice}, k=k)
    ]


def _checks(
    rule: ModuleType, case: Case, run: Run, profile: Profile, *, k: int, flush: bool
) -> Iterator[Check]:
    """Every observation, open-loop and teacher-forced."""
    replay = Replay(rule, case, profile, k=k, flush=flush)
    before: Memory | None = None
    for t, memory in replay.open_loop():
        if t in run.steps:
            yield from _compare(replay, run, t, memory, "open-loop")
            recorded = run.steps.get(t - 1)
            if before is not None and (t == 1 or (recorded and "m" in recorded)):
                start = before if t == 1 else replay.forced(before, recorded or {}, run)
                yield from _compare(replay, run, t, replay.step(t, start), "teacher-forced")
        before = memory


def _forced(
    rule: ModuleType,
    case: Case,
    run: Run,
    profile: Profile,
    changed: dict[str, Any],
    *,
    k: int,
    flush: bool,
) -> Iterator[Check]:
    """Every observation teacher-forced; open-loop where the state before it is not known."""
    replay = Replay(rule, case, profile, changed, k=k, flush=flush)
    if any("m" not in step for step in run.steps.values()):
        for t, memory in replay.open_loop():
            if t in run.steps:
                yield from _compare(replay, run, t, memory, "open-loop")
        return
    clocks = Replay(rule, case, profile, changed, k=k, flush=flush, only_clocks=True).open_loop()
    _, before = next(clocks)
    for t, memory in clocks:
        if t == 1 and t in run.steps:
            yield from _compare(replay, run, t, replay.step(t, replay.start()), "teacher-forced")
        elif t in run.steps and t - 1 in run.steps:
            start = replay.forced(before, run.steps[t - 1], run)
            yield from _compare(replay, run, t, replay.step(t, start), "teacher-forced")
        before = memory


def _compare(replay: Replay, run: Run, t: int, memory: Memory, mode: str) -> Iterator[Check]:
    predicted = replay.predicted(memory)
    for quantity in (*NUMBERS[::-1], "m", "v", "param"):
        for i, values in enumerate(run.steps[t].get(quantity, [])):
            if values is None:
                continue
            for j, observed in enumerate(values):
                expected = predicted[quantity][i] or []
                interval = expected[0 if quantity in NUMBERS else j]
                yield Check(t, quantity, i, j, observed, interval, mode)


def _order(checks: Iterator[Check]) -> list[Check]:
    """By step, then in the order of the data flow, teacher-forced (narrow) first."""
    flow = {q: place for place, q in enumerate((*NUMBERS[::-1], "m", "v", "param"))}
    return sorted(checks, key=lambda c: (c.step, flow[c.quantity], c.mode == "open-loop"))


def _finding(check: Check) -> Finding:
    low = math.nan if check.interval.low is None else float(check.interval.low.lower())
    high = math.nan if check.interval.high is None else float(check.interval.high.upper())
    return Finding(*check[:5], low, high, check.mode)


def _distance(check: Check, case: Case, run: Run) -> tuple[float, float]:
    """(ulp of the update for a parameter, share of the radius) of an observation inside."""
    centre = (check.interval.low + check.interval.high) / 2
    radius = float((check.interval.high - check.interval.low) / 2)
    away = float(abs(centre - check.observed))
    share = away / radius if radius else 0.0
    if check.quantity != "param":
        return 0.0, share
    i, j = check.parameter, check.element
    before = (
        case.params[i]
        if check.step == 1
        else (run.steps.get(check.step - 1, {}).get("param", [])[i] or [])
    )
    update = check.observed - before[j]
    f = FORMATS[case.dtypes[i]]
    return away / ulp(update if update else check.observed, f), share


__all__ = ["ARRAYS", "CONFORMS", "INCONCLUSIVE", "VIOLATION", "Finding", "Verdict", "judge"]
