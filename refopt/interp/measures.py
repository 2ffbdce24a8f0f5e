"""What the host asks about arrays of any library: finite or not, how large, how well conditioned.

Each question waits for the device once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_dask_array, is_torch_array

from refopt.interp.arrays import dtype_name
from refopt.interp.formats import FORMATS
from refopt.interp.host import placed, to_numpy
from refopt.interp.rounded import lift, plain


def finite(arrays: Sequence[Any]) -> list[bool]:
    """Whether all elements are finite, of each array."""
    if not arrays:
        return []
    xp = array_namespace(arrays[0])
    flags = xp.stack([xp.all(xp.isfinite(x)) for x in arrays])
    return [bool(flag) for flag in to_numpy(flags)]


def any_beyond(limit: float, arrays: Sequence[Any]) -> list[bool]:
    """Whether an element is larger than the limit, its sign aside, of each array."""
    xp = array_namespace(arrays[0])
    return [bool(flag) for flag in to_numpy(xp.stack([xp.any(xp.abs(x) > limit) for x in arrays]))]


def invertible(arrays: Sequence[Any]) -> list[bool]:
    """Whether these are inverses of positive definite matrices, as far as one sees; of each array.

    All elements are finite, and those on the diagonal positive; the array is blocks (…, n, n), or
    a diagonal (n,).
    """
    if not arrays:
        return []
    xp = array_namespace(arrays[0])
    flags = xp.stack([xp.all(_invertible(x, xp)) for x in arrays])
    return [bool(flag) for flag in to_numpy(flags)]


def invertible_blocks(x: Any) -> list[bool]:
    """The same of each of the blocks (blocks, n, n); of a diagonal as one block."""
    xp = array_namespace(x)
    axes = (-2, -1) if x.ndim > 2 else None
    return [bool(flag) for flag in to_numpy(xp.all(_invertible(x, xp), axis=axes)).reshape(-1)]


def _invertible(x: Any, xp: Any) -> Any:
    diagonal = x if x.ndim == 1 else xp.expand_dims(xp.linalg.diagonal(x), axis=-1)
    return xp.isfinite(x) & (diagonal > 0)


def fault_of(damped: Any, number: int, size: int, dtype: str) -> str:
    """Why a block of a damped factor, or its diagonal, has no inverse in a dtype, in words."""
    host = to_numpy(plain(damped)).astype(np.float64)
    block = host[number * size : (number + 1) * size]
    block = block if host.ndim == 1 else block[:, number * size : (number + 1) * size]
    if not np.isfinite(block).all():
        return "one that overflows where it is scaled and damped"
    try:
        if host.ndim == 1:
            least, inverse = block.min(), 1 / block[block != 0]
        else:
            least, inverse = np.linalg.eigvalsh(block)[0], np.linalg.inv(block)
    except np.linalg.LinAlgError:
        least = 0.0
    if least > 0 and np.abs(inverse).max() > FORMATS[dtype].largest:
        return f"one with an inverse beyond the largest {dtype}"
    rounded = f", to the rounding of {dtype}" if least > 0 else ""
    return f"one that is not, after damping{rounded}"


def hold(arrays: Sequence[Any]) -> None:
    """Let dask compute these arrays now, and forget how; others have been."""
    lazy = [x for x in arrays if is_dask_array(x)]
    if lazy:
        import dask

        for x, done in zip(lazy, dask.persist(*lazy), strict=True):
            x.dask = done.dask


def integers(ids: Any) -> Any:
    """Integers of a dtype that torch computes with."""
    if is_torch_array(ids) and dtype_name(ids) in ("uint16", "uint32", "uint64"):
        xp = array_namespace(ids)
        return xp.astype(ids, xp.int64)
    return ids


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

    Its result, which has the shapes of one part, goes where the first part is, dtype kept. Numbers
    are arrays of shape () on the way.
    """

    def through(parts: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        there = [[tuple(map(_there, own)) for own in part] for part in parts]
        return [
            tuple(map(_like, own, new)) for new, own in zip(function(there), parts[0], strict=True)
        ]

    return through


def _there(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, int | float) else to_numpy(plain(x))


def _like(old: Any, new: Any) -> Any:
    """The array of NumPy where `old` is, in its dtype."""
    if isinstance(old, int | float):
        return float(new)
    return lift(lambda x: placed(new, x, x.dtype), old)
