"""SGD with momentum: the gradient added to a buffer of those before it.

Specification: spec/sgd.md. Sources: B. T. Polyak, "Some methods of speeding up the convergence of
iteration methods" (1964); I. Sutskever et al., "On the importance of initialization and momentum in
deep learning" (ICML 2013); torch.optim.SGD 2.13 (the documented algorithm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from refopt.typing import Array, Namespace, Number, Numbers, Profile


class Hyper(NamedTuple):
    """SGD-1: what the user sets."""

    lr: Number = 1e-3  # γ, learning rate
    momentum: Number = 0.0  # μ
    dampening: Number = 0.0  # τ
    weight_decay: Number = 0.0  # λ


class Clock(NamedTuple):
    """What depends on the number of steps alone."""

    t: Number  # steps done
    begun: Number  # 0 before the first step, then 1


class Scalars(NamedTuple):
    """The coefficients of one step."""

    t: Number  # this step, from 1
    lr: Number  # γ
    weight: Number  # of the gradient in the buffer
    decay: Number  # γ λ


class State(NamedTuple):
    """What is kept for one parameter, shaped like it; None where there is no momentum."""

    buffer: Any


class Quantities(NamedTuple):
    """Every named array of a step, in the order of the equations; shaped like the parameter."""

    g: Array  # gₜ, after objective and coupled decay
    buffer: Any  # bₜ, or None
    direction: Array  # uₜ
    param: Array  # θₜ


# -- given (SGD-1.5): hyperparameters as given, or mistaken ---------------------------------------
def as_given(h: Hyper) -> Hyper:  # SGD-1.5a
    return h


def swapped_momentum(h: Hyper) -> Hyper:  # SGD-1.5b
    return h._replace(momentum=1 - h.momentum)


# -- objective (SGD-3.1) --------------------------------------------------------------------------
def minimize(grad: Array) -> Array:  # SGD-3.1a
    return grad


def maximize(grad: Array) -> Array:  # SGD-3.1b
    return -grad


# -- decay (SGD-4.1): (parameter, gradient) before the step ---------------------------------------
def no_decay(p: Array, g: Array, h: Hyper, s: Scalars) -> tuple[Array, Array]:  # SGD-4.1a
    return p, g


def coupled(p: Array, g: Array, h: Hyper, s: Scalars) -> tuple[Array, Array]:  # SGD-4.1b
    return p, g + h.weight_decay * p


def decoupled(p: Array, g: Array, h: Hyper, s: Scalars) -> tuple[Array, Array]:  # SGD-4.1c
    return p - s.decay * p, g


# -- start (SGD-5.2): the weight of a gradient in the buffer --------------------------------------
def first_whole(begun: Number, h: Hyper) -> Number:  # SGD-5.2a
    return 1 - h.dampening * begun


def always_dampened(begun: Number, h: Hyper) -> Number:  # SGD-5.2b
    return 1 - h.dampening


def never_dampened(begun: Number, h: Hyper) -> Number:  # SGD-5.2c
    return 1.0


# -- move (SGD-5.1): from parameter, gradient and buffer to (buffer, direction, parameter) --------
Moved = tuple[Array | None, Array, Array]


def no_momentum(p: Array, g: Array, b: Array | None, h: Hyper, s: Scalars) -> Moved:  # SGD-5.1a
    return b, g, p - s.lr * g


def lr_outside(p: Array, g: Array, b: Array, h: Hyper, s: Scalars) -> Moved:  # SGD-5.1b
    b = h.momentum * b + s.weight * g
    return b, b, p - s.lr * b


def nesterov(p: Array, g: Array, b: Array, h: Hyper, s: Scalars) -> Moved:  # SGD-5.1c
    b = h.momentum * b + s.weight * g
    u = g + h.momentum * b
    return b, u, p - s.lr * u


def lr_inside(p: Array, g: Array, b: Array, h: Hyper, s: Scalars) -> Moved:  # SGD-5.1d
    b = h.momentum * b + s.lr * g
    return b, b, p - b


def nesterov_lr_inside(p: Array, g: Array, b: Array, h: Hyper, s: Scalars) -> Moved:  # SGD-5.1e
    b = h.momentum * b + s.lr * g
    u = h.momentum * b + s.lr * g
    return b, u, p - u


def mean(p: Array, g: Array, b: Array, h: Hyper, s: Scalars) -> Moved:  # SGD-5.1f
    b = h.momentum * b + (1 - h.momentum) * g
    return b, b, p - s.lr * b


def previous(p: Array, g: Array, b: Array, h: Hyper, s: Scalars) -> Moved:  # SGD-5.1g
    return h.momentum * b + s.weight * g, b, p - s.lr * b


class Choices(NamedTuple):
    """One formula for each axis; the defaults are the documented optimizer, plain."""

    given: Callable[[Hyper], Hyper] = as_given
    objective: Callable[[Array], Array] = minimize
    decay: Callable[..., tuple[Array, Array]] = no_decay
    start: Callable[[Number, Hyper], Number] = first_whole
    move: Callable[..., Moved] = no_momentum


AXES: dict[str, dict[str, Any]] = {
    "given": {"as-given": as_given, "swapped-momentum": swapped_momentum},
    "objective": {"minimize": minimize, "maximize": maximize},
    "decay": {"none": no_decay, "coupled": coupled, "decoupled": decoupled},
    "start": {
        "first-whole": first_whole,
        "always-dampened": always_dampened,
        "never-dampened": never_dampened,
    },
    "move": {
        "no-momentum": no_momentum,
        "lr-outside": lr_outside,
        "nesterov": nesterov,
        "lr-inside": lr_inside,
        "nesterov-lr-inside": nesterov_lr_inside,
        "mean": mean,
        "previous": previous,
    },
}
"""Every axis and its alternatives, by the names that the specification uses."""

SAME_EXACTLY: dict[str, tuple[frozenset[str], ...]] = {}
"""Alternatives that differ in rounding alone: none do."""

OBSERVABLE = ("t", "buffer", "param")
"""What a release may show after a step, in the order of the flow of data."""

ARRAY_AXES = ("objective", "decay", "move")
"""Axes that do not enter `tick`."""

MATTERS: dict[str, Callable[[Sequence[Hyper], Sequence[Choices], bool, bool], bool]] = {
    "decay": lambda hypers, choices, several, sparse: any(h.weight_decay != 0 for h in hypers),
    "start": lambda hypers, choices, several, sparse: any(h.dampening != 0 for h in hypers),
    "move": lambda hypers, choices, several, sparse: any(h.momentum != 0 for h in hypers),
}
"""When an axis can make a difference at all: see `refopt.rules.nadam.MATTERS`."""

REQUIRED = ("lr", "momentum")
"""Hyperparameters that a case must state; the others have a value that means none."""

OPTIONS = ("nesterov", "maximize")
"""What `configured` reads."""


def counted(c: Choices) -> set[str]:
    """The fields of the clock that a step reads."""
    return {"begun"} if c.start is first_whole and c.move is not no_momentum else set()


def init(param: Array, choices: Choices, *, xp: Namespace, num: Numbers) -> tuple[State, Clock]:
    """An empty buffer, no step done (SGD-2)."""
    kept = choices.move is not no_momentum
    return State(xp.zeros_like(param) if kept else None), Clock(num(0), num(0.0))  # SGD-2.1


def settle(hyper: Hyper, choices: Choices, *, num: Numbers) -> Hyper:
    """Hyperparameters as numbers (SGD-1.5)."""
    return Hyper(*map(num, choices.given(hyper)))


def tick(clock: Clock, hyper: Hyper, choices: Choices, *, num: Numbers) -> tuple[Scalars, Clock]:
    """Advance the clock by one step and give the coefficients of that step (SGD-5.2)."""
    h = settle(hyper, choices, num=num)
    weight = choices.start(clock.begun, h)  # SGD-5.2
    t = clock.t + 1
    return Scalars(t, h.lr, weight, h.lr * h.weight_decay), Clock(t, num(1.0))


def step(
    param: Array, grad: Array, state: State, s: Scalars, h: Hyper, c: Choices, *, xp: Namespace
) -> tuple[Quantities, State]:
    """One parameter, one step."""
    p, g = c.decay(param, c.objective(grad), h, s)  # SGD-3, SGD-4
    buffer, u, theta = c.move(p, g, state.buffer, h, s)  # SGD-5, SGD-6.1
    return Quantities(g, buffer, u, theta), State(buffer)


def ticks(
    params: Sequence[Array],
    grads: Sequence[Array | None],
    clocks: Sequence[Clock],
    hyper: Hyper,
    choices: Choices,
    *,
    num: Numbers,
) -> list[tuple[Any, Clock]]:
    """The coefficients of the next step and the clock after it, for each parameter (SGD-7)."""
    return [
        (None, clock) if grad is None else tick(clock, hyper, choices, num=num.of(param))  # SGD-7.1
        for param, grad, clock in zip(params, grads, clocks, strict=True)
    ]


def update(
    params: Sequence[Array],
    grads: Sequence[Array | None],
    states: Sequence[State],
    clocks: Sequence[Clock],
    hyper: Hyper,
    choices: Choices,
    *,
    xp: Namespace,
    num: Numbers,
    ticked: list[tuple[Any, Clock]] | None = None,
) -> tuple[list[Quantities | None], list[State], list[Clock]]:
    """One step of a group of parameters; one whose gradient is None stays as it is (SGD-7)."""
    ticked = ticked or ticks(params, grads, clocks, hyper, choices, num=num)
    quantities: list[Quantities | None] = [None for _ in params]
    states = list(states)
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        if grad is not None:  # SGD-7.2
            h = settle(hyper, choices, num=num.of(param))
            quantities[i], states[i] = step(param, grad, states[i], ticked[i][0], h, choices, xp=xp)
    return quantities, states, [clock for _, clock in ticked]


def configured(choices: Choices, hyper: Hyper, options: Mapping[str, Any]) -> Choices:
    """A profile's choices for given hyperparameters and options.

    Options: `nesterov`, `maximize`; what is absent is off. Momentum of 0 is none.
    """
    c, ahead = choices, {lr_outside: nesterov, lr_inside: nesterov_lr_inside}
    move = ahead.get(c.move, c.move) if options.get("nesterov") else c.move
    return c._replace(
        objective=maximize if options.get("maximize") else minimize,
        decay=c.decay if hyper.weight_decay != 0 else no_decay,
        move=move if hyper.momentum != 0 else no_momentum,
    )


_documented = Choices(decay=coupled, move=lr_outside)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "documented", _documented, Hyper(), "stored", "torch.optim.SGD 2.13, as documented"
        ),
        Profile("torch-2.13", _documented, Hyper(), "each", "torch 2.13, optim.SGD"),
        Profile(
            "keras-3",
            _documented._replace(decay=decoupled, move=lr_inside),
            Hyper(lr=1e-2),
            "each",
            "Keras 3.15, optimizers.SGD",
        ),
        Profile("optax-0.2", _documented, Hyper(), "each", "optax 0.2.8, sgd"),
    )
}
"""Releases by name; `documented` is the page's algorithm."""
