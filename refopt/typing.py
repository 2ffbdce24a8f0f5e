"""The closed list of operations a rule may use; every interpreter offers exactly these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

Number: TypeAlias = Any
"""A scalar of some number system: float, float32, interval, ball, symbol, 0-d device array."""


class Array(Protocol):
    """An array of any shape; arithmetic is element-wise and never writes to its operands."""

    def __neg__(self) -> Array: ...
    def __add__(self, other: Any, /) -> Array: ...
    def __radd__(self, other: Any, /) -> Array: ...
    def __sub__(self, other: Any, /) -> Array: ...
    def __rsub__(self, other: Any, /) -> Array: ...
    def __mul__(self, other: Any, /) -> Array: ...
    def __rmul__(self, other: Any, /) -> Array: ...
    def __truediv__(self, other: Any, /) -> Array: ...
    def __rtruediv__(self, other: Any, /) -> Array: ...


class Namespace(Protocol):
    """Functions of arrays: array API 2023.12, plus operations that interpreters know as one."""

    def sqrt(self, x: Array, /) -> Array:
        """Square root, element-wise."""

    def float32(self, x: Array, /) -> Array:
        """`x` rounded to float32, in the dtype it has."""

    def sum(self, x: Array, /) -> Array:
        """The sum of all elements; its shape broadcasts to any."""

    def maximum(self, x: Array, y: Any, /) -> Array:
        """The larger of each pair; NaN where either is."""

    def minimum(self, x: Array, y: Any, /) -> Array:
        """The smaller of each pair; NaN where either is."""

    def scatter_add(self, base: Array, indices: tuple[int, ...], values: Array, /) -> Array:
        """`base`, with rows added to those of its first axis at `indices`, which may repeat.

        Rows of one index are added to it one after the other.
        """

    def take(self, x: Array, indices: tuple[int, ...], size: int, /) -> Array:
        """The rows of `x` at `indices`, which may repeat; `size` is the number of rows."""

    def rows(self, new: Array, old: Array, indices: tuple[int, ...], size: int, /) -> Array:
        """`new` in the rows at `indices`, `old` elsewhere; `size` is the number of rows."""

    def zeros_like(self, x: Array, /) -> Array:
        """Zeros of the shape, dtype, device and layout of `x`."""

    def lerp(self, start: Array, end: Array, weight: Number, /) -> Array:
        """start + weight * (end - start), in this order of operations.

        One operation, because an interval that meets itself twice (`start`) loses track: the
        envelope takes the exact range from (1 - weight) * start + weight * end instead.
        """

    def lerp_from_end(self, start: Array, end: Array, weight: Number, /) -> Array:
        """end - (1 - weight) * (end - start), where `weight` is rounded first.

        To the dtype in which the arrays are computed: float32 for 16-bit arrays.
        """


class Matrices(Namespace, Protocol):
    """A namespace for rules of layers: matrices, and the way their elements lie.

    Where a matrix is not positive definite, or an element of it is no finite number, its inverse
    is NaN; no operation raises.
    """

    def shape(self, x: Array, /) -> tuple[int, ...]:
        """The lengths of the axes."""

    def length(self, x: Array, /) -> int:
        """The length of the first axis."""

    def reshape(self, x: Array, shape: tuple[int, ...], /) -> Array:
        """The elements in C order in another shape; one length may be -1."""

    def permute(self, x: Array, axes: tuple[int, ...], /) -> Array:
        """The axes in another order."""

    def transpose(self, x: Array, /) -> Array:
        """The last two axes swapped."""

    def cut(self, x: Array, slices: tuple[slice, ...], /) -> Array:
        """A part: one slice for each axis."""

    def pad(self, x: Array, widths: Sequence[tuple[int, int]], /) -> Array:
        """Zeros before and after: one pair of numbers for each axis."""

    def stack(self, parts: Sequence[Array], axis: int, /) -> Array:
        """Arrays of one shape along a new axis."""

    def mean(self, x: Array, axis: int, /) -> Array:
        """The mean over one axis, which is dropped."""

    def trace(self, x: Array, /) -> Array:
        """The sum of the diagonal of a matrix, of shape ()."""

    def max_abs(self, x: Array, /) -> Array:
        """The largest absolute value, of shape ()."""

    def float16(self, x: Array, /) -> Array:
        """`x` rounded to float16, in the dtype it has."""

    def counts(self, ids: Array, size: int, like: Array, /) -> Array:
        """How often each number below `size` stands in `ids`, in the dtype of `like`."""

    def eye(self, n: int, like: Array, /) -> Array:
        """The identity (n, n), of the dtype and device of `like`."""

    def diagonal_blocks(self, x: Array, size: int, /) -> Array:
        """The blocks (k, size, size) on the diagonal of a matrix; ones fill up the last one's."""

    def matmul(self, x: Array, y: Array, /) -> Array:
        """The matrix product over the last two axes, the others broadcast."""

    def spd_inverse(self, x: Array, /) -> Array:
        """The inverse of symmetric positive definite matrices (…, n, n)."""

    def inverse_cholesky(self, x: Array, /) -> Array:
        """W = L⁻¹, lower triangular, of x = L Lᵀ (…, n, n)."""


class Numbers(Protocol):
    """A number system for what depends on the step count alone."""

    def __call__(self, x: Number, /) -> Number:
        """`x` as a number of this system; a number that carries a dtype keeps it."""

    def float32(self, x: Number, /) -> Number:
        """`x` rounded to float32; arithmetic with it rounds to float32 at each operation."""

    def float64(self, x: Number, /) -> Number:
        """`x` as a Python float (what `.item()` gives)."""

    def native(self, x: Number, /) -> Number:
        """`x` rounded to the dtype of the parameter this system was made for."""

    def floor(self, x: Number, /) -> Number:
        """The largest integer not above `x`."""

    def ceil(self, x: Number, /) -> Number:
        """The smallest integer not below `x`."""

    @property
    def pi(self) -> Number:
        """π."""

    def cos(self, x: Number, /) -> Number:
        """The cosine of an angle in radians."""

    def log(self, x: Number, /) -> Number:
        """The natural logarithm."""

    def of(self, param: Any, /) -> Numbers:
        """The same system, with `native` meaning the dtype of `param`."""


class Profile(NamedTuple):
    """A named, versioned rule: one choice on every axis, defaults, and what it stores."""

    name: str
    choices: Any  # the rule's Choices: one function per axis
    hyper: Any  # the rule's Hyper with the release's defaults
    half: str = (
        "stored"  # 16-bit: "stored" rounds each stored quantity once, "each" every operation;
        # "float32" is as "each", and float64 is computed in float32 and stored
    )
    source: str = ""  # package, version, class


Params: TypeAlias = Sequence[Any]
