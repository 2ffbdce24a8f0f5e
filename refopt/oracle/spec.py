"""The specification of an optimizer, and the parts of its text that are generated.

`spec/<optimizer>.toml` is data. In `spec/<optimizer>.md` what stands between the markers
`<!-- generated: NAME -->` and `<!-- end -->` comes from that data and from the rule itself;
`python -m refopt.oracle.spec` renews it in a checkout.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from refopt.errors import CaseError
from refopt.interp import trace
from refopt.interp.latex import aligned, latex
from refopt.rules import nadam

RULES: dict[str, Any] = {"nadam": nadam}


def root() -> Path:
    """The folder `spec`: in place in a checkout, else inside the installed package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "spec", package / "_data" / "spec"):
        if folder.is_dir():
            return folder
    msg = "the specification is missing: reinstall refopt, or run from a checkout"
    raise CaseError(msg)


@cache
def load(optimizer: str) -> dict[str, Any]:
    """The data of `spec/<optimizer>.toml`; not to be written to."""
    spec = tomllib.loads((root() / f"{optimizer}.toml").read_text(encoding="utf-8"))
    if spec.get("format") != "refopt-spec/1":
        msg = f"{optimizer}.toml: format must be 'refopt-spec/1', got {spec.get('format')!r}"
        raise CaseError(msg)
    return spec


def equations(optimizer: str, choices: Any) -> dict[str, str]:
    """The equations of a step, from the rule: left side to right side, both LaTeX.

    Every quantity with a symbol of its own is one line; what has none is written out in place.
    """
    rule, spec = RULES[optimizer], load(optimizer)
    num = trace.FORMULA_NUMBERS
    given = trace.symbols(rule.Hyper, "hyper", rule.Hyper())
    before = []  # the parameter between decay and move is no quantity that a step returns

    def watched(*args: Any) -> Any:
        before.append(choices.decay.before(*args))
        return before[-1]

    scalars, clock = rule.tick(trace.symbols(rule.Clock, "clock"), given, choices, num=num)
    quantities, _ = rule.step(
        trace.name("param"),
        trace.name("grad"),
        trace.symbols(rule.State, "state"),
        scalars,
        rule.settle(given, choices, num=num),
        choices._replace(decay=choices.decay._replace(before=watched)),
        xp=trace.NAMESPACE,
    )
    results = {
        **trace.fields(clock, "next"),
        **trace.fields(scalars, "scalars"),
        "decayed.p": before[0][0],
        **trace.fields(quantities, "quantities"),
    }
    symbols = {**spec["inputs"], **spec["quantities"]}
    named = {name: results[name] for name in symbols if name in results}
    definitions = trace.define(named, renamed={"param", "grad"})
    symbols |= spec["abbreviations"]

    def abbreviated(node: trace.Node) -> trace.Node | None:
        return trace.name(repr(node)) if repr(node) in spec["abbreviations"] else None

    return {
        symbol: latex(trace.replace(definitions[name], abbreviated), symbols)
        for name, symbol in spec["quantities"].items()
    }


def changed(optimizer: str, **alternatives: str) -> dict[str, str]:
    """The equations that differ from the documented ones where axes take other alternatives."""
    rule = RULES[optimizer]
    other = {axis: rule.AXES[axis][name] for axis, name in alternatives.items()}
    plain = equations(optimizer, rule.Choices())
    lines = equations(optimizer, rule.Choices(**other))
    return {left: right for left, right in lines.items() if plain[left] != right}


def render(optimizer: str, text: str) -> str:
    """`text` with every generated part renewed.

    Raises
    ------
    CaseError
        A marker names no part, or a part has no marker.
    """
    parts = {name: "\n".join(make(optimizer)) for name, make in PARTS.items()}
    found = re.findall(r"<!-- generated: (\w+) -->", text)
    if sorted(found) != sorted(parts):
        msg = f"{optimizer}.md: the markers must be {sorted(parts)}, each once, got {sorted(found)}"
        raise CaseError(msg)
    return re.sub(
        r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)",
        lambda m: f"{m[1]}\n{parts[m[2]]}\n\n{m[3]}",
        text,
        flags=re.DOTALL,
    )


