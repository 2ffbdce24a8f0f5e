"""The envelope excludes what no rounding explains, and holds what rounding does."""

import math
import random
from dataclasses import dataclass

import flint
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refopt.interp.balls import end_rounded, precision
from refopt.interp.envelope import (
    Envelope,
    Interval,
    Reals,
    Rounding,
    added,
    divided,
    multiplied,
    negated,
    point,
    rooted,
)
from refopt.interp.formats import FORMATS, from_bits, rounded, to_bits, ulp
from refopt.oracle import golden
from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE, VIOLATION, judge, named_by
from refopt.rules import nadam

CASES = {
    recording.case.id: recording
    for recording in golden.recordings()
    if recording.case.id.startswith("nadam.torch.")
}
SHARP = (
    "nadam.torch.sharp-l2-psi-1",
    "nadam.torch.sharp-l2-psi-0.3",
    "nadam.torch.sharp-decoupled",
)
TORCH = nadam.PROFILES["torch-2.13"]


def altered(run, change):
    """A run whose arrays are replaced: change(step, quantity, value) for each element."""
    steps = {
        t: {
            q: [None if column is None else [change(t, q, x) for x in column] for column in columns]
            for q, columns in step.items()
        }
        for t, step in run.steps.items()
    }
    return run._replace(steps=steps)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", SHARP)
@pytest.mark.parametrize(
    "quantities", [("param",), ("m",), ("v",), ("product",), ("param", "m", "v")]
)
def test_answers_of_nan_are_violations(name, dtype, quantities):
    recording = CASES[f"{name}.{dtype}"]
    run = altered(recording.runs["torch-2.13"], lambda t, q, x: math.nan if q in quantities else x)
    verdict = judge(nadam, recording.case, run, TORCH)
    assert verdict.status == VIOLATION
    assert verdict.first.quantity in quantities


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", SHARP)
@pytest.mark.parametrize("quantity", ["param", "m", "v", "product", "t"])
def test_answers_of_zero_are_violations(name, dtype, quantity):
    recording = CASES[f"{name}.{dtype}"]
    run = altered(recording.runs["torch-2.13"], lambda t, q, x: 0.0 if q == quantity else x)
    verdict = judge(nadam, recording.case, run, TORCH)
    assert verdict.status == VIOLATION
    assert (verdict.first.step, verdict.first.quantity) == (1, quantity)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_random_answers_are_violations(dtype, scale):
    name = "nadam.torch.half" if dtype in ("f16", "bf16") else SHARP[0]
    recording = CASES[f"{name}.{dtype}"]
    source = random.Random(3)
    run = altered(
        recording.runs["torch-2.13"],
        lambda t, q, x: x if q in ("t", "product") else scale * source.gauss(0, 1),
    )
    assert judge(nadam, recording.case, run, TORCH).status == VIOLATION


def test_nothing_but_nan_predicted_decides_nothing():
    recording = CASES["nadam.torch.zero-over-zero.f32"]
    verdict = judge(nadam, recording.case, recording.runs["torch-2.13"], TORCH)
    assert verdict.open > 0


def test_an_exact_product_is_excluded_under_the_torch_profile():
    recording = CASES["nadam.torch.product-float32.f64"]
    run = recording.runs["torch-2.13"]
    assert judge(nadam, recording.case, run, TORCH).status == CONFORMS
    exact = TORCH._replace(choices=TORCH.choices._replace(product=nadam.exact))
    verdict = judge(nadam, recording.case, run, exact)
    assert verdict.status == VIOLATION
    assert verdict.first.quantity == "product"


LOOP = ((("product", "float32"),),)
NAMED = {
    "torch-2.13": LOOP,
    "torch-2.13-foreach": LOOP,
    "torch-2.13-differentiable": ((("coefficient", "kept"), ("product", "float32")),),
}


