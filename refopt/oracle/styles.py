"""The documented rule in roundings that are all right: none of them may be called a violation.

An implementation may round each operation, contract a product and a sum to one rounding (FMA),
divide by a reciprocal, and add in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from refopt.interp.arrays import Floats, namespace_of
from refopt.interp.balls import Space
from refopt.oracle import layered, spec
from refopt.oracle.golden import Case, Run
from refopt.oracle.replay import Replay
from refopt.typing import Profile


class Style(NamedTuple):
    """How an implementation rounds."""

    fused: bool = False  # a product that is added or subtracted is not rounded
    reciprocal: bool = False  # x / y is x times 1 / y, and the root x times its reciprocal root
    reversed: bool = False  # sums and products of matrices begin at the end


STYLES = {
    "each operation": Style(),
    "fused": Style(fused=True),
    "reciprocal": Style(reciprocal=True),
    "fused, reciprocal": Style(fused=True, reciprocal=True),
    "reversed": Style(reversed=True),
}


def run(case: Case, profile: Profile, style: Style) -> Run:
    """What an implementation that rounds so does with a case."""
    rule = spec.RULES[case.id.partition(".")[0]]
    if case.layers:
        return layered.numpy_run(rule, case, profile, space=Matrices(style))
    replay = Replay(rule, case, profile, space=Elements(style))
    numbers = [q for q in rule.Clock._fields if q in rule.OBSERVABLE]
    steps: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for t, memory in replay.open_loop():
            if t in case.source["record"]:
                columns = {q: [getattr(s, q) for s in memory.states] for q in rule.State._fields}
                steps[t] = {
                    q: [None if x is None else [float(e) for e in x] for x in column]
                    for q, column in {"param": memory.params, **columns}.items()
                    if any(x is not None for x in column)
                }
                for q in numbers:
                    steps[t][q] = [[float(getattr(c, q))] for c in memory.clocks]
    dtypes = dict.fromkeys(("param", *rule.State._fields), case.dtypes)
    counters = dict.fromkeys(numbers, ["float64"] * len(case.params))
    return Run(profile.name, steps, dtypes | counters)


class Element:
    """A number of a dtype; an operation gives another, rounded in a style."""

    __slots__ = ("factors", "style", "value")

    def __init__(self, value: Any, style: Style, factors: tuple[Any, Any] | None = None) -> None:
        self.value, self.style = value, style
        self.factors = factors  # of a product

    def __float__(self) -> float:
        return float(self.value)

    def _other(self, other: Any) -> Element:
        """A scalar meets an array: one rounding."""
        if isinstance(other, Element):
            return other
        return Element(type(self.value)(float(other)), self.style)

    def __neg__(self) -> Element:
        negated = None if self.factors is None else (-self.factors[0], self.factors[1])
        return Element(-self.value, self.style, negated)

    def __add__(self, other: Any) -> Element:
        x, y = self, self._other(other)
        if self.style.fused and (x.factors or y.factors):
            x, y = (x, y) if x.factors else (y, x)
            assert x.factors is not None
            if all(map(math.isfinite, (*x.factors, x.value, y.value))):
                exact = Fraction(float(x.factors[0])) * Fraction(float(x.factors[1]))
                whole = exact + Fraction(float(y.value))
                return Element(type(self.value)(float(whole)), self.style)
        return Element(x.value + y.value, self.style)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Element:
        return self + -self._other(other)

    def __rsub__(self, other: Any) -> Element:
        return self._other(other) - self

    def __mul__(self, other: Any) -> Element:
        x, y = self.value, self._other(other).value
        return Element(x * y, self.style, (x, y))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Element:
        x, y = self.value, self._other(other).value
        return Element(x * (type(x)(1) / y) if self.style.reciprocal else x / y, self.style)

    def __rtruediv__(self, other: Any) -> Element:
        return self._other(other) / self

    def sqrt(self) -> Element:
        """The square root."""
        x, one = self.value, type(self.value)(1)
        inverse = self.style.reciprocal and math.isfinite(x) and x > np.finfo(type(x)).tiny
        return Element(x * (one / np.sqrt(x)) if inverse else np.sqrt(x), self.style)


def _array(elements: list[Any]) -> Any:
    result = np.empty(len(elements), dtype=object)
    result[:] = elements
    return result


class Host(Floats):
    """Python floats, whatever the parameter is."""

    def of(self, param: Any, /) -> Floats:
        """The same."""
        return self


class Elements(Space):
    """The namespace of object arrays of elements in a style."""

    numbers: Any = Host()

    def __init__(self, style: Style) -> None:
        self.style = style

    def array(self, values: Any, dtype: str) -> Any:
        """Numbers of a dtype, shape (n,)."""
        return _array([Element(np.dtype(dtype).type(x), self.style) for x in values])

    def _each(self, x: Any, f: Callable[[Any], Any]) -> Any:
        return _array([Element(f(e.value), self.style) for e in x])

    def sqrt(self, x: Any) -> Any:
        """Square root, element-wise."""
        return _array([e.sqrt() for e in x])

    def float32(self, x: Any) -> Any:
        """`x` rounded to float32, in the dtype it has."""
        return self._each(x, lambda value: type(value)(np.float32(value)))

    def zeros_like(self, x: Any) -> Any:
        """Zeros like `x`."""
        return self._each(x, lambda value: type(value)(0))

    def sum(self, x: Any) -> Any:
        """The sum of all elements, shape (1,)."""
        first, *rest = [*(reversed(x) if self.style.reversed else x)] or [Element(0.0, self.style)]
        return _array([sum(rest, first)])

    def take(self, x: Any, indices: tuple[int, ...], size: int) -> Any:
        """The rows of `x` at `indices`, which may repeat; `size` is the number of rows."""
        width = len(x) // max(size, 1)
        return _array([e for i in indices for e in x[i * width : (i + 1) * width]])

    def maximum(self, x: Any, y: Any) -> Any:
        """The larger of each pair; NaN where either is."""
        pairs = np.broadcast_arrays(x, np.asarray(y, dtype=object))
        every = (e for e in (*np.ravel(x), *np.ravel(y)) if isinstance(e, Element))
        one = next(every, Element(0.0, self.style))
        return _array(
            [
                Element(np.maximum(one._other(a).value, one._other(b).value), self.style)
                for a, b in zip(*pairs, strict=True)
            ]
        )

    def lerp(self, start: Any, end: Any, weight: Any) -> Any:
        """start + weight * (end - start), in this order."""
        return start + weight * (end - start)

    def lerp_from_end(self, start: Any, end: Any, weight: Any) -> Any:
        """end - (1 - weight) * (end - start), where `weight` is rounded first."""
        rounded = start[0]._other(weight) if len(start) else weight
        return end - (1 - rounded) * (end - start)


class Matrices:
    """The namespace of NumPy arrays, in which products of matrices add in the order of a style."""

    def __init__(self, style: Style) -> None:
        self.style, self.numbers = style, Floats()
        self._plain: Any = namespace_of(np.ones(1))

    def array(self, values: Any, dtype: str) -> Any:
        """The values in a dtype."""
        return np.asarray(values, dtype)

    def matmul(self, x: Any, y: Any) -> Any:
        """The matrix product, one term after the other."""
        order = range(x.shape[-1])
        terms = (x[..., :, k, None] * y[..., None, k, :] for k in order[:: self._direction])
        first = next(terms)
        return sum(terms, first)

    @property
    def _direction(self) -> int:
        return -1 if self.style.reversed else 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def runs(case: Case, profile: Profile) -> Iterator[tuple[str, Run]]:
    """The case in every style; of layers in those that concern sums."""
    for name, style in STYLES.items():
        if not case.layers or not (style.fused or style.reciprocal):
            yield name, run(case, profile, style)
