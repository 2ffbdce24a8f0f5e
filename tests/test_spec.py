"""The specifications and the rules say the same, in both directions, and the texts are fresh."""

import ast
import inspect
import math
import re
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import refopt
from refopt.errors import CaseError
from refopt.oracle import spec
from refopt.rules import average, clip, schedules

ROOT = Path(__file__).parent.parent
KINDS = {"FORMULA", "ORDER", "INIT", "DEFAULT", "SCHEDULE", "STATE", "ERROR", "AXIS"}
NUMERIC = {"FORMULA", "INIT", "SCHEDULE", "AXIS"}

BESIDE = {"rmsprop": [clip, average, schedules]}
"""What a rule calls, where it calls others: its formulas are clauses of the same specification."""

RULE_SECTIONS = {"nadam": range(2, 13), "rmsprop": range(2, 11), "thor": range(2, 10)}
"""The sections that a rule has to meet as a whole; the later ones are the object's. All but the
first, where an optimizer has no object."""

NO_EQUATION = {
    "nadam": {"start", "counter"},
    "rmsprop": {
        *("start", "counter", "missing", "norm", "global_norm", "value", "clip"),
        *("average_start", "average", "overwrite", "overwrite_count"),
    },
    "thor": {
        *("past_end", "frequency", "decayed", "patches", "conv", "lookup", "reduction", "pair"),
        *("stale", "beside_conv", "nesterov"),
    },
}
"""Axes whose differences lie in no equation of a step."""

ELSEWHERE = {("rmsprop", "given", "zero-epsilon")}
"""Alternatives that differ where a hyperparameter has another value than in the equations."""


class Specified:
    """A specification beside its rule."""

    def __init__(self, optimizer: str) -> None:
        self.optimizer = optimizer
        self.data = spec.load(optimizer)
        self.rule: ModuleType = spec.RULES[optimizer]
        self.clauses = {clause["id"]: clause for clause in self.data["clauses"]}
        self.alternatives = {
            alternative["clause"]: (axis, name)
            for axis, data in self.data["axes"].items()
            for name, alternative in data["alternatives"].items()
        }
        self.known = {*self.data["sections"], *self.clauses, *self.alternatives}
        self.path = ROOT / "spec" / f"{optimizer}.md"

    def cited(self, text: str) -> list[str]:
        """The clauses of this specification that a text names, in order."""
        return re.findall(rf"\b{self.data['prefix']}-\d+(?:\.\d+[a-z]?)?", text)

    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def defined(self, value: Any) -> str:
        """The lines of the rule, or of what it calls, that define a function or record."""
        modules = [self.rule, *BESIDE.get(self.optimizer, ())]
        ((module, name),) = {
            (m, name) for m in modules for name, other in vars(m).items() if other is value
        }
        source = inspect.getsource(module)
        for node in ast.parse(source).body:
            match node:
                case ast.FunctionDef(name=found) | ast.Assign(targets=[ast.Name(id=found)]):
                    if found == name:
                        return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
        raise AssertionError(name)


EACH = {optimizer: Specified(optimizer) for optimizer in spec.RULES}
each = pytest.mark.parametrize("s", EACH.values(), ids=EACH)
every = pytest.mark.parametrize(
    ("s", "axis", "name"),
    [
        pytest.param(s, axis, name, id=f"{optimizer}-{axis}-{name}")
        for optimizer, s in EACH.items()
        for axis, options in s.rule.AXES.items()
        for name in options
    ],
)


def test_every_optimizer_with_a_text_is_tested() -> None:
    texts = {path.stem for path in (ROOT / "spec").glob("*.toml")}
    assert texts == EACH.keys() >= RULE_SECTIONS.keys() >= NO_EQUATION.keys() >= BESIDE.keys()
    assert OBJECTS.keys() == RULE_SECTIONS.keys()


