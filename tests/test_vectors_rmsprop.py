"""The vectors of RMSprop have power: every single change of the documented rule is caught."""

import json
from functools import cache

import jsonschema
import pytest

from refopt.interp.balls import Balls, Space, precision
from refopt.oracle import golden, spec, vectors
from refopt.oracle.own import numpy_run
from refopt.oracle.replay import Replay
from refopt.oracle.verdict import CONFORMS, VIOLATION, Judge, equal, judge
from refopt.rules import rmsprop

DOCUMENTED = rmsprop.PROFILES["documented"]
VECTORS = {r.case.id: r for r in golden.load(vectors.path("rmsprop"))}
DOCUMENT = json.loads(vectors.path("rmsprop").read_text())
KILLS = {case["id"]: set(case["kills"]) for case in DOCUMENT["cases"]}

# What a case configures by its options and hyperparameters, and so is no mistake.
CONFIGURED = {
    *("decay=coupled", "variance=uncentered", "move=no-momentum", "average=none"),
    *("correction=none", "objective=minimize", "idle=no-momentum", "idle=lr-inside"),
}
MUTANTS = [
    (axis, name)
    for axis, named in rmsprop.AXES.items()
    for name in named
    if name not in equal(rmsprop, axis, DOCUMENTED.choices) and f"{axis}={name}" not in CONFIGURED
]


@cache
def caught(axis, name):
    """The first float32 vector that calls a mutant, run on NumPy, a violation."""
    changed = {axis: rmsprop.AXES[axis][name]}
    for id_, recording in VECTORS.items():
        if id_.endswith("f32") and f"{axis}={name}" in KILLS[id_]:
            run = numpy_run(recording.case, DOCUMENTED, changed)
            if judge(rmsprop, recording.case, run, DOCUMENTED, axes=False).status == VIOLATION:
                return recording.case, run
    return None


@pytest.mark.parametrize(("axis", "name"), MUTANTS)
def test_a_mutant_is_a_violation_in_float32_and_is_named(axis, name):
    found = caught(axis, name)
    assert found is not None, f"no vector catches {axis}={name}"
    case, run = found
    assert ((axis, name),) in Judge(rmsprop, case, run, DOCUMENTED).named()


def test_there_are_enough_mutants():
    assert len(MUTANTS) >= 25


def test_a_vector_agrees_with_itself_and_states_its_power():
    for id_, recording in VECTORS.items():
        verdict = judge(rmsprop, recording.case, recording.runs["documented"], DOCUMENTED)
        assert verdict.status == CONFORMS
        assert {f"{a}={n}" for a, names in verdict.excluded.items() for n in names} == KILLS[id_]


def test_vectors_validate_and_cite_clauses_that_exist():
    schema = json.loads((golden.root() / "schema" / "vectors.schema.json").read_text())
    assert not [e.message for e in jsonschema.Draft202012Validator(schema).iter_errors(DOCUMENT)]
    clauses = {clause["id"] for clause in spec.load("rmsprop")["clauses"]}
    for case in DOCUMENT["cases"]:
        assert set(case["clauses"]) <= clauses


class RealNumbers(Balls):
    """Numbers that no profile rounds."""

    def float32(self, x):
        """`x` itself."""
        return self(x)

    native = float32


class RealSpace(Space):
    """Arrays that no profile rounds."""

    numbers = RealNumbers()


EQUAL = [
    (axis, min(group), other)
    for axis, groups in rmsprop.SAME_EXACTLY.items()
    for group in groups
    for other in sorted(group - {min(group)})
]


@pytest.mark.parametrize(("axis", "a", "b"), EQUAL)
def test_pairs_that_differ_in_rounding_alone_are_equal_over_the_reals(axis, a, b):
    for id_ in ("sharp", "centered-momentum-lr-changed", "schedule-momentum", "weight-decay-l2"):
        case = VECTORS[f"rmsprop.vector.{id_}.f32"].case
        if axis == "idle" and case.hyper["momentum"] > 0:
            continue
        with precision():
            ends = []
            for name in (a, b):
                changed = {axis: rmsprop.AXES[axis][name]}
                replay = Replay(rmsprop, case, DOCUMENTED, changed, space=RealSpace())
                *_, (_, memory) = replay.open_loop()
                ends.append([ball for array in memory.params for ball in array])
            assert len(ends[0]) >= 2
            for p, q in zip(*ends, strict=True):
                assert p.overlaps(q)
                assert p.rel_accuracy_bits() > 150
