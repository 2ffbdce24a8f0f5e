r"""The LaTeX that rules print, in Unicode for a terminal and as MathML for a page.

A small part of LaTeX: letters, digits and signs, names after a backslash, `\frac`, `\sqrt`,
`\hat`, `\bar`, `\mathrm`, `\left…\right`, scripts. Anything else is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, NoReturn
from xml.sax.saxutils import escape

SYMBOLS = {
    **{name: chr(0x3B1 + i) for i, name in enumerate(("alpha", "beta", "gamma", "delta"))},
    **{"epsilon": "ε", "theta": "θ", "lambda": "λ", "mu": "μ", "pi": "π", "rho": "ρ"},
    **{"psi": "ψ", "tau": "τ", "xi": "ξ", "nabla": "∇", "top": "⊤", "prod": "∏", "sum": "∑"},
}
OPERATORS = {"cdot": "·", "leftarrow": "←", "le": "≤", "ge": "≥"}
FUNCTIONS = {"max", "min", "cos", "log"}
FENCES = {"(": "(", ")": ")", r"\lfloor": "⌊", r"\rfloor": "⌋", r"\lceil": "⌈", r"\rceil": "⌉"}
ACCENTS = {"hat": ("\u0302", "^"), "bar": ("\u0304", "¯")}
BIG = ("∏", "∑")

TOKEN = re.compile(r"\\[A-Za-z]+|\d+(?:\.\d+)?|[^\s\\]|\s+")

SUPERSCRIPTS = str.maketrans("0123456789+-=()int⊤", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁱⁿᵗᵀ")
SUBSCRIPTS = str.maketrans(
    "0123456789+-=()aehijklmnoprstuvxβρ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵨ"
)


class Piece(NamedTuple):
    """A piece of mathematics: its kind, its text, and its parts."""

    kind: str
    text: str = ""
    parts: tuple[Piece, ...] = ()


def parsed(text: str) -> Piece:
    """The structure of LaTeX. Raises ValueError where it is of no known form."""
    tokens = [token for token in TOKEN.findall(text) if not token.isspace()]
    row = _row(tokens, text)
    if tokens:
        _refuse(text, tokens[0])
    return row


def _refuse(text: str, token: str) -> NoReturn:
    msg = f"text must be LaTeX that a rule prints, got {token!r} in {text!r}"
    raise ValueError(msg)


def _row(tokens: list[str], text: str, *ends: str) -> Piece:
    parts: list[Piece] = []
    while tokens and tokens[0] not in (*ends, "}", r"\right"):
        parts.append(_scripted(tokens, text))
    return parts[0] if len(parts) == 1 else Piece("row", "", tuple(parts))


def _scripted(tokens: list[str], text: str) -> Piece:
    base = _base(tokens, text)
    scripts: dict[str, Piece] = {}
    while tokens and tokens[0] in ("^", "_", "'"):
        mark = tokens.pop(0)
        scripts["^" if mark == "'" else mark] = (
            Piece("op", "′") if mark == "'" else _base(tokens, text)
        )
    if not scripts:
        return base
    return Piece(
        "scripts", "".join(sorted(scripts)), (base, *(scripts[k] for k in sorted(scripts)))
    )


def _group(tokens: list[str], text: str) -> Piece:
    if not tokens or tokens.pop(0) != "{":
        _refuse(text, "no {")
    inner = _row(tokens, text)
    if not tokens or tokens.pop(0) != "}":
        _refuse(text, "no }")
    return inner


def _fence(tokens: list[str], text: str) -> str:
    if not tokens or tokens[0] not in FENCES:
        _refuse(text, "no parenthesis")
    return FENCES[tokens.pop(0)]


def _base(tokens: list[str], text: str) -> Piece:
    if not tokens:
        _refuse(text, "its end")
    if tokens[0] == "{":
        return _group(tokens, text)
    token = tokens.pop(0)
    name = token.removeprefix("\\")
    if token == r"\frac":
        return Piece("frac", "", (_group(tokens, text), _group(tokens, text)))
    if token == r"\sqrt":
        return Piece("sqrt", "", (_group(tokens, text),))
    if token == r"\mathrm":
        found = re.match(r"\{(\w+)\}", "".join(tokens))
        if found is None:
            _refuse(text, token)
        del tokens[: tokens.index("}") + 1]
        return Piece("function", found[1])
    if token == r"\left":
        left = _fence(tokens, text)
        inner = _row(tokens, text)
        if tokens[:1] != [r"\right"]:
            _refuse(text, r"no \right")
        del tokens[0]
        return Piece("fence", left + _fence(tokens, text), (inner,))
    if token.startswith("\\"):
        if name in ACCENTS:
            return Piece("accent", name, (_group(tokens, text),))
        if name in FUNCTIONS:
            return Piece("function", name)
        if name in OPERATORS:
            return Piece("op", OPERATORS[name])
        if name in SYMBOLS:
            return Piece("name", SYMBOLS[name])
        _refuse(text, token)
    if token[0].isdigit():
        return Piece("number", token)
    return Piece("name" if token.isalpha() else "op", token)


# -- Unicode --------------------------------------------------------------------------------------
def unicode(text: str) -> str:
    """LaTeX as one line of Unicode; parentheses stand for the bars of fractions and roots."""
    return _line(parsed(text))


def _line(x: Piece) -> str:
    match x:
        case Piece("row", _, parts):
            return _joined(parts)
        case Piece("frac", _, (Piece("number", "1"), Piece("number", "2"))):
            return "½"
        case Piece("frac", _, (above, below)):
            return f"{_atom(above)} / {_atom(below)}"
        case Piece("sqrt", _, (inner,)):
            return f"√{_atom(inner)}"
        case Piece("accent", name, (inner,)):
            return _line(inner) + ACCENTS[name][0]
        case Piece("fence", ends, (inner,)):
            return f"{ends[0]}{_line(inner)}{ends[1]}"
        case Piece("scripts", kinds, (base, *scripts)):
            text = _line(base) if base.kind in ("name", "number", "function") else _atom(base)
            for kind, script in zip(reversed(kinds), reversed(scripts), strict=True):
                text += _script(script, kind)
            return text
        case Piece("op", "-", _):
            return "−"
    return x.text


def _script(x: Piece, kind: str) -> str:
    if x == Piece("op", "′"):
        return "′"
    table = SUPERSCRIPTS if kind == "^" else SUBSCRIPTS
    plain = re.sub(r"[\s]", "", _line(x)).replace("−", "-")
    if all(ord(letter) in table for letter in plain):
        return plain.translate(table)
    return f"{kind}{_atom(x)}"


def _atom(x: Piece) -> str:
    """In parentheses, where it is more than one thing."""
    text = _line(x)
    call = x.kind == "row" and len(x.parts) == 2 and _opens(x.parts[1], x.parts[0])
    single = call or (x.kind not in ("row", "frac") and not (x.kind == "scripts" and " " in text))
    return text if single else f"({text})"


def _joined(parts: tuple[Piece, ...]) -> str:
    line = ""
    for i, part in enumerate(parts):
        text, before = _line(part), parts[i - 1] if i else None
        if part.kind == "frac" and "/" in text and _beside_factor(parts, i):
            text = f"({text})"
        tight = (
            before is None
            or text in "),"
            or (part.kind == "op" and text == "(")
            or (before.kind == "op" and before.text == "(")
            or _opens(part, before)
            or _signs(parts, i - 1)
        )
        line += text if tight else f" {text}"
    return line


def _beside_factor(parts: tuple[Piece, ...], i: int) -> bool:
    """Whether a fraction is multiplied by what stands before or after it."""
    beside = [parts[k] for k in (i - 1, i + 1) if 0 <= k < len(parts)]
    return any(x.kind != "op" or x.text == "·" for x in beside)


def _opens(part: Piece, before: Piece) -> bool:
    """Whether a parenthesis is that of a function before it."""
    inner, base = (x.parts[0] if x.kind == "scripts" else x for x in (part, before))
    return inner.kind == "fence" and base.kind == "function"


def _signs(parts: tuple[Piece, ...], i: int) -> bool:
    """Whether a minus is the sign of what follows, with nothing to subtract from."""
    return parts[i] == Piece("op", "-") and (i == 0 or parts[i - 1].kind == "op")


# -- MathML ---------------------------------------------------------------------------------------
def mathml(text: str) -> str:
    """LaTeX as MathML, without the element around it."""
    return _element(parsed(text))


def page(lines: Mapping[str, str]) -> str:
    """Equations (left side to right side, LaTeX) as one MathML element, aligned at their signs."""
    cell = '<mtd style="text-align: {}">{}</mtd>'
    rows = "".join(
        f"<mtr>{cell.format('right', mathml(left))}<mtd><mo>=</mo></mtd>"
        f"{cell.format('left', mathml(right))}</mtr>"
        for left, right in lines.items()
    )
    return (
        '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">'
        f'<mtable displaystyle="true">{rows}</mtable></math>'
    )


def _element(x: Piece) -> str:
    inner = [_element(part) for part in x.parts]
    match x.kind:
        case "row":
            return f"<mrow>{''.join(inner)}</mrow>"
        case "frac":
            return f"<mfrac>{''.join(inner)}</mfrac>"
        case "sqrt":
            return f"<msqrt>{inner[0]}</msqrt>"
        case "accent":
            mark = f'<mo stretchy="false">{ACCENTS[x.text][1]}</mo>'
            return f'<mover accent="true">{inner[0]}{mark}</mover>'
        case "fence":
            return f"<mrow><mo>{x.text[0]}</mo>{inner[0]}<mo>{x.text[1]}</mo></mrow>"
        case "scripts":
            base, *scripts = inner
            big = x.parts[0].text in BIG
            # sorted: "^" before "_"; MathML wants what is below first
            name = {"^": "msup", "_": "msub", "^_": "munderover" if big else "msubsup"}[x.text]
            return f"<{name}>{base}{''.join(reversed(scripts))}</{name}>"
        case "number":
            return f"<mn>{x.text}</mn>"
        case "name" if x.text in BIG or x.text in ("∇", "⊤"):
            return f"<mo>{x.text}</mo>"
        case "name":
            return f"<mi>{x.text}</mi>"
        case "function":
            return f'<mi mathvariant="normal">{x.text}</mi>'
    return f"<mo>{escape(x.text.replace('-', '−'))}</mo>"
