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
# The capturable path decides little, for its scalars are float32: it runs on the sharp cases only.
USUAL = ["torch-2.13", "torch-2.13-foreach", "torch-2.13-differentiable"]
EVERY = [*USUAL, "torch-2.13-capturable"]
F32, F64, F16, BF16 = ("float32",), ("float64",), ("float16",), ("bfloat16",)
BOTH, HALF = F32 + F64, F16 + BF16
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
    """Steps to record: the first two, a pair in the middle of a long run, and the last two."""
    middle = [steps // 2, steps // 2 + 1] if steps >= 20 else []
    return sorted({t for t in [1, 2, *middle, steps - 1, steps] if 1 <= t <= steps})


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
    profiles: list[str] | None = None,
    **hyper: Any,
) -> Case:
    """One case: values become bits of `dtype`, hyperparameters shortest decimals."""
    assert hyper.keys() <= DEFAULTS.keys(), hyper
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
    if profiles:
        made["profiles"] = profiles
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
    cycle: int = 4,
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


def on(
    slug: str,
    comment: str,
    tags: str,
    dtypes: tuple[str, ...] = BOTH,
    params: list[dict[str, Any]] | None = None,
    grads: list[list[list[complex] | None]] | None = None,
    **rest: Any,
) -> list[Case]:
    """The case in float32 and float64, or in each of `dtypes`, on the same values.

    Parameters and gradients are drawn where they are not given.
    """
    drawn_params, drawn_grads = drawn(slug, **{k: rest.pop(k) for k in DRAWN if k in rest})
    inputs = (params or drawn_params, grads or drawn_grads)
    return [case(slug, comment, tags, *inputs, dtype=dtype, **rest) for dtype in dtypes]


# ---------------------------------------------------------------------------------- torch 2.13


def torch() -> list[Case]:
    """The cases of the torch recordings."""
    cases = [
        *sharp(),
        *hyperparameters(),
        *maximized(),
        *dtypes(),
        *layouts(),
        *groups(),
        *none_and_zero(),
        *changes(),
        *tensor_lr(),
        *values(),
        *long_runs(),
    ]
    return [{"profiles": USUAL, **made} for made in cases]


def sharp() -> list[Case]:
    """Few steps at hyperparameters that set wrong formulas far apart."""
    everything: dict[str, Any] = {
        "epsilon": 0.25,
        "weight_decay": 0.1,
        "steps": 6,
        "profiles": EVERY,
    }
    return [
        *on(
            "sharp-l2-psi-1",
            "Large epsilon, L2 decay, psi 1: epsilon inside the root, before the correction or "
            "dropped, a constant schedule and a step off by one are far outside at step 1.",
            "epsilon schedule step-offset l2 v-hat correction which-m divisor",
            record=[1, 2, 3, 5, 6],
            **everything,
        ),
        *on(
            "sharp-l2-psi-0.3",
            "As sharp-l2-psi-1 with psi 0.3, since psi 1 cannot tell 0.96^(psi t) from 0.96^t.",
            "epsilon schedule psi base step-offset l2 v-hat correction which-m divisor",
            record=[1, 2, 3, 5, 6],
            momentum_decay=0.3,
            **everything,
        ),
        *on(
            "sharp-decoupled",
            "Decoupled decay of lr*wd = 1/4 a step: after the step instead of before, without lr, "
            "or added to the gradient is far outside.",
            "decoupled decay-order decay-without-lr l2 epsilon",
            decoupled=1,
            steps=6,
            lr=0.5,
            weight_decay=0.5,
            epsilon=0.25,
            momentum_decay=0.3,
            profiles=EVERY,
        ),
        *on(
            "product-float32",
            "beta1 0.9999 with psi 1000: the product stays near 1, so one minus it shows the "
            "float32 rounding of the product.",
            "product-dtype coefficient-dtype",
            steps=6,
            beta1=0.9999,
            momentum_decay=1000.0,
            epsilon=0.25,
            record=[1, 2, 3, 5, 6],
        ),
        *on(
            "product-float32-30-steps",
            "As product-float32 over 30 steps at beta1 0.99999, two parameters.",
            "product-dtype coefficient-dtype",
            F32,
            sizes=(2, 1),
            steps=30,
            beta1=0.99999,
            momentum_decay=1000.0,
            epsilon=0.25,
        ),
        *on(
            "two-variables",
            "Two parameters: a product that advances once per variable differs from step 1.",
            "product-per-variable counter",
            sizes=(3, 2),
            steps=4,
            momentum_decay=0.3,
            epsilon=0.001,
            profiles=EVERY,
        ),
        *on(
            "three-variables",
            "Three parameters of one step count, psi 1: the graph-mode product of Keras 2 (once "
            "per variable but one) and a shared product both differ.",
            "product-per-variable counter schedule",
            sizes=(2, 1, 2),
            steps=4,
            epsilon=0.25,
        ),
        *on(
            "constant-gradient",
            "The same gradient at every step: v_hat equals its square, so the step size is a "
            "closed form of the schedule alone.",
            "schedule step-offset correction product-start divisor",
            cycle=1,
            steps=5,
            momentum_decay=0.3,
            epsilon=0.25,
        ),
        *on(
            "alternating-signs",
            "The gradient changes sign at every step: the previous moment in place of the new one, "
            "or the gradient in its place, moves the other way.",
            "which-m divisor",
            params=[param([0.75, -0.0625, 0.5])],
            grads=[[[1.0, -0.25, 0.015625]], [[-1.0, 0.25, -0.015625]]],
            steps=5,
            beta1=0.5,
            momentum_decay=0.3,
            epsilon=0.01,
            profiles=EVERY,
        ),
        *on(
            "small-beta2",
            "beta2 0.5: an extra factor beta2 on v_hat is a factor 0.7 in the step, and a missing "
            "bias correction decays within a few steps.",
            "v-hat correction",
            steps=6,
            beta2=0.5,
            momentum_decay=0.3,
            epsilon=0.25,
        ),
        *on(
            "tiny-gradients",
            "Gradients near 1e-7 at the default epsilon 1e-8: epsilon placed elsewhere, or 1e-7 as "
            "in Keras, is far outside.",
            "epsilon",
            steps=4,
            size_of_grad=(-26, -22),
            momentum_decay=0.3,
            profiles=EVERY,
        ),
    ]


