"""Gradients of a loss: every library's own way, tapes, and what is refused."""

import math
import sys
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from backends import LIBRARIES, same_bits
from roundings import gamma

import refopt
from refopt import GradientTape, RMSprop, Variable
from refopt.interp import gradients as ways

START = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -0.25]])
library_rows = pytest.mark.parametrize("make", LIBRARIES)


def exactly(function):
    """The values of a function at START, rounded once."""
    return np.array([[float(function(mpmath.mpf(x))) for x in row] for row in START])


# array-api-strict lets nothing but its arrays and numbers stand on the right of an operator
operator_rows = pytest.mark.parametrize("make", [r for r in LIBRARIES if "strict" not in r.id])


def variable():
    return Variable(START.astype("f4"), name="w")


def pair(library, dtype="float32"):
    return (
        Variable(library.array(START, dtype), name="w"),
        Variable(library.array(np.array([2.0, -1.0, 0.5]), dtype), name="b"),
    )


@library_rows
def test_a_loss_without_arguments_has_the_gradient_of_calculus(make):
    library = make()
    with library.session():
        w, b = pair(library)
        found = RMSprop().compute_gradients(lambda: (w.data * w.data * b.data) / 2.0, [w, b])
        assert [v for _, v in found] == [w, b]
        (dw, _), (db, _) = found
        for g, v in found:
            assert type(g) is type(v.data)
            assert g.dtype == v.dtype
            assert tuple(g.shape) == v.shape
            assert library.place(g) == library.place(v.data)
        # small numbers: products and sums of them are exact in every library
        assert same_bits(library.get(dw), (START * [2.0, -1.0, 0.5]).astype("f4"))
        assert same_bits(library.get(db), ((START**2).sum(0) / 2).astype("f4"))
        assert same_bits(library.get(w.data), START.astype("f4")), "the variables are as before"


@library_rows
def test_a_variable_that_the_loss_does_not_read_has_none_and_stays(make):
    library = make()
    with library.session():
        w, b = pair(library)
        opt = RMSprop(0.1, momentum=0.9)
        opt.minimize(lambda: w.data * w.data * b.data, [w, b])
        before = library.get(b.data).copy()
        assert opt.compute_gradients(lambda: w * 2.0, [w, b])[1] == (None, b)
        with pytest.warns(UserWarning, match="no gradient for b"):
            opt.minimize(lambda: w * 2.0, [w, b])
        assert same_bits(library.get(b.data), before), "momentum does not move it"
        with pytest.raises(ValueError, match="a gradient for at least one variable"):
            opt.minimize(lambda: 1.0, [w, b])
        assert int(opt.iterations) == 2


@operator_rows
def test_a_tape_records_a_block_and_gives_the_same(make):
    library = make()
    with library.session():
        w, b = pair(library)
        with GradientTape() as tape:
            y = w * w
            loss = (y * b + y).sum()
        found = tape.gradient(loss, [w, b])
        again = tape.gradient(lambda: (w * w * b + w * w).sum(), [w, b])
        for x, y in zip(found, again, strict=True):
            assert np.array_equal(library.get(x), library.get(y))
        assert same_bits(library.get(found[1]), (START**2).sum(0).astype("f4"))
        assert same_bits(library.get(tape.gradient(loss, b)), library.get(found[1]))
        opt = RMSprop(0.1)
        assert opt.compute_gradients(loss, [w, b], tape)[0][1] is w
        assert int(opt.minimize(loss, [w, b], tape=tape)) == 1
        opt.apply_gradients(zip(found, [w, b], strict=True))
        unread = Variable(library.array(START))
        assert tape.gradient(loss, unread) is None


def test_functions_of_numpy_are_recorded_and_computed_again():
    w = Variable(START.copy(), name="w")
    with GradientTape() as tape:
        loss = np.sum(np.exp(w / 4.0) @ np.ones(3)) + np.square(w[0]).mean()
    terms = exactly(lambda x: mpmath.exp(x / 4) / 4), np.array([[2.0], [0.0]]) * START / 3
    found = tape.gradient(loss, w)
    # the complex exponential is two functions and a product, the mean a reciprocal and two
    # products; then a sum, and what is expected is rounded twice
    assert (np.abs(found - sum(terms)) <= gamma(5 + 1 + 2) * sum(map(np.abs, terms))).all()
    w.assign(START / 2)
    assert same_bits(tape.gradient(loss, w), found), "at the value that was recorded"


