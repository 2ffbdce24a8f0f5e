"""NAdam as an object: the surface of `torch.optim.NAdam` around `refopt.rules.nadam`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, count, repeat
from typing import Any, ClassVar, NamedTuple

import numpy as np
from array_api_compat import (
    array_namespace,
    is_cupy_array,
    is_jax_array,
    is_torch_array,
    size,
)

from refopt.interp.arrays import (
    Device,
    Floats,
    dtype_name,
    init,
    is_traced,
    namespace_of,
    recording,
    run,
)
from refopt.interp.cuda import captured
from refopt.interp.formats import COMPLEX, FORMATS
from refopt.interp.fused import pays, same
from refopt.interp.host import (
    beside,
    holds,
    is_array,
    is_double,
    is_floating,
    near,
    on_host,
    placed,
    scalar,
    single,
)
from refopt.interp.jit import jitted
from refopt.interp.rounded import carried
from refopt.optim.groups import Group, Optimizer, deep, entry, number, require, turns
from refopt.optim.hooks import hooked
from refopt.optim.inplace import DATA, GRAD, Kind, Last, Part, Settings, engine, flatten
from refopt.optim.parameter import (
    Parameter,
    array_of,
    assign,
    check_apart,
    check_gradient,
    check_state,
    kind,
    written,
)
from refopt.rules import nadam as rule
from refopt.typing import Profile

State = dict[str, Any]

MOMENTS = {"exp_avg": "m", "exp_avg_sq": "v"}
CLOCK = {
    "step": "t",
    "mu_product": "product",
    "base_power": "base_power",
    "beta2_power": "beta2_power",
}
"""Keys of a parameter's state, and the fields of the rule that they hold."""
ALWAYS = ("step", "mu_product")  # the powers only under a profile whose release keeps them


