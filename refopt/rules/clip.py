"""Clipping of gradients: by value, by norm, by global norm.

Source: tf.keras.dtensor.experimental.optimizers.RMSprop, TF 2.9 (the arguments), TF 2.9.3 (order
and formulas: tf.clip_by_norm, tf.clip_by_global_norm, tf.clip_by_value).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from refopt.typing import Array, Namespace, Number


def by_value(g: Array, limit: Number, xp: Namespace) -> Array:
    """Every element between -limit and limit (RMS-7.3)."""
    return xp.maximum(xp.minimum(g, limit), -limit)


def by_norm(g: Array, limit: Number, xp: Namespace) -> Array:
    """The Euclidean norm of one gradient at most `limit` (RMS-7.1)."""
    norm = xp.sqrt(xp.sum(g * g))
    return (g * limit) / xp.maximum(norm, limit)


def by_global_norm(grads: Sequence[Array], limit: Number, xp: Namespace) -> list[Array]:
    """The Euclidean norm of all gradients together at most `limit` (RMS-7.2).

    A norm that is infinite or NaN makes every element NaN.
    """
    total = reduce(lambda a, b: a + b, [xp.sum(g * g) for g in grads])
    norm = xp.sqrt(total)
    scale = limit * xp.minimum(1.0 / norm, 1 / limit) + (norm - norm)
    return [g * scale for g in grads]


def off(x: Any) -> bool:
    """Whether a limit is none: None, 0 or negative."""
    return x is None or not x > 0