def hyperparameters() -> list[Case]:
    """Each hyperparameter at its edges."""
    few: dict[str, Any] = {"steps": 4, "momentum_decay": 0.3}
    return [
        *on(
            "defaults",
            "Torch's own defaults, 20 steps: the control; little is decided here in float32.",
            "control",
            steps=20,
            lr=0.002,
            beta2=0.999,
            momentum_decay=0.004,
            profiles=EVERY,
        ),
        *on(
            "lr-zero",
            "lr 0 with L2 decay: parameters stand still, moments do not.",
            "lr l2",
            **(few | {"lr": 0.0, "weight_decay": 0.1}),
        ),
        *on(
            "lr-zero-decoupled",
            "lr 0 with decoupled decay: nothing decays; decay without lr does.",
            "lr decoupled decay-without-lr",
            F32,
            decoupled=1,
            **(few | {"lr": 0.0, "weight_decay": 0.1}),
        ),
        *on("lr-huge", "lr 1e6: the parameter is forgotten at once.", "lr", lr=1e6, **few),
        *on("lr-tiny", "lr 1e-12: steps below half an ulp.", "lr", F32, lr=1e-12, **few),
        *on(
            "lr-infinite",
            "lr inf: parameters become infinite, then NaN.",
            "lr inf",
            F32,
            lr=math.inf,
            **few,
        ),
        *on(
            "lr-overflow",
            "lr 1e39 exceeds float32: torch refuses the coefficient at the step.",
            "lr inf error",
            F32,
            **(few | {"lr": 1e39}),
        ),
        *on("lr-1e39", "lr 1e39 is finite in float64.", "lr huge", F64, **(few | {"lr": 1e39})),
        *on(
            "beta1-zero",
            "beta1 0: every mu is 0, the product is 0 after one step.",
            "beta1 divisor",
            beta1=0.0,
            epsilon=0.25,
            **few,
        ),
        *on(
            "beta1-0.01",
            "beta1 below 1/2: lerp starts from the gradient, with a weight rounded before.",
            "beta1 which-m",
            beta1=0.01,
            epsilon=0.25,
            **few,
        ),
        *on(
            "beta1-0.3",
            "beta1 below 1/2: lerp starts from the gradient, with a weight rounded before.",
            "beta1 which-m",
            beta1=0.3,
            epsilon=0.25,
            **few,
        ),
        *on(
            "beta2-zero",
            "beta2 0: v is the squared gradient, the correction is 1.",
            "beta2 correction",
            beta2=0.0,
            epsilon=0.25,
            **few,
        ),
        *on(
            "betas-zero",
            "Both betas 0: a normalised gradient step.",
            "beta1 beta2",
            F32,
            beta1=0.0,
            beta2=0.0,
            epsilon=0.25,
            **few,
        ),
        *on(
            "beta1-0.9999",
            "beta1 0.9999: the first moment hardly moves.",
            "beta1 product-dtype",
            beta1=0.9999,
            epsilon=0.001,
            **few,
        ),
        *on(
            "beta2-0.9999",
            "beta2 0.9999: the bias correction is large.",
            "beta2 correction",
            beta2=0.9999,
            epsilon=0.01,
            profiles=EVERY,
            **few,
        ),
        *on(
            "beta2-0.9999999",
            "beta2 0.9999999: 1 - beta2^t in float32 is off by up to a fifth, so scalars in "
            "float32 show.",
            "beta2 correction scalar-dtype",
            beta2=0.9999999,
            profiles=EVERY,
            **few,
        ),
        *on("epsilon-zero", "epsilon 0.", "epsilon", F32, epsilon=0.0, **few),
        *on(
            "epsilon-0.001",
            "epsilon 1e-3 with gradients about as large.",
            "epsilon",
            size_of_grad=(-14, -6),
            epsilon=0.001,
            **few,
        ),
        *on(
            "epsilon-dominates",
            "epsilon 0.25 over gradients of 1e-6: inside the root it counts by its root.",
            "epsilon",
            size_of_grad=(-22, -18),
            lr=10.0,
            epsilon=0.25,
            **few,
        ),
        *on(
            "epsilon-huge",
            "epsilon 1e30: the step vanishes beside the parameter.",
            "epsilon",
            F32,
            epsilon=1e30,
            **few,
        ),
        *on(
            "l2-0.1",
            "L2 decay 0.1 at default epsilon.",
            "l2 decoupled",
            weight_decay=0.1,
            **few,
        ),
        *on(
            "l2-0.5-large-parameters",
            "L2 decay 0.5 of parameters far larger than the gradients: decay dominates.",
            "l2 decoupled",
            F32,
            size_of_param=(0, 5),
            weight_decay=0.5,
            epsilon=0.25,
            **few,
        ),
        *on(
            "decoupled-0.1",
            "Decoupled decay 0.1 at default epsilon.",
            "decoupled decay-order decay-without-lr",
            decoupled=1,
            weight_decay=0.1,
            **few,
        ),
        *on(
            "decoupled-flips-sign",
            "lr*wd is 3: decoupled decay multiplies by -2.",
            "decoupled decay-order",
            F32,
            decoupled=1,
            **(few | {"lr": 1.5, "weight_decay": 2.0, "epsilon": 0.25}),
        ),
        *on(
            "decoupled-flag-without-decay",
            "The decoupled flag with decay 0 changes nothing.",
            "decoupled",
            F32,
            decoupled=1,
            **few,
        ),
        *(
            made
            for psi, dtypes in ((0.0, BOTH), (0.004, F64), (1000.0, F32), (1e9, F32))
            for made in on(
                f"psi-{psi:g}".replace("e+09", "e9"),
                f"momentum_decay {psi:g}: mu is beta1/2 at 0 and beta1 at infinity.",
                "psi schedule",
                dtypes,
                steps=4,
                momentum_decay=psi,
                epsilon=0.01,
                beta1=0.8,
            )
        ),
        *on(
            "psi-0.006-large-lr",
            "momentum_decay 6e-3 as in torch's own tests, lr 0.5.",
            "psi",
            F32,
            steps=4,
            momentum_decay=0.006,
            lr=0.5,
            weight_decay=0.9,
        ),
    ]


