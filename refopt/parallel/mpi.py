"""Sums over the workers of an MPI communicator, in few messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

Arrays: TypeAlias = list[tuple[Any, ...]]
"""Arrays of NumPy: a tuple for each layer."""


class Sums:
    """Sums of arrays over workers, one message for each group of layers.

    Parameters
    ----------
    comm : mpi4py communicator, or None
        None: this worker alone, and no message.
    bounds : sequence of int
        The last layer of each group; what follows the last one is one more group.
    ordered : bool
        Add one after the other in the order of ranks, whatever their number (a chain of messages),
        instead of in the order that MPI chooses.

    Attributes
    ----------
    messages : int
        Reductions called so far.

    """

    def __init__(self, comm: Any, bounds: Sequence[int], ordered: bool) -> None:
        self._comm, self._bounds, self._ordered = comm, tuple(bounds), ordered
        self.messages = 0

    def workers(self, parts: int) -> int:
        """The number of all workers' parts, of which each has this many."""
        return parts if self._comm is None else parts * int(self._comm.Get_size())

    def __call__(self, parts: Sequence[Arrays]) -> Arrays:
        """The sums, over all workers, of this worker's parts, which all have the same shapes."""
        layers = len(parts[0])
        ends = [bound + 1 for bound in self._bounds if bound + 1 < layers]
        result: Arrays = []
        for start, end in pairwise([0, *ends, layers]):
            arrays = [[x for own in part[start:end] for x in own] for part in parts]
            # numbers, of shape (), take the dtype of the arrays
            dtype = np.result_type(np.float32, *(x.dtype for x in arrays[0] if x.ndim))
            flat = [np.concatenate([x.astype(dtype).reshape(-1) for x in xs]) for xs in arrays]
            total = self._total(flat)
            pieces = iter(np.split(total, np.cumsum([x.size for x in arrays[0]])[:-1]))
            result += [
                tuple(next(pieces).reshape(x.shape) for x in own) for own in parts[0][start:end]
            ]
        return result

    def _total(self, parts: Sequence[Any]) -> Any:
        """The sum of vectors over all workers: one message."""
        comm = self._comm
        if comm is None:
            return _added(parts)
        self.messages += 1
        if not self._ordered:
            own = _added(parts)
            total = np.empty_like(own)
            comm.Allreduce(own, total)
            return total
        rank, last = comm.Get_rank(), comm.Get_size() - 1
        if rank > 0:
            before = np.empty_like(parts[0])
            comm.Recv(before, source=rank - 1)
            parts = [before, *parts]
        total = _added(parts)
        if rank < last:
            comm.Send(total, dest=rank + 1)
        comm.Bcast(total, root=last)
        return total


def _added(parts: Sequence[Any]) -> Any:
    """The sum from the first to the last."""
    total = parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total


def agree(comm: Any, numbers: Mapping[str, float]) -> None:
    """Raise unless this worker's numbers are those of the first one."""
    if comm is None:
        return
    own = np.asarray([*numbers.values()], np.float64)
    first = own.copy()
    comm.Bcast(first, root=0)
    for name, x, wanted in zip(numbers, own, first, strict=True):
        if x != wanted:
            msg = f"{name}: {wanted:g}, that of the first worker, is required, got {x:g}"
            raise ValueError(msg)


def shares(name: str, rows: int, size: int) -> list[slice]:
    """The samples of a layer in parts of `size`, which must divide them."""
    if rows % size:
        msg = f"fixed_order: a divisor of the {rows} samples of {name!r} is required, got {size}"
        raise ValueError(msg)
    return [slice(start, start + size) for start in range(0, rows, size)]
