"""Inputs drawn anew in each run: who knows the vectors by heart knows nothing of these.

A case follows from its id alone, `nadam.drawn.SEED-KIND-ATTEMPT.f32`; of the attempts the first is
asked that needs no more than the implementation takes. Nothing is recorded: the envelope judges.

Nothing is drawn where a right implementation has a choice: no gradient is NaN or infinite, none of
16 bits is beyond three decades, subnormal numbers may become zero where they are met, and
epsilon is above 0, since a decay of 0 times a parameter that is NaN is NaN, or nothing. No learning
rate is 0, which hides everything.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refopt.errors import CaseError
from refopt.interp.formats import FORMATS, to_bits
from refopt.oracle import golden, inputs
from refopt.oracle.golden import Case, Run

LAST = 99
"""The last attempt. Of the second half each has one parameter, and each other one nothing that may
be left out."""

DISTINCT = 61
"""Different elements of a large array; a prime: each is met at every place of a register."""

Draw = Callable[[random.Random], Any]


class Kind(NamedTuple):
    """What is drawn of a kind of case."""

    what: str
    shapes: Callable[[random.Random], list[list[int]]]
    steps: tuple[int, int]  # least and most
    decades: tuple[float, float] = (-1.5, 0.5)
    zeros: float = 0.0  # share of zeros of both signs
    alike: bool = False  # an element repeats itself along the array


def _odd(source: random.Random) -> list[list[int]]:
    return [source.choice(([n := 2 * source.randrange(1024, 1365) + 1], [n // 3 | 1, 3]))]


KINDS = {
    "shapes": Kind(
        "Parameters of different shapes, one of them empty.",
        lambda source: source.sample([[], [1], [2, 3], [0], [17]], 5),
        (2, 4),
        zeros=0.1,
    ),
    "large": Kind("Some thousand elements, an odd number of them.", _odd, (2, 2), alike=True),
    "grid": Kind(
        "Two axes or three.",
        lambda source: [[source.randint(1, 4) for _ in range(source.choice((2, 3)))]],
        (2, 4),
        zeros=0.1,
    ),
    "long": Kind("More steps than any vector has with its numbers.",
        lambda source: [[source.randint(1, 3)]], (21, 36)),
    "edges": Kind("Zeros of both signs, huge and tiny numbers.",
        lambda source: [source.choice(([], [7], [3, 2]))], (3, 5), (-30.0, 30.0), zeros=0.3),
}  # fmt: skip
"""What is asked once in each run, by name."""


def _among(*values: str) -> Draw:
    return lambda source: source.choice(values)


def _between(low: float, high: float) -> Draw:
    return lambda source: f"{source.uniform(low, high):.3g}"


def _decades(low: float, high: float) -> Draw:
    return lambda source: f"{10 ** source.uniform(low, high):.3g}"


def _mostly(draw: Draw, *edges: str) -> Draw:
    """An edge of the range once in five times."""
    return lambda source: source.choice(edges) if source.random() < 0.2 else draw(source)


EPSILON = _decades(-2, 0)
"""Large enough that the scale of a gradient shows."""
DECAY = _mostly(_between(0.0, 0.999), "0.0", "0.9", "0.999")

HYPER: dict[str, dict[str, Draw]] = {
    "nadam": {
        **{"lr": _decades(-3, 0), "beta1": DECAY, "beta2": DECAY, "epsilon": EPSILON},
        **{"momentum_decay": _mostly(_decades(-3, 1), "0.0", "0.004")},
    },
    "rmsprop": {
        **{"lr": _decades(-3, 0), "rho": DECAY, "epsilon": EPSILON},
        **{"momentum": _mostly(_between(0.0, 1.0), "0.0", "0.9")},
    },
    "sgd": {"lr": _decades(-3, 0), "momentum": _mostly(_between(0.0, 1.0), "0.0", "0.9")},
}
"""What every case has of an optimizer."""

MORE: dict[str, dict[str, tuple[float, Draw]]] = {
    "nadam": {
        "weight_decay": (0.5, _decades(-3, 0)),
        "maximize": (0.3, _among("1")),
        "decoupled_weight_decay": (0.4, _among("1")),
    },
    "rmsprop": {
        "centered": (0.4, _among("1")),
        "weight_decay": (0.15, _decades(-3, 0)),
        "maximize": (0.1, _among("1")),
        "nesterov": (0.1, _among("1")),
        "clipvalue": (0.15, _decades(-2, 0)),
        "clipnorm": (0.15, _decades(-2, 0)),
        "global_clipnorm": (0.15, _decades(-2, 0)),
        "use_ema": (0.15, _among("1")),
    },
    "sgd": {
        "dampening": (0.3, _between(0.0, 0.9)),
        "weight_decay": (0.3, _decades(-3, 0)),
        "nesterov": (0.3, _among("1")),
        "maximize": (0.3, _among("1")),
    },
}
"""What an attempt may have beside it, and how often."""

OPTIONS = {"maximize", "decoupled_weight_decay", "centered", "nesterov", "use_ema"}
NORMS = {"clipnorm", "global_clipnorm"}
"""What makes an element depend on the others."""


class Drawn(NamedTuple):
    """What an id says."""

    optimizer: str
    seed: int
    kind: str
    attempt: int
    dtype: str


_ENDINGS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
_ID = re.compile(r"(\w+)\.drawn\.(\d+)-([a-z][a-z-]*)-(\d+)\.(\w+)").fullmatch


def parsed(id_: str) -> Drawn | None:
    """What the id of a drawn case says; None of another."""
    if (found := _ID(id_)) is None or found[5] not in _ENDINGS:
        return None
    return Drawn(found[1], int(found[2]), found[3], int(found[4]), _ENDINGS[found[5]])


def kinds(optimizer: str) -> list[str]:
    """The kinds of cases of an optimizer; of THOR its nets. None where no ranges are stated."""
    if optimizer == "thor":
        return [row[0] for row in inputs.ROWS]
    return [*KINDS] if optimizer in HYPER else []


def number(optimizer: str) -> int:
    """How many cases are asked at most."""
    return 2 if optimizer == "thor" else len(kinds(optimizer))


def case(id_: str) -> Case:
    """The case of an id. Raises CaseError where it is none of a drawn case."""
    drawn = parsed(id_)
    if drawn is None or drawn.kind not in kinds(drawn.optimizer):
        msg = f"the id of a drawn case must be OPTIMIZER.drawn.SEED-KIND-ATTEMPT.f32, got {id_!r}"
        raise CaseError(msg)
    source = inputs.net(drawn.kind, drawn.dtype, id_) if drawn.optimizer == "thor" else _of(drawn)
    return golden.parse(source | {"id": id_, "tags": ["drawn", *source["tags"]]})


def asked(optimizer: str, seed: int, able: Callable[[Case], bool], dtypes: set[str]) -> list[Case]:
    """One case of each kind, and of THOR of two nets: the first attempt that is `able`.

    `dtypes`: of these each case has one, float32 and float64 in turn where both are there.
    """
    source, known = random.Random(f"{optimizer} {seed}"), kinds(optimizer)
    attempts = range(LAST + 1)
    if optimizer == "thor":  # a net needs what it needs
        known, attempts = source.sample(known, len(known)), range(1)
    full = [ending for ending in ("f32", "f64") if _ENDINGS[ending] in dtypes]
    endings = full or [ending for ending, dtype in _ENDINGS.items() if dtype in dtypes]
    first = source.randrange(2)
    found: list[Case] = []
    for kind in known if endings else ():
        ending = endings[(first + len(found)) % len(endings)]
        every = (case(f"{optimizer}.drawn.{seed}-{kind}-{n}.{ending}") for n in attempts)
        if len(found) < number(optimizer) and (one := next(filter(able, every), None)):
            found.append(one)
    return found


def _of(drawn: Drawn) -> dict[str, Any]:
    """The JSON object of a case of an optimizer of elements."""
    optimizer, kind = drawn.optimizer, KINDS[drawn.kind]
    source = random.Random(f"{optimizer} {drawn.seed} {drawn.kind} {drawn.attempt}")
    hyper, options = _hyper(drawn, source)
    half, f = drawn.dtype in ("float16", "bfloat16"), FORMATS[drawn.dtype]
    if half and float(hyper.get("epsilon", 1)) < 1e-3:
        hyper["epsilon"] = "0.25"
    low, high = (-1.5, 0.5) if half else kind.decades

    def number() -> float:
        if source.random() < kind.zeros:
            return source.choice((0.0, -0.0))
        return source.choice((-1, 1)) * float(10 ** source.uniform(low, high))

    def array(shape: list[int]) -> str:
        size = math.prod(shape)
        values = [number() for _ in range(min(size, DISTINCT) if kind.alike else size)]
        return to_bits((values * (size // DISTINCT + 1))[:size] if kind.alike else values, f)

    shapes = kind.shapes(source)
    if drawn.attempt >= LAST // 2:
        shapes = [max(shapes, key=math.prod)]  # of one that takes a single parameter
    steps = source.randint(*kind.steps)
    params = [{"dtype": drawn.dtype, "shape": x, "bits": array(x)} for x in shapes]
    grads: list[list[str | None]] = [[array(x) for x in shapes] for _ in range(steps)]
    if len(shapes) > 1 and source.random() < 0.3:
        grads[source.randrange(steps)][source.randrange(len(shapes))] = None
    return {
        "comment": f"Drawn with seed {drawn.seed}. {kind.what}",
        "tags": ["flush"] if kind.decades[0] < -10 else [],
        "hyper": hyper,
        "options": options,
        "params": params,
        "steps": steps,
        "record": [*range(1, steps + 1)],
        "grads": grads,
    }


def _hyper(drawn: Drawn, source: random.Random) -> tuple[dict[str, str], dict[str, int]]:
    optimizer = drawn.optimizer
    hyper = {name: draw(source) for name, draw in HYPER[optimizer].items()}
    if "epsilon" in hyper and drawn.kind in ("grid", "edges") and source.random() < 0.4:
        hyper["epsilon"] = source.choice(("1e-8", "1e-3"))
    bare = drawn.attempt > LAST // 2 and drawn.attempt % 2 == 1
    hyper |= {name: "0.0" for name in ("momentum", "momentum_decay") if bare and name in hyper}
    more = {
        name: draw(source)
        for name, (share, draw) in MORE[optimizer].items()
        if source.random() < share and not bare
    }
    if drawn.kind in ("large", "edges"):
        more = {name: x for name, x in more.items() if name not in NORMS}
    if {*more} >= NORMS:  # only one limit may be given
        del more["global_clipnorm"]
    if "nesterov" in more and (float(hyper["momentum"]) == 0 or "dampening" in more):
        del more["nesterov"]
    if "use_ema" in more:
        more |= {"ema_momentum": "0.9", "ema_overwrite_frequency": source.choice("23")}
    if optimizer == "nadam":
        hyper["weight_decay"] = "0.0"
    hyper |= {name: x for name, x in more.items() if name not in OPTIONS}
    return hyper, {name: int(name in more) for name in MORE[optimizer] if name in OPTIONS}


# -- a large array is judged by its different elements --------------------------------------------


def distinct(case: Case, run: Run) -> tuple[Case, Run]:
    """A drawn case and run with one element of those that were given and answered alike.

    What each was is kept in `elements` of the source, a list for each parameter.
    """
    drawn = parsed(case.id)
    if drawn is None or drawn.optimizer == "thor" or not KINDS[drawn.kind].alike or run.error:
        return case, run
    shown = [step[q] for steps in (run.steps, run.before) for step in steps.values() for q in step]
    elements = []
    for i, values in enumerate(case.params):
        given = [row[i] for row in case.grads] + [column[i] for column in shown]
        columns = [values, *(x for x in given if x is not None and len(x) == len(values))]
        table = np.ascontiguousarray(np.array(columns, dtype=np.float64).T)
        rows = table.view(f"V{table.itemsize * table.shape[1]}").ravel() if len(values) else table
        elements.append(sorted(np.unique(rows, return_index=True)[1].tolist()))
    kept = partial(_kept, elements, [len(values) for values in case.params])
    case = case._replace(
        shapes=[[len(chosen)] for chosen in elements],
        params=kept(case.params),
        grads=[kept(row) for row in case.grads],
        source=case.source | {"elements": elements},
    )
    steps, before = (
        {t: {q: kept(column) for q, column in step.items()} for t, step in steps.items()}
        for steps in (run.steps, run.before)
    )
    return case, run._replace(steps=steps, before=before)


def _kept(elements: list[list[int]], sizes: list[int], column: list[Any]) -> list[Any]:
    """The chosen elements of a column; what is no array of elements as it is."""
    return [
        [x[j] for j in chosen] if x is not None and len(x) == size else x
        for x, chosen, size in zip(column, elements, sizes, strict=True)
    ]
