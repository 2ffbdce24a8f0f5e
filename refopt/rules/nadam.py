"""NAdam: Adam with Nesterov momentum and a momentum schedule.

Specification: spec/nadam.md. Sources: T. Dozat, "Incorporating Nesterov Momentum into Adam"
(ICLR workshop 2016); torch.optim.NAdam 2.2 (the documented algorithm) and 2.13 (the release).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from refopt.typing import Array, Namespace, Number, Numbers, Profile


class Hyper(NamedTuple):
    """NAD-1: what the user sets. Numbers; `lr` may carry a dtype (a tensor learning rate)."""

    lr: Number = 2e-3  # γ, learning rate
    beta1: Number = 0.9  # β₁, decay of the first moment
    beta2: Number = 0.999  # β₂, decay of the second moment
    epsilon: Number = 1e-8  # ε, added to the denominator
    weight_decay: Number = 0.0  # λ
    momentum_decay: Number = 4e-3  # ψ, decay of the momentum schedule
    base: Number = 0.96  # of the schedule: a constant of the algorithm, not the user's


class Clock(NamedTuple):
    """What depends on the number of steps alone, carried from step to step."""

    t: Number  # steps done
    product: Number  # Π μᵢ for i = 1 … t
    base_power: Number = 1.0  # 0.96ᵗ, for releases that keep a running power
    beta2_power: Number = 1.0  # β₂ᵗ, likewise


class Scalars(NamedTuple):
    """The coefficients of one step."""

    t: Number  # this step, from 1
    mu: Number  # μₜ
    mu_next: Number  # μₜ₊₁
    product: Number  # Π μᵢ for i = 1 … t
    rest: Number  # 1 - Π μᵢ for i = 1 … t, divisor of the gradient
    rest_next: Number  # 1 - Π μᵢ for i = 1 … t + 1, divisor of the momentum
    here: Number  # coefficient of the gradient in m̂
    ahead: Number  # coefficient of the momentum in m̂
    correction: Number  # 1 - β₂ᵗ
    root: Number  # its square root
    lr: Number  # γ as it enters the step
    rate: Number  # γ where the coefficients of m̂ carry it, else 1
    decay: Number  # γ λ


class State(NamedTuple):
    """The moments of one parameter; both have its shape, dtype, device and layout."""

    m: Array  # first moment
    v: Array  # second moment


class Quantities(NamedTuple):
    """Every named array of a step, in the order of the equations; shaped like the parameter."""

    g: Array  # gₜ, the gradient after objective and coupled decay
    m: Array  # mₜ
    v: Array  # vₜ
    m_hat: Array  # m̂ₜ
    v_hat: Array  # v̂ₜ
    denominator: Array  # √v̂ₜ + ε
    param: Array  # θₜ


# -- objective (NAD-3.1): the gradient of what is minimised ---------------------------------------
def minimize(grad: Array) -> Array:  # NAD-3.1a
    return grad


def maximize(grad: Array) -> Array:  # NAD-3.1b
    return -grad


# -- decay (NAD-4): (param, gradient) before the step; the parameter after it ---------------------
class Decay(NamedTuple):
    """Weight decay acts before the step, or after it."""

    before: Callable[..., tuple[Array, Array]]
    after: Callable[..., Array]


def untouched(p: Array, g: Array, h: Hyper, s: Scalars) -> tuple[Array, Array]:
    return p, g


def penalty(p: Array, g: Array, h: Hyper, s: Scalars) -> tuple[Array, Array]:
    return p, g + h.weight_decay * p


def shrunk(p: Array, g: Array, h: Hyper, s: Scalars) -> tuple[Array, Array]:
    return p - s.decay * p, g


def scaled(p: Array, g: Array, h: Hyper, s: Scalars) -> tuple[Array, Array]:
    return p * (1 - s.decay), g


def shrunk_without_lr(p: Array, g: Array, h: Hyper, s: Scalars) -> tuple[Array, Array]:
    return p - h.weight_decay * p, g


def final(p: Array, h: Hyper, s: Scalars) -> Array:
    return p


def shrunk_after(p: Array, h: Hyper, s: Scalars) -> Array:
    return p - s.decay * p


no_decay = Decay(untouched, final)  # NAD-4.1a
coupled = Decay(penalty, final)  # NAD-4.1b
decoupled = Decay(shrunk, final)  # NAD-4.1c
decoupled_factor = Decay(scaled, final)  # NAD-4.1d: as torch and timm round it
decoupled_after = Decay(untouched, shrunk_after)  # NAD-4.1e
decoupled_without_lr = Decay(shrunk_without_lr, final)  # NAD-4.1f


# -- scalars (NAD-5.1): the dtype in which numbers are kept before they meet an array -------------
def in_double(x: Number, num: Numbers) -> Number:  # NAD-5.1a
    return num(x)


def in_float32(x: Number, num: Numbers) -> Number:  # NAD-5.1b
    return num.float32(x)


def in_native(x: Number, num: Numbers) -> Number:  # NAD-5.1c
    return num.native(x)


# -- given (NAD-1.8): hyperparameters as given, or mistaken ---------------------------------------
def as_given(h: Hyper) -> Hyper:  # NAD-1.8a
    return h


def keras_epsilon(h: Hyper) -> Hyper:  # NAD-1.8b
    return h._replace(epsilon=1e-7)


def no_epsilon(h: Hyper) -> Hyper:  # NAD-1.8c
    return h._replace(epsilon=0.0)


def no_momentum_decay(h: Hyper) -> Hyper:  # NAD-1.8d
    return h._replace(momentum_decay=0.0)


def base_95(h: Hyper) -> Hyper:  # NAD-1.8g
    return h._replace(base=0.95)


def swapped_beta1(h: Hyper) -> Hyper:  # NAD-1.8e
    return h._replace(beta1=1 - h.beta1)


def swapped_beta2(h: Hyper) -> Hyper:  # NAD-1.8f
    return h._replace(beta2=1 - h.beta2)


# -- storage (NAD-1.9): hyperparameters that the release keeps in float32 whatever the dtype -------
def stored_as_given(h: Hyper, num: Numbers) -> Hyper:  # NAD-1.9a
    return h


def stored_in_float32(h: Hyper, num: Numbers, *names: str) -> Hyper:
    return h._replace(**{name: num.float64(num.float32(getattr(h, name))) for name in names})


def stored_lr(h: Hyper, num: Numbers) -> Hyper:  # NAD-1.9b
    return stored_in_float32(h, num, "lr")


def stored_variables(h: Hyper, num: Numbers) -> Hyper:  # NAD-1.9c: what legacy Keras casts
    return stored_in_float32(h, num, "lr", "beta1", "beta2", "base")


def stored_casts(h: Hyper, num: Numbers) -> Hyper:  # NAD-1.9d: what Keras 2 casts
    return stored_in_float32(h, num, "lr", "beta1", "beta2", "base", "weight_decay")


def stored_attributes(h: Hyper, num: Numbers) -> Hyper:  # NAD-1.9e: Paddle's C++ attributes
    return stored_in_float32(h, num, "beta1", "beta2", "epsilon", "momentum_decay")


def stored_tensors(h: Hyper, num: Numbers) -> Hyper:  # NAD-1.9f: and stay tensors: Keras on torch
    return h._replace(lr=num.float32(h.lr), weight_decay=num.float32(h.weight_decay))


# -- steps (NAD-5.4): the dtype of the step count; what is computed from it has that dtype ---------
def count_double(t: Number, num: Numbers) -> Number:  # NAD-5.4a
    return num.float64(t)


def count_float32(t: Number, num: Numbers) -> Number:  # NAD-5.4b
    return num.float32(t)


def count_native(t: Number, num: Numbers) -> Number:  # NAD-5.4c
    return num.native(t)


# -- origin (NAD-5.2): the step that enters the schedule and the corrections -----------------------
def from_one(t: Number) -> Number:  # NAD-5.2a
    return t


def from_zero(t: Number) -> Number:  # NAD-5.2b: off by one, early
    return t - 1


def from_two(t: Number) -> Number:  # NAD-5.2c: off by one, late
    return t + 1


# -- schedule (NAD-5.3): μ at step t; `power` is 0.96ᵗ kept as a running product ------------------
def decaying(t: Number, power: Number, h: Hyper) -> Number:  # NAD-5.3a
    return h.beta1 * (1 - 0.5 * h.base ** (t * h.momentum_decay))


def decaying_running(t: Number, power: Number, h: Hyper) -> Number:  # NAD-5.3b
    return h.beta1 * (1 - 0.5 * power**h.momentum_decay)


def unscaled(t: Number, power: Number, h: Hyper) -> Number:  # NAD-5.3c
    return h.beta1 * (1 - 0.5 * h.base**t)


def constant(t: Number, power: Number, h: Hyper) -> Number:  # NAD-5.3d
    return h.beta1


# -- start and product (NAD-6): Π μᵢ --------------------------------------------------------------
def one(num: Numbers) -> Number:  # NAD-6.1a
    return num(1.0)


def zero(num: Numbers) -> Number:  # NAD-6.1b: no bias correction of the first moment
    return num(0.0)


def exact(old: Number, mu: Number, t: Number, num: Numbers) -> Number:  # NAD-6.2a
    return num.float64(old) * mu


def float32_product(
    old: Number, mu: Number, t: Number, num: Numbers
) -> Number:  # NAD-6.2b: rounded each step
    return num.float32(num.float64(num.float32(old)) * num.float64(num.float32(mu)))


def native_product(old: Number, mu: Number, t: Number, num: Numbers) -> Number:  # NAD-6.2c
    return num.native(old) * num.native(mu)


def kept_product(
    old: Number, mu: Number, t: Number, num: Numbers
) -> Number:  # NAD-6.2d: in its own dtype
    return old * mu


def power_product(old: Number, mu: Number, t: Number, num: Numbers) -> Number:  # NAD-6.2e: optax
    return mu**t


# -- factor (NAD-6.6): the μ by which the product is multiplied; `given`: of what was given --------
def same_factor(mu: Number, given: Callable[[], Number]) -> Number:  # NAD-6.6a
    return mu


def factor_as_given(mu: Number, given: Callable[[], Number]) -> Number:  # NAD-6.6b: Keras on TF
    return given()


# -- divisors (NAD-6.3): 1 - product, for the gradient and for the momentum -----------------------
def running(product: Number, mu: Number, mu_next: Number) -> tuple[Number, Number]:  # NAD-6.3a
    return 1 - product, 1 - product * mu_next


def extra_mu(product: Number, mu: Number, mu_next: Number) -> tuple[Number, Number]:  # NAD-6.3b
    return 1 - product, 1 - product * mu * mu_next


def same(product: Number, mu: Number, mu_next: Number) -> tuple[Number, Number]:  # NAD-6.3c
    return 1 - product, 1 - product


# -- coefficient (NAD-6.4): the product as it enters the coefficients -----------------------------
def coefficient_double(product: Number, num: Numbers) -> Number:  # NAD-6.4a
    return num.float64(product)


def coefficient_kept(product: Number, num: Numbers) -> Number:  # NAD-6.4b
    return product


# -- rate (NAD-6.5): the dtype of a learning rate that carries one --------------------------------
def rate_kept(lr: Number, num: Numbers) -> Number:  # NAD-6.5a
    return lr


def rate_double(lr: Number, num: Numbers) -> Number:  # NAD-6.5b
    return num.float64(lr)


# -- reading (NAD-2.3): what an array that is stored between operations gives when read -----------
def as_stored(x: Array, xp: Namespace) -> Array:  # NAD-2.3a
    return x


def read_in_float32(x: Array, xp: Namespace) -> Array:  # NAD-2.3b: MindSpore, float64 too
    return xp.float32(x)


# -- first and second moment (NAD-7, NAD-8) -------------------------------------------------------
def weighted(m: Array, g: Array, h: Hyper, xp: Namespace) -> Array:  # NAD-7.1a
    return h.beta1 * m + (1 - h.beta1) * g


def increment(m: Array, g: Array, h: Hyper, xp: Namespace) -> Array:  # NAD-7.1b: Keras
    return xp.lerp(m, g, 1 - h.beta1)


def lerp(
    m: Array, g: Array, h: Hyper, xp: Namespace
) -> Array:  # NAD-7.1c: torch, from the nearer end
    w = 1 - h.beta1
    return xp.lerp(m, g, w) if w < 0.5 else xp.lerp_from_end(m, g, w)


def weighted_square(v: Array, g: Array, h: Hyper, xp: Namespace) -> Array:  # NAD-8.1a
    return h.beta2 * v + (1 - h.beta2) * (g * g)


def increment_square(v: Array, g: Array, h: Hyper, xp: Namespace) -> Array:  # NAD-8.1b: Keras
    return xp.lerp(v, g * g, 1 - h.beta2)


def square_of_scaled(v: Array, g: Array, h: Hyper, xp: Namespace) -> Array:  # NAD-8.1c: torch
    return h.beta2 * v + ((1 - h.beta2) * g) * g


# -- momentum (NAD-9): the two addends of m̂ -------------------------------------------------------
def current(
    m: Array, old: Array, g: Array, h: Hyper, s: Scalars
) -> tuple[Array, Array]:  # NAD-9.1a
    return s.ahead * m, s.here * g


def previous(
    m: Array, old: Array, g: Array, h: Hyper, s: Scalars
) -> tuple[Array, Array]:  # NAD-9.1b
    return s.ahead * old, s.here * g


def adam(m: Array, old: Array, g: Array, h: Hyper, s: Scalars) -> tuple[Array, Array]:  # NAD-9.1c
    rest = 1 - h.beta1**s.t
    return (s.rate * h.beta1 / rest) * old, (s.rate * (1 - h.beta1) / rest) * g


def scaled_gradient(  # NAD-9.1d: torch ≤ 2.0 with differentiable=True
    m: Array, old: Array, g: Array, h: Hyper, s: Scalars
) -> tuple[Array, Array]:
    return (-s.lr * s.here * (1 - s.mu_next) / s.rest_next) * g, s.here * g


# -- correction (NAD-10): the divisor of the second moment; `power` is β₂ᵗ kept as a product ------
def closed(t: Number, power: Number, h: Hyper) -> Number:  # NAD-10.1a
    return 1 - h.beta2**t


def closed_running(t: Number, power: Number, h: Hyper) -> Number:  # NAD-10.1b
    return 1 - power


def beta2_scaled(t: Number, power: Number, h: Hyper) -> Number:  # NAD-10.1c: v̂ = β₂ v / (1 - β₂ᵗ)
    return (1 - h.beta2**t) / h.beta2


def uncorrected(t: Number, power: Number, h: Hyper) -> Number:  # NAD-10.1d
    return 1 - 0 * t


# -- root (NAD-11.1) and epsilon (NAD-11.2) -------------------------------------------------------
def root_of_quotient(v: Array, v_hat: Array, s: Scalars, xp: Namespace) -> Array:  # NAD-11.1a
    return xp.sqrt(v_hat)


def quotient_of_roots(v: Array, v_hat: Array, s: Scalars, xp: Namespace) -> Array:  # NAD-11.1b
    return xp.sqrt(v) / s.root


def outside(  # NAD-11.2a
    v: Array, v_hat: Array, h: Hyper, s: Scalars, c: Choices, xp: Namespace
) -> Array:
    return c.root(v, v_hat, s, xp) + h.epsilon


def inside(  # NAD-11.2b
    v: Array, v_hat: Array, h: Hyper, s: Scalars, c: Choices, xp: Namespace
) -> Array:
    return xp.sqrt(v_hat + h.epsilon)


def before_correction(  # NAD-11.2c
    v: Array, v_hat: Array, h: Hyper, s: Scalars, c: Choices, xp: Namespace
) -> Array:
    return (xp.sqrt(v) + h.epsilon) / s.root


# -- move (NAD-11.3): where γ enters, and how the two addends reach the parameter -----------------
class Move(NamedTuple):
    """γ multiplies m̂, or is folded into the coefficients of its two addends."""

    rate: Callable[[Number], Number]
    apply: Callable[..., Array]


def outer(lr: Number) -> Number:
    return 1.0


def folded(lr: Number) -> Number:
    return lr


def at_once(
    p: Array, a: Array, b: Array, m_hat: Array, d: Array, s: Scalars, c: Choices, xp: Namespace
) -> Array:
    return p - (s.lr * m_hat) / d


def in_turn(
    p: Array, a: Array, b: Array, m_hat: Array, d: Array, s: Scalars, c: Choices, xp: Namespace
) -> Array:
    return c.reading(p - b / d, xp) - a / d


together = Move(outer, at_once)  # NAD-11.3a
apart = Move(folded, in_turn)  # NAD-11.3b


# -- counter (NAD-12): whose clock advances -------------------------------------------------------
Ticked = list[tuple[Any, Clock]]
Advance = Callable[..., tuple[Scalars, Clock]]


def per_parameter(advance: Advance, clocks: Sequence[Clock], there: Sequence[bool]) -> Ticked:
    """NAD-12.1a: a parameter without a gradient keeps its own count."""
    return [
        advance(i, clock) if here else (None, clock)
        for i, (clock, here) in enumerate(zip(clocks, there, strict=True))
    ]


def shared(advance: Advance, clocks: Sequence[Clock], there: Sequence[bool]) -> Ticked:
    """NAD-12.1b: one count for all, advanced once a step."""
    return [advance(i, clock) for i, clock in enumerate(clocks)]


def shared_step(advance: Advance, clocks: Sequence[Clock], there: Sequence[bool]) -> Ticked:
    """NAD-12.1c: the step is shared, the product belongs to the parameter."""
    ticked = shared(advance, clocks, there)
    return [
        (scalars, new if here else new._replace(product=old.product))
        for (scalars, new), old, here in zip(ticked, clocks, there, strict=True)
    ]


def every_variable(advance: Advance, clocks: Sequence[Clock], there: Sequence[bool]) -> Ticked:
    """NAD-12.1d: one product for all, multiplied once for every parameter that steps (MXNet)."""
    return _in_turn(advance, clocks, there, lambda k, t: False)


def traced_variable(advance: Advance, clocks: Sequence[Clock], there: Sequence[bool]) -> Ticked:
    """NAD-12.1e: the same, but the k-th parameter (from 0) skips its turn at step k (Keras 2)."""
    return _in_turn(advance, clocks, there, lambda k, t: k == t)


def _in_turn(
    advance: Advance, clocks: Sequence[Clock], there: Sequence[bool], skips: Callable[..., bool]
) -> Ticked:
    product, k, scalars, new = clocks[0].product, 0, [], list(clocks)
    for i, clock in enumerate(clocks):
        s, new[i] = advance(i, clock._replace(product=product), held=skips(k, clock.t + 1))
        scalars.append(s)
        if there[i]:
            product, k = new[i].product, k + 1
    return [(s, clock._replace(product=product)) for s, clock in zip(scalars, new, strict=True)]


class Choices(NamedTuple):
    """One formula for each axis; the defaults are the documented optimizer."""

    given: Callable[[Hyper], Hyper] = as_given
    objective: Callable[[Array], Array] = minimize
    decay: Decay = no_decay
    storage: Callable[[Hyper, Numbers], Hyper] = stored_as_given
    scalars: Callable[[Number, Numbers], Number] = in_double
    steps: Callable[[Number, Numbers], Number] = count_double
    origin: Callable[[Number], Number] = from_one
    schedule: Callable[[Number, Number, Hyper], Number] = decaying
    start: Callable[[Numbers], Number] = one
    product: Callable[[Number, Number, Number, Numbers], Number] = exact
    factor: Callable[[Number, Callable[[], Number]], Number] = same_factor
    divisors: Callable[[Number, Number, Number], tuple[Number, Number]] = running
    coefficient: Callable[[Number, Numbers], Number] = coefficient_double
    rate: Callable[[Number, Numbers], Number] = rate_kept
    reading: Callable[[Array, Namespace], Array] = as_stored
    first: Callable[..., Array] = weighted
    second: Callable[..., Array] = weighted_square
    momentum: Callable[..., tuple[Array, Array]] = current
    correction: Callable[[Number, Number, Hyper], Number] = closed
    root: Callable[..., Array] = root_of_quotient
    epsilon: Callable[..., Array] = outside
    move: Move = together
    counter: Callable[..., Ticked] = per_parameter


AXES: dict[str, dict[str, Any]] = {
    "given": {
        "as-given": as_given,
        "keras-epsilon": keras_epsilon,
        "no-epsilon": no_epsilon,
        "no-momentum-decay": no_momentum_decay,
        "base-0.95": base_95,
        "swapped-beta1": swapped_beta1,
        "swapped-beta2": swapped_beta2,
    },
    "objective": {"minimize": minimize, "maximize": maximize},
    "decay": {
        "none": no_decay,
        "coupled": coupled,
        "decoupled": decoupled,
        "decoupled-factor": decoupled_factor,
        "decoupled-after": decoupled_after,
        "decoupled-without-lr": decoupled_without_lr,
    },
    "storage": {
        "as-given": stored_as_given,
        "float32-lr": stored_lr,
        "float32-variables": stored_variables,
        "float32-casts": stored_casts,
        "float32-attributes": stored_attributes,
        "float32-tensors": stored_tensors,
    },
    "scalars": {"double": in_double, "float32": in_float32, "native": in_native},
    "steps": {"double": count_double, "float32": count_float32, "native": count_native},
    "origin": {"from-one": from_one, "from-zero": from_zero, "from-two": from_two},
    "schedule": {
        "decaying": decaying,
        "decaying-running": decaying_running,
        "unscaled": unscaled,
        "constant": constant,
    },
    "start": {"one": one, "zero": zero},
    "product": {
        "exact": exact,
        "float32": float32_product,
        "native": native_product,
        "kept": kept_product,
        "power": power_product,
    },
    "factor": {"same": same_factor, "as-given": factor_as_given},
    "divisors": {"running": running, "extra-mu": extra_mu, "same": same},
    "coefficient": {"double": coefficient_double, "kept": coefficient_kept},
    "rate": {"kept": rate_kept, "double": rate_double},
    "reading": {"as-stored": as_stored, "float32": read_in_float32},
    "first": {"weighted": weighted, "increment": increment, "lerp": lerp},
    "second": {
        "weighted": weighted_square,
        "increment": increment_square,
        "square-of-scaled": square_of_scaled,
    },
    "momentum": {
        "current": current,
        "previous": previous,
        "adam": adam,
        "scaled-gradient": scaled_gradient,
    },
    "correction": {
        "closed": closed,
        "running": closed_running,
        "beta2-scaled": beta2_scaled,
        "none": uncorrected,
    },
    "root": {"of-quotient": root_of_quotient, "of-each": quotient_of_roots},
    "epsilon": {"outside": outside, "inside": inside, "before-correction": before_correction},
    "move": {"together": together, "apart": apart},
    "counter": {
        "per-parameter": per_parameter,
        "shared": shared,
        "shared-step": shared_step,
        "every-variable": every_variable,
        "traced-variable": traced_variable,
    },
}
"""Every axis and its alternatives, by the names that the specification uses."""

SAME_EXACTLY: dict[str, tuple[frozenset[str], ...]] = {
    "decay": (frozenset({"decoupled", "decoupled-factor"}),),
    "storage": (
        frozenset(
            {
                "as-given",
                "float32-lr",
                "float32-variables",
                "float32-casts",
                "float32-attributes",
                "float32-tensors",
            }
        ),
    ),
    "scalars": (frozenset({"double", "float32", "native"}),),
    "steps": (frozenset({"double", "float32", "native"}),),
    "schedule": (frozenset({"decaying", "decaying-running"}),),
    "product": (
        frozenset({"exact", "kept"}),
        frozenset({"float32", "kept"}),
        frozenset({"native", "kept"}),
    ),
    "factor": (frozenset({"same", "as-given"}),),
    "coefficient": (frozenset({"double", "kept"}),),
    "rate": (frozenset({"kept", "double"}),),
    "reading": (frozenset({"as-stored", "float32"}),),
    "first": (frozenset({"weighted", "increment", "lerp"}),),
    "second": (frozenset({"weighted", "increment", "square-of-scaled"}),),
    "correction": (frozenset({"closed", "running"}),),
    "root": (frozenset({"of-quotient", "of-each"}),),
    "move": (frozenset({"together", "apart"}),),
}
"""Alternatives that differ in rounding and overflow alone: equal over the reals while the
hyperparameters stay as they are (a running power remembers an earlier β₂). A product that is
rounded at each step is not among them: its error adds up, and float64 parameters show it."""


def counted(c: Choices) -> set[str]:
    """The fields of the clock that a step reads."""
    running = {"base_power"} if c.schedule is decaying_running else set()
    return (
        running | ({"beta2_power"} if c.correction is closed_running else set()) | {"t", "product"}
    )


OBSERVABLE = ("t", "product", "m", "v", "param")
"""What a release may show after a step, in the order of the flow of data."""

ARRAY_AXES = ("objective", "decay", "reading", "first", "second", "momentum", "root", "epsilon")
"""Axes that do not enter `tick`."""

MATTERS: dict[str, Callable[[Sequence[Hyper], Sequence[Choices], bool, bool], bool]] = {
    "decay": lambda hypers, choices, several, sparse: any(h.weight_decay != 0 for h in hypers),
    "counter": lambda hypers, choices, several, sparse: several,
}
"""When an axis can make a difference at all: from the hyperparameters and choices in use; whether
there are several parameters, or one that is skipped at times; whether a gradient is sparse."""


def init(param: Array, choices: Choices, *, xp: Namespace, num: Numbers) -> tuple[State, Clock]:
    """Moments at zero, no step done, empty product (NAD-2)."""
    num = num.of(param)
    product = choices.product(choices.start(num), 1.0, num(0), num)  # NAD-2.2
    return State(xp.zeros_like(param), xp.zeros_like(param)), Clock(num(0), product)  # NAD-2.1


def settle(hyper: Hyper, choices: Choices, *, num: Numbers) -> Hyper:
    """Hyperparameters as the release holds them (NAD-1.8, NAD-1.9, NAD-5.1)."""
    h = choices.storage(choices.given(hyper), num)
    return Hyper(*(choices.scalars(x, num) for x in h))


def tick(
    clock: Clock, hyper: Hyper, choices: Choices, *, num: Numbers, held: bool = False
) -> tuple[Scalars, Clock]:
    """Advance the clock by one step and give the coefficients of that step (NAD-5, 6, 10)."""
    c = choices
    h = settle(hyper, c, num=num)  # NAD-1.8, NAD-1.9, NAD-5.1
    done = c.steps(c.scalars(clock.t + 1, num), num)  # NAD-5.4, NAD-12.1
    t = c.origin(done)  # NAD-5.2
    base_power, beta2_power = clock.base_power * h.base, clock.beta2_power * h.beta2
    mu = c.schedule(t, base_power, h)  # NAD-5.3
    mu_next = c.schedule(t + 1, base_power * h.base, h)  # NAD-5.3

    def given() -> Number:
        unstored = settle(hyper, c._replace(storage=stored_as_given), num=num)
        return c.schedule(t, base_power, unstored)

    factor = c.factor(mu, given)  # NAD-6.6
    product = clock.product if held else c.product(clock.product, factor, t, num)  # NAD-6.2
    rest, rest_next = c.divisors(c.coefficient(product, num), mu, mu_next)  # NAD-6.3, NAD-6.4
    lr = c.rate(h.lr, num)  # NAD-6.5
    rate = c.move.rate(lr)  # NAD-11.3
    correction = c.correction(t, beta2_power, h)  # NAD-10.1
    scalars = Scalars(
        t=t,
        mu=mu,
        mu_next=mu_next,
        product=product,
        rest=rest,
        rest_next=rest_next,
        here=rate * (1 - mu) / rest,  # NAD-9.2
        ahead=rate * mu_next / rest_next,  # NAD-9.2
        correction=correction,
        root=correction**0.5,
        lr=lr,
        rate=rate,
        decay=h.lr * h.weight_decay,
    )
    return scalars, Clock(done, product, base_power, beta2_power)


def step(
    param: Array, grad: Array, state: State, s: Scalars, h: Hyper, c: Choices, *, xp: Namespace
) -> tuple[Quantities, State]:
    """One parameter, one step.

    As documented, and without weight decay:
    m ← β₁ m + (1 - β₁) g,  v ← β₂ v + (1 - β₂) g²,  m̂ = a + b
    a = ahead m = μₜ₊₁ / (1 - Π μᵢ up to t + 1) m,  b = here g = (1 - μₜ) / (1 - Π μᵢ up to t) g
    θ ← θ - γ m̂ / d,  d = √(v / (1 - β₂ᵗ)) + ε
    """
    old = State(c.reading(state.m, xp), c.reading(state.v, xp))  # NAD-2.3
    p, g = c.decay.before(c.reading(param, xp), c.objective(grad), h, s)  # NAD-3, NAD-4
    m = c.first(old.m, g, h, xp)  # NAD-7
    v = c.second(old.v, g, h, xp)  # NAD-8
    a, b = c.momentum(c.reading(m, xp), old.m, g, h, s)  # NAD-9
    m_hat = a + b  # NAD-9
    v_read = c.reading(v, xp)  # NAD-2.3
    v_hat = v_read / s.correction  # NAD-10
    d = c.epsilon(v_read, v_hat, h, s, c, xp)  # NAD-11.2
    theta = c.decay.after(c.move.apply(p, a, b, m_hat, d, s, c, xp), h, s)  # NAD-11.3
    return Quantities(g, m, v, m_hat, v_hat, d, theta), State(m, v)


def ticks(
    params: Sequence[Array],
    grads: Sequence[Array | None],
    clocks: Sequence[Clock],
    hyper: Hyper,
    choices: Choices,
    *,
    num: Numbers,
) -> Ticked:
    """The coefficients of the next step and the clock after it, for each parameter (NAD-12)."""
    there = [grad is not None for grad in grads]
    if not any(there):  # NAD-12.2
        return [(None, clock) for clock in clocks]

    def advance(i: int, clock: Clock, held: bool = False) -> tuple[Scalars, Clock]:
        return tick(clock, hyper, choices, num=num.of(params[i]), held=held)

    return choices.counter(advance, clocks, there)  # NAD-12.1


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
    ticked: Ticked | None = None,
) -> tuple[list[Quantities | None], list[State], list[Clock]]:
    """One step of a group of parameters; one whose gradient is None stays as it is (NAD-12).

    `ticked`: what `ticks` gave, where it was asked for before (outside a compiled step, say).
    """
    if ticked is None:
        ticked = ticks(params, grads, clocks, hyper, choices, num=num)
    quantities: list[Quantities | None] = [None for _ in params]
    states = list(states)
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        if grad is None:
            continue  # NAD-12.3
        h = settle(hyper, choices, num=num.of(param))
        quantities[i], states[i] = step(param, grad, states[i], ticked[i][0], h, choices, xp=xp)
    return quantities, states, [clock for _, clock in ticked]


REQUIRED = ("lr", "beta1", "beta2", "epsilon", "weight_decay", "momentum_decay")
"""Hyperparameters that a case must state."""

OPTIONS = ("maximize", "decoupled_weight_decay")
"""What `configured` reads."""


def configured(choices: Choices, hyper: Hyper, options: Mapping[str, Any]) -> Choices:
    """A profile's choices for given options.

    Options: `maximize`, and `decoupled_weight_decay`, where None (or nothing) leaves the profile's
    own form of weight decay. Without weight decay there is none of either form.
    """
    decoupled_ = options.get("decoupled_weight_decay")
    form = coupled if decoupled_ is not None and not decoupled_ else choices.decay
    return choices._replace(
        decay=form if hyper.weight_decay != 0 else no_decay,
        objective=maximize if options.get("maximize") else minimize,
    )


_documented = Choices(decay=decoupled)
_torch = Choices(
    decay=decoupled_factor, product=float32_product, first=lerp, second=square_of_scaled, move=apart
)
_keras = Choices(
    decay=decoupled,
    storage=stored_lr,
    scalars=in_native,
    steps=count_native,
    schedule=unscaled,
    product=native_product,
    coefficient=coefficient_kept,
    first=increment,
    second=increment_square,
    counter=shared,
)
_keras_hyper = Hyper(lr=1e-3, epsilon=1e-7, momentum_decay=1.0)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "documented", _documented, Hyper(), "stored", "torch.optim.NAdam 2.2, as documented"
        ),
        Profile("torch-2.13", _torch, Hyper(), "each", "torch 2.13, foreach=False"),
        Profile(
            "torch-2.13-foreach",
            _torch._replace(root=quotient_of_roots, rate=rate_double),
            Hyper(),
            "each",
            "torch 2.13, foreach=True",
        ),
        Profile(
            "torch-2.13-differentiable",
            _torch._replace(coefficient=coefficient_kept),
            Hyper(),
            "each",
            "torch 2.13, differentiable=True",
        ),
        Profile(
            "torch-2.13-capturable",
            _torch._replace(coefficient=coefficient_kept, steps=count_float32),
            Hyper(),
            "each",
            "torch 2.13, capturable=True, foreach=False",
        ),
        Profile(
            "keras-legacy-2.9",
            _keras._replace(
                storage=stored_variables,
                schedule=decaying,
                first=weighted,
                second=weighted_square,
            ),
            Hyper(lr=1e-3, epsilon=1e-7),
            "each",
            "TensorFlow 2.9.3, tf.keras.optimizers.Nadam",
        ),
        Profile(
            "keras-2.15",
            _keras._replace(storage=stored_casts),
            _keras_hyper,
            "each",
            "TensorFlow 2.15.1, optimizers.Nadam, eager",
        ),
        Profile(
            "keras-2.15-graph",
            _keras._replace(storage=stored_casts, counter=traced_variable),
            _keras_hyper,
            "each",
            "TensorFlow 2.15.1, optimizers.Nadam, inside tf.function",
        ),
        Profile("keras-3", _keras, _keras_hyper, "each", "Keras 3.15 on JAX, optimizers.Nadam"),
        Profile(
            "keras-3-tensorflow",
            _keras._replace(storage=stored_casts, factor=factor_as_given),
            _keras_hyper,
            "each",
            "Keras 3.15 on TensorFlow 2.21, optimizers.Nadam",
        ),
        Profile(
            "keras-3-torch",
            _keras._replace(
                storage=stored_tensors,
                scalars=in_double,
                decay=decoupled_factor,
                first=weighted,
                second=weighted_square,
            ),
            _keras_hyper,
            "each",
            "Keras 3.15 on torch 2.13, optimizers.Nadam",
        ),
        Profile(
            "optax-0.2",
            Choices(
                decay=decoupled,
                steps=count_native,
                schedule=constant,
                product=power_product,
                coefficient=coefficient_kept,
                counter=shared,
            ),
            Hyper(weight_decay=1e-4, momentum_decay=0.0),
            "each",
            "optax 0.2.8, nadam and nadamw",
        ),
        Profile(
            "timm-nadamw",
            _torch._replace(
                schedule=constant,
                product=power_product,
                divisors=same,
                root=quotient_of_roots,
                move=together,
            ),
            Hyper(lr=1e-3, weight_decay=1e-2, momentum_decay=0.0),
            "each",
            "timm 1.0.31, optim.NAdamW",
        ),
        Profile(
            "paddle-3.3",
            Choices(
                decay=coupled,
                storage=stored_attributes,
                scalars=in_native,
                steps=count_native,
                schedule=decaying_running,
                product=native_product,
                coefficient=coefficient_kept,
                second=square_of_scaled,
                correction=closed_running,
            ),
            Hyper(),
            "each",
            "paddle 3.3.1, optimizer.NAdam",
        ),
        Profile(
            "mindspore-2.10",
            Choices(
                decay=coupled,
                scalars=in_float32,
                steps=count_float32,
                reading=read_in_float32,
                product=float32_product,
                coefficient=coefficient_kept,
                move=apart,
                counter=shared_step,
            ),
            Hyper(),
            "each",
            "MindSpore 2.10, experimental.optim.NAdam",
        ),
    )
}
"""Releases by name; `documented` is the page's algorithm."""
