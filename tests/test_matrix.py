"""The matrix: what a cell says, and the page in a real browser."""

import json
import math
import re
import shutil
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from typer.testing import CliRunner

from refopt import cli
from refopt.oracle import golden, live, matrix, report, spec, suite
from refopt.oracle.matrix import OPEN, OTHER, OUT, OWN, SAME

ROOT = Path(__file__).parent.parent
SHARP = "nadam.*.sharp-l2-psi-1.f64"


def refopt(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "new" / "folder"
    result = refopt("matrix", path, "--recorded", "--select", SHARP, "--jobs", "1")
    assert result.exit_code == report.OK, result.output
    return path


@pytest.fixture(scope="module")
def data(folder: Path) -> Any:
    return embedded((folder / "matrix.html").read_text(encoding="utf-8"))


def embedded(text: str) -> Any:
    """What a page shows, as JSON."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(found)


def cells(optimizer: Any) -> Iterator[tuple[Any, str, str, Any]]:
    for row in optimizer["rows"]:
        for axis, by_dtype in row["cells"].items():
            for dtype, cell in by_dtype.items():
                yield row, axis, dtype, cell


def judged(name: str, profile: str = "torch-2.13", change: Any = None) -> matrix.Matrix:
    """The matrix of one recorded run of torch."""
    (recording,) = (r for r in golden.recordings("nadam") if r.case.id == name)
    run = recording.runs["torch-2.13"]
    run = run._replace(steps=change(run.steps)) if change else run
    recording = recording._replace(runs={"torch-2.13": run})
    source = matrix.Source("", (recording,))
    found = matrix.Matrix()
    for task in suite.tasks([recording], profile, numpy=False, every=True):
        found.add(source, task, suite.work(task))
    return found


def test_a_cell_says_what_a_release_chooses_and_whether_that_is_documented() -> None:
    row = judged("nadam.torch.sharp-l2-psi-1.f64").rows["nadam"]["torch-2.13"]
    epsilon, product = (row.cells[axis]["float64"] for axis in ("epsilon", "product"))
    assert (epsilon.state, epsilon.does) == (SAME, ["outside"])
    assert epsilon.excluded.keys() == {"inside", "before-correction"}
    assert (product.state, product.does, product.should) == (OTHER, ["float32"], ["exact"])
    assert "exact" in product.excluded


def test_what_no_run_excludes_is_undecided_and_no_statement() -> None:
    cell = judged("nadam.torch.defaults.f32").rows["nadam"]["torch-2.13"].cells["counter"]
    assert cell["float32"].state == OPEN
    assert cell["float32"].undecided
    assert not cell["float32"].excluded


def test_a_choice_that_differs_is_no_difference_where_the_documented_one_is_not_excluded() -> None:
    (recording,) = (
        r for r in golden.recordings("rmsprop") if r.case.id == "rmsprop.keras-legacy.sharp.f64"
    )
    found = matrix.Matrix()
    for task in matrix.tasks(matrix.Source("", (recording,)), 1.0):
        found.add(matrix.Source("", (recording,)), task, suite.work(task))
    given = found.rows["rmsprop"]["keras-legacy-2.9"].cells["given"]["float64"]
    assert given.does == ["zero-epsilon"]
    assert "as-given" in given.undecided
    assert given.state == OPEN


def test_what_is_chosen_for_other_options_is_no_alternative_to_the_choice() -> None:
    found = matrix.Matrix()
    wanted = {"rmsprop.tf.centered.f64", "rmsprop.tf.defaults.f64"}
    recordings = tuple(r for r in golden.recordings("rmsprop") if r.case.id in wanted)
    assert len(recordings) == 2
    source = matrix.Source("", recordings)
    for task in matrix.tasks(source, 1.0):
        found.add(source, task, suite.work(task))
    cell = found.rows["rmsprop"]["tf-2.9-experimental"].cells["variance"]["float64"]
    assert {*cell.does} == {"cumulative", "uncentered"} <= cell.excluded.keys()
    assert cell.against.keys() == cell.excluded.keys() - {*cell.does}


def test_a_run_outside_marks_the_axis_that_explains_it() -> None:
    found = judged("nadam.torch.product-float32.f64", "documented")
    row = found.rows["nadam"]["torch-2.13"]
    assert {axis for axis, cells in row.cells.items() if cells["float64"].state == OUT} == {
        "product"
    }
    badge = matrix.badge("nadam", "torch-2.13", row)
    assert (badge["message"], badge["color"]) == ("1 of 1 do not conform", "red")
    (drawing,) = matrix.drawings(found)
    curve = matrix.draw(drawing)["product"]
    shares = [share for *_, share in curve["points"] if share is not None]
    assert max(map(abs, shares)) > 1


def test_a_curve_has_the_run_inside_its_envelope_and_the_alternatives_outside() -> None:
    found = judged("nadam.torch.sharp-l2-psi-1.f64")
    (drawing,) = matrix.drawings(found)
    curve = matrix.draw(drawing)["epsilon"]
    assert curve["quantity"] == "param"
    assert curve["points"]
    assert all(abs(share) <= 1 for *_, share in curve["points"])
    for points in curve["others"].values():
        away = [
            abs(other[2] - own[2]) / own[3]
            for own, other in zip(curve["points"], points, strict=True)
        ]
        assert max(away) > 1e6


def test_a_point_lies_at_a_share_of_the_radius_from_the_middle() -> None:
    assert matrix._between(1, 2.0, 1.0, 4.0) == (1, 2.0, 2.5, 1.5, -1 / 3)
    assert matrix._between(1, 2.0, 2.0, 2.0) == (1, 2.0, 2.0, 0.0, None)
    assert matrix._between(1, 2.0, -math.inf, math.inf) == (1, 2.0, None, None, None)


def test_what_is_not_finite_is_drawn_as_nothing() -> None:
    assert matrix._rounded(matrix.Point(3, math.nan, None, None, None)) == [3, *[None] * 4]
    assert matrix._rounded(matrix.Point(1, 1 / 3, 0.25, 1e-9, -0.123456)) == [
        *(1, 0.333333333, 0.25, 1e-9, -0.1235),
    ]


def test_every_file_is_written_and_says_the_same(folder: Path, data: Any) -> None:
    lines = [json.loads(line) for line in (folder / "matrix.jsonl").read_text().splitlines()]
    assert [lines[0]["kind"], lines[-1]["kind"]] == ["header", "footer"]
    assert lines[-1]["complete"]
    runs = [line for line in lines if line["kind"] == "run"]
    (nadam,) = data["optimizers"]
    for row in nadam["rows"]:
        mine = [line for line in runs if line["run"] == row["name"]]
        assert row["counts"] == {"conforms": len(mine)}
        badge = json.loads((folder / "badges" / f"nadam-{row['name']}.json").read_text())
        assert badge == {
            "schemaVersion": 1,
            "label": f"nadam, {row['name']}",
            "message": f"{len(mine)} of {len(mine)} conform",
            "color": "brightgreen",
        }
    tests = ElementTree.parse(folder / "junit.xml").getroot().iter("testcase")
    assert len([*tests]) == len(runs) + sum(line["kind"] == "comparison" for line in lines)
    text = (folder / "matrix.md").read_text()
    row = r"^\| torch-2.13 \| torch 2.13.0\+cpu \| as recorded \| `torch-2.13`[^|]* \| 1 \|"
    assert re.search(row, text, re.M)
    assert all(row["likely"] for row in nadam["rows"] if row["name"] != OWN)
    assert re.search(r"^- \*\*torch-2.13\*\*, product: `float32` \(NAD-6.2b\)", text, re.M)


def test_the_page_needs_nothing_else(folder: Path) -> None:
    text = (folder / "matrix.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?:https?:)?//""", text)
    assert "{{" not in text


