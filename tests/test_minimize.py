"""The smallest input on which an implementation fails is a program, and it fails."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refopt import cli
from refopt.oracle.report import OK, USAGE, VIOLATED

ROOT = Path(__file__).parent.parent

FUNCTIONS = """
import numpy as np

def nadam(param, grad, state, *, lr, betas, eps, momentum_decay, inside=False, late=False):
    zeros = 0 * param
    m, v, t, product = state.values() if state else (zeros, zeros, 0, 1.0)
    t += 1
    mu, mu_next = (betas[0] * (1 - 0.5 * 0.96 ** (s * momentum_decay)) for s in (t, t + 1))
    product *= mu
    m = betas[0] * m + (1 - betas[0]) * grad
    v = betas[1] * v + (1 - betas[1]) * grad * grad
    m_hat = mu_next / (1 - product * mu_next) * m + (1 - mu) / (1 - product) * grad
    v_hat = v / (1 - betas[1] ** t)
    d = np.sqrt(v_hat + eps) if inside else np.sqrt(v_hat) + eps
    m = m * 2 if late and t == 2 else m
    return param - lr * m_hat / d, dict(m=m, v=v, t=t, product=product)

def inside(param, grad, state, *, lr, betas, eps, momentum_decay):
    return nadam(param, grad, state, lr=lr, betas=betas, eps=eps, momentum_decay=momentum_decay,
                 inside=True)

def late(param, grad, state, *, lr, betas, eps, momentum_decay):
    return nadam(param, grad, state, lr=lr, betas=betas, eps=eps, momentum_decay=momentum_decay,
                 late=True)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def minimized(implementation: str, *arguments: str, optimizer: str = "nadam") -> Any:
    command = ["minimize", implementation, "--optimizer", optimizer, *arguments]
    return CliRunner().invoke(cli.app, command)


