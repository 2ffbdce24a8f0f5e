"""Gradients of a function of arrays by what its library offers: torch, JAX, or a complex step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj, is_jax_array, is_torch_array, size

from refopt.interp.arrays import dtype_name, place, recording
from refopt.interp.formats import COMPLEX
from refopt.interp.host import placed

Loss = Callable[[Sequence[Any]], Any]

LIMIT = 10_000
"""Elements up to which a complex step is taken: it is one evaluation of the loss for each."""
STEP = 2.0**-300  # of the imaginary part: its square is no part of any result
UNIT = 2.0**-53
METHODS = ("torch", "jax", "complex-step", "autograd")


def gradients(loss: Loss, arrays: Sequence[Any], method: str | None = None) -> list[Any]:
    """The gradient of the sum of `loss(arrays)` with respect to each array.

    Arguments
    ---------
    loss: a function of a list of arrays like `arrays`.
    arrays: of one library, floating-point.
    method: one of `METHODS`. Default: torch's or JAX's own for their arrays; for others a complex
        step up to `LIMIT` elements, beyond them the package autograd where it is installed.

    Returns
    -------
    One array for each; None where torch finds no way from the array to the loss.

    Raises
    ------
    ValueError: the loss is not analytic where a complex step needs it, or too large for it.
    TypeError: a complex parameter where a complex step needs a real one.
    """
    if not arrays:
        return []
    if method is None:
        method = _own_method(arrays)
    return _BY[method](loss, arrays)


def _own_method(arrays: Sequence[Any]) -> str:
    if is_torch_array(arrays[0]):
        return "torch"
    if is_jax_array(arrays[0]):
        return "jax"
    n = sum(size(x) or 0 for x in arrays)
    if n <= LIMIT:
        return "complex-step"
    if find_spec("autograd") is not None:
        return "autograd"
    msg = (
        f"var_list: at most {LIMIT} elements are required for a complex step, got {n}; "
        "install autograd, or pass a tape or the gradients themselves"
    )
    raise ValueError(msg)


def _total(x: Any) -> Any:
    return array_namespace(x).sum(x) if is_array_api_obj(x) else x


def _by_torch(loss: Loss, arrays: Sequence[Any]) -> list[Any]:
    import torch

    off = [x for x in arrays if not x.requires_grad]
    try:
        with recording(True, *arrays):
            for x in off:
                x.requires_grad_(True)
            total = _total(loss(arrays))
            if not (is_torch_array(total) and total.requires_grad):
                return [None for _ in arrays]
            return list(torch.autograd.grad(total, list(arrays), allow_unused=True))
    finally:
        for x in off:
            x.requires_grad_(False)


def _by_jax(loss: Loss, arrays: Sequence[Any]) -> list[Any]:
    import jax

    found = jax.grad(lambda xs: jax.numpy.asarray(_total(loss(xs)), dtype=None))(list(arrays))
    # JAX gives the conjugate of the direction of steepest ascent
    return [jax.numpy.conj(g) if dtype_name(g) in COMPLEX else g for g in found]


def _by_autograd(loss: Loss, arrays: Sequence[Any]) -> list[Any]:
    import autograd

    total = autograd.grad(lambda xs: autograd.numpy.sum(loss(list(xs))))
    return [np.asarray(g, dtype=x.dtype) for g, x in zip(total(tuple(arrays)), arrays, strict=True)]


def _by_complex_step(loss: Loss, arrays: Sequence[Any]) -> list[Any]:
    """f'(x) = Im f(x + ih) / h: no difference is taken, so nothing cancels."""
    for x in arrays:
        if dtype_name(x) in COMPLEX:
            msg = f"var_list: a real variable is required for a complex step, got {x.dtype}"
            raise TypeError(msg)
    xp = array_namespace(*arrays)
    wide = [xp.astype(x, xp.complex128) for x in arrays]
    found = []
    with np.errstate(all="ignore"):
        for k, x in enumerate(wide):
            n = size(x) or 0
            slopes = []
            for j in range(n):
                ahead = xp.reshape(xp.astype(xp.arange(n, device=place(x)) == j, x.dtype), x.shape)
                moved = [*wide[:k], x + ahead * (STEP * 1j), *wide[k + 1 :]]
                slopes.append(_imaginary(_total(loss(moved))))
            found.append(_array(xp, slopes, arrays[k]))
        _check(loss, arrays, found)
        return [placed(g, x, x.dtype) for g, x in zip(found, arrays, strict=True)]


def _imaginary(x: Any) -> Any:
    """Im x / h, an array of shape () or a number."""
    if is_array_api_obj(x):
        xp = array_namespace(x)
        return xp.imag(x) / STEP if xp.isdtype(x.dtype, "complex floating") else 0.0
    return complex(x).imag / STEP


def _array(xp: Any, slopes: list[Any], like: Any) -> Any:
    """The slopes as one array of float64 shaped like `like`."""
    zero = xp.zeros((), dtype=xp.float64, device=place(like))
    if not slopes:
        return xp.zeros(like.shape, dtype=xp.float64, device=place(like))
    return xp.reshape(xp.stack([zero + x for x in slopes]), like.shape)


def _check(loss: Loss, arrays: Sequence[Any], found: Sequence[Any]) -> None:
    """Raise unless a difference along one random direction agrees with the gradient.

    A central difference of step h = ∛u, u the unit roundoff of float64, is good to about h² of the
    slopes, of which half the digits must agree, and to n u/h of the loss, a sum of n terms. A loss
    that is not analytic (|x|, max, rounding) is wrong in the first digit.
    """
    xp = array_namespace(*arrays)
    random = np.random.default_rng(0)
    h = UNIT ** (1 / 3)
    ahead, behind, slope, size_of = [], [], 0.0, 0.0
    for x, g in zip(arrays, found, strict=True):
        x = xp.astype(x, xp.float64)
        values = random.uniform(0.5, 1.0, x.shape) * random.choice([-1.0, 1.0], x.shape)
        way = xp.asarray(values, device=place(x)) * (1.0 + xp.abs(x))
        ahead.append(x + h * way)
        behind.append(x - h * way)
        slope = slope + float(xp.sum(g * way))
        size_of = size_of + float(xp.sum(xp.abs(g * way)))
    up, down = (complex(_total(loss(xs))).real for xs in (ahead, behind))
    difference = (up - down) / (2 * h)
    n = sum(size(x) or 0 for x in arrays)
    bound = h * (size_of + abs(difference)) + n * UNIT / h * (abs(up) + abs(down))
    if abs(difference - slope) > bound:
        msg = (
            "loss: an analytic function is required for a complex step, got one whose slope along "
            f"a random direction is {difference:.6g} by a difference and {slope:.6g} by the step; "
            "|x|, max and the like need the method autograd, a tape, or the gradients themselves"
        )
        raise ValueError(msg)


_BY: dict[str, Callable[[Loss, Sequence[Any]], list[Any]]] = {
    "torch": _by_torch,
    "jax": _by_jax,
    "complex-step": _by_complex_step,
    "autograd": _by_autograd,
}
