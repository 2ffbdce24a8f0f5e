"""Expressions as LaTeX: notation by example, and read back by a parser that shares no code."""

import math
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from refopt.interp import trace
from refopt.interp.latex import aligned, latex

SYMBOLS = {
    "a": "a",
    "b": "b",
    "c": r"\gamma",
    "m": r"\hat{m}_t",
    "P": r"\prod_{i=1}^{t} \mu_i",
    "x": "x^{2}",
}
a, b, c, m, P, x = map(trace.name, SYMBOLS)
sqrt, lerp = trace.NAMESPACE.sqrt, trace.NAMESPACE.lerp
xp, num = trace.NAMESPACE, trace.NUMBERS


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (a + b + c, r"a + b + \gamma"),
        (a + (b + c), r"a + \left(b + \gamma\right)"),
        (a - b - c, r"a - b - \gamma"),
        (a - (b - c), r"a - \left(b - \gamma\right)"),
        (a - (b + c), r"a - \left(b + \gamma\right)"),
        (a + -b, "a - b"),
        (-a + b, r"-a + b"),
        (-(a + b), r"-\left(a + b\right)"),
        (a * b * c, r"a b \gamma"),
        (a * (b * c), r"a \left(b \gamma\right)"),
        ((a + b) * c, r"\left(a + b\right) \gamma"),
        (a * (b - 1), r"a \left(b - 1\right)"),
        (-a * b * c, r"-a b \gamma"),
        (a - -b * c, r"a - \left(-b \gamma\right)"),
        (a * -b, r"a \left(-b\right)"),
        (a * a, "a^{2}"),
        ((a * b) * (a * b), r"a b \left(a b\right)"),
        ((a + b) * 2, r"\left(a + b\right) \cdot 2"),
        (2 * a, "2 a"),
        (2 * (trace.lift(3) * a), r"2 \left(3 a\right)"),
        (0.5 * a, r"\frac{1}{2} a"),
        (a * 0.5, r"a \frac{1}{2}"),
        (1.0 * a, "a"),
        (1.0 * (a + b) * c, r"\left(a + b\right) \gamma"),
        ((a + b) / (a - b), r"\frac{a + b}{a - b}"),
        (a / b / c, r"\frac{\frac{a}{b}}{\gamma}"),
        (a * (b / c), r"a \frac{b}{\gamma}"),
        ((a / b) ** 2, r"\left(\frac{a}{b}\right)^{2}"),
        ((a + b) ** 2, r"\left(a + b\right)^{2}"),
        ((a**2) ** b, r"\left(a^{2}\right)^{b}"),
        (x**b, r"\left(x^{2}\right)^{b}"),
        (a ** (b + 1), "a^{b + 1}"),
        (a * 0.96 ** (b * c), r"a \cdot 0.96^{b \gamma}"),
        (a**0.5, r"\sqrt{a}"),
        (sqrt(a + b) + c, r"\sqrt{a + b} + \gamma"),
        (m * m, r"\hat{m}_t^{2}"),
        (1 - P, r"1 - \prod_{i=1}^{t} \mu_i"),
        (P * a, r"a \prod_{i=1}^{t} \mu_i"),
        (a * P * b, r"b a \prod_{i=1}^{t} \mu_i"),
        (P * P, r"\left(\prod_{i=1}^{t} \mu_i\right)^{2}"),
        (P**a, r"\left(\prod_{i=1}^{t} \mu_i\right)^{a}"),
        (lerp(a, b, 1 - c), r"a + \left(1 - \gamma\right) \left(b - a\right)"),
        (num.float32(a * b), r"\mathrm{fl}_{32}\left(a b\right)"),
        (trace.NAMESPACE.float32(a), r"\mathrm{fl}_{32}\left(a\right)"),
        (
            num.native(a) * num.float64(b),
            r"\mathrm{fl}\left(a\right) \mathrm{fl}_{64}\left(b\right)",
        ),
        (sqrt(xp.sum(a * a)), r"\sqrt{\sum a^{2}}"),
        (xp.sum(a + b) - c, r"\sum \left(a + b\right) - \gamma"),
        (c - xp.sum(a * b), r"\gamma - \sum a b"),
        (xp.sum(a) * b, r"b \sum a"),
        (xp.sum(a) * xp.sum(b), r"\left(\sum a\right) \sum b"),
        (xp.maximum(xp.minimum(a, b), -c), r"\max\left(\min\left(a, b\right), -\gamma\right)"),
        (num.floor(a / b), r"\left\lfloor \frac{a}{b} \right\rfloor"),
        (c * num.ceil(a + b) ** 2, r"\gamma \left\lceil a + b \right\rceil^{2}"),
        (0.5 * (1 + num.cos(math.pi * a)), r"\frac{1}{2} \left(1 + \cos\left(\pi a\right)\right)"),
        (num.log(a) / num.log(b), r"\frac{\log\left(a\right)}{\log\left(b\right)}"),
        (num.log(a) ** 2, r"\left(\log\left(a\right)\right)^{2}"),
        (xp.zeros_like(a) + 1.0, "0 + 1"),
        (xp.scatter_add(xp.zeros_like(b), (2, 0), a * a), r"\mathrm{scatter}\left(a^{2}\right)"),
        (xp.scatter_add(b * a, (2, 0), -a), r"b a + \mathrm{scatter}\left(-a\right)"),
        (xp.take(a * a, (2, 0), 3), r"\mathrm{take}\left(a^{2}\right)"),
        (xp.rows(a + b, b, (2, 0), 3), r"\mathrm{rows}\left(a + b, b\right)"),
        (a + 1e-7, "a + 10^{-7}"),
        (a + 2.5e-7, r"a + 2.5 \cdot 10^{-7}"),
        (a * 2.5e-7, r"a \left(2.5 \cdot 10^{-7}\right)"),
        (a + -2, "a - 2"),
        (-2 * a, "-2 a"),
        (a - 1.0, "a - 1"),
        (a**1.5, "a^{1.5}"),
    ],
)
def test_notation(node: trace.Node, expected: str) -> None:
    assert latex(node, SYMBOLS) == expected


