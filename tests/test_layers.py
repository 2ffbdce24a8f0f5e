"""The layout is a claim about imports; this file parses every source and checks it.

Each check is a function from a source string to a list of findings, so that each can itself be
tested on a source that breaks it.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
COMMON = {"typing", "errors"}

# Which parts of refopt a part may import, besides itself.
ARROWS = {
    "__init__": {*COMMON, "layers", "optim", "schedules"},
    "typing": set(),
    "errors": set(),
    "rules": COMMON,
    "interp": COMMON,
    "parallel": COMMON,
    "problems": COMMON,
    "optim": {*COMMON, "rules", "interp", "parallel"},
    "bench": {"", *COMMON, "rules", "interp", "optim"},
    "layers": {"optim"},
    "schedules": {"optim"},
    "__main__": {"cli"},
    "oracle": {*COMMON, "rules", "interp", "optim"},
    "teach": {*COMMON, "rules", "interp", "problems", "optim", "oracle"},
    "cli": {
        "",
        *COMMON,
        "rules",
        "interp",
        "parallel",
        "problems",
        "optim",
        "oracle",
        "bench",
        "teach",
    },
}

ARRAYS = {"numpy", "array_api_compat"}
FRAMEWORKS = {"array_api_strict", "cupy", "cupyx", "dask", "jax", "torch"}
ANYWHERE, INSIDE = "anywhere", "inside functions"

# Which packages outside the standard library a part may import, and where.
PACKAGES = {
    "__init__": {ANYWHERE: set(), INSIDE: set()},
    "typing": {ANYWHERE: set(), INSIDE: set()},
    "errors": {ANYWHERE: set(), INSIDE: set()},
    "rules": {ANYWHERE: set(), INSIDE: set()},
    "interp": {
        ANYWHERE: ARRAYS,
        INSIDE: {*FRAMEWORKS, "autograd", "flint", "llvmlite", "ml_dtypes", "numba"},
    },
    "parallel": {ANYWHERE: ARRAYS, INSIDE: {"cupy", "jax", "mpi4py"}},
    "problems": {ANYWHERE: ARRAYS},
    "optim": {ANYWHERE: ARRAYS, INSIDE: {"safetensors"}},
    "bench": {
        ANYWHERE: ARRAYS,
        INSIDE: {"jax", "keras", "matplotlib", "numba", "optax", "threadpoolctl", "torch"},
    },
    "layers": {ANYWHERE: set(), INSIDE: set()},
    "schedules": {ANYWHERE: set(), INSIDE: set()},
    "__main__": {ANYWHERE: set(), INSIDE: set()},
    "oracle": {ANYWHERE: {*ARRAYS, "flint"}, INSIDE: {"jsonschema"}},
    "teach": {ANYWHERE: ARRAYS, INSIDE: {"flint", "matplotlib", "PIL"}},
    "cli": {ANYWHERE: {"typer", "rich"}, INSIDE: ARRAYS},
}
# Single files that may import more, anywhere.
EXTRA = {
    "interp/balls.py": {"flint"},
    "interp/bands.py": {"flint"},
    "interp/doubled.py": {"flint"},
    "interp/envelope.py": {"flint"},
    "oracle/report.py": {"rich"},
    "cli/plugin.py": {"pytest"},
}

# A framework and the packages that exist only on top of it.
FAMILIES = (
    {"torch", "timm"},
    {"jax", "jaxlib", "optax", "keras"},  # Keras 3 runs on a backend
    {"tensorflow", "keras", "tf_keras"},
    {"paddle"},
    {"mindspore"},
    {"chainer"},
    {"mlx"},
)
AFTER_PYTHON_3_8 = {"graphlib", "tomllib", "zoneinfo"}

ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.MatMult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
ARITHMETIC_MODULES = {"cmath", "decimal", "fractions", "math", "operator", "statistics"}
ARITHMETIC_BUILTINS = {"abs", "divmod", "pow", "round", "sum"}
ARITHMETIC_FUNCTIONS = {
    *("abs", "add", "clip", "divide", "exp", "log", "matmul", "maximum", "mean", "minimum"),
    *("multiply", "negative", "power", "prod", "reciprocal", "sqrt", "square", "subtract", "sum"),
    *("tensordot", "vecdot", "true_divide", "floor_divide", "remainder", "cumulative_sum"),
}


class Import(NamedTuple):
    """One imported name."""

    name: str  # dotted, as refopt.rules.nadam or numpy
    inside: bool  # of a function, or only for a type checker
    line: int


def imports(source: str, module: str = "") -> Iterator[Import]:
    """Every import in `source`, the source of `module` ("refopt.rules.nadam")."""

    def visit(node: ast.AST, inside: bool) -> Iterator[Import]:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(alias.name, inside, node.lineno)
            case ast.ImportFrom(module=target, names=names, level=level):
                base = ".".join(module.split(".")[:-level]) if level else ""
                origin = ".".join(part for part in (base, target) if part)
                for alias in names:
                    # `from refopt import rules` names a part; `from numpy import abs` does not
                    yield Import(
                        f"{origin}.{alias.name}" if origin == "refopt" else origin,
                        inside,
                        node.lineno,
                    )
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(name, inside, node.lineno)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                inside = True
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                inside = True
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    return visit(ast.parse(source), False)


def package_findings(source: str, path: str) -> list[str]:
    """What `source`, at `path` below refopt/ ("rules/nadam.py"), imports and may not."""
    part = path.split("/")[0].removesuffix(".py")
    module = "refopt." + path.removesuffix(".py").replace("/", ".")
    allowed, extra = PACKAGES[part], EXTRA.get(path, set())
    findings = []
    for name, inside, line in imports(source, module):
        root, *rest = name.split(".")
        if root == "refopt":
            target = rest[0] if rest else ""
            # a name that is no part is an object of refopt/__init__.py
            target = target if target in ARROWS else ""
            fine = target in {part, *ARROWS[part]}
        else:
            fine = (
                root in sys.stdlib_module_names
                or root in allowed[ANYWHERE] | extra
                or (inside and root in allowed[INSIDE])
            )
        if not fine:
            findings.append(f"{path}:{line}: {part} imports {name}")
    return findings


def is_text_or_list(node: ast.expr) -> bool:
    """Whether `node` is written as a string, list or tuple, so that an operator on it joins."""
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def arithmetic_findings(source: str, path: str) -> list[str]:
    """The arithmetic in `source`: operators, and functions that stand for one.

    Allowed are `+` where an operand is written as a string, list or tuple, and `%` and `*` whose
    left operand is (formatting, repetition).
    """
    findings = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                found = not (is_text_or_list(left) or is_text_or_list(right))
            case ast.BinOp(left=left, op=ast.Mod() | ast.Mult()):
                found = not is_text_or_list(left)
            case ast.AugAssign(op=ast.Add(), value=value):
                found = not is_text_or_list(value)
            case ast.BinOp(op=op) | ast.AugAssign(op=op):
                found = isinstance(op, ARITHMETIC)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found = not isinstance(operand, ast.Constant)
            case ast.Call(func=ast.Name(id=name)):
                found = name in ARITHMETIC_BUILTINS
            case ast.Call(func=ast.Attribute(attr="add"), args=[_]):
                found = False  # of a set
            case ast.Call(func=ast.Attribute(attr=name)):
                found = name in ARITHMETIC_FUNCTIONS
            case _:
                found = False
        if found:
            findings.append(f"{path}:{node.lineno}: arithmetic: {ast.unparse(node)}")
    findings += [
        f"{path}:{line}: arithmetic: import {name}"
        for name, _, line in imports(source)
        if name.split(".")[0] in ARITHMETIC_MODULES
    ]
    return findings


def adapter_findings(source: str, path: str, siblings: frozenset[str] = frozenset()) -> list[str]:
    """What keeps `source` from running alone, under Python 3.8, beside one framework."""
    try:
        ast.parse(source, feature_version=(3, 8))
    except SyntaxError as error:
        return [f"{path}:{error.lineno}: not Python 3.8: {error.msg}"]
    roots = {name.split(".")[0] for name, _, _ in imports(source)}
    findings = [f"{path}: not in Python 3.8: {root}" for root in sorted(roots & AFTER_PYTHON_3_8)]
    foreign = roots - sys.stdlib_module_names - siblings - {"numpy", "ml_dtypes"}
    if foreign and not any(foreign <= family for family in FAMILIES):
        findings.append(f"{path}: not one framework: {', '.join(sorted(foreign))}")
    return findings


def independent_findings(source: str, path: str) -> list[str]:
    """Where `source` looks at what it is to confirm."""
    return [
        f"{path}:{line}: imports {name}"
        for name, _, line in imports(source)
        if name.split(".")[0] == "refopt"
    ]


def read(folder: str) -> list[tuple[str, str]]:
    """Source and path, relative to `folder`, of every Python file there; at least one."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"no Python file in {folder}/"
    return [
        (file.read_text(encoding="utf-8"), file.relative_to(ROOT / folder).as_posix())
        for file in files
    ]