# -- clauses --------------------------------------------------------------------------------------
@each
def test_clauses_have_one_id_a_kind_and_one_sentence(s: Specified) -> None:
    assert len(s.clauses) == len(s.data["clauses"])
    assert len(s.alternatives) == sum(map(len, s.rule.AXES.values()))
    assert s.clauses.keys().isdisjoint(s.alternatives)
    for id_, clause in s.clauses.items():
        assert clause.keys() == {"id", "kind", "text"}
        assert clause["kind"] in KINDS
        assert id_.rpartition(".")[0] in s.data["sections"]
        assert clause["text"].endswith(".")
        assert ". " not in clause["text"]


@each
def test_clauses_stand_in_order_and_without_gaps(s: Specified) -> None:
    prefix, sections = s.data["prefix"], s.data["sections"]
    counts = Counter(id_.rpartition(".")[0] for id_ in s.clauses)
    assert list(sections) == [f"{prefix}-{i}" for i in range(1, len(sections) + 1)]
    assert sorted(s.clauses, key=lambda id_: [int(n) for n in re.findall(r"\d+", id_)]) == [
        f"{section}.{i}" for section in sections for i in range(1, counts[section] + 1)
    ]


@each
def test_every_clause_that_the_code_cites_exists(s: Specified) -> None:
    cited = {
        (file.name, id_)
        for file in (ROOT / "refopt").rglob("*.py")
        for id_ in s.cited(file.read_text(encoding="utf-8"))
    }
    assert cited
    assert {(file, id_) for file, id_ in cited if id_ not in s.known} == set()


@each
def test_the_rule_cites_every_clause_that_it_has_to_meet(s: Specified) -> None:
    modules = [s.rule, *BESIDE.get(s.optimizer, ())]
    cited = {id_ for module in modules for id_ in s.cited(inspect.getsource(module))}
    assert set(s.alternatives) - cited == set()
    cited |= {re.sub("[a-z]$", "", id_) for id_ in cited}
    sections = RULE_SECTIONS.get(s.optimizer, range(2, sys.maxsize))
    mathematics = {
        id_
        for id_, clause in s.clauses.items()
        if clause["kind"] in NUMERIC or int(id_.split("-")[1].split(".")[0]) in sections
    }
    assert mathematics - cited == set()


# -- axes -----------------------------------------------------------------------------------------
@each
def test_axes_and_alternatives_are_those_of_the_rule(s: Specified) -> None:
    stated = {axis: set(data["alternatives"]) for axis, data in s.data["axes"].items()}
    assert stated == {axis: set(options) for axis, options in s.rule.AXES.items()}
    assert set(stated) == set(s.rule.Choices._fields)


@each
def test_alternatives_equal_over_the_reals_are_those_of_the_rule(s: Specified) -> None:
    stated = {
        axis: {frozenset(group) for group in data["equal"]}
        for axis, data in s.data["axes"].items()
        if "equal" in data
    }
    assert stated == {axis: set(groups) for axis, groups in s.rule.SAME_EXACTLY.items()}


@every
def test_an_alternative_is_defined_under_its_own_clause(s: Specified, axis: str, name: str) -> None:
    data = s.data["axes"][axis]
    alternative = data["alternatives"][name]
    assert alternative.keys() - {"link"} == {"clause", "text", "found"}
    assert data["clause"] in s.clauses
    assert re.fullmatch(re.escape(data["clause"]) + "[a-z]", alternative["clause"])
    assert s.cited(s.defined(s.rule.AXES[axis][name])) == [alternative["clause"]]


@every
def test_alternatives_part_in_an_equation_or_not_over_the_reals(
    s: Specified, axis: str, name: str
) -> None:
    lines = spec.shown(s.optimizer, axis, name)
    if s.rule.AXES[axis][name] is getattr(s.rule.Choices(), axis):
        assert lines == {}
    elif axis in NO_EQUATION.get(s.optimizer, ()) or (s.optimizer, axis, name) in ELSEWHERE:
        assert lines == {}  # or it belongs no more into that list
    else:
        same = any(name in group for group in s.rule.SAME_EXACTLY.get(axis, ()))
        assert lines != {} or same


