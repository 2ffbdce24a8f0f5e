"""The vectors of THOR: what they cover, and what none of them can show."""

import json

import jsonschema
import numpy as np
import pytest

from refopt.interp.arrays import Floats, namespace_of
from refopt.interp.balls import Balls, MatrixSpace, precision
from refopt.interp.bands import Bands
from refopt.oracle import golden, inputs, spec, vectors
from refopt.oracle.layered import Layered, LayerJudge, numpy_run, observed
from refopt.oracle.verdict import CONFORMS, equal
from refopt.rules import thor

DOCUMENTED = thor.PROFILES["documented"]
CHOICES = DOCUMENTED.choices
DOCUMENT = json.loads(vectors.path("thor").read_text())
VECTORS = {r.case.id: r for r in golden.load(vectors.path("thor")) if r.runs}
KILLS = {case["id"]: set(case["kills"]) for case in DOCUMENT["cases"]}

REFUSED = {"past_end=zero", "past_end=last"}  # by the vector that must be refused
UNSEEN = {change.partition(" ")[0] for change in spec.load("thor")["unseen"]}
"""By what one worker shows of a step of the documented rule: proved below."""

MUTANTS = [
    (axis, name)
    for axis, named in thor.AXES.items()
    for name in named
    if name not in equal(thor, axis, CHOICES) and f"{axis}={name}" not in UNSEEN
]
ROUNDED = [
    (axis, name)
    for axis in thor.SAME_EXACTLY
    for name in equal(thor, axis, CHOICES)
    if thor.AXES[axis][name] is not getattr(CHOICES, axis)
]


def judge(case, run, profile=DOCUMENTED):
    return LayerJudge(thor, case, run, profile)


def test_every_alternative_is_a_mutant_or_proved_unseen_or_rounding_alone():
    others = {
        f"{axis}={name}"
        for axis, named in thor.AXES.items()
        for name, choice in named.items()
        if choice is not getattr(CHOICES, axis)
    }
    mutants, rounded = ({f"{axis}={name}" for axis, name in x} for x in (MUTANTS, ROUNDED))
    assert others == mutants | UNSEEN | rounded
    assert len(others) == len(mutants) + len(UNSEEN) + len(rounded)
    assert (
        set().union(*KILLS.values()) - REFUSED - {"accepts", "clip=by-norm", "move=heavy-ball"}
        == mutants
    )


def test_a_vector_agrees_with_itself_and_states_its_power():
    assert 30 <= len(VECTORS) <= 40
    for id_, recording in VECTORS.items():
        verdict = judge(recording.case, recording.runs["documented"]).verdict()
        assert verdict.status == CONFORMS
        assert verdict.open == 0
        assert {f"{a}={n}" for a, names in verdict.excluded.items() for n in names} == KILLS[id_]


def test_a_vector_in_which_one_element_is_changed_is_a_violation():
    case, runs, _ = VECTORS["thor.vector.conv-beside.f32"]
    run = runs["documented"]
    for t, columns in run.factors.items():
        for quantity, by_layer in columns.items():
            for name, tensor in by_layer.items():
                *rest, x = tensor.values
                wrong = tensor._replace(values=[*rest, x + 2.0**-10 * max(abs(x), 2.0**-10)])
                shown = columns | {quantity: by_layer | {name: wrong}}
                changed = run._replace(factors=run.factors | {t: shown})
                first = judge(case, changed).verdict(axes=False).first
                assert (first.step, first.quantity, first.layer) == (t, quantity, name)
    for t, columns in run.steps.items():
        for quantity in ("gradient", "m", "param"):
            wrong = [[x + 2.0**-10 for x in values] for values in columns[quantity]]
            changed = run._replace(steps=run.steps | {t: columns | {quantity: wrong}})
            first = judge(case, changed).verdict(axes=False).first
            assert (first.step, first.quantity, first.layer) == (t, quantity, "")


