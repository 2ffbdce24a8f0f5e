"""The pytest plugin of refopt: its options. What they ask for is in refopt.cli.plugin.

It lies outside the package, so that a pytest without them imports nothing of refopt.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the command line, and of pyproject.toml."""
    group = parser.getgroup("refopt", "conformance of optimizers (refopt)")
    group.addoption(
        "--refopt-impl",
        action="append",
        default=[],
        metavar="IMPL",
        help="Judge an implementation, one test a vector: py:MODULE:FUNCTION, 'cmd:PROGRAM …' or "
        "a framework, as for refopt check; may be repeated.",
    )
    group.addoption(
        "--refopt-optimizer",
        default=None,
        metavar="NAME",
        help="What py: or cmd: is: nadam, rmsprop, sgd or thor (default: the function's name).",
    )
    group.addoption(
        "--refopt-select",
        default="*",
        metavar="GLOB",
        help="Only the vectors whose id matches.",
    )
    group.addoption(
        "--refopt-profile",
        default=None,
        metavar="NAME",
        help="Judge against this profile instead of each run's own.",
    )
    group.addoption(
        "--refopt-python",
        default=None,
        metavar="PATH",
        help="Run the implementation in this interpreter (default: the one that runs pytest).",
    )
    group.addoption(
        "--refopt-timeout",
        default=60.0,
        type=float,
        metavar="SECONDS",
        help="Give it so long for an answer (default: 60).",
    )
    group.addoption(
        "--refopt-seed",
        default=None,
        type=int,
        metavar="N",
        help="The seed of the cases that are drawn beside the vectors (default: a new one).",
    )
    parser.addini("refopt_impl", "As --refopt-impl, one a line.", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Judge only where an implementation is named."""
    if named := [*config.getini("refopt_impl"), *config.getoption("refopt_impl")]:
        from refopt.cli import plugin

        config.pluginmanager.register(plugin.Vectors(config, named), "refopt-vectors")
