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
import numpy as np

from refopt.errors import CaseError
from refopt.interp.balls import PRECISION, MatrixSpace, Space, precision, rounded
from refopt.interp.formats import FORMATS, to_bits
from refopt.oracle import golden, inputs, spec
from refopt.oracle.golden import BY_LAYER, Case, Schedule
from refopt.oracle.layered import Layered, judging
from refopt.oracle.replay import Memory, Replay

INPUTS: dict[str, dict[str, tuple[str, ...]]] = {
    "nadam": {
        "torch": (
            *("sharp-l2-psi-1", "sharp-l2-psi-0.3", "sharp-decoupled", "product-float32"),
            *("two-variables", "three-variables", "constant-gradient", "alternating-signs"),
            *("small-beta2", "tiny-gradients", "defaults", "l2-0.1", "decoupled-0.1", "psi-0"),
            *("beta1-zero", "maximize", "maximize-l2", "maximize-decoupled", "none-alternating"),
            *("none-pause", "groups-everything", "lr-changed", "betas-changed"),
        ),
    },
    "rmsprop": {
        "tf": (
            *("sharp", "epsilon-0.001", "momentum", "momentum-lr-changed", "two-variables"),
            *(
                "alternating-signs",
                "tiny-gradients",
                "epsilon-zero",
                "defaults",
                "centered",
                "centered-rho-0.99",
            ),
            *("centered-momentum-lr-changed", "centered-two-variables", "none-in-turn"),
            *("clipnorm-drawn", "clipvalue-0.1", "global-drawn", "clipnorm-before-value"),
            *("ema", "ema-none-overwrite", "ema-order-overwrite", "schedule-exponential"),
            *("schedule-restarts-even", "schedule-polynomial-cycle", "schedule-momentum"),
            *("sparse-repeated", "sparse-repeated-momentum", "sparse-centered-momentum"),
        ),
        "torch": ("weight-decay-l2", "maximize", "none-at-odd-steps", "centered-constant-500"),
        "optax": ("bias-correction", "nesterov"),
    },
}
"""The recorded inputs that the vectors share: by optimizer and by whose they are. Those of an
optimizer of layers are made (`refopt.oracle.inputs`)."""


def make(optimizer: str = "nadam") -> dict[str, Any]:
    """The document of an optimizer's vectors. Raises CaseError for a vector without power."""
    profile = spec.RULES[optimizer].PROFILES["documented"]
    found = _recorded(optimizer) if optimizer in INPUTS else map(golden.parse, inputs.sources())
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


def _recorded(optimizer: str) -> list[Case]:
    """The recorded cases that the vectors share."""
    chosen = {
        f"{optimizer}.{family}.{name}.{dtype}"
        for family, names in INPUTS[optimizer].items()
        for name in names
        for dtype in ("f32", "f64")
    }
    found = [r.case for r in golden.recordings(optimizer) if r.case.id in chosen]
    missing = chosen - {case.id for case in found}
    if names := {name.rpartition(".")[0] for name in missing} - {c.id[:-4] for c in found}:
        msg = f"vectors: no recording has the input {min(names)!r}"
        raise CaseError(msg)
    return found


def _vector(optimizer: str, case: Case) -> dict[str, Any]:
    rule = spec.RULES[optimizer]
    profile = rule.PROFILES["documented"]
    dropped = ("profiles", "comment", "finalize", "mesh")
    source = {k: v for k, v in case.source.items() if k not in dropped}
    family = case.id.split(".")[1]
    source["id"] = case.id.replace(f".{family}.", ".vector.", 1)
    source["comment"] = case.comment
    source["tags"] = [tag for tag in case.tags if tag != "flush"]
    steps = (_truth_of_layers if case.layers else _truth)(rule, case, profile)
    shown = next(iter(steps.values()))
    counters = {q: "float64" for q in (*rule.Clock._fields, "lr") if q in shown}
    source["runs"] = {profile.name: {"dtypes": counters, "steps": steps}}
    parsed = golden.parse(source)
    run = golden.parse_run(parsed, profile.name, source["runs"])
    verdict = judging(rule)(rule, parsed, run, profile).verdict()
    if not verdict.excluded:
        msg = f"{source['id']}: a vector must exclude some alternative: {verdict}"
        raise CaseError(msg)
    axes = spec.load(optimizer)["axes"]
    source["kills"] = [
        f"{axis}={name}" for axis, names in verdict.excluded.items() for name in names
    ]
    source["clauses"] = sorted({axes[axis]["clause"] for axis in verdict.excluded})
    return source


