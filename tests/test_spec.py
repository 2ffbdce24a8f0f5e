"""The specification and the rule say the same, in both directions, and the text is fresh."""

import ast
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from refopt.errors import CaseError
from refopt.oracle import spec
from refopt.rules import nadam

ROOT = Path(__file__).parent.parent
SPEC = spec.load("nadam")
RULE = inspect.getsource(nadam)
CLAUSE = re.compile(r"\bNAD-\d+(?:\.\d+[a-z]?)?")
KINDS = {"FORMULA", "ORDER", "INIT", "DEFAULT", "SCHEDULE", "STATE", "ERROR", "AXIS"}
EVERY = [(axis, name) for axis, options in nadam.AXES.items() for name in options]
CLAUSES = {clause["id"]: clause for clause in SPEC["clauses"]}
ALTERNATIVES = {
    alternative["clause"]: (axis, name)
    for axis, data in SPEC["axes"].items()
    for name, alternative in data["alternatives"].items()
}


def defined(value: Any) -> str:
    """The lines of the rule that define one of its functions or records."""
    (name,) = {name for name, other in vars(nadam).items() if other is value}
    for node in ast.parse(RULE).body:
        match node:
            case ast.FunctionDef(name=found) | ast.Assign(targets=[ast.Name(id=found)]):
                if found == name:
                    return "\n".join(RULE.splitlines()[node.lineno - 1 : node.end_lineno])
    raise AssertionError(name)


# -- clauses --------------------------------------------------------------------------------------
def test_clauses_have_one_id_a_kind_and_one_sentence() -> None:
    assert len(CLAUSES) == len(SPEC["clauses"])
    assert len(ALTERNATIVES) == len(EVERY)
    assert CLAUSES.keys().isdisjoint(ALTERNATIVES)
    for id_, clause in CLAUSES.items():
        assert clause.keys() == {"id", "kind", "text"}
        assert clause["kind"] in KINDS
        assert id_.rpartition(".")[0] in SPEC["sections"]
        assert clause["text"].endswith(".")
        assert ". " not in clause["text"]


def test_clauses_stand_in_order_and_without_gaps() -> None:
    counts = Counter(id_.rpartition(".")[0] for id_ in CLAUSES)
    assert list(SPEC["sections"]) == [f"NAD-{i}" for i in range(1, len(SPEC["sections"]) + 1)]
    assert sorted(CLAUSES, key=lambda id_: [int(n) for n in re.findall(r"\d+", id_)]) == [
        f"{section}.{i}" for section in SPEC["sections"] for i in range(1, counts[section] + 1)
    ]


def test_every_clause_that_the_code_cites_exists() -> None:
    known = {*SPEC["sections"], *CLAUSES, *ALTERNATIVES}
    cited = {
        (file.name, id_)
        for file in (ROOT / "refopt").rglob("*.py")
        for id_ in CLAUSE.findall(file.read_text(encoding="utf-8"))
    }
    assert cited
    assert {(file, id_) for file, id_ in cited if id_ not in known} == set()


def test_the_rule_cites_every_clause_that_it_has_to_meet() -> None:
    cited = set(CLAUSE.findall(RULE))
    assert set(ALTERNATIVES) - cited == set()
    cited |= {id_.rstrip("abcdefg") for id_ in cited}
    mathematics = {
        id_
        for id_, clause in CLAUSES.items()
        if clause["kind"] in {"FORMULA", "INIT", "SCHEDULE", "AXIS"}
        or int(id_.split("-")[1].split(".")[0]) in range(2, 13)
    }
    assert mathematics - cited == set()


# -- axes -----------------------------------------------------------------------------------------
def test_axes_and_alternatives_are_those_of_the_rule() -> None:
    stated = {axis: set(data["alternatives"]) for axis, data in SPEC["axes"].items()}
    assert stated == {axis: set(options) for axis, options in nadam.AXES.items()}
    assert set(stated) == set(nadam.Choices._fields)


def test_alternatives_equal_over_the_reals_are_those_of_the_rule() -> None:
    stated = {
        axis: {frozenset(group) for group in data["equal"]}
        for axis, data in SPEC["axes"].items()
        if "equal" in data
    }
    assert stated == {axis: set(groups) for axis, groups in nadam.SAME_EXACTLY.items()}


@pytest.mark.parametrize(("axis", "name"), EVERY)
def test_an_alternative_is_defined_under_its_own_clause(axis: str, name: str) -> None:
    data = SPEC["axes"][axis]
    alternative = data["alternatives"][name]
    assert alternative.keys() - {"link"} == {"clause", "text", "found"}
    assert data["clause"] in CLAUSES
    assert re.fullmatch(re.escape(data["clause"]) + "[a-z]", alternative["clause"])
    assert CLAUSE.findall(defined(nadam.AXES[axis][name])) == [alternative["clause"]]


