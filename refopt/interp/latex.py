r"""Expressions as LaTeX.

Parentheses are those that the order of evaluation needs, and no others; sums and products without
them are evaluated from the left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from refopt.interp.trace import Node, apply, lift

# How tightly a piece of LaTeX holds together. A big operator binds everything to its right.
SUM, BIG, PRODUCT, FRACTION, POWER, ATOM = range(6)

ROUNDED = {
    "float16": r"\mathrm{fl}_{16}",
    "float32": r"\mathrm{fl}_{32}",
    "num.float32": r"\mathrm{fl}_{32}",
    "num.float64": r"\mathrm{fl}_{64}",
    "num.native": r"\mathrm{fl}",
}
FUNCTIONS = {
    "maximum": r"\max",
    "minimum": r"\min",
    "num.cos": r"\cos",
    "num.log": r"\log",
    "scatter_add": r"\mathrm{scatter}",
    "take": r"\mathrm{take}",
    "rows": r"\mathrm{rows}",
    "trace": r"\mathrm{tr}",
    "max_abs": r"\mathrm{maxabs}",
    "counts": r"\mathrm{counts}",
    "mean": r"\mathrm{mean}",
    "diagonal_blocks": r"\mathrm{blocks}",
    "inverse_cholesky": r"\mathrm{chol}^{-1}",
}
BIG_OPERATORS = (r"\prod", r"\sum")


def latex(node: Node, names: Mapping[str, str]) -> str:
    """The expression in LaTeX.

    Parameters
    ----------
    names
        The LaTeX of every name in it.

    Raises
    ------
    KeyError
        A name has no LaTeX.
    """
    return _write(node, names)[0]


def aligned(lines: Mapping[str, str]) -> str:
    """Equations (left side to right side) as one aligned block."""
    rows = " \\\\\n".join(f"{left} &= {right}" for left, right in lines.items())
    return f"\\begin{{aligned}}\n{rows}\n\\end{{aligned}}"


def _write(node: Node, names: Mapping[str, str]) -> tuple[str, int]:
    """LaTeX and how tightly it holds together."""

    def at_least(level: int, x: Node) -> str:
        text, own = _write(x, names)
        return text if own >= level else rf"\left({text}\right)"

    match node.op, node.args:
        case "const", (x,):
            return _number(x)
        case "name", (label,):
            return names[label], _level(names[label])
        case "neg", (x,):
            return f"-{at_least(BIG, x)}", SUM
        case "add", (x, y) if (positive := _negated(y)) is not None:
            return _write(x - positive, names)
        case "add", (x, y):
            return f"{at_least(SUM, x)} + {at_least(BIG, y)}", SUM
        case "sub", (x, y):
            return f"{at_least(SUM, x)} - {at_least(BIG, y)}", SUM
        case "mul", (x, y) if x is y:
            return f"{at_least(ATOM, x)}^{{2}}", POWER
        case "mul", (Node(op="const", args=(1,)), x):  # exact: no rounding to show
            return _write(x, names)
        case "mul", (x, y):
            if (positive := _negated(x)) is not None:
                return _write(-(positive * y), names)
            if _write(x, names)[1] == BIG != _write(y, names)[1]:
                x, y = y, x  # what follows a big operator would seem to belong to it
            big = _write(y, names)[1] == BIG
            left, right = at_least(PRODUCT, x), at_least(BIG if big else FRACTION, y)
            sign = r" \cdot " if right[0].isdigit() else " "
            return f"{left}{sign}{right}", BIG if big else PRODUCT
        case "div", (x, Node(op="const", args=(1.0,))):
            return _write(x, names)
        case "div", (x, y):
            return rf"\frac{{{latex(x, names)}}}{{{latex(y, names)}}}", FRACTION
        case ("sqrt", (x,)) | ("pow", (x, Node(op="const", args=(0.5,)))):
            return rf"\sqrt{{{latex(x, names)}}}", ATOM
        case "pow", (x, y):
            return f"{at_least(ATOM, x)}^{{{latex(y, names)}}}", POWER
        case "sum", (x,):
            return rf"\sum {at_least(PRODUCT, x)}", BIG
        case "num.floor", (x,):
            return rf"\left\lfloor {latex(x, names)} \right\rfloor", ATOM
        case "num.ceil", (x,):
            return rf"\left\lceil {latex(x, names)} \right\rceil", ATOM
        case "lerp", (start, end, weight):
            return _write(start + weight * (end - start), names)
        case op, (x,) if op in ROUNDED:
            return rf"{ROUNDED[op]}\left({latex(x, names)}\right)", ATOM
        case "reshape" | "permute" | "pad" | "cut", (x, *_):
            return _write(x, names)  # the same elements
        case "eye", _:
            return "I", ATOM
        case "length", (x,):
            return f"N_{{{latex(x, names)}}}", ATOM
        case "transpose", (x,):
            return rf"{at_least(ATOM, x)}^{{\top}}", POWER
        case "spd_inverse", (x,):
            return f"{at_least(ATOM, x)}^{{-1}}", POWER
        case "matmul", (x, y):
            return f"{at_least(PRODUCT, x)} {at_least(FRACTION, y)}", PRODUCT
        case "counts" | "diagonal_blocks" | "mean", (x, *_):
            return rf"{FUNCTIONS[node.op]}\left({latex(x, names)}\right)", POWER
        case "zeros_like", _:
            return "0", ATOM
        case "scatter_add", (Node(op=op) as base, *rest) if op != "zeros_like":
            return _write(base + Node("scatter_add", (apply("zeros_like", base), *rest)), names)
        case ("scatter_add", (_, _, *xs)) | ("take" | "rows", (*xs, _, _)) | (_, xs) if (
            node.op in FUNCTIONS
        ):
            operands = ", ".join(latex(x, names) for x in xs)  # a power would seem to be theirs
            return rf"{FUNCTIONS[node.op]}\left({operands}\right)", POWER
    message = f"op must be an operation of a trace, got {node.op!r}"
    raise ValueError(message)


def _negated(node: Node) -> Node | None:
    """-`node`, where a sign stands at its front and can be left out."""
    match node:
        case Node(op="neg", args=(x,)):
            return x
        case Node(op="const", args=(x,)) if x < 0:
            return lift(-x)
        case Node(op="mul", args=(x, y)):
            positive = _negated(x)
            return None if positive is None else positive * y
    return None


def _level(symbol: str) -> int:
    if symbol.startswith(BIG_OPERATORS):
        return BIG
    return POWER if "^" in symbol else ATOM


def _number(x: float) -> tuple[str, int]:
    if x < 0:
        return f"-{_number(-x)[0]}", SUM
    if x == math.pi:
        return r"\pi", ATOM
    if x == 0.5:
        return r"\frac{1}{2}", FRACTION
    digits, _, exponent = f"{x!r}".partition("e")
    if not exponent:
        return digits.removesuffix(".0"), ATOM
    power = f"10^{{{int(exponent)}}}"
    return (power, POWER) if digits == "1" else (rf"{digits} \cdot {power}", PRODUCT)