def test_every_cell_that_decides_has_a_witness_and_a_curve(data: Any) -> None:
    (nadam,) = data["optimizers"]
    found = [cell for _, _, _, cell in cells(nadam) if cell["excluded"]]
    assert found
    assert all(cell["witness"] in data["cases"] and cell["curve"]["points"] for cell in found)


def test_what_is_not_installed_is_judged_as_recorded_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spec, "RULES", {"nadam": spec.RULES["nadam"]})
    row = live.IMPLEMENTATIONS["torch:NAdam"]._replace(packages="no_such_framework")
    monkeypatch.setattr(live, "IMPLEMENTATIONS", {"torch:NAdam": row})
    (torch,) = (
        source
        for source in matrix.sources(SHARP, [], run=True)
        if source.recordings and source.name != OWN
    )
    assert torch.python == ""
    assert "no_such_framework is not installed in" in torch.reason


def test_an_interpreter_that_is_named_is_the_first_to_be_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REFOPT_ENVS", str(tmp_path))
    built = tmp_path / "torch-2_13" / "bin" / "python"
    built.parent.mkdir(parents=True)
    built.touch()
    assert str(built) in live.interpreters("torch:NAdam")
    monkeypatch.setattr(spec, "RULES", {"nadam": spec.RULES["nadam"]})
    row = live.IMPLEMENTATIONS["torch:NAdam"]._replace(packages="json")
    monkeypatch.setattr(live, "IMPLEMENTATIONS", {"torch:NAdam": row})
    named = shutil.which("python3")
    assert named
    found = [s for s in matrix.sources(SHARP, [named], run=True) if s.name == "torch:NAdam"]
    assert [source.python for source in found] == [named]