@pytest.mark.parametrize(("axis", "name"), EVERY)
def test_alternatives_part_in_an_equation_or_not_over_the_reals(axis: str, name: str) -> None:
    documented = nadam.Choices()
    if nadam.AXES[axis][name] is getattr(documented, axis):
        assert spec.changed("nadam", **{axis: name}) == {}
    elif axis not in {"start", "counter"}:  # these appear in no equation of a step
        same = any(name in group for group in nadam.SAME_EXACTLY.get(axis, ()))
        assert spec.changed("nadam", **{axis: name}) != {} or same


# -- hyperparameters and profiles -----------------------------------------------------------------
def test_hyperparameters_and_defaults_are_those_of_the_rule() -> None:
    stated = {name: h["default"] for name, h in SPEC["hyperparameters"].items()}
    stated |= {name: constant["value"] for name, constant in SPEC["constants"].items()}
    assert stated == nadam.Hyper()._asdict()
    for name, h in {**SPEC["hyperparameters"], **SPEC["constants"]}.items():
        assert h["clause"] in CLAUSES
        assert h["symbol"] == SPEC["inputs"][f"hyper.{name}"]


def test_profiles_are_those_of_the_rule() -> None:
    constants = {name: constant["value"] for name, constant in SPEC["constants"].items()}
    documented = SPEC["profiles"]["documented"]["choices"]
    assert set(documented) == set(nadam.AXES)
    stated = {
        name: (
            {**documented, **profile["choices"]},
            {**profile["hyper"], **constants},
            profile["half"],
            profile["source"],
        )
        for name, profile in SPEC["profiles"].items()
    }
    coded = {
        name: (
            {
                axis: next(
                    alternative
                    for alternative, function in nadam.AXES[axis].items()
                    if function is chosen
                )
                for axis, chosen in profile.choices._asdict().items()
            },
            profile.hyper._asdict(),
            profile.half,
            profile.source,
        )
        for name, profile in nadam.PROFILES.items()
    }
    assert stated == coded
    assert list(stated) == list(coded)


def test_profiles_state_only_what_they_change() -> None:
    documented = SPEC["profiles"]["documented"]["choices"]
    for name, profile in SPEC["profiles"].items():
        if name != "documented":
            assert profile["choices"].items().isdisjoint(documented.items()), name


# -- equations ------------------------------------------------------------------------------------
@pytest.mark.parametrize("decay", ["none", "coupled", "decoupled"])
def test_the_equations_of_the_page_are_those_of_the_rule(decay: str) -> None:
    page = {line["latex"] for line in SPEC["equations"] if line.get("decay", decay) == decay}
    lines = spec.equations("nadam", nadam.Choices(decay=nadam.AXES["decay"][decay]))
    assert {f"{left} = {right}" for left, right in lines.items()} == page


def test_every_equation_of_the_page_is_used() -> None:
    assert {line.get("decay", "none") for line in SPEC["equations"]} <= set(nadam.AXES["decay"])
    assert len({tuple(line.items()) for line in SPEC["equations"]}) == len(SPEC["equations"])


def test_names_with_a_symbol_are_fields_of_the_rule() -> None:
    records = {
        "state": nadam.State,
        "clock": nadam.Clock,
        "next": nadam.Clock,
        "hyper": nadam.Hyper,
        "scalars": nadam.Scalars,
        "quantities": nadam.Quantities,
    }
    names = {f"{label}.{f}" for label, record in records.items() for f in record._fields}
    assert {*SPEC["inputs"], *SPEC["quantities"]} <= names | {"param", "grad", "decayed.p"}


# -- text -----------------------------------------------------------------------------------------
def text() -> str:
    return (ROOT / "spec" / "nadam.md").read_text(encoding="utf-8")


def test_the_generated_parts_of_the_text_are_fresh() -> None:
    stale = spec.render("nadam", text()) != text()
    assert not stale, "spec/nadam.md is stale: run python -m refopt.oracle.spec"


@pytest.mark.parametrize("name", spec.PARTS)
def test_a_stale_part_is_found_and_renewed(name: str) -> None:
    marker = f"<!-- generated: {name} -->"
    stale = text().replace(marker, f"{marker}\nstale")
    assert stale != text()
    assert spec.render("nadam", stale) == text()


def test_a_marker_without_a_part_is_refused() -> None:
    with pytest.raises(CaseError, match=r"nadam\.md: the markers must be .*'plots'"):
        spec.render("nadam", text() + "\n<!-- generated: plots -->\n<!-- end -->\n")


def test_a_part_without_a_marker_is_refused() -> None:
    with pytest.raises(CaseError, match=r"nadam\.md: the markers must be"):
        spec.render("nadam", text().replace("<!-- generated: axes -->", ""))


def test_every_clause_that_the_text_cites_exists() -> None:
    known = {*SPEC["sections"], *CLAUSES, *ALTERNATIVES}
    assert set(CLAUSE.findall(text())) - known == set()