# -- hyperparameters and profiles -----------------------------------------------------------------
@each
def test_hyperparameters_and_defaults_are_those_of_the_rule(s: Specified) -> None:
    stated = {name: h.get("default") for name, h in s.data["hyperparameters"].items()}
    stated |= {name: constant["value"] for name, constant in s.data["constants"].items()}
    assert stated == s.rule.Hyper()._asdict()
    for name, h in {**s.data["hyperparameters"], **s.data["constants"]}.items():
        assert h["clause"] in s.clauses
        assert h["symbol"] == s.data["inputs"][f"hyper.{name}"]


@each
def test_profiles_are_those_of_the_rule(s: Specified) -> None:
    constants = {name: constant["value"] for name, constant in s.data["constants"].items()}
    documented = s.data["profiles"]["documented"]["choices"]
    assert set(documented) == set(s.rule.AXES)
    stated = {
        name: (
            {**documented, **profile["choices"]},
            {**profile["hyper"], **constants},
            profile["half"],
            profile["source"],
        )
        for name, profile in s.data["profiles"].items()
    }
    coded = {
        name: (
            {
                axis: next(
                    alternative
                    for alternative, function in s.rule.AXES[axis].items()
                    if function is chosen
                )
                for axis, chosen in profile.choices._asdict().items()
            },
            {field: x for field, x in profile.hyper._asdict().items() if x is not None},
            profile.half,
            profile.source,
        )
        for name, profile in s.rule.PROFILES.items()
    }
    assert stated == coded
    assert list(stated) == list(coded)


@each
def test_profiles_state_only_what_they_change(s: Specified) -> None:
    documented = s.data["profiles"]["documented"]["choices"]
    for name, profile in s.data["profiles"].items():
        if name != "documented":
            assert profile["choices"].items().isdisjoint(documented.items()), name


# -- equations ------------------------------------------------------------------------------------
def forms(s: Specified) -> list[dict[str, str]]:
    """Every combination of the alternatives under which the page has an equation."""
    used: dict[str, dict[str, None]] = {}
    for line in s.data["equations"]:
        for axis in line.keys() - {"latex"}:
            used.setdefault(axis, {})[line[axis]] = None
    return [dict(zip(used, names, strict=True)) for names in product(*used.values())]


@pytest.mark.parametrize(
    ("s", "form"),
    [
        pytest.param(s, form, id="-".join([optimizer, *form.values()]))
        for optimizer, s in EACH.items()
        for form in forms(s)
    ],
)
def test_the_equations_of_the_page_are_those_of_the_rule(
    s: Specified, form: dict[str, str]
) -> None:
    page = {
        line["latex"]
        for line in s.data["equations"]
        if line.items() <= {**form, "latex": line["latex"]}.items()
    }
    choices = {axis: s.rule.AXES[axis][name] for axis, name in form.items()}
    lines = spec.equations(s.optimizer, s.rule.Choices(**choices))
    assert {f"{left} = {right}" for left, right in lines.items()} == page


@each
def test_the_equations_of_the_page_are_written_once(s: Specified) -> None:
    lines = [tuple(sorted(line.items())) for line in s.data["equations"]]
    assert len(set(lines)) == len(lines)
    assert len(forms(s)) > 1


@pytest.mark.parametrize(
    ("s", "entry"),
    [
        pytest.param(s, entry, id=entry["title"])
        for s in EACH.values()
        for entry in s.data.get("functions", ())
    ],
)
def test_the_functions_beside_a_rule_are_the_documented_ones(
    s: Specified, entry: dict[str, Any]
) -> None:
    assert spec.function(entry) == entry["latex"]
    module, name = entry["function"].split(".")
    function = next(
        vars(m)[name] for m in BESIDE.get(s.optimizer, ()) if m.__name__.endswith(module)
    )
    assert entry["clause"] in s.cited(inspect.getsource(function))


