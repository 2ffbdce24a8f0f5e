"""An optimizer on a problem, step by step, on NumPy or on balls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from refopt.errors import Unknown
from refopt.interp import arrays
from refopt.oracle.spec import RULES, load
from refopt.problems import PROBLEMS, Pass, Problem
from refopt.typing import Profile


def known(argument: str, table: Mapping[str, Any], name: str) -> Any:
    """The entry of a table. Raises Unknown where it has none of that name."""
    if name not in table:
        raise Unknown(argument, table, name)
    return table[name]


def numbers(argument: str, given: Iterable[str]) -> dict[str, Any]:
    """Hyperparameters by name from NAME=NUMBER each; a whole number stays one.

    Raises ValueError where one is not that.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = int(value) if value.isdigit() else float(value)
        except ValueError:
            msg = f"{argument} must be NAME=NUMBER, got {text!r}"
            raise ValueError(msg) from None
    return found


class Setting(NamedTuple):
    """An optimizer with everything that decides its steps."""

    optimizer: str
    rule: Any
    profile: Profile  # with the choices that options and hyperparameters ask for
    hyper: Any
    options: dict[str, bool]
    given: dict[str, Any]  # hyperparameters other than the profile's


def setting(
    optimizer: str,
    profile: str = "documented",
    given: Mapping[str, Any] | None = None,
    problem: Problem | None = None,
) -> Setting:
    """An optimizer under a profile.

    Arguments
    ---------
    optimizer, profile: by name.
    given: hyperparameters of the rule and options by name; what is required and not given has the
        value of the specification's examples.
    problem: what it is for; a rule of layers takes its batch size.

    Raises
    ------
    Unknown
        There is no such optimizer, profile, hyperparameter or option.
    """
    rule = known("OPTIMIZER", RULES, optimizer)
    found: Profile = known("PROFILE", rule.PROFILES, profile)
    named = dict(given or {})
    for name in named:
        known(
            "a hyperparameter or option", dict.fromkeys((*rule.Hyper._fields, *rule.OPTIONS)), name
        )
    options = {name: bool(named.pop(name)) for name in rule.OPTIONS if name in named}
    examples = load(optimizer).get("examples", {})
    lacking = {
        q: examples[q] for q, x in found.hyper._asdict().items() if x is None and q in examples
    }
    if problem and problem.layers and "batch_size" in rule.Hyper._fields:
        lacking["batch_size"] = problem.batch
    hyper = found.hyper._replace(**lacking | named)
    choices = rule.configured(found.choices, hyper, options)
    return Setting(
        optimizer, rule, found._replace(choices=choices), hyper, options, lacking | named
    )


class Taken(NamedTuple):
    """One step: what went in and what came out, one entry a parameter."""

    step: int
    before: list[Any]  # parameters
    seen: Pass  # of the problem, there
    scalars: list[Any]
    quantities: list[Any]
    states: list[Any]
    params: list[Any]  # after it


class OnArrays:
    """Steps on NumPy arrays of a dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.num = dtype, arrays.Floats()

    def array(self, x: Any) -> Any:
        """The values in the dtype."""
        return np.asarray(x, self.dtype)

    def init(self, s: Setting, param: Any) -> tuple[Any, Any]:
        """State and clock before the first step."""
        return arrays.init(s.rule, s.profile, param)

    def run(self, s: Setting, *given: Any, **more: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """One step of all parameters."""
        return arrays.run(s.rule, s.profile, *given, **more)


class OnBalls:
    """Steps on balls: nothing is rounded but what a profile says is."""

    def __init__(self) -> None:
        from refopt.interp.balls import MatrixSpace

        self.xp = MatrixSpace()
        self.num = self.xp.numbers

    def array(self, x: Any) -> Any:
        """The values, exact."""
        return self.xp.array(np.asarray(x, float), "")

    def init(self, s: Setting, param: Any) -> tuple[Any, Any]:
        """State and clock before the first step."""
        pair: tuple[Any, Any] = s.rule.init(param, s.profile.choices, xp=self.xp, num=self.num)
        return pair

    def run(self, s: Setting, *given: Any, **more: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """One step of all parameters."""
        done: tuple[list[Any], list[Any], list[Any]] = s.rule.update(
            *given, s.profile.choices, xp=self.xp, num=self.num, **more
        )
        return done


def taken(
    s: Setting,
    problem: Problem,
    steps: int,
    *,
    dtype: str = "float64",
    seen: Sequence[Pass] | None = None,
    on: Any = None,
) -> Iterator[Taken]:
    """The steps of an optimizer on a problem, from its start.

    Arguments
    ---------
    s: from `setting`.
    problem: of `refopt.problems`.
    steps: how many.
    dtype: of the parameters.
    seen: what the problem gave at each step, where another run saw it; else each step sees the
        problem where it stands.
    on: `OnArrays(dtype)` (default) or `OnBalls()`.
    """
    on = on or OnArrays(dtype)
    params = [on.array(x) for x in problem.start(np, dtype)]
    pairs = [on.init(s, p) for p in params]
    states, clocks = [state for state, _ in pairs], [clock for _, clock in pairs]
    hyper, net = s.hyper, {}
    if hasattr(s.rule, "Layer"):
        hyper = [s.hyper for _ in params]
        net = {"net": _net(s.rule, problem, len(params))}
    for t in range(1, steps + 1):
        with np.errstate(all="ignore"):  # a run may diverge
            now = problem.at(params, t) if seen is None else seen[t - 1]
        grads = [on.array(g) for g in now.gradients]
        if net:
            net["given"] = _given(s.rule, now, on)
        ticked = s.rule.ticks(params, grads, clocks, hyper, s.profile.choices, num=on.num)
        before = params
        quantities, states, clocks = on.run(
            s, params, grads, states, clocks, hyper, ticked=ticked, **net
        )
        params = [q.param for q in quantities]
        scalars = [x for x, _ in ticked]
        yield Taken(t, before, now, scalars, quantities, states, params)


def _net(rule: Any, problem: Problem, count: int) -> list[Any]:
    """The layers of a problem as a rule knows them; a parameter without any is one by itself."""
    dense = [
        rule.Layer("dense", (2 * i, 2 * i + 1), shape) for i, shape in enumerate(problem.layers)
    ]
    return dense or [rule.Layer("other", (i,)) for i in range(count)]


def _given(rule: Any, now: Pass, on: Any) -> list[Any]:
    pairs = zip(now.activations, now.output_gradients, strict=True)
    seen = [rule.Statistics(on.array(a), on.array(ds)) for a, ds in pairs]
    return seen or [None for _ in now.gradients]


def problem_of(name: str) -> Problem:
    """A problem by its name."""
    found: Problem = known("PROBLEM", PROBLEMS, name)
    return found


def exact(bits: int | None) -> Any:
    """The context in which balls have so many bits."""
    if bits is None:
        return nullcontext()
    from refopt.interp.balls import precision

    return precision(bits)
