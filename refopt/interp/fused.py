"""Runs the element-wise part of a rule in place, as one loop over all elements.

A rule is traced once for its choices and the dtype; `program` gives the trace as a short list of
instructions, from which every backend makes its loop. The results have the bits of the plain run
on NumPy. Rounding points: float32 and float64 round each operation; 16-bit arrays are computed in
float32 and rounded where the instructions say, once per stored array or after each operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.interp import trace
from refopt.interp.formats import COMPLEX
from refopt.interp.rounded import HALF, bfloat16, carried, plain

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


def _round_to(dtype: str) -> Callable[[Any, Any], None]:
    def there_and_back(x: Any, out: Any) -> None:
        np.copyto(out, bfloat16(x) if dtype == "bfloat16" else x.astype(dtype))

    return there_and_back


class Tape(NamedTuple):
    """A program as a Python function of rows."""

    run: Callable[..., None]  # (*arrays, scalars, scratch): chunks of one length
    rows: int  # of scratch
    names: tuple[str, ...]  # of the arrays: what is read, then what is only written
    written: frozenset[str]


@functools.lru_cache(maxsize=256)
def tape(program: Program) -> Tape:
    """The tape of a program: a result goes to its array as soon as nobody reads the old one."""
    last: dict[str, int] = {}
    for j, instruction in enumerate(program.instructions):
        last.update(dict.fromkeys(instruction.inputs, j))
    goes_to = {value: array for array, value in program.outputs}
    place: dict[str, str] = {}
    results = {value for _, value in program.outputs}
    free: list[str] = []
    rows = 0
    lines = []
    for j, (op, inputs, output) in enumerate(program.instructions):
        operands = [place.get(x, x) for x in inputs]
        for x in dict.fromkeys(inputs):
            if last[x] == j and x not in results and x in place:
                free.append(place[x])
        target = goes_to.get(output)
        if target is not None and last.get(target, -1) <= j and target not in place.values():
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
    written = [array for array, _ in program.outputs]
    names = (*program.arrays, *(x for x in written if x not in program.arrays))
    scalars = "".join(f"c{k}, " for k in range(len(program.scalars)))
    scratch = "".join(f"r{k}, " for k in range(rows))
    unpacked = [f"({scalars}) = c"] * bool(scalars) + [f"({scratch}) = r"] * bool(scratch)
    body = "".join(f"\n    {line}" for line in [*unpacked, *lines])
    roundings = {dtype: _round_to(dtype) for dtype in ("float16", "bfloat16", "float32")}
    space: dict[str, Any] = {**UFUNCS, **roundings, "copyto": np.copyto}
    exec(f"def run({', '.join(names)}, c, r):{body}", space)
    return Tape(space["run"], rows, names, frozenset(written))


def run_tape(program: Program, arrays: Sequence[Any], scalars: Any) -> None:
    """Run a program on NumPy arrays of any layout, in the order of `tape(program).names`."""
    made = tape(program)
    access: Any = [["readwrite" if x in made.written else "readonly"] for x in made.names]
    c = tuple(np.asarray(x) for x in scalars)
    scratch = np.empty((made.rows, min(CHUNK, arrays[0].size)), program.dtype)
    with (
        np.errstate(all="ignore"),
        np.nditer(
            arrays,
            ["external_loop", "buffered", "zerosize_ok"],
            access,
            op_dtypes=[np.dtype(program.dtype)] * len(arrays),
            casting="unsafe",
            buffersize=CHUNK,
        ) as chunks,
    ):
        for chunk in chunks:
            made.run(*chunk, c, tuple(scratch[:, : len(chunk[0])]))
