"""What `refopt explain` prints comes from the specification and the rule, for every profile."""

import re
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refopt import errors
from refopt.cli import app
from refopt.interp.latex import aligned
from refopt.interp.notation import unicode
from refopt.oracle import golden, spec
from refopt.oracle.spec import RULES
from refopt.teach import explain

EVERY = [(name, profile) for name, rule in RULES.items() for profile in rule.PROFILES]
every = pytest.mark.parametrize(("name", "profile"), EVERY, ids=map("-".join, EVERY))


@cache
def ran(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["explain", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def stated(name: str, profile: str) -> dict[str, str]:
    """The alternative of each axis that the specification states for a profile."""
    profiles = spec.load(name)["profiles"]
    return {**profiles["documented"]["choices"], **profiles[profile]["choices"]}


def plain(name: str, profile: str):
    """The equations of a profile as the specification states it, with nothing asked for."""
    rule, constants = RULES[name], spec.load(name)["constants"]
    hyper = {**spec.load(name).get("examples", {}), **spec.load(name)["profiles"][profile]["hyper"]}
    fixed = {field: constant["value"] for field, constant in constants.items()}
    own = {q: x for q, x in hyper.items() if getattr(rule.Hyper(), q) is None}
    own |= spec.load(name)["profiles"][profile]["hyper"]
    choices = rule.Choices(**{a: rule.AXES[a][x] for a, x in stated(name, profile).items()})
    given = rule.Hyper(**{**fixed, **own})
    return spec.equations(name, rule.configured(choices, given, {}), hyper=given)


def read(output: str) -> list[tuple[str, str]]:
    """The equations of a text, up to the symbols."""
    body, _, _ = output.partition("\nSymbols\n")
    return [(left, right) for left, right in re.findall(r"^ +(\S.*?) = (.*)$", body, re.M)]


# -- equations ------------------------------------------------------------------------------------
@every
def test_the_printed_equations_are_those_of_the_profile_that_the_specification_states(
    name: str, profile: str
) -> None:
    expected = plain(name, profile)
    first, *_ = re.split(r"\n\n(?=\S)", ran(name, "--profile", profile).split("\n\n", 1)[1])
    assert read(first) == [(unicode(a), unicode(b)) for a, b in expected.items()]
    assert ran(name, "--profile", profile, "--latex").startswith(aligned(expected))


@pytest.mark.parametrize("name", RULES)
def test_the_documented_equations_are_those_of_the_page_line_by_line(name: str) -> None:
    page = {line["latex"] for line in spec.load(name)["equations"]}
    layers = {block["title"] for block in spec.load(name)["blocks"] if "layer" in block}
    printed = {
        f"{left} = {right}": form.title
        for form in explain.forms(name)
        for left, right in form.lines.items()
        if form.title not in layers
    }
    assert page <= printed.keys()
    beside = {title for line, title in printed.items() if line not in page}
    assert beside <= {"To maximise", "With Nesterov momentum"}  # which pages say in words


READ = Path(__file__).parent / "equations.txt"
"""What each profile prints that no page has, beside what it was read against.

`python tests/test_teach_explain.py` renews it; a profile whose lines changed is to be read again.
"""
AGAIN = "to be read"


def beside(name: str, profile: str) -> list[str]:
    """The equations of a profile that are not on its page."""
    page = {line["latex"] for line in spec.load(name)["equations"]}
    forms = explain.forms(name, profile)
    lines = [f"{left} = {right}" for form in forms for left, right in form.lines.items()]
    return [line for line in dict.fromkeys(lines) if line not in page]


def noted() -> dict[str, tuple[str, list[str]]]:
    """(what it was read against, the equations that were read) of "optimizer profile"."""
    found = {}
    for block in READ.read_text(encoding="utf-8").split("\n\n")[1:]:
        head, *lines = block.strip().splitlines()
        who, _, source = head.partition(": ")
        found[who] = source, [line.strip() for line in lines]
    return found


@every
def test_every_equation_of_a_profile_is_on_the_page_or_was_read(name: str, profile: str) -> None:
    source, lines = noted()[f"{name} {profile}"]
    assert beside(name, profile) == lines
    assert source
    assert AGAIN not in source


def test_nothing_was_read_that_is_no_profile() -> None:
    assert [*noted()] == [f"{name} {profile}" for name, profile in EVERY]


@every
def test_every_form_is_written_alike_in_text_latex_and_mathml(name: str, profile: str) -> None:
    forms = explain.forms(name, profile)
    lines = [(unicode(a), unicode(b)) for form in forms for a, b in form.lines.items()]
    assert read(ran(name, "--profile", profile)) == lines
    assert ran(name, "--profile", profile, "--latex").count("&=") == len(lines)
    mathml = ran(name, "--profile", profile, "--mathml")
    assert mathml.count("<math ") == len(forms)
    assert mathml.count("<mtr>") == len(lines)


def test_a_formula_that_depends_on_momentum_is_printed_as_it_is_with_and_without() -> None:
    without, *asked = explain.forms("rmsprop", "keras-legacy-2.9")
    epsilon = r"\mathrm{fl}\left(\epsilon\right)"
    assert without.lines["u_t"] == rf"\frac{{g_t}}{{\sqrt{{v_t}} + {epsilon}}}"
    (centered,) = (form for form in asked if "variance" in form.title)
    assert centered.lines["u_t"] == rf"\frac{{g_t}}{{\sqrt{{v_t - a_t^{{2}}}} + {epsilon}}}"
    (moved,) = (form for form in asked if "move" in form.title)
    assert moved.lines["u_t"] == rf"\frac{{g_t}}{{\sqrt{{v_t + {epsilon}}}}}"


# -- symbols, hyperparameters, state --------------------------------------------------------------
@every
def test_every_symbol_of_an_equation_is_explained(name: str, profile: str) -> None:
    output = ran(name, "--profile", profile)
    data = spec.load(name)
    explained = {*data["meanings"], *(h["symbol"] for h in data["hyperparameters"].values())}
    for symbol in [*data["quantities"].values(), *data["inputs"].values()]:
        shown = unicode(symbol)
        if any(shown == left for left, _ in read(output)) and symbol in explained:
            assert re.search(rf"^  {re.escape(shown)} ", output.partition("Symbols")[2], re.M)


@every
def test_defaults_are_those_of_the_profile(name: str, profile: str) -> None:
    rows = {row[1]: row for row in explain.hyperparameters(name, profile)}
    described = spec.load(name)["hyperparameters"]
    assert rows.keys() == {h["keyword"] for h in described.values()}
    for field, h in described.items():
        value = getattr(RULES[name].PROFILES[profile].hyper, field)
        shown = rows[h["keyword"]][2]
        assert (shown == "required") == ("required" in h)
        assert shown in ("required", "None") or float(shown) == value
        assert shown != "None" or value is None


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nadam", "of each element: m, v: 8 bytes in float32, 16 in float64"),
        ("nadam", "of each parameter: t, product: 16 bytes"),
        ("rmsprop", "of each element: v: 4 bytes in float32, 8 in float64"),
        (
            "rmsprop",
            "of each element, with all that can be asked for: v, a, buffer, average: 16 bytes in "
            "float32, 32 in float64",
        ),
        (
            "thor",
            "of a dense layer of 32 × 64 also: a_inverse 1 × 64 × 64, g_inverse 1 × 32 × 32: 20480 "
            "bytes in float32",
        ),
    ],
)
def test_state_and_memory(name: str, line: str) -> None:
    assert f" {line} " in " ".join(ran(name).split())


