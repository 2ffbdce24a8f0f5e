"""The vectors of NAdam: what is equal to the documented rule, and what their writer writes."""

import json

import jsonschema
import pytest

from refopt.errors import CaseError
from refopt.interp.balls import Balls, Space, precision
from refopt.oracle import golden, spec, vectors
from refopt.oracle.replay import Replay
from refopt.oracle.verdict import CONFORMS, judge
from refopt.rules import nadam

DOCUMENTED = nadam.PROFILES["documented"]
VECTORS = {r.case.id: r for r in golden.load(vectors.path("nadam")) if r.runs}
KILLS = {
    case["id"]: set(case["kills"])
    for case in json.loads(vectors.path("nadam").read_text())["cases"]
}
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
