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
import operator
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import warnings
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from refopt.interp import trace
from refopt.interp.arrays import ArrayNamespace, Floats, dtype_name, namespace_of, passage
from refopt.interp.formats import COMPLEX
from refopt.interp.rounded import HALF, Rounded, bfloat16, carried, plain
from refopt.typing import Profile

CHUNK = 32768
"""Elements at a time: inputs and scratch rows of a chunk stay in the second-level cache."""


class Instruction(NamedTuple):
    """One operation on all elements: output = op(*inputs)."""

    op: str  # of OPERATIONS ("known": 0 for NaN), or a dtype: round
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


OPERATIONS = frozenset({"neg", "add", "sub", "mul", "div", "sqrt", "maximum", "minimum", "known"})


def assembled(results: Mapping[str, trace.Node], dtype: str, half: str) -> Program:
    """The program that computes nodes of arrays, by the names of the arrays that they go to."""
    arrays: dict[str, None] = {}
    scalars: dict[str, str] = {}
    values: dict[tuple[str, ...], str] = {}
    kinds: dict[int, bool] = {}
    done: dict[int, str] = {}
    instructions: list[Instruction] = []
    each = dtype in HALF and half != "stored"

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
    return _applied(node, map(_written, node.args))


def _applied(node: trace.Node, operands: Iterable[str]) -> str:
    args = [*operands]
    if node.op in SIGNS:
        return f"({args[0]} {SIGNS[node.op]} {args[1]})"
    return f"(-{args[0]})" if node.op == "neg" else f"{node.op}({args[0]})"


@functools.lru_cache(maxsize=256)
def expressions(program: Program) -> Callable[[Any, Any], tuple[Any, ...]]:
    """The function that gives the scalars of a step, from the rule's Scalars and settled Hyper."""
    carry = carried(program.dtype)
    space = {"weight": lambda x: carry(x) if isinstance(x, float) else x}
    found: Callable[..., Any] = eval(
        f"lambda s, h: ({''.join(f'{x}, ' for x in program.scalars)})", space
    )
    return found


@functools.lru_cache(maxsize=256)
def numbers(program: Program) -> Callable[[Any, Any], Any]:
    """The same in the dtype of the program: as the host computes them, rounded once each."""
    found, dtype = expressions(program), np.dtype(program.dtype)

    def rounded(s: Any, h: Any) -> Any:
        with np.errstate(over="ignore"):
            return np.array(found(s, h), dtype)

    return rounded


# -- the tape: NumPy's functions, with `out=` into few rows, a chunk at a time --------------------
def _known(x: Any, out: Any) -> None:
    np.copyto(out, x)
    np.copyto(out, 0.0, where=np.isnan(out))