@every
@pytest.mark.parametrize("width", [40, 80])
def test_tables_fit_the_terminal_and_lose_no_word(name: str, profile: str, width: int) -> None:
    tables = explain.optimizer(name, profile, width).partition("\nSymbols\n")[2]
    assert all(len(x) <= width or " " not in x.strip() for x in tables.splitlines())
    wide = explain.optimizer(name, profile, 1000).partition("\nSymbols\n")[2]
    assert sorted(tables.split()) == sorted(wide.split())


# -- differences ----------------------------------------------------------------------------------
@every
def test_a_difference_shows_each_axis_that_differs_with_clause_and_source(
    name: str, profile: str
) -> None:
    found = explain.diff(name, "documented", profile)
    one, other = stated(name, "documented"), stated(name, profile)
    assert {x.axis for x in found} == {axis for axis in one if one[axis] != other[axis]}
    output = ran(name, "--diff", "documented", profile)
    for x in found:
        for side, choices in zip(x.sides, (one, other), strict=True):
            alternative = spec.load(name)["axes"][x.axis]["alternatives"][choices[x.axis]]
            assert (side.clause, side.text) == (alternative["clause"], alternative["text"])
            assert side.source in (
                alternative.get("link"),
                RULES[name].PROFILES[side.profile].source,
            )
            assert f"{side.profile}: {side.text} ({side.clause}, {side.alternative})" in output
            assert side.source in output
        # both sides or none have an equation that the other has not
        assert set(x.sides[0].lines.items()).isdisjoint(x.sides[1].lines.items())
    assert (profile == "documented") == (output == "documented and documented are the same rule\n")


