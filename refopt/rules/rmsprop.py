"""RMSprop: the gradient divided by the root of a discounted average of its square.

Specification: spec/rmsprop.md. Sources: G. Hinton, "Neural Networks for Machine Learning", lecture
6e (2012); tf.keras.dtensor.experimental.optimizers.RMSprop, TF 2.9 (the documented optimizer).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from refopt.rules import average as ema
from refopt.rules import clip
from refopt.rules.schedules import SCHEDULES
from refopt.typing import Array, Namespace, Number, Numbers, Profile


class Hyper(NamedTuple):
    """RMS-1: what the user sets. Numbers; a limit of None, 0 or less clips nothing."""

    lr: Number = 1e-3  # γ, learning rate
    rho: Number = 0.9  # ρ, decay of the averages
    momentum: Number = 0.0  # μ
    epsilon: Number = 1e-7  # ε
    weight_decay: Number = 0.0  # λ
    clipnorm: Number | None = None  # limit of each gradient's norm
    clipvalue: Number | None = None  # limit of each element
    global_clipnorm: Number | None = None  # limit of the norm of all gradients
    ema_momentum: Number = 0.99  # decay of the average of the parameters
    ema_overwrite_frequency: Number | None = None  # steps; None: never
    initial_scale: Number = 0.0  # first value of v, where a release lets it be set


class Clock(NamedTuple):
    """What depends on the number of steps alone."""

    t: Number  # steps done


class Scalars(NamedTuple):
    """The coefficients of one step."""

    t: Number  # this step, from 1
    lr: Number  # γ as it enters the step
    correction: Number  # 1 - ρᵗ
    decay: Number  # γ λ


class State(NamedTuple):
    """What is kept for one parameter, shaped like it; None where it is not kept."""

    v: Array  # average of the squared gradient
    a: Any  # average of the gradient (centered)
    buffer: Any  # momentum
    average: Any  # average of the parameter


class Quantities(NamedTuple):
    """Every named array of a step, in the order of the equations; shaped like the parameter."""

    g: Array  # gₜ, after clipping and coupled decay
    v: Array  # vₜ
    a: Any  # aₜ, or None
    variance: Array  # what the root is taken of
    direction: Array  # gₜ / (√variance + ε)
    buffer: Any  # bₜ, or None
    param: Array  # θₜ


class Rows(NamedTuple):
    """A sparse gradient: some rows of a parameter's first axis, which may repeat."""

    values: Array  # (len(indices), …)
    indices: tuple[int, ...]
    size: int  # rows of the parameter


# -- objective (RMS-3.1) --------------------------------------------------------------------------
def minimize(grad: Array) -> Array:  # RMS-3.1a
    return grad


def maximize(grad: Array) -> Array:  # RMS-3.1b
    return -grad


# -- sparse (RMS-3.2): rows that repeat, and rows without a gradient ------------------------------
class Meeting(NamedTuple):
    """How what has the shape of a gradient meets what has the shape of its parameter."""

    at: Callable[[Array], Array]  # the elements of the second that the first is for
    add: Callable[[Array, Array], Array]  # their sum, (second, first)
    whole: Callable[[Array], Array]  # the first in the shape of the second


every_element = Meeting(lambda x: x, operator.add, lambda x: x)


def by_rows(rows: Rows, param: Array, xp: Namespace) -> Meeting:
    def add(base: Array, terms: Array) -> Array:
        return xp.scatter_add(base, rows.indices, terms)

    return Meeting(
        lambda x: xp.take(x, rows.indices, rows.size),
        add,
        lambda terms: add(xp.zeros_like(param), terms),
    )


class Sparse(NamedTuple):
    """What stands for a gradient by rows, and which rows change."""

    met: Callable[[Rows, Array, Namespace], tuple[Array, Meeting]]
    kept: Callable[..., Array]


def summed(rows: Rows, param: Array, xp: Namespace) -> tuple[Array, Meeting]:
    return by_rows(rows, param, xp).whole(rows.values), every_element


def each(rows: Rows, param: Array, xp: Namespace) -> tuple[Array, Meeting]:
    return rows.values, by_rows(rows, param, xp)


def every_row(new: Array, old: Array, rows: Rows, h: Hyper, xp: Namespace) -> Array:
    return new


def touched_rows(new: Array, old: Array, rows: Rows, h: Hyper, xp: Namespace) -> Array:
    return xp.rows(new, old, rows.indices, rows.size)


def touched_with_momentum(new: Array, old: Array, rows: Rows, h: Hyper, xp: Namespace) -> Array:
    return touched_rows(new, old, rows, h, xp) if h.momentum > 0 else new


merged = Sparse(summed, every_row)  # RMS-3.2a
unmerged = Sparse(each, every_row)  # RMS-3.2b: TF 2.9
lazy = Sparse(summed, touched_rows)  # RMS-3.2c
lazy_with_momentum = Sparse(summed, touched_with_momentum)  # RMS-3.2d: legacy Keras


# -- decay (RMS-3.3): (parameter, gradient) before the step ---------------------------------------
def no_decay(  # RMS-3.3a
    p: Array, g: Array, h: Hyper, s: Scalars, to: Meeting
) -> tuple[Array, Array]:
    return p, g


def coupled(  # RMS-3.3b
    p: Array, g: Array, h: Hyper, s: Scalars, to: Meeting
) -> tuple[Array, Array]:
    return p, g + h.weight_decay * to.at(p)


