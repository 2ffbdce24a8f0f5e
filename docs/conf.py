"""The site: spec/ and docs/, read in place by Sphinx with MyST; mathematics becomes MathML.

    make site

writes build/site.
"""

import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

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
    return convert(latex, display=display)


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """An equation within a line."""
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    """An equation of its own, which scrolls alone where the screen is narrow."""
    equation = mathml(node.astext(), "block")
    self.body.append(f'<div class="math" tabindex="0">{equation}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