def test_vectors_validate_and_cite_clauses_that_exist():
    schema = json.loads((golden.root() / "schema" / "vectors.schema.json").read_text())
    assert not [e.message for e in jsonschema.Draft202012Validator(schema).iter_errors(DOCUMENT)]
    clauses = {clause["id"] for clause in spec.load("thor")["clauses"]}
    for case in DOCUMENT["cases"]:
        assert set(case["clauses"]) <= clauses


def test_the_inputs_are_drawn_from_their_names_and_are_the_same_numbers_in_both_dtypes():
    assert [*inputs.sources("thor")] == [*inputs.sources("thor")]
    for id_, recording in VECTORS.items():
        single = VECTORS[f"{id_[:-2]}32"].case
        double = VECTORS.get(f"{id_[:-2]}64", VECTORS[f"{id_[:-2]}32"]).case
        assert (single.params, single.grads) == (double.params, double.grads)
        assert set(recording.case.dtypes) == {f"float{id_[-2:]}"}


def test_vectors_cover_what_the_documented_rule_fixes():
    cases = {id_[12:-4]: r.case for id_, r in VECTORS.items()}
    kinds = {layer.kind for case in cases.values() for layer in case.layers.values()}
    assert kinds == set(thor.KINDS)
    sizes = [n for case in cases.values() for shape in case.shapes for n in shape]
    assert max(sizes) <= 8
    assert {case.hyper["split_dim"] for case in cases.values()} == {4.0}
    assert max(n for layer in cases["whole"].layers.values() for n in layer.shape) > 4
    rows = {name: next(iter(c.statistics[1].values()))["a"].shape[0] for name, c in cases.items()
            if c.statistics}  # fmt: skip
    assert rows["dense"] != cases["dense"].hyper["batch_size"]
    assert rows["loss-scale"] == cases["loss-scale"].hyper["batch_size"]
    for name, needed in (("loss_scale", 1.0), ("weight_decay", 0.0)):
        assert {case.hyper[name] != needed for case in cases.values()} == {True, False}
    for option in thor.OPTIONS:
        assert {case.options[option] for case in cases.values()} == {0, 1}
    # statistics between refreshes, which the documented rule does not read
    assert [*cases["stale"].statistics] == [1, 2, 3]
    assert [*cases["dense"].statistics] == [1, 3]


def test_clipped_gradients_are_some_longer_and_some_shorter_than_the_limit():
    case = VECTORS["thor.vector.clip.f64"].case
    with precision():
        (*_, plain), (*_, clipped) = (
            Layered(thor, case, DOCUMENTED, changed, space=MatrixSpace()).steps()
            for changed in ({"clip": thor.unclipped}, None)
        )
        squares = [
            [sum(x * x for x in computed[3, "gradient", i].ravel()) for computed in ends]
            for i in range(len(case.params))
            for ends in [(plain[1], clipped[1])]
        ]
        assert {before > 1 for before, _ in squares} == {True, False}
        for before, after in squares:
            assert after.overlaps(before.min(1))
            assert after.rel_accuracy_bits() > 150


# ---------------------------------------------------------------- what is equal, or not to be seen


class RealNumbers(Balls):
    """Numbers that no profile rounds."""

    def float32(self, x):
        """`x` itself."""
        return self(x)

    native = float32


class RealSpace(MatrixSpace):
    """Arrays that no profile rounds."""

    numbers = RealNumbers()

    def float16(self, x):
        """`x` itself."""
        return x


def balls(case, choices=CHOICES, space=RealSpace):
    """Every ball of a vector's steps, open-loop."""
    profile = DOCUMENTED._replace(choices=choices)
    with precision():
        layered = Layered(thor, case, profile, space=space())
        return [
            (key, ball)
            for _, computed, _ in layered.steps()
            for key, x in computed.items()
            for ball in np.ravel(x)
        ]


