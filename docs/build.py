"""Build the site into a folder: `python docs/build.py build/site`."""

import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

DOCS = Path(__file__).parent


def main(target: Path) -> int:
    """Build; the exit code."""
    with tempfile.TemporaryDirectory() as doctrees:
        options = ["--fail-on-warning", "--keep-going", "--quiet", "--jobs", "auto"]
        where = ["-c", str(DOCS), "-d", doctrees, str(DOCS.parent), str(target)]
        code = build_main([*options, "-b", "html", *where])
    if code == 0:
        print(f"open {target / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
