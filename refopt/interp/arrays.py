"""Runs a rule on arrays: NumPy, CuPy, torch, JAX, dask, or any other of the array API.

The rule sees real arrays of float32 or float64 and standard operations; complex and 16-bit
storage, and what each library does in its own way, end here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import (
    array_namespace,
    device,
    is_array_api_obj,
    is_array_api_strict_namespace,
    is_cupy_array,
    is_dask_array,
    is_jax_array,
    is_numpy_array,
    is_numpy_namespace,
    is_torch_array,
    is_writeable_array,
    to_device,
)

from refopt.interp.formats import COMPLEX
from refopt.interp.layouts import Layouts
from refopt.interp.linalg import silence
from refopt.interp.rounded import HALF, Carried, Rounded, carried, lift, plain, rounding_to
from refopt.typing import Number, Profile

# -- namespace ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArrayNamespace(Layouts):
    """`refopt.typing.Namespace` over the array API namespace of one library."""

    xp: Any

    def sqrt(self, x: Any, /) -> Any:
        """Square root, element-wise."""
        return lift(self.xp.sqrt, x)

    def float32(self, x: Any, /) -> Any:
        """`x` rounded to float32, in the dtype it has."""
        return lift(rounding_to(self.xp.float32), x)

    def sum(self, x: Any, /) -> Any:
        """The sum of all elements, of shape ()."""
        return lift(self.xp.sum, x)

    def maximum(self, x: Any, y: Any, /) -> Any:
        """The larger of each pair; NaN where either is."""
        return lift(lambda a, b: self.xp.maximum(a, self._beside(b, a)), x, y)

    def minimum(self, x: Any, y: Any, /) -> Any:
        """The smaller of each pair; NaN where either is."""
        return lift(lambda a, b: self.xp.minimum(a, self._beside(b, a)), x, y)

    def scatter_add(self, base: Any, indices: tuple[int, ...], values: Any, /) -> Any:
        """`base`, with rows added to those of its first axis at `indices`, which may repeat.

        Rows of one index are added to it one after the other: alike on every library and device.
        """
        if not indices:
            return base
        given, group, counts = np.unique(indices, return_inverse=True, return_counts=True)
        slots = np.argsort(group, kind="stable")  # which values, by row, in their order
        first = np.cumsum(counts) - counts
        most = np.argsort(-counts, kind="stable")  # rows that are given again come first
        sums, done = self._taken(base, given[most]), []
        for k in range(int(counts.max())):
            n = int(np.sum(counts > k))
            again, once = self._split(sums, n)
            done.append(once)
            sums = again + self._taken(values, slots[first[most[:n]] + k])
        size = plain(base).shape[0]
        where = np.arange(size)
        where[given[most]] = size + np.arange(len(given))
        return self._taken(lift(self._joined, base, sums, *reversed(done)), where)

    def take(self, x: Any, indices: tuple[int, ...], size: int, /) -> Any:
        """The rows of `x` at `indices`, which may repeat."""
        return self._taken(x, indices)

    def rows(self, new: Any, old: Any, indices: tuple[int, ...], size: int, /) -> Any:
        """`new` in the rows at `indices`, `old` elsewhere; `size` is the number of rows."""
        chosen = set(indices)

        def joined(a: Any, b: Any) -> Any:
            mask = self.xp.asarray([i in chosen for i in range(size)], device=place(b))
            return self.xp.where(self.xp.reshape(mask, (size, *(1,) * (b.ndim - 1))), a, b)

        return lift(joined, new, old)

    def _taken(self, x: Any, rows: Any) -> Any:
        xp = self.xp
        where = xp.asarray(rows, dtype=xp.int32, device=place(plain(x)))
        return lift(lambda x: xp.take(x, where, axis=0), x)

    def _split(self, x: Any, n: int) -> tuple[Any, Any]:
        return lift(lambda x: x[:n, ...], x), lift(lambda x: x[n:, ...], x)

    def _joined(self, *parts: Any) -> Any:
        return self.xp.concat(parts, axis=0)

    def _beside(self, x: Any, like: Any) -> Any:
        """The number `x` as an array of shape () beside `like`; an array as it is."""
        if is_array_api_obj(x):
            return x
        return self.xp.asarray(x, dtype=like.dtype, device=place(like))

    def zeros_like(self, x: Any, /) -> Any:
        """Zeros of the shape, dtype, device and layout of `x`."""
        return lift(self.xp.zeros_like, x)

    def lerp(self, start: Any, end: Any, weight: Number, /) -> Any:
        """start + weight * (end - start); in 16 bits one operation, rounded once."""
        return lift(lambda a, b, w: a + w * (b - a), start, end, weight)

    def lerp_from_end(self, start: Any, end: Any, weight: Number, /) -> Any:
        """end - (1 - weight) * (end - start), as torch rounds the weight before."""
        if not _is_array(weight):
            wide = dtype_name(start) in ("float64", "complex128")
            weight = carried("float64" if wide else "float32")(weight)
        return self.lerp(end, start, 1 - weight)


def place(x: Any) -> Any:
    """The device of an array, for what is made beside it.

    None where that is the sharding of a JAX array, which no other shape can have.
    """
    return None if is_jax_array(x) or isinstance(x, np.generic) else device(x)


def namespace_of(*arrays: Any) -> ArrayNamespace:
    """The operations of the library that all arrays come from; None among them is passed over.

    Raises TypeError where they come from several, or from none.
    """
    found = {array_namespace(x): type(x).__module__ for x in arrays if x is not None}
    if len(found) != 1:
        libraries = sorted(module.partition(".")[0] for module in found.values())
        message = f"arrays must come from one library; got {', '.join(libraries) or 'no array'}"
        raise TypeError(message)
    return ArrayNamespace(next(iter(found)))


def dtype_name(x: Any) -> str:
    """The name of the dtype: 'float32', 'bfloat16', 'complex64' and so on."""
    return str(x.dtype).rpartition(".")[2]


# -- numbers --------------------------------------------------------------------------------------


class _Functions:
    """What both number systems compute alike, in the dtype that a number carries."""

    __slots__ = ()

    def floor(self, x: Number, /) -> Number:
        """The largest integer not above `x`."""
        return _kept(np.floor, x)

    def ceil(self, x: Number, /) -> Number:
        """The smallest integer not below `x`."""
        return _kept(np.ceil, x)

    def cos(self, x: Number, /) -> Number:
        """The cosine of an angle in radians."""
        return _kept(np.cos, x)

    @property
    def pi(self) -> float:
        """π, rounded to a Python float."""
        return math.pi

    def log(self, x: Number, /) -> Number:
        """The natural logarithm."""
        return _kept(np.log, x)


@dataclass(frozen=True, slots=True)
class Floats(_Functions):
    """Numbers of the host: Python floats, and numbers that carry a dtype."""

    dtype: str = "float64"  # what `native` means

    def __call__(self, x: Number, /) -> Number:
        """`x`, unless it is a NumPy scalar: those are no Python numbers to other libraries."""
        return x.item() if isinstance(x, np.generic) else x

    def float32(self, x: Number, /) -> Number:
        """`x` in float32."""
        return _cast(x, "float32")

    def float64(self, x: Number, /) -> Number:
        """`x` as a Python float; waits for the device where `x` is an array."""
        return float(x)

    def native(self, x: Number, /) -> Number:
        """`x` in the dtype of the parameter."""
        return _cast(x, self.dtype)

    def of(self, param: Any, /) -> Floats:
        """The numbers for a parameter."""
        name = dtype_name(param)
        return Floats(COMPLEX.get(name, name))

    def started(self, x: Number, /) -> Number:
        """`x`, the first value of a clock."""
        return x


class Exact(Floats):
    """Python floats that follow IEEE 754 where Python raises: x / 0, overflow, 0 / 0."""

    def __call__(self, x: Number, /) -> Number:
        """`x` as it is where it carries a dtype, else as a float64."""
        return x if isinstance(x, Carried) else carried("float64")(x)


@dataclass(frozen=True, slots=True)
class Device(_Functions):
    """Numbers that live beside the parameter: float32 arrays of shape (), never read by the host.

    Hyperparameters stay on the host; what is computed from the step count is on the device.
    """

    param: Any = None

    def __call__(self, x: Number, /) -> Number:
        """`x` itself."""
        return x

    def float32(self, x: Number, /) -> Number:
        """`x` in float32."""
        return _cast(x, "float32")

    def float64(self, x: Number, /) -> Number:
        """`x` itself on the device, which keeps no wider numbers; else a Python float."""
        return x if _is_array(x) else float(x)

    def native(self, x: Number, /) -> Number:
        """`x` in the dtype of the parameter; 16 bits are kept in float32 here too."""
        name, like = Floats().of(self.param).dtype, self.param
        if name not in HALF or not _is_array(x):
            return _cast(x, name)
        return replace(like, array=like.rounding(_cast(plain(x), "float32")))

    def of(self, param: Any, /) -> Device:
        """The numbers for a parameter, on its device."""
        return Device(param)

    def started(self, x: Number, /) -> Number:
        """`x`, the first value of a clock, on the device of the parameter."""
        array = plain(self.param)
        xp = array_namespace(array)
        return xp.full((), float(x), dtype=xp.float32, device=place(array))


def _kept(function: Callable[[Any], Any], x: Number) -> Number:
    """A function of one number, in the dtype that it carries."""
    if _is_array(x):
        return lift(lambda a: getattr(array_namespace(a), function.__name__)(a), x)
    with np.errstate(all="ignore"):
        result = float(function(float(x)))
    return type(x)(result) if isinstance(x, Carried) else result


def _is_array(x: Any) -> bool:
    return isinstance(x, Rounded) or is_array_api_obj(x)


def _cast(x: Number, dtype: str) -> Number:
    if not _is_array(x):
        return carried(dtype)(x)
    if isinstance(x, Rounded):
        return Rounded(_cast(x.array, dtype), dtype, x.rounding if x.dtype not in HALF else _own)
    xp = array_namespace(x)
    return xp.astype(x, getattr(xp, dtype))


# -- conversions ----------------------------------------------------------------------------------


def as_real(x: Any) -> Any:
    """A complex array as pairs (real, imaginary) on a new last axis."""
    xp = array_namespace(x)
    return xp.stack([xp.real(x), xp.imag(x)], axis=-1)


def as_complex(x: Any) -> Any:
    """Pairs on the last axis as a complex array.

    By the library's own function, because re + 1j * im has a NaN where `im` is infinite, and no
    negative zero.
    """
    xp = array_namespace(x)
    re, im = x[..., 0], x[..., 1]
    if is_torch_array(x):
        return xp.complex(re, im)
    if is_jax_array(x):
        from jax import lax

        return lax.complex(re, im)
    dtype = {"float32": xp.complex64, "float64": xp.complex128}[dtype_name(x)]
    if is_dask_array(x):
        return re.map_blocks(partial(_paired, np), im, dtype=dtype)
    if is_array_api_strict_namespace(xp):
        host = [np.asarray(to_device(y, xp.Device("CPU_DEVICE"))) for y in (re, im)]
        return xp.asarray(_paired(np, *host), device=device(x))
    if is_numpy_array(x) or is_cupy_array(x):
        return _paired(xp, re, im)
    return xp.astype(re, dtype) + 1j * xp.astype(im, dtype)


def _paired(xp: Any, re: Any, im: Any) -> Any:
    result = xp.empty_like(re, dtype=xp.result_type(re, xp.complex64))
    result.real, result.imag = re, im
    return result


class Passage(NamedTuple):
    """The way of a parameter, its gradient and state into the rule, and of results out of it."""

    enter: Callable[[Any], Any]
    leave: Callable[[Any, bool], Any]  # (array, whether it is stored)


def is_sparse(grad: Any) -> bool:
    """Whether a gradient is some rows only: `values`, and which they are as the rule knows it."""
    return hasattr(grad, "_fields")


def passage(param: Any, half: str) -> Passage:
    """Complex as pairs of reals; 16-bit as `half` says (`refopt.typing.Profile`)."""
    xp, dtype, name = array_namespace(param), param.dtype, dtype_name(param)
    narrow = name in HALF or (half == "float32" and name == "float64")

    def enter(x: Any) -> Any:
        if x is None or isinstance(x, float):
            return x
        if is_sparse(x):
            return x._replace(values=enter(x.values))
        if name in COMPLEX:
            x = as_real(x)
        if narrow:
            x = xp.astype(x, xp.float32)
            each = name in HALF and half != "stored"
            return Rounded(x, name, rounding_to(dtype)) if each else x
        # array-api-strict refuses any scalar that is not exactly a Python float, so here too
        # the array is wrapped; nothing is rounded.
        if is_array_api_strict_namespace(xp):
            return Rounded(x, COMPLEX.get(name, name), _own)
        return x

    def leave(x: Any, stored: bool) -> Any:
        x = _own(plain(x))
        if x is None or isinstance(x, float):
            return x
        if name in COMPLEX:
            return as_complex(x)
        return xp.astype(x, dtype) if narrow and (stored or half != "stored") else x

    return Passage(enter, leave)


def _copy(x: Any) -> Any:
    return array_namespace(x).asarray(x, copy=True)


def _own(x: Any) -> Any:
    """`x`; where NumPy made a scalar of an array of shape (), the array."""
    return np.asarray(x) if isinstance(x, np.generic) else x


def _strides(x: Any) -> Any:
    return x.stride() if is_torch_array(x) else getattr(x, "strides", None)


def is_traced(x: Any) -> bool:
    """Whether a JAX array has no value or place yet."""
    import jax

    return isinstance(x, jax.core.Tracer)


def laid_out_like(x: Any, pattern: Any) -> Any:
    """`x` with the strides, or on JAX the sharding, of `pattern`, where that has its shape."""
    if not is_array_api_obj(x) or x.shape != pattern.shape:
        return x
    if is_jax_array(x):
        return _sharded_like(x, pattern)
    if _strides(x) == _strides(pattern):
        return x
    room = array_namespace(x).empty_like(pattern)
    room[...] = x  # no `write`: a graph of gradients goes on
    return room


def _sharded_like(x: Any, pattern: Any) -> Any:
    import jax

    if is_traced(x) or is_traced(pattern) or x.sharding == pattern.sharding:
        return x
    return jax.device_put(x, pattern.sharding)


# -- running --------------------------------------------------------------------------------------


def init(rule: Any, profile: Profile, param: Any, num: Any = None) -> tuple[Any, Any]:
    """State and clock before the first step; the state has the dtype and place of `param`."""
    num = Floats() if num is None else num
    enter, leave = passage(param, profile.half)
    inside = enter(param)
    state, clock = rule.init(inside, profile.choices, xp=namespace_of(param), num=num)
    num = num.of(inside)
    # a state that starts as the parameter itself must not change with it
    state = type(state)(*(lift(_copy, x) if x is inside else x for x in state))
    return (
        type(state)(*(laid_out_like(leave(x, True), param) for x in state)),
        type(clock)(*(num.started(x) for x in clock)),
    )


def run(
    rule: Any,
    profile: Profile,
    params: Sequence[Any],
    grads: Sequence[Any],
    states: Sequence[Any],
    clocks: Sequence[Any],
    hyper: Any,
    num: Any = None,
    **more: Any,
) -> tuple[list[Any], list[Any], list[Any]]:
    """One step of a group: the rule's `update` on arrays of any library and dtype.

    Arguments
    ---------
    rule: a module of `refopt.rules`.
    profile: choices, and how 16-bit arrays are rounded.
    params, grads: arrays of one library; a gradient of None skips its parameter. A sparse
        gradient is a NamedTuple with `values`, which the rule knows.
    states, clocks: from `init` or an earlier step.
    hyper: the rule's Hyper; numbers.
    num: number system of the scalars, `Floats()` (default) or `Device()`.
    more: what the rule's `update` takes beyond these.

    Returns
    -------
    (quantities, states, clocks), one of each for each parameter; quantities are None where the
    parameter was skipped. Stored quantities and states have the dtype of the parameter. No
    argument is written.
    """
    dense = [grad.values if is_sparse(grad) else grad for grad in grads]
    xp = namespace_of(*params, *dense)
    ways = [passage(param, profile.half) for param in params]
    # what is common to parameters of several dtypes, a norm, has the widest of them
    mixed = len({param.dtype for param in params}) > 1
    # Strict: see `passage`. NumPy: its scalars compute powers in their own way.
    wraps = is_array_api_strict_namespace(xp.xp) or is_numpy_namespace(xp.xp)

    def wrapped(x: Number) -> Number:
        return Rounded(x, "float32", _own) if wraps and is_array_api_obj(x) else x

    def left(i: int, x: Any, stored: bool) -> Any:
        if mixed and stored and x is not None:
            return _stored(ways[i], x, params[i])
        return ways[i].leave(x, stored)

    with silence(xp.xp):
        entered = [
            type(state)(*map(way.enter, state)) if isinstance(state, tuple) else state
            for way, state in zip(ways, states, strict=True)
        ]
        quantities, after, ticked = rule.update(
            [way.enter(x) for way, x in zip(ways, params, strict=True)],
            [way.enter(x) for way, x in zip(ways, grads, strict=True)],
            entered,
            [type(clock)(*map(wrapped, clock)) for clock in clocks],
            hyper,
            profile.choices,
            xp=xp,
            num=Floats() if num is None else num,
            **more,
        )
        for i, state in enumerate(states):
            stored = {*getattr(state, "_fields", ()), "param"}
            if quantities[i] is not None:
                fields = quantities[i]._asdict().items()
                quantities[i] = type(quantities[i])(*(left(i, x, k in stored) for k, x in fields))
            if after[i] is entered[i]:
                after[i] = state
                continue
            after[i] = type(state)(
                *(
                    old
                    if x is own
                    else laid_out_like(left(i, x, True), params[i] if old is None else old)
                    for x, own, old in zip(after[i], entered[i], state, strict=True)
                )
            )
    return quantities, after, [type(clock)(*(_own(_bare(x)) for x in clock)) for clock in ticked]


def _bare(x: Any) -> Any:
    return x.array if isinstance(x, Rounded) else x


def applied(
    function: Callable[..., list[Any]], half: str, params: Sequence[Any], *columns: Sequence[Any]
) -> list[Any]:
    """A function of a rule on lists of arrays, an entry for each parameter.

    Arguments
    ---------
    function: of these lists and a namespace; its results are stored beside the parameters.
    half: how 16-bit arrays are rounded; see `refopt.typing.Profile`.
    params: whose dtypes count.
    columns: lists of arrays or sparse gradients like the parameters.
    """
    ways = [passage(param, half) for param in params]
    xp = namespace_of(*params)
    with np.errstate(all="ignore"):
        entered = [[way.enter(x) for way, x in zip(ways, xs, strict=True)] for xs in columns]
        results = function(*entered, xp)
        return [
            x._replace(values=_stored(way, x.values, param))
            if is_sparse(x)
            else _stored(way, x, param)
            for way, x, param in zip(ways, results, params, strict=True)
        ]


def _stored(way: Passage, x: Any, param: Any) -> Any:
    x = way.leave(x, True)
    if not is_array_api_obj(x) or x.dtype == param.dtype:
        return x
    return array_namespace(x).astype(x, param.dtype)


def compiles(like: Any) -> bool:
    """Whether the library of an array has a compiler: `jax.jit`, `torch.compile`."""
    return is_jax_array(like) or is_torch_array(like)


def compiled(function: Any, like: Any, **options: Any) -> Callable[..., Any]:
    """`function` of arrays under the compiler of their library; `options` of `torch.compile`."""
    if is_jax_array(like):
        import jax

        return jax.jit(function)
    import torch

    # torch compiles one piece of code a few times only, whatever it is closed over
    own = FunctionType(
        function.__code__.replace(), function.__globals__, closure=function.__closure__
    )
    whole = torch.compile(own, fullgraph=True, **options)

    def quiet(*args: Any) -> Any:
        with warnings.catch_warnings():
            # array-api-compat caches what it knows of types; torch says that it does not
            warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru")
            return whole(*args)

    return quiet


def scalar_of(x: Number, like: Any) -> Any:
    """A number as an array of shape () that does not change the dtype of one like `like`."""
    xp = array_namespace(like)
    dtype = "float64" if dtype_name(like) in ("float64", "complex128") else "float32"
    return xp.asarray(float(x), dtype=getattr(xp, dtype), device=place(like))


def write(target: Any, value: Any) -> Any:
    """`value` in the place of `target`: written into it, layout kept, where the library allows.

    Returns `target`, or `value` where `target` cannot be written (JAX, read-only arrays).
    """
    if not is_writeable_array(target):
        return value
    if 0 not in target.shape:  # where dask refuses to write nothing
        with recording(False, target):
            target[...] = value
    return target


@contextmanager
def recording(enabled: bool, *arrays: Any) -> Iterator[None]:
    """Whether torch records operations for its gradients; nothing for other libraries."""
    if not any(is_torch_array(x) for x in arrays):
        yield
        return
    import torch

    with torch.set_grad_enabled(enabled):
        yield