def maximized() -> list[Case]:
    """`maximize`, alone and with both decays."""
    few: dict[str, Any] = {
        "steps": 4,
        "momentum_decay": 0.3,
        "epsilon": 0.01,
        "maximize": 1,
        "weight_decay": 0.3,
    }
    return [
        *on("maximize", "The gradient is negated.", "maximize", **(few | {"weight_decay": 0.0})),
        *on(
            "maximize-l2",
            "L2 decay is added after the negation: it still shrinks the parameter.",
            "maximize l2",
            profiles=EVERY,
            **few,
        ),
        *on(
            "maximize-decoupled",
            "Decoupled decay under maximize still shrinks the parameter.",
            "maximize decoupled",
            decoupled=1,
            **few,
        ),
    ]


def dtypes() -> list[Case]:
    """Half precision and complex numbers."""
    few: dict[str, Any] = {"steps": 4, "momentum_decay": 0.3, "epsilon": 0.25, "lr": 0.25}
    z = [0.5 - 0.25j, -1.5 + 0.75j]
    dz: list[list[list[complex] | None]] = [
        [[1.0 + 0.03125j, -0.5 + 2.0j]],
        [[-0.125 - 1.0j, 0.0625 + 0.25j]],
        [[0.5 + 0.5j, 1.0 - 0.0078125j]],
    ]
    complexes = ("complex64", "complex128")
    return [
        *on("half", "Sharp hyperparameters.", "half epsilon", HALF, profiles=EVERY, **few),
        *on(
            "half-l2",
            "L2 decay 0.1, which torch rounds to the parameter's dtype.",
            "half l2",
            HALF,
            weight_decay=0.1,
            **few,
        ),
        *on(
            "half-decoupled",
            "Decoupled decay 0.5.",
            "half decoupled",
            HALF,
            decoupled=1,
            weight_decay=0.5,
            **few,
        ),
        *on(
            "half-maximize",
            "maximize with L2 decay.",
            "half maximize l2",
            BF16,
            maximize=1,
            weight_decay=0.5,
            **few,
        ),
        *on(
            "half-defaults",
            "Torch's defaults; in bfloat16 v*0.999 rounds back to v, so v never decays.",
            "half beta2",
            HALF,
            steps=20,
            lr=0.002,
            beta2=0.999,
            momentum_decay=0.004,
        ),
        *on(
            "half-33-elements",
            "33 elements with L2 decay: a whole vector of 32 and a tail, which torch rounds "
            "differently.",
            "half l2 position",
            BF16,
            sizes=(33,),
            cycle=2,
            weight_decay=0.1,
            record=[1, 2],
            **(few | {"steps": 2}),
        ),
        *on(
            "half-zero-gradient",
            "Gradient 0 at epsilon 1e-8, which is 0 in float16: 0/0 is NaN there, 0 in bfloat16.",
            "half zero epsilon nan",
            HALF,
            params=[param([0.5, -0.25])],
            grads=[[[0.0, 1.0]]],
            steps=2,
        ),
        *on(
            "half-lr-overflow",
            "lr 1e6 exceeds float16 but not the float32 in which torch computes.",
            "half lr inf",
            F16,
            **(few | {"lr": 1e6, "steps": 2}),
        ),
        *on(
            "half-subnormal",
            "Subnormal gradients and parameters, epsilon 0.",
            "half subnormal epsilon",
            HALF,
            params=[param([1e-7, -3e-6, 0.0, 2e-5])],
            grads=[[[2e-7, -5e-6, 1e-5, 3e-4]], [[-6e-6, 1e-7, 1e-3, -2e-4]]],
            **(few | {"epsilon": 0.0, "steps": 2}),
        ),
        *on(
            "half-overflow",
            "Gradients of 100, 300, 6000 and 30000 in float16: v overflows, and the root of the "
            "quotient overflows before the quotient of the roots.",
            "half root overflow",
            F16,
            params=[param([0.5, 0.5, 0.5, 0.5])],
            grads=[[[100.0, 300.0, 6000.0, -30000.0]]],
            steps=3,
            beta2=0.999,
            momentum_decay=0.3,
        ),
        *on(
            "complex",
            "Complex parameters are pairs of reals: v holds the squares of both parts.",
            "complex epsilon",
            complexes,
            params=[param(z)],
            grads=dz,
            profiles=EVERY,
            **few,
        ),
        *on(
            "complex-l2-maximize",
            "L2 decay and maximize on complex parameters.",
            "complex l2 maximize",
            complexes,
            params=[param(z)],
            grads=dz,
            maximize=1,
            weight_decay=0.3,
            **few,
        ),
        *on(
            "complex-decoupled-mixed",
            "A complex and a real parameter in one group, decoupled decay.",
            "complex decoupled",
            ("complex64",),
            params=[param(z), param([0.5, -0.25], dtype="float32")],
            grads=[[*row, [0.25, -1.0]] for row in dz],
            decoupled=1,
            weight_decay=0.5,
            **few,
        ),
        *on(
            "complex-scalar-with-none",
            "A 0-d complex parameter without a gradient at the first step.",
            "complex none counter",
            ("complex128",),
            params=[param([0.5 - 0.25j], []), param([1.0 + 0.5j])],
            grads=[[None, [0.25 - 2.0j]], [[1.0 + 0.5j], [0.5 + 0.5j]]],
            **few,
        ),
        *on(
            "mixed-dtypes",
            "A float32 and a float64 parameter in one group: each product is a float32.",
            "dtype product-dtype",
            F64,
            params=[
                param(draw("mixed a", 3, -4, 0), dtype="float32"),
                param(draw("mixed b", 3, -4, 0)),
            ],
            grads=[[draw(f"mixed g{t}", 3, -6, 1), draw(f"mixed h{t}", 3, -6, 1)] for t in "123"],
            weight_decay=0.1,
            **few,
        ),
    ]


