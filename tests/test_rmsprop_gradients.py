"""Gradients of a loss: every library's own way, tapes, and what is refused."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from backends import LIBRARIES, same_bits

import refopt
from refopt import GradientTape, RMSprop, Variable
from refopt.interp import gradients as ways

START = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -0.25]])
library_rows = pytest.mark.parametrize("make", LIBRARIES)
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
    expected = np.exp(START / 4.0) / 4.0 + np.array([[2.0], [0.0]]) * START / 3
    found = tape.gradient(loss, w)
    # a sum of six terms, each computed to a few units in the last place
    assert np.abs(found - expected).max() <= 8 * np.spacing(np.abs(expected).max())
    w.assign(START / 2)
    moved = tape.gradient(loss, w)
    assert not same_bits(moved, found), "at the value that the variable has now"


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

        def loss():
            return (z * z.data.conj()).real if library.name == "torch" else abs(z.data) ** 2

        if library.name in ("torch", "jax", "jax-jit"):
            ((g, _),) = RMSprop().compute_gradients(loss, [z])
            error = np.abs(library.get(g) - 2 * (START + 1j))
            assert error.max() <= 8 * np.spacing(np.float32(8))
        else:
            with pytest.raises(TypeError, match="a real variable is required for a complex step"):
                RMSprop().compute_gradients(loss, [z])


# -- complex step ---------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_complex_step_is_exact_to_rounding(dtype):
    w = Variable(START.astype(dtype))
    ((g, _),) = RMSprop().compute_gradients(lambda: np.exp(w) * np.sin(w) + w**3 / 7, [w])
    x = w.numpy().astype("f8")
    expected = np.exp(x) * (np.sin(x) + np.cos(x)) + 3 * x**2 / 7
    assert g.dtype == dtype
    # one rounding to the dtype; in float64 those of the terms beside it
    allowed = np.spacing(np.abs(expected).astype(dtype)) * (4 if dtype == "float64" else 0.75)
    assert (np.abs(g - expected) <= allowed).all()


@pytest.mark.parametrize(
    "loss",
    [
        lambda w: np.abs(w),
        lambda w: abs(w.data),
        lambda w: np.linalg.norm(w.data),
        lambda w: np.real(w) ** 2,
        lambda w: w * np.conj(w.data),
        lambda w: 1e6 + np.abs(w),
        lambda w: np.sum(w.data.real * 1e-3),
    ],
)
def test_a_loss_that_is_not_analytic_is_refused(loss):
    w = variable()
    opt = RMSprop()
    with pytest.raises(ValueError, match="loss: an analytic function is required"):
        opt.minimize(lambda: loss(w), [w])
    assert int(opt.iterations) == 0
    assert same_bits(w.numpy(), START.astype("f4"))


@pytest.mark.parametrize(
    "loss",
    [
        lambda w: 1e8 + np.sum(w * w),
        lambda w: np.exp(30 * w / 4),
        lambda w: w * 1e-30,
        lambda w: np.sum(w * 0.0),
        lambda w: np.maximum(w.data, 0.0) ** 2,
        lambda w: np.sum(w.data) * np.nan,
    ],
)
def test_an_analytic_loss_is_not_refused(loss):
    w = variable()
    assert RMSprop().compute_gradients(lambda: loss(w), [w])[0][0].shape == w.shape


def test_a_wrong_gradient_would_be_refused(monkeypatch):
    array = ways._array
    monkeypatch.setattr(ways, "_array", lambda xp, slopes, like: array(xp, slopes, like) * 1.001)
    w = variable()
    with pytest.raises(ValueError, match="loss: an analytic function is required"):
        RMSprop().compute_gradients(lambda: w * w, [w])


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
    w = variable()
    data = w.data

    def loss():
        assert np.iscomplexobj(w.data)
        message = "mine"
        raise ArithmeticError(message)

    with pytest.raises(ArithmeticError, match="mine"):
        RMSprop().minimize(loss, [w])
    assert w.data is data


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
    assert len(seen) == START.size + 2, "one evaluation an element, and one difference"
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
