"""Pinned environments: the interpreters that have the releases which recordings were made with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from refopt.errors import AdapterError
from refopt.oracle import golden, live


class Environment(NamedTuple):
    """A table of conformance/environments.toml."""

    name: str
    python: str  # minor version
    requirements: tuple[str, ...]  # exact pins, everything that is installed
    megabytes: int  # on disk
    home: Path

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return self.home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def text(self) -> str:
        """What a whole environment is stamped with, as conformance/make.py does."""
        return "\n".join([f"# python {self.python}", *self.requirements]) + "\n"

    @property
    def whole(self) -> bool:
        """Whether it was built to its end, of these requirements."""
        stamp = self.home / "requirements.txt"
        return stamp.exists() and stamp.read_text(encoding="utf-8") == self.text


def of(name: str) -> Environment:
    """The environment of an implementation."""
    table = live.IMPLEMENTATIONS[name].environment
    path = golden.root() / "environments.toml"
    described = tomllib.loads(path.read_text(encoding="utf-8"))[table]
    return Environment(
        table,
        described["python"],
        tuple(described["requirements"]),
        described["megabytes"],
        live.folder() / table,
    )


def build(environment: Environment) -> Iterator[str]:
    """Build an environment; says what was installed last, one requirement after another.

    Raises AdapterError where no Python of its version is found, or a requirement has no wheel.
    """
    base = _python(environment.python)
    shutil.rmtree(environment.home, ignore_errors=True)
    _run([base, "-m", "venv", str(environment.home)])
    python = str(environment.interpreter)
    for requirement in pins(environment):
        _run([python, "-m", "pip", "install", "--quiet", "--no-deps", requirement])
        yield requirement
    (environment.home / "requirements.txt").write_text(environment.text, encoding="utf-8")


def pins(environment: Environment) -> list[str]:
    """The requirements without options of pip."""
    return [x for x in environment.requirements if not x.startswith("-")]


def _python(version: str) -> str:
    """A CPython of a minor version: this one, or `pythonX.Y` on the path."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    if (found := shutil.which(f"python{version}")) is None:
        msg = f"Python {version} is required, and python{version} was not found on PATH"
        raise AdapterError(msg)
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        msg = f"{' '.join(command)} failed: {said[-1] if said else done.returncode}"
        raise AdapterError(msg)
