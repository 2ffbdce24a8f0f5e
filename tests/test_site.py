"""The site: built from spec/ and docs/ without a warning, whole, of nothing from elsewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import browser
import pytest
from typer.main import get_command

import refopt
from refopt import cli
from refopt.oracle.spec import RULES

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix().replace(".md", ".html")
    for folder in ("docs", "spec")
    for path in (ROOT / folder).rglob("*.md")
)
NOTEBOOKS = sorted(f"docs/notebooks/{p.stem}.html" for p in (ROOT / "docs/notebooks").glob("*.py"))
LOADED = {"link", "script", "img", "iframe", "source", "video", "audio", "object", "embed"}


class Seen(HTMLParser):
    """The references, names and mathematics of a page."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.links, self.names, self.tags = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.names |= {given[key] for key in ("id", "name") if given.get(key)}
        for key in ("href", "src", "data", "srcset"):
            if given.get(key):
                (self.loaded if tag in LOADED else self.links).append(given[key])


def outside(text, kind):
    """What a file would load from elsewhere."""
    if kind == ".html":
        seen = Seen(text)
        styles = re.findall(r"<style.*?</style>", text, re.DOTALL)
        found = [*seen.loaded, *(url for style in styles for url in urls(style))]
    else:
        found = urls(text)
    return [url for url in found if urlsplit(url).netloc and not url.startswith("data:")]


def urls(css):
    """What a style sheet loads."""
    return re.findall(r"""(?:url\(\s*|@import\s+)["']?([^"')\s;]+)""", css)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    pytest.importorskip("sphinx", reason="needs Sphinx, extra docs")
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, ROOT / "docs" / "build.py", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.fixture(scope="session")
def shown(site):
    with browser.chromium() as chromium, browser.served(site) as address:
        yield chromium, address


# -- the built files ------------------------------------------------------------------------------
@pytest.mark.slow
def test_every_text_of_spec_and_docs_is_a_page(site):
    assert [page for page in PAGES if not (site / page).is_file()] == []


@pytest.mark.slow
def test_every_page_can_be_reached(site):
    reached, todo = set(), ["index.html"]
    while todo:
        page = todo.pop()
        if page not in reached:
            reached.add(page)
            for link in Seen((site / page).read_text(encoding="utf-8")).links:
                target = urljoin(page, urldefrag(link).url)
                if not urlsplit(target).netloc and target.endswith(".html"):
                    todo.append(target)
    assert set(PAGES) <= reached


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert len(files) > len(PAGES)
    found = {
        path.relative_to(site).as_posix(): outside(path.read_text(encoding="utf-8"), path.suffix)
        for path in files
    }
    assert {path: urls for path, urls in found.items() if urls} == {}


@pytest.mark.slow
def test_every_link_within_the_site_leads_somewhere(site):
    pages = {p.relative_to(site).as_posix(): p for p in site.rglob("*.html")}
    seen = {name: Seen(path.read_text(encoding="utf-8")) for name, path in pages.items()}
    broken = []
    for page, found in seen.items():
        for link in (*found.links, *found.loaded):
            if urlsplit(link).scheme:
                continue
            target, anchor = urldefrag(urljoin(page, link))
            missing = not (site / unquote(urlsplit(target).path)).exists()
            if missing or (anchor and anchor not in seen[target or page].names):
                broken.append((page, link))
    assert broken == []


@pytest.mark.slow
def test_the_whole_matrix_is_a_page_and_no_download(site):
    links = Seen((site / "docs" / "matrix.html").read_text(encoding="utf-8")).links
    assert "../matrix.html" in links
    assert not [link for link in links if "_downloads" in link]
    kept = ROOT / "docs" / "matrix.html"
    assert (site / "matrix.html").read_bytes() == kept.read_bytes()


@pytest.mark.slow
def test_mathematics_is_mathml_and_no_latex_is_left(site):
    for page in ("spec/nadam.html", "spec/rmsprop.html", "spec/thor.html"):
        text = (site / page).read_text(encoding="utf-8")
        equations = re.findall(r"<math.*?</math>", text, re.DOTALL)
        assert len(equations) > 20
        assert [e for e in equations if "\\" in e or re.search("&(?![#\\w]+;)", e)] == []
        assert "$" not in re.sub(r"<(script|style|code|pre).*?</\1>", "", text, flags=re.DOTALL)


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site):
    names = Seen((site / "docs" / "api.html").read_text(encoding="utf-8")).names
    modules = {"layers", "schedules"}
    public = {f"refopt.{name}" for name in refopt.__all__ if name not in modules}
    public |= {
        f"refopt.{name}.{member}" for name in modules for member in getattr(refopt, name).__all__
    }
    assert public - names == set()


