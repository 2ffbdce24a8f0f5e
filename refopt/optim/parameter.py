"""A parameter: an array of any library, and its gradient beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from array_api_compat import device, is_torch_array, is_writeable_array, size

from refopt.interp.arrays import dtype_name, laid_out_like, namespace_of, write
from refopt.interp.formats import FORMATS
from refopt.interp.host import (
    converts,
    copied,
    dtype_named,
    is_array,
    is_floating,
    near,
    numpy_dtype,
    overlapping,
    placed,
    same_library,
    to_numpy,
)
from refopt.interp.recorded import Operators


class Parameter(Operators):
    """An array that an optimizer updates, with its gradient; `Variable` under its Keras name.

    Operators, and functions of NumPy and torch, act on the array: `(parameter ** 2) / 2`; those
    of other libraries take `parameter.data`.

    An array that can be written is updated in place; one that cannot (JAX, a read-only NumPy array)
    is replaced: read `parameter.data` after a step.

    Parameters
    ----------
    data : array, number or nested list
        Of NumPy, CuPy, torch, JAX, dask or array-api-strict; real or complex floating-point; any
        shape, 0-d and empty ones too. Numbers and lists become an array of NumPy.
    name : str, optional
        For error messages, and for the names of what an optimizer keeps (default: None).
    dtype : str, optional
        Of an array made of numbers, or a dtype of an array library (default: float32, and that of
        a scalar of NumPy); arrays keep theirs.

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
        `data` is no array, or not floating-point; `dtype` is none, or not that of an array.
    ValueError
        Lists of several lengths.

    """

    _room: Any = None  # where its gradient lies beside others, see `inplace.flatten`

    def __init__(self, data: Any, *, name: str | None = None, dtype: Any = None) -> None:
        if isinstance(data, Parameter):
            data = copied(data.data)
        wanted = None if dtype is None else dtype_named(dtype)
        if is_numbers(data):
            own = dtype_name(data) if isinstance(data, np.generic) else "float32"
            data = converted("data", data, np.empty((), numpy_dtype(wanted or own)))
        if not is_array(data):
            msg = f"data: an array or numbers are required, got {kind(data)}"
            raise TypeError(msg)
        if not is_floating(data):
            msg = (
                f"data: a real or complex floating-point array is required, got {dtype_name(data)}"
            )
            raise TypeError(msg)
        if wanted not in (None, dtype_name(data)):
            msg = f"data: dtype {wanted} is required, got {dtype_name(data)}"
            raise TypeError(msg)
        self.data = data
        self.grad = None
        self.name = name

    @property
    def data(self) -> Any:
        """The array."""
        self.was_read = True  # what a loss does not read has no gradient
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        self._data = _array(value)

    @property
    def grad(self) -> Any:
        """The gradient, or None."""
        return self._grad

    @grad.setter
    def grad(self, value: Any) -> None:
        value, room = _array(value), self._room
        fits = type(value) is np.ndarray and type(room) is np.ndarray and value is not room
        if fits and value.shape == room.shape and value.dtype == room.dtype:
            np.copyto(room, value)
            value = room
        self._grad = value

    @property
    def operand(self) -> Any:
        """The array, as operators take it."""
        return self.data

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self._data.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the array, as its library has it."""
        return self._data.dtype

    def numpy(self) -> Any:
        """A copy as an array of NumPy; a scalar of NumPy where the shape is ()."""
        return to_numpy(self._data).copy()[()]

    def assign(self, value: Any) -> Parameter:
        """Set the value: numbers, a parameter, or an array of any library, converted.

        Raises
        ------
        ValueError
            Another shape, or what a variable of integers does not hold.
        TypeError
            No numbers, or complex ones for a real variable.

        """
        value = converted("value", value, self._data)
        if tuple(value.shape) != self.shape:
            msg = f"value: shape {self.shape} is required, got {tuple(value.shape)}"
            raise ValueError(msg)
        self._data = write(self._data, value)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # a copy has its gradient to itself
        return {key: value for key, value in vars(self).items() if key != "_room"}

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        return f"{type(self).__name__}({self._data!r}{name})"


class Slot(Parameter):
    """What an optimizer keeps: of any dtype."""

    def __init__(self, data: Any, name: str | None) -> None:
        self.data = data
        self.grad = None
        self.name = name


class Counter(Slot):
    """A number that an optimizer keeps; beside an array of any library it is a Python number."""

    @property
    def operand(self) -> Any:
        """The Python number."""
        return self.numpy().item()


def _array(x: Any) -> Any:
    """`x`, but as an array where NumPy has made a scalar of one of shape ()."""
    return np.asarray(x) if isinstance(x, np.generic) else x


def is_numbers(x: Any) -> bool:
    """Whether `x` is a number of Python or NumPy, or a list of them."""
    return isinstance(x, int | float | complex | list | tuple | np.number)


