"""Ranges of matrices: everything that may be computed lies inside, and little else."""

import itertools
import re
from pathlib import Path

import flint
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt.interp.balls import precision
from refopt.interp.bands import Band, Bands, U
from refopt.interp.formats import FORMATS

SPACE = Bands()
DTYPES = ("float32", "float64")


def matrix(rng, rows, columns, dtype):
    return rng.normal(size=(rows, columns)).astype(dtype)


def definite(rng, n, dtype, damping=0.1):
    x = rng.normal(size=(2 * n, n))
    return np.asarray(x.T @ x / (2 * n) + damping * np.eye(n), dtype)


def inside(band, values):
    return bool(np.all((band.low <= values) & (values <= band.high)))


def widest(n, size, dtype):
    """Both sides of what ENV-19 adds to a sum of n terms, and of what float64 is off (ENV-18)."""
    f = FORMATS[dtype]
    return 2 * n * SPACE.k * (f.unit * size + 2.0**f.spacing) + 2 * 5 * (n + 2) * U * size


def one_norm(x):
    return np.abs(x).sum(axis=0).max()


def exactly(x):
    """A matrix of balls without radius."""
    return flint.arb_mat([[flint.arb(float(v)) for v in row] for row in x])


def holds_ball(band, ball):
    """Whether every element of a matrix of balls lies inside."""
    rows, columns = band.shape
    return all(
        band.low[i, j] <= ball[i, j] and ball[i, j] <= band.high[i, j]
        for i, j in itertools.product(range(rows), range(columns))
    )


ELEMENTWISE = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - y,
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x / y,
    "scaled": lambda x, y: 0.3 * x,
    "reciprocal": lambda x, y: 1.0 / y,
    "nested": lambda x, y: (x * y + 0.1 * x) / (y * y + 0.7),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
@given(seed=st.integers(0, 10**6))
def test_what_numpy_computes_lies_inside(name, dtype, seed):
    rng = np.random.default_rng(seed)
    x, y = (matrix(rng, 3, 4, dtype) * np.asarray(10.0 ** rng.integers(-3, 4), dtype) for _ in "xy")
    y[y == 0] = 1
    band = ELEMENTWISE[name](SPACE.array(x, dtype), SPACE.array(y, dtype))
    assert inside(band, ELEMENTWISE[name](x, y))
    assert np.all(np.isfinite(band.low))


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
def test_a_product_of_matrices_holds_the_exact_one_and_the_computed_one(dtype, seed, n):
    rng = np.random.default_rng(seed)
    x, y = matrix(rng, 3, n, dtype), matrix(rng, n, 2, dtype)
    band = SPACE.matmul(SPACE.array(x, dtype), SPACE.array(y, dtype))
    assert inside(band, x @ y)
    with precision():
        assert holds_ball(band, exactly(x) * exactly(y))
    size = np.abs(x).astype(float) @ np.abs(y).astype(float)
    assert np.all(band.high - band.low <= widest(n, size, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
def test_an_inverse_holds_the_exact_one_and_the_computed_one(dtype, seed, n):
    x = definite(np.random.default_rng(seed), n, dtype)
    x = (x + x.T) / 2
    band = SPACE.spd_inverse(SPACE.array(x, dtype))
    assert inside(band, np.linalg.inv(x))
    with precision():
        assert holds_ball(band, exactly(x).inv())
    # X (A X − I) for the residual of ENV-20, and for those of the inverse in float64 and its bound
    x = x.astype(float)
    inverse = np.linalg.inv(x)
    residual = (8 * n * FORMATS[dtype].unit + 2 * 8 * (n + 2) * U) * one_norm(x) * one_norm(inverse)
    assert np.max(band.high - band.low) <= 2 * residual * np.abs(inverse).max()
    assert not inside(band, 0 * x)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 6))
def test_an_inverse_holds_that_of_every_symmetric_matrix_in_the_range(seed, n):
    rng = np.random.default_rng(seed)
    x = definite(rng, n, "float64")
    x = (x + x.T) / 2
    radius = 1e-4 * np.abs(rng.normal(size=(n, n)))
    radius = (radius + radius.T) / 2
    band = SPACE.spd_inverse(Band(x - radius, x + radius, "float64", SPACE))
    sign = np.sign(rng.normal(size=(n, n)))
    sign = np.tril(sign) + np.tril(sign, -1).T
    with precision():
        assert holds_ball(band, exactly(x + sign * radius).inv())


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
def test_an_inverse_cholesky_factor_holds_the_exact_one_and_the_computed_one(dtype, seed, n):
    x = definite(np.random.default_rng(seed), n, dtype)
    x = (x + x.T) / 2
    band = SPACE.inverse_cholesky(SPACE.array(x, dtype))
    assert inside(band, np.tril(np.linalg.inv(np.linalg.cholesky(x))))
    with precision():
        inverse = exact_factor(x).inv()
        for i, j in zip(*np.triu_indices(n, 1), strict=True):
            inverse[i, j] = 0
        assert holds_ball(band, inverse)
    assert not inside(band, np.eye(n) + band.high)


