"""How the runs of a release differ from the documented rule, told by their numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from refopt.oracle.golden import Case, Recording, Run
from refopt.oracle.layered import judging
from refopt.oracle.search import Search
from refopt.oracle.spec import RULES

STEPS = 2  # the first that are compared: a second one has every state behind it
MOST = {"float16": 1, "bfloat16": 1, "float32": 3, "float64": 1}  # changes at once
FEATURES = frozenset({"momentum", "centered", "weight_decay"})  # what turns a formula on
SHARP = {"epsilon", "lr-in-momentum", "l2"}  # tags of recordings made to show a formula
OFF = {"maximize", "decoupled_weight_decay"}  # what a case may state, and 0 asks for nothing


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


def explained(rule: Any, case: Case, run: Run, profile: Any) -> Search:
    """The search for what explains the first steps of a run."""
    steps = {t: step for t, step in run.steps.items() if t <= STEPS}
    first = judging(rule)(rule, case, run._replace(steps=steps, finalized=None), profile)
    return Search([first], MOST[case.dtypes[0]])
