"""Arguments of THOR: checked, and as its rule takes them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from refopt.interp.host import is_array, to_numpy
from refopt.optim.groups import number
from refopt.optim.parameter import kind


def real(name: str, x: Any, kinds: Any, *, above: bool = False, most: float | None = None) -> None:
    """Raise unless `x` is a finite number of these kinds, >= 0 or above it, and not beyond."""
    if not isinstance(x, kinds) or isinstance(x, bool):
        wanted = "a float" if kinds is float else "a number"
        msg = f"{name}: {wanted} is required, got {x!r}"
        raise TypeError(msg)
    large = most is not None and x > most
    if large or not ((x > 0 if above else x >= 0) and np.isfinite(x)):
        wanted = f"{'>' if above else '>='} 0{'' if most is None else f' and <= {most:g}'}"
        msg = f"{name}: a finite number {wanted} is required, got {x!r}"
        raise ValueError(msg)


def count(name: str, x: Any, least: int) -> None:
    """Raise unless `x` is an integer, `least` or more."""
    if not isinstance(x, int) or isinstance(x, bool):
        msg = f"{name}: an integer is required, got {x!r}"
        raise TypeError(msg)
    if x < least:
        msg = f"{name}: an integer >= {least} is required, got {x!r}"
        raise ValueError(msg)


def flag(name: str, x: Any) -> None:
    """Raise unless `x` is a bool."""
    if not isinstance(x, bool):
        msg = f"{name}: a bool is required, got {x!r}"
        raise TypeError(msg)


def schedule(name: str, x: Any, least: float | None = None) -> Any:
    """`x` as a number, a tuple of numbers, or a callable; numbers are `least` or more."""
    if callable(x) and not is_array(x):
        return x
    result: Any
    if is_array(x):
        host = to_numpy(x)
        if host.ndim > 1 or host.size == 0 or host.dtype.kind not in "iuf":
            msg = (
                f"{name}: real numbers of rank 0 or 1, at least one, are required, "
                f"got {host.dtype} of shape {host.shape}"
            )
            raise ValueError(msg)
        result = values = tuple(float(value) for value in host.reshape(-1))
        if host.ndim == 0:
            (result,) = values
    elif isinstance(x, bool) or not isinstance(x, int | float | np.number):
        msg = f"{name}: a number, an array or a callable is required, got {kind(x)}"
        raise TypeError(msg)
    else:
        result = float(x)
        values = (result,)
    for value in values:
        _check_value(name, value, least, "")
    return result


def now(name: str, x: Any, t: int, *, ends: bool, least: float | None = None) -> Any:
    """A schedule as the rule takes it at step t: a number, or all values.

    Where it `ends`, a step beyond the last value is an IndexError.
    """
    if callable(x):
        value = number(name, x(t))
        _check_value(name, value, least, f" at step {t}")
        return value
    if isinstance(x, tuple) and t >= len(x) and ends:
        msg = f"{name}: a value for step {t} is required, got {len(x)} values, the first of step 0"
        raise IndexError(msg)
    return x


def _check_value(name: str, x: float, least: float | None, when: str) -> None:
    if not np.isfinite(x) or (least is not None and x < least):
        wanted = "a finite number" + ("" if least is None else f" >= {least:g}")
        msg = f"{name}: {wanted} is required, got {x!r}{when}"
        raise ValueError(msg)


def check_split(indices: Any, layers: int) -> None:
    """Raise unless `split_indices` is None or ascends within the number of layers."""
    if indices is None:
        return
    if not isinstance(indices, list | tuple) or not all(type(i) is int for i in indices):
        msg = f"split_indices: a list of integers is required, got {indices!r}"
        raise TypeError(msg)
    if not all(i < j for i, j in pairwise([-1, *indices, layers])):
        msg = (
            f"split_indices: ascending integers from 0, below the {layers} factored layers, "
            f"are required, got {indices!r}"
        )
        raise ValueError(msg)


def check_communicator(comm: Any) -> None:
    """Raise unless `comm` is None or has the methods that sums over workers call."""
    needed = ("Get_size", "Get_rank", "Allreduce", "Send", "Recv", "Bcast")
    if comm is not None and not all(callable(getattr(comm, name, None)) for name in needed):
        msg = f"comm: an mpi4py communicator is required, got {kind(comm)}"
        raise TypeError(msg)
