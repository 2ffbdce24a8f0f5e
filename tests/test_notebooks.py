"""docs/notebooks: they run as scripts, and show the numbers of refopt for whatever is picked."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refopt.oracle.spec import RULES
from refopt.teach.trace import as_json, trace

pytest.importorskip("marimo", reason="needs marimo, extra teach")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


@each
def test_a_notebook_runs_as_a_script(path, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, path], cwd=tmp_path, env=environment, check=False)
    assert ran.returncode == 0


@each
def test_each_profile_and_dtype_that_can_be_picked_is_shown(path):
    app, rule = loaded(path), RULES[path.stem]
    _, first = app.run()
    picked = first["picked"]
    assert set(first["profile_ui"].options) == set(rule.PROFILES) - {"documented"}
    for profile in first["profile_ui"].options:
        for dtype in first["dtype_ui"].options:
            changed = {**picked, "against": profile, "dtype": dtype, "steps": 4}
            _, shown = app.run(defs={"picked": changed})
            assert as_json(shown["table"]) == as_json(trace(path.stem, **changed))  # with NaN
            assert [len(figure.axes[0].lines) > 1 for figure in shown["figures"]] == [True] * 2


@each
def test_every_slider_moves_a_number(path):
    app = loaded(path)
    _, first = app.run()
    picked = {**first["picked"], "steps": 6}
    _, before = app.run(defs={"picked": picked})
    for name, value in picked["given"].items():
        given = {**picked["given"], name: value / 2}
        _, after = app.run(defs={"picked": {**picked, "given": given}})
        assert after["table"] != before["table"]
        assert after["shown"] != before["shown"]


@each
def test_the_site_links_a_notebook(path):
    text = (ROOT / "docs" / "notebooks" / "index.md").read_text(encoding="utf-8")
    assert f'href="{path.stem}.html"' in text
