"""What a vector decides: up to which step, in which modes, and which clauses it exercises."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from refopt.interp.balls import precision
from refopt.interp.bands import Bands
from refopt.interp.envelope import Envelope, ShapeError
from refopt.oracle import spec
from refopt.oracle.golden import Case, Run, Schedule, Sparse
from refopt.oracle.layered import Layered, judging
from refopt.oracle.replay import Replay
from refopt.oracle.verdict import FORCED, OPEN
from refopt.typing import Profile

Shown = dict[int, list[Any]]
"""Step -> the values of each parameter after it."""

SPECIAL = {"zero", "zero-by-zero", "not-finite", "weight_decay-zero"}
"""What a vector has by its numbers."""

FIRST = 6
"""The steps in which a hyperparameter has to show."""

Ranges = list[tuple[np.ndarray, np.ndarray]]
"""Of each parameter after a step: whether what is shown lies inside, and whether it has bounds."""


def decisive_through(case: Case, shown: Shown, profile: Profile, kills: list[str]) -> int:
    """The last step that decides for one who sees parameters alone; 0 if none does.

    It decides if a parameter, which has bounds there, lies outside the open-loop envelope of an
    alternative that the vector excludes.
    """
    rule, last = spec.RULES[case.id.partition(".")[0]], 0
    with precision():
        plain = dict(_open_loop(case, shown, profile, {}))
        for kill in kills:
            axis, _, name = kill.partition("=")
            try:
                for t, ranges in _open_loop(case, shown, profile, {axis: rule.AXES[axis][name]}):
                    pairs = zip(ranges, plain[t], strict=True)
                    if any(np.any(~inside & bounds) for (inside, _), (_, bounds) in pairs):
                        last = max(last, t)
            except ShapeError:  # a rule that pairs arrays of different sizes decides nothing more
                continue
            if last == case.steps:
                break
    return last


def _open_loop(
    case: Case, shown: Shown, profile: Profile, changed: dict[str, Any]
) -> Iterator[tuple[int, Ranges]]:
    """Each step from the start, nothing known but what was given."""
    rule = spec.RULES[case.id.partition(".")[0]]
    if case.layers:
        bands = Layered(rule, case, profile, changed, space=Bands()).steps()
        for t, computed, _ in bands:
            found = [computed[t, "param", i] for i in range(len(case.params))]
            yield (
                t,
                [
                    (band.holds(np.reshape(values, band.shape)), band.bounded)
                    for band, values in zip(found, shown[t], strict=True)
                ],
            )
        return
    space = Envelope(flush="flush" in case.tags)
    for t, memory in Replay(rule, case, profile, changed, space=space).open_loop():
        if t:
            yield (
                t,
                [
                    (
                        np.array(
                            [e.holds(x) for e, x in zip(p.elements, values, strict=True)], bool
                        ),
                        np.array([e.bounded for e in p.elements], bool),
                    )
                    for p, values in zip(memory.params, shown[t], strict=True)
                ],
            )


def modes(through: int) -> list[str]:
    """How a vector may be judged: teacher-forced always, open-loop where that decides."""
    return [OPEN, FORCED] if through else [FORCED]


# -- clauses --------------------------------------------------------------------------------------


def exercised(case: Case, run: Run, profile: Profile, axes: list[str]) -> list[str]:
    """The clauses that a vector exercises.

    Those of the axes on which it excludes an alternative; of the hyperparameters without whose
    value its run would be a violation; and of what it has (`exercised` in the specification, words
    that are all needed joined by +), which is read from the input. A clause about zeros or what is
    not finite is exercised by a vector that has them, and by no other.
    """
    optimizer = case.id.partition(".")[0]
    data = spec.load(optimizer)
    found = {data["axes"][axis]["clause"] for axis in axes}
    for name, described in data["hyperparameters"].items():
        if _hinges(case, run, profile, name, whole="whole" in described["range"]):
            found.add(described["clause"])
    there = features(case, run)
    for words, clauses in data["exercised"].items():
        needed = {*words.split("+")}
        if needed <= there:
            found |= {*clauses}
        else:
            found -= {*clauses} if needed & SPECIAL else set()
    known = [clause["id"] for clause in data["clauses"]]
    return sorted(found, key=known.index)


def _hinges(case: Case, run: Run, profile: Profile, name: str, *, whole: bool) -> bool:
    """Whether the run would be a violation if a hyperparameter had another value."""
    x = case.hyper.get(name, 0.0)
    if not isinstance(x, float):  # a schedule, or a tensor
        return False
    rule = spec.RULES[case.id.partition(".")[0]]
    if name not in case.hyper and getattr(profile.hyper, name) is None:
        return False
    other = x + 1 if whole else x / 2 if x else 0.25
    changed = case._replace(hyper=case.hyper | {name: other})
    run = run._replace(steps={t: x for t, x in run.steps.items() if t <= FIRST}, finalized=None)
    first = judging(rule)(rule, changed, run, profile).verdict(axes=False).first
    return first is not None and math.isfinite(first.observed)


def features(case: Case, run: Run) -> set[str]:
    """What a vector has, in the words of `exercised` in a specification."""
    grads = [case.gradients(t) for t in range(1, case.steps + 1)]
    flat = [g for row in grads for g in row]
    halves = {"float16", "bfloat16"}
    found = {
        "several": len(case.params) > 1,
        "missing": None in flat,
        "pause": any(all(g is None for g in row) for row in grads),
        "sparse": any(isinstance(g, Sparse) for g in flat),
        "complex": any(p["dtype"].startswith("complex") for p in case.source["params"]),
        "half": bool(halves & {*case.dtypes}),
        "groups": len(case.groups) > 1,
        "changes": bool(case.changes),
        "order": bool(case.orders),
        "zero": any(g is not None and not any(_values(g)) for g in flat),
        "zero-by-zero": case.hyper.get("epsilon") == 0 and _always_zero(case),
        "weight_decay-zero": case.hyper.get("weight_decay") == 0,
        "not-finite": not all(math.isfinite(x) for g in flat if g is not None for x in _values(g)),
        **{x.name: True for x in case.hyper.values() if isinstance(x, Schedule)},
        **{name: bool(on) for name, on in case.options.items()},
        **{name: x not in (0, 1) for name, x in case.hyper.items()},
        **{layer.kind: True for layer in case.layers.values()},
        **{q: True for columns in run.steps.values() for q in columns},
        **{q: True for shown in run.factors.values() for q in shown},
    }
    if case.layers:
        found["between"] = case.hyper.get("frequency", 100.0) <= case.steps
        found["row-a-step"] = any(isinstance(x, list) for x in case.hyper.values())
    return {word for word, there in found.items() if there}


def _always_zero(case: Case) -> bool:
    """Whether some element has never another gradient than zero."""
    for i in range(len(case.params)):
        rows = [row[i] for row in case.grads if row[i] is not None]
        if any(not any(x) for x in zip(*map(_values, rows), strict=True)):
            return True
    return False


def _values(grad: Any) -> list[float]:
    return grad.values if isinstance(grad, Sparse) else grad
