"""Inverses of small symmetric positive definite matrices, compiled by numba.

A = Rᵀ R, V = R⁻¹ with a small R V − I, X = V Vᵀ. Each of them is rows less multiples of rows, by
columns of as many as stay in registers and in the first-level cache. No sum is reordered and
nothing is contracted, so that the results are the same on every processor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.interp import fused

LARGEST = 512
"""Columns up to which this is faster than products of matrices."""
LANES = 32
"""Columns at a time."""

_SOURCE = '''"""Made by refopt.interp.blocks for {machine}."""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = {lanes}
SIZE = np.dtype("{dtype}").itemsize
A_LINE = 64 // SIZE  # beyond the columns, so that rows do not share one set of the cache


# numba does not keep the lanes of a row in registers
@intrinsic
def subtract(context, out, factor, step, row, stride, count):
    def code(context, builder, signature, args):
        out, factor, step, row, stride, count = args
        number = context.get_value_type(types.{dtype})
        lanes = ir.VectorType(number, LANES)
        whole = ir.IntType(32)
        nothing, first = ir.Constant(lanes, ir.Undefined), ir.Constant(whole, 0)
        everywhere = ir.Constant(ir.VectorType(whole, LANES), [0] * LANES)

        def at(address, step, i, kind):
            place = builder.add(address, builder.mul(step, i))
            return builder.inttoptr(place, kind.as_pointer())

        out = builder.inttoptr(out, lanes.as_pointer())
        rest = cgutils.alloca_once(builder, lanes)
        builder.store(builder.load(out, align=SIZE), rest)
        with cgutils.for_range(builder, count) as loop:
            x = builder.load(at(factor, step, loop.index, number))
            x = builder.insert_element(nothing, x, first)
            x = builder.shuffle_vector(x, nothing, everywhere)
            y = builder.load(at(row, stride, loop.index, lanes), align=SIZE)
            builder.store(builder.fsub(builder.load(rest), builder.fmul(x, y)), rest)
        builder.store(builder.load(rest), out, align=SIZE)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), code


@njit(error_model="numpy", nogil=True)
def less(X, i, a, factors, Y, first, last):
    """X[i, a : a + LANES] less the sum of factors[k] Y[k, a : a + LANES] over first ≤ k < last."""
    if first < last:
        subtract(
            X[i, a:].ctypes.data,
            factors[first:].ctypes.data,
            factors.strides[0],
            Y[first, a:].ctypes.data,
            Y.strides[0],
            last - first,
        )


@njit(error_model="numpy", nogil=True)
def factor(A, R):
    """R of (A + Aᵀ) / 2 = Rᵀ R; whether there is one."""
    n = len(A)
    for a in range(0, n, LANES):
        end = min(n, a + LANES)
        for k in range(end):
            for j in range(max(a, k), end):
                R[k, j] = np.{dtype}(0.5) * (A[k, j] + A[j, k])
            less(R, k, a, R[:, k], R, 0, k)
            if k >= a:
                if not 0 < R[k, k] < np.inf:
                    return False
                R[k, k] = np.sqrt(R[k, k])
            pivot = R[k, k]
            for j in range(max(a, k + 1), end):
                R[k, j] /= pivot
    return True


@njit(error_model="numpy", nogil=True)
def invert(R, V, W):
    """V = R⁻¹ and W = Vᵀ; what is beside their triangles stays 0."""
    n = len(R)
    for a in range(0, n, LANES):
        end = min(n, a + LANES)
        for i in range(end - 1, -1, -1):
            V[i, a:end] = 0
            if i >= a:
                V[i, i] = 1
            less(V, i, a, R[i], V, i + 1, end)
            pivot = R[i, i]
            for j in range(max(a, i), end):
                V[i, j] /= pivot
                W[j, i] = V[i, j]


@njit(
    types.void(
        types.Array(types.{dtype}, 3, "A", readonly=True), types.{dtype}[:, :, ::1], types.boolean
    ),
    error_model="numpy",
    nogil=True,
    cache=True,
)
def kernel(As, Xs, whole):
    """Xs = W if not `whole`, else Wᵀ W."""
    n = As.shape[1]
    R, V, W = np.zeros((3, n, -(-n // LANES) * LANES + A_LINE), np.{dtype})
    for A, X in zip(As, Xs):
        if not factor(A, R):
            X[:] = np.nan
            continue
        invert(R, V, W)
        if not whole:
            X[:] = W[:, :n]
            continue
        for a in range(0, n, LANES):
            end = min(n, a + LANES)
            for i in range(a, n):
                R[i, a:end] = 0
                less(R, i, a, V[i], W, i, n)
                for j in range(a, min(end, i + 1)):
                    X[i, j] = X[j, i] = -R[i, j]
'''


def takes(A: Any) -> bool:
    """Whether `inverse` is there for the matrices, and faster."""
    *_, m, n = A.shape
    return (
        isinstance(A, np.ndarray)
        and A.dtype.name in ("float32", "float64")
        and m == n
        and 0 < n <= LARGEST
        and fused.engine() == "numba"
    )


def inverse(A: Any, whole: bool) -> Any:
    """What `linalg.spd_inverse` gives, or `linalg.inverse_cholesky` where not `whole`.

    `A` as `takes` wants it, in any layout.
    """
    given = np.require(np.asarray(A), A.dtype.newbyteorder("="), "A")
    found = np.empty(given.shape, given.dtype)
    shape = (-1, *given.shape[-2:])
    _kernel(given.dtype.name)(given.reshape(shape), found.reshape(shape), whole)
    return found


@functools.cache
def _kernel(dtype: str) -> Callable[[Any, Any, bool], None]:
    """The compiled function."""
    source = _SOURCE.format(machine=fused.compiler(), lanes=LANES, dtype=dtype)
    return fused.loaded(source).kernel