@pytest.mark.parametrize(("axis", "name"), ROUNDED)
def test_pairs_that_differ_in_rounding_alone_are_equal_over_the_reals(axis, name):
    for id_ in ("conv-beside", "everything", "stale"):
        case = VECTORS[f"thor.vector.{id_}.f64"].case
        pairs = zip(
            balls(case), balls(case, CHOICES._replace(**{axis: thor.AXES[axis][name]})), strict=True
        )
        for (key, p), (other, q) in pairs:
            assert key == other
            assert p.overlaps(q)
            assert p.rel_accuracy_bits() > 150 or p == q


@pytest.mark.parametrize("change", sorted(UNSEEN))
def test_what_is_unseen_gives_the_same_ball_everywhere(change):
    axis, name = change.split("=")
    for recording in VECTORS.values():
        if recording.case.id.endswith("f64"):
            other = CHOICES._replace(**{axis: thor.AXES[axis][name]})
            assert str(balls(recording.case, other)) == str(balls(recording.case))


def test_schedules_with_a_value_take_it_and_past_it_the_documented_rule_is_an_error():
    values = (0.5, 0.25)
    for t in (0, 1):
        assert {c(values, t) for c in thor.AXES["past_end"].values()} == {values[t]}
    with pytest.raises(IndexError):
        CHOICES.past_end(values, 2)


class Unread:
    """A choice, or what a choice gives, that nobody may use."""

    def __call__(self, *_):
        return self


def test_the_documented_rule_reads_no_number_of_positions():
    unread = CHOICES._replace(positions=Unread())
    for recording in VECTORS.values():
        assert str(balls(recording.case, unread)) == str(balls(recording.case))


def test_a_whole_factor_is_one_block():
    assert all(-(-n // CHOICES.block(n, DOCUMENTED.hyper)) == 1 for n in range(1, 3000))
    assert 1 in thor.ASCEND_BLOCKS


def test_one_worker_is_its_own_mean():
    arrays = [(np.arange(3.0), np.ones((2, 2))), (np.full(2, 0.1), np.eye(1))]
    for reduction in thor.AXES["reduction"].values():
        assert reduction.samples(32, 1) == 32
        for step in reduction[:2]:
            for ours, theirs in zip(step(arrays, lambda x: x, 1), arrays, strict=True):
                assert all((x == y).all() for x, y in zip(ours, theirs, strict=True))


# -------------------------------------------------------------------------- balls, bands and NumPy


@pytest.mark.parametrize("id_", [id_ for id_ in VECTORS if id_.endswith("f64")])
def test_the_envelope_holds_the_ball_and_what_numpy_computes(id_):
    """Open-loop: every step begins where the one before ended, in balls, in ranges and in NumPy."""
    case = VECTORS[id_].case
    run = observed(thor, case, numpy_run(thor, case, DOCUMENTED))
    with precision():
        true = Layered(thor, case, DOCUMENTED, space=MatrixSpace()).steps()
        space = Bands()
        held = 0
        for (t, exact, _), (_, ranges, _) in zip(
            true, Layered(thor, case, DOCUMENTED, space=space).steps(), strict=True
        ):
            for key, x in ranges.items():
                if key[1] == "t":
                    assert run[key] == [t]
                    continue
                assert x.bounded.all()
                assert x.holds(run[key].reshape(x.shape)).all()
                for low, high, ball in zip(x.low.flat, x.high.flat, exact[key].flat, strict=True):
                    assert low <= ball
                    assert ball <= high
                held += x.low.size
    assert held > 20


def test_the_arrays_of_a_vector_are_those_that_the_rule_takes():
    case = VECTORS["thor.vector.conv-dilated.f64"].case
    layer = case.layers["conv"]
    assert (layer.dilation, layer.stride, layer.padding) == ((2, 1), (1, 1), "same")
    given = case.statistics[1]["conv"]
    a, ds = (np.reshape(given[q].values, given[q].shape) for q in ("a", "ds"))
    factors = thor.statistics(layer, a, ds, CHOICES, xp=namespace_of(a))
    assert factors.a_normalizer == factors.g_normalizer == 2 * 4 * 3
    assert thor.settle(DOCUMENTED.hyper, CHOICES, num=Floats()) == DOCUMENTED.hyper