def converted(where: str, value: Any, like: Any, dtype: Any = None) -> Any:
    """A copy of numbers, a parameter or an array, beside the array `like`.

    Its dtype is `dtype` (default: that of `like`). Raises, with `where` in front, unless numbers
    convert to it; integers convert exactly.
    """
    value = value.operand if isinstance(value, Operators) else value
    value = value if is_array(value) else _numbers(where, value)
    dtype = like.dtype if dtype is None else dtype
    name = dtype_named(dtype)
    if not converts(value, name):
        msg = f"{where}: numbers of {name} are required, got {dtype_name(value)}"
        raise TypeError(msg)
    if dtype_name(value) != name and numpy_dtype(name).kind in "biu":
        host = to_numpy(value)
        with np.errstate(invalid="ignore"):
            exact = (host.astype(name) == host).all()
        if not exact:
            msg = f"{where}: what {name} holds is required, got {host}"
            raise ValueError(msg)
    return placed(value, like, dtype)


def _numbers(where: str, value: Any) -> Any:
    try:
        found = np.asarray(value)
        if found.dtype == object and all(hasattr(x, "__float__") for x in found.flat):
            found = found.astype(float)
    except (ValueError, OverflowError) as error:
        msg = f"{where}: finite numbers, in lists of one length, are required, got {value!r}"
        raise ValueError(msg) from error
    return found


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


def assign(param: Any, value: Any, new_object: bool, undo: ExitStack) -> None:
    """Give `param` a value: in place, or as a new array where it is a `Parameter`.

    The layout stays. Closing `undo` gives `param` its old value.
    """
    if isinstance(param, Parameter):
        old = param.data
        undo.callback(setattr, param, "data", old)
        param.data = laid_out_like(value if new_object else written(old, value, undo), old)
    elif new_object:
        # recorded, unlike `write`; so is the way back
        undo.callback(param.__setitem__, ..., param.clone())
        param[...] = value
    else:
        written(param, value, undo)


def keep(param: Any, undo: ExitStack) -> None:
    """Let closing `undo` give `param` the value that it has now."""
    array = array_of(param)
    if isinstance(param, Parameter):
        undo.callback(setattr, param, "data", array)
    if is_writeable_array(array):
        undo.callback(write, array, copied(array))


def written(target: Any, value: Any, undo: ExitStack) -> Any:
    """`write`; closing `undo` writes what was there."""
    if is_writeable_array(target):
        undo.callback(write, target, copied(target))
    return write(target, value)


def check_apart(places: Mapping[Any, str]) -> None:
    """Raise ValueError where parameters, each with its place, share memory.

    A step computes all that it writes before it writes: of two such updates one would be lost.
    """
    found = overlapping([array_of(param) for param in places])
    if found is not None:
        one, other = ([*places.values()][i] for i in found)
        msg = f"{other}: memory of its own is required, got memory shared with {one}"
        raise ValueError(msg)


def check_gradient(where: str, array: Any, grad: Any, shape: tuple[int, ...] | None = None) -> None:
    """Raise, with `where` in front, unless the gradient fits the array of its parameter.

    `shape` is that of the gradient where it is another: rows only.
    """
    if not is_floating(array):
        msg = f"{where}: a floating-point parameter is required, got {dtype_name(array)}"
        raise TypeError(msg)
    _check_memory(f"{where}: parameter", array)
    if is_torch_array(array) and array.is_inference():
        msg = f"{where}: a parameter that can be written is required, got an inference tensor"
        raise RuntimeError(msg)
    layout = str(getattr(grad, "layout", "torch.strided"))
    if layout != "torch.strided":
        msg = f"{where}: a dense gradient is required, got layout {layout}"
        raise RuntimeError(msg)
    _check_like(f"{where}: gradient", array, grad, shape)


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
        name = dtype_name(state[key])
        if name not in FORMATS and not (key == "step" and "int" in name):
            msg = f"{where}: state {key!r}: a floating-point number is required, got {name}"
            raise TypeError(msg)
    for key in like:
        _check_like(f"{where}: state {key!r}", array, state[key])
        _check_memory(f"{where}: state {key!r}", state[key])


def _check_memory(what: str, array: Any) -> None:
    strides = array.stride() if is_torch_array(array) else getattr(array, "strides", ())
    repeats = any(n > 1 and stride == 0 for n, stride in zip(array.shape, strides, strict=False))
    if repeats and 0 not in array.shape and is_writeable_array(array):
        msg = f"{what}: memory for each element is required, got an expanded array"
        raise RuntimeError(msg)


def _check_like(what: str, array: Any, x: Any, shape: tuple[int, ...] | None = None) -> None:
    if not is_array(x) or not same_library(x, array):
        msg = f"{what}: {kind(array)} is required, got {kind(x)}"
        raise TypeError(msg)
    shape = tuple(array.shape) if shape is None else shape
    if tuple(x.shape) != shape:
        msg = f"{what}: shape {shape} is required, got {tuple(x.shape)}"
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
