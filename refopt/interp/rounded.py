"""Numbers and arrays that carry a dtype of their own: every operation is rounded to it.

Releases keep some scalars in float32, and compute 16-bit arrays in float32 with one rounding
after each operation. Both are written here once, for any array library.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, is_jax_array

from refopt.interp.formats import FORMATS, rounded

Operation = Callable[[Any, Any], Any]


class Carried(float):
    """A Python float that carries a dtype: arithmetic rounds to it after each operation.

    A plain number beside it is rounded to that dtype first; of two dtypes the wider wins. The
    16-bit dtypes compute in float32 and round the result once. Beside an array it is a Python
    float, which no array library lets decide the dtype of the result.
    """

    dtype: ClassVar[str] = "float64"
    __slots__ = ()
    # NumPy, CuPy and dask accept no subclass of float as a Python scalar: they leave it to ours.
    __array_ufunc__ = None

    def __new__(cls, x: Any) -> Carried:
        """`x` rounded to the dtype."""
        if cls.dtype in HALF:  # a Python number reaches a 16-bit tensor by way of float32
            x = rounded(float(x), FORMATS["float32"])
        return super().__new__(cls, rounded(float(x), FORMATS[cls.dtype]))

    def _with(self, operation: Operation, other: Any, *, reflected: bool = False) -> Any:
        if isinstance(other, Carried):
            kind = max(type(self), type(other), key=lambda k: FORMATS[k.dtype].precision)
        elif type(other) in (int, float):
            kind = type(self)
            other = carried(_compute(kind.dtype))(other)
        elif isinstance(other, (list, tuple, str, dict)) or other is None:
            return NotImplemented
        else:
            a, b = float(self), other
            return operation(b, a) if reflected else operation(a, b)
        a, b = float(self), float(other)
        result = _ieee(operation, b, a) if reflected else _ieee(operation, a, b)
        return kind(result)

    def __neg__(self) -> Carried:
        return type(self)(-float(self))

    def __add__(self, other: Any) -> Any:
        return self._with(operator.add, other)

    def __radd__(self, other: Any) -> Any:
        return self._with(operator.add, other, reflected=True)

    def __sub__(self, other: Any) -> Any:
        return self._with(operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with(operator.sub, other, reflected=True)

    def __mul__(self, other: Any) -> Any:
        return self._with(operator.mul, other)

    def __rmul__(self, other: Any) -> Any:
        return self._with(operator.mul, other, reflected=True)

    def __truediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, other, reflected=True)

    def __pow__(self, other: Any, modulus: None = None) -> Any:
        return self._with(operator.pow, other)

    def __rpow__(self, other: Any, modulus: None = None) -> Any:
        return self._with(operator.pow, other, reflected=True)


class Float16(Carried):
    """IEEE half precision."""

    dtype = "float16"
    __slots__ = ()


class BFloat16(Carried):
    """The upper half of float32."""

    dtype = "bfloat16"
    __slots__ = ()


class Float32(Carried):
    """IEEE single precision."""

    dtype = "float32"
    __slots__ = ()


class Float64(Carried):
    """IEEE double precision: a Python float that wins over narrower numbers."""

    dtype = "float64"
    __slots__ = ()


HALF = frozenset({"float16", "bfloat16"})
"""The dtypes of 16 bits; all compute in float32."""

_KINDS = {kind.dtype: kind for kind in (Float16, BFloat16, Float32, Float64)}


def carried(dtype: str) -> type[Carried]:
    """The numbers of a dtype, by its name."""
    return _KINDS[dtype]


def _compute(dtype: str) -> str:
    return "float32" if dtype in HALF else dtype


def _ieee(operation: Operation, a: float, b: float) -> float:
    """The operation in float64 as IEEE 754 defines it, where Python raises or turns complex.

    One rounding to float64 and another to float32 are together the right rounding to float32,
    for + - * / and the square root (Figueroa 1995).
    """
    try:
        result = operation(a, b)
    except ArithmeticError:
        result = None
    if isinstance(result, float):
        return result
    with np.errstate(all="ignore"):
        return float(operation(np.float64(a), np.float64(b)))


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """An array, and what follows each operation with it: the rounding of its dtype.

    The values are float32 for the 16-bit dtypes.
    """

    array: Any
    dtype: str
    rounding: Callable[[Any], Any]
    __array_ufunc__: ClassVar[None] = None  # array OP Rounded is left to Rounded

    def __neg__(self) -> Rounded:
        return replace(self, array=-self.array)

    def __add__(self, other: Any) -> Any:
        return lift(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return lift(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return lift(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return lift(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return lift(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return lift(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return lift(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return lift(operator.truediv, other, self)

    def __pow__(self, other: Any) -> Any:
        return lift(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Any:
        return lift(operator.pow, other, self)


def lift(function: Callable[..., Any], *operands: Any) -> Any:
    """`function` of the plain operands, rounded as the narrowest `Rounded` among them says."""
    result = function(*(plain(x) for x in operands))
    wrapped = [x for x in operands if isinstance(x, Rounded)]
    if not wrapped:
        return result
    narrowest = min(wrapped, key=lambda x: FORMATS[x.dtype].precision)
    return replace(narrowest, array=narrowest.rounding(result))


def plain(x: Any) -> Any:
    """The array or Python number inside, as array libraries know it."""
    if isinstance(x, Carried):
        return float(x)
    return x.array if isinstance(x, Rounded) else x


def rounding_to(dtype: Any) -> Callable[[Any], Any]:
    """The function that rounds an array to `dtype` of its library, in the dtype that it has."""

    def there_and_back(x: Any) -> Any:
        xp = array_namespace(x)
        if x.dtype == dtype:
            return x
        narrow = xp.astype(x, dtype)
        if is_jax_array(x):  # on GPUs XLA drops a cast and the way back (openxla/xla#41605)
            from jax import lax

            narrow = lax.optimization_barrier(narrow)
        return xp.astype(narrow, x.dtype)

    return there_and_back


def bfloat16(x: Any) -> Any:
    """A float32 array rounded to the values of bfloat16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return np.where(np.isnan(x), x, kept.view(np.float32))
