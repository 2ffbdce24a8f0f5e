"""Vectors (`refopt-vectors/1`): inputs with the true values of the documented rule, from balls.

Every step is the true step from what was stored before it, and every stored value the true one
rounded once, proven: both ends of its ball round alike. A vector states which clauses it decides
and which alternatives it excludes (`kills`), computed here. `python -m refopt.oracle.vectors` is
the only writer of `conformance/vectors`; with `--check` it compares instead.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import flint

from refopt.errors import CaseError
from refopt.interp.balls import PRECISION, Space, precision, rounded
from refopt.interp.formats import FORMATS, to_bits
from refopt.oracle import golden, spec
from refopt.oracle.golden import Case
from refopt.oracle.replay import Memory, Replay
from refopt.oracle.verdict import Judge

INPUTS = {
    "nadam": (
        *("sharp-l2-psi-1", "sharp-l2-psi-0.3", "sharp-decoupled", "product-float32"),
        *("two-variables", "three-variables", "constant-gradient", "alternating-signs"),
        *("small-beta2", "tiny-gradients", "defaults", "l2-0.1", "decoupled-0.1", "psi-0"),
        *("beta1-zero", "maximize", "maximize-l2", "maximize-decoupled", "none-alternating"),
        *("none-pause", "groups-everything", "lr-changed", "betas-changed"),
    )
}
"""The recorded inputs that the vectors share, by optimizer."""


def make(optimizer: str = "nadam") -> dict[str, Any]:
    """The document of an optimizer's vectors. Raises CaseError for a vector without power."""
    profile = spec.RULES[optimizer].PROFILES["documented"]
    chosen = {f"{optimizer}.torch.{name}.{d}" for name in INPUTS[optimizer] for d in ("f32", "f64")}
    found = [r.case for r in golden.recordings(optimizer) if r.case.id in chosen]
    if missing := chosen - {case.id for case in found}:
        msg = f"vectors: no recording has the input {min(missing)!r}"
        raise CaseError(msg)
    return {
        "format": "refopt-vectors/1",
        "optimizer": optimizer,
        "license": "CC0-1.0",
        "provenance": {
            "arithmetic": f"python-flint {flint.__version__}, balls of {PRECISION} bits",
            "command": "python -m refopt.oracle.vectors",
            "profile": profile.name,
        },
        "cases": [_vector(optimizer, case) for case in found],
    }


def _vector(optimizer: str, case: Case) -> dict[str, Any]:
    rule = spec.RULES[optimizer]
    profile = rule.PROFILES["documented"]
    source = {k: v for k, v in case.source.items() if k not in ("profiles", "comment")}
    source["id"] = case.id.replace(".torch.", ".vector.")
    source["comment"] = case.comment.replace("torch", "the documented rule")
    source["runs"] = {profile.name: {"dtypes": _COUNTERS, "steps": _truth(rule, case, profile)}}
    parsed = golden.parse(source)
    run = golden.parse_run(parsed, profile.name, source["runs"])
    verdict = Judge(rule, parsed, run, profile).verdict()
    if not verdict.excluded:
        msg = f"{source['id']}: a vector must exclude some alternative: {verdict}"
        raise CaseError(msg)
    axes = spec.load(optimizer)["axes"]
    source["kills"] = [
        f"{axis}={name}" for axis, names in verdict.excluded.items() for name in names
    ]
    source["clauses"] = sorted({axes[axis]["clause"] for axis in verdict.excluded})
    return source


_COUNTERS = {"product": "float64", "t": "float64"}


def _truth(rule: Any, case: Case, profile: Any) -> dict[str, Any]:
    """The recorded steps, each the true step from what was stored before it, rounded once."""
    wanted, steps = case.source["record"], {}
    with precision():
        replay = Replay(rule, case, profile, space=Space())
        memory = replay.start()
        for t in range(1, case.steps + 1):
            memory = _stored(replay.step(t, memory), case)
            if t in wanted:
                arrays = {
                    "param": memory.params,
                    "m": [s.m for s in memory.states],
                    "v": [s.v for s in memory.states],
                }
                steps[str(t)] = {
                    **{q: list(map(_bits, xs, case.dtypes)) for q, xs in arrays.items()},
                    "product": [_bits([c.product], "float64") for c in memory.clocks],
                    "t": [_bits([c.t], "float64") for c in memory.clocks],
                }
    return steps


def _stored(memory: Memory, case: Case) -> Memory:
    cast = Space().cast
    params = [cast(x, d, stored=d) for x, d in zip(memory.params, case.dtypes, strict=True)]
    states = [
        type(state)(*(cast(x, d, stored=d) for x in state))
        for state, d in zip(memory.states, case.dtypes, strict=True)
    ]
    product = FORMATS["float64"]
    clocks = [c._replace(product=rounded(c.product, product)) for c in memory.clocks]
    if not all(x.is_exact() for array in params for x in array):
        msg = f"{case.id}: a ball's two ends round to different numbers: raise the precision"
        raise CaseError(msg)
    return Memory(params, states, clocks)


def _bits(balls: Any, dtype: str) -> str:
    return to_bits([float(ball) for ball in balls], FORMATS[dtype])


def text(document: dict[str, Any]) -> str:
    """The one text of a document: sorted keys, one vector a line."""
    cases = ",\n".join(_compact(case) for case in document["cases"])
    head = _compact({key: value for key, value in document.items() if key != "cases"})
    return f'{{"cases":[\n{cases}\n],\n{head[1:]}\n'


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def path(optimizer: str) -> Path:
    """The file of an optimizer's vectors."""
    return golden.root() / "vectors" / optimizer / "documented.json"


def main(arguments: list[str] | None = None) -> int:
    """Write the vectors, or compare; 0 the same or written, 1 differs."""
    parser = argparse.ArgumentParser(prog="python -m refopt.oracle.vectors", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the stored vectors")
    check = parser.parse_args(arguments).check
    for optimizer in INPUTS:
        fresh, target = text(make(optimizer)), path(optimizer)
        if check:
            if not target.exists() or target.read_text(encoding="utf-8") != fresh:
                print(f"{optimizer}: the vectors differ from {target.name}", file=sys.stderr)
                return 1
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(target.name + ".new")
        aside.write_text(fresh, encoding="utf-8", newline="\n")
        aside.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
