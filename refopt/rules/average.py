"""Exponential moving average of parameters (EMA).

Source: tf.keras.dtensor.experimental.optimizers.RMSprop, TF 2.9 (use_ema, ema_momentum,
ema_overwrite_frequency); TF 2.9.3 and Keras 3 for where they start, pair and overwrite.
"""

from __future__ import annotations

from refopt.typing import Array, Number


def averaged(old: Array, param: Array, momentum: Number) -> Array:
    """The next average of a parameter (RMS-8.1)."""
    return momentum * old + (1 - momentum) * param


def overwrites(t: int, frequency: int | None) -> bool | None:
    """Whether parameters are set to their averages at the count `t`; None where they never are."""
    return t % int(frequency) == 0 if frequency else None


# -- overwrite (RMS-8.2): (average, parameter) after a step; `due`: whether it is time ------------
Both = tuple[Array, Array]


def after_average(old: Array, param: Array, momentum: Number, due: bool | None) -> Both:  # RMS-8.2a
    mean = averaged(old, param, momentum)
    return mean, mean if due else param


def before_average(
    old: Array, param: Array, momentum: Number, due: bool | None
) -> Both:  # RMS-8.2b
    param = old if due else param
    return averaged(old, param, momentum), param


def blended(
    old: Array, param: Array, momentum: Number, due: bool | None
) -> Both:  # RMS-8.2c: on JAX
    mean = averaged(old, param, momentum)
    return mean, param if due is None else mean * float(due) + param * float(not due)


# -- overwrite_count (RMS-8.5): the count that the frequency divides, of a step from 1 ------------
def after_step(t: int) -> int:  # RMS-8.5a
    return t


def before_step(t: int) -> int:  # RMS-8.5b
    return t - 1
