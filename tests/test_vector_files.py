"""The vectors as a whole: their coverage, their limits, their writer, and ids that are retired."""

import json
import shutil

import jsonschema
import pytest
from typer.testing import CliRunner

from refopt import cli
from refopt.errors import CaseError
from refopt.oracle import coverage, golden, power, spec, vectors
from refopt.oracle.report import OK, STALE, USAGE
from refopt.oracle.verdict import FORCED, OPEN, judge
from refopt.rules import rmsprop

OPTIMIZERS = coverage.optimizers()
EVERY = [v for optimizer in OPTIMIZERS for v in coverage.sources(optimizer)]
SCHEMA = json.loads((golden.root() / "schema" / "vectors.schema.json").read_text())


def refopt(*arguments):
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "200"})


# -- coverage -------------------------------------------------------------------------------------


def test_every_clause_has_a_vector_and_every_alternative_one_that_kills_it_or_a_reason():
    result = refopt("clauses", "--coverage")
    assert result.exit_code == OK, result.stderr
    for optimizer in OPTIMIZERS:
        for clause in spec.load(optimizer)["clauses"]:
            assert f"{clause['id']} {clause['kind']}" in result.stdout


@pytest.fixture
def without(monkeypatch):
    """The vectors of NAdam that do not match, alone."""

    def leave_out(gone):
        kept = tuple(v for v in coverage.sources("nadam") if not gone(v))
        assert len(kept) < len(coverage.sources("nadam"))
        monkeypatch.setattr(coverage, "sources", lambda optimizer: kept)

    return leave_out


def test_a_clause_without_vector_and_an_alternative_that_none_kills_are_reported(without):
    without(lambda v: "counter=shared-step" in v["kills"] or "NAD-15.4" in v["clauses"])
    result = refopt("clauses", "nadam", "--coverage")
    assert result.exit_code == STALE
    assert "NAD-15.4: no vector exercises it, and no reason is stated" in result.stderr
    assert "counter=shared-step: no vector of float64 excludes it" in result.stderr
    assert refopt("clauses", "nadam").exit_code == OK


def test_a_reason_that_is_not_true_any_more_is_reported(monkeypatch):
    data = spec.load("nadam")
    more = {"clauses": ["NAD-3.1"], "reason": "nobody can", "tests": []}
    changed = data | {"unexercised": [*data["unexercised"], more]}
    monkeypatch.setattr(spec, "load", lambda optimizer: changed)
    (line,) = coverage.missing("nadam")
    assert line.startswith("NAD-3.1: nadam.vector.sharp")
    assert line.endswith("exercises it, though nobody can")


def test_what_no_vector_exercises_names_tests_that_are_there():
    for optimizer in OPTIMIZERS:
        for why in spec.load(optimizer)["unexercised"]:
            assert why["tests"]
            for name in why["tests"]:
                assert (golden.root().parent / "tests" / name).is_file()


def test_an_unknown_optimizer_is_wrong_usage():
    for command in ("clauses", "mutants"):
        result = refopt(command, "adam")
        assert result.exit_code == USAGE
        assert "OPTIMIZER must be one of nadam" in result.stderr


# -- files ----------------------------------------------------------------------------------------


