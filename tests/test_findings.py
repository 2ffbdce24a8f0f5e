"""conformance/FINDINGS.md: every command shows what is printed below it."""

import importlib.util
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from refopt import cli
from refopt.oracle import golden, suite
from refopt.oracle.report import STALE, VIOLATED, Tally

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "conformance" / "FINDINGS.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)\n```\n\n```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
FILES = sorted((ROOT / "conformance" / "findings").glob("*.json"))


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        pytest.param(*block, id=block[0], marks=[pytest.mark.slow] * ("three-blocks" in block[0]))
        for block in BLOCKS  # one factor has 384 rows
    ],
)
def test_a_finding_is_still_shown_by_its_command(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    stated = re.search(r"  # exits with (\d)$", command)
    program, *arguments = shlex.split(command, comments=True)
    result = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "100"})
    assert program == "refopt"
    assert result.exit_code == (int(stated[1]) if stated else 0), result.output
    output = flat(result.output)
    for line in shown.splitlines():
        assert flat(line) in output, result.output


def test_every_command_is_one_line_and_has_what_it_prints() -> None:
    assert len(BLOCKS) == TEXT.count("```sh") == TEXT.count("```text") > 15
    assert all("\n" not in command for command, _ in BLOCKS)


def test_every_recording_made_for_a_finding_is_used_by_one() -> None:
    assert FILES
    for path in FILES:
        assert f"conformance/findings/{path.name}" in TEXT


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_recording_made_for_a_finding_follows_the_schema(path: Path) -> None:
    schema = json.loads((ROOT / "conformance" / "schema" / "golden.schema.json").read_text())
    jsonschema.validate(json.loads(path.read_text()), schema)


def test_what_is_asked_otherwise_is_the_recording_of_the_suite_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = loaded("findings", monkeypatch)
    for name in module.ASKED:
        path = ROOT / "conformance" / "findings" / f"{name}.json"
        assert path.read_text() == module.make.canonical(module.asked(name))


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "conformance"))
    for known in ("make", name):
        monkeypatch.delitem(sys.modules, known, raising=False)
    spec = importlib.util.spec_from_file_location(name, ROOT / "conformance" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judged(case: str) -> list[suite.Result]:
    found = [r for r in golden.recordings(suite.optimizer(case)) if r.case.id == case]
    (task,) = suite.tasks(found, numpy=False)
    return suite.work(task)


def test_a_deviation_shows_its_reason_and_its_link() -> None:
    (result,) = judged("rmsprop.mindspore.size-33.f32")
    assert result.status == suite.DEVIATES
    assert result.item.detail.startswith("In one call epsilon is outside")
    assert result.item.detail.endswith("RMSProp.html")


@pytest.mark.parametrize(
    ("case", "place", "code"),
    [
        ("rmsprop.mindspore.defaults.f32", (1, "v"), STALE),  # which conforms
        ("rmsprop.mindspore.size-33.f32", (2, "buffer"), VIOLATED),  # which deviates before
        ("rmsprop.mindspore.size-33.f32", (1, "param"), VIOLATED),
    ],
)
def test_an_expectation_that_does_not_hold_fails(
    case: str, place: tuple[int, str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {(case, "mindspore-2.10"): golden.Deviation(*place, "because")}
    monkeypatch.setattr(suite, "_expected", lambda: listed)
    tally = Tally()
    for result in judged(case):
        assert result.item.stale.startswith("is expected to deviate, first in")
        tally.add(result)
    assert tally.exit_code == code


def test_every_expected_deviation_has_a_reason_and_a_link_that_is_one() -> None:
    document = tomllib.loads((ROOT / "conformance" / "expected.toml").read_text())
    assert document["deviation"]
    cases = {r.case.id: r for r in suite.recordings()}
    for entry in document["deviation"]:
        assert entry["run"] in cases[entry["case"]].runs
        assert len(entry["reason"]) > 40
        assert re.fullmatch(r"https://\S+", entry.get("link", "https://none"))
