"""The cases on which NAdams outside PyTorch are recorded: inputs only, deterministic.

Each function gives one implementation's cases, in what that implementation can express. Where it
has no momentum_decay, the value that its formula fixes (or nothing depends on) is written.
"""

from collections.abc import Callable
from typing import Any

from cases_nadam import SHORT, Case, bits, draw

DEFAULTS = {
    "lr": 0.05,
    "beta1": 0.9,
    "beta2": 0.99,
    "epsilon": 1e-8,
    "weight_decay": 0.0,
    "momentum_decay": 1.0,
}
SHARP: dict[str, Any] = {"epsilon": 0.25, "steps": 12, "record": [1, 2, 3, 6, 7, 11, 12]}


def both(
    slug: str,
    comment: str,
    tags: str,
    *,
    family: str,
    sizes: tuple[int, ...] = (4,),
    exponents: tuple[int, int] = (-8, 2),
    absent: Callable[[int, int], bool] = lambda t, variable: False,
    maximize: int = 0,
    decoupled: int = 0,
    **rest: Any,
) -> list[Case]:
    """The case in float32 and float64, on values of both signs drawn from binary `exponents`."""
    params = [draw(f"{slug} p{i}", n, -6, 0) for i, n in enumerate(sizes)]
    grads = [
        [
            None if absent(t, i) else draw(f"{slug} g{t} {i}", n, *exponents)
            for i, n in enumerate(sizes)
        ]
        for t in range(1, 5)
    ]
    hyper = DEFAULTS | {name: rest.pop(name) for name in DEFAULTS if name in rest}
    return [
        rest
        | {
            "id": f"nadam.{family}.{slug}.{SHORT[dtype]}",
            "comment": comment,
            "tags": tags.split(),
            "hyper": {name: repr(value) for name, value in hyper.items()},
            "options": {"maximize": maximize, "decoupled_weight_decay": decoupled},
            "params": [{"dtype": dtype, "shape": [len(p)], "bits": bits(p, dtype)} for p in params],
            "grads": [[None if g is None else bits(g, dtype) for g in row] for row in grads],
        }
        for dtype in ("float32", "float64")
    ]


def epsilon(**rest: Any) -> list[Case]:
    return both(
        "epsilon-large",
        "Epsilon 0.25 against gradients over three decades: where epsilon stands, whether the "
        "second moment is corrected, and the step count show at step 1.",
        "epsilon correction step-offset v-hat which-m divisor",
        **SHARP | rest,
    )


def psi(**rest: Any) -> list[Case]:
    return both(
        "psi-0.3",
        "psi 0.3: separates 0.96^(psi t) from 0.96^t and from a constant momentum.",
        "schedule psi step-offset",
        **SHARP | {"momentum_decay": 0.3} | rest,
    )


def defaults(**hyper: Any) -> list[Case]:
    return both(
        "defaults",
        "The defaults of this implementation; little is decided in float32.",
        "defaults",
        steps=20,
        record=[1, 2, 3, 9, 10, 19, 20],
        exponents=(-12, 3),
        **hyper,
    )


def two_variables(**rest: Any) -> list[Case]:
    return both(
        "two-variables",
        "Two variables and 20 steps: whether counter and product advance once a step or once a "
        "variable.",
        "counter product",
        sizes=(3, 2),
        **SHARP | {"steps": 20, "record": [1, 2, 3, 9, 10, 19, 20]} | rest,
    )


def three_variables(**rest: Any) -> list[Case]:
    return both(
        "three-variables",
        "As two-variables with three, since a product that skips its k-th variable at step k "
        "needs a third.",
        "counter product",
        sizes=(2, 3, 2),
        **SHARP | rest,
    )


def changed_lr(**rest: Any) -> list[Case]:
    return both(
        "lr-changed",
        "The learning rate changes before steps 4 and 8 while momentum is under way.",
        "lr-dtype momentum",
        sizes=(4, 2),
        changes={"4": {"lr": "0.2"}, "8": {"lr": "0.0125"}},
        **SHARP | {"record": [1, 3, 4, 7, 8, 11, 12]} | rest,
    )


def changed_betas(**rest: Any) -> list[Case]:
    return both(
        "betas-changed",
        "Both betas change before step 4: whether the corrections remember what they were.",
        "product correction",
        changes={"4": {"beta1": "0.5", "beta2": "0.9"}},
        **SHARP | {"steps": 6, "record": [1, 2, 3, 4, 5, 6]} | rest,
    )