def decoupled(  # RMS-3.3c
    p: Array, g: Array, h: Hyper, s: Scalars, to: Meeting
) -> tuple[Array, Array]:
    return p - s.decay * p, g


def decoupled_factor(  # RMS-3.3d
    p: Array, g: Array, h: Hyper, s: Scalars, to: Meeting
) -> tuple[Array, Array]:
    return p * (1 - s.decay), g


def decoupled_without_lr(  # RMS-3.3e
    p: Array, g: Array, h: Hyper, s: Scalars, to: Meeting
) -> tuple[Array, Array]:
    return p - h.weight_decay * p, g


# -- start (RMS-2.1): the first value of v --------------------------------------------------------
def zero(param: Array, xp: Namespace) -> Array:  # RMS-2.1a
    return xp.zeros_like(param)


def one(param: Array, xp: Namespace) -> Array:  # RMS-2.1b: TF 1, timm, MindSpore
    return xp.zeros_like(param) + 1.0


# -- missing (RMS-10.3) and counter (RMS-10.1) ----------------------------------------------------
def skipped(grad: Any, param: Array, xp: Namespace) -> Any:  # RMS-10.3a
    return grad


def taken_as_zero(grad: Any, param: Array, xp: Namespace) -> Any:  # RMS-10.3b: Chainer
    return xp.zeros_like(param) if grad is None else grad


Ticked = list[tuple[Any, Clock]]


def shared(advance: Callable[..., Any], clocks: Sequence[Clock], there: Sequence[bool]) -> Ticked:
    """RMS-10.1a: one count for all."""
    return [advance(i, clock) for i, clock in enumerate(clocks)]


def per_parameter(
    advance: Callable[..., Any], clocks: Sequence[Clock], there: Sequence[bool]
) -> Ticked:
    """RMS-10.1b: a parameter without a gradient keeps its own count."""
    return [
        advance(i, clock) if here else (None, clock)
        for i, (clock, here) in enumerate(zip(clocks, there, strict=True))
    ]


# -- schedule (RMS-9.7): the dtype in which a schedule, known by its name, is computed
def schedule_double(x: Number, num: Numbers, name: str) -> Number:  # RMS-9.7a
    return num(x)


def schedule_float32(x: Number, num: Numbers, name: str) -> Number:  # RMS-9.7b
    return num.float32(x)


def schedule_native(x: Number, num: Numbers, name: str) -> Number:  # RMS-9.7c: Keras 3 on JAX
    return num.float32(x) if "Cosine" in name else num.native(x)


# -- second (RMS-4): the average of the square ----------------------------------------------------
def weighted_square(  # RMS-4.1a
    v: Array, g: Array, h: Hyper, to: Meeting, xp: Namespace
) -> Array:
    return to.add(h.rho * v, (1 - h.rho) * (g * g))


def square_of_scaled(  # RMS-4.1b
    v: Array, g: Array, h: Hyper, to: Meeting, xp: Namespace
) -> Array:
    return to.add(h.rho * v, ((1 - h.rho) * g) * g)


def increment_square(  # RMS-4.1c
    v: Array, g: Array, h: Hyper, to: Meeting, xp: Namespace
) -> Array:
    return xp.lerp(v, to.whole(g * g), 1 - h.rho)


# -- mean (RMS-5.1): the average of the gradient, where centered ----------------------------------
def weighted(a: Array, g: Array, h: Hyper, to: Meeting, xp: Namespace) -> Array:  # RMS-5.1a
    return to.add(h.rho * a, (1 - h.rho) * g)


def increment(a: Array, g: Array, h: Hyper, to: Meeting, xp: Namespace) -> Array:  # RMS-5.1b
    return xp.lerp(a, to.whole(g), 1 - h.rho)


def lerp(  # RMS-5.1c: torch, nearer end
    a: Array, g: Array, h: Hyper, to: Meeting, xp: Namespace
) -> Array:
    w = 1 - h.rho
    return (xp.lerp if w < 0.5 else xp.lerp_from_end)(a, to.whole(g), w)


# -- variance (RMS-5.2): v, a, and what the root is taken of --------------------------------------
Variance = tuple[Array, Array | None, Array]


def uncentered(  # RMS-5.2a
    v: Array,
    a: Array | None,
    g: Array,
    h: Hyper,
    s: Scalars,
    c: Choices,
    to: Meeting,
    xp: Namespace,
) -> Variance:
    return v, a, c.correction(v, s)


def centered(  # RMS-5.2b
    v: Array, a: Array, g: Array, h: Hyper, s: Scalars, c: Choices, to: Meeting, xp: Namespace
) -> Variance:
    a = c.mean(a, g, h, to, xp)
    mean = c.correction(a, s)
    return v, a, c.correction(v, s) - mean * mean


def clamped(  # RMS-5.2c: never below 0
    v: Array, a: Array, g: Array, h: Hyper, s: Scalars, c: Choices, to: Meeting, xp: Namespace
) -> Variance:
    v, mean, variance = centered(v, a, g, h, s, c, to, xp)
    return v, mean, xp.maximum(variance, 0.0)


def cumulative(  # RMS-5.2d: TF 2.9 and 2.10; the average is of squares, and v keeps the difference
    v: Array, a: Array, g: Array, h: Hyper, s: Scalars, c: Choices, to: Meeting, xp: Namespace
) -> Variance:
    a = weighted_square(a, g, h, to, xp)
    v = v - a * a
    return v, a, v


# -- correction (RMS-5.3) -------------------------------------------------------------------------
def uncorrected(x: Array, s: Scalars) -> Array:  # RMS-5.3a
    return x


