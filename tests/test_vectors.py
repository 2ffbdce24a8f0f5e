"""The vectors have power: every alternative on every axis is caught by one, and named."""

import json
from functools import cache

import jsonschema
import pytest

from refopt.errors import CaseError
from refopt.interp.balls import Balls, Space, precision
from refopt.oracle import golden, spec, vectors
from refopt.oracle.own import numpy_run
from refopt.oracle.replay import Replay
from refopt.oracle.verdict import CONFORMS, VIOLATION, Judge, judge
from refopt.rules import nadam

DOCUMENTED = nadam.PROFILES["documented"]
VECTORS = {r.case.id: r for r in golden.load(vectors.path("nadam")) if r.runs}
KILLS = {
    case["id"]: set(case["kills"])
    for case in json.loads(vectors.path("nadam").read_text())["cases"]
}
DTYPES = {"f32": "float32", "f64": "float64"}

# What was seen in the wild or is easy to get wrong, each one change of the documented rule; the
# form without momentum schedule and with one divisor (timm, river) changes two axes at once.
MUTANTS = {
    "psi is 1": {"schedule": "unscaled"},
    "psi is 0": {"given": "no-momentum-decay"},
    "base 0.95": {"given": "base-0.95"},
    "step off by one, early": {"origin": "from-zero"},
    "step off by one, late": {"origin": "from-two"},
    "no schedule (optax)": {"schedule": "constant"},
    "no schedule, one divisor (timm)": {"schedule": "constant", "divisors": "same"},
    "one divisor": {"divisors": "same"},
    "plain Adam": {"momentum": "adam"},
    "product once per variable (MXNet)": {"counter": "every-variable"},
    "product once per traced variable (Keras 2)": {"counter": "traced-variable"},
    "counter shared": {"counter": "shared"},
    "step shared": {"counter": "shared-step"},
    "product starts at 0": {"start": "zero"},
    "an extra mu in the next product": {"divisors": "extra-mu"},
    "gradient scaled twice (torch before 2.1, differentiable)": {"momentum": "scaled-gradient"},
    "previous m": {"momentum": "previous"},
    "epsilon inside the root": {"epsilon": "inside"},
    "epsilon before the correction": {"epsilon": "before-correction"},
    "epsilon 1e-7": {"given": "keras-epsilon"},
    "epsilon dropped": {"given": "no-epsilon"},
    "beta2 on v_hat": {"correction": "beta2-scaled"},
    "v not corrected": {"correction": "none"},
    "L2 instead of decoupled": {"decay": "coupled"},
    "decay after the step": {"decay": "decoupled-after"},
    "decay without lr": {"decay": "decoupled-without-lr"},
    "decay forgotten": {"decay": "none"},
    "beta1 and 1 - beta1 swapped": {"given": "swapped-beta1"},
    "beta2 and 1 - beta2 swapped": {"given": "swapped-beta2"},
    "maximizes": {"objective": "maximize"},
    "product in float32": {"product": "float32"},
}


def mutated(change):
    """The choices of a mutant."""
    return {axis: nadam.AXES[axis][name] for axis, name in change.items()}


@cache
def caught(name, dtype):
    """The first vector of a dtype that calls a mutant, run on NumPy, a violation; its verdict."""
    change = MUTANTS[name]
    wanted = {f"{axis}={alternative}" for axis, alternative in change.items()}
    for id_, recording in VECTORS.items():
        case = recording.case
        if id_.endswith(dtype) and wanted & KILLS[id_]:
            run = numpy_run(case, DOCUMENTED, mutated(change))
            verdict = judge(nadam, case, run, DOCUMENTED)
            if verdict.status == VIOLATION:
                return case, run, verdict
    return None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_a_violation_and_is_named(name, dtype):
    found = caught(name, dtype)
    assert found is not None, f"no {dtype} vector catches: {name}"
    case, run, verdict = found
    assert verdict.first is not None
    judged = Judge(nadam, case, run, DOCUMENTED)
    assert judged.holds(mutated(MUTANTS[name]))
    assert tuple(sorted(MUTANTS[name].items())) in judged.named()


