"""Debian's Chromium, or another that is installed, driven by Playwright; pages come from a server
on this machine, and what a page asks of any other is refused and recorded."""

import contextlib
import http.server
import os
import shutil
import threading
from functools import partial

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def program():
    """The path of a Chromium; the test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"needs a browser, one of {', '.join(NAMES)}, on the path")
    return found


@contextlib.contextmanager
def chromium():
    """A headless browser of Playwright's."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright for Python")
    # a container's superuser has no sandbox
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=arguments)
        yield browser
        browser.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def served(folder):
    """The address at which a folder is served."""
    handler = partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def page(browser, address, **context):
    """(an empty page, what went wrong in it so far): messages, errors, and requests elsewhere."""
    wrong = []
    with contextlib.closing(browser.new_context(**context)) as opened:
        shown = opened.new_page()
        shown.on("console", lambda m: m.type in ("error", "warning") and wrong.append(m.text))
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.on("requestfailed", lambda request: wrong.append(request.url))

        def guard(route):
            url = route.request.url
            if url.startswith((address, "data:", "blob:")):
                route.continue_()
            else:
                wrong.append(url)
                route.abort()

        shown.route("**/*", guard)
        yield shown, wrong
