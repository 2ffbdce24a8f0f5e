"""Which rule an implementation follows is told by its numbers alone; and what was not decided."""

import json
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from refopt import cli
from refopt.oracle import advice, environments, golden, live, observe, spec
from refopt.oracle.between import between
from refopt.oracle.diagnose import Diagnosis, Observed, Record, diagnose, likely
from refopt.oracle.golden import Run
from refopt.oracle.layered import judging
from refopt.oracle.mistakes import mistaken
from refopt.oracle.observe import Subject
from refopt.oracle.own import numpy_run
from refopt.oracle.report import BROKE, NOTHING, OK, USAGE, VIOLATED
from refopt.oracle.search import equal
from refopt.oracle.verdict import CONFORMS, VIOLATION

ROOT = Path(__file__).parent.parent
SHARP = ("*sharp*", "*none-in-turn*", "*momentum-lr*", "*.dense.*", "*.conv.*", "*.table*")
"""Vectors that are asked in short."""


@cache
def vectors(optimizer: str) -> tuple[golden.Recording, ...]:
    return tuple(observe.vectors(optimizer))


def followed(
    optimizer: str, record: Record, patterns: Iterable[str] = SHARP
) -> tuple[Observed, ...]:
    """What refopt does on NumPy by the rule of a record, on some vectors."""
    rule = mistaken(optimizer)
    changed = {axis: rule.AXES[axis][name] for axis, name in record.changes}
    profile = rule.PROFILES[record.profile]
    return tuple(
        (case, numpy_run(case, profile, changed))
        for case, *_ in vectors(optimizer)
        if any(fnmatchcase(case.id, pattern) for pattern in patterns)
    )


def told(found: Diagnosis, observed: Iterable[Observed] = ()) -> str:
    return advice.paragraph(Subject("mine", "", found.optimizer, tuple(observed), ()), found)


DOCUMENTED = Record("documented", ())


@pytest.mark.parametrize("optimizer", ["nadam", "rmsprop", "thor"])
def test_the_documented_rule_conforms_and_what_is_undecided_is_said(optimizer: str) -> None:
    found = diagnose(optimizer, followed(optimizer, DOCUMENTED))
    assert (found.status, found.outside, found.differences) == (CONFORMS, (), ())
    assert DOCUMENTED in found.held
    assert told(found).startswith(f"mine conforms to documented on all {len(found.vectors)}")


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        ("nadam", (("epsilon", "inside"),)),
        ("nadam", (("given", "beta1:beta2"),)),
        ("nadam", (("given", "lr:0.001"),)),
        ("nadam", (("origin", "from-zero"),)),
        ("nadam", (("divisors", "same"), ("epsilon", "inside"))),
        ("rmsprop", (("given", "swapped-rho"),)),
        ("rmsprop", (("given", "momentum:1-momentum"),)),
        ("rmsprop", (("epsilon", "inside"), ("start", "one"))),
        ("thor", (("damping", "root"),)),
        ("thor", (("given", "momentum:1-momentum"),)),
    ],
)
def test_changes_of_the_documented_rule_are_named(
    optimizer: str, changes: tuple[tuple[str, str], ...]
) -> None:
    found = diagnose(optimizer, followed(optimizer, Record("documented", changes)))
    assert found.status == VIOLATION
    assert Record("documented", changes) in found.held
    assert len({len(record.changes) for record in found.held}) == 1
    assert {(x.axis, x.does) for x in found.differences} == {*found.held[0].changes}
    for x in found.differences:
        assert x.shown_by
        assert {*x.shown_by} <= {*found.outside}


@pytest.mark.parametrize(
    ("optimizer", "profile"),
    [("nadam", "keras-3"), ("rmsprop", "tf1"), ("thor", "mindspore-gpu"), ("nadam", "timm-nadamw")],
)
def test_a_release_is_identified_without_its_name(optimizer: str, profile: str) -> None:
    found = diagnose(optimizer, followed(optimizer, Record(profile, ())))
    assert Record(profile, ()) in found.held
    assert not any(record.changes for record in found.held)
    choices = spec.RULES[optimizer].PROFILES
    for x in found.differences:
        assert spec.RULES[optimizer].AXES[x.axis][x.does] is not getattr(
            choices["documented"].choices, x.axis
        )
    assert profile in told(found)


