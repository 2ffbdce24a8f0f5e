"""Runs the element-wise part of a rule in place, as one loop over all elements.

A rule is traced once for its choices and the dtype; `program` gives the trace as a short list of
instructions, from which every backend makes its loop. The results have the bits of the plain run
on NumPy. Rounding points: float32 and float64 round each operation; 16-bit arrays are computed in
float32 and rounded where the instructions say, once per stored array or after each operation.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from refopt.interp import trace
from refopt.interp.arrays import dtype_name
from refopt.interp.formats import COMPLEX
from refopt.interp.rounded import HALF, Rounded, bfloat16, carried, plain
from refopt.typing import Profile

CHUNK = 32768
"""Elements at a time: inputs and scratch rows of a chunk stay in the second-level cache."""


class Instruction(NamedTuple):
    """One operation on all elements: output = op(*inputs)."""

    op: str  # "neg", "add", "sub", "mul", "div", "sqrt", "maximum", "minimum", or a dtype: round
    inputs: tuple[str, ...]  # arrays by their names, "c0", "c1", … scalars, "t0", "t1", … values
    output: str  # "t0", "t1", …; each once


class Program(NamedTuple):
    """The element-wise part of a rule: what a loop computes of one element of every array.

    A value is a number of `dtype`. An operation rounds once, to `dtype`; one that is named after a
    dtype ("float32", "float16", "bfloat16") rounds to that and stays in `dtype`.
    """

    dtype: str  # in which elements are computed: "float32" or "float64"
    arrays: tuple[str, ...]  # what is read: "param", "grad", and fields of the rule's State
    scalars: tuple[str, ...]  # expressions of `s` (Scalars) and `h` (Hyper); number k is "ck"
    instructions: tuple[Instruction, ...]  # in an order in which they can run
    outputs: tuple[tuple[str, str], ...]  # (array that is written, value), values as above


# -- from a rule to a program ---------------------------------------------------------------------
class _Space(type(trace.NAMESPACE)):  # type: ignore[misc]
    """Symbols, in which the weight of `lerp_from_end` is rounded as `ArrayNamespace` does it."""

    def lerp_from_end(self, start: Any, end: Any, weight: Any, /) -> trace.Node:
        return trace.apply("lerp", end, start, 1 - trace.apply("weight", weight))


def program(rule: Any, profile: Any, hyper: Any, dtype: str, kept: Sequence[str]) -> Program:
    """The trace of `rule.step` for arrays that are stored in `dtype`; cached.

    Arguments
    ---------
    rule: a module of `refopt.rules` whose step is element-wise.
    profile: its choices, and how 16-bit arrays are rounded.
    hyper: numbers, which decide the branches of the choices; the learning rate decides none.
    dtype: "float16", "bfloat16", "float32", "float64", or complex, which is pairs of reals.
    kept: the fields of the rule's State that are arrays.

    Raises
    ------
    TypeError
        The step has an operation that is not element-wise.
    """
    decides = hyper._replace(lr=None)
    return _program(rule, profile.choices, profile.half, decides, dtype, tuple(kept))


@functools.lru_cache(maxsize=256)
def _program(
    rule: Any, choices: Any, half: str, hyper: Any, dtype: str, kept: tuple[str, ...]
) -> Program:
    state = rule.State(*(trace.name(f) if f in kept else None for f in rule.State._fields))
    quantities, after = rule.step(
        trace.name("param"),
        trace.name("grad"),
        state,
        trace.symbols(rule.Scalars, "s"),
        trace.symbols(type(hyper), "h", hyper),
        choices,
        xp=_Space(),
    )
    results = {f: x for f in kept if (x := getattr(after, f)) is not getattr(state, f)}
    return assembled({**results, "param": quantities.param}, COMPLEX.get(dtype, dtype), half)


OPERATIONS = frozenset({"neg", "add", "sub", "mul", "div", "sqrt", "maximum", "minimum"})


def assembled(results: Mapping[str, trace.Node], dtype: str, half: str) -> Program:
    """The program that computes nodes of arrays, by the names of the arrays that they go to."""
    arrays: dict[str, None] = {}
    scalars: dict[str, str] = {}
    values: dict[tuple[str, ...], str] = {}
    kinds: dict[int, bool] = {}
    done: dict[int, str] = {}
    instructions: list[Instruction] = []
    each = dtype in HALF and half == "each"

    def emit(op: str, *inputs: str) -> str:
        key = (op, *inputs)
        if key not in values:
            values[key] = f"t{len(values)}"
            instructions.append(Instruction(op, inputs, values[key]))
        return values[key]

    def is_number(node: trace.Node) -> bool:
        if id(node) not in kinds:
            named = node.op == "name"
            kinds[id(node)] = "." in node.args[0] if named else all(map(is_number, operands(node)))
        return kinds[id(node)]

    def visit(node: trace.Node) -> str:
        if id(node) not in done:
            done[id(node)] = value(node)
        return done[id(node)]

    def value(node: trace.Node) -> str:
        if is_number(node):
            return scalars.setdefault(_written(node), f"c{len(scalars)}")
        if node.op == "name":
            arrays[node.args[0]] = None
            return str(node.args[0])
        inputs = [visit(x) for x in node.args]
        if node.op == "float32":
            return emit("float32", *inputs) if dtype == "float64" else inputs[0]
        if node.op == "lerp":
            start, end, weight = inputs
            found = emit("add", start, emit("mul", weight, emit("sub", end, start)))
        elif node.op in OPERATIONS:
            found = emit(node.op, *inputs)
        else:
            message = f"an element-wise operation is required, got {node.op}"
            raise TypeError(message)
        return emit(dtype, found) if each else found

    outputs = {name: visit(node) for name, node in results.items()}
    if dtype in HALF and not each:
        outputs = {name: emit(dtype, found) for name, found in outputs.items()}
    return Program(
        "float32" if dtype in HALF else dtype,
        tuple(arrays),
        tuple(scalars),
        tuple(instructions),
        tuple((name, found) for name, found in outputs.items() if name != found),
    )


def operands(node: trace.Node) -> tuple[trace.Node, ...]:
    """The nodes that a node is made of."""
    return () if node.op in ("const", "name") else node.args


SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}


def _written(node: trace.Node) -> str:
    """An expression of numbers as Python writes it."""
    if node.op in ("const", "name"):
        return str(node.args[0])
    args = [_written(x) for x in node.args]
    if node.op in SIGNS:
        return f"({args[0]} {SIGNS[node.op]} {args[1]})"
    return f"(-{args[0]})" if node.op == "neg" else f"{node.op}({args[0]})"


def numbers(program: Program, s: Any, h: Any) -> Any:
    """The scalars of a program in its dtype, rounded once each from what the host computed."""
    found = _numbers(program)(s, h)
    return np.array([plain(x) for x in found], program.dtype)


@functools.lru_cache(maxsize=256)
def _numbers(program: Program) -> Callable[[Any, Any], tuple[Any, ...]]:
    source = f"lambda s, h: ({''.join(f'{x}, ' for x in program.scalars)})"
    function: Callable[..., Any] = eval(source, {"weight": carried(program.dtype)})
    return function


# -- the tape: NumPy's functions, with `out=` into few rows, a chunk at a time --------------------
UFUNCS = {
    "neg": np.negative,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def names(program: Program) -> tuple[str, ...]:
    """The arrays that a program takes: those that it reads, then those that it only writes."""
    written = [array for array, _ in program.outputs]
    return (*program.arrays, *(x for x in written if x not in program.arrays))


def _round_to(dtype: str) -> Callable[[Any, Any], None]:
    def there_and_back(x: Any, out: Any) -> None:
        np.copyto(out, bfloat16(x) if dtype == "bfloat16" else x.astype(dtype))

    return there_and_back


class Tape(NamedTuple):
    """A program as a Python function of rows."""

    run: Callable[..., None]  # (*arrays, scalars, scratch): chunks of one length
    rows: int  # of scratch


@functools.lru_cache(maxsize=256)
def tape(program: Program) -> Tape:
    """The tape of a program: a result goes to its array as soon as nobody reads the old one."""
    last: dict[str, int] = {}
    for j, instruction in enumerate(program.instructions):
        last.update(dict.fromkeys(instruction.inputs, j))
    goes_to = {value: array for array, value in program.outputs}
    place: dict[str, str] = {}
    free: list[str] = []
    rows = 0
    lines = []
    for j, (op, inputs, output) in enumerate(program.instructions):
        operands = [place.get(x, x) for x in inputs]
        ended = [x for x in dict.fromkeys(inputs) if last[x] == j and x in place]
        free += [place[x] for x in ended if x not in goes_to]
        target = goes_to.get(output)
        if target is not None and last.get(target, -1) <= j:
            place[output] = target
        elif free:
            place[output] = free.pop()
        else:
            place[output] = f"r{rows}"
            rows += 1
        lines.append(f"{op}({', '.join(operands)}, {place[output]})")
    for array, value in program.outputs:
        if place.get(value, value) != array:
            lines.append(f"copyto({array}, {place.get(value, value)})")
    scalars = "".join(f"c{k}, " for k in range(len(program.scalars)))
    scratch = "".join(f"r{k}, " for k in range(rows))
    unpacked = [f"({scalars}) = c"] * bool(scalars) + [f"({scratch}) = r"] * bool(scratch)
    body = "".join(f"\n    {line}" for line in [*unpacked, *lines])
    roundings = {dtype: _round_to(dtype) for dtype in ("float16", "bfloat16", "float32")}
    space: dict[str, Any] = {**UFUNCS, **roundings, "copyto": np.copyto}
    exec(f"def run({', '.join(names(program))}, c, r):{body}", space)
    return Tape(space["run"], rows)


def _run_tape(program: Program, arrays: Sequence[Any], scalars: Any) -> None:
    """Run a program on arrays of one length in one dimension."""
    run, rows = tape(program)
    n = arrays[0].size
    scratch = np.empty((rows, min(CHUNK, n)), program.dtype)
    c = tuple(np.asarray(x) for x in scalars)
    if n <= CHUNK:
        run(*arrays, c, tuple(scratch))
        return
    for start in range(0, n, CHUNK):
        chunk = [x[start : start + CHUNK] for x in arrays]
        run(*chunk, c, tuple(scratch[:, : len(chunk[0])]))


def _run_apart(program: Program, arrays: Sequence[Any], scalars: Any) -> None:
    """Run a program on arrays of any layout, or of a dtype to be converted on the way."""
    if arrays[0].dtype.kind == "c":
        _run_apart(program, [x.real for x in arrays], scalars)
        _run_apart(program, [x.imag for x in arrays], scalars)
        return
    written = {array for array, _ in program.outputs}
    access: Any = [["readwrite" if x in written else "readonly"] for x in names(program)]
    with np.nditer(
        arrays,
        ["external_loop", "buffered", "zerosize_ok"],
        access,
        op_dtypes=[np.dtype(program.dtype)] * len(arrays),
        casting="unsafe",
        buffersize=CHUNK,
    ) as chunks:
        for chunk in chunks:
            _run_tape(program, chunk, scalars)


# -- the compiled loop: numba, one call for all tensors -------------------------------------------
PIECE = 65536
"""Elements of a piece where several threads share the work."""
PARALLEL = 1 << 18
"""Elements from which a second thread pays."""

_SOURCE = '''"""Made by refopt.interp.fused for {machine}."""

import numpy as np
from numba import carray, njit, prange, types
from numba.extending import intrinsic


@intrinsic
def pointer(context, address):
    def inttoptr(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.{dtype})(types.int64), inttoptr


# no fastmath: nothing is reordered or contracted; error_model: x / 0 is what IEEE 754 says
@njit(
    "void(int64[:, ::1], {dtype}[:, ::1])",
    error_model="numpy",
    nogil=True,
    cache=True,
    parallel={parallel},
)
def kernel(table, numbers):
    for k in prange(len(table)):
        n = table[k, {n}]
        c = numbers[table[k, {row}]]
{before}
        for i in range(n):
{body}
'''


def numba_source(program: Program, parallel: bool, machine: str = "any machine") -> str:
    """A module whose `kernel(table, numbers)` runs the program on pieces of arrays.

    A row of `table` is a piece: the addresses of the arrays in the order of `names`, the number of
    elements, and the row of its scalars in `numbers`.
    """
    arrays = names(program)
    before = [f"c{k} = c[{k}]" for k in range(len(program.scalars))]
    before += [f"{a}_ = carray(pointer(table[k, {q}]), n)" for q, a in enumerate(arrays)]
    body = [f"{a} = {a}_[i]" for a in program.arrays]
    for op, inputs, output in program.instructions:
        if op in SIGNS:
            value = f" {SIGNS[op]} ".join(inputs)
        else:
            value = f"-{inputs[0]}" if op == "neg" else f"np.{op}({', '.join(inputs)})"
        body.append(f"{output} = " + (f"np.float64({value})" if op == "float32" else value))
    body += [f"{array}_[i] = {value}" for array, value in program.outputs]
    return _SOURCE.format(
        machine=machine,
        dtype=program.dtype,
        parallel=parallel,
        n=len(arrays),
        row=len(arrays) + 1,
        before="\n".join(f"{'':8}{line}" for line in before),
        body="\n".join(f"{'':12}{line}" for line in body),
    )


def cache_folder() -> Path:
    """Where compiled loops are kept: `$REFOPT_CACHE`, or `refopt` in the user's cache folder."""
    if own := os.environ.get("REFOPT_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"), "refopt")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "refopt"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "refopt")