def exact_factor(x):
    """L of x = L Lᵀ in balls, row by row."""
    n = len(x)
    lower = [[flint.arb(0)] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            rest = flint.arb(float(x[i, j])) - sum(
                (lower[i][k] * lower[j][k] for k in range(j)), flint.arb(0)
            )
            lower[i][j] = rest.sqrt() if i == j else rest / lower[j][j]
    return flint.arb_mat(lower)


@pytest.mark.parametrize("operation", ["spd_inverse", "inverse_cholesky"])
def test_what_may_not_be_positive_definite_has_no_bounds(operation):
    good, bad = np.eye(3), np.diag([1.0, -1.0, 1.0])
    near = Band(np.diag([1, -0.1, 1.0]), np.diag([1, 0.3, 1.0]), "float64", SPACE)
    both = getattr(SPACE, operation)(SPACE.array(np.stack([good, bad]), "float32"))
    assert np.all(np.isfinite(both.low[0]))
    assert not np.any(np.isfinite(both.low[1]).diagonal())
    assert not np.any(np.isfinite(getattr(SPACE, operation)(near).low).diagonal())


@pytest.mark.parametrize("answer", [np.nan, 0.0, 12.5, np.inf])
def test_an_answer_that_is_no_number_zero_or_made_up_lies_outside(answer):
    rng = np.random.default_rng(1)
    x = definite(rng, 4, "float32")
    for band in (
        SPACE.spd_inverse(SPACE.array(x, "float32")),
        SPACE.matmul(SPACE.array(x, "float32"), SPACE.array(x, "float32")),
        SPACE.array(x, "float32") * 0.5,
    ):
        assert not np.any(band.holds(answer))


def test_what_may_be_infinite_has_no_bounds_and_zero_stays_exact():
    huge = SPACE.array([3e38, 1.0, 0.0], "float32")
    assert list(np.isfinite((huge * huge).low)) == [False, True, True]
    assert list(np.isfinite((1.0 / huge).low)) == [True, True, False]
    assert (huge * 0.0).high[2] == (huge - huge).high[1] == 0
    assert ((huge * 0.0) + huge).high[1] == 1.0


def test_blocks_are_those_of_the_diagonal_filled_with_ones():
    x = np.arange(25.0).reshape(5, 5)
    blocks = SPACE.diagonal_blocks(SPACE.array(x, "float64"), 3)
    assert blocks.low[0].tolist() == x[:3, :3].tolist()
    assert blocks.low[1].tolist() == [[18, 19, 0], [23, 24, 0], [0, 0, 1]]


def test_clauses_of_the_envelope_are_numbered_and_those_that_code_cites_exist():
    root = Path(__file__).parent.parent
    text = (root / "spec" / "envelope.md").read_text(encoding="utf-8")
    stated = [int(n) for n in re.findall(r"^- \*\*ENV-(\d+)", text, re.MULTILINE)]
    assert sorted(stated) == [*range(1, 21)]
    cited = {
        int(n)
        for path in (root / "refopt").rglob("*.py")
        for n in re.findall(r"ENV-(\d+)", path.read_text(encoding="utf-8"))
    }
    assert cited <= {*stated}
    assert {18, 19, 20} & cited


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_in_any_order_lies_inside(dtype):
    rng = np.random.default_rng(3)
    x = (rng.normal(size=40) * 10.0 ** rng.integers(-6, 6, 40)).astype(dtype)
    band = SPACE.sum(SPACE.array(x, dtype))
    for _ in range(50):
        rng.shuffle(x)
        total = x[0]
        for term in x[1:]:
            total = total + term
        assert inside(band, total)
    assert band.high - band.low <= widest(40, np.abs(x).astype(float).sum(), dtype)


def test_an_inverse_that_was_asked_for_before_is_the_same_and_a_changed_matrix_is_another():
    space, x = Bands(), np.diag([1.0, 2.0])
    first = space.spd_inverse(space.array(x, "float32"))
    assert space.spd_inverse(space.array(x, "float32")) is first
    others = [
        space.spd_inverse(space.array(x, "float64")),
        space.spd_inverse(space.array(x + np.eye(2), "float32")),
        space.spd_inverse(Band(x, x + np.eye(2), "float32", space)),
        space.inverse_cholesky(space.array(x, "float32")),
    ]
    assert len({(b.low.tobytes(), b.high.tobytes()) for b in [first, *others]}) == 5
