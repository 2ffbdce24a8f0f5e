"""The set of results that k roundings of the stated graph can explain (spec/envelope.md).

An element is an interval of two `arb` endpoints and three flags: it may be NaN, +∞, -∞. Every
array operation is exact, then widened by k (u |r| + η), where u is the unit roundoff of the dtype
and η half its smallest subnormal. Rounding keeps the sign and leaves representable numbers alone.
A number that depends on the step count alone carries its own dtype, and is rounded once where it
meets an array. A rounding that a profile states is performed on both ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flint

from refopt.interp.balls import end_rounded
from refopt.interp.formats import FORMATS, Format

arb = flint.arb
ROUNDINGS = 2  # k: one rounding to nearest, or two of a fused or reciprocal form
POWER = 4  # k of a power, which no library rounds correctly
_ZERO = arb(0)
_HUGE = arb(2) ** 20000  # stands for "no bound"; far beyond the largest number of any format


class Interval(NamedTuple):
    """What one element may be: a finite range (or none), NaN, infinities."""

    low: Any  # arb, or None where no finite value is possible
    high: Any
    nan: bool = False
    plus: bool = False  # may be +∞
    minus: bool = False  # may be -∞

    @property
    def special(self) -> bool:
        """Whether anything but a finite value is possible."""
        return self.low is None or self.nan or self.plus or self.minus

    def holds(self, x: float) -> bool:
        """Whether an observation lies inside; False is proven."""
        if math.isnan(x):
            return self.nan
        if math.isinf(x):
            return self.plus if x > 0 else self.minus
        return self.low is not None and not self.low > x and not self.high < x

    def contains(self, other: Interval) -> bool:
        """Whether whatever the other may be, this may be too; False is proven."""
        finite = other.low is None or (
            self.low is not None and not self.low > other.low and not self.high < other.high
        )
        return finite and all(mine >= its for mine, its in zip(self[2:], other[2:], strict=True))

    @property
    def bounded(self) -> bool:
        """Whether only finite values are possible, within known bounds."""
        return not self.special and bool(self.high < _HUGE) and bool(self.low > -_HUGE)


def point(x: float) -> Interval:
    """The one value `x`, exactly."""
    if math.isnan(x):
        return Interval(None, None, nan=True)
    if math.isinf(x):
        return Interval(None, None, plus=x > 0, minus=x < 0)
    end = arb(x)
    return Interval(end, end)


NOT_A_NUMBER = Interval(None, None, nan=True)


# -- exact operations on intervals ----------------------------------------------------------------
def _positive(x: Interval) -> bool:
    return x.plus or (x.low is not None and not x.high <= 0)


def _negative(x: Interval) -> bool:
    return x.minus or (x.low is not None and not x.low >= 0)


def _zero(x: Interval) -> bool:
    return x.low is not None and not x.low > 0 and not x.high < 0


def negated(x: Interval) -> Interval:
    """-x."""
    if x.low is None:
        return Interval(None, None, x.nan, x.minus, x.plus)
    low = high = -x.high
    if x.low is not x.high:
        high = -x.low
    return Interval(low, high, x.nan, x.minus, x.plus)


def added(a: Interval, b: Interval) -> Interval:
    """a + b; ∞ - ∞ is NaN."""
    low = high = None
    if a.low is not None and b.low is not None:
        low = high = a.low + b.low
        if not (a.low is a.high and b.low is b.high):
            high = a.high + b.high
    if not (a.special or b.special):
        return Interval(low, high)
    return Interval(
        low,
        high,
        a.nan or b.nan or (a.plus and b.minus) or (a.minus and b.plus),
        (a.plus and (b.low is not None or b.plus)) or (b.plus and (a.low is not None or a.plus)),
        (a.minus and (b.low is not None or b.minus))
        or (b.minus and (a.low is not None or a.minus)),
    )


def multiplied(a: Interval, b: Interval) -> Interval:
    """a * b; 0 * ∞ is NaN."""
    low = high = None
    if a.low is not None and b.low is not None:
        if a.low is a.high and b.low is b.high:
            low = high = a.low * b.low
        elif a.low >= 0 and b.low >= 0:
            low, high = a.low * b.low, a.high * b.high
        else:
            corners = (a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)
            low, high = _least(corners), _most(corners)
    if not (a.special or b.special):
        return Interval(low, high)
    infinite_a, infinite_b = a.plus or a.minus, b.plus or b.minus
    signs = [
        (a.plus and _positive(b)) or (b.plus and _positive(a)),
        (a.minus and _negative(b)) or (b.minus and _negative(a)),
        (a.plus and _negative(b)) or (b.plus and _negative(a)),
        (a.minus and _positive(b)) or (b.minus and _positive(a)),
    ]
    nan = a.nan or b.nan or (infinite_a and _zero(b)) or (infinite_b and _zero(a))
    return Interval(low, high, nan, signs[0] or signs[1], signs[2] or signs[3])


def divided(a: Interval, b: Interval) -> Interval:
    """a / b; 0 / 0 and ∞ / ∞ are NaN; a divisor that may be zero gives no bound."""
    if not _zero(b) and not a.special and not b.special:
        if a.low is a.high and b.low is b.high:
            quotient = a.low / b.low
            return Interval(quotient, quotient)
        corners = (a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high)
        return Interval(_least(corners), _most(corners))
    infinite_a, infinite_b = a.plus or a.minus, b.plus or b.minus
    nan = a.nan or b.nan or (infinite_a and infinite_b) or (_zero(a) and _zero(b))
    parts: list[Interval] = [Interval(None, None, nan)]
    if infinite_b and a.low is not None:
        parts.append(point(0.0))
    if infinite_a and (b.low is not None):
        parts.append(Interval(None, None, False, *_signs(a, b, infinite=True)))
    if a.low is not None and b.low is not None:
        if not _zero(b):
            parts.append(divided(Interval(a.low, a.high), Interval(b.low, b.high)))
        else:
            plus, minus = _signs(a, b, infinite=False)
            parts.append(Interval(None, None, False, plus, minus))
            if not (b.low == 0 and b.high == 0):  # a divisor may be as small as can be
                low = -_HUGE if minus else _ZERO
                parts.append(Interval(low, _HUGE if plus else _ZERO))
    return joined(parts)


def _signs(a: Interval, b: Interval, *, infinite: bool) -> tuple[bool, bool]:
    """Whether a / b may be +∞ and -∞; a zero divisor counts as +0 unless it may be negative."""
    up, down = (a.plus, a.minus) if infinite else (_positive(a), _negative(a))
    above, below = not b.high < 0, _negative(b)
    return (up and above) or (down and below), (down and above) or (up and below)


def rooted(x: Interval) -> Interval:
    """The square root; NaN joins where `x` may be negative."""
    nan = x.nan or x.minus
    if x.low is None or x.high < 0:
        return Interval(None, None, nan or x.low is not None, x.plus)
    below = not x.low >= 0
    low = _ZERO if below else x.low.sqrt()
    high = low if x.low is x.high else x.high.sqrt() if x.high >= 0 else _ZERO
    return Interval(low, high, nan or below, x.plus)


def powered(base: Interval, exponent: Interval) -> Interval:
    """base ** exponent for a base that is not negative (monotone in each, so corners suffice)."""
    if base.special or exponent.special or not base.low >= 0:
        return Interval(-_HUGE, _HUGE, True, True, True)
    if exponent.low is exponent.high and exponent.low == 0.5:
        return rooted(base)
    ends = [
        (_ZERO if e > 0 else arb(1)) if b == 0 else b**e
        for b in (base.low, base.high)
        for e in (exponent.low, exponent.high)
    ]
    return Interval(_least(ends), _most(ends))


def larger(a: Interval, b: Interval) -> Interval:
    """The larger of two; NaN where either is."""
    parts = [Interval(None, None, a.nan or b.nan, a.plus or b.plus, a.minus and b.minus)]
    if a.low is not None and b.low is not None:
        parts.append(Interval(_most([a.low, b.low]), _most([a.high, b.high])))
    parts += [Interval(x.low, x.high) for x, y in ((a, b), (b, a)) if y.minus and x.low is not None]
    return joined(parts)


def joined(parts: list[Interval]) -> Interval:
    """The union, as one interval: what any of the parts may be."""
    lows = [p.low for p in parts if p.low is not None]
    highs = [p.high for p in parts if p.high is not None]
    return Interval(
        _least(lows) if lows else None,
        _most(highs) if highs else None,
        any(p.nan for p in parts),
        any(p.plus for p in parts),
        any(p.minus for p in parts),
    )


def _least(ends: Any) -> Any:
    result = ends[0]
    for end in ends[1:]:
        if not end >= result:
            result = end.min(result)
    return result


def _most(ends: Any) -> Any:
    result = ends[0]
    for end in ends[1:]:
        if not end <= result:
            result = end.max(result)
    return result


# -- rounding -------------------------------------------------------------------------------------
class Rounding:
    """k roundings of one format; `flush` also lets subnormal results become zero."""

    def __init__(self, f: Format, k: int, *, flush: bool = False) -> None:
        self.format, self.k, self.flush = f, k, flush
        self.unit = arb(2) ** -f.precision
        self.tiny = arb(2) ** f.emin
        self.eta = self.tiny if flush else arb(2) ** (f.spacing - 1)
        self.largest = arb(f.largest)
        self._widths = {n: (n * self.unit, n * self.eta) for n in (1, k, POWER)}

    def __call__(self, x: Interval, k: int | None = None) -> Interval:
        """`x` widened by k roundings."""
        low, high, nan, plus, minus = x
        if low is None or (low is high and self._representable(low)):
            return x
        k = self.k if k is None else k
        unit, eta = self._widths[k]
        if low > 0:
            low = low - (unit * low + eta)
            low = low if low >= 0 else _ZERO
        elif low != 0:
            low = low + (unit * low - eta)
        if high < 0:
            high = high - (unit * high - eta)
            high = high if high <= 0 else _ZERO
        elif high != 0:
            high = high + (unit * high + eta)
        if not high <= self.largest:
            plus, high = True, (high if high < _HUGE else _HUGE)
            low = low if low < _HUGE else self.largest
        if not low >= -self.largest:
            minus, low = True, (low if low > -_HUGE else -_HUGE)
            high = high if high > -_HUGE else -self.largest
        return Interval(low, high, nan, plus, minus)

    def overflowed(self, x: Interval) -> Interval:
        """`x`, already widened, without the finite part that no number of the format lies in."""
        if x.low is None or not (x.low > self.largest or x.high < -self.largest):
            return x
        return Interval(None, None, *x[2:])

    def performed(self, x: Interval) -> Interval:
        """`x` rounded to nearest once, as stated: on both ends, since rounding keeps order."""
        if x.low is None:
            return x
        low, high = (end_rounded(e, self.format) for e in (x.low.lower(), x.high.upper()))
        plus, minus = high > self.largest, low < -self.largest
        if low > self.largest or high < -self.largest:  # nothing finite is left
            return Interval(None, None, x.nan, x.plus or plus, x.minus or minus)
        low, high = (-self.largest if minus else low), (self.largest if plus else high)
        return Interval(low, low if low == high else high, x.nan, x.plus or plus, x.minus or minus)

    def _representable(self, x: Any) -> bool:
        if not x.is_exact() or not x.is_finite():
            return False
        mantissa, exponent = x.man_exp()
        bits = mantissa.bit_length()
        if bits > self.format.precision:
            return False
        top = bits + int(exponent) - 1
        return bool(
            mantissa == 0
            or (
                exponent >= self.format.spacing
                and top <= self.format.emax
                and (not self.flush or top >= self.format.emin)
            )
        )


def _summed(terms: list[Interval], around: Rounding) -> Interval:
    """A sum of n terms: exact, then k (n - 1) u Σ|terms| on both sides, for any order."""
    total, size = point(0.0), _ZERO
    for term in terms:
        total = added(total, term)
        if term.low is not None:
            size = size + _most([abs(term.low), abs(term.high)])
    if len(terms) < 3 or total.low is None:
        return around(total) if len(terms) == 2 else total
    width = around.k * (len(terms) - 1) * (around.unit * size + around.eta)
    low, high = total.low - width, total.high + width
    if all(t.low is not None and t.low >= 0 for t in terms):
        low = low if low >= 0 else _ZERO
    plus = total.plus or not size <= around.largest
    minus = total.minus or (plus and not all(t.low is None or t.low >= 0 for t in terms))
    return Interval(low, high, total.nan or (plus and minus), plus, minus)


# -- numbers --------------------------------------------------------------------------------------
class Real:
    """A scalar: an interval and the dtype it is kept in (None: a Python float)."""

    __slots__ = ("dtype", "numbers", "x")

    def __init__(self, x: Interval, dtype: str | None, numbers: Reals) -> None:
        self.x, self.dtype, self.numbers = x, dtype, numbers

    def _apply(self, operation: Callable[..., Interval], a: Any, b: Any) -> Real:
        numbers = self.numbers
        if a.__class__ is not Real:
            if not isinstance(a, int | float):
                return NotImplemented
            a = numbers(a)
        if b.__class__ is not Real:
            if not isinstance(b, int | float):
                return NotImplemented
            b = numbers(b)
        left, right, dtype = a.x, b.x, a.dtype
        if dtype != b.dtype:
            dtype = numbers.wider(dtype, b.dtype)
            around = numbers.rounding(dtype, 32)
            left = left if a.dtype == dtype else around(left, 1)
            right = right if b.dtype == dtype else around(right, 1)
        k = POWER if operation is powered else None
        return Real(numbers.rounding(dtype)(operation(left, right), k), dtype, numbers)

    def __add__(self, other: Any) -> Real:
        return self._apply(added, self, other)

    def __radd__(self, other: Any) -> Real:
        return self._apply(added, other, self)

    def __sub__(self, other: Any) -> Real:
        return self + -other

    def __rsub__(self, other: Any) -> Real:
        return -self + other

    def __mul__(self, other: Any) -> Real:
        return self._apply(multiplied, self, other)

    def __rmul__(self, other: Any) -> Real:
        return self._apply(multiplied, other, self)

    def __truediv__(self, other: Any) -> Real:
        return self._apply(divided, self, other)

    def __rtruediv__(self, other: Any) -> Real:
        return self._apply(divided, other, self)

    def __pow__(self, other: Any) -> Real:
        return self._apply(powered, self, other)

    def __rpow__(self, other: Any) -> Real:
        return self._apply(powered, other, self)

    def __neg__(self) -> Real:
        return Real(negated(self.x), self.dtype, self.numbers)

    def __float__(self) -> float:
        if self.x.low is not self.x.high:
            msg = f"a decided value is required, got {self.x}"
            raise ArithmeticError(msg)
        return float(self.x.low)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float):
            return NotImplemented
        return self.x.low is self.x.high and bool(self.x.low == other)

    __hash__ = None  # type: ignore[assignment]  # compared by value, never a key

    def __lt__(self, other: float | Real) -> bool:
        return not self._at_least(other)

    def __ge__(self, other: float | Real) -> bool:
        return self._at_least(other)

    def __gt__(self, other: float | Real) -> bool:
        return not -self >= -other

    def __le__(self, other: float | Real) -> bool:
        return -self >= -other

    def _at_least(self, other: float | Real) -> bool:
        """Whether self >= other; both decided alike by every value of both."""
        x, y = _ends(self.x), _ends(self.numbers(other).x)
        if not (x[1] < y[0] or x[0] >= y[1]):
            msg = f"a branch needs a decided comparison, got {self.x} and {other}"
            raise ArithmeticError(msg)
        return bool(x[0] >= y[1])


def _ends(x: Interval) -> tuple[Any, Any]:
    """The least and the greatest value; NaN, which no comparison decides, where it may be one."""
    if x.nan:
        return arb.nan(), arb.nan()
    low = arb.neg_inf() if x.minus else x.low if x.low is not None else arb.pos_inf()
    high = arb.pos_inf() if x.plus else x.high if x.high is not None else arb.neg_inf()
    return low, high


class Reals:
    """A number system (`refopt.typing.Numbers`) of intervals; `native` is a dtype name."""

    def __init__(self, native: str = "float64", k: int = ROUNDINGS) -> None:
        self.native_dtype, self.k = native, k
        self._roundings: dict[tuple[str | None, int], Rounding] = {}

    def __call__(self, x: Any) -> Real:
        """`x` as it is; a Python float is the interval of that one value."""
        return x if isinstance(x, Real) else Real(point(float(x)), None, self)

    def carrying(self, x: Any, dtype: str) -> Real:
        """`x` rounded to nearest in `dtype`, and kept in it."""
        x = self(x)
        if x.dtype == dtype:
            return x
        return Real(self.rounding(dtype).performed(x.x), dtype, self)

    def float32(self, x: Any) -> Real:
        """`x` rounded to float32, performed."""
        return self.carrying(x, "float32")

    def native(self, x: Any) -> Real:
        """`x` rounded to the native dtype, performed."""
        return self.carrying(x, self.native_dtype)

    def float64(self, x: Any) -> Real:
        """`x` as a Python float, which is wide enough for every dtype."""
        return Real(self(x).x, None, self)

    def floor(self, x: Any) -> Real:
        """The largest integer not above; an interval where that is not decided."""
        return self._integer(x, "floor")

    def ceil(self, x: Any) -> Real:
        """The smallest integer not below; an interval where that is not decided."""
        return self._integer(x, "ceil")

    @property
    def pi(self) -> float:
        """π, as a Python float: a product with it is widened by more than it is off."""
        return math.pi

    def cos(self, x: Any) -> Real:
        """The cosine of an angle in radians, widened like a power."""
        x = self(x)
        ball = x.x.low.union(x.x.high).cos()
        wave = Interval(ball.lower(), ball.upper())
        return Real(self.rounding(x.dtype)(wave, POWER), x.dtype, self)

    def log(self, x: Any) -> Real:
        """The natural logarithm, widened like a power."""
        x = self(x)
        wave = Interval(x.x.low.log(), x.x.high.log())
        return Real(self.rounding(x.dtype)(wave, POWER), x.dtype, self)

    def _integer(self, x: Any, way: str) -> Real:
        x = self(x)
        low, high = (getattr(end, way)().unique_fmpz() for end in (x.x.low, x.x.high))
        end = arb(low)
        return Real(Interval(end, end if low == high else arb(high)), x.dtype, self)

    def of(self, param: Any) -> Reals:
        """The numbers beside an array: its dtype is native."""
        return Reals(param.dtype, self.k)

    def rounding(self, dtype: str | None, least: int = 0) -> Rounding:
        """The rounding of a dtype; `least` is the width below which float32 is meant."""
        key = (dtype, least)
        if key not in self._roundings:
            name = dtype or "float64"
            name = "float32" if FORMATS[name].width < least else name
            self._roundings[key] = _rounding(name, self.k, flush=False)
        return self._roundings[key]

    @staticmethod
    def wider(a: str | None, b: str | None) -> str | None:
        """The dtype of a result: a Python float gives way, else the wider of the two."""
        if a is None or b is None:
            return a or b
        return a if FORMATS[a].precision >= FORMATS[b].precision else b


_ROUNDINGS: dict[tuple[str, int, bool], Rounding] = {}


def _rounding(dtype: str, k: int, *, flush: bool) -> Rounding:
    key = (dtype, k, flush)
    if key not in _ROUNDINGS:
        _ROUNDINGS[key] = Rounding(FORMATS[dtype], k, flush=flush)
    return _ROUNDINGS[key]


# -- arrays ---------------------------------------------------------------------------------------
class Intervals:
    """An array (flat) of intervals in one dtype.

    `ray` is shared by an array and its positive multiples, so that their product is known to be
    a square, not negative.
    """

    __slots__ = ("dtype", "elements", "ray", "rounding")

    def __init__(self, elements: list[Interval], rounding: Rounding, ray: object = None) -> None:
        self.elements, self.rounding = elements, rounding
        self.dtype = rounding.format.name
        self.ray = object() if ray is None else ray

    def _apply(self, operation: Callable[..., Interval], a: Any, b: Any) -> Intervals:
        if a.__class__ is Intervals and b.__class__ is Intervals:
            left, right = a.elements, b.elements
        elif isinstance(a, _OPERANDS) and isinstance(b, _OPERANDS):
            left, right = self._meet(a), self._meet(b)
        else:
            return NotImplemented
        if len(left) != len(right):
            left, right = _broadcast(left, right)
        around = self.rounding
        return Intervals(
            [around(operation(x, y)) for x, y in zip(left, right, strict=True)], around
        )

    def _meet(self, other: Any) -> list[Interval]:
        """The elements of an array; a number is rounded once to the array's dtype."""
        if isinstance(other, Intervals):
            return other.elements
        x, dtype = (
            (other.x, other.dtype) if isinstance(other, Real) else (point(float(other)), None)
        )
        exact = dtype is not None and FORMATS[dtype].precision <= self.rounding.format.precision
        around = self.rounding  # 16-bit arrays are computed with in float32, and rounded after
        if around.format.width < 32:
            around = _rounding("float32", around.k, flush=around.flush)
        return [x if exact else around(x, 1)] * len(self.elements)

    def __add__(self, other: Any) -> Intervals:
        return self._apply(added, self, other)

    def __radd__(self, other: Any) -> Intervals:
        return self._apply(added, other, self)

    def __sub__(self, other: Any) -> Intervals:
        if other is self:  # 0, whatever the value is, unless it is NaN or infinite
            zeros = [
                Interval(None, None, nan=True)
                if x.low is None
                else Interval(_ZERO, _ZERO, x.special)
                for x in self.elements
            ]
            return Intervals(zeros, self.rounding)
        return self._apply(lambda x, y: added(x, negated(y)), self, other)

    def __rsub__(self, other: Any) -> Intervals:
        return self._apply(lambda x, y: added(x, negated(y)), other, self)

    def __mul__(self, other: Any) -> Intervals:
        result = self._apply(multiplied, self, other)
        if isinstance(other, Intervals):
            if other.ray is self.ray:
                result.elements = [_not_negative(x) for x in result.elements]
        elif not _negative(self._scalar(other)):
            result.ray = self.ray
        return result

    def __rmul__(self, other: Any) -> Intervals:
        return self * other

    def __truediv__(self, other: Any) -> Intervals:
        return self._quotient(self, other)

    def __rtruediv__(self, other: Any) -> Intervals:
        return self._quotient(other, self)

    def _quotient(self, a: Any, b: Any) -> Intervals:
        """a / b. One that surely overflows is infinite: no later operation can absorb it.

        A product can be part of a fused multiply-add, and 16-bit arrays are computed with in
        float32, so that there a finite value stays possible.
        """
        result = self._apply(divided, a, b)
        if result is not NotImplemented and self.rounding.format.width >= 32:
            result.elements = [
                self.rounding.overflowed(x) if x.plus or x.minus else x for x in result.elements
            ]
        return result

    def __neg__(self) -> Intervals:
        return Intervals([negated(x) for x in self.elements], self.rounding)

    @staticmethod
    def _scalar(x: Any) -> Interval:
        return x.x if isinstance(x, Real) else point(float(x))


