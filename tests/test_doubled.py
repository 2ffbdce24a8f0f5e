"""Double-double arithmetic beside balls of 256 bits."""

import flint
import numpy as np
import pytest
from backends import LIBRARIES, same_bits

from refopt.interp import fused
from refopt.interp.arrays import namespace_of
from refopt.interp.balls import Space as Balls
from refopt.interp.balls import precision
from refopt.interp.doubled import Pairs, Space, contracts, doubled, numbers, program
from refopt.interp.formats import FORMATS
from refopt.oracle import golden
from refopt.oracle.replay import Replay
from refopt.oracle.spec import RULES

U2 = 2.0**-106  # u² of float64
GOAL = 1e-28
"""Of the value, after up to 500 steps."""
# Where pairs cannot keep this: products below 2⁻⁹⁶⁸, overflow, and differences that cancel.
OUTSIDE = {
    "nadam.torch.overflow.f64",
    "nadam.torch.subnormal-gradients.f64",
    "rmsprop.keras-legacy.centered-constant-500.f64",
    "rmsprop.optax.bias-correction-centered.f64",
    "rmsprop.tf.centered-constant-500.f64",
    "rmsprop.tf.subnormal-gradient.f64",
    "rmsprop.tf.subnormal-square.f64",
    "rmsprop.torch.centered-constant-500.f64",
}


def exact(x):
    """The value of each pair, as a ball of radius 0."""
    parts = zip(np.ravel(x.high).tolist(), np.ravel(x.low).tolist(), strict=True)
    return [flint.arb(high) + low for high, low in parts]


def pairs(seed, n=200):
    """Pairs over six decades, of both signs."""
    rng = np.random.default_rng(seed)
    high = rng.uniform(1, 10, n) * 10.0 ** rng.integers(-3, 3, n) * rng.choice([-1, 1], n)
    return doubled(high, high * rng.uniform(-1, 1, n) * 2.0**-54)


@pytest.mark.parametrize(
    ("operation", "bound"),
    [
        (lambda x, y: x + y, 3.1),
        (lambda x, y: x - y, 3.1),
        (lambda x, y: x * y, 5),
        (lambda x, y: x / y, 15),
        (lambda x, y: 2.5 - x, 3.1),
        (lambda x, y: 1 / x, 15),
    ],
)
def test_an_operation_errs_by_no_more_than_its_theorem_says(operation, bound):
    x, y = pairs(1), pairs(2)
    with precision():
        expected = [operation(a, b) for a, b in zip(exact(x), exact(y), strict=True)]
        for found, true in zip(exact(operation(x, y)), expected, strict=True):
            assert abs(found - true) <= bound * U2 * abs(true)


def test_a_root_errs_by_no_more_than_its_theorem_says():
    x = pairs(3) * pairs(3)
    with precision():
        for found, true in zip(exact(x.sqrt()), exact(x), strict=True):
            assert abs(found - true.sqrt()) <= 25 / 8 * U2 * true.sqrt()


def test_a_sum_by_halves_keeps_its_digits():
    x = pairs(4, 777)
    with precision():
        terms = exact(x)
        (found,) = exact(Pairs().sum(x))
        # ten levels of halves
        assert abs(found - sum(terms)) <= 10 * 3.1 * U2 * sum(map(abs, terms))


@pytest.mark.parametrize("make", [row for row in LIBRARIES if row.id != "jax-jit"])
def test_every_library_gives_the_bits_of_numpy(make):
    library = make()
    values = np.random.default_rng(5).uniform(1, 2, (3, 50))

    def chain(x, y, z):
        return ((x * x + 0.9 * y) / z).sqrt() - 0.3 * x

    ours = chain(*map(doubled, values))
    with library.session():
        arrays = [library.array(row, "float64") for row in values]
        theirs = chain(*map(doubled, arrays))
        assert library.place(theirs.high) == library.place(arrays[0])
        for part in ("high", "low"):
            assert type(getattr(theirs, part)) is type(arrays[0])
            assert same_bits(library.get(getattr(theirs, part)), getattr(ours, part))


def test_zero_and_infinity_stay_what_float64_makes_of_them():
    values = np.array([0.0, np.inf, -np.inf, np.nan, 1.0, 1e300])
    with np.errstate(all="ignore"):
        for operation in (
            lambda x: x * x,
            lambda x: x + x,
            lambda x: x - x,
            lambda x: x / x,
            lambda x: 1 / x,
            lambda x: x / 0.0,
            lambda x: x * np.inf,
        ):
            found, plain = operation(doubled(values)), operation(values)
            assert np.array_equal(found.high, plain, equal_nan=True)
            assert not np.any(found.low[~np.isfinite(plain)])
        root = doubled(values).sqrt()
        assert np.array_equal(root.high, np.sqrt(values), equal_nan=True)
        assert not np.any(root.low[:4])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_tie_between_two_numbers_is_decided_by_the_low_part(dtype):
    last = 2.0 ** (1 - FORMATS[dtype].precision)
    tie = np.full(3, 1 + last / 2)
    x = doubled(tie, np.array([-1e-20, 0.0, 1e-20]))
    rounded = Space().cast(x, "float32", stored=dtype)
    assert rounded.high.tolist() == [1.0, 1.0, 1 + last]  # in the middle: to even
    assert not np.any(rounded.low)
    if dtype == "float32":
        assert Pairs().float32(x).high.tolist() == rounded.high.tolist()