def corrected(x: Array, s: Scalars) -> Array:  # RMS-5.3b
    return x / s.correction


# -- epsilon (RMS-5.4): the denominator -----------------------------------------------------------
def outside(variance: Array, h: Hyper, xp: Namespace) -> Array:  # RMS-5.4a
    return xp.sqrt(variance) + h.epsilon


def inside(variance: Array, h: Hyper, xp: Namespace) -> Array:  # RMS-5.4b
    return xp.sqrt(variance + h.epsilon)


def squared_inside(variance: Array, h: Hyper, xp: Namespace) -> Array:  # RMS-5.4c
    return xp.sqrt(variance + h.epsilon * h.epsilon)


def inside_with_momentum(
    variance: Array, h: Hyper, xp: Namespace
) -> Array:  # RMS-5.4d: legacy Keras
    return inside(variance, h, xp) if h.momentum > 0 else outside(variance, h, xp)


def no_epsilon(variance: Array, h: Hyper, xp: Namespace) -> Array:  # RMS-5.4e
    return xp.sqrt(variance)


# -- move (RMS-6.1): the buffer, and the parameter (RMS-6.2) --------------------------------------
Moved = tuple[Array | None, Array]


def no_momentum(  # RMS-6.1a
    p: Array, u: Array, b: Array | None, h: Hyper, s: Scalars, to: Meeting
) -> Moved:
    return b, to.add(p, -(s.lr * u))


def lr_outside(  # RMS-6.1b
    p: Array, u: Array, b: Array, h: Hyper, s: Scalars, to: Meeting
) -> Moved:
    b = to.add(h.momentum * b, u)
    return b, p - s.lr * b


def lr_inside(  # RMS-6.1c
    p: Array, u: Array, b: Array, h: Hyper, s: Scalars, to: Meeting
) -> Moved:
    b = to.add(h.momentum * b, s.lr * u)
    return b, p - b


def nesterov(p: Array, u: Array, b: Array, h: Hyper, s: Scalars, to: Meeting) -> Moved:  # RMS-6.1d
    b = to.add(h.momentum * b, u)
    return b, p - s.lr * to.add(h.momentum * b, u)


def nesterov_lr_inside(  # RMS-6.1e
    p: Array, u: Array, b: Array, h: Hyper, s: Scalars, to: Meeting
) -> Moved:
    b = to.add(h.momentum * b, s.lr * u)
    return b, p - to.add(h.momentum * b, s.lr * u)


def damped(p: Array, u: Array, b: Array, h: Hyper, s: Scalars, to: Meeting) -> Moved:  # RMS-6.1f
    b = to.add(h.momentum * b, (1 - h.momentum) * u)
    return b, p - s.lr * b


# -- idle (RMS-6.3): the move where μ is 0 --------------------------------------------------------
def dropped(  # RMS-6.3a
    p: Array, u: Array, b: Array | None, h: Hyper, s: Scalars, to: Meeting
) -> Moved:
    return no_momentum(p, u, b, h, s, to)


def zero_times_buffer(  # RMS-6.3b
    p: Array, u: Array, b: Array, h: Hyper, s: Scalars, to: Meeting
) -> Moved:
    return lr_inside(p, u, b, h, s, to)


# -- clipping (RMS-7): of all gradients of a step, before anything else
Gradients = list[Any]  # of Array or Rows


def _each(grads: Gradients, change: Callable[[Array], Array]) -> Gradients:
    return [
        g._replace(values=change(g.values)) if isinstance(g, Rows) else change(g) for g in grads
    ]


def _by_norm(grads: Gradients, h: Hyper, c: Choices, xp: Namespace) -> Gradients:
    return _each(grads, lambda g: c.norm(g, h.clipnorm, xp))


def _by_value(grads: Gradients, h: Hyper, c: Choices, xp: Namespace) -> Gradients:
    return _each(grads, lambda g: c.value(g, h.clipvalue, xp))


def _by_global_norm(grads: Gradients, limit: Number, c: Choices, xp: Namespace) -> Gradients:
    values = [g.values if isinstance(g, Rows) else g for g in grads]
    clipped = iter(clip.by_global_norm(values, limit, xp, c.global_norm))
    return _each(grads, lambda g: next(clipped))


def first_given(grads: Gradients, h: Hyper, c: Choices, xp: Namespace) -> Gradients:  # RMS-7.4a
    if not clip.off(h.clipnorm):
        return _by_norm(grads, h, c, xp)
    if not clip.off(h.global_clipnorm):
        return _by_global_norm(grads, h.global_clipnorm, c, xp)
    return grads if clip.off(h.clipvalue) else _by_value(grads, h, c, xp)


def value_then_norm(
    grads: Gradients, h: Hyper, c: Choices, xp: Namespace
) -> Gradients:  # RMS-7.4b: legacy Keras
    if h.clipvalue is not None:
        grads = _by_value(grads, h, c, xp)
    if h.clipnorm is not None:  # 0 is a limit here
        return _by_norm(grads, h, c, xp)
    if h.global_clipnorm is None:
        return grads
    return _by_global_norm(grads, h.global_clipnorm, c, xp)


def unclipped(grads: Gradients, h: Hyper, c: Choices, xp: Namespace) -> Gradients:  # RMS-7.4c
    return grads


