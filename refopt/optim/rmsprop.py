"""RMSprop as an object: the surface of Keras's class around `refopt.rules.rmsprop`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from refopt.interp import fused
from refopt.interp.arrays import (
    Floats,
    compiled,
    compiles,
    init,
    passage,
    recording,
    run,
    scalar_of,
)
from refopt.interp.fused import prepared, same
from refopt.interp.rounded import carried
from refopt.optim import tape as tapes
from refopt.optim.groups import number, require
from refopt.optim.inplace import DATA, Kind, Repeat, Settings, engine
from refopt.optim.keras import EMAOption, GradientsClipOption, Optimizer, Pairs, _gradient, put
from refopt.optim.keras import _name as name_of
from refopt.optim.parameter import Parameter, _check_like, array_of, converted
from refopt.optim.schedules import rate
from refopt.rules import rmsprop as rule
from refopt.typing import Number, Numbers, Profile

SLOTS = {"v": "velocity", "buffer": "momentum", "a": "average_gradient"}
"""The fields of the rule's state, and what the variables that hold them are called."""
SETTINGS = (
    *("rho", "momentum", "epsilon", "centered", "_profile", "half", "jit_compile", "clipnorm"),
    *("clipvalue", "global_clipnorm", "use_ema", "ema_momentum", "ema_overwrite_frequency"),
)
MANY = 1 << 53
"""Steps that a float counts."""