def test_two_that_run_the_same_recordings_are_two_columns() -> None:
    first, second = (
        matrix.Source("keras:Nadam", (), "python"),
        matrix.Source("keras-torch:Nadam", (), "python", beside=True),
    )
    assert [first.row("keras-3"), second.row("keras-3")] == ["keras-3", "keras-3, keras-torch"]


def test_an_adapter_that_breaks_is_a_row_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 7\n")
    python.chmod(0o755)
    monkeypatch.setattr(live, "starter", lambda *a: lambda: live.Adapter([str(python)], 1.0))
    (recording, *_) = golden.recordings("nadam")
    source = matrix.Source("torch:NAdam", (recording,), str(python))
    (task,) = matrix.tasks(source, 1.0)
    found = matrix.Matrix()
    found.add(source, task, suite.work(task))
    ((name, row),) = found.rows["nadam"].items()
    assert name == next(iter(recording.runs))
    assert dict(row.tally.counts) == {"crashed": 1}
    assert "exited with 7" in row.notable[0].item.detail


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["new", "--select", "no.such.case"], report.NOTHING, "no case matches 'no.such.case'"),
        (["file"], report.USAGE, "FOLDER must be one that can be written to, got"),
    ],
)
def test_what_is_misused_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spec, "RULES", {"nadam": spec.RULES["nadam"]})
    Path("file").touch()
    result = refopt("matrix", *arguments)
    assert result.exit_code == code
    assert said in " ".join(result.output.split())


def test_every_framework_names_the_environment_that_its_recordings_were_made_in() -> None:
    environments = tomllib.loads((golden.root() / "environments.toml").read_text())
    for row in live.IMPLEMENTATIONS.values():
        assert row.environment in environments


def test_the_copy_that_is_kept_is_whole_and_says_with_what_and_when_it_was_made() -> None:
    text = (ROOT / "docs" / "matrix.html").read_text(encoding="utf-8")
    kept = embedded(text)
    made = r"refopt \d+\.\d+\.\d+, suite [0-9a-f]{12}, \d{4}-\d\d-\d\d"
    assert re.fullmatch(made, kept["made"])
    assert kept["made"] in (ROOT / "docs" / "matrix.md").read_text(encoding="utf-8")
    rows = {o["name"]: {row["name"]: row for row in o["rows"]} for o in kept["optimizers"]}
    recorded = {o: {r for x in golden.recordings(o) for r in x.runs} for o in rows}
    assert {*rows} == {path.name for path in (golden.root() / "golden").iterdir()}
    for optimizer, names in recorded.items():
        assert names <= rows[optimizer].keys()
    versions = {row["made_by"] for o in rows.values() for row in o.values()}
    assert all(re.search(r" \d+\.\d+", version) for version in versions)
    for optimizer in kept["optimizers"]:
        for _, axis, _, cell in cells(optimizer):
            assert {*cell["does"], *cell["excluded"]} <= spec.RULES[optimizer["name"]].AXES[
                axis
            ].keys()


