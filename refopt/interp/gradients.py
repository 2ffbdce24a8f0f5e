"""Gradients of a function of arrays by what its library offers: torch, JAX, or a complex step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

import numpy as np
from array_api_compat import (
    array_namespace,
    is_array_api_obj,
    is_jax_array,
    is_numpy_array,
    is_torch_array,
    size,
)

from refopt.interp.arrays import dtype_name, namespace_of, place, recording
from refopt.interp.formats import COMPLEX
from refopt.interp.host import placed, to_numpy

Loss = Callable[[Sequence[Any]], Any]

LIMIT = 10_000
"""Elements up to which a complex step is taken: it is one evaluation of the loss for each."""
STEP = 2.0**-300  # of the imaginary part: its square is no part of any result
UNIT = 2.0**-53
STEPS = [2.0**-k for k in range(2, 51, 3)]  # of differences, down to a few units in the last place
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
    ValueError: the loss is not analytic or not finite where a complex step is taken, or the arrays
        are too large for one.
    TypeError: arrays of several libraries, or of one that the method does not know; a complex
        parameter where a complex step needs a real one.
    """
    if not arrays:
        return []
    namespace_of(*arrays)
    own = _own_method(arrays) if method is None else method
    fits = _FITS.get(own)
    if fits is not None and not fits(arrays[0]):
        got = type(arrays[0])
        msg = f"method: arrays of its library are required for {own!r}, got {got.__module__}"
        raise TypeError(msg)
    return _BY[own](loss, arrays)


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
    reals = [xp.astype(x, xp.float64) for x in arrays]
    with np.errstate(all="ignore"):
        _check_domain(loss, reals)
        found = []
        for k, x in enumerate(reals):
            n = size(x) or 0
            slopes = []
            for j in range(n):
                ahead = xp.reshape(xp.astype(xp.arange(n, device=place(x)) == j, x.dtype), x.shape)
                ways = [ahead if i == k else None for i in range(len(reals))]
                slopes.append(_slope(loss, reals, ways))
            found.append(_array(xp, slopes, arrays[k]))
        for i, g in enumerate(found):
            if not bool(xp.all(xp.isfinite(g))):
                msg = f"loss: finite slopes are required of a complex step, got others at array {i}"
                raise ValueError(msg)
        _check(loss, reals)
        return [placed(g, x, x.dtype) for g, x in zip(found, arrays, strict=True)]


def _slope(loss: Loss, reals: Sequence[Any], ways: Sequence[Any], step: float = STEP) -> Any:
    """Im f(x + ih way) / h, an array of shape () or a number; a way of None is zero."""
    total = _complex(loss, reals, ways, step)
    if not is_array_api_obj(total):
        return _number(total).imag / step
    xp = array_namespace(total)
    return xp.imag(total) / step if xp.isdtype(total.dtype, "complex floating") else 0.0


def _complex(loss: Loss, reals: Sequence[Any], ways: Sequence[Any], step: float) -> Any:
    """f(x + ih way)."""
    xp = array_namespace(*reals)
    moved = []
    for x, way in zip(reals, ways, strict=True):
        z = xp.astype(x, xp.complex128)
        z = z if way is None else z + way * (step * 1j)
        moved.append(z.view(Analytic) if type(z) is np.ndarray else z)
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        try:
            total = _total(loss(moved))
        except np.exceptions.ComplexWarning:
            _refuse("one that discards imaginary parts")
    return _plain(total)


def _array(xp: Any, slopes: list[Any], like: Any) -> Any:
    """The slopes as one array of float64 shaped like `like`."""
    zero = xp.zeros((), dtype=xp.float64, device=place(like))
    if not slopes:
        return xp.zeros(like.shape, dtype=xp.float64, device=place(like))
    return xp.reshape(xp.stack([zero + x for x in slopes]), like.shape)


def _check_domain(loss: Loss, reals: Sequence[Any]) -> None:
    """Raise where the loss is not finite, or real numbers as complex ones leave the real line."""
    value = _real(loss, reals)
    if not math.isfinite(value):
        msg = f"loss: a finite value is required for a complex step, got {value}"
        raise ValueError(msg)
    beside = _number(_complex(loss, reals, [None for _ in reals], 0.0))
    if beside.imag != 0.0:  # what stands there would be divided by the step
        _refuse(f"one that is {beside:.6g} where the variables are real")


def _real(loss: Loss, reals: Sequence[Any]) -> float:
    return _number(_total(loss(reals))).real


def _number(x: Any) -> complex:
    return complex(to_numpy(x) if is_array_api_obj(x) else x)


