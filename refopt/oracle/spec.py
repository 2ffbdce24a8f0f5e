"""The specification of an optimizer, and the parts of its text that are generated.

`spec/<optimizer>.toml` is data. In `spec/<optimizer>.md` what stands between the markers
`<!-- generated: NAME -->` and `<!-- end -->` comes from that data and from the rule itself;
`python -m refopt.oracle.spec` renews it in a checkout.
"""

from __future__ import annotations

import inspect
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from refopt.errors import CaseError
from refopt.interp import trace
from refopt.interp.arrays import namespace_of
from refopt.interp.latex import aligned, latex


def root() -> Path:
    """The folder `spec`: in place in a checkout, else inside the installed package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "spec", package / "_data" / "spec"):
        if folder.is_dir():
            return folder
    msg = "the specification is missing: reinstall refopt, or run from a checkout"
    raise CaseError(msg)


RULES: dict[str, Any] = {
    path.stem: import_module(f"refopt.rules.{path.stem}") for path in sorted(root().glob("*.toml"))
}
"""Every rule that has a specification, by the name of its optimizer."""


@cache
def load(optimizer: str) -> dict[str, Any]:
    """The data of `spec/<optimizer>.toml`; not to be written to."""
    spec = tomllib.loads((root() / f"{optimizer}.toml").read_text(encoding="utf-8"))
    if spec.get("format") != "refopt-spec/1":
        msg = f"{optimizer}.toml: format must be 'refopt-spec/1', got {spec.get('format')!r}"
        raise CaseError(msg)
    return spec


def equations(
    optimizer: str, choices: Any, *, hyper: Any = None, sparse: bool = False, layer: str = ""
) -> dict[str, str]:
    """The equations of a step, from the rule: left side to right side, both LaTeX.

    Every quantity with a symbol of its own is one line; what has none is written out in place.
    `hyper`: hyperparameters by which a formula is chosen where it depends on one; by default the
    examples of the specification. `sparse`: the gradient is given by rows. `layer`: the kind of the
    layer, for a rule of layers; a dense one if none is named.
    """
    spec = load(optimizer)
    if hasattr(RULES[optimizer], "Layer"):
        results = _of_layer(optimizer, choices, layer or "dense")
    else:
        hyper = hyper or RULES[optimizer].Hyper(**spec.get("examples", {}))
        results = _of_parameter(optimizer, choices, hyper, sparse=sparse)
    symbols = {**spec["inputs"], **spec["quantities"]}
    named = {name: results[name] for name in symbols if name in results}
    definitions = trace.define(named, renamed=spec["renamed"])
    symbols |= spec["abbreviations"]

    def abbreviated(node: trace.Node) -> trace.Node | None:
        return trace.name(repr(node)) if repr(node) in spec["abbreviations"] else None

    return {
        symbol: latex(trace.replace(definitions[name], abbreviated), symbols)
        for name, symbol in spec["quantities"].items()
        if name in definitions
    }


def _of_parameter(
    optimizer: str, choices: Any, examples: Any, *, sparse: bool
) -> dict[str, trace.Node]:
    """Every value of one step of a parameter that the rule takes by itself."""
    rule = RULES[optimizer]
    xp, num = trace.NAMESPACE, trace.FORMULA_NUMBERS
    param, grad = trace.name("param"), trace.name("grad")
    hyper = trace.symbols(rule.Hyper, "hyper", examples)
    started, _ = rule.init(param, choices, xp=xp, num=num)
    state = rule.State(
        *(None if x is None else trace.name(f"state.{f}") for f, x in started._asdict().items())
    )
    decayed = []  # the parameter between decay and move is no quantity that a step returns
    before = getattr(choices.decay, "before", choices.decay)

    def watched(*args: Any) -> Any:
        decayed.append(before(*args))
        return decayed[-1]

    decay = watched if callable(choices.decay) else choices.decay._replace(before=watched)
    scalars, clock = rule.tick(trace.symbols(rule.Clock, "clock"), hyper, choices, num=num)
    quantities, _ = rule.step(
        param,
        rule.Rows(trace.name("rows"), (0,), 1) if sparse else grad,
        state,
        scalars,
        rule.settle(hyper, choices, num=num),
        choices._replace(decay=decay),
        xp=xp,
    )
    results = {
        **trace.fields(clock, "next"),
        **trace.fields(scalars, "scalars"),
        "decayed.p": decayed[0][0],
        **trace.fields(quantities, "quantities"),
    }
    if results["decayed.p"] is param and "param" not in load(optimizer)["renamed"]:
        del results["decayed.p"]
    return results


def _of_layer(optimizer: str, choices: Any, kind: str) -> dict[str, trace.Node]:
    """Every value of one step of the weight of a layer, on a refresh.

    A convolution has factors, which stand for themselves; the others have statistics.
    """
    rule, examples = RULES[optimizer], load(optimizer)["examples"]
    shape = tuple(load(optimizer)["shapes"][kind])

    def array(label: str, *shape: int) -> trace.Node:
        return trace.name(label, np.ones(shape))

    rows, inputs = 2, math.prod(shape[1:])
    outputs, size = (shape[1], (shape[0],)) if kind == "embedding" else (shape[0], (inputs, inputs))
    factors = rule.Factors(
        array("factors.A", *size),
        array("factors.G", outputs, outputs),
        trace.name("factors.a_normalizer", 2.0),
        trace.name("factors.g_normalizer", 2.0),
    )
    given = {
        "dense": rule.Statistics(array("a", rows, inputs), array("ds", rows, outputs)),
        "embedding": rule.Statistics(
            trace.name("a", np.zeros(rows, int)), array("ds", rows, outputs)
        ),
        "norm": None,
    }
    hyper = rule.Hyper(**examples)
    numbers = trace.symbols(rule.Hyper, "hyper", hyper)._asdict()
    # what decides how a step goes is no symbol in it
    hyper = hyper._replace(**{k: x for k, x in numbers.items() if isinstance(x.value, float)})
    param = array("param", *shape)
    state = rule.State(*[None] * len(rule.State._fields))._replace(
        m=array("state.m", *shape), A=factors.A, G=factors.G
    )
    if kind in given:
        state = state._replace(A=array("state.A", *size), G=array("state.G", outputs, outputs))
    (quantities,), _, _ = rule.update(
        [param],
        [array("grad", *shape)],
        [state],
        [rule.Clock(0)],
        [hyper],
        choices,
        xp=trace.Matrices(namespace_of(np.ones(1))),
        num=trace.FORMULA_NUMBERS,
        net=[rule.Layer(kind, (0,), shape)],
        given=[given.get(kind, factors)],
    )
    results = trace.fields(quantities, "quantities")
    for name, before in (("preconditioned", "g"), ("gradient", "preconditioned")):
        if results[f"quantities.{name}"] is getattr(quantities, before):
            del results[f"quantities.{name}"]
    return results


def changed(
    optimizer: str,
    alternatives: Mapping[str, str],
    *,
    within: Mapping[str, str] | None = None,
    sparse: bool = False,
    layer: str = "",
) -> dict[str, str]:
    """The equations that differ where axes take other alternatives.

    `within`: alternatives that both sides take; the other axes are those of `Choices()`.
    """
    rule = RULES[optimizer]

    def lines(named: Mapping[str, str]) -> dict[str, str]:
        choices = {axis: rule.AXES[axis][name] for axis, name in named.items()}
        return equations(optimizer, rule.Choices(**choices), sparse=sparse, layer=layer)

    plain = lines(within or {})
    other = lines({**(within or {}), **alternatives})
    return _other(plain, other)


def _other(plain: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    return {left: right for left, right in other.items() if plain.get(left) != right}


def function(data: Mapping[str, Any]) -> str:
    """The equation of a function beside a rule, from its code (an entry of `functions`).

    An argument is LaTeX, a constant, or a table of LaTeX and the example that decides branches.
    """
    module, _, name = data["function"].partition(".")
    call = getattr(import_module(f"refopt.rules.{module}"), name)
    arguments: dict[str, Any] = {"xp": trace.NAMESPACE, "num": trace.FORMULA_NUMBERS}
    arguments["real"] = trace.FORMULA_NUMBERS
    symbols = {}
    for argument, value in data["arguments"].items():
        text, example = (
            (value["latex"], value["example"]) if isinstance(value, dict) else (value, None)
        )
        arguments[argument] = trace.name(argument, example) if isinstance(text, str) else text
        symbols[argument] = text
    if "grads" in arguments:
        arguments["grads"] = [arguments["grads"]]
    taken = inspect.signature(call).parameters
    result = call(**{argument: x for argument, x in arguments.items() if argument in taken})
    node = result[0] if isinstance(result, list) else result
    return f"{data['left']} = {latex(node, symbols)}"


def parts_of(optimizer: str) -> list[str]:
    """The names of the generated parts of a text."""
    optional = {"functions", "options"} - load(optimizer).keys()
    return [name for name in PARTS if name not in optional]


def render(optimizer: str, text: str) -> str:
    """`text` with every generated part renewed.

    Raises
    ------
    CaseError
        A marker names no part, or a part has no marker.
    """
    parts = {name: "\n".join(PARTS[name](optimizer)) for name in parts_of(optimizer)}
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
    for block in load(optimizer)["blocks"]:
        if "layer" in block:
            lines = equations(optimizer, RULES[optimizer].Choices(), layer=block["layer"])
        elif "options" in block:
            lines = _asked_for(optimizer, block["options"])
        else:
            lines = changed(optimizer, block["choices"])
        yield f"\n{block['title']}:\n\n{_block(lines)}"


def _asked_for(optimizer: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The equations that options of the object change."""
    rule = RULES[optimizer]
    plain = rule.Choices()
    other = rule.configured(plain, rule.Hyper(), options)
    return _other(equations(optimizer, plain), equations(optimizer, other))