def decay(**rest: Any) -> list[Case]:
    return both(
        "weight-decay",
        "Weight decay of lr*wd = 1/4 a step: L2, decoupled before or after the step, or without "
        "lr are far apart.",
        "l2 decoupled decay-order decay-without-lr",
        **{"lr": 0.5, "weight_decay": 0.5, "epsilon": 0.25, "steps": 8, "record": [1, 2, 3, 7, 8]}
        | rest,
    )


def inexact_decay(**rest: Any) -> list[Case]:
    return both(
        "weight-decay-inexact",
        "Weight decay 0.3, which float32 does not hold: the dtype in which it is kept shows.",
        "decoupled scalar-dtype",
        **{"lr": 0.5, "weight_decay": 0.3, "epsilon": 0.25, "steps": 3, "record": [1, 2, 3]} | rest,
    )


def none_pattern(**rest: Any) -> list[Case]:
    return both(
        "none-at-odd-steps",
        "The second variable has no gradient at odd steps: whether it is left alone, and whether "
        "its counter and product are its own.",
        "counter none",
        sizes=(3, 2),
        absent=lambda t, variable: t % 2 == 1 and variable == 1,
        **SHARP | rest,
    )


def keras_legacy() -> list[Case]:
    """TensorFlow 2.9: psi is an argument, no weight decay, one counter and product."""
    of = {"family": "keras-legacy"}
    return [
        *defaults(lr=0.001, beta2=0.999, epsilon=1e-7, momentum_decay=0.004, **of),
        *epsilon(**of),
        *psi(**of),
        *two_variables(momentum_decay=0.3, **of),
        *three_variables(**of),
        *none_pattern(**of),
        *changed_lr(**of),
    ]


def keras2() -> list[Case]:
    """TensorFlow 2.15, eager and graph; a None gradient would trace the graph anew."""
    return keras("keras-2.15", profiles=["keras-2.15"])


def keras3() -> list[Case]:
    """Keras 3 on JAX."""
    return keras("keras-3")


def keras3_tensorflow() -> list[Case]:
    """Keras 3 on TensorFlow."""
    return keras("keras-3-tensorflow")


def keras3_torch() -> list[Case]:
    """Keras 3 on torch."""
    return keras("keras-3-torch")


def keras(family: str, profiles: list[str] | None = None) -> list[Case]:
    """Since 2.11: psi is 1, decoupled decay, one counter and product.

    `profiles` are the ones that can leave a variable out; None: all.
    """
    of = {"family": family}
    left_out = [made | ({"profiles": profiles} if profiles else {}) for made in none_pattern(**of)]
    return [
        *defaults(lr=0.001, beta2=0.999, epsilon=1e-7, **of),
        *epsilon(**of),
        *two_variables(**of),
        *three_variables(**of),
        *decay(decoupled=1, sizes=(4, 2), **of),
        *inexact_decay(decoupled=1, **of),
        *left_out,
        *changed_lr(**of),
    ]


def optax() -> list[Case]:
    """optax: constant momentum; nadamw where the decay is not 0."""
    of = {"family": "optax"}
    return [
        *defaults(lr=0.001, beta2=0.999, **of),
        *epsilon(**of),
        *two_variables(**of),
        *decay(decoupled=1, sizes=(4, 2), **of),
        *changed_lr(**of),
        *changed_betas(**of),
    ]


def timm() -> list[Case]:
    """timm NAdamW: constant momentum, decoupled decay, a counter for each parameter."""
    of = {"family": "timm"}
    return [
        *defaults(lr=0.001, beta2=0.999, weight_decay=0.01, decoupled=1, **of),
        *epsilon(**of),
        *two_variables(**of),
        *decay(decoupled=1, sizes=(4, 2), **of),
        *none_pattern(weight_decay=0.1, decoupled=1, **of),
        *changed_lr(maximize=1, **of),
        *changed_betas(**of),
    ]


def paddle() -> list[Case]:
    """Paddle: psi is an argument, L2 decay, a counter for each parameter."""
    of = {"family": "paddle"}
    return [
        *defaults(lr=0.002, beta2=0.999, momentum_decay=0.004, **of),
        *epsilon(**of),
        *psi(**of),
        *two_variables(momentum_decay=0.3, **of),
        *decay(sizes=(4, 2), **of),
        *none_pattern(weight_decay=0.1, **of),
        *changed_lr(**of),
    ]


def mindspore() -> list[Case]:
    """MindSpore, experimental: psi is an argument, L2 decay, one counter."""
    of = {"family": "mindspore"}
    return [
        *defaults(lr=0.002, beta2=0.999, momentum_decay=0.004, **of),
        *epsilon(**of),
        *psi(**of),
        *two_variables(momentum_decay=0.3, **of),
        *decay(sizes=(4, 2), **of),
        *changed_lr(**of),
    ]
