"""README.md: every block of code runs as it is printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import cupy_standin
import pytest
from typer.testing import CliRunner

from refopt import cli
from refopt.oracle import live

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line for language, code in BLOCKS if language == "sh" for line in code.strip().splitlines()
]


def run(command: str) -> tuple[int, str]:
    """(exit code, output) of a command `refopt …`."""
    program, *arguments = shlex.split(command, comments=True)
    assert program == "refopt"
    result = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "120"})
    return result.exit_code, result.output


def expected(command: str) -> int:
    stated = re.search(r"# exits with (\d+)", command)
    return int(stated[1]) if stated else 0


def test_the_two_commands_come_first() -> None:
    language, code = BLOCKS[0]
    assert language == "sh"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [shlex.split(line, comments=True) for line in code.strip().splitlines()]
    assert commands == [["make", "check"], ["make", "test"]]
    assert {"check", "test"} <= set(targets)


def test_every_block_is_run_or_is_output_but_the_installation() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "python", "text", "shell"}
    (code,) = (code for language, code in BLOCKS if language == "shell")
    start = (ROOT / "docs" / "tutorials" / "start.md").read_text(encoding="utf-8")
    (install,) = re.findall(r"^pip install \S+ '[^']*'", code, re.MULTILINE)
    assert install in start  # where it was walked from a fresh clone


@pytest.mark.parametrize("code", [code for language, code in BLOCKS if language == "python"])
def test_a_block_of_python_runs(code: str) -> None:
    cupy_standin.install()
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.startswith("refopt") and "torch:" not in c]
)
def test_a_command_runs(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code, output = run(command)
    assert code == expected(command), output


@pytest.mark.torch
@pytest.mark.parametrize("command", [c for c in COMMANDS if "torch:" in c])
def test_a_command_that_needs_torch_runs(command: str) -> None:
    code, output = run(command)
    assert code == expected(command), output


def test_every_command_is_one_of_these() -> None:
    assert {shlex.split(command)[0] for command in COMMANDS} == {"make", "refopt"}
    assert sum("torch:" in command for command in COMMANDS) == 1


def test_printed_output_is_what_the_command_before_it_prints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    pairs = [
        (BLOCKS[i - 1], code) for i, (language, code) in enumerate(BLOCKS) if language == "text"
    ]
    assert pairs
    for (language, command), printed in pairs:
        assert language == "sh"
        _, output = run(command)
        assert printed in output


def test_paths_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target


def test_implementations_are_those_that_are_known() -> None:
    named = set(re.findall(r"`(?:refopt check )?([\w.-]+:\w+)`", TEXT)) | {"torch:NAdam"}
    assert named == live.IMPLEMENTATIONS.keys()


def test_changes_are_the_last_section() -> None:
    assert re.findall(r"^## (.*)$", TEXT, re.MULTILINE)[-1] == "Changes"


@pytest.mark.parametrize(
    "code", [c for language, c in BLOCKS if language == "python" and "import cupy" not in c]
)
def test_python_blocks_import_nothing_that_is_not_loaded_by_them(code: str) -> None:
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    code += "\nimport sys\nassert not {'torch', 'jax', 'flint'} & {*sys.modules}\n"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