@each
def test_names_with_a_symbol_are_fields_of_the_rule(s: Specified) -> None:
    records = {
        "factors": getattr(s.rule, "Factors", s.rule.State),
        "state": s.rule.State,
        "clock": s.rule.Clock,
        "next": s.rule.Clock,
        "hyper": s.rule.Hyper,
        "scalars": s.rule.Scalars,
        "quantities": s.rule.Quantities,
    }
    names = {f"{label}.{f}" for label, record in records.items() for f in record._fields}
    names |= {"param", "grad", "rows", "decayed.p", "a", "ds"}
    assert {*s.data["inputs"], *s.data["quantities"]} <= names


# -- text -----------------------------------------------------------------------------------------
@each
def test_the_generated_parts_of_the_text_are_fresh(s: Specified) -> None:
    stale = spec.render(s.optimizer, s.text()) != s.text()
    assert not stale, f"{s.path.name} is stale: run python -m refopt.oracle.spec"


@pytest.mark.parametrize(
    ("s", "part"),
    [
        pytest.param(s, part, id=f"{optimizer}-{part}")
        for optimizer, s in EACH.items()
        for part in spec.parts_of(optimizer)
    ],
)
def test_a_stale_part_is_found_and_renewed(s: Specified, part: str) -> None:
    marker = f"<!-- generated: {part} -->"
    stale = s.text().replace(marker, f"{marker}\nstale")
    assert stale != s.text()
    assert spec.render(s.optimizer, stale) == s.text()


@each
def test_a_marker_without_a_part_is_refused(s: Specified) -> None:
    with pytest.raises(CaseError, match=rf"{s.optimizer}\.md: the markers must be .*'plots'"):
        spec.render(s.optimizer, s.text() + "\n<!-- generated: plots -->\n<!-- end -->\n")


@each
def test_a_part_without_a_marker_is_refused(s: Specified) -> None:
    with pytest.raises(CaseError, match=rf"{s.optimizer}\.md: the markers must be"):
        spec.render(s.optimizer, s.text().replace("<!-- generated: axes -->", ""))


@each
def test_every_clause_that_the_text_cites_exists(s: Specified) -> None:
    assert set(s.cited(s.text())) - s.known == set()


# -- the objects ----------------------------------------------------------------------------------

OBJECTS = {"nadam": refopt.NAdam, "rmsprop": refopt.RMSprop, "thor": refopt.thor}
REQUIRED = {
    "nadam": lambda: {"params": [refopt.Parameter(1.0)]},
    "rmsprop": dict,
    "thor": lambda: {
        **{"net": [refopt.layers.Other("rest", np.ones(2))], "learning_rate": 0.1},
        **{"damping": 0.1, "momentum": 0.9},
    },
}
"""The arguments that an object needs, beside the one that is tried."""
OPTIONS = {
    "nadam": {
        "decoupled_weight_decay": False,
        "foreach": None,
        "maximize": False,
        "capturable": False,
        "differentiable": False,
        "profile": "documented",
    },
    "rmsprop": {
        "centered": False,
        "gradients_clip_option": None,
        "ema_option": None,
        "jit_compile": False,
        "name": "RMSprop",
        "mesh": None,
        "use_ema": False,
        "profile": "documented",
    },
    "thor": {
        "use_nesterov": False,
        "decay_filter": ...,
        "split_indices": None,
        "enable_clip_grad": False,
        "profile": "documented",
        "comm": None,
        "reduction": None,
        "fixed_order": None,
        "keep_inverse": False,
    },
}
"""The arguments of the pages that are no hyperparameters of the rule, and their defaults there."""
WITH_OBJECT = {optimizer: s for optimizer, s in EACH.items() if optimizer in OBJECTS}