@pytest.mark.torch
def test_functions_of_torch_are_recorded():
    import torch

    w = Variable(torch.asarray(START.copy()))
    with GradientTape() as tape:
        loss = torch.sum(torch.exp(w) * 2.0)
    assert torch.equal(tape.gradient(loss, w), torch.exp(w.data) * 2)


@pytest.mark.torch
def test_a_torch_tensor_is_a_variable_itself():
    import torch

    leaf = torch.asarray(START, dtype=torch.float32, copy=True).requires_grad_()
    plain = torch.ones(3)
    opt = RMSprop(0.1)
    assert int(opt.minimize(lambda: (leaf * leaf * plain).sum(), [leaf, plain])) == 1
    assert leaf.requires_grad
    assert leaf.grad is None
    assert not plain.requires_grad
    assert (leaf.detach().abs() < torch.asarray(START.copy()).abs()).all()


@pytest.mark.torch
def test_a_way_cut_off_in_torch_gives_none():
    import torch

    w, b = Variable(torch.ones(2)), Variable(torch.ones(2))
    found = RMSprop().compute_gradients(lambda: w * b.data.detach(), [w, b])
    assert torch.equal(found[0][0], torch.ones(2))
    assert found[1][0] is None


@pytest.mark.parametrize("make", [row for row in LIBRARIES if row.id != "dask"])
def test_a_complex_variable_has_the_direction_of_steepest_ascent(make):
    library = make()
    with library.session():
        z = Variable(library.array(START + 1j, "complex64"))

        if library.name in ("torch", "jax", "jax-jit"):
            found = RMSprop().compute_gradients(lambda: (z * z.data.conj()).real, [z])
            assert same_bits(library.get(found[0][0]), (2 * (START + 1j)).astype("c8"))
        else:
            with pytest.raises(TypeError, match="a real variable is required for a complex step"):
                RMSprop().compute_gradients(lambda: abs(z.data) ** 2, [z])


# -- complex step ---------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_complex_step_is_exact_to_rounding(dtype):
    w = Variable(START.astype(dtype))
    ((g, _),) = RMSprop().compute_gradients(lambda: np.exp(w) * np.sin(w) + w**3 / 7, [w])
    terms = [
        exactly(lambda x: mpmath.exp(x) * mpmath.sin(x)),
        exactly(lambda x: mpmath.exp(x) * mpmath.cos(x)),
        exactly(lambda x: 3 * x**2 / 7),
    ]
    assert g.dtype == dtype
    # the complex exponential and sine are two functions and a product each; then a product and two
    # sums, and what is expected is rounded three times; the cube takes fewer
    size = sum(map(np.abs, terms))
    allowed = gamma(5 + 5 + 3 + 3) * size + (gamma(1, dtype) * size if dtype != "float64" else 0)
    assert (np.abs(g - sum(terms)) <= allowed).all()


def strict(x):
    return __import__("array_api_strict").asarray(x)


SMOOTH = [
    lambda w: 0.0 * w,
    lambda w: 1e6 + 0.0 * w,
    lambda w: 1e3 * (w - 1.0) ** 2,
    lambda w: 1e9 * w**2,
]
KINKS = {
    "abs": lambda xp, w: xp.abs(w),
    "real": lambda xp, w: xp.real(w) if "complex" in str(w.dtype) else w,
    "conj": lambda xp, w: xp.conj(w) if "complex" in str(w.dtype) else w,
    "norm": lambda xp, w: xp.sqrt(xp.sum(xp.abs(w) ** 2)),
    "sign": lambda xp, w: xp.sign(w) * w,
}