def _functions(optimizer: str) -> Iterator[str]:
    for data in load(optimizer)["functions"]:
        left, right = function(data).split(" = ", 1)
        yield f"{data['clause']}. {data['title']}:\n\n{_block({left: right})}\n"


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
                _default(h),
                range_of(h),
                ", ".join(f"{fault}: `{error}`" for fault, error in h["error"].items()),
            )
            for h in load(optimizer)["hyperparameters"].values()
        ),
    )


def _default(h: Mapping[str, Any]) -> str:
    if "required" in h:
        return "none: it must be given"
    return f"{h['default']:g}" if "default" in h else "None"


def range_of(h: Mapping[str, Any]) -> str:
    """What a hyperparameter may be, in words."""
    ends, keyword = h["range"], h["keyword"]
    text = f"{ends['least']:g} <= {keyword}" if "least" in ends else "any number"
    text = f"{keyword} > {ends['above']:g}" if "above" in ends else text
    text += f" < {ends['below']:g}" if "below" in ends else ""
    text += f" <= {ends['most']:g}" if "most" in ends else ""
    text += ", whole" if "whole" in ends else ""
    text += ", finite" if "finite" in ends else ""
    text += ", with " + ", ".join(h["given"]) if "given" in h else ""
    text += f"; {h['note']}" if "note" in h else ""
    beside = (f"; not together with {x}: `{error}`" for x, error in h.get("excludes", {}).items())
    return text + "".join(beside)