@pytest.mark.slow
def test_every_command_is_in_the_reference_with_its_help(site):
    seen = Seen((site / "docs" / "commands.html").read_text(encoding="utf-8"))
    names = {f"refopt-{name}" for name in get_command(cli.app).commands}
    assert len(names) > 5
    assert names <= seen.names


@pytest.mark.slow
def test_every_specification_of_a_rule_ends_with_its_code(site):
    pages = [p for p in (site / "spec").glob("*.html") if p.stem in RULES]
    assert {page.stem for page in pages} == set(RULES)
    for page in pages:
        text = re.sub("<[^>]+>", "", page.read_text(encoding="utf-8"))
        assert all(part in text for part in ("class Hyper(", "class State(", "def step("))


# -- in a browser ---------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_complains_and_none_is_wider_than_a_narrow_screen(shown, scheme):
    chromium, address = shown
    size = {"width": 360, "height": 740}
    with browser.page(chromium, address, viewport=size, color_scheme=scheme) as (page, wrong):
        wide = []
        for name in PAGES:
            page.goto(address + name)
            if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
                wide.append(name)
        assert wrong == []
        assert wide == []


@pytest.mark.slow
def test_a_notebook_shows_its_sliders_and_plots_in_both_schemes(shown):
    chromium, address = shown
    assert len(NOTEBOOKS) == 2
    for name in NOTEBOOKS:
        colors = set()
        for scheme, width in (("light", 1300), ("dark", 360)):
            given = {"viewport": {"width": width, "height": 740}, "color_scheme": scheme}
            with browser.page(chromium, address, **given) as (page, wrong):
                page.goto(address + name)
                page.wait_for_selector("table td")
                page.wait_for_selector("img[src^='data:image/png']")
                assert page.locator("marimo-slider").count() == 3
                assert page.locator("marimo-dropdown").count() == 3
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                colors.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
                assert wrong == []
        assert len(colors) == 2


CONTRAST = """() => {
  const parts = color => color.match(/[\\d.]+/g).slice(0, 3).map(x => {
    x = x / 255; return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4 })
  const light = c => { const [r, g, b] = parts(c); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  const behind = e => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor
      if (!/, 0\\)$/.test(color)) return color
    }
    return "rgb(255, 255, 255)"
  }
  return [...document.querySelectorAll("article p, article a, article code, math, pre span")]
    .filter(e => e.textContent.trim())
    .map(e => {
      const a = light(getComputedStyle(e).color), b = light(behind(e))
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.className, e.textContent]
    })
    .filter(([ratio]) => ratio < 4.5)
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(shown, scheme):
    chromium, address = shown
    with browser.page(chromium, address, color_scheme=scheme) as (page, _):
        faint = {}
        for name in PAGES:
            page.goto(address + name)
            faint[name] = page.evaluate(CONTRAST)
        assert {name: found for name, found in faint.items() if found} == {}


@pytest.mark.slow
def test_the_site_is_used_with_the_keyboard_alone(shown):
    chromium, address = shown
    with browser.page(chromium, address) as (page, wrong):
        page.goto(address)
        page.wait_for_url("**/docs/index.html")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # past the navigation, to the text
        assert page.evaluate("location.hash") == "#furo-main-content"
        page.goto(address + "docs/index.html")
        for _ in range(20):
            page.keyboard.press("Tab")
            focused = page.evaluate("document.activeElement.textContent.trim()")
            if focused == "A step by hand":
                break
        assert focused == "A step by hand"
        page.keyboard.press("Enter")
        page.wait_for_url("**/a-step-by-hand.html")
        assert page.inner_text("h1").startswith("A step by hand")
        assert wrong == []


@pytest.mark.slow
def test_a_button_changes_between_dark_and_light(shown):
    chromium, address = shown
    with browser.page(chromium, address, color_scheme="light") as (page, _):
        page.goto(address + "spec/nadam.html")
        colors = set()
        for _ in range(3):
            colors.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            page.locator(
                ".theme-toggle-content button, .content-icon-container button"
            ).first.click()
        assert len(colors) == 2


@pytest.mark.slow
def test_a_word_is_found_without_a_server(shown):
    chromium, address = shown
    with browser.page(chromium, address) as (page, wrong):
        page.goto(address + "search.html?q=nesterov")
        page.wait_for_selector("#search-results li a")
        assert "NAdam" in page.inner_text("#search-results")
        assert wrong == []


# -- the checks themselves ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ".html"),
        ('<link rel="stylesheet" href="//fonts.example/css">', ".html"),
        ("<style>@import 'https://x.example/a.css'</style>", ".html"),
        ("@font-face { src: url(https://x.example/f.woff2) }", ".css"),
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(text, kind):
    assert len(outside(text, kind)) == 1


def test_a_link_elsewhere_loads_nothing():
    assert outside('<a href="https://x.example/paper">paper</a><img src="a.png">', ".html") == []
