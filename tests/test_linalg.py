"""Inverses of positive definite matrices: one bound on every library, and NaN where there is none.

The judge is the residual in balls, so no other inverse is trusted.
"""

import warnings
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import array_api_compat.numpy as numpy_xp
import dask.array as da
import numpy as np
import pytest
from array_api_compat import array_namespace
from backends import LIBRARIES, REAL, numpy_dtype, same_bits
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.linalg import lapack

from refopt.interp import blocks, fused, linalg
from refopt.interp.balls import one_norm, precision, residual
from refopt.interp.formats import FORMATS
from refopt.interp.linalg import inverse_cholesky, spd_inverse

KINDS = ("spectrum", "one small", "one large", "smooth", "covariance")


def definite(kind, n, condition, seed=0):
    """A positive definite matrix of about this condition number, in float64."""
    rng = np.random.default_rng([seed, n])
    if kind == "smooth":  # leading blocks are as ill-conditioned as the whole
        x = np.linspace(0, 1, n)
        kernel = np.exp(-8 * (x[:, None] - x) ** 2)
        return kernel + np.eye(n) * n / condition
    if kind == "covariance":
        x = rng.normal(size=(2 * n, n))
        return x.T @ x / (2 * n) + np.eye(n) / condition
    q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    values = {
        "spectrum": np.geomspace(1, 1 / condition, n),
        "one small": np.where(np.arange(n) == n - 1, 1 / condition, 1.0),
        "one large": np.where(np.arange(n) == 0, 1.0, 1 / condition),
    }[kind]
    return (q * values) @ q.T


def symmetric(a, dtype):
    return ((a + a.T) / 2).astype(dtype)


def keeps_bound(a, x, unit):
    """‖A X − I‖₁ ≤ 8 n u ‖A‖₁ ‖X‖₁, proven."""
    with precision():
        return residual(a, x) <= 8 * len(a) * unit * one_norm(a) * one_norm(x)


def applied(library, function, host, dtype):
    """`function` of `host` in a dtype of the library, and back."""
    with library.session():
        a = library.array(host, dtype)
        xp = array_namespace(a)
        run = function
        if library.jitted:
            import jax

            run = jax.jit(function, static_argnums=0)
        result = run(xp, a)
        assert result.dtype == a.dtype
        assert array_namespace(result) is xp
        if hasattr(a, "device"):
            assert library.name == "dask" or result.device == a.device
        return library.get(result)