def layouts() -> list[Case]:
    """Shapes and memory layouts: none of them may change a number."""
    few: dict[str, Any] = {
        "steps": 3,
        "momentum_decay": 0.3,
        "epsilon": 0.25,
        "weight_decay": 0.1,
        "record": [1, 2, 3],
    }

    def shaped(
        slug: str, comment: str, shape: list[int], layout: str | None = None, **rest: Any
    ) -> list[Case]:
        size = math.prod(shape)
        dtypes = rest.pop("dtypes", F32)
        params = [param(draw(f"{slug} p", size, -4, 0), shape, layout)]
        grads: list[list[list[complex] | None]] = [
            [[*draw(f"{slug} g{t}", size, -6, 1)]] for t in range(3)
        ]
        return on(slug, comment, "layout", dtypes, params=params, grads=grads, **(few | rest))

    return [
        *shaped("scalar", "A 0-d parameter.", [], dtypes=BOTH, profiles=EVERY),
        *shaped("one-element", "One element in one dimension.", [1]),
        *shaped("empty", "No elements: only the counter and the product move.", [0]),
        *shaped("empty-2d", "Shape (2, 0, 3).", [2, 0, 3]),
        *shaped("four-dimensional", "Shape (2, 1, 2, 2).", [2, 1, 2, 2]),
        *shaped("fortran", "Column-major (2, 3).", [2, 3], "F", dtypes=BOTH),
        *shaped("fortran-3d", "Reversed strides, shape (2, 2, 2).", [2, 2, 2], "F"),
        *shaped("strided", "Every second element of a buffer.", [5], "strided", dtypes=BOTH),
        *shaped("strided-2d", "Every second column, decoupled.", [2, 2], "strided", decoupled=1),
        *shaped("strided-half", "Every second element.", [4], "strided", dtypes=BF16, lr=0.25),
        *on(
            "layouts-mixed",
            "A 0-d, an empty, a column-major and a strided parameter together.",
            "layout counter",
            F32,
            params=[
                param([0.5], []),
                param([], [0]),
                param(draw("mixed F", 4, -4, 0), [2, 2], "F"),
                param(draw("mixed S", 2, -4, 0), [2], "strided"),
            ],
            grads=[
                [[1.0], [], draw("mixed F1", 4, -6, 1), draw("mixed S1", 2, -6, 1)],
                [[-0.25], [], draw("mixed F2", 4, -6, 1), draw("mixed S2", 2, -6, 1)],
            ],
            **few,
        ),
    ]