_OPERANDS = (Intervals, Real, int, float)


class ShapeError(ValueError):
    """Arrays of different sizes met."""


def _broadcast(a: list[Interval], b: list[Interval]) -> tuple[list[Interval], list[Interval]]:
    """Both of the same length; a single element stands for every one of the other."""
    if len(a) == len(b):
        return a, b
    a, b = (a * len(b) if len(a) == 1 else a), (b * len(a) if len(b) == 1 else b)
    if len(a) != len(b):
        msg = f"arrays of one size are required, got {len(a)} and {len(b)} elements"
        raise ShapeError(msg)
    return a, b


def _not_negative(x: Interval) -> Interval:
    low = x.low if x.low is None or x.low >= 0 else _ZERO
    return Interval(low, x.high, x.nan, x.plus, False)


class Envelope:
    """The namespace (`refopt.typing.Namespace`) of interval arrays."""

    def __init__(self, k: int = ROUNDINGS, *, flush: bool = False) -> None:
        self.k, self.flush = k, flush
        self.numbers = Reals(k=k)

    def array(self, values: list[float], dtype: str) -> Intervals:
        """Exact values, flat, to be computed with in `dtype`."""
        rounding = _rounding(dtype, self.k, flush=self.flush)
        elements = [point(x) for x in values]
        if self.flush:  # what is read may be flushed as well
            elements = [
                joined([e, point(0.0)]) if e.low is not None and abs(e.low) < rounding.tiny else e
                for e in elements
            ]
        return Intervals(elements, rounding)

    def cast(self, x: Intervals, dtype: str, *, stored: str | None = None) -> Intervals:
        """`x` for computing in `dtype`, after one rounding to the dtype `stored`, performed."""
        elements = x.elements
        if stored is not None:
            rounding = _rounding(stored, self.k, flush=self.flush)
            elements = [rounding.performed(e) for e in elements]
        return Intervals(elements, _rounding(dtype, self.k, flush=self.flush))

    def sqrt(self, x: Intervals) -> Intervals:
        """Square root, one operation."""
        return Intervals([x.rounding(rooted(e)) for e in x.elements], x.rounding)

    def float32(self, x: Intervals) -> Intervals:
        """`x` rounded to float32, performed; in the dtype it has."""
        if x.rounding.format.precision <= FORMATS["float32"].precision:
            return x
        performed = _rounding("float32", self.k, flush=self.flush).performed
        return Intervals([performed(e) for e in x.elements], x.rounding)

    def zeros_like(self, x: Intervals) -> Intervals:
        """Exact zeros."""
        return Intervals([point(0.0)] * len(x.elements), x.rounding)

    def sum(self, x: Intervals) -> Intervals:
        """The sum of all elements, in any order, as an array of one element."""
        return Intervals([_summed(x.elements, x.rounding)], x.rounding)

    def scatter_add(
        self, base: Intervals, indices: tuple[int, ...], values: Intervals
    ) -> Intervals:
        """`base`, with rows added to those of its first axis at `indices`, in any order."""
        terms = [[x] for x in base.elements]
        width = len(values.elements) // max(len(indices), 1)
        for n, index in enumerate(indices):
            for j in range(width):
                terms[index * width + j].append(values.elements[n * width + j])
        return Intervals([_summed(t, base.rounding) for t in terms], base.rounding)

    def take(self, x: Intervals, indices: tuple[int, ...], size: int) -> Intervals:
        """The rows of `x` at `indices`, which may repeat; `size` is the number of rows."""
        width = len(x.elements) // max(size, 1)
        taken = [e for i in indices for e in x.elements[i * width : (i + 1) * width]]
        return Intervals(taken, x.rounding)

    def rows(
        self, new: Intervals, old: Intervals, indices: tuple[int, ...], size: int
    ) -> Intervals:
        """`new` in the rows at `indices`, `old` elsewhere; `size` is the number of rows."""
        width = len(old.elements) // max(size, 1)
        chosen = set(indices)
        pairs = enumerate(zip(new.elements, old.elements, strict=True))
        return Intervals([n if i // width in chosen else o for i, (n, o) in pairs], old.rounding)

    def maximum(self, x: Intervals, y: Any) -> Intervals:
        """The larger of each pair; NaN where either is."""
        pairs = zip(*_broadcast(x.elements, x._meet(y)), strict=True)
        return Intervals([larger(a, b) for a, b in pairs], x.rounding)

    def minimum(self, x: Intervals, y: Any) -> Intervals:
        """The smaller of each pair; NaN where either is."""
        pairs = zip(*_broadcast(x.elements, x._meet(y)), strict=True)
        smaller = [negated(larger(negated(a), negated(b))) for a, b in pairs]
        return Intervals(smaller, x.rounding)

    def lerp_from_end(self, start: Intervals, end: Intervals, weight: Any) -> Intervals:
        """`lerp` from `end`, where 1 - w is computed from a w that was rounded before."""
        around = self.numbers.rounding(start.dtype, 32)
        w = around(self.numbers(weight).x, 1)
        rest = around(added(point(1.0), negated(w)))
        return self.lerp(end, start, Real(rest, around.format.name, self.numbers))

    def lerp(self, start: Intervals, end: Intervals, weight: Any) -> Intervals:
        """The range of (1 - w) start + w end, widened by the roundings of start + w (end - start).

        What may be infinite or NaN follows the second form, as it is computed.
        """
        difference = end - start
        naive = start + weight * difference
        around, k = start.rounding, start.rounding.k
        (w,) = start._meet(weight)[:1] or (point(0.0),)
        rest = added(point(1.0), negated(w))
        result = []
        for a, b, d, n in zip(
            start.elements, end.elements, difference.elements, naive.elements, strict=True
        ):
            if n.low is None or a.low is None or b.low is None or d.low is None:
                result.append(n)
                continue
            exact = added(multiplied(rest, a), multiplied(w, b))
            size = multiplied(w, d)
            size_top = _most([abs(size.low), abs(size.high)])
            extra = k * (2 * around.unit * size_top + 2 * around.eta)
            tight = around(exact)
            low, high = tight.low - extra, tight.high + extra
            low = low if low > n.low else n.low
            high = high if high < n.high else n.high
            result.append(Interval(low, high, n.nan, n.plus, n.minus))
        return Intervals(result, around)
