"""SGD with momentum: the algorithm of the page in exact fractions, torch's own numbers, and power.

It came with rules/sgd.py, spec/sgd.toml, spec/sgd.md and this file, and no line of generic code.
"""

import random
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from refopt.oracle import drawn
from refopt.oracle.diagnose import diagnose
from refopt.oracle.golden import Run
from refopt.oracle.own import numpy_run
from refopt.oracle.verdict import CONFORMS, VIOLATION, judge
from refopt.rules import sgd
from refopt.teach.exercise import EXERCISES, case_of

ROOT = Path(__file__).parent.parent
DOCUMENTED = sgd.PROFILES["documented"]
CASE = case_of(EXERCISES["sgd"])
ASKED = [
    {},
    {"momentum": 0.75},
    {"momentum": 0.75, "dampening": 0.5},
    {"momentum": 0.75, "nesterov": True},
    {"weight_decay": 0.25},
    {"momentum": 0.75, "dampening": 0.25, "weight_decay": 0.25, "maximize": True},
]


# -- the page, written again ----------------------------------------------------------------------
def page(theta, grads, gamma, mu=0, tau=0, lam=0, nesterov=False, maximize=False):
    """The parameter after each step, as torch.optim.SGD documents it."""
    b, after = None, []
    for t, g in enumerate(grads, 1):
        g = -g if maximize else g
        if lam != 0:
            g = g + lam * theta
        if mu != 0:
            b = mu * b + (1 - tau) * g if t > 1 else g
            g = g + mu * b if nesterov else b
        theta = theta - gamma * g
        after.append(theta)
    return after


class Exact:
    """Fractions as a namespace and as numbers."""

    @staticmethod
    def zeros_like(x):
        return 0 * x

    def __call__(self, x):
        return Fraction(x)

    def of(self, param):
        return self


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_rule_is_the_page_in_exact_fractions(asked: dict) -> None:
    source = random.Random(1)
    options = {k: asked[k] for k in sgd.OPTIONS if k in asked}
    given = {k: Fraction(x) for k, x in asked.items() if k not in options}
    hyper = sgd.Hyper(
        **{**dict.fromkeys(sgd.Hyper._fields, Fraction(0)), "lr": Fraction(1, 7), **given}
    )
    choices = sgd.configured(DOCUMENTED.choices, hyper, options)
    theta = Fraction(source.randrange(-99, 99), 7)
    grads = [Fraction(source.randrange(-99, 99), 13) for _ in range(6)]
    xp = num = Exact()
    params, (state, clock), after = [theta], sgd.init(theta, choices, xp=xp, num=num), []
    states, clocks = [state], [clock]
    for g in grads:
        quantities, states, clocks = sgd.update(
            params, [g], states, clocks, hyper, choices, xp=xp, num=num
        )
        params = [quantities[0].param]
        after += params
    names = {"mu": hyper.momentum, "tau": hyper.dampening, "lam": hyper.weight_decay}
    assert after == page(theta, grads, hyper.lr, **names, **options)


@pytest.mark.torch
@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_torch_lies_in_the_envelope(asked: dict) -> None:
    import torch

    options = {k: int(asked[k]) for k in sgd.OPTIONS if k in asked}
    hyper = {**dict.fromkeys(sgd.Hyper._fields, 0.0), "lr": 0.125}
    hyper |= {k: x for k, x in asked.items() if k not in options}
    case = CASE._replace(hyper=hyper, options=options, changes={})
    param = torch.nn.Parameter(torch.tensor(case.params[0], dtype=torch.float64))
    optimizer = torch.optim.SGD([param], **hyper, **{k: bool(x) for k, x in options.items()})
    steps = {}
    for t in range(1, case.steps + 1):
        param.grad = torch.tensor(case.gradients(t)[0], dtype=torch.float64)
        optimizer.step()
        steps[t] = {"param": [param.tolist()]}
        buffer = optimizer.state[param].get("momentum_buffer")
        if buffer is not None:
            steps[t]["buffer"] = [buffer.tolist()]
    run = Run("torch", steps, {"param": ["float64"], "buffer": ["float64"]})
    assert judge(sgd, case, run, DOCUMENTED).status == CONFORMS


