"""Expressions that remember how they were computed, so that they can be computed again.

What a tape records is a list of calls in their order, and what the variables held at each.
Computing them again with other values in the place of the variables is how any library's
derivative is taken of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from refopt.interp.host import copied, is_array, to_numpy

Tape: TypeAlias = "list[Recorded]"
Method: TypeAlias = Callable[..., Any]

_active: ContextVar[Tape | None] = ContextVar("refopt_tape", default=None)


@contextmanager
def recording_on(tape: Tape | None) -> Iterator[None]:
    """Within, operations on variables are appended to `tape`; None: they are not recorded."""
    token = _active.set(tape)
    try:
        yield
    finally:
        _active.reset(token)


def call(function: Method, *operands: Any, **options: Any) -> Any:
    """`function` of the arrays in the operands: recorded where a tape is open, else its result."""
    tape = _active.get()
    if tape is None:
        return _called(function, operands, options, lambda x: x.operand)
    return Recorded(tape, function, operands, options)


def _called(function: Method, operands: Any, options: Any, value: Callable[[Any], Any]) -> Any:
    def plain(x: Any) -> Any:
        if isinstance(x, Operators):
            return value(x)
        return type(x)(map(plain, x)) if type(x) in (list, tuple) else x

    return function(*map(plain, operands), **{key: plain(x) for key, x in options.items()})


def _binary(function: Method) -> Method:
    return lambda self, other: call(function, self, other)


def _reflected(function: Method) -> Method:
    return lambda self, other: call(function, other, self)


class Operators:
    """Python's operators, and functions of NumPy and torch, on what holds an array."""

    @property
    def operand(self) -> Any:
        """The array."""
        raise NotImplementedError

    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __pow__, __rpow__ = _binary(operator.pow), _reflected(operator.pow)
    __matmul__, __rmatmul__ = _binary(operator.matmul), _reflected(operator.matmul)
    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
    __getitem__ = _binary(operator.getitem)

    def __neg__(self) -> Any:
        return call(operator.neg, self)

    def __abs__(self) -> Any:
        return call(operator.abs, self)

    def __float__(self) -> float:
        return float(self.operand)

    def __int__(self) -> int:
        return int(self.operand)

    def __bool__(self) -> bool:
        return bool(self.operand)

    def assign(self, value: Any) -> Any:
        """Set the value."""
        raise NotImplementedError

    def assign_add(self, value: Any) -> Any:
        """Add to the value."""
        return self.assign(self + value)

    def assign_sub(self, value: Any) -> Any:
        """Subtract from the value."""
        return self.assign(self - value)

    __iter__ = None  # else Python would try __getitem__ without end

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if _active.get() is not None:  # which would take the array for a constant
            msg = f"numpy.asarray: no open tape is required, got a {type(self).__name__} in one"
            raise TypeError(msg)
        x = self.operand
        return np.asarray(to_numpy(x) if is_array(x) else x, dtype=dtype, copy=copy)

    def __array_ufunc__(self, function: Any, method: str, *operands: Any, **options: Any) -> Any:
        return call(getattr(function, method), *operands, **options)

    def __array_function__(self, function: Any, types: Any, operands: Any, options: Any) -> Any:
        return call(function, *operands, **options)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, operands: Any = (), options: Any = None
    ) -> Any:
        return call(function, *operands, **(options or {}))


class Recorded(Operators):
    """The result of a recorded call."""

    def __init__(self, tape: Tape, function: Method, operands: Any, options: Any) -> None:
        self._tape, self._call = tape, (function, operands, options)
        self._read: dict[int, Any] = {}  # values of variables, which may change before `again`
        with recording_on(None):
            self._value = _called(*self._call, self._now)
        tape.append(self)

    def _now(self, x: Operators) -> Any:
        if isinstance(x, Recorded):
            return x.operand
        return self._read.setdefault(id(x), copied(x.operand) if is_array(x.operand) else x.operand)

    @property
    def operand(self) -> Any:
        """The array."""
        return self._value

    def again(self, moved: Mapping[Any, Any]) -> Any:
        """The value computed again, from what was read then.

        Variables in `moved` have moved since by as much as they now differ from the array there.
        """
        values: dict[int, Any] = {}

        def value(read: Mapping[int, Any], x: Any) -> Any:
            if id(x) not in read:
                return values.get(id(x), x.operand)
            then = read[id(x)]
            return then + (x.operand - moved[x]) if x in moved else then

        for node in self._tape:
            values[id(node)] = _called(*node._call, partial(value, node._read))
            if node is self:
                break
        return values[id(self)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._value, name)
        if not callable(found):
            return call(getattr, self, name) if hasattr(found, "dtype") else found
        return lambda *args, **options: call(
            lambda x, *more, **rest: getattr(x, name)(*more, **rest), self, *args, **options
        )

    def __repr__(self) -> str:
        return f"Recorded({self._value!r})"
