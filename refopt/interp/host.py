"""Copies of arrays: within a library, to NumPy, and from one library to another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
from array_api_compat import (
    array_namespace,
    device,
    is_array_api_obj,
    is_array_api_strict_namespace,
    is_cupy_array,
    is_jax_array,
    is_numpy_array,
    is_torch_array,
    is_writeable_array,
    to_device,
)

from refopt.interp.arrays import Device, dtype_name, is_traced, namespace_of, write
from refopt.interp.formats import COMPLEX, FORMATS
from refopt.interp.rounded import carried

NUMBERS = ("bool", "int", "uint", "float", "bfloat", "complex")
"""The names of dtypes without their widths."""


def is_array(x: Any) -> bool:
    """Whether `x` is an array: NumPy's scalars, matrices, masked arrays and classes are none."""
    return is_array_api_obj(x) and not isinstance(x, np.generic | np.ma.MaskedArray | type)


def is_floating(x: Any) -> bool:
    """Whether the dtype of the array is real or complex floating-point, of 16 to 64 bits a part."""
    name = dtype_name(x)
    return COMPLEX.get(name, name) in FORMATS


def holds(wide: Any, narrow: Any) -> bool:
    """Whether the dtype of the array `wide` has every number of that of `narrow`."""
    a, b = dtype_name(narrow), dtype_name(wide)
    if (a in COMPLEX) != (b in COMPLEX):
        return False
    a, b = COMPLEX.get(a, a), COMPLEX.get(b, b)
    if a not in FORMATS or b not in FORMATS:
        return a == b
    f, g = FORMATS[a], FORMATS[b]
    return f.precision <= g.precision and f.emax <= g.emax and f.spacing >= g.spacing


def converts(x: Any, dtype: str) -> bool:
    """Whether the array `x` becomes one of `dtype`: it has numbers, no complex ones for real."""
    name = str(getattr(x.dtype, "name", dtype_name(x)))  # NumPy's: of either byte order
    kind, wanted = (text.rstrip("0123456789") for text in (name, dtype))
    return kind in NUMBERS and (kind != "complex" or wanted == kind)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name; that of bfloat16 comes from ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        message = "bfloat16 on NumPy needs ml_dtypes: install refopt[half]"
        raise ImportError(message) from error
    return np.dtype(ml_dtypes.bfloat16)


def dtype_named(dtype: Any) -> str:
    """The name of a dtype of numbers: of any library, of Python, or as a string; else TypeError."""
    written = str(dtype).rpartition(".")[2]  # of torch and array-api-strict
    if written == "bfloat16":
        return written
    for given in (dtype, written):
        with suppress(TypeError, ValueError):
            name = str(np.dtype(given).name)
            if name.rstrip("0123456789") in NUMBERS:
                return name
    msg = f"dtype: a dtype of numbers is required, got {dtype!r}"
    raise TypeError(msg)


def dtype_beside(name: str, like: Any) -> Any:
    """The dtype of a name in the library of `like`; None where it has none."""
    xp = array_namespace(like)
    if is_torch_array(like) or is_jax_array(like) or is_array_api_strict_namespace(xp):
        return getattr(xp, name, None)
    return numpy_dtype(name)


def copied(x: Any) -> Any:
    """The array once more: library, device, dtype and layout kept; no graph of gradients."""
    x = x.detach() if is_torch_array(x) else x
    return array_namespace(x).asarray(x, copy=True)


def to_numpy(x: Any) -> Any:
    """A NumPy array of the same values and dtype; may share memory."""
    if is_cupy_array(x):
        return x.get()
    if is_torch_array(x):
        x = x.detach().cpu()
        if dtype_name(x) == "bfloat16":
            return x.view(array_namespace(x).uint16).numpy().view(numpy_dtype("bfloat16"))
        return x.numpy()
    if is_array_api_strict_namespace(xp := array_namespace(x)):
        x = to_device(x, xp.Device("CPU_DEVICE"))
    return np.asarray(x)


def placed(value: Any, like: Any, dtype: Any = None) -> Any:
    """A copy of `value` in the library and on the device of `like`.

    Of the same shape, it takes the layout too. Its dtype is `dtype`, of the library of `like`
    (default: that of `value`).
    """
    xp, name = array_namespace(like), dtype_name(value)
    there = device(like) if like.shape == value.shape or not is_jax_array(like) else None
    if array_namespace(value) is xp:
        value = copied(value if there is None else to_device(value, there))
    else:
        bits = name == "bfloat16" and is_torch_array(like)
        value = np.array(to_numpy(value), copy=True)
        value = xp.asarray(value.view(np.uint16) if bits else value, device=there)
        value = value.view(xp.bfloat16) if bits else value
    value = value if dtype is None else xp.astype(value, dtype)
    if like.shape != value.shape:
        return value
    return write(xp.empty_like(like, dtype=value.dtype), value)