# -- power ----------------------------------------------------------------------------------------
def test_refopt_itself_conforms_and_every_alternative_is_excluded() -> None:
    verdict = judge(sgd, CASE, numpy_run(CASE, DOCUMENTED), DOCUMENTED)
    assert (verdict.status, verdict.undecided) == (CONFORMS, {})
    assert set(verdict.excluded) == set(sgd.AXES)


@pytest.mark.parametrize(
    ("axis", "name"),
    [
        (axis, name)
        for axis, named in sgd.AXES.items()
        for name, choice in named.items()
        if choice is not getattr(DOCUMENTED.choices, axis)
    ],
)
def test_every_alternative_is_caught_and_named(axis: str, name: str) -> None:
    run = numpy_run(CASE, DOCUMENTED, {axis: sgd.AXES[axis][name]})
    assert judge(sgd, CASE, run, DOCUMENTED).status == VIOLATION
    found = diagnose("sgd", [(CASE, run)])
    assert ((axis, name),) in {record.changes for record in found.held}


def test_a_parameter_without_a_gradient_keeps_value_buffer_and_count() -> None:
    grads = [[None, CASE.grads[0][0]], [CASE.grads[1][0], None]]
    two = [np.array(CASE.params[0]), np.array(CASE.params[0])]
    hyper = sgd.Hyper(lr=0.5, momentum=0.5, dampening=0.5)
    choices = sgd.configured(DOCUMENTED.choices, hyper, {})
    from refopt.interp.arrays import Floats, namespace_of

    xp, num = namespace_of(*two), Floats()
    pairs = [sgd.init(p, choices, xp=xp, num=num) for p in two]
    states, clocks = [s for s, _ in pairs], [c for _, c in pairs]
    for row in grads:
        given = [None if g is None else np.array(g) for g in row]
        quantities, states, clocks = sgd.update(
            two, given, states, clocks, hyper, choices, xp=xp, num=num
        )
        assert [q is None for q in quantities] == [g is None for g in row]
    # each gradient was the first of its parameter, and entered whole
    assert (states[0].buffer == np.array(CASE.grads[1][0])).all()
    assert (states[1].buffer == np.array(CASE.grads[0][0])).all()
    assert [clock.t for clock in clocks] == [1, 1]


NEW = """
from typer.testing import CliRunner
from refopt.cli import app
from refopt.oracle import vectors

document, target = vectors.make("ball"), vectors.path("ball")
target.parent.mkdir()
target.write_text(vectors.text(document), encoding="utf-8")
for line in ("explain ball", "trace ball --against keras-3 --steps 2 --set momentum=0.5",
             "check --select ball.* --jobs 1", "mutants ball --pairs 0 --jobs 1"):
    done = CliRunner().invoke(app, line.split())
    print(done.exit_code, done.output)
"""


def test_its_files_under_another_name_are_another_optimizer(tmp_path: Path) -> None:
    """What the page "add an optimizer" promises: no file of refopt is edited for a new one."""
    unread = shutil.ignore_patterns("golden", "__pycache__", "*.html")
    for folder in ("refopt", "spec", "conformance"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unread)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("refopt/rules/sgd.py", "spec/sgd.toml", "spec/sgd.md"):
        text = (
            (ROOT / name).read_text(encoding="utf-8").replace("sgd", "ball").replace("SGD", "HVY")
        )
        (tmp_path / name.replace("sgd", "ball")).write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", NEW]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    codes = [line[:2] for line in done.stdout.splitlines() if line[:2] in ("0 ", "1 ", "2 ", "3 ")]
    assert codes == ["0 "] * 4, done.stdout
    assert "first difference that no rounding explains: step 1, buffer" in done.stdout
    assert "one change, float64: 12 named" in done.stdout


def test_no_generic_code_knows_it() -> None:
    known = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "refopt").rglob("*.py")
        if '"sgd"' in path.read_text(encoding="utf-8")
    }
    # its exercise, and the ranges that cases are drawn from; without them none are
    assert known <= {"refopt/teach/exercise.py", "refopt/oracle/drawn.py"}
    assert drawn.kinds("another") == []
