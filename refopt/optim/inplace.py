"""What a step in place checks once, as long as everything stays the same objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from sys import getrefcount
from typing import Any, NamedTuple
from weakref import getweakrefcount

import numpy as np

from refopt.interp import cuda, fused
from refopt.interp.arrays import Floats, dtype_name, passage
from refopt.interp.fused import attribute, same
from refopt.typing import Profile

DATA, GRAD = attribute("_data"), attribute("_grad")
PLAIN = frozenset({float, int, bool, str, type(None)})


def engine(arrays: Iterable[Any]) -> Any:
    """What can take a step in place: `fused` for arrays of NumPy, `cuda` for those of CuPy."""
    given = [*arrays]
    able = (module for module in (fused, cuda) if all(map(module.writable, given)))
    return next(able, None)


class Settings:
    """Options of a group: the same objects, numbers and flags or tuples of them."""

    def __init__(self, group: Mapping[str, Any], options: Iterable[str]) -> None:
        self.options = [*options]
        self.take(group)

    def take(self, group: Mapping[str, Any]) -> None:
        """Take the options that a group has now."""
        self.values = self._of(group)
        parts = chain.from_iterable(x if type(x) is tuple else (x,) for x in self.values)
        self.plain = {*map(type, parts)} <= PLAIN

    def hold(self, group: Mapping[str, Any]) -> bool:
        """Whether the options of a group are these."""
        return self.plain and same(self._of(group), self.values)

    def _of(self, group: Mapping[str, Any]) -> list[Any]:
        return [*map(group.get, self.options, repeat(group))]  # what is missing is not plain


class Kind:
    """Parameters of one group with one rule, dtype and dtypes of counters."""

    def __init__(
        self, rule: Any, profile: Profile, array: Any, hyper: Any, kept: Sequence[str]
    ) -> None:
        self.rule, self.profile, self.kept = rule, profile, kept
        self.dtype = dtype_name(array)
        like = np.empty(0, array.dtype)
        self.num = Floats().of(passage(like, profile.half).enter(like))
        self.hyper = hyper
        self.settled, self.program = self._made(hyper)
        self.numbers = fused.numbers(self.program)
        self.params: list[Any] = []
        self.counters: dict[str, Any] = {}  # of all parameters, by their keys

    def _made(self, hyper: Any) -> tuple[Any, fused.Program]:
        settled = self.rule.settle(hyper, self.profile.choices, num=self.num)
        return settled, fused.program(self.rule, self.profile, settled, self.dtype, self.kept)

    def takes(self, hyper: Any) -> bool:
        """Take other numbers; False where they make another program."""
        if hyper != self.hyper or type(hyper.lr) is not type(self.hyper.lr):
            settled, program = self._made(hyper)
            if program != self.program:
                return False
            self.hyper, self.settled = hyper, settled
        return True

    def clockwork(self) -> Callable[[Any, Any], tuple[Any, tuple[Any, ...]]]:
        """The scalars of a step and the next clock, of a clock and `settled`."""
        choices = self.profile.choices
        return fused.clockwork(self.rule, choices, self.program, self.num)

    def count(self, states: Mapping[Any, dict[str, Any]], keys: Iterable[str]) -> None:
        """Give the counters of all parameters memory side by side."""
        for key in keys:
            old = [states[param][key] for param in self.params]
            room = self.counters[key] = np.array([*map(np.ndarray.item, old)], old[0].dtype)
            for param, place in zip(self.params, fused.parts(room, old), strict=True):
                states[param][key] = place


def flatten(
    params: Sequence[Any], states: Mapping[Any, dict[str, Any]], keys: Iterable[str], asked: bool
) -> None:
    """Move parameters and states into buffers of their own, each one of one dtype.

    Where that was asked for, gradients too: what is assigned to them. Else only what nobody else
    holds. A parameter that has been moved stays where it is; states that were loaded move again.
    """
    able = [p for p in params if fused.writable(p._data) and p._data.flags.c_contiguous]
    for dtype in {p._data.dtype for p in able}:
        own = [p for p in able if p._data.dtype == dtype]
        new = [p for p in own if p._room is None]
        if new and asked:
            for param, room in zip(new, fused.flat([p.grad for p in new]), strict=True):
                param._room = param.grad = room
        rows = [vars(param) for param in new]
        _together(rows, "_data", asked)
        kept = [states[p] for p in own]
        for key in keys:
            _together(kept, key, asked)


def _together(rows: Sequence[dict[str, Any]], key: str, asked: bool) -> None:
    """Move what rows have under a key into one buffer, unless it lies so, or somebody holds it."""
    arrays = [row[key] for row in rows]
    able = all(map(fused.writable, arrays)) and not fused.adjacent(arrays)
    del arrays
    if able and (asked or all(_held_once(row, key) for row in rows)):
        for row, place in zip(rows, fused.flat([row[key] for row in rows]), strict=True):
            row[key] = place


def _held_once(row: dict[str, Any], key: str) -> bool:
    """Whether nothing but this entry refers to an array, and nothing to its memory."""
    alone = getrefcount(row[key]) == ONCE and row[key].flags.owndata
    return alone and not getweakrefcount(row[key])


_example = {"": np.empty(0)}
ONCE = getrefcount(_example[""])
"""What `getrefcount` says of an array that is but in one dict."""


class Repeat(NamedTuple):
    """A step of RMSprop in place, without clipping or averages."""

    settings: Settings
    hyper: Any
    variables: list[Any]
    kinds: list[Kind]  # of each
    holders: list[Any]  # variables and what is kept for them
    arrays: list[Any]  # theirs
    step: fused.Pass
    count: Any  # the array that counts steps


class Part(NamedTuple):
    """A group in a step of NAdam in place."""

    settings: Settings
    foreach: Any
    size: int
    kinds: list[Kind]


class Last(NamedTuple):
    """The last step of NAdam in place."""

    profile: str
    parts: list[Part]
    params: list[Any]  # all
    types: list[type]  # of their gradients
    stepping: list[Any]  # in the order of the pass
    held: list[Any]  # objects that must stay the same
    keys: list[str]  # of the states
    step: fused.Pass