def groups() -> list[Case]:
    """Parameter groups with their own hyperparameters."""
    few: dict[str, Any] = {"steps": 4, "momentum_decay": 0.3, "epsilon": 0.25}
    return [
        *on(
            "groups-lr",
            "Two groups, the second with lr 0.5.",
            "groups lr",
            sizes=(2, 2),
            groups=[([0], {}), ([1], {"lr": 0.5})],
            **few,
        ),
        *on(
            "groups-everything",
            "Two groups that differ in every hyperparameter.",
            "groups",
            sizes=(2, 2),
            groups=[
                ([0], {"weight_decay": 0.1}),
                (
                    [1],
                    {
                        "lr": 0.5,
                        "beta1": 0.5,
                        "beta2": 0.8,
                        "epsilon": 0.01,
                        "weight_decay": 0.4,
                        "momentum_decay": 1.0,
                    },
                ),
            ],
            profiles=EVERY,
            **few,
        ),
        *on(
            "groups-three-none",
            "Three groups listed out of order, one of them without gradients at first.",
            "groups none counter",
            F32,
            params=[param([0.5, -0.25]), param([1.5]), param([-0.75])],
            grads=[
                [[1.0, -0.125], None, [0.5]],
                [[-0.25, 2.0], [0.0625], [-1.0]],
                [None, [1.0], [0.25]],
            ],
            groups=[([2], {"beta1": 0.6}), ([0], {}), ([1], {"momentum_decay": 1.0})],
            decoupled=1,
            weight_decay=0.5,
            **few,
        ),
        *on(
            "groups-changed",
            "Two groups whose epsilon and lr change for all before step 3.",
            "groups changes",
            F32,
            sizes=(2, 2),
            groups=[([0], {"lr": 0.01}), ([1], {"weight_decay": 0.4})],
            changes={3: {"lr": 0.2, "epsilon": 0.001}},
            **few,
        ),
    ]


