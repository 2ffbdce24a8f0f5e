"""`refopt trace`: the numbers are those of the optimizer, and the true value is true."""

import csv
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import refopt
from refopt import errors
from refopt.cli import app
from refopt.oracle.spec import RULES
from refopt.problems import PROBLEMS
from refopt.teach import trace as tables
from refopt.teach.runs import setting, taken
from refopt.teach.trace import trace

ROOT = Path(__file__).parent.parent


def ran(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["trace", *arguments])
    assert done.exit_code == code, done.output
    return done.output


# -- numbers --------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_numbers_are_those_of_the_object(dtype: str) -> None:
    problem = PROBLEMS["rosenbrock"]
    table = trace("nadam", "rosenbrock", 4, dtype=dtype, given={"lr": 0.01}, element=1)
    parameter = refopt.Parameter(problem.start(np, dtype)[0])
    optimizer = refopt.NAdam([parameter], lr=0.01)
    for t in range(1, 5):
        parameter.grad = problem.gradient(parameter.data)
        grad = parameter.grad[1]
        optimizer.step()
        shown = {q: table.series["documented"][t, q] for q in table.quantities}
        assert shown["grad"] == grad
        assert shown["param"] == parameter.data[1]
        assert shown["param"].dtype == np.dtype(dtype)
        state = optimizer.state[parameter]
        assert (shown["m"], shown["v"]) == (state["exp_avg"][1], state["exp_avg_sq"][1])
        assert shown["product"] == float(state["mu_product"])


@pytest.mark.parametrize("name", RULES)
def test_everything_with_a_name_is_in_the_table_in_order(name: str) -> None:
    table = trace(name, "digits", 2)
    rule = RULES[name]
    names = ["grad", *rule.Scalars._fields, *rule.Quantities._fields]
    (mine,) = table.series.values()
    (first, _) = taken(setting(name, problem=PROBLEMS["digits"]), PROBLEMS["digits"], 2)
    absent = {q for q, x in first.quantities[0]._asdict().items() if x is None}
    assert table.quantities == [q for q in names if q not in absent]
    assert {q for t, q in mine if t == 1} == set(table.quantities)


def test_thor_sees_the_activations_of_the_digits() -> None:
    table = trace("thor", "digits", 1, element="norm")
    problem = PROBLEMS["digits"]
    seen = problem.at(problem.start(), 1)
    a = seen.activations[0]
    (mine,) = table.series.values()
    exact = np.linalg.norm(a.T @ a / 64)
    # a sum of 64 products, two roundings each, and a norm of their squares
    assert abs(mine[1, "A"] - exact) < 64 * 4 * 2.0**-53 * exact
    assert mine[1, "refresh"] is True


def test_a_norm_is_that_of_the_whole_parameter() -> None:
    whole = trace("rmsprop", "quadratic", 1, element="norm").series["documented"]
    (done,) = taken(setting("rmsprop"), PROBLEMS["quadratic"], 1)
    x, y = done.params[0]
    assert whole[1, "param"] == math.sqrt(x * x + y * y)


# -- against --------------------------------------------------------------------------------------
def test_a_profile_does_not_differ_from_itself() -> None:
    table = trace("nadam", against="documented")
    assert table.differences == ()
    assert list(table.series) == ["documented", "documented again"]
    assert table.series["documented"] == table.series["documented again"]


def test_the_first_difference_of_torch_is_its_product_and_no_rounding_explains_it() -> None:
    found = trace("nadam", "rosenbrock", 3, against="torch-2.13").differences
    assert [(x.step, x.quantity, x.beyond_rounding) for x in found] == [
        (1, "product", False),
        (1, "product", True),
    ]
    assert float(np.float32(found[0].other)) == found[0].other != found[0].mine


