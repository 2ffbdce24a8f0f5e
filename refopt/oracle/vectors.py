"""Vectors (`refopt-vectors/1`): inputs with the true values of the documented rule, from balls.

Every step is the true step from what was stored before it, and every stored value the true one
rounded once, proven: both ends of its ball round alike. A vector states which clauses it exercises,
which alternatives it excludes (`kills`), and through which step it decides; all that is computed
here. `python -m refopt.oracle.vectors` is the only writer of `conformance/vectors`; with `--check`
it compares instead. It refuses a vector without clause, comment or power, one whose input is not
what it was, and an id that is retired.
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
from refopt.oracle import coverage, golden, inputs, power, refused, spec
from refopt.oracle.golden import BY_LAYER, MUST, Case, Schedule
from refopt.oracle.layered import Layered, judging
from refopt.oracle.replay import Memory, Replay
from refopt.oracle.verdict import OPEN
from refopt.typing import Profile

MAY = "may"
"""What an implementation owes a vector: its values, if it takes the case at all. It owes those of
`MUST`, and a refusal where the class is `golden.MUST_REJECT`."""

INPUTS: dict[str, dict[str, tuple[str, ...]]] = {
    "nadam": {
        "torch": (
            *("sharp-l2-psi-1", "sharp-l2-psi-0.3", "sharp-decoupled", "product-float32"),
            *("defaults", "decoupled-0.1.f32", "beta1-zero.f32"),
            *("maximize-l2", "maximize-decoupled", "none-alternating", "none-pause"),
            *("none-first-step", "groups-everything", "lr-changed.f32", "betas-changed.f32"),
            *("complex-l2-maximize.c64", "half-l2.bf16"),
        ),
    },
    "rmsprop": {
        "tf": (
            *("sharp", "momentum-lr-changed.f32"),
            *("defaults", "centered", "centered-momentum-lr-changed.f32"),
            *("none-in-turn", "clipnorm-drawn", "clipvalue-0.1", "global-drawn"),
            *("clipnorm-tiny", "global-tiny"),
            *("clipnorm-before-value", "ema", "ema-none-overwrite", "ema-order-overwrite"),
            *("schedule-exponential.f64", "schedule-piecewise.f64"),
            *("schedule-polynomial-cycle.f64", "schedule-inverse-time.f64"),
            *("schedule-cosine.f64", "schedule-restarts-even.f64", "schedule-momentum.f64"),
            *("sparse-repeated-momentum", "sparse-centered-momentum", "half-momentum.bf16"),
            "subnormal-square-epsilon.f32",
        ),
        "torch": ("weight-decay-l2", "maximize", "none-at-odd-steps.f64", "centered-constant-500"),
        "optax": ("bias-correction", "nesterov"),
    },
}
"""The recorded inputs that the vectors share: by optimizer and by whose they are, in float32 and
float64, or in the dtype that is named. Those of an optimizer of layers are made
(`refopt.oracle.inputs`)."""

ALLOWED = {"sparse", "complex", "half", "not-finite"}
"""What no implementation has to take (`power.features`)."""


def make(optimizer: str = "nadam") -> dict[str, Any]:
    """The document of an optimizer's vectors. Raises CaseError for a vector without power."""
    profile = spec.RULES[optimizer].PROFILES["documented"]
    made = map(golden.parse, inputs.sources(optimizer))
    cases = [_vector(optimizer, case) for case in (*_recorded(optimizer), *made)]
    cases += [_refusal(source, profile) for source in inputs.faulty(optimizer)]
    _lint(cases)
    return {
        "format": "refopt-vectors/1",
        "optimizer": optimizer,
        "license": "CC0-1.0",
        "provenance": {
            "arithmetic": f"python-flint {flint.__version__}, balls of {PRECISION} bits",
            "command": "python -m refopt.oracle.vectors",
            "profile": profile.name,
        },
        "cases": cases,
    }


def _recorded(optimizer: str) -> list[Case]:
    """The recorded cases that the vectors share."""
    chosen: set[str] = set()
    by_id = {r.case.id: r.case for r in golden.recordings(optimizer)}
    for family, names in INPUTS.get(optimizer, {}).items():
        for name in names:
            id_ = f"{optimizer}.{family}.{name}"
            wanted = {id_, f"{id_}.f32", f"{id_}.f64"} & by_id.keys()
            if not wanted:
                msg = f"vectors: no recording has the input {id_!r}"
                raise CaseError(msg)
            chosen |= wanted
    return [case for id_, case in by_id.items() if id_ in chosen]


def _lint(cases: list[dict[str, Any]]) -> None:
    """Refuse what no vector may be, and an id that is retired."""
    gone = golden.retired()
    for case in cases:
        for key, why in (("comment", "a reason"), ("clauses", "a clause"), ("kills", "power")):
            if not case[key]:
                msg = f"{case['id']}: a vector must have {why} ({key}), got {case[key]!r}"
                raise CaseError(msg)
        if case["id"] in gone:
            msg = f"{case['id']}: a vector must not have a retired id: {gone[case['id']]}"
            raise CaseError(msg)