def test_the_larger_of_two_pairs_is_told_by_the_low_part():
    x = doubled(np.array([1.0, 2.0, 1.0]), np.array([1e-20, 0.0, -1e-20]))
    larger = Pairs().maximum(x, doubled(np.array([1.0, 1.0, 1.0])))
    smaller = Pairs().minimum(x, 1.0)
    assert (larger.high.tolist(), larger.low.tolist()) == ([1.0, 2.0, 1.0], [1e-20, 0.0, 0.0])
    assert (smaller.high.tolist(), smaller.low.tolist()) == ([1.0, 1.0, 1.0], [0.0, 0.0, -1e-20])


CASES = {
    r.case.id: r.case
    for name in ("nadam", "rmsprop")
    for r in golden.recordings(name)
    if {*r.case.dtypes} == {"float64"} and r.case.id not in OUTSIDE
}


@pytest.mark.parametrize("name", ["nadam", "rmsprop"])
def test_a_run_of_any_recorded_case_keeps_28_digits(name):
    rule, compared, longest = RULES[name], 0, 0
    for case in (case for id_, case in CASES.items() if id_.startswith(name)):
        runs = [
            Replay(rule, case, rule.PROFILES["documented"], space=s) for s in (Balls(), Space())
        ]
        with precision():
            true, found = ([m for _, m in run.open_loop()][-1] for run in runs)
            for balls, numbers in zip(true.params, found.params, strict=True):
                for ball, value in zip(balls, exact(numbers), strict=True):
                    if ball.is_finite() and ball.rel_accuracy_bits() > 106:
                        assert abs(value - ball) <= GOAL * abs(ball), case.id
                        compared += 1
        longest = max(longest, case.steps)
    assert compared > 200
    assert longest >= 200


@pytest.mark.parametrize("name", ["nadam", "rmsprop"])
def test_a_fused_step_on_pairs_has_the_bits_of_the_plain_one(name):
    rule, n = RULES[name], 50
    profile, rng = rule.PROFILES["documented"], np.random.default_rng(6)
    options = {"centered": True} if name == "rmsprop" else {}
    choices = rule.configured(profile.choices, profile.hyper, options)
    kept = ("m", "v") if name == "nadam" else ("v", "a")
    made = program(rule, profile._replace(choices=choices), profile.hyper, kept)
    arrays = {array: np.zeros(n) for array in fused.names(made) if array != "grad"}
    arrays["param"][:] = rng.standard_normal(n)
    together = fused.Pass([(made, arrays)])
    param, xp, num = doubled(arrays["param"].copy()), Pairs(), Balls.numbers
    with precision():
        state, clock = rule.init(param, choices, xp=xp, num=num)
        for _ in range(3):
            grad = rng.standard_normal(n)
            [(scalars, clock)] = rule.ticks(
                [param], [grad], [clock], profile.hyper, choices, num=num
            )
            assert together.takes([grad])
            together.ready()
            together.run([grad], [numbers(made, scalars, profile.hyper)])
            given = param, doubled(grad), state
            quantities, state = rule.step(*given, scalars, profile.hyper, choices, xp=xp)
            param = quantities.param
            for array in ("param", *kept):
                plain = param if array == "param" else getattr(state, array)
                assert np.array_equal(arrays[array], plain.high)
                assert np.array_equal(arrays[f"{array}_low"], plain.low)
                assert np.any(plain.low)


def test_narrow_arrays_are_refused():
    with pytest.raises(TypeError, match="float64 or float32 is required, got float16"):
        doubled(np.ones(2, "float16"))


def test_pairs_of_float32_have_48_bits():
    a, b = np.float32([[1.1, 2.3], [0.7, 9.1]])
    product = doubled(a) * doubled(b)
    assert product.high.dtype == product.low.dtype == np.float32
    true = a.astype("float64") * b.astype("float64")
    assert np.all(
        np.abs(product.high.astype("float64") + product.low - true) <= 5 * 2.0**-48 * true
    )


@pytest.mark.jax
def test_a_compiler_that_contracts_is_refused():
    import jax

    with jax.enable_x64(True):
        ones = jax.numpy.ones(2)
        assert not contracts(namespace_of(ones), "float64", jit=False)
        doubled(ones)  # each operation on its own is rounded
        with pytest.raises(TypeError, match=r"each operation is required, got jax.numpy under"):
            jax.jit(lambda x: doubled(x).high)(ones)
