"""A parameter: an array of any library, and its gradient beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from array_api_compat import device, is_torch_array, size

from refopt.interp.arrays import dtype_name, namespace_of, write
from refopt.interp.host import is_array, is_floating, near, same_library


class Parameter:
    """An array that an optimizer updates, with its gradient.

    An array that can be written is updated in place; one that cannot (JAX, a read-only NumPy array)
    is replaced: read `parameter.data` after a step.

    Parameters
    ----------
    data : array
        Of NumPy, CuPy, torch, JAX, dask or array-api-strict; real or complex floating-point; any
        shape, 0-d and empty ones too.
    name : str, optional
        For error messages (default: None).

    Attributes
    ----------
    data : array
        The value.
    grad : array or None
        The gradient: library, shape, dtype and device of `data`. None skips the parameter.
    name : str or None
        As given.

    Raises
    ------
    TypeError
        `data` is no array, or not floating-point.

    """

    def __init__(self, data: Any, *, name: str | None = None) -> None:
        if not is_array(data):
            hint = "; numpy.asarray makes an array of a scalar" if hasattr(data, "dtype") else ""
            msg = f"data: an array is required, got {kind(data)}{hint}"
            raise TypeError(msg)
        if not is_floating(data):
            dtype = dtype_name(data)
            msg = f"data: a real or complex floating-point array is required, got {dtype}"
            raise TypeError(msg)
        self.data = data
        self.grad: Any = None
        self.name = name

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        return f"Parameter({self.data!r}{name})"


def is_parameter(x: Any) -> bool:
    """Whether `x` has data and gradient: a `Parameter`, or a torch tensor."""
    return isinstance(x, Parameter) or is_torch_array(x)


def array_of(param: Any) -> Any:
    """The array of a parameter; a torch tensor is its own."""
    return param.data if isinstance(param, Parameter) else param


def zero_grad(param: Any, set_to_none: bool) -> None:
    """Set the gradient of `param` to None, or to zeros, in place where it can be written."""
    grad = param.grad
    if set_to_none:
        param.grad = None
        return
    if is_torch_array(grad):
        if grad.grad_fn is not None:
            grad.detach_()
        else:
            grad.requires_grad_(False)
    param.grad = write(grad, namespace_of(grad).zeros_like(grad))


def assign(param: Any, value: Any, new_object: bool) -> None:
    """Give `param` a value: in place, or as a new array where it is a `Parameter`."""
    if isinstance(param, Parameter):
        param.data = value if new_object else write(param.data, value)
    elif new_object:
        param[...] = value  # recorded, unlike `write`
    else:
        write(param, value)


def check_gradient(where: str, array: Any, grad: Any) -> None:
    """Raise, with `where` in front, unless the gradient fits the array of its parameter."""
    if not is_floating(array):
        msg = f"{where}: a floating-point parameter is required, got {dtype_name(array)}"
        raise TypeError(msg)
    strides = array.stride() if is_torch_array(array) and 0 not in array.shape else ()
    if any(n > 1 and stride == 0 for n, stride in zip(array.shape, strides, strict=False)):
        msg = f"{where}: a parameter with memory for each element is required, got an expanded one"
        raise RuntimeError(msg)
    layout = str(getattr(grad, "layout", "torch.strided"))
    if layout != "torch.strided":
        msg = f"{where}: a dense gradient is required, got layout {layout}"
        raise RuntimeError(msg)
    if not is_array(grad) or not same_library(grad, array):
        msg = f"{where}: gradient: {kind(array)} is required, got {kind(grad)}"
        raise TypeError(msg)
    _check_like(f"{where}: gradient", array, grad)


def check_state(
    where: str, array: Any, state: Any, counters: Iterable[str], like: Iterable[str]
) -> None:
    """Raise unless `state` is empty or has `counters` of shape () and arrays `like` the array."""
    if not state:
        return
    for key in [*counters, *like]:
        if key not in state:
            msg = f"{where}: state {key!r} is required, got {sorted(map(str, state))}"
            raise KeyError(msg)
        if not is_array(state[key]):
            msg = f"{where}: state {key!r}: an array is required, got {kind(state[key])}"
            raise TypeError(msg)
    for key in counters:
        if size(state[key]) != 1:
            shape = tuple(state[key].shape)
            msg = f"{where}: state {key!r}: one number is required, got shape {shape}"
            raise ValueError(msg)
    for key in like:
        if not same_library(state[key], array):
            msg = f"{where}: state {key!r}: {kind(array)} is required, got {kind(state[key])}"
            raise TypeError(msg)
        _check_like(f"{where}: state {key!r}", array, state[key])


def _check_like(what: str, array: Any, x: Any) -> None:
    if tuple(x.shape) != tuple(array.shape):
        msg = f"{what}: shape {tuple(array.shape)} is required, got {tuple(x.shape)}"
        raise ValueError(msg)
    if x.dtype != array.dtype:
        msg = f"{what}: dtype {dtype_name(array)} is required, got {dtype_name(x)}"
        raise TypeError(msg)
    if not near(x, array):
        msg = f"{what}: device {device(array)} is required, got {device(x)}"
        raise ValueError(msg)


def kind(x: Any) -> str:
    """The type of `x`, for an error message."""
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")