@functools.cache
def _writable_folder() -> Path:
    """The cache folder, or a new one until the end of the process where that cannot be written."""
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        warnings.warn(f"compiled loops are not kept: {error}", stacklevel=2)
    folder = Path(tempfile.mkdtemp(prefix="refopt-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.lru_cache(maxsize=256)
def _kernel(program: Program, parallel: bool) -> Callable[[Any, Any], None]:
    """The compiled loop of a program; kept on disk under a name made of its whole source."""
    import numba
    from llvmlite import binding

    machine = f"numba {numba.__version__}, {binding.get_host_cpu_name()}"
    source = numba_source(program, parallel, machine)
    name = f"refopt_fused_{hashlib.sha256(source.encode()).hexdigest()[:20]}"
    path = _writable_folder() / f"{name}.py"
    # whole or not at all: another process may have died half way, or write the same now
    if not path.exists() or path.read_text(encoding="utf-8") != source:
        part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        part.write_text(source, encoding="utf-8")
        part.replace(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # numba finds the module of what it loads by its name
    spec.loader.exec_module(module)
    return module.kernel


@functools.cache
def engine() -> str:
    """What runs programs: "numba" where refopt[fast] is installed, else "tape"."""
    if importlib.util.find_spec("numba") is None:
        return "tape"
    try:
        import numba  # noqa: F401
    except ImportError as error:
        warnings.warn(f"steps run on NumPy alone: {error}", stacklevel=2)
        return "tape"
    return "numba"


_together = threading.Lock()  # one of numba's threading layers is not thread-safe


def _run_compiled(program: Program, table: Any, scalars: Any) -> None:
    """Run the compiled loop on the rows of a table, on several threads where that pays."""
    import numba

    total = int(table[:, -2].sum())
    if total < PARALLEL or numba.get_num_threads() == 1:
        _kernel(program, False)(table, scalars)
        return
    with _together:
        _kernel(program, True)(_pieces(table, np.dtype(program.dtype).itemsize), scalars)


def _pieces(table: Any, itemsize: int) -> Any:
    """The rows of a table cut into rows of at most `PIECE` elements."""
    lengths = table[:, -2]
    counts = -(-lengths // PIECE)
    pieces = np.repeat(table, counts, axis=0)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    start = (np.arange(len(pieces)) - first) * PIECE
    pieces[:, -2] = np.minimum(pieces[:, -2] - start, PIECE)
    pieces[:, :-2] += (start * itemsize)[:, None]
    return pieces


# -- a step of many parameters --------------------------------------------------------------------
class Uninterrupted:
    """Within, Ctrl-C waits: what is written in place is written as a whole."""

    def __enter__(self) -> None:
        self._came: list[Any] = []
        self._old: Any = None
        if threading.current_thread() is threading.main_thread():
            self._old = signal.getsignal(signal.SIGINT)
        if callable(self._old):
            signal.signal(signal.SIGINT, lambda *args: self._came.append(args))

    def __exit__(self, *exception: object) -> None:
        if callable(self._old):
            signal.signal(signal.SIGINT, self._old)
            if self._came:
                self._old(*self._came[0])


def _nothing() -> None:
    """A dead reference."""


class Pass:
    """A step in place: the arrays of parameters are checked and laid out once, gradients each time.

    What can fail comes before the first write: `Pass(…)`, `takes` and `ready`, then `run`.

    Arguments
    ---------
    items: for each parameter its program, and all its arrays but the gradient, by their names.

    Attributes
    ----------
    apart: whether no two arrays that are written share memory.
    """

    def __init__(self, items: Sequence[tuple[Program, Mapping[str, Any]]]) -> None:
        self._groups: dict[Program, _Group] = {}
        bounds = []
        for i, (program, arrays) in enumerate(items):
            self._groups.setdefault(program, _Group(program)).add(i, arrays)
            bounds += [_bounds(arrays[name]) for name, _ in program.outputs]
        line = sorted(bound for bound in bounds if bound[0] < bound[1])
        self._low, self._high = np.array(line, np.int64).reshape(-1, 2).T.copy()
        self.apart = bool((self._low[1:] >= self._high[:-1]).all())
        self._given: list[Any] = [_nothing for _ in items]  # weak: gradients are the caller's

    def takes(self, grads: Sequence[Any]) -> bool:
        """Take the gradients of a step; False where one shares memory with what is written."""
        new = [i for i, grad in enumerate(grads) if grad is not self._given[i]()]
        if not new:
            return True
        bounds = np.array([_bounds(grads[i]) for i in new], np.int64)
        below = np.searchsorted(self._low, bounds[:, 1], "left")
        last = np.maximum(below - 1, 0)
        if len(self._low) and ((below > 0) & (self._high[last] > bounds[:, 0])).any():
            return False
        start = dict(zip(new, bounds[:, 0].tolist(), strict=True))
        for group in self._groups.values():
            group.take(grads, start)
        for i in new:
            self._given[i] = weakref.ref(grads[i])
        return True

    def ready(self) -> None:
        """Compile what is not compiled."""
        for group in self._groups.values():
            group.ready()

    def run(self, grads: Sequence[Any], scalars: Sequence[Any]) -> None:
        """Take the step.

        Arguments
        ---------
        grads: what `takes` got.
        scalars: for each parameter what `numbers` gave; the same object where it is the same.
        """
        with np.errstate(all="ignore"):
            for group in self._groups.values():
                group.run(grads, scalars)


class _Group:
    """The parameters of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = names(program)
        self.slot = self.names.index("grad")
        self.members: list[int] = []
        self.arrays: list[list[Any]] = []
        self.orders: list[str] = []
        self.direct: list[bool] = []
        self.rows: list[list[int]] = []
        self.table: Any = None  # rows as an array; None where they have changed

    def add(self, i: int, arrays: Mapping[str, Any]) -> None:
        own = [arrays.get(name) for name in self.names]
        order = _order([x for x in own if x is not None], self.program.dtype)
        count = next(x for x in own if x is not None)
        n = count.size * (2 if count.dtype.kind == "c" else 1)
        self.members.append(i)
        self.orders.append(order)
        self.direct.append(False)
        self.arrays.append(own)
        self.rows.append([0 if x is None else _bounds(x)[0] for x in own] + [n, 0])

    def take(self, grads: Sequence[Any], start: Mapping[int, int]) -> None:
        for k, i in enumerate(self.members):
            if i in start:
                grad, order = grads[i], self.orders[k]
                self.direct[k] = bool(order) and _order([grad], self.program.dtype, order) == order
                self.rows[k][self.slot] = start[i]
                self.table = None

    def ready(self) -> None:
        if engine() == "numba" and any(self.direct) and _compilable(self.program):
            _kernel(self.program, False)
        tape(self.program)

    def run(self, grads: Sequence[Any], scalars: Sequence[Any]) -> None:
        compiled = engine() == "numba" and _compilable(self.program)
        apart = [k for k, direct in enumerate(self.direct) if not (direct and compiled)]
        for k in apart:
            i, arrays = self.members[k], [*self.arrays[k]]
            arrays[self.slot] = grads[i]
            if self.direct[k]:
                arrays = [_line(x, self.orders[k]) for x in arrays]
                _run_tape(self.program, arrays, scalars[i])
            else:
                _run_apart(self.program, arrays, scalars[i])
        if len(apart) == len(self.members):
            return
        unique = {id(scalars[i]): scalars[i] for i in self.members}
        place = {key: row for row, key in enumerate(unique)}
        if self.table is None:
            self.table = np.array(self.rows, np.int64)
        self.table[:, -1] = [place[id(scalars[i])] for i in self.members]
        table = np.delete(self.table, apart, axis=0) if apart else self.table
        _run_compiled(self.program, table, np.stack([*unique.values()]))


def _compilable(program: Program) -> bool:
    return all(op not in HALF for op, _, _ in program.instructions)


def _order(arrays: Sequence[Any], dtype: str, wanted: str = "CF") -> str:
    """The order, C or F, in which all lie without gaps; empty where none, or of other dtypes."""
    if any(COMPLEX.get(x.dtype.name, x.dtype.name) != dtype for x in arrays):
        return ""
    for order in wanted:
        if all(x.flags[f"{order}_CONTIGUOUS"] and x.flags.aligned for x in arrays):
            return order
    return ""


def _line(x: Any, order: Any) -> Any:
    """The elements of an array without gaps as a view in one dimension; complex as reals."""
    line = x.reshape(-1, order=order)
    return line.view(line.real.dtype) if line.dtype.kind == "c" else line


def _bounds(x: Any) -> tuple[int, int]:
    """The first byte of an array and the one after the last."""
    if x.flags.c_contiguous:
        start = x.__array_interface__["data"][0]
        return start, start + x.nbytes
    return np.lib.array_utils.byte_bounds(x)


# -- a rule whose step is fused -------------------------------------------------------------------
def fused(rule: Any, half: str) -> Any:
    """A rule for `arrays.run` on NumPy, whose element-wise steps run as programs, on copies.

    `half`: as the profile says. A step with rows, or with scalars on a device, runs as it is.
    """

    def step(
        param: Any, grad: Any, state: Any, s: Any, h: Any, c: Any, *, xp: Any
    ) -> tuple[Any, Any]:
        arrays = {"param": param, "grad": grad, **state._asdict()}
        there = {name: plain(x) for name, x in arrays.items() if x is not None}
        if any(type(x) is not np.ndarray for x in there.values()) or not all(map(_on_host, s)):
            return rule.step(param, grad, state, s, h, c, xp=xp)
        state = rule.started(param, state, c, xp=xp) if hasattr(rule, "started") else state
        kept = [f for f, x in state._asdict().items() if x is not None]
        dtype = param.dtype if isinstance(param, Rounded) else dtype_name(param)
        made = program(rule, Profile("", c, h, half), h, dtype, kept)
        there |= {f: plain(getattr(state, f)) for f in kept}
        own = {f: x if f == "grad" else x.copy(order="K") for f, x in there.items()}
        one = Pass([(made, {f: x for f, x in own.items() if f != "grad"})])
        one.takes([own["grad"]])
        one.run([own["grad"]], [numbers(made, s, h)])
        written = {array for array, _ in made.outputs}
        results = {
            f: replace(x, array=own[f]) if isinstance(x, Rounded) else own[f]
            for f, x in {**state._asdict(), "param": param}.items()
            if f in written
        }
        nothing = rule.Quantities._make([None] * len(rule.Quantities._fields))
        quantities = nothing._replace(param=results.pop("param"))
        return quantities, state._replace(**results)

    update = FunctionType(
        rule.update.__code__,
        {**vars(rule), "step": step},
        closure=rule.update.__closure__,
        argdefs=rule.update.__defaults__,
    )
    update.__kwdefaults__ = rule.update.__kwdefaults__
    return SimpleNamespace(**{**vars(rule), "update": update})


def _on_host(x: Any) -> bool:
    return isinstance(x, float | int)
