"""Inverses of symmetric positive definite matrices, on any array library.

Products of matrices do the work; of the `linalg` extension only blocks of few columns see
`cholesky` and `inv`. On NumPy with numba small matrices are for `refopt.interp.blocks`: other
roundings, the same bounds. The library's factor is taken where it proves to be one, since CuPy does
not say when it is none, and dask would give the upper triangle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import (
    array_namespace,
    is_dask_array,
    is_jax_namespace,
    is_numpy_namespace,
    is_torch_namespace,
)

from refopt.interp.formats import FORMATS
from refopt.interp.rounded import HALF


def spd_inverse(xp: Any, A: Any) -> Any:
    """X = A⁻¹ = L⁻ᵀ L⁻¹ of symmetric positive definite matrices A = L Lᵀ.

    ‖A X − I‖₁ ≤ 8 n u ‖A‖₁ ‖X‖₁ on every library, u = 2⁻⁵³ for float64, else 2⁻²⁴: the criterion
    of LAPACK's tests for its own inverse, with 8 for 20. No library needs to compute more
    precisely than its dtype; one that does, as NumPy does inside `linalg`, stays within. With numba
    the last bits are others than without.

    Arguments
    ---------
    xp: the array API namespace of `A`.
    A: shape (…, n, n). Of an asymmetric matrix (A + Aᵀ) / 2 is inverted. float16 and bfloat16
        are inverted in float32, and the result is rounded once.

    Returns
    -------
    Exactly symmetric matrices like `A`. One that is not finite, or not positive definite to
    rounding, gives NaN in each of its elements, and in no other matrix.

    Source
    ------
    Du Croz and Higham 1992, Stability of methods for matrix inversion; LAPACK, `dpot03`.
    """
    return _computed(_spd_inverse, xp, A)


def inverse_cholesky(xp: Any, A: Any) -> Any:
    """W = L⁻¹, lower triangular, of symmetric positive definite matrices A = L Lᵀ.

    ‖W A Wᵀ − I‖ ≤ 8 n u ‖A‖ ‖W‖² in the Frobenius norm; u and arguments as in `spd_inverse`.
    Where a matrix is not finite or not positive definite, the last row is NaN, if not more.
    """
    return _computed(_inverse_cholesky, xp, A)


def _inverse_cholesky(xp: Any, A: Any) -> Any:
    return _inverse(xp, _factor(xp, A, _few(xp)))


def _spd_inverse(xp: Any, A: Any) -> Any:
    return _gram(xp, _panels(xp, _factor(xp, A, _few(xp))))


PANEL = 256  # columns at least that are multiplied at once: fewer are slow, more have more zeros


def _few(xp: Any) -> int:
    """Columns of a block for the library: where `inv` is slow few, else not many calls."""
    return 64 if is_numpy_namespace(xp) else 256


def _computed(function: Callable[[Any, Any], Any], xp: Any, A: Any) -> Any:
    """`function`, with 16 bits in float32, and products in the precision of their dtype."""
    if is_dask_array(A):  # no batched Cholesky, and errors only when it computes
        whole = A.rechunk({A.ndim - 2: -1, A.ndim - 1: -1})
        return whole.map_blocks(
            lambda block: _computed(function, array_namespace(block), block),
            dtype=A.dtype,
            meta=A._meta,
        )
    with silence(xp), _full_precision(xp):
        if str(A.dtype).rpartition(".")[2] in HALF:
            return xp.astype(_computed(function, xp, xp.astype(A, xp.float32)), A.dtype)
        if is_numpy_namespace(xp):
            from refopt.interp import blocks  # above it are the arrays, and they import this

            if blocks.takes(A):
                return blocks.inverse(A, function is _spd_inverse)
        return function(xp, A)


def silence(xp: Any) -> AbstractContextManager[None]:
    """No warnings of NumPy; torch has none, and its compiler refuses the context."""
    return nullcontext() if is_torch_namespace(xp) else np.errstate(all="ignore")


def _full_precision(xp: Any) -> AbstractContextManager[None]:
    """JAX multiplies float32 in fewer bits on GPUs and TPUs, unless told not to."""
    if not is_jax_namespace(xp):
        return nullcontext()
    import jax

    return jax.default_matmul_precision("highest")


class _Leaf(NamedTuple):
    """A triangular matrix of few columns."""

    lower: Any
    inverse: Any


class _Split(NamedTuple):
    """The lower triangular matrix [[head, 0], [below, tail]]."""

    head: _Leaf | _Split
    below: Any
    tail: _Leaf | _Split


def _factor(xp: Any, A: Any, leaf: int) -> _Leaf | _Split:
    """L of (A + Aᵀ) / 2 = L Lᵀ."""
    mT, n = xp.matrix_transpose, A.shape[-1]
    if n <= leaf:
        A = 0.5 * (A + mT(A))
        try:
            return _leaf(xp, A, xp.sqrt(A) if n == 1 else _cholesky(xp, A))
        except ValueError:  # NumPy's LinAlgError, of all because of one
            return _factor(xp, A, 1)
    h = _middle(n, leaf)
    head = _factor(xp, A[..., :h, :h], leaf)
    below = _solve(xp, 0.5 * (A[..., h:, :h] + mT(A[..., :h, h:])), head, transposed=True)
    tail = _factor(xp, A[..., h:, h:] - xp.matmul(below, mT(below)), leaf)
    return _Split(head, below, tail)


def _middle(n: int, leaf: int) -> int:
    """About half of `n`, a multiple of `leaf`."""
    return -(-n // (2 * leaf)) * leaf


def _cholesky(xp: Any, A: Any) -> Any:
    """The library's factor, or whatever it left; torch would raise, and wait for its device."""
    return xp.linalg.cholesky_ex(A)[0] if is_torch_namespace(xp) else xp.linalg.cholesky(A)