def norm_of_all_then_value(
    grads: Gradients, h: Hyper, c: Choices, xp: Namespace
) -> Gradients:  # RMS-7.4d: Keras before TensorFlow had it
    if not clip.off(h.clipnorm):
        grads = _by_global_norm(grads, h.clipnorm, c, xp)
    elif not clip.off(h.global_clipnorm):
        grads = _by_global_norm(grads, h.global_clipnorm, c, xp)
    return grads if clip.off(h.clipvalue) else _by_value(grads, h, c, xp)


def global_norm_of_each(
    grads: Gradients, h: Hyper, c: Choices, xp: Namespace
) -> Gradients:  # RMS-7.4e
    if clip.off(h.clipnorm) and not clip.off(h.global_clipnorm):
        return [_by_global_norm([g], h.global_clipnorm, c, xp)[0] for g in grads]
    return first_given(grads, h, c, xp)


# -- average of the parameters (RMS-8): where it starts, and what it takes in
def from_start(t: int, h: Hyper) -> Number:  # RMS-8.3a: from the value before the first step
    return h.ema_momentum


def from_first_step(t: int, h: Hyper) -> Number:  # RMS-8.3b: Keras 3
    return h.ema_momentum if t > 1 else 0.0


def every_parameter(given: Sequence[int], n: int) -> list[tuple[int, int]]:  # RMS-8.4a
    return [(i, i) for i in range(n)]


def by_position(given: Sequence[int], n: int) -> list[tuple[int, int]]:  # RMS-8.4b: TF 2.9 to 2.13
    return list(enumerate(given))


def own(given: Sequence[int], n: int) -> list[tuple[int, int]]:  # RMS-8.4c: those that moved
    return [(i, i) for i in given]


def no_average(given: Sequence[int], n: int) -> list[tuple[int, int]]:  # RMS-8.4d
    return []


# -- storage, scalars, given (RMS-1) --------------------------------------------------------------
def stored_as_given(h: Hyper, num: Numbers) -> Hyper:  # RMS-1.11a
    return h


def stored_in_float32(h: Hyper, num: Numbers, *names: str) -> Hyper:
    """Numbers become float32 variables; a rate that a schedule gives is no number, and stays."""
    numbers = [q for q in names if not isinstance(getattr(getattr(h, q), "dtype", None), str)]
    return h._replace(**{q: num.float64(num.float32(getattr(h, q))) for q in numbers})


def stored_lr(h: Hyper, num: Numbers) -> Hyper:  # RMS-1.11b
    return stored_in_float32(h, num, "lr")


def stored_variables(h: Hyper, num: Numbers) -> Hyper:  # RMS-1.11c: what legacy Keras keeps
    return stored_in_float32(h, num, "lr", "rho", "momentum")


def stored_attributes(h: Hyper, num: Numbers) -> Hyper:  # RMS-1.11d: Paddle's C++ attributes
    return stored_in_float32(h, num, "rho", "momentum", "epsilon")


def stored_casts(h: Hyper, num: Numbers) -> Hyper:  # RMS-1.11e: Keras 2 casts the decay too
    return stored_in_float32(h, num, "lr", "weight_decay")


def stored_all(h: Hyper, num: Numbers) -> Hyper:  # RMS-1.11f: MindSpore, TF 1
    return stored_in_float32(h, num, "lr", "rho", "momentum", "epsilon", "weight_decay")


def stored_tensors(h: Hyper, num: Numbers) -> Hyper:  # RMS-1.11g: Keras on torch; two stay tensors
    limits = [q for q in ("clipnorm", "clipvalue") if getattr(h, q) is not None]
    h = stored_in_float32(h, num, "ema_momentum", *limits)
    return h._replace(lr=num.float32(h.lr), weight_decay=num.float32(h.weight_decay))


def in_double(x: Number, num: Numbers) -> Number:  # RMS-1.12a
    return num(x)


def in_float32(x: Number, num: Numbers) -> Number:  # RMS-1.12b
    return num.float32(x)


def in_native(x: Number, num: Numbers) -> Number:  # RMS-1.12c
    return num.native(x)


def as_given(h: Hyper) -> Hyper:  # RMS-1.13a
    return h


def swapped_rho(h: Hyper) -> Hyper:  # RMS-1.13b
    return h._replace(rho=1 - h.rho)


def zero_epsilon(h: Hyper) -> Hyper:  # RMS-1.13e: legacy Keras reads 0 as its default
    return h._replace(epsilon=h.epsilon if h.epsilon != 0 else 1e-7)


def torch_epsilon(h: Hyper) -> Hyper:  # RMS-1.13c
    return h._replace(epsilon=1e-8)


def tf1_epsilon(h: Hyper) -> Hyper:  # RMS-1.13d
    return h._replace(epsilon=1e-10)


class Choices(NamedTuple):
    """One formula for each axis; the defaults are the documented optimizer, plain."""

    given: Callable[[Hyper], Hyper] = as_given
    storage: Callable[[Hyper, Numbers], Hyper] = stored_as_given
    scalars: Callable[[Number, Numbers], Number] = in_double
    schedule: Callable[[Number, Numbers, str], Number] = schedule_double
    objective: Callable[[Array], Array] = minimize
    norm: Callable[..., Array] = clip.by_norm
    global_norm: Callable[..., Array] = clip.reciprocals
    value: Callable[..., Array] = clip.by_value
    clip: Callable[..., Gradients] = first_given
    sparse: Sparse = merged
    decay: Callable[..., tuple[Array, Array]] = no_decay
    start: Callable[[Array, Namespace], Array] = zero
    second: Callable[..., Array] = weighted_square
    mean: Callable[..., Array] = weighted
    variance: Callable[..., Variance] = uncentered
    correction: Callable[[Array, Scalars], Array] = uncorrected
    epsilon: Callable[..., Array] = outside
    move: Callable[..., Moved] = no_momentum
    idle: Callable[..., Moved] = dropped
    missing: Callable[..., Any] = skipped
    counter: Callable[..., Ticked] = shared
    average_start: Callable[[int, Hyper], Number] = from_start
    average: Callable[..., list[tuple[int, int]]] = no_average
    overwrite: Callable[..., ema.Both] = ema.after_average
    overwrite_count: Callable[[int], int] = ema.after_step