def recorded(optimizer: str, release: str, *paths: str) -> list[Observed]:
    """What paths through a release did when it was recorded."""
    found = golden.load(golden.root() / "golden" / optimizer / f"{release}.json")
    return [(r.case, run) for r in found for name, run in r.runs.items() if name in paths]


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        *(("nadam", name) for name in ("keras-3-tensorflow", "keras-3-torch", "optax-0.2")),
        ("rmsprop", "mindspore-2.10"),
    ],
)
def test_recorded_runs_fit_one_profile_alone(optimizer: str, name: str) -> None:
    found = likely(optimizer, recorded(optimizer, name, name))
    outside = 3 if name.startswith("mindspore") else 0  # conformance/expected.toml says why
    assert (found.rules, len(found.outside)) == (((name,),), outside)
    assert found.text.startswith(f"`{name}`")


def test_of_two_that_hold_the_one_with_narrower_ranges_is_named() -> None:
    given = [
        pair for pair in recorded("nadam", "torch-2.13", "torch-2.13") if "sharp" in pair[0].id
    ]
    assert likely("nadam", given).rules[0] == ("torch-2.13",)
    wide = likely("nadam", given[:1])
    assert ("torch-2.13-capturable",) not in wide.rules


def test_two_names_of_one_rule_are_said_to_be_one() -> None:
    given = recorded("rmsprop", "keras-2.15", "keras-2.15")[:4]
    assert likely("rmsprop", given).rules[0] == ("keras-2.15", "keras-2.15-graph")
    assert likely("rmsprop", given).text.startswith("`keras-2.15` = `keras-2.15-graph`")


# -- what is no optimizer -------------------------------------------------------------------------


def answered(value: Any) -> tuple[Observed, ...]:
    """Answers that no optimizer gave, to the vectors of NAdam."""

    def run(case: golden.Case) -> Run:
        steps = {
            t: {"param": [[value(x, t) for x in values] for values in case.params]}
            for t in range(1, case.steps + 1)
        }
        return Run("mine", steps, {"param": case.dtypes})

    return tuple((case, run(case)) for case, _ in followed("nadam", DOCUMENTED))


@pytest.mark.parametrize(
    "value",
    [
        lambda x, t: float("nan"),
        lambda x, t: 0.0,
        lambda x, t: float(np.float32(np.sin(1e4 * x + t))),
        lambda x, t: float("inf"),
    ],
    ids=["nan", "zeros", "random", "infinity"],
)
def test_what_is_no_optimizer_never_conforms_and_nothing_holds_it(value: Any) -> None:
    found = diagnose("nadam", answered(value))
    assert found.status == VIOLATION
    assert {*found.outside} == {*found.vectors}
    assert (found.held, found.where, found.differences) == ((), (), ())
    assert found.departure is not None
    assert found.departure.quantity == "param"
    assert found.departure.first.step == 1
    assert "follows no rule that is known" in told(found)
    assert "would have" in told(found)


def test_a_parameter_that_never_moves_has_a_learning_rate_of_zero() -> None:
    found = diagnose("nadam", answered(lambda x, t: x))
    assert found.held == (Record("documented", (("given", "lr:0"),)),)


def test_counters_that_are_shown_and_not_used_are_idle() -> None:
    changes = (("correction", "none"), ("start", "zero"))
    observed = followed("nadam", Record("documented", changes))
    right = {case.id: run for case, run in followed("nadam", DOCUMENTED)}
    mixed = [
        (
            case,
            run._replace(
                steps={
                    t: step | {"product": right[case.id].steps[t]["product"]}
                    for t, step in run.steps.items()
                }
            ),
        )
        for case, run in observed
    ]
    found = diagnose("nadam", mixed)
    assert Record("documented", changes) in found.held
    assert found.idle == ("product", "t")


def test_half_precision_leaves_the_place_of_a_small_epsilon_undecided() -> None:
    half = [
        (r.case, r.runs["torch-2.13"])
        for r in golden.recordings("nadam")
        if r.case.id.startswith("nadam.torch.half-defaults")
    ]
    assert {case.hyper["epsilon"] for case, _ in half} == {1e-8}
    found = diagnose("nadam", half, against="torch-2.13")
    assert found.status == CONFORMS
    assert "epsilon" in found.open
    said = told(found, half)
    assert said.startswith("mine conforms to torch-2.13 on all 2 vectors; undecided: ")
    assert "epsilon" in said.partition("undecided: ")[2]


# -- what is told where a rule is not known, or not quite -----------------------------------------