def _block(lines: dict[str, str]) -> str:
    return f"```math\n{aligned(lines)}\n```"


def _equations(optimizer: str) -> Iterator[str]:
    yield _block(equations(optimizer, RULES[optimizer].Choices()))
    for when, alternative in (
        ("With coupled weight decay", {"decay": "coupled"}),
        ("With decoupled weight decay", {"decay": "decoupled"}),
        ("To maximise", {"objective": "maximize"}),
    ):
        yield f"\n{when}:\n\n{_block(changed(optimizer, **alternative))}"


def _symbols(optimizer: str) -> Iterator[str]:
    spec = load(optimizer)
    names = {**spec["inputs"], **spec["quantities"]}
    code = {symbol: f"`{name.rpartition('.')[2]}`" for name, symbol in names.items()}
    rows = ((f"${x}$", code.get(x, ""), meaning) for x, meaning in spec["meanings"].items())
    return _table(("symbol", "in the rule", "meaning"), rows)


def _hyperparameters(optimizer: str) -> Iterator[str]:
    return _table(
        ("argument", "symbol", "clause", "type", "default", "range", "error"),
        (
            (
                f"`{h['keyword']}`",
                f"${h['symbol']}$",
                h["clause"],
                h["type"],
                f"{h['default']:g}",
                h["range"],
                f"`{h['error']}`",
            )
            for h in load(optimizer)["hyperparameters"].values()
        ),
    )


def _clauses(optimizer: str) -> Iterator[str]:
    spec = load(optimizer)
    for section, title in spec["sections"].items():
        yield f"**{section} {title}**\n"
        for clause in spec["clauses"]:
            if clause["id"].rpartition(".")[0] == section:
                yield f"- {clause['id']} ({clause['kind']}). {clause['text']}"
        yield ""


def _axes(optimizer: str) -> Iterator[str]:
    spec = load(optimizer)
    kinds = {clause["id"]: clause["kind"] for clause in spec["clauses"]}
    for axis, data in spec["axes"].items():
        yield f"### {axis}\n\n{data['clause']}. {data['question']}\n"
        rows = []
        for name, alternative in data["alternatives"].items():
            # where only dtypes differ, the formula is the same
            lines = {} if kinds[data["clause"]] == "AXIS" else changed(optimizer, **{axis: name})
            where = "; ".join(alternative["found"]) or "—"
            link = f" ([source]({alternative['link']}))" if "link" in alternative else ""
            rows.append(
                (
                    f"`{name}`",
                    alternative["clause"],
                    alternative["text"],
                    " ".join(f"${left} = {right}$" for left, right in lines.items()) or "—",
                    where + link,
                )
            )
        yield from _table(("alternative", "clause", "meaning", "equation", "seen in"), rows)
        for group in data.get("equal", ()):
            yield f"\nEqual over the real numbers: {', '.join(f'`{name}`' for name in group)}."
        yield ""


def _profiles(optimizer: str) -> Iterator[str]:
    spec = load(optimizer)
    plain = RULES[optimizer].Hyper()._asdict()
    rows = []
    for name, profile in spec["profiles"].items():
        hyper = [f"`{h}={x:g}`" for h, x in profile["hyper"].items() if x != plain[h]]
        choices = [] if name == "documented" else list(profile["choices"].items())
        rows.append(
            (
                f"`{name}`",
                profile["source"],
                ", ".join(f"{axis}: `{choice}`" for axis, choice in choices) or "—",
                ", ".join(hyper) or "—",
                profile["half"],
            )
        )
    header = (
        "profile",
        "follows",
        "choices other than the documented",
        "other defaults",
        "16 bits",
    )
    return _table(header, rows)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    header = tuple(header)
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"


PARTS = {
    "equations": _equations,
    "symbols": _symbols,
    "hyperparameters": _hyperparameters,
    "clauses": _clauses,
    "axes": _axes,
    "profiles": _profiles,
}


def main() -> None:
    """Renew the generated parts of every specification."""
    for optimizer in RULES:
        path = root() / f"{optimizer}.md"
        path.write_text(render(optimizer, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
