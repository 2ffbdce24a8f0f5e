"""Implementations from outside: a function, a program, a file of answers; and broken ones."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from refopt import cli
from refopt.errors import CaseError
from refopt.interp.formats import FORMATS, to_bits
from refopt.oracle import golden, process, rop, spec, suite
from refopt.oracle.own import numpy_run
from refopt.oracle.report import BROKE, INTERRUPTED, NOTHING, OK, USAGE, VIOLATED
from refopt.oracle.spec import RULES

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "rop"
SCHEMA = json.loads((golden.root() / "schema" / "rop.schema.json").read_text())
DOCUMENT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
UNASKED = {"rejects", "complex64", "bfloat16"}
"""What a function or a program does not take unless it says so; the tests of those are below."""

ASKED = {
    name: {r.case.id for r in rop.vectors(name) if not rop.needs(r.case) & UNASKED}
    for name in ("nadam", "rmsprop")
}
VECTORS = {name: len(ids) for name, ids in ASKED.items()}
OPTIONS = {"nadam": ("maximize", "decoupled_weight_decay"), "rmsprop": ("centered",)}
"""What the programs take beyond the plain optimizer."""

TEMPLATE = {"float32", "float64", "several", "missing", "lr", "rho", "epsilon"}
CC = shutil.which("cc")
NODE, RUSTC = shutil.which("node"), shutil.which("rustc")
NO_CC, NO_NODE, NO_RUSTC = "needs a C compiler named cc", "needs node", "needs rustc"


def valid(message: Any, kind: str) -> bool:
    """Whether a message is a question, or an answer, by the schema."""
    schema = {"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(message))


def refopt(*arguments: str | Path, stdin: str = "") -> Any:
    given = [str(a) for a in arguments]
    if given[0] == "check" and given[1].startswith(("py:", "cmd:")):
        given.append("--no-drawn")  # what is drawn is tested elsewhere
    return CliRunner().invoke(cli.app, given, env={"COLUMNS": "120"}, input=stdin)


def runs(result: Any) -> list[dict[str, Any]]:
    """The lines of a JSON report, without header and footer."""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert (lines[0]["kind"], lines[-1]["kind"]) == ("header", "footer")
    assert lines[-1]["complete"] is True
    return lines[1:-1]


def footer(result: Any) -> dict[str, Any]:
    last: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return last


def taken(optimizer: str, words: set[str]) -> int:
    """How many vectors a program is given that takes this."""
    return sum(rop.needs(r.case) <= words for r in rop.vectors(optimizer))


def statuses(result: Any) -> Counter[str]:
    asked = set().union(*ASKED.values(), (r.case.id for r in rop.vectors("sgd")))
    return Counter(run["status"] for run in runs(result) if run["case"] in asked)


# -- functions ------------------------------------------------------------------------------------

FUNCTIONS = """
import sys
import numpy as np

def nadam(param, grad, state, *, lr, betas, eps, weight_decay, momentum_decay,
          decoupled_weight_decay=False, maximize=False, inside=False, corrected=True):
    zeros = np.zeros_like(param)
    m, v, t, product = state.values() if state else (zeros, zeros, 0, 1.0)
    t, g = t + 1, -grad if maximize else grad
    if decoupled_weight_decay:
        param = param - lr * weight_decay * param
    else:
        g = g + weight_decay * param
    mu, mu_next = (betas[0] * (1 - 0.5 * 0.96 ** (s * momentum_decay)) for s in (t, t + 1))
    product *= mu
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    rest, rest_next, correction = 1 - product, 1 - product * mu_next, 1 - betas[1] ** t
    if not corrected:
        rest = rest_next = correction = 1
    m_hat = mu_next / rest_next * m + (1 - mu) / rest * g
    v_hat = v / correction
    denominator = np.sqrt(v_hat + eps) if inside else np.sqrt(v_hat) + eps
    return param - lr * m_hat / denominator, dict(m=m, v=v, t=t, product=product)

def prints(param, grad, state, **hyper):
    print('{"seq": 1}', flush=True)
    return nadam(param, grad, state, **hyper)

def inside(param, grad, state, **hyper):
    return nadam(param, grad, state, inside=True, **hyper)

def uncorrected(param, grad, state, **hyper):
    return nadam(param, grad, state, corrected=False, **hyper)

class Hidden:
    def __init__(self, state):
        self.state = state

def hidden(param, grad, state, **hyper):
    param, state = nadam(param, grad, state and state.state, **hyper)
    return param, Hidden(state)

def hidden_inside(param, grad, state, **hyper):
    param, state = inside(param, grad, state and state.state, **hyper)
    return param, Hidden(state)

def nan(param, grad, state, **hyper):
    return param * np.nan, None

def zeros(param, grad, state, **hyper):
    return param * 0, None

def noise(param, grad, state, **hyper):
    return np.random.default_rng(0).normal(size=param.shape).astype(param.dtype), None

def still(param, grad, state, **hyper):
    return param, None

def widens(param, grad, state, **hyper):
    return param.astype(np.float64), None

def raises(param, grad, state, *, weight_decay, **hyper):
    if weight_decay:
        raise RuntimeError("no weight decay yet")
    return nadam(param, grad, state, weight_decay=0.0, **hyper)

def in_place(param, grad, state, **hyper):
    new, after = nadam(param, grad, state, **hyper)
    after = dict(after, m=np.asarray(after["m"]), v=np.asarray(after["v"]))
    if state:
        state["m"][...], state["v"][...] = after["m"], after["v"]
        after = dict(state, t=after["t"], product=after["product"])
    param[...] = new
    return param, after

def writes(param, grad, state, **hyper):
    if hyper["maximize"]:
        grad *= -1
    return nadam(param, grad, state, **dict(hyper, maximize=False))

def keeps(param, grad, state, **hyper):
    new, after = nadam(param, grad, state and state["own"], **hyper)
    kept = state["kept"] if state else grad
    kept[...] = 0
    return new, dict(own=after, kept=grad)

def beta1(param, grad, state, learning_rate, beta1, beta2, epsilon):
    return param, None

def optional(param, grad, state, *, lr, betas, eps, weight_decay, momentum_decay, epsilon=1e-8):
    return nadam(param, grad, state, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                 momentum_decay=momentum_decay)

def two(param, grad, **hyper):
    return param, None

def constant(param, grad, state, *, lr, betas, eps, weight_decay=0.0):
    return nadam(param, grad, state, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                 momentum_decay=0.0)

def declines(param, grad, state, **hyper):
    if hyper["weight_decay"]:
        raise NotImplementedError("no weight decay yet")
    return nadam(param, grad, state, **hyper)

def plain(param, grad, state, **hyper):
    return declines(param, grad, state, **hyper)

plain.lacks = ["weight_decay", "decoupled_weight_decay", "bfloat16"]

def odd_state(param, grad, state, **hyper):
    param, state = nadam(param, grad, state and state["own"], **hyper)
    return param, dict(own=state, m=state["m"][:1])

def wide_state(param, grad, state, **hyper):
    param, state = nadam(param, grad, state and state["own"], **hyper)
    return param, dict(own=state, m=state["m"].astype(np.longdouble))

def half_state(param, grad, state, **hyper):
    param, state = nadam(param, grad, state and state["own"], **hyper)
    return param, dict(own=state, m=state["m"].astype(np.float16), v=None, t="many")

def half_m(param, grad, state, **hyper):
    param, state = nadam(param, grad, state and state["own"], **hyper)
    return param, dict(own=state, m=state["m"].astype(np.float16), v=None)

def wrong_m(param, grad, state, **hyper):
    param, state = nadam(param, grad, state, **hyper)
    return param, dict(state, m=state["m"] * 1.5)

def half_way(param, grad, state, *, lr, betas, eps, momentum_decay):
    return nadam(param, grad, state, lr=lr, betas=betas, eps=eps, weight_decay=0.0,
                 momentum_decay=momentum_decay)