def test_a_name_without_latex_is_named_by_the_error() -> None:
    with pytest.raises(KeyError, match=r"state\.m"):
        latex(trace.name("state.m"), SYMBOLS)


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("matmul", (a + b, c), r"\left(a + b\right) \gamma"),
        ("matmul", (trace.Node("transpose", (a,)), a / b), r"a^{\top} \frac{a}{b}"),
        ("transpose", (a * b,), r"\left(a b\right)^{\top}"),
        ("spd_inverse", (a + b,), r"\left(a + b\right)^{-1}"),
        ("reshape", (a + b, trace.lift((1, -1))), "a + b"),
        ("length", (a,), "N_{a}"),
        ("eye", (trace.lift(3), a), "I"),
        ("diagonal_blocks", (a, trace.lift(4)), r"\mathrm{blocks}\left(a\right)"),
        ("trace", (a + b,), r"\mathrm{tr}\left(a + b\right)"),
        ("div", (a + b, trace.lift(1.0)), "a + b"),
    ],
)
def test_matrices_are_written_as_they_are_read(
    op: str, args: tuple[trace.Node, ...], expected: str
) -> None:
    assert latex(trace.Node(op, args), SYMBOLS) == expected


def test_an_unknown_operation_is_named_by_the_error() -> None:
    with pytest.raises(ValueError, match="got 'hadamard'"):
        latex(trace.Node("hadamard", (a, b)), SYMBOLS)


def test_equations_are_aligned_at_their_signs() -> None:
    assert aligned({"a": "b", "c": "d + e"}) == (
        "\\begin{aligned}\na &= b \\\\\nc &= d + e\n\\end{aligned}"
    )


# -- read back ------------------------------------------------------------------------------------
TOKEN = re.compile(r"\\left\(|\\right\)|\\frac|\\cdot|\\gamma|[0-9.]+|[ab{}^+-]")


def read(text: str, values: dict[str, Fraction]) -> Fraction:
    """The value of the LaTeX of sums, products, quotients and powers."""
    tokens = TOKEN.findall(text)
    assert "".join(tokens) == text.replace(" ", "")

    def take(expected: str) -> None:
        assert tokens.pop(0) == expected

    def group() -> Fraction:
        take("{")
        value = total()
        take("}")
        return value

    def total() -> Fraction:
        negative = tokens[0] == "-"
        if negative:
            take("-")
        value = -product() if negative else product()
        while tokens and tokens[0] in "+-":
            value = value + product() if tokens.pop(0) == "+" else value - product()
        return value

    def product() -> Fraction:
        value = power()
        while tokens and tokens[0] not in ("+", "-", "}", r"\right)"):
            if tokens[0] == r"\cdot":
                take(r"\cdot")
            value *= power()
        return value

    def power() -> Fraction:
        token = tokens.pop(0)
        if token == r"\left(":
            value = total()
            take(r"\right)")
        elif token == r"\frac":
            numerator = group()
            return numerator / group()  # no power follows: a fraction as a base has parentheses
        else:
            value = values[token] if token in values else Fraction(token)
        if tokens and tokens[0] == "^":
            take("^")
            value **= int(group())
        return value

    result = total()
    assert tokens == []
    return result


NODES = st.recursive(
    st.sampled_from([a, b, c, *map(trace.lift, (0, 1, 2, 3, 0.5, -2))]),
    lambda inner: st.one_of(
        st.builds(lambda x: -x, inner),
        st.builds(lambda x, n: x**n, inner, st.integers(0, 3)),
        st.builds(lambda x: x * x, inner),
        st.builds(
            lambda x, y, op: trace.apply(op, x, y),
            inner,
            inner,
            st.sampled_from(["add", "sub", "mul", "div"]),
        ),
        st.builds(lerp, inner, inner, inner),
    ),
    max_leaves=8,
)


class Rational:
    """`lerp` over the rational numbers."""

    @staticmethod
    def lerp(start: Any, end: Any, weight: Any) -> Any:
        return start + weight * (end - start)

    @staticmethod
    def lerp_from_end(start: Any, end: Any, weight: Any) -> Any:
        return end + (1 - weight) * (start - end)


@given(NODES)
def test_latex_read_back_has_the_value_of_the_expression(node: trace.Node) -> None:
    exact = trace.replace(
        node, lambda x: trace.lift(Fraction(x.args[0])) if x.op == "const" else None
    )
    values = {"a": Fraction(7, 3), "b": Fraction(-5, 11), "c": Fraction(13, 17)}
    try:
        expected = trace.evaluate(exact, values, xp=Rational(), num=None)
    except ZeroDivisionError:
        reject()
    symbols = {"a": values["a"], "b": values["b"], r"\gamma": values["c"]}
    assert read(latex(node, SYMBOLS), symbols) == expected
