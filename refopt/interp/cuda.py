"""A program as one CUDA kernel, for all parameters of a step at once.

The text is compiled without contraction, approximate division or root, and with subnormal
numbers, so that each element gets the bits that it has on NumPy. It needs no header, and g++
compiles it as well: the tests run it there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import is_cupy_array

from refopt.interp import fused
from refopt.interp.arrays import dtype_name
from refopt.interp.formats import COMPLEX
from refopt.interp.fused import SIGNS, Program, names
from refopt.interp.rounded import plain

OPTIONS = ("--std=c++14", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")
"""Of the compiler (NVRTC)."""
THREADS = 256
"""Of a block, which works on one piece."""
PIECE = 8192
"""Elements of a piece: small enough that a million elements occupy every processor."""
ITEMSIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

C_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
}

_SOURCE = r"""// Made by refopt.interp.cuda.
typedef {number} T;  // of a number
typedef {stored} S;  // of an element in memory
const int ARRAYS = {arrays}, SCALARS = {scalars}, LANES = 16 / sizeof(S);
struct alignas(16) Lanes {{ S at[LANES]; }};

union Float {{ float number; unsigned bits; }};
#ifdef __CUDACC__
static __device__ inline float from_float16(unsigned short x) {{
    float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y;
}}
static __device__ inline unsigned short to_float16(float x) {{
    unsigned short y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y;
}}
#else
union Half {{ _Float16 number; unsigned short bits; }};
static inline float from_float16(unsigned short x) {{ Half y; y.bits = x; return y.number; }}
static inline unsigned short to_float16(float x) {{ Half y; y.number = x; return y.bits; }}
#endif
static __device__ inline float from_bfloat16(unsigned short x) {{
    Float y; y.bits = (unsigned) x << 16; return y.number;
}}
static __device__ inline unsigned short to_bfloat16(float x) {{  // ties to even
    Float y; y.number = x;
    return x == x ? (y.bits + 0x7fff + (y.bits >> 16 & 1)) >> 16 : 0x7fc0;
}}
static __device__ inline float float16(float x) {{ return from_float16(to_float16(x)); }}
static __device__ inline float bfloat16(float x) {{ return from_bfloat16(to_bfloat16(x)); }}
static __device__ inline T float32(T x) {{ return (float) x; }}
static __device__ inline T known(T x) {{ return x == x ? x : 0; }}
static __device__ inline T maximum(T x, T y) {{ return x >= y || x != x ? x : y; }}  // NaN wins
static __device__ inline T minimum(T x, T y) {{ return x <= y || x != x ? x : y; }}

static __device__ inline void element(const T* c, {parameters}) {{
{body}
}}

