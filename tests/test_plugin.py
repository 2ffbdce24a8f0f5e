"""The pytest plugin, in a pytest of its own; the example of docs/pytest.md runs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from refopt.cli import plugin
from refopt.oracle import drawn, golden, rop, suite

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")
PYTHON, TOML, COMMAND, FAILURE = re.findall(r"^```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
REPAIRED = PYTHON.replace("** t) + eps)", "** t)) + eps")


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """(exit code, output) of pytest in a folder, as a user starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": "", "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def project(folder: Path, module: str) -> Path:
    (folder / "mymodule.py").write_text(module)
    (folder / "pyproject.toml").write_text(TOML)
    return folder


def counts(output: str) -> dict[str, int]:
    last = output.strip().splitlines()[-1]
    return {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}


def test_the_example_fails_as_printed_and_passes_once_repaired(tmp_path: Path) -> None:
    assert COMMAND.split() == ["pytest", "-q"]
    vectors = len(rop.vectors("nadam")) + drawn.number("nadam")
    code, output = run(project(tmp_path, PYTHON), "-q")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert FAILURE in output
    assert sum(counts(output).values()) == vectors
    code, output = run(project(tmp_path, REPAIRED), "-q", "-rs")
    assert code == pytest.ExitCode.OK, output
    found = counts(output)
    assert found.keys() == {"passed", "skipped"}
    assert sum(found.values()) == vectors
    assert found["passed"] > found["skipped"] > 0
    reasons = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)", output, re.MULTILINE)
    assert reasons
    assert all(re.match(r"skipped: (does not take \w|bfloat16, which)", x) for x in reasons)
    assert "refopt: undecided: " in output


class Recorded(NamedTuple):
    """An implementation that answers as it was recorded to."""

    name: str

    def results(self, recording: golden.Recording) -> list[suite.Result]:
        (task,) = suite.tasks([recording], numpy=False)
        return suite.work(task)


def test_what_excludes_nothing_is_skipped_with_what_stays_undecided(
    request: pytest.FixtureRequest,
) -> None:
    (recording,) = (r for r in golden.recordings("rmsprop") if r.case.id == "rmsprop.tf.empty.f32")
    vector = plugin.Vector.from_parent(
        request.session, name="empty", asked=Recorded("tf"), recording=recording
    )
    with pytest.raises(pytest.skip.Exception, match=r"^inconclusive; undecided: \w+: \w"):
        vector.runtest()
    status = [said[1] for _, said in vector.user_properties]
    assert status == ["inconclusive", "inconclusive"]


def test_a_program_that_ends_fails_every_vector_and_is_given_up(tmp_path: Path) -> None:
    options = ["--refopt-impl=cmd:false", "--refopt-optimizer=nadam", "--refopt-select=*.f64"]
    code, output = run(tmp_path, "-q", *options)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert counts(output).keys() == {"failed"}
    assert "crashed: exited with 1" in output
    assert "given up after 3 failures in a row" in output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("torch:Adam", "must be one of py:MODULE:FUNCTION, cmd:PROGRAM, torch:NAdam"),
        ("py:mymodule:adam", "--optimizer must be one of nadam, rmsprop, sgd, thor"),
        ("py:mymodule", "--optimizer must be one of nadam, rmsprop, sgd, thor"),
        ("cmd:no-such-program", "IMPLEMENTATION must be cmd: and a program that can be started"),
        ("mlx:RMSprop", "mlx is not installed in"),
        ("py:mymodule:nadam", "--refopt-profile must be one of documented"),
    ],
)
def test_what_is_misused_is_said(tmp_path: Path, given: str, said: str) -> None:
    python = tmp_path / "python"  # an interpreter without packages
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    options = {
        "refopt_optimizer": "nadam" if given.startswith("cmd:") else None,
        "refopt_python": str(python),
        "refopt_profile": "exact",
        "refopt_timeout": 1.0,
        "refopt_seed": None,
        "refopt_select": "*",
    }
    config: Any = SimpleNamespace(getoption=options.__getitem__, getini=lambda name: [])
    with pytest.raises(pytest.UsageError, match=re.escape(said)):
        plugin.Asked(config, given)