class RMSprop(Optimizer):
    """Divide the gradient by the root of a discounted average of its square.

    The equations are `refopt.rules.rmsprop`, clauses RMS-3 to RMS-10. Variables are arrays of any
    library in `refopt.Variable`, or torch tensors.

    Parameters
    ----------
    learning_rate : float, schedule or callable
        γ; a `refopt.schedules` object, or a function of the number of steps done (default: 1e-3).
    rho : float
        ρ in [0, 1], decay of the averages (default: 0.9).
    momentum : float
        μ ≥ 0; 0 keeps no momentum (default: 0).
    epsilon : float
        ε ≥ 0, added to the root (default: 1e-7).
    centered : bool
        Divide by the root of the estimated variance instead (default: False).
    gradients_clip_option, ema_option, jit_compile, name, mesh, clipnorm, clipvalue, \
global_clipnorm, use_ema, ema_momentum, ema_overwrite_frequency, **kwargs
        See `refopt.Optimizer`.
    profile : str
        Whose rule: "documented", or a release from `refopt.rules.rmsprop.PROFILES`; arguments
        keep their defaults, and where a release checks no range, none is checked
        (default: "documented").

    Raises
    ------
    ValueError
        A number out of the range that the specification gives it, also when it is set later; an
        unknown profile; an option in both forms.
    TypeError
        An argument that does not exist, or of another kind.

    Example
    -------
    >>> import refopt
    >>> opt = refopt.RMSprop(learning_rate=0.1)
    >>> var1 = refopt.Variable(10.0)
    >>> loss = lambda: (var1 ** 2) / 2.0
    >>> step_count = opt.minimize(loss, [var1]).numpy()
    >>> print(var1.numpy())
    9.683772

    Source: G. Hinton, "Neural Networks for Machine Learning", lecture 6e (2012);
    tf.keras.dtensor.experimental.optimizers.RMSprop, TF 2.9.

    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        gradients_clip_option: GradientsClipOption | None = None,
        ema_option: EMAOption | None = None,
        jit_compile: bool = False,
        name: str | None = "RMSprop",
        mesh: Any = None,
        *,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        profile: str = "documented",
        **kwargs: Any,
    ) -> None:
        self.profile = profile
        super().__init__(
            name,
            mesh,
            gradients_clip_option=gradients_clip_option,
            ema_option=ema_option,
            jit_compile=jit_compile,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            **kwargs,
        )
        self.rho, self.momentum, self.epsilon = rho, momentum, epsilon
        self.centered = bool(centered)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self._slots: dict[Any, dict[str, Parameter]] = {}
        self._compiled: dict[Any, Any] = {}
        self._repeat: Repeat | None = None
        self._rule(self._hyper())

    @property
    def profile(self) -> str:
        """Whose rule the steps follow; see the parameter."""
        return self._profile

    @profile.setter
    def profile(self, name: str) -> None:
        if not isinstance(name, str) or name not in rule.PROFILES:
            msg = f"profile: one of {', '.join(rule.PROFILES)} is required, got {name!r}"
            raise ValueError(msg)
        self._profile = name
        self._ranged = name == "documented"
        self.half = rule.PROFILES[name].half

    def _scheduled(self, variables: Sequence[Any] = ()) -> float:
        """The learning rate of the next step, in the numbers of the profile's schedules."""
        known = [*self._var_list, *variables][:1]
        choices, name = rule.PROFILES[self.profile].choices, type(self._schedule).__name__

        def real(x: Number, num: Numbers) -> Number:
            beside = num.of(array_of(known[0])) if known else num
            return choices.schedule(x, beside, name)

        return self._finite("learning_rate", rate(self._schedule, self._iterations.operand, real))

    def _rate(self, value: Any) -> Number:
        """A learning rate as the rule takes it: what a schedule gives carries a dtype."""
        x = self._finite("learning_rate", value)
        return x if self._schedule is None else carried("float64")(x)

    def build(self, var_list: Any) -> None:
        """Make velocity, momentum and average_gradient of every variable, as far as they are used.

        They have the shape, dtype, place and layout of their variable and start at zero; a
        profile's velocity may start at one. A second call is ignored.
        """
        if self._var_list:
            return
        profile = self._rule(self._hyper())
        super().build(var_list)
        for variable in self._var_list:
            array = array_of(variable)
            with recording(False, array):
                state, _ = init(rule, profile, array)
            self._slots[variable] = {
                field: self._kept(value, f"{self.name}/{slot}/{name_of(variable)}")
                for field, slot in SLOTS.items()
                if (value := getattr(state, field)) is not None
            }

    def update_step(self, gradient: Any, variable: Any) -> None:
        """One step of one variable; no clipping, average or count of steps.

        Raises
        ------
        KeyError
            A variable that `build` did not get.
        TypeError, ValueError
            No variable, or a gradient that does not fit.

        """
        (variable,) = tapes.listed("variable", [variable])
        where = f"variable ({name_of(variable)})"
        if variable not in self._slots:
            msg = f"{where}: a variable that build got is required"
            raise KeyError(msg)
        if not isinstance(gradient, rule.Rows):
            gradient = _gradient(where, array_of(variable), gradient)
        hyper = self._hyper()
        profile = self._rule(hyper)
        choices = profile.choices._replace(clip=rule.unclipped, average=rule.no_average)
        with ExitStack() as undo:
            profile = profile._replace(choices=choices)
            self._run([variable], [gradient], hyper, profile, None, undo)
            undo.pop_all()

    def _step(self, pairs: Pairs, undo: ExitStack) -> None:
        if type(self).update_step is not RMSprop.update_step:  # a subclass steps in its own way
            super()._step(pairs, undo)
            return
        given = {variable: gradient for gradient, variable in pairs}
        place = {variable: i for i, variable in enumerate(self._var_list)}
        order = [place.pop(variable) for variable in given]
        hyper = self._hyper()
        self._run(
            self._var_list,
            [given.get(variable) for variable in self._var_list],
            hyper,
            self._rule(hyper),
            [*order, *place.values()],
            undo,
            counts=True,
        )

    def _run(
        self,
        variables: Sequence[Any],
        grads: Sequence[Any],
        hyper: rule.Hyper,
        profile: Profile,
        order: list[int] | None,
        undo: ExitStack,
        counts: bool = False,
    ) -> None:
        """The rule's step of these variables, and of the counter: as a whole, or not at all."""
        states = [self._state(variable) for variable in variables]
        clock = rule.Clock(self._iterations.operand)
        arrays = [array_of(variable) for variable in variables]
        clocks = [clock for _ in arrays]
        given = arrays, grads, states, clocks, hyper
        able = engine(arrays) if fused.writable(self._iterations.data) or not counts else None
        if able and (ready := prepared(able, rule, profile, *given, order=order)):
            in_place, after = ready
            count = self._iterations.data
            counted = converted("iterations", int(max(clock.t for clock in after)), count)
            if counts and able is fused:
                self._remember(variables, grads, hyper, profile, order)
            undo.pop_all()  # from here on nothing fails
            in_place([partial(count.__setitem__, (), counted)] if counts else [])
            return
        with recording(False, *arrays):
            stepped = self._results(arrays, grads, states, clock, hyper, profile, order)
        for variable, (param, state) in zip(variables, stepped, strict=True):
            if param is not None:
                put(variable, param, undo)
            for field, slot in self._kept_for(variable).items():
                value = getattr(state, field)
                if value is not slot.data:
                    put(slot, value, undo)
        if counts:
            self._iterations.assign_add(1)

    def _remember(
        self,
        variables: Sequence[Any],
        grads: Sequence[Any],
        hyper: rule.Hyper,
        profile: Profile,
        order: list[int] | None,
    ) -> None:
        """Prepare to take the next step by `_again`, where it is but steps of all variables."""
        self._repeat = None
        c, limits = profile.choices, (hyper.clipnorm, hyper.clipvalue, hyper.global_clipnorm)
        missing = any(grad is None for grad in grads) or order != [*range(len(variables))]
        if missing or c.average is not rule.no_average or limits != (None, None, None):
            return
        kinds: dict[Any, Kind] = {}
        holders: list[Parameter] = []
        items = []
        for variable in variables:
            array, kept = array_of(variable), self._kept_for(variable)
            if array.dtype not in kinds:
                kinds[array.dtype] = Kind(rule, profile, array, hyper, [*kept])
            kinds[array.dtype].params.append(variable)
            held = {"param": variable, **kept}
            holders.extend(held.values())
            arrays = {field: holder.data for field, holder in held.items()}
            items.append((kinds[array.dtype].program, arrays))
        step = fused.Pass(items)
        if step.apart and step.takes(grads):
            step.ready()
            self._repeat = Repeat(
                Settings(vars(self), SETTINGS),
                hyper,
                [*variables],
                [kinds[array_of(variable).dtype] for variable in variables],
                holders,
                [*map(DATA, holders)],
                step,
                self._iterations.data,
            )

    def _again(self, grads_and_vars: Any) -> bool:
        last = self._repeat
        if (
            last is None
            or type(grads_and_vars) is not list
            or {*map(type, grads_and_vars)} != {tuple}
            or {*map(len, grads_and_vars)} != {2}
            or not last.settings.hold(vars(self))
            or self._iterations._data is not last.count
            or not last.count.flags.writeable
            or not (self._schedule is None or fused.writable(self._learning_rate.data))
        ):
            return False
        grads, variables = zip(*grads_and_vars, strict=True)
        done = last.count.item()
        if (
            {*map(type, grads)} != {np.ndarray}
            or not same(variables, last.variables)
            or not same([*map(DATA, last.holders)], last.arrays)
            or done >= MANY
            or not last.step.again(grads)
        ):
            return False
        then = []
        rate = self._learning_rate
        if self._schedule is not None:
            scheduled = np.asarray(self._scheduled())
            then.append(partial(rate.data.__setitem__, (), scheduled))
            rate = scheduled
        hyper = last.hyper
        if self._schedule is not None or rate._data.item() != hyper.lr:
            hyper = hyper._replace(lr=self._rate(rate))
        rows: dict[Kind, Any] = {}
        for kind in dict.fromkeys(last.kinds):  # all variables have one count
            if not kind.takes(hyper):
                return False
            rows[kind], (t,) = kind.clockwork()(rule.Clock(done), kind.settled)
        then.append(partial(last.count.__setitem__, (), int(t)))
        last.step.run(grads, [*map(rows.__getitem__, last.kinds)], then)
        return True

    def _results(
        self,
        arrays: list[Any],
        grads: Sequence[Any],
        states: list[rule.State],
        clock: rule.Clock,
        hyper: rule.Hyper,
        profile: Profile,
        order: list[int] | None,
    ) -> list[tuple[Any, rule.State]]:
        """(parameter or None, state) of each variable after the step."""
        clocks = [clock for _ in arrays]

        def step(
            arrays: Any, grads: Any, states: Any, hyper: Any, **more: Any
        ) -> list[tuple[Any, rule.State]]:
            quantities, after, _ = run(
                rule, profile, arrays, grads, states, clocks, hyper, order=order, **more
            )
            params = [None if q is None else q.param for q in quantities]
            return list(zip(params, after, strict=True))

        sparse = any(isinstance(grad, rule.Rows) for grad in grads)
        if not self.jit_compile or sparse or not compiles(arrays[0]):
            return step(arrays, grads, states, hyper)
        enter = [passage(array, profile.half).enter for array in arrays]
        entered = [way(array) for way, array in zip(enter, arrays, strict=True)]
        ticked = rule.ticks(entered, grads, clocks, hyper, profile.choices, num=Floats())
        scalars = [
            s if s is None else rule.Scalars(*(scalar_of(x, array) for x in s))
            for (s, _), array in zip(ticked, arrays, strict=True)
        ]
        after = [clock for _, clock in ticked]
        t = int(after[0].t)
        # what the compiled step depends on besides arrays; the learning rate is among the scalars
        fixed = hyper._replace(lr=0.0)
        key = (
            fixed,
            profile.choices,
            tuple(grad is None for grad in grads),
            tuple(order or ()),
            bool(self._averages) and profile.choices.average_start(t, hyper),
            bool(self._averages) and rule.due(t, hyper, profile.choices),
        )
        if key not in self._compiled:

            def traced(arrays: Any, grads: Any, states: Any, scalars: Any) -> Any:
                pairs = list(zip(scalars, after, strict=True))
                return step(arrays, grads, states, fixed, ticked=pairs)

            self._compiled[key] = compiled(traced, arrays[0])
        results: list[tuple[Any, rule.State]] = self._compiled[key](
            arrays, list(grads), states, scalars
        )
        return results

    def _state(self, variable: Any) -> rule.State:
        kept = self._kept_for(variable)
        for slot in kept.values():
            _check_like(f"variable ({name_of(variable)})", slot.data, array_of(variable))
        fields: dict[str, Any] = {
            field: kept[field].data if field in kept else None for field in rule.State._fields
        }
        return rule.State(**fields)

    def _kept_for(self, variable: Any) -> dict[str, Parameter]:
        """What is kept for a variable, by the fields of the rule's state."""
        average = {"average": self._averages[variable]} if variable in self._averages else {}
        return {**self._slots[variable], **average}

    def _hyper(self) -> rule.Hyper:
        return self._limits()._replace(lr=self._rate(self._learning_rate), **self._numbers())

    def _numbers(self) -> dict[str, float]:
        """rho, momentum and epsilon, in their ranges."""
        numbers = {key: number(key, getattr(self, key)) for key in ("rho", "momentum", "epsilon")}
        if self._ranged:
            for key in numbers:
                require(key, getattr(self, key))
            if numbers["rho"] > 1:
                msg = f"rho: a number in [0, 1] is required, got {self.rho!r}"
                raise ValueError(msg)
        return numbers

    def _rule(self, hyper: rule.Hyper) -> Profile:
        """The rule for what is asked of it; raises where a slot that it needs was not made."""
        profile = rule.PROFILES[self.profile]
        options = {"centered": self.centered, "use_ema": self.use_ema}
        choices = rule.configured(profile.choices, hyper, options)
        if self.use_ema and choices.average is rule.no_average:
            msg = f"use_ema: False is required under profile {self.profile!r}, got True"
            raise ValueError(msg)
        slots = next(iter(self._slots.values()), None)
        wanted = {
            "buffer": ("momentum", choices.move not in (rule.no_momentum, rule.dropped)),
            "a": ("centered", choices.variance is not rule.uncentered),
        }
        for field, (name, needed) in wanted.items():
            if slots is not None and needed and field not in slots:
                msg = f"{name}: a value from before build is required, got {getattr(self, name)!r}"
                raise ValueError(msg)
        return profile._replace(choices=choices)

    def __getstate__(self) -> dict[str, Any]:
        # a copy has arrays of its own, and a compiled step is made again
        return {**vars(self), "_compiled": {}, "_repeat": None}

    def get_config(self) -> dict[str, Any]:
        """The arguments that make the optimizer again; see `refopt.Optimizer.get_config`."""
        return {
            **super().get_config(),
            "learning_rate": self._serialize_hyperparameter(self._learning_rate),
            **self._numbers(),
            "centered": self.centered,
            "profile": self.profile,
        }