UFUNCS = {
    "neg": np.negative,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "known": _known,
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
    # an array that another one becomes is read last
    last.update({value: len(program.instructions) for _, value in program.outputs})
    goes_to = {value: array for array, value in program.outputs}
    place: dict[str, str] = {}
    free: list[str] = []
    rows = 0
    lines = []
    for j, (op, inputs, output) in enumerate(program.instructions):
        operands = [place.get(x, x) for x in inputs]
        ended = [x for x in dict.fromkeys(inputs) if last[x] == j and x in place]
        free += [place[x] for x in ended]
        target = goes_to.get(output)
        if target is not None and last.get(target, -1) <= j:
            place[output] = target
        elif free:
            place[output] = free.pop()
        else:
            place[output] = f"r{rows}"
            rows += 1
        out = "out=" if op in ("maximum", "minimum") else ""  # which NumPy wants for these
        lines.append(f"{op}({', '.join(operands)}, {out}{place[output]})")
    for array, value in sorted(program.outputs, key=lambda output: output[1] in place):
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


def _run_tape(program: Program, arrays: Sequence[Any], scalars: Any, scratch: Any) -> None:
    """Run a program on arrays of one length in one dimension; `scratch` has rows for a chunk.

    `scalars`: a tuple of arrays of shape ().
    """
    run, rows = tape(program)
    n = arrays[0].size
    if n <= CHUNK:
        run(*arrays, scalars, tuple(scratch[:rows, :n]))
        return
    for start in range(0, n, CHUNK):
        chunk = [x[start : start + CHUNK] for x in arrays]
        run(*chunk, scalars, tuple(scratch[:rows, : len(chunk[0])]))


def _run_gathered(
    program: Program, arrays: Sequence[Any], grads: Sequence[Any], scalars: Any, scratch: Any
) -> None:
    """Run a program on at most a chunk, whose gradients lie apart; they go to a row of scratch."""
    row = scratch[-1, : sum(x.size for x in grads)]
    np.concatenate(grads, axis=None, out=row)
    _run_tape(program, [row if x is None else x for x in arrays], scalars, scratch)


def _run_apart(program: Program, arrays: Sequence[Any], scalars: Any, scratch: Any) -> None:
    """Run a program on arrays of any layout, or of a dtype to be converted on the way."""
    if arrays[0].dtype.kind == "c":
        _run_apart(program, [x.real for x in arrays], scalars, scratch)
        _run_apart(program, [x.imag for x in arrays], scalars, scratch)
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
            _run_tape(program, chunk, scalars, scratch)


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
        elif op == "known":
            value = "{0} if {0} == {0} else 0.0".format(*inputs)
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
    """The compiled loop of a program."""
    return loaded(numba_source(program, parallel, compiler())).kernel


def compiler() -> str:
    """What compiles, and for which processor: what it made is for no other."""
    import numba
    from llvmlite import binding

    return f"numba {numba.__version__}, {binding.get_host_cpu_name()}"


def loaded(source: str) -> Any:
    """The module of a source; what is compiled of it is kept on disk, under a name made of it."""
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
    return module


@functools.cache
def engine() -> str:
    """What runs programs: `$REFOPT_ENGINE`, else "numba" where that is installed, else "tape"."""
    wanted = os.environ.get("REFOPT_ENGINE", "")
    if wanted not in ("", "numba", "tape"):
        message = f"REFOPT_ENGINE: numba or tape is required, got {wanted!r}"
        raise ValueError(message)
    if wanted:
        return wanted
    if importlib.util.find_spec("numba") is None:
        return "tape"
    try:
        import numba  # noqa: F401
    except ImportError as error:
        warnings.warn(f"steps run on NumPy alone: {error}", stacklevel=2)
        return "tape"
    return "numba"


_together = threading.Lock()  # one of numba's threading layers is not thread-safe


def threads() -> int:
    """How many threads numba uses."""
    import numba

    return int(numba.get_num_threads())


def cut(table: Any, itemsize: int, most: int = PIECE) -> Any:
    """The rows of a table cut into rows of at most so many elements."""
    lengths = table[:, -2]
    counts = -(-lengths // most)
    pieces = np.repeat(table, counts, axis=0)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    start = (np.arange(len(pieces)) - first) * most
    pieces[:, -2] = np.minimum(pieces[:, -2] - start, most)
    pieces[:, :-2] += (start * itemsize)[:, None]
    return pieces


# -- the scalars of a step, traced ----------------------------------------------------------------
@functools.lru_cache(maxsize=256)
def clockwork(
    rule: Any, choices: Any, program: Program, num: Any
) -> Callable[[Any, Any], tuple[Any, tuple[Any, ...]]]:
    """What `rule.tick` and then `numbers` give, as one function of numbers, traced.

    Of the clock and the settled Hyper; it returns the scalars of a step and the next clock.
    `num`: the number system.
    """
    lines: dict[str, str] = {}

    def visit(node: trace.Node) -> str:
        if node.op in ("const", "name"):
            return str(node.args[0])
        return lines.setdefault(_applied(node, map(visit, node.args)), f"t{len(lines)}")

    settled = choices._replace(given=rule.as_given, storage=rule.stored_as_given)
    clock, numbers = trace.symbols(rule.Clock, "k"), trace.symbols(rule.Hyper, "h")
    scalars, after = rule.tick(clock, numbers, settled, num=trace.NUMBERS)
    found = trace.fields(scalars, "s")
    row = [re.sub(r"\bs\.\w+", lambda x: visit(found[x[0]]), y) for y in program.scalars]
    then = [visit(trace.lift(x)) for x in after]
    body = "".join(f"    {name} = {value}\n" for value, name in lines.items())
    outputs = (f"({''.join(f'{x}, ' for x in values)})" for values in (row, then))
    dtype = np.dtype(program.dtype)

    def rounded(numbers: Any) -> Any:
        with np.errstate(over="ignore"):
            return np.array(numbers, dtype)

    space: dict[str, Any] = {"num": num, "weight": carried(program.dtype), "rounded": rounded}
    exec(f"def run(k, h):\n{body}    return rounded({next(outputs)}), {next(outputs)}", space)
    run: Callable[[Any, Any], tuple[Any, tuple[Any, ...]]] = space["run"]
    return run


# -- a step of many parameters --------------------------------------------------------------------
@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within, Ctrl-C and other signals wait: what is written in place is written as a whole."""
    came: list[Any] = []
    try:
        with ExitStack() as restored:
            if threading.current_thread() is threading.main_thread():
                for number, handler in zip(SIGNALS, map(_handler, SIGNALS), strict=True):
                    if callable(handler):  # of Python
                        restored.callback(signal.signal, number, handler)
                        signal.signal(number, lambda *args: came.append(args))
            yield
    finally:
        for number, frame in came:
            signal.getsignal(number)(number, frame)  # type: ignore[operator, misc]


SIGNALS = tuple(signal.valid_signals())
_handler = sys.modules["_signal"].getsignal  # in C: it is asked for each signal


def writable(x: Any) -> bool:
    """Whether a `Pass` can write the array: one of NumPy, no subclass, not read-only."""
    return type(x) is np.ndarray and bool(x.flags.writeable)


def same(now: Sequence[Any], then: Sequence[Any]) -> bool:
    """Whether both have the same objects."""
    return len(now) == len(then) and all(map(operator.is_, now, then))


def forms(arrays: Iterable[Any], of: Iterable[Callable[[Any], Any]]) -> list[list[Any]]:
    """What arrays are, each in all of these ways."""
    return [[*map(one, arrays)] for one in of]


def attribute(name: str) -> Callable[[Any], Any]:
    """The function in C that gives an attribute."""
    return operator.attrgetter(name)


SHAPE, DTYPE, STRIDES = attribute("shape"), attribute("dtype"), attribute("strides")
FORM = SHAPE, DTYPE, attribute("flags.num")
"""What can change of an array in place; where there are gaps, its strides too."""


class Pass:
    """A step in place: the arrays of parameters are checked and laid out once, gradients each time.

    What can fail comes before the first write: `Pass(…)`, `takes` and `ready`, or `again`; then
    `run`. A step costs no line of Python for each parameter, as long as the arrays stay the same.

    Arguments
    ---------
    items: for each parameter its program, and all its arrays but the gradient, by their names.

    Attributes
    ----------
    apart: whether no two arrays that are written share memory.
    compiled: whether all runs in C, known by `ready`.
    """

    form = FORM

    def __init__(self, items: Sequence[tuple[Program, Mapping[str, Any]]]) -> None:
        groups: dict[Program, list[int]] = {}
        for i, (program, _) in enumerate(items):
            groups.setdefault(program, []).append(i)
        self._groups = [
            self._grouped(p, own, [items[i][1] for i in own]) for p, own in groups.items()
        ]
        bounds = [extent(arrays[name]) for p, arrays in items for name, _ in p.outputs]
        line = sorted(bound for bound in bounds if bound[0] < bound[1])
        self._low, self._high = [low for low, _ in line], [high for _, high in line]
        self.apart = _apart(line)
        self._arrays = [x for _, arrays in items for x in arrays.values()]
        self._like = forms([next(iter(arrays.values())) for _, arrays in items], self.form[:2])
        self._given: list[Any] = []  # weak: gradients are the caller's

    def _grouped(
        self, program: Program, members: Sequence[int], columns: Sequence[Mapping[str, Any]]
    ) -> Any:
        """Those that run one program."""
        return _Group(program, members, columns)

    def again(self, grads: Sequence[Any]) -> bool:
        """Take the gradients of another step, arrays of the same library.

        False too where one does not fit its parameter, or another array was changed in place.
        """
        now = forms([*self._arrays, *grads], self._form)
        if now == self._forms:
            there = same([*map(operator.call, self._given)], grads)
            return there or self.takes(grads, alike=not any(group.apart for group in self._groups))
        n = len(self._arrays)
        held = all(x[:n] == y[:n] for x, y in zip(now, self._forms, strict=True))
        return held and [x[n:] for x in now[:2]] == self._like and self.takes(grads)

    def takes(self, grads: Sequence[Any], alike: bool = False) -> bool:
        """Take the gradients of a step; False where one shares memory with what is written.

        `alike`: they are laid out as the last ones were.
        """
        start = []
        for grad in grads:
            low, high = extent(grad)
            before = bisect_left(self._low, high)
            if before and self._high[before - 1] > low:
                return False
            start.append(low)
        self._given = []  # until all are taken
        if alike:
            for group in self._groups:
                group.move(start)
            self._given = [*map(weakref.ref, grads)]
            return True
        if not all(group.take(grads, start) for group in self._groups):
            return False
        self.ready()  # others may be without gaps now
        arrays = [*self._arrays, *grads]
        whole = all(x.flags.c_contiguous or x.flags.f_contiguous for x in arrays)
        self._form = self.form if whole else (*self.form, STRIDES)
        self._forms = forms(arrays, self._form)
        self._given = [*map(weakref.ref, grads)]
        return True

    def ready(self) -> None:
        """Compile what is not compiled."""
        for group in self._groups:
            group.ready()
        # a lock that is waited for can be interrupted
        self.compiled = all(group.compiled and not group.parallel for group in self._groups)

    def run(
        self, grads: Sequence[Any], scalars: Sequence[Any], then: Sequence[Callable[[], Any]] = ()
    ) -> None:
        """Take the step; Ctrl-C comes before or after it.

        Arguments
        ---------
        grads: what `takes` got.
        scalars: for each parameter what `numbers` gave; the same object where it is the same.
        then: functions in C, to be called as part of the step.
        """
        at_once(self.calls(grads, scalars), then, self.compiled)

    def calls(self, grads: Sequence[Any], scalars: Sequence[Any]) -> list[Callable[[], Any]]:
        """The functions that `run` calls."""
        return [call for group in self._groups for call in group.calls(grads, scalars)]


def at_once(
    calls: Sequence[Callable[[], Any]], then: Sequence[Callable[[], Any]], in_c: bool
) -> None:
    """Call one function after the other; Ctrl-C comes before or after all of them."""
    if in_c:
        deque(map(operator.call, (*calls, *then)), 0)  # no line of Python where it could come
        return
    with uninterrupted(), np.errstate(all="ignore"):
        deque(map(operator.call, (*calls, *then)), 0)


class _Group:
    """The parameters of one program."""

    def __init__(
        self, program: Program, members: Sequence[int], columns: Sequence[Mapping[str, Any]]
    ) -> None:
        self.program = program
        self.members = [*members]
        self.names = names(program)
        self.slot = self.names.index("grad") if "grad" in self.names else None
        self.arrays = [[column.get(name) for name in self.names] for column in columns]
        given = [[*column.values()] for column in columns]
        self.orders = [_order(arrays, program.dtype) for arrays in given]
        rows = [[0 if x is None else extent(x)[0] for x in arrays] for arrays in self.arrays]
        # a program of reals takes complex arrays too
        self.complex = [x[0].dtype.kind == "c" for x in given]
        self.lengths = [x[0].size * (1 + c) for x, c in zip(given, self.complex, strict=True)]
        self.total = sum(self.lengths)
        self.table = np.zeros((len(rows), len(self.names) + 2), np.int64)
        self.table[:, :-2], self.table[:, -2] = rows, self.lengths
        self.rows: list[int] = []  # of scalars, as they are in the table
        self.apart: list[int] = []  # those that the compiled loop does not take
        self.compiled = False  # all are taken by it
        self.parallel = False  # on several threads
        if self.slot is None:
            self._meet([x[0].flags for x in given], None)

    def move(self, start: Sequence[int]) -> None:
        """Take gradients of the same layout."""
        if self.slot is not None:
            self.table[:, self.slot] = [*map(start.__getitem__, self.members)]
            self.rows = []

    def take(self, grads: Sequence[Any], start: Sequence[int]) -> bool:
        if self.slot is not None:
            own = [grads[i] for i in self.members]
            self.move(start)
            self._meet([x.flags for x in own], own)
        return True

    def _meet(self, flags: Sequence[Any], grads: Sequence[Any] | None) -> None:
        """Find who goes which way, by the flags of the gradients."""
        self.direct = direct = [
            f.aligned and (f.c_contiguous if order == "C" else order == "F" and f.f_contiguous)
            for f, order in zip(flags, self.orders, strict=True)
        ]
        fast = engine() == "numba" and _compilable(self.program)
        self.apart = [k for k, x in enumerate(direct) if not (x and fast)]
        self.compiled = not self.apart
        self.joints = self._joints(grads) if self.apart else []
        self.rows = []

    def ready(self) -> None:
        if len(self.apart) < len(self.members):
            self.parallel = self.total >= PARALLEL and threads() > 1
            self.kernel = _kernel(self.program, self.parallel)
            # numba learns the types of arguments in Python, once
            nothing = np.empty((1, len(self.program.scalars)), self.program.dtype)
            self.kernel(self.table[:0], nothing)
        if self.apart:
            tape(self.program)

    def calls(self, grads: Sequence[Any], scalars: Sequence[Any]) -> Iterator[Callable[[], Any]]:
        own = [*map(scalars.__getitem__, self.members)]
        unique = dict(zip(map(id, own), own, strict=True))
        place = dict(zip(unique, range(len(unique)), strict=True))
        one = len(unique) == 1
        rows = [0] * len(own) if one else [*map(place.__getitem__, map(id, own))]
        if rows != self.rows:
            self.rows, self.table[:, -1] = rows, rows
            self.lines = self._lines()
            table = np.delete(self.table, self.apart, axis=0) if self.apart else self.table
            itemsize = np.dtype(self.program.dtype).itemsize
            self.pieces = cut(table, itemsize) if self.parallel else table
        if self.apart:
            numbers = [tuple(map(np.asarray, row)) for row in unique.values()]
            # allocated before anything is written
            more = "gathered" in self.joints
            size = tape(self.program).rows + more, min(CHUNK, self.total)
            scratch = np.empty(size, self.program.dtype)
            for line in self.lines:
                yield self._call(line, grads, numbers[rows[line[0]]], scratch)
        if len(self.apart) == len(self.members):
            return
        table = own[0][None] if one else np.array([*unique.values()])
        call = partial(self.kernel, self.pieces, table)
        yield from (_together.acquire, call, _together.release) if self.parallel else (call,)

    def _call(
        self, line: Sequence[int], grads: Sequence[Any], numbers: Any, scratch: Any
    ) -> Callable[[], None]:
        """What runs a line on the tape."""
        k = line[0]
        own = [grads[self.members[j]] for j in line] if self.slot is not None else []
        arrays = [*self.arrays[k]]
        if not self.direct[k]:
            if self.slot is not None:
                arrays[self.slot] = own[0]
            return partial(_run_apart, self.program, arrays, numbers, scratch)
        n = sum(self.lengths[j] for j in line) if line[1:] else None
        gathers = not all(self.joints[j] == "whole" for j in line[1:])
        if self.slot is not None and not gathers:
            arrays[self.slot] = own[0]
        arrays = [None if x is None else _line(x, self.orders[k], n) for x in arrays]
        if gathers:
            return partial(_run_gathered, self.program, arrays, own, numbers, scratch)
        return partial(_run_tape, self.program, arrays, numbers, scratch)

    def _joints(self, grads: Sequence[Any] | None) -> list[str]:
        """How each follows the one before it in the same buffers: "whole", or all but gradients."""
        ends = self.table[:, :-2] + self.table[:, -2:-1] * np.dtype(self.program.dtype).itemsize
        follow = self.table[1:, :-2] == ends[:-1]
        found = [""]
        for k, row in enumerate(follow.tolist(), 1):
            whole = grads is None or (row[self.slot] and _one_buffer(grads[k - 1], grads[k]))
            if self.slot is not None:
                row[self.slot] = True
            joined = (
                all(row)
                and self.direct[k - 1]
                and self.direct[k]
                and (whole or (not self.complex[k] and self.orders[k - 1 : k + 1] == ["C", "C"]))
                and all(
                    x is None or _one_buffer(x, y)
                    for x, y in zip(self.arrays[k - 1], self.arrays[k], strict=True)
                )
            )
            found.append("" if not joined else "whole" if whole else "gathered")
        return found

    def _lines(self) -> list[list[int]]:
        """Those that the tape takes; in one list those that run as one."""
        lines: list[list[int]] = []
        size, gathered = 0, False
        for k in self.apart:
            joint, n = self.joints[k], self.lengths[k]
            gathered = gathered or joint != "whole"
            after = lines and lines[-1][-1] == k - 1 and self.rows[k] == self.rows[k - 1]
            if after and joint and (size + n <= CHUNK or not gathered):
                lines[-1].append(k)
                size += n
            else:
                lines.append([k])
                size, gathered = n, False
        return lines


def _one_buffer(x: Any, y: Any) -> bool:
    base = x.base
    return (
        base is y.base
        and type(base) is np.ndarray
        and base.flags.c_contiguous
        and base.dtype == x.dtype
    )


MANY, SMALL = 8, 8192
"""Of so many arrays, and below so many elements on average, one buffer is faster on the tape."""


def pays(arrays: Sequence[Any]) -> bool:
    """Whether arrays are faster in one buffer."""
    small = sum(x.size for x in arrays) < SMALL * len(arrays)
    return small and len(arrays) >= MANY and engine() == "tape"


def parts(room: Any, like: Sequence[Any]) -> list[Any]:
    """Elements of a line, one behind the other, each a view in the shape of an array."""
    return [room[i : i + 1].reshape(x.shape) for i, x in enumerate(like)]


def flat(arrays: Sequence[Any]) -> list[Any]:
    """Copies of arrays of one dtype, one behind the other in one buffer."""
    ends = np.cumsum([0, *(x.size for x in arrays)])
    room = np.empty(ends[-1], arrays[0].dtype)
    parts = [room[a:b].reshape(x.shape) for (a, b), x in zip(pairwise(ends), arrays, strict=True)]
    for part, x in zip(parts, arrays, strict=True):
        part[...] = x
    return parts


def adjacent(arrays: Sequence[Any]) -> bool:
    """Whether arrays lie one behind the other in one buffer."""
    follow = all(a[1] == b[0] for a, b in pairwise(map(extent, arrays)))
    return follow and all(_one_buffer(arrays[0], x) for x in arrays)


def _apart(line: Sequence[tuple[int, int]]) -> bool:
    """Whether sorted bounds do not overlap."""
    return all(one[1] <= other[0] for one, other in pairwise(line))


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


def _line(x: Any, order: Any, n: int | None = None) -> Any:
    """The elements of an array without gaps as a view in one dimension; complex as reals.

    `n`: so many, as they follow in its buffer.
    """
    line = x.reshape(-1, order=order)
    line = line.view(line.real.dtype) if line.dtype.kind == "c" else line
    if n is None:
        return line
    whole = x.base.reshape(-1).view(line.dtype)
    start = (extent(x)[0] - extent(whole)[0]) // line.itemsize
    return whole[start : start + n]


def extent(x: Any) -> tuple[int, int]:
    """The first byte of an array and the one after the last."""
    if x.flags.c_contiguous or x.flags.f_contiguous:
        device = getattr(x, "__cuda_array_interface__", None)
        start = (device or x.__array_interface__)["data"][0]
        return start, start + x.nbytes
    return np.lib.array_utils.byte_bounds(x)


# -- an update whose steps are fused --------------------------------------------------------------
def with_step(rule: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """The rule's `update` as it is written, around another `step`."""
    update = FunctionType(
        rule.update.__code__,
        {**vars(rule), "step": step},
        closure=rule.update.__closure__,
        argdefs=rule.update.__defaults__,
    )
    update.__kwdefaults__ = rule.update.__kwdefaults__
    return update


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class _Held(trace.Node):
    """The symbol of an array."""

    array: Any = None


class _Beside(ArrayNamespace):
    """Operations on gradients, which are arrays; the parameters beside them are symbols."""

    def zeros_like(self, x: Any, /) -> Any:
        return super().zeros_like(x.array if isinstance(x, _Held) else x)

    def float32(self, x: Any, /) -> Any:
        return x if dtype_name(x) in COMPLEX else super().float32(x)  # no such step is taken


class _NumbersOf(Floats):
    """The numbers for a parameter that is a symbol; `dtype` says how 16 bits are rounded."""

    def of(self, param: Any, /) -> Floats:
        array = np.empty(0, param.array.dtype)
        return Floats().of(passage(array, self.dtype).enter(array))


def prepared(
    engine: Any,
    rule: Any,
    profile: Profile,
    params: Sequence[Any],
    grads: Sequence[Any],
    states: Sequence[Any],
    clocks: Sequence[Any],
    hyper: Any,
    **more: Any,
) -> tuple[Callable[..., None], list[Any]] | None:
    """A step that `arrays.run` would take, in place: a function that takes it, and the clocks.

    The rule's `update` runs on symbols for parameters and states: its steps become programs, and so
    does what it makes of their results. What it makes of gradients is computed at once. The
    function takes functions in C, to be called as part of the step.

    `engine`: this module for arrays of NumPy, `cuda` for those of CuPy. None where that is not
    possible: arrays that it cannot write, rows, arrays that share memory, or gradients of 16 bits,
    complex or of several dtypes that are not taken as they are.
    """
    kept = [[x for x in state if x is not None] for state in states]
    if not all(map(engine.writable, (*params, *chain.from_iterable(kept)))):
        return None
    if any(grad is not None and type(grad) is not type(params[0]) for grad in grads):
        return None
    beside = _Beside(namespace_of(*params).xp)
    bounds = sorted(extent(x) for x in (*params, *chain.from_iterable(kept)) if x.size)
    if not _apart(bounds):
        return None
    dtypes = [dtype_name(param) for param in params]
    if profile.half == "float32" and "float64" in dtypes:  # computed in another dtype than its own
        return None
    simple = len({*dtypes}) == 1 and dtypes[0] in ("float32", "float64")
    symbols = [_Held("name", ("param",), array=param) for param in params]
    place = {id(symbol): i for i, symbol in enumerate(symbols)}
    named = [
        type(state)(
            *(x if x is None else _Held("name", (f,), array=x) for f, x in state._asdict().items())
        )
        for state in states
    ]
    items, given, own, scalars = [], [], [], []

    def step(
        param: Any, grad: Any, state: Any, s: Any, h: Any, c: Any, *, xp: Any
    ) -> tuple[Any, Any]:
        i = place[id(param)]
        fields = [f for f, x in state._asdict().items() if x is not None]
        made = program(rule, profile._replace(choices=c), h, dtypes[i], fields)
        arrays = {f: x.array for f, x in state._asdict().items() if f in made.arrays}
        items.append((made, {"param": params[i], **arrays}))
        own.append(grad is grads[i])
        given.append(np.asarray(grad) if isinstance(grad, np.generic) else grad)
        scalars.append(numbers(made)(s, h))
        nothing = rule.Quantities._make([None] * len(rule.Quantities._fields))
        return nothing._replace(param=param), state

    with np.errstate(all="ignore"):
        quantities, after, ticked = with_step(rule, step)(
            symbols,
            grads,
            named,
            clocks,
            hyper,
            profile.choices,
            xp=beside,
            num=_NumbersOf(profile.half),
            **more,
        )
    if not (simple or all(own)):
        return None
    later = []
    for i, (q, new, old) in enumerate(zip(quantities, after, named, strict=True)):
        results = {f: x for f, x in new._asdict().items() if x is not getattr(old, f)}
        if q is not None and q.param is not symbols[i]:
            results["param"] = q.param
        if not results:
            continue
        mine = {id(symbols[i]), *map(id, old)}
        if dtypes[i] in HALF or any(id(x) not in mine for y in results.values() for x in leaves(y)):
            return None
        made = assembled(results, COMPLEX.get(dtypes[i], dtypes[i]), profile.half)
        held = {**old._asdict(), "param": symbols[i]}
        later.append((made, {f: held[f].array for f in names(made)}))
    first, second = engine.Pass(items), engine.Pass(later)
    if not (first.apart and second.apart and first.takes(given)):
        return None
    first.ready()
    second.ready()

    def take(then: Sequence[Callable[[], Any]] = ()) -> None:
        calls = [*first.calls(given, scalars), *second.calls([], [made_of(x) for x, _ in later])]
        at_once(calls, then, first.compiled and second.compiled)

    def made_of(made: Program) -> Any:
        return numbers(made)(None, None)

    return take, ticked


def leaves(node: trace.Node) -> Iterator[trace.Node]:
    """The names in an expression."""
    if node.op == "name":
        yield node
    for x in operands(node):
        yield from leaves(x)


def on_copies(program: Program, arrays: Mapping[str, Any], s: Any, h: Any) -> dict[str, Any]:
    """What a program writes, as new arrays of NumPy."""
    own = {name: arrays[name].copy(order="K") for name in names(program) if name != "grad"}
    one = Pass([(program, own)])
    one.takes([arrays["grad"]])
    one.ready()
    one.run([arrays["grad"]], [numbers(program)(s, h)])
    return {name: own[name] for name, _ in program.outputs}


def fused(
    rule: Any,
    half: str,
    takes: Callable[[Any], bool] = lambda x: type(x) is np.ndarray,
    run: Callable[[Program, Mapping[str, Any], Any, Any], dict[str, Any]] = on_copies,
) -> Any:
    """A rule for `arrays.run`, whose element-wise steps run as programs.

    `half`: as the profile says. `takes`: whether `run` takes an array; `run`: what a program makes
    of arrays, by name, and of the rule's Scalars and Hyper. A step with rows runs as it is.
    """

    def step(
        param: Any, grad: Any, state: Any, s: Any, h: Any, c: Any, *, xp: Any
    ) -> tuple[Any, Any]:
        if hasattr(rule, "started"):  # what was not kept so far
            state = rule.started(param, state, c, xp=xp)
        there = {"param": param, "grad": grad, **state._asdict()}
        arrays = {f: plain(x) for f, x in there.items() if x is not None}
        if not all(map(takes, arrays.values())):
            return rule.step(param, grad, state, s, h, c, xp=xp)
        dtype = param.dtype if isinstance(param, Rounded) else dtype_name(param)
        fields = [f for f in state._fields if f in arrays]
        made = program(rule, Profile("", c, h, half), h, dtype, fields)
        results = {
            f: replace(there[f], array=x) if isinstance(there[f], Rounded) else x
            for f, x in run(made, arrays, s, h).items()
        }
        nothing = rule.Quantities._make([None] * len(rule.Quantities._fields))
        return nothing._replace(param=results.pop("param")), state._replace(**results)

    return SimpleNamespace(**{**vars(rule), "update": with_step(rule, step)})
