"""The command `refopt`: exit codes, reports, and implementations that misbehave."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from refopt import cli
from refopt.cli import base
from refopt.errors import AdapterError
from refopt.interp.formats import FORMATS, to_bits
from refopt.oracle import live, suite
from refopt.oracle.report import (
    BROKE,
    INTERRUPTED,
    LEFT,
    NOTHING,
    OK,
    STALE,
    USAGE,
    VIOLATED,
    Tally,
)

SHARP = "nadam.torch.sharp-l2-psi-1.f64"
REFUSED = "nadam.torch.lr-overflow.f32"
SOURCES = {
    case["id"]: case
    for path in sorted((suite.golden.root() / "golden" / "nadam").glob("torch*.json"))
    for case in json.loads(path.read_text())["cases"]
}


def refopt(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "80"})


def process(*arguments: str, **keywords: Any) -> subprocess.Popen[str]:
    root = str(Path(cli.__file__).parents[2])
    # where whoever runs the tests ignores interrupts, the child would too
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "refopt", *arguments],
            env={**os.environ, "PYTHONPATH": root, "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **keywords,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def recording(folder: Path, change: Callable[[dict[str, Any]], Any], case: str = SHARP) -> Path:
    """A file with one recorded run of torch, changed."""
    source = json.loads(json.dumps(SOURCES[case]))
    source["runs"] = {"torch-2.13": source["runs"]["torch-2.13"]}
    change(source["runs"]["torch-2.13"])
    document = {
        "format": "refopt-golden/1",
        "optimizer": "nadam",
        "provenance": {"framework": "mine", "version": "1.0"},
        "cases": [source],
    }
    path = folder / "mine.json"
    path.write_text(json.dumps(document))
    return path


def filled(value: float) -> Callable[[dict[str, Any]], None]:
    def change(run: dict[str, Any]) -> None:
        for step in run["steps"].values():
            for q in ("param", "m", "v"):
                step[q] = [to_bits([value] * (len(b) // 16), FORMATS["float64"]) for b in step[q]]

    return change


def one_bit(run: dict[str, Any]) -> None:
    """The last bit but twelve of one element of v at step 3."""
    bits = run["steps"]["3"]["v"][0]
    run["steps"]["3"]["v"][0] = f"{int(bits, 16) ^ (1 << 12):0{len(bits)}x}"


# -- exit codes -----------------------------------------------------------------------------------


def test_a_recording_that_conforms_exits_with_0(tmp_path: Path) -> None:
    result = refopt("check", recording(tmp_path, lambda run: None))
    assert result.exit_code == OK, result.output
    assert "1 conforms" in result.stdout
    assert "made by mine 1.0" in result.stdout
    assert "refopt documented" not in result.stdout


def test_one_flipped_bit_is_a_violation_that_says_where(tmp_path: Path) -> None:
    result = refopt("check", recording(tmp_path, one_bit).parent)
    assert result.exit_code == VIOLATED
    assert f"{SHARP}, torch-2.13: violation of profile torch-2.13" in result.stdout
    assert "step 3, v[3] of parameter 0, teacher-forced" in result.stdout
    assert "4096 ulp of float64" in result.stdout or re.search(r"4\d\d\d ulp", result.stdout)
    assert "no change of one choice of the profile, or of two, explains the run" in result.stdout
    assert re.search(r"torch-2.13 .* out ", result.stdout)
    assert "1 run of 1 case: 1 violation" in result.stdout


@pytest.mark.parametrize("value", [math.nan, 0.0, -1.0, math.inf, 0.7310585786300049])
def test_constant_answers_are_violations(tmp_path: Path, value: float) -> None:
    result = refopt("check", recording(tmp_path, filled(value)))
    assert result.exit_code == VIOLATED, result.output


def test_the_change_that_explains_a_violation_is_named_with_its_clause(tmp_path: Path) -> None:
    path = recording(tmp_path, lambda run: None, "nadam.torch.product-float32.f64")
    result = refopt("check", path, "--profile", "documented")
    assert result.exit_code == VIOLATED
    assert "step 1, product of parameter 0" in result.stdout
    assert re.search(r"product=float32 \(NAD-6\.2b\)", result.stdout)
    assert re.search(r"step 1,\s+product", result.stdout)


def test_a_run_that_nothing_can_be_decided_by_exits_with_5(tmp_path: Path) -> None:
    path = recording(tmp_path, lambda run: None)
    document = json.loads(path.read_text())
    (case,) = document["cases"]
    case["grads"] = [[None]]
    steps = case["runs"]["torch-2.13"]["steps"]
    for t in steps:
        steps[t] = {"param": [p["bits"] for p in case["params"]]}
    path.write_text(json.dumps(document))
    result = refopt("check", path)
    assert result.exit_code == NOTHING, result.output
    assert "1 inconclusive" in result.stdout


def test_a_rejection_alone_decides_nothing() -> None:
    result = refopt("check", suite.golden.root() / "golden", "--select", REFUSED, "--json")
    lines = [json.loads(text) for text in result.stdout.splitlines()]
    rejected = [x for x in lines[1:-1] if x["status"] == "rejected"]
    assert {x["run"] for x in rejected} == {"torch-2.13", "torch-2.13-foreach"}
    assert all("RuntimeError" in x["detail"] for x in rejected)
    assert lines[-1]["counts"] == {"rejected": 2, "conforms": 1}


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_an_empty_selection_exits_with_5(arguments: tuple[str, ...]) -> None:
    result = refopt("check", "--select", "no-such-case*", *arguments)
    assert result.exit_code == NOTHING


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("check", "nobody"), "torch:NAdam, tf2.9:Nadam"),
        (("check", "torch:RMSprop", "--python", "/dev/null"), "torch:RMSprop: cannot start"),
        (("check", "torch:RMSprop", "--python", sys.executable + "c"), "cannot start"),
        (("check", "no/such/file.json"), "no/such/file.json"),
        (("check", "--profile", "torch-1.0"), "torch-1.0"),
        (("check", "--junit", "no/such/folder/x.xml"), "no/such/folder"),
        (("check", "--junit", "."), "--junit must be a file that can be written, got ."),
        (("check", "torch:NAdam", "--timeout", "inf"), "--timeout must be a number of seconds"),
        (("check", "torch:NAdam", "--timeout", "nan"), "above 0, at most"),
        (("check", "torch:NAdam", "--timeout", "-1"), "got -1.0"),
        (("check", "torch:NAdam", "--timeout", "0"), "got 0.0"),
        (("check", "--jobs", "-1"), "--jobs"),
        (("check", "torch:NAdam", "--python", "no/such/python"), "cannot start no/such/python"),
        (("show", "nadam.no-such-case"), "nadam.no-such-case"),
        (("verify",), "verify"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_argument(
    arguments: tuple[str, ...], said: str
) -> None:
    result = refopt(*arguments)
    assert result.exit_code == USAGE
    assert said in " ".join(re.sub("[│\n]", " ", result.stderr).split())


@pytest.mark.parametrize("text", ["", "garbage", '{"format": "refopt-golden/1"}', "[1, 2]"])
def test_a_file_of_garbage_exits_with_2_and_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "garbage.json"
    path.write_text(text)
    recording(tmp_path, lambda run: None)
    for given in (path, tmp_path):
        result = refopt("check", given)
        assert result.exit_code == USAGE
        assert "garbage.json" in result.stderr
        assert "Traceback" not in result.stderr
        assert result.stdout == ""


def test_a_malformed_file_of_our_own_exits_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("golden", "vectors"):
        (tmp_path / folder / "nadam").mkdir(parents=True)
    (tmp_path / "golden" / "nadam" / "ours.json").write_text("[]")
    monkeypatch.setattr(suite.golden, "root", lambda: tmp_path)
    result = refopt("check")
    assert result.exit_code == BROKE
    assert "ours.json" in result.stderr


def test_a_run_that_leads_in_a_circle_is_refused(tmp_path: Path) -> None:
    path = recording(tmp_path, lambda run: None)
    document = json.loads(path.read_text())
    document["cases"][0]["runs"] = {"mine": {"same": "mine"}}
    path.write_text(json.dumps(document))
    result = refopt("check", path)
    assert result.exit_code == USAGE
    assert f"mine.json: case {SHARP!r}, run 'mine': same must lead to a run" in result.stderr


def test_a_run_that_is_no_profile_asks_for_one_of_its_optimizer(tmp_path: Path) -> None:
    path = recording(tmp_path, lambda run: None)
    document = json.loads(path.read_text())
    runs = document["cases"][0]["runs"]
    runs["mine"] = runs.pop("torch-2.13")
    path.write_text(json.dumps(document))
    result = refopt("check", path)
    assert result.exit_code == USAGE
    assert "run 'mine' is no profile: pass --profile NAME; the profiles of nadam are" in (
        result.stderr
    )
    assert "tf-2.9" not in result.stderr
    assert refopt("check", path, "--profile", "torch-2.13").exit_code == OK
    result = refopt("check", path, "--profile", "tf-2.9-dtensor")
    assert result.exit_code == USAGE
    assert "chainer" not in result.stderr


def test_a_fault_of_refopt_itself_exits_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Iterator[Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(suite, "recordings", fails)
    for command in ("check", "list"):
        result = refopt(command)
        assert result.exit_code == BROKE
        assert "ZeroDivisionError" in result.stderr


def test_a_failure_outranks_a_violation() -> None:
    tally = Tally()
    assert tally.exit_code == NOTHING
    for status, code in (
        (suite.REJECTED, NOTHING),
        ("inconclusive", NOTHING),
        ("conforms", OK),
        ("violation", VIOLATED),
        (suite.CRASHED, BROKE),
    ):
        tally.counts[status] += 1
        assert tally.exit_code == code


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(suite, "spread", interrupted)
    result = refopt("check", "--select", SHARP, "--json")
    assert result.exit_code == INTERRUPTED
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["kind"], last["complete"], last["exit"]) == ("footer", False, INTERRUPTED)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal that a terminal sends")
def test_an_interrupt_from_the_terminal_ends_all_processes() -> None:
    running = process("check", "--jobs", "2", "--json", start_new_session=True)
    assert running.stdout is not None
    for kind in ("header", "run"):
        assert json.loads(running.stdout.readline())["kind"] == kind
    os.killpg(running.pid, signal.SIGINT)
    rest, said = running.communicate(timeout=60)
    assert running.returncode == INTERRUPTED
    assert said == "interrupted\n"
    assert json.loads(rest.splitlines()[-1])["complete"] is False


# -- reports --------------------------------------------------------------------------------------


def test_json_lines_have_header_runs_and_footer() -> None:
    result = refopt("check", "--json", "--select", "nadam.*.sharp-l2-psi-1.f32")
    assert result.exit_code == OK
    header, *runs, footer = (json.loads(text) for text in result.stdout.splitlines())
    assert (header["kind"], header["schema"]) == ("header", "refopt-report/1")
    assert header["suite"] == suite.version()
    comparisons = [x for x in runs if x["kind"] == "comparison"]
    assert {x["profile"] for x in comparisons} == {"documented"}
    (loop,) = (x for x in comparisons if x["run"] == "torch-2.13")
    assert (loop["feature"], loop["status"]) == ("weight_decay", "differs")
    runs = [x for x in runs if x["kind"] == "run"]
    assert footer["complete"] is True
    assert footer["exit"] == OK
    assert sum(footer["counts"].values()) == len(runs)
    assert {x["run"] for x in runs} >= {
        "torch-2.13",
        "torch-2.13-foreach",
        "torch-2.13-differentiable",
        "vectors documented",
        "refopt documented",
    }
    (torch,) = (x for x in runs if x["run"] == "torch-2.13")
    assert "inside" in torch["excluded"]["epsilon"]
    assert torch["checks"] > torch["open"]


def test_json_of_a_violation_is_json_without_nan(tmp_path: Path) -> None:
    result = refopt("check", recording(tmp_path, filled(math.nan)), "--json")
    first = json.loads(result.stdout.splitlines()[1], parse_constant=pytest.fail)["first"]
    assert (first["step"], first["quantity"], first["observed"]) == (1, "m", "nan")


def test_junit_counts_what_happened(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    path = recording(tmp_path, one_bit)
    assert refopt("check", path, "--junit", report).exit_code == VIOLATED
    (found,) = ElementTree.parse(report).getroot()
    assert (found.get("name"), found.get("tests"), found.get("failures")) == (
        "torch-2.13",
        "1",
        "1",
    )
    (case,) = found
    assert case.get("name") == SHARP
    (failure,) = case
    assert failure.tag == "failure"
    assert "step 3, v[3]" in (failure.text or "")
    folder = suite.golden.root() / "golden"
    assert refopt("check", folder, "--junit", report, "--select", REFUSED).exit_code == OK
    kinds = [[child.tag for child in case] for case in ElementTree.parse(report).iter("testcase")]
    assert sorted(kinds) == [[], ["skipped"], ["skipped"]]


def test_junit_is_xml_whatever_an_implementation_says(tmp_path: Path) -> None:
    def rejected(run: dict[str, Any]) -> None:
        run.clear()
        run["error"] = {"type": "Error", "message": "\x1b[31m\x00 <&> \ud800 \ufffe [bold]é"}

    path, report = recording(tmp_path, rejected), tmp_path / "report.xml"
    result = refopt("check", path, "--junit", report)
    assert result.exit_code == NOTHING, result.output
    said = r"Error: \x1b[31m\x00 <&> \xd800 \xfffe [bold]é"
    (found,) = ElementTree.parse(report).iter("skipped")
    assert said in (found.text or "")
    assert said in " ".join(result.stdout.split())


def test_a_closed_output_is_no_error() -> None:
    command = f"{sys.executable} -m refopt check --select {SHARP} >&-"
    root = str(Path(cli.__file__).parents[2])
    found = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (OK, "")


def test_a_pipe_gets_text_without_colours_and_no_progress() -> None:
    running = process("check", "--select", SHARP)
    out, err = running.communicate(timeout=120)
    assert running.returncode == OK
    assert err == ""
    assert "\x1b" not in out
    assert "implementation" in out


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_reader_that_leaves_is_no_error(form: tuple[str, ...]) -> None:
    with process("check", "--select", SHARP, *form) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == ""
    assert running.returncode == LEFT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_cannot_be_written_is_said_in_a_line() -> None:
    with Path("/dev/full").open("w") as full:
        running = subprocess.run(
            [sys.executable, "-m", "refopt", "explain", "sgd"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert running.returncode == BROKE
    assert running.stderr == "refopt: the output must be writable: No space left on device\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [("no/such.json", "must be a file or folder that exists; got"), ("torch:Nadam", "torch:NAdam")],
)
def test_an_implementation_that_is_not_found_is_said_in_a_line(given: str, said: str) -> None:
    result = refopt("check", given)
    assert result.exit_code == USAGE
    text = " ".join(result.stderr.replace("│", " ").split())
    assert said in text
    assert "timm" not in text


def test_what_was_rejected_or_deviates_is_named() -> None:
    text = refopt("check", suite.golden.root() / "golden", "--select", REFUSED).stdout
    said = " ".join(text.split())
    assert f"rejected {REFUSED}, torch-2.13, torch-2.13-foreach: RuntimeError: " in said
    names = "rmsprop.mindspore.*"
    text = refopt("check", suite.golden.root() / "golden", "--select", names).stdout
    deviations = [case for case, _ in suite.golden.expected() if case.startswith(names[:-1])]
    assert deviations
    for case in deviations:
        assert f"\n  {case}, mindspore-2.10: " in text


def test_text_has_no_spaces_at_the_ends_of_lines_and_keeps_its_indent() -> None:
    text = refopt("check", "--select", "nadam.[!tv]*.defaults*").stdout
    lines = text.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    start = lines.index("undecided: alternatives that no run of these excludes")
    block = lines[start + 1 : lines.index("", start)]
    assert len(block) > 2
    assert all(line.startswith("  ") for line in block)
    names = [line.split("  ")[0] for line in lines[3 : lines.index("")]]
    assert names == ["refopt documented", *sorted(names[1:])]
    assert len(names) > 3


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(tmp_path: Path, columns: int) -> None:
    environment = {"COLUMNS": str(columns)}
    arguments = ["check", "--select", "nadam.*.sharp-*.f32"]
    result = CliRunner().invoke(cli.app, arguments, env=environment)
    assert result.exit_code == OK
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "torch-2.13-differentiable" in result.stdout
    assert "…" not in result.stdout


def test_list_names_cases_and_runs() -> None:
    result = refopt("list", "*product-float32.f64", "--json")
    torch, vector = (json.loads(text) for text in result.stdout.splitlines())
    assert torch["id"] == "nadam.torch.product-float32.f64"
    assert torch["runs"] == ["torch-2.13", "torch-2.13-differentiable", "torch-2.13-foreach"]
    assert vector["runs"] == ["documented"]
    assert "2 cases, 4 runs" in refopt("list", "*product-float32.f64").stdout
    assert refopt("list", "no-such-case").exit_code == NOTHING


def test_show_prints_decimals_bits_and_verdict() -> None:
    result = refopt("show", SHARP)
    assert result.exit_code == OK
    bits = SOURCES[SHARP]["params"][0]["bits"][:16]
    assert bits in result.stdout
    (value,) = suite.golden.from_bits(bits, FORMATS["float64"])
    assert f"{value:.17g}" in result.stdout
    assert "torch-2.13: conforms, undecided: " in result.stdout
    (case,) = (r.case for r in suite.recordings() if r.case.id == SHARP)
    n, record = len(case.grads), ", ".join(map(str, case.source["record"]))
    said = " ".join(result.stdout.split())
    cycle = f"with gradients 1 to {n} in turn, step {n + 1} with gradient 1 again"
    assert f"{case.steps} steps, {cycle}; recorded: {record} input" in said


def test_a_rejected_run_is_shown_with_its_error() -> None:
    result = refopt("show", REFUSED)
    assert "torch-2.13: rejected: RuntimeError" in result.stdout


@pytest.mark.parametrize("arguments", [("--help",), ("check", "--help")])
def test_help_states_the_exit_codes(arguments: tuple[str, ...]) -> None:
    result = refopt(*arguments)
    assert result.exit_code == OK
    text = " ".join(result.stdout.split())
    for code in (OK, VIOLATED, USAGE, BROKE, STALE, NOTHING, INTERRUPTED, LEFT):
        assert re.search(rf"\b{code}: [a-z]", text)
    assert "0: no violation, failure or stale expectation, and at least one run conforms" in text


@pytest.mark.parametrize("command", [(), ("check",), ("list",), ("show",), ("ver",)])
def test_help_names_arguments_in_capitals_and_flags_without_type(command: tuple[str, ...]) -> None:
    text = refopt(*command, "--help").stdout
    assert "<bool>" not in text
    wanted = {(): "COMMAND", ("check",): "IMPLEMENTATION", ("list",): "GLOB", ("show",): "ID"}
    wanted[("ver",)] = "FILE"
    usage = text.partition("Usage:")[2].splitlines()[0]
    assert re.search(rf"\b{wanted[command]}\b", usage)


def test_a_terminal_that_cannot_redraw_gets_a_line_every_tenth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(base._tenths(range(25), 25)) == list(range(25))
    said = capsys.readouterr().err.splitlines()
    assert (len(said), said[0], said[-1]) == (10, "judged 3 of 25 cases", "judged 25 of 25 cases")


def test_version_names_release_and_suite() -> None:
    assert f"suite {suite.version()}" in refopt("--version").stdout


def test_help_loads_no_oracle() -> None:
    look = (
        "import sys, refopt.cli; print(sorted({'flint', 'rich', 'torch', 'jax'} & {*sys.modules}))"
    )
    root = str(Path(cli.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    found = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.strip() == "[]"


# -- live implementations -------------------------------------------------------------------------

FAKE = """
    import json, sys, time
    recorded = {case["id"]: case for case in json.load(open(sys.argv[1]))["cases"]}
    say = lambda message: print(json.dumps(message), flush=True)
    number = 0
    def answer(case):
        say({"id": case["id"], "runs": recorded[case["id"]]["runs"]})