@pytest.mark.parametrize("make", [np.asarray, strict], ids=["numpy", "strict"])
@pytest.mark.parametrize("kink", KINKS)
@pytest.mark.parametrize("smooth", SMOOTH)
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_a_part_that_is_not_analytic_is_found_below_any_other(make, kink, smooth, size):
    w = Variable(make(START))
    xp = __import__("array_api_strict") if make is strict else np
    if make is strict and (smooth, size) == (SMOOTH[3], 1e-3):
        size = 1.0  # below the rounding of the loss there is nothing to find

    def loss():
        return xp.sum(smooth(w.data)) + xp.sum(KINKS[kink](xp, w.data) * size)

    opt = RMSprop()
    with pytest.raises(ValueError, match="loss: an analytic function is required"):
        opt.minimize(loss, [w])
    assert int(opt.iterations) == 0
    assert same_bits(np.asarray(w.numpy()), START)


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (lambda w: 1e12 + np.abs(w), "absolute"),
        (lambda w: 1e12 + abs(w.data[0, 0]), "absolute"),
        (lambda w: 1e12 + abs(np.sum(w * w)), "absolute"),
        (lambda w: 1e12 + np.linalg.norm(w.data), "norm"),
        (lambda w: 1e12 + w.data.conj() * w, "conjugate"),
        (lambda w: 1e12 + np.vdot(w.data, w.data), "vdot"),
        (lambda w: 1e12 + w.data.var(), "view"),
        (lambda w: 1e12 + np.linalg.svd(w.data)[1], "svd"),
        (lambda w: 1e12 + w.data.real, "real parts"),
        (lambda w: 1e12 + np.imag(w), "imaginary parts"),
        (lambda w: 1e12 + w.data.astype("f8"), "discards imaginary parts"),
        (lambda w: 1e12 + float(w.data[0, 0]), "made a float"),
    ],
)
def test_numpy_refuses_what_would_drop_an_imaginary_part(loss, what):
    w = variable()
    with pytest.raises(ValueError, match=f"an analytic function is required .* {what}"):
        RMSprop().compute_gradients(lambda: loss(w), [w])


def test_comparisons_are_those_of_the_real_parts():
    w = Variable(np.array([0.0, 1.0, -1.0]))
    for loss in (lambda: (w > 0) * w, lambda: np.where(w.data <= 0, 0.0, w.data)):
        assert same_bits(RMSprop().compute_gradients(loss, [w])[0][0], np.array([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("make", [np.asarray, strict], ids=["numpy", "strict"])
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda xp, w: xp.sum(xp.sqrt(w - 5.0)), "a finite value is required .* got nan"),
        (lambda xp, w: xp.sum(xp.log(w - 5.0)), "a finite value is required .* got nan"),
        (lambda xp, w: xp.sum(xp.sqrt(w - 1.5)), "a finite value is required .* got nan"),
        (lambda xp, w: xp.sum(xp.abs(w)) + np.inf, "a finite value is required .* got inf"),
        (lambda xp, w: xp.sum(w) * np.nan, "a finite value is required .* got nan"),
        (lambda xp, w: xp.sum(xp.sqrt(w - 1.0)), "not finite on both sides"),
        (
            lambda xp, w: xp.sum((w - 2.5) ** 101.0),
            "got one that is .* where the variables are real",
        ),
    ],
)
def test_a_loss_outside_its_domain_is_refused_and_no_step_is_taken(make, loss, message):
    w = Variable(make(np.array([1.0, 2.0])))
    xp = __import__("array_api_strict") if make is strict else np
    opt = RMSprop()
    with pytest.raises(ValueError, match=f"loss: .*{message}"):
        opt.minimize(lambda: loss(xp, w.data), [w])
    assert int(opt.iterations) == 0
    assert same_bits(np.asarray(w.numpy()), np.array([1.0, 2.0]))


def test_a_slope_that_is_not_finite_is_refused():
    w = Variable(np.array([1.0, -1.0]))
    with pytest.raises(ValueError, match=r"loss: finite slopes are required .* at array 0"):
        RMSprop().compute_gradients(lambda: 1 / (1 + np.exp(-1e3 * w)), [w])


@pytest.mark.parametrize(
    "loss",
    [
        lambda w: 1e8 + np.sum(w * w),
        lambda w: np.exp(30 * w / 4),
        lambda w: w * 1e-30,
        lambda w: np.sum(w * 0.0),
        lambda w: np.maximum(w.data, 0.0) ** 2,
        lambda w: np.where(w.data > 1.1, 5.0 + w.data, w.data),
        lambda w: np.sin(1e6 * w),
        lambda w: np.log(w * w + 1e-9),
        lambda w: (w + 1e8) - 1e8 + w**2,
    ],
)
def test_an_analytic_loss_is_not_refused(loss):
    w = variable()
    assert RMSprop().compute_gradients(lambda: loss(w), [w])[0][0].shape == w.shape


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e6])
def test_a_logistic_regression_has_its_gradient_whatever_the_scale_of_its_features(scale):
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 5)) * scale
    x *= np.where(x @ np.ones(5) > 0, 1.0, -1.0)[:, None]
    w = Variable(np.full(5, 1e-6))
    ((g, _),) = RMSprop().compute_gradients(lambda: np.log1p(np.exp(-(x @ w))), [w])
    terms = np.array(
        [[-y / (1 + mpmath.exp(mpmath.fdot(row, w.numpy()))) for y in row] for row in x], "f8"
    )
    # a sum of 64 terms: each of four functions, a product and a sum, rounded once where it is
    # expected, and of the rounding of its exponent, which is itself a sum of five
    exponents = gamma(5) * (np.abs(x) @ np.abs(w.numpy()))[:, None]
    allowed = ((gamma(64 + 10 + 1) + exponents) * np.abs(terms)).sum(0)
    assert (np.abs(g - [math.fsum(column) for column in terms.T]) <= allowed).all()


