"""What a step in place checks once, as long as everything stays the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.interp import cuda, fused
from refopt.interp.arrays import Floats, dtype_name, passage
from refopt.typing import Profile

PLAIN = frozenset({float, int, bool, str, type(None)})


def engine(arrays: Iterable[Any]) -> Any:
    """What can take a step in place: `fused` for arrays of NumPy, `cuda` for those of CuPy."""
    given = [*arrays]
    able = (module for module in (fused, cuda) if all(map(module.writable, given)))
    return next(able, None)


class Settings:
    """The options of a group: numbers and flags, or tuples of them, can be compared."""

    def __init__(self, group: Mapping[str, Any], options: Iterable[str]) -> None:
        self.options = tuple(options)
        self.values = self._listed(group)
        self.types = [*map(type, self.values)]
        self.plain = set(self.types) <= PLAIN

    def hold(self, group: Mapping[str, Any]) -> bool:
        """Whether the options of a group are these."""
        values = self._listed(group)
        return self.plain and [*map(type, values)] == self.types and values == self.values

    def _listed(self, group: Mapping[str, Any]) -> list[Any]:
        values: list[Any] = []
        for option in self.options:
            x = group.get(option, group)  # what is missing is not plain
            values.extend(x if type(x) is tuple else (x,))
        return values


class Alike(Floats):
    """Numbers for parameters of one dtype."""

    def of(self, param: Any, /) -> Alike:
        """The same."""
        return self


class Kind:
    """Parameters of one group with one rule, dtype and dtypes of counters."""

    def __init__(
        self, rule: Any, profile: Profile, array: Any, hyper: Any, kept: Sequence[str]
    ) -> None:
        self.profile = profile
        self.hyper = hyper
        like = np.empty(0, array.dtype)
        self.inside = passage(like, profile.half).enter(like)  # an array as the rule sees it
        self.num = Alike(Floats().of(self.inside).dtype)
        self.settled = rule.settle(hyper, profile.choices, num=self.num)
        self.program = fused.program(rule, profile, self.settled, dtype_name(array), kept)
        self.scalars = fused.numbers(self.program)

    def settle(self, rule: Any, hyper: Any) -> None:
        """Take other numbers; only a learning rate, which decides no branch of the program."""
        if hyper != self.hyper:
            self.hyper = hyper
            self.settled = rule.settle(hyper, self.profile.choices, num=self.num)

    def numbers(self, scalars: Any) -> Any:
        """The scalars of a step as the program takes them."""
        return self.scalars(scalars, self.settled)


class Task:
    """A parameter and its state, which were checked."""

    __slots__ = (
        *("array", "counters", "dtype", "engine", "held", "kind", "own", "param", "shape"),
        "touched",
    )

    def __init__(
        self, param: Any, array: Any, own: dict[str, Any], counters: Iterable[str], kind: Kind
    ) -> None:
        self.param, self.array, self.own, self.kind = param, array, own, kind
        self.shape, self.dtype = array.shape, array.dtype
        self.engine = engine([array])
        self.counters = tuple(counters)
        self.touched = [array, *(x for key, x in own.items() if key not in self.counters)]
        self.held = [*own.items()]

    def holds(self, states: Mapping[Any, Any], grad: Any) -> bool:
        """Whether parameter and state are the same objects, and the gradient fits them."""
        own, array = self.own, self.array
        for key, x in self.held:
            if own.get(key) is not x:
                return False
        return (
            type(grad) is type(array)
            and grad.dtype == self.dtype
            and grad.shape == self.shape
            and self.param._data is array
            and all(map(self.engine.writable, self.touched))
            and states.get(self.param) is own
        )

    def counted(self, numbers: Iterable[float]) -> dict[str, Any]:
        """New counters with these numbers, of the dtypes of the old ones."""
        pairs = zip(self.counters, numbers, strict=True)
        return {key: np.array(x, self.own[key].dtype) for key, x in pairs}


def flatten(params: Sequence[Any], states: Mapping[Any, dict[str, Any]], keys: Any) -> None:
    """Move parameters, gradients and states into buffers of their own, each one of one dtype.

    Once: a parameter that has been moved stays where it is. States that were loaded move again.
    """
    able = [p for p in params if p.data.flags.c_contiguous]
    for dtype in {p.data.dtype for p in able}:
        own = [p for p in able if p.data.dtype == dtype]
        new = [p for p in own if p._room is None]
        if new:
            places = zip(new, fused.flat([p.data for p in new]), strict=True)
            for (param, place), room in zip(places, fused.flat([p.grad for p in new]), strict=True):
                param.data, param._room, param.grad = place, room, room
        kept = [states[p] for p in own if states.get(p)]
        for key in keys if kept else ():
            arrays = [state[key] for state in kept]
            if all(map(fused.writable, arrays)) and not fused.adjacent(arrays):
                for state, place in zip(kept, fused.flat(arrays), strict=True):
                    state[key] = place


class Slots:
    """A variable and what is kept for it, which were checked."""

    __slots__ = ("array", "dtype", "kept", "kind", "shape", "touched", "variable")

    def __init__(self, variable: Any, array: Any, kept: Iterable[Any], kind: Kind) -> None:
        self.variable, self.array, self.kind = variable, array, kind
        self.kept = [(slot, slot.data) for slot in kept]
        self.touched = [array, *(x for _, x in self.kept)]
        self.shape, self.dtype = array.shape, array.dtype

    def hold(self, variable: Any, grad: Any) -> bool:
        """Whether all are the same objects, and the gradient fits them."""
        for slot, x in self.kept:
            if slot._data is not x:
                return False
        return (
            variable is self.variable
            and type(grad) is np.ndarray
            and grad.dtype == self.dtype
            and grad.shape == self.shape
            and variable._data is self.array
            and all(x.flags.writeable for x in self.touched)
        )


class Repeat(NamedTuple):
    """A step of all variables in place, without clipping or averages."""

    settings: Settings
    hyper: Any
    slots: list[Slots]
    step: fused.Pass
    count: Any  # the array that counts steps


class Last(NamedTuple):
    """The last step in place."""

    profile: str
    settings: list[Settings]  # of each group
    groups: list[list[Task]]  # what stepped, by groups
    step: fused.Pass
