"""The cases on which real NAdam implementations are recorded: inputs only, deterministic.

Every case says in `comment` what it is for, and in `tags` which wrong semantics it separates from
the documented ones (names of the axes' choices). Hyperparameters are sharp on purpose: at their
defaults most wrong formulas stay within rounding error.
"""

import math
import random
import struct
from collections.abc import Iterable
from typing import Any

Case = dict[str, Any]
DEFAULTS = {
    "lr": 0.05,
    "beta1": 0.9,
    "beta2": 0.99,
    "epsilon": 1e-8,
    "weight_decay": 0.0,
    "momentum_decay": 1.0,
}
SHORT = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
}

DRAWN = ("sizes", "cycle", "size_of_param", "size_of_grad")

# ---------------------------------------------------------------------------------- inputs in bits


def hexadecimal(value: complex, dtype: str) -> str:
    """The big-endian IEEE pattern of a value rounded to `dtype`."""
    if dtype in ("complex64", "complex128"):
        part = "float32" if dtype == "complex64" else "float64"
        value = complex(value)
        return hexadecimal(value.real, part) + hexadecimal(value.imag, part)
    assert not isinstance(value, complex)
    if math.isnan(value):
        return {"float16": "7e00", "bfloat16": "7fc0", "float32": "7fc00000"}.get(
            dtype, "7ff8000000000000"
        )
    if dtype == "bfloat16":  # round the upper half of a float32 to nearest, ties to even
        (word,) = struct.unpack(">I", struct.pack(">f", value))
        return f"{(word + 0x7FFF + (word >> 16 & 1)) >> 16:04x}"
    return struct.pack({"float16": ">e", "float32": ">f", "float64": ">d"}[dtype], value).hex()


def bits(values: Iterable[complex], dtype: str) -> str:
    return "".join(hexadecimal(value, dtype) for value in values)


def draw(seed: str, count: int, low: int, high: int) -> list[float]:
    """Values of both signs with binary exponents from `low` to `high`, the same on any machine."""
    source = random.Random(seed)
    return [
        math.ldexp(source.choice((-1, 1)) * (1 + source.random()), source.randint(low, high))
        for _ in range(count)
    ]


def tensor(value: float, dtype: str, shape: list[int] | None = None) -> dict[str, Any]:
    """A hyperparameter that is a tensor."""
    return {"dtype": dtype, "bits": hexadecimal(value, dtype)} | ({"shape": shape} if shape else {})


def param(
    values: Iterable[complex],
    shape: list[int] | None = None,
    layout: str | None = None,
    dtype: str | None = None,
) -> dict[str, Any]:
    """A parameter before its dtype is known."""
    values = list(values)
    place = {"layout": layout} if layout else {}
    return {"values": values, "shape": [len(values)] if shape is None else shape, **place} | (
        {"dtype": dtype} if dtype else {}
    )


