"""Symbols: run a rule on names instead of numbers and keep its expressions.

A trace is plain data. A `Node` is a constant, a name, or one of few operations on nodes; a node
that the rule used twice is the same object twice. Printers, evaluators and compilers walk it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

CASTS = frozenset({"num.float32", "num.float64", "num.native"})
"""The roundings of a number system; the array operation "float32" is another."""
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "num.floor": math.floor,
    "num.ceil": math.ceil,
    "num.cos": math.cos,
    "num.log": math.log,
}
"""Functions of a number system."""


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    return start + weight * (end - start)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
}
"""Operations that are operators of every number and array; the others belong to a namespace."""

EXAMPLE: dict[str, Callable[..., Any]] = {
    **ARITHMETIC,
    "sqrt": lambda x: x**0.5,
    "lerp": _lerp,
    "sum": float,
    "maximum": max,
    "minimum": min,
    **FUNCTIONS,
    **dict.fromkeys({*CASTS, "float32"}, float),
}
"""Operations by example; a scattered or selected row has none."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Node:
    """An expression.

    Attributes
    ----------
    op
        "const", "name", a key of `ARITHMETIC`, one of `CASTS` or `FUNCTIONS`, or an operation of a
        namespace with its arguments: "sqrt", "float32", "lerp", "sum", "maximum", "minimum",
        "zeros_like", "scatter_add", "take", "rows", or one of `MATRICES`.
    args
        The constant, a number or the indices of rows; the name; or the operands, which are nodes.
    value
        An example of its value, which decides the branches that a rule takes on numbers. None
        where it is unknown.
    """

    op: str
    args: tuple[Any, ...]
    value: Any = None

    def __neg__(self) -> Node:
        return apply("neg", self)

    def __add__(self, other: Any) -> Node:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Node:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Node:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Node:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Node:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Node:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Node:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return apply("div", other, self)

    def __pow__(self, other: Any) -> Node:
        return apply("pow", self, other)

    def __rpow__(self, other: Any) -> Node:
        return apply("pow", other, self)

    def __lt__(self, other: Any) -> bool:
        return bool(self._example() < lift(other)._example())

    def __le__(self, other: Any) -> bool:
        return bool(self._example() <= lift(other)._example())

    def __gt__(self, other: Any) -> bool:
        return bool(self._example() > lift(other)._example())

    def __ge__(self, other: Any) -> bool:
        return bool(self._example() >= lift(other)._example())

    def __bool__(self) -> bool:
        message = f"an expression is neither true nor false; a rule branched on {self!r}"
        raise TypeError(message)

    def _example(self) -> Any:
        if self.value is None:
            message = f"a comparison needs an example value, and {self!r} has none"
            raise TypeError(message)
        return self.value

    def __repr__(self) -> str:
        if self.op in ("const", "name"):
            return str(self.args[0])
        return f"{self.op}({', '.join(map(repr, self.args))})"


def name(text: str, value: Any = None) -> Node:
    """An input called `text`, with an example of its value."""
    return Node("name", (text,), value)


def lift(x: Any) -> Node:
    """`x` as a node: itself, or a constant."""
    return x if isinstance(x, Node) else Node("const", (x,), x)


def apply(op: str, *args: Any) -> Node:
    """The node of an operation on nodes and numbers; NotImplemented beside arrays of pairs."""
    if any(getattr(x, "__array_ufunc__", x) is None and x is not None for x in args):
        return NotImplemented  # as NumPy does: left to the other operand
    nodes = tuple(lift(x) for x in args)
    value = None
    if op in EXAMPLE and all(node.value is not None for node in nodes):
        try:
            value = EXAMPLE[op](*(node.value for node in nodes))
        except (ArithmeticError, ValueError):  # 1/0 or log(0): only a comparison would need it
            value = None
    return Node(op, nodes, value)


class _Arrays:
    """The namespace of arrays that are symbols."""

    def sqrt(self, x: Any, /) -> Node:
        return apply("sqrt", x)

    def zeros_like(self, x: Any, /) -> Node:
        return apply("zeros_like", x)

    def lerp(self, start: Any, end: Any, weight: Any, /) -> Node:
        return apply("lerp", start, end, weight)

    def lerp_from_end(self, start: Any, end: Any, weight: Any, /) -> Node:
        return apply("lerp", end, start, 1 - weight)

    def float32(self, x: Any, /) -> Node:
        return apply("float32", x)

    def sum(self, x: Any, /) -> Node:
        return apply("sum", x)

    def maximum(self, x: Any, y: Any, /) -> Node:
        return apply("maximum", x, y)

    def minimum(self, x: Any, y: Any, /) -> Node:
        return apply("minimum", x, y)

    def scatter_add(self, base: Any, indices: tuple[int, ...], values: Any, /) -> Node:
        return apply("scatter_add", base, indices, values)

    def take(self, x: Any, indices: tuple[int, ...], size: int, /) -> Node:
        return apply("take", x, indices, size)

    def rows(self, new: Any, old: Any, indices: tuple[int, ...], size: int, /) -> Node:
        return apply("rows", new, old, indices, size)


MATRICES = frozenset(
    {"reshape", "permute", "transpose", "cut", "pad", "mean", "trace", "max_abs", "float16"}
    | {"length", "counts", "eye", "diagonal_blocks", "matmul", "spd_inverse", "inverse_cholesky"}
)
"""What `refopt.typing.Matrices` adds, apart from what is not traced: shapes, stacks of patches."""