def init(param: Array, choices: Choices, *, xp: Namespace, num: Numbers) -> tuple[State, Clock]:
    """Averages at their start, no step done (RMS-2); what the choices do not use is None."""
    c = choices
    average = None if c.average is no_average else param  # RMS-8.3
    state = State(c.start(param, xp), None, None, average)  # RMS-2.1
    return started(param, state, c, xp=xp), Clock(num(0))


def started(param: Array, state: State, choices: Choices, *, xp: Namespace) -> State:
    """A state with what the choices use; what was not kept so far starts at zero (RMS-2.2)."""
    kept = _kept(choices)
    missing = [q for q in ("a", "buffer") if kept[q] and getattr(state, q) is None]
    return state._replace(**{q: xp.zeros_like(param) for q in missing}) if missing else state


def _kept(c: Choices) -> dict[str, bool]:
    return {"a": c.variance is not uncentered, "buffer": c.move not in (no_momentum, dropped)}


def settle(hyper: Hyper, choices: Choices, *, num: Numbers) -> Hyper:
    """Hyperparameters as the release holds them (RMS-1.11 to RMS-1.13)."""
    h = choices.storage(choices.given(hyper), num)
    numbers = {f: choices.scalars(getattr(h, f), num) for f in _NUMBERS}
    return h._replace(**numbers)


_LIMITS = ("clipnorm", "clipvalue", "global_clipnorm")
_NUMBERS = ("lr", "rho", "momentum", "epsilon", "weight_decay")


def tick(clock: Clock, hyper: Hyper, choices: Choices, *, num: Numbers) -> tuple[Scalars, Clock]:
    """Advance the clock by one step and give the coefficients of that step."""
    h = settle(hyper, choices, num=num)
    t = choices.scalars(clock.t + 1, num)
    return Scalars(t=t, lr=h.lr, correction=1 - h.rho**t, decay=h.lr * h.weight_decay), Clock(t)


def step(
    param: Array,
    grad: Any,
    state: State,
    s: Scalars,
    h: Hyper,
    c: Choices,
    *,
    xp: Namespace,
) -> tuple[Quantities, State]:
    """One parameter, one step; `grad` is an array or `Rows`.

    As documented, for an array:
    v ← ρ v + (1 - ρ) g²,  u = g / (√v + ε),  θ ← θ - γ u, with momentum b ← μ b + u, θ ← θ - γ b

    For an array `to` is the identity, and `kept` gives what is new; rows meet the elements that
    they are for.
    """
    rows = grad if isinstance(grad, Rows) else None
    state = started(param, state, c, xp=xp)  # RMS-2.2
    g, to = (grad, every_element) if rows is None else c.sparse.met(rows, param, xp)  # RMS-3.2
    p, g = c.decay(param, c.objective(g), h, s, to)  # RMS-3
    v = c.second(state.v, g, h, to, xp)  # RMS-4
    v, a, variance = c.variance(v, state.a, g, h, s, c, to, xp)  # RMS-5
    u = g / c.epsilon(to.at(variance), h, xp)  # RMS-5.4
    buffer, theta = c.move(p, u, state.buffer, h, s, to)  # RMS-6

    def kept(new: Any, old: Any) -> Any:  # RMS-3.2
        return new if new is None or rows is None else c.sparse.kept(new, old, rows, h, xp)

    v, a = kept(v, state.v), kept(a, state.a)
    buffer, theta = kept(buffer, state.buffer), kept(theta, param)
    return (
        Quantities(to.whole(g), v, a, variance, to.whole(u), buffer, theta),
        State(v, a, buffer, state.average),
    )


def ticks(
    params: Sequence[Array],
    grads: Sequence[Array | Rows | None],
    clocks: Sequence[Clock],
    hyper: Hyper,
    choices: Choices,
    *,
    num: Numbers,
) -> Ticked:
    """The coefficients of the next step and the clock after it, for each parameter (RMS-10)."""
    there = [grad is not None for grad in grads]
    if not any(there):  # RMS-10.2
        return [(None, clock) for clock in clocks]
    if choices.missing is taken_as_zero:
        there = [True for _ in grads]

    def advance(i: int, clock: Clock) -> tuple[Scalars, Clock]:
        return tick(clock, hyper, choices, num=num.of(params[i]))

    return choices.counter(advance, clocks, there)  # RMS-10.1


def due(t: int, h: Hyper, c: Choices) -> bool | None:
    """Whether step `t` sets parameters to their averages; None where none ever does."""
    return ema.overwrites(c.overwrite_count(t), h.ema_overwrite_frequency)