def rmsprop(param, grad, state, *, learning_rate, rho, momentum, epsilon, centered=False,
            inside=False, clipvalue=None, clipnorm=None):
    v, a, buffer = state or (0 * param,) * 3
    v = rho * v + (1 - rho) * grad * grad
    variance = v
    if centered:
        a = rho * a + (1 - rho) * grad
        variance = v - a * a
    with np.errstate(all="ignore"):
        if inside:
            direction = learning_rate * grad / np.sqrt(variance + epsilon)
            buffer = momentum * buffer + direction
            return param - buffer, (v, a, buffer)
        buffer = momentum * buffer + grad / (np.sqrt(variance) + epsilon)
    return param - learning_rate * buffer, (v, a, buffer)

def sgd(param, grad, state, *, lr, momentum, dampening, weight_decay, nesterov=False,
        maximize=False):
    grad = (-grad if maximize else grad) + weight_decay * param
    b = grad if state is None else momentum * state["buffer"] + (1 - dampening) * grad
    return param - lr * (grad + momentum * b if nesterov else b), {"buffer": b}

def heavy_ball(param, grad, state, *, lr, momentum, weight_decay):
    step = lr * (grad + weight_decay * param) + (0 if state is None else momentum * state)
    return param - step, step

def keras(param, grad, state, *, learning_rate, rho, momentum, epsilon, centered=False):
    return rmsprop(param, grad, state, learning_rate=learning_rate, rho=rho, momentum=momentum,
                   epsilon=epsilon, centered=centered, inside=True)

for function in [x for x in globals().values() if callable(x) and not hasattr(x, "lacks")]:
    function.lacks = ["bfloat16"]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the present one, with a module `mine`."""
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(name: str, *arguments: str, optimizer: str = "nadam") -> Any:
    return refopt("check", f"py:mine:{name}", "--optimizer", optimizer, *arguments)


@pytest.mark.parametrize("name", ["nadam", "hidden", "prints", "in_place"])
def test_a_right_function_conforms_on_every_vector_whether_it_shows_its_state_or_not(
    mine: Path, name: str
) -> None:
    result = checked(name, "--json")
    assert result.exit_code == OK, result.output
    assert statuses(result) == {"conforms": VECTORS["nadam"]}
    assert footer(result)["undecided"].get("nadam", {}) == {}


def test_a_function_is_given_only_cases_that_need_what_it_names(mine: Path) -> None:
    result = checked("half_way", "--json")
    assert result.exit_code == OK, result.output
    found = {run["case"]: run for run in runs(result)}
    assert found["nadam.vector.defaults.f32"]["status"] == "conforms"
    skipped = found["nadam.vector.decoupled-0.1.f32"]
    assert skipped["detail"] == "does not take decoupled_weight_decay, weight_decay"
    text = checked("half_way").stdout
    needing = {
        word: sum(word in rop.needs(r.case) for r in rop.vectors("nadam"))
        for word in ("weight_decay", "decoupled_weight_decay")
    }
    said = " ".join(text.split())
    assert "skipped for what they need: weight_decay" in said
    for word, n in needing.items():
        assert f"{word} ({n})" in said


def test_a_function_of_rmsprop_gets_the_names_of_its_documentation(mine: Path) -> None:
    result = checked("rmsprop", "--json", optimizer="rmsprop")
    found = {run["case"]: run["status"] for run in runs(result)}
    clipping = {case for case, status in found.items() if status == "violation"}
    assert {case.rpartition(".")[0] for case in clipping} == {
        f"rmsprop.vector.{name}"
        for name in (
            *("clipnorm-drawn", "clipnorm-tiny", "clipvalue-0.1", "clipnorm-before-value"),
            "not-finite",
        )
    }  # it takes both limits, and clips nothing
    assert [x["by"] for x in footer(result)["explained"]] == [["clip=none"]]
    plain = taken("rmsprop", {*rop.plain("rmsprop"), "centered", "float16"})
    assert Counter(found.values())["conforms"] == plain


def test_a_rule_without_an_object_needs_no_code_of_its_own(mine: Path) -> None:
    """SGD: a hyperparameter that a vector does not state is given as it is by default."""
    result = checked("sgd", "--json", optimizer="sgd")
    assert result.exit_code == OK, result.output
    assert statuses(result) == {"conforms": len(rop.vectors("sgd"))}
    (mine / "mine.py").write_text(FUNCTIONS.replace("(1 - dampening) * grad", "grad"))
    result = checked("sgd", "--json", optimizer="sgd")
    assert result.exit_code == VIOLATED
    (explained,) = footer(result)["explained"]
    assert explained["by"] == ["start=never-dampened"]
    result = refopt("diagnose", "py:mine:heavy_ball", "--optimizer", "sgd", "--profile", "keras-3")
    assert result.exit_code == NOTHING, result.output
    assert "does not take dampening" in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", ["inside", "hidden_inside"])
def test_epsilon_inside_the_root_is_named_by_one_paragraph(mine: Path, name: str) -> None:
    result = checked(name)
    assert result.exit_code == VIOLATED
    text, n = " ".join(result.stdout.split()), VECTORS["nadam"]
    cases = [r.case for r in rop.vectors("nadam") if r.case.id in ASKED["nadam"]]
    m = sum(case.hyper["epsilon"] > 0 and "float16" not in case.dtypes for case in cases)
    assert (
        f"mine:{name} does not follow the profile documented: {m} of {n} vectors lie outside "
        f"one change explains {m} of them epsilon=inside, shown by {m} vectors "
        "it does under the root (NAD-11.2b) it should after the root (NAD-11.2a, epsilon=outside) "
        "the rule Epsilon is added after the root. (NAD-11.2) "
        "first seen nadam.vector.sharp-l2-psi-1.f32, step 1, param[0] of parameter 0" in text
    )
    mode = "teacher-forced"  # the first step starts from what is given
    assert f"of parameter 0, {mode} got 0.96383" in text
    assert "outside by 0.00283, 47441 ulp of float32" in text


def test_what_was_searched_in_vain_before_is_searched_again(mine: Path) -> None:
    """The same name, another function: as after a repair."""
    (mine / "mine.py").write_text(FUNCTIONS + "\ninside = noise\n")
    select = ("--json", "--select", "*sharp*")
    assert footer(checked("inside", *select))["explained"] == []
    (mine / "mine.py").write_text(FUNCTIONS)
    (explained,) = footer(checked("inside", *select))["explained"]
    assert explained["by"] == ["epsilon=inside"]


def test_no_correction_at_all_is_named_though_the_product_is_counted_right(mine: Path) -> None:
    result = checked("uncorrected", "--json")
    assert result.exit_code == VIOLATED
    (explained,) = footer(result)["explained"]
    assert explained["by"] == ["correction=none", "start=zero"]
    assert len(explained["cases"]) == VECTORS["nadam"]
    assert f"2 changes explain {VECTORS['nadam']} of them" in checked("uncorrected").stdout


def test_keras_epsilon_and_its_momentum_are_named_each_with_what_shows_it(mine: Path) -> None:
    result = checked("keras", optimizer="rmsprop")
    assert result.exit_code == VIOLATED
    (outside,) = re.findall(r"2 changes explain (\d+) of them", result.stdout)
    assert f"epsilon=inside, shown by {outside} vectors" in result.stdout
    (some,) = re.findall(r"move=lr-inside, shown by (\d+) vectors", result.stdout)
    assert 0 < int(some) < int(outside)


def test_nan_everywhere_conforms_nowhere(mine: Path) -> None:
    result = checked("nan", "--json")
    assert result.exit_code == VIOLATED
    assert statuses(result) == {"violation": VECTORS["nadam"]}
    for explained in footer(result)["explained"]:  # counting from 0 divides by 1 - beta**0
        assert "origin=from-zero" in explained["by"]


@pytest.mark.parametrize("name", ["zeros", "noise", "still"])
def test_an_answer_that_is_no_optimizer_conforms_nowhere_and_no_rule_explains_it(
    mine: Path, name: str
) -> None:
    result = checked(name, "--json")
    assert result.exit_code == VIOLATED
    assert statuses(result) == {"violation": VECTORS["nadam"]}
    explained = [x["by"] for x in footer(result)["explained"]]
    assert explained == ([["given=lr:0"]] if name == "still" else [])
    n = VECTORS["nadam"]
    unexplained = f"no change of choices was found that explains {n} of them"
    assert (unexplained in checked(name).stdout) == (not explained)


def test_a_wrong_state_is_a_violation_at_the_state_though_every_parameter_is_right(
    mine: Path,
) -> None:
    result = checked("wrong_m", "--json", "--select", "*sharp*")
    assert result.exit_code == VIOLATED
    assert {(run["first"]["step"], run["first"]["quantity"]) for run in runs(result)} == {(1, "m")}


def test_a_function_that_fails_is_told_from_a_wrong_one_and_the_rest_goes_on(mine: Path) -> None:
    result = checked("raises", "--json")
    assert result.exit_code == BROKE
    given = [r.case for r in rop.vectors("nadam") if r.case.id in ASKED["nadam"]]
    decaying = sum("weight_decay" in rop.needs(case) for case in given)
    assert statuses(result) == {"crashed": decaying, "conforms": VECTORS["nadam"] - decaying}
    (detail,) = {run["detail"] for run in runs(result) if run["status"] == "crashed"}
    assert re.fullmatch(r"RuntimeError: no weight decay yet \(mine\.py, line \d+\)", detail)
    result = checked("widens", "--json", "--select", "*defaults.f32")
    assert "param as it was, float32 of shape (4,); got float64" in runs(result)[0]["detail"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("py:mine:nadam",), "--optimizer must be one of nadam, rmsprop, sgd, thor"),
        (("py:mine:nadam", "--optimizer", "adam"), "got 'adam'"),
        (("torch:NAdam", "--optimizer", "nadam"), "--optimizer must be absent but for py: and"),
        (("py:mine", "--optimizer", "nadam"), "must be py:MODULE:FUNCTION, got 'py:mine'"),
        (("cmd:", "--optimizer", "nadam"), "a program that can be started, got ''"),
        (("cmd:no-such-program x", "--optimizer", "nadam"), "got 'no-such-program x'"),
        (("cmd:'", "--optimizer", "nadam"), "No closing quotation"),
        (("py:mine:nadam", "--optimizer", "nadam", "--python", "no-such"), "got 'no-such'"),
    ],
)
def test_wrong_usage_names_the_argument(mine: Path, arguments: tuple[str, ...], said: str) -> None:
    result = refopt("check", *arguments)
    assert result.exit_code == USAGE
    assert said in " ".join(re.sub("[│\n]", " ", result.stderr).split())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine:nadan", "mine.py has no function nadan; did you mean nadam?"),
        ("mine:FLAG", "mine.py has no function FLAG"),
        (
            "no_such:nadam",
            "there is no module no_such in {here}, {path}, and none is installed for",
        ),
        (
            "mine:beta1",
            "what it names must be among lr, betas, eps, weight_decay, momentum_decay, maximize, "
            "decoupled_weight_decay; got learning_rate, beta1, beta2, epsilon; did you mean lr for "
            "learning_rate, betas for beta1, betas for beta2, eps for epsilon?",
        ),
        ("mine:two", "it must take (param, grad, state, **hyper), and takes (param, grad, hyper)"),
    ],
)
@pytest.mark.parametrize("command", ["check", "diagnose", "minimize"])
def test_a_function_that_cannot_be_called_is_wrong_usage_in_one_line(
    mine: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str, said: str
) -> None:
    (mine / "mine.py").write_text(FUNCTIONS + "FLAG = 1\n")
    (mine / "path").mkdir()
    monkeypatch.setenv("PYTHONPATH", "path")
    result = refopt(command, f"py:{name}", "--optimizer", "nadam")
    assert result.exit_code == USAGE
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"refopt: py:{name}: ")
    assert said.format(here=mine, path=mine / "path") in line


def test_a_module_that_cannot_be_imported_is_said_once_with_its_own_line(mine: Path) -> None:
    (mine / "bad.py").write_text("x = 1\nimport no_such_package\n")
    result = refopt("check", "py:bad:nadam", "--optimizer", "nadam")
    assert result.exit_code == BROKE
    wanted = "ModuleNotFoundError: No module named 'no_such_package' (bad.py, line 2)"
    assert result.stderr == f"refopt: crashed: hello: {wanted}\n"
    assert result.stdout == ""


def test_a_module_is_found_by_pythonpath_which_the_interpreter_does_not_see(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands there would replace what is pinned: a numpy.py breaks nothing."""
    folder = mine / "elsewhere"
    folder.mkdir()
    (mine / "mine.py").rename(folder / "theirs.py")
    (folder / "numpy.py").write_text("raise RuntimeError\n")
    monkeypatch.setenv("PYTHONPATH", f"{mine / 'none'}{os.pathsep}elsewhere")
    result = refopt("check", "py:theirs:nadam", "--optimizer", "nadam", "--select", "*.f64")
    assert result.exit_code == OK, result.output


