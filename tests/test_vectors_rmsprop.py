"""The vectors of RMSprop: what is equal to the documented rule, and what constants show."""

import json
import math

import jsonschema
import numpy as np
import pytest

from refopt.interp.balls import Balls, Space, precision
from refopt.oracle import golden, spec, vectors
from refopt.oracle.own import numpy_run
from refopt.oracle.replay import Replay
from refopt.oracle.verdict import CONFORMS, VIOLATION, equal, judge
from refopt.rules import rmsprop

DOCUMENTED = rmsprop.PROFILES["documented"]
VECTORS = {r.case.id: r for r in golden.load(vectors.path("rmsprop")) if r.runs}
RECORDED = {r.case.id: r for r in golden.recordings("rmsprop")}
DOCUMENT = json.loads(vectors.path("rmsprop").read_text())
KILLS = {case["id"]: set(case["kills"]) for case in DOCUMENT["cases"]}

MUTANTS = [
    (axis, name)
    for axis, named in rmsprop.AXES.items()
    for name in named
    if name not in equal(rmsprop, axis, DOCUMENTED.choices)
]
# Not the documented alternative itself, but equal to it over the reals: proved below.
SAME = {
    *("storage=float32-lr", "storage=float32-variables", "storage=float32-attributes"),
    *("storage=float32-casts", "storage=float32-all", "scalars=float32", "scalars=native"),
    *("schedule=float32", "second=square-of-scaled", "second=increment", "mean=increment"),
    *("mean=lerp", "idle=lr-inside", "norm=factor", "global_norm=larger", "overwrite=blended"),
    *("variance=clamped", "storage=float32-tensors", "schedule=native"),
    *("norm=larger-float32", "global_norm=reciprocals-float32"),
}


def test_every_alternative_is_a_mutant_or_proved_the_same():
    own = {(axis, choice) for axis, choice in DOCUMENTED.choices._asdict().items()}
    others = {
        f"{axis}={name}"
        for axis, named in rmsprop.AXES.items()
        for name, choice in named.items()
        if (axis, choice) not in own
    }
    mutants = {f"{axis}={name}" for axis, name in MUTANTS}
    assert others == mutants | SAME
    assert not mutants & SAME
    pairs = {f"{axis}={name}" for axis, *ends in EQUAL for name in ends}
    assert pairs >= SAME


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

    def float32(self, x):
        """`x` itself."""
        return x


EQUAL = [
    (axis, min(group), other)
    for axis, groups in rmsprop.SAME_EXACTLY.items()
    for group in groups
    for other in sorted(group - {min(group)})
]


SHOWN = {
    "norm": ("clipnorm-tiny",),
    "global_norm": ("global-tiny",),
    "overwrite": ("ema-none-overwrite", "ema-order-overwrite"),
}
"""Where the alternatives of an axis are at work, if not in the others."""


@pytest.mark.parametrize(("axis", "a", "b"), EQUAL)
def test_pairs_that_differ_in_rounding_alone_are_equal_over_the_reals(axis, a, b):
    usual = ("sharp", "centered-momentum-lr-changed", "schedule-momentum", "weight-decay-l2")
    dtypes = {"schedule-momentum": "f64"}
    for id_ in SHOWN.get(axis, usual):
        case = VECTORS[f"rmsprop.vector.{id_}.{dtypes.get(id_, 'f32')}"].case
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


CLAMPED = DOCUMENTED._replace(choices=DOCUMENTED.choices._replace(variance=rmsprop.clamped))


@pytest.mark.parametrize(
    ("dtype", "steps", "turned"),
    [
        ("float32", (136, 137), ([0], [0, 1])),
        ("float64", (328, 329), ([0, 2], [0, 1, 2])),
    ],
)
def test_constant_gradients_show_what_clamping_changes(dtype, steps, turned):
    case = VECTORS[f"rmsprop.vector.centered-constant-500.f{dtype[-2:]}"].case
    plain, clamped = (numpy_run(case, profile) for profile in (DOCUMENTED, CLAMPED))
    for t, elements in zip((*steps, 500), (*turned, turned[-1]), strict=True):
        ours, theirs = plain.steps[t], clamped.steps[t]
        assert (ours["v"], ours["a"]) == (theirs["v"], theirs["a"])
        for j, (x, y) in enumerate(zip(ours["param"][0], theirs["param"][0], strict=True)):
            assert math.isfinite(y)
            assert math.isnan(x) if j in elements else x == y
    # the last to turn: the step that its clamped variance of zero gives
    before, after = (np.array(clamped.steps[t]["param"][0][1], dtype) for t in steps)
    lr, epsilon, g = (np.array(x, dtype) for x in (0.05, 0.01, case.gradients(1)[0][1]))
    assert after == before - lr * (g / epsilon)
    # rounding explains NaN in the documented form, and not in the clamped one
    first = {
        (profile.choices.variance, run is plain): judge(
            rmsprop, case, run, profile, axes=False
        ).first
        for profile in (DOCUMENTED, CLAMPED)
        for run in (plain, clamped)
    }
    found = first.pop((rmsprop.clamped, True))
    assert (found.step, found.quantity, math.isnan(found.observed)) == (steps[0], "param", True)
    assert set(first.values()) == {None}


def test_a_release_has_the_nan_that_the_documented_form_has():
    for dtype in ("f32", "f64"):
        recording = RECORDED[f"rmsprop.torch.centered-constant-500.{dtype}"]
        for run in recording.runs.values():
            assert any(math.isnan(x) for x in run.steps[500]["param"][0])


@pytest.mark.parametrize(
    ("id_", "profile", "axis", "name"),
    [
        ("torch.global-clipnorm-tiny.f32", "torch-2.13", "global_norm", "reciprocals"),
        ("torch.global-clipnorm-tiny.f64", "torch-2.13-foreach", "global_norm", "larger"),
        ("mlx.global-clipnorm-tiny.f32", "mlx-0.32", "global_norm", "reciprocals"),
        ("keras-3.ema-infinite.f32", "keras-3", "overwrite", "after-average"),
        ("keras-2.15.ema-infinite.f32", "keras-2.15", "overwrite", "blended"),
        ("keras-2.15.ema.f64", "keras-2.15", "overwrite", "before-average"),
        ("keras-3.ema.f64", "keras-3", "overwrite_count", "before-step"),
        ("tf.ema-overwrite-3.f32", "tf-2.9-experimental", "overwrite", "before-average"),
        ("tf.clipnorm-tiny.f32", "tf-2.9-experimental", "norm", "factor-and-epsilon"),
        ("paddle.clipnorm-tiny.f32", "paddle-3.3", "norm", "factor-and-epsilon"),
    ],
)
def test_a_release_limits_and_overwrites_in_its_own_form(id_, profile, axis, name):
    recording = RECORDED[f"rmsprop.{id_}"]
    own = rmsprop.PROFILES[profile]
    other = own._replace(choices=own.choices._replace(**{axis: rmsprop.AXES[axis][name]}))
    case, run = recording.case, recording.runs[profile]
    assert judge(rmsprop, case, run, own, axes=False).first is None
    assert judge(rmsprop, case, run, other, axes=False).status == VIOLATION