class NAdam(Optimizer):
    """Adam with Nesterov momentum and a momentum schedule.

    The equations are `refopt.rules.nadam`, clauses NAD-3 to NAD-12. Parameters are arrays of any
    library in `refopt.Parameter`, or torch tensors.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or dicts of options with the key `params`.
    lr : float or array of one element
        Learning rate γ ≥ 0 (default: 2e-3). An array keeps its dtype and may be written to.
    betas : tuple of float
        β₁ and β₂ in [0, 1), decay of the first and second moment (default: (0.9, 0.999)).
    eps : float
        ε ≥ 0, added to the denominator (default: 1e-8).
    weight_decay : float
        λ ≥ 0 (default: 0).
    momentum_decay : float
        ψ ≥ 0, decay of the momentum schedule (default: 4e-3).
    decoupled_weight_decay : bool
        Shrink the parameter instead of adding λθ to the gradient: NAdamW (default: False).
    foreach : bool, optional
        None takes arrays of NumPy and CuPy in place, as one pass; where numba is absent, eight or
        more parameters of fewer than 8192 elements on average move into one buffer, unless
        something else refers to their arrays. False takes one operation after the other. True
        moves parameters of NumPy into one buffer, and what is assigned to `grad` into another:
        `data` and `grad` become views, which stay; arrays given before are left. Under
        "torch-2.13" also the formula of torch's foreach path; else the result is the same
        (default: None).
    maximize : bool
        Ascend instead of descend (default: False).
    capturable : bool
        Counters are float32 arrays beside the parameter, no step waits for the device, and the
        state is written in place; works on every library (default: False).
    differentiable : bool
        Gradients flow through the step (torch, JAX). A `Parameter` then gets new arrays in the
        place of the old ones; a plain torch tensor is written to and must be no leaf that requires
        a gradient (default: False).
    profile : str
        Whose rule: "documented", or a release from `refopt.rules.nadam.PROFILES`. "torch-2.13"
        takes the formula that torch takes for these flags (default: "documented").

    Attributes
    ----------
    state : defaultdict
        For a parameter that has stepped: `step` and `mu_product`, arrays of shape () on the host
        (float64; float32 under torch profiles and where capturable), and `exp_avg`, `exp_avg_sq`.
        A step in place writes all of them in place.
    jit_compile : bool
        Run steps under the compiler of the parameters' library, `jax.jit` or `torch.compile`; on a
        CPU they have the bits of NumPy then, but for subnormal numbers of JAX, which are 0.
        Where `capturable` or `differentiable` is set nothing is compiled (default: False).

    Raises
    ------
    ValueError
        A number out of its range or NaN, `lr` of other than one element, an unknown profile, or a
        fault in `params`; see `add_param_group`.
    TypeError
        An argument of another kind.

    Source: T. Dozat, "Incorporating Nesterov Momentum into Adam" (ICLR workshop 2016);
    torch.optim.NAdam 2.2.

    """

    absent: ClassVar[Mapping[str, Any]] = {
        "maximize": False,
        "foreach": None,
        "capturable": False,
        "differentiable": False,
        "decoupled_weight_decay": False,
    }

    jit_compile = False

    def __init__(
        self,
        params: Any,
        lr: Any = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        profile: str = "documented",
    ) -> None:
        if not (is_jax_array(_rate("", lr)) and is_traced(lr)):  # which has no value yet
            require("lr", lr)
        require("eps", eps)
        for i in range(2):
            require(f"betas[{i}]", _item("betas", betas, i), below=1.0)
        require("weight_decay", weight_decay)
        require("momentum_decay", momentum_decay)
        if not isinstance(profile, str) or profile not in rule.PROFILES:
            msg = f"profile: one of {', '.join(rule.PROFILES)} is required, got {profile!r}"
            raise ValueError(msg)
        self.profile = profile
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        self._last: Last | None = None  # step in place
        super().__init__(params, defaults, like_torch=profile.startswith("torch"))

    @hooked
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the gradients present.

        A parameter whose gradient is None stays as it is, its counters too. A step that fails
        changes nothing, wherever it fails; only what the closure did remains.

        Parameters
        ----------
        closure : callable, optional
            Called once, first, with torch's gradients enabled; it sets the gradients and returns
            the loss.

        Returns
        -------
        What the closure returned, or None.

        Raises
        ------
        ValueError, TypeError, RuntimeError, KeyError
            A gradient or state that does not fit, a sparse gradient, parameters that share memory,
            an option of another kind; the message names the parameter or the option.
        AssertionError
            `foreach` together with `differentiable`.

        """
        if not (closure is None or callable(closure)):
            msg = f"closure: a callable is required, got {kind(closure)}"
            raise TypeError(msg)
        if closure is None and self._repeated():
            return None
        tensors = [param for param in self._params() if is_torch_array(array_of(param))]
        arrays = [array_of(param) for param in tensors]
        with recording(bool(self.defaults["differentiable"]), *arrays):
            loss = None
            if closure is not None:
                with recording(True, *arrays):
                    loss = closure()
                if self._repeated():
                    return loss
            places: dict[Any, str] = {}
            stepping = [self._stepping(i, g, places) for i, g in enumerate(self.param_groups)]
            check_apart(places)
            if self._first(stepping):
                return loss
            after: dict[Any, _After] = {}
            for i, params in enumerate(stepping):
                for turn in turns(params):
                    after.update(self._computed(i, turn, after))
            self._write(after, places)
        return loss

    def _first(self, stepping: list[list[Any]]) -> bool:
        """Prepare a step in place and take it; False where it is not of that kind.

        That is: arrays of NumPy or CuPy that can be written and share nothing, counters on the
        host.
        """
        self._last = None
        if not (any(stepping) and all(map(_able, self.param_groups, stepping))):
            return False
        states = {param: self._state(i, param) for i, own in enumerate(stepping) for param in own}
        parts = [self._part(i, params, states) for i, params in enumerate(stepping)]
        for part, params in zip(parts, stepping, strict=True):
            if part is None:
                return False
            if part.foreach or pays([*map(DATA, params)]):
                flatten(params, states, MOMENTS, bool(part.foreach))
        kinds = [one for part in parts if part for one in part.kinds]
        for one in kinds:
            one.count(states, [key for key in CLOCK if key in states[one.params[0]]])
        params = [param for one in kinds for param in one.params]
        own = [states[param] for param in params]
        arrays = [
            {"param": param._data, **{field: state[key] for key, field in MOMENTS.items()}}
            for param, state in zip(params, own, strict=True)
        ]
        programs = [one.program for one in kinds for _ in one.params]
        able = engine(chain.from_iterable(map(dict.values, arrays)))
        step = able and able.Pass([*zip(programs, arrays, strict=True)])
        grads = [param._grad for param in params]
        if not (step and step.apart and step.takes(grads)):
            return False
        step.ready()
        every = [*self._params()]
        types = [*map(type, map(GRAD, every))]
        held = self._held(params, own)
        keys = [*chain.from_iterable(own)]
        self._last = Last(
            self.profile, [*filter(None, parts)], every, types, params, held, keys, step
        )
        self._in_place(grads, [partial(self.state.update, states)])
        return True

    def _part(self, i: int, params: list[Any], states: Mapping[Any, State]) -> Part | None:
        """A group that can step in place, or None."""
        group = self.param_groups[i]
        kinds: dict[Any, Kind] = {}
        for param in params:
            state = states[param]
            counters = {key: state[key] for key in CLOCK if key in state}
            plain = all(type(x) is np.ndarray for x in counters.values())
            if not plain or tuple(counters) not in (ALWAYS, tuple(CLOCK)):
                return None
            profile = self._profile(group, state)
            if not _alike(profile.choices):
                return None
            key = (profile, param._data.dtype, *(x.dtype for x in counters.values()))
            if key not in kinds:
                hyper = _hyper(f"group {i}: ", group, param._data)
                kinds[key] = Kind(rule, profile, param._data, hyper, rule.State._fields)
            kinds[key].params.append(param)
        settings = Settings(group, self.defaults)
        return Part(settings, group["foreach"], len(group["params"]), [*kinds.values()])

    def _state(self, i: int, param: Any) -> State:
        """The state of a parameter of group `i`, which may be new and in no dict yet."""
        state = self.state.get(param)
        profile = self._profile(self.param_groups[i])
        return state or self._fresh(array_of(param), profile, Floats())

    def _repeated(self) -> bool:
        """Take a step in place like the last one; False where anything else is new."""
        last = self._last
        if (
            last is None
            or last.profile != self.profile
            or len(last.parts) != len(self.param_groups)
        ):
            return False
        own = [*map(self.state.get, last.stepping, repeat({}))]
        grads = [*map(GRAD, last.stepping)]
        if (
            same(self._held(last.stepping, own), last.held)
            and [*chain.from_iterable(own)] == last.keys
            and [*map(type, map(GRAD, last.params))] == last.types
            and all(map(self._holds, count(), last.parts, self.param_groups))
            and last.step.again(grads)
        ):
            self._in_place(grads)
            return True
        return False

    def _held(self, params: Sequence[Any], states: Sequence[State]) -> list[Any]:
        """The objects that a step in place knows."""
        values = chain.from_iterable(map(dict.values, states))
        return [*self._params(), *map(DATA, params), *states, *values]

    def _holds(self, i: int, part: Part, group: Group) -> bool:
        """Whether the options of a group are those of a step in place, or such as it takes."""
        if len(group["params"]) != part.size:
            return False
        if part.settings.hold(group):
            return True
        if not group.keys() >= self.defaults.keys() or group["foreach"] is not part.foreach:
            return False
        where = f"group {i}: "
        _betas(where, group["betas"])
        if not _on_host(group):
            return False
        for own in part.kinds:
            hyper = _hyper(where, group, own.params[0]._data)
            if self._profile(group, own.counters) != own.profile or not own.takes(hyper):
                return False
        part.settings.take(group)
        return True

    def _in_place(self, grads: list[Any], then: Sequence[Callable[[], Any]] = ()) -> None:
        """Take the step that was prepared: computed as it is written."""
        last = self._last
        assert last is not None
        rows: list[Any] = []
        writes = [*then]
        for part in last.parts:
            for one in part.kinds:
                found, counters = _ticked(one)
                rows.extend(found)
                writes.extend(counters)
        last.step.run(grads, rows, writes)

    def _write(self, after: dict[Any, _After], places: Mapping[Any, str]) -> None:
        """Write what a step made, all of it or nothing."""
        where = ""
        try:
            with ExitStack() as undo:
                for param in [*after]:
                    # popped: its memory is free for the copies that `undo` keeps
                    array, state, group = after.pop(param)
                    where = places.get(param, "state")
                    if array is not array_of(param):
                        assign(param, array, bool(group["differentiable"]), undo)
                    own = self.state.get(param)
                    undo.callback(_restore, self.state, param, own and {**own})
                    own = self.state[param]
                    # a captured graph knows addresses; elsewhere a copy would only cost time
                    stays = group["capturable"] and not group["differentiable"]
                    for key, value in state.items():
                        old = own.get(key, value)
                        stay = stays and old is not value and near(old, value)
                        own[key] = written(old, value, undo) if stay else value
                undo.pop_all()
        except BaseException as error:
            error.add_note(f"{where}: not written; the step has changed nothing")
            raise

    def _stepping(self, i: int, group: Group, places: dict[Any, str]) -> list[Any]:
        """The parameters of a group that take part in this step, checked; fills `places`."""
        for option in self.defaults:
            entry(f"group {i}", group, object, option)
        _betas(f"group {i}: ", group["betas"])
        names = group.get("param_names", [])
        stepping = []
        for j, param in enumerate(group["params"]):
            if param.grad is None:
                continue
            name = names[j] if names else getattr(param, "name", None)
            where = f"group {i}, parameter {j}" + ("" if name is None else f" ({name})")
            self._check_flags(where, param, group)
            array, state = array_of(param), self.state.get(param)
            check_gradient(where, array, param.grad)
            counters = [key for key in CLOCK if key in ALWAYS or key in (state or ())]
            check_state(where, array, state, counters, MOMENTS)
            places[param] = where
            stepping.append(param)
        shared = self._profile(group).choices.counter is not rule.per_parameter
        return group["params"] if stepping and shared else stepping

    def _check_flags(self, where: str, param: Any, group: Group) -> None:
        if group["foreach"] and group["differentiable"]:
            msg = f"{where}: foreach=False is required where differentiable=True, got foreach=True"
            raise AssertionError(msg)
        recorded = is_torch_array(param) and self.defaults["differentiable"]
        if recorded and param.is_leaf and param.requires_grad:
            msg = (
                f"{where}: a refopt.Parameter, or a tensor that is no leaf requiring a gradient, "
                "is required where differentiable=True, got such a leaf"
            )
            raise RuntimeError(msg)

    def _computed(self, i: int, params: list[Any], after: Mapping[Any, _After]) -> Any:
        """What the step makes of `params` of group `i`, each once; nothing is written."""
        group = self.param_groups[i]
        num = Device() if group["capturable"] else Floats()
        # the rule runs once for all that it may treat alike
        parts: dict[Any, list[_Job]] = {}
        for param in params:
            array, state, _ = after.get(param, (array_of(param), self.state.get(param), group))
            state = state or self._fresh(array, self._profile(group), num)
            profile = self._profile(group, state)
            alike = (namespace_of(array), profile, is_double(array))
            shared = profile.choices.counter is not rule.per_parameter
            job = _Job(param, array, state, _clock(state, array, profile, num), profile)
            parts.setdefault("all" if shared else alike, []).append(job)
        result: dict[Any, _After] = {}
        for jobs in parts.values():
            ran = run(
                self._way(group, jobs[0]),
                jobs[0].profile,
                [job.array for job in jobs],
                [job.param.grad for job in jobs],
                [rule.State(*(job.state[key] for key in MOMENTS)) for job in jobs],
                [job.clock for job in jobs],
                _hyper(f"group {i}: ", group, jobs[0].array),
                num,
            )
            for job, quantities, moments, clock in zip(jobs, *ran, strict=True):
                value = job.array if quantities is None else quantities.param
                state = {**job.state, **{k: getattr(moments, f) for k, f in MOMENTS.items()}}
                state.update({k: getattr(clock, f) for k, f in CLOCK.items() if k in state})
                if isinstance(num, Floats):
                    for key in CLOCK.keys() & state.keys():
                        state[key] = on_host(state[key], value, dtype_name(job.state[key]))
                result[job.param] = _After(value, state, group)
        return {param: result[param] for param in params}

    def _way(self, group: Group, job: _Job) -> Any:
        """The rule, in the way in which a group asks for it on the library of a parameter."""
        if group["differentiable"]:
            return rule
        if group["capturable"]:
            kernel = group["foreach"] is not False and is_cupy_array(job.array)
            return captured(rule, job.profile.half) if kernel else rule
        return jitted(rule, job.profile.half) if self.jit_compile else rule

    def _profile(self, group: Group, state: Mapping[str, Any] | None = None) -> Profile:
        """The rule for the options of a group, and for the product in a parameter's state."""
        name = self.profile
        if name == "torch-2.13":
            flags = [f for f in ("capturable", "differentiable", "foreach") if group[f]]
            name = "-".join([name, *flags[:1]])
        if name not in rule.PROFILES:  # set since
            msg = f"profile: one of {', '.join(rule.PROFILES)} is required, got {name!r}"
            raise ValueError(msg)
        profile = rule.PROFILES[name]
        decoupled = bool(group["decoupled_weight_decay"])
        # a release that knows one form of decay keeps it
        both = name == "documented" or self.like_torch
        if decoupled and profile.choices.decay is rule.coupled:
            msg = f"decoupled_weight_decay: False is required under profile {name!r}, got True"
            raise ValueError(msg)
        options = {
            "decoupled_weight_decay": decoupled if both else None,
            "maximize": group["maximize"],
        }
        hyper = rule.Hyper(weight_decay=group["weight_decay"])
        choices = rule.configured(profile.choices, hyper, options)
        # torch multiplies the product in whatever dtype a loaded state gave it
        if self.like_torch and state and dtype_name(state["mu_product"]) != "float32":
            choices = choices._replace(product=rule.kept_product)
        return profile._replace(choices=choices)

    def _fresh(self, array: Any, profile: Profile, num: Any) -> State:
        """The state before the first step."""
        moments, clock = init(rule, profile, array, num)
        c = profile.choices
        powers = c.schedule is rule.decaying_running or c.correction is rule.closed_running
        state = {}
        for key in CLOCK if powers else ALWAYS:
            x = getattr(clock, CLOCK[key])
            state[key] = on_host(x, array, self._dtype(array)) if isinstance(num, Floats) else x
        return {**state, **{key: getattr(moments, field) for key, field in MOMENTS.items()}}

    def _dtype(self, array: Any) -> str:
        """Of the counters on the host beside `array`."""
        if not self.like_torch:
            return "float64"
        # torch takes its default dtype, at least float32
        double = is_torch_array(array) and is_double(array_namespace(array).asarray(1.0))
        return "float64" if double else "float32"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_last": None}  # a copy has arrays of its own

    def _fitted(self, param: Any, group: Group, state: Mapping[str, Any]) -> State:
        array = array_of(param)
        casts = self.like_torch and is_floating(array) and dtype_name(array) not in COMPLEX
        fitted = {}
        for key, value in state.items():
            if key in CLOCK and _is_number(value):
                dtype = dtype_name(value) if is_array(value) else self._dtype(array)
                if casts and is_array(value) and key != "step":
                    dtype = dtype_name(array)
                elif self.like_torch and group["capturable"]:
                    dtype = "float32"
                elif dtype not in FORMATS and not (self.like_torch and key == "step"):
                    dtype = self._dtype(array)
                counter = on_host(single(value) if is_array(value) else value, array, dtype)
                fitted[key] = beside(counter, array) if group["capturable"] else counter
            elif is_array(value):
                exact = holds(array, value)
                fitted[key] = placed(value, array, array.dtype if casts or exact else None)
            else:
                fitted[key] = deep(value)
        return fitted


