"""What the host asks about arrays of any library: finite or not, how large, how well conditioned.

Each question waits for the device once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from refopt.interp.host import placed, to_numpy
from refopt.interp.rounded import lift, plain


def finite(arrays: Sequence[Any]) -> list[bool]:
    """Whether all elements are finite, of each array."""
    if not arrays:
        return []
    xp = array_namespace(arrays[0])
    flags = xp.stack([xp.all(xp.isfinite(x)) for x in arrays])
    return [bool(flag) for flag in to_numpy(flags)]


def finite_blocks(x: Any) -> list[bool]:
    """Whether all elements are finite, of each matrix (blocks, n, n); of a vector as one block."""
    xp = array_namespace(x)
    axes = (-2, -1) if x.ndim > 2 else None
    return [bool(flag) for flag in to_numpy(xp.all(xp.isfinite(x), axis=axes)).reshape(-1)]


def bounds(ids: Any) -> tuple[int, int]:
    """The smallest and the largest of integers."""
    xp = array_namespace(ids)
    low, high = to_numpy(xp.stack([xp.min(ids), xp.max(ids)]))
    return int(low), int(high)


def norm(x: Any) -> float:
    """The root of the sum of squares, in double precision."""
    return float(np.linalg.norm(to_numpy(x).astype(np.float64).reshape(-1)))


def conditions(x: Any, n: int) -> list[float]:
    """The condition numbers of the diagonal blocks of a matrix (n, n), in the Euclidean norm.

    They are those of its inverse, which is given: (blocks, size, size), the last one filled up; or
    as the diagonal (n,), which is one block.
    """
    host = to_numpy(x).astype(np.float64)
    if host.ndim == 1:
        return [float(np.max(np.abs(host)) / np.min(np.abs(host)))]
    size = host.shape[-1]
    return [
        float(np.linalg.cond(block[:k, :k]))
        for start, block in zip(range(0, n, size), host, strict=True)
        if (k := min(size, n - start))
    ]


def positions(size: int, kernel: int, window: Any) -> int:
    """How many places a kernel has along an axis; `window` is that of `refopt.rules.thor`."""
    room = size + sum(window.zeros) - window.dilation * (kernel - 1)
    return max(0, -(-room // window.stride))


def on_host(
    function: Callable[[list[list[tuple[Any, ...]]]], list[tuple[Any, ...]]],
) -> Callable[[list[list[tuple[Any, ...]]]], list[tuple[Any, ...]]]:
    """A function of parts, lists of tuples of NumPy arrays, as one of arrays of any library.

    Its result, which has the shapes of one part, goes where the first part is, dtype kept.
    """

    def through(parts: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        there = [[tuple(to_numpy(plain(x)) for x in own) for own in part] for part in parts]
        return [
            tuple(map(_like, own, new)) for new, own in zip(function(there), parts[0], strict=True)
        ]

    return through


def _like(old: Any, new: Any) -> Any:
    """The array of NumPy where `old` is, in its dtype."""
    return lift(lambda x: placed(new, x, x.dtype), old)