"""
HELLO = 'say({"hello": {"framework": "fake", "version": "1"}})'
LOOP = """
    for line in sys.stdin:
        case, number = json.loads(line), number + 1
        assert "runs" not in case
"""
CASES = [SHARP, "nadam.torch.sharp-l2-psi-0.3.f64", "nadam.torch.sharp-decoupled.f64"]


def each(results: list[suite.Result]) -> list[tuple[str, set[str]]]:
    """The statuses of each case."""
    found: dict[str, set[str]] = {}
    for result in results:
        found.setdefault(result.case, set()).add(result.status)
    return list(found.items())


def exit_code(results: list[suite.Result]) -> int:
    tally = Tally()
    for result in results:
        tally.add(result)
    return tally.exit_code


def run_fake(
    folder: Path,
    body: str,
    *,
    hello: str = HELLO,
    seconds: float = 60.0,
    cases: list[str] = CASES,
    profile: str | None = None,
) -> list[suite.Result]:
    """What comes of an adapter whose answer to a case is `body`."""
    golden = folder / "recorded.json"
    golden.write_text(json.dumps({"cases": [SOURCES[case] for case in cases]}))
    script = folder / "fake.py"
    parts = (textwrap.dedent(FAKE), hello, textwrap.dedent(LOOP))
    script.write_text("\n".join(parts) + textwrap.indent(textwrap.dedent(body), "    "))
    found = [r for r in live.cases("torch:NAdam") if r.case.id in cases]
    command = [sys.executable, str(script), str(golden)]
    tasks = live.answers(lambda: live.Adapter(command, seconds), found, profile)
    return [
        result
        for task in tasks
        for result in suite.work(
            task._replace(items=tuple(item._replace(axes=False) for item in task.items))
        )
    ]


def test_an_adapter_that_answers_right_conforms(tmp_path: Path) -> None:
    results = run_fake(tmp_path, "answer(case)")
    assert each(results) == [(case, {"conforms"}) for case in CASES]
    assert [r.item.name for r in results] == [n for case in CASES for n in SOURCES[case]["runs"]]
    assert {r.item.implementation for r in results} == {"fake 1"}
    assert exit_code(results) == OK


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("if number == 2: sys.exit('out of memory')\nanswer(case)", "crashed", "out of memory"),
        ("if number == 2: import os; os.kill(os.getpid(), 9)\nanswer(case)", "crashed", "signal 9"),
        ("if number == 2: time.sleep(600)\nanswer(case)", "timed out", "no answer within"),
        ("if number == 2: print('Loading...', flush=True)\nanswer(case)", "broken", "Loading..."),
        ("if number == 2: case['id'] = 'another'\nsay({'id': case['id'], 'runs': {}}) "
         "if number == 2 else answer(case)", "broken", "'another'"),
        ("if number == 2: say([1])\nanswer(case)", "broken", "JSON object"),
        ("if number == 2: say({'id': case['id'], 'runs': 3}); continue\nanswer(case)",
         "broken", "runs"),
        ("if number == 2: say({'id': case['id'], 'skipped': 'no such option'}); continue\n"
         "answer(case)", "skipped", "no such option"),
        ("if number == 2: say({'id': case['id'], 'runs': {}}); continue\nanswer(case)",
         "broken", "torch-2.13-differentiable, torch-2.13-foreach are required, as recorded"),
        ("if number == 2: del recorded[case['id']]['runs']['torch-2.13-foreach']\nanswer(case)",
         "broken", "runs of torch-2.13-foreach are required, as recorded"),
        ("if number == 2: recorded[case['id']]['runs']['torch-2.13'] = {}\nanswer(case)",
         "broken", "step 1 is required"),
        ("if number == 2: recorded[case['id']]['runs']['torch-2.13']['steps'] = {}\nanswer(case)",
         "broken", "step 1 is required"),
        ("if number == 2: [step.pop('v') for step in "
         "recorded[case['id']]['runs']['torch-2.13']['steps'].values()]\nanswer(case)",
         "broken", "torch-2.13: v are required, as recorded"),
    ],
    ids=["exit", "signal", "hang", "garbage", "wrong-id", "no-object", "no-runs", "skip",
         "empty", "missing-run", "empty-run", "no-steps", "no-v"],
)  # fmt: skip
def test_what_goes_wrong_is_told_apart_and_the_rest_goes_on(
    tmp_path: Path, body: str, status: str, said: str
) -> None:
    if "signal" in said and os.name == "nt":
        pytest.skip("Windows has no signals")
    results = run_fake(tmp_path, body, seconds=20.0 if status != "timed out" else 3.0)
    assert [statuses for _, statuses in each(results)] == [{"conforms"}, {status}, {"conforms"}]
    (failed,) = (r for r in results if r.status == status)
    assert said in failed.item.detail
    assert exit_code(results) == (OK if status == "skipped" else BROKE)


def test_a_rejection_where_a_run_is_recorded_is_stale(tmp_path: Path) -> None:
    body = """
        if number == 2:
            error = {"type": "ValueError", "message": "lr too large"}
            recorded[case["id"]]["runs"]["torch-2.13"] = {"error": error}
        answer(case)
    """
    results = run_fake(tmp_path, body)
    (rejected,) = (r for r in results if r.status == "rejected")
    assert (rejected.case, rejected.item.name) == (CASES[1], "torch-2.13")
    assert rejected.item.stale == "was not rejected when recorded; now ValueError: lr too large"
    assert exit_code(results) == STALE


def test_an_adapter_that_always_fails_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="given up after 3 failures in a row"):
        run_fake(tmp_path, "sys.exit(1)", cases=[*CASES, "nadam.torch.defaults.f64"])


@pytest.mark.parametrize("hello", ["pass", "say({'hello': 3})", "import no_such_framework"])
def test_an_adapter_that_does_not_say_hello_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hello: str
) -> None:
    monkeypatch.setattr(live, "HELLO_SECONDS", 2.0)
    with pytest.raises(AdapterError):
        run_fake(tmp_path, "say({'id': case['id'], 'runs': {}})", hello=hello)


def test_stderr_is_never_judged(tmp_path: Path) -> None:
    results = run_fake(tmp_path, "sys.stderr.write('loss: nan\\n' * 10**5)\nanswer(case)")
    assert each(results) == [(case, {"conforms"}) for case in CASES]


def test_a_wrong_answer_of_an_adapter_is_a_violation(tmp_path: Path) -> None:
    body = """
        run = recorded[case["id"]]["runs"]["torch-2.13"]
        run["steps"]["2"]["param"] = run["steps"]["1"]["param"]
        answer(case)
    """
    results = run_fake(tmp_path, body)
    wrong = [r.item.name for r in results if r.status == "violation"]
    assert wrong.count("torch-2.13") == 3


def test_an_answer_where_a_rejection_is_recorded_is_stale(tmp_path: Path) -> None:
    body = f"""
        steps = {{str(t): {{"param": [p["bits"] for p in case["params"]]}} for t in case["record"]}}
        recorded[case["id"]]["runs"]["torch-2.13"] = {{"dtypes": {{}}, "steps": steps}}
        answer(case)
        assert case["id"] == {REFUSED!r}
    """
    results = run_fake(tmp_path, body, cases=[REFUSED])
    stale = {r.item.name: r.item.stale for r in results if r.item.stale}
    same = ("torch-2.13", "torch-2.13-foreach")  # recorded as one: what one does, the other does
    assert stale == dict.fromkeys(same, "is no longer rejected with RuntimeError")


def test_a_framework_that_is_not_installed_is_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = live.Implementation("math no_such_framework", "torch_nadam", "nadam/torch-2.13")
    monkeypatch.setitem(live.IMPLEMENTATIONS, "torch:NAdam", missing)
    result = refopt("check", "torch:NAdam", "--select", SHARP)
    assert result.exit_code == USAGE
    assert "no_such_framework is not installed in" in result.stderr
    assert "--python" in result.stderr


@pytest.mark.torch
def test_the_installed_torch_conforms_to_its_profiles() -> None:
    result = refopt("check", "torch:NAdam", "--select", "nadam.torch.sharp-*.f64", "--json")
    assert result.exit_code == OK, result.output
    _, *runs, footer = (json.loads(text) for text in result.stdout.splitlines())
    assert {x["run"] for x in runs} >= {
        f"torch-2.13{x}" for x in ("", "-foreach", "-differentiable")
    }
    assert {x["status"] for x in runs} == {"conforms"}
    assert footer["complete"] is True


@pytest.mark.torch
def test_the_installed_torch_conforms_to_its_profiles_of_rmsprop() -> None:
    result = refopt("check", "torch:RMSprop", "--select", "rmsprop.torch.momentum*", "--json")
    assert result.exit_code == OK, result.output
    _, *runs, footer = (json.loads(text) for text in result.stdout.splitlines())
    assert {x["run"] for x in runs} == {"torch-2.13", "torch-2.13-foreach"}
    assert {x["status"] for x in runs} == {"conforms"}
    assert footer["complete"] is True


@pytest.mark.parametrize("name", live.IMPLEMENTATIONS)
def test_what_can_run_live_has_an_adapter_and_recordings(name: str) -> None:
    adapter = live.IMPLEMENTATIONS[name].adapter
    assert (suite.golden.root() / "adapters" / f"{adapter}.py").is_file()
    found = list(live.cases(name))
    assert len(found) >= 5
    assert all(r.runs for r in found)


@pytest.mark.torch
def test_the_float32_product_of_the_installed_torch_is_named() -> None:
    select = ("--select", "nadam.torch.product-float32.f64")
    result = refopt("check", "torch:NAdam", *select, "--profile", "documented", "--json")
    assert result.exit_code == VIOLATED
    _, *runs, _ = (json.loads(text) for text in result.stdout.splitlines())
    for run in runs:
        assert (run["status"], run["first"]["quantity"]) == ("violation", "product")
    named = {run["run"]: run["named"] for run in runs}
    assert named["torch-2.13"] == named["torch-2.13-foreach"] == [["product=float32"]]
    assert named["torch-2.13-differentiable"] == [["coefficient=kept", "product=float32"]]


def test_time_for_a_case_is_counted_from_its_question(tmp_path: Path) -> None:
    started = time.monotonic()
    results = run_fake(tmp_path, "time.sleep(0.2)\nanswer(case)", seconds=30.0, cases=CASES[:1])
    assert each(results) == [(CASES[0], {"conforms"})]
    assert time.monotonic() - started < 30
