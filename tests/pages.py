"""Pages whose code is run, block after block, and whose printed output is what it prints.

A block of `python` runs in the namespace of its page, one of `sh` line by line, both in a folder of
their own. A block of `text` is what the block before it prints: a line "…" stands for any lines,
and "…" within one for any text. A block after a line that ends in "`name`:" is a file of that name.

    python tests/pages.py docs/tutorials/*.md

writes the output into the pages, and the pictures that their commands draw beside them.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import cupy_standin
import pytest
from typer.testing import CliRunner

from refopt import cli

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANYTHING = "…"


class Block(NamedTuple):
    """A fenced block."""

    language: str
    code: str
    file: str | None  # the name under which it is saved
    span: tuple[int, int]  # of `code` in the page


def blocks(text):
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip("\n").rpartition("\n")[2]
        name = re.search(r"`([\w.]+)`:$", before)
        found.append(Block(match[1], match[2], name and name[1], match.span(2)))
    return found


def joined(code):
    """Lines that a backslash continues are one."""
    return re.sub(r"\\\n\s*", "", code)


def command(line):
    """What one line of a shell prints; its exit code is 0, or what a comment states."""
    stated = re.search(r"# exits with (\d+)", line)
    program, *arguments = shlex.split(line, comments=True)
    if program == "refopt":
        result = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "80"})
        code, output = result.exit_code, result.output
    else:
        program = sys.executable if program == "python" else program
        if shutil.which(program) is None:
            pytest.skip(f"needs the program {program}")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
        ran = subprocess.run(
            [program, *arguments], capture_output=True, text=True, env=environment, check=False
        )
        code, output = ran.returncode, ran.stdout + ran.stderr
    assert code == (int(stated[1]) if stated else 0), f"{line}: {code}\n{output}"
    return output


def outputs(text):
    """(a block of output, what the block before it printed), as the page runs in this folder.

    It finds the examples there, and a stand-in for CuPy where there is no GPU.
    """
    cupy_standin.install()
    Path("examples").symlink_to(ROOT / "examples")
    namespace, printed, found = {"__name__": "page"}, "", []
    for block in blocks(text):
        if block.language == "text":
            found.append((block, printed))
        elif block.file:
            Path(block.file).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.code, "page", "exec"), namespace)
            printed = out.getvalue()
        elif block.language == "sh":
            printed = "".join(map(command, joined(block.code).splitlines()))
    return found


def trimmed(output):
    return "".join(f"{line.rstrip()}\n" for line in output.strip("\n").splitlines())


def matches(printed, output):
    """Whether `output` is what is printed, but for what "…" stands for."""
    lines = [
        r"(?:.*\n)*?"
        if line == ANYTHING
        else rf"{'.*'.join(map(re.escape, line.split(ANYTHING)))}\n"
        for line in printed.splitlines()
    ]
    pattern = "".join(lines)
    return re.fullmatch(pattern, trimmed(output)) is not None


def renewed(text):
    """The page with the output that its code prints now; what is abridged stays if it fits."""
    for block, output in reversed(outputs(text)):
        if not matches(block.code, output):
            start, end = block.span
            text = text[:start] + trimmed(output) + text[end:]
    return text


def figures(text):
    """(names of the pictures in a page, names under which its commands draw some)."""
    shown = re.findall(r"!\[[^\]]+\]\(figures/(\S+)\)", text)
    return shown, re.findall(r"^refopt plot .* --out (\S+)$", joined(text), flags=re.MULTILINE)


def numbers(text):
    """Each number in a text, without the digits of names, clauses, versions and exponents."""
    text = re.sub(r"\b[A-Z]\w+ \d[\d.]*", "", text)  # a release, as Keras 3
    return re.findall(r"(?<![\w.\-^/])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w/])", text)


def prose(text):
    """What is written outside of blocks, code spans and targets of links."""
    text = FENCE.sub("", text)
    return re.sub(r"``.*?``|`[^`]*`|\]\([^)]*\)|^#.*$", "", text, flags=re.MULTILINE)


def unsupported(text):
    """The numbers of the prose that occur in no block of the page."""
    code = "\n".join(block.code for block in blocks(text))
    known = {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", code)}
    return [number for number in numbers(prose(text)) if float(number) not in known]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        page = path.resolve()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            new = renewed(page.read_text(encoding="utf-8"))
            for name in figures(new)[0]:
                shutil.copyfile(name, page.parent / "figures" / name)
        page.write_text(new, encoding="utf-8")