// A row of the table is a piece: the addresses of the arrays, its number of elements, and the row
// of its scalars in `numbers`. A block works on one piece.
extern "C" __global__ void refopt_step(const long long* table, const T* numbers) {{
    const long long* row = table + blockIdx.x * (ARRAYS + 2LL);
    const T* scalars = numbers + row[ARRAYS + 1] * SCALARS;
    T c[SCALARS + 1];
    for (int k = 0; k < SCALARS; k++) c[k] = scalars[k];
{pointers}
    const long long n = row[ARRAYS];
    long long any = 0;
    for (int k = 0; k < ARRAYS; k++) any |= row[k];
    const long long whole = any & 15 ? 0 : n / LANES;  // 16 bytes at a time, where all are aligned
    for (long long i = threadIdx.x; i < whole; i += blockDim.x) {{
{load}
        for (int j = 0; j < LANES; j++) {{
{lanes}
        }}
{store}
    }}
    for (long long i = whole * LANES + threadIdx.x; i < n; i += blockDim.x) {{
{single}
    }}
}}
"""


def source(program: Program, stored: str) -> str:
    """The kernel `refopt_step(table, numbers)` of a program, as CUDA C.

    Arguments
    ---------
    program: of `fused.program`.
    stored: the dtype of the arrays: "float16", "bfloat16", or that of the program.
    """
    arrays, read = names(program), program.arrays
    written = dict(program.outputs)
    half = stored != program.dtype
    root = "sqrt" if program.dtype == "float64" else "sqrtf"

    def line(op: str, inputs: tuple[str, ...], output: str) -> str:
        if op in SIGNS:
            value = f" {SIGNS[op]} ".join(inputs)
        elif op == "neg":
            value = f"-{inputs[0]}"
        else:
            value = f"{root if op == 'sqrt' else op}({', '.join(inputs)})"
        return f"    const T {output} = {value};"

    def scalar(name: str) -> str:
        return f"c[{name[1:]}]" if name[0] == "c" and name[1:].isdigit() else name

    def entered(name: str, place: str) -> str:
        value = f"from_{stored}({place})" if half else place
        return f"T {name} = {value if name in read else '0'};"

    def left(name: str, place: str) -> str:
        return f"{place} = {f'to_{stored}({name})' if half else name};"

    body = [
        line(op, tuple(map(scalar, inputs)), output) for op, inputs, output in program.instructions
    ]
    body += [f"    {array}_ = {scalar(value)};" for array, value in program.outputs]
    call = ", ".join(
        ["c", *read, *(f"{array}_" for array in written)]  # what is written has a name of its own
    )

    def element(place: str, indent: str) -> str:
        lines = [entered(name, place.format(name)) for name in read]
        lines += [f"T {name}_;" for name in written]
        lines.append(f"element({call});")
        lines += [left(f"{name}_", place.format(name)) for name in written]
        return "\n".join(indent + text for text in lines)

    return _SOURCE.format(
        number=C_TYPES[program.dtype],
        stored=C_TYPES[stored],
        arrays=len(arrays),
        scalars=len(program.scalars),
        parameters=", ".join([*(f"const T {x}" for x in read), *(f"T& {x}_" for x in written)]),
        body="\n".join(body),
        pointers="\n".join(f"    S* {x}_at = (S*) row[{k}];" for k, x in enumerate(arrays)),
        load="\n".join(f"        Lanes {x}_lanes = ((Lanes*) {x}_at)[i];" for x in arrays),
        lanes=element("{}_lanes.at[j]", " " * 12),
        store="\n".join(f"        ((Lanes*) {x}_at)[i] = {x}_lanes;" for x in written),
        single=element("{}_at[i]", " " * 8),
    )


@functools.lru_cache(maxsize=256)
def kernel(program: Program, stored: str) -> Any:
    """The compiled kernel of a program, `cupy.RawKernel`."""
    import cupy

    return cupy.RawModule(code=source(program, stored), options=OPTIONS).get_function("refopt_step")


# -- a step whose scalars are on the device -------------------------------------------------------
def captured(rule: Any, half: str) -> Any:
    """A rule for `arrays.run` on CuPy, whose element-wise steps are one kernel each, on copies.

    The host waits for nothing and sends nothing that a captured graph would read from it again.
    """
    return fused.fused(rule, half, writable, on_copies)


def on_copies(program: Program, arrays: Mapping[str, Any], s: Any, h: Any) -> dict[str, Any]:
    """What a program writes, as new arrays; `s`: the rule's Scalars, arrays of shape ()."""
    import cupy

    like = arrays["param"]
    written = [name for name, _ in program.outputs]
    with like.device:
        own = {
            name: arrays[name].copy() if name in written else cupy.ascontiguousarray(arrays[name])
            for name in names(program)
        }
        pieces = -(-like.size // PIECE)
        table = cupy.empty((pieces, len(own) + 2), "int64")
        first = cupy.arange(pieces, dtype="int64") * (PIECE * ITEMSIZES[program.dtype])
        for k, x in enumerate(own.values()):
            table[:, k] = first + fused.extent(x)[0]
        table[:, -2], table[:, -1] = PIECE, 0
        table[-1, -2] = like.size - (pieces - 1) * PIECE
        scalars = fused.expressions(program)(s, h)
        row = cupy.empty((1, len(scalars)), program.dtype)
        for k, x in enumerate(scalars):
            row[0, k] = plain(x)
        kernel(program, program.dtype)((pieces,), (THREADS,), (table, row))
    return {name: own[name] for name in written}


# -- a step of many parameters --------------------------------------------------------------------
def writable(x: Any) -> bool:
    """Whether a `Pass` can write the array: one of CuPy, without gaps, not empty."""
    return bool(is_cupy_array(x) and x.size and (x.flags.c_contiguous or x.flags.f_contiguous))


class Pass(fused.Pass):
    """`fused.Pass` on one GPU, on the current stream; the host waits for nothing."""

    form = fused.SHAPE, fused.DTYPE, fused.STRIDES

    def __init__(self, items: Sequence[tuple[Program, Mapping[str, Any]]]) -> None:
        super().__init__(items)
        self.apart = self.apart and all(group.fits for group in self._groups)

    def takes(self, grads: Sequence[Any], alike: bool = False) -> bool:
        """Take the gradients of a step; False where one has gaps, or shares memory."""
        return all(map(writable, grads)) and super().takes(grads)

    def _grouped(
        self, program: Program, members: Sequence[int], columns: Sequence[Mapping[str, Any]]
    ) -> _Group:
        return _Group(program, members, columns)


class _Group:
    """The parameters of one program."""

    apart: Sequence[int] = ()
    compiled = parallel = False  # launched from Python: `uninterrupted` is needed

    def __init__(
        self, program: Program, members: Sequence[int], columns: Sequence[Mapping[str, Any]]
    ) -> None:
        self.program, self.members = program, [*members]
        given = [[*column.values()] for column in columns]
        everything = [x for arrays in given for x in arrays]
        self.device = everything[0].device
        self.stored = COMPLEX.get(name := dtype_name(everything[0]), name)
        self.orders = [_order(arrays) for arrays in given]
        self.fits = all(self.orders) and all(
            x.device == self.device and x.dtype == everything[0].dtype for x in everything
        )
        parts = 2 if name in COMPLEX else 1
        arrays = names(program)
        self.table = np.zeros((len(members), len(arrays) + 2), np.int64)
        for row, column in zip(self.table, columns, strict=True):
            row[:-2] = [fused.extent(column[x])[0] if x in column else 0 for x in arrays]
            row[-2] = next(iter(column.values())).size * parts
        self.slot = arrays.index("grad") if "grad" in arrays else None
        self.there: Any = None  # the table, cut into pieces, on the device

    def take(self, grads: Sequence[Any], start: Sequence[int]) -> bool:
        if self.slot is None:
            return True
        own = [grads[i] for i in self.members]
        if not all(
            x.device == self.device and {*order} & {*_order([x])}
            for x, order in zip(own, self.orders, strict=True)
        ):
            return False
        self.table[:, self.slot] = [start[i] for i in self.members]
        self.there = None
        return True

    def ready(self) -> None:
        with self.device:
            kernel(self.program, self.stored)

    def calls(self, grads: Sequence[Any], scalars: Sequence[Any]) -> Iterator[Callable[[], Any]]:
        import cupy

        unique = {id(scalars[i]): scalars[i] for i in self.members}
        place = {key: row for row, key in enumerate(unique)}
        rows = [place[id(scalars[i])] for i in self.members]
        with self.device:
            if self.there is None or [*self.table[:, -1]] != rows:
                self.table[:, -1] = rows
                itemsize = ITEMSIZES[self.stored]
                self.there = cupy.asarray(fused.cut(self.table, itemsize, PIECE))
            numbers = cupy.asarray(np.array([*unique.values()]))
        yield partial(self._launch, numbers)

    def _launch(self, numbers: Any) -> None:
        with self.device:
            run = kernel(self.program, self.stored)
            run((len(self.there),), (THREADS,), (self.there, numbers))


def _order(arrays: Sequence[Any]) -> str:
    """The orders in which all lie without gaps: "C", "F", both, or none."""
    return "".join(
        order
        for order, flag in (("C", "c_contiguous"), ("F", "f_contiguous"))
        if all(getattr(x.flags, flag) for x in arrays)
    )