def none_and_zero() -> list[Case]:
    """Gradients that are absent, and gradients that are zero."""
    few: dict[str, Any] = {"momentum_decay": 0.3, "epsilon": 0.01, "weight_decay": 0.1}
    (params, grads) = drawn("none", (2, 2))
    first = [[a, b] for a, b in grads]

    def pattern(slug: str, comment: str, tags: str, shown: str, **rest: Any) -> list[Case]:
        """`shown` has one digit a step: bit 1 the first gradient is there, bit 2 the second."""
        made = [
            [a if int(digit) & 1 else None, b if int(digit) & 2 else None]
            for digit, (a, b) in zip(shown, first * 2, strict=False)
        ]
        dtypes = rest.pop("dtypes", BOTH)
        rest.setdefault("steps", len(shown))
        return on(slug, comment, f"none {tags}", dtypes, params, made, **(few | rest))

    return [
        *pattern(
            "none-alternating",
            "The second gradient is None on odd steps: counter, product, moments and decay of that "
            "parameter stand still; a shared counter differs from step 2.",
            "counter product-per-variable decoupled",
            "13",
            steps=6,
            decoupled=1,
            record=[1, 2, 3, 4, 5, 6],
            profiles=EVERY,
        ),
        *pattern(
            "none-late",
            "The second parameter gets its first gradient at step 4.",
            "counter",
            "11133",
            record=[3, 4, 5],
        ),
        *pattern(
            "none-pause",
            "The first parameter pauses for two steps.",
            "counter l2",
            "33223",
            record=[2, 3, 4, 5],
        ),
        *pattern(
            "none-first-step",
            "No gradient at all at step 1: no state is made.",
            "counter state",
            "033",
            dtypes=F32,
            record=[1, 2, 3],
        ),
        *pattern(
            "none-always",
            "The second parameter never has a gradient: it has no state and no decay.",
            "decoupled state",
            "111",
            decoupled=1,
            dtypes=F32,
        ),
        *pattern(
            "none-maximize",
            "The two take turns, maximize with L2 decay.",
            "maximize l2 counter",
            "1212",
            maximize=1,
            dtypes=F32,
        ),
        *on(
            "zero-gradients",
            "Gradients of zero are not None: moments and counter move, L2 decay acts.",
            "zero l2",
            params=params,
            grads=[[[0.0, 0.0], [0.0, 0.0]]],
            steps=4,
            **few,
        ),
        *on(
            "zero-gradients-decoupled",
            "One parameter has zero gradients, the other none after step 1: only the first decays.",
            "zero none decoupled",
            F32,
            params=params,
            grads=[[[1.0, -0.5], [0.25, 2.0]], [[0.0, 0.0], None], [[0.0, -0.0], None]],
            steps=3,
            record=[1, 2, 3],
            decoupled=1,
            **few,
        ),
        *on(
            "zero-over-zero",
            "Gradient 0 at epsilon 0: 0/0, NaN from then on.",
            "zero epsilon nan",
            params=[param([0.5, -0.25])],
            grads=[[[0.0, 1.0]], [[1.0, 0.0]]],
            steps=3,
            epsilon=0.0,
        ),
    ]


def changes() -> list[Case]:
    """Hyperparameters set between steps."""
    few: dict[str, Any] = {
        "steps": 5,
        "record": [2, 3, 4, 5],
        "momentum_decay": 0.3,
        "epsilon": 0.25,
    }
    return [
        *on(
            "lr-changed",
            "The learning rate rises tenfold before step 3: a formula that keeps lr inside the "
            "moments differs from there on.",
            "changes lr",
            changes={3: {"lr": 0.5}},
            profiles=EVERY,
            **few,
        ),
        *on(
            "betas-changed",
            "Both betas change before step 3: the product continues, and the correction takes the "
            "new beta2 for all steps.",
            "changes beta1 beta2 correction",
            changes={3: {"beta1": 0.5, "beta2": 0.8}},
            **few,
        ),
        *on(
            "psi-changed",
            "momentum_decay changes before step 3 and again before step 4.",
            "changes psi",
            changes={3: {"momentum_decay": 5.0}, 4: {"momentum_decay": 0.0}},
            **few,
        ),
        *on(
            "epsilon-and-decay-changed",
            "epsilon and weight decay change before step 3.",
            "changes epsilon l2",
            F32,
            changes={3: {"epsilon": 0.01, "weight_decay": 0.5}},
            **few,
        ),
        *on(
            "everything-changed",
            "Every hyperparameter changes before step 3, back before step 5; decoupled decay.",
            "changes decoupled",
            F64,
            decoupled=1,
            changes={
                3: {
                    "lr": 0.5,
                    "beta1": 0.6,
                    "beta2": 0.9,
                    "epsilon": 0.01,
                    "weight_decay": 0.5,
                    "momentum_decay": 2.0,
                },
                5: {
                    "lr": 0.05,
                    "beta1": 0.9,
                    "beta2": 0.99,
                    "epsilon": 0.25,
                    "weight_decay": 0.0,
                    "momentum_decay": 0.3,
                },
            },
            **few,
        ),
    ]


