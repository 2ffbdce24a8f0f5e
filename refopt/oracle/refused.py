"""Input that an implementation has to refuse (`must-reject`), and what refopt's objects do with it.

Such a vector has one fault; its `repair` has what stands in the place of the fault in an input that
is like it and right. Who refuses that as well refuses for another reason.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.interp.formats import FORMATS, from_bits
from refopt.optim import layers
from refopt.optim.nadam import NAdam
from refopt.optim.parameter import Parameter
from refopt.optim.rmsprop import RMSprop
from refopt.optim.thor import THOR
from refopt.oracle import golden, power, spec
from refopt.oracle.golden import Case
from refopt.oracle.own import numpy_run
from refopt.typing import Profile

ACCEPTS = "accepts"
"""What a vector of this class kills: an implementation that takes the input as it is."""

MADE, STEPPED = "made", "stepped"
KINDS: dict[str, tuple[tuple[str, type[Exception]], ...]] = {
    # a schedule ends at a step
    "invalid-hyperparameter": ((MADE, ValueError), (MADE, TypeError), (STEPPED, IndexError)),
    "shape-mismatch": ((STEPPED, ValueError),),
    "missing-gradient": ((STEPPED, ValueError),),
    "missing-statistics": ((STEPPED, ValueError), (STEPPED, KeyError)),
}
"""Why a case is refused: when a Python object raises, and what."""

Source = dict[str, Any]


def must(case: Case) -> bool:
    """Whether a case has to be refused."""
    return case.source.get("class") == golden.MUST_REJECT


def wrong(source: Source) -> str:
    """What refopt's object does wrong with such a vector; empty where it refuses as it must."""
    when, error = raised(source)
    if error is None:
        return "accepts what must be refused"
    if not any(when == at and isinstance(error, type_) for at, type_ in KINDS[source["kind"]]):
        return f"refuses with {error!r} when it is {when}, which is no {source['kind']}"
    _, error = raised(source | source["repair"])
    return "" if error is None else f"refuses what is right: {error!r}"


def kills(source: Source, profile: Profile) -> list[str]:
    """Who does not refuse: whoever checks nothing, and alternatives that give numbers."""
    if not any(isinstance(x, list) for x in source["hyper"].values()):
        return [ACCEPTS]
    case = golden.parse({k: x for k, x in source.items() if k not in ("kind", "repair")})
    rule = spec.RULES[case.id.partition(".")[0]]
    refuses = bool(numpy_run(case, profile).error)
    return [
        ACCEPTS,
        *(
            f"{axis}={name}"
            for axis, named in rule.AXES.items()
            for name, choice in named.items()
            if refuses and not numpy_run(case, profile, {axis: choice}).error
        ),
    ]


def clauses(source: Source) -> list[str]:
    """The clauses of the hyperparameters that are wrong, and of the refusal by `exercised`."""
    data = spec.load(source["id"].partition(".")[0])
    hyper = source["hyper"]
    names = [k for k, x in source["repair"].get("hyper", hyper).items() if x != hyper.get(k)]
    names += [k for k in hyper if k not in source["repair"].get("hyper", hyper)]
    words = [f"refused-{name}" for name in names] or [f"refused-{source['kind']}"]
    found = {data["hyperparameters"][name]["clause"] for name in names}
    for word in words:
        found |= {*data["exercised"].get(word, ())}
    for word, special in data["exercised"].items():
        found -= {*special} if {*word.split("+")} & power.SPECIAL else set()
    return sorted(found, key=[clause["id"] for clause in data["clauses"]].index)


def raised(source: Source) -> tuple[str, Exception | None]:
    """(when, what) refopt's object raises on an input; None where it takes it."""
    optimizer, when = source["id"].partition(".")[0], MADE
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            step = OBJECTS[optimizer](source)
            when = STEPPED
            for t in range(1, source["steps"] + 1):
                grads = source["grads"][(t - 1) % len(source["grads"])]
                step(t, [_gradient(g, p) for g, p in zip(grads, source["params"], strict=True)])
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
        return when, error
    return when, None


# -- objects --------------------------------------------------------------------------------------

Step = Callable[[int, list[Any]], object]


def _array(bits: str, dtype: str, shape: list[int]) -> Any:
    return np.array(from_bits(bits, FORMATS[dtype]), dtype).reshape(shape)


def _gradient(bits: str | None, param: Source) -> Any:
    """A gradient; one of another number of elements is a vector of those."""
    if bits is None:
        return None
    dtype, shape = param["dtype"], param["shape"]
    fits = len(bits) * 4 == math.prod(shape) * FORMATS[dtype].width
    return _array(bits, dtype, shape if fits else [-1])


def _params(source: Source) -> list[Parameter]:
    return [Parameter(_array(p["bits"], p["dtype"], p["shape"])) for p in source["params"]]


def _arguments(source: Source) -> dict[str, Any]:
    """The keyword arguments of the documented object."""
    described = spec.load(source["id"].partition(".")[0])["hyperparameters"]
    given: dict[str, Any] = {}
    for name, text in source["hyper"].items():
        whole = "whole" in described[name]["range"]
        x = [*map(float, text)] if isinstance(text, list) else float(text)
        keyword, _, place = described[name]["keyword"].partition("[")
        if place:  # betas[0], betas[1]
            given.setdefault(keyword, [0.0, 0.0])[int(place[0])] = x
        else:
            given[keyword] = int(x) if whole and isinstance(x, float) and x.is_integer() else x
    return given | {name: bool(on) for name, on in source["options"].items()}


def _nadam(source: Source) -> Step:
    params = _params(source)
    optimizer = NAdam(params, **_arguments(source))

    def step(_: int, grads: list[Any]) -> None:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()

    return step


def _rmsprop(source: Source) -> Step:
    params = _params(source)
    optimizer = RMSprop(**_arguments(source))
    return lambda _, grads: optimizer.apply_gradients(zip(grads, params, strict=True))


def _thor(source: Source) -> Step:
    params = _params(source)
    net = [_layer(layer, [params[i] for i in layer["params"]]) for layer in source["layers"]]
    optimizer = THOR(net, **_arguments(source))

    def step(t: int, grads: list[Any]) -> None:
        given = source.get("statistics", {}).get(str(t), {})
        seen = {
            q: {
                name: _array(x[q]["bits"], x[q]["dtype"], x[q]["shape"])
                for name, x in given.items()
            }
            for q in ("a", "ds")
        }
        optimizer(grads, activations=seen["a"], output_gradients=seen["ds"])

    return step


def _layer(source: Source, params: list[Parameter]) -> layers.Layer:
    kinds = {"dense": layers.Dense, "norm": layers.LayerNorm, "other": layers.Other}
    return kinds[source["kind"]](source["name"], *params)


OBJECTS: dict[str, Callable[[Source], Step]] = {
    "nadam": _nadam,
    "rmsprop": _rmsprop,
    "thor": _thor,
}
"""By optimizer: the documented object, and what steps it."""