# -- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as started:
        yield started


@pytest.fixture
def page(chromium: Any, folder: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    home, scheme = (folder / "matrix.html").as_uri(), getattr(request, "param", "light")
    size = {"width": 1200, "height": 900}
    with browser.page(chromium, home, color_scheme=scheme, viewport=size) as (opened, wrong):
        opened.goto(home)
        yield opened
        assert wrong == []


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_a_mark_opens_with_diagnosis_plot_and_vector_by_keys_alone(page: Any) -> None:
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    label = "document.activeElement.getAttribute('aria-label')"
    for _ in range(40):  # past the names of the implementations
        if page.evaluate("document.activeElement.classList.contains('chip')"):
            break
        page.keyboard.press("Tab")
    first = page.evaluate(label)
    assert first.startswith("refopt, ")
    page.keyboard.press("ArrowRight")
    right = page.evaluate(label)
    page.keyboard.press("ArrowDown")
    down = page.evaluate(label)
    assert len({first, right, down}) == 3
    assert down.split(", ")[0] == right.split(", ")[0]
    page.keyboard.press("ArrowUp")
    assert page.evaluate(label) == right
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    dialog.wait_for()
    name, axis, dtype = right.partition(":")[0].split(", ")
    assert dialog.locator("h2").inner_text() == f"{name} · {axis} · {dtype}"
    assert dialog.locator("svg").count() == 2
    assert dialog.locator("svg circle").count() > 2
    text = dialog.inner_text()
    assert "it does" in text
    assert "Excluded" in text
    assert "refopt show nadam." in text
    page.keyboard.press("Escape")
    page.locator("dialog:not([open])").wait_for(state="attached")
    assert page.evaluate(label) == right  # where one was before


def test_an_address_opens_its_cell_and_an_unknown_one_nothing(page: Any, folder: Path) -> None:
    home = (folder / "matrix.html").as_uri()
    page.goto(f"{home}#nadam/torch-2.13/product/float64")
    page.locator("dialog[open]").wait_for()
    assert "otherwise than documented" in page.locator("dialog").inner_text()
    page.goto(f"{home}#nadam/torch-2.13")
    page.wait_for_function("document.querySelector('#title').textContent === 'torch-2.13'")
    assert "as recorded" in page.locator("dialog").inner_text()
    page.goto(f"{home}#nadam/nothing/at/all")
    page.locator("dialog:not([open])").wait_for(state="attached")


def test_links_lead_to_what_is_there(page: Any) -> None:
    links = page.locator("a")
    assert links.count() > 0
    for n in range(links.count()):
        target = links.nth(n).get_attribute("href")
        assert page.locator(target).count() == 1


def test_the_filter_hides_other_columns(page: Any) -> None:
    page.locator("#filter").fill("foreach")
    shown = page.locator("thead button:visible").all_inner_texts()
    assert shown == ["torch-2.13-foreach"]


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_colours_follow_the_scheme_and_text_is_readable(page: Any) -> None:
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    contrast = """(selector) => {
        const light = css => {
            const [r, g, b] = css.match(/[\\d.]+/g).map(Number).map(x => x / 255)
                .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        let node = document.querySelector(selector), behind = node;
        const ink = light(getComputedStyle(node).color);
        while (/rgba\\(0, 0, 0, 0\\)/.test(getComputedStyle(behind).backgroundColor))
            behind = behind.parentElement;
        const paper = light(getComputedStyle(behind).backgroundColor);
        return [paper, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)];
    }"""
    for selector in ("body", ".soft", ".chip.same", ".chip.other", ".chip.open", ".chip.out", "a"):
        paper, ratio = page.evaluate(contrast, selector)
        assert (paper < 0.2) == dark, selector
        assert ratio >= 4.5, selector  # WCAG 2.2, 1.4.3


def test_nothing_but_the_table_scrolls_sideways_on_a_narrow_screen(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    width = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(width)
    page.locator(".chip[data-address]").nth(2).click()
    page.locator("dialog[open]").wait_for()
    assert page.evaluate(width)
    assert page.evaluate("dialog.scrollWidth <= dialog.clientWidth")
