"""The site: spec/ and docs/, read in place by Sphinx with MyST; mathematics becomes MathML.

    make site

writes build/site.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import marimo
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator
from typer.main import get_command
from typer.testing import CliRunner

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from refopt import cli  # noqa: E402  # of this checkout

project = "refopt"
copyright = "the refopt authors; code Apache-2.0, vectors and recordings CC0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# The source folder is the root of the repository, so that spec/ and docs/ link each other as files.
root_doc = "docs/index"
include_patterns = ["docs/**.md", "spec/**.md"]

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = "refopt"
html_static_path = ["static"]
html_css_files = ["refopt.css"]
html_extra_path = ["matrix.html"]  # beside index.html: docs/matrix.html is the page of matrix.md
html_show_sphinx = False
html_copy_source = False
html_additional_pages = {"index": "home.html"}
templates_path = ["templates"]
html_math_renderer = "mathml"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def mathml(latex: str, display: str) -> str:
    """The MathML of an equation; `split` is the converter's name for `aligned`."""
    for end in ("begin", "end"):
        latex = latex.replace(rf"\{end}{{aligned}}", rf"\{end}{{split}}")
    # as high as a superscript a prime is a speck
    return convert(latex, display=display).replace(
        "<mi>&#x02032;</mi>", '<mo mathsize="100%">&#x02032;</mo>'
    )


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """An equation within a line."""
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    """An equation of its own, which scrolls alone where the screen is narrow."""
    equation = mathml(node.astext(), "block")
    self.body.append(f'<div class="math" tabindex="0">{equation}</div>')
    raise nodes.SkipNode


def with_rule(app: Sphinx, page: str, source: list[str]) -> None:
    """A specification ends with its mathematics as code."""
    folder, _, name = page.partition("/")
    if folder == "spec" and (ROOT / "refopt" / "rules" / f"{name}.py").exists():
        source[0] += "\n## The rule as code\n"
        for part in ("Hyper", "State", "Quantities", "step"):
            path = f"../refopt/rules/{name}.py"
            source[0] += f"\n```{{literalinclude}} {path}\n:pyobject: {part}\n```\n"


def with_help(app: Sphinx, page: str, source: list[str]) -> None:
    """The page of the commands ends with what each says of itself."""
    if page == "docs/commands":
        for name in get_command(cli.app).commands:
            said = CliRunner().invoke(cli.app, [name, "--help"], env={"COLUMNS": "80"}).output
            source[0] += f"\n## refopt {name}\n\n```text\n{said.strip()}\n```\n"


def with_matrix(app: Sphinx, page: str, source: list[str]) -> None:
    """A link to the file of the matrix leads to it, instead of a copy to download."""
    if page == "docs/matrix":
        source[0] = source[0].replace(
            "[matrix.html](matrix.html)", '<a href="../matrix.html">matrix.html</a>'
        )


MARIMO = [sys.executable, "-m", "marimo", "export", "html", "--no-include-code"]
CDN = re.compile(r"https://cdn\.jsdelivr\.net/npm/@marimo-team/frontend@[^/]+/dist")
UNUSED = re.compile(r"""<link rel="preload"[^>]* as="image" />""")


def export(app: Sphinx) -> None:
    """Run the notebooks, beside everything else."""
    app.running = {
        path.stem: subprocess.Popen([*MARIMO, path], stdout=subprocess.PIPE)
        for path in sorted((ROOT / "docs" / "notebooks").glob("*.py"))
    }


def exported(app: Sphinx, exception: Exception | None) -> None:
    """What the notebooks gave, beside marimo's own files instead of those of its CDN."""
    target = Path(app.outdir) / "docs" / "notebooks"
    package = Path(marimo.__file__).parent / "_static"
    skipped = shutil.ignore_patterns("*.md", "index.html")
    shutil.copytree(package, target / "marimo", ignore=skipped, dirs_exist_ok=True)
    for name, process in app.running.items():
        html, _ = process.communicate()
        if process.returncode:
            msg = f"docs/notebooks/{name}.py: marimo exits with {process.returncode}"
            raise ExtensionError(msg)
        page = UNUSED.sub("", CDN.sub("marimo", html.decode()))
        (target / f"{name}.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", export)
    app.connect("source-read", with_rule)
    app.connect("source-read", with_help)
    app.connect("source-read", with_matrix)
    app.connect("build-finished", exported)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