def on_host(x: Any, like: Any, dtype: str) -> Any:
    """The number `x` as an array of shape () on the host: of torch beside torch, else of NumPy."""
    if is_torch_array(like):
        xp = array_namespace(like)
        return xp.asarray(float(x), dtype=getattr(xp, dtype), device="cpu")
    return np.asarray(float(x), dtype=numpy_dtype(dtype))


def beside(x: Any, like: Any) -> Any:
    """The number `x` as an array of shape () on the device of `like`.

    A Python number becomes float32. An array keeps its dtype, but beside narrower arrays it is at
    most float32, because some libraries let it decide the dtype of a result.
    """
    if not is_array(x):
        return Device().of(like).started(x)
    return _narrowed(x if near(x, like) else placed(x, like), like)


def near(x: Any, like: Any) -> bool:
    """Whether both are of one library and on one device.

    JAX's device is a sharding: it may differ, but not the devices that both are committed to.
    """
    if not same_library(x, like):
        return False
    if is_jax_array(x):
        bound = [a for a in (x, like) if not is_traced(a) and a.committed]
        return len(bound) < 2 or bool(x.sharding.device_set == like.sharding.device_set)
    return bool(device(x) == device(like))


def is_mesh(x: Any) -> bool:
    """Whether `x` is a mesh of devices of JAX."""
    return type(x).__name__ == "Mesh" and type(x).__module__.startswith("jax")


def replicated(x: Any, mesh: Any) -> Any:
    """A NumPy array as an array of JAX, whole on every device of the mesh."""
    import jax

    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    # without jax_enable_x64 JAX has no 64-bit dtypes
    return jax.device_put(x.astype(jax.dtypes.canonicalize_dtype(x.dtype)), everywhere)


def on_mesh(x: Any, mesh: Any) -> bool:
    """Whether an array lives on the devices of the mesh."""
    return is_jax_array(x) and x.sharding.device_set == set(mesh.devices.flat)


def overlapping(arrays: Sequence[Any]) -> tuple[int, int] | None:
    """Two of the arrays, by number, that have an element in common in memory that can be written.

    None where there are none; dask shares nothing.
    """
    held = {i: memory for i, x in enumerate(arrays) if (memory := _memory(x)) is not None}
    begun: list[tuple[int, int]] = []
    for low, high, i in sorted((*np.lib.array_utils.byte_bounds(x), i) for i, x in held.items()):
        begun = [(end, j) for end, j in begun if end > low]
        for _, j in begun:
            if np.shares_memory(held[i], held[j]):
                return min(i, j), max(i, j)
        begun.append((high, i))
    return None


def _memory(x: Any) -> Any:
    """A NumPy array of the same addresses, not to be read; None where nothing can be written."""
    if 0 in x.shape or not is_writeable_array(x) or getattr(x, "is_meta", False):
        return None
    if is_numpy_array(x):
        return x
    if is_array_api_strict_namespace(array_namespace(x)):
        return to_numpy(x)
    if is_cupy_array(x):
        interface = x.__cuda_array_interface__
    elif is_torch_array(x):
        n = x.element_size()
        interface = {
            "version": 3,
            "shape": tuple(x.shape),
            "typestr": f"|V{n}",
            "data": (x.data_ptr(), False),
            "strides": tuple(n * stride for stride in x.stride()),
        }
    else:
        return None
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def same_library(x: Any, like: Any) -> bool:
    """Whether both arrays are of one library."""
    return type(x) is type(like) or namespace_of(x) == namespace_of(like)


def single(x: Any) -> Any:
    """The array of one element as one of shape ()."""
    return array_namespace(x).reshape(x, ()) if x.shape else x


def _narrowed(x: Any, like: Any) -> Any:
    if not is_double(x) or is_double(like):
        return x
    xp = array_namespace(x)
    return xp.astype(x, xp.float32)


def is_double(x: Any) -> bool:
    """Whether the parts of the array are float64."""
    return COMPLEX.get(dtype_name(x), dtype_name(x)) == "float64"


def scalar(x: Any, like: Any, unread: bool) -> Any:
    """The array `x` of one element as a number beside `like`.

    It carries its dtype, and stays an array of shape () where its library is that of `like` and
    reading would wait for a device or, as `unread` says, must not be; then see `beside`.
    """
    space, x = namespace_of(x), single(x)
    if space == namespace_of(like) and (unread or is_jax_array(x) or is_cupy_array(x)):
        return _narrowed(x, like)
    return carried(dtype_name(x))(x) if is_floating(x) else float(x)