def test_a_name_that_is_only_near_is_said_and_the_rest_is_judged(mine: Path) -> None:
    result = checked("optional")
    assert result.exit_code == OK, result.output
    assert result.stderr.count("refopt: ") == 1
    assert "got epsilon, by default as it is; did you mean eps for epsilon?" in result.stderr


def test_a_hyperparameter_that_is_not_named_and_has_a_default_is_said(mine: Path) -> None:
    result = checked("constant")
    assert result.exit_code == NOTHING, result.output
    wanted = "does not take momentum_decay, which is 0.004 by default: it is asked "
    assert wanted in result.stderr
    n, m = map(int, re.findall(r"asked (\d+) of (\d+) vectors, where that is 0", result.stderr)[0])
    assert n < m
    assert wanted in refopt("diagnose", "py:mine:constant", "--optimizer", "nadam").stderr


def test_an_owed_vector_that_is_declined_leaves_the_check_undecided(mine: Path) -> None:
    """But for what a function says that it lacks, which is no part of what it owes."""
    result = checked("declines", "--json")
    assert result.exit_code == NOTHING, result.output
    owed = {run["case"] for run in runs(result) if run.get("owed")}
    decaying = [r.case for r in rop.vectors("nadam") if "weight_decay" in rop.needs(r.case)]
    assert owed == {case.id for case in decaying if case.source["class"] == "must"}
    text = " ".join(checked("declines").stdout.split())
    assert "skipped by the implementation, which said why: no weight decay yet (" in text
    assert f"owed: {len(owed)} must vectors whose every need is taken" in text
    assert refopt("diagnose", "py:mine:declines", "--optimizer", "nadam").exit_code == NOTHING
    assert checked("plain").exit_code == OK


@pytest.mark.parametrize(("name", "some"), [("writes", True), ("keeps", False)])
def test_who_writes_to_a_gradient_is_in_violation_though_every_value_is_right(
    mine: Path, name: str, some: bool
) -> None:
    result = checked(name, "--json")
    assert result.exit_code == VIOLATED
    found = {run["case"]: run for run in runs(result)}
    wrong = {case for case, run in found.items() if run["status"] == "violation"}
    assert all(found[case]["wrong"].startswith("writes to a gradient") for case in wrong)
    assert not any("first" in found[case] for case in wrong)
    maximizing = {r.case.id for r in rop.vectors("nadam") if r.case.options.get("maximize")}
    assert (wrong == maximizing & ASKED["nadam"]) == some
    text = " ".join(checked(name).stdout.split())
    assert f"violation: mine:{name} writes to a gradient that it was given" in text
    result = refopt("diagnose", f"py:mine:{name}", "--optimizer", "nadam")
    assert result.exit_code == VIOLATED
    assert "writes to a gradient that it was given" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("odd_state", "state['m'] must be of shape (4,), as param, in float16 or bfloat16 or"),
        ("wide_state", "got shape (4,) in float128"),
        ("half_state", "state['t'] must be one number; got 'many'"),
    ],
)
def test_a_state_that_is_none_is_said_with_the_line_of_the_function(
    mine: Path, name: str, said: str
) -> None:
    result = checked(name, "--json", "--select", "*sharp-l2-psi-1.f32")
    (run,) = runs(result)
    assert (result.exit_code, run["status"]) == (BROKE, "crashed")
    assert said in run["detail"]
    lines = FUNCTIONS.splitlines()
    start = 1 + next(n for n, line in enumerate(lines) if line.startswith(f"def {name}("))
    assert run["detail"].endswith(f"(mine.py, line {start})")