def _check(loss: Loss, reals: Sequence[Any]) -> None:
    """Raise where along one random direction the slopes miss a part of what the loss changes by.

    f(x + hw) - f(x - hw) is the integral of the slopes by complex steps between the two. From the
    largest h for which the rules of Simpson and Boole give it alike, to rounding, down to ∛u of it,
    where rounding takes over, the two are compared. What the slopes miss (|x| and the like) is in
    proportion to h; rounding, and a jump of the loss near by, are not.
    """
    xp = array_namespace(*reals)
    random = np.random.default_rng(0)
    n = sum(size(x) or 0 for x in reals)
    ways = []
    for x in reals:
        values = random.uniform(0.5, 1.0, x.shape) * random.choice([-1.0, 1.0], x.shape)
        ways.append(xp.asarray(values, device=place(x)) * (1.0 + xp.abs(x)))

    def at(t: float) -> list[Any]:
        return [x + t * way for x, way in zip(reals, ways, strict=True)]

    middle = float(_slope(loss, reals, ways))
    misses: list[float] = []
    least = 0.0
    finite = False
    for h in STEPS:
        if h < least:
            break
        low, left, right, high = (float(_slope(loss, at(t * h), ways)) for t in (-1, -0.5, 0.5, 1))
        up, down = _real(loss, at(h)), _real(loss, at(-h))
        simpson = h / 3 * low + 4 * h / 3 * middle + h / 3 * high
        boole = 7 * h / 45 * (low + high) + 32 * h / 45 * (left + right) + 12 * h / 45 * middle
        if not math.isfinite(up - down - boole - simpson):
            continue
        finite = True
        rounding = n * UNIT * (abs(up) + abs(down) + h * (abs(low) + abs(high)))
        if not misses and abs(boole - simpson) > rounding:
            continue
        least = least or h * UNIT ** (1 / 3)
        misses.append((up - down - boole) / h)
        if abs(misses[-1]) * h <= 2 * rounding:
            return
        last = misses[-3:]
        if len(last) == 3 and max(last) - min(last) <= min(map(abs, last)):
            slope = misses[-1] / 2 + middle
            _refuse(
                f"one of slope {slope:.6g} along a line by differences, {middle:.6g} by the step"
            )
    if not finite:
        _refuse("one that is not finite on both sides of the variables")


def _refuse(what: str) -> NoReturn:
    msg = (
        f"loss: an analytic function is required for a complex step, got {what}; |x|, max and the "
        "like need the method autograd, a tape, or the gradients themselves"
    )
    raise ValueError(msg)


class Analytic(np.ndarray[Any, Any]):
    """A complex array on which whatever would drop imaginary parts is refused.

    Comparisons are those of the real parts, as where the variables are real.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        given = [_plain(x) for x in inputs]
        if ufunc in _COMPARISONS:
            given = [np.real(x) if isinstance(x, np.ndarray) else x for x in given]
        if "out" in kwargs:
            kwargs["out"] = tuple(map(_plain, kwargs["out"]))
        return _analytic(ufunc.__name__, getattr(ufunc, method)(*given, **kwargs))

    def __array_function__(self, function: Any, types: Any, operands: Any, options: Any) -> Any:
        result = super().__array_function__(function, types, operands, options)
        return result if function in _SHAPED else _analytic(function.__name__, result)

    def __getitem__(self, key: Any) -> Any:
        return _analytic("[]", super().__getitem__(key))

    def view(self, *args: Any, **options: Any) -> Any:
        return _analytic("view", super().view(*args, **options))

    @property  # type: ignore[misc]  # NumPy's can be set
    def real(self) -> Any:
        _refuse("one that takes real parts")

    @property  # type: ignore[misc]
    def imag(self) -> Any:
        _refuse("one that takes imaginary parts")

    def __float__(self) -> float:
        _refuse("one that is made a float")

    def conj(self) -> Any:
        return np.conjugate(self)

    conjugate = conj


def _plain(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, Analytic) else x


def _analytic(name: str, result: Any) -> Any:
    """The result of a function of an analytic array; ValueError where it is none itself."""
    if isinstance(result, tuple | list):
        make = getattr(result, "_make", type(result))
        return make(_analytic(name, x) for x in result)
    kind = result.dtype.kind if isinstance(result, np.ndarray | np.generic) else ""
    if kind == "f" or name in _CONJUGATES:
        _refuse(f"one with {name} of a variable")
    return np.asarray(result).view(Analytic) if kind == "c" else result


_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
_SHAPED = (np.empty_like, np.zeros_like, np.ones_like, np.full_like)
_CONJUGATES = {
    *("conjugate", "sign", "vdot", "vecdot", "vecmat", "correlate", "cov", "corrcoef"),
    *("cholesky", "qr", "svd", "eigh", "pinv", "lstsq"),
}

_BY: dict[str, Callable[[Loss, Sequence[Any]], list[Any]]] = {
    "torch": _by_torch,
    "jax": _by_jax,
    "complex-step": _by_complex_step,
    "autograd": _by_autograd,
}
_FITS = {"torch": is_torch_array, "jax": is_jax_array, "autograd": is_numpy_array}