@pytest.mark.parametrize("path", NAMED)
@pytest.mark.parametrize("name", SHARP)
def test_the_documented_profile_names_for_float64_what_torch_rounds_and_nothing_else(name, path):
    recording = CASES[f"{name}.f64"]
    run = recording.runs[path]
    documented = nadam.PROFILES["documented"]
    verdict = judge(nadam, recording.case, run, documented)
    assert (verdict.status, verdict.first.quantity, verdict.first.step) == (VIOLATION, "product", 1)
    assert tuple(named_by(nadam, recording.case, run, documented)) == NAMED[path]


def test_the_float32_product_shows_in_the_parameters_alone():
    recording = CASES["nadam.torch.product-float32.f64"]
    run = recording.runs["torch-2.13"]
    steps = {t: {q: v for q, v in step.items() if q != "product"} for t, step in run.steps.items()}
    verdict = judge(nadam, recording.case, run._replace(steps=steps), nadam.PROFILES["documented"])
    assert (verdict.status, verdict.first.quantity) == (VIOLATION, "param")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_default_epsilon_is_undecided_in_half_precision(dtype):
    recording = CASES[f"nadam.torch.half-defaults.{dtype}"]
    verdict = judge(nadam, recording.case, recording.runs["torch-2.13"], TORCH)
    assert verdict.status in (CONFORMS, INCONCLUSIVE)
    assert "keras-epsilon" in verdict.undecided["given"]


def test_one_ulp_more_than_the_envelope_is_a_violation():
    recording = CASES["nadam.torch.sharp-l2-psi-1.f64"]
    run = recording.runs["torch-2.13"]
    f = FORMATS["float64"]
    moved = altered(run, lambda t, q, x: x + 40 * ulp(x, f) if (t, q) == (1, "m") else x)
    verdict = judge(nadam, recording.case, moved, TORCH)
    assert (verdict.status, verdict.first.quantity) == (VIOLATION, "m")


# -- soundness of the operations ------------------------------------------------------------------
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
anything = st.floats(width=32)


@dataclass(frozen=True)
class Operation:
    """An operation on intervals and the same on floats."""

    exact: object
    computed: object


OPERATIONS = {
    "add": Operation(added, lambda x, y: x + y),
    "multiply": Operation(multiplied, lambda x, y: x * y),
    "divide": Operation(divided, None),
}


def quotient(x, y):
    """x / y as IEEE has it."""
    if y == 0:
        return (
            math.nan
            if x == 0 or math.isnan(x)
            else math.copysign(math.inf, x) * math.copysign(1, y)
        )
    return x / y


@pytest.mark.parametrize("name", sorted(OPERATIONS))
@settings(max_examples=400, derandomize=True, deadline=None)
@given(x=anything, y=anything)
def test_an_operation_in_float32_lies_inside(name, x, y):
    f = FORMATS["float32"]
    operation = OPERATIONS[name]
    value = rounded((operation.computed or quotient)(x, y), f)
    if name == "divide" and y == 0 and math.copysign(1, y) < 0:
        value = -value  # a zero divisor counts as +0
    with precision():
        assert Rounding(f, 2)(operation.exact(point(x), point(y))).holds(value)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(x=anything)
def test_a_root_in_float32_lies_inside(x):
    f = FORMATS["float32"]
    value = math.nan if x < 0 or math.isnan(x) else rounded(math.sqrt(x), f)
    with precision():
        assert Rounding(f, 2)(rooted(point(x))).holds(value)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    a=finite,
    b=finite,
    weight=st.floats(0, 1, width=32),
)
def test_lerp_in_float32_lies_inside(a, b, weight):
    f = FORMATS["float32"]
    difference = rounded(b - a, f)
    step = rounded(weight * difference, f) if math.isfinite(difference) or weight else math.nan
    value = rounded(a + step, f)
    with precision():
        xp = Envelope()
        start, end = xp.array([a], "float32"), xp.array([b], "float32")
        inside = xp.lerp(start, end, weight).elements[0]
        assert inside.holds(value)
        rest = added(point(1.0), negated(point(weight)))
        tight = added(multiplied(rest, point(a)), multiplied(point(weight), point(b)))
        assert inside.low is None or not inside.low > tight.high