def test_in_half_precision_the_usual_epsilon_stays_undecided_in_any_rounding(mine: Path) -> None:
    """Each operation rounded, or all in float64 and the state shown so; bfloat16 if it is kept."""
    wide = """
def each(param, grad, state, **hyper):
    return nadam(param, grad, state, **hyper)

def wide(param, grad, state, **hyper):
    new, state = nadam(param.astype(float), grad.astype(float), state, **hyper)
    return new.astype(param.dtype), state
"""
    (mine / "mine.py").write_text(FUNCTIONS + wide)
    for name, dtypes in (("each", {"f16"}), ("wide", {"f16", "bf16"})):
        result = checked(name, "--json", "--select", "*.half-epsilon.*")
        assert result.exit_code == OK, result.output
        found = {run["case"].rpartition(".")[2]: run for run in runs(result)}
        assert {d for d, run in found.items() if run["status"] == "conforms"} == dtypes
        others = {run["detail"] for run in found.values() if run["status"] == "skipped"}
        assert others <= {"bfloat16, which NumPy itself does not have"}
    result = checked("hidden", "--json", "--select", "*.half-epsilon.f16")
    assert "no-epsilon" in footer(result)["undecided"]["nadam"]["mine:hidden"]["given"]


def test_a_state_of_less_precision_is_named_by_its_dtype(mine: Path) -> None:
    result = checked("half_m", "--select", "*sharp-l2-psi-1.f32")
    assert result.exit_code == VIOLATED
    text = " ".join(result.stdout.split())
    assert "m[0] of parameter 0, kept in float16, teacher-forced" in text


# -- programs -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if CC is None:
        pytest.skip(NO_CC)
    folder = tmp_path_factory.mktemp("c")
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", "-ffp-contract=off"]
    for name in VECTORS:
        source = EXAMPLES / f"{name}.c"
        subprocess.run([CC, *flags, source, "-o", folder / name, "-lm"], check=True)
    return folder


def programs(compiled: Path) -> dict[str, str]:
    return {name: f"cmd:{compiled / name}" for name in VECTORS}


@pytest.mark.parametrize("optimizer", VECTORS)
def test_the_program_in_c_conforms(compiled: Path, optimizer: str) -> None:
    name = programs(compiled)[optimizer]
    result = refopt("check", name, "--optimizer", optimizer, "--json")
    assert result.exit_code == OK, result.output
    conform = taken(optimizer, {*rop.plain(optimizer), *OPTIONS[optimizer]})
    assert statuses(result) == {
        status: n
        for status, n in (("conforms", conform), ("skipped", VECTORS[optimizer] - conform))
        if n
    }


@pytest.mark.skipif(RUSTC is None, reason=NO_RUSTC)
def test_the_program_in_rust_conforms(tmp_path: Path) -> None:
    command = [str(RUSTC), "-O", "-D", "warnings", str(EXAMPLES / "nadam.rs")]
    subprocess.run([*command, "-o", tmp_path / "nadam"], check=True)
    result = refopt("check", f"cmd:{tmp_path / 'nadam'}", "--optimizer", "nadam", "--json")
    assert result.exit_code == OK, result.output
    conform = taken("nadam", {*rop.plain("nadam"), *OPTIONS["nadam"]})
    others = VECTORS["nadam"] - conform
    assert statuses(result) == {"conforms": conform, **({"skipped": others} if others else {})}


@pytest.mark.skipif(NODE is None, reason=NO_NODE)
@pytest.mark.parametrize("optimizer", VECTORS)
def test_the_program_in_javascript_conforms(optimizer: str) -> None:
    command = f"cmd:node {EXAMPLES / 'optimizers.mjs'}"
    result = refopt("check", command, "--optimizer", optimizer, "--json")
    assert result.exit_code == OK, result.output
    conform = taken(optimizer, {*rop.plain(optimizer), *OPTIONS[optimizer]})
    assert statuses(result) == {
        status: n
        for status, n in (("conforms", conform), ("skipped", VECTORS[optimizer] - conform))
        if n
    }


def test_the_template_conforms_with_a_hidden_state() -> None:
    command = f"cmd:{sys.executable} {EXAMPLES / 'template.py'}"
    result = refopt("check", command, "--optimizer", "rmsprop", "--json")
    assert result.exit_code == OK, result.output
    assert statuses(result)["conforms"] == taken("rmsprop", TEMPLATE) >= 8


def test_the_programs_are_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.iterdir()}
    assert max(lines.values()) <= 150
    assert lines["template.py"] <= 30


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("sqrt(v_hat) + h.epsilon", "sqrt(v_hat + h.epsilon)", ["epsilon=inside"]),
        ("(1 - pow(h.beta2, t))", "1", ["correction=none"]),
        ("mu(t + 1) / (1 - a->product * mu(t + 1))", "mu(t + 1) / (1 - a->product)",
         ["divisors=same"]),
        ("t * h.momentum_decay", "t", ["schedule=unscaled"]),
        ("ahead * a->m[j] + here * g", "here * g + ahead * a->m[j]", None),
        ("p -= h.lr * h.weight_decay * p", "p -= h.weight_decay * p",
         ["decay=decoupled-without-lr"]),
        ("double t = ++a->t;", "double t = a->t++;", ["origin=from-zero"]),
    ],
    ids=["epsilon", "correction", "divisors", "schedule", "order", "decay", "count"],
)  # fmt: skip
def test_a_wrong_line_of_c_is_named(
    tmp_path: Path, right: str, wrong: str, named: list[str] | None
) -> None:
    if CC is None:
        pytest.skip(NO_CC)
    source = (EXAMPLES / "nadam.c").read_text()
    assert source.count(right) == 1
    (tmp_path / "wrong.c").write_text(source.replace(right, wrong))
    subprocess.run([CC, "-O2", "wrong.c", "-o", "wrong", "-lm"], check=True, cwd=tmp_path)
    result = refopt("check", f"cmd:{tmp_path / 'wrong'}", "--optimizer", "nadam", "--json")
    explained = footer(result)["explained"]
    assert [x["by"] for x in explained] == ([named] if named else [])
    assert result.exit_code == (VIOLATED if named else OK)


# -- a state that is set ---------------------------------------------------------------------------

SETTABLE = """
import json, sys
sys.path.insert(0, {folder!r})
from _adapter import from_bits
from function import Function, Case
function = Function("mine:nadam", json.loads({known!r}), "nadam")
takes = ["float32", "float64", "several", "missing", "set_state", *function.keywords]
for line in sys.stdin:
    q, answer = json.loads(line), {{}}
    if q["op"] == "hello":
        answer = dict(rop=1, name="settable", version="1", takes=takes, optimizer="nadam")
    elif q["op"] == "case":
        case, dtype, shapes = Case(function, q), q["dtype"], q["shapes"]
    elif q["op"] == "step":
        answer = {{"param": case.step(q)["param"]}}
    elif q["op"] == "set_state":
        number = lambda bits: float(from_bits(bits, "float64", [1])[0])
        case.params = [from_bits(b, dtype, s) for b, s in zip(q["param"], shapes)]
        case.states = [
            dict(m=from_bits(m, dtype, s), v=from_bits(v, dtype, s), t=number(t), product=number(p))
            for m, v, t, p, s in zip(q["m"], q["v"], q["t"], q["product"], shapes)
        ]
        {fault}
    print(json.dumps(dict(answer, seq=q["seq"])), flush=True)
"""


def settable(folder: Path, fault: str, *arguments: str) -> Any:
    """What comes of a right program that hides its state, and lets it be set."""
    command = rop.function("mine:nadam", "nadam", sys.executable)
    text = SETTABLE.format(folder=str(Path(command[1]).parent), known=command[-1], fault=fault)
    (folder / "settable.py").write_text(text)
    name = f"cmd:{sys.executable} {folder / 'settable.py'}"
    return refopt("check", name, "--optimizer", "nadam", "--json", *arguments)


def test_a_hidden_state_that_can_be_set_is_judged_step_by_step(mine: Path) -> None:
    result = settable(mine, "", "--select", "*sharp*")
    assert result.exit_code == OK, result.output
    assert statuses(result) == {"conforms": 6}
    result = settable(mine, "case.states[0]['m'] *= 1.001", "--select", "*sharp*")
    assert statuses(result) == {"violation": 6}
    found = {(run["first"]["step"], run["first"]["mode"]) for run in runs(result)}
    assert found == {(2, "teacher-forced")}