@pytest.mark.parametrize("s", WITH_OBJECT.values(), ids=WITH_OBJECT)
def test_the_object_has_the_defaults_of_the_specification(s: Specified) -> None:
    parameters = inspect.signature(OBJECTS[s.optimizer]).parameters.values()
    coded = {p.name: p.default for p in parameters if p.default is not p.empty}
    stated: dict[str, Any] = dict(OPTIONS[s.optimizer])
    for given in s.data["hyperparameters"].values():
        if "required" in given:
            continue
        name, _, place = given["keyword"].partition("[")
        default = given.get("default")
        if place:  # one of several in a tuple
            stated[name] = (*stated.get(name, ()), default)
        else:
            stated[name] = default
    assert coded == stated


def tried(h: dict[str, Any]) -> list[tuple[Any, str | None]]:
    """Values of a hyperparameter, on both sides of every end of its range, and their errors."""
    ends, kind, error = h["range"], h["error"]["type"], h["error"].get("range")
    values = [("1", kind), (None, kind if "default" in h or "required" in h else None)]
    if "whole" in ends:
        least = ends["least"]
        values += [(x, kind) for x in (math.nan, least + 0.5, True)]
        return [*values, (least, None), (least - 1, error)]
    vector = None if "schedule" in h else h["error"].get("size", kind)
    values += [(math.nan, error), (1j, kind), (np.ones(2), vector), (0.5, None)]
    if "least" in ends:
        values += [(ends["least"], None), (math.nextafter(ends["least"], -math.inf), error)]
    if "most" in ends:
        values += [(ends["most"], None), (math.nextafter(ends["most"], math.inf), error)]
    if "below" in ends:
        values += [(math.nextafter(ends["below"], -math.inf), None), (ends["below"], error)]
    if "above" in ends:
        values += [(math.nextafter(ends["above"], math.inf), None), (ends["above"], error)]
    bounded = ends.keys() & {"most", "below", "finite"}
    return [*values, (math.inf, error if bounded else None)]


def built(s: Specified, h: dict[str, Any], value: Any) -> Any:
    """The object with this value of a hyperparameter."""
    name, _, place = h["keyword"].partition("[")
    if place:
        pair = list(inspect.signature(OBJECTS[s.optimizer]).parameters[name].default)
        pair[int(place.rstrip("]"))] = value
        value = tuple(pair)
    arguments = {**REQUIRED[s.optimizer](), name: value, **h.get("given", {})}
    return OBJECTS[s.optimizer](**arguments)


@pytest.mark.parametrize(
    ("s", "h", "value", "error"),
    [
        pytest.param(s, h, value, error, id=f"{optimizer}-{name}-{value}")
        for optimizer, s in WITH_OBJECT.items()
        for name, h in s.data["hyperparameters"].items()
        for value, error in tried(h)
    ],
)
def test_the_object_takes_the_range_of_the_specification_and_names_what_is_out_of_it(
    s: Specified, h: dict[str, Any], value: Any, error: str | None
) -> None:
    if error is None:
        assert isinstance(built(s, h, value), OBJECTS[s.optimizer])
        return
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(h['keyword'])}: ") as caught:
        built(s, h, value)
    assert type(caught.value).__name__ == error


@pytest.mark.parametrize(
    ("s", "h", "other", "error"),
    [
        pytest.param(s, h, other, error, id=f"{optimizer}-{name}-{other}")
        for optimizer, s in WITH_OBJECT.items()
        for name, h in s.data["hyperparameters"].items()
        for other, error in h.get("excludes", {}).items()
    ],
)
def test_what_the_specification_excludes_is_refused_together(
    s: Specified, h: dict[str, Any], other: str, error: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=h["keyword"]) as caught:
        OBJECTS[s.optimizer](**{h["keyword"]: 1.0, other: 1.0})
    assert type(caught.value).__name__ == error