def pairs(steps: int) -> list[int]:
    """Steps to record: 1, 2, 3, a pair in the middle of a long run, and the last two."""
    middle = [steps // 2, steps // 2 + 1] if steps >= 8 else []
    return sorted({t for t in [1, 2, 3, *middle, steps - 1, steps] if 1 <= t <= steps})


def shortest(value: Any) -> Any:
    return value if isinstance(value, dict) else repr(float(value))


def case(
    slug: str,
    comment: str,
    tags: str,
    params: list[dict[str, Any]],
    grads: list[list[list[complex] | None]],
    *,
    dtype: str,
    steps: int,
    record: list[int] | None = None,
    groups: list[tuple[list[int], dict[str, Any]]] | None = None,
    changes: dict[int, dict[str, Any]] | None = None,
    maximize: int = 0,
    decoupled: int = 0,
    family: str = "torch",
    **hyper: Any,
) -> Case:
    """One case: values become bits of `dtype`, hyperparameters shortest decimals."""
    dtypes = [spec.get("dtype", dtype) for spec in params]
    made: Case = {
        "id": f"nadam.{family}.{slug}.{SHORT[dtype]}",
        "comment": comment,
        "tags": tags.split(),
        "hyper": {name: shortest(value) for name, value in (DEFAULTS | hyper).items()},
        "options": {"maximize": maximize, "decoupled_weight_decay": decoupled},
        "params": [
            {k: v for k, v in spec.items() if k != "values"}
            | {"dtype": kind, "bits": bits(spec["values"], kind)}
            for spec, kind in zip(params, dtypes, strict=True)
        ],
        "steps": steps,
        "record": record or pairs(steps),
        "grads": [
            [None if g is None else bits(g, kind) for g, kind in zip(row, dtypes, strict=True)]
            for row in grads
        ],
    }
    if groups:
        made["groups"] = [
            {"params": members, "hyper": {k: shortest(v) for k, v in overrides.items()}}
            for members, overrides in groups
        ]
    if changes:
        made["changes"] = {
            str(t): {k: shortest(v) for k, v in new.items()} for t, new in changes.items()
        }
    return made


def drawn(
    slug: str,
    sizes: tuple[int, ...] = (4,),
    cycle: int = 5,
    size_of_param: tuple[int, int] = (-6, 0),
    size_of_grad: tuple[int, int] = (-8, 2),
) -> tuple[list[dict[str, Any]], list[list[list[float] | None]]]:
    """Parameters and a cycle of gradients over three decades with both signs."""
    params = [param(draw(f"{slug} p{i}", n, *size_of_param)) for i, n in enumerate(sizes)]
    grads: list[list[list[float] | None]] = [
        [draw(f"{slug} g{t} {i}", n, *size_of_grad) for i, n in enumerate(sizes)]
        for t in range(cycle)
    ]
    return params, grads


def both(slug: str, comment: str, tags: str, **rest: Any) -> list[Case]:
    """The case in float32 and in float64, on the same values."""
    inputs = drawn(slug, **{k: rest.pop(k) for k in DRAWN if k in rest})
    return [
        case(slug, comment, tags, *inputs, dtype=dtype, **rest) for dtype in ("float32", "float64")
    ]


# -------------------------------------------------------------------------------- torch 2.13


def torch() -> list[Case]:
    """The cases of the torch recordings."""
    return sharp()


def sharp() -> list[Case]:
    """Few steps at hyperparameters that set wrong formulas far apart."""
    everything: dict[str, Any] = {"epsilon": 0.25, "weight_decay": 0.1, "steps": 12}
    return [
        *both(
            "sharp-l2-psi-1",
            "Large epsilon, L2 decay, psi 1: epsilon inside the root, before the correction or "
            "dropped, a constant schedule and a step off by one are far outside at step 1.",
            "epsilon schedule step-offset l2 v-hat correction which-m divisor",
            **everything,
        ),
        *both(
            "sharp-l2-psi-0.3",
            "As sharp-l2-psi-1 with psi 0.3, since psi 1 cannot tell 0.96^(psi t) from 0.96^t.",
            "epsilon schedule psi step-offset l2 v-hat correction",
            momentum_decay=0.3,
            **everything,
        ),
        *both(
            "sharp-decoupled",
            "Decoupled decay of lr*wd = 1/4 a step: after the step instead of before, without lr, "
            "or added to the gradient is far outside.",
            "decoupled decay-order decay-without-lr l2",
            decoupled=1,
            steps=8,
            lr=0.5,
            weight_decay=0.5,
            epsilon=0.25,
            momentum_decay=0.3,
        ),
        *both(
            "product-float32",
            "beta1 0.9999 with psi 1000: the product stays near 1, so one minus it shows the "
            "float32 rounding of the product.",
            "product-dtype",
            steps=12,
            beta1=0.9999,
            momentum_decay=1000.0,
            epsilon=0.25,
        ),
        *both(
            "two-variables",
            "Two parameters: a product that advances once per variable differs from step 1.",
            "product-per-variable counter",
            sizes=(3, 2),
            steps=8,
            momentum_decay=0.3,
            epsilon=0.001,
        ),
        *both(
            "lr-changed",
            "The learning rate rises tenfold before step 4: a formula that keeps lr inside the "
            "moments differs from there on.",
            "changes lr",
            steps=6,
            changes={4: {"lr": 0.5}},
            momentum_decay=0.3,
            epsilon=0.25,
        ),
        *both(
            "betas-changed",
            "Both betas change before step 4: the product continues, the correction by beta2^t "
            "uses the new beta2 for all steps.",
            "changes beta1 beta2",
            steps=6,
            changes={4: {"beta1": 0.5, "beta2": 0.8}},
            momentum_decay=0.3,
            epsilon=0.01,
        ),
        *both(
            "tiny-gradients",
            "Gradients near 1e-7 at the default epsilon 1e-8: epsilon placed elsewhere, or 1e-7 as "
            "in Keras, is far outside.",
            "epsilon",
            steps=6,
            size_of_grad=(-26, -22),
            momentum_decay=0.3,
        ),
        *none_patterns(),
    ]


def none_patterns() -> list[Case]:
    made = []
    for dtype in ("float32", "float64"):
        params, grads = drawn("none-alternating", (2, 2))
        made.append(
            case(
                "none-alternating",
                "The second parameter has no gradient on odd steps: its counter, product, moments "
                "and decay stand still; a shared counter differs from step 2.",
                "none counter product-per-variable decoupled",
                params,
                [[a, b if t % 2 else None] for t, (a, b) in enumerate(grads[:4])],
                dtype=dtype,
                steps=8,
                momentum_decay=0.3,
                epsilon=0.01,
                weight_decay=0.1,
                decoupled=1,
            )
        )
    return made