class _Job(NamedTuple):
    """A parameter before a step, and the rule that it takes."""

    param: Any
    array: Any
    state: State
    clock: rule.Clock
    profile: Profile


class _After(NamedTuple):
    """What a step made of a parameter."""

    array: Any
    state: State
    group: Group


def _hyper(where: str, group: Group, array: Any) -> rule.Hyper:
    """The hyperparameters of a group, as the rule takes them beside `array`."""
    beta1, beta2 = _betas(where, group["betas"])
    lr = _rate(where, group["lr"])
    unread = bool(group["capturable"] or group["differentiable"])
    return rule.Hyper(
        lr=scalar(lr, array, unread) if is_array(lr) else number(f"{where}lr", lr),
        beta1=number(f"{where}betas[0]", beta1),
        beta2=number(f"{where}betas[1]", beta2),
        epsilon=number(f"{where}eps", group["eps"]),
        weight_decay=number(f"{where}weight_decay", group["weight_decay"]),
        momentum_decay=number(f"{where}momentum_decay", group["momentum_decay"]),
    )


def _rate(where: str, lr: Any) -> Any:
    if is_array(lr) and size(lr) != 1:
        msg = f"{where}lr: an array of one element is required, got shape {tuple(lr.shape)}"
        raise ValueError(msg)
    return lr