def test_a_step_that_is_off_by_a_thousandth_is_refused():
    w = variable()

    def loss():
        x = np.array(w.data)
        return x + 1e-3j * x.imag if np.iscomplexobj(x) else x

    with pytest.raises(ValueError, match=r"loss: an analytic function is required .* by the step"):
        RMSprop().compute_gradients(loss, [w])


@library_rows
def test_a_loss_that_returns_the_variable_has_a_gradient_of_ones(make):
    library = make()
    with library.session():
        w, _ = pair(library)
        ((g, _),) = RMSprop().compute_gradients(lambda: w, [w])
        assert same_bits(library.get(g), np.ones((2, 3), "f4"))


@library_rows
def test_a_variable_that_comes_twice_has_its_gradient_twice(make):
    library = make()
    with library.session():
        w, _ = pair(library)
        found = RMSprop().compute_gradients(lambda: w.data * w.data, [w, w])
        assert [same_bits(library.get(g), 2 * START.astype("f4")) for g, _ in found] == [True] * 2


@library_rows
@pytest.mark.parametrize("loss", [None, "loss", [1.0], (), {}])
def test_a_loss_is_an_array_or_a_number(make, loss):
    library = make()
    with library.session():
        w, _ = pair(library)
        kind = type(loss).__name__
        with pytest.raises(TypeError, match=f"loss: an array or a number is required, got {kind}"):
            RMSprop().compute_gradients(lambda: loss, [w])


@pytest.mark.torch
def test_variables_of_several_libraries_are_refused():
    import torch

    with pytest.raises(TypeError, match="arrays must come from one library; got numpy, torch"):
        RMSprop().compute_gradients(lambda: 1.0, [variable(), Variable(torch.ones(2))])


@pytest.mark.parametrize("method", ["torch", "jax", "autograd"])
def test_a_method_knows_the_arrays_of_its_library_only(method):
    w = Variable(strict(START))
    with pytest.raises(
        TypeError, match=f"method: .* required for '{method}', got array_api_strict"
    ):
        GradientTape(method).gradient(lambda: w.data, w)


def test_too_many_elements_are_refused_with_what_helps(monkeypatch):
    monkeypatch.setattr(ways, "find_spec", lambda name: None)
    w = Variable(np.zeros(ways.LIMIT + 1))
    with pytest.raises(ValueError, match=r"at most 10000 elements .* got 10001; install autograd"):
        RMSprop().compute_gradients(lambda: w * w, [w])


def test_autograd_differentiates_where_it_is_installed():
    numpy = pytest.importorskip("autograd.numpy", reason="autograd is not installed")
    w, b = Variable(START.copy()), Variable(np.zeros(ways.LIMIT))
    found = RMSprop().compute_gradients(lambda: numpy.sum(numpy.abs(w.data)), [w, b])
    assert same_bits(found[0][0], np.sign(START))
    assert found[1][0] is None
    small = GradientTape("autograd").gradient(lambda: numpy.abs(w.data), w)
    assert same_bits(small, np.sign(START))


# -- tapes of others ------------------------------------------------------------------------------
def test_any_tape_with_a_gradient_will_do():
    w = variable()
    calls = []

    class Tape:
        def __enter__(self):
            calls.append("open")

        def __exit__(self, *exception):
            calls.append("closed")

        def gradient(self, loss, variables):
            calls.append((loss, variables))
            return [np.ones((2, 3), "f4")]

    assert RMSprop().compute_gradients(lambda: "loss", [w], Tape())[0][1] is w
    assert calls == ["open", "closed", ("loss", [w])]
    found = RMSprop().compute_gradients("loss", [w], SimpleNamespace(gradient=Tape().gradient))
    assert (found[0][0] == 1).all()