def test_a_state_that_is_set_is_no_answer_to_what_was_asked() -> None:
    (recording,) = (r for r in rop.vectors("nadam") if r.case.id.endswith("sharp-l2-psi-1.f64"))
    ((_, (part,)),) = rop.questions([recording], settable=True)
    states = [q for q in part.questions if q["op"] == "set_state"]
    assert len(states) == recording.case.steps - 1
    assert all(valid(q, "question") for q in states)
    mine = numpy_run(recording.case, RULES["nadam"].PROFILES["documented"]).steps
    steps = [*recording.runs["documented"].steps.values(), *mine.values()]
    true = [to_bits(step["param"][0] or [], FORMATS["float64"]) for step in steps]
    assert not {q["param"][0] for q in states} & {*true}


# -- THOR -----------------------------------------------------------------------------------------

THOR = EXAMPLES / "thor.py"
NET = """
import numpy as np

def thor(params, grads, state, *, layers, names, statistics, learning_rate, damping, momentum,
         weight_decay, loss_scale, batch_size, frequency):
    if learning_rate < 0 or damping < 0 or momentum < 0 or loss_scale <= 0 or frequency < 2:
        raise ValueError("no such hyperparameter")
    if any(p.shape != g.shape for p, g in zip(params, grads)):
        raise ValueError("a gradient has another shape")
    state = state or dict(m=[0 * p for p in params], t=0)
    m, shown = list(state["m"]), dict(state, t=state["t"] + 1)
    if state["t"] % frequency == 0:
        seen = [{q: x.reshape(-1, x.shape[-1]) for q, x in statistics[layer["name"]].items()}
                for layer in layers]
        shown["A"] = [x["a"].T @ x["a"] / len(x["a"]) for x in seen]
        shown["G"] = [x["ds"].T @ x["ds"] / len(x["ds"]) for x in seen]
        for q, factor, scale in (("a_inverse", "A", 1), ("g_inverse", "G", batch_size/loss_scale)):
            shown[q] = [np.linalg.inv(scale**2 * x + damping * np.eye(len(x), dtype=x.dtype))
                        for x in shown[factor]]
    new = []
    for n, layer in enumerate(layers):
        for place, i in enumerate(layer["params"]):
            g = grads[i] / loss_scale + weight_decay * params[i]
            if place == 0:
                g = shown["g_inverse"][n] @ g @ shown["a_inverse"][n]
            m[i] = momentum * m[i] + g
            new.append(params[i] - learning_rate * m[i])
    return new, dict(shown, m=m)

thor.rejects = True
thor.lacks = ["conv2d", "embedding", "embedding_lookup", "norm", "other"]
"""


def without_convolution() -> int:
    """How many vectors of THOR the program takes."""
    needed = (rop.needs(r.case) for r in rop.vectors("thor"))
    return sum(not words & {"conv2d", "rejects"} for words in needed)


def test_thor_from_the_specification_alone_conforms() -> None:
    command = f"cmd:{sys.executable} {THOR}"
    result = refopt("check", command, "--optimizer", "thor", "--json")
    assert result.exit_code == OK, result.output
    found = Counter(run["status"] for run in runs(result))
    assert found["conforms"] == without_convolution() >= 20
    assert {*found} == {"conforms", "skipped"}


def test_a_function_of_a_whole_net_conforms_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    result = refopt("check", "py:net:thor", "--optimizer", "thor", "--json")
    found = {run["case"]: (run["status"], run.get("detail")) for run in runs(result)}
    assert result.exit_code == OK, result.output
    assert {status for status, _ in found.values()} == {"conforms", "skipped"}
    refusals = {case: x for case, x in found.items() if ".reject-" in case}
    skipped = {case for case, (status, _) in refusals.items() if status == "skipped"}
    assert skipped == {"thor.vector.reject-past-the-end.f32"}  # of a schedule it sees one value
    assert len(refusals) >= 7


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ('h["batch_size"] / h["loss_scale"]', "1.0", "scaling=as-given"),
        ("layer.precondition(place, g, h)", "layer.precondition(place, g, dict(h, batch_size=1))",
         None),
        ('if self.options.get("use_nesterov")', "if False", "nesterov=ignored"),
        ("d.T @ d / len(d)  # THO-3.1", "d.T @ d / len(d) / 2", None),
        ("refreshes = (", 'h["damping"] **= 0.5; refreshes = (', "damping=root"),
    ],
    ids=["scale", "norm", "nesterov", "factor", "damping"],
)  # fmt: skip
def test_a_wrong_line_of_thor_is_named_or_excluded(
    tmp_path: Path, right: str, wrong: str, named: str | None
) -> None:
    source = THOR.read_text()
    assert source.count(right) == 1
    (tmp_path / "wrong.py").write_text(source.replace(right, wrong))
    arguments = ("--optimizer", "thor", "--select", "*.f64", "--json")
    result = refopt("diagnose", f"cmd:{sys.executable} {tmp_path / 'wrong.py'}", *arguments)
    assert result.exit_code == VIOLATED, result.output
    found = json.loads(result.stdout)
    follows = [["=".join(change) for change in x["changes"]] for x in found["follows"]]
    assert follows == ([[named]] if named else [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('answer["A"] = answer["A"] * 2', "A must list 1, got"),
        ('answer["A"] = [answer["A"][0]["bits"]]', "an object with 'dtype' is required"),
        ('answer["A"][0]["shape"] = [2]', "hexadecimal digits (2 float32) are required"),
        ('answer["A"][0]["shape"] = [10**9]', "at most 32 axes and 16777216 elements"),
        ('answer["A"][0]["dtype"] = "text"', "a dtype must be one of"),
        ('answer["B"] = answer["A"]', "what is shown must be among t, A, G"),
        ('answer["m"] = answer["m"][:1]', "m must list 2, got"),
    ],
    ids=["too-many", "bits", "shape", "huge", "dtype", "unknown", "too-few"],
)
def test_factors_that_are_none_break_the_protocol(tmp_path: Path, change: str, said: str) -> None:
    line = "answer = net.step(q)\n"
    source = THOR.read_text()
    assert source.count(line) == 1
    (tmp_path / "wrong.py").write_text(
        source.replace(line, f'{line}        if q["t"] == 1:\n            {change}\n')
    )
    command = f"cmd:{sys.executable} {tmp_path / 'wrong.py'}"
    arguments = ("--optimizer", "thor", "--select", "thor.vector.dense.f32", "--json")
    result = refopt("check", command, *arguments)
    (run,) = runs(result)
    assert (result.exit_code, run["status"]) == (BROKE, "broken")
    assert said in run["detail"]


