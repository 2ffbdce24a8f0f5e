"""The true value of a rule, with a proven error radius: ball arithmetic of python-flint.

Arrays are NumPy object arrays of `flint.arb`, numbers are `flint.arb`. A rounding that a profile
states (`num.float32`) is performed; nothing else is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import flint
import numpy as np

from refopt.interp.formats import FORMATS, Format, nearest

PRECISION = 256  # bits


@contextmanager
def precision(bits: int = PRECISION) -> Iterator[None]:
    """Work at this many bits, and restore what was set before."""
    before = flint.ctx.prec
    flint.ctx.prec = bits
    try:
        yield
    finally:
        flint.ctx.prec = before


def rounded(x: Any, f: Format) -> Any:
    """A ball rounded to a format: one number where both ends round alike, else their hull."""
    low, high = (end_rounded(end, f) for end in (x.lower(), x.upper()))
    return low if low == high else low.union(high)


def end_rounded(x: Any, f: Format) -> Any:
    """An exact `arb` rounded to nearest, ties to even; infinite where that overflows."""
    if not x.is_finite():
        return x
    mantissa, exponent = (int(part) for part in x.mid().man_exp())
    result = nearest(mantissa, exponent, f)
    if result is None:
        return flint.arb.pos_inf() if mantissa > 0 else flint.arb.neg_inf()
    return flint.arb(flint.fmpz(result[0])) * flint.arb(2) ** result[1]


class Balls:
    """A number system (`refopt.typing.Numbers`) of real balls."""

    def __init__(self, native: str = "float64") -> None:
        self._native = FORMATS[native]

    def __call__(self, x: Any) -> Any:
        return x if isinstance(x, flint.arb) else flint.arb(x)

    def float64(self, x: Any) -> Any:
        return self(x)

    def float32(self, x: Any) -> Any:
        return rounded(self(x), FORMATS["float32"])

    def native(self, x: Any) -> Any:
        return rounded(self(x), self._native)

    def floor(self, x: Any) -> Any:
        """The largest integer not above."""
        return self(x).floor()

    def ceil(self, x: Any) -> Any:
        """The smallest integer not below."""
        return self(x).ceil()

    @property
    def pi(self) -> Any:
        """π, itself."""
        return flint.arb.pi()

    def cos(self, x: Any) -> Any:
        """The cosine of an angle in radians."""
        return self(x).cos()

    def log(self, x: Any) -> Any:
        """The natural logarithm."""
        return self(x).log()

    def carrying(self, x: Any, dtype: str) -> Any:
        """`x` rounded to `dtype`, performed."""
        return rounded(self(x), FORMATS[dtype])

    def of(self, param: Any) -> Balls:
        return self


class Space:
    """The namespace (`refopt.typing.Namespace`) of object arrays of balls."""

    numbers = Balls()

    def array(self, values: list[float], dtype: str) -> Any:
        """Exact balls, shape (n,); the dtype says nothing, since nothing is rounded."""
        return array(values)

    def cast(self, x: Any, dtype: str, *, stored: str | None = None) -> Any:
        """`x`, after one rounding to the dtype `stored`, performed."""
        if stored is None:
            return x
        return array([rounded(e, FORMATS[stored]) for e in x])

    def sqrt(self, x: Any) -> Any:
        return np.array([_root(e) for e in x.ravel()], dtype=object).reshape(x.shape)

    def float32(self, x: Any) -> Any:
        f = FORMATS["float32"]
        return np.array([rounded(e, f) for e in x.ravel()], dtype=object).reshape(x.shape)

    def zeros_like(self, x: Any) -> Any:
        return array(np.zeros(x.shape).ravel().tolist()).reshape(x.shape)

    def sum(self, x: Any) -> Any:
        """The sum of all elements, shape (1,)."""
        return array([sum(x, flint.arb(0))])

    def scatter_add(self, base: Any, indices: tuple[int, ...], values: Any) -> Any:
        """`base`, with rows added to those of its first axis at `indices`, which may repeat."""
        result, width = base.copy(), len(values) // max(len(indices), 1)
        for n, i in enumerate(indices):
            result[i * width : (i + 1) * width] += values[n * width : (n + 1) * width]
        return result

    def take(self, x: Any, indices: tuple[int, ...], size: int) -> Any:
        """The rows of `x` at `indices`, which may repeat; `size` is the number of rows."""
        width = len(x) // max(size, 1)
        return array([e for i in indices for e in x[i * width : (i + 1) * width]])

    def rows(self, new: Any, old: Any, indices: tuple[int, ...], size: int) -> Any:
        """`new` in the rows at `indices`, `old` elsewhere; `size` is the number of rows."""
        result, width = old.copy(), len(old) // max(size, 1)
        for i in set(indices):
            result[i * width : (i + 1) * width] = new[i * width : (i + 1) * width]
        return result

    def maximum(self, x: Any, y: Any) -> Any:
        """The larger of each pair."""
        pairs = np.broadcast_arrays(x, np.asarray(y, dtype=object))
        return array([flint.arb(a).max(flint.arb(b)) for a, b in zip(*pairs, strict=True)])

    def minimum(self, x: Any, y: Any) -> Any:
        """The smaller of each pair."""
        return -self.maximum(-x, -y)

    def lerp_from_end(self, start: Any, end: Any, weight: Any) -> Any:
        """The same: nothing is rounded."""
        return self.lerp(start, end, weight)

    def lerp(self, start: Any, end: Any, weight: Any) -> Any:
        return (1 - weight) * start + weight * end


def _root(x: Any) -> Any:
    """The square root: of what a ball holds that is not negative, where its radius reaches below 0.

    A sum of squares that cancels to 0 is such a ball. NaN where everything is negative.
    """
    if x.upper() >= 0 and not x.lower() >= 0:
        return flint.arb(0).union(x.upper().sqrt())
    return x.sqrt()


def array(values: list[Any]) -> Any:
    """Exact balls from Python floats (or balls), shape (n,)."""
    result = np.empty(len(values), dtype=object)
    result[:] = [flint.arb(x) for x in values]
    return result


class MatrixSpace(Space):
    """The namespace (`refopt.typing.Matrices`) of object arrays of balls, of any shape."""

    def array(self, values: Any, dtype: str) -> Any:
        """Exact balls, shaped like the values."""
        return array(np.ravel(values).tolist()).reshape(np.shape(values))

    def sum(self, x: Any) -> Any:
        """The sum of all elements, shape ()."""
        return _scalar(sum(x.ravel(), flint.arb(0)))

    def sqrt(self, x: Any) -> Any:
        return super().sqrt(np.asarray(x, dtype=object))  # NumPy unwraps a result of shape ()

    def maximum(self, x: Any, y: Any) -> Any:
        """The larger of each pair."""
        x, y = np.broadcast_arrays(*(np.asarray(z, dtype=object) for z in (x, y)))
        return super().maximum(x.ravel(), y.ravel()).reshape(x.shape)

    def float16(self, x: Any) -> Any:
        f = FORMATS["float16"]
        return np.array([rounded(e, f) for e in x.ravel()], dtype=object).reshape(x.shape)

    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape)

    def length(self, x: Any) -> int:
        return len(x)

    def reshape(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.reshape(shape)

    def permute(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.transpose(axes)

    def transpose(self, x: Any) -> Any:
        return np.swapaxes(x, -1, -2)

    def cut(self, x: Any, slices: tuple[slice, ...]) -> Any:
        return x[slices]

    def pad(self, x: Any, widths: Any) -> Any:
        zero: Any = flint.arb(0)
        return np.pad(x, widths, constant_values=zero)

    def stack(self, parts: Any, axis: int) -> Any:
        return np.stack(parts, axis)

    def mean(self, x: Any, axis: int) -> Any:
        return np.sum(x, axis=axis) / x.shape[axis]

    def trace(self, x: Any) -> Any:
        return self.sum(np.diagonal(x))

    def max_abs(self, x: Any) -> Any:
        """The largest absolute value, shape ()."""
        return _scalar(max_of([abs(e) for e in x.ravel()]))

    def counts(self, ids: Any, size: int, like: Any) -> Any:
        return self.array(np.bincount(np.ravel(ids), minlength=size), "")

    def eye(self, n: int, like: Any) -> Any:
        return self.array(np.eye(n), "")

    def diagonal_blocks(self, x: Any, size: int) -> Any:
        count, n = -(-len(x) // size), len(x)
        whole = self.eye(count * size, x)
        whole[:n, :n] = x
        tiles = whole.reshape(count, size, count, size)
        return tiles[np.arange(count), :, np.arange(count), :]

    def matmul(self, x: Any, y: Any) -> Any:
        return np.matmul(x, y)

    def spd_inverse(self, x: Any) -> Any:
        """The inverses, each proven to exist; ZeroDivisionError where that is not."""
        return self._each(lambda matrix: matrix.inv(), x)

    def inverse_cholesky(self, x: Any) -> Any:
        """L⁻¹ of x = L Lᵀ; NaN where a matrix may not be positive definite."""
        return self._each(lambda matrix: _factor(matrix).inv(), x)

    @staticmethod
    def _each(function: Any, x: Any) -> Any:
        n = x.shape[-1]
        results = [function(flint.arb_mat(matrix.tolist())) for matrix in x.reshape(-1, n, n)]
        return np.array([r.entries() for r in results], dtype=object).reshape(x.shape)


def residual(a: Any, x: Any) -> Any:
    """No less than ‖A X − I‖₁, for matrices (n, n) of exact numbers or balls."""
    product = flint.arb_mat(a.tolist()) * flint.arb_mat(x.tolist())
    return one_norm(np.array(product.entries(), dtype=object).reshape(a.shape) - np.eye(len(a)))


def one_norm(x: Any) -> Any:
    """No less than ‖X‖₁, the largest sum of the absolute values of a column."""
    return max_of([sum(map(abs, map(flint.arb, column))) for column in x.T.tolist()]).upper()


def _scalar(x: Any) -> Any:
    result = np.empty((), dtype=object)
    result[()] = x
    return result


def max_of(values: list[Any]) -> Any:
    """The largest of some balls."""
    result = values[0]
    for value in values[1:]:
        result = result.max(value)
    return result


def _factor(x: Any) -> Any:
    """The lower triangular L of x = L Lᵀ, row by row."""
    n = x.nrows()
    lower = flint.arb_mat(n, n)
    for i in range(n):
        for j in range(i + 1):
            rest = x[i, j] - sum((lower[i, k] * lower[j, k] for k in range(j)), flint.arb(0))
            lower[i, j] = rest.sqrt() if i == j else rest / lower[j, j]
    return lower