def _kept(fresh: dict[str, Any], target: Path) -> None:
    """Refuse to change what a stored vector asks, or to drop one that is not retired."""
    if not target.exists():
        return
    new = {case["id"]: case for case in fresh["cases"]}
    gone = golden.retired()
    for case in json.loads(target.read_text(encoding="utf-8"))["cases"]:
        if case["id"] in gone:
            continue
        if case["id"] not in new:
            msg = f"{case['id']}: a vector that goes must be listed in retired.json"
            raise CaseError(msg)
        changed = [key for key in ASKED if case.get(key) != new[case["id"]].get(key)]
        if changed:
            msg = f"{case['id']}: a vector must keep its {changed[0]}; give the new one a new id"
            raise CaseError(msg)


ASKED = (
    *("hyper", "options", "groups", "changes", "params", "steps", "grads", "order", "layers"),
    *("statistics", "kind", "repair"),
)
"""What a vector asks for, which never changes."""


def _vector(optimizer: str, case: Case) -> dict[str, Any]:
    rule = spec.RULES[optimizer]
    profile = rule.PROFILES["documented"]
    dropped = ("profiles", "comment", "finalize", "mesh")
    source = {k: v for k, v in case.source.items() if k not in dropped}
    family = case.id.split(".")[1]
    source["id"] = case.id.replace(f".{family}.", ".vector.", 1)
    source["comment"] = case.comment
    steps, params = (_truth_of_layers if case.layers else _truth)(rule, case, profile)
    shown = next(iter(steps.values()))
    counters = {q: "float64" for q in (*rule.Clock._fields, "lr") if q in shown}
    source["runs"] = {profile.name: {"dtypes": counters, "steps": steps}}
    parsed = golden.parse(source)
    run = golden.parse_run(parsed, profile.name, source["runs"])
    allowed = ALLOWED & power.features(parsed, run) or "flush" in case.tags
    source["class"] = MAY if allowed else MUST
    verdict = judging(rule)(rule, parsed, run, profile).verdict()
    source["kills"] = [
        f"{axis}={name}" for axis, names in verdict.excluded.items() for name in names
    ]
    source["clauses"] = power.exercised(parsed, run, profile, [*verdict.excluded])
    through = power.decisive_through(parsed, params, profile, source["kills"])
    source |= {"decisive_through": through, "modes": power.modes(through)}
    return source


def _refusal(source: dict[str, Any], profile: Profile) -> dict[str, Any]:
    if why := refused.wrong(source):
        msg = f"{source['id']}: the documented object must refuse this alone; it {why}"
        raise CaseError(msg)
    return source | {
        "class": golden.MUST_REJECT,
        "clauses": refused.clauses(source),
        "kills": refused.kills(source, profile),
        "decisive_through": source["steps"],
        "modes": [OPEN],
    }


def _truth(rule: Any, case: Case, profile: Any) -> tuple[dict[str, Any], power.Shown]:
    """(recorded steps, parameters of all): the true step from what was stored, rounded once."""
    wanted, steps, params = case.source["record"], {}, {}
    double = FORMATS["float64"]
    with precision():
        replay = Replay(rule, case, profile, space=Space())
        memory = replay.start()
        for t in range(1, case.steps + 1):
            memory = _stored(replay.step(t, memory), case)
            params[t] = [[float(x) for x in array] for array in memory.params]
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
    return steps, params


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


def _truth_of_layers(rule: Any, case: Case, profile: Any) -> tuple[dict[str, Any], power.Shown]:
    """As `_truth`; a factor is one entry of a list over the layers that have any."""
    steps: dict[str, Any] = {}
    params: power.Shown = {}
    with precision():
        stored = Stored(rule, case, profile, space=MatrixSpace())
        for t, computed, memory in stored.steps():
            shown = steps[str(t)] = {}
            params[t] = [[float(x) for x in array.ravel()] for array in memory.params]
            for (_, q, i), x in computed.items():
                if q == "t":
                    shown.setdefault(q, []).append(_bits([x], "float64"))
                    continue
                dtype = case.dtypes[i]
                balls = stored.shown.get((t, q, i), _once(x, dtype))
                bits = _bits(balls.ravel(), dtype)
                array = {"dtype": dtype, "shape": [*balls.shape], "bits": bits}
                shown.setdefault(q, []).append(array if q in BY_LAYER else bits)
    return steps, params


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
    """Write the vectors, or compare; 0 the same or written, 1 differs, 2 refused."""
    parser = argparse.ArgumentParser(prog="python -m refopt.oracle.vectors", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the stored vectors")
    check = parser.parse_args(arguments).check
    try:
        return _compared() if check else _written()
    except CaseError as error:
        print(error, file=sys.stderr)
        return 2


def _compared() -> int:
    for optimizer in coverage.optimizers():
        document, target = make(optimizer), path(optimizer)
        if not target.exists() or target.read_text(encoding="utf-8") != text(document):
            print(f"{optimizer}: the vectors differ from {target.name}", file=sys.stderr)
            return 1
    return 0


def _written() -> int:
    for optimizer in coverage.optimizers():
        document, target = make(optimizer), path(optimizer)
        _kept(document, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(target.name + ".new")
        aside.write_text(text(document), encoding="utf-8", newline="\n")
        aside.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