def test_answers_of_thor_in_a_file_are_valid_by_the_schema_and_judged() -> None:
    questions = asked("--optimizer", "thor", "--select", "*.dense.*")
    command = [sys.executable, str(THOR)]
    done = subprocess.run(command, input=questions, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert all(valid(json.loads(line), "answer") for line in lines)
    result = verified(lines)
    assert (result.exit_code, statuses(result)) == (OK, {}), result.output
    assert Counter(run["status"] for run in runs(result)) == {"conforms": 2}


# -- broken programs ------------------------------------------------------------------------------

BROKEN = """
import json, os, sys, time
sys.path.insert(0, {folder!r})
from function import Function, Case
known = json.loads({known!r})
function, number, case = Function("mine:nadam", known, "nadam"), 0, None
takes = ["float32", "float64", "several", "missing", *function.keywords]
def say(answer, seq):
    print(json.dumps(dict(answer, seq=seq)), flush=True)
for line in sys.stdin:
    q, answer = json.loads(line), {{}}
    if q["op"] == "hello":
        answer = dict(rop=1, name="fake", version="1", takes=takes, optimizer="nadam")
    elif q["op"] == "case":
        number, case = number + 1, Case(function, q)
    elif q["op"] == "step":
        answer = case.step(q)
    name = q.get("id", "")
    bad = case is not None and number == 2
"""


def broken(folder: Path, body: str, *arguments: str) -> Any:
    """What comes of a right program that does `body` where `bad`: at its second case."""
    command = rop.function("mine:nadam", "nadam", sys.executable)
    text = BROKEN.format(folder=str(Path(command[1]).parent), known=command[-1])
    text += textwrap.indent(textwrap.dedent(body), "    ")
    (folder / "fake.py").write_text(text)
    name = f"cmd:{sys.executable} {folder / 'fake.py'}"
    select = ("--select", "*sharp*.f64")
    return refopt("check", name, "--optimizer", "nadam", *select, "--json", *arguments)


def test_the_broken_program_without_its_fault_conforms(mine: Path) -> None:
    result = broken(mine, "say(answer, q['seq'])")
    assert result.exit_code == OK, result.output
    assert statuses(result) == {"conforms": 3}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("say(answer, q['seq'] + bad)", "broken", " is required, got {'seq': "),
        ("say(answer, str(q['seq']) if bad else q['seq'])", "broken", " is required, got {'seq': "),
        ("if bad and q['op'] == 'step': print('{\"seq\": 2, \"par', end='', flush=True); break\n"
         "say(answer, q['seq'])", "broken", "a whole line is required, got '{\"seq\": 2, \"par'"),
        ("if bad: print('Epoch 1/10', flush=True)\nsay(answer, q['seq'])",
         "broken", "JSON is required on each line, got 'Epoch 1/10"),
        ("if bad: print('[1]', flush=True)\nsay(answer, q['seq'])",
         "broken", "a JSON object is required"),
        ("if bad: print('[' * 10**6, flush=True)\nsay(answer, q['seq'])",
         "broken", "JSON is required on each line"),
        ("if bad and q['op'] == 'step': print('{\"seq\": %d, \"param\": [NaN]}' % q['seq'], "
         "flush=True)\nsay(answer, q['seq'])", "broken", "NaN is no JSON"),
        ("if bad and q['op'] == 'step': answer['param'] = [1.0, 2.0]\nsay(answer, q['seq'])",
         "broken", "param must list 1, got [1.0, 2.0]"),
        ("if bad and q['op'] == 'step': answer['param'] = [[1.0]]\nsay(answer, q['seq'])",
         "broken", "64 hexadecimal digits (4 float64) are required; got [1.0]"),
        ("if bad and q['op'] == 'step': answer['param'][0] = answer['param'][0][:8]\n"
         "say(answer, q['seq'])", "broken", "64 hexadecimal digits (4 float64) are required"),
        ("if bad and q['op'] == 'step': del answer['param']\nsay(answer, q['seq'])",
         "broken", "step 1: param is required"),
        ("if bad and q['op'] == 'step': answer['loss'] = ['00']\nsay(answer, q['seq'])",
         "broken", "what is shown must be among t, product, m, v, param; got 'loss'"),
        ("if bad and q['op'] == 'step': answer['dtypes'] = 3\nsay(answer, q['seq'])",
         "broken", "dtypes must be an object, got 3"),
        ("if bad: sys.exit('out of memory')\nsay(answer, q['seq'])", "crashed",
         "exited with 1\nout of memory"),
        ("if bad: os.abort()\nsay(answer, q['seq'])", "crashed", "ended by signal 6"),
        ("if bad: time.sleep(600)\nsay(answer, q['seq'])", "timed out", "no answer within 2 s"),
        ("if bad: os.close(1); time.sleep(600)\nsay(answer, q['seq'])", "crashed",
         "closed its output"),
        ("if bad: answer = {'error': 'index out of range'}\nsay(answer, q['seq'])",
         "crashed", "index out of range"),
        ("if bad: answer = {'rejected': {'kind': 'whatever'}}\nsay(answer, q['seq'])",
         "broken", "a kind of invalid-hyperparameter"),
        ("if bad: answer = {'rejected': {'kind': 'invalid-hyperparameter', 'message': 'lr'}}\n"
         "say(answer, q['seq'])", "rejected", "invalid-hyperparameter: lr"),
        ("if bad: answer = {'skipped': 'no such, option'}\nsay(answer, q['seq'])",
         "skipped", "no such, option"),
        ("if bad: print('{\"seq\": 1, \"seq\": 2}', flush=True); continue\n"
         "say(answer, q['seq'])", "broken", "a key occurs twice: seq, seq"),
        ("if bad: answer['big'] = 10**4000\nsay(answer, q['seq'] if not bad else 10**4000)",
         "broken", " is required, got {'"),
        ("if bad: print('9' * 10**6, flush=True); continue\nsay(answer, q['seq'])",
         "broken", "JSON is required on each line"),
        ("if bad: sys.stdout.buffer.write(b'{\"seq\": \\xff}\\n'); sys.stdout.flush(); continue\n"
         "say(answer, q['seq'])", "broken", "UTF-8 is required, got b'{"),
        ("if bad: print(chr(0) * 9, flush=True); continue\nsay(answer, q['seq'])",
         "broken", "JSON is required on each line, got"),
        ("both = [json.dumps(dict(answer, seq=q['seq'] + n)) for n in range(2)]\n"
         "print(chr(10).join(both[: 1 + (bad and q['op'] == 'step')]), flush=True)",
         "broken", "a question is answered once, and got b'{"),
        ("if bad: answer = {'error': '\\ud800[red]' + chr(27) + '[2J' * 10**5}\n"
         "say(answer, q['seq'])", "crashed", "[red]"),
        ("if bad: os.close(0); time.sleep(600)\nsay(answer, q['seq'])", "timed out", "within 2 s"),
        ("if bad and os.fork(): os._exit(0)\nif bad: time.sleep(600)\nsay(answer, q['seq'])",
         "timed out", "within 2 s"),
        ("if bad:\n    while True: print('x' * 10**7, flush=True)\nsay(answer, q['seq'])",
         "broken", "JSON is required on each line"),
        ("if bad:\n    while True: print('x' * 10**7, end='', flush=True)\nsay(answer, q['seq'])",
         "broken", "a whole line is required"),
    ],
    ids=["wrong-seq", "seq-as-text", "partial-line", "garbage", "no-object", "deep", "nan-token",
         "too-many", "decimals", "too-few-digits", "no-param", "unknown-quantity", "bad-dtypes",
         "exit", "signal", "hang", "closes-stdout", "error", "unknown-kind", "rejects", "skips",
         "key-twice", "huge-seq", "huge-number", "no-utf-8", "nul", "answers-twice", "bad-text",
         "closes-stdin", "forks", "floods-lines", "floods-one-line"],
)  # fmt: skip
def test_what_is_broken_is_reported_as_what_it_is_and_the_rest_goes_on(
    mine: Path, body: str, status: str, said: str
) -> None:
    if os.name == "nt" and ("signal" in said or "fork" in body):
        pytest.skip("Windows has neither signals nor forks")
    result = broken(mine, body, "--timeout", "2")
    found = runs(result)
    assert [run["status"] for run in found] == ["conforms", status, "conforms"]
    assert said in found[1]["detail"]
    assert len(found[1]["detail"]) < 10_000
    owed = status in ("rejected", "skipped")
    assert result.exit_code == (NOTHING if owed else BROKE)
    assert found[1].get("owed", False) == owed


def test_a_hundred_megabytes_on_stderr_are_neither_judged_nor_kept(mine: Path) -> None:
    body = """
        if q["op"] == "hello":
            for _ in range(100):
                sys.stderr.write("loss: nan\\n" * 10**5)
        if bad:
            sys.exit("the last words")
        say(answer, q["seq"])
    """
    result = broken(mine, body)
    assert [run["status"] for run in runs(result)] == ["conforms", "crashed", "conforms"]
    detail = runs(result)[1]["detail"]
    assert detail.splitlines()[0] == "exited with 1"
    assert detail.splitlines()[-1] == "the last words"


def test_of_stderr_only_the_end_is_kept(tmp_path: Path) -> None:
    write = (
        "import sys; [sys.stderr.write('x' * 10**6) for _ in range(100)]; print('{}', flush=True)"
    )
    running = process.Process([sys.executable, "-c", f"{write}; input()"])
    try:
        assert running.hear(60.0) == {}
        assert 0 < sum(map(len, running._said)) <= 2 * process.TAIL
    finally:
        running.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal that kills")
