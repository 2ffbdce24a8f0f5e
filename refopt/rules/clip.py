"""Clipping of gradients: by value, by norm, by global norm, each in the forms that are in use.

Source: tf.keras.dtensor.experimental.optimizers.RMSprop, TF 2.9 (the arguments), TF 2.9.3 (order
and formulas: tf.clip_by_norm, tf.clip_by_global_norm, tf.clip_by_value).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from refopt.typing import Array, Namespace, Number


def norm(grads: Sequence[Array], xp: Namespace) -> Array:
    """The Euclidean norm of arrays together."""
    return xp.sqrt(reduce(lambda a, b: a + b, [xp.sum(g * g) for g in grads]))


# -- value (RMS-7.3): every element within the limit ----------------------------------------------
def by_value(g: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.3a
    return xp.maximum(xp.minimum(g, limit), -limit)


def from_above(g: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.3b
    return xp.minimum(g, limit)


# -- norm (RMS-7.1): the norm of one gradient at most the limit -----------------------------------
def by_norm(g: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.1a
    return (g * limit) / xp.maximum(norm([g], xp), limit)


def by_factor(g: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.1b
    return g * xp.minimum(limit / norm([g], xp), 1.0)


def by_norm_and_epsilon(g: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.1c
    return g * xp.minimum(limit / (norm([g], xp) + 1e-6), 1.0)


def to_norm(g: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.1d: shorter ones as well
    return g * (limit / norm([g], xp))


def by_float32_norm(g: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.1e: Keras 3 on torch
    return (g * limit) / xp.maximum(xp.float32(norm([g], xp)), limit)


# -- global_norm (RMS-7.2): the factor of all gradients, from the norm of them together -----------
def reciprocals(n: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.2a: NaN unless finite
    return limit * xp.minimum(1.0 / n, 1 / limit) + (n - n)


def quotient(n: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.2b
    return limit / xp.maximum(n, limit)


def quotient_and_epsilon(n: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.2c
    return xp.minimum(limit / (n + 1e-6), 1.0)


def unlimited_quotient(n: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.2d
    return limit / n


def float32_reciprocals(n: Array, limit: Number, xp: Namespace) -> Array:  # RMS-7.2e: on torch
    ceiling = xp.float32(limit + (n - n))
    return xp.float32(ceiling * xp.float32(xp.minimum(1.0 / n, 1 / limit)))


def by_global_norm(
    grads: Sequence[Array],
    limit: Number,
    xp: Namespace,
    factor: Callable[[Array, Number, Namespace], Array] = reciprocals,
) -> list[Array]:
    """The Euclidean norm of all gradients together at most `limit` (RMS-7.2)."""
    scale = factor(norm(grads, xp), limit, xp)
    return [g * scale for g in grads]


def off(x: Any) -> bool:
    """Whether a limit is none: None, 0 or negative."""
    return x is None or not x > 0