def _truth(rule: Any, case: Case, profile: Any) -> dict[str, Any]:
    """The recorded steps, each the true step from what was stored before it, rounded once."""
    wanted, steps = case.source["record"], {}
    double = FORMATS["float64"]
    with precision():
        replay = Replay(rule, case, profile, space=Space())
        memory = replay.start()
        for t in range(1, case.steps + 1):
            memory = _stored(replay.step(t, memory), case)
            if t in wanted:
                shown = memory.states[0]._fields
                columns = {q: [getattr(state, q) for state in memory.states] for q in shown}
                columns["param"] = memory.params
                steps[str(t)] = {
                    q: list(map(_bits, arrays, case.dtypes))
                    for q, arrays in columns.items()
                    if any(x is not None for x in arrays)
                }
                numbers = {
                    q: [getattr(clock, q) for clock in memory.clocks]
                    for q in rule.Clock._fields
                    if q in rule.OBSERVABLE
                }
                if isinstance(case.hyper["lr"], Schedule):
                    numbers["lr"] = [replay.hyper(t, {}).lr for _ in memory.params]
                for q, column in numbers.items():
                    steps[str(t)][q] = [
                        _bits([rounded(replay.num(x), double)], "float64") for x in column
                    ]
    return steps


class Stored(Layered):
    """The true step from what was stored before it; what is stored is rounded once."""

    def _shown(self, t: int, quantity: str, i: int, computed: Any) -> Any:
        self.shown[t, quantity, i] = _once(computed, self.case.dtypes[i])
        return self.shown[t, quantity, i]

    _passed = _shown


def _once(balls: Any, dtype: str) -> Any:
    """Balls rounded once, proven: both ends round alike."""
    result = np.empty(np.shape(balls), dtype=object)
    result.ravel()[:] = [rounded(ball, FORMATS[dtype]) for ball in np.ravel(balls)]
    if not all(x.is_exact() for x in result.ravel()):
        msg = "a ball's two ends round to different numbers: raise the precision"
        raise CaseError(msg)
    return result


def _truth_of_layers(rule: Any, case: Case, profile: Any) -> dict[str, Any]:
    """As `_truth`; a factor is one entry of a list over the layers that have any."""
    steps: dict[str, Any] = {}
    with precision():
        stored = Stored(rule, case, profile, space=MatrixSpace())
        for t, computed, _ in stored.steps():
            shown = steps[str(t)] = {}
            for (_, q, i), x in computed.items():
                if q == "t":
                    shown.setdefault(q, []).append(_bits([x], "float64"))
                    continue
                dtype = case.dtypes[i]
                balls = stored.shown.get((t, q, i), _once(x, dtype))
                bits = _bits(balls.ravel(), dtype)
                array = {"dtype": dtype, "shape": [*balls.shape], "bits": bits}
                shown.setdefault(q, []).append(array if q in BY_LAYER else bits)
    return steps


def _stored(memory: Memory, case: Case) -> Memory:
    cast = Space().cast
    params = [cast(x, d, stored=d) for x, d in zip(memory.params, case.dtypes, strict=True)]
    states = [
        type(state)(*(x if x is None else cast(x, d, stored=d) for x in state))
        for state, d in zip(memory.states, case.dtypes, strict=True)
    ]
    double, num = FORMATS["float64"], Space.numbers
    clocks = [type(c)(*(rounded(num(x), double) for x in c)) for c in memory.clocks]
    if not all(x.is_exact() or not x.is_finite() for array in params for x in array):
        msg = f"{case.id}: a ball's two ends round to different numbers: raise the precision"
        raise CaseError(msg)
    return Memory(params, states, clocks)


def _bits(balls: Any, dtype: str) -> str | None:
    return None if balls is None else to_bits([float(ball) for ball in balls], FORMATS[dtype])


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
    for optimizer in spec.RULES:
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