def tensor_lr() -> list[Case]:
    """A learning rate that is a tensor: the for-loop computes its coefficients in that dtype."""
    kinds = [
        ("f32", "float32", None),
        ("f64", "float64", None),
        ("bf16", "bfloat16", None),
        ("f32-1d", "float32", [1]),
        ("f64-1d", "float64", [1]),
    ]
    made = [
        made
        for slug, kind, shape in kinds
        for made in on(
            f"lr-tensor-{slug}",
            f"lr is a {len(shape or [])}-d tensor of {kind}, decoupled decay.",
            "lr tensor-lr decoupled",
            F64 if shape else BOTH,
            lr=tensor(0.3, kind, shape),
            steps=3,
            record=[1, 2, 3],
            momentum_decay=0.3,
            epsilon=0.25,
            decoupled=1,
            weight_decay=0.5,
        )
    ]
    return [
        *made,
        *on(
            "lr-tensor-changed",
            "A float becomes a float32 tensor, then a float64 tensor of another value.",
            "lr tensor-lr changes",
            F64,
            changes={2: {"lr": tensor(0.3, "float32")}, 3: {"lr": tensor(0.7, "float64")}},
            steps=4,
            record=[1, 2, 3, 4],
            momentum_decay=0.3,
            epsilon=0.25,
        ),
        *on(
            "lr-tensor-half",
            "A float32 tensor lr on bfloat16 parameters.",
            "lr tensor-lr half",
            BF16,
            lr=tensor(0.3, "float32"),
            steps=2,
            momentum_decay=0.3,
            epsilon=0.25,
        ),
    ]


def values() -> list[Case]:
    """Numbers at the ends of the format, and what is no number."""
    few: dict[str, Any] = {"steps": 3, "record": [1, 2, 3], "momentum_decay": 0.3}
    nan, inf = math.nan, math.inf
    half = [0.5, -0.25, 0.75, -1.5]
    return [
        *on(
            "nan-gradient",
            "NaN in one element at one step: that element is NaN for ever, the others untouched.",
            "nan",
            F32,
            params=[param(half)],
            grads=[[[1.0, nan, -0.5, 0.25]], [[0.5, 1.0, 1.0, -2.0]], [[1.0, 1.0, 1.0, 1.0]]],
            **few,
        ),
        *on(
            "infinite-gradient",
            "Infinities of both signs: m and v infinite, the step NaN.",
            "inf nan",
            params=[param(half)],
            grads=[[[inf, -inf, 1.0, 0.25]], [[1.0, 1.0, -0.5, inf]]],
            **few,
        ),
        *on(
            "infinite-gradient-beta1-zero",
            "An infinite gradient at beta1 0: torch's lerp makes m NaN instead of infinite.",
            "inf nan beta1",
            F32,
            params=[param(half)],
            grads=[[[inf, 1.0, -inf, 0.25]], [[1.0, 1.0, -0.5, 1.0]]],
            beta1=0.0,
            **few,
        ),
        *on(
            "odd-parameters",
            "NaN, infinity, the largest finite number and zero as parameters, with L2 decay.",
            "nan inf l2",
            F32,
            params=[param([nan, inf, 3.4028234663852886e38, 0.0])],
            grads=[[[1.0, 1.0, -1.0, 0.5]]],
            weight_decay=0.1,
            **few,
        ),
        *on(
            "odd-parameters-decoupled",
            "The same parameters under decoupled decay.",
            "nan inf decoupled",
            F32,
            params=[param([nan, -inf, 3.4028234663852886e38, 0.0])],
            grads=[[[1.0, 1.0, -1.0, 0.5]]],
            weight_decay=0.1,
            decoupled=1,
            **few,
        ),
        *on(
            "negative-zero",
            "Minus zero as parameter and gradient, both signs.",
            "zero signed-zero",
            params=[param([-0.0, 0.0, -0.0, 0.0])],
            grads=[[[-0.0, -0.0, 0.0, 0.0]], [[0.0, -0.0, -0.0, 1.0]]],
            **few,
        ),
        *on(
            "overflow",
            "Gradients around the overflow of v in float32: the root of the quotient overflows at "
            "1.8e19 at step 1, the quotient of the roots at 5.8e20.",
            "root overflow",
            F32,
            params=[param(half)],
            grads=[[[1e18, 3e19, -3e20, 1e21]], [[1.0, 1.0, 1.0, 1.0]]],
            beta2=0.999,
            **few,
        ),
        *on(
            "overflow",
            "As in float32, around 1e154.",
            "root overflow",
            F64,
            params=[param(half)],
            grads=[[[1e150, 2e154, -2e155, 1e156]], [[1.0, 1.0, 1.0, 1.0]]],
            beta2=0.999,
            **few,
        ),
        *on(
            "huge-gradients",
            "Large and finite everywhere: 1e6 to 1e12.",
            "huge",
            F32,
            size_of_grad=(20, 40),
            **few,
        ),
        *on(
            "underflow",
            "Gradients of 1e-30 to 1e-19: their squares underflow, so the step is g/epsilon or "
            "almost nothing.",
            "underflow epsilon",
            F32,
            params=[param([1e-22, -1e-24, 1e-12, 1e-13])],
            grads=[[[1e-30, -1e-25, 3e-21, 1e-19]], [[2e-30, 1e-25, -1e-21, 1e-19]]],
            **few,
        ),
        *on(
            "subnormal-gradients",
            "Subnormal gradients: the first moment is subnormal, the second underflows to 0.",
            "subnormal underflow",
            F32,
            params=[param([0.0, 1e-38, -1e-40, 2e-45])],
            grads=[[[1e-40, -1e-41, 1e-44, 1e-38]], [[-1e-40, 1e-39, 1e-42, 3e-45]]],
            **few,
        ),
        *on(
            "subnormal-gradients",
            "As in float32, below 2.2e-308.",
            "subnormal underflow",
            F64,
            params=[param([0.0, 1e-307, -1e-315, 1e-323])],
            grads=[[[1e-310, -1e-315, 5e-324, 1e-308]], [[-1e-310, 1e-309, 1e-320, 2e-323]]],
            **few,
        ),
        *on(
            "subnormal-parameters",
            "Subnormal parameters that the step replaces and that L2 decay reads.",
            "subnormal l2",
            F32,
            params=[param([1e-40, -1e-42, 1e-39, 1e-45])],
            grads=[[[1e-3, 0.0, 0.0, -1.0]], [[0.0, 0.0, 1e-38, 1.0]]],
            weight_decay=0.5,
            epsilon=0.25,
            **few,
        ),
        *on(
            "large-parameters",
            "Parameters of 1e5: a step is a few ulp in float32.",
            "huge",
            F32,
            params=[param([1e5, -3e5, 1e6, 2e4])],
            grads=[[[1.0, -0.5, 0.25, 2.0]], [[0.5, 1.0, -1.0, 1.0]]],
            **few,
        ),
        *on(
            "zero-parameters",
            "Parameters that start at zero: the first step is seen in full precision.",
            "epsilon schedule divisor correction",
            params=[param([0.0, 0.0, 0.0, 0.0])],
            grads=[[[1.0, -0.25, 0.01, 3.0]], [[-0.5, 1.0, 0.02, 1.0]], [[0.1, 0.1, -1.0, 0.5]]],
            epsilon=0.25,
            **few,
        ),
    ]


