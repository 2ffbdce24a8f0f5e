"""A case run on intervals or balls: open-loop, or step by step from recorded states."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from refopt.interp.envelope import Envelope, Interval
from refopt.oracle.golden import Case, Gradient, Run, Schedule, Sparse, Values
from refopt.typing import Profile

Prediction = dict[str, list[list[Interval] | None]]  # quantity -> parameter -> elements


class Memory(NamedTuple):
    """Everything that is carried from step to step, one entry a parameter."""

    params: list[Any]
    states: list[Any]
    clocks: list[Any]


class Replay:
    """One case under one record of choices.

    `changed`: choices put in place of the profile's own. `space`: an `Envelope` (the default) or
    `balls.Space`. `only_clocks`: arrays without elements, where just the counters are wanted.
    """

    def __init__(
        self,
        rule: ModuleType,
        case: Case,
        profile: Profile,
        changed: dict[str, Any] | None = None,
        *,
        space: Any = None,
        only_clocks: bool = False,
    ) -> None:
        self.rule, self.case, self.profile = rule, case, profile
        self.changed = changed or {}
        self.xp = Envelope() if space is None else space
        self.num = self.xp.numbers
        self.only_clocks = only_clocks

    def start(self) -> Memory:
        """Parameters as given, states and clocks before the first step."""
        params = [
            self.array([] if self.only_clocks else values, dtype)
            for values, dtype in zip(self.case.params, self.case.dtypes, strict=True)
        ]
        own = {i: overrides for members, overrides in self.case.groups for i in members}
        pairs = [
            self.rule.init(p, self.choices(self.hyper(1, own[i])), xp=self.xp, num=self.num)
            for i, p in enumerate(params)
        ]
        return Memory(params, [state for state, _ in pairs], [clock for _, clock in pairs])

    def step(self, t: int, memory: Memory, ticked: dict[int, Any] | None = None) -> Memory:
        """Step `t` (from 1) of every group.

        `ticked` keeps the coefficients of each group, or has them from a replay with equal ones.
        """
        ticked = {} if ticked is None else ticked
        params, states, clocks = (list(part) for part in memory)
        given = self.case.gradients(t)
        for g, (members, overrides) in enumerate(self.case.groups):
            hyper = self.hyper(t, overrides)
            grads = [self.gradient(given[i], i) for i in members]
            own = [params[i] for i in members]
            counted = [clocks[i] for i in members]
            choices = self.choices(hyper)
            if g not in ticked:
                ticked[g] = self.rule.ticks(own, grads, counted, hyper, choices, num=self.num)
            quantities, new_states, new_clocks = self.rule.update(
                own,
                grads,
                [states[i] for i in members],
                counted,
                hyper,
                choices,
                xp=self.xp,
                num=self.num,
                ticked=ticked[g],
                **({"order": self.case.orders[t]} if t in self.case.orders else {}),
            )
            for i, q, state, clock in zip(members, quantities, new_states, new_clocks, strict=True):
                clocks[i] = clock
                if q is not None:
                    params[i] = self.stored(q.param, i)
                if state is not states[i]:
                    states[i] = type(state)(*(self.stored(x, i) for x in state))
        return Memory(params, states, clocks)

    def open_loop(self) -> Iterator[tuple[int, Memory]]:
        """(step, what is carried after it), from step 0."""
        memory = self.start()
        yield 0, memory
        for t in range(1, self.case.steps + 1):
            memory = self.step(t, memory)
            yield t, memory

    def forced(self, memory: Memory, recorded: dict[str, list[Values | None]], run: Run) -> Memory:
        """What a run had recorded, as the memory for its next step.

        Counters that were not recorded are taken from `memory`, which depends on no array. Those
        that were are read in the dtype that the rule gives them: a release may store a count in
        float32 and compute with it as a Python float.
        """
        params, states, clocks = [], [], []
        fresh = self.start()
        for i in range(len(self.case.params)):
            values = {q: column[i] for q, column in recorded.items()}
            params.append(self.array(values["param"] or [], self.case.dtypes[i]))
            state = fresh.states[i]
            if all(values.get(q) is not None for q in self.kept(state)):
                # what is not kept from the start may be kept from a change on
                fields = state._fields if self.case.changes else self.kept(state)
                shown = [q for q in fields if values.get(q) is not None]
                dtypes = {q: run.dtypes.get(q, self.case.dtypes)[i] for q in shown}
                known = {q: self.array(values[q] or [], dtypes[q]) for q in shown}
                state = state._replace(**known)
            states.append(state)
            counted = {
                q: self.num.carrying(x[0], dtype) if dtype else self.num(x[0])
                for q, counter in memory.clocks[i]._asdict().items()
                if (x := values.get(q))
                for dtype in [getattr(counter, "dtype", None)]
            }
            clocks.append(memory.clocks[i]._replace(**counted))
        return Memory(params, states, clocks)

    def remembers(self, run: Run) -> bool:
        """Whether a run shows every counter that a step reads: then no step before matters."""
        own = {i: overrides for members, overrides in self.case.groups for i in members}
        choices = [self.choices(self.hyper(1, own[i])) for i in range(len(self.case.params))]

        def unborn(i: int, t: int) -> bool:  # a count of its own that has not begun
            begun = any(self.case.gradients(s)[i] is not None for s in range(1, t + 1))
            return choices[i].counter is self.rule.per_parameter and not begun

        return all(
            q in shown and (x is not None or unborn(i, t))
            for t, step in run.steps.items()
            for shown in [step | run.before.get(t + 1, {})]
            for i, c in enumerate(choices)
            for q in self.rule.counted(c)
            for x in [shown.get(q, choices)[i]]
        )

    @staticmethod
    def kept(state: Any) -> list[str]:
        """The arrays that a state keeps, by name."""
        return [q for q, x in state._asdict().items() if x is not None]

    def predicted(self, t: int, memory: Memory) -> Prediction:
        """The observable quantities of a memory after step `t`."""
        result: Prediction = {"param": [p.elements for p in memory.params]}
        for q in memory.states[0]._fields:
            arrays = [getattr(s, q) for s in memory.states]
            result[q] = [None if x is None else x.elements for x in arrays]
        for q in memory.clocks[0]._fields:
            result[q] = [[self.num(getattr(c, q)).x] for c in memory.clocks]
        if isinstance(self.case.hyper.get("lr"), Schedule):
            result["lr"] = [[self.num(self.hyper(t, {}).lr).x] for _ in memory.params]
        return result

    def gradient(self, given: Gradient, i: int) -> Any:
        """A gradient of parameter `i` as the rule takes it."""
        if given is None:
            return None
        if isinstance(given, Sparse):
            values = self.array([] if self.only_clocks else given.values, self.case.dtypes[i])
            return self.rule.Rows(values, given.indices, self.case.shapes[i][0])
        return self.array([] if self.only_clocks else given, self.case.dtypes[i])

    def array(self, values: Any, dtype: str) -> Any:
        """An exact array, to be computed with in its own dtype, or in float32 (half: stored)."""
        if dtype == "float64" and self.profile.half == "float32":
            return self.xp.cast(self.xp.array(values, dtype), "float32", stored="float32")
        return self.xp.array(values, "float32" if self._stores(dtype) else dtype)

    def stored(self, x: Any, i: int) -> Any:
        """What parameter `i` keeps of an array: 16-bit storage rounds once (half: stored)."""
        dtype = self.case.dtypes[i]
        if x is None or not self._stores(dtype):
            return x
        return self.xp.cast(x, "float32", stored=dtype)

    def hyper(self, t: int, overrides: dict[str, Any]) -> Any:
        """The hyperparameters of step `t` for a group."""
        named = {**self.case.hyper, **overrides}
        for start, change in self.case.changes.items():
            if start <= t:
                named.update(change)
        return self.profile.hyper._replace(**{q: self._number(x, t) for q, x in named.items()})

    def _number(self, x: Any, t: int) -> Any:
        if isinstance(x, Schedule):
            num = self.num.of(self.array([], self.case.dtypes[0]))
            choices = self.profile.choices._replace(**self.changed)
            return self.rule.scheduled(x.name, x.config, t, choices, num=num)
        return self.num.carrying(*x) if isinstance(x, tuple) else x

    def choices(self, hyper: Any) -> Any:
        """The profile's choices for the case's options, with what is changed on purpose."""
        choices = self.rule.configured(self.profile.choices, hyper, self.case.options)
        return choices._replace(**self.changed)

    def _stores(self, dtype: str) -> bool:
        """Whether arrays of a dtype are computed with in float32, and rounded when stored."""
        return self.profile.half == "stored" and dtype in ("float16", "bfloat16")