def test_equations_stand_beside_each_other_where_epsilon_differs() -> None:
    (epsilon,) = (
        x for x in explain.diff("rmsprop", "torch-2.13", "keras-3") if x.axis == "epsilon"
    )
    assert [dict(side.lines) for side in epsilon.sides] == [
        {"u_t": r"\frac{g_t}{\sqrt{v_t} + \epsilon}"},
        {"u_t": r"\frac{g_t}{\sqrt{v_t + \epsilon}}"},
    ]
    assert ("lr", 0.01, 0.001) in explain.defaults("rmsprop", "torch-2.13", "keras-3")


# -- anything with a name -------------------------------------------------------------------------
@pytest.mark.parametrize("name", RULES)
def test_every_clause_and_alternative_is_explained(name: str) -> None:
    data = spec.load(name)
    for x in data["clauses"]:
        assert f"{x['id']} ({x['kind']}) {x['text']}" in explain.anything(x["id"])
    for axis, found in data["axes"].items():
        for alternative, x in found["alternatives"].items():
            told = explain.anything(x["clause"])
            assert told.startswith(f"{x['clause']} {axis}, {alternative}: {x['text']}\n")
            takes = re.search("^profiles: (.*)$", told, re.M)[1]
            for profile in RULES[name].PROFILES:
                mine = stated(name, profile)[axis] == alternative
                assert mine == (profile in takes.split(", "))


def test_a_clause_of_one_formula_shows_its_code() -> None:
    assert "return xp.sqrt(variance + h.epsilon)" in explain.anything("RMS-5.4b")


def test_a_profile_is_explained_for_every_optimizer_that_has_it() -> None:
    told = explain.anything("keras-3")
    for name in ("nadam", "rmsprop"):
        assert f"{name}, keras-3: {RULES[name].PROFILES['keras-3'].source}\n" in told
        assert explain.difference(name, "documented", "keras-3") in told + "\n"


def test_what_is_documented_has_no_difference() -> None:
    told = explain.anything("documented").splitlines()
    assert [line.partition(",")[0] for line in told] == [*RULES]


def test_a_hyperparameter_and_an_option_are_explained() -> None:
    assert explain.anything("betas").count("nadam: β") == 2
    assert "uₜ = gₜ / (√(vₜ − aₜ²) + ε)" in explain.anything("centered")


@pytest.mark.parametrize("name", RULES)
def test_a_vector_is_explained(name: str) -> None:
    for found in golden.recordings(name, golden.root() / "vectors"):
        told = explain.anything(found.case.id)
        assert told.startswith(f"{found.case.id}: {found.case.comment}\n")
        break
    else:
        assert name == "sgd"


def test_a_name_of_nothing_is_wrong_usage_that_lists_what_there_is() -> None:
    with pytest.raises(errors.Unknown, match=r"WHAT must be one of nadam.*; got 'adamw'"):
        explain.anything("adamw")
    assert "WHAT must be one of nadam, a profile as keras-3, a clause" in ran("nadm", code=2)
    assert len(ran("adamw", code=2)) < 200
    assert "PROFILE must be one of documented" in ran("nadam", "--profile", "x", code=2)
    assert "--diff must be one of documented" in ran("nadam", "--diff", "x", "keras-3", code=2)
    assert "must not be given together" in ran("nadam", "--latex", "--mathml", code=2)


if __name__ == "__main__":
    head, known = READ.read_text(encoding="utf-8").split("\n\n")[0], noted()
    blocks = [head]
    for name, profile in EVERY:
        source, lines = known.get(f"{name} {profile}", ("", []))
        now = beside(name, profile)
        mark = "" if source and now == lines else f"{AGAIN}; "
        told = f"{name} {profile}: {mark}{source.removeprefix(f'{AGAIN}; ')}"
        blocks.append("\n".join([told, *(f"    {line}" for line in now)]))
    READ.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