def test_parts_import_only_along_the_arrows() -> None:
    assert [finding for file in read("refopt") for finding in package_findings(*file)] == []


def test_optim_contains_no_arithmetic() -> None:
    assert [
        finding for file in read("refopt/optim") for finding in arithmetic_findings(*file)
    ] == []


def test_adapters_stand_alone_with_one_framework_under_python_3_8() -> None:
    files = read("conformance/adapters")
    siblings = frozenset(path.removesuffix(".py") for _, path in files)
    assert [found for file in files for found in adapter_findings(*file, siblings)] == []


def test_independent_references_never_import_refopt() -> None:
    assert [
        found for file in read("tests/independent") for found in independent_findings(*file)
    ] == []


def test_spec_contains_no_python() -> None:
    assert (ROOT / "spec").is_dir()
    assert list((ROOT / "spec").rglob("*.py")) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("typing.py", "import refopt.errors"),
        ("typing.py", "import numpy"),
        ("errors.py", "def f():\n    import numpy"),
        ("rules/nadam.py", "import numpy as np"),
        ("rules/nadam.py", "def f():\n    from torch import sqrt"),
        ("rules/nadam.py", "from refopt.interp import arrays"),
        ("rules/nadam.py", "from refopt import interp"),
        ("rules/nadam.py", "from ..interp import arrays"),
        ("rules/nadam.py", "from .. import interp"),
        ("rules/nadam.py", "import refopt"),
        ("interp/arrays.py", "from refopt.rules import nadam"),
        ("interp/arrays.py", "import torch"),
        ("interp/arrays.py", "import flint"),
        ("interp/arrays.py", "class A:\n    import jax"),
        ("interp/arrays.py", "try:\n    import cupy\nexcept ImportError:\n    cupy = None"),
        ("interp/arrays.py", "from importlib import import_module\nimport_module('dask.array')"),
        ("interp/arrays.py", "import importlib\nimportlib.import_module('numba')"),
        ("interp/arrays.py", "__import__('ml_dtypes')"),
        ("interp/arrays.py", "def f():\n    import tensorflow"),
        ("optim/nadam.py", "def f():\n    import torch"),
        ("optim/nadam.py", "import safetensors"),
        ("optim/nadam.py", "from refopt.oracle import verdict"),
        ("parallel/mpi.py", "import refopt.rules.nadam"),
        ("parallel/mpi.py", "import mpi4py"),
        ("problems.py", "from refopt.optim import NAdam"),
        ("oracle/verdict.py", "import rich"),
        ("oracle/verdict.py", "from refopt import cli"),
        ("oracle/verdict.py", "from refopt import NAdam"),
        ("oracle/runner.py", "def f():\n    import torch"),
        ("__init__.py", "from refopt.oracle import check"),
        ("__init__.py", "from .cli import main"),
        ("__init__.py", "import typer"),
        ("cli/check.py", "import torch"),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str) -> None:
    assert len(package_findings(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("rules/nadam.py", "import math\nfrom refopt.typing import Array\nfrom . import clip"),
        ("interp/arrays.py", "import numpy\ndef f():\n    import torch"),
        ("interp/arrays.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax"),
        ("interp/balls.py", "import flint"),
        ("interp/envelope.py", "from flint import arb\nfrom refopt.interp.balls import Ball"),
        ("optim/nadam.py", "from refopt.rules import nadam\nfrom refopt import interp, parallel"),
        ("oracle/report.py", "import rich.table\nfrom refopt.rules import nadam"),
        ("__init__.py", "from refopt.optim import NAdam\nfrom .optim import Parameter"),
        ("cli/check.py", "import rich, typer\nfrom refopt import oracle\nfrom refopt import NAdam"),
    ],
)
def test_an_allowed_import_is_not_found(path: str, source: str) -> None:
    assert package_findings(source, path) == []