def test_what_only_rounds_otherwise_is_a_difference_of_bits_alone() -> None:
    found = trace(
        "rmsprop", "himmelblau", 20, against="torch-2.13", given={"lr": 0.1}, dtype="float32"
    ).differences
    assert [x.beyond_rounding for x in found] == [False]


def test_both_see_the_same_gradients() -> None:
    table = trace("rmsprop", "beale", 5, against="keras-3", given={"lr": 0.1, "epsilon": 0.1})
    mine, other = table.series.values()
    assert all(mine[t, "grad"] == other[t, "grad"] for t in range(1, 6))
    assert [(x.step, x.quantity) for x in table.differences] == [(1, "lr"), (1, "param")]
    assert mine[1, "param"] != other[1, "param"]


def test_thor_is_put_beside_a_profile_too() -> None:
    table = trace("thor", "digits", 2, against="corrected", given={"frequency": 2})
    assert table.differences[-1].beyond_rounding
    assert table.differences[-1].quantity == "a_inverse"


@pytest.mark.torch
@pytest.mark.parametrize("name", ["torch:NAdam", "torch:RMSprop"])
def test_a_framework_is_put_beside_the_rule(name: str) -> None:
    optimizer = name.partition(":")[2].lower()
    table = trace(optimizer, "beale", 3, against=name, profile="torch-2.13")
    assert {q for _, q in table.series[name]} >= {"param", "v"}
    assert not any(x.beyond_rounding for x in table.differences)
    assert any(
        x.beyond_rounding for x in trace("nadam", "beale", 3, against="torch:NAdam").differences
    )


