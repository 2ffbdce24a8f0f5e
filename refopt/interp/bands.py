"""Envelopes of matrices: ranges whose ends are arrays of float64 (ENV-18 to ENV-20).

The same model as `refopt.interp.envelope`, element for element, for rules that multiply and invert
matrices: there an interval of two `arb` costs too much. An end is computed in float64 and moved
outward by more than that computation may be off; the float64 envelope is wider by that. An element
that may be infinite or NaN has no bounds, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refopt.interp.envelope import ROUNDINGS, Reals, ShapeError
from refopt.interp.formats import FORMATS

Ends = np.ndarray[Any, np.dtype[np.float64]]

U = 2.0**-53  # unit roundoff of the ends
LARGEST = {name: float(f.largest) for name, f in FORMATS.items()}


class Band:
    """An array of ranges in one dtype; an element without bounds is (-inf, inf).

    `inverts`: the matrices that these are the inverses of, and the number that multiplies them.
    `before`: the range before what is shown left nothing of it.
    """

    __slots__ = ("before", "dtype", "high", "inverts", "low", "space")

    def __init__(self, low: Ends, high: Ends, dtype: str, space: Bands) -> None:
        self.low, self.high, self.dtype, self.space = low, high, dtype, space
        self.inverts: tuple[Band, Any] | None = None
        self.before: Band | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    @property
    def bounded(self) -> Any:
        """Which elements have bounds."""
        return self.low > -np.inf

    @property
    def middle(self) -> Ends:
        """Of each element; NaN where it has no bounds."""
        with np.errstate(invalid="ignore"):
            return self.low + (self.high - self.low) / 2

    def holds(self, values: Ends) -> Any:
        """Which of the values are possible."""
        return ~self.bounded | ((self.low <= values) & (values <= self.high))

    def contains(self, other: Band) -> bool:
        """Whether every value possible there is possible here, whatever is shown."""
        mine, its = self.before or self, other.before or other
        return mine.shape == its.shape and bool(
            np.all((mine.low <= its.low) & (mine.high >= its.high))
        )

    def __neg__(self) -> Band:
        return Band(-self.high, -self.low, self.dtype, self.space)

    def __add__(self, other: Any) -> Band:
        return self.space.added(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Band:
        if other is self:  # 0, whatever the value is, unless it is NaN or infinite
            with np.errstate(invalid="ignore"):
                return self.space.bounded(0.0 * self.low, 0.0 * self.high, self.dtype)
        return self + -other

    def __rsub__(self, other: Any) -> Band:
        return -self + other

    def __mul__(self, other: Any) -> Band:
        return self.space.multiplied(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Band:
        return self.space.divided(self, other)

    def __rtruediv__(self, other: Any) -> Band:
        return self.space.divided(other, self)


class Bands:
    """The namespace (`refopt.typing.Matrices`) of ranges; `k` roundings for each operation."""

    def __init__(self, k: int = ROUNDINGS) -> None:
        self.k = k
        self.numbers = Reals(k=k)
        self._known: dict[tuple[Any, ...], Band] = {}  # inverses that were asked for before

    def array(self, values: Any, dtype: str) -> Band:
        """Exact values, to be computed with in `dtype`."""
        x = np.asarray(values, np.float64)
        return self.bounded(x, x, dtype)

    # -- operations of elements ------------------------------------------------------------------
    def added(self, x: Any, y: Any) -> Band:
        x, y = self._meet(x, y)
        with np.errstate(all="ignore"):
            low, high = x.low + y.low, x.high + y.high
        exact = _zero(x) | _zero(y)
        return self._rounded(low, high, x.dtype, exact)

    def multiplied(self, x: Any, y: Any) -> Band:
        square = x is y
        inverts = None
        for one, other in ((x, y), (y, x)):
            if isinstance(one, Band) and one.inverts and not isinstance(other, Band):
                inverts = one.inverts[0], one.inverts[1] * other
        x, y = self._meet(x, y)
        with np.errstate(all="ignore"):
            ends = [x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high]
        exact = _zero(x) | _zero(y)
        product = self._corners(ends, x.dtype, exact, square=square)
        product.inverts = inverts
        return product

    def divided(self, x: Any, y: Any) -> Band:
        x, y = self._meet(x, y)
        with np.errstate(all="ignore"):
            ends = [x.low / y.low, x.low / y.high, x.high / y.low, x.high / y.high]
        ends[0] = np.where((y.low <= 0) & (y.high >= 0), np.nan, ends[0])
        return self._corners(ends, x.dtype, _zero(x))

    def _corners(self, ends: list[Ends], dtype: str, exact: Any, *, square: bool = False) -> Band:
        low, high = np.minimum.reduce(ends), np.maximum.reduce(ends)
        if square:
            low = np.maximum(low, 0.0)
        x = self._rounded(low, high, dtype, exact)
        if square:
            x.low[(x.low < 0) & (x.low > -np.inf)] = 0.0
        return x

    def sqrt(self, x: Band) -> Band:
        """Square root; no bounds where `x` may be negative."""
        with np.errstate(all="ignore"):
            low, high = np.sqrt(x.low), np.sqrt(x.high)
        return self._rounded(low, high, x.dtype, _zero(x))

    def maximum(self, x: Band, y: Any) -> Band:
        """The larger of each pair; no bounds where one has none."""
        x, y = self._meet(x, y)
        open_ = x.low + y.low == -np.inf
        low = np.where(open_, np.nan, np.maximum(x.low, y.low))
        return self.bounded(low, np.maximum(x.high, y.high), x.dtype)

    def minimum(self, x: Band, y: Any) -> Band:
        """The smaller of each pair; no bounds where one has none."""
        return -self.maximum(-self._meet(x, y)[0], -self._meet(x, y)[1])

    def float16(self, x: Band) -> Band:
        """`x` rounded to float16, performed on both ends, in the dtype it has."""
        with np.errstate(all="ignore"):
            low, high = (end.astype(np.float16).astype(np.float64) for end in (x.low, x.high))
        return self.bounded(low, high, x.dtype)

    def zeros_like(self, x: Band) -> Band:
        """Exact zeros."""
        return self.array(np.zeros(x.shape), x.dtype)

    # -- sums and products of matrices -----------------------------------------------------------
    def sum(self, x: Band) -> Band:
        """The sum of all elements, in any order."""
        return self._total(x, None)

    def mean(self, x: Band, axis: int) -> Band:
        """The mean over one axis, which is dropped."""
        return self._total(x, axis) / float(x.shape[axis])

    def trace(self, x: Band) -> Band:
        """The sum of the diagonal of a matrix."""
        return self.sum(_moved(np.diagonal, x))

    def _total(self, x: Band, axis: int | None) -> Band:
        n = x.low.size if axis is None else x.shape[axis]
        size = np.sum(_largest(x), axis=axis)
        wide = self._width(n, x.dtype) * size + self.k * n * _eta(x.dtype)
        return self.bounded(
            np.sum(x.low, axis=axis) - wide, np.sum(x.high, axis=axis) + wide, x.dtype
        )

    def matmul(self, x: Band, y: Band) -> Band:
        """The matrix product, one operation: exact, then the roundings of n products and sums."""
        (a, r), (b, s) = _middle(x), _middle(y)
        n = x.shape[-1]
        with np.errstate(all="ignore"):
            size = (abs(a) + r) @ (abs(b) + s)
            wide = abs(a) @ s + r @ (abs(b) + s)
            wide = wide * (1 + 8 * n * U) + self._width(n, x.dtype) * size
            wide = wide + self.k * n * _eta(x.dtype)
            c = a @ b
            return self.bounded(c - wide, c + wide, x.dtype)

    def _width(self, n: int, dtype: str) -> float:
        """The roundings of a sum of n products, as a share of the sum of their sizes."""
        return self.k * n * _unit(dtype) + 4 * (n + 2) * U

    # -- inverses --------------------------------------------------------------------------------
    def spd_inverse(self, x: Band) -> Band:
        """Every X of a residual ‖B X - I‖₁ ≤ 8 n u ‖B‖₁ ‖X‖₁, for every B in the range (ENV-20).

        That is what `refopt.interp.linalg` keeps on every library. No bounds where some symmetric B
        may not be positive definite.
        """
        return self._once(self._spd_inverse, x)

    def inverse_cholesky(self, x: Band) -> Band:
        """Every W of ‖W B Wᵀ - I‖ ≤ 8 n u ‖B‖ ‖W‖² in the Frobenius norm (ENV-20)."""
        return self._once(self._inverse_cholesky, x)

    def _once(self, inverse: Callable[[Band], Band], x: Band) -> Band:
        """An inverse; most alternatives of a rule ask for the same ones."""
        key = (inverse.__name__, x.dtype, x.shape, x.low.tobytes(), x.high.tobytes())
        if key not in self._known:
            self._known[key] = inverse(x)
        return self._known[key]

    def _spd_inverse(self, x: Band) -> Band:
        b, r = _middle(x)
        n = x.shape[-1]
        inverse, sound = _inverse(b)
        with np.errstate(all="ignore"):
            error = abs(inverse @ b - np.eye(n)) + abs(inverse) @ (r + 4 * (n + 2) * U * abs(b))
            alpha = np.max(np.sum(error, axis=-1), axis=-1)[..., None, None]
            tail = alpha * alpha / (1 - alpha) * np.max(abs(inverse), axis=-2, keepdims=True)
            exact = (error @ abs(inverse) + tail) * (1 + 8 * n * U)
            size = abs(inverse) + exact
            residual = self._inversion(n, x.dtype) * _one_norm(abs(b) + r) * _one_norm(size)
            row = np.max(size, axis=-1, keepdims=True)
            wide = exact + residual * np.minimum(row, np.swapaxes(row, -1, -2)) * (1 + 8 * n * U)
            wide = np.where(sound & (alpha < 1), wide, np.inf)
            result = self.bounded(inverse - wide, inverse + wide, x.dtype)
        result.inverts = x, 1.0
        return result

    def beside_shown(self, band: Band, values: Ends) -> Band:
        """`band` for what is shown: of an inverse without any value where that breaks ENV-20.

        That is where the residual of what is shown is proved to be larger than the bound, for every
        matrix in the range.
        """
        if band.inverts is None or values.shape != band.shape:
            return band
        matrix, scale = band.inverts
        (b, r), (x, s) = _middle(matrix), _middle(self.array(values, band.dtype) / scale)
        n = band.shape[-1]
        with np.errstate(all="ignore"):
            spread = abs(b) @ (s + 4 * (n + 2) * U * abs(x)) + r @ (abs(x) + s)
            residual = np.maximum(abs(b @ x - np.eye(n)) - spread * (1 + 8 * n * U), 0.0)
            limit = self._inversion(n, band.dtype) * _one_norm(abs(b) + r) * _one_norm(abs(x) + s)
            far = _one_norm(residual) * (1 - 2e3 * U) > limit
        none = np.broadcast_to(far, band.shape)
        low, high = np.where(none, np.inf, band.low), np.where(none, -np.inf, band.high)
        found = Band(low, high, band.dtype, self)
        found.before = band
        return found

    def _inversion(self, n: int, dtype: str) -> float:
        """The residual of an inversion, as a share of the norms of both matrices."""
        return 8 * n * _unit(dtype) + 8 * (n + 2) * U

    def _inverse_cholesky(self, x: Band) -> Band:
        b, r = _middle(x)
        n = x.shape[-1]
        w, sound = _inverse_factor(b)
        with np.errstate(all="ignore"):
            size = abs(w)
            share = self._inversion(n, x.dtype)
            near = abs(w @ b @ np.swapaxes(w, -1, -2) - np.eye(n))
            spread = size @ (r + 8 * (n + 2) * U * abs(b)) @ np.swapaxes(size, -1, -2)
            phi = _norm(near + spread) + share * _norm(abs(b) + r) * _norm(size) ** 2
            # Sun's bound for the factor of I + F, then the Neumann series of its inverse
            delta = np.sqrt(2.0) * phi / (1 + np.sqrt(1 - 2 * phi))
            gamma = delta / (1 - delta) * (1 + 8 * n * U)
            column = np.sqrt(np.sum(w * w, axis=-2, keepdims=True)) * (1 + 8 * n * U)
            wide = np.where(sound & (phi < 0.5) & (delta < 1), gamma * column, np.inf)
            wide = np.where(np.tri(n, dtype=bool), wide + 0 * w, 0.0)
            return self.bounded(w - wide, w + wide, x.dtype)

    # -- the way elements lie --------------------------------------------------------------------
    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape)

    def length(self, x: Any) -> int:
        return int(x.shape[0])

    def reshape(self, x: Band, shape: tuple[int, ...]) -> Band:
        found = _moved(lambda end: end.reshape(shape), x)
        found.before = x.before
        return found

    def permute(self, x: Band, axes: tuple[int, ...]) -> Band:
        return _moved(lambda end: end.transpose(axes), x)

    def transpose(self, x: Band) -> Band:
        return _moved(lambda end: np.swapaxes(end, -1, -2), x)

    def cut(self, x: Band, slices: tuple[slice, ...]) -> Band:
        return _moved(lambda end: end[slices], x)

    def pad(self, x: Band, widths: Sequence[tuple[int, int]]) -> Band:
        return _moved(lambda end: np.pad(end, widths), x)

    def stack(self, parts: Sequence[Band], axis: int) -> Band:
        low, high = (np.stack([getattr(p, end) for p in parts], axis) for end in ("low", "high"))
        return Band(low, high, parts[0].dtype, self)

    def max_abs(self, x: Band) -> Band:
        """The largest absolute value, of shape ()."""
        least = np.maximum(np.maximum(x.low, -x.high), 0.0)
        return self.bounded(np.max(least), np.max(_largest(x)), x.dtype)

    def counts(self, ids: Any, size: int, like: Band) -> Band:
        """How often each number below `size` stands in `ids`."""
        found = np.bincount(np.ravel(ids), minlength=size)
        return self.array(found, like.dtype)

    def eye(self, n: int, like: Band) -> Band:
        return self.array(np.eye(n), like.dtype)

    def diagonal_blocks(self, x: Band, size: int) -> Band:
        """The blocks (k, size, size) on the diagonal; ones fill up the last one's."""
        n = x.shape[-1]
        count = -(-n // size)

        def blocks(end: Ends) -> Ends:
            whole = np.eye(count * size)
            whole[:n, :n] = end
            tiles = whole.reshape(count, size, count, size)
            return tiles[np.arange(count), :, np.arange(count), :]

        return _moved(blocks, x)

    # -- rounding --------------------------------------------------------------------------------
    def bounded(self, low: Any, high: Any, dtype: str) -> Band:
        """A range; without bounds where an end is no finite number of the dtype."""
        limit = LARGEST[dtype]
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        inside = (low >= -limit) & (high <= limit)
        if inside.all():
            return Band(low, high, dtype, self)
        return Band(np.where(inside, low, -np.inf), np.where(inside, high, np.inf), dtype, self)

    def _rounded(self, low: Ends, high: Ends, dtype: str, exact: Any) -> Band:
        """Ends moved outward by the roundings of one operation, but where it is exact."""
        share = self.k * _unit(dtype) + 4 * U
        with np.errstate(all="ignore"):
            out = [abs(end) * share + self.k * _eta(dtype) for end in (low, high)]
            low = low - np.where(exact, 0.0, out[0])
            high = high + np.where(exact, 0.0, out[1])
        return self.bounded(low, high, dtype)

    def _meet(self, x: Any, y: Any) -> tuple[Band, Band]:
        """Two operands of one dtype; a number is rounded once to that of the array."""
        dtype = next(z.dtype for z in (x, y) if isinstance(z, Band))
        x, y = (z if isinstance(z, Band) else self._number(z, dtype) for z in (x, y))
        try:
            np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            msg = f"arrays that broadcast are required, got shapes {x.shape} and {y.shape}"
            raise ShapeError(msg) from None
        return x, y

    def beside(self, x: Any) -> Band:
        """A number as an array of shape ()."""
        return self._number(x, "float64")

    def _number(self, x: Any, dtype: str) -> Band:
        value = self.numbers(x)
        own = value.dtype is not None and FORMATS[value.dtype].precision <= FORMATS[dtype].precision
        interval = value.x if own else self.numbers.rounding(dtype)(value.x, 1)
        if interval.special:
            return self.bounded(np.nan, np.nan, dtype)
        ends = interval.low.lower(), interval.high.upper()
        low, high = (float(end) for end in ends)
        if interval.low is not interval.high or interval.low != low:  # arb to float64 rounds
            low, high = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
        return self.bounded(low, high, dtype)


def _unit(dtype: str) -> float:
    return 2.0 ** -FORMATS[dtype].precision


def _eta(dtype: str) -> float:
    return 2.0 ** FORMATS[dtype].spacing


def _zero(x: Band) -> Any:
    return (x.low == 0) & (x.high == 0)


def _largest(x: Band) -> Ends:
    return np.maximum(abs(x.low), abs(x.high))


def _norm(x: Ends) -> Ends:
    """Frobenius norms of matrices, upward."""
    norm: Ends = np.sqrt(np.sum(x * x, axis=(-1, -2), keepdims=True)) * (1 + 1e3 * U)
    return norm


def _one_norm(x: Ends) -> Ends:
    """Largest column sums of matrices without signs, upward."""
    norm: Ends = np.max(np.sum(x, axis=-2, keepdims=True), axis=-1, keepdims=True) * (1 + 1e3 * U)
    return norm


def _middle(x: Band) -> tuple[Ends, Ends]:
    """Midpoints, and radii that reach both ends."""
    with np.errstate(all="ignore"):
        middle = x.low + (x.high - x.low) / 2
        return middle, np.maximum(x.high - middle, middle - x.low) * (1 + 4 * U)


def _moved(move: Any, x: Band) -> Band:
    return Band(move(x.low), move(x.high), x.dtype, x.space)


def _inverse_factor(b: Ends) -> tuple[Ends, Any]:
    """L⁻¹ of each matrix, and whether it is positive definite; else the identity's."""
    flat = b.reshape(-1, *b.shape[-2:])
    w = np.broadcast_to(np.eye(b.shape[-1]), flat.shape).copy()
    sound = np.zeros((len(flat), 1, 1), bool)
    for i, matrix in enumerate(flat):
        try:
            w[i] = np.tril(np.linalg.inv(np.linalg.cholesky(matrix)))
        except np.linalg.LinAlgError:
            continue
        sound[i] = True
    return w.reshape(b.shape), sound.reshape(*b.shape[:-2], 1, 1)


def _inverse(b: Ends) -> tuple[Ends, Any]:
    w, sound = _inverse_factor(b)
    return np.swapaxes(w, -1, -2) @ w, sound
