"""Learning-rate schedules: numbers of the step count, under their Keras names.

Source: tf.keras.optimizers.schedules, TF 2.9. The step passed is the count before the increment,
so the first step has 0. `real` makes a number of the dtype in which a schedule is computed, `num`
is the number system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from refopt.typing import Number, Numbers


def exponential_decay(  # RMS-9.1: i rᵖ, p = s/d
    s: Number,
    real: Callable[[Number], Number],
    num: Numbers,
    *,
    initial_learning_rate: Number,
    decay_steps: Number,
    decay_rate: Number,
    staircase: bool = False,
) -> Number:
    p = s / real(decay_steps)
    return real(initial_learning_rate) * real(decay_rate) ** (num.floor(p) if staircase else p)


def piecewise_constant_decay(  # RMS-9.2: the value after the last boundary below s
    s: Number,
    real: Callable[[Number], Number],
    num: Numbers,
    *,
    boundaries: Sequence[Number],
    values: Sequence[Number],
) -> Number:
    return real(values[sum(1 for boundary in boundaries if not s <= real(boundary))])


def polynomial_decay(  # RMS-9.3: (i - e) (1 - s/d)ᵖ + e
    s: Number,
    real: Callable[[Number], Number],
    num: Numbers,
    *,
    initial_learning_rate: Number,
    decay_steps: Number,
    end_learning_rate: Number = 1e-4,
    power: Number = 1.0,
    cycle: bool = False,
) -> Number:
    i, d, e = real(initial_learning_rate), real(decay_steps), real(end_learning_rate)
    if cycle:
        d = d * (real(1.0) if s <= 0 else num.ceil(s / d))
    elif not s <= d:
        s = d
    return (i - e) * (1 - s / d) ** real(power) + e


def inverse_time_decay(  # RMS-9.4: i / (1 + r p), p = s/d
    s: Number,
    real: Callable[[Number], Number],
    num: Numbers,
    *,
    initial_learning_rate: Number,
    decay_steps: Number,
    decay_rate: Number,
    staircase: bool = False,
) -> Number:
    p = s / real(decay_steps)
    return real(initial_learning_rate) / (1 + real(decay_rate) * (num.floor(p) if staircase else p))


def cosine_decay(  # RMS-9.5: i ((1 - α) (1 + cos π s/d) / 2 + α)
    s: Number,
    real: Callable[[Number], Number],
    num: Numbers,
    *,
    initial_learning_rate: Number,
    decay_steps: Number,
    alpha: Number = 0.0,
) -> Number:
    d, a = real(decay_steps), real(alpha)
    done = (s if s <= d else d) / d
    return real(initial_learning_rate) * ((1 - a) * (0.5 * (1 + num.cos(num.pi * done))) + a)


def cosine_decay_restarts(  # RMS-9.6: over periods d, d t, d t², … from i, i m, …
    s: Number,
    real: Callable[[Number], Number],
    num: Numbers,
    *,
    initial_learning_rate: Number,
    first_decay_steps: Number,
    t_mul: Number = 2.0,
    m_mul: Number = 1.0,
    alpha: Number = 0.0,
) -> Number:
    t, a = real(t_mul), real(alpha)
    done = s / real(first_decay_steps)
    if t_mul == 1:
        restarts = num.floor(done)
        done = done - restarts
    else:
        restarts = num.floor(num.log(1 - done * (1 - t)) / num.log(t))
        before = (1 - t**restarts) / (1 - t)
        done = (done - before) / t**restarts
    height = real(m_mul) ** restarts
    wave = 0.5 * height * (1 + num.cos(num.pi * done))
    return real(initial_learning_rate) * ((1 - a) * wave + a)


SCHEDULES: dict[str, Any] = {
    "ExponentialDecay": exponential_decay,
    "PiecewiseConstantDecay": piecewise_constant_decay,
    "PolynomialDecay": polynomial_decay,
    "InverseTimeDecay": inverse_time_decay,
    "CosineDecay": cosine_decay,
    "CosineDecayRestarts": cosine_decay_restarts,
}
"""The schedules by their Keras names; the seventh of that page is their base class."""
