"""The cases on which SGDs are recorded: inputs only, deterministic."""

from collections.abc import Callable
from typing import Any

from cases_nadam import BF16, BOTH, F16, SHORT, Case, bits, draw, shortest

DEFAULTS = {"lr": 0.125, "momentum": 0.0}
MOMENTUM = {"momentum": 0.75}
LR_CHANGES = {3: {"lr": 0.5}, 5: {"lr": 0.03125}}


def on(
    slug: str,
    comment: str,
    tags: str,
    *,
    family: str,
    sizes: tuple[int, ...] = (4,),
    absent: Callable[[int, int], bool] = lambda t, parameter: False,
    dtypes: tuple[str, ...] = BOTH,
    options: str = "",
    changes: dict[int, dict[str, float]] | None = None,
    **hyper: float,
) -> list[Case]:
    """The case in each of `dtypes`, on values of both signs over three decades.

    `absent` says where a gradient is None; `options` are switched on; `hyper` as given.
    """
    params = [draw(f"{slug} p{i}", n, -6, 0) for i, n in enumerate(sizes)]
    grads = [
        [None if absent(t, i) else draw(f"{slug} g{t} {i}", n, -8, 2) for i, n in enumerate(sizes)]
        for t in range(1, 5)
    ]
    given: dict[str, Any] = {}
    if changes:
        given["changes"] = {str(t): decimals(new) for t, new in changes.items()}
    return [
        given
        | {
            "id": f"sgd.{family}.{slug}.{SHORT[dtype]}",
            "comment": comment,
            "tags": tags.split(),
            "hyper": decimals(DEFAULTS | hyper),
            "options": dict.fromkeys(options.split(), 1),
            "params": [{"dtype": dtype, "shape": [len(p)], "bits": bits(p, dtype)} for p in params],
            "steps": 6,
            "record": [*range(1, 7)],
            "grads": [[None if g is None else bits(g, dtype) for g in row] for row in grads],
        }
        for dtype in dtypes
    ]


def decimals(hyper: dict[str, float]) -> dict[str, str]:
    return {name: shortest(value) for name, value in hyper.items()}


def usual(family: str) -> list[Case]:
    """What every release can express."""
    of: dict[str, Any] = {"family": family}
    moving = of | MOMENTUM
    return [
        *on("plain", "No momentum: the gradient alone.", "plain", changes=LR_CHANGES, **of),
        *on(
            "momentum",
            "The learning rate changes while momentum is under way: a buffer of changes parts from "
            "one of gradients.",
            "momentum lr",
            changes=LR_CHANGES,
            **moving,
        ),
        *on(
            "nesterov",
            "The direction looks one step ahead.",
            "nesterov momentum",
            options="nesterov",
            changes=LR_CHANGES,
            **moving,
        ),
        *on("half", "Half precision, with momentum.", "half momentum", dtypes=F16 + BF16, **moving),
    ]


def decay(**of: Any) -> list[Case]:
    """Weight decay without momentum and with it."""
    tags, found = "decay momentum", []
    for slug, hyper in (("weight-decay", {}), ("weight-decay-momentum", MOMENTUM)):
        comment = "Weight decay 0.25 on parameters of both signs: where it acts shows at step 1."
        found += on(slug, comment, tags, changes=LR_CHANGES, **hyper, **{"weight_decay": 0.25} | of)
    return found


def none(**of: Any) -> list[Case]:
    """A gradient that is None, at first and later."""
    return on(
        "none",
        "A parameter without a gradient keeps value and buffer.",
        "none momentum",
        sizes=(3, 2),
        absent=lambda t, parameter: (t, parameter) in {(1, 1), (3, 0)},
        **MOMENTUM | of,
    )


def torch() -> list[Case]:
    """torch: coupled decay, dampening that spares the first gradient, gradients that are None."""
    of: dict[str, Any] = {"family": "torch"}
    return [
        *usual("torch"),
        *decay(**of),
        *none(dampening=0.5, **of),
        *on(
            "dampening",
            "Dampening 0.5: the first gradient enters whole.",
            "momentum",
            **{"dampening": 0.5} | MOMENTUM | of,
        ),
        *on(
            "maximize",
            "The gradient is negated, and the decay added after that.",
            "maximize decay",
            options="maximize",
            **{"weight_decay": 0.25} | MOMENTUM | of,
        ),
    ]


def keras3() -> list[Case]:
    """Keras 3: decoupled decay, the learning rate inside the buffer."""
    return [*usual("keras-3"), *decay(family="keras-3"), *none(family="keras-3")]


def optax() -> list[Case]:
    """optax: no decay, and no gradient that is None."""
    return usual("optax")
