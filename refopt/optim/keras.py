"""What every optimizer shaped like Keras's shares: variables, gradients, clipping, averages."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from refopt.interp.arrays import (
    applied,
    dtype_name,
    laid_out_like,
    namespace_of,
    recording,
)
from refopt.interp.host import (
    copied,
    dtype_beside,
    dtype_named,
    is_array,
    is_floating,
    is_mesh,
    numpy_dtype,
    on_mesh,
    replicated,
    same_library,
    to_numpy,
)
from refopt.optim import tape as tapes
from refopt.optim.groups import deep, number, require
from refopt.optim.parameter import (
    Counter,
    Parameter,
    Slot,
    array_of,
    assign,
    check_apart,
    check_gradient,
    converted,
    is_numbers,
    is_parameter,
    keep,
    kind,
)
from refopt.optim.schedules import LearningRateSchedule, deserialize, rate, serialize
from refopt.rules import average as ema
from refopt.rules import rmsprop as rule

Pairs: TypeAlias = list[tuple[Any, Any]]  # (gradient, variable)


class GradientsClipOption(NamedTuple):
    """The three limits as one argument; see `Optimizer`."""

    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None


class EMAOption(NamedTuple):
    """The average of the variables as one argument; see `Optimizer`."""

    use_ema: bool = False
    ema_momentum: float = 0.99
    ema_overwrite_frequency: int | None = None


class IndexedSlices:
    """A sparse gradient: some rows of a variable's first axis, which may repeat and then add up.

    Parameters
    ----------
    values : array
        The rows, of shape (k, ...).
    indices : sequence or array of int
        Which rows they are, k numbers from 0.
    dense_shape : sequence of int, optional
        The shape of the whole gradient (default: that of its variable).

    """

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self.values = values
        self.indices = indices
        self.dense_shape = dense_shape


INITIALIZERS: Mapping[str, float] = {"zeros": 0.0, "ones": 1.0}
DEPRECATED = ("lr", "decay", "gradient_transformers", "gradient_aggregator")


@contextmanager
def _undone(optimizer: Any) -> Iterator[None]:
    """Within, what fails leaves the optimizer the attributes that it had, and what they list."""
    before = {
        key: copy.copy(x) if isinstance(x, dict | list) else x for key, x in vars(optimizer).items()
    }
    try:
        yield
    except BaseException:
        vars(optimizer).clear()
        vars(optimizer).update(before)
        raise


def _whole(build: Callable[..., None]) -> Callable[..., None]:
    """`build`, all of it or nothing."""

    @wraps(build)
    def whole(self: Any, var_list: Any) -> None:
        with _undone(self):
            build(self, var_list)

    return whole


class Optimizer:
    """Base of optimizers with the surface of Keras's: subclass it with your own step.

    A subclass defines `update_step(gradient, variable)`, which changes the variable, and `build`,
    which calls `super().build(var_list)` and makes its own variables; `get_config` adds its
    arguments to those of the base. `self._learning_rate = self._build_learning_rate(x)` in its
    `__init__` makes `learning_rate` a number that can be assigned, or one that follows a schedule.

    Parameters
    ----------
    name : str, optional
        In front of the names of the variables that the optimizer makes (default: the class).
    mesh : jax.sharding.Mesh, optional
        Where all variables live; what the optimizer keeps for a variable has its layout, counters
        are on every device (default: None).
    gradients_clip_option, ema_option : GradientsClipOption, EMAOption, optional
        The arguments below in another form; both forms at once are an error.
    jit_compile : bool
        Run the step under the compiler of the variables' library, where it has one: `jax.jit`,
        `torch.compile`. Sparse gradients, and a subclass's own `update_step`, run as they are
        (default: False).
    clipnorm, global_clipnorm, clipvalue : float, optional
        Limit of each gradient's norm, of the norm of all gradients together, of each element. The
        first of them that is given, in this order, is used; 0 or less is none (default: None).
    use_ema : bool
        Keep an exponential moving average of every variable, from its value at `build`
        (default: False).
    ema_momentum : float
        Its decay, in [0, 1] (default: 0.99).
    ema_overwrite_frequency : int, optional
        Every so many steps the variables are set to their averages; None or 0: only by
        `finalize_variable_values` (default: None).
    **kwargs
        `lr`, `decay`, `gradient_transformers`, `gradient_aggregator`: deprecated, ignored.

    Raises
    ------
    ValueError
        `clipnorm` with `global_clipnorm`, an option in both forms, a number out of its range; a
        learning rate or a limit that is not finite, also when it is set later or by a schedule.
    TypeError
        An argument that does not exist, or of another kind.

    """

    half: str = "stored"  # 16-bit: see `refopt.typing.Profile`
    _ranged: bool = True  # whether numbers are held to the ranges of the specification

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls):
            cls.build = _whole(cls.build)  # type: ignore[method-assign]

    def __init__(
        self,
        name: str | None = None,
        mesh: Any = None,
        *,
        gradients_clip_option: GradientsClipOption | None = None,
        ema_option: EMAOption | None = None,
        jit_compile: bool = False,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        **kwargs: Any,
    ) -> None:
        for key in kwargs:
            if key not in DEPRECATED:
                msg = f"{type(self).__name__}() got an unexpected keyword argument {key!r}"
                raise TypeError(msg)
            msg = f"{key}: deprecated and ignored; the learning rate is learning_rate"
            warnings.warn(msg, DeprecationWarning, stacklevel=3)
        if mesh is not None and not is_mesh(mesh):
            msg = f"mesh: a jax.sharding.Mesh or None is required, got {kind(mesh)}"
            raise TypeError(msg)
        limits = GradientsClipOption(clipnorm, clipvalue, global_clipnorm)
        average = EMAOption(use_ema, ema_momentum, ema_overwrite_frequency)
        limits = _one_form("gradients_clip_option", gradients_clip_option, limits)
        average = _one_form("ema_option", ema_option, average)
        for key, limit in limits._asdict().items():
            self._limit(key, limit)
        if limits.clipnorm is not None and limits.global_clipnorm is not None:
            msg = (
                "clipnorm: None is required where global_clipnorm is given, "
                f"got {limits.clipnorm!r} and {limits.global_clipnorm!r}"
            )
            raise ValueError(msg)
        if average.use_ema:
            _check_average(average)
        self.name = type(self).__name__ if name is None else name
        self.mesh = mesh
        self.jit_compile = bool(jit_compile)
        self.clipnorm, self.clipvalue, self.global_clipnorm = limits
        self.use_ema, self.ema_momentum, self.ema_overwrite_frequency = average
        self._schedule: Any = None
        self._learning_rate: Any = None
        self._built = False  # for subclasses
        self._var_list: list[Any] = []
        self._own: list[Parameter] = []  # made by add_variable, in this order
        self._averages: dict[Any, Parameter] = {}
        self._iterations = self._counter(np.asarray(0), "iteration")

    # -- learning rate, counters, variables -------------------------------------------------------
    def _build_learning_rate(self, learning_rate: Any) -> Counter:
        """What `learning_rate` is: a number, or what a schedule gives for the step."""
        self._schedule = None
        if isinstance(learning_rate, Mapping):
            learning_rate = deserialize(learning_rate)
        if callable(learning_rate) and not is_parameter(learning_rate):
            self._schedule = learning_rate
            learning_rate = self._scheduled()
        value = np.asarray(self._finite("learning_rate", learning_rate))
        return self._counter(value, "learning_rate")

    def _counter(self, value: Any, name: str) -> Counter:
        return Counter(value if self.mesh is None else replicated(value, self.mesh), name)

    def _scheduled(self, variables: Sequence[Any] = ()) -> float:
        """The learning rate of the next step by the schedule; `variables`: where none is built."""
        value = rate(self._schedule, self._iterations.operand, lambda x, num: num(x))
        return self._finite("learning_rate", value)

    def _finite(self, name: str, value: Any, wanted: str = "a finite number") -> float:
        """A number; finite, unless a profile checks no range."""
        x = number(name, value)
        if self._ranged and not np.isfinite(x):
            msg = f"{name}: {wanted} is required, got {value!r}"
            raise ValueError(msg)
        return x

    def _limit(self, name: str, value: Any) -> float | None:
        return None if value is None else self._finite(name, value, "a finite number or None")

    @property
    def learning_rate(self) -> Any:
        """The learning rate, a variable; with a schedule that of the last step.

        Set it to a number; with a schedule that is a TypeError.
        """
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if self._schedule is not None:
            msg = "learning_rate: it follows a schedule and cannot be set; make a new optimizer"
            raise TypeError(msg)
        if callable(value) and not is_parameter(value):
            msg = "learning_rate: a number is required where none was a schedule, got a schedule"
            raise ValueError(msg)
        self._learning_rate.assign(np.asarray(self._finite("learning_rate", value)))

    @property
    def iterations(self) -> Any:
        """The number of steps done, an integer variable; it may be set before `build`."""
        return self._iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        if self._var_list:
            msg = "iterations: setting is required before build; use iterations.assign afterwards"
            raise RuntimeError(msg)
        self._iterations.assign(converted("iterations", value, self._iterations.data))

    @property
    def variables(self) -> list[Any]:
        """Everything the optimizer keeps: iteration, learning rate, then as they were made."""
        counters = [self._iterations, self._learning_rate]
        return [x for x in counters if x is not None] + [*self._own]

    def add_variable(
        self, shape: Any = None, dtype: Any = None, initializer: Any = "zeros", name: Any = None
    ) -> Parameter:
        """Make a variable that the optimizer keeps.

        Parameters
        ----------
        shape : sequence of int, or one int, optional
            None is a scalar (default: None).
        dtype : str, optional
            Or a dtype of an array library (default: float32).
        initializer : str or callable
            "zeros", "ones", or `initializer(shape, dtype)` (default: "zeros").
        name : str, optional
            (default: None).

        Returns
        -------
        The variable: of the library of the variables of `build`, on every device of the mesh; of
        NumPy before it.

        Raises
        ------
        ValueError
            An initializer of another name or of another shape; a shape that is none.
        TypeError
            A dtype that is none, or none of the library's; an initializer that gives no numbers.

        """
        wanted = _shape("shape", shape)
        kept = "float32" if dtype is None else dtype_named(dtype)
        like = array_of(self._var_list[0]) if self._var_list else np.zeros((), "float32")
        own = dtype_beside(kept, like)
        if own is None:
            msg = f"dtype: one of the library of {kind(like)} is required, got {dtype!r}"
            raise TypeError(msg)
        if callable(initializer):
            value = initializer(wanted, kept)
        elif isinstance(initializer, str) and initializer in INITIALIZERS:
            value = np.full(wanted, INITIALIZERS[initializer])
        else:
            msg = (
                f"initializer: a callable or one of {', '.join(INITIALIZERS)} is required, "
                f"got {initializer!r}"
            )
            raise ValueError(msg)
        if self.mesh is not None:
            like, own = np.zeros(()), numpy_dtype(kept)
        data = converted("initializer", value, like, own)
        if tuple(data.shape) != wanted:
            msg = f"initializer: shape {wanted} is required, got {tuple(data.shape)}"
            raise ValueError(msg)
        return self._kept(data if self.mesh is None else replicated(data, self.mesh), name)

    def add_variable_from_reference(
        self, model_variable: Any, variable_name: str, initial_value: Any = None
    ) -> Parameter:
        """Make a variable of the shape, dtype, place and layout of another.

        Parameters
        ----------
        model_variable : variable
        variable_name : str
            Its name is "{variable_name}/{name of model_variable}".
        initial_value : array, variable or number, optional
            Of the same shape, or a number (default: zeros).

        Raises
        ------
        ValueError
            `initial_value` of another shape.

        """
        (model_variable,) = tapes.listed("model_variable", [model_variable])
        like = array_of(model_variable)
        with recording(False, like):
            data = copied(namespace_of(like).zeros_like(like))
            kept = Slot(data, f"{variable_name}/{_name(model_variable)}")
            if initial_value is not None:
                value = converted("initial_value", initial_value, like)
                if tuple(value.shape) not in ((), kept.shape):
                    msg = f"initial_value: shape {kept.shape} is required, got {tuple(value.shape)}"
                    raise ValueError(msg)
                kept.assign(namespace_of(like).xp.broadcast_to(value, kept.shape))
        kept.data = laid_out_like(kept.data, like)
        self._own.append(kept)
        return kept

    def _kept(self, data: Any, name: str | None) -> Parameter:
        self._own.append(Slot(data, name))
        return self._own[-1]

    # -- steps ------------------------------------------------------------------------------------
    @_whole
    def build(self, var_list: Any) -> None:
        """Learn which variables there are; a second call is ignored.

        A subclass calls `super().build(var_list)` and makes its own variables. Where it fails,
        nothing is built.

        Raises
        ------
        TypeError
            Not a list of floating-point variables, or variables of several libraries.
        ValueError
            A variable twice, or one outside the mesh.

        """
        if self._var_list:
            return
        variables = tapes.listed("var_list", var_list)
        if len(variables) != len(set(variables)):
            msg = "var_list: each variable once is required, got one twice"
            raise ValueError(msg)
        for i, variable in enumerate(variables):
            self._check_variable(f"var_list[{i}] ({_name(variable)})", variable, variables[0])
        self._var_list = variables
        if self.use_ema:
            for variable in variables:
                self._averages[variable] = self.add_variable_from_reference(
                    variable, f"{self.name}/average", array_of(variable)
                )

    def _check_variable(self, where: str, variable: Any, first: Any) -> None:
        array, other = array_of(variable), array_of(first)
        if not is_floating(array):
            msg = f"{where}: a floating-point variable is required, got {dtype_name(array)}"
            raise TypeError(msg)
        if not same_library(array, other):
            msg = f"{where}: one library is required, got {kind(array)} beside {kind(other)}"
            raise TypeError(msg)
        if self.mesh is not None and not on_mesh(array, self.mesh):
            place = getattr(array, "sharding", kind(array))
            msg = f"{where}: a JAX array on the devices of the mesh is required, got {place}"
            raise ValueError(msg)

    def update_step(self, gradient: Any, variable: Any) -> None:
        """Change one variable by its gradient; a subclass defines it."""
        msg = f"{kind(self)}: an optimizer is required to define update_step(gradient, variable)"
        raise NotImplementedError(msg)

    def apply_gradients(self, grads_and_vars: Any) -> None:
        """Take one step.

        Every pair is checked before anything changes, and where the step fails everything is as it
        was: where it was the first, nothing is built. A variable whose gradient is None is left
        alone, with a warning; its average still takes it in.

        Parameters
        ----------
        grads_and_vars : iterable of (gradient, variable)
            A gradient is an array of the variable's library, shape and dtype, an `IndexedSlices`,
            numbers, or None.

        Raises
        ------
        TypeError
            No iterable of pairs, or a gradient of another library or dtype.
        ValueError
            Every gradient is None, one has another shape or device, a variable comes twice, or two
            share memory.
        KeyError
            A variable that `build` did not get.

        """
        if type(grads_and_vars) is zip:
            grads_and_vars = [*grads_and_vars]
        if self._again(grads_and_vars):
            return
        pairs = self._checked(grads_and_vars)
        learning_rate = None
        if self._schedule is not None:
            learning_rate = self._scheduled([variable for _, variable in pairs])
        with _undone(self), ExitStack() as undo:
            if not self._var_list:
                self.build([variable for _, variable in pairs])
            for counter in (self._iterations, self._learning_rate):
                if counter is not None:
                    keep(counter, undo)
            if learning_rate is not None:
                self._learning_rate.assign(np.asarray(learning_rate))
            self._step([pair for pair in pairs if pair[0] is not None], undo)
            undo.pop_all()

    def _again(self, grads_and_vars: Any) -> bool:
        """Take a step like the last one, without checking again what was checked; else False."""
        return False

    def _checked(self, grads_and_vars: Any) -> Pairs:
        """The pairs, gradients as arrays or rows; raises unless all are as required."""
        wanted = "grads_and_vars: an iterable of (gradient, variable) is required"
        if isinstance(grads_and_vars, Mapping | str) or not isinstance(grads_and_vars, Iterable):
            msg = f"{wanted}, got {kind(grads_and_vars)}"
            raise TypeError(msg)
        pairs: Pairs = []
        for i, pair in enumerate(grads_and_vars):
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and is_parameter(pair[1])):
                size = f" of {len(pair)}" if isinstance(pair, tuple | list) else ""
                msg = f"{wanted}, got {kind(pair)}{size} at {i}"
                if isinstance(pair, tuple | list) and len(pair) == 2:
                    msg = f"{wanted}, got {kind(pair[1])} as variable at {i}"
                raise TypeError(msg)
            pairs.append((pair[0], pair[1]))
        variables = [variable for _, variable in pairs]
        if len(variables) != len(set(variables)):
            msg = "grads_and_vars: each variable once is required, got one twice"
            raise ValueError(msg)
        for i, variable in enumerate(variables):
            where = f"variable {i} ({_name(variable)})"
            self._check_known(where, variable)
            if not self._var_list:
                self._check_variable(where, variable, variables[0])
            pairs[i] = (_gradient(where, array_of(variable), pairs[i][0]), variable)
        own = self._var_list or variables
        check_apart({v: f"variable {i} ({_name(v)})" for i, v in enumerate(own)})
        missing = [_name(variable) for gradient, variable in pairs if gradient is None]
        if len(missing) == len(pairs):
            msg = (
                "grads_and_vars: a gradient for at least one variable is required, "
                f"got none for {', '.join(missing) or 'no variable'}"
            )
            raise ValueError(msg)
        if missing:
            msg = f"no gradient for {', '.join(missing)}: left alone in this step"
            warnings.warn(msg, UserWarning, stacklevel=3)
        return pairs

    def _check_known(self, where: str, variable: Any) -> None:
        if self._var_list and variable not in set(self._var_list):
            known = ", ".join(_name(v) for v in self._var_list)
            msg = (
                f"{where}: a variable that build got is required ({known}); "
                "for other variables make another optimizer"
            )
            raise KeyError(msg)

    def _step(self, pairs: Pairs, undo: ExitStack) -> None:
        """One step with gradients that fit: clip, `update_step`, count, average."""
        hyper = self._limits()
        grads, variables = [g for g, _ in pairs], [v for _, v in pairs]
        arrays = [array_of(v) for v in variables]
        clipped = applied(
            lambda given, xp: rule.first_given(given, hyper, rule.Choices(), xp),
            self.half,
            arrays,
            grads,
        )
        for kept in [*self._var_list, *self._own]:
            keep(kept, undo)
        for given, variable in zip(clipped, variables, strict=True):
            if isinstance(given, rule.Rows):
                given = IndexedSlices(given.values, given.indices, array_of(variable).shape)
            self.update_step(given, variable)
        self._iterations.assign_add(1)
        self._average(hyper, undo)

    def _average(self, hyper: rule.Hyper, undo: ExitStack) -> None:
        """The averages after a step, and the variables where they are overwritten."""
        if not self._averaging():
            return
        momentum = rule.from_start(0, hyper)
        arrays = [array_of(v) for v in self._averages]
        olds = [kept.data for kept in self._averages.values()]

        def averaged(olds: list[Any], news: list[Any], xp: Any) -> list[Any]:
            pairs = zip(olds, news, strict=True)
            return [ema.averaged(old, new, momentum) for old, new in pairs]

        means = applied(averaged, self.half, arrays, olds, arrays)
        overwritten = ema.overwrites(self._iterations.operand, self.ema_overwrite_frequency)
        for (variable, kept), mean in zip(self._averages.items(), means, strict=True):
            put(kept, mean, undo)
            if overwritten:
                put(variable, mean, undo)

    def _limits(self) -> rule.Hyper:
        """The hyperparameters that every optimizer has."""
        average = EMAOption(self._averaging(), self.ema_momentum, self.ema_overwrite_frequency)
        if average.use_ema:
            _check_average(average)
        return rule.Hyper(
            clipnorm=self._limit("clipnorm", self.clipnorm),
            clipvalue=self._limit("clipvalue", self.clipvalue),
            global_clipnorm=self._limit("global_clipnorm", self.global_clipnorm),
            ema_momentum=number("ema_momentum", self.ema_momentum),
            ema_overwrite_frequency=average.ema_overwrite_frequency,
        )

    def _averaging(self) -> bool:
        """Whether averages are kept; raises where `build` made none."""
        if self.use_ema and self._var_list and not self._averages:
            msg = f"use_ema: a value from before build is required, got {self.use_ema!r}"
            raise ValueError(msg)
        return bool(self.use_ema)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """The gradients of a loss as a list of (gradient or None, variable).

        By torch's autograd, by `jax.grad`, or on NumPy, CuPy and others by a complex step, which
        is one evaluation for each of at most 10,000 elements of real variables, of an analytic
        loss; see `refopt.GradientTape` for autograd. An array loss stands for the sum of its
        elements.

        Parameters
        ----------
        loss : callable or recorded value
            A function without arguments, or what `tape` recorded.
        var_list : list of variables
        tape : optional
            A `refopt.GradientTape`, or whatever has `gradient(loss, variables)`; a callable loss
            is called in its `with` block (default: None).

        Raises
        ------
        ValueError
            `loss` is no function and there is no tape; see also `refopt.GradientTape.gradient`.
        TypeError
            `var_list` is no list of variables.

        """
        return tapes.compute_gradients(loss, var_list, tape)

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """`compute_gradients`, then `apply_gradients`; returns `iterations`."""
        self.apply_gradients(self.compute_gradients(loss, var_list, tape))
        return self.iterations

    def finalize_variable_values(self, var_list: Any = None) -> None:
        """Set variables to their averages; nothing without `use_ema`.

        Parameters
        ----------
        var_list : list of variables, optional
            Which (default: all that `build` got).

        Raises
        ------
        KeyError
            A variable that `build` did not get.
        ValueError
            `use_ema` was set after `build`.

        """
        if not self._averaging():
            return
        variables = self._var_list if var_list is None else tapes.listed("var_list", var_list)
        for i, variable in enumerate(variables):
            if variable not in self._averages:
                msg = (
                    f"var_list[{i}] ({_name(variable)}): a variable that build got is required, "
                    f"got one of {len(self._averages)} others"
                )
                raise KeyError(msg)
        with ExitStack() as undo:
            for variable in variables:
                put(variable, copied(self._averages[variable].data), undo)
            undo.pop_all()

    # -- configuration and state ------------------------------------------------------------------
    def get_config(self) -> dict[str, Any]:
        """The arguments that make the optimizer again, serialisable as JSON; not its state.

        A mesh is no part of it: add it to the dict where it is wanted.

        Raises
        ------
        NotImplementedError
            The learning rate is a function, and no `LearningRateSchedule` with a config.

        """
        frequency = self.ema_overwrite_frequency
        limits = ("clipnorm", "clipvalue", "global_clipnorm")
        return {
            "name": self.name,
            "jit_compile": bool(self.jit_compile),
            **{key: self._limit(key, getattr(self, key)) for key in limits},
            "use_ema": bool(self.use_ema),
            "ema_momentum": number("ema_momentum", self.ema_momentum),
            "ema_overwrite_frequency": None if frequency is None else int(frequency),
        }

    def _serialize_hyperparameter(self, value: Any) -> Any:
        """A hyperparameter as JSON knows it; a schedule as its class and arguments."""
        if value is self._learning_rate and self._schedule is not None:
            value = self._schedule
        if isinstance(value, LearningRateSchedule):
            return serialize(value)
        if callable(value) and not is_parameter(value):
            msg = (
                "learning_rate: a LearningRateSchedule is required to be in a config, "
                f"got {kind(value)}"
            )
            raise NotImplementedError(msg)
        return float(value)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The optimizer of a config; `config` is left as it is."""
        arguments = dict(config)
        if isinstance(arguments.get("learning_rate"), Mapping):
            arguments["learning_rate"] = deserialize(arguments["learning_rate"])
        return cls(**arguments)

    def state_dict(self) -> dict[str, Any]:
        """Copies of all `variables`, for `refopt.save`: `{"variables": [[name, array], ...]}`."""
        return {"variables": [[v.name, deep(v.data)] for v in self.variables]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set all `variables` to what `state_dict` returned, after `build`.

        Raises
        ------
        ValueError
            Other variables, by name or shape, or a count that is no integer.
        TypeError
            Not what `state_dict` returned. Nothing is loaded then.

        """
        saved = state_dict.get("variables") if isinstance(state_dict, Mapping) else None
        if not isinstance(saved, list | tuple) or not all(
            isinstance(x, list | tuple) and len(x) == 2 and is_array(x[1]) for x in saved
        ):
            msg = f"state_dict: a dict with a list of [name, array] is required, got {state_dict!r}"
            raise TypeError(msg)
        own = self.variables
        expected = [(v.name, v.shape) for v in own]
        given = [(name, tuple(x.shape)) for name, x in saved]
        if expected != given:
            msg = f"state_dict: variables {expected} are required (build first), got {given}"
            raise ValueError(msg)
        with ExitStack() as undo:
            for variable, (name, value) in zip(own, saved, strict=True):
                keep(variable, undo)
                variable.assign(converted(f"state_dict: {name}", value, variable.data))
            undo.pop_all()


def put(variable: Any, value: Any, undo: ExitStack) -> None:
    """Give a variable a value, with the layout that it has; closing `undo` takes it back."""
    assign(variable, value, False, undo)


def _one_form(name: str, option: Any, flat: Any) -> Any:
    if option is None:
        return flat
    if not isinstance(option, type(flat)):
        msg = f"{name}: a refopt.{type(flat).__name__} is required, got {kind(option)}"
        raise TypeError(msg)
    if flat != type(flat)():
        given = [key for key, x in flat._asdict().items() if x != type(flat)()._asdict()[key]]
        msg = f"{name}: one form is required, got {', '.join(given)} as well"
        raise ValueError(msg)
    return option


def _check_average(average: EMAOption) -> None:
    momentum, frequency = average.ema_momentum, average.ema_overwrite_frequency
    require("ema_momentum", momentum)
    if momentum > 1:
        msg = f"ema_momentum: a number in [0, 1] is required, got {momentum!r}"
        raise ValueError(msg)
    whole = isinstance(frequency, int | np.integer) and not isinstance(frequency, bool)
    if frequency is not None and not (whole and frequency >= 0):
        msg = f"ema_overwrite_frequency: an integer >= 0 or None is required, got {frequency!r}"
        raise ValueError(msg)


def _name(variable: Any) -> str:
    return getattr(variable, "name", None) or "Variable"


def _shape(where: str, shape: Any) -> tuple[int, ...]:
    """A shape of one or more integers; None is ()."""
    given = to_numpy(shape).tolist() if is_array(shape) else () if shape is None else shape
    sizes = tuple(given) if isinstance(given, Iterable) else (given,)
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in sizes)
    if not whole or any(n < 0 for n in sizes):
        msg = f"{where}: integers >= 0 are required, got {shape!r}"
        raise ValueError(msg)
    return tuple(int(n) for n in sizes)


def _gradient(where: str, array: Any, gradient: Any) -> Any:
    """A gradient as an array, rows or None; raises unless it fits the array of its variable."""
    if gradient is None:
        return None
    if isinstance(gradient, IndexedSlices):
        return _rows(where, array, gradient)
    if isinstance(gradient, Parameter):
        gradient = gradient.data
    if is_numbers(gradient):
        gradient = converted(f"{where}: gradient", gradient, array)
    check_gradient(where, array, gradient)
    return gradient


def _rows(where: str, array: Any, gradient: IndexedSlices) -> rule.Rows:
    """A sparse gradient as the rule takes it."""
    shape, values, indices = tuple(array.shape), gradient.values, gradient.indices
    if is_numbers(values):
        values = converted(f"{where}: values", values, array)
    if is_array(indices):
        indices = Counter(indices, "indices").numpy().tolist()
    try:
        rows = tuple(index.__index__() for index in indices)
    except (TypeError, AttributeError) as error:
        msg = f"{where}: indices: a sequence of integers is required, got {gradient.indices!r}"
        raise TypeError(msg) from error
    dense = gradient.dense_shape
    if not shape or (dense is not None and _shape(f"{where}: dense_shape", dense) != shape):
        msg = f"{where}: dense_shape: {shape} with a first axis is required, got {dense!r}"
        raise ValueError(msg)
    wrong = [row for row in rows if not 0 <= row < shape[0]]
    if wrong:
        msg = f"{where}: indices: integers from 0 to below {shape[0]} are required, got {wrong}"
        raise ValueError(msg)
    check_gradient(f"{where}: values", array, values, (len(rows), *shape[1:]))
    return rule.Rows(values, rows, shape[0])