@pytest.mark.parametrize(
    "source",
    [
        *(f"x = a {sign} b" for sign in ("+", "-", "*", "/", "//", "%", "**", "@")),
        *(f"a {sign}= b" for sign in ("+", "-", "*", "/", "//", "%", "**", "@")),
        "step += 1",
        "x = -g",
        "x = 2 * [0][0]",
        "x = 'a' - b",
        "x = xp.sqrt(v)",
        "x = np.multiply(a, b)",
        "x = xp.add(a, b)",
        "x = g.sum()",
        "x = sum(counts)",
        "x = pow(a, b)",
        "import math",
        "from operator import add",
        "def f():\n    return [lambda: p - g]",
    ],
)
def test_arithmetic_is_found(source: str) -> None:
    assert len(arithmetic_findings(source, "nadam.py")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "x = 'step ' + name",
        "x = f'{a}' + b + 'c'",
        "x = '%s' % name",
        "x = [None] * n",
        "x = [*a] + b",
        "x += [a]",
        "x = (1,) + shape",
        "x = a | b",
        "flags &= b",
        "x = -1",
        "def f(x: int | None) -> None: ...",
        "x = not a",
        "x = hyper.sum",
        "seen.add(name)",
    ],
)
def test_joining_text_and_lists_is_not_arithmetic(source: str) -> None:
    assert arithmetic_findings(source, "nadam.py") == []


@pytest.mark.parametrize(
    "source",
    [
        "import refopt",
        "import torch, jax",
        "import torch\ndef f():\n    import tensorflow",
        "import scipy",
        "import tomllib",
        "match x:\n    case 1: pass",
        "with (open('a') as a, open('b') as b): pass",
        "try: pass\nexcept* ValueError: pass",
        "type X = int",
        "def f[T](x: T): ...",
    ],
)
def test_an_adapter_that_does_not_stand_alone_is_found(source: str) -> None:
    assert len(adapter_findings(source, "torch_nadam.py")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import json, numpy, torch, timm.optim",
        "import jax, optax, numpy",
        "import json\nimport protocol\nif (n := 1): pass\ndef f(a, /): pass",
    ],
)
def test_an_adapter_that_stands_alone_is_not_found(source: str) -> None:
    assert adapter_findings(source, "torch_nadam.py", frozenset({"protocol"})) == []


@pytest.mark.parametrize(
    "source", ["import refopt", "def f():\n    from refopt.rules import nadam"]
)
def test_an_independent_reference_that_looks_is_found(source: str) -> None:
    assert len(independent_findings(source, "nadam.py")) == 1