def test_vectors_are_few_and_small():
    assert list(coverage.faults()) == []
    assert 100 <= len(EVERY) <= coverage.MOST
    assert {v["class"] for v in EVERY} == {"must", "may", "must-reject"}
    assert {mode for v in EVERY for mode in v["modes"]} == {OPEN, FORCED}
    dtypes = {p["dtype"] for v in EVERY for p in v["params"]}
    assert dtypes == {"float32", "float64", "float16", "bfloat16", "complex64"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_vector_of_another_class_or_without_what_its_class_has_is_invalid(optimizer):
    validator = jsonschema.Draft202012Validator(SCHEMA)
    document = json.loads(vectors.path(optimizer).read_text())
    assert not [e.message for e in validator.iter_errors(document)]
    must = next(v for v in document["cases"] if v["class"] == "must")
    # without an object of ours nothing is refused
    refused = [v for v in document["cases"] if v["class"] == "must-reject"][:1]
    for case, change in (
        (must, {"class": "should"}),
        (must, {"class": "must-reject"}),
        (must, {"kills": []}),
        (must, {"clauses": []}),
        (must, {"comment": ""}),
        (must, {"modes": []}),
        (must, {"decisive_through": -1}),
        *(
            (reject, change)
            for reject in refused
            for change in (
                {"class": "must"},
                {"kind": "bad"},
                {"repair": {}},
                {"runs": must["runs"]},
            )
        ),
    ):
        assert not validator.is_valid(document | {"cases": [case | change]}), change
        assert validator.is_valid(document | {"cases": [case]})


def test_an_id_that_is_retired_is_used_by_nothing():
    gone = golden.retired()
    assert gone
    assert all(reason for reason in gone.values())
    assert gone.keys().isdisjoint(v["id"] for v in EVERY)


def test_the_command_lists_vectors_and_checks_them():
    result = refopt("vectors", "nadam.vector.reject-*")
    assert result.exit_code == OK
    assert "nadam.vector.reject-shape.f32 (must-reject): " in result.stdout
    result = refopt("vectors", "*.sharp-l2-psi-1.*", "--check", "--jobs", "1")
    assert result.exit_code == OK, result.output
    assert "4 runs of 2 cases: 4 conforms" in result.stdout
    lines = refopt("vectors", "rmsprop*centered-constant-500.f32", "--json").stdout.splitlines()
    (vector,) = map(json.loads, lines)
    assert (vector["steps"], vector["modes"]) == (500, [OPEN, FORCED])
    assert refopt("vectors", "no-such").exit_code != OK


def test_a_retired_id_among_the_vectors_fails_the_check(monkeypatch):
    monkeypatch.setattr(golden, "retired", lambda: {EVERY[0]["id"]: "it went"})
    result = refopt("vectors", EVERY[0]["id"], "--check")
    assert result.exit_code == STALE
    assert "its id is retired: it went" in result.stderr


# -- the writer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["comment", "clauses", "kills"])
def test_the_writer_refuses_a_vector_without_reason_clause_or_power(key):
    vector = dict(EVERY[0])
    vectors._lint([vector])
    with pytest.raises(CaseError, match=rf"must have .* \({key}\)"):
        vectors._lint([vector | {key: type(vector[key])()}])


def test_the_writer_refuses_a_retired_id():
    (gone, *_) = golden.retired()
    with pytest.raises(CaseError, match="must not have a retired id"):
        vectors._lint([EVERY[0] | {"id": gone}])


def test_the_writer_refuses_to_change_what_a_vector_asks_and_to_drop_it_silently(tmp_path):
    stored = tmp_path / "documented.json"
    first, second = EVERY[:2]
    stored.write_text(json.dumps({"cases": [first, second]}))
    vectors._kept({"cases": [second, first | {"kills": ["x=y"]}]}, stored)
    with pytest.raises(CaseError, match="must keep its hyper; give the new one a new id"):
        vectors._kept({"cases": [first | {"hyper": {}}, second]}, stored)
    with pytest.raises(CaseError, match="that goes must be listed in retired"):
        vectors._kept({"cases": [first]}, stored)


def test_what_the_writer_refuses_it_says_and_writes_nothing(monkeypatch, capsys):
    (one,) = [v["id"] for v in EVERY if v["id"].startswith("sgd.")][:1]
    before = vectors.path("sgd").read_bytes()
    monkeypatch.setattr(coverage, "optimizers", lambda: ["sgd"])
    assert vectors.main(["--check"]) == 0
    monkeypatch.setattr(golden, "retired", lambda: {one: "it went"})
    assert vectors.main([]) == 2
    assert capsys.readouterr().err == f"{one}: a vector must not have a retired id: it went\n"
    assert vectors.path("sgd").read_bytes() == before


# -- power ----------------------------------------------------------------------------------------

STORED = {r.case.id: r for r in golden.load(vectors.path("rmsprop"))}
DOCUMENTED = rmsprop.PROFILES["documented"]


def test_beyond_the_step_through_which_a_vector_decides_a_hidden_state_decides_nothing():
    case, runs, _ = STORED["rmsprop.vector.centered-constant-500.f32"]
    through, run = case.source["decisive_through"], runs["documented"]
    (last, *_) = (t for t in run.steps if t > through)
    assert 100 < through < last < case.steps
    case = case._replace(steps=last)
    shown = {last: {"param": run.steps[last]["param"]}}
    verdict = judge(rmsprop, case, run._replace(steps=shown), DOCUMENTED)
    assert (verdict.status, verdict.first) == ("inconclusive", None)


def test_a_vector_that_decides_to_its_end_does_so_by_its_parameters_alone():
    case, runs, _ = STORED["rmsprop.vector.clipnorm-drawn.f32"]
    shown = {t: columns["param"] for t, columns in runs["documented"].steps.items()}
    assert power.decisive_through(case, shown, DOCUMENTED, case.source["kills"]) == case.steps
    assert power.decisive_through(case, shown, DOCUMENTED, []) == 0
    assert power.modes(0) == [FORCED]
    assert power.modes(3) == [OPEN, FORCED]


def test_clauses_follow_from_what_a_vector_excludes_needs_and_has():
    clauses = {v["id"].replace(".vector.", "."): {*v["clauses"]} for v in EVERY}
    assert "NAD-11.2" in clauses["nadam.sharp-l2-psi-1.f32"]  # epsilon: an axis
    assert "NAD-1.3" in clauses["nadam.sharp-l2-psi-1.f32"]  # beta2: a hyperparameter
    assert "NAD-12.2" in clauses["nadam.none-first-step.f32"]  # what it has
    assert "RMS-9.5" in clauses["rmsprop.schedule-cosine.f64"]
    assert "THO-5.7" in clauses["thor.dense.f32"]


@pytest.mark.parametrize(
    ("clause", "has"),
    [
        ("NAD-1.4", {"zero-by-zero"}),
        ("NAD-1.5", {"weight_decay-zero"}),
        ("NAD-12.3", {"missing", "zero"}),
        ("RMS-1.4", {"zero-by-zero"}),
        ("RMS-7.2", {"global_clipnorm", "not-finite"}),
        ("RMS-7.3", {"clipvalue", "not-finite"}),
        ("RMS-10.3", {"missing", "zero"}),
    ],
)
def test_a_clause_about_zeros_or_nan_is_exercised_where_the_input_has_them(clause, has):
    claim = [v["id"] for v in EVERY if clause in v["clauses"]]
    assert claim
    optimizer = {"NAD": "nadam", "RMS": "rmsprop"}[clause[:3]]
    for case, runs, _ in golden.load(vectors.path(optimizer)):
        there = bool(runs) and has <= power.features(case, runs["documented"])
        assert there or case.id not in claim, case.id


def test_no_vector_claims_to_exclude_what_only_rounding_tells():
    assert not [v["id"] for v in EVERY if "variance=clamped" in v["kills"]]
    (why,) = {a.reason for a in coverage.alternatives("rmsprop") if a.name == "clamped"}
    assert why == "equal over the real numbers to what is documented"


def test_a_file_that_is_not_valid_by_the_schema_is_a_fault(monkeypatch, tmp_path):
    stored = golden.root()
    for folder in ("schema", "vectors"):
        shutil.copytree(stored / folder, tmp_path / folder)
    monkeypatch.setattr(golden, "root", lambda: tmp_path)
    assert list(coverage.invalid()) == []
    path = tmp_path / "vectors" / "sgd" / "documented.json"
    document = json.loads(path.read_text())
    document["cases"][1]["class"] = "should"
    path.write_text(json.dumps(document))
    (fault,) = {fault.partition(",")[0] for fault in coverage.invalid()}
    assert fault == "sgd/documented.json"
    monkeypatch.setattr(coverage, "find_spec", lambda name: None)  # without jsonschema
    assert list(coverage.invalid()) == []