DECLINES = (
    REPAIRED
    + """

def declines(param, grad, state, **hyper):
    raise NotImplementedError("no such thing")


declines.lacks = ["lr"]


def owes(param, grad, state, lr, betas, eps, weight_decay, momentum_decay):
    if weight_decay:
        raise NotImplementedError("no decay")
    return nadam(param, grad, state, lr, betas, eps, weight_decay, momentum_decay)


def misnamed(param, grad, state, lr, beta1, **hyper):
    return param, None


def constant(param, grad, state, lr, betas, eps, weight_decay):
    return nadam(param, grad, state, lr, betas, eps, weight_decay, 0.0)
"""
)


@pytest.mark.parametrize("processes", ["0", "2"])
def test_pytest_fails_where_nothing_was_decided(tmp_path: Path, processes: str) -> None:
    project(tmp_path, DECLINES).joinpath("pyproject.toml").unlink()
    options = ("--refopt-impl=py:mymodule:declines", "--refopt-optimizer=nadam")
    code, output = run(tmp_path, "-q", "-n", processes, "--refopt-select=*.f64", *options)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert counts(output).keys() == {"skipped"}
    assert "refopt: py:mymodule:declines: nothing was decided" in output


def test_a_must_vector_that_is_declined_fails(tmp_path: Path) -> None:
    project(tmp_path, DECLINES).joinpath("pyproject.toml").unlink()
    options = ("--refopt-impl=py:mymodule:owes", "--refopt-optimizer=nadam")
    code, output = run(tmp_path, "-q", "--refopt-select=*-l2-*.f64", *options)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert counts(output)["failed"] > 0
    assert "skipped: no decay\n  owed: a must vector, whose every need is taken" in output


def test_a_function_that_names_what_nobody_knows_ends_pytest_and_what_it_lacks_is_said(
    tmp_path: Path,
) -> None:
    project(tmp_path, DECLINES).joinpath("pyproject.toml").unlink()
    select = ("-q", "--refopt-optimizer=nadam", "--refopt-select=*.f64")
    code, output = run(tmp_path, *select, "--refopt-impl=py:mymodule:misnamed")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "got beta1; did you mean betas for beta1?" in output
    output = run(tmp_path, *select, "--refopt-impl=py:mymodule:constant")[1]
    assert "does not take momentum_decay, which is 0.004 by default" in output


def test_a_module_is_found_by_the_pythonpath_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    project(tmp_path, "")
    (tmp_path / "mymodule.py").rename(tmp_path / "src" / "mymodule.py")
    (tmp_path / "src" / "mymodule.py").write_text(REPAIRED)
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write('pythonpath = ["src"]\n')
    code, output = run(tmp_path, "-q", "--refopt-select=*sharp*.f64")
    assert code == pytest.ExitCode.OK, output


def test_wrong_usage_ends_pytest_before_a_test(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--refopt-impl=torch:Adam")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert output.startswith("ERROR: --refopt-impl must be one of")


def test_without_an_implementation_nothing_of_refopt_is_imported(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import sys\n\n\n"
        "def test_nothing_is_imported():\n"
        "    assert not {'refopt', 'numpy', 'flint', 'rich'} & set(sys.modules)\n"
        "    assert 'pytest_refopt' in sys.modules\n"
    )
    code, output = run(tmp_path, "-q")
    assert code == pytest.ExitCode.OK, output
    assert counts(output) == {"passed": 1}


def test_tests_of_files_run_beside_vectors_and_k_selects_among_both(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_sharp(): pass\ndef test_other(): pass\n")
    folder = project(tmp_path, REPAIRED)
    code, output = run(folder, "-q", "-n", "2", "-k", "sharp and (f64 or test_sharp)")
    assert code == pytest.ExitCode.OK, output
    sharp = [r for r in rop.vectors("nadam") if "sharp" in r.case.id and "f64" in r.case.id]
    assert sum(counts(output).values()) == 1 + len(sharp)
    code, output = run(folder, "--collect-only", "-q", "-k", "refopt and sharp and f64")
    every = len(rop.vectors("nadam")) + drawn.number("nadam") + 2
    assert f"{len(sharp)}/{every} tests collected" in output


def test_a_part_that_loads_the_plugin_is_a_file_outside_the_package() -> None:
    text = (ROOT / "pytest_refopt.py").read_text()
    assert re.findall(r"^(?:from|import) (\S+)", text, re.MULTILINE) == ["__future__", "pytest"]
