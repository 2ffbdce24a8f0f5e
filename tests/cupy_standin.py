"""A stand-in for CuPy where there is no GPU: NumPy does the work, CuPy's manners are kept.

`install()` puts it in `sys.modules["cupy"]`, so that it drives the real `array_api_compat.cupy`.
It is no subclass of ndarray; results of shape () stay arrays; NumPy arrays beside it and
`numpy.asarray` of it are refused; `syncs` counts the reads that would make the host wait.
"""

import atexit
import ctypes
import operator
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


class Device:
    def __init__(self, id=0):
        self.id = id

    def __eq__(self, other):
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self):
        return self.id

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None


class ndarray:  # noqa: N801
    __module__ = "cupy"  # where errors say that it comes from
    syncs = 0
    device = Device()
    __slots__ = ("__weakref__", "_host")
    __hash__ = None

    def __init__(self, host):
        self._host = host

    def _synced(self):
        ndarray.syncs += 1
        return self._host

    def __float__(self):
        return float(self._synced())

    def __int__(self):
        return int(self._synced())

    __index__ = __int__

    def __bool__(self):
        return bool(self._synced())

    def item(self):
        return self._synced().item()

    def get(self):
        return self._synced().copy()

    tolist = __iter__ = None

    def __array__(self, *args, **kwargs):
        message = "Implicit conversion to a NumPy array is not allowed; use .get()"
        raise TypeError(message)

    def __array_ufunc__(self, *args, **kwargs):
        return NotImplemented

    def __neg__(self):
        return _device(-self._host)

    def __len__(self):
        return len(self._host)

    def __getitem__(self, key):
        return _device(self._host[key])

    def __setitem__(self, key, value):
        self._host[key] = _operand(value)

    def __repr__(self):
        return f"cupy({self._host!r})"

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    strides = property(lambda self: self._host.strides)
    flags = property(lambda self: self._host.flags)
    __cuda_array_interface__ = property(lambda self: self._host.__array_interface__)
    T = property(lambda self: _device(self._host.T))
    real = property(
        lambda self: _device(self._host.real),
        lambda self, value: setattr(self._host, "real", _operand(value)),
    )
    imag = property(
        lambda self: _device(self._host.imag),
        lambda self, value: setattr(self._host, "imag", _operand(value)),
    )

    def astype(self, *args, **kwargs):
        return _device(self._host.astype(*args, **kwargs))

    def copy(self):
        return _device(self._host.copy())

    def sum(self):
        return _device(self._host.sum())

    def view(self, *args):
        return _device(self._host.view(*args))


def _device(result):
    if isinstance(result, np.ndarray | np.generic):
        return ndarray(np.asarray(result))
    return type(result)(map(_device, result)) if isinstance(result, tuple | list) else result


def _operand(x):
    if isinstance(x, ndarray):
        return x._host
    if isinstance(x, tuple | list):
        return type(x)(map(_operand, x))
    if isinstance(x, np.ndarray) or (isinstance(x, float) and type(x) not in (float, np.float64)):
        message = f"Unsupported type {type(x)}"
        raise TypeError(message)
    return x


def _method(operation, reflected):
    def method(self, other):
        # as in CuPy: left to the other, who says so, or takes the ufunc that CuPy does not
        ours = isinstance(other, ndarray | np.ndarray | np.generic)
        if not ours and hasattr(other, "__array_ufunc__"):
            return NotImplemented
        a, b = self._host, _operand(other)
        return _device(operation(b, a) if reflected else operation(a, b))

    return method


for _name in ["add", "sub", "mul", "truediv", "pow"]:
    _op = getattr(operator, _name)
    setattr(ndarray, f"__{_name}__", _method(_op, False))
    setattr(ndarray, f"__r{_name}__", _method(_op, True))
for _name in ["lt", "le", "eq", "ne", "gt", "ge"]:
    setattr(ndarray, f"__{_name}__", _method(getattr(operator, _name), False))
ndarray.__and__ = _method(operator.and_, False)


def _wrapped(function, operand=_operand):
    def call(*args, **kwargs):
        host = {key: operand(value) for key, value in kwargs.items()}
        return _device(function(*map(operand, args), **host))

    return call


def _module(name, source):
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    for key in dir(source):
        value = getattr(source, key)
        if key.startswith("_") or isinstance(value, ModuleType):
            continue
        called = callable(value) and not isinstance(value, type)
        setattr(module, key, _wrapped(value) if called else value)
    module.__all__ = [key for key in vars(module) if not key.startswith("_")]
    sys.modules[name] = module
    return module


# What g++ needs to read CUDA C: one thread after the other.
SHIM = """
#include <cmath>
#define __global__
#define __device__
static struct { unsigned x; } blockIdx, threadIdx, blockDim;
"""
LAUNCH = """
extern "C" void launch(unsigned blocks, unsigned threads, const long long* table,
                       const void* numbers) {
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
            refopt_step(table, (const T*) numbers);
}
"""
FLAGS = ("-std=c++14", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-w")


@cache
def _folder():
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def compiled(code):
    """The library that g++ makes of a text."""
    if shutil.which("g++") is None:
        pytest.skip("CUDA C without a GPU needs g++")
    path = _folder() / f"{len([*_folder().iterdir()])}.so"
    command = ["g++", *FLAGS, "-x", "c++", "-o", str(path), "-"]
    subprocess.run(command, input=code, text=True, check=True)
    return ctypes.CDLL(str(path))


class RawModule:
    """A module of CUDA C, run by the host."""

    launches = 0

    def __init__(self, *, code, options=()):
        assert "--fmad=false" in options
        self._launch = _launcher(code)

    def get_function(self, name):
        assert name == "refopt_step"

        def run(grid, block, args):
            RawModule.launches += 1
            table, numbers = (x._host for x in args)
            assert table.dtype == np.int64
            assert len(table) == grid[0]
            addresses = (ctypes.c_void_p(x.ctypes.data) for x in (table, numbers))
            self._launch(grid[0], block[0], *addresses)

        return run


@cache
def _launcher(code):
    return compiled(SHIM + code + LAUNCH).launch


def install():
    """Be `cupy` from now on; returns the module."""
    if getattr(sys.modules.get("cupy"), "ndarray", None) is ndarray:
        return sys.modules["cupy"]
    cupy = _module("cupy", np)
    cupy.linalg, cupy.fft = _module("cupy.linalg", np.linalg), _module("cupy.fft", np.fft)
    cupy.cuda = sys.modules["cupy.cuda"] = ModuleType("cupy.cuda")
    cupy.cuda.device = sys.modules["cupy.cuda.device"] = ModuleType("cupy.cuda.device")
    cupy.cuda.Device = cupy.cuda.device.Device = Device
    cupy.ndarray = ndarray
    cupy.RawModule = RawModule
    # From the host to the device is a copy, not a wait.
    cupy.array = cupy.asarray = _wrapped(
        np.array, lambda x: x if isinstance(x, np.ndarray) else _operand(x)
    )
    return cupy
