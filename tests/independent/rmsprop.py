"""RMSprop, transcribed from its documentation at arbitrary precision.

Source: tf.keras.dtensor.experimental.optimizers.RMSprop, TensorFlow 2.9 documentation (after Hinton
2012, "Neural Networks for Machine Learning", lecture 6). It describes the method in words; the
order of the lines below is the order in which it names them. Nothing here imports, or was written
from, another implementation: it checks them.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpmath import ceil, cospi, floor, fsum, mp, mpf, sqrt


def run(
    params: Sequence[Sequence[float]],
    grads: Sequence[Sequence[Sequence[float] | Mapping[str, Any] | None]],
    *,
    lr: float | Callable[[int], Any],
    rho: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-7,
    centered: bool = False,
    weight_decay: float = 0.0,
    clipnorm: float | None = None,
    clipvalue: float | None = None,
    global_clipnorm: float | None = None,
    use_ema: bool = False,
    ema_momentum: float = 0.99,
    ema_overwrite_frequency: int | None = None,
    stored: Callable[[mpf], mpf] = mpf,
    digits: int = 100,
) -> list[list[dict[str, Any]]]:
    """Run RMSprop from v = a = buffer = 0 and report every quantity of every step.

    Every number passed in is finite and stands for its exact float64 value.

    Args:
        params: theta, one list of elements per parameter.
        grads: per step and per parameter, the gradient's elements, or None: that parameter stays
            as it was, but t counts the step and the average still follows. A step without any
            gradient is no step at all. A sparse gradient is {"values": its elements, "places":
            that of each among the parameter's}; those of one place add up, after clipping.
        lr: the learning rate, or a function of the number of steps taken before this one.
        rho: discounting factor of v, and of a.
        momentum: decay of the buffer, which holds gradients over roots; lr stays outside it.
        epsilon: added to the root (the "epsilon hat" of Kingma and Ba).
        centered: divide by the root of the variance v - a**2. The subtraction cancels: under a
            constant gradient about t log10(1/rho) of the digits are lost.
        weight_decay: lambda, adds lambda theta to the clipped gradient (not in the source).
        clipnorm: largest norm of the gradient of one parameter; precedes the other two limits.
        clipvalue: largest magnitude of an element of a gradient; applies if no other limit does.
        global_clipnorm: largest norm of all gradients of the step together; precedes clipvalue.
        use_ema: average theta, from its initial value on, after every step.
        ema_momentum: discounting factor of that average.
        ema_overwrite_frequency: whenever it divides t, the averages become the parameters.
        stored: what becomes of a number that is kept for the next step: in 16 bits it is rounded.
        digits: decimal digits of the arithmetic, at least 17 so that float64 values are exact.

    Returns:
        Per step and per parameter, a dict: t, the steps taken (int), the scalar lr (None before the
        first step), and the element lists v, param (after an overwrite), and where they exist a
        (centered), buffer (momentum > 0) and average (use_ema). The values keep `digits` digits;
        arithmetic on them needs `mpmath.workdps` as well.

    Raises:
        ValueError: `digits` is below 17, a clipping limit is not positive, clipnorm is combined
            with global_clipnorm, lists that belong together differ in length, or rounding made a
            variance negative, so that more digits are needed.
        ZeroDivisionError: a denominator is zero, for example g = epsilon = 0 at the first step.
    """
    if digits < 17:
        message = f"digits must be at least 17 to hold a float64 exactly, got {digits}"
        raise ValueError(message)
    if clipnorm is not None and global_clipnorm is not None:
        message = f"clipnorm excludes global_clipnorm, got {clipnorm} and {global_clipnorm}"
        raise ValueError(message)
    limits = {"clipnorm": clipnorm, "clipvalue": clipvalue, "global_clipnorm": global_clipnorm}
    for name, limit in limits.items():
        if limit is not None and not limit > 0:
            message = f"{name} must be positive or None, got {limit}"
            raise ValueError(message)
    reported = ["param", "v"] + ["a"] * centered + ["buffer"] * (momentum > 0)
    reported += ["average"] * use_ema
    with mp.workdps(digits):
        decay, mu, eps, lambda_, kept = map(
            mpf, (rho, momentum, epsilon, weight_decay, ema_momentum)
        )

        def scaled(group: list[list[mpf]], limit: float) -> list[list[mpf]]:
            norm = sqrt(fsum(x**2 for g in group for x in g))
            return [[x * limit / norm for x in g] for g in group] if norm > limit else group

        def clip(group: list[list[mpf]]) -> list[list[mpf]]:
            if clipnorm is not None:
                return [scaled([g], clipnorm)[0] for g in group]
            if global_clipnorm is not None:
                return scaled(group, global_clipnorm)
            if clipvalue is not None:
                return [[max(min(x, mpf(clipvalue)), -mpf(clipvalue)) for x in g] for g in group]
            return group

        def element(rate: mpf, g: mpf, theta: mpf, v: mpf, a: mpf, buffer: mpf) -> tuple[mpf, ...]:
            g = g + lambda_ * theta
            v = decay * v + (1 - decay) * g**2
            a = decay * a + (1 - decay) * g
            variance = v - a**2 if centered else v
            if variance < 0:
                message = f"digits must be more for a variance that cancels, got {digits}"
                raise ValueError(message)
            buffer = mu * buffer + g / (sqrt(variance) + eps)
            return theta - rate * buffer, v, a, buffer

        def step(before: dict[str, list[mpf]], g: list[mpf], rate: mpf) -> dict[str, list[mpf]]:
            names = ("param", "v", "a", "buffer")
            inputs = zip(g, *(before[name] for name in names), strict=True)
            rows = [element(rate, *row) for row in inputs]
            return before | {name: [row[k] for row in rows] for k, name in enumerate(names)}

        def averaged(state: dict[str, list[mpf]], t: int) -> dict[str, list[mpf]]:
            pairs = zip(state["average"], state["param"], strict=True)
            average = [kept * old + (1 - kept) * theta for old, theta in pairs]
            overwrites = ema_overwrite_frequency is not None and t % ema_overwrite_frequency == 0
            return state | {"average": average} | ({"param": average} if overwrites else {})

        def whole(clipped: list[mpf], given: Any, size: int) -> list[mpf]:
            if not isinstance(given, Mapping):
                return clipped
            pairs = [*zip(clipped, given["places"], strict=True)]
            return [fsum(x for x, place in pairs if place == i) for i in range(size)]

        states = [
            {"param": theta, "average": theta} | dict.fromkeys(("v", "a", "buffer"), zeros)
            for theta, zeros in (([*map(mpf, p)], [mpf(0)] * len(p)) for p in params)
        ]
        t, rate, steps = 0, None, []
        for gradients in grads:
            pairs = [*zip(states, gradients, strict=True)]
            elements = [g["values"] if isinstance(g, Mapping) else g for g in gradients]
            present = [[*map(mpf, g)] for g in elements if g is not None]
            if present:
                rate = mpf(lr(t) if callable(lr) else lr)
                clipped = iter(clip(present))
                states = [
                    s if g is None else step(s, whole(next(clipped), g, len(s["param"])), rate)
                    for s, g in pairs
                ]
                t += 1
                if use_ema:
                    states = [averaged(s, t) for s in states]
                states = [{name: [*map(stored, x)] for name, x in s.items()} for s in states]
            steps.append([{"t": t, "lr": rate} | {n: s[n] for n in reported} for s in states])
        return steps


def exponential(
    s: mpf, initial_learning_rate: mpf, decay_steps: mpf, decay_rate: mpf, staircase: Any = False
) -> mpf:
    """initial_learning_rate decay_rate**(s / decay_steps), the exponent floored by staircase."""
    p = s / decay_steps
    return initial_learning_rate * decay_rate ** (floor(p) if staircase else p)


def inverse_time(
    s: mpf, initial_learning_rate: mpf, decay_steps: mpf, decay_rate: mpf, staircase: Any = False
) -> mpf:
    """initial_learning_rate / (1 + decay_rate s / decay_steps), the ratio floored by staircase."""
    p = s / decay_steps
    return initial_learning_rate / (1 + decay_rate * (floor(p) if staircase else p))


def piecewise_constant(s: mpf, boundaries: list[mpf], values: list[mpf]) -> mpf:
    """values[k] where k boundaries lie strictly below s."""
    if len(values) != len(boundaries) + 1:
        message = f"values must be one more than boundaries, got {len(values)}, {len(boundaries)}"
        raise ValueError(message)
    return values[bisect_left(boundaries, s)]


def polynomial(
    s: mpf,
    initial_learning_rate: mpf,
    decay_steps: mpf,
    end_learning_rate: mpf | float = 1e-4,
    power: mpf = 1,
    cycle: Any = False,
) -> mpf:
    """(1 - s / d)**power of the way from the end; d stretches to a multiple of itself by cycle."""
    if cycle:
        decay_steps = decay_steps * max(ceil(s / decay_steps), 1)
    left = 1 - min(s, decay_steps) / decay_steps
    return (initial_learning_rate - end_learning_rate) * left**power + end_learning_rate


def cosine(s: mpf, initial_learning_rate: mpf, decay_steps: mpf, alpha: mpf = 0) -> mpf:
    """Half a cosine wave from initial_learning_rate down to alpha of it."""
    wave = (1 + cospi(min(s, decay_steps) / decay_steps)) / 2
    return initial_learning_rate * ((1 - alpha) * wave + alpha)


def cosine_restarts(
    s: mpf,
    initial_learning_rate: mpf,
    first_decay_steps: mpf,
    t_mul: mpf = 2,
    m_mul: mpf = 1,
    alpha: mpf = 0,
) -> mpf:
    """Half waves, each t_mul times as long and m_mul times as high as the one before."""
    if not (t_mul >= 1 and first_decay_steps > 0):
        message = "t_mul must be at least 1 and first_decay_steps positive, got "
        message += f"{t_mul} and {first_decay_steps}"
        raise ValueError(message)
    period, height = first_decay_steps, mpf(1)
    while s >= period:
        s, period, height = s - period, period * t_mul, height * m_mul
    wave = height * (1 + cospi(s / period)) / 2
    return initial_learning_rate * ((1 - alpha) * wave + alpha)


SCHEDULES: dict[str, Callable[..., mpf]] = {
    "ExponentialDecay": exponential,
    "InverseTimeDecay": inverse_time,
    "PiecewiseConstantDecay": piecewise_constant,
    "PolynomialDecay": polynomial,
    "CosineDecay": cosine,
    "CosineDecayRestarts": cosine_restarts,
}


def schedules(name: str, config: Mapping[str, Any]) -> Callable[[int], mpf]:
    """Return a learning-rate schedule as a function of the number of steps taken.

    Args:
        name: its class in tf.keras.optimizers.schedules: any but LearningRateSchedule, the abstract
            base, which has no formula.
        config: its arguments: numbers, decimal strings or lists of them. Each stands for its exact
            float64 value, and a flag is true if it is not zero.

    Returns:
        The function; it computes in the precision at hand, under `run` with all its digits.

    Raises:
        KeyError: no schedule has this name.
    """

    def exact(value: Any) -> Any:
        return [*map(exact, value)] if isinstance(value, list | tuple) else mpf(float(value))

    formula = SCHEDULES[name]
    values = {key: exact(value) for key, value in config.items()}
    return lambda count: formula(mpf(count), **values)