def test_there_are_enough_mutants():
    assert len(MUTANTS) >= 18
    killed = {f"{axis}={name}" for change in MUTANTS.values() for axis, name in change.items()}
    assert {kill for kills in KILLS.values() for kill in kills} - killed <= {
        "accepts",
        "decay=decoupled",  # where the vector has none or L2
        "decay=decoupled-factor",
        "objective=minimize",  # where the vector maximizes
        "product=native",  # float32 parameters: the same as float32
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_alternative_is_killed_or_equal(dtype):
    killed = set().union(*(kills for id_, kills in KILLS.items() if id_.endswith(dtype)))
    for axis, named in nadam.AXES.items():
        own = {getattr(DOCUMENTED.choices, axis), nadam.no_decay, nadam.coupled}
        mine = {name for name, choice in named.items() if choice in own}
        equal = mine.union(*(e for e in nadam.SAME_EXACTLY.get(axis, ()) if e & mine))
        if dtype == "f64" and axis == "product":
            equal |= {"native"}  # a float64 product is what a Python float holds
        for name in named.keys() - equal:
            assert f"{axis}={name}" in killed, f"{axis}={name}"


EQUAL = [
    (axis, a, b)
    for axis, groups in nadam.SAME_EXACTLY.items()
    for group in groups
    for a, b in [(min(group), other) for other in sorted(group - {min(group)})]
]


class RealNumbers(Balls):
    """Numbers that no profile rounds."""

    def float32(self, x):
        """`x` itself."""
        return self(x)

    native = float32


class RealSpace(Space):
    """Arrays that no profile rounds."""

    numbers = RealNumbers()

    def float32(self, x):
        """`x` itself."""
        return x


@pytest.mark.parametrize(("axis", "a", "b"), EQUAL)
def test_pairs_that_differ_in_rounding_alone_are_equal_over_the_reals(axis, a, b):
    for id_ in ("sharp-l2-psi-0.3", "sharp-decoupled", "groups-everything", "none-pause"):
        case = VECTORS[f"nadam.vector.{id_}.f64"].case
        with precision():
            ends = []
            for name in (a, b):
                changed = {axis: nadam.AXES[axis][name]}
                *_, (_, memory) = Replay(
                    nadam, case, DOCUMENTED, changed, space=RealSpace()
                ).open_loop()
                ends.append([ball for array in memory.params for ball in array])
            assert len(ends[0]) >= 4
            for p, q in zip(*ends, strict=True):
                assert p.overlaps(q)
                assert p.rel_accuracy_bits() > 200


def test_pairs_of_different_rules_are_told_apart_over_the_reals():
    case = VECTORS["nadam.vector.sharp-l2-psi-0.3.f64"].case
    with precision():
        ends = [
            next(
                p
                for t, m in Replay(nadam, case, DOCUMENTED, c, space=RealSpace()).open_loop()
                for p in m.params[0]
                if t == 1
            )
            for c in ({}, {"epsilon": nadam.inside})
        ]
        assert not ends[0].overlaps(ends[1])


def test_the_vectors_are_what_their_writer_writes():
    assert vectors.main(["--check"]) == 0


def test_a_vector_agrees_with_itself_and_states_its_power():
    for id_, recording in VECTORS.items():
        verdict = judge(nadam, recording.case, recording.runs["documented"], DOCUMENTED)
        assert verdict.status == CONFORMS
        assert {f"{a}={n}" for a, names in verdict.excluded.items() for n in names} == KILLS[id_]


def test_vectors_validate_and_cite_clauses_that_exist():
    document = json.loads(vectors.path("nadam").read_text())
    schema = json.loads((golden.root() / "schema" / "vectors.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert not list(validator.iter_errors(document))
    document["cases"][0]["kills"] = []
    assert list(validator.iter_errors(document))
    clauses = {clause["id"] for clause in spec.load("nadam")["clauses"]}
    for case in document["cases"]:
        assert set(case["clauses"]) <= set(clauses)


def test_a_vector_without_power_is_refused(monkeypatch):
    monkeypatch.setattr(vectors, "INPUTS", {"rmsprop": {"tf": ("empty",)}})
    with pytest.raises(CaseError, match=r"must have power \(kills\)"):
        vectors.make("rmsprop")


def test_an_input_that_was_not_recorded_is_refused(monkeypatch):
    monkeypatch.setattr(vectors, "INPUTS", {"nadam": {"torch": ("no-such",)}})
    with pytest.raises(CaseError, match="no recording has the input"):
        vectors.make()