def update(
    params: Sequence[Array],
    grads: Sequence[Array | Rows | None],
    states: Sequence[State],
    clocks: Sequence[Clock],
    hyper: Hyper,
    choices: Choices,
    *,
    xp: Namespace,
    num: Numbers,
    ticked: Ticked | None = None,
    order: Sequence[int] | None = None,
) -> tuple[list[Quantities | None], list[State], list[Clock]]:
    """One step of all parameters: clip, step, average, overwrite.

    A parameter whose gradient is None does not step (RMS-10.3); where it is set to its average,
    its quantities have a `param` alone. `order`: in which the parameters are given (default: as
    they are); a release that pairs averages by position depends on it.
    """
    c = choices
    if ticked is None:
        ticked = ticks(params, grads, clocks, hyper, choices, num=num)
    if any(grad is not None for grad in grads):
        pairs = zip(grads, params, strict=True)
        grads = [c.missing(grad, param, xp) for grad, param in pairs]  # RMS-10.3
    given = [i for i in (order or range(len(params))) if grads[i] is not None]
    quantities: list[Quantities | None] = [None for _ in params]
    after, kept = list(params), list(states)
    stored = c.storage(hyper, num)  # RMS-1.11
    limits = {q: x if (x := getattr(stored, q)) is None else num(x) for q in _LIMITS}
    clipped = (
        c.clip([grads[i] for i in given], stored._replace(**limits), c, xp) if given else []
    )  # RMS-7
    for i, grad in zip(given, clipped, strict=True):
        h = settle(hyper, c, num=num.of(params[i]))
        stepped, kept[i] = step(params[i], grad, states[i], ticked[i][0], h, c, xp=xp)
        quantities[i], after[i] = stepped, stepped.param
    if given and c.average is not no_average:  # RMS-8
        t = int(float(ticked[given[0]][1].t))
        momentum = c.average_start(t, stored)  # RMS-8.3
        now = due(t, hyper, c)  # RMS-8.5
        for k, i in c.average(given, len(params)):  # RMS-8.4
            mean, theta = c.overwrite(kept[k].average, after[i], momentum, now)  # RMS-8.2
            kept[k] = kept[k]._replace(average=mean)
            if theta is not after[i]:
                q = quantities[i] or Quantities._make([None] * len(Quantities._fields))
                quantities[i] = q._replace(param=theta)
    return quantities, kept, [clock for _, clock in ticked]


AXES: dict[str, dict[str, Any]] = {
    "given": {
        "as-given": as_given,
        "swapped-rho": swapped_rho,
        "zero-epsilon": zero_epsilon,
        "torch-epsilon": torch_epsilon,
        "tf1-epsilon": tf1_epsilon,
    },
    "storage": {
        "as-given": stored_as_given,
        "float32-lr": stored_lr,
        "float32-variables": stored_variables,
        "float32-attributes": stored_attributes,
        "float32-casts": stored_casts,
        "float32-all": stored_all,
        "float32-tensors": stored_tensors,
    },
    "scalars": {"double": in_double, "float32": in_float32, "native": in_native},
    "schedule": {
        "double": schedule_double,
        "float32": schedule_float32,
        "native": schedule_native,
    },
    "objective": {"minimize": minimize, "maximize": maximize},
    "norm": {
        "larger": clip.by_norm,
        "factor": clip.by_factor,
        "factor-and-epsilon": clip.by_norm_and_epsilon,
        "always": clip.to_norm,
        "larger-float32": clip.by_float32_norm,
    },
    "global_norm": {
        "reciprocals": clip.reciprocals,
        "larger": clip.quotient,
        "factor-and-epsilon": clip.quotient_and_epsilon,
        "always": clip.unlimited_quotient,
        "reciprocals-float32": clip.float32_reciprocals,
    },
    "value": {"both-sides": clip.by_value, "from-above": clip.from_above},
    "clip": {
        "first-given": first_given,
        "value-then-norm": value_then_norm,
        "none": unclipped,
        "norm-of-all-then-value": norm_of_all_then_value,
        "global-norm-of-each": global_norm_of_each,
    },
    "sparse": {
        "merged": merged,
        "unmerged": unmerged,
        "lazy": lazy,
        "lazy-with-momentum": lazy_with_momentum,
    },
    "decay": {
        "none": no_decay,
        "coupled": coupled,
        "decoupled": decoupled,
        "decoupled-factor": decoupled_factor,
        "decoupled-without-lr": decoupled_without_lr,
    },
    "start": {"zero": zero, "one": one},
    "second": {
        "weighted": weighted_square,
        "square-of-scaled": square_of_scaled,
        "increment": increment_square,
    },
    "mean": {"weighted": weighted, "increment": increment, "lerp": lerp},
    "variance": {
        "uncentered": uncentered,
        "centered": centered,
        "clamped": clamped,
        "cumulative": cumulative,
    },
    "correction": {"none": uncorrected, "corrected": corrected},
    "epsilon": {
        "outside": outside,
        "inside": inside,
        "squared-inside": squared_inside,
        "inside-with-momentum": inside_with_momentum,
        "none": no_epsilon,
    },
    "move": {
        "no-momentum": no_momentum,
        "lr-outside": lr_outside,
        "lr-inside": lr_inside,
        "nesterov": nesterov,
        "nesterov-lr-inside": nesterov_lr_inside,
        "damped": damped,
    },
    "idle": {"no-momentum": dropped, "lr-inside": zero_times_buffer},
    "missing": {"skipped": skipped, "zero": taken_as_zero},
    "counter": {"shared": shared, "per-parameter": per_parameter},
    "average_start": {"value": from_start, "first-step": from_first_step},
    "average": {
        "none": no_average,
        "every-parameter": every_parameter,
        "by-position": by_position,
        "own": own,
    },
    "overwrite": {
        "after-average": ema.after_average,
        "before-average": ema.before_average,
        "blended": ema.blended,
    },
    "overwrite_count": {"after-step": ema.after_step, "before-step": ema.before_step},
}
"""Every axis and its alternatives, by the names that the specification uses."""