@pytest.mark.parametrize("loss", [np.array(1.0), 2.0])
def test_a_loss_that_is_no_function_needs_a_tape(loss):
    w = variable()
    with pytest.raises(ValueError, match="tape: the tape that recorded the loss is required"):
        RMSprop().compute_gradients(loss, [w])
    with pytest.raises(ValueError, match="loss: a value that this tape recorded is required"):
        RMSprop().compute_gradients(loss, [w], GradientTape())


def test_a_tape_knows_only_what_it_recorded():
    w = variable()
    with GradientTape() as one:
        loss = w * w
    with GradientTape() as other:
        other_loss = w * 2.0
    with pytest.raises(ValueError, match="a value that this tape recorded"):
        other.gradient(loss, w)
    assert same_bits(other.gradient(other_loss, w), np.full((2, 3), 2, "f4"))
    assert isinstance(w * w, np.ndarray), "nothing is recorded outside"
    with one, pytest.raises(RuntimeError, match="one block at a time"), one:
        pass
    assert isinstance(w * w, np.ndarray)
    with pytest.raises(ValueError, match="method: one of torch, jax"):
        GradientTape("symbolic")


@operator_rows
def test_a_tape_differentiates_where_it_recorded_and_sums_over_all_reads(make):
    library = make()
    with library.session():
        w, b = pair(library)
        with GradientTape() as tape:
            y = w * w * b
            w.assign(library.array(np.full((2, 3), 10.0), "float32"))
            loss = (y + w * 3.0).sum()
        w.assign(library.array(np.zeros((2, 3)), "float32"))
        b.assign(library.array(np.zeros(3), "float32"))
        dw, db = tape.gradient(loss, [w, b])
        assert same_bits(library.get(dw), (2 * START * [2.0, -1.0, 0.5] + 3).astype("f4"))
        assert same_bits(library.get(db), (START**2).sum(0).astype("f4"))
        assert not library.get(w.data).any()


def test_a_loss_that_is_a_function_leaves_no_trace_on_an_open_tape():
    w = variable()
    with GradientTape() as tape:
        found = RMSprop().compute_gradients(lambda: np.sum(w * w), [w])
        loss = w * 3.0
    assert type(found[0][0]) is np.ndarray
    assert tape._nodes == [loss]


@pytest.mark.jax
def test_functions_of_jax_go_into_a_function():
    import jax.numpy as jnp

    w = Variable(jnp.asarray(START))
    with GradientTape() as tape, pytest.raises(TypeError, match="Recorded"):
        jnp.sum(w * w)
    found = tape.gradient(lambda: jnp.sum(jnp.square(w.data)), w)
    assert same_bits(np.asarray(found), 2 * START.astype("f4"))


@pytest.mark.parametrize("var_list", [None, START, [START], Variable(1.0)])
def test_variables_come_in_a_list(var_list):
    with pytest.raises(TypeError, match=r"var_list.* required, got"):
        RMSprop().compute_gradients(lambda: 1.0, var_list)


def test_an_error_in_the_loss_leaves_the_variables_alone():
    w, seen = variable(), []
    data = w.data

    def loss():
        if np.iscomplexobj(w.data):
            seen.append(w.data)
        else:
            return w * w
        message = "mine"
        raise ArithmeticError(message)

    with pytest.raises(ArithmeticError, match="mine"):
        RMSprop().minimize(loss, [w])
    assert w.data is data
    assert len(seen) == 1


def test_losses_see_plain_arrays_of_the_library():
    cupy = __import__("cupy_standin").install()
    w = Variable(cupy.asarray(START))
    seen = []

    def loss():
        seen.append(type(w * w))
        return w * w

    ((g, _),) = RMSprop().compute_gradients(loss, [w])
    assert set(seen) == {cupy.ndarray}
    assert type(g) is cupy.ndarray
    # the loss, and that it is real; an element each; a direction, and one difference of a quadratic
    assert len(seen) == 2 + START.size + 1 + 6
    assert "cupy" in sys.modules


def test_the_example_trains():
    w = variable()
    opt = RMSprop(0.05, momentum=0.5)
    losses = []
    for _ in range(60):
        opt.minimize(lambda: np.sum((w - 1.0) ** 2), [w])
        losses.append(float(np.sum((w.numpy() - 1) ** 2)))
    assert losses[-1] < losses[0] / 100
    assert refopt.Variable is refopt.Parameter
