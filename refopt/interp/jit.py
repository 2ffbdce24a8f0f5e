"""A program under the compiler of an array library: `jax.jit`, `torch.compile`.

On a CPU the results have the bits of NumPy; JAX alone has 0 where a number is subnormal. On other
devices the compilers may divide and take roots with more than one rounding.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from array_api_compat import (
    is_jax_array,
    is_jax_namespace,
    is_torch_namespace,
)

from refopt.interp import fused
from refopt.interp.arrays import compiled, compiles, is_traced, namespace_of, place
from refopt.interp.fused import Program
from refopt.interp.host import to_numpy
from refopt.interp.rounded import rounding_to

LIBRARIES = ("jax", "torch")
"""Those that compile."""
Arrays = Mapping[str, Any]
OPERATORS = {"add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "neg": "neg"}


def jitted(rule: Any, half: str) -> Any:
    """A rule for `arrays.run` on JAX or torch, whose element-wise steps the library compiles.

    `half`: as the profile says. A step with rows, with scalars on a device, or inside another
    compiled function runs as it is.
    """
    return fused.fused(rule, half, _is_there, computed)


def _is_there(x: Any) -> bool:
    return compiles(x) and not (is_jax_array(x) and is_traced(x))


def through(library: str, rule: Any, half: str) -> Any:
    """The same on arrays of NumPy, which "jax" or "torch" takes and gives back."""

    def there_and_back(program: Program, arrays: Arrays, s: Any, h: Any) -> dict[str, Any]:
        with _every_dtype(library):
            given = {name: _put(library, x) for name, x in arrays.items()}
            return {name: to_numpy(x) for name, x in computed(program, given, s, h).items()}

    return fused.fused(rule, half, run=there_and_back)


def _put(library: str, x: Any) -> Any:
    """A copy of an array of NumPy."""
    if library == "torch":
        import torch

        return torch.asarray(x.copy())
    import jax

    return jax.numpy.array(x)


def _every_dtype(library: str) -> AbstractContextManager[None]:
    if library == "torch":
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def computed(program: Program, arrays: Arrays, s: Any, h: Any) -> dict[str, Any]:
    """What a program writes, as new arrays.

    Arguments
    ---------
    program: of `fused.program`.
    arrays: what it reads, by name, all of JAX or all of torch.
    s, h: the rule's Scalars and settled Hyper, numbers of the host.
    """
    scalars = fused.numbers(program)(s, h)
    given = [arrays[name] for name in program.arrays]
    like, xp = given[0], namespace_of(*given).xp
    run = _compiled(program, xp)
    if is_torch_namespace(xp):  # compiled once for all shapes and strides
        beside = xp.asarray(scalars, device=place(like))
        results = [x.reshape(like.shape) for x in run(beside, *(x.reshape(-1) for x in given))]
    else:
        zero = np.zeros((), f"i{scalars.itemsize}")
        results = run(zero, scalars, *given)
    return dict(zip((name for name, _ in program.outputs), results, strict=True))


@functools.lru_cache(maxsize=256)
def _compiled(program: Program, xp: Any) -> Callable[..., Any]:
    # torch drops a cast and the way back, unless it is told not to
    options = {} if is_jax_namespace(xp) else {"emulate_precision_casts": True}
    function = _guarded(program, xp) if is_jax_namespace(xp) else _plain(program, xp)
    return compiled(function, xp.zeros(()), dynamic=True, options=options)


def _plain(program: Program, xp: Any) -> Callable[..., Any]:
    def run(scalars: Any, *arrays: Any) -> list[Any]:
        return _run(program, xp, arrays, list(scalars), lambda x: x)

    return run


def _guarded(program: Program, xp: Any) -> Callable[..., Any]:
    """The program for XLA, which would contract, and multiply by the reciprocal of a scalar.

    It cannot know that the bits of a number stay what they are.
    """
    from jax import lax

    def run(zero: Any, scalars: Any, *arrays: Any) -> list[Any]:
        def bits(x: Any) -> Any:
            return lax.bitcast_convert_type(x, zero.dtype)

        def same(x: Any, other: Any = zero) -> Any:
            return lax.bitcast_convert_type(bits(x) ^ other, x.dtype)

        zeros = bits(arrays[0]) & zero  # of one number XLA would see that it is one
        return _run(program, xp, arrays, [same(c, zeros) for c in scalars], same)

    return run


def _run(
    program: Program, xp: Any, arrays: Any, scalars: list[Any], after: Callable[[Any], Any]
) -> list[Any]:
    """The outputs of a program; `after` follows each operation."""
    values = dict(zip(program.arrays, arrays, strict=True))
    values.update((f"c{k}", c) for k, c in enumerate(scalars))
    for op, inputs, output in program.instructions:
        values[output] = after(_operation(xp, op)(*(values[x] for x in inputs)))
    return [values[value] for _, value in program.outputs]


def _operation(xp: Any, op: str) -> Callable[..., Any]:
    if op in OPERATORS:
        return getattr(operator, OPERATORS[op])
    if op == "known":
        return lambda x: xp.where(x == x, x, xp.zeros_like(x))
    return getattr(xp, op) if op in fused.OPERATIONS else rounding_to(getattr(xp, op))