def _betas(where: str, betas: Any) -> Any:
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError) as error:
        msg = f"{where}betas: two numbers are required, got {betas!r}"
        raise type(error)(msg) from error
    return beta1, beta2


def _is_number(x: Any) -> bool:
    if is_array(x):
        return size(x) == 1 and dtype_name(x) not in COMPLEX
    return hasattr(x, "__float__")


def _item(name: str, pair: Any, i: int) -> Any:
    try:
        return pair[i]
    except (TypeError, LookupError) as error:
        msg = f"{name}: two numbers are required, got {pair!r}"
        raise type(error)(msg) from error


def _on_host(group: Group) -> bool:
    """Whether options let a group step in place."""
    on_device = any(map(is_cupy_array, (group["lr"], *group["betas"])))
    apart = group["foreach"] is False or group["differentiable"] or group["capturable"]
    return not (on_device or apart)


def _able(group: Group, params: list[Any]) -> bool:
    """Whether parameters of a group may step in place."""
    mine = all(
        isinstance(p, Parameter) and p._grad is not None and engine([p._data]) for p in params
    )
    return not params or (mine and _on_host(group) and len(params) == len(set(params)))


def _alike(choices: rule.Choices) -> bool:
    """Whether a clock depends on itself and on the settled numbers, where all have gradients."""
    independent = choices.counter in (rule.per_parameter, rule.shared, rule.shared_step)
    return independent and choices.factor is rule.same_factor


