"""What refopt does with a case on NumPy: the rule of a profile, run on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from refopt.interp import arrays, fused, jit
from refopt.interp.formats import COMPLEX
from refopt.interp.rounded import Rounded, bfloat16, carried, plain
from refopt.oracle import layered
from refopt.oracle.golden import Case, Recording, Run, Schedule, Sparse, Values
from refopt.oracle.spec import RULES
from refopt.typing import Profile

EXECUTIONS = ("fused", *jit.LIBRARIES)
"""How refopt can run a case besides plainly: as one loop, or compiled by a library."""


def numpy_run(
    case: Case,
    profile: Profile,
    changed: Mapping[str, Any] | None = None,
    execution: str = "plain",
) -> Run:
    """Run a case by the rule of a profile; `changed`: choices put in place of what it asks for.

    `execution`: "plain", or of EXECUTIONS, which make programs of the steps of element-wise rules.
    """
    if profile.half == "float32" and "float64" in case.dtypes:
        execution = "plain"  # a program computes in the dtype of its arrays
    rule: Any = RULES[case.id.partition(".")[0]]
    if case.layers:
        return layered.numpy_run(rule, case, profile, changed)
    if execution == "fused":
        rule = fused.fused(rule, profile.half)
    elif execution != "plain":
        rule = jit.through(execution, rule, profile.half)
    # NumPy has no bfloat16 of its own: such arrays are float32, rounded here.
    half = set(case.dtypes) == {"bfloat16"}
    step: Any = _bfloat16_step if half else arrays.run
    stored = ["float32" if half else p["dtype"] for p in case.source["params"]]
    params = [
        _laid_out(array(x, d, shape), spec.get("layout", "C"))
        for x, d, shape, spec in zip(
            case.params, stored, case.shapes, case.source["params"], strict=True
        )
    ]

    def asked(t: int, overrides: dict[str, Any]) -> tuple[Profile, Any]:
        hyper = _hyper(rule, profile, case, t, overrides)
        choices = rule.configured(profile.choices, hyper, case.options)
        return profile._replace(choices=choices._replace(**(changed or {}))), hyper

    own = {i: overrides for members, overrides in case.groups for i in members}
    pairs = [arrays.init(rule, asked(1, own[i])[0], p) for i, p in enumerate(params)]
    states, clocks = [state for state, _ in pairs], [clock for _, clock in pairs]
    wanted = case.source.get("record") or range(1, case.steps + 1)
    numbers = [q for q in rule.Clock._fields if q in rule.OBSERVABLE]
    steps: dict[int, dict[str, list[Values | None]]] = {}
    for t in range(1, case.steps + 1):
        given = case.gradients(t)
        for members, overrides in case.groups:
            configured, hyper = asked(t, overrides)
            grads = [_gradient(rule, given[i], stored[i], case.shapes[i]) for i in members]
            if all(g is None for g in grads):
                continue
            quantities, after, ticked = step(
                rule,
                configured,
                [params[i] for i in members],
                grads,
                [states[i] for i in members],
                [clocks[i] for i in members],
                hyper,
                **({"order": case.orders[t]} if t in case.orders else {}),
            )
            for i, q, state, clock in zip(members, quantities, after, ticked, strict=True):
                params[i] = params[i] if q is None else q.param
                states[i], clocks[i] = state, clock
        if t in wanted:
            steps[t] = {
                "param": [flat(p) for p in params],
                **{q: [flat(getattr(s, q)) for s in states] for q in rule.State._fields},
                **{q: [[float(getattr(c, q))] for c in clocks] for q in numbers},
            }
    kept = {q for state in states for q, x in state._asdict().items() if x is not None}
    for recorded in steps.values():
        for q in set(rule.State._fields) - kept:
            del recorded[q]
    dtypes = dict.fromkeys(("param", *kept), case.dtypes)
    for q in numbers:
        dtypes[q] = [getattr(getattr(c, q), "dtype", "float64") for c in clocks]
    return Run(profile.name, steps, dtypes)


def recorded(case: Case) -> Recording:
    """A case with what the documented rule does with it on NumPy."""
    profile = RULES[case.id.partition(".")[0]].PROFILES["documented"]
    provenance = {"arithmetic": f"NumPy {np.__version__}"}
    return Recording(case, {profile.name: numpy_run(case, profile)}, provenance)


def _bfloat16_step(
    rule: Any,
    profile: Profile,
    params: Any,
    grads: Any,
    states: Any,
    clocks: Any,
    hyper: Any,
    **rest: Any,
) -> tuple[Any, Any, Any]:
    """`arrays.run` for bfloat16 that is kept in float32 arrays."""

    def enter(x: Any) -> Any:
        if arrays.is_sparse(x):
            return x._replace(values=enter(x.values))
        return x if x is None or profile.half == "stored" else Rounded(x, "bfloat16", bfloat16)

    def leave(x: Any) -> Any:
        return x if x is None else bfloat16(plain(x))

    with np.errstate(all="ignore"):
        quantities, after, ticked = rule.update(
            [enter(x) for x in params],
            [enter(x) for x in grads],
            [type(state)(*map(enter, state)) for state in states],
            clocks,
            hyper,
            profile.choices,
            xp=arrays.namespace_of(*params),
            num=arrays.Floats(),
            **rest,
        )
    return (
        [q and q._replace(param=leave(q.param)) for q in quantities],
        [type(state)(*map(leave, state)) for state in after],
        ticked,
    )


def _hyper(rule: Any, profile: Profile, case: Case, t: int, overrides: dict[str, Any]) -> Any:
    """The hyperparameters of a group at step `t`."""
    named = case.hyper | overrides
    for start, change in case.changes.items():
        if start <= t:
            named |= change

    def number(x: Any) -> Any:
        if isinstance(x, Schedule):
            num = arrays.Floats(COMPLEX.get(case.dtypes[0], case.dtypes[0]))
            return rule.scheduled(x.name, x.config, t, profile.choices, num=num)
        return carried(x[1])(x[0]) if isinstance(x, tuple) else x

    return profile.hyper._replace(**{name: number(x) for name, x in named.items()})


def _gradient(rule: Any, given: Any, dtype: str, shape: list[int]) -> Any:
    if isinstance(given, Sparse):
        rows = array(given.values, dtype, [len(given.indices), *shape[1:]])
        return rule.Rows(rows, given.indices, shape[0])
    return None if given is None else array(given, dtype, shape)


def array(values: Values, dtype: str, shape: list[int]) -> Any:
    """The array of a dtype with these values; pairs where it is complex."""
    line = np.array(values, dtype=COMPLEX.get(dtype, dtype))
    return (line.view(dtype) if dtype in COMPLEX else line).reshape(shape)


def _laid_out(x: Any, layout: str) -> Any:
    """`x` in memory as a case asks: C, F, or every second element of a larger buffer."""
    if layout != "strided":
        return np.asarray(x, order="F" if layout == "F" else "C")
    place = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
    place[...] = x
    return place


def flat(x: Any) -> Values | None:
    """The elements in C order; complex as pairs."""
    if x is None:
        return None
    line = np.ascontiguousarray(x).reshape(-1)
    real = line.view(line.real.dtype) if np.iscomplexobj(line) else line
    return [float(value) for value in real]
