"""Golden recordings (`refopt-golden/1`): what real releases produced, as typed values."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from refopt.errors import CaseError
from refopt.interp.formats import COMPLEX, FORMATS, from_bits

FORMATS_READ = ("refopt-golden/1", "refopt-vectors/1")

Values = list[float]  # exact values of one array, flat; complex as pairs


class Sparse(NamedTuple):
    """A gradient of some rows of a parameter's first axis, which may repeat."""

    values: Values
    indices: tuple[int, ...]


class Schedule(NamedTuple):
    """A learning rate that is a schedule: its name and what it was made with."""

    name: str
    config: dict[str, Any]


Gradient = Values | Sparse | None


class Case(NamedTuple):
    """The input of one run; hyperparameters by name, gradients by step."""

    id: str
    comment: str
    tags: list[str]
    hyper: dict[str, Any]  # float, (value, dtype) for a tensor, or a Schedule
    options: dict[str, int]
    groups: list[tuple[list[int], dict[str, Any]]]  # (parameters, overrides)
    changes: dict[int, dict[str, Any]]  # step -> hyperparameters set just before it
    dtypes: list[str]  # dtype of each parameter's real parts
    shapes: list[list[int]]
    params: list[Values]
    steps: int
    grads: list[list[Gradient]]  # cycled
    source: dict[str, Any]  # the JSON object itself
    orders: dict[int, list[int]] = {}  # noqa: RUF012  # step -> in which order parameters are given

    def gradients(self, t: int) -> list[Gradient]:
        """The gradients of step `t`, from 1; one entry a parameter."""
        return self.grads[(t - 1) % len(self.grads)]


class Run(NamedTuple):
    """What one implementation did with a case."""

    profile: str
    steps: dict[int, dict[str, list[Values | None]]]  # step -> quantity -> parameter -> values
    dtypes: dict[str, list[str]]  # quantity -> dtype for each parameter
    error: dict[str, str] | None = None
    finalized: list[Values | None] | None = None  # parameters after finalize_variable_values


class Recording(NamedTuple):
    """A case with its runs, and where it came from."""

    case: Case
    runs: dict[str, Run]
    provenance: dict[str, Any]


def root() -> Path:
    """The folder `conformance`: in place in a checkout, else inside the installed package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "conformance", package / "_data" / "conformance"):
        if folder.is_dir():
            return folder
    msg = "the conformance suite is missing: reinstall refopt, or run from a checkout"
    raise CaseError(msg)


def recordings(optimizer: str = "nadam", folder: Path | None = None) -> Iterator[Recording]:
    """Every recording of an optimizer, file by file."""
    for path in sorted(((folder or root() / "golden") / optimizer).glob("*.json")):
        yield from load(path)


def expected() -> dict[tuple[str, str], str]:
    """Runs that no profile explains, as (case, run), each with the reason."""
    document = tomllib.loads((root() / "expected.toml").read_text(encoding="utf-8"))
    if document.get("format") != "refopt-expected/1":
        msg = f"expected.toml: format must be 'refopt-expected/1', got {document.get('format')!r}"
        raise CaseError(msg)
    return {(d["case"], d["run"]): d["reason"] for d in document["deviation"]}


def load(path: Path) -> Iterator[Recording]:
    """The recordings of one file."""
    document = json.loads(path.read_text())
    if document.get("format") not in FORMATS_READ:
        msg = f"{path.name}: format must be one of {FORMATS_READ}, got {document.get('format')!r}"
        raise CaseError(msg)
    for source in document["cases"]:
        case = parse(source)
        runs = {name: parse_run(case, name, source["runs"]) for name in source["runs"]}
        yield Recording(case, runs, document["provenance"])


def parse(source: dict[str, Any]) -> Case:
    """A case from its JSON object."""
    try:
        dtypes = [COMPLEX.get(p["dtype"], p["dtype"]) for p in source["params"]]
        everything = list(range(len(dtypes)))
        return Case(
            id=source["id"],
            comment=source["comment"],
            tags=source.get("tags", []),
            hyper=_hyper(source["hyper"]),
            options=source.get("options", {}),
            groups=[
                (group["params"], _hyper(group.get("hyper", {})))
                for group in source.get("groups", [{"params": everything}])
            ],
            changes={int(t): _hyper(h) for t, h in source.get("changes", {}).items()},
            dtypes=dtypes,
            shapes=[p["shape"] for p in source["params"]],
            params=[
                from_bits(p["bits"], FORMATS[d])
                for p, d in zip(source["params"], dtypes, strict=True)
            ],
            steps=source["steps"],
            grads=[
                [_gradient(g, d) for g, d in zip(step, dtypes, strict=True)]
                for step in source["grads"]
            ],
            source={key: value for key, value in source.items() if key != "runs"},
            orders={int(t): order for t, order in source.get("order", {}).items()},
        )
    except (KeyError, TypeError, ValueError) as error:
        msg = f"case {source.get('id')!r}: {error!r}"
        raise CaseError(msg) from error


def parse_run(case: Case, name: str, runs: dict[str, Any]) -> Run:
    """One run of a case from the JSON object of its runs."""
    source = runs[name]
    while "same" in source:
        source = runs[source["same"]]
    stated = source.get("dtypes", {})
    quantities = {q for step in source.get("steps", {}).values() for q in step}
    dtypes = {
        q: [COMPLEX.get(stated[q], stated[q])] * len(case.dtypes) if q in stated else case.dtypes
        for q in quantities
    }
    steps = {
        int(t): {q: _values(values, dtypes[q]) for q, values in step.items()}
        for t, step in source.get("steps", {}).items()
    }
    finalized = source.get("finalized")
    return Run(
        name,
        dict(sorted(steps.items())),
        dtypes,
        source.get("error"),
        None if finalized is None else _values(finalized, case.dtypes),
    )


def _gradient(source: Any, dtype: str) -> Gradient:
    if isinstance(source, dict):
        return Sparse(from_bits(source["values"], FORMATS[dtype]), tuple(source["indices"]))
    return None if source is None else _decoded(source, dtype)


def _values(bits: list[str | None], dtypes: list[str]) -> list[Values | None]:
    return [None if b is None else _decoded(b, d) for b, d in zip(bits, dtypes, strict=True)]


def _decoded(bits: str, dtype: str) -> Values:
    if dtype in ("int32", "int64"):  # step counters of some releases
        return [float(int(bits, 16))]
    return from_bits(bits, FORMATS[dtype])


def _hyper(source: dict[str, Any]) -> dict[str, Any]:
    return {name: _hyperparameter(x) for name, x in source.items()}


def _hyperparameter(x: Any) -> Any:
    if isinstance(x, str):
        return float(x)
    if "schedule" in x:
        read = {
            key: [float(y) for y in value] if isinstance(value, list) else float(value)
            for key, value in x["config"].items()
        }
        return Schedule(x["schedule"], read)
    return from_bits(x["bits"], FORMATS[x["dtype"]])[0], x["dtype"]
