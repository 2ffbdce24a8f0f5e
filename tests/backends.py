"""The array libraries that every property must hold for, one row each."""

import os
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

# JAX reads this at its first use: eight devices, so that sharding means something.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

REAL = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
LAYOUTS = ("C", "F", "strided")


class Library(NamedTuple):
    """One way to hold arrays and to run a step on them."""

    name: str
    put: Callable[[np.ndarray], Any]  # the array as laid out on the host, on the library's device
    get: Callable[[Any], np.ndarray]  # back, without counting as a wait of the host
    place: Callable[[Any], Any]  # what must stay as it is: device, sharding
    strides: Callable[[Any], Any] | None = None  # in elements; None where there are none
    dtypes: tuple[str, ...] = (*REAL, *COMPLEX)
    session: Callable[[], Any] = nullcontext  # what must be switched on around use
    exact: bool = False  # bit for bit as NumPy
    jitted: bool = False
    flushes: bool = False  # subnormal numbers to zero
    slow: bool = False  # compiles or plans at each step: fewer examples

    def array(self, host, dtype="float32", layout="C"):
        """The values of `host` in a dtype and layout of the library."""
        return self.put(laid_out(np.asarray(host).astype(numpy_dtype(dtype)), layout))

    def like(self, host, array):
        """The values of `host` as another array of the dtype of `array`."""
        return self.array(host, str(array.dtype).rpartition(".")[2])


def numpy_dtype(name):
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes", reason="bfloat16 on NumPy").bfloat16)
    return np.dtype(name)


def laid_out(host, layout):
    """A copy in C order, in Fortran order, or as every second element of a larger buffer."""
    if layout == "strided" and host.ndim:
        buffer = np.empty((*host.shape[:-1], 2 * host.shape[-1]), host.dtype)
        buffer[..., 1::2] = 99.0
        result = buffer[..., ::2]
        result[...] = host
        return result
    return np.array(host, order="F" if layout == "F" else "C", copy=True)


def same_bits(a, b):
    """Whether two host arrays have dtype, shape and every bit in common; a NaN equals a NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "c":
        return same_bits(a.real, b.real) and same_bits(a.imag, b.imag)
    nan = np.isnan(a)
    integers = f"u{a.dtype.itemsize}"
    bits = [np.where(nan, 0, np.ascontiguousarray(x).view(integers)) for x in (a, b)]
    return bool((nan == np.isnan(b)).all() and (bits[0] == bits[1]).all())


def _strides(x):
    return tuple(s // x.dtype.itemsize for s in x.strides)


def _numpy():
    return Library(
        "numpy",
        lambda host: host,
        lambda x: x,
        lambda x: None,
        _strides,
        (*REAL, *COMPLEX, "float16", "bfloat16"),
        exact=True,
    )


def _read_only():
    def put(host):
        host.flags.writeable = False
        return host

    return _numpy()._replace(name="numpy-read-only", put=put)


def _strict(device_name):
    import array_api_strict as xp

    device, host_device = xp.Device(device_name), xp.Device("CPU_DEVICE")
    flags = xp.ArrayAPIStrictFlags(
        api_version="2023.12", boolean_indexing=False, data_dependent_shapes=False
    )
    return Library(
        f"strict-{device_name}",
        lambda host: xp.asarray(host, device=device),
        lambda x: np.asarray(x.to_device(host_device)),
        lambda x: x.device,
        session=lambda: flags,
        exact=True,
    )


def _standin():
    import cupy_standin

    cupy_standin.install()
    return Library(
        "cupy-standin",
        cupy_standin.ndarray,
        lambda x: x._host,
        lambda x: x.device,
        _strides,
        (*REAL, *COMPLEX, "float16", "bfloat16"),
        exact=True,
    )


def _dask():
    import dask.array as da

    def get(x):
        with np.errstate(all="ignore"):  # it computes now, outside the step
            return np.asarray(x.compute(scheduler="synchronous"))

    return Library(
        "dask",
        lambda host: da.from_array(host, chunks=(2, *host.shape[1:]) if host.ndim else -1),
        get,
        lambda x: x.chunks,
        exact=True,
        slow=True,
    )


def _torch():
    import torch

    def put(host):
        half = host.dtype.name == "bfloat16"
        values = torch.asarray(np.ascontiguousarray(host, dtype="f4" if half else host.dtype))
        dtype = torch.bfloat16 if half else values.dtype
        room = torch.empty_strided(host.shape, _strides(host), dtype=dtype)
        return room.copy_(values.reshape(host.shape))

    def get(x):
        if x.dtype is torch.bfloat16:
            return x.float().numpy().astype(numpy_dtype("bfloat16"))
        return x.numpy()

    return Library(
        "torch",
        put,
        get,
        lambda x: x.device,
        lambda x: x.stride(),
        (*REAL, *COMPLEX, "float16", "bfloat16"),
    )


@contextmanager
def _double():
    import jax

    with jax.enable_x64(True):
        yield


def _jax():
    import jax

    def place(x):
        assert len(jax.devices()) > 1, "JAX was started before tests/backends.py set its flags"
        return x.sharding

    return Library(
        "jax",
        lambda host: jax.numpy.asarray(np.ascontiguousarray(host).reshape(host.shape)),
        np.asarray,
        place,
        dtypes=(*REAL, *COMPLEX, "float16", "bfloat16"),
        session=_double,
        flushes=True,
        slow=True,
    )


def _jax_jit():
    return _jax()._replace(name="jax-jit", jitted=True)


LIBRARIES = [
    pytest.param(_numpy, id="numpy"),
    pytest.param(_read_only, id="numpy-read-only"),
    pytest.param(lambda: _strict("CPU_DEVICE"), id="strict-CPU_DEVICE"),
    pytest.param(lambda: _strict("device1"), id="strict-device1"),
    pytest.param(lambda: _strict("device2"), id="strict-device2"),
    pytest.param(_standin, id="cupy-standin"),
    pytest.param(_dask, id="dask"),
    pytest.param(_torch, id="torch", marks=pytest.mark.torch),
    pytest.param(_jax, id="jax", marks=pytest.mark.jax),
    pytest.param(_jax_jit, id="jax-jit", marks=pytest.mark.jax),
]
"""Makers of `Library`; a library is imported when its row runs."""
