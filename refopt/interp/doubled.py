"""Double-double arithmetic: each element is the sum of two numbers, not evaluated.

A fast reference for float64: about 106 bits from + - * / and the square root alone, on any array
library that rounds each operation. One that contracts (a·b + c with one rounding) is refused.
Arrays of float32 work as well, with about 48 bits. A low part is 0 beside an infinity or a NaN.
Above 2⁹⁹⁶, and where a product is below 2⁻⁹⁶⁸, low parts are lost; so is the sign of a zero.

Source: M. Joldes, J.-M. Muller, V. Popescu, Tight and rigorous error bounds for basic building
blocks of double-word arithmetic (2017), algorithms 6, 10 and 17; their bounds as corrected by
J.-M. Muller and L. Rideau (2022); for the root V. Lefèvre, N. Louvet, J.-M. Muller, J. Picot and
L. Rideau, Accurate calculation of Euclidean norms using double-word arithmetic (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import flint
import numpy as np
from array_api_compat import is_jax_array

from refopt.interp import fused, trace
from refopt.interp.arrays import ArrayNamespace, dtype_name, namespace_of, place
from refopt.interp.balls import Balls, end_rounded, precision
from refopt.interp.formats import FORMATS
from refopt.interp.host import to_numpy
from refopt.interp.rounded import bfloat16, rounding_to

Part = Any
"""An array of one library, in float32 or float64."""
Parts = tuple[Part, Part]

SPLITTERS = {"float64": 2.0**27 + 1, "float32": 2.0**12 + 1}
"""2ˢ + 1, which cuts a significand into two halves, s = ⌈p / 2⌉."""


def two_sum(a: Part, b: Part) -> Parts:
    """The rounded sum, and its error."""
    s = a + b
    without = s - b
    return s, (a - without) + (b - (s - without))


def fast_two_sum(a: Part, b: Part) -> Parts:
    """The same, for |a| ≥ |b|."""
    s = a + b
    return s, b - (s - a)


def split(a: Part, splitter: float) -> Parts:
    """Two halves of the digits of `a`; their sum is `a`."""
    c = splitter * a
    high = c - (c - a)
    return high, a - high


def two_product(a: Part, b: Part, splitter: float) -> Parts:
    """The rounded product, and its error."""
    p = a * b
    (a1, a2), (b1, b2) = split(a, splitter), split(b, splitter)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


@dataclass(frozen=True, slots=True)
class Library:
    """What pairs need of an array library besides + - * /."""

    xp: ArrayNamespace
    dtype: str  # of either part

    def sqrt(self, x: Part) -> Part:
        """Square root, element-wise."""
        return self.xp.sqrt(x)

    def zero(self, x: Part) -> Part:
        """A low part that says: exact."""
        return self.xp.zeros_like(x)

    def known(self, x: Part) -> Part:
        """`x`, and 0 where it is NaN."""
        return self.xp.xp.where(x == x, x, self.xp.zeros_like(x))

    def parts(self, x: Any, like: Part) -> tuple[Any, Any]:
        """An array, exactly; or a number, cut into two of shape () beside `like`."""
        if not isinstance(x, flint.arb | float | int):
            return x, self.zero(x)
        high, low = halves(x, self.dtype)
        kind = {"dtype": like.dtype, "device": place(like)}
        return self.xp.xp.asarray(high, **kind), self.xp.xp.asarray(low, **kind)


def halves(x: Any, dtype: str) -> tuple[float, float]:
    """A number or the middle of a ball, rounded; and the rest, rounded."""
    with precision():
        high = end_rounded(flint.arb(x).mid(), FORMATS[dtype])
        low = end_rounded((x - high).mid(), FORMATS[dtype])
    return float(high), float(low) if low.is_finite() else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Doubled:
    """An array whose elements are high + low, where |low| ≤ ulp(high) / 2; made by `doubled`."""

    high: Part
    low: Part
    of: Any  # a Library, or Symbols
    __array_ufunc__: ClassVar[None] = None  # array OP Doubled is left to Doubled

    def __neg__(self) -> Doubled:
        return replace(self, high=-self.high, low=-self.low)

    @np.errstate(all="ignore")
    def __add__(self, other: Any) -> Doubled:
        a, b = self.beside(other)
        (s, e), (t, f) = two_sum(self.high, a), two_sum(self.low, b)
        v, w = fast_two_sum(s, self.of.known(e + t))
        return self._pair(v, f + w)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Doubled:
        a, b = self.beside(other)
        return self + replace(self, high=-a, low=-b)

    def __rsub__(self, other: Any) -> Doubled:
        return -self + other

    @np.errstate(all="ignore")
    def __mul__(self, other: Any) -> Doubled:
        a, b = self.beside(other)
        p, e = two_product(self.high, a, SPLITTERS[self.of.dtype])
        return self._pair(p, e + (self.high * b + self.low * a))

    __rmul__ = __mul__

    @np.errstate(all="ignore")
    def __truediv__(self, other: Any) -> Doubled:
        a, b = self.beside(other)
        q = self.high / a
        rest = self - replace(self, high=q, low=self.of.zero(q)) * replace(self, high=a, low=b)
        return self._pair(q, rest.high / a)

    def __rtruediv__(self, other: Any) -> Doubled:
        a, b = (x + self.of.zero(self.high) for x in self.beside(other))
        return replace(self, high=a, low=b) / self

    @np.errstate(all="ignore")
    def sqrt(self) -> Doubled:
        """The square root of each element; NaN below 0."""
        root = self.of.sqrt(self.high)
        exact = replace(self, high=root, low=self.of.zero(root))
        return self._pair(root, (self - exact * exact).high / (root + root))

    def beside(self, x: Any) -> tuple[Any, Any]:
        """The parts of what is computed with."""
        return (x.high, x.low) if isinstance(x, Doubled) else self.of.parts(x, self.high)

    def each(self, function: Callable[..., Part], *others: Doubled) -> Doubled:
        """A function that moves elements, of both parts."""
        high, low = ([getattr(x, part) for x in (self, *others)] for part in ("high", "low"))
        return replace(self, high=function(*high), low=function(*low))

    def _pair(self, high: Part, low: Part) -> Doubled:
        """A result with its error."""
        s, e = fast_two_sum(high, self.of.known(low))
        return replace(self, high=s, low=self.of.known(e))


def doubled(high: Part, low: Part | None = None) -> Doubled:
    """An array of float64 (or float32), exactly; or the sum of two.

    Raises
    ------
    TypeError
        Another dtype, or a library that contracts operations, where pairs would lose their digits.
    """
    xp = namespace_of(high, low)
    if (dtype := dtype_name(high)) not in SPLITTERS:
        message = f"an array of float64 or float32 is required, got {dtype}"
        raise TypeError(message)
    traced = _is_traced(high)
    if contracts(xp, dtype, traced):
        where = " under jit" if traced else ""
        message = f"a library that rounds each operation is required, got {xp.xp.__name__}{where}"
        raise TypeError(message)
    of = Library(xp, dtype)
    exact = Doubled(high, of.zero(high), of)
    return exact if low is None else exact + low


def _is_traced(x: Part) -> bool:
    if not is_jax_array(x):
        return False
    from jax.core import Tracer

    return isinstance(x, Tracer)


@cache
def contracts(xp: ArrayNamespace, dtype: str, jit: bool) -> bool:
    """Whether √((a² + 0.9 b) / c / 0.3) loses more than the algorithms can: 23 u² of its value.

    5 u² for a product, 3 u² for the sum and 15 u² for each quotient are halved by the root, which
    adds 25/8 u²; u = 2⁻⁵³ in float64. A square and a product with a number are what compilers
    contract first.
    """
    values = np.random.default_rng(0).uniform(1, 2, (3, 256)).astype(dtype)
    near, third = (float(np.asarray(x, dtype)) for x in (0.9, 0.3))

    def parts(*rows: Part) -> Parts:
        of = Library(xp, dtype)
        x, y, z = (Doubled(row, of.zero(row), of) for row in rows)
        root = ((x * x + near * y) / z / third).sqrt()
        return root.high, root.low

    if jit:
        import jax

        with jax.ensure_compile_time_eval():
            found = jax.jit(parts)(*values)
    else:
        found = parts(*(xp.xp.asarray(row) for row in values))
    high, low = (to_numpy(part).tolist() for part in found)
    with precision():
        bound = 23 * flint.arb(2) ** (-2 * FORMATS[dtype].precision)
        exact = values.astype("float64").tolist()
        return not all(
            abs(
                (flint.arb(h) + e) / ((flint.arb(a) * a + near * flint.arb(b)) / c / third).sqrt()
                - 1
            )
            <= bound
            for h, e, a, b, c in zip(high, low, *exact, strict=True)
        )


class Pairs:
    """The namespace (`refopt.typing.Namespace`) of double-double arrays."""

    def sqrt(self, x: Doubled, /) -> Doubled:
        return x.sqrt()

    def zeros_like(self, x: Doubled, /) -> Doubled:
        return x.each(x.of.xp.zeros_like)

    def lerp(self, start: Doubled, end: Doubled, weight: Any, /) -> Doubled:
        return (1 - weight) * start + weight * end

    def lerp_from_end(self, start: Doubled, end: Doubled, weight: Any, /) -> Doubled:
        """The same: nothing is rounded."""
        return self.lerp(start, end, weight)

    def float32(self, x: Doubled, /) -> Doubled:
        """`x` rounded to float32, performed."""
        return _stored(x, rounding_to(x.of.xp.xp.float32))

    def maximum(self, x: Doubled, y: Any, /) -> Doubled:
        """The larger of each pair."""
        where = x.of.xp.xp.where
        a, b = (part + x.of.zero(x.high) for part in x.beside(y))
        low = where(x.high < a, b, x.of.xp.maximum(x.low, b))
        return replace(x, high=x.of.xp.maximum(x.high, a), low=where(x.high > a, x.low, low))

    def minimum(self, x: Doubled, y: Any, /) -> Doubled:
        """The smaller of each pair."""
        return -self.maximum(-x, -y)

    def sum(self, x: Doubled, /) -> Doubled:
        """The sum of all elements, of shape (), by halves."""
        x = x.each(lambda part: x.of.xp.xp.reshape(part, (-1,)))
        while (n := x.high.shape[0]) > 1:
            low, high = range(n // 2), range(n // 2, n - n % 2)
            folded = self.take(x, (*low,), n) + self.take(x, (*high,), n)
            rest = self.take(x, (*range(n - n % 2, n),), n)
            x = folded.each(lambda *parts: x.of.xp.xp.concat(parts), rest)  # noqa: B023
        return x.each(x.of.xp.sum)

    def take(self, x: Doubled, indices: tuple[int, ...], size: int, /) -> Doubled:
        """The rows of `x` at `indices`, which may repeat; `size` is the number of rows."""
        n = x.high.shape[0]
        return x.each(lambda part: x.of.xp.take(part, _elements(indices, n, size), n))

    def rows(self, new: Doubled, old: Doubled, indices: tuple[int, ...], size: int, /) -> Doubled:
        """`new` in the rows at `indices`, `old` elsewhere; `size` is the number of rows."""
        n = old.high.shape[0]
        return new.each(lambda a, b: new.of.xp.rows(a, b, _elements(indices, n, size), n), old)

    def scatter_add(self, base: Doubled, indices: tuple[int, ...], values: Doubled, /) -> Doubled:
        """`base`, with rows added to those of its first axis at `indices`, which may repeat."""
        size = base.high.shape[0] * len(indices) // max(values.high.shape[0], 1)
        for n, i in enumerate(indices):
            added = base + self.take(values, (n,) * size, len(indices))
            base = self.rows(added, base, (i,), size)
        return base


def _elements(indices: tuple[int, ...], length: int, size: int) -> tuple[int, ...]:
    """Where rows lie on a first axis that has several elements of each row one after the other."""
    width = length // max(size, 1)
    return tuple(i * width + j for i in indices for j in range(width))


def _stored(x: Doubled, cast: Callable[[Part], Part]) -> Doubled:
    """The sum of both parts rounded once, to the nearest number that `cast` gives.

    Where the high part is halfway between two of them, the sign of the low part decides.
    """
    near = cast(x.high)
    other = x.high + (x.high - near)
    decided = (other != near) & (cast(other) == other) & (x.low * (x.high - near) > 0)
    return replace(x, high=x.of.xp.xp.where(decided, other, near), low=x.of.zero(near))


# -- fused ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Symbols:
    """What pairs of symbols need; numbers are cut into two on the host."""

    dtype: str = "float64"

    def sqrt(self, x: Part) -> Part:
        """Square root."""
        return trace.apply("sqrt", x)

    def zero(self, x: Part) -> Part:
        """A low part that says: exact."""
        return trace.lift(0.0)

    def known(self, x: Part) -> Part:
        """`x`, and 0 where it is NaN."""
        return trace.apply("known", x)

    def parts(self, x: Any, like: Part) -> tuple[Any, Any]:
        """An expression of numbers, cut into two."""
        return trace.apply("high", x), trace.apply("low", x)


def program(rule: Any, profile: Any, hyper: Any, kept: Sequence[str]) -> fused.Program:
    """The trace of a step on pairs, for `fused`: to each array belongs one that ends in "_low".

    The gradient alone is exact. Arguments as those of `fused.program`; `numbers` gives its scalars.
    """

    def pair(name: str) -> Doubled:
        return Doubled(trace.name(name), trace.name(f"{name}_low"), Symbols())

    quantities, after = rule.step(
        pair("param"),
        Doubled(trace.name("grad"), Symbols().zero(None), Symbols()),
        rule.State(*(pair(f) if f in kept else None for f in rule.State._fields)),
        trace.symbols(rule.Scalars, "s"),
        trace.symbols(type(hyper), "h", hyper),
        profile.choices,
        xp=Pairs(),
    )
    results = {"param": quantities.param, **{f: getattr(after, f) for f in kept}}
    parts = {name: x.high for name, x in results.items()}
    parts |= {f"{name}_low": x.low for name, x in results.items()}
    return fused.assembled(parts, "float64", "stored")


def numbers(program: fused.Program, s: Any, h: Any) -> Any:
    """The scalars of a program of pairs, from numbers that are balls."""
    cuts = {"high": lambda x: halves(x, "float64")[0], "low": lambda x: halves(x, "float64")[1]}
    with precision():
        return np.array([eval(x, {**cuts, "s": s, "h": h}) for x in program.scalars])


# -- the oracle -----------------------------------------------------------------------------------
class Space(Pairs):
    """Runs a case of the suite (`oracle.replay.Replay`): pairs of NumPy, numbers that are balls."""

    numbers = Balls()

    def array(self, values: list[float], dtype: str) -> Doubled:
        """Exact numbers, shape (n,)."""
        return doubled(np.array(values, "float64"))

    def cast(self, x: Doubled, dtype: str, *, stored: str | None = None) -> Doubled:
        """`x`, after one rounding to the dtype `stored`, performed."""
        if stored is None:
            return x
        narrow = bfloat16 if stored == "bfloat16" else rounding_to(np.dtype(stored))
        return _stored(x, lambda part: np.asarray(narrow(part), "float64"))