FUNCTION = """
import numpy as np


def nadam(param, grad, state, *, lr, betas, eps, momentum_decay):
    m, v, t, product = state or (0 * param, 0 * param, 0, 1.0)
    t += 1
    mu, mu_next = (betas[0] * (1 - 0.5 * 0.96 ** (s * momentum_decay)) for s in (t, t + 1))
    product *= mu
    m = betas[0] * m + (1 - betas[0]) * grad
    v = betas[1] * v + (1 - betas[1]) * grad**2
    m_hat = mu_next / (1 - product * mu_next) * m + (1 - mu) / (1 - product) * grad
    return param - lr * m_hat / (np.sqrt(v / (1 - betas[1] ** t)) + eps), (m, v, t, product)


def named(param, grad, state, *, lr, betas, eps, momentum_decay):
    state = state and tuple(state.values())
    param, (m, v, t, product) = nadam(
        param, grad, state, lr=lr, betas=betas, eps=eps, momentum_decay=momentum_decay
    )
    return param, {"m": m, "v": v, "t": t, "product": product}


def stored(param, grad, state, *, lr, betas, eps, momentum_decay):
    param, state = named(
        param, grad, state, lr=lr, betas=betas, eps=eps, momentum_decay=momentum_decay
    )
    return param, state | {"m": state["m"] / (1 - betas[0] ** state["t"])}


def broken(param, grad, state, **hyper):
    raise ZeroDivisionError(f"lr is {hyper['lr']}")
"""


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    (tmp_path / "of_a_student.py").write_text(FUNCTION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return lambda name: f"py:of_a_student:{name}"


def test_a_function_is_put_beside_the_rule_and_marked_in_what_it_shows(function: Any) -> None:
    for name, shown, first in (
        ("nadam", {"param"}, None),
        ("named", {"param", "m", "v", "t", "product"}, None),
        ("stored", {"param", "m", "v", "t", "product"}, (1, "m")),
    ):
        given = ("nadam", "--problem", "beale", "--steps", "3", "--against", function(name))
        read = json.loads(ran(*given, "--format", "json"))
        assert {x["quantity"] for x in read["rows"] if x["series"] == function(name)} == shown
        beyond = [x for x in read["differences"] if x["beyond_rounding"]]
        assert [(x["step"], x["quantity"]) for x in beyond] == ([first] if first else [])
    marked = [line.split() for line in ran(*given).splitlines() if "*" in line]
    assert [line[:1] for line in marked] == [[function("stored")]]


def test_a_program_keeps_its_own_state(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "rop" / "template.py").read_text(encoding="utf-8")
    asked = "    q, a = json.loads(line), {}\n"
    assert text.count(asked) == text.count('"several"') == 1
    program = tmp_path / "program.py"
    program.write_text(
        text.replace('"several"', '"several", "set_state"').replace(
            asked, asked + '    assert q["op"] != "set_state"\n'
        )
    )
    name = f"cmd:{sys.executable} {program}"
    read = json.loads(ran("rmsprop", "--against", name, "--format", "json"))
    shown = [(x["step"], x["quantity"]) for x in read["rows"] if x["series"] == name]
    assert shown == [(t, "param") for t in range(1, 6)]
    assert not any(x["beyond_rounding"] for x in read["differences"])


def test_a_program_of_thor_sees_what_the_layers_saw() -> None:
    name = f"cmd:{sys.executable} {ROOT / 'examples' / 'rop' / 'thor.py'}"
    given = ("thor", "--problem", "digits", "--steps", "2", "--set", "momentum=0.5")
    read = json.loads(ran(*given, "--against", name, "--format", "json"))
    shown = {x["quantity"] for x in read["rows"] if x["series"] == name}
    assert {"param", "A", "G"} <= shown
    assert not any(x["beyond_rounding"] for x in read["differences"])


def test_a_program_that_breaks_says_why(function: Any) -> None:
    said = ran("nadam", "--against", function("broken"), code=3)
    assert "ZeroDivisionError: lr is 0.002" in said
    assert "exited with 1" in ran("nadam", "--against", f"cmd:{sys.executable} -m nothing", code=3)


# -- the true value -------------------------------------------------------------------------------
def test_the_true_value_is_that_of_exact_fractions() -> None:
    given = {"rho": 0.75, "lr": 0.1}
    table = trace("rmsprop", "quadratic", 4, bits=256, given=given, dtype="float32")
    v = Fraction(0)
    for t in range(1, 5):
        g = Fraction(float(table.series["documented"][t, "grad"]))
        v = Fraction(3, 4) * v + Fraction(1, 4) * g * g
        assert abs(Fraction(table.series["true"][t, "v"]) / v - 1) < Fraction(1, 10**9)


def test_lost_digits_count_from_half_a_last_place() -> None:
    table = trace("nadam", "rosenbrock", 6, bits=256)
    for key, digits in table.series["lost"].items():
        true, got = Fraction(table.series["true"][key]), float(table.series["documented"][key])
        half = Fraction(math.ulp(float(true))) / 2
        error = abs(Fraction(got) - true) / half
        # what is printed of the true value has three digits beyond those of float64
        assert digits == 0 if error < 1 else abs(10**digits / float(error) - 1) < 0.01
    assert table.series["lost"][2, "correction"] > 1.0 > table.series["lost"][2, "param"]


def test_the_true_value_is_that_of_the_first_profile_and_its_gradients() -> None:
    plain = trace("nadam", "beale", 3, bits=128).series["true"]
    beside = trace("nadam", "beale", 3, bits=512, against="keras-3").series["true"]
    assert plain == beside


# -- forms ----------------------------------------------------------------------------------------
def test_csv_and_json_have_every_digit() -> None:
    table = trace("rmsprop", "beale", 3, against="keras-3", bits=128)
    numbers = {
        (t, q, series): x for series, row in table.series.items() for (t, q), x in row.items()
    }
    as_csv = [*csv.DictReader(io.StringIO(tables.as_csv(table)))]
    as_json = json.loads(tables.as_json(table))
    for read in (as_csv, as_json["rows"]):
        assert len(read) == len(numbers)
        for row in read:
            x = numbers[int(row["step"]), row["quantity"], row["series"]]
            assert row["value"] == x if isinstance(x, str) else float(row["value"]) == float(x)
    assert [x["quantity"] for x in as_json["differences"]] == ["lr", "param"]


def test_a_number_that_is_not_finite_is_a_text_in_json() -> None:
    table = trace("rmsprop", "saddle", 1, dtype="float16", given={"lr": 1e9})
    read = json.loads(tables.as_json(table))
    assert {row["value"] for row in read["rows"]} & {"inf", "-inf"}


def test_markdown_has_a_column_for_each_step() -> None:
    lines = ran("nadam", "--steps", "3", "--format", "markdown").splitlines()
    assert lines[0] == "| quantity | step 1 | step 2 | step 3 |"
    assert {line.count("|") for line in lines} == {5}
    both = ran("nadam", "--against", "torch-2.13", "--format", "markdown")
    assert both.startswith("| quantity | series | step 1 |")
    assert "\nfirst difference that no rounding explains: step 1, product" in both


@pytest.mark.parametrize("width", [40, 80, 200])
def test_text_fits_the_width_and_shows_every_step(width: int) -> None:
    text = tables.as_text(trace("nadam", "rosenbrock", 7), width)
    assert max(map(len, text.splitlines()[1:])) <= width
    assert [f"step {t}" in text for t in range(1, 8)] == [True] * 7
    assert text.count("denominator") == text.count("quantity ") >= 1


def test_the_first_difference_is_marked() -> None:
    lines = ran("nadam", "--against", "torch-2.13").splitlines()
    (marked,) = (line for line in lines if "*" in line)
    assert marked.split()[:2] == ["torch-2.13", "0.450073481*"]


# -- wrong usage ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["adam"], "OPTIMIZER must be one of nadam, rmsprop"),
        (["nadam", "--problem", "x"], "PROBLEM must be one of quadratic, rosenbrock"),
        (["nadam", "--profile", "x"], "PROFILE must be one of documented, torch-2.13"),
        (["nadam", "--against", "x"], "--against must be one of documented, torch-2.13"),
        (["thor", "--against", "mindspore:thor"], "--against must be one of documented, minds"),
        (["nadam", "--against", "py:x"], "--against must be py:MODULE:FUNCTION, got 'py:x'"),
        (["nadam", "--against", "cmd:no-such-program"], "a program that can be started, got"),
        (["nadam", "--set", "rho=1"], "option must be one of lr, beta1"),
        (["nadam", "--set", "lr"], "--set must be NAME=NUMBER, got 'lr'"),
        (["nadam", "--dtype", "int8"], "--dtype must be float16, float32 or float64"),
        (["nadam", "--parameter", "1"], "parameter must be one of 0 to 0, got 1"),
        (["nadam", "--element", "2"], "element must be one of 0 to 1, or norm; got 2"),
        (["nadam", "--element", "all"], "element must be one of 0 to 1, or norm; got all"),
    ],
)
def test_wrong_usage_says_what_is_required(arguments: list[str], text: str) -> None:
    output = " ".join(ran(*arguments, code=2).replace("│", " ").split())
    assert text in output


def test_the_help_of_a_problem_names_each() -> None:
    from refopt.cli import teach
    from refopt.problems import PROBLEMS

    assert teach.PROBLEMS.split(", ") == [*PROBLEMS]
    assert "noisy-quadratic" in ran("--help", code=0)


def test_a_missing_name_is_an_error_of_python_too() -> None:
    with pytest.raises(errors.Unknown, match="got 'adam'"):
        trace("adam")


def test_trace_and_explain_load_nothing_that_they_do_not_need() -> None:
    script = (
        "import sys; from refopt.cli import app; from typer.testing import CliRunner\n"
        "for a in (['trace', 'nadam'], ['explain', 'nadam']):\n"
        "    assert CliRunner().invoke(app, a).exit_code == 0\n"
        "print(*({'matplotlib', 'sklearn', 'scipy', 'torch', 'jax'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