@contextmanager
def engine(name):
    """NumPy with numba, or alone."""
    if name == "numba":
        pytest.importorskip("numba", reason="refopt[fast]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "engine", lambda: name)
        yield


def _compiled():
    return LIBRARIES[0].values[0]()._replace(name="numba", session=partial(engine, "numba"))


@pytest.fixture(params=[*LIBRARIES, _compiled])
def library(request):
    return request.param()


@pytest.fixture(params=["tape", "numba"])
def engines(request):
    with engine(request.param):
        yield


# -- on every library ------------------------------------------------------------------------------
STACK = np.asarray([symmetric(definite(kind, 40, 1e4), "float32") for kind in KINDS])[None]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that 40 columns are two of them on every library, and panels of some."""
    monkeypatch.setattr(linalg, "_few", lambda xp: 32)
    monkeypatch.setattr(linalg, "PANEL", 3)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", REAL)
def test_one_bound_holds_on_every_library(library, dtype):
    xs = applied(library, spd_inverse, STACK, dtype)
    assert xs.shape == STACK.shape
    for a, x in zip(STACK[0], xs[0], strict=True):
        assert np.array_equal(x, x.T)
        assert keeps_bound(a, x, FORMATS[dtype].unit)


@pytest.mark.usefixtures("small_blocks")
def test_the_inverse_of_the_factor_is_triangular_and_keeps_its_bound(library):
    ws = applied(library, inverse_cholesky, STACK, "float32").astype("float64")
    for a, w in zip(STACK[0].astype("float64"), ws[0], strict=True):
        assert np.array_equal(w, np.tril(w))
        assert (np.diagonal(w) > 0).all()
        unlike = np.linalg.norm(w @ a @ w.T - np.eye(len(a)))
        allowed = 8 * len(a) * FORMATS["float32"].unit * np.linalg.norm(a) * np.linalg.norm(w) ** 2
        assert unlike <= allowed


def corner(a, value):
    a = a.copy()
    a[-1, 0] = a[0, -1] = value
    return a


BAD = {
    "indefinite": lambda a: a - 2 * np.linalg.eigvalsh(a)[0] * np.eye(len(a)),
    "negative": lambda a: -a,
    "zero": np.zeros_like,
    "singular": lambda a: corner(np.eye(len(a), dtype=a.dtype), 1.0),
    "barely indefinite": lambda a: corner(np.eye(len(a)), 1.0) - np.diag([*[0.0] * 5, 2.0**-24]),
    "all NaN": lambda a: a * np.nan,
    "one NaN": lambda a: corner(a, np.nan),
    "infinite": lambda a: corner(a, np.inf),
    "infinite first": lambda a: a + np.diag([np.inf, *np.zeros(len(a) - 1)]),
    "infinite last": lambda a: a + np.diag([*np.zeros(len(a) - 1), np.inf]),
}


def test_what_is_not_definite_is_nan_in_its_own_block(library):
    good = symmetric(definite("spectrum", 6, 100.0), "float32")
    with np.errstate(all="ignore"):
        stack = np.asarray([m for bad in BAD.values() for m in (good, bad(good))])
    xs = applied(library, spd_inverse, stack, "float32")
    ws = applied(library, inverse_cholesky, stack, "float32")
    for n, name in enumerate(BAD):
        assert np.isnan(xs[2 * n + 1]).all(), name
        assert np.isnan(ws[2 * n + 1][-1]).all(), name
        assert keeps_bound(good, xs[2 * n], FORMATS["float32"].unit), name
        assert np.isfinite(ws[2 * n]).all(), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("function", [spd_inverse, inverse_cholesky])
def test_sixteen_bits_are_computed_in_float32_and_rounded_once(library, function, dtype):
    if dtype not in library.dtypes:
        pytest.skip(f"{library.name} has no {dtype}")
    host = symmetric(definite("spectrum", 9, 10.0), "float64").astype(numpy_dtype(dtype))
    x = applied(library, function, host, dtype)
    wide = applied(library, function, host.astype("float32"), "float32")
    assert same_bits(x, wide.astype(x.dtype))


# -- whatever the matrix ---------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 160),
    st.floats(0, 12),
    st.sampled_from(REAL),
    st.integers(0, 9),
    st.sampled_from(["tape", "numba"]),
)
@example("smooth", 160, 12.0, "float64", 0, "tape")  # where a product with an inverse is not enough
@example("smooth", 160, 12.0, "float64", 0, "numba")
@example("smooth", 129, 5.0, "float32", 0, "tape")
@example("smooth", 129, 5.0, "float32", 0, "numba")
@example("one large", 129, 6.0, "float32", 0, "tape")
@example("one large", 129, 6.0, "float32", 0, "numba")
def test_the_bound_holds_for_any_spectrum_and_size(kind, n, digits, dtype, seed, by):
    unit = FORMATS[dtype].unit
    a = symmetric(definite(kind, n, 10.0**digits, seed), dtype)
    with engine(by):
        x = spd_inverse(numpy_xp, a)
    if np.isnan(x).any():
        assert np.isnan(x).all()
        assert 8 * n * unit * np.linalg.cond(a.astype("float64")) > 1
        return
    assert np.array_equal(x, x.T)
    assert keeps_bound(a, x, unit)


@pytest.mark.usefixtures("engines")
def test_an_asymmetric_matrix_counts_as_the_mean_of_both_triangles():
    a = symmetric(definite("spectrum", 150, 100.0), "float64")
    skew = np.random.default_rng(0).integers(-2, 3, a.shape) * 2.0**-20
    a = np.round(a * 2.0**20) * 2.0**-20  # so that the sums are exact
    assert same_bits(spd_inverse(numpy_xp, a + skew - skew.T), spd_inverse(numpy_xp, a))


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 5, 5)])
def test_nothing_has_an_inverse_of_its_shape(shape):
    assert spd_inverse(numpy_xp, np.zeros(shape)).shape == shape


@pytest.mark.usefixtures("engines")
def test_blocks_are_inverted_as_each_alone():
    stack = np.asarray([symmetric(definite(kind, 128, 100.0), "float64") for kind in KINDS])
    alone = [spd_inverse(numpy_xp, a) for a in stack]
    assert same_bits(spd_inverse(numpy_xp, stack), np.asarray(alone))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 65, 128, 257, blocks.LARGEST])
def test_numba_inverts_whatever_is_between_two_matrices_that_have_no_inverse(n):
    a = symmetric(definite("covariance", n, 100.0), "float32")
    stack = np.asarray([-a, a, a * np.nan, a * 4])
    with engine("numba"):
        assert blocks.takes(stack)
        x = spd_inverse(numpy_xp, stack)
        w = inverse_cholesky(numpy_xp, stack)
    assert np.isnan(x[::2]).all()
    assert np.isnan(w[::2]).all()
    assert keeps_bound(a, x[1], FORMATS["float32"].unit)
    assert same_bits(x[3], x[1] / np.float32(4))
    assert same_bits(w[3], w[1] / np.float32(2))


@pytest.mark.parametrize(
    "form",
    [
        lambda a: a.astype(a.dtype.newbyteorder()),
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: np.frombuffer(b"\0" + a.tobytes(), "u1")[1:].view(a.dtype).reshape(a.shape),
        lambda a: np.broadcast_to(a[0], a.shape),
    ],
    ids=["other byte order", "Fortran", "gaps", "unaligned, read-only", "one for all"],
)
def test_numba_takes_any_layout_and_leaves_it_as_it_was(form):
    a = np.asarray([symmetric(definite("covariance", 40, 100.0), "float64")] * 2)
    given_, before = form(a), form(a).copy()
    with engine("numba"):
        assert same_bits(spd_inverse(numpy_xp, given_), spd_inverse(numpy_xp, a))
    assert np.array_equal(given_, before)


def test_numba_reads_nothing_beside_matrices_that_are_not_square():
    with engine("numba"), pytest.raises(ValueError, match=r"dimension|broadcast"):
        spd_inverse(numpy_xp, np.ones((5, 3)))


# -- manners of libraries --------------------------------------------------------------------------


def library_with(matmul=np.matmul, cholesky=np.linalg.cholesky):
    """NumPy with another product or decomposition."""
    xp = ModuleType("other")
    vars(xp).update(vars(numpy_xp), linalg=ModuleType("other.linalg"), matmul=matmul)
    vars(xp.linalg).update(vars(numpy_xp.linalg), cholesky=cholesky)
    return xp


def abandoned(a):
    """What is in memory where the decomposition stops at a pivot, and nobody says so."""
    lower = np.tril(a)
    for matrix in lower.reshape(-1, *a.shape[-2:]):
        for k in range(len(matrix)):
            pivot = matrix[k, k] - matrix[k, :k] @ matrix[k, :k]
            matrix[k, k] = pivot
            if not pivot > 0:
                break
            matrix[k, k] = np.sqrt(pivot)
            below = matrix[k + 1 :, :k] @ matrix[k, :k]
            matrix[k + 1 :, k] = (matrix[k + 1 :, k] - below) / matrix[k, k]
    return lower


def test_a_factor_is_not_believed_because_nobody_raised():
    good = symmetric(definite("spectrum", 6, 100.0), "float32")
    xp = library_with(cholesky=abandoned)
    for name, bad in BAD.items():
        with np.errstate(all="ignore"):
            stack = np.asarray([good, bad(good)], "float32")
        x = spd_inverse(xp, stack)
        assert keeps_bound(good, x[0], FORMATS["float32"].unit), name
        assert np.isnan(x[1]).all(), name


def test_an_upper_factor_is_not_taken_for_a_lower_one():
    xp = library_with(cholesky=lambda a: np.linalg.cholesky(a, upper=True))
    a = symmetric(definite("spectrum", 6, 100.0), "float64")
    assert np.isnan(spd_inverse(xp, a)).all()


@pytest.mark.torch
def test_torch_compiles_one_graph_that_raises_for_no_matrix():
    import torch

    good = symmetric(definite("spectrum", 6, 100.0), "float32")
    stack = torch.asarray(np.asarray([good, -good]))
    run = torch.compile(
        partial(spd_inverse, array_namespace(stack)), fullgraph=True, backend="eager"
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru")
        x = run(stack).numpy()
    assert keeps_bound(good, x[0], FORMATS["float32"].unit)
    assert np.isnan(x[1]).all()


def test_the_inverse_is_symmetric_though_products_are_not():
    def matmul(a, b):
        c = np.matmul(a, b)
        return c + np.triu(c) * 2.0**-52

    xp = library_with(matmul=matmul)
    a = symmetric(definite("covariance", 80, 100.0), "float64")
    x = spd_inverse(xp, a)
    assert np.array_equal(x, x.T)
    assert keeps_bound(a, x, FORMATS["float64"].unit)


@pytest.mark.usefixtures("engines")
def test_a_matrix_in_chunks_is_inverted_as_a_whole():
    a = symmetric(definite("covariance", 30, 100.0), "float64")
    chunks = da.from_array(a, chunks=(7, 11))
    x = spd_inverse(array_namespace(chunks), chunks).compute(scheduler="synchronous")
    assert same_bits(x, spd_inverse(numpy_xp, a))


# -- beside LAPACK ---------------------------------------------------------------------------------


def by_lapack(a):
    """potrf, potri, and the triangle it leaves out."""
    prefix = {"float32": "s", "float64": "d"}[a.dtype.name]
    factor, info = getattr(lapack, prefix + "potrf")(a, lower=1)
    assert info == 0
    x, info = getattr(lapack, prefix + "potri")(factor, lower=1)
    assert info == 0
    return np.tril(x) + np.tril(x, -1).T


def columns_of_inverse(a, columns):
    """Columns of A⁻¹ to more than float64: one step of Newton's iteration in long double."""
    a, start = a.astype(np.longdouble), np.linalg.inv(a.astype("float64"))
    x = start[:, columns].astype(np.longdouble)
    rest = np.eye(len(a), dtype=np.longdouble)[:, columns] - a @ x
    return x + start @ rest.astype("float64")


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("kind", ["spectrum", "smooth", "one large", "one small"])
def test_the_error_is_within_three_times_that_of_lapack(kind, dtype):
    errors = []
    for seed in range(8):
        a = symmetric(definite(kind, 72, 1e6, seed), dtype)
        true = columns_of_inverse(a, slice(None))
        found = by_lapack(a), spd_inverse(numpy_xp, a)
        errors.append([np.linalg.norm((x - true).astype("float64")) for x in found])
    theirs, ours = np.sqrt(np.mean(np.square(errors), axis=0))
    assert ours <= 3 * theirs