class Matrices(_Arrays):
    """The namespace of matrices that are symbols; examples of their values give their shapes.

    Arguments
    ---------
    example: the namespace in which examples are computed.
    """

    def __init__(self, example: Any) -> None:
        self._example = example

    def shape(self, x: Node, /) -> tuple[int, ...]:
        return tuple(self._example.shape(x.value))

    def sum(self, x: Any, /) -> Node:
        return self._apply("sum", x)

    def zeros_like(self, x: Any, /) -> Node:
        return self._apply("zeros_like", x)

    def __getattr__(self, op: str) -> Callable[..., Node]:
        if op not in MATRICES:
            raise AttributeError(op)
        return lambda *args: self._apply(op, *args)

    def _apply(self, op: str, *args: Any) -> Node:
        nodes = tuple(lift(x) for x in args)
        return Node(op, nodes, getattr(self._example, op)(*(node.value for node in nodes)))


class _Numbers:
    """The number system of symbols; roundings that are not in `casts` leave no trace."""

    def __init__(self, casts: frozenset[str]) -> None:
        self.casts = casts

    def __call__(self, x: Any, /) -> Node:
        return lift(x)

    def float32(self, x: Any, /) -> Node:
        return self._cast("num.float32", x)

    def float64(self, x: Any, /) -> Node:
        return self._cast("num.float64", x)

    def native(self, x: Any, /) -> Node:
        return self._cast("num.native", x)

    def floor(self, x: Any, /) -> Node:
        return apply("num.floor", x)

    def ceil(self, x: Any, /) -> Node:
        return apply("num.ceil", x)

    def cos(self, x: Any, /) -> Node:
        return apply("num.cos", x)

    @property
    def pi(self) -> float:
        return math.pi

    def log(self, x: Any, /) -> Node:
        return apply("num.log", x)

    def of(self, param: Any, /) -> _Numbers:
        return self

    def _cast(self, op: str, x: Any) -> Node:
        return apply(op, x) if op in self.casts else lift(x)


NAMESPACE = _Arrays()
NUMBERS = _Numbers(CASTS)
"""Every rounding is recorded."""
FORMULA_NUMBERS = _Numbers(CASTS - {"num.float64"})
"""For equations: a conversion to float64 is a matter of storage and goes unrecorded."""


def symbols(record: Any, label: str, examples: Any = None) -> Any:
    """A NamedTuple of type `record` whose fields are the inputs "label.field"."""
    return record(*(name(f"{label}.{f}", getattr(examples, f, None)) for f in record._fields))


def fields(record: Any, label: str) -> dict[str, Node]:
    """The fields of a NamedTuple of nodes by their names "label.field"; None has none."""
    return {f"{label}.{f}": lift(x) for f, x in record._asdict().items() if x is not None}


def replace(node: Node, rule: Callable[[Node], Node | None]) -> Node:
    """`node` with every node for which `rule` gives another replaced by that one, outermost first.

    What is shared stays shared.
    """
    done: dict[int, Node] = {}

    def walk(old: Node) -> Node:
        if id(old) not in done:
            new = rule(old)
            if new is None and old.op not in ("const", "name"):
                args = tuple(walk(x) for x in old.args)
                unchanged = all(a is b for a, b in zip(args, old.args, strict=True))
                new = old if unchanged else Node(old.op, args, old.value)
            done[id(old)] = old if new is None else new
        return done[id(old)]

    return walk(node)


def define(outputs: Mapping[str, Node], *, renamed: Container[str] = ()) -> dict[str, Node]:
    """Every output by its expression, in which earlier outputs stand as their names.

    A value keeps the first name it has: an input its own, unless that is one of `renamed`.
    """
    names: dict[int, Node] = {}
    definitions = {}
    for label, node in outputs.items():
        definitions[label] = replace(node, lambda x: names.get(id(x)))
        if node.op != "const" and (node.op != "name" or node.args[0] in renamed):
            names.setdefault(id(node), name(label, node.value))
    return definitions


def evaluate(node: Node, names: Mapping[str, Any], *, xp: Any, num: Any) -> Any:
    """The value of an expression.

    Parameters
    ----------
    names
        The value of every name in it.
    xp, num
        Where all but arithmetic comes from: a Namespace and Numbers, as a rule takes them.

    Raises
    ------
    KeyError
        A name has no value.
    """
    done: dict[int, Any] = {}

    def walk(node: Node) -> Any:
        if node.op == "const":
            return node.args[0]
        if node.op == "name":
            return names[node.args[0]]
        if id(node) not in done:
            of_numbers = node.op.startswith("num.")
            function = ARITHMETIC.get(node.op) or getattr(
                num if of_numbers else xp, node.op.removeprefix("num.")
            )
            done[id(node)] = function(*map(walk, node.args))
        return done[id(node)]

    return walk(node)


def run(
    definitions: Mapping[str, Node], inputs: Mapping[str, Any], *, xp: Any, num: Any
) -> dict[str, Any]:
    """The values of all definitions, in order; each may use the names of those before it."""
    values = dict(inputs)
    for label, node in definitions.items():
        values[label] = evaluate(node, values, xp=xp, num=num)
    return {label: values[label] for label in definitions}