def _ticked(kind: Kind) -> tuple[list[Any], list[Callable[[], Any]]]:
    """The scalars of each parameter, and what writes the counters of all after the step."""
    rooms, choices = kind.counters.values(), kind.profile.choices
    counts = [*zip(*map(np.ndarray.tolist, rooms), strict=True)]
    # parameters alike are counted once
    each = [*dict.fromkeys(counts)]
    n = len(each)
    product = kind.counters["mu_product"]
    clocks = [_carrying(rule.Clock(*map(float, x)), product, choices) for x in each]
    tick = kind.clockwork()
    ticked = [tick(clock, kind.settled) for clock in clocks]
    rows = [row for row, _ in ticked]
    if n == 1:
        ((row, after),) = ticked
        pairs = zip(rooms, after, strict=False)  # powers that are not kept
        return [*repeat(row, len(counts))], [
            partial(x.fill, x.dtype.type(float(y))) for x, y in pairs
        ]
    place = dict(zip(each, range(n), strict=True))
    which = [*map(place.__getitem__, counts)] if n < len(counts) else [*range(n)]
    columns = zip(rooms, zip(*(after for _, after in ticked), strict=True), strict=False)
    new = [(x, np.array([*map(float, y)], x.dtype)[which]) for x, y in columns]
    return [*map(rows.__getitem__, which)], [partial(x.__setitem__, ..., y) for x, y in new]


def _restore(states: dict[Any, State], param: Any, before: State | None) -> None:
    """Give a parameter the state back that it had before a step."""
    if before is None:
        states.pop(param, None)
    else:
        states[param].clear()
        states[param].update(before)


def _clock(state: State, array: Any, profile: Profile, num: Any) -> rule.Clock:
    """The counters of a state as numbers of the system `num`."""
    fields = {f: single(state[k]) for k, f in CLOCK.items() if k in state}
    if isinstance(num, Device):
        return rule.Clock(**{f: beside(x, array) for f, x in fields.items()})
    clock = rule.Clock(**{f: float(x) for f, x in fields.items()})
    return _carrying(clock, fields["product"], profile.choices)


def _carrying(clock: rule.Clock, product: Any, choices: Any) -> rule.Clock:
    """The clock with its product in the dtype that it is kept in, where that counts."""
    if choices.product is not rule.kept_product:
        return clock
    return clock._replace(product=carried(dtype_name(product))(clock.product))