def _leaf(xp: Any, A: Any, L: Any) -> _Leaf:
    """L and its inverse; NaN unless L Lᵀ = A to rounding and the diagonal is positive.

    |L Lᵀ − A| ≤ (n + 1) u |L| |Lᵀ| for the computed factor (Higham 2002, theorem 10.3), the
    product adds n u |L| |Lᵀ|, and an element of |L| |Lᵀ| is at most the product of the norms of
    two rows.
    """
    mT, n = xp.matrix_transpose, A.shape[-1]
    norm = xp.linalg.vector_norm(L, axis=-1, keepdims=True)
    bound = 4 * (n + 1) * _unit(A) * (norm * mT(norm))
    proved = xp.all(xp.abs(A - xp.matmul(L, mT(L))) < bound, axis=(-2, -1))
    positive = xp.all(xp.linalg.diagonal(L) > 0, axis=-1)
    good = xp.expand_dims(xp.expand_dims(xp.logical_and(proved, positive), axis=-1), axis=-1)
    L = xp.where(good, L, xp.full_like(L, math.nan))
    # Lᵀ, because no row of it is exchanged in elimination: back substitution alone
    return _Leaf(L, 1 / L if n == 1 else mT(xp.linalg.inv(mT(L))))


def _unit(A: Any) -> float:
    return FORMATS[str(A.dtype).rpartition(".")[2]].unit


def _solve(xp: Any, B: Any, L: _Leaf | _Split, *, transposed: bool) -> Any:
    """X of X L = B, or of X Lᵀ = B.

    A product with the inverse of a leaf leaves an error that grows with the condition of the
    leaf; one correction makes it as small as that of substitution.
    """
    mT = xp.matrix_transpose
    if isinstance(L, _Leaf):
        lower, inverse = map(mT, L) if transposed else L
        X = xp.matmul(B, inverse)
        return X + xp.matmul(B - xp.matmul(X, lower), inverse)
    h = L.below.shape[-1]
    left, right = B[..., :h], B[..., h:]
    if transposed:
        left = _solve(xp, left, L.head, transposed=True)
        right = _solve(xp, right - xp.matmul(left, mT(L.below)), L.tail, transposed=True)
    else:
        right = _solve(xp, right, L.tail, transposed=False)
        left = _solve(xp, left - xp.matmul(right, L.below), L.head, transposed=False)
    return xp.concat([left, right], axis=-1)


def _inverse(xp: Any, L: _Leaf | _Split) -> Any:
    """L⁻¹, with a small L⁻¹ L − I: the residual A X − I needs it."""
    if isinstance(L, _Leaf):
        return L.inverse
    head, below, tail = _inverses(xp, L)
    # of this shape and in C order: `zeros_like` of a transposed array is not, and slow to join
    zeros = xp.reshape(xp.zeros_like(below), xp.matrix_transpose(below).shape)
    return _joined(xp, [[head, zeros], [below, tail]])


def _inverses(xp: Any, L: _Split) -> tuple[Any, Any, Any]:
    """The parts of L⁻¹ = [[head, 0], [below, tail]]."""
    head, tail = _inverse(xp, L.head), _inverse(xp, L.tail)
    strips = [
        xp.matmul(tail[..., own, : own.stop], L.below[..., : own.stop, :])
        for own in _cuts(tail.shape[-1])
    ]
    return head, _solve(xp, -xp.concat(strips, axis=-2), L.head, transposed=False), tail


def _panels(xp: Any, L: _Leaf | _Split) -> list[Any]:
    """L⁻¹ by its columns, without the zeros above the diagonal."""
    parts = [L.inverse] if isinstance(L, _Leaf) else []
    if isinstance(L, _Split):
        head, below, tail = _inverses(xp, L)
        parts = [xp.concat([head, below], axis=-2), tail]
    return [M[..., own.start :, own] for M in parts for own in _cuts(M.shape[-1])]


def _cuts(n: int) -> list[slice]:
    """Of n columns at most four parts: a compiler sees each product."""
    size = max(PANEL, -(-n // 4))
    return [slice(k, min(k + size, n)) for k in range(0, max(n, 1), size)]


def _gram(xp: Any, panels: list[Any]) -> Any:
    """Mᵀ M, exactly symmetric, of a lower triangular M by its columns."""
    mT = xp.matrix_transpose
    lower = []
    for i, W in enumerate(panels):
        half = 0.5 * xp.matmul(mT(W), W)
        beside = [xp.matmul(mT(W), V[..., V.shape[-2] - W.shape[-2] :, :]) for V in panels[:i]]
        lower.append([*beside, half + mT(half)])
    above = [[mT(row[i]) for row in lower[i + 1 :]] for i in range(len(panels))]
    return _joined(xp, [left + right for left, right in zip(lower, above, strict=True)])


def _joined(xp: Any, rows: list[list[Any]]) -> Any:
    """A matrix of its parts."""
    return xp.concat([xp.concat(row, axis=-1) for row in rows], axis=-2)
