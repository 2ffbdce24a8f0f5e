"""An exercise leads from an empty step to one that conforms, and each mistake to its own hint."""

import ast
import re
from pathlib import Path

import pytest
from solutions import MISTAKES, SOLUTIONS, Mistake
from typer.testing import CliRunner

from refopt.cli import app
from refopt.errors import CaseError, Unknown
from refopt.interp.notation import unicode
from refopt.oracle import spec
from refopt.teach import exercise
from refopt.teach.exercise import EXERCISES, check

every = pytest.mark.parametrize("name", EXERCISES)


def ran(*arguments: str, code: int) -> str:
    done = CliRunner().invoke(app, ["exercise", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def written(folder: Path, source: str) -> Path:
    path = folder / "mine.py"
    path.write_text(source, encoding="utf-8")
    return path


# -- the file -------------------------------------------------------------------------------------
@every
def test_the_file_is_python_with_an_empty_step_that_says_what_to_do(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    assert "write the step" in ran(name, "--out", str(path), code=0)
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    (step,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    asked = [argument.arg for argument in (*step.args.args, *step.args.kwonlyargs)]
    statement = ast.get_docstring(tree) or ""
    for argument in asked:
        assert f"{argument}: " in statement or f"{argument}, " in statement
    for q in EXERCISES[name].state:
        assert f"\n    {q}: " in statement
    assert max(map(len, text.splitlines())) <= 100
    solution = ast.parse(SOLUTIONS[name])
    (solved,) = (node for node in solution.body if isinstance(node, ast.FunctionDef))
    assert ast.dump(step.args) == ast.dump(solved.args)
    assert "NotImplementedError: write the step" in ran("--check", str(path), code=1)


@every
def test_the_file_gives_no_equation_away(name: str) -> None:
    text = exercise.text(name, "mine.py")
    rule = spec.RULES[name]
    for right in spec.equations(name, rule.PROFILES["documented"].choices).values():
        assert len(right) < 12 or exercise.unicode(right) not in text


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = written(tmp_path, "mine")
    assert "must be a new file" in " ".join(ran("sgd", "--out", str(path), code=2).split())
    assert path.read_text(encoding="utf-8") == "mine"


# -- solutions and mistakes -----------------------------------------------------------------------
@every
def test_the_solution_conforms_in_every_value(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, SOLUTIONS[name])
    report = check(path)
    assert report.conforms
    x = EXERCISES[name]
    inside = sum(x.shape) if name == "thor" else 0  # A, G and their inverses have other shapes
    assert report.checks >= exercise.STEPS * (1 + len(x.state)) * (1 if inside else 2)
    assert ran("--check", str(path), code=0).startswith(f"conforms: {report.checks} values")


def test_there_are_ten_mistakes_for_every_exercise() -> None:
    assert MISTAKES.keys() == SOLUTIONS.keys() == EXERCISES.keys()
    assert min(map(len, MISTAKES.values())) >= 10


@pytest.mark.filterwarnings("ignore:(invalid|divide by zero):RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        pytest.param(name, mistake, id=f"{name}-{what}")
        for name, mistakes in MISTAKES.items()
        for what, mistake in mistakes.items()
    ],
)
def test_a_mistake_leads_to_its_hint(name: str, mistake: Mistake, tmp_path: Path) -> None:
    assert SOLUTIONS[name].count(mistake.old) == 1
    report = check(written(tmp_path, SOLUTIONS[name].replace(mistake.old, mistake.new)))
    assert (report.step, report.quantity, report.clause) == mistake[2:]
    first, second, third = report.hints
    assert first.startswith(f"step {mistake.step}, {mistake.quantity}: element ")
    texts = {c["id"]: c["text"] for c in spec.load(name)["clauses"]}
    stated = [f"{id_}: {texts[id_]}" for id_ in mistake.clause.split()]
    several = ["One of these is broken, or more:"] if len(stated) > 1 else []
    assert second.startswith("\n".join([*several, *stated]))
    equations = [line for line in third.splitlines() if not line.startswith("  ")]
    assert equations
    assert all(" = " in line and line not in first + second for line in equations)
    # every symbol is explained by the exercise or here
    statement = exercise.text(name, "mine.py")
    for symbol in map(unicode, spec.load(name)["meanings"]):
        if re.search(rf"(?<![\w'\u0302]){re.escape(symbol)}(?![\w'\u0302₋])", " ".join(equations)):
            assert f"\n  {symbol}: " in third or f" {symbol}, " in statement
    assert ("(b / s)²" in third) == ("\n  s: loss_scale, here 1" in third)


@pytest.mark.parametrize(
    ("name", "both", "clauses", "yours"),
    [
        (
            "sgd",
            ("no decay", "the first dampened too"),
            "SGD-4.1 SGD-5.2",
            ("Yours: nowhere.", "Yours: one less the dampening, from the first on."),
        ),
        (
            "rmsprop",
            ("the rate inside", "epsilon inside"),
            "RMS-5.4 RMS-6.1",
            ("Yours: under the root.", "Yours: changes, each with the rate of its own step."),
        ),
    ],
)
def test_two_mistakes_at_one_place_are_both_named(
    name: str, both: tuple[str, str], clauses: str, yours: tuple[str, str], tmp_path: Path
) -> None:
    text = SOLUTIONS[name]
    for what in both:
        text = text.replace(MISTAKES[name][what].old, MISTAKES[name][what].new)
    report = check(written(tmp_path, text))
    assert report.clause == clauses
    lines = report.hints[1].splitlines()
    assert [line.partition(":")[0] for line in lines] == clauses.split()
    assert [line.endswith(end) for line, end in zip(lines, yours, strict=True)] == [True, True]


def test_hints_come_one_by_one_and_the_equation_on_demand(tmp_path: Path) -> None:
    mistake = MISTAKES["rmsprop"]["epsilon inside"]
    path = str(written(tmp_path, SOLUTIONS["rmsprop"].replace(mistake.old, mistake.new)))
    first = ran("--check", path, code=1)
    assert first.startswith("step 1, buffer: element 0 is ")
    assert first.endswith("more: --hint 2\n")
    assert "RMS" not in first
    second = ran("--check", path, "--hint", "2", code=1)
    assert "RMS-5.4: Epsilon is added after the root" in second
    assert "Yours: under the root." in second
    assert "uₜ" not in second
    third = ran("--check", path, "--hint", "3", code=1)
    assert "uₜ = gₜ / (√vₜ + ε)\n" in third
    assert "more" not in third


def test_a_student_gets_from_empty_to_conforming_by_hints_alone(tmp_path: Path) -> None:
    """Each file mends what the hint before named, and nothing else."""
    empty = exercise.text("rmsprop", "mine.py")
    solution = SOLUTIONS["rmsprop"]
    body = solution[solution.index("    state =") :]
    begun = empty.replace('    raise NotImplementedError("write the step")\n', body)
    wrong = [
        ("rho * state", "(1 - rho) * state", "v"),
        ("(1 - rho) * grad", "rho * grad", "v"),
        ("(np.sqrt(v) + epsilon)", "np.sqrt(v + epsilon)", "buffer"),
        ("param - learning_rate * b", "param + learning_rate * b", "param"),
    ]
    text = begun
    for right, mistake, _ in wrong:
        text = text.replace(right, mistake, 1)
    named = []
    for right, mistake, quantity in wrong:
        named.append(check(written(tmp_path, text)).quantity == quantity)
        text = text.replace(mistake, right, 1)
    assert named == [True] * 4
    assert check(written(tmp_path, text)).conforms


# -- what is no step ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return param", "return [param][1]", "step 1: step raised IndexError: list index"),
        ('{"buffer": b}', "b", "step 1: step must return (param, state), state a dict"),
        ("    b =", "    param += 1\n    b =", "step 1: step must not write to its arguments"),
        ("param - lr", "np.float32(1) * (param - lr", "can be loaded"),
        ("return param - lr * b", "return param[:1]", "of float64 and shape (3,), got float64"),
        ("return param - lr * b", "return list(param)", "step 1: step must return a param that is"),
        ("    b =", "    raise SystemExit\n    b =", "step 1: step raised SystemExit"),
        ("OPTIMIZER =", "raise SystemExit\nOPTIMIZER =", "can be loaded"),
        ('{"buffer": b}', '{"buffer": np.float32(b)}', "step 1: buffer must be of float64, got"),
        ('{"buffer": b}', '{"buffer": "b"}', "step 1: buffer must be numbers, got 'b'"),
        ('{"buffer": b}', "{}", "step 1: state must have buffer; got nothing"),
        ('{"buffer": b}', '{"buffer": b[:1]}', "step 1: buffer must have shape (3,), got (1,)"),
    ],
)
def test_what_is_no_step_is_told(old: str, new: str, why: str, tmp_path: Path) -> None:
    output = ran(
        "--check",
        str(written(tmp_path, SOLUTIONS["sgd"].replace(old, new))),
        code=1 if "loaded" not in why else 2,
    )
    assert why in output
    assert "more" not in output


def test_an_error_names_the_line_of_the_file_however_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, SOLUTIONS["sgd"].replace("return param", "1 / 0\n    return param"))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "1 / 0" in text)
    for named in (path, path.relative_to(tmp_path)):
        assert check(named).hints == (
            f"step 1: step raised ZeroDivisionError: division by zero (line {line})",
        )


def test_a_step_without_an_end_is_ended_and_the_line_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exercise, "SECONDS", 0.3)
    loop = "    import time\n    while True:\n        time.sleep(0.01)\n    return param"
    path = written(tmp_path, SOLUTIONS["sgd"].replace("    return param", loop))
    (hint,) = check(path).hints
    assert re.fullmatch(r"step 1: step does not end within 0.3 s \(line 1[123]\)", hint)


def test_what_is_no_exercise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="OPTIMIZER must be one of sgd, rmsprop, nadam, thor"):
        exercise.text("adam", "x.py")
    with pytest.raises(CaseError, match=r"must define OPTIMIZER, one of sgd.*got 'adam'"):
        check(written(tmp_path, 'OPTIMIZER = "adam"'))
    with pytest.raises(CaseError, match="FILE must be a file that exists, got"):
        check(tmp_path / "absent.py")
    (tmp_path / "mine.txt").write_text(SOLUTIONS["sgd"], encoding="utf-8")
    with pytest.raises(CaseError, match="FILE must be a Python file, by its name too, got"):
        check(tmp_path / "mine.txt")
    assert "either OPTIMIZER or --check" in " ".join(ran(code=2).split())
    assert "got 'adam'" in ran("adam", code=2)
