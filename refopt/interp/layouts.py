"""Matrices of any array library (`refopt.typing.Matrices`): cut, moved, multiplied, inverted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import device, is_dask_namespace, is_jax_array, is_jax_namespace

from refopt.interp import linalg
from refopt.interp.rounded import lift, plain, rounding_to


class Layouts:
    """What a namespace of arrays adds for rules of layers; `xp` is the library's own."""

    __slots__ = ()
    xp: Any

    def shape(self, x: Any, /) -> tuple[int, ...]:
        return tuple(plain(x).shape)

    def length(self, x: Any, /) -> int:
        return int(plain(x).shape[0])

    def reshape(self, x: Any, shape: tuple[int, ...], /) -> Any:
        return lift(lambda a: self.xp.reshape(a, shape), x)

    def permute(self, x: Any, axes: tuple[int, ...], /) -> Any:
        return lift(lambda a: self.xp.permute_dims(a, axes), x)

    def transpose(self, x: Any, /) -> Any:
        return lift(self.xp.matrix_transpose, x)

    def cut(self, x: Any, slices: tuple[slice, ...], /) -> Any:
        return lift(lambda a: a[slices], x)

    def pad(self, x: Any, widths: Sequence[tuple[int, int]], /) -> Any:
        def padded(a: Any) -> Any:
            for axis, (before, after) in enumerate(widths):
                parts = [self._zeros(a, axis, before), a, self._zeros(a, axis, after)]
                a = self.xp.concat([p for p in parts if p is not None], axis=axis)
            return a

        return lift(padded, x) if any(n for pair in widths for n in pair) else x

    def stack(self, parts: Sequence[Any], axis: int, /) -> Any:
        return lift(lambda *xs: self.xp.stack(xs, axis=axis), *parts)

    def mean(self, x: Any, axis: int, /) -> Any:
        return lift(lambda a: self.xp.mean(a, axis=axis), x)

    def trace(self, x: Any, /) -> Any:
        return lift(self.xp.linalg.trace, x)

    def max_abs(self, x: Any, /) -> Any:
        return lift(lambda a: self.xp.max(self.xp.abs(a)), x)

    def float16(self, x: Any, /) -> Any:
        if is_dask_namespace(self.xp):
            return lift(rounding_to(np.dtype("float16")), x)
        if not hasattr(self.xp, "float16"):
            message = f"float16: the array library must have it, {self.xp.__name__} has not"
            raise TypeError(message)
        return lift(rounding_to(self.xp.float16), x)

    def counts(self, ids: Any, size: int, like: Any, /) -> Any:
        xp, flat = self.xp, self.xp.reshape(plain(ids), (-1,))
        if is_jax_namespace(xp):
            found = xp.bincount(flat, length=size)
        elif hasattr(xp, "bincount"):
            found = xp.bincount(flat, minlength=size)
        else:
            names = xp.arange(size, dtype=flat.dtype, device=_place(flat))
            hits = xp.reshape(flat, (-1, 1)) == xp.reshape(names, (1, -1))
            found = xp.sum(xp.astype(hits, plain(like).dtype), axis=0)
        return lift(lambda a: xp.astype(found, a.dtype), like)

    def eye(self, n: int, like: Any, /) -> Any:
        return lift(lambda a: self.xp.eye(n, dtype=a.dtype, device=_place(a)), like)

    def diagonal_blocks(self, x: Any, size: int, /) -> Any:
        n = self.shape(x)[-1]
        k, rest = divmod(n, size)
        whole, short = n - rest, size - rest

        def blocks(a: Any) -> Any:
            xp = self.xp
            tiles = xp.reshape(a[:whole, :whole], (k, size, k, size))
            return xp.permute_dims(
                xp.linalg.diagonal(xp.permute_dims(tiles, (1, 3, 0, 2))), (2, 0, 1)
            )

        parts = [lift(blocks, x)] if k or not rest else []
        if rest:
            last = self.cut(x, (slice(whole, n), slice(whole, n)))
            ones = self.pad(self.eye(short, x), ((rest, 0), (rest, 0)))
            last = self.pad(last, ((0, short), (0, short))) + ones
            parts.append(self.reshape(last, (1, size, size)))
        return lift(lambda *xs: self.xp.concat(xs, axis=0), *parts) if rest and k else parts[0]

    def matmul(self, x: Any, y: Any, /) -> Any:
        return lift(self.xp.matmul, x, y)

    def spd_inverse(self, x: Any, /) -> Any:
        return lift(lambda a: linalg.spd_inverse(self.xp, a), x)

    def inverse_cholesky(self, x: Any, /) -> Any:
        return lift(lambda a: linalg.inverse_cholesky(self.xp, a), x)

    def _zeros(self, x: Any, axis: int, n: int) -> Any:
        shape = (*x.shape[:axis], n, *x.shape[axis + 1 :])
        return self.xp.zeros(shape, dtype=x.dtype, device=_place(x)) if n else None


def _place(x: Any) -> Any:
    return None if is_jax_array(x) else device(x)
