"""Exponential moving average of parameters (EMA).

Source: tf.keras.dtensor.experimental.optimizers.RMSprop, TF 2.9 (use_ema, ema_momentum,
ema_overwrite_frequency); TF 2.9.3 and Keras 3 for where they start, pair and overwrite.
"""

from __future__ import annotations

from refopt.typing import Array, Number


def averaged(old: Array, param: Array, momentum: Number) -> Array:
    """The next average of a parameter (RMS-8.1)."""
    return momentum * old + (1 - momentum) * param


def overwrites(t: int, frequency: int | None) -> bool:
    """Whether step `t` ends with the parameters set to their averages (RMS-8.2)."""
    return bool(frequency) and t % int(frequency or 1) == 0
