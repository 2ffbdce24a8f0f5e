"""Unicode and MathML say what the LaTeX of the rules says."""

import re
import xml.etree.ElementTree as ET

import pytest

from refopt.interp.notation import mathml, page, unicode
from refopt.oracle import spec

PRINTED = sorted(
    {
        side
        for optimizer in spec.RULES
        for lines in (
            *(
                spec.equations(optimizer, profile.choices)
                for profile in spec.RULES[optimizer].PROFILES.values()
            ),
            *(
                spec.shown(optimizer, axis, name)
                for axis, named in spec.RULES[optimizer].AXES.items()
                for name in named
            ),
            dict(
                spec.function(x).split(" = ", 1) for x in spec.load(optimizer).get("functions", ())
            ),
            dict.fromkeys(spec.load(optimizer)["meanings"], "1"),
        )
        for line in lines.items()
        for side in line
    }
)
"""Every side of an equation that is printed somewhere."""

TEX = {
    **{"∇": r"\nabla", "⊤": r"\top", "∏": r"\prod", "∑": r"\sum", "·": r"\cdot", "−": "-"},
    **{"⌊": r"\lfloor", "⌋": r"\rfloor", "⌈": r"\lceil", "⌉": r"\rceil"},
    **{"α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "ε": r"\epsilon", "θ": r"\theta"},
    **{"λ": r"\lambda", "μ": r"\mu", "π": r"\pi", "ρ": r"\rho", "ψ": r"\psi", "τ": r"\tau"},
}
ACCENTS = {"^": r"\hat", "¯": r"\bar"}
FENCES = {"(": ")", "⌊": "⌋", "⌈": "⌉"}


def written(node: ET.Element, *, single: bool = False) -> str:
    """The LaTeX of a MathML element, without spaces; `single`: as one argument."""
    parts = list(node)
    match node.tag:
        case "mfrac":
            return r"\frac" + "".join(f"{{{written(x)}}}" for x in parts)
        case "msqrt":
            return rf"\sqrt{{{written(parts[0])}}}"
        case "mover":
            return rf"{ACCENTS[parts[1].text]}{{{written(parts[0])}}}"
        case "mrow" if (
            parts
            and parts[0].tag == "mo"
            and parts[0].text in FENCES
            and (len(parts) == 3 and parts[2].text == FENCES[parts[0].text])
        ):
            left, inner, right = parts
            ends = [TEX.get(x.text, x.text) for x in (left, right)]
            return rf"\left{ends[0]}{written(inner)}\right{ends[1]}"
        case "mrow":
            return "".join(map(written, parts))
        case "msub":
            return f"{written(parts[0])}_{{{written(parts[1])}}}"
        case "msup" if parts[1].text == "′":
            return f"{written(parts[0])}'"
        case "msup":
            return f"{written(parts[0])}^{{{written(parts[1])}}}"
        case "msubsup" | "munderover" if parts[2].text == "′":
            return f"{written(parts[0])}'_{{{written(parts[1])}}}"
        case "msubsup" | "munderover":
            return f"{written(parts[0])}_{{{written(parts[1])}}}^{{{written(parts[2])}}}"
        case "mi" if node.get("mathvariant") == "normal":
            name = node.text
            return rf"\{name}" if name in ("max", "min", "cos", "log") else rf"\mathrm{{{name}}}"
    return TEX.get(node.text, node.text)


def plain(latex: str) -> str:
    """LaTeX without spaces, and with braces around every script."""
    latex = re.sub(r"([_^])([A-Za-z0-9]|\\[a-z]+)(?![a-z])", r"\1{\2}", latex)
    return re.sub(r"\s+", "", latex)


@pytest.mark.parametrize("latex", PRINTED)
def test_mathml_read_back_is_the_latex(latex: str) -> None:
    assert plain(written(ET.fromstring(f"<mrow>{mathml(latex)}</mrow>"))) == plain(latex)


def test_different_latex_is_different_unicode() -> None:
    assert len({unicode(latex) for latex in PRINTED}) == len(PRINTED) > 100


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        (r"\theta_t", "θₜ"),
        (r"\theta'_t", "θₜ′"),
        (r"\hat{v}_t", "v\u0302ₜ"),
        (r"\prod_{i=1}^{t+1} \mu_i", "∏ᵢ₌₁ᵗ⁺¹ μᵢ"),
        (r"\beta_1 m_{t-1} + \left(1 - \beta_1\right) g_t", "β₁ mₜ₋₁ + (1 − β₁) gₜ"),
        (r"\frac{g_t}{\sqrt{v_t} + \epsilon}", "gₜ / (√vₜ + ε)"),
        (r"\frac{g_t}{\sqrt{v_t + \epsilon}}", "gₜ / √(vₜ + ε)"),
        (r"\frac{a}{b} c", "(a / b) c"),
        (r"c \cdot \frac{a}{b}", "c · (a / b)"),
        (r"\frac{1}{2} \cdot 0.96^{t \psi}", "½ · 0.96^(t ψ)"),
        (r"-\left(a - b\right)^{2}", "−(a − b)²"),
        (r"\max\left(-c_v, \sqrt{\sum g^{2}}\right)", "max(−cᵥ, √(∑ g²))"),
        (r"\mathrm{fl}_{32}\left(0.96\right)^{\psi}", "fl₃₂(0.96)^ψ"),
        (r"a^{\top} b^{-1}", "aᵀ b⁻¹"),
        (r"\left\lfloor \frac{s}{d} \right\rfloor", "⌊s / d⌋"),
        (r"10^{-7}", "10⁻⁷"),
    ],
)
def test_unicode(latex: str, expected: str) -> None:
    assert unicode(latex) == expected


def test_a_page_is_one_element_aligned_at_the_signs() -> None:
    math = ET.fromstring(page({"a": "b", r"\theta_t": r"\frac{a}{b}"}))
    assert math.tag == "{http://www.w3.org/1998/Math/MathML}math"
    rows = list(math[0])
    assert [[cell.get("style") for cell in row] for row in rows] == (
        [["text-align: right", None, "text-align: left"]] * 2
    )


@pytest.mark.parametrize(
    "latex",
    [r"\oint x", r"\frac{a}", r"\left(a", r"a}", r"{a", r"\mathrm{+}", "a_", r"\left[a\right]"],
)
def test_what_no_rule_prints_is_refused(latex: str) -> None:
    with pytest.raises(ValueError, match="text must be LaTeX that a rule prints"):
        unicode(latex)