@settings(max_examples=400, derandomize=True, deadline=None)
@given(x=st.floats(allow_nan=False), name=st.sampled_from(sorted(FORMATS)))
def test_performed_rounding_is_rounding_to_nearest(x, name):
    f = FORMATS[name]
    expected = rounded(x, f)
    with precision():
        result = Rounding(f, 2).performed(point(x))
        assert result.holds(expected)
        assert result.low is None or bool(result.low == result.high) or math.isinf(expected)
        if math.isfinite(expected):
            assert float(end_rounded(flint.arb(x), f)) == expected


@settings(max_examples=300, derandomize=True, deadline=None)
@given(x=st.floats(), name=st.sampled_from(sorted(FORMATS)))
def test_bits_round_trip(x, name):
    f = FORMATS[name]
    value = rounded(x, f)
    (back,) = from_bits(to_bits([value], f), f)
    assert back == value or (math.isnan(back) and math.isnan(value))
    assert math.copysign(1, back) == math.copysign(1, value) or math.isnan(value)


def test_a_square_is_not_negative_and_keeps_to_its_ray():
    with precision():
        xp = Envelope()
        wide = xp.array([0.0], "float32")
        wide.elements = [Interval(flint.arb(-1), flint.arb(1))]
        assert bool((wide * wide).elements[0].low >= 0)
        assert bool(((0.001 * wide) * wide).elements[0].low >= 0)
        assert not bool(((-0.001 * wide) * wide).elements[0].low >= 0)


def test_a_number_keeps_its_dtype_and_python_floats_give_way():
    with precision():
        num = Reals()
        single = num.float32(0.1)
        assert (single * 3.0).dtype == "float32"
        assert (num(0.1) * 3.0).dtype is None
        assert (num.carrying(0.1, "bfloat16") * single).dtype == "float32"
        assert bool(single.x.low == flint.arb(rounded(0.1, FORMATS["float32"])))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(terms=st.lists(finite, min_size=1, max_size=6), order=st.randoms())
def test_a_scattered_sum_lies_inside_in_any_order(terms, order):
    f = FORMATS["float32"]
    shuffled = list(terms)
    order.shuffle(shuffled)
    value = shuffled[0]
    for term in shuffled[1:]:
        value = rounded(value + term, f)
    with precision():
        xp = Envelope()
        base, rest = xp.array([terms[0], 7.0], "float32"), xp.array(terms[1:], "float32")
        total, untouched = xp.scatter_add(base, (0,) * (len(terms) - 1), rest).elements
        assert total.holds(value)
        assert untouched == base.elements[1]


def test_a_sum_of_two_is_as_narrow_as_one_addition():
    with precision():
        xp = Envelope()
        x, y = xp.array([1.0], "float32"), xp.array([-1.0 + 2.0**-20], "float32")
        assert xp.scatter_add(x, (0,), y).elements[0] == (x + y).elements[0]
        three = xp.scatter_add(x, (0, 0), xp.array([0.1, 0.2], "float32")).elements[0]
        assert three.holds(1.3)
        assert not three.holds(1.3 + 2.0**-20)


@pytest.mark.parametrize("name", ["overflow.f32", "overflow.f64"])
def test_the_root_of_a_quotient_and_the_quotient_of_roots_part_where_one_overflows(name):
    recording = CASES[f"nadam.torch.{name}"]
    for path in ("torch-2.13", "torch-2.13-foreach"):
        found = {
            profile: judge(
                nadam, recording.case, recording.runs[path], nadam.PROFILES[profile], axes=False
            ).status
            for profile in ("torch-2.13", "torch-2.13-foreach")
        }
        assert {p for p, status in found.items() if status == VIOLATION} == {*found} - {path}