def long_runs() -> list[Case]:
    """Many steps: products that vanish, corrections that end, roundings that add up."""
    return [
        *on(
            "long-100",
            "100 steps, L2 decay.",
            "long l2",
            steps=100,
            momentum_decay=0.3,
            epsilon=0.01,
            weight_decay=0.1,
            sizes=(3,),
            cycle=7,
        ),
        *on(
            "long-150-product-vanishes",
            "Torch's defaults: the float32 product is subnormal from step 111 and 0 from 132.",
            "long product-dtype underflow",
            F32,
            steps=150,
            record=[1, 2, 110, 111, 131, 132, 149, 150],
            lr=0.002,
            beta2=0.999,
            momentum_decay=0.004,
            sizes=(2,),
            profiles=EVERY,
        ),
        *on(
            "long-200-decoupled",
            "200 steps of decoupled decay in float32 and bfloat16.",
            "long decoupled",
            F32 + BF16,
            steps=200,
            decoupled=1,
            weight_decay=0.1,
            momentum_decay=0.3,
            epsilon=0.01,
            sizes=(3,),
            cycle=5,
        ),
        *on(
            "one-step",
            "A single step, from nothing.",
            "plain",
            params=[param([0.5, -1.25, 3.0])],
            grads=[[[1.0, -0.0625, 0.25]]],
            steps=1,
            record=[1],
            beta1=0.9,
            beta2=0.999,
            momentum_decay=0.3,
            epsilon=0.25,
        ),
        *on(
            "long-300",
            "300 steps, beta1 0.99, two parameters one of which pauses.",
            "long none counter",
            params=[param([0.5, -1.25]), param([0.75])],
            grads=[
                [[1.0, -0.0625], [0.5]],
                [[-0.25, 0.5], None],
                [[0.125, 2.0], [-0.5]],
                [[0.03125, -1.0], None],
                [[-1.0, 0.25], [0.25]],
            ],
            steps=300,
            record=[1, 2, 99, 100, 299, 300],
            beta1=0.99,
            beta2=0.999,
            momentum_decay=0.3,
            epsilon=0.001,
        ),
    ]