SAME_EXACTLY: dict[str, tuple[frozenset[str], ...]] = {
    "storage": (frozenset(AXES["storage"]),),
    "scalars": (frozenset(AXES["scalars"]),),
    "schedule": (frozenset(AXES["schedule"]),),
    "decay": (frozenset({"decoupled", "decoupled-factor"}),),
    "variance": (frozenset({"centered", "clamped"}),),  # v - a^2 is never below 0
    "second": (frozenset(AXES["second"]),),
    "mean": (frozenset(AXES["mean"]),),
    "idle": (frozenset(AXES["idle"]),),  # μ is 0: 0 times a buffer that is infinite is NaN
    "norm": (frozenset({"larger", "factor", "larger-float32"}),),
    "global_norm": (
        frozenset({"reciprocals", "larger", "reciprocals-float32"}),
    ),  # of an infinite norm: NaN, or 0
    "overwrite": (frozenset({"after-average", "blended"}),),  # 0 times what is infinite is NaN
}
"""Alternatives that differ in rounding and overflow alone: equal over the reals."""


def _averages(choices: Sequence[Choices]) -> bool:
    return any(c.average is not no_average for c in choices)


def _limited(hypers: Sequence[Hyper], *limits: str) -> bool:
    return any(not clip.off(getattr(h, limit)) for h in hypers for limit in limits)


def counted(c: Choices) -> set[str]:
    """The fields of the clock that a step reads."""
    return {"t"} if c.correction is corrected or c.average is not no_average else set()


OBSERVABLE = ("t", "lr", "v", "a", "buffer", "param", "average")
"""What a release may show after a step, in the order of the flow of data."""

ARRAY_AXES = tuple(
    axis
    for axis in AXES
    if axis not in ("given", "storage", "scalars", "schedule", "start", "missing", "counter")
)
"""Axes that do not enter `tick`."""

MATTERS: dict[str, Callable[[Sequence[Hyper], Sequence[Choices], bool, bool], bool]] = {
    "decay": lambda hypers, choices, several, sparse: any(h.weight_decay != 0 for h in hypers),
    "counter": lambda hypers, choices, several, sparse: several,
    "missing": lambda hypers, choices, several, sparse: several,
    "sparse": lambda hypers, choices, several, sparse: sparse,
    "move": lambda hypers, choices, several, sparse: any(h.momentum != 0 for h in hypers),
    "average": lambda hypers, choices, several, sparse: _averages(choices),
    "average_start": lambda hypers, choices, several, sparse: _averages(choices),
    "overwrite": lambda hypers, choices, several, sparse: (
        _averages(choices) and any(h.ema_overwrite_frequency for h in hypers)
    ),
    "clip": lambda hypers, choices, several, sparse: _limited(hypers, *_LIMITS),
    "norm": lambda hypers, choices, several, sparse: _limited(hypers, "clipnorm"),
    "global_norm": lambda hypers, choices, several, sparse: _limited(hypers, *_LIMITS[::2]),
    "value": lambda hypers, choices, several, sparse: _limited(hypers, "clipvalue"),
}
MATTERS["overwrite_count"] = MATTERS["overwrite"]
"""When an axis can make a difference at all: see `refopt.rules.nadam.MATTERS`."""


def scheduled(
    name: str, config: Mapping[str, Any], t: int, choices: Choices, *, num: Numbers
) -> Number:
    """The learning rate of step `t` (from 1) by a schedule, from the count before it (RMS-9)."""

    def real(x: Number) -> Number:
        return choices.schedule(x, num, name)

    return SCHEDULES[name](real(t - 1), real, num, **config)


REQUIRED = ("lr", "rho", "momentum", "epsilon")
"""Hyperparameters that a case must state; the others have a value that means none."""

OPTIONS = (
    *("centered", "nesterov", "use_ema", "maximize", "decoupled_weight_decay"),
    *("bias_correction", "eps_in_sqrt", "lr_in_momentum"),
)
"""What `configured` reads."""


def configured(choices: Choices, hyper: Hyper, options: Mapping[str, Any]) -> Choices:
    """A profile's choices for given hyperparameters and options.

    Options: `centered`, `nesterov`, `use_ema`, `maximize`, `decoupled_weight_decay`,
    `bias_correction`, `eps_in_sqrt`, `lr_in_momentum`; where one is None or absent the profile's
    own form stands. Momentum of 0 or less is none.
    """
    c = choices

    def asked(option: str, yes: Any, no: Any, own: Any) -> Any:
        value = options.get(option)
        return own if value is None else yes if value else no

    move = asked("lr_in_momentum", lr_inside, lr_outside, c.move)
    if options.get("nesterov"):
        move = nesterov_lr_inside if move is lr_inside else nesterov
    other = decoupled_factor if c.decay is coupled else c.decay
    decay = asked("decoupled_weight_decay", other, coupled, c.decay)
    return c._replace(
        decay=decay if hyper.weight_decay != 0 else no_decay,
        objective=maximize if options.get("maximize") else minimize,
        variance=c.variance if options.get("centered") else uncentered,
        correction=corrected if options.get("bias_correction") else uncorrected,
        epsilon=asked("eps_in_sqrt", inside, outside, c.epsilon),
        move=move if hyper.momentum > 0 else c.idle,
        average=c.average if options.get("use_ema") else no_average,
        start=one if hyper.initial_scale == 1 else c.start,
    )


