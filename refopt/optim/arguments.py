"""Arguments of THOR: checked, and as its rule takes them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from refopt.interp.host import is_array, to_numpy
from refopt.optim.groups import number
from refopt.optim.parameter import kind

INTEGERS = int | np.integer
NUMBERS = int | float | np.integer | np.floating


def real(
    name: str, x: Any, *, floats: bool = False, above: bool = False, most: float | None = None
) -> float:
    """`x`, a finite number, >= 0 or above it, and not beyond; of these `floats` are no integers."""
    kinds = float | np.floating if floats else NUMBERS
    if not isinstance(x, kinds) or isinstance(x, bool):
        msg = f"{name}: {'a float' if floats else 'a number'} is required, got {x!r}"
        raise TypeError(msg)
    wanted = f"{'>' if above else '>='} 0{'' if most is None else f' and <= {most:g}'}"
    value = _double(name, x, f"a finite number {wanted}")
    large = most is not None and value > most
    if large or not ((value > 0 if above else value >= 0) and np.isfinite(value)):
        msg = f"{name}: a finite number {wanted} is required, got {x!r}"
        raise ValueError(msg)
    return value


def count(name: str, x: Any, least: int) -> int:
    """`x`, an integer, `least` or more."""
    if not isinstance(x, INTEGERS) or isinstance(x, bool):
        msg = f"{name}: an integer is required, got {x!r}"
        raise TypeError(msg)
    _double(name, x, "an integer that a float holds")
    if x < least:
        msg = f"{name}: an integer >= {least} is required, got {x!r}"
        raise ValueError(msg)
    return int(x)


def _double(name: str, x: Any, wanted: str) -> float:
    """`float`, with an error that names the argument."""
    try:
        return float(x)
    except OverflowError as error:
        msg = f"{name}: {wanted} is required, got an integer of {int(x).bit_length()} bits"
        raise ValueError(msg) from error


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
    elif isinstance(x, bool) or not isinstance(x, NUMBERS):
        msg = f"{name}: a number, an array or a callable is required, got {kind(x)}"
        raise TypeError(msg)
    else:
        result = _double(name, x, "a finite number")
        values = (result,)
    for value in values:
        _check_value(name, value, least, "")
    return result


def now(name: str, x: Any, t: int, *, ends: bool, least: float | None = None) -> Any:
    """A schedule as the rule takes it at step t: a number, or all values.

    Where it `ends`, a step beyond the last value is an IndexError.
    """
    if callable(x):
        found = x(t)
        if isinstance(found, bool | np.bool_):
            msg = f"{name}: a number is required, got {found!r} at step {t}"
            raise TypeError(msg)
        if isinstance(found, int):
            found = _double(name, found, "a finite number")
        value = number(name, found)
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
    if not isinstance(indices, list | tuple) or not all(
        isinstance(i, INTEGERS) and not isinstance(i, bool) for i in indices
    ):
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
    if comm is not None and not comm:
        msg = "comm: a communicator that has workers is required, got a null one"
        raise ValueError(msg)