def ran(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "smallest.py").write_text(text)
    command = [sys.executable, "smallest.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_wrong_formula_needs_one_element_and_one_step_of_round_numbers(mine: Path) -> None:
    result = minimized("py:mine:inside")
    assert result.exit_code == VIOLATED, result.output
    assert result.stdout.count("param, state = inside(") == 1
    assert "param = np.array([0.0], np.float64)\n" in result.stdout
    assert "grad = np.array([1.0], np.float64)\n" in result.stdout
    assert "lr=1.0, betas=(0.0, 0.0), eps=1.0, momentum_decay=0.0)" in result.stdout
    failed = ran(mine, result.stdout)
    assert failed.returncode == 1
    assert failed.stderr.endswith("AssertionError: -0.7071067811865475\n")  # 1 / sqrt(1 + 1)
    assert "assert -0.5 <= got <= -0.5, got" in result.stdout  # 1 / (1 + 1)


def test_the_program_passes_once_the_function_is_right(mine: Path) -> None:
    text = minimized("py:mine:inside").stdout
    (mine / "mine.py").write_text(FUNCTIONS.replace("np.sqrt(v_hat + eps)", "np.sqrt(v_hat) + eps"))
    passed = ran(mine, text)
    assert passed.returncode == 0, passed.stderr


def test_a_fault_of_the_second_step_needs_two(mine: Path) -> None:
    result = minimized("py:mine:late")
    assert result.exit_code == VIOLATED, result.output
    assert result.stdout.count("param, state = late(") == 2
    assert 'got = float(np.ravel(state["m"])[0])' in result.stdout
    assert ran(mine, result.stdout).returncode == 1


def test_what_conforms_has_no_smallest_failure(mine: Path) -> None:
    result = minimized("py:mine:nadam", "--select", "*.f64")
    assert result.exit_code == OK
    assert "leaves documented on no vector that it answers" in result.stderr


def test_a_program_in_any_language_is_asked_by_the_protocol(mine: Path) -> None:
    source = (ROOT / "examples" / "rop" / "template.py").read_text()
    right = 'np.sqrt(v) + h["epsilon"]'
    assert source.count(right) == 1
    (mine / "wrong.py").write_text(source.replace(right, 'np.sqrt(v + h["epsilon"])'))
    result = minimized(f"cmd:{sys.executable} wrong.py", optimizer="rmsprop")
    assert result.exit_code == VIOLATED, result.output
    assert result.stdout.count("'op': 'step'") == 1
    assert re.search(r"'shapes': \[\[1\]\]", result.stdout)
    failed = ran(mine, result.stdout)
    assert (failed.returncode, "AssertionError" in failed.stderr) == (1, True)
    (mine / "wrong.py").write_text(source)
    assert ran(mine, result.stdout).returncode == 0


def test_a_failure_that_shows_stays_one_and_does_not_end_at_a_rounding(mine: Path) -> None:
    """The learning rate is a float32: with all else right that is the smallest failure."""
    rounded = FUNCTIONS.replace("return param - lr", "return param - float(np.float32(lr))")
    (mine / "mine.py").write_text(rounded)
    digits = re.findall(
        r"AssertionError: (\S+)", ran(mine, minimized("py:mine:nadam").stdout).stderr
    )
    assert float(digits[0]) == pytest.approx(-0.1, abs=1e-8)
    assert float(digits[0]) != -0.1
    failed = ran(mine, minimized("py:mine:inside").stdout)
    assert failed.stderr.endswith("AssertionError: -0.7071067811865475\n")


NET = """
import numpy as np

def thor(params, grads, state, *, layers, names, statistics, learning_rate, damping, momentum,
         batch_size, loss_scale, frequency):
    m, inverses = state if state else ([0 * p for p in params], None)
    (layer,) = layers
    if layer["kind"] != "dense":
        raise NotImplementedError
    if statistics:
        a, d = (x.reshape(-1, x.shape[-1]) for x in statistics[layer["name"]].values())
        factors = (d.T @ d * (batch_size / loss_scale) / len(d), a.T @ a / len(a))
        inverses = [np.linalg.inv(x + damping * np.eye(len(x), dtype=x.dtype)) for x in factors]
    weight, bias = (g / loss_scale for g in grads)
    m = [momentum * x + g for x, g in zip(m, (inverses[0] @ weight @ inverses[1], bias))]
    return [p - learning_rate * x for p, x in zip(params, m)], (m, inverses)
"""


def test_the_smallest_net_has_one_weight_and_sees_one_sample(mine: Path) -> None:
    (mine / "net.py").write_text(NET)
    result = minimized("py:net:thor", "--select", "*.dense.*", optimizer="thor")
    assert result.exit_code == VIOLATED, result.output
    assert result.stdout.count("params, state = thor(") == 1
    assert re.search(
        r"params = \[np.array\(\[\S+\], np.float64\).reshape\(\(1, 1\)\)", result.stdout
    )
    assert re.search(r"'ds': np.array\(\[\S+\], np.float64\).reshape\(\(1, 1\)\)", result.stdout)
    failed = ran(mine, result.stdout)
    assert failed.returncode == 1
    assert "AssertionError" in failed.stderr
    (mine / "net.py").write_text(
        NET.replace("(batch_size / loss_scale)", "(batch_size / loss_scale)**2")
    )
    assert ran(mine, result.stdout).returncode == 0
    source = (ROOT / "examples" / "rop" / "thor.py").read_text()
    right = "scale**2 * self.G, damping)  # THO-4.1"
    assert source.count(right) == 1
    (mine / "program.py").write_text(source.replace(right, "scale * self.G, damping)"))
    command = f"cmd:{sys.executable} program.py"
    result = minimized(command, "--select", "*.dense.*", optimizer="thor")
    assert 'bits = answer["gradient"][0][0 : 16]' in result.stdout
    assert ran(mine, result.stdout).returncode == 1
    (mine / "program.py").write_text(source)
    assert ran(mine, result.stdout).returncode == 0


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "profile", "optimizer"),
    [
        ("torch:NAdam", "keras-3", "NAdam"),
        ("torch:RMSprop", "keras-3", "RMSprop"),
        ("torch:SGD", "keras-3", "SGD"),
    ],
)
def test_a_framework_fails_in_its_own_words(
    mine: Path, name: str, profile: str, optimizer: str
) -> None:
    select = ("--select", "*sharp*f64") if name != "torch:SGD" else ()
    arguments = ["minimize", name, "--profile", profile, *select]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == VIOLATED, result.output
    assert f"optimizer = torch.optim.{optimizer}([param], **keywords)" in result.stdout
    assert result.stdout.count("optimizer.step()") <= 2
    failed = ran(mine, result.stdout)
    assert (failed.returncode, "AssertionError" in failed.stderr) == (1, True), failed.stderr


@pytest.mark.torch
def test_what_a_framework_is_not_called_with_in_a_line_goes_through_its_adapter(mine: Path) -> None:
    """Limits are functions beside the optimizer."""
    arguments = ["minimize", "torch:RMSprop", "--select", "*.clipvalue-0.1.f64", "--profile", "tf1"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == VIOLATED, result.output
    failed = ran(mine, result.stdout)
    assert (failed.returncode, "AssertionError" in failed.stderr) == (1, True), failed.stderr


def test_a_framework_with_a_network_of_its_own_has_no_smaller_input() -> None:
    result = CliRunner().invoke(cli.app, ["minimize", "mindspore:thor"])
    assert result.exit_code == USAGE
    result = CliRunner().invoke(cli.app, ["minimize", "somewhere:NAdam"])
    assert result.exit_code == USAGE