_documented = Choices(decay=coupled, variance=centered, move=lr_outside, average=every_parameter)
_keras = _documented._replace(
    storage=stored_lr,
    schedule=schedule_float32,
    decay=decoupled,
    epsilon=inside,
    move=lr_inside,
)
_tf29 = _documented._replace(
    storage=stored_lr,
    schedule=schedule_float32,
    sparse=unmerged,
    variance=cumulative,
    average=by_position,
)
_kernel = _documented._replace(
    second=increment_square, mean=increment, epsilon=inside, move=lr_inside
)
_legacy = Choices(
    given=zero_epsilon,
    storage=stored_variables,
    scalars=in_native,
    schedule=schedule_float32,
    clip=value_then_norm,
    sparse=lazy_with_momentum,
    variance=centered,
    epsilon=inside_with_momentum,
    move=lr_inside,
)
_torch = _documented._replace(
    global_norm=clip.quotient_and_epsilon,
    second=square_of_scaled,
    mean=lerp,
    counter=per_parameter,
)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "documented",
            _documented,
            Hyper(),
            "stored",
            "tf.keras.dtensor.experimental.optimizers.RMSprop 2.9, as documented",
        ),
        Profile("tf-2.9-dtensor", _tf29, Hyper(), "each", "TensorFlow 2.9.3, dtensor.experimental"),
        Profile(
            "tf-2.9-experimental",
            _tf29,
            Hyper(),
            "each",
            "TensorFlow 2.9.3, optimizers.experimental.RMSprop",
        ),
        Profile(
            "keras-legacy-2.9", _legacy, Hyper(), "each", "TensorFlow 2.9.3, optimizers.RMSprop"
        ),
        Profile(
            "keras-2.15",
            _keras._replace(storage=stored_casts, average=own),
            Hyper(),
            "each",
            "TensorFlow 2.15.1, optimizers.RMSprop, eager",
        ),
        Profile(
            "keras-2.15-graph",
            _keras._replace(storage=stored_casts, average=own),
            Hyper(),
            "each",
            "TensorFlow 2.15.1, optimizers.RMSprop, inside tf.function",
        ),
        Profile(
            "keras-3",
            _keras._replace(
                schedule=schedule_native, average_start=from_first_step, overwrite=ema.blended
            ),
            Hyper(),
            "each",
            "Keras 3.15 on JAX, optimizers.RMSprop",
        ),
        Profile(
            "keras-3-tensorflow",
            _keras._replace(storage=stored_casts, sparse=unmerged, average_start=from_first_step),
            Hyper(),
            "each",
            "Keras 3.15 on TensorFlow 2.21, optimizers.RMSprop",
        ),
        Profile(
            "keras-3-torch",
            _keras._replace(
                storage=stored_tensors,
                norm=clip.by_float32_norm,
                global_norm=clip.float32_reciprocals,
                decay=decoupled_factor,
                average_start=from_first_step,
            ),
            Hyper(),
            "each",
            "Keras 3.15 on torch 2.13, optimizers.RMSprop",
        ),
        Profile(
            "tf1",
            _kernel._replace(
                storage=stored_all,
                scalars=in_native,
                start=one,
                sparse=lazy,
                idle=zero_times_buffer,
            ),
            Hyper(epsilon=1e-10),
            "each",
            "TensorFlow 2.9.3, compat.v1.train.RMSPropOptimizer",
        ),
        Profile("torch-2.13", _torch, Hyper(lr=1e-2, rho=0.99, epsilon=1e-8), "each", "torch 2.13"),
        Profile(
            "torch-2.13-foreach",
            _torch,
            Hyper(lr=1e-2, rho=0.99, epsilon=1e-8),
            "each",
            "torch 2.13, foreach=True",
        ),
        Profile(
            "optax-0.2",
            _documented._replace(global_norm=clip.quotient, epsilon=inside, move=lr_inside),
            Hyper(epsilon=1e-8),
            "each",
            "optax 0.2.8, rmsprop",
        ),
        Profile(
            "timm-rmsprop-tf",
            _kernel._replace(start=one, counter=per_parameter),
            Hyper(lr=1e-2, epsilon=1e-10, momentum=0.9),
            "each",
            "timm 1.0.31, optim.RMSpropTF",
        ),
        Profile(
            "paddle-3.3",
            _documented._replace(
                storage=stored_attributes,
                scalars=in_native,
                norm=clip.by_factor,
                global_norm=clip.quotient,
                epsilon=inside,
                move=lr_inside,
                idle=zero_times_buffer,
            ),
            Hyper(rho=0.95, epsilon=1e-6),
            "each",
            "paddle 3.3.1, optimizer.RMSProp",
        ),
        Profile(
            "mindspore-2.10",
            _kernel._replace(
                storage=stored_all, scalars=in_float32, start=one, idle=zero_times_buffer
            ),
            Hyper(lr=0.1, epsilon=1e-10),
            "float32",
            "MindSpore 2.10, nn.RMSProp",
        ),
        Profile(
            "chainer-7",
            _documented._replace(global_norm=clip.quotient, missing=taken_as_zero),
            Hyper(lr=1e-2, rho=0.99, epsilon=1e-8),
            "each",
            "chainer 7.8.1",
        ),
        Profile(
            "mlx-0.32",
            _documented._replace(storage=stored_lr, global_norm=clip.quotient_and_epsilon),
            Hyper(rho=0.99, epsilon=1e-8),
            "each",
            "mlx 0.32",
        ),
    )
}
"""Releases by name; `documented` is the page's algorithm."""