def changed(
    value: Any,
    optimizer: str = "nadam",
    quantities: Iterable[str] = ("param",),
    *,
    shown: bool = True,
) -> tuple[Observed, ...]:
    """The documented runs with some quantities as `value` makes them of case, step and number.

    Without coupled decay, by which a moment would follow from a parameter.
    """
    found = []
    for case, run in followed(optimizer, DOCUMENTED, (*SHARP, "*defaults*", "*beta1-zero*")):
        if case.hyper["weight_decay"] and not case.options.get("decoupled_weight_decay"):
            continue
        steps = {
            t: {
                q: [
                    [value(case, t, x) for x in xs or ()] if xs is not None else None
                    for xs in column
                ]
                if q in quantities
                else column
                for q, column in step.items()
                if shown or q == "param"
            }
            for t, step in run.steps.items()
        }
        found.append((case, run._replace(steps=steps)))
    return tuple(found)


def test_a_parameter_that_is_nan_beside_right_moments_is_no_rule() -> None:
    found = diagnose("nadam", changed(lambda case, t, x: float("nan")))
    assert (found.held, found.where) == ((), ())
    assert found.departure is not None
    assert (found.departure.quantity, found.departure.right[-2:]) == ("param", ("m", "v"))
    assert "param is nan at step 1, where the rule is finite." in told(found)


def test_what_departs_first_is_told_with_its_equations_and_clauses() -> None:
    found = diagnose("nadam", changed(lambda case, t, x: x * (1.0 + 0.01 * (t > 2))))
    said = told(found)
    assert "First to depart: param." in said
    assert "Right: t, product, m, v." in said
    assert "θₜ = θₜ′ − (γ m̂ₜ) / (√v̂ₜ + ε) (spec/nadam.md, NAD-9.2, NAD-11.1" in said
    assert "Nothing lies outside before step 3." in said
    assert "\\frac" not in said
    assert "which holds 0 of" not in said


def test_hidden_states_conform_and_a_small_difference_is_said_to_be_within_roundings() -> None:
    assert diagnose("nadam", changed(lambda case, t, x: x, shown=False)).status == CONFORMS
    found = diagnose("nadam", changed(lambda case, t, x: x * (1.0 + 1e-6 * (t > 1)), shown=False))
    assert found.outside
    assert found.rounded
    assert "computes what documented does, but for rounding" in told(found)


def test_another_order_of_operations_is_equal_and_not_to_be_changed() -> None:
    every = ("*sharp*", "*beta1-zero*", "*betas-changed*")
    found = diagnose("nadam", followed("nadam", Record("documented", (("first", "lerp"),)), every))
    assert found.rounded
    said = told(found)
    assert "computes what documented does, but for rounding" in said
    assert "Both are equal over the real numbers" in said
    assert "Write " not in said


def test_a_change_where_something_is_asked_for_is_told_with_what_asks_for_it() -> None:
    right = {case.id: run for case, run in followed("nadam", DOCUMENTED)}
    after = followed("nadam", Record("documented", (("decay", "decoupled-after"),)))
    mixed = tuple(
        (case, run if case.options.get("decoupled_weight_decay") else right[case.id])
        for case, run in after
    )
    found = diagnose("nadam", mixed)
    assert found.held == (Record("documented", (("decay", "decoupled-after"),)),)
    assert "decoupled_weight_decay" in found.where
    assert "conforms to documented except with" in told(found)
    assert all(x.should == "decoupled" for x in found.differences)


def test_a_counter_of_another_meaning_is_told_and_nothing_else_is_wrong() -> None:
    found = diagnose("nadam", changed(lambda case, t, x: x + 1, quantities=("t",)))
    assert (found.held[0], found.otherwise) == (DOCUMENTED, ("t",))
    assert found.differences == ()
    said = told(found)
    assert "What it calls t is not the rule's t (spec/nadam.md, NAD-5.2)" in said
    assert "computes with something else" not in said


def test_a_change_that_alters_nothing_explains_nothing() -> None:
    """Outside an interval that may be NaN as well; whatever epsilon is, it is the given one."""
    every = followed("rmsprop", DOCUMENTED, ["*centered-constant-500*"])
    assert every
    for case, run in every:
        last = max(run.steps)
        param = [[x * (1 + 1e-3) for x in xs or ()] for xs in run.steps[last]["param"]]
        steps = run.steps | {last: run.steps[last] | {"param": param}}
        judge = judging(spec.RULES["rmsprop"])(
            mistaken("rmsprop"),
            case,
            run._replace(steps=steps),
            spec.RULES["rmsprop"].PROFILES["documented"],
        )
        same = mistaken("rmsprop").AXES["given"]["as-given"]
        assert not judge.holds({"given": same})
        assert not judge.holds({})


