"""docs/tutorials: every block runs, every output is what is printed, every number is in one."""

import contextlib
import re
import shutil
import sys
from pathlib import Path

import matplotlib
import pages
import pytest
from matplotlib.testing.compare import compare_images
from PIL import Image

TUTORIALS = sorted((pages.ROOT / "docs" / "tutorials").glob("*.md"))


INSTALL = """\
python3 -m venv .venv
. .venv/bin/activate
pip install -e '.[teach]'
"""


def named(path):
    return path.stem


@pytest.mark.parametrize("path", TUTORIALS, ids=named)
def test_a_tutorial_prints_what_it_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = path.read_text(encoding="utf-8")
    shown = pages.outputs(text)
    assert shown
    for block, output in shown:
        assert pages.matches(block.code, output), f"{block.code}is not\n{pages.trimmed(output)}"
    for name in pages.figures(text)[0]:
        assert_drawn(path.parent / "figures" / name, tmp_path / name)


def assert_drawn(stored, drawn):
    """A picture is what its command draws, pixel by pixel, by the release that drew it."""
    with Image.open(stored) as image:
        made_by = image.text["Software"]
    assert made_by.startswith("Matplotlib")
    if f"version{matplotlib.__version__}," in made_by:
        copy = shutil.copy(stored, drawn.with_stem(f"stored-{drawn.stem}"))
        assert compare_images(copy, drawn, tol=0) is None


def test_another_picture_is_told_apart(tmp_path):
    folder = TUTORIALS[0].parent / "figures"
    drawn = Path(shutil.copy(folder / "spectra.png", tmp_path / "paths.png"))
    with pytest.raises((AssertionError, ValueError)):
        assert_drawn(folder / "learning.png", drawn)


def test_every_stored_picture_is_shown():
    stored = {path.name for path in (TUTORIALS[0].parent / "figures").iterdir()}
    assert stored == {n for path in TUTORIALS for n in pages.figures(path.read_text("utf-8"))[0]}


@pytest.mark.parametrize("path", TUTORIALS, ids=named)
def test_every_number_of_the_prose_stands_in_a_block(path):
    assert pages.unsupported(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", TUTORIALS, ids=named)
def test_every_block_is_run_or_is_output(path):
    found = pages.blocks(path.read_text(encoding="utf-8"))
    assert {b.language for b in found} <= {"python", "sh", "shell", "text", "math"}
    installed = [b.code for b in found if b.language == "shell"]
    assert installed == ([INSTALL] if path.stem == "start" else [])


def test_the_gpu_tutorial_prints_the_same_on_numpy_by_changing_one_line(tmp_path, monkeypatch):
    text = (pages.ROOT / "docs" / "tutorials" / "on-a-gpu.md").read_text(encoding="utf-8")
    changed, lines = re.subn(
        r"^import cupy as xp  # on a CPU: (.*)$", r"\1", text, flags=re.MULTILINE
    )
    assert lines == 1
    monkeypatch.chdir(tmp_path)
    pairs = [(b, output) for b, output in pages.outputs(changed) if "cupy" not in b.code]
    assert len(pairs) > 2
    assert [pages.matches(block.code, output) for block, output in pairs] == [True] * len(pairs)


@pytest.mark.parametrize("path", TUTORIALS, ids=named)
def test_every_picture_is_drawn_by_a_command_of_its_page(path):
    text = path.read_text(encoding="utf-8")
    shown, drawn = pages.figures(text)
    assert shown == drawn
    assert text.count("![") == len(shown)


def test_pictures_of_different_pages_have_different_names():
    drawn = [name for path in TUTORIALS for name in pages.figures(path.read_text("utf-8"))[1]]
    assert len(set(drawn)) == len(drawn) > 0


PAGE = """\
# 7 pages

Save as `two.py`:

```python
two = 2
```

```python
from two import two
print(two + 1)
```

```text
3
```

The sum is 3.
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("two", None)


def test_a_wrong_output_is_found_and_renewed(folder):
    wrong = PAGE.replace("```text\n3", "```text\n4")
    ((block, output),) = pages.outputs(wrong)
    assert not pages.matches(block.code, output)
    Path("examples").unlink()
    assert pages.renewed(wrong) == PAGE


def test_a_number_without_a_block_is_found():
    assert pages.unsupported(PAGE) == []
    assert pages.unsupported(PAGE.replace("is 3", "is 5, not 0.25")) == ["5", "0.25"]


def test_an_abridged_output_keeps_its_order(folder):
    assert pages.matches("a\n…\nd\n", "a\nb\nc\nd\n")
    assert not pages.matches("a\n…\nb\nd\n", "a\nb\nc\nd\n")


def test_a_command_that_fails_fails_the_page(folder):
    with pytest.raises(AssertionError, match="refopt list --nothing: 2"):
        pages.command("refopt list --nothing")
    with contextlib.suppress(FileNotFoundError):
        assert pages.command("refopt list --nothing  # exits with 2")