def _options(optimizer: str) -> Iterator[str]:
    spec = load(optimizer)
    effects = spec["effects"]
    libraries = {"numpy": "NumPy", "cupy": "CuPy", "torch": "torch", "jax": "JAX"}
    return _table(
        ("options", *libraries.values()),
        (
            (
                ", ".join(f"`{option}={x}`" for option, x in row["given"].items()) or "none",
                *(effects.get(row[x], f"`{row[x]}` at the step") for x in libraries),
            )
            for row in spec["options"]
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


def shown(optimizer: str, axis: str, name: str) -> dict[str, str]:
    """The equations that an alternative changes, where its axis shows."""
    where = load(optimizer)["axes"][axis]
    shows = {key: where[key] for key in ("within", "sparse", "layer") if key in where}
    return changed(optimizer, {axis: name}, **shows)


def _axes(optimizer: str) -> Iterator[str]:
    spec = load(optimizer)
    kinds = {clause["id"]: clause["kind"] for clause in spec["clauses"]}
    for axis, data in spec["axes"].items():
        yield f"### {axis}\n\n{data['clause']}. {data['question']}\n"
        rows = []
        for name, alternative in data["alternatives"].items():
            # where only dtypes differ, the formula is the same
            lines = {} if kinds[data["clause"]] == "AXIS" else shown(optimizer, axis, name)
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
    "functions": _functions,
    "symbols": _symbols,
    "hyperparameters": _hyperparameters,
    "clauses": _clauses,
    "axes": _axes,
    "profiles": _profiles,
    "options": _options,
}


def main() -> None:
    """Renew the generated parts of every specification."""
    for optimizer in RULES:
        path = root() / f"{optimizer}.md"
        path.write_text(render(optimizer, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