# -- the commands ---------------------------------------------------------------------------------

FUNCTION = """
import numpy as np

def inside(param, grad, state, *, lr, betas, eps, momentum_decay, weight_decay):
    m, v, t, product = state or (0 * param, 0 * param, 0, 1.0)
    t, grad = t + 1, grad + weight_decay * param
    mu, mu_next = (betas[0] * (1 - 0.5 * 0.96 ** (s * momentum_decay)) for s in (t, t + 1))
    product *= mu
    m = betas[0] * m + (1 - betas[0]) * grad
    v = betas[1] * v + (1 - betas[1]) * grad * grad
    m_hat = mu_next / (1 - product * mu_next) * m + (1 - mu) / (1 - product) * grad
    v_hat = v / (1 - betas[1] ** t)
    return param - lr * m_hat / np.sqrt(v_hat + eps), (m, v, t, product)

def breaks(param, grad, state, *, lr, betas, eps, momentum_decay):
    raise RuntimeError("no")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refopt(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, [*arguments], env={"COLUMNS": "200"})


ASKED = ("--optimizer", "nadam", "--select", "*sharp-l2*")


def test_the_paragraph_says_what_to_change_where_and_what_shows_it(mine: Path) -> None:
    result = refopt("diagnose", "py:mine:inside", *ASKED)
    assert result.exit_code == VIOLATED, result.output
    text = " ".join(result.stdout.split())
    assert "mine:inside follows documented" in text
    assert "with epsilon=inside" in text
    assert "4 of 4 vectors lie outside documented" in text
    assert "Here: under the root (NAD-11.2b); it should be: after the root" in text
    assert "(spec/nadam.md, NAD-11.2a)" in text
    assert "/ (√v̂ₜ + ε), not θₜ = " in text
    assert "/ √(v̂ₜ + ε)." in text
    assert "Shown by nadam.vector.sharp-l2" in text
    assert "step 1, param[0] of parameter 0." in text
    assert "Not asked by any vector that was answered: counter." in text
    assert (ROOT / "spec" / "nadam.md").read_text().count("NAD-11.2a")


def test_a_diagnosis_is_json_too(mine: Path) -> None:
    result = refopt("diagnose", "py:mine:inside", *ASKED, "--json")
    (line,) = (json.loads(line) for line in result.stdout.splitlines())
    assert (line["kind"], line["status"], line["optimizer"]) == ("diagnosis", "violation", "nadam")
    assert line["follows"][0] == {"profile": "documented", "changes": [["epsilon", "inside"]]}
    (difference,) = line["differences"]
    assert (difference["does"], difference["clause"]) == ("inside", "NAD-11.2a")
    assert difference["first"]["step"] == 1
    assert len(line["outside"]) == len(line["vectors"]) == 4


def test_an_implementation_that_breaks_is_told_from_a_wrong_one(mine: Path) -> None:
    result = refopt(
        "diagnose", "py:mine:breaks", "--optimizer", "nadam", "--select", "*beta1-zero*"
    )
    assert result.exit_code == BROKE
    assert "Crashed: nadam.vector.beta1-zero" in " ".join(result.stdout.split())
    result = refopt("diagnose", "py:mine:inside", "--optimizer", "nadam", "--select", "no-such")
    assert result.exit_code == NOTHING
    assert refopt("diagnose", "no-such").exit_code == USAGE


def test_a_file_of_recordings_is_identified_run_by_run(mine: Path) -> None:
    source = json.loads((golden.root() / "golden" / "nadam" / "timm-nadamw.json").read_text())
    some = [case for case in source["cases"] if case["id"].endswith("f64")]
    for case in some:
        case["runs"] = {"torch-2.13": case["runs"].pop("timm-nadamw")}  # the name is no hint
    (mine / "recorded.json").write_text(json.dumps(source | {"cases": some}))
    result = refopt("diagnose", "recorded.json", "--json")
    (line,) = (json.loads(line) for line in result.stdout.splitlines())
    assert {"profile": "timm-nadamw", "changes": []} in line["follows"]
    result = refopt("diagnose", "recorded.json", "--select", "no-such")
    assert result.exit_code == NOTHING
    assert "no case of recorded.json matches the selection" in result.stderr


def test_two_rules_are_compared_with_what_makes_them_agree() -> None:
    some = [r for r in vectors("rmsprop") if "momentum-lr" in r.case.id or "tiny" in r.case.id]
    found = between("rmsprop", DOCUMENTED, Record("optax-0.2", ()), some)
    assert {(x.axis, x.first, x.second) for x in found.axes} >= {
        ("epsilon", "outside", "inside"),
        ("move", "lr-outside", "lr-inside"),
    }
    assert found.differ
    assert found.finding is not None
    (condition,) = found.agree_while
    assert "epsilon is 0" in condition
    torch = between("nadam", DOCUMENTED, Record("torch-2.13", ()), vectors("nadam")[:2])
    assert ("product", "exact", "float32") in torch.axes
    assert ("first", "weighted", "lerp") in torch.rounding
    same = between("nadam", DOCUMENTED, DOCUMENTED, vectors("nadam")[:2])
    assert (same.axes, same.differ, same.finding) == ((), (), None)


def test_a_comparison_names_both_sides_and_the_first_vector(mine: Path) -> None:
    result = refopt("compare", "documented", "py:mine:inside", *ASKED)
    assert result.exit_code == OK, result.output
    text = " ".join(result.stdout.split())
    assert "py:mine:inside follows documented" in text
    assert text.startswith("documented (torch.optim.NAdam 2.2, as documented); py:mine:inside")
    assert "documented: after the root (NAD-11.2a); py:mine:inside: under the root" in text
    assert "They differ on 4 of 4 vectors, first on nadam.vector.sharp-l2" in text
    assert "They agree while" in text
    assert "epsilon is 0" in text
    assert refopt("compare", "documented", "no-such").exit_code == USAGE


# -- real frameworks ------------------------------------------------------------------------------


def identified(name: str) -> dict[str, Diagnosis]:
    """What each path through a framework follows, told by its numbers on the vectors."""
    of = live.IMPLEMENTATIONS[name].recordings.split("/")[0]
    given = observe.cases(name)
    python = live.interpreter(name) or sys.executable
    tasks = observe.framework(name, given, python=python, seconds=120.0)
    found = observe.subjects(name, tasks, lambda what: None)
    assert not any(subject.broke for subject in found)
    expected = golden.expected()
    return {
        subject.name: diagnose(
            of, [x for x in subject.observed if (x[0].id, subject.name) not in expected]
        )
        for subject in found
    }


@pytest.mark.slow
def test_an_environment_is_built_on_request_and_its_size_is_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOPT_ENVS", str(tmp_path))
    monkeypatch.setattr(live, "interpreters", lambda name: [])
    smallest = min(live.IMPLEMENTATIONS, key=lambda name: environments.of(name).megabytes)
    environment = environments.of("mlx:RMSprop")
    assert environment.megabytes <= 2 * environments.of(smallest).megabytes
    result = refopt("check", "mlx:RMSprop", "--build", "--select", "*defaults*")
    assert result.exit_code == OK, result.output
    said = result.stderr.splitlines()
    what = f"3 packages, {environment.megabytes} MB, in {environment.home}"
    assert said[0] == f"{environment.name}: {what}"
    assert [line.partition(":")[0] for line in said[1:4]] == [
        f"installed {n} of 3" for n in (1, 2, 3)
    ]
    assert environment.whole


def test_every_environment_states_its_size_and_every_implementation_has_one() -> None:
    for name in live.IMPLEMENTATIONS:
        environment = environments.of(name)
        assert environment.megabytes > 0
        assert environments.pins(environment)


def rules(found: Diagnosis, path: str) -> None:
    """A path follows its own profile; whatever else holds is the same rule, or its equal."""
    assert Record(path, ()) in found.held, (path, told(found))
    known = spec.RULES[found.optimizer].PROFILES
    ours = known[path].choices
    for record in found.held:
        theirs = known[record.profile].choices
        for axis in ours._fields:
            same = equal(spec.RULES[found.optimizer], axis, ours)
            named = spec.RULES[found.optimizer].AXES[axis].items()
            assert {n for n, x in named if x is getattr(theirs, axis)} <= same, (path, record)


@pytest.mark.torch
def test_torch_is_identified_blind() -> None:
    for path, found in identified("torch:NAdam").items():
        rules(found, path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*live.IMPLEMENTATIONS])
def test_a_framework_is_identified_blind(name: str) -> None:
    row = live.IMPLEMENTATIONS[name]
    if not (live.folder() / row.environment).exists():
        pytest.skip(f"needs the environment {row.environment}: refopt check {name} --build")
    for path, found in identified(name).items():
        rules(found, path)