def test_a_program_that_reads_nothing_does_not_block_whoever_asks(tmp_path: Path) -> None:
    """A pipe has room for 64 kB or so; what else is asked waits for ever."""
    running = process.Process([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with pytest.raises(process.Failure, match=r"no answer within 0\.5 s"):
            running.ask({"op": "x" * 10**7}, 0.5)
    finally:
        running.close()
    assert running._popen.returncode == -signal.SIGKILL
    assert not any(thread.is_alive() for thread in running._threads[:2])


def test_a_program_that_cannot_start_is_named(mine: Path) -> None:
    program = mine / "program"
    program.write_bytes(b"\x00no program")
    program.chmod(0o755)
    result = refopt("check", f"cmd:{program}", "--optimizer", "nadam")
    assert result.exit_code == BROKE
    assert f"cannot start {program}: " in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal that a terminal sends")
def test_an_interrupt_ends_a_program_that_hangs(mine: Path) -> None:
    (mine / "hangs.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    command = ["check", f"cmd:{sys.executable} hangs.py", "--optimizer", "nadam"]
    running = subprocess.Popen(
        [sys.executable, "-m", "refopt", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (mine / "pid").exists() or not (mine / "pid").read_text():
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (INTERRUPTED, b"interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int((mine / "pid").read_text()), 0)


def test_what_a_program_started_ends_with_it(mine: Path) -> None:
    body = """
        if q["op"] == "hello":
            import subprocess
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            open("child", "w").write(str(child.pid))
        say(answer, q["seq"])
    """
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc to look for a process")
    assert broken(mine, body).exit_code == OK
    state = Path("/proc") / (mine / "child").read_text() / "stat"
    assert not state.exists() or state.read_text().split()[2] == "Z"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("answer['takes'] = ['float32', 'everything']", "takes must list some of float16"),
        ("answer['takes'] = 'float32'", "takes must list some of"),
        ("answer['optimizer'] = 'rmsprop'", "optimizer must be 'nadam', as asked, got 'rmsprop'"),
        ("answer['rop'] = 2", "rop 1, name and version are required"),
        ("del answer['version']", "rop 1, name and version are required"),
        ("answer['notes'] = 'hidden'", "notes must be a list of texts, got 'hidden'"),
        ("print('Loading…', flush=True)", "JSON is required on each line, got 'Loading…"),
        ("answer['name'] = 'a\\nb'", "name and version must be one line, of 200 characters"),
        ("answer['version'] = '1' * 10**5", "name and version must be one line, of 200 characters"),
        ("sys.exit('no licence')", "exited with 1\nno licence"),
    ],
)
def test_a_wrong_hello_ends_the_check_with_the_reason(mine: Path, change: str, said: str) -> None:
    result = broken(mine, f"if q['op'] == 'hello': {change}\nsay(answer, q['seq'])")
    assert result.exit_code == BROKE
    assert "given up after 3 failures in a row" in result.stderr
    assert said in result.stderr


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ("{'error': 'no such optimizer'}", BROKE, "refopt: crashed: hello: no such optimizer\n"),
        ("{'usage': 'name a model'}", USAGE, "refopt: name a model\n"),
    ],
)
def test_a_program_that_says_at_once_that_it_fails_is_not_asked_again(
    mine: Path, answer: str, code: int, said: str
) -> None:
    result = broken(mine, f"say({answer} if q['op'] == 'hello' else answer, q['seq'])")
    assert (result.exit_code, result.stderr) == (code, said)


def test_a_program_that_claims_too_much_is_broken_where_it_cannot(mine: Path) -> None:
    """It says that it takes several parameters, and answers for one."""
    body = """
        if q["op"] == "step":
            answer = {q: x[:1] if isinstance(x, list) else x for q, x in answer.items()}
        say(answer, q["seq"])
    """
    result = broken(mine, body, "--select", "*sharp-l2*")
    assert statuses(result) == {"conforms": 4}
    result = broken(mine, body, "--select", "*.groups-*")
    assert statuses(result) == {"conforms": 2}  # a group is a case of its own
    result = broken(mine, body, "--select", "*.none-pause*")
    assert statuses(result) == {"broken": 2}
    assert all("param must list 2, got" in run["detail"] for run in runs(result))
    assert result.exit_code == BROKE


# -- files ----------------------------------------------------------------------------------------


def asked(*arguments: str) -> str:
    result = refopt("gen", *arguments)
    assert result.exit_code == OK, result.output
    return str(result.stdout)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the template answers to the questions of RMSprop."""
    questions = asked("--optimizer", "rmsprop", "--takes", ",".join(TEMPLATE))
    command = [sys.executable, str(EXAMPLES / "template.py")]
    done = subprocess.run(command, input=questions, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def samples(compiled: Path) -> dict[str, tuple[str, list[str]]]:
    """The programs of examples/rop that the present tools run: (optimizer, command)."""
    found = {f"{name}.c": (name, [str(compiled / name)]) for name in VECTORS}
    found["template.py"] = "rmsprop", [sys.executable, str(EXAMPLES / "template.py")]
    found["thor.py"] = "thor", [sys.executable, str(THOR)]
    if NODE:
        mjs = [NODE, str(EXAMPLES / "optimizers.mjs")]
        found |= {f"optimizers.mjs, {name}": (name, mjs) for name in VECTORS}
    if RUSTC:
        flags = ["-O", str(EXAMPLES / "nadam.rs"), "-o", str(compiled / "nadam-rs")]
        subprocess.run([RUSTC, *flags], check=True)
        found["nadam.rs"] = "nadam", [str(compiled / "nadam-rs")]
    return found


def test_every_program_conforms_through_files_as_the_document_says(
    samples: dict[str, tuple[str, list[str]]],
) -> None:
    """What gen does not ask for by itself, set_state, is not waited for by ver."""
    for name, (optimizer, command) in samples.items():
        given = {"input": asked("--optimizer", optimizer), "capture_output": True, "text": True}
        done = subprocess.run(command, check=True, **given)
        result = verified(done.stdout.splitlines())
        assert result.exit_code == OK, (name, result.output)
        found = Counter(run["status"] for run in runs(result))
        takes = {*json.loads(done.stdout.splitlines()[0])["takes"]} & rop.plain(optimizer)
        assert found["conforms"] == taken(optimizer, takes) >= 8, name
        assert {*found} <= {"conforms", "skipped"}, name


def verified(lines: list[str], *arguments: str) -> Any:
    return refopt("ver", "-", "--json", *arguments, stdin="".join(f"{line}\n" for line in lines))


def test_answers_in_a_file_are_judged_like_a_dialogue(answers: list[str]) -> None:
    result = verified(answers)
    assert result.exit_code == OK, result.output
    assert statuses(result) == {"conforms": taken("rmsprop", TEMPLATE)}
    command = f"cmd:{sys.executable} {EXAMPLES / 'template.py'}"
    direct = runs(refopt("check", command, "--optimizer", "rmsprop", "--json"))
    fields = ("case", "status", "checks", "worst_ulp")
    assert [[run[k] for k in fields] for run in runs(result)] == [
        [run[k] for k in fields] for run in direct if run["status"] != "skipped"
    ]


def test_questions_and_answers_are_valid_by_the_schema(answers: list[str]) -> None:
    for optimizer in RULES:
        lines = asked("--optimizer", optimizer, "--takes", ",".join(rop.words(optimizer)))
        questions = [json.loads(line) for line in lines.splitlines()]
        seqs, settable = [q["seq"] for q in questions], "set_state" in rop.words(optimizer)
        assert sorted({*seqs}) == ([*range(len(questions))] if settable else seqs)
        asks = {"hello", "case", "step", "bye"} | ({"set_state"} if settable else set())
        assert {q["op"] for q in questions} == asks
        assert all(valid(q, "question") for q in questions)
        assert len({q["id"] for q in questions if q["op"] == "case"}) == len(rop.vectors(optimizer))
        assert "documented" not in lines  # what is expected is never sent
    assert all(valid(json.loads(line), "answer") for line in answers)
    wrong = [{}, {"seq": -1}, {"seq": 1, "param": ["xyz!"]}, {"seq": 1, "rejected": {"kind": "x"}}]
    assert not any(valid(message, "answer") for message in wrong)
    assert set(
        SCHEMA["$defs"]["answer"]["oneOf"][4]["properties"]["rejected"]["properties"]["kind"][
            "enum"
        ]
    ) == {*rop.KINDS}


def test_no_key_occurs_twice_in_a_question_to_a_program_without_schedules() -> None:
    for optimizer in {*RULES} - {"thor"}:
        for line in asked("--optimizer", optimizer).splitlines():
            keys = re.findall(r'"(\w+)": ', line)
            assert len(keys) == len(set(keys)), line


def test_a_selection_keeps_the_numbers_of_its_questions(answers: list[str]) -> None:
    some = asked("--optimizer", "rmsprop", "--select", "*.sharp.*").splitlines()
    every = asked("--optimizer", "rmsprop").splitlines()
    assert set(some) < set(every)
    numbers = {json.loads(line)["seq"] for line in some}
    result = verified([a for a in answers if json.loads(a)["seq"] in numbers])
    assert statuses(result) == {"conforms": 2}


def test_answers_that_end_early_are_broken_where_they_end(answers: list[str]) -> None:
    result = verified(answers[:-1])
    assert result.exit_code == OK  # but for bye nothing is missing that was asked
    result = verified(answers[: len(answers) // 2])
    assert result.exit_code == BROKE
    found = [run["status"] for run in runs(result)]
    assert (found.count("broken"), found[-1]) == (1, "broken")
    assert "no answer has seq" in runs(result)[-1]["detail"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line[: len(line) // 2], "JSON is required"),
        (lambda line: "garbage", "line 4: JSON is required on each line, got 'garbage"),
        (lambda line: json.dumps(json.loads(line) | {"seq": 10**9}), "no answer has seq "),
        (lambda line: line.replace('"seq": ', '"seq": 0'), "JSON is required"),
        (lambda line: "", "JSON is required"),
    ],
    ids=["partial", "garbage", "wrong-seq", "no-number", "empty"],
)
def test_a_line_of_a_file_that_is_broken_breaks_its_case_alone(
    answers: list[str], change: Any, said: str
) -> None:
    result = verified([*answers[:3], change(answers[3]), *answers[4:]])
    assert result.exit_code == BROKE
    first, *others = runs(result)
    assert (first["status"], {run["status"] for run in others}) == ("broken", {"conforms"})
    assert said in first["detail"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "an answer to hello (seq 0, optimizer one of nadam, rmsprop, sgd, thor) is required"),
        (["garbage"], "line 1: JSON is required on each line, got 'garbage"),
        (['{"seq": 0, "optimizer": "nadam", "suite": "1"}'], "hello must repeat the suite"),
    ],
)
def test_a_file_that_answers_nothing_is_wrong_usage(lines: list[str], said: str) -> None:
    result = verified(lines)
    assert result.exit_code == USAGE
    assert said in result.stderr


def test_answers_that_are_no_text_are_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "answers").write_bytes(bytes(range(256)) * 100)
    result = refopt("ver", tmp_path / "answers")
    assert result.exit_code == USAGE
    assert "JSON is required on each line" in result.stderr
    result = refopt("ver", tmp_path / "none")
    assert result.exit_code == USAGE
    assert "FILE must be a file that can be read" in result.stderr


def test_gen_refuses_what_it_does_not_know() -> None:
    result = refopt("gen", "--optimizer", "nadam", "--takes", "float32,everything")
    assert result.exit_code == USAGE
    assert "got everything" in " ".join(re.sub("[│\n]", " ", result.stderr).split())
    assert refopt("gen", "--optimizer", "adam").exit_code == USAGE


def test_nothing_answered_decides_nothing() -> None:
    first = {"seq": 0, "rop": 1, "optimizer": "nadam", "suite": suite.version()}
    first |= {"name": "none", "version": "1", "takes": []}
    result = verified([json.dumps(first)])
    assert result.exit_code == NOTHING


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["seq", "param", "v", "dtypes", "skipped", "rejected", "kind", "error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_answers_whatever_they_are_break_the_oracle(data: st.DataObject) -> None:
    """Any line in the place of any answer gives a status, or an error with a meaning."""
    first = {"seq": 0, "rop": 1, "optimizer": "nadam", "suite": suite.version()}
    first |= {"name": "fuzz", "version": "1", "takes": ["float32", "lr", "beta1", "beta2"]}
    first |= {"takes": [*first["takes"], "epsilon", "momentum_decay", "weight_decay"]}
    numbered = st.tuples(st.integers(1, 9), JSON).map(
        lambda x: json.dumps(x[1] | {"seq": x[0]} if isinstance(x[1], dict) else x[1])
    )
    hello = data.draw(st.just(json.dumps(first)) | JSON.map(json.dumps))
    lines = data.draw(st.lists(numbered | st.text(max_size=30), max_size=9))
    with contextlib.suppress(CaseError):  # hello was no answer
        tasks = list(rop.Answers([hello, *lines]).tasks("*sharp-l2-psi-1.f32", None))
        assert len(tasks) == 1
        ((item,),) = (task.items for task in tasks)
        assert item.status in ("broken", "skipped", "crashed", "rejected")


# -- the document ---------------------------------------------------------------------------------

DIALOGUE = re.findall(r"^([<>]) (\{.*[^.]\})$", DOCUMENT.partition("## THOR")[0], re.MULTILINE)


def test_the_dialogue_of_the_document_is_valid_and_what_a_program_answers(
    compiled: Path,
) -> None:
    kinds = {">": "question", "<": "answer"}
    assert [mark for mark, _ in DIALOGUE] == [">", "<"] * 4
    assert all(valid(json.loads(text), kinds[mark]) for mark, text in DIALOGUE)
    questions = "".join(f"{text}\n" for mark, text in DIALOGUE if mark == ">")
    done = subprocess.run(
        [compiled / "nadam"], input=questions, capture_output=True, text=True, check=True
    )
    answers = [text for mark, text in DIALOGUE if mark == "<"]
    assert done.stdout.splitlines()[1:] == answers[1:]


def test_the_document_names_every_word_kind_and_status() -> None:
    named = set(re.findall(r"`([\w-]+)`", DOCUMENT))
    assert set(rop.KINDS) <= named
    unsaid = {"base", "initial_scale", "weight_decay", "maximize", "decoupled_weight_decay"}
    unsaid |= {"factor_decay", "grad_centralization"}  # of other releases of THOR
    for optimizer in RULES:
        others = {*rop.words(optimizer)} - named - unsaid
        assert others <= {"nesterov", "bias_correction", "eps_in_sqrt", "lr_in_momentum"}
    assert all(
        valid(json.loads(text), "answer") for text in re.findall(r"`(\{.*?\})` \|", DOCUMENT)
    )


def test_the_document_lists_what_a_function_may_name_with_its_default() -> None:
    rows = re.findall(r"^\| (NAdam|RMSprop|SGD|THOR) \| (.*) \| (.*) \|$", DOCUMENT, re.MULTILINE)
    assert [name.lower() for name, *_ in rows] == [*RULES]
    for name, numbers, options in rows:
        optimizer = name.lower()
        described = spec.load(optimizer)["hyperparameters"]
        documented: dict[str, list[Any]] = {}
        for q, keyword in rop.keywords(optimizer).items():
            base, pair, _ = keyword.partition("[")
            if q in described and q != "global_clipnorm":  # of all parameters together
                default = described[q].get("default", ... if optimizer == "thor" else None)
                documented.setdefault(base, []).append(default)
                assert bool(pair) == (base == "betas")
        listed = dict(re.findall(r"`(\w+)`(?: ([^(,;]+|\(.*?\)))?(?:, |$)", numbers))
        assert listed == {
            keyword: "" if x[0] is ... else str(tuple(x) if len(x) > 1 else x[0])
            for keyword, x in documented.items()
        }
        named = {o for o in RULES[optimizer].OPTIONS if o in rop.keywords(optimizer)}
        assert set(re.findall(r"`(\w+)`", options)) == named


def test_links_of_the_document_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", DOCUMENT)
    assert len(targets) >= 8
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target
